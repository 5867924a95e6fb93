"""Batches of views that do not depend on who makes them: the number of workers, processes and restarts.

    batches = Batches(len(reader), batch=256, seed=0, rank=rank, world=world)
    loader = view_loader(reader, named("simclr"), batches, workers=4)
    for epoch in range(200):
        batches.go_to(epoch)
        for view1, view2, index in loader: ...

Nothing here remembers an epoch in a worker. `Batches` hands out (epoch, index) pairs from the main process, and a view
is a function of (seed, epoch, index): persistent workers cannot be an epoch behind, and to go on in the middle of an
epoch is `batches.go_to(epoch, start)`.
"""

import hashlib
import os
import re
import signal
from collections.abc import Iterator
from typing import Any, Protocol, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from mixview.data import fused as kernel
from mixview.data.augmentation import Augmentation, view_seed, views
from mixview.data.batched import Parcel, pack, unpack
from mixview.data.source import Pixels

Key = tuple[int, int]
"""(epoch, index)"""
Item = tuple[Tensor, Tensor, int]
"""Both views, [C, size, size] each, and the index of the image they show."""
Batch = tuple[Tensor, Tensor, Tensor]
"""Both views, [B, C, size, size] each, and the indices [B]."""

SMALL = 128 * 128
"""Images of at most so many pixels are gathered and augmented in one call; larger ones as they come."""


class Reading(Protocol):
    """An image as it was read."""

    @property
    def pixels(self) -> Pixels: ...

    @property
    def index(self) -> int:
        """Which image it is: the one that was asked for, or one that stands in for it."""


class Images(Protocol):
    """Decoded images by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Reading: ...


@final
class Views(Dataset[Item]):
    """Both views of the images, by (epoch, index).

    A list of keys gives a finished batch: views are made where they are to be, in memory that a worker shares with the
    training process.

    Args:
        images: decoded images by index.
        augmentations: one for each view.
        seed: of the views.
        fused: make views by the native kernel, rather than by the plain reference.
    """

    def __init__(
        self,
        images: Images,
        augmentations: tuple[Augmentation, Augmentation],
        seed: int = 0,
        fused: bool = True,
    ) -> None:
        self.images = images
        self.augmentations = augmentations
        self.seed = seed
        self.fused = fused

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: Key) -> Item:
        epoch, index = key
        reading = self.images[index]
        if self.fused:
            first, second = kernel.views(reading.pixels, self.seed, epoch, index, self.augmentations)
        else:
            first, second = views(to_tensor(reading.pixels), self.seed, epoch, index, self.augmentations)
        return first, second, reading.index

    def __getitems__(self, keys: list[Key]) -> Batch:
        """The batch of these keys, in their order."""
        both: tuple[Tensor, Tensor] | None = None
        indices = list[int]()
        waiting = list[Pixels]()

        def make() -> None:
            """The views of the images that wait, which are the last that were read."""
            assert both is not None
            start = len(indices) - len(waiting)
            rows = both[0][start : len(indices)], both[1][start : len(indices)]
            if self.fused:
                seeds = [view_seed(self.seed, *key) for key in keys[start : len(indices)]]
                images = np.stack(waiting) if len(waiting) > 1 else waiting[0][None]
                kernel.fill_views(images, seeds, self.augmentations, rows)
            else:
                made = views(to_tensor(waiting[0]), self.seed, *keys[start], self.augmentations)
                for row, view in zip(rows, made, strict=True):
                    row.copy_(view[None])
            waiting.clear()

        for _, index in keys:
            reading = self.images[index]
            pixels = reading.pixels
            channels = pixels.shape[2]
            if both is None:
                first, second = (one.crop.size for one in self.augmentations)
                both = (
                    new_tensor((len(keys), channels, first, first)),
                    new_tensor((len(keys), channels, second, second)),
                )
            check_channels(reading, both[0].shape[1])
            if waiting and waiting[-1].shape != pixels.shape:
                make()
            waiting.append(pixels)
            indices.append(reading.index)
            if not self.fused or pixels.shape[0] * pixels.shape[1] > SMALL:
                make()
        if waiting:
            make()
        if both is None:
            raise ValueError("a batch of no images has no views")
        return *both, torch.tensor(indices)


@final
class Parcels(Dataset[Parcel]):
    """Pixels and draws by (epoch, index), of which a device makes the views that `Views` would have made.

    Args:
        images: decoded images by index.
        augmentations: one for each view.
        seed: of the views.
    """

    def __init__(self, images: Images, augmentations: tuple[Augmentation, Augmentation], seed: int = 0) -> None:
        self.images = images
        self.augmentations = augmentations
        self.seed = seed

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, keys: list[Key]) -> Parcel:
        """The parcel of these keys, in their order."""
        readings = [self.images[index] for _, index in keys]
        for reading in readings:
            check_channels(reading, readings[0].pixels.shape[2])
        seeds = [view_seed(self.seed, *key) for key in keys]
        pixels, indices = [each.pixels for each in readings], [each.index for each in readings]
        return pack(pixels, seeds, indices, self.augmentations, new_tensor)


def check_channels(reading: Reading, channels: int) -> None:
    """Refuse an image of other channels than its batch has."""
    if reading.pixels.shape[2] != channels:
        raise ValueError(
            f"image {reading.index} has {reading.pixels.shape[2]} channels and others of its batch have {channels}: "
            'decode all of them to RGB or to L rather than as they are "stored"'
        )


def new_tensor(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """An empty tensor; in a worker, in shared memory: to send any other means to copy it there."""
    if get_worker_info() is None:
        return torch.empty(shape, dtype=dtype)
    size = torch.Size(shape).numel() * dtype.itemsize
    return torch.empty(0, dtype=dtype).set_(torch.UntypedStorage._new_shared(size)).view(shape)


def as_it_is(batch: Any) -> Any:
    """For the loader, which would otherwise put together what `Views` already has."""
    return batch


class WorkerDied(RuntimeError):
    """A process that reads images ended: the message says what to do about it."""


def explain_lost_worker(error: BaseException) -> WorkerDied | None:
    """What torch says when a worker has died, in one sentence; None for any other error.

    torch raises it wherever the main process is at that moment, in the middle of a training step as well, or while a
    checkpoint is written, which then fails in its turn.
    """
    found = re.match(
        r"DataLoader worker \(pid\D* ([\d, ]+)\) (?:is )?(killed by signal: \w+|exited unexpectedly)", str(error)
    )
    if found is None:
        return None if error.__context__ is None else explain_lost_worker(error.__context__)
    return WorkerDied(
        f"a process that reads images died ({found[2]}, process {found[1]}): if memory is short, use fewer --workers; "
        "--workers 0 reads without such processes"
    )


@final
class Failure:
    """An error in a worker, on its way to the main process as the object that it is."""

    def __init__(self, error: Exception) -> None:
        self.error = error


@final
class Carrying(Dataset[Any]):
    """A data set whose errors reach the main process as they are; torch would send a traceback as their text."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: Any) -> Any:
        return self._carry(self.dataset.__getitem__, key)

    def __getitems__(self, keys: list[Any]) -> Any:
        return self._carry(self.dataset.__getitems__, keys)

    def _carry(self, get: Any, key: Any) -> Any:
        try:
            return get(key)
        except (ValueError, OSError) as error:
            if get_worker_info() is None:
                raise
            return Failure(error)


@final
class Loader(DataLoader[Any]):
    """torch's loader for whole batches, whose errors are those of the data set, and which says when a worker died.

    Args:
        dataset: makes a batch of a list of keys, or one item of a key.
        workers: processes that do so; 0 for this one.
        options: further ones of torch's loader.
    """

    def __init__(self, dataset: Any, *, workers: int, **options: Any) -> None:
        super().__init__(
            Carrying(dataset),
            collate_fn=as_it_is,
            num_workers=workers,
            worker_init_fn=leave_signals_to_the_main_process if workers > 0 else None,
            **options,
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        try:
            for batch in super().__iter__():
                if isinstance(batch, Failure):
                    raise batch.error
                yield batch
        except RuntimeError as error:
            raise explain_lost_worker(error) or error from None


@final
class Batches(Sampler[list[Key]]):
    """The batches of an epoch: this process's part of each, as (epoch, index) pairs.

    An epoch's order is a function of (seed, epoch). `batch` counts the images of all processes together: rank r of W
    takes the r-th W-th of every batch, so that the ranks' parts, one after the other, are the batch that a single
    process would take.

    Args:
        count: number of images.
        batch: images a step, over all processes.
        seed: of the order.
        rank: this process.
        world: number of processes.
        shuffle: whether to shuffle at all.
        drop_last: leave out the short last batch; otherwise the parts of it may differ by one image, and only one of
            fewer images than there are processes is left out.
    """

    def __init__(
        self,
        count: int,
        batch: int,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        shuffle: bool = True,
        drop_last: bool = True,
    ) -> None:
        if world < 1 or not 0 <= rank < world:
            raise ValueError(f"rank must be within 0 … world - 1, got rank {rank} of {world}")
        if batch < 1 or batch % world:
            nearest = max(world, round(batch / world) * world)
            raise ValueError(f"batch {batch} does not divide over {world} processes; use {nearest}")
        if count < (batch if drop_last else world):
            raise ValueError(
                f"{count} images do not fill one batch of {batch}; use a batch of at most {count // world * world}"
                if count >= world
                else f"{count} images are too few for {world} processes; use at most {max(count, 1)}"
            )
        self.count = count
        self.batch = batch
        self.seed = seed
        self.rank = rank
        self.world = world
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.epoch = 0
        self.start = 0

    def go_to(self, epoch: int, start: int = 0) -> None:
        """The next iteration is over this epoch, from batch `start` on (0 is its beginning)."""
        if epoch < 0 or not 0 <= start <= self.total:
            raise ValueError(f"there is no batch {start} in epoch {epoch}: an epoch has {self.total} batches")
        self.epoch = epoch
        self.start = start

    @property
    def total(self) -> int:
        """Batches in a whole epoch."""
        last = 0 if self.drop_last else int(self.count % self.batch >= self.world)
        return self.count // self.batch + last

    def __len__(self) -> int:
        """Batches still to come in this epoch."""
        return self.total - self.start

    def __iter__(self) -> Iterator[list[Key]]:
        epoch = self.epoch  # a `go_to` during the iteration is for the next one
        order = epoch_order(self.count, self.seed, epoch) if self.shuffle else torch.arange(self.count)
        for step in range(self.start, self.total):
            whole = order[step * self.batch : (step + 1) * self.batch]
            start, end = (len(whole) * rank // self.world for rank in (self.rank, self.rank + 1))
            part = whole[start:end]
            yield [(epoch, index) for index in part.tolist()]


def epoch_order(count: int, seed: int, epoch: int) -> Tensor:
    """[count] the order of the images in an epoch, a function of the arguments alone."""
    digest = hashlib.blake2b(f"order/{seed}/{epoch}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
    return torch.randperm(count, generator=generator)


def view_loader(
    images: Images,
    augmentations: tuple[Augmentation, Augmentation],
    batches: Batches,
    *,
    workers: int = 0,
    pin_memory: bool = False,
    prefetch: int = 2,
    fused: bool = True,
    device: torch.device | None = None,
) -> "Loader | OnDevice":
    """A loader of (view1 [B, C, S, S], view2, index [B]), bit for bit the same with any number of workers.

    Args:
        images: decoded images by index.
        augmentations: one for each view.
        batches: which images when.
        workers: processes that make views; 0 for the one that trains.
        pin_memory: so that batches can be copied to a GPU while it computes.
        prefetch: batches that each worker is ahead.
        fused: make views by the native kernel, rather than by the plain reference: the same to four decimals.
        device: make the views there instead, of pixels that the workers send: again the same to four decimals.
    """
    if len(images) != batches.count:
        raise ValueError(f"the batches are for {batches.count} images and there are {len(images)}")
    if fused:
        kernel.prepare()  # here, so that workers need not compile, each for itself
    made: Dataset[Any] = (
        Views(images, augmentations, batches.seed, fused)
        if device is None
        else Parcels(images, augmentations, batches.seed)
    )
    loader = Loader(
        made,
        workers=workers,
        batch_sampler=batches,
        pin_memory=pin_memory,
        persistent_workers=workers > 0,
        prefetch_factor=prefetch if workers > 0 else None,
    )
    return loader if device is None else OnDevice(loader, augmentations, device)


@final
class OnDevice:
    """A loader of batches as `view_loader`'s, whose views are made on a device.

    Args:
        parcels: the loader of what they are made of.
        augmentations: one for each view.
        device: where to.
    """

    def __init__(self, parcels: Loader, augmentations: tuple[Augmentation, Augmentation], device: torch.device) -> None:
        self.parcels = parcels
        self.augmentations = augmentations
        self.device = device

    def __len__(self) -> int:
        return len(self.parcels)

    def __iter__(self) -> Iterator[Batch]:
        for parcel in self.parcels:
            yield *unpack(parcel, self.augmentations, self.device), parcel.indices


def leave_signals_to_the_main_process(worker: int) -> None:
    """Ctrl-C and schedulers signal the workers too, whose death would take a run down before it has saved.

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
