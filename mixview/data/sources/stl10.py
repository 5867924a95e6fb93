"""STL-10 in its binary version: 96×96, a few labeled images and 100,000 without."""

from pathlib import Path
from typing import final

import numpy as np

from mixview.data.sources.arrays import ImageArray
from mixview.data.sources.base import Pixels, SourceError

SPLITS = ("train", "test", "unlabeled")


@final
class Stl10(ImageArray):
    """STL-10. The files are mapped, not loaded: 2.7 GB of unlabeled images are shared by all processes.

    Args:
        root: `stl10_binary`.
        split: train (the default), test, or unlabeled.
    """

    kind = "stl10"

    def __init__(self, root: str | Path, split: str | None = None) -> None:
        root = Path(root)
        split = split or "train"
        if split not in SPLITS:
            raise SourceError(f"STL-10 has no split {split!r}: it has {', '.join(SPLITS)}")
        files = [root / f"{split}_X.bin", *([root / f"{split}_y.bin"] if split != "unlabeled" else [])]
        missing = [path.name for path in files if not path.is_file()]
        if missing:
            raise SourceError(f"{root} lacks STL-10's {', '.join(missing)}: unpack the archive again")
        size = files[0].stat().st_size
        if size == 0 or size % (3 * 96 * 96):
            raise SourceError(f"{files[0]} has {size} bytes, not a multiple of {3 * 96 * 96}: unpack the archive again")
        planes: Pixels = np.memmap(files[0], np.uint8, "r", shape=(size // (3 * 96 * 96), 3, 96, 96))
        images = planes.transpose(0, 3, 2, 1)  # on disk column by column
        labels = np.fromfile(files[1], np.uint8).astype(np.int64) - 1 if len(files) > 1 else None  # on disk from 1
        names = root / "class_names.txt"
        classes = tuple(names.read_text(encoding="ascii").split()) if names.is_file() else None
        super().__init__((str(root), split), files, images, labels, classes, split)


def locate(path: Path) -> Path | None:
    """The folder of STL-10 at this path, or in it where torchvision puts it."""
    return next((folder for folder in (path, path / "stl10_binary") if any(folder.glob("*_X.bin"))), None)
