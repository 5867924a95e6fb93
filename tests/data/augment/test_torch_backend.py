"""Views that a device makes of a batch, against the native kernel's and the reference's: same numbers, same pixels."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from mixview.data.augment import numba_backend, torch_backend
from mixview.data.augment.policies import Augmentation, Blur, Crop, Jitter, Policy, load_policy, names
from mixview.data.augment.reference import make_views
from mixview.data.loader import EpochSampler, to_tensor, view_loader
from mixview.data.sources.base import Pixels
from mixview.rng import seed_from
from tests.data.augment.test_numba_backend import picture
from tests.data.test_loader import IMAGES, Mixed, equal

CPU = torch.device("cpu")
CLOSE = {"rtol": 0.0, "atol": 1e-4}
MADE_BY: dict[str, Callable[..., tuple[torch.Tensor, ...]]] = {
    "the native kernel": numba_backend.make_views,
    "the reference": lambda pixels, *rest: make_views(to_tensor(pixels), *rest),
}


def batch_of(images: list[Pixels], pair: Policy, seed: int = 0) -> torch_backend.RawBatch:
    seeds = [seed_from("views", seed, 0, index) for index in range(len(images))]
    return torch_backend.pack_raw_batch(images, seeds, range(len(images)), pair)


@pytest.mark.parametrize("by", MADE_BY)
@pytest.mark.parametrize("name", [name for name in names() if not name.startswith("infomin")])
def test_every_named_augmentation(name: str, by: str) -> None:
    """Photograph-sized images of many sizes in one batch; views larger and smaller than their crops.

    The reference's resize finds its places in float32: on noise of 640 pixels that is 3e-4 of what is normalized.
    """
    sizes = [(375, 500), (60, 90), (333, 500), (500, 375), (32, 32), (200, 640), (224, 224), (375, 500)]
    images = [picture(*size, seed=number) for number, size in enumerate(sizes)]
    policy = load_policy(name)[:3]  # two views, and a local crop where there are any
    if by != "the native kernel":
        policy = tuple(replace(view, normalize=None) for view in policy)
    made = torch_backend.make_views(batch_of(images, policy, seed=3), policy, CPU)
    for index, image in enumerate(images):
        for one, other in zip(made, MADE_BY[by](image, 3, 0, index, policy), strict=True):
            torch.testing.assert_close(one[index], other, **CLOSE)


@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=6),
    st.integers(1, 40),
    st.sampled_from([1, 2, 3, 5]),
    st.sampled_from(["simclr", "mocov1", "byol"]),
    st.integers(0, 10_000),
)
@settings(max_examples=100, deadline=None)
def test_any_images(shapes: list[tuple[int, int]], size: int, channels: int, name: str, seed: int) -> None:
    images, pair = [picture(*shape, channels, seed) for shape in shapes], load_policy(name, size)
    made = torch_backend.make_views(batch_of(images, pair, seed), pair, CPU)
    for index, image in enumerate(images):
        expected = make_views(to_tensor(image), seed, 0, index, pair)
        for one, other in zip(made, expected, strict=True):
            torch.testing.assert_close(one[index], other, **CLOSE)


def test_randaugment_goes_image_by_image() -> None:
    """Some of its operations are steps (posterize, equalize), where a rounding may fall to the other side."""
    images, pair = [picture(50, 70, seed=seed) for seed in range(40)], load_policy("infomin", 32)
    made = torch_backend.make_views(batch_of(images, pair), pair, CPU)
    for index, image in enumerate(images):
        for one, other in zip(made, make_views(to_tensor(image), 0, 0, index, pair), strict=True):
            assert ((one[index] - other).abs() > 1e-4).float().mean() < 2e-3


@pytest.mark.parametrize(
    "order", [("blur", "jitter"), ("solarize", "blur", "grayscale"), ("grayscale", "solarize"), ()]
)
def test_any_order_of_steps_and_no_normalization(order: tuple[str, ...]) -> None:
    augment = Augmentation(crop=Crop(40), jitter=Jitter(0, 0.4, 0, 0.1), grayscale=0.5, blur=Blur(), solarize=0.5)
    pair = (replace(augment, order=order, normalize=None),) * 2  # type: ignore[arg-type]
    images = [picture(60, 44, seed=seed) for seed in range(20)]
    made = torch_backend.make_views(batch_of(images, pair), pair, CPU)
    for index, image in enumerate(images):
        for one, other in zip(made, numba_backend.make_views(image, 0, 0, index, pair), strict=True):
            torch.testing.assert_close(one[index], other, **CLOSE)


def test_a_batch_in_parts_is_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    images, pair = [picture(30 + 7 * seed, 90 - 8 * seed, seed=seed) for seed in range(9)], load_policy("byol", 16)
    whole = torch_backend.make_views(batch_of(images, pair), pair, CPU)
    monkeypatch.setattr(torch_backend, "MAX_FLOATS", 16 * 3 * 120)
    parts = torch_backend.make_views(batch_of(images, pair), pair, CPU)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_chunks_hold_to_the_limit_and_leave_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_backend, "MAX_FLOATS", 100)
    assert list(torch_backend.chunks([4, 4, 4, 9, 1, 30, 2], 5)) == [(0, 3), (3, 5), (5, 6), (6, 7)]
    assert list(torch_backend.chunks([1000], 5)) == [(0, 1)]


def test_only_what_a_view_shows_is_sent() -> None:
    pair = (Augmentation(crop=Crop(16, scale=(0.08, 0.1))),) * 2
    images = [picture(100, 150, seed=seed) for seed in range(8)]
    batch = batch_of(images, pair)
    _, height, width = batch.crops[:, :, 1], batch.crops[:, :, 2], batch.crops[:, :, 3]
    assert int((height * width).sum()) / 2 <= len(batch.pixels) < 8 * 100 * 150


@pytest.mark.parametrize("name", ["simclr", "byol"])
def test_no_host_sync(name: str) -> None:
    """Fake CUDA tensors have shapes and no values: reading one is an error."""
    pair = load_policy(name, 32)
    batch = batch_of([picture(50, 40 + index) for index in range(6)], pair)
    cpu_crops, cpu_params = batch.crops.numpy(), batch.params.numpy()
    with FakeTensorMode():
        pixels, crops, params = (torch.empty(part.shape, dtype=part.dtype, device="cuda") for part in batch[:3])
        for view, one in enumerate(pair):
            cropped = torch_backend.resize(pixels, cpu_crops[view], crops[view], one.crop)
            made = torch_backend.augment(one, cropped, cpu_params[view], params[view])
            assert made.shape == (6, 3, 32, 32)
            assert made.device.type == "cuda"


@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_workers_and_any_start_make_the_same_batches(workers: int) -> None:
    def run(workers: int, start: int = 0) -> list[list[torch.Tensor]]:
        batches = EpochSampler(40, batch_size=8, seed=5)
        loader = view_loader(IMAGES, load_policy("byol-small", 16), batches, workers=workers, device=CPU)
        batches.set_epoch(1, start)
        assert len(loader) == 5 - start
        return [[*views, indices] for views, indices in loader]

    alone = run(0)
    assert equal(alone, run(workers))
    assert equal(alone[2:], run(workers, start=2))


def test_the_loader_s_views_are_those_of_the_workers() -> None:
    pair = load_policy("byol", 16)[0], load_policy("byol", 24)[1]
    loaders = [view_loader(Mixed(), pair, EpochSampler(24, 12, seed=1), device=device) for device in (None, CPU)]
    for ((first, second), index), ((one, other), same) in zip(*loaders, strict=True):
        torch.testing.assert_close(one, first, **CLOSE)
        torch.testing.assert_close(other, second, **CLOSE)
        assert torch.equal(index, same)


def test_pixels_of_a_worker_are_in_shared_memory() -> None:
    loader = view_loader(IMAGES, load_policy("byol-small", 16), EpochSampler(40, batch_size=8), workers=1, device=CPU)
    assert all(batch.pixels.is_shared() for batch in loader.raw_batches)  # type: ignore[union-attr]


def test_channels_that_differ_within_a_batch_raise() -> None:
    class Odd(Mixed):
        def __getitem__(self, index: int) -> object:  # type: ignore[override]
            reading = super().__getitem__(index)
            return replace(reading, pixels=np.zeros((8, 8, 1 + 2 * (index % 2)), np.uint8))

    with pytest.raises(ValueError, match="decode all of them to RGB or to L"):
        next(iter(view_loader(Odd(), load_policy("byol-small"), EpochSampler(24, 12), device=CPU)))  # type: ignore[arg-type]
