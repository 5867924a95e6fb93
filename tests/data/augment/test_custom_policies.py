"""Policies of the user's own: YAML files, factories and callables, with any number of views of any sizes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2

import mixview
from mixview.data.augment import numba_backend, reference, torch_backend
from mixview.data.augment.params import sample_params
from mixview.data.augment.policies import Augmentation, Blur, Crop, CustomView, Jitter, Policy, load_policy
from mixview.data.loader import EpochSampler, to_tensor, view_loader
from mixview.io.yaml_files import SettingsError
from mixview.rng import seed_from
from tests.data.augment.test_numba_backend import picture
from tests.data.test_loader import IMAGES, Mixed

CPU = torch.device("cpu")
CLOSE = {"rtol": 0.0, "atol": 1e-4}

MULTI_CROP = """
base: mocov2
views:
  - {count: 2, crop: {size: 32, scale: [0.14, 1.0]}}
  - {count: 6, crop: {size: 16, scale: [0.05, 0.14]}, solarize: 0.1}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


@pytest.fixture
def multi_crop(tmp_path: Path) -> Policy:
    return load_policy(write(tmp_path, MULTI_CROP))


# YAML.


def test_a_file_changes_what_it_names_and_keeps_the_rest(multi_crop: Policy) -> None:
    large, small = multi_crop[0], multi_crop[-1]
    assert isinstance(large, Augmentation)
    assert isinstance(small, Augmentation)
    assert [view.size for view in multi_crop] == [32] * 2 + [16] * 6
    assert large.crop == Crop(32, (0.14, 1.0))
    assert small.crop == Crop(16, (0.05, 0.14))
    assert large.jitter == small.jitter == Jitter(0.4, 0.4, 0.4, 0.1, 0.8)
    assert (large.solarize, small.solarize) == (0.0, 0.1)


def test_a_file_without_a_base_starts_from_the_defaults(tmp_path: Path) -> None:
    policy = load_policy(write(tmp_path, "views: 3\nblur: {kernel: 5}\nnormalize: null\norder: [blur]"))
    assert policy == (Augmentation(blur=Blur(kernel=5), normalize=None, order=("blur",)),) * 3
    assert load_policy(str(write(tmp_path, "flip: 0"))) == (Augmentation(flip=0),) * 2


def test_a_smaller_run_shrinks_all_views_in_proportion(tmp_path: Path) -> None:
    policy = load_policy(write(tmp_path, MULTI_CROP), size=48, min_crop_scale=0.5)
    assert [view.size for view in policy] == [48] * 2 + [24] * 6
    assert [view.crop.scale for view in policy if isinstance(view, Augmentation)] == [(0.5, 1.0)] * 2 + [
        (0.05, 0.14)
    ] * 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("crop: {size: large}", "mine.yaml: crop.size must be a whole number, .* got 'large'"),
        ("crop: {scale: [0.2]}", "mine.yaml: crop.scale must be a list of 2"),
        ("crop: {sizes: 32}", "there is no setting crop.sizes: did you mean size"),
        ("gray: 0.2", "there is no setting gray: did you mean grayscale"),
        ("jitter: 0.4", "jitter must be a group of settings"),
        ("order: [blurr]", "order must be a list, each .* got"),
        ("blur: {p: .nan}", "blur.p must be a number"),
        ("base: mocov3", "has base 'mocov3', which must be one of byol, dino, infomin, mocov1"),
        ("views: 0", "number of views must be 1 to 64 in all, got 0"),
        ("views: [{count: 40}, {count: 40}]", "number of views must be 1 to 64 in all, got 40"),
        ("views: [2]", "views must be a number or a list of settings, got 2"),
        ("views: []", "needs at least one view"),
        ("- 1", "is not a policy"),
        ("crop: {size: 100000000}", "at most 4096"),
        ("function: os.system", "there is no setting function"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_remedy(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_policy(write(tmp_path, text))


def test_the_list_of_policies_is_read_without_torch() -> None:
    code = "import sys, types; sys.modules['mixview'] = types.ModuleType('mixview'); "
    code += f"sys.modules['mixview'].__path__ = {list(mixview.__path__)!r}; "  # without what `import mixview` imports
    code += "from mixview.data.augment.policies import load_policy, names; load_policy('byol-small'); "
    code += "print(len(names()), 'torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["20", "False"]


# More than two views.


def test_all_backends_make_the_same_views(multi_crop: Policy) -> None:
    images = [picture(40 + seed, 50, seed=seed) for seed in range(5)]
    seeds = [seed_from("views", 3, 1, index) for index in range(5)]
    batch = torch_backend.pack_raw_batch(images, seeds, range(5), multi_crop)
    on_device = torch_backend.make_views(batch, multi_crop, CPU)
    for index, image in enumerate(images):
        expected = reference.make_views(to_tensor(image), 3, 1, index, multi_crop)
        native = numba_backend.make_views(image, 3, 1, index, multi_crop)
        assert len(expected) == len(native) == len(on_device) == 8
        for one, other, third in zip(expected, native, on_device, strict=True):
            torch.testing.assert_close(other, one, **CLOSE)
            torch.testing.assert_close(third[index], one, **CLOSE)


def test_many_views_take_their_numbers_from_one_generator() -> None:
    """Eight views take more numbers than the generator's state has words."""
    policy, generator = load_policy("byol") * 6, torch.Generator().manual_seed(11)
    table = numba_backend.sample_table([11], 90, 70, policy)  # type: ignore[arg-type]
    for row, view in zip(table[:, 0], policy, strict=True):
        assert isinstance(view, Augmentation)
        np.testing.assert_allclose(row, sample_params(view, 90, 70, generator).pack(), rtol=1e-12, atol=0)


def test_the_first_two_views_do_not_depend_on_the_others(multi_crop: Policy) -> None:
    image = picture(40, 50)
    alone = numba_backend.make_views(image, 0, 0, 0, multi_crop[:2])
    both = zip(alone, numba_backend.make_views(image, 0, 0, 0, multi_crop)[:2], strict=True)
    assert all(torch.equal(one, other) for one, other in both)


@pytest.mark.parametrize("device", [None, CPU])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_gives_all_views(multi_crop: Policy, workers: int, device: torch.device | None) -> None:
    loader = view_loader(Mixed(), multi_crop, EpochSampler(24, 12, seed=1), workers=workers, device=device)
    for views, indices in loader:
        assert [view.shape for view in views] == [(12, 3, 32, 32)] * 2 + [(12, 3, 16, 16)] * 6
        for row, image in enumerate(indices.tolist()):
            expected = numba_backend.make_views(Mixed()[image].pixels, 1, 0, image, multi_crop)
            for view, one in zip(views, expected, strict=True):
                torch.testing.assert_close(view[row], one, **CLOSE)


# Python.


def random_crop(image: Tensor, generator: torch.Generator) -> Tensor:
    top, left = torch.randint(0, 16, (2,), generator=generator).tolist()
    return image[:, top : top + 16, left : left + 16]


MINE = """
import torch
from torchvision.transforms import v2
from mixview.data.augment.policies import Augmentation, Blur, Crop

policy = [Augmentation(Crop(24)), Augmentation(Crop(24), blur=Blur())]
transform = v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip()])
number = 3

def make_policy(size=64):
    return Augmentation(Crop(size)), Augmentation(Crop(size // 2))

def make_transforms():
    return transform, policy[0]

def center(image):
    return image[:, :24, :24].float() / 255

class Center:
    def __call__(self, image):
        return center(image)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of somebody's own in the working directory."""
    name = f"mine_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_an_import_path_of_a_policy_or_a_factory(mine: str) -> None:
    assert load_policy(f"{mine}.policy") == (Augmentation(Crop(24)), Augmentation(Crop(24), blur=Blur()))
    assert [view.size for view in load_policy(f"{mine}.make_policy")] == [64, 32]
    assert [view.size for view in load_policy(f"{mine}:make_policy", size=48)] == [48, 24]


def test_an_import_path_of_a_callable_is_announced_once(mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        views = load_policy(f"{mine}.center", size=24)
    assert [type(view) for view in views] == [CustomView, CustomView]
    assert capsys.readouterr().err.count(f"{mine}.center makes the views one image at a time") == 1
    assert [type(view) for view in load_policy(f"{mine}.make_transforms", size=24)] == [CustomView, Augmentation]
    assert isinstance(load_policy(f"{mine}.Center", size=24)[0], CustomView)
    load_policy(f"{mine}.policy")
    assert f"{mine}.policy " not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [("number", "is a int: pass augmentations"), ("centre", "did you mean center"), ("make_polcy", "did you mean")],
)
def test_an_import_path_of_something_else(mine: str, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_policy(f"{mine}.{name}")


@pytest.mark.parametrize("workers", [0, 2])
def test_views_of_a_callable_are_a_function_of_seed_epoch_and_index(workers: int) -> None:
    """With a generator of its own, or torch's global one, which is left as it was."""
    policy = load_policy([random_crop, v2.Compose([v2.RandomResizedCrop(16)]), Augmentation(Crop(16))], size=16)
    loader = view_loader(IMAGES, policy, EpochSampler(40, batch_size=8, seed=5), workers=workers)
    for views, indices in loader:
        assert [view.dtype for view in views] == [torch.float32] * 3
        for row, image in enumerate(indices.tolist()):
            expected = reference.make_views(to_tensor(IMAGES.scenes.read(image)), 5, 0, image, policy)
            for number, (view, one) in enumerate(zip(views, expected, strict=True)):
                assert torch.equal(view[row], one) if number < 2 else torch.allclose(view[row], one, atol=1e-4)
    torch.manual_seed(workers)
    before = torch.get_rng_state()
    first = [reference.make_views(to_tensor(picture(40, 40)), 0, epoch, 0, policy) for epoch in range(2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(first[0][0], first[1][0])
    assert not torch.equal(first[0][1], first[1][1])


def test_bytes_are_normalized_and_floats_are_left_alone() -> None:
    image = torch.full((3, 8, 8), 255, dtype=torch.uint8)
    as_bytes, as_floats = reference.make_views(image, 0, 0, 0, load_policy([lambda x: x, lambda x: x / 255], size=8))
    assert torch.equal(as_floats, torch.ones(3, 8, 8))
    torch.testing.assert_close(
        as_bytes[:, 0, 0], (1 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    )


def test_a_view_of_another_size_or_on_the_device_is_an_error_with_the_remedy() -> None:
    policy = load_policy(random_crop, size=32)
    with pytest.raises(
        ValueError, match=r"random_crop must return a tensor of shape \[3, 32, 32\], got .*16, 16.*--size"
    ):
        numba_backend.make_views(picture(40, 40), 0, 0, 0, policy)
    with pytest.raises(ValueError, match="--augment_device cpu"):
        view_loader(IMAGES, policy, EpochSampler(40, batch_size=8), device=CPU)
    with pytest.raises(ValueError, match="holds a int"):
        load_policy([1, 2])
    with pytest.raises(ValueError, match="0 views"):
        load_policy([])
