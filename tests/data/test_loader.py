"""Batches are the same bit for bit whatever the number of workers, processes and restarts."""

import dataclasses
import os
import signal

import numpy as np
import pytest
import torch
from torch import Tensor

from mixview.data.augment import numba_backend, reference
from mixview.data.augment.policies import CustomView, load_policy
from mixview.data.dataset import ImageDataset
from mixview.data.decode import Decoder
from mixview.data.loader import (
    Backend,
    EpochSampler,
    ViewDataset,
    WorkerDied,
    epoch_order,
    explain_lost_worker,
    to_tensor,
    view_loader,
)
from mixview.data.sources.base import BadImage, Pixels, SourceError
from mixview.data.synthetic.scenes import Scenes
from tests.data.writing import Encoded, jpeg, smooth


@dataclasses.dataclass(frozen=True)
class ImageSample:
    pixels: Pixels
    index: int


class Direct:
    """Images straight from scenes; a bad one is replaced by the next."""

    def __init__(self, scenes: Scenes, bad: tuple[int, ...] = ()) -> None:
        self.scenes = scenes
        self.bad = bad

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, index: int) -> ImageSample:
        while index in self.bad:
            index = (index + 1) % len(self)
        return ImageSample(self.scenes.read(index), index)


IMAGES = Direct(Scenes(40))
PAIR = load_policy("byol-small", size=16)


def run(
    workers: int, epochs: tuple[int, ...] = (0, 1), backend: Backend = "numba", **options: int
) -> list[list[Tensor]]:
    batches = EpochSampler(40, batch_size=8, seed=5, **options)
    loader = view_loader(IMAGES, PAIR, batches, workers=workers, backend=backend)
    seen = []
    for epoch in epochs:
        batches.set_epoch(epoch)
        seen += [[*views, indices] for views, indices in loader]
    return seen


def equal(first: list[list[Tensor]], second: list[list[Tensor]]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(torch.equal(a, b) for one, other in pairs for a, b in zip(one, other, strict=True))


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes:UserWarning")
@pytest.mark.parametrize("workers", [1, 4])
def test_any_number_of_workers_makes_the_same_batches(workers: int) -> None:
    """Workers persist over the two epochs, and the second has views of its own."""
    alone = run(0)
    assert equal(alone, run(workers))
    assert len(alone) == 10
    assert alone[0][0].shape == (8, 3, 16, 16)
    for half in (alone[:5], alone[5:]):
        assert torch.cat([index for *_, index in half]).sort().values.tolist() == list(range(40))
    assert not equal(alone[:5], alone[5:])


@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_the_views_are_those_of_seed_epoch_and_index(backend: Backend) -> None:
    native = numba_backend.make_views
    make = native if backend == "numba" else lambda pixels, *rest: reference.make_views(to_tensor(pixels), *rest)
    for number, (first, second, index) in enumerate(run(0, epochs=(3,), backend=backend)):
        for row, image in enumerate(index.tolist()):
            expected = make(IMAGES.scenes.read(image), 5, 3, image, PAIR)
            assert torch.equal(first[row], expected[0]), number
            assert torch.equal(second[row], expected[1])
            (one, other), _ = ViewDataset(IMAGES, PAIR, 5, backend)[3, image]
            assert torch.equal(one, expected[0])
            assert torch.equal(other, expected[1])


def test_native_views_are_the_reference_s() -> None:
    for fast, plain in zip(run(0, epochs=(2,)), run(0, epochs=(2,), backend="reference"), strict=True):
        for one, other in zip(fast, plain, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


class Mixed:
    """Small images of some sizes in turn, large ones in between."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> ImageSample:
        size = [(30, 40), (30, 40), (30, 40), (200, 150), (30, 40), (20, 20)][index % 6]
        return ImageSample(np.random.default_rng(index).integers(0, 256, (*size, 3), dtype=np.uint8), index)


@pytest.mark.parametrize("workers", [0, 2])
def test_images_of_any_sizes_in_one_batch(workers: int) -> None:
    pair = load_policy("byol", 16)[0], load_policy("byol", 24)[1]
    loader = view_loader(Mixed(), pair, EpochSampler(24, 12, seed=1), workers=workers)
    for (first, second), index in loader:
        assert first.shape == (12, 3, 16, 16)
        assert second.shape == (12, 3, 24, 24)
        for row, image in enumerate(index.tolist()):
            one, other = numba_backend.make_views(Mixed()[image].pixels, 1, 0, image, pair)
            assert torch.equal(first[row], one)
            assert torch.equal(second[row], other)


def test_channels_that_differ_within_a_batch_raise() -> None:
    class Odd(Mixed):
        def __getitem__(self, index: int) -> ImageSample:
            return ImageSample(np.zeros((8, 8, 1 + 2 * (index % 2)), np.uint8), index)

    with pytest.raises(ValueError, match="decode all of them to RGB or to L"):
        next(iter(view_loader(Odd(), PAIR, EpochSampler(24, 12))))


@pytest.mark.slow
def test_spawned_workers_make_the_same_batches() -> None:
    alone = run(0, epochs=(0,))
    batches = EpochSampler(40, batch_size=8, seed=5)
    loader = view_loader(IMAGES, PAIR, batches, workers=2)
    loader.multiprocessing_context = "spawn"
    assert equal(alone, [[*views, indices] for views, indices in loader])


def test_batches_of_a_worker_are_in_shared_memory() -> None:
    batches = EpochSampler(40, batch_size=8, seed=5)
    for (first, second), _ in view_loader(IMAGES, PAIR, batches, workers=1):
        assert first.is_shared()
        assert second.is_shared()


@pytest.mark.parametrize("world", [2, 4])
def test_the_ranks_together_are_one_process(world: int) -> None:
    alone = run(0)
    parts = [run(0, rank=rank, world_size=world) for rank in range(world)]
    together = [[torch.cat(tensors) for tensors in zip(*batch, strict=True)] for batch in zip(*parts, strict=True)]
    assert equal(alone, together)


def test_an_epoch_resumes_where_it_stopped() -> None:
    whole = run(0, epochs=(4,))
    batches = EpochSampler(40, batch_size=8, seed=5)
    loader = view_loader(IMAGES, PAIR, batches)
    batches.set_epoch(4, start=2)
    assert len(loader) == 3
    assert equal(whole[2:], [[*views, indices] for views, indices in loader])
    batches.set_epoch(4, start=5)
    assert list(loader) == []


def test_the_order_is_another_each_epoch_and_none_without_shuffling() -> None:
    assert not torch.equal(epoch_order(100, 0, 0), epoch_order(100, 0, 1))
    assert not torch.equal(epoch_order(100, 0, 0), epoch_order(100, 1, 0))
    plain = EpochSampler(10, 4, shuffle=False)
    plain.set_epoch(7)
    assert list(plain) == [[(7, 0), (7, 1), (7, 2), (7, 3)], [(7, 4), (7, 5), (7, 6), (7, 7)]]


def test_the_short_last_batch() -> None:
    assert len(EpochSampler(10, 4)) == 2
    kept = EpochSampler(10, 4, drop_last=False, shuffle=False)
    assert [len(batch) for batch in kept] == [4, 4, 2]
    parts = [list(EpochSampler(11, 4, rank=rank, world_size=2, drop_last=False, shuffle=False)) for rank in (0, 1)]
    assert [[len(batch) for batch in part] for part in parts] == [[2, 2, 1], [2, 2, 2]]
    whole = list(EpochSampler(11, 4, drop_last=False, shuffle=False))
    assert [one + other for one, other in zip(*parts, strict=True)] == whole
    assert len(EpochSampler(9, 4, world_size=2, drop_last=False)) == 2  # one image is too few for two


def test_a_stand_in_says_who_it_is() -> None:
    dataset = ViewDataset(Direct(Scenes(5), bad=(2, 3)), PAIR)
    assert dataset[(0, 2)][1] == 4
    assert len(dataset) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"count": 100, "batch_size": 250, "world_size": 8},
            "batch_size 250 does not divide over 8 processes; use 248",
        ),
        ({"count": 100, "batch_size": 256}, "100 images do not fill one batch of 256; use a batch of at most 100"),
        ({"count": 1, "batch_size": 4, "world_size": 4}, "too few for 4 processes"),
        ({"count": 10, "batch_size": 4, "rank": 2, "world_size": 2}, "got rank 2 of 2"),
        ({"count": 10, "batch_size": 0}, "batch_size 0 does not divide"),
    ],
)
def test_what_cannot_be_raises_with_the_remedy(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EpochSampler(**arguments)


def test_a_batch_beyond_the_epoch_raises() -> None:
    with pytest.raises(ValueError, match="an epoch has 5 batches"):
        EpochSampler(40, 8).set_epoch(0, 6)
    with pytest.raises(ValueError, match="for 39 images and there are 40"):
        view_loader(IMAGES, PAIR, EpochSampler(39, 8))


class Breaking:
    """Images of which some end the process that reads them, or cannot be read."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> ImageSample:
        if self.error is not None:
            raise self.error
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


@pytest.mark.parametrize("error", [BadImage("a.jpg", "is empty"), SourceError("no"), OSError(5, "gone")])
def test_an_error_in_a_worker_arrives_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        list(view_loader(Breaking(error), PAIR, EpochSampler(8, batch_size=4), workers=1))
    assert str(caught.value) == str(error)


def test_a_killed_worker_is_one_sentence() -> None:
    with pytest.raises(WorkerDied, match=r"^a DataLoader worker died \((killed by signal|exited).*--workers"):
        list(view_loader(Breaking(None), PAIR, EpochSampler(8, batch_size=4), workers=1))


def test_what_torch_says_of_lost_workers() -> None:
    assert "exited unexpectedly" in str(
        explain_lost_worker(RuntimeError("DataLoader worker (pid(s) 12, 13) exited unexpectedly"))
    )
    assert explain_lost_worker(RuntimeError("out of memory")) is None


LARGE = Encoded(jpeg(smooth(400, 600)), jpeg(smooth(600, 400, 1)), jpeg(smooth(40, 40, 2)))
"""Photographs of which some views show so much that they may be decoded smaller, and one that has no pixel to spare."""
CROPS = load_policy("mocov2-small", size=32)


class DecodedSizes:
    """Decoded images, and the sizes that they were decoded at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heights: list[int] = []
        decode = Decoder.__call__

        def record(decoder: Decoder, *arguments: object) -> Pixels:
            pixels = decode(decoder, *arguments)  # type: ignore[arg-type]
            self.heights.append(pixels.shape[0])
            return pixels

        monkeypatch.setattr(Decoder, "__call__", record)


def test_large_photographs_are_decoded_as_far_as_their_views_need_them(monkeypatch: pytest.MonkeyPatch) -> None:
    images, keys = ImageDataset(LARGE), [(epoch, index) for epoch in range(8) for index in range(3)]
    exact, _ = ViewDataset(images, CROPS, exact_decoding=True).__getitems__(keys)
    decoded = DecodedSizes(monkeypatch)
    views, indices = ViewDataset(images, CROPS).__getitems__(keys)
    assert indices.tolist() == [0, 1, 2] * 8
    assert {50, 100} == set(decoded.heights[::3])  # a photograph of 400 at an eighth and a quarter, as crops are drawn
    for view, other in zip(views, exact, strict=True):
        torch.testing.assert_close(view[2::3], other[2::3], rtol=0, atol=0)  # nothing to be gained from a small one
        assert (view - other).abs().mean() < 0.05


def test_no_view_is_enlarged_for_the_speed() -> None:
    """The crops of a copy have as many pixels as the views, and one of twice the factor would not."""
    choose = numba_backend.decode_factor(CROPS)
    assert choose is not None
    factors = []
    for seed in range(50):
        factor = choose(seed, 400, 600)
        table = numba_backend.sample_table([seed], 400, 600, CROPS)[:, 0]
        smallest = table[:, 2:4].min()
        assert factor == 8 or smallest < 64 * factor
        assert factor == 1 or smallest >= 32 * factor
        factors.append(factor)
    assert set(factors) == {4, 8}


def test_every_backend_makes_the_same_views_of_a_smaller_copy() -> None:
    images, keys = ImageDataset(LARGE), [(epoch, index) for epoch in range(2) for index in range(3)]
    native, _ = ViewDataset(images, CROPS).__getitems__(keys)
    plain, _ = ViewDataset(images, CROPS, backend="reference").__getitems__(keys)
    batches = EpochSampler(3, 3, shuffle=False)
    (device, _), *_ = view_loader(images, CROPS, batches, device=torch.device("cpu"))
    for n, (one, other) in enumerate(zip(native, plain, strict=True)):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-4)
        torch.testing.assert_close(one[:3], device[n], rtol=0, atol=2e-4)


def test_a_function_of_the_user_s_own_sees_whole_photographs(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = DecodedSizes(monkeypatch)
    own = CustomView(lambda image: image[:, :32, :32].float() / 255, size=32)
    ViewDataset(ImageDataset(LARGE), (CROPS[0], own)).__getitems__([(epoch, 0) for epoch in range(8)])
    assert set(decoded.heights) == {400}
