"""The interface of a source: images by index, with the labels, boxes and masks they have. Everything else takes one."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8 | np.float32]
"""Decoded pixels, [H, W, C]: of 8 bits, or floats from 0 to 1 of what has more."""

ClassMap = npt.NDArray[np.int16]
"""[H, W] the class of each pixel: 0 is the background, k the k-th of the classes, `IGNORED` counts for nothing."""

IGNORED = -1
"""The value in a class map where the class is unknown, as along the outlines of VOC's objects (255 in its files)."""


SECRETS = re.compile(r"""(https?://)(?:[^\s/?#@]*@)?([^\s?#]*)(?:[?#]\S*?(?=['").,:;]*(?:\s|$)))?""")


def without_secrets(text: str) -> str:
    """Text in which web addresses have no query and no password, which may be keys to what is behind them.

    Example:
        >>> without_secrets("https://server/a.tar?token=secret answers 403: check the address")
        'https://server/a.tar answers 403: check the address'
    """
    return SECRETS.sub(r"\1\2", text)


class SourceError(ValueError):
    """A source that cannot be opened, or that fails as a whole: the message says what to do about it.

    Web addresses in it are written without their query: messages end up in logs.
    """

    def __init__(self, message: str) -> None:
        super().__init__(without_secrets(message))


class BadImage(ValueError):
    """One image that cannot be read. `mixview.data.dataset` skips, counts and names it, and goes on."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)  # both, so that it survives the pickle from a worker process
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class Objects(NamedTuple):
    """The objects in one image, K of them."""

    boxes: npt.NDArray[np.float32]
    """[K, 4] left, top, right, bottom in pixels, right and bottom exclusive."""
    classes: npt.NDArray[np.int64]
    """[K] index into the source's `classes`."""
    difficult: npt.NDArray[np.bool_]
    """[K] VOC's "difficult" flag."""
    crowd: npt.NDArray[np.bool_]
    """[K] COCO's "iscrowd" flag."""
    masks: npt.NDArray[np.bool_] | None
    """[K, H, W], or None where the source has no masks."""
    areas: npt.NDArray[np.float64] | None = None
    """[K] as annotated, where they are; COCO tells small objects from large by them."""


class Source(ABC):
    """Images by index. Labels are optional: a source without them says None.

    A source is cheap to pickle and to share with worker processes: it holds arrays, not lists of Python strings.

    Example:
        >>> class Colors(Source):
        ...     kind = "colors"
        ...     def __len__(self):
        ...         return 256
        ...     def read(self, index):
        ...         return np.full((32, 32, 3), index, np.uint8)
        ...     def name(self, index):
        ...         return f"{index:03d}"
        ...     def fingerprint(self):
        ...         return "256 grays"
        >>> Colors().read(7).shape
        (32, 32, 3)
    """

    kind: ClassVar[str]
    """The kind of source, in one word: folder, voc, coco, scenes …"""

    classes: tuple[str, ...] | None = None
    """The names of the classes, in the order of their index."""

    skipped: Mapping[str, str] = MappingProxyType({})
    """Files that looked like an image and were left out on opening: name -> why. Each counts as a bad image."""

    notes: tuple[str, ...] = ()
    """Messages for the user about what was left out on opening."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, index: int) -> bytes | npt.NDArray[Any]:
        """The image as it is stored: the bytes of an encoded file, for `mixview.data.decode`, or values [H, W, C].

        Raises `BadImage` when this one image cannot be read, and `SourceError` when the source as a whole fails.
        """

    @abstractmethod
    def name(self, index: int) -> str:
        """A name for people and for lists of files, unique and stable: a relative path, or a number."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Count, total bytes and a hash of names and sizes (`.fingerprint`), without reading any image."""

    def labels(self) -> npt.NDArray[np.int64] | None:
        """[N] the class of each image, where each has exactly one."""
        return None

    def label_sets(self) -> npt.NDArray[np.int8] | None:
        """[N, classes] 1 present, 0 absent, -1 present only as "difficult", where an image has several classes."""
        return None

    def objects(self, index: int) -> Objects | None:
        """The objects in an image, where the source has boxes."""
        return None

    def segmentation(self) -> "Source | None":
        """The images that have a class for every pixel, as a source with class maps; None if none has."""
        return None

    def class_map(self, index: int) -> ClassMap:
        """The class of each pixel of an image; only of the images that `segmentation` returns."""
        raise SourceError(f"{self.name(index)} has no class for every pixel: pass images with masks")


def paint_objects(objects: Objects, height: int, width: int) -> ClassMap:
    """The class map of objects with masks; where objects of different classes overlap, the class is unknown."""
    assert objects.masks is not None
    classes = np.zeros((height, width), dtype=np.int16)
    for mask, number in zip(objects.masks, objects.classes, strict=True):
        own, there = np.int16(number + 1), classes[mask]
        classes[mask] = np.where((there == 0) | (there == own), own, IGNORED)
    return classes


def even_indices(total: int, count: int) -> npt.NDArray[np.int64]:
    """[M] at most `count` of `total` indices, evenly spaced from the first to the last.

    Example:
        >>> even_indices(100, 4).tolist()
        [0, 33, 66, 99]
    """
    return np.linspace(0, total - 1, min(count, total)).astype(np.int64)
