"""Augmentations: the published values, torchvision's distributions, torchvision's pixels, and the same again."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from mixview.data.augment.params import (
    PACKED,
    UNIFORMS,
    AugmentParams,
    params_from_uniform,
    sample_operations,
    sample_params,
    view_generator,
)
from mixview.data.augment.policies import (
    RANDAUGMENT_OPERATIONS,
    Augmentation,
    Blur,
    Crop,
    Jitter,
    Normalize,
    RandAugment,
    load_policy,
    names,
)
from mixview.data.augment.reference import apply, make_views, operate
from mixview.data.synthetic.scenes import Scenes
from tests.data.writing import needs_data, real

MANY = 3000


def sample(augmentation: Augmentation, height: int, width: int, count: int = MANY) -> list[AugmentParams]:
    generator = torch.Generator().manual_seed(0)
    return [sample_params(augmentation, height, width, generator) for _ in range(count)]


def picture(channels: int = 3, height: int = 40, width: int = 50) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (channels, height, width), generator=generator, dtype=torch.uint8)


def same(first: list[float], second: list[float]) -> bool:
    """Whether two samples may well have one distribution."""
    return bool(kstest(first, second).pvalue > 1e-4)


# The published values.


def test_the_names() -> None:
    methods = [
        "byol",
        "dino",
        "infomin",
        "mocov1",
        "mocov1-multi-crop",
        "mocov2",
        "simclr",
        "simsiam",
        "swav-multi-crop",
        "vicreg",
    ]
    assert list(names()) == [*methods, *(f"{name}-small" for name in methods)]
    assert load_policy("simsiam") == load_policy("mocov2")


def test_published_values() -> None:
    simclr, _ = load_policy("simclr")
    assert simclr.crop == Crop(224, (0.08, 1.0), (3 / 4, 4 / 3))
    assert simclr.jitter == Jitter(0.8, 0.8, 0.8, 0.2, 0.8)
    assert (simclr.grayscale, simclr.blur, simclr.solarize) == (0.2, Blur(0.5, (0.1, 2.0)), 0)
    assert simclr.blur.width(224) == 23
    mocov1, _ = load_policy("mocov1")
    assert mocov1.crop.scale == (0.2, 1.0)
    assert mocov1.jitter == Jitter(0.4, 0.4, 0.4, 0.4, 1.0)
    assert (mocov1.grayscale, mocov1.blur, mocov1.order) == (0.2, None, ("grayscale", "jitter"))
    mocov2, _ = load_policy("mocov2")
    assert mocov2.crop.scale == (0.2, 1.0)
    assert mocov2.jitter == Jitter(0.4, 0.4, 0.4, 0.1, 0.8)
    assert (mocov2.grayscale, mocov2.blur) == (0.2, Blur(0.5, (0.1, 2.0)))
    first, second = load_policy("byol")
    for byol in (first, second):
        assert byol.crop.scale == (0.08, 1.0)
        assert byol.jitter == Jitter(0.4, 0.4, 0.2, 0.1, 0.8)
        assert byol.grayscale == 0.2
    assert first.blur is not None
    assert second.blur is not None
    assert (first.blur.p, second.blur.p, first.solarize, second.solarize) == (1.0, 0.1, 0, 0.2)
    infomin, _ = load_policy("infomin")
    assert infomin.randaugment == RandAugment(2, 10, 0.5, 0.5)
    assert infomin.order == ("jitter", "blur", "randaugment", "grayscale")


@pytest.mark.parametrize("name", [name for name in names() if name.endswith("-small")])
def test_small_ones_are_for_32_pixels_and_do_not_blur(name: str) -> None:
    for augmentation in load_policy(name):
        assert augmentation.blur is None
    assert [each.crop.size for each in load_policy(name)[:2]] == [32, 32]
    assert load_policy(name, size=64)[1].crop.size == 64
    assert [each.crop.scale for each in load_policy(name, min_crop_scale=0.5)[:2]] == [(0.5, 1.0)] * 2


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean mocov2"):
        load_policy("moco-v2")
    with pytest.raises(ValueError, match="did you mean simclr"):
        load_policy("SimCLR")
    with pytest.raises(ValueError, match="there are byol, dino, infomin"):
        load_policy("???")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Crop(0), "crop.size must be a whole number, at least 1 and at most 4096, got 0"),
        (
            lambda: Crop(scale=(0.5, 0.2)),
            r"crop.scale must be the smaller and the larger limit, got \[0.5, 0.2\]: swap",
        ),
        (lambda: Crop(ratio=(0, 1)), "crop.ratio must be a list of 2, each a number, more than 0"),
        (lambda: Crop(interpolation="cubic"), "got 'cubic'"),
        (lambda: Jitter(hue=0.6), "jitter.hue must be a number, at least 0 and at most 0.5, got 0.6"),
        (lambda: Jitter(contrast=-1), "jitter.contrast must be a number, at least 0, got -1"),
        (lambda: Jitter(p=2), "jitter.p must be a number, at least 0 and at most 1, got 2"),
        (lambda: Blur(kernel=4), "got 4: use 5"),
        (lambda: Blur(sigma=(0, 1)), "blur.sigma must be a list of 2, each a number, more than 0"),
        (lambda: RandAugment(9), "randaugment.operations must be a whole number, at least 0 and at most 4, got 9"),
        (
            lambda: RandAugment(magnitude=11),
            "randaugment.magnitude must be a number, at least 0 and at most 10, got 11",
        ),
        (lambda: Normalize((0.5,), (0.0,)), "normalize.std must be a list, each a number, more than 0"),
        (lambda: Augmentation(grayscale=1.5), "grayscale must be a number, at least 0 and at most 1, got 1.5"),
        (lambda: Augmentation(order=("grayscale", "grayscale")), "each step at most once"),
    ],
)
def test_a_wrong_value_raises_with_the_remedy(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


# Draws have torchvision's distributions.


@pytest.mark.parametrize("shape", [(375, 500), (32, 32), (40, 200), (300, 30)])
@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.2, 1.0)])
def test_crops_are_distributed_as_torchvision_s(shape: tuple[int, int], scale: tuple[float, float]) -> None:
    theirs = v2.RandomResizedCrop(224, scale=scale)
    image = torch.zeros(3, *shape)
    torch.manual_seed(0)
    expected = [theirs.make_params([image]) for _ in range(MANY)]
    sampled = sample(Augmentation(crop=Crop(scale=scale)), *shape)
    for key in ("top", "left", "height", "width"):
        assert same(
            [getattr(params, key) for params in sampled], [expected_params[key] for expected_params in expected]
        ), key
    for params in sampled:
        assert 0 <= params.top <= params.top + params.height <= shape[0]
        assert 0 <= params.left <= params.left + params.width <= shape[1]


@pytest.mark.parametrize("shape", [(10, 1000), (1000, 10), (1, 1), (1, 7)])
def test_a_crop_that_never_fits_falls_back_as_torchvision_s(shape: tuple[int, int]) -> None:
    crop = Crop(scale=(1.0, 1.0), ratio=(0.9, 1.1))
    theirs = v2.RandomResizedCrop(224, scale=crop.scale, ratio=crop.ratio).make_params([torch.zeros(3, *shape)])
    ours = sample(Augmentation(crop=crop), *shape, count=1)[0]
    assert {key: getattr(ours, key) for key in theirs} == theirs


def test_jitter_is_distributed_as_torchvision_s() -> None:
    jitter = Jitter(0.8, 1.5, 0.2, 0.1, p=0.8)
    theirs = v2.ColorJitter(0.8, 1.5, 0.2, 0.1)
    torch.manual_seed(0)
    expected = [theirs.make_params([]) for _ in range(MANY)]
    sampled = sample(Augmentation(jitter=jitter), 32, 32)
    for key in ("brightness", "contrast", "saturation", "hue"):
        assert same(
            [getattr(params, key) for params in sampled],
            [expected_params[f"{key}_factor"] for expected_params in expected],
        ), key
    orders = [tuple(params["fn_idx"].tolist()) for params in expected]
    for order in set(orders):
        assert orders.count(order) == pytest.approx(sum(params.order == order for params in sampled), abs=80)
    assert np.mean([params.jitter for params in sampled]) == pytest.approx(0.8, abs=0.03)


def test_blur_is_distributed_as_torchvision_s() -> None:
    theirs = v2.GaussianBlur(23, (0.1, 2.0))
    torch.manual_seed(0)
    expected = [theirs.make_params([])["sigma"][0] for _ in range(MANY)]
    sigmas = [params.sigma for params in sample(load_policy("simclr")[0], 32, 32)]
    assert same([sigma for sigma in sigmas if sigma], expected)
    assert np.mean([sigma > 0 for sigma in sigmas]) == pytest.approx(0.5, abs=0.03)


def test_flags_come_as_often_as_they_say() -> None:
    sampled = sample(Augmentation(flip=0.3, grayscale=0.2, solarize=0.1, blur=Blur(p=1.0)), 32, 32)
    for key, p in (("flip", 0.3), ("grayscale", 0.2), ("solarize", 0.1), ("sigma", 1.0)):
        assert np.mean([bool(getattr(params, key)) for params in sampled]) == pytest.approx(p, abs=0.03), key
    assert not any(params.jitter for params in sampled)


def test_randaugment_takes_each_operation_as_often() -> None:
    sampled = sample(load_policy("infomin")[0], 32, 32)
    operations = [operation for params in sampled for operation in params.operations]
    assert len(operations) / MANY == pytest.approx(1.0, abs=0.05)  # two, each half the time
    counts = np.bincount([which for which, _ in operations], minlength=len(RANDAUGMENT_OPERATIONS))
    assert counts.min() > 0.7 * counts.mean()
    strengths = np.abs([magnitude for _, magnitude in operations])
    assert (strengths == 10).mean() == pytest.approx(0.5, abs=0.05)  # half of the noise is clipped
    assert strengths.min() > 7
    assert np.mean([magnitude > 0 for _, magnitude in operations]) == pytest.approx(0.5, abs=0.05)
    assert sample_operations(None, []) == ()


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=UNIFORMS, max_size=UNIFORMS), st.sampled_from(names()))
@settings(max_examples=60, deadline=None)
def test_any_numbers_make_a_draw_that_packs_and_unpacks(uniform: list[float], name: str) -> None:
    for augmentation in load_policy(name):
        params = params_from_uniform(augmentation, 37, 61, uniform)
        assert len(params.pack()) == PACKED
        assert AugmentParams.unpack(params.pack()) == params
        assert AugmentParams.unpack(np.array(params.pack()).tolist()) == params


def test_views_have_random_numbers_of_their_own_by_seed_epoch_and_index() -> None:
    keys = [(0, 0, 5), (1, 0, 5), (0, 1, 5), (0, 0, 6)]
    assert len({float(torch.rand((), generator=view_generator(*key))) for key in keys}) == 4


def test_augmentations_under_one_seed_share_their_choices() -> None:
    sampled = [
        sample_params(load_policy(name)[0], 100, 100, view_generator(0, 1, 2))
        for name in ("mocov2", "mocov1", "infomin")
    ]
    assert len({params[:5] for params in sampled}) == 1


# Pixels are torchvision's.


def test_apply_is_torchvision_operation_by_operation() -> None:
    image = picture()
    augmentation = Augmentation(
        crop=Crop(32), jitter=Jitter(0.4, 0.4, 0.4, 0.1), grayscale=0.2, blur=Blur(kernel=5), solarize=0.2
    )
    params = AugmentParams(3, 4, 20, 30, True, True, 1.3, 0.7, 1.2, 0.05, (3, 1, 0, 2), False, 1.5, True)
    view = F.resized_crop(F.to_dtype(image, torch.float32, scale=True), 3, 4, 20, 30, [32, 32], antialias=True)
    view = F.adjust_hue(F.horizontal_flip(view), 0.05)
    view = F.adjust_saturation(F.adjust_brightness(F.adjust_contrast(view, 0.7), 1.3), 1.2)
    view = F.solarize(F.gaussian_blur(view, [5, 5], [1.5, 1.5]), 0.5)
    view = F.normalize(view, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    torch.testing.assert_close(apply(image, augmentation, params), view, rtol=0, atol=1e-5)
    gray = apply(image, augmentation, params._replace(grayscale=True, solarize=False))
    plain = gray * torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1) + torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    torch.testing.assert_close(plain[0], plain[2])


def test_nothing_drawn_is_nothing_done() -> None:
    image = picture(3, 32, 32)
    params = AugmentParams(0, 0, 32, 32, False, False, 1, 1, 1, 0, (0, 1, 2, 3), False, 0.0, False)
    for name in names():
        view = apply(image, Augmentation(crop=Crop(32), normalize=None), params)
        torch.testing.assert_close(view, image / 255)
        assert apply(image, load_policy(name, 32)[0], params).shape == (3, 32, 32)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 13])
@pytest.mark.parametrize("name", ["simclr", "byol", "infomin"])
def test_any_number_of_channels(name: str, channels: int) -> None:
    image = picture(channels, 30, 40)
    for epoch in range(10):
        for view in make_views(image, 0, epoch, 0, load_policy(name, size=24)):
            assert view.shape == (channels, 24, 24)
            assert view.dtype == torch.float32
            assert view.isfinite().all()


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("operation", RANDAUGMENT_OPERATIONS)
@pytest.mark.parametrize("magnitude", [10.0, -6.0, 0.0])
def test_every_operation_keeps_an_image_an_image(operation: str, magnitude: float, channels: int) -> None:
    view = picture(channels, 24, 24) / 255
    before = view.clone()
    result = operate(view, operation, magnitude)
    assert result.shape == view.shape
    assert result.min() >= 0
    assert result.max() <= 1
    assert torch.equal(view, before)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 50), (3, 2), (500, 4)])
def test_tiny_images_have_views(height: int, width: int) -> None:
    for name in names():
        policy = load_policy(name, size=8)
        for view, augmentation in zip(make_views(picture(3, height, width), 0, 0, 0, policy), policy, strict=True):
            assert view.shape == (3, augmentation.size, augmentation.size)
            assert view.isfinite().all()


def test_floating_point_images_are_as_good_as_bytes() -> None:
    image = picture()
    for one, other in zip(
        make_views(image, 0, 0, 0, load_policy("byol", 16)),
        make_views(image / 255, 0, 0, 0, load_policy("byol", 16)),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_a_draw_for_another_size_raises() -> None:
    augmentation = load_policy("simclr")[0]
    params = sample_params(augmentation, 500, 500, torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="sample them for the size of this image"):
        apply(picture(3, 20, 20), augmentation, params)
    with pytest.raises(ValueError, match=r"expected an image \[C, H, W\]"):
        apply(picture()[0], augmentation, params)
    with pytest.raises(ValueError, match="has no views"):
        sample_params(augmentation, 0, 5, torch.Generator())


# The same again.


def test_views_are_a_function_of_seed_epoch_and_index() -> None:
    image, pair = picture(), load_policy("byol", 16)
    first = make_views(image, 1, 2, 3, pair)
    torch.manual_seed(99)
    again = make_views(image, 1, 2, 3, pair)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    for others in ((2, 2, 3), (1, 3, 3), (1, 2, 4), (12, 3, 0)):
        assert not torch.equal(first[0], make_views(image, *others, pair)[0])
    assert not torch.equal(*first)


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for name in names():
        make_views(picture(), 0, 0, 0, load_policy(name, 16))
    assert torch.equal(before, torch.get_rng_state())


def test_a_draw_can_be_replayed() -> None:
    image = torch.from_numpy(Scenes(1, 64).read(0).copy()).permute(2, 0, 1)
    augmentation = load_policy("infomin", 32)[0]
    for seed in range(20):
        params = sample_params(augmentation, 64, 64, torch.Generator().manual_seed(seed))
        replayed = AugmentParams.unpack(params.pack())
        assert torch.equal(apply(image, augmentation, params), apply(image, augmentation, replayed))


@needs_data
def test_photographs() -> None:
    from PIL import Image

    files = sorted(real("photos").glob("*.JPEG"))[:6]
    for name in ("simclr", "byol", "infomin"):
        for index, file in enumerate(files):
            with Image.open(file) as opened:
                image = torch.from_numpy(np.array(opened.convert("RGB"))).permute(2, 0, 1)
            for view in make_views(image, 0, 0, index, load_policy(name, 96)):
                assert view.shape == (3, 96, 96)
                assert -3 < view.min() < view.max() < 3
