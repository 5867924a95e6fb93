"""Fashion-MNIST, and whatever else comes in MNIST's idx files, packed or not."""

import gzip
import math
import zlib
from pathlib import Path
from typing import final

import numpy as np
import numpy.typing as npt

from mixview.data.sources.arrays import ImageArray
from mixview.data.sources.base import SourceError

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
"""The folder of Debian's package dataset-fashion-mnist."""

FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


@final
class Idx(ImageArray):
    """A folder with `train-images-idx3-ubyte` and `train-labels-idx1-ubyte`, and the test set's `t10k-…`, or `.gz`.

    Args:
        root: the folder; the names of Fashion-MNIST's classes are given if "fashion" is in its path.
        split: train (the default) or test.
    """

    kind = "idx"

    def __init__(self, root: str | Path, split: str | None = None) -> None:
        root = Path(root)
        split = split or "train"
        if split not in ("train", "test"):
            raise SourceError(f"{root} has no split {split!r}: it has train, test")
        prefix = "train" if split == "train" else "t10k"
        files = [find_file(root, f"{prefix}-images-idx3-ubyte"), find_file(root, f"{prefix}-labels-idx1-ubyte")]
        images, labels = read_idx(files[0], dimensions=3), read_idx(files[1], dimensions=1).astype(np.int64)
        fashion = "fashion" in str(root.resolve()).lower()
        classes = FASHION if fashion else tuple(str(digit) for digit in range(int(labels.max(initial=0)) + 1))
        super().__init__((str(root), split), files, images[..., None], labels, classes, split)


MAX_RATIO = 1100
"""Bytes that one byte of a gzip file can stand for, and a little more."""


def locate(path: Path) -> Path | None:
    """The folder of idx files at this path, or in it where torchvision puts Fashion-MNIST."""
    for folder in (path, path / "FashionMNIST" / "raw", path / "raw"):
        if any(folder.glob("*-images-idx3-ubyte*")):
            return folder
    return None


def find_file(root: Path, name: str) -> Path:
    """The file of this name, packed or not."""
    for path in (root / name, root / f"{name}.gz"):
        if path.is_file():
            return path
    raise SourceError(f"{root} lacks {name} (or {name}.gz): download it again")


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """An idx file of bytes: 0, 0, 8 (bytes), the number of dimensions; each as a big-endian int32; the data."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4 + 4 * dimensions)
            if len(header) < 4 + 4 * dimensions or header[:4] != bytes((0, 0, 8, dimensions)):
                raise SourceError(f"{path} is not an idx file of bytes in {dimensions} dimensions: download it again")
            shape = [int(side) for side in np.frombuffer(header, dtype=">i4", offset=4)]
            size = math.prod(shape)
            if min(shape) < 0 or size > path.stat().st_size * MAX_RATIO:
                raise SourceError(f"{path} should hold {shape} bytes, and is too small for that: download it again")
            data = file.read(size + 1)  # one more would be one too many, and a small file may unpack to very many
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{path} cannot be unpacked ({error}): download it again") from error
    if len(data) != size:
        held = f"{len(data)}" if len(data) < size else "more"
        raise SourceError(f"{path} should hold {shape} bytes and holds {held}: download it again")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)
