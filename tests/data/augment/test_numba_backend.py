"""The native kernel against the plain reference: same parameters, same pixels, whatever the image."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional as F

from mixview.data.augment import numba_backend, reference
from mixview.data.augment.params import AugmentParams, sample_params
from mixview.data.augment.policies import Augmentation, Blur, Crop, Jitter, Step, load_policy, names
from mixview.data.sources.base import Pixels
from mixview.rng import seed_from

if not numba_backend.prepare():
    pytest.skip("numba is missing", allow_module_level=True)

# Values that are normalized are about four times as far apart as pixels.
CLOSE = {"rtol": 0.0, "atol": 1e-4}
NEITHER = AugmentParams(0, 0, 1, 1, False, False, 1, 1, 1, 0, (0, 1, 2, 3), False, 0.0, False)


def picture(height: int, width: int, channels: int = 3, seed: int = 0) -> Pixels:
    """Noise, flat areas and pure colors: what hue and saturation find hard."""
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (height, width, channels), dtype=np.uint8)
    image[: height // 3] = image[0, 0]
    image[height // 2 :, : width // 2] //= 128
    image[height // 2 :, : width // 2] *= 255
    return image


def apply_reference(image: Pixels, augment: Augmentation, params: AugmentParams) -> torch.Tensor:
    return reference.apply(torch.from_numpy(image.copy()).permute(2, 0, 1), augment, params)


@given(
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.integers(1, 60),
    st.sampled_from([1, 2, 3, 4, 7]),
    st.sampled_from(["simclr", "mocov1", "mocov2", "byol", "simclr-small"]),
    st.integers(0, 10_000),
)
@settings(max_examples=150, deadline=None)
def test_any_view_of_any_image_is_the_reference_s(
    shape: tuple[int, int], size: int, channels: int, name: str, seed: int
) -> None:
    image = picture(*shape, channels, seed)
    expected = reference.make_views(
        torch.from_numpy(image.copy()).permute(2, 0, 1), seed, 0, 1, load_policy(name, size)
    )
    for one, other in zip(numba_backend.make_views(image, seed, 0, 1, load_policy(name, size)), expected, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_randaugment_between_two_runs_of_the_kernel(channels: int) -> None:
    """Some of its operations are steps (posterize, equalize), where a rounding may fall to the other side."""
    image, pair = picture(50, 70, channels), load_policy("infomin", 32)
    for seed in range(40):
        expected = reference.make_views(torch.from_numpy(image.copy()).permute(2, 0, 1), seed, 0, 1, pair)
        for one, other in zip(numba_backend.make_views(image, seed, 0, 1, pair), expected, strict=True):
            assert ((one - other).abs() > 1e-4).float().mean() < 2e-3


@given(
    st.floats(0, 2), st.floats(0, 2), st.floats(0, 2), st.floats(-0.5, 0.5), st.permutations(range(4)), st.booleans()
)
@settings(max_examples=100, deadline=None)
def test_any_jitter_is_torchvision_s(
    brightness: float, contrast: float, saturation: float, hue: float, order: list[int], flip: bool
) -> None:
    image = picture(21, 30)
    augment = Augmentation(crop=Crop(17), jitter=Jitter(1, 1, 1, 0.5), normalize=None)
    a, b, c, d = order
    params = NEITHER._replace(height=20, width=25, left=5, flip=flip, jitter=True, order=(a, b, c, d))
    params = params._replace(brightness=brightness, contrast=contrast, saturation=saturation, hue=hue)
    view = F.to_dtype(torch.from_numpy(image).permute(2, 0, 1), torch.float32, scale=True)
    view = F.resized_crop(view, 0, 5, 20, 25, [17, 17], antialias=True)
    view = F.horizontal_flip(view) if flip else view
    for which in order:
        if which == 0:
            view = F.adjust_brightness(view, brightness)
        elif which == 1:
            view = F.adjust_contrast(view, contrast)
        elif which == 2:
            view = F.adjust_saturation(view, saturation)
        else:
            view = F.adjust_hue(view, hue)
    torch.testing.assert_close(numba_backend.apply(image, augment, params), view, **CLOSE)


@given(st.floats(0.05, 12), st.integers(0, 15), st.integers(1, 40))
@settings(max_examples=80, deadline=None)
def test_any_blur_is_torchvision_s(sigma: float, half: int, size: int) -> None:
    half = min(half, size - 1)
    image = picture(size, size)
    augment = Augmentation(crop=Crop(size), blur=Blur(kernel=2 * half + 1), normalize=None)
    view = torch.from_numpy(image).permute(2, 0, 1) / 255
    expected = F.gaussian_blur(view, [2 * half + 1] * 2, [sigma, sigma])
    params = NEITHER._replace(height=size, width=size, sigma=sigma)
    torch.testing.assert_close(numba_backend.apply(image, augment, params), expected, **CLOSE)


@given(
    st.tuples(st.integers(1, 300), st.integers(1, 300)), st.integers(1, 64), st.sampled_from(["bilinear", "bicubic"])
)
@settings(max_examples=80, deadline=None)
def test_any_resize_is_torchvision_s(shape: tuple[int, int], size: int, interpolation: str) -> None:
    image = picture(*shape)
    augment = Augmentation(crop=Crop(size, interpolation=interpolation), normalize=None)  # type: ignore[arg-type]
    params = NEITHER._replace(height=shape[0], width=shape[1])
    torch.testing.assert_close(
        numba_backend.apply(image, augment, params), apply_reference(image, augment, params), **CLOSE
    )


@pytest.mark.parametrize(
    "order", [("blur", "jitter"), ("solarize", "blur", "grayscale"), ("grayscale", "solarize"), (), None]
)
def test_any_order_of_steps(order: tuple[Step, ...] | None) -> None:
    augment = Augmentation(crop=Crop(40), jitter=Jitter(), grayscale=0.5, blur=Blur(), solarize=0.5)
    augment = augment if order is None else replace(augment, order=order)
    image = picture(60, 44)
    for seed in range(20):
        params = sample_params(augment, 60, 44, torch.Generator().manual_seed(seed))
        torch.testing.assert_close(
            numba_backend.apply(image, augment, params), apply_reference(image, augment, params), **CLOSE
        )


def test_a_factor_of_no_width_is_left_out() -> None:
    augment = Augmentation(crop=Crop(8), jitter=Jitter(0, 0.4, 0, 0.1))
    params = NEITHER._replace(height=8, width=8, jitter=True, brightness=0.3, saturation=0.2, contrast=0.8, hue=0.1)
    image = picture(8, 8)
    torch.testing.assert_close(
        numba_backend.apply(image, augment, params), apply_reference(image, augment, params), **CLOSE
    )


# EpochSampler, layouts, types.


@pytest.mark.parametrize("name", ["simclr-small", "byol", "infomin"])
def test_a_batch_is_its_images_bit_for_bit(name: str) -> None:
    images = np.stack([picture(40, 36, seed=seed) for seed in range(9)])
    pair = load_policy(name, 24)
    seeds = [seed_from("views", 1, 2, index) for index in range(9)]
    first, second = torch.empty(2, 9, 3, 24, 24)
    numba_backend.fill_views(images, seeds, pair, (first, second))
    for index, image in enumerate(images):
        one, other = numba_backend.make_views(image, 1, 2, index, pair)
        assert torch.equal(first[index], one)
        assert torch.equal(second[index], other)
    last = torch.empty(9, 3, 24, 24).to(memory_format=torch.channels_last)
    half = torch.empty(9, 3, 24, 24, dtype=torch.bfloat16)
    numba_backend.fill_views(images, seeds, pair, (last, half))
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(last, first)
    assert torch.equal(half, second.bfloat16())


def test_pixels_that_are_not_contiguous_or_not_writable() -> None:
    image = picture(40, 60)
    pair = load_policy("mocov2", 16)
    expected = numba_backend.make_views(np.ascontiguousarray(image[::2, ::-1]), 0, 0, 0, pair)[0]
    odd = image[::2, ::-1]
    odd.flags.writeable = False
    assert torch.equal(numba_backend.make_views(odd, 0, 0, 0, pair)[0], expected)


def test_what_does_not_fit_raises_before_memory_is_read() -> None:
    augment = load_policy("simclr", 16)[0]
    params = sample_params(augment, 500, 500, torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="sample them for the size of this image"):
        numba_backend.apply(picture(20, 20), augment, params)
    with pytest.raises(ValueError, match="sample them for the size of this image"):
        numba_backend.apply(picture(20, 20), augment, NEITHER._replace(top=-1))
    with pytest.raises(ValueError, match=r"out must be \[1, 3, 16, 16\]"):
        numba_backend.fill(picture(20, 20)[None], np.array([NEITHER.pack()]), augment, torch.empty(1, 3, 8, 8))


# Parameters.


@given(
    st.integers(0, 2**63 - 1),
    st.integers(1, 2000),
    st.integers(1, 2000),
    st.sampled_from([name for name in names() if "infomin" not in name]),
)
@settings(max_examples=150, deadline=None)
def test_parameters_are_those_of_torch_s_generator(seed: int, height: int, width: int, name: str) -> None:
    assert numba_backend.same_numbers()
    generator = torch.Generator().manual_seed(seed)
    sampled = numba_backend.sample_table([seed], height, width, load_policy(name))
    for params, one in zip(sampled, load_policy(name), strict=True):
        expected = sample_params(one, height, width, generator).pack()
        np.testing.assert_allclose(params[0], expected, rtol=1e-12, atol=0)


# Where there is no compiler, and where nothing can be kept.


def test_without_numba_the_reference_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    image, pair = picture(30, 30), load_policy("byol", 16)
    native = numba_backend.make_views(image, 0, 0, 0, pair)
    monkeypatch.setattr(numba_backend, "kernels", lambda: None)
    numba_backend.same_numbers.cache_clear()
    try:
        plain = numba_backend.make_views(image, 0, 0, 0, pair)
        assert all(
            torch.equal(one, other)
            for one, other in zip(
                plain, reference.make_views(torch.from_numpy(image).permute(2, 0, 1), 0, 0, 0, pair), strict=True
            )
        )
    finally:
        monkeypatch.undo()
        numba_backend.same_numbers.cache_clear()
    for one, other in zip(native, plain, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_a_numba_that_is_not_there_is_said_once(tmp_path: Path) -> None:
    code = "import sys; sys.modules['numba'] = None\n"
    code += "from mixview.data.augment.numba_backend import prepare; print(prepare())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.strip() == "False", run.stderr
    assert "pip install numba" in run.stderr


def test_compiled_code_goes_to_mixview_s_cache_or_to_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIXVIEW_CACHE", str(tmp_path / "cache"))
    assert numba_backend.writable_folder() == tmp_path / "cache" / "numba"
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MIXVIEW_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = numba_backend.writable_folder()
    assert folder is not None
    assert folder.parent == tmp_path
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    assert numba_backend.writable_folder() is None


@pytest.mark.slow
def test_first_use_says_that_it_compiles_and_the_second_does_not(tmp_path: Path) -> None:
    code = "from mixview.data.augment.numba_backend import prepare; print(prepare())"
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment["MIXVIEW_CACHE"] = str(tmp_path)
    said = []
    for _ in range(2):
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
        assert run.stdout.strip() == "True", run.stderr
        said.append(run.stderr)
    assert "compiling" in said[0]
    assert str(tmp_path / "numba") in said[0]
    assert said[1] == ""
