"""Everything random about a view, sampled before any pixel is touched, and the one place that knows its layout.

    params = sample_params(augmentation, height, width, generator)     # AugmentParams: plain numbers
    row = params.pack()                                                # COLUMNS says which number is where

Sampled parameters can be looked at, stored, tested and replayed, and every backend makes the same view of them. Their
distributions are torchvision's. A view takes `UNIFORMS` numbers from the generator whatever its augmentation, so that
two augmentations under one seed sample alike wherever they share a step.

`numba_kernels` samples the same numbers in native code: it reads tables by the names of `COLUMNS`, `LIMITS` and
`UNIFORM_COLUMNS`.
"""

import functools
import hashlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from mixview.data.augment.policies import MAX_OPERATIONS, RANDAUGMENT_OPERATIONS, Augmentation, Jitter, RandAugment
from mixview.rng import seed_from

CROP_ATTEMPTS = 10
"""The number of crops that torchvision's RandomResizedCrop tries before it takes the middle of the image."""


def lay_out(widths: dict[str, int]) -> tuple[dict[str, int], int]:
    """The first column of each field of this many columns, and the number of columns in all."""
    starts, total = {}, 0
    for name, width in widths.items():
        starts[name], total = total, total + width
    return starts, total


class AugmentParams(NamedTuple):
    """The sampled parameters of one view, as plain numbers."""

    top: int
    left: int
    height: int
    width: int
    flip: bool
    jitter: bool
    """True if the four factors apply."""
    brightness: float
    contrast: float
    saturation: float
    hue: float
    order: tuple[int, int, int, int]
    """The order of brightness (0), contrast (1), saturation (2) and hue (3)."""
    grayscale: bool
    sigma: float
    """Sigma of the blur; 0 for none."""
    solarize: bool
    operations: tuple[tuple[int, float], ...] = ()
    """RandAugment's: index in `RANDAUGMENT_OPERATIONS`, and signed magnitude of 0 … 10."""

    def pack(self) -> list[float]:
        """The parameters as one row of `PACKED` numbers; missing operations are -1, 0."""
        at = COLUMNS["order"]
        missing = [(-1, 0.0)] * (MAX_OPERATIONS - len(self.operations))
        pairs = [number for pair in (*self.operations, *missing) for number in pair]
        row: tuple[Any, ...] = (*self[:at], *self.order, *self[at + 1 : -1], *pairs)
        return [float(value) for value in row]

    def scaled(self, full_size: tuple[int, int], size: tuple[int, int]) -> "AugmentParams":
        """The same for a copy of another size of the image that they were sampled for."""
        top, left, height, width = scale_crop(self[:4], full_size, size)
        return self._replace(top=int(top), left=int(left), height=int(height), width=int(width))

    @classmethod
    def unpack(cls, row: Sequence[float]) -> "AugmentParams":
        """The parameters that `pack` packed."""
        if len(row) != PACKED:
            raise ValueError(f"packed parameters are {PACKED} numbers, got {len(row)}")
        fields: dict[str, Any] = {name: kind(row[COLUMNS[name]]) for name, kind in PLAIN_FIELDS.items()}
        fields["order"] = tuple(int(row[COLUMNS["order"] + place]) for place in range(4))
        pairs = [(int(row[at]), float(row[at + 1])) for at in range(COLUMNS["operations"], PACKED, 2)]
        return cls(**fields, operations=tuple(pair for pair in pairs if pair[0] >= 0))


PLAIN_FIELDS = {name: kind for name, kind in AugmentParams.__annotations__.items() if isinstance(kind, type)}
"""The parameters that are one number each, and its type."""

COLUMNS, PACKED = lay_out(
    {name: {"order": 4, "operations": 2 * MAX_OPERATIONS}.get(name, 1) for name in AugmentParams._fields}
)
"""The column of each parameter in a packed row of `PACKED` numbers."""

UNIFORM_COLUMNS, UNIFORMS = lay_out(
    {"attempts": 2 * CROP_ATTEMPTS, "top": 1, "left": 1, "flip": 1, "jitter": 1, "factors": 4, "order": 4}
    | {"grayscale": 1, "blur": 1, "sigma": 1, "solarize": 1, "operations": 5 * MAX_OPERATIONS}
)
"""The purpose of each of the `UNIFORMS` numbers in [0, 1) that a view takes from its generator."""


class Limits(NamedTuple):
    """The ranges and probabilities of an augmentation that parameters are sampled from."""

    scale_low: float
    scale_high: float
    ratio_low: float
    ratio_high: float
    flip: float
    jitter: float
    brightness_low: float
    brightness_high: float
    contrast_low: float
    contrast_high: float
    saturation_low: float
    saturation_high: float
    hue_low: float
    hue_high: float
    grayscale: float
    blur: float
    """-1 for never."""
    sigma_low: float
    sigma_high: float
    solarize: float


LIMITS = {name: column for column, name in enumerate(Limits._fields)}

LAYOUT = hashlib.blake2b(
    repr((COLUMNS, UNIFORM_COLUMNS, LIMITS, CROP_ATTEMPTS, MAX_OPERATIONS)).encode(), digest_size=4
).hexdigest()
"""Changes with the layout, for caches of compiled code that knows it."""


@functools.lru_cache(maxsize=64)
def limits_of(augmentation: Augmentation) -> Limits:
    """The limits of an augmentation."""
    jitter = augmentation.jitter or Jitter(0, 0, 0, 0, 0)
    blur = augmentation.blur
    factors = (jitter.brightness, jitter.contrast, jitter.saturation)
    return Limits._make(
        (
            *augmentation.crop.scale,
            *augmentation.crop.ratio,
            augmentation.flip,
            jitter.p,
            *(bound for factor in factors for bound in (max(0.0, 1 - factor), 1 + factor)),
            -jitter.hue,
            jitter.hue,
            augmentation.grayscale,
            *((blur.p, *blur.sigma) if blur else (-1.0, 0.0, 0.0)),
            augmentation.solarize,
        )
    )


def view_generator(seed: int, epoch: int, index: int) -> torch.Generator:
    """The generator of an image's views, a function of (seed, epoch, index) and of nothing else."""
    return torch.Generator().manual_seed(seed_from("views", seed, epoch, index))


def sample_params(augmentation: Augmentation, height: int, width: int, generator: torch.Generator) -> AugmentParams:
    """Sample the parameters of a view of an image of this size."""
    uniform = torch.rand(UNIFORMS, generator=generator, dtype=torch.float64)
    return params_from_uniform(augmentation, height, width, uniform.tolist())


def params_from_uniform(augmentation: Augmentation, height: int, width: int, uniform: Sequence[float]) -> AugmentParams:
    """The parameters that `UNIFORMS` numbers in [0, 1) stand for."""
    if height < 1 or width < 1:
        raise ValueError(f"an image of {height} × {width} pixels has no views")
    limits, at = limits_of(augmentation), UNIFORM_COLUMNS
    top, left, crop_height, crop_width = sample_crop(limits, height, width, uniform)
    ranks = uniform[at["order"] : at["order"] + 4]
    first, second, third, fourth = sorted(range(4), key=ranks.__getitem__)
    brightness, contrast, saturation, hue = uniform[at["factors"] : at["factors"] + 4]
    return AugmentParams(
        top=top,
        left=left,
        height=crop_height,
        width=crop_width,
        flip=uniform[at["flip"]] < limits.flip,
        jitter=uniform[at["jitter"]] < limits.jitter,
        brightness=between(limits.brightness_low, limits.brightness_high, brightness),
        contrast=between(limits.contrast_low, limits.contrast_high, contrast),
        saturation=between(limits.saturation_low, limits.saturation_high, saturation),
        hue=between(limits.hue_low, limits.hue_high, hue),
        order=(first, second, third, fourth),
        grayscale=uniform[at["grayscale"]] < limits.grayscale,
        sigma=between(limits.sigma_low, limits.sigma_high, uniform[at["sigma"]])
        if uniform[at["blur"]] < limits.blur
        else 0.0,
        solarize=uniform[at["solarize"]] < limits.solarize,
        operations=sample_operations(augmentation.randaugment, uniform[at["operations"] :]),
    )


def between(low: float, high: float, uniform: float) -> float:
    return low + (high - low) * uniform


def sample_crop(limits: Limits, height: int, width: int, uniform: Sequence[float]) -> tuple[int, int, int, int]:
    """Top, left, height and width, as torchvision's RandomResizedCrop: ten attempts, then the middle of the image."""
    low, high = math.log(limits.ratio_low), math.log(limits.ratio_high)
    for attempt in range(CROP_ATTEMPTS):
        area = height * width * between(limits.scale_low, limits.scale_high, uniform[2 * attempt])
        ratio = math.exp(between(low, high, uniform[2 * attempt + 1]))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            vertical, horizontal = uniform[UNIFORM_COLUMNS["top"]], uniform[UNIFORM_COLUMNS["left"]]
            return int(vertical * (height - down + 1)), int(horizontal * (width - across + 1)), down, across
    across, down = width, height
    if width / height < limits.ratio_low:
        down = min(height, max(1, round(width / limits.ratio_low)))
    elif width / height > limits.ratio_high:
        across = min(width, max(1, round(height * limits.ratio_high)))
    return (height - down) // 2, (width - across) // 2, down, across


def scale_crop(crop: Sequence[Any], full_size: tuple[int, int], size: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """Crops (top, left, height, width), numbers or arrays, in a copy of `size` of an image of `full_size`.

    Edges are rounded to whole pixels of the copy.
    """
    top, left, height, width = crop
    vertical, horizontal = size[0] / full_size[0], size[1] / full_size[1]
    first_row = np.minimum(np.rint(top * vertical), size[0] - 1)
    first_column = np.minimum(np.rint(left * horizontal), size[1] - 1)
    rows = np.maximum(np.rint((top + height) * vertical) - first_row, 1)
    columns = np.maximum(np.rint((left + width) * horizontal) - first_column, 1)
    return first_row, first_column, rows, columns


def sample_operations(randaugment: RandAugment | None, uniform: Sequence[float]) -> tuple[tuple[int, float], ...]:
    """RandAugment's operations and signed magnitudes."""
    if randaugment is None:
        return ()
    chosen = []
    for at in range(0, 5 * randaugment.operations, 5):
        which, happens, sign, radius, angle = uniform[at : at + 5]
        if happens >= randaugment.p:
            continue
        # Box and Muller's normal variable.
        normal = math.sqrt(-2 * math.log(1 - radius)) * math.cos(2 * math.pi * angle)
        magnitude = min(10.0, max(0.0, randaugment.magnitude + randaugment.magnitude_std * normal))
        chosen.append((int(which * len(RANDAUGMENT_OPERATIONS)), magnitude if sign < 0.5 else -magnitude))
    return tuple(chosen)
