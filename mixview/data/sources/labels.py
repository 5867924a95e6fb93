"""Labels from a file next to the images: a CSV of paths and labels, for a folder that has none of its own.

    source = open_dataset("photos/", labels="labels.csv")

    path,label
    2019/one.jpg,oak
    2019/two.jpg,ash
    2020/three.jpg,ash;oak

Several rows with one path, or several labels in a cell with semicolons between them, are several classes of that image.
"""

import hashlib
from pathlib import Path, PurePath
from typing import final

import numpy as np
import numpy.typing as npt

from mixview.data.sources.base import Objects, Pixels, Source, SourceError
from mixview.data.sources.files import number_labels, parse_place, read_list

MAX_NAMED = 3
"""The most files that a note names."""


@final
class Labeled(Source):
    """A source with the labels of a file in place of its own.

    Args:
        source: the images.
        path: a CSV (or TSV) file with the columns path and label, or a text file of such lines. A path is what
            `source.name` says, or has the folder of the images in front, or is only the last part of a name, if unique.
        root: the folder of the images, if they are in one.
        partial: true to ignore images without a label, and rows without an image: for one part of several.
    """

    kind = "labeled"

    def __init__(self, source: Source, path: str | Path, root: Path | None = None, partial: bool = False) -> None:
        self.source = source
        self.skipped = source.skipped
        rows = [(name, label) for name, label in read_list(parse_place(path)) if label is not None]
        if not rows:
            raise SourceError(f"{path} has no labels: give it the columns path and label, with a row per image")
        indices = locate(source, [name for name, _ in rows], root)
        if not (indices >= 0).any():
            raise SourceError(
                f"{path} names no image of {source!r}: it begins with {rows[0][0]!r}, and the images with "
                f"{source.name(0)!r}; write paths relative to the folder of the images"
            )
        named = indices[indices >= 0].tolist()
        several = any(";" in label for _, label in rows) or len(set(named)) < len(named)
        names = [each.strip() for _, label in rows for each in (label.split(";") if several else [label])]
        counts = [len(label.split(";")) if several else 1 for _, label in rows]
        places = np.repeat(indices, counts)
        numbers, self.classes = number_labels(names)
        if (numbers < 0).any():
            raise SourceError(f"{path} has the label {numbers.min()}: count classes from 0, or give them names")
        present = np.zeros((len(source), int(numbers.max()) + 1), dtype=np.int8)
        present[places[places >= 0], numbers[places >= 0]] = 1
        shown = present.sum(axis=1)
        self._sets = present if (shown > 1).any() else None
        self._labels = None if self._sets is not None else np.where(shown > 0, present.argmax(axis=1), -1)
        unknown = [name for (name, _), place in zip(rows, indices.tolist(), strict=True) if place < 0]
        bare = [source.name(index) for index in np.flatnonzero(shown == 0)[:MAX_NAMED].tolist()]
        parts = [some(len(unknown), unknown, "row names", "rows name", "no image")] if unknown else []
        parts += [some(int((shown == 0).sum()), bare, "image has", "images have", "no label")] if bare else []
        self.notes = (*source.notes, *([f"{path}: {', and '.join(parts)}."] if parts and not partial else []))

    def __len__(self) -> int:
        return len(self.source)

    def __repr__(self) -> str:
        return repr(self.source)

    def read(self, index: int) -> bytes | Pixels:
        return self.source.read(index)

    def name(self, index: int) -> str:
        return self.source.name(index)

    def labels(self) -> npt.NDArray[np.int64] | None:
        return self._labels

    def label_sets(self) -> npt.NDArray[np.int8] | None:
        return self._sets

    def objects(self, index: int) -> Objects | None:
        return self.source.objects(index)

    def fingerprint(self) -> str:
        """The fingerprint of the images, with the labels in the hash."""
        *counts, own = self.source.fingerprint().split(", ")
        digest = hashlib.blake2b(own.encode(), digest_size=8)
        for array in (self._labels, self._sets):
            digest.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
        digest.update(repr(self.classes).encode("utf-8", "surrogateescape"))
        return ", ".join([*counts, digest.hexdigest()])


def locate(source: Source, names: list[str], root: Path | None) -> npt.NDArray[np.int64]:
    """[M] the index of the image of a source that each name is of; -1 for none."""
    exact = {source.name(index): index for index in range(len(source))}
    last: dict[str, int] = {}
    for name, index in exact.items():
        base = name.rpartition("/")[2]
        last[base] = index if base not in last else -1
    # The folder of the images itself, and the parts of a dataset above it, may stand in front.
    folders = [] if root is None else [f"{'/'.join(root.parts[-count:])}/" for count in (1, 2)] + [f"{root}/"]
    indices = []
    for name in names:
        plain = PurePath(name.replace("\\", "/")).as_posix() if name not in exact else name
        shortened = [plain.removeprefix(folder) for folder in folders if plain.startswith(folder)]
        place = next((exact[each] for each in [plain, *shortened] if each in exact), None)
        indices.append(last.get(plain, -1) if place is None and "/" not in plain else -1 if place is None else place)
    return np.array(indices, dtype=np.int64)


def some(count: int, names: list[str], one: str, several: str, what: str) -> str:
    """`2 rows name no image (a.jpg, b.jpg)`."""
    listed = ", ".join(names[:MAX_NAMED]) + (" …" if count > MAX_NAMED else "")
    return f"{count} {one if count == 1 else several} {what} ({listed})"
