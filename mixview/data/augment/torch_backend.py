"""Views made on the device that trains: pixels and parameters go there, and torch makes the views of a batch at once.

    batch = pack_raw_batch(images, seeds, indices, policy)       # in a worker: bytes, and what is to become of them
    views = make_views(batch, policy, device)                    # [B, C, S, S] each, on the device

The same parameters and, to four decimals, the same views as `numba_backend` and the reference make. It is for
machines whose processors cannot keep up with their accelerators: workers only decode. Images keep their own sizes: the
part of each that any view shows is sent, one after the other, without padding.

Nothing here waits for the device: how many images an operation is for is read from the copy that stays with the CPU.
Only RandAugment's operations go image by image.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import get_worker_info

from mixview.data.augment import numba_backend
from mixview.data.augment.params import COLUMNS, PACKED, AugmentParams
from mixview.data.augment.policies import Augmentation, Crop, CustomView, Policy
from mixview.data.augment.reference import randaugment_step
from mixview.data.sources.base import Pixels

MAX_FLOATS = 2**25
"""The most values of a batch that is resized in rows and not yet in columns: more is worked off in parts."""

RED, GREEN, BLUE = 0.2989, 0.587, 0.114  # torchvision's


class RawBatch(NamedTuple):
    """A batch on its way to the device that makes its V views."""

    pixels: Tensor
    """[P, C] of each image the smallest rectangle that holds all crops, row by row, image after image: uint8, or floats
    from 0 to 255 where any image has more than 8 bits."""
    crops: Tensor
    """[V, B, 5] int64: the first pixel of the crop, pixels in a row of its image, height, width, flip."""
    params: Tensor
    """[V, B, PACKED] float32: packed `AugmentParams`."""
    indices: Tensor
    """[B]"""


def new_tensor(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """An empty tensor; in a worker, in shared memory: to send any other means to copy it there."""
    if get_worker_info() is None:
        return torch.empty(shape, dtype=dtype)
    size = torch.Size(shape).numel() * dtype.itemsize
    return torch.empty(0, dtype=dtype).set_(torch.UntypedStorage._new_shared(size)).view(shape)


def pack_raw_batch(
    images: Sequence[Pixels],
    seeds: Sequence[int],
    indices: Sequence[int],
    policy: Policy,
    full_sizes: Sequence[tuple[int, int]] | None = None,
) -> RawBatch:
    """The raw batch of images [H, W, C] of any sizes, with parameters from the seeds of the images.

    Args:
        full_sizes: height and width of the images that these are smaller copies of, if they are.
    """
    augmentations = require_augmentations(policy)
    shapes = [image.shape[:2] for image in images]
    sizes = list(zip(shapes if full_sizes is None else full_sizes, shapes, strict=True))
    params = np.empty((len(augmentations), len(images), PACKED))
    for pair in dict.fromkeys(sizes):
        rows = [row for row, each in enumerate(sizes) if each == pair]
        params[:, rows] = numba_backend.sample_scaled([seeds[row] for row in rows], *pair, augmentations)
    top, left, height, width, flip = (
        params[:, :, COLUMNS[name]].astype(np.int64) for name in ("top", "left", "height", "width", "flip")
    )  # [V, B] each
    first_row, first_column = top.min(0), left.min(0)
    last_row, last_column = (top + height).max(0), (left + width).max(0)
    columns = last_column - first_column
    ends = np.cumsum((last_row - first_row) * columns)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    begin = starts + (top - first_row) * columns + left - first_column
    crops = np.stack([begin, np.broadcast_to(columns, begin.shape), height, width, flip], axis=2)
    channels = images[0].shape[2]
    floats = any(image.dtype == np.float32 for image in images)
    pixels = new_tensor((int(ends[-1]), channels), torch.float32 if floats else torch.uint8)
    flat = pixels.numpy()
    for n, image in enumerate(images):
        part = image[first_row[n] : last_row[n], first_column[n] : last_column[n]]
        if image.dtype == np.float32:
            part = part * np.float32(255)
        flat[starts[n] : ends[n]].reshape(part.shape)[:] = part
    return RawBatch(
        pixels, torch.from_numpy(crops), torch.from_numpy(params.astype(np.float32)), torch.tensor(list(indices))
    )


def require_augmentations(policy: Policy) -> list[Augmentation]:
    """Raise if a view is made by a callable of the user's own, which runs on the CPU."""
    if any(isinstance(view, CustomView) for view in policy):
        raise ValueError(
            "views that are made by a function of your own are made on the CPU: use --augment_device cpu, or write "
            "the policy as YAML"
        )
    return [view for view in policy if isinstance(view, Augmentation)]


def make_views(batch: RawBatch, policy: Policy, device: torch.device) -> tuple[Tensor, ...]:
    """All views, [B, C, S, S] each, of a batch that is with the CPU (in pinned memory, for a CUDA device)."""
    pixels, crops, params = (part.to(device, non_blocking=True) for part in batch[:3])
    cpu_crops, cpu_params = batch.crops.numpy(), batch.params.numpy()
    return tuple(
        augment(view, resize(pixels, cpu_crops[n], crops[n], view.crop), cpu_params[n], params[n])
        for n, view in enumerate(require_augmentations(policy))
    )


# Crops: first rows, then columns, each by as many gathers as pixels make one.


def resize(pixels: Tensor, cpu_crops: npt.NDArray[np.int64], crops: Tensor, crop: Crop) -> Tensor:
    """Crops [B, C, S, S] in [0, 1], flipped or not, of pixels [P, C].

    Args:
        cpu_crops: [B, 5] the crops, with the CPU.
        crops: [B, 5] the same on the device.
    """
    parts = []
    for start, end in chunks(cpu_crops[:, 3].tolist(), crop.size * pixels.shape[1]):
        begin, stride, height, width, flip = crops[start:end].unbind(1)
        tallest, widest = int(cpu_crops[start:end, 2].max()), int(cpu_crops[start:end, 3].max())
        rows, weights = taps(height, tallest, crop, torch.zeros_like(flip))
        x = torch.arange(widest, device=pixels.device).expand(end - start, widest)
        x = torch.minimum(x, width[:, None] - 1)[:, None, :]  # beyond a narrow crop its last column, with no weight
        lines = torch.zeros((), device=pixels.device)
        for k in range(rows.shape[2]):
            at = (begin[:, None] + rows[:, :, k] * stride[:, None])[:, :, None] + x
            lines = lines + pixels[at] * (weights[:, :, k] / 255)[:, :, None, None]
        columns, weights = taps(width, widest, crop, flip)
        view = torch.zeros((), device=pixels.device)
        for k in range(columns.shape[2]):
            view = view + lines.take_along_dim(columns[:, None, :, k, None], 2) * weights[:, None, :, k, None]
        parts.append(view.permute(0, 3, 1, 2))
    view = torch.cat(parts).contiguous()
    return view.clamp_(0, 1) if crop.interpolation == "bicubic" else view  # it overshoots


def chunks(widths: list[int], each: int) -> Iterator[tuple[int, int]]:
    """Ranges of images that together, padded to the widest, have at most `MAX_FLOATS` of `each` per column."""
    start, widest = 0, 0
    for n, width in enumerate(widths):
        widest = max(widest, width)
        if n > start and (n + 1 - start) * widest * each > MAX_FLOATS:
            yield start, n
            start, widest = n, width
    yield start, len(widths)


def taps(sizes: Tensor, largest: int, crop: Crop, flip: Tensor) -> tuple[Tensor, Tensor]:
    """The pixels of lines of these sizes [B] that make each of `crop.size`, and their weights: [B, S, K] each.

    torch's antialiased ones. The middle of a new pixel, (2 i + 1) size / 2 S, is an integer and a remainder, for
    float32 has too few digits for the sum of the two.

    Args:
        largest: the largest of the sizes.
        flip: [B] 1 for those to be mirrored.
    """
    out, reach = crop.size, 2.0 if crop.interpolation == "bicubic" else 1.0
    i = torch.arange(out, device=sizes.device)
    i = torch.where(flip[:, None] > 0, out - 1 - i, i)
    twice = sizes[:, None] * (2 * i + 1)
    whole, rest = twice // (2 * out), (twice % (2 * out)) / (2 * out)
    stretch = (sizes / out).clamp(min=1)[:, None]
    low = (whole + torch.floor(rest - reach * stretch + 0.5).long()).clamp(min=0)
    count = int(np.ceil(2 * reach * max(largest / out, 1.0)))
    j = low[:, :, None] + torch.arange(count, device=sizes.device)
    x = (((j - whole[:, :, None]) - rest[:, :, None] + 0.5) / stretch[:, :, None]).abs()
    if crop.interpolation == "bicubic":
        near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
        weights = torch.where(x < 1, near, torch.where(x < 2, far, 0))
    else:
        weights = (1 - x).clamp(min=0)
    last = sizes[:, None, None] - 1
    weights = torch.where(j <= last, weights, 0)
    return torch.minimum(j, last), weights / weights.sum(2, keepdim=True)


# Colors, blur: each operation on those of the batch that it is for.


def augment(augmentation: Augmentation, view: Tensor, cpu_params: npt.NDArray[np.float32], params: Tensor) -> Tensor:
    """Apply the steps after the crop, as in the reference, to a batch [B, C, S, S], which is overwritten.

    Args:
        cpu_params: [B, PACKED] the parameters, with the CPU.
        params: [B, PACKED] the same on the device.
    """
    color = view.shape[1] == 3

    def on_sampled(name: str, operation: Callable[[Tensor, Tensor], Tensor]) -> None:
        """An operation on the images for which a parameter is more than 0."""
        column = COLUMNS[name]
        on_some(view, cpu_params[:, column] > 0, params[:, column] > 0, operation, params[:, column])

    for step in augmentation.order:
        if step == "jitter" and augmentation.jitter is not None:
            for place in range(4):
                for which, operation in enumerate((brightness, contrast, saturation, hue)):
                    if getattr(augmentation.jitter, operation.__name__) and (which < 2 or color):
                        jittered = is_jittered(cpu_params, place, which), is_jittered(params, place, which)
                        on_some(view, *jittered, operation, params[:, COLUMNS[operation.__name__]])
        elif step == "grayscale" and color:
            on_sampled("grayscale", grayscale)
        elif step == "blur" and augmentation.blur is not None:
            width = min(augmentation.blur.width(augmentation.size), 2 * augmentation.size - 1)
            on_sampled("sigma", partial(blur, width=width))
        elif step == "solarize":
            on_sampled("solarize", solarize)
        elif step == "randaugment" and augmentation.randaugment is not None:
            for image, row in zip(view, cpu_params.tolist(), strict=True):
                image.copy_(randaugment_step(augmentation, image, AugmentParams.unpack(row)))
    if augmentation.normalize is not None:
        mean, std = augmentation.normalize.values(view.shape[1])
        for channel in range(view.shape[1]):
            view[:, channel].sub_(mean[channel]).div_(std[channel])
    return view


def is_jittered(params: Any, place: int, which: int) -> Any:
    """[B] True where this operation of the jitter comes at this place; an array, or a tensor on the device."""
    return (params[:, COLUMNS["jitter"]] > 0) & (params[:, COLUMNS["order"] + place] == which)


def on_some(
    view: Tensor,
    cpu_chosen: npt.NDArray[np.bool_],
    chosen: Tensor,
    operation: Callable[[Tensor, Tensor], Tensor],
    values: Tensor,
) -> None:
    """Replace the chosen images of a batch by what an operation makes of them and of their values.

    Args:
        cpu_chosen: [B] the mask of the chosen images on the CPU, which has to know their number.
        chosen: [B] the same on the device.
    """
    if count := int(cpu_chosen.sum()):
        rows = chosen.int().argsort(descending=True, stable=True)[:count]
        view[rows] = operation(view[rows], values[rows][:, None, None, None])


def luma(view: Tensor) -> Tensor:
    """[N, 1, S, S] the gray of a color image."""
    return RED * view[:, :1] + GREEN * view[:, 1:2] + BLUE * view[:, 2:]


def grayscale(view: Tensor, _: Tensor) -> Tensor:
    return luma(view).expand_as(view)


def brightness(view: Tensor, factor: Tensor) -> Tensor:
    return (view * factor).clamp_(0, 1)


def contrast(view: Tensor, factor: Tensor) -> Tensor:
    gray = luma(view) if view.shape[1] == 3 else view
    return torch.lerp(gray.mean((1, 2, 3), keepdim=True), view, factor).clamp_(0, 1)


def saturation(view: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(luma(view), view, factor).clamp_(0, 1)


def hue(view: Tensor, turns: Tensor) -> Tensor:
    """HSV and back in one formula: value minus range times a triangle wave of the hue, one phase per channel."""
    r, g, b = view.split(1, dim=1)
    high, low = view.amax(1, keepdim=True), view.amin(1, keepdim=True)
    chroma = high - low
    inverse = 1 / torch.where(chroma > 0, chroma, 1)
    angle = torch.where(high == g, 2 + (b - r) * inverse, 4 + (r - g) * inverse)
    angle = torch.where(high == r, (g - b) * inverse, angle)
    phase = 5 - 2 * torch.arange(3, device=view.device)[:, None, None]
    wave = (angle + 6 * turns + phase) % 6
    return high - chroma * torch.minimum(wave, 4 - wave).clamp_(0, 1)


def solarize(view: Tensor, _: Tensor) -> Tensor:
    return torch.where(view >= 0.5, 1 - view, view)


def blur(view: Tensor, sigma: Tensor, width: int) -> Tensor:
    """Each image [C, S, S] with its own Gaussian of `width` taps: all channels of all images are one depthwise pass."""
    count, channels, size, _ = view.shape
    radius = width // 2
    distance = torch.arange(-radius, radius + 1, device=view.device)
    kernel = torch.exp(-0.5 * (distance / sigma) ** 2)  # [N, 1, 1, K]
    kernel = (kernel / kernel.sum(3, keepdim=True)).repeat_interleave(channels, dim=0)
    planes = F.pad(view, [radius] * 4, mode="reflect").reshape(1, count * channels, size + 2 * radius, -1)
    planes = F.conv2d(planes, kernel, groups=count * channels)
    planes = F.conv2d(planes, kernel.transpose(2, 3), groups=count * channels)
    return planes.reshape(view.shape)
