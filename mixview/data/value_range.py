"""The values that are black and white in images of more than 8 bits: passed as an option, or measured on a sample.

    --value_range auto          # the range that the sample suggests: 0,4095 for 12 bits in a 16-bit file
    --value_range 0,3000        # as given
    --value_range p1,p99        # percentiles of the sample's values
    --value_range window        # the window that every DICOM file has of its own

Values become floats from 0 to 1, and what lies outside the range is clipped. Images of 8 bits need no range: theirs is
0 to 255, and they stay what they are.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from mixview.data.sources.base import BadImage, SourceError

Values = npt.NDArray[Any]
"""[H, W, C] the numbers that an image is stored as, of any numeric type."""

MAX_SAMPLED = 32
"""The most images that a range is measured on."""
MAX_SAMPLED_VALUES = 1 << 14
"""Values of each image that percentiles are taken of."""
DEPTHS = (8, 10, 12, 14, 16)
"""Bits of cameras and detectors: unsigned integers are taken for the smallest of these that holds them."""

NEVER_DEEP = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".bmp", ".webp"})
"""Files that end like this have 8 bits and need not be read to know it."""

NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
LIMITS = re.compile(rf"({NUMBER}),({NUMBER})", re.ASCII)
PERCENTILES = re.compile(rf"p({NUMBER}),p({NUMBER})", re.ASCII)


@final
@dataclass(frozen=True)
class ValueRange:
    """The values of black and white, or each DICOM file's own window.

    Example:
        >>> ValueRange(0, 4095).scale(np.array([0, 819, 5000], np.uint16)).tolist()
        [0.0, 0.20000000298023224, 1.0]
        >>> str(ValueRange(0, 4095)), str(ValueRange())
        ('0,4095', 'window')
    """

    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return "window"
        return f"{as_text(self.low)},{as_text(self.high)}"

    def scale(self, values: Values) -> npt.NDArray[np.float32]:
        """Values as floats from 0 to 1."""
        assert self.low is not None
        assert self.high is not None
        scaled = (values.astype(np.float64) - self.low) / (self.high - self.low)
        return scaled.clip(0, 1).astype(np.float32)


@final
@dataclass(frozen=True)
class Percentiles:
    """A range by percentiles of a sample."""

    low: float
    high: float


@final
@dataclass(frozen=True)
class StoredValues:
    """An image of more than 8 bits as it is stored."""

    values: Values
    window: tuple[float, float] | None = None
    """The values of black and white that the file itself says."""
    inverted: bool = False
    """True if the smallest value is white."""
    alpha: npt.NDArray[np.float32] | None = None
    """[H, W, 1] opacity, 0 to 1, where there is any."""


def as_text(number: float) -> str:
    """A number without digits that say nothing."""
    return str(int(number)) if float(number).is_integer() and abs(number) < 2**53 else repr(float(number))


def parse_value_range(text: str) -> ValueRange | Percentiles | None:
    """Parse `--value_range`; None for auto.

    Example:
        >>> parse_value_range("-1000,400")
        ValueRange(low=-1000.0, high=400.0)
        >>> parse_value_range("p1,p99")
        Percentiles(low=1.0, high=99.0)
    """
    plain = text.replace(" ", "")
    if plain == "auto":
        return None
    if plain == "window":
        return ValueRange()
    percentiles = PERCENTILES.fullmatch(plain)
    match = percentiles or LIMITS.fullmatch(plain)
    if match is None:
        raise ValueError(
            f"--value_range must be auto, the values of black and white such as 0,4095, percentiles such as p1,p99, or "
            f"window (DICOM), got {text[:100]!r}"
        )
    low, high = float(match[1]), float(match[2])
    if percentiles and not (0 <= low <= 100 and 0 <= high <= 100):
        raise ValueError(f"percentiles of --value_range lie between p0 and p100, got {plain[:100]}")
    if not (math.isfinite(low) and math.isfinite(high) and math.isfinite(high - low)):
        raise ValueError(f"--value_range must be two finite numbers, got {plain[:100]}")
    if low == high:
        raise ValueError(f"--value_range {plain[:100]} has zero width, so that every image would be black or white")
    if low > high:
        raise ValueError(f"--value_range {plain[:100]} is inverted: pass the smaller value first")
    return Percentiles(low, high) if percentiles else ValueRange(low, high)


@final
@dataclass(frozen=True)
class Measured:
    """A range, and what it was measured on in a sentence."""

    value_range: ValueRange | None
    """None of images of 8 bits."""
    note: str = ""


def measure(images: Iterable[StoredValues | None], setting: ValueRange | Percentiles | None) -> Measured:
    """The range of a sample of images.

    Args:
        images: the stored values of each image; None for one of 8 bits.
        setting: the setting of the user; None for auto.
    """
    lows, highs, samples, kinds, windows, count, shallow = [], [], [], set[str](), 0, 0, 0
    for image in images:
        if image is None or (image.values.dtype == np.uint8 and image.window is None):
            shallow += 1
            continue
        count += 1
        lows.append(float(image.values.min()))
        highs.append(float(image.values.max()))
        windows += image.window is not None
        kinds.add(image.values.dtype.name)
        if isinstance(setting, Percentiles):
            flat = image.values.reshape(-1)
            samples.append(flat[:: -(-len(flat) // MAX_SAMPLED_VALUES)].astype(np.float64))
    if not count:
        if setting is not None and shallow:
            text = f"p{as_text(setting.low)},p{as_text(setting.high)}" if isinstance(setting, Percentiles) else setting
            raise SourceError(
                f"--value_range {text} is for images of more than 8 bits, and these have 8: leave it out (auto)"
            )
        return Measured(None)
    low, high = min(lows), max(highs)
    what = f"measured on {count} images of type {', '.join(sorted(kinds))} with values from {low:g} to {high:g}"
    if isinstance(setting, ValueRange):
        if setting.low is None and not windows:
            raise SourceError(
                f"--value_range window is for DICOM files with a window of their own, and none of {count} images that "
                "were sampled has one: pass auto, LO,HI or p1,p99"
            )
        return Measured(setting)
    if setting is None and windows == count:
        return Measured(ValueRange(), f"value_range window: every one of {count} images has a window of its own")
    if isinstance(setting, Percentiles):
        low, high = (float(each) for each in np.percentile(np.concatenate(samples), [setting.low, setting.high]))
    elif all(kind.startswith("uint") for kind in kinds) and high < 1 << DEPTHS[-1]:
        bits = next(depth for depth in DEPTHS if high < 1 << depth)
        low, high = 0.0, float((1 << bits) - 1)
        what += f" ({bits} bits)"
    elif all(kind.startswith("float") for kind in kinds) and low >= 0 and 0 < high <= 1:
        low, high = 0.0, 1.0
    if low == high:
        raise SourceError(
            f"{count} images that were sampled have no values but {low:g}, which is no range: pass --value_range, the "
            "values of black and white"
        )
    value_range = ValueRange(low, high)
    return Measured(value_range, f"value_range {value_range}: {what}")


def has_eight_bits(name: str) -> bool:
    """Return True if the name of an image says that it has 8 bits."""
    return Path(name).suffix.lower() in NEVER_DEEP


def checked(values: Values, name: str) -> Values:
    """Values, or `BadImage` if they are no numbers of an image."""
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * np.uint8(255)
    if values.dtype.kind not in "uif":
        raise BadImage(name, f"holds values of type {values.dtype}: save it as integers or floats")
    if 0 in values.shape:
        raise BadImage(name, "has no pixels")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise BadImage(name, "holds NaN or infinity: replace them, by the background for example")
    return values
