"""Views as `Augmentation.apply` makes them, to four decimals and several times faster: one native kernel for them all.

    view = apply(pixels, augmentation, draw)                     # [C, S, S] of uint8 [H, W, C]
    first, second = views(pixels, seed, epoch, index, named("mocov2"))
    fill(batch_of_pixels, draws, augmentation, out)              # many images of one size, one call

The kernel is `mixview.data.kernels`. It is compiled on first use, which takes some seconds and says so, and kept in
mixview's cache. Where Numba is missing or broken, everything here is the plain reference instead: same draws, same
views, only slower. RandAugment's operations are the reference's, between two runs of the kernel.
"""

import contextlib
import logging
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mixview.data.augmentation import (
    MOST_OPERATIONS,
    PACKED,
    TRIES,
    UNIFORMS,
    Augmentation,
    Draw,
    Jitter,
    randaugment_step,
    view_seed,
)
from mixview.data.cache import cache_folder
from mixview.data.source import Pixels
from mixview.terminal import say

Draws = npt.NDArray[np.float64]
"""[N, PACKED] packed draws."""

logger = logging.getLogger(__name__)

STEP_CODES = {"jitter": 0, "grey": 1, "blur": 2, "solarise": 3}
NOTHING = np.zeros((1, 1, 1), np.uint8)


class Kernels(NamedTuple):
    run: Callable[..., None]
    choose: Callable[..., None]


@lru_cache(maxsize=1)
def kernels() -> Kernels | None:
    """The native code, or None where there can be none."""
    try:
        import numba
        from numba.core import event
    except ImportError as error:
        logger.warning("numba is missing, so that views are made the slow way (pip install numba): %s", error)
        return None

    chosen = numba.config.CACHE_DIR  # the user's, where there is one
    folder = Path(chosen) if chosen else writable_folder()
    if chosen and folder is not None and folder.is_dir() and (reason := others_can_write(folder)) is not None:
        logger.warning(
            "compiled code is not kept in NUMBA_CACHE_DIR, which would run what others put there: %s", reason
        )
        folder = writable_folder()

    class Announcement(event.Listener):  # type: ignore[misc]
        said = False

        def on_start(self, event: Any) -> None:
            if not self.said:
                self.said = True
                kept = f"once; kept in {folder}" if folder else "no folder to keep it in can be written to"
                say(f"mixview: compiling the augmentations ({kept}) …", file=sys.stderr)

        def on_end(self, event: Any) -> None: ...

    try:
        # Numba looks where to keep a function when it is declared; other functions are to stay where they are.
        numba.config.CACHE_DIR = str(folder) if folder else ""
        with event.install_listener("numba:compile", Announcement()):
            from mixview.data.kernels import compiled

            return Kernels(*compiled(cache=folder is not None))
    except Exception as error:  # a Numba that does not fit its LLVM, or numpy: training goes on without
        logger.warning("numba cannot compile, so that views are made the slow way: %s", error)
        return None
    finally:
        numba.config.CACHE_DIR = chosen


def writable_folder() -> Path | None:
    """Where compiled code is kept: mixview's cache, or where homes cannot be written to a temporary folder."""
    user = os.getuid() if hasattr(os, "getuid") else "user"
    for folder in (cache_folder("numba"), Path(tempfile.gettempdir()) / f"mixview-numba-{user}"):
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not folder.is_symlink() and folder.stat().st_uid == user:
                folder.chmod(0o700)
                if folder.parent.stat().st_uid == user:  # made by us, with whatever the umask leaves
                    folder.parent.chmod(folder.parent.stat().st_mode & ~0o022)
            if others_can_write(folder) is None:
                with tempfile.TemporaryFile(dir=folder):
                    return folder
    return None


def others_can_write(folder: Path) -> str | None:
    """How somebody else could put a file into a folder, which is as good as code: Numba's index is a pickle.

    None if nobody can but this user and the system's administrator.
    """
    if not hasattr(os, "getuid"):
        return None  # Windows keeps the folders of users apart
    try:
        place, user = folder.absolute(), os.getuid()
        inside = [] if stat.S_IMODE(place.stat().st_mode) == 0o700 else place.iterdir()  # nobody else gets that far
        for each in (place, *place.parents, *place.resolve().parents, *inside):
            status = each.lstat()
            own_group = status.st_gid in (0, user)  # a user's private group has the user's number
            writable = status.st_mode & (stat.S_IWOTH if own_group else stat.S_IWOTH | stat.S_IWGRP)
            sticky = status.st_mode & stat.S_ISVTX and each in place.parents  # others cannot replace what is in it
            system = status.st_uid == 0 or (status.st_uid == NOBODY and each in place.parents)
            if status.st_uid != user and not system:
                return f"{each} belongs to another user"
            if writable and not sticky and not stat.S_ISLNK(status.st_mode):
                return f"others can write to {each}"
    except OSError as error:
        return f"{folder} cannot be looked at ({error.strerror})"
    return None


NOBODY = 65534
"""Whom the host's administrator looks like in a container that has users of its own."""


def prepare() -> bool:
    """Compile now, before there are worker processes that would each do it; whether there is native code."""
    return kernels() is not None


class Plan(NamedTuple):
    """An augmentation as the kernel takes it, for images of some number of channels."""

    cubic: bool
    before: npt.NDArray[np.int64]
    """Steps up to RandAugment, or all."""
    after: npt.NDArray[np.int64]
    active: npt.NDArray[np.bool_]
    radius: int
    scales: npt.NDArray[np.float32]
    shifts: npt.NDArray[np.float32]
    ones: npt.NDArray[np.float32]
    zeros: npt.NDArray[np.float32]


@lru_cache(maxsize=64)
def plan(augmentation: Augmentation, channels: int) -> Plan:
    size, jitter = augmentation.crop.size, augmentation.jitter or Jitter(0, 0, 0, 0, 0)
    order = list(augmentation.order)
    split = order.index("randaugment") if "randaugment" in order else len(order)
    before, after = ([STEP_CODES[step] for step in part] for part in (order[:split], order[split + 1 :]))
    radius = min(augmentation.blur.width(size) // 2, size - 1) if augmentation.blur else -1
    mean, std = (
        augmentation.normalise.values(channels) if augmentation.normalise else ([0.0] * channels, [1.0] * channels)
    )
    return Plan(
        cubic=augmentation.crop.interpolation == "bicubic",
        before=np.array(before, np.int64),
        after=np.array(after, np.int64),
        active=np.array([jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue]) != 0,
        radius=radius,
        scales=(1 / np.array(std)).astype(np.float32),
        shifts=(-np.array(mean) / np.array(std)).astype(np.float32),
        ones=np.ones(channels, np.float32),
        zeros=np.zeros(channels, np.float32),
    )


_scratch = threading.local()


def scratch(channels: int, size: int) -> npt.NDArray[np.float32]:
    """Two sets of planes, kept from view to view: fresh memory has to be mapped in page by page."""
    kept: npt.NDArray[np.float32] | None = getattr(_scratch, "planes", None)
    if kept is None or kept.shape != (2, channels, size * size):
        kept = _scratch.planes = np.empty((2, channels, size * size), np.float32)
    return kept


def fill(images: Pixels, draws: Draws, augmentation: Augmentation, out: Tensor) -> None:
    """The views of images [N, H, W, C] that packed draws [N, PACKED] make, into `out` [N, C, S, S].

    `out` is float32, contiguous or channels last; any other type is converted to.
    """
    count, height, width, channels = images.shape
    size = augmentation.crop.size
    if out.shape != (count, channels, size, size):
        raise ValueError(f"out must be {[count, channels, size, size]}, got {list(out.shape)}")
    outside = (draws[:, 0] + draws[:, 2] > height) | (draws[:, 1] + draws[:, 3] > width)
    if outside.any() or (draws[:, :4] < (0, 0, 1, 1)).any():
        raise ValueError(f"a draw crops outside its image of {height} × {width}: draw for the size of this image")
    native = kernels()
    last = not out.is_contiguous() and out.is_contiguous(memory_format=torch.channels_last)
    if native is None or images.dtype != np.uint8:
        for row, image, draw in zip(out, images, draws, strict=True):
            row.copy_(
                augmentation.apply(torch.from_numpy(np.array(image)).permute(2, 0, 1), Draw.unpack(draw.tolist()))
            )
        return
    if out.dtype != torch.float32 or not (last or out.is_contiguous()):
        whole = torch.empty(out.shape)
        fill(images, draws, augmentation, whole)
        out.copy_(whole)
        return
    p, work = plan(augmentation, channels), scratch(channels, size)
    pixels = np.ascontiguousarray(images).reshape(count, height, width * channels)
    target = (out.permute(0, 2, 3, 1) if last else out).numpy().reshape(count, channels, -1)
    shared = (p.active, p.radius)
    if augmentation.randaugment is None or "randaugment" not in augmentation.order:
        native.run(pixels, draws, p.cubic, True, p.before, *shared, p.scales, p.shifts, last, work, target)
        return
    for n in range(count):
        draw = draws[n : n + 1]
        view = torch.empty(channels, size, size)
        flat = view.numpy().reshape(1, channels, -1)
        native.run(pixels[n : n + 1], draw, p.cubic, True, p.before, *shared, p.ones, p.zeros, False, work, flat)
        view = randaugment_step(augmentation, view, Draw.unpack(draw[0].tolist()))
        work[0] = view.numpy().reshape(channels, -1)
        native.run(NOTHING, draw, p.cubic, False, p.after, *shared, p.scales, p.shifts, last, work, target[n : n + 1])


def apply(image: Pixels, augmentation: Augmentation, draw: Draw) -> Tensor:
    """The view [C, size, size] of pixels [H, W, C] that a draw makes."""
    out = torch.empty(1, image.shape[2], augmentation.crop.size, augmentation.crop.size)
    fill(image[None], np.array([draw.pack()]), augmentation, out)
    return out[0]


def choose(
    seeds: Sequence[int], height: int, width: int, augmentations: tuple[Augmentation, Augmentation]
) -> tuple[Draws, Draws]:
    """The draws of both views, [N, PACKED] each, of images of one size, from the seeds of their generators.

    What `Augmentation.draw` draws from torch's generator of that seed, first view first.
    """
    first, second = np.empty((2, len(seeds), PACKED))
    native = kernels()
    if native is not None and same_numbers() and not any(one.randaugment for one in augmentations):
        both = np.stack([first, second])
        ranges = np.stack([limits(one) for one in augmentations])
        table = np.array(seeds, np.uint64)
        native.choose(table, height, width, UNIFORMS, TRIES, MOST_OPERATIONS, ranges, both)
        return both[0], both[1]
    for n, seed in enumerate(seeds):
        generator = torch.Generator().manual_seed(seed)
        for draws, one in zip((first, second), augmentations, strict=True):
            draws[n] = one.draw(height, width, generator).pack()
    return first, second


@lru_cache(maxsize=64)
def limits(augmentation: Augmentation) -> npt.NDArray[np.float64]:
    """[19] what the kernel draws between."""
    jitter = augmentation.jitter or Jitter(0, 0, 0, 0, 0)
    factors = (jitter.brightness, jitter.contrast, jitter.saturation)
    return np.array(
        [
            *(*augmentation.crop.scale, *augmentation.crop.ratio, augmentation.flip, jitter.p),
            *(bound for factor in factors for bound in (max(0.0, 1 - factor), 1 + factor)),
            *(-jitter.hue, jitter.hue, augmentation.grey),
            *((augmentation.blur.p, *augmentation.blur.sigma) if augmentation.blur else (-1.0, 0.0, 0.0)),
            augmentation.solarise,
        ]
    )


@lru_cache(maxsize=1)
def same_numbers() -> bool:
    """Whether this torch's generator is the one that the kernel knows."""
    native = kernels()
    if native is None:
        return False
    plain = Augmentation(flip=0.0)
    draws = np.empty((2, 1, PACKED))
    seeds, ranges = np.array([2**40 + 7], np.uint64), np.stack([limits(plain)] * 2)
    native.choose(seeds, 375, 500, UNIFORMS, TRIES, MOST_OPERATIONS, ranges, draws)
    generator = torch.Generator().manual_seed(2**40 + 7)
    return all(draws[view, 0].tolist() == plain.draw(375, 500, generator).pack() for view in range(2))


def views(
    image: Pixels, seed: int, epoch: int, index: int, augmentations: tuple[Augmentation, Augmentation]
) -> tuple[Tensor, Tensor]:
    """Both views of pixels [H, W, C], as `mixview.data.augmentation.views` makes them."""
    size = [one.crop.size for one in augmentations]
    first, second = (torch.empty(1, image.shape[2], side, side) for side in size)
    fill_views(image[None], [view_seed(seed, epoch, index)], augmentations, (first, second))
    return first[0], second[0]


def fill_views(
    images: Pixels,
    seeds: Sequence[int],
    augmentations: tuple[Augmentation, Augmentation],
    out: tuple[Tensor, Tensor],
) -> None:
    """Both views of images [N, H, W, C] into two tensors [N, C, S, S], from the seeds of the images."""
    _, height, width, _ = images.shape
    for draws, one, views in zip(choose(seeds, height, width, augmentations), augmentations, out, strict=True):
        fill(images, draws, one, views)
