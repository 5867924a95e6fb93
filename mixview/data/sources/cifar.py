"""CIFAR-10 and CIFAR-100 as their authors publish them: Python 2 pickles, or the binary version."""

from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from mixview.data.sources.arrays import ImageArray
from mixview.data.sources.base import Pixels, SourceError
from mixview.io.pickles import PickledArray, UntrustedPickle, read_arrays


@final
class Cifar(ImageArray):
    """CIFAR-10 or CIFAR-100 (fine labels), 32×32, in the folder that its archive unpacks to.

    Args:
        root: `cifar-10-batches-py`, `cifar-100-python`, `cifar-10-batches-bin` or `cifar-100-binary`.
        split: train (the default) or test.
    """

    kind = "cifar"

    def __init__(self, root: str | Path, split: str | None = None) -> None:
        root = Path(root)
        split = split or "train"
        if split not in ("train", "test"):
            raise SourceError(f"CIFAR has no split {split!r}: it has train, test")
        hundred = (root / "train").is_file() or (root / "train.bin").is_file()
        binary = any(root.glob("*.bin"))
        suffix = ".bin" if binary else ""
        if hundred:
            names = [split + suffix]
        else:
            names = [f"data_batch_{n}{suffix}" for n in range(1, 6)] if split == "train" else [f"test_batch{suffix}"]
        files = [root / name for name in names]
        missing = [path.name for path in files if not path.is_file()]
        if missing:
            raise SourceError(f"{root} lacks CIFAR's {', '.join(missing)}: unpack the archive again")
        parts = [read_binary(path, hundred) if binary else read_batch(path) for path in files]
        images = np.concatenate([pixels for pixels, _ in parts])
        labels = np.concatenate([labels for _, labels in parts])
        super().__init__((str(root), split), files, images, labels, read_classes(root, hundred, binary), split)


def locate(path: Path) -> Path | None:
    """The folder of a CIFAR at this path, or in it where torchvision puts it."""
    for folder in (path, *(path / name for name in FOLDERS)):
        if any((folder / mark).is_file() for mark in ("data_batch_1", "data_batch_1.bin", "train.bin")) or all(
            (folder / mark).is_file() for mark in ("train", "test", "meta")
        ):
            return folder
    return None


FOLDERS = ("cifar-10-batches-py", "cifar-100-python", "cifar-10-batches-bin", "cifar-100-binary")


def rows_to_pixels(rows: npt.NDArray[np.uint8], path: Path) -> Pixels:
    """[N, 3072], a plane of red, of green and of blue -> [N, 32, 32, 3]."""
    if rows.ndim != 2 or rows.shape[1] != 3072:
        raise SourceError(f"{path} holds data of shape {list(rows.shape)}, not [N, 3072]: unpack the archive again")
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def read_binary(path: Path, hundred: bool) -> tuple[Pixels, npt.NDArray[np.int64]]:
    """A file of the binary version: one byte of label (CIFAR-100: coarse, then fine) and 3072 of pixels per image."""
    width = 3074 if hundred else 3073
    data = np.fromfile(path, dtype=np.uint8)
    if data.size == 0 or data.size % width:
        raise SourceError(f"{path} has {data.size} bytes, not a multiple of {width}: unpack the archive again")
    rows = data.reshape(-1, width)
    return rows_to_pixels(rows[:, -3072:], path), rows[:, -3073].astype(np.int64)


def read_batch(path: Path) -> tuple[Pixels, npt.NDArray[np.int64]]:
    """A pickled batch: a dictionary with `data` and `labels` (CIFAR-100: `fine_labels`)."""
    batch = read_pickle(path)
    data, labels = batch.get(b"data"), batch.get(b"fine_labels", batch.get(b"labels"))
    if not isinstance(data, PickledArray) or data.value.dtype != np.uint8 or not isinstance(labels, list):
        raise SourceError(f"{path} is not a batch of CIFAR (no data and labels in it): unpack the archive again")
    return rows_to_pixels(data.value, path), np.array(labels, dtype=np.int64)


def read_classes(root: Path, hundred: bool, binary: bool) -> tuple[str, ...] | None:
    """The names of the classes, from the dataset's own file; None if that is missing."""
    path = (
        root
        / {
            (False, False): "batches.meta",
            (False, True): "batches.meta.txt",
            (True, False): "meta",
            (True, True): "fine_label_names.txt",
        }[(hundred, binary)]
    )
    if not path.is_file():
        return None
    if binary:
        return tuple(path.read_text(encoding="ascii").split())
    names = read_pickle(path).get(b"fine_label_names" if hundred else b"label_names")
    if not isinstance(names, list):
        raise SourceError(f"{path} does not name the classes: unpack the archive again")
    return tuple(bytes(name).decode() for name in names)


def read_pickle(path: Path) -> dict[Any, Any]:
    """The dictionary in one of CIFAR's pickles, by a reader that runs nothing of theirs."""
    try:
        content = read_arrays(path, "CIFAR", encoding="bytes")
    except UntrustedPickle as error:
        raise SourceError(str(error)) from None
    except (ValueError, OSError) as error:
        raise SourceError(f"{error}: unpack the archive again") from error
    if not isinstance(content, dict):
        raise SourceError(f"{path} holds a {type(content).__name__}, not a batch of CIFAR: unpack the archive again")
    return content
