"""Batches of views that do not depend on the number of workers, processes and restarts.

    sampler = EpochSampler(len(images), batch_size=256, seed=0, rank=rank, world_size=world_size)
    loader = view_loader(images, load_policy("simclr"), sampler, workers=4)
    for epoch in range(200):
        sampler.set_epoch(epoch)
        for views, indices in loader: ...               # one tensor [B, C, S, S] per view

No worker remembers an epoch. `EpochSampler` hands out (epoch, index) pairs from the main process, and a view is a
function of (seed, epoch, index): persistent workers cannot be an epoch behind, and `sampler.set_epoch(epoch, start)`
resumes in the middle of an epoch.
"""

import os
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Literal, Protocol, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from mixview.data.augment import numba_backend, reference
from mixview.data.augment.policies import Policy
from mixview.data.augment.torch_backend import (
    RawBatch,
    make_views,
    new_tensor,
    pack_raw_batch,
    require_augmentations,
)
from mixview.data.dataset import ImageDataset
from mixview.data.sources.base import Pixels
from mixview.rng import seed_from

Key = tuple[int, int]
"""(epoch, index)"""
Item = tuple[tuple[Tensor, ...], int]
"""All views, [C, S, S] each, and the index of the image they show."""
Batch = tuple[tuple[Tensor, ...], Tensor]
"""All views, [B, C, S, S] each, and the indices [B]."""
Backend = Literal["numba", "reference"]

MAX_BATCHED_PIXELS = 128 * 128
"""Images of at most this many pixels are gathered and augmented in one call; larger ones as they come."""


class SampleLike(Protocol):
    """An image as it was read."""

    @property
    def pixels(self) -> Pixels: ...

    @property
    def index(self) -> int:
        """The index of the image: the requested one, or one that replaces it."""


class Images(Protocol):
    """Decoded images by index; of an `ImageDataset` large ones are decoded only as far as the views need them."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> SampleLike: ...


@final
@dataclass(slots=True)  # not frozen: that takes three times as long to make, for every image
class SeededSample:
    """An image that is to become views."""

    pixels: Pixels
    """[H, W, C]"""
    index: int
    """The index of the image: the requested one, or one that replaces it."""
    seed: int
    """The seed of its views."""
    full_size: tuple[int, int]
    """Height and width of the image that the pixels are a smaller copy of, or their own."""


Kind = tuple[tuple[int, ...], np.dtype[Any], tuple[int, int]]
"""The properties that images have in common that become views in one call: shape, type and full size."""


def kind_of(sample: SeededSample) -> Kind:
    return sample.pixels.shape, sample.pixels.dtype, sample.full_size


@final
class SampleReader:
    """A reader of images by key, as far as their views need them.

    Args:
        images: decoded images by index.
        policy: the augmentation of each view.
        seed: seed of the views.
        exact_decoding: decode large images whole, even where views show them much smaller.
    """

    def __init__(self, images: Images, policy: Policy, seed: int, exact_decoding: bool) -> None:
        self.images = images
        self.seed = seed
        self._dataset = images if isinstance(images, ImageDataset) else None
        self._choose_factor = None if exact_decoding else numba_backend.decode_factor(policy)

    def __call__(self, key: Key) -> SeededSample:
        epoch, index = key
        seed = seed_from("views", self.seed, epoch, index)
        if self._dataset is None or self._choose_factor is None:
            sample = self.images[index]
            return SeededSample(sample.pixels, sample.index, seed, sample.pixels.shape[:2])
        loaded = self._dataset.load(index, partial(self._choose_factor, seed))
        return SeededSample(loaded.pixels, loaded.index, seed, loaded.full_size)


@final
class ViewDataset(Dataset[Item]):
    """All views of the images, by (epoch, index).

    A list of keys gives a finished batch: views are made where they are to be, in memory that a worker shares with the
    training process.

    Args:
        images: decoded images by index.
        policy: the augmentation of each view.
        seed: seed of the views.
        backend: the native kernel, or the plain reference.
        exact_decoding: decode large images whole, even where views show them much smaller.
    """

    def __init__(
        self,
        images: Images,
        policy: Policy,
        seed: int = 0,
        backend: Backend = "numba",
        exact_decoding: bool = False,
    ) -> None:
        self.images = images
        self.policy = policy
        self.seed = seed
        self.backend = backend
        self.read = SampleReader(images, policy, seed, exact_decoding)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: Key) -> Item:
        views, indices = self.__getitems__([key])
        return tuple(view[0] for view in views), int(indices[0])

    def __getitems__(self, keys: list[Key]) -> Batch:
        """The batch of these keys, in their order."""
        views = tuple[Tensor, ...]()
        indices = list[int]()
        for (shape, _, _), group in groupby(map(self.read, keys), key=kind_of):
            height, width, channels = shape
            if not views:
                views = tuple(new_tensor((len(keys), channels, view.size, view.size)) for view in self.policy)
            alone = self.backend == "reference" or height * width > MAX_BATCHED_PIXELS
            for samples in ([sample] for sample in group) if alone else [list(group)]:
                check_channels(samples[0], views[0].shape[1])
                start, stop = len(indices), len(indices) + len(samples)
                self._fill([view[start:stop] for view in views], samples, keys[start])
                indices += [sample.index for sample in samples]
        if not views:
            raise ValueError("a batch of no images has no views")
        return views, torch.tensor(indices)

    def _fill(self, rows: Sequence[Tensor], samples: Sequence[SeededSample], key: Key) -> None:
        """Write the views [n, C, S, S] of samples of one kind, the first of which has this key."""
        first = samples[0]
        if self.backend == "numba":
            seeds = [sample.seed for sample in samples]
            images = np.stack([sample.pixels for sample in samples]) if len(samples) > 1 else first.pixels[None]
            numba_backend.fill_views(images, seeds, self.policy, rows, first.full_size)
            return
        views = reference.make_views(to_tensor(first.pixels), self.seed, *key, self.policy, first.full_size)
        for row, view in zip(rows, views, strict=True):
            row.copy_(view[None])


@final
class RawBatchDataset(Dataset[RawBatch]):
    """Pixels and sampled parameters by (epoch, index), of which a device makes the views.

    Args:
        images: decoded images by index.
        policy: the augmentation of each view.
        seed: seed of the views.
        exact_decoding: decode large images whole, even where views show them much smaller.
    """

    def __init__(self, images: Images, policy: Policy, seed: int = 0, exact_decoding: bool = False) -> None:
        require_augmentations(policy)
        self.images = images
        self.policy = policy
        self.read = SampleReader(images, policy, seed, exact_decoding)

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, keys: list[Key]) -> RawBatch:
        """The batch of these keys, in their order."""
        samples = [self.read(key) for key in keys]
        for sample in samples:
            check_channels(sample, samples[0].pixels.shape[2])
        return pack_raw_batch(
            [sample.pixels for sample in samples],
            [sample.seed for sample in samples],
            [sample.index for sample in samples],
            self.policy,
            [sample.full_size for sample in samples],
        )


def check_channels(sample: SeededSample, channels: int) -> None:
    """Raise if an image has other channels than its batch."""
    if sample.pixels.shape[2] != channels:
        raise ValueError(
            f"image {sample.index} has {sample.pixels.shape[2]} channels and others of its batch have {channels}: "
            'decode all of them to RGB or to L rather than as they are "stored"'
        )


def keep_batch(batch: Any) -> Any:
    """Collate nothing: a dataset's `__getitems__` returns finished batches."""
    return batch


class WorkerDied(RuntimeError):
    """A worker of the DataLoader died: the message says what to do about it."""


def explain_lost_worker(error: BaseException) -> WorkerDied | None:
    """torch's error for a worker that died, in one sentence; None for any other error.

    torch raises it wherever the main process is at that moment, in the middle of a training step as well, or while a
    checkpoint is written, which then fails in its turn.
    """
    match = re.match(
        r"DataLoader worker \(pid\D* ([\d, ]+)\) (?:is )?(killed by signal: \w+|exited unexpectedly)", str(error)
    )
    if match is None:
        return None if error.__context__ is None else explain_lost_worker(error.__context__)
    return WorkerDied(
        f"a DataLoader worker died ({match[2]}, process {match[1]}): if memory is short, use fewer --workers; "
        "--workers 0 loads data in the main process"
    )


@final
class WorkerError:
    """An error in a worker, on its way to the main process as the object that it is."""

    def __init__(self, error: Exception) -> None:
        self.error = error


@final
class ErrorForwarding(Dataset[Any]):
    """A dataset whose errors reach the main process as they are; torch would send a traceback as their text."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: Any) -> Any:
        return self._forward(self.dataset.__getitem__, key)

    def __getitems__(self, keys: list[Any]) -> Any:
        return self._forward(self.dataset.__getitems__, keys)

    def _forward(self, get: Any, key: Any) -> Any:
        try:
            return get(key)
        except (ValueError, OSError) as error:
            if get_worker_info() is None:
                raise
            return WorkerError(error)


@final
class Loader(DataLoader[Any]):
    """torch's loader for whole batches, whose errors are those of the dataset, and which says when a worker died.

    Args:
        dataset: a dataset that makes a batch of a list of keys, or one item of a key.
        workers: worker processes; 0 for this process.
        options: further options of torch's loader.
    """

    def __init__(self, dataset: Any, *, workers: int, **options: Any) -> None:
        super().__init__(
            ErrorForwarding(dataset),
            collate_fn=keep_batch,
            num_workers=workers,
            worker_init_fn=ignore_signals if workers > 0 else None,
            **options,
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        try:
            for batch in super().__iter__():
                if isinstance(batch, WorkerError):
                    raise batch.error
                yield batch
        except RuntimeError as error:
            raise explain_lost_worker(error) or error from None


@final
class EpochSampler(Sampler[list[Key]]):
    """The batches of an epoch: this process's part of each, as (epoch, index) pairs.

    An epoch's order is a function of (seed, epoch). `batch_size` counts the images of all processes together: rank r of
    W takes the r-th W-th of every batch, so that the ranks' parts, one after the other, are the batch that a single
    process would take.

    Args:
        count: number of images.
        batch_size: images per step, over all processes.
        seed: seed of the order.
        rank: rank of this process.
        world_size: number of processes.
        shuffle: False for the images in their own order.
        drop_last: leave out the short last batch; otherwise the parts of it may differ by one image, and only one of
            fewer images than there are processes is left out.

    Example:
        >>> sampler = EpochSampler(count=20, batch_size=8)
        >>> [len(batch) for batch in sampler]
        [8, 8]
    """

    def __init__(
        self,
        count: int,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        drop_last: bool = True,
    ) -> None:
        if world_size < 1 or not 0 <= rank < world_size:
            raise ValueError(f"rank must be within 0 … world_size - 1, got rank {rank} of {world_size}")
        if batch_size < 1 or batch_size % world_size:
            nearest = max(world_size, round(batch_size / world_size) * world_size)
            raise ValueError(f"batch_size {batch_size} does not divide over {world_size} processes; use {nearest}")
        if count < (batch_size if drop_last else world_size):
            largest = count // world_size * world_size
            raise ValueError(
                f"{count} images do not fill one batch of {batch_size}; use a batch of at most {largest}"
                if largest
                else f"{count} images are too few for {world_size} processes; use at most {max(count, 1)}"
            )
        self.count = count
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.epoch = 0
        self.start = 0

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Make the next iteration run over this epoch, from batch `start` on."""
        if epoch < 0 or not 0 <= start <= self.batches_per_epoch:
            raise ValueError(
                f"there is no batch {start} in epoch {epoch}: an epoch has {self.batches_per_epoch} batches"
            )
        self.epoch = epoch
        self.start = start

    @property
    def batches_per_epoch(self) -> int:
        """Batches in a whole epoch."""
        last = 0 if self.drop_last else int(self.count % self.batch_size >= self.world_size)
        return self.count // self.batch_size + last

    def __len__(self) -> int:
        """Batches still to come in this epoch."""
        return self.batches_per_epoch - self.start

    def __iter__(self) -> Iterator[list[Key]]:
        epoch = self.epoch  # a `set_epoch` during the iteration is for the next one
        order = epoch_order(self.count, self.seed, epoch) if self.shuffle else torch.arange(self.count)
        for step in range(self.start, self.batches_per_epoch):
            whole = order[step * self.batch_size : (step + 1) * self.batch_size]
            start, end = (len(whole) * rank // self.world_size for rank in (self.rank, self.rank + 1))
            part = whole[start:end]
            yield [(epoch, index) for index in part.tolist()]


def epoch_order(count: int, seed: int, epoch: int) -> Tensor:
    """[count] the order of the images in an epoch, a function of the arguments alone."""
    generator = torch.Generator().manual_seed(seed_from("order", seed, epoch))
    return torch.randperm(count, generator=generator)


def view_loader(
    images: Images,
    policy: Policy,
    sampler: EpochSampler,
    *,
    workers: int = 0,
    pin_memory: bool = False,
    prefetch: int = 2,
    backend: Backend = "numba",
    device: torch.device | None = None,
    exact_decoding: bool = False,
) -> "Loader | DeviceViewLoader":
    """A loader of (views, indices [B]), bit for bit the same with any number of workers; views are [B, C, S, S] each.

    Args:
        images: decoded images by index.
        policy: the augmentation of each view.
        sampler: the order of the images.
        workers: processes that make views; 0 for the one that trains.
        pin_memory: page-locked memory, from which batches can be copied to a GPU while it computes.
        prefetch: batches that each worker is ahead.
        backend: the native kernel, or the plain reference: the same views to four decimals.
        device: make the views there instead, of pixels that the workers send: again the same to four decimals.
        exact_decoding: decode large images whole, even where views show them much smaller; by default a JPEG or JPEG
            2000 is decoded at 1/2, 1/4 or 1/8 of its sides where every view of it still has to be shrunk.

    Example:
        >>> from mixview.data import ImageDataset, load_policy, open_dataset
        >>> images = ImageDataset(open_dataset("scenes", count=20, size=32))
        >>> loader = view_loader(images, load_policy("mocov2", size=32), EpochSampler(20, 8), backend="reference")
        >>> views, indices = next(iter(loader))
        >>> [view.shape for view in views]
        [torch.Size([8, 3, 32, 32]), torch.Size([8, 3, 32, 32])]
    """
    if len(images) != sampler.count:
        raise ValueError(f"the batches are for {sampler.count} images and there are {len(images)}")
    if backend == "numba":
        floats = getattr(getattr(images, "decoder", None), "value_range", None) is not None
        numba_backend.prepare(floats)  # here, so that workers need not compile, each for itself
    dataset: Dataset[Any] = (
        ViewDataset(images, policy, sampler.seed, backend, exact_decoding)
        if device is None
        else RawBatchDataset(images, policy, sampler.seed, exact_decoding)
    )
    loader = Loader(
        dataset,
        workers=workers,
        batch_sampler=sampler,
        pin_memory=pin_memory,
        persistent_workers=workers > 0,
        prefetch_factor=prefetch if workers > 0 else None,
    )
    return loader if device is None else DeviceViewLoader(loader, policy, device)


@final
class DeviceViewLoader:
    """A loader of the same batches as `view_loader`'s, whose views are made on a device.

    Args:
        raw_batches: the loader of raw batches.
        policy: the augmentation of each view.
        device: the device.
    """

    def __init__(self, raw_batches: Loader, policy: Policy, device: torch.device) -> None:
        self.raw_batches = raw_batches
        self.policy = policy
        self.device = device

    def __len__(self) -> int:
        return len(self.raw_batches)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.raw_batches:
            yield make_views(batch, self.policy, self.device), batch.indices


def ignore_signals(worker: int) -> None:
    """Leave signals to the main process: Ctrl-C and schedulers signal the workers too, before the run has saved.

    Of SIGTERM only the first is let pass: the next is the main process ending its workers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: signal.signal(number, signal.SIG_DFL))


def to_tensor(pixels: Pixels) -> Tensor:
    """[H, W, C] pixels as an image [C, H, W], of the same type."""
    if not pixels.flags.writeable:
        pixels = pixels.copy()  # torch warns of arrays it could write to and must not
    return torch.from_numpy(pixels).permute(2, 0, 1)


def default_workers(processes: int) -> int:
    """A share of the cores, less the one that trains."""
    return max(0, (os.cpu_count() or 1) // max(processes, 1) - 1)
