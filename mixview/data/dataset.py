"""Decoded images by index, and what happens when one is bad."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch.utils.data import get_worker_info

from mixview.data.decode import ChooseFactor, Decoder, Mode
from mixview.data.sources.base import BadImage, Pixels, Source, SourceError, even_indices
from mixview.data.value_range import (
    MAX_SAMPLED,
    StoredValues,
    ValueRange,
    has_eight_bits,
    measure,
    parse_value_range,
)
from mixview.io.environment import process_rank
from mixview.io.terminal import escape_control_chars, say

MODES: dict[int, Mode] = {1: "L", 3: "RGB"}


def decoder_for(channels: int, value_range: ValueRange | None = None, *, eight_bits: bool = False) -> Decoder:
    """A decoder for an encoder of this many channels: to gray for 1, to RGB for 3, else images must be stored so.

    Args:
        channels: the number of channels of the encoder.
        value_range: the value range of images that have more than 8 bits, as `find_range` finds it.
        eight_bits: round these to 8 bits, to look at.
    """
    return Decoder(
        MODES.get(channels, "stored"),
        channels=None if channels in MODES else channels,
        value_range=value_range,
        eight_bits=eight_bits,
    )


def find_range(source: Source, setting: str = "auto", *, quiet: bool = False) -> ValueRange | None:
    """The range of values of a source's images, measured on a sample and printed; None where they have 8 bits.

    Args:
        source: the images.
        setting: auto, LO,HI, percentiles such as p1,p99, or window.
        quiet: True to print nothing.

    Example:
        >>> from mixview.data import open_dataset
        >>> find_range(open_dataset("scenes", count=20, size=32)) is None
        True
    """
    wanted = parse_value_range(setting)
    decoder = Decoder("stored")

    def sample() -> Iterator[StoredValues | None]:
        for index in even_indices(len(source), MAX_SAMPLED).tolist():
            if has_eight_bits(source.name(index)):
                yield None
                continue
            try:
                stored = source.read(index)
                yield decoder.stored_values(stored, source.name(index))
            except BadImage:  # named when it is decoded
                continue
            if isinstance(stored, np.ndarray) and stored.dtype == np.uint8:
                return  # all rows of an array are of one type

    measured = measure(sample(), wanted)
    if measured.note and not quiet and process_rank() == 0:
        log_once(source, f"mixview: {measured.note}")
    return measured.value_range


MAX_LISTED = 3
"""The most bad images that an error names."""

SMALL_IMAGE_SIZE = 64
"""Up to this many pixels images count as small: views of their own size, CIFAR's stem, the small augmentations.

ImageNet's stem would leave 2×2 of 64×64 pixels."""


@final
@dataclass(frozen=True)
class Tolerance:
    """The number of bad images that are tolerated: `max_count`, or `max_fraction` of the source if that is more.

    `max_count` may be most of a small source, so more than `hard_max_fraction` of the images are never tolerated.
    """

    max_count: int = 10
    max_fraction: float = 0.01
    hard_max_fraction: float = 0.5

    def allows(self, bad: int, total: int) -> bool:
        """Return True if this many bad images out of `total` are still few."""
        return bad <= min(max(self.max_count, int(self.max_fraction * total)), int(self.hard_max_fraction * total))


STRICT = Tolerance(0, 0.0)
"""The first bad image stops."""


LOGGED: set[tuple[str, str]] = set()
"""Lines that were printed already, by source: a command may open several datasets of one."""


def log_once(source: Source, line: str) -> None:
    """Print a line about a source on standard error, once."""
    while (parent := getattr(source, "source", None)) is not None:  # of a part of it
        source = parent
    if (repr(source), line) in LOGGED:
        return
    LOGGED.add((repr(source), line))
    if get_worker_info() is None:
        say(escape_control_chars(line), sys.stderr)
    else:  # where standard error may be a progress bar of the process that it was forked from, locked
        os.write(2, f"{escape_control_chars(line)}\n".encode())


def log_left_out(source: Source) -> None:
    """Print what was left out when the source was opened, on the first of several processes."""
    if process_rank() == 0:
        for note in source.notes:
            log_once(source, note)


@final
@dataclass(slots=True)  # not frozen: that takes three times as long to make, for every image
class ImageSample:
    """An image as it was read."""

    pixels: Pixels
    """[H, W, C]"""
    index: int
    """The index of the image: the requested one, or the one that replaces it."""
    full_size: tuple[int, int]
    """Height and width of the whole image, of which the pixels may be a smaller copy."""


@final
class ImageDataset:
    """Decoded images by index. A bad one is skipped, counted, named, and replaced by the next that can be read.

    The replacement is a function of the source alone: `index` gives the same image in every process and epoch. Which
    images are bad is one byte per image in shared memory, so that workers count together, each bad
    image once, and none tries it twice.

    Args:
        source: the source of the images.
        decoder: the decoder of the images.
        tolerance: the number of images that may be bad before reading stops with the list of them.

    Example:
        >>> from mixview.data import open_dataset
        >>> images = ImageDataset(open_dataset("scenes", count=20, size=32))
        >>> images[0].pixels.shape, images.bad
        ((32, 32, 3), {})
    """

    def __init__(self, source: Source, decoder: Decoder | None = None, tolerance: Tolerance | None = None) -> None:
        self.source = source
        self.decoder = Decoder(value_range=find_range(source)) if decoder is None else decoder
        self.tolerance = Tolerance() if tolerance is None else tolerance
        self._bad = torch.zeros(len(source), dtype=torch.bool).share_memory_()
        self._reasons: dict[int, str] = {}
        self._check()
        log_left_out(source)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> ImageSample:
        return self.load(index)

    def load(self, index: int, choose_factor: ChooseFactor | None = None) -> ImageSample:
        """An image, decoded by some factor smaller than it is where its format can be, or whole."""
        total = len(self)  # once: asking a source through its parts takes as long as to read a small image
        if not 0 <= index < total:
            raise IndexError(f"index {index} is out of range for {total} images")
        bad = self._bad.numpy()  # the same memory; indexing a tensor makes a tensor
        for step in range(total):
            candidate = (index + step) % total
            if bad[candidate]:
                continue
            try:
                return self._sample(candidate, choose_factor)
            except BadImage as error:
                bad[candidate] = True
                self._reasons[candidate] = error.reason
                log_once(self.source, f"skipped {self.source.name(candidate)}: {error.reason}")
                self._check()
        raise SourceError(f"none of the {total} images can be read: {self._list()}")

    def _sample(self, index: int, choose_factor: ChooseFactor | None) -> ImageSample:
        """This very image, or `BadImage`."""
        data, name = self.source.read(index), self.source.name(index)
        if choose_factor is None or isinstance(data, np.ndarray):
            pixels = self.decoder(data, name)
            return ImageSample(pixels, index, pixels.shape[:2])
        full_size: tuple[int, int] | None = None

        def choose(height: int, width: int) -> int:
            nonlocal full_size
            full_size = height, width
            return choose_factor(height, width)

        pixels = self.decoder(data, name, choose)
        return ImageSample(pixels, index, full_size or pixels.shape[:2])

    def decode(self, index: int) -> Pixels:
        """This very image, or `BadImage`."""
        return self.decoder(self.source.read(index), self.source.name(index))

    @property
    def bad(self) -> dict[str, str]:
        """The bad images so far, those left out on opening first: name, and why."""
        unreadable = {self.source.name(index): self._reason(index) for index in self._bad.nonzero().flatten().tolist()}
        return {**self.source.skipped, **unreadable}

    def _reason(self, index: int) -> str:
        """The reason why an image is bad; one that another process met is tried again."""
        if index not in self._reasons:
            try:
                self.decode(index)
                self._reasons[index] = "could not be read before"
            except BadImage as error:
                self._reasons[index] = error.reason
        return self._reasons[index]

    def _check(self) -> None:
        """Stop when too many are bad."""
        count = int(self._bad.sum()) + len(self.source.skipped)
        total = len(self.source) + len(self.source.skipped)
        allowed = self.tolerance
        if not allowed.allows(count, total):
            limits = f"{allowed.max_count} or {allowed.max_fraction:.1%}, and at most {allowed.hard_max_fraction:.0%}"
            raise SourceError(
                f"{count} of {total} images are bad ({self._list()}), more than the {limits}, that are tolerated: "
                "repair or remove them"
            )

    def _list(self) -> str:
        """The first of the bad images; all have been named as they were met."""
        skipped = [f"{name} {reason}" for name, reason in self.source.skipped.items()]
        bad = self._bad.nonzero().flatten().tolist()
        some = bad[: max(0, MAX_LISTED - len(skipped))]  # another process may have met them: not all are tried again
        listed = [*skipped[:MAX_LISTED], *(f"{self.source.name(index)} {self._reason(index)}" for index in some)]
        more = len(skipped) + len(bad) - len(listed)
        return "; ".join(listed) + (f"; and {more} more" if more else "")


def natural_size(images: ImageDataset) -> int:
    """The size of views for these images: their own where they are small, else 224."""
    height, width = images[0].pixels.shape[:2]
    return min(height, width) if max(height, width) <= SMALL_IMAGE_SIZE else 224
