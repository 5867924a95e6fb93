"""Views made by one native kernel: those of the reference to four decimals, and several times faster.

    view = apply(pixels, augmentation, params)                       # [C, S, S] of uint8 [H, W, C]
    views = make_views(pixels, seed, epoch, index, load_policy("mocov2"))
    fill(batch_of_pixels, params, augmentation, out)                 # many images of one size, one call

The kernel is `mixview.data.augment.numba_kernels`. It is compiled on first use, which takes some seconds and says so,
and kept in mixview's cache. Where Numba is missing or broken, the reference makes the same views, only slower. It also
makes RandAugment's operations, between two runs of the kernel, and the views of the user's own callables.
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

from mixview.data.augment import reference
from mixview.data.augment.params import COLUMNS, LAYOUT, PACKED, AugmentParams, limits_of, sample_params, scale_crop
from mixview.data.augment.policies import Augmentation, CustomView, Jitter, Policy
from mixview.data.cache import cache_folder
from mixview.data.decode import FACTORS
from mixview.data.sources.base import Pixels
from mixview.io.terminal import say
from mixview.rng import seed_from

ParamTable = npt.NDArray[np.float64]
"""[N, PACKED] packed parameters, one row per view."""

logger = logging.getLogger(__name__)

STEP_CODES = {"jitter": 0, "grayscale": 1, "blur": 2, "solarize": 3}
NOTHING = np.zeros((1, 1, 1), np.uint8)


class Kernels(NamedTuple):
    run: Callable[..., None]
    sample: Callable[..., None]


@lru_cache(maxsize=1)
def kernels() -> Kernels | None:
    """The native code for pixels of 8 bits, or None where there can be none."""
    result = compile_kernels("compiled")
    return None if result is None else Kernels(*result)


@lru_cache(maxsize=1)
def float_kernels() -> Kernels | None:
    """The native code for pixels that are floats from 0 to 255: the same for the rest."""
    whole = kernels()
    run = None if whole is None else compile_kernels("compiled_for_floats")
    return None if whole is None or run is None else Kernels(run, whole.sample)


def compile_kernels(name: str) -> Any:
    """Compile a function of `numba_kernels`; None where nothing can be compiled."""
    try:
        import numba
        from numba.core import event
    except ImportError as error:
        logger.warning("numba is missing, so views are made the slow way (pip install numba): %s", error)
        return None

    chosen = numba.config.CACHE_DIR  # the user's, where there is one
    folder = Path(chosen) if chosen else writable_folder()
    if chosen and folder is not None and folder.is_dir() and (reason := others_can_write(folder)) is not None:
        logger.warning(
            "compiled code is not kept in NUMBA_CACHE_DIR, where others could put code of their own: %s", reason
        )
        folder = writable_folder()

    class Announcement(event.Listener):  # type: ignore[misc]
        announced = False

        def on_start(self, event: Any) -> None:
            if not self.announced:
                self.announced = True
                where = f"once; kept in {folder}" if folder else "no folder to keep it in can be written to"
                say(f"mixview: compiling the augmentations ({where}) …", file=sys.stderr)

        def on_end(self, event: Any) -> None: ...

    try:
        # Numba looks where to keep a function when it is declared; other functions are to stay where they are.
        numba.config.CACHE_DIR = str(folder / LAYOUT) if folder else ""  # Numba does not see that a layout changed
        with event.install_listener("numba:compile", Announcement()):
            from mixview.data.augment import numba_kernels

            return getattr(numba_kernels, name)(cache=folder is not None)
    except Exception as error:  # a Numba that does not fit its LLVM, or numpy: training goes on without
        logger.warning("numba cannot compile, so views are made the slow way: %s", error)
        return None
    finally:
        numba.config.CACHE_DIR = chosen


def writable_folder() -> Path | None:
    """The folder of compiled code: mixview's cache, or a temporary folder where homes cannot be written to."""
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
    """The way somebody else could put a file into a folder, which is as good as code: Numba's index is a pickle.

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
        return f"{folder} cannot be read ({error.strerror})"
    return None


NOBODY = 65534
"""Whom the host's administrator looks like in a container that has users of its own."""


def prepare(floats: bool = False) -> bool:
    """Compile now, before there are worker processes that would each do it; whether there is native code.

    Args:
        floats: also for pixels of more than 8 bits.
    """
    return (float_kernels() if floats else kernels()) is not None


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
    size, jitter = augmentation.size, augmentation.jitter or Jitter(0, 0, 0, 0, 0)
    order = list(augmentation.order)
    split = order.index("randaugment") if "randaugment" in order else len(order)
    before, after = ([STEP_CODES[step] for step in part] for part in (order[:split], order[split + 1 :]))
    radius = min(augmentation.blur.width(size) // 2, size - 1) if augmentation.blur else -1
    mean, std = (
        augmentation.normalize.values(channels) if augmentation.normalize else ([0.0] * channels, [1.0] * channels)
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
    planes: npt.NDArray[np.float32] | None = getattr(_scratch, "planes", None)
    if planes is None or planes.shape != (2, channels, size * size):
        planes = _scratch.planes = np.empty((2, channels, size * size), np.float32)
    return planes


def check_crops(params: ParamTable, height: int, width: int) -> None:
    """Raise if a crop is not within its image, outside of which the kernel would read."""
    top, left, crop_height, crop_width = (params[:, COLUMNS[name]] for name in ("top", "left", "height", "width"))
    outside = (top < 0) | (left < 0) | (crop_height < 1) | (crop_width < 1)
    if (outside | (top + crop_height > height) | (left + crop_width > width)).any():
        raise ValueError(
            f"parameters crop outside their image of {height} × {width}: sample them for the size of this image"
        )


def fill(images: Pixels, params: ParamTable, augmentation: Augmentation, out: Tensor) -> None:
    """Write the views of images [N, H, W, C] under packed parameters [N, PACKED] into `out` [N, C, S, S].

    `out` is float32, contiguous or channels last; views are converted to any other type.
    """
    count, height, width, channels = images.shape
    size = augmentation.size
    if out.shape != (count, channels, size, size):
        raise ValueError(f"out must be {[count, channels, size, size]}, got {list(out.shape)}")
    check_crops(params, height, width)
    floats = images.dtype == np.float32
    native = float_kernels() if floats else kernels()
    last = not out.is_contiguous() and out.is_contiguous(memory_format=torch.channels_last)
    if native is None or not (floats or images.dtype == np.uint8):
        for row, image, packed in zip(out, images, params, strict=True):
            tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1)
            row.copy_(reference.apply(tensor, augmentation, AugmentParams.unpack(packed.tolist())))
        return
    if out.dtype != torch.float32 or not (last or out.is_contiguous()):
        whole = torch.empty(out.shape)
        fill(images, params, augmentation, whole)
        out.copy_(whole)
        return
    p, work = plan(augmentation, channels), scratch(channels, size)
    # From 0 to 255 as well: the arithmetic is that of 8 bits.
    scaled = images * np.float32(255) if floats else np.ascontiguousarray(images)
    pixels = scaled.reshape(count, height, width * channels)
    target = (out.permute(0, 2, 3, 1) if last else out).numpy().reshape(count, channels, -1)
    shared = (p.active, p.radius)
    if augmentation.randaugment is None or "randaugment" not in augmentation.order:
        native.run(pixels, params, p.cubic, True, p.before, *shared, p.scales, p.shifts, last, work, target)
        return
    for n in range(count):
        row = params[n : n + 1]
        view = torch.empty(channels, size, size)
        flat = view.numpy().reshape(1, channels, -1)
        native.run(pixels[n : n + 1], row, p.cubic, True, p.before, *shared, p.ones, p.zeros, False, work, flat)
        view = reference.randaugment_step(augmentation, view, AugmentParams.unpack(row[0].tolist()))
        work[0] = view.numpy().reshape(channels, -1)
        native.run(
            NOTHING.astype(pixels.dtype),
            row,
            p.cubic,
            False,
            p.after,
            *shared,
            p.scales,
            p.shifts,
            last,
            work,
            target[n : n + 1],
        )


def apply(image: Pixels, augmentation: Augmentation, params: AugmentParams) -> Tensor:
    """The view [C, S, S] of pixels [H, W, C] under sampled parameters."""
    out = torch.empty(1, image.shape[2], augmentation.size, augmentation.size)
    fill(image[None], np.array([params.pack()]), augmentation, out)
    return out[0]


def sample_table(
    seeds: Sequence[int], height: int, width: int, augmentations: Sequence[Augmentation]
) -> npt.NDArray[np.float64]:
    """[V, N, PACKED] the parameters of all views of images of one size, from the seeds of the images' generators.

    The same as `sample_params` takes from torch's generator of that seed, view after view.
    """
    table = np.empty((len(augmentations), len(seeds), PACKED))
    native = kernels()
    if native is not None and same_numbers() and not any(each.randaugment for each in augmentations):
        native.sample(np.array(seeds, np.uint64), height, width, limit_table(tuple(augmentations)), table)
        return table
    for n, seed in enumerate(seeds):
        generator = torch.Generator().manual_seed(seed)
        for view, augmentation in enumerate(augmentations):
            table[view, n] = sample_params(augmentation, height, width, generator).pack()
    return table


def sample_scaled(
    seeds: Sequence[int], full_size: tuple[int, int], size: tuple[int, int], augmentations: Sequence[Augmentation]
) -> npt.NDArray[np.float64]:
    """`sample_table` for images of which there are copies of `size`."""
    table = sample_table(seeds, *full_size, augmentations)
    if full_size != size:
        columns = [COLUMNS[name] for name in ("top", "left", "height", "width")]
        crops = scale_crop([table[:, :, column] for column in columns], full_size, size)
        for column, values in zip(columns, crops, strict=True):
            table[:, :, column] = values
    return table


def decode_factor(policy: Policy) -> Callable[[int, int, int], int] | None:
    """A function of an image's seed, height and width: the largest factor by which it may be decoded smaller.

    No view has to be enlarged for it. None where views are made by functions of the user's own, which see whole images.
    """
    augmentations = [view for view in policy if isinstance(view, Augmentation)]
    if len(augmentations) < len(policy):
        return None
    sizes = np.array([view.size for view in augmentations])
    smallest = 2 * max(view.size for view in augmentations)

    def choose(seed: int, height: int, width: int) -> int:
        if min(height, width) < smallest:
            return 1
        table = sample_table([seed], height, width, augmentations)[:, 0]
        sides = table[:, [COLUMNS["height"], COLUMNS["width"]]].min(1)
        room = float((sides / sizes).min())
        return next((factor for factor in FACTORS if factor <= room), 1)

    return choose


@lru_cache(maxsize=64)
def limit_table(augmentations: tuple[Augmentation, ...]) -> npt.NDArray[np.float64]:
    """[V, 19] the limits of each view, as the kernel takes them."""
    return np.array([limits_of(each) for each in augmentations], np.float64).reshape(len(augmentations), -1)


@lru_cache(maxsize=1)
def same_numbers() -> bool:
    """Return True if this torch's generator is the one that the kernel knows."""
    native = kernels()
    if native is None:
        return False
    plain = Augmentation(flip=0.0)
    views = 8  # more than one turn of the generator's state
    table = np.empty((views, 1, PACKED))
    native.sample(np.array([2**40 + 7], np.uint64), 375, 500, limit_table((plain,) * views), table)
    generator = torch.Generator().manual_seed(2**40 + 7)
    return all(row.tolist() == sample_params(plain, 375, 500, generator).pack() for row in table[:, 0])


def make_views(image: Pixels, seed: int, epoch: int, index: int, policy: Policy) -> tuple[Tensor, ...]:
    """All views of pixels [H, W, C], as `reference.make_views` makes them."""
    out = tuple(torch.empty(1, image.shape[2], view.size, view.size) for view in policy)
    fill_views(image[None], [seed_from("views", seed, epoch, index)], policy, out)
    return tuple(view[0] for view in out)


def fill_views(
    images: Pixels,
    seeds: Sequence[int],
    policy: Policy,
    out: Sequence[Tensor],
    full_size: tuple[int, int] | None = None,
) -> None:
    """Write all views of images [N, H, W, C] into one tensor [N, C, S, S] per view.

    Args:
        seeds: seeds of the images' views.
        full_size: height and width of the images that these are smaller copies of, if they are.
    """
    native = [(view, rows) for view, rows in zip(policy, out, strict=True) if isinstance(view, Augmentation)]
    if native:
        table = sample_scaled(seeds, full_size or images.shape[1:3], images.shape[1:3], [view for view, _ in native])
        for params, (view, rows) in zip(table, native, strict=True):
            fill(images, params, view, rows)
    for number, (custom, rows) in enumerate(zip(policy, out, strict=True)):
        if isinstance(custom, CustomView):
            for image, seed, row in zip(images, seeds, rows, strict=True):
                pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
                row.copy_(reference.apply_custom(pixels, custom, seed, number))
