"""Images that are rows of an array: what CIFAR, STL-10 and Fashion-MNIST are once read, and `.npz` files."""

import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from mixview.data.sources.base import Source, SourceError
from mixview.data.sources.files import MAX_LABEL
from mixview.data.sources.fingerprint import fingerprint
from mixview.data.sources.packed_strings import PackedStrings
from mixview.data.value_range import Values
from mixview.io.archives import array_header, open_archive, read_array
from mixview.io.atomic import open_regular
from mixview.io.terminal import escape_control_chars
from mixview.options import MAX_SHOWN


class ImageArray(Source):
    """Rows of an array, in memory or mapped from a file. A subclass reads the files and says its `kind`.

    A process that is forked shares the array; one that is spawned opens the files again rather than be sent a copy.

    Args:
        arguments: the arguments that construct the source again.
        files: the files that it was read from.
        images: [N, H, W, C], a view is enough.
        labels: [N].
        classes: the names of the classes.
        prefix: the beginning of the names of the images: the split.
    """

    def __init__(
        self,
        arguments: tuple[Any, ...],
        files: Sequence[Path],
        images: Values,
        labels: npt.NDArray[np.int64] | None,
        classes: tuple[str, ...] | None,
        prefix: str,
    ) -> None:
        self.files = tuple(files)
        self.classes = classes
        self._arguments = arguments
        self._images = images
        self._labels = check_labels(labels, len(images), files[0])
        self._prefix = prefix

    def __reduce__(self) -> tuple[Callable[..., Source], tuple[Any, ...]]:
        return type(self), self._arguments

    def __len__(self) -> int:
        return len(self._images)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.files[0].parent)!r}, {self._prefix}, {len(self)} images)"

    def read(self, index: int) -> Values:
        return np.array(self._images[index])  # a copy, contiguous and writable

    def name(self, index: int) -> str:
        return number_name(self._prefix, index, len(self))

    def labels(self) -> npt.NDArray[np.int64] | None:
        return self._labels

    def fingerprint(self) -> str:
        sizes = np.array([path.stat().st_size for path in self.files], dtype=np.int64)
        return fingerprint(PackedStrings(path.name for path in self.files), sizes, self._labels, count=len(self))


def number_name(prefix: str, index: int, count: int) -> str:
    """The name of an image that has none: its split and its number, with zeros, so that names sort like numbers."""
    if not 0 <= index < count:
        raise IndexError(f"index {index} is out of range for {count} images")
    return f"{prefix}/{index:0{len(str(count - 1))}d}" if prefix else f"{index:0{len(str(count - 1))}d}"


def check_labels(labels: npt.NDArray[Any] | None, count: int, path: Path) -> npt.NDArray[np.int64] | None:
    """Labels as int64 [N]; raises if there are not as many as images."""
    if labels is None:
        return None
    if labels.size != count:
        raise SourceError(f"{path} has {count} images and {labels.size} labels: write one label per image")
    if not np.issubdtype(labels.dtype, np.integer):
        raise SourceError(f"the labels in {path} are {labels.dtype}: store them as integers")
    if count and int(labels.max()) > MAX_LABEL:
        raise SourceError(f"{path} has the label {labels.max()}, larger than {MAX_LABEL}: number the classes from 0")
    return labels.reshape(count).astype(np.int64)


# How the array of a split is called. {} is the split; the last ones are for a file that has no splits.
IMAGE_KEYS = ("{}_images", "x_{}", "{}_x", "{}_data", "images_{}", "images", "x", "data", "arr_0")
LABEL_KEYS = ("{}_labels", "y_{}", "{}_y", "{}_targets", "labels_{}", "labels", "y", "targets", "arr_1")
JPEG_KEYS = ("{}_jpeg", "jpeg")
NPZ_SPLITS = ("train", "val", "test", "unlabeled")


@final
class Npz(Source):
    """An `.npz` file of arrays of numbers ([N, H, W] or [N, H, W, C]), or of encoded files.

    Arrays are called `images`, or `train_images`, `x_train` …, and labels accordingly: Keras' and MedMNIST's files open
    as they are. Encoded files lie end to end in `train_jpeg`, image i between `train_offsets[i]` and `[i + 1]`. The
    names of the classes are `classes`. Arrays that were saved uncompressed are mapped, not loaded, so that they may be
    larger than memory and are shared by all processes. Nothing pickled is read.

    Args:
        path: the file.
        split: train, val, test …; by default train, if the file has splits.
        channels_first: true for [N, C, H, W], false for [N, H, W, C]; by default decided by the short axis.
    """

    kind = "npz"

    def __init__(self, path: str | Path, split: str | None = None, channels_first: bool | None = None) -> None:
        self.path = Path(path)
        self._arguments = (str(path), split, channels_first)
        try:
            with open_archive(self.path) as archive:
                members = {Path(info.filename).stem: info for info in archive.infolist()}
        except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError) as error:
            raise SourceError(f"{path} cannot be opened as .npz ({error}): check the path, or save it again") from error
        self._checks = np.array([[info.file_size, info.CRC] for info in members.values()], dtype=np.int64)

        splits = [name for name in NPZ_SPLITS if first_key((*IMAGE_KEYS[:5], JPEG_KEYS[0]), name, members)]
        if split is not None and split not in splits:
            hint = f"it has {', '.join(splits)}" if splits else "it has no splits; leave split out"
            raise SourceError(f"{path} has no split {split!r}: {hint}")
        self.split = split or next(iter(splits), "")

        self._offsets: npt.NDArray[np.int64] | None = None
        jpeg = first_key(JPEG_KEYS, self.split, members)
        key = jpeg or first_key(IMAGE_KEYS, self.split, members)
        if key is None:
            raise SourceError(f"{path} holds {', '.join(members)} and no images: call the array images, [N, H, W, C]")
        self._data = read_member(self.path, members[key])
        if self._data.dtype != np.uint8 and (jpeg or self._data.dtype.kind not in "uif"):
            raise SourceError(f"{key} in {path} is {self._data.dtype}: store {'files as uint8' if jpeg else 'numbers'}")
        if jpeg:
            ends = jpeg.replace("jpeg", "offsets")
            if ends not in members:
                raise SourceError(f"{path} has {jpeg} without {ends}: add where each file begins and ends, [N + 1]")
            self._offsets = read_member(self.path, members[ends]).astype(np.int64)
            check_offsets(self._offsets, len(self._data), ends, self.path)
        else:
            self._data = channels_last(self._data, channels_first, key, self.path)
        labels = first_key(LABEL_KEYS, self.split, members)
        self._labels = check_labels(read_member(self.path, members[labels]) if labels else None, len(self), self.path)
        self.classes = None
        if "classes" in members:
            self.classes = tuple(str(name) for name in np.atleast_1d(read_member(self.path, members["classes"])))

    def __reduce__(self) -> tuple[Callable[..., Source], tuple[Any, ...]]:
        return type(self), self._arguments

    def __len__(self) -> int:
        return len(self._data) if self._offsets is None else len(self._offsets) - 1

    def __repr__(self) -> str:
        return f"Npz({str(self.path)!r}, {len(self)} images)"

    def read(self, index: int) -> bytes | Values:
        if self._offsets is None:
            return np.array(self._data[index])
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} images")
        return self._data[self._offsets[index] : self._offsets[index + 1]].tobytes()

    def name(self, index: int) -> str:
        return number_name(self.split, index, len(self))

    def labels(self) -> npt.NDArray[np.int64] | None:
        return self._labels

    def fingerprint(self) -> str:
        # The checksums that the zip format keeps of its members: as good as hashing every pixel.
        size = np.array([self.path.stat().st_size], dtype=np.int64)
        return fingerprint(PackedStrings([self.split]), size, self._checks, count=len(self))


@final
class Npy(ImageArray):
    """A `.npy` file of numbers of any type, [N, H, W] or [N, H, W, C], mapped into memory; nothing pickled is read.

    Args:
        path: the file.
        channels_first: true for [N, C, H, W], false for [N, H, W, C]; by default decided by the short axis.
    """

    kind = "npy"

    def __init__(self, path: str | Path, channels_first: bool | None = None) -> None:
        file = Path(path)
        try:
            with open_regular(file, follow=True) as opened:
                shape, fortran, dtype, header = array_header(opened, file.stat().st_size)
            if dtype.kind not in "uif" or 0 in shape:
                raise ValueError(f"it holds {dtype} of shape {list(shape)[:8]}")
            images: Values = np.memmap(file, dtype, "r", header, shape, "F" if fortran else "C")
        except (OSError, ValueError, OverflowError) as error:
            raise SourceError(
                f"{path} cannot be opened as .npy ({escape_control_chars(str(error)[:MAX_SHOWN])}): save a plain "
                "array of numbers"
            ) from error
        images = channels_last(images, channels_first, "the array", file)
        super().__init__((str(path), channels_first), [file], images, None, None, "")


def first_key(patterns: Sequence[str], split: str, members: dict[str, zipfile.ZipInfo]) -> str | None:
    """The first of these names that the file has."""
    names = (pattern.format(split) for pattern in patterns)
    return next((name for name in names if name in members), None)


def read_member(path: Path, info: zipfile.ZipInfo) -> npt.NDArray[Any]:
    """One array of an .npz: mapped from the file if it is stored as it is, otherwise unpacked into memory."""
    try:
        with open_archive(path) as archive, archive.open(info) as member:
            shape, fortran, dtype, header = array_header(member, info.file_size)
        if info.compress_type == zipfile.ZIP_STORED and info.file_size > header:
            with path.open("rb") as file:  # the local header has its own lengths of name and extra field
                file.seek(info.header_offset)
                local = file.read(30)
            start = info.header_offset + 30 + int.from_bytes(local[26:28], "little")
            start += int.from_bytes(local[28:30], "little") + header
            return np.memmap(path, dtype, "r", start, shape, "F" if fortran else "C")
        with open_archive(path) as archive:
            return read_array(archive, info)
    except (
        ValueError, KeyError, OSError, EOFError, RuntimeError, OverflowError, zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        raise SourceError(
            f"{info.filename} in {path} cannot be read ({escape_control_chars(str(error)[:MAX_SHOWN])}): save plain "
            "arrays, not objects"
        ) from error


def check_offsets(offsets: npt.NDArray[np.int64], total: int, key: str, path: Path) -> None:
    """Raise if offsets do not cut the bytes into files."""
    if len(offsets) < 2 or offsets[0] < 0 or offsets[-1] > total or (np.diff(offsets) < 0).any():
        raise SourceError(f"{key} in {path} must rise from 0 to {total}, the bytes that there are: write it again")


def channels_last(images: Values, channels_first: bool | None, key: str, path: Path) -> Values:
    """[N, H, W, C] of [N, H, W], [N, H, W, C] or [N, C, H, W]."""
    if images.ndim == 3:
        return images[..., None]
    if images.ndim != 4 or 0 in images.shape:
        raise SourceError(f"{key} in {path} has the shape {list(images.shape)}: store images as [N, H, W, C]")
    if channels_first is None:
        channels_first = images.shape[1] <= 4 < images.shape[3]
    return images.transpose(0, 2, 3, 1) if channels_first else images
