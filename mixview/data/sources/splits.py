"""Parts of a source: a fraction, some images per class, a range such as train[:5000], a list of files.

Which images are chosen is decided by a hash of the seed and each image's name: the same on every machine and with every
version of every library, whatever the order of the files. With one seed and one label per image, the 1 % lies within
the 10 %, and 1 image per class within 5.
"""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import final

import numpy as np
import numpy.typing as npt

from mixview.data.sources.base import ClassMap, Objects, Pixels, Source, SourceError, even_indices
from mixview.data.sources.files import parse_lines

Indices = npt.NDArray[np.int64]


@final
class Subset(Source):
    """Some images of a source, in the order of `indices`.

    Args:
        source: the whole.
        indices: [M] the indices of its images.
    """

    kind = "subset"

    def __init__(self, source: Source, indices: Indices) -> None:
        indices = np.asarray(indices, dtype=np.int64)
        if indices.size == 0:
            raise SourceError(f"a subset of {source!r} would be empty: choose at least one image")
        if indices.min() < 0 or indices.max() >= len(source):
            raise SourceError(f"a subset of {len(source)} images has indices from 0 to {len(source) - 1}: check them")
        self.source = source
        self.indices = indices
        self.classes = source.classes
        self.notes = source.notes

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        return f"Subset({self.source!r}, {len(self)} images)"

    def read(self, index: int) -> bytes | Pixels:
        return self.source.read(self._own(index))

    def name(self, index: int) -> str:
        return self.source.name(self._own(index))

    def fingerprint(self) -> str:
        """The count of the part, the bytes of the whole (where it has any: what is drawn has none), a hash of both."""
        parent = self.source.fingerprint()
        digest = hashlib.blake2b(parent.encode() + self.indices.tobytes(), digest_size=8).hexdigest()
        return ", ".join([f"{len(self)} images", *parent.split(", ")[1:2], digest])

    def labels(self) -> npt.NDArray[np.int64] | None:
        labels = self.source.labels()
        return None if labels is None else labels[self.indices]

    def label_sets(self) -> npt.NDArray[np.int8] | None:
        label_sets = self.source.label_sets()
        return None if label_sets is None else label_sets[self.indices]

    def objects(self, index: int) -> Objects | None:
        return self.source.objects(self._own(index))

    def segmentation(self) -> Source | None:
        whole = self.source.segmentation()
        if whole is None:
            return None
        names = {self.name(index) for index in range(len(self))}
        indices = [index for index in range(len(whole)) if whole.name(index) in names]
        return Subset(whole, np.array(indices)) if indices else None

    def class_map(self, index: int) -> ClassMap:
        return self.source.class_map(self._own(index))

    def _own(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} images")
        return int(self.indices[index])


def take_fraction(source: Source, fraction: float, seed: int = 0) -> Subset:
    """A share of the images with the share of each class kept, and at least one image per class.

    With label sets the share of each class is kept as far as possible, beginning with the rarest (after Sechidis et
    al., 2011), and the part is about as large as requested; without any labels the choice is by chance alone.

    Example:
        >>> from mixview.data import Scenes
        >>> len(take_fraction(Scenes(200, cache=False), 0.1))
        20
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be within (0, 1], got {fraction}: 0.01 is 1 %")
    order = shuffled(source, seed)
    labels, label_sets = source.labels(), source.label_sets()
    if labels is not None:
        chosen = stratify(order, labels, fraction)
    elif label_sets is not None:
        chosen = stratify_sets(order, label_sets == 1, fraction)
    else:
        chosen = order[: max(1, round(fraction * len(order)))]
    return Subset(source, np.sort(chosen))


def take_per_class(source: Source, count: int, seed: int = 0) -> Subset:
    """`count` images of each class; with label sets these may overlap, and what is "difficult" does not count.

    Example:
        >>> from mixview.data import Scenes
        >>> len(take_per_class(Scenes(200, cache=False), 5))  # of ten classes
        50
    """
    if count < 1:
        raise ValueError(f"count must be at least 1 image per class, got {count}")
    order = shuffled(source, seed)
    labels, label_sets = source.labels(), source.label_sets()
    if labels is not None:
        present = labels[:, None] == np.unique(labels)
    elif label_sets is not None:
        present = label_sets == 1
    else:
        raise SourceError(f"{source!r} has no labels to choose {count} images per class by: use take_fraction")
    few = np.flatnonzero(present.sum(axis=0) < count)
    if few.size:
        name = source.classes[few[0]] if source.classes else str(few[0])
        have = int(present[:, few[0]].sum())
        raise SourceError(f"{source!r} has {have} images of class {name}, fewer than {count}: ask for at most {have}")
    chosen = [order[present[order, column]][:count] for column in range(present.shape[1])]
    return Subset(source, np.unique(np.concatenate(chosen)))


def take_range(source: Source, start: int | None, stop: int | None) -> Subset:
    """Images `start` to `stop` of a shuffled order in which the classes alternate, so that every range has all of them.

    The order depends on the images' names alone: ranges that do not overlap have no image in common.
    """
    order, labels = shuffled(source, 0), source.labels()
    if labels is not None:
        _, inverse, counts = np.unique(labels[order], return_inverse=True, return_counts=True)
        by_class = np.argsort(inverse, kind="stable")
        rank = np.empty(len(order), dtype=np.int64)
        rank[by_class] = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        order = order[np.argsort((rank + 0.5) / counts[inverse], kind="stable")]
    first, last, _ = slice(start, stop).indices(len(order))
    if first >= last or (stop or 0) > len(order):
        raise SourceError(
            f"there are no images {'' if start is None else start}:{'' if stop is None else stop} in {source!r}: "
            f"it has {len(order)}"
        )
    return Subset(source, np.sort(order[first:last]))


def parse_range(split: str) -> tuple[str | None, slice | None]:
    """The split and the range of `train[5000:10000]`; of anything else itself and None."""
    match = re.fullmatch(r"(\w*)\[(\d*):(\d*)\]", split)
    if match is None:
        return split, None
    start, stop = (int(each) if each else None for each in match.groups()[1:])
    return match[1] or None, slice(start, stop)


def take_evenly(source: Source, count: int) -> Source:
    """At most `count` images, evenly over the source."""
    return source if len(source) <= count else Subset(source, even_indices(len(source), count))


def take_files(source: Source, files: str | Path | Iterable[str]) -> Subset:
    """The images of a given list, in its order.

    Args:
        source: the whole.
        files: their names, or a text file with one per line. A name is what `source.name` says, or only its last part
            if that is unique, as in the published lists of ImageNet's 1 % and 10 %.

    Example:
        >>> from mixview.data import Scenes
        >>> part = take_files(Scenes(200, cache=False), ["train-000007", "train-000003"])
        >>> part.name(0)
        'train-000007'
    """
    if isinstance(files, str | Path):
        try:
            with Path(files).open(encoding="utf-8", errors="surrogateescape") as file:
                names = [name for name, _ in parse_lines(file)]
        except OSError as error:
            raise SourceError(f"the list {files} cannot be read ({error.strerror}): check the path") from error
    else:
        names = list(files)
    exact = {source.name(index): index for index in range(len(source))}
    last: dict[str, int] = {}
    for name, index in exact.items():
        base = name.rpartition("/")[2]
        last[base] = index if base not in last else -1
    indices = [exact.get(name, last.get(name, -2)) for name in names]
    for problem, where in ((-2, "not in"), (-1, "the last part of several names in")):
        if problem in indices:
            name = names[indices.index(problem)]
            raise SourceError(
                f"{indices.count(problem)} of the {len(names)} files in the list are {where} {source!r}, {name} for "
                f"one: write names as {source.name(0)}"
            )
    return Subset(source, np.array(indices, dtype=np.int64))


def shuffled(source: Source, seed: int) -> Indices:
    """[N] all indices in an order that depends on the seed and on the names alone."""
    key = f"split/{seed}".encode()
    digests = b"".join(
        hashlib.blake2b(source.name(index).encode("utf-8", "surrogateescape"), key=key, digest_size=8).digest()
        for index in range(len(source))
    )
    return np.argsort(np.frombuffer(digests, dtype=">u8"), kind="stable").astype(np.int64)


def stratify(order: Indices, labels: npt.NDArray[np.int64], fraction: float) -> Indices:
    """The first of each class in `order`: its share rounded down, and one more where the remainder is largest."""
    classes, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    share = counts * fraction
    take = np.maximum(np.floor(share), 1).astype(np.int64)
    missing = max(round(fraction * len(order)) - int(take.sum()), 0)
    remainder = np.where(take < counts, share - take, -np.inf)
    take[np.argsort(-remainder, kind="stable")[:missing]] += 1
    return np.concatenate([order[inverse[order] == number][: take[number]] for number in range(len(classes))])


def stratify_sets(order: Indices, present: npt.NDArray[np.bool_], fraction: float) -> Indices:
    """Class by class from the rarest on, the first in `order` until the class has its share; no class is a class, too.

    The images that were chosen for rarer classes count for the commoner ones that they show besides, and those that
    show a rarer class, which has its share by then, are chosen last.
    """
    present = np.column_stack([present, ~present.any(axis=1)])[order]
    counts = present.sum(axis=0)
    chosen = np.zeros(len(order), dtype=np.bool_)
    rarer = np.zeros(len(order), dtype=np.bool_)
    for column in np.argsort(counts, kind="stable"):
        own = present[:, column]
        target = max(round(fraction * int(counts[column])), min(1, int(counts[column])))
        missing = target - int((own & chosen).sum())
        free = np.concatenate([np.flatnonzero(own & ~chosen & ~rarer), np.flatnonzero(own & ~chosen & rarer)])
        chosen[free[: max(missing, 0)]] = True
        rarer |= own
    return order[chosen]


def without(source: Source, part: Subset) -> Subset:
    """The images of a source that are not in a part of it."""
    return Subset(source, np.setdiff1d(np.arange(len(source)), part.indices))


def drop_unlabeled(source: Source) -> tuple[Source, int]:
    """The images that have a label (0 or more, or any class at all), and the number of those that have none."""
    labels = source.labels()
    if labels is None or (labels >= 0).all():
        return source, 0
    if not (labels >= 0).any():
        raise SourceError(f"none of the {len(source)} images has a label: pass labeled images")
    return Subset(source, np.flatnonzero(labels >= 0)), int((labels < 0).sum())


def hold_out_labeled(source: Source, share: float, seed: int = 0) -> Subset:
    """A share of the labeled images with the share of each class kept, as `take_fraction`, to be tested on.

    Of images that have no label none is taken.
    """
    labeled, dropped = drop_unlabeled(source)
    part = take_fraction(labeled, share, seed)
    return Subset(source, labeled.indices[part.indices]) if dropped and isinstance(labeled, Subset) else part
