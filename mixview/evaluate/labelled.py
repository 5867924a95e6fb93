"""Labelled images to judge an encoder with: a part to learn from and one to be asked about, classes in step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mixview.data.opening import open_source
from mixview.data.source import Source, SourceError
from mixview.data.splits import Subset

Labels = npt.NDArray[np.int64]
LabelSets = npt.NDArray[np.int8]


@dataclass(frozen=True)
class Parts:
    """The two parts, each image with one label or with a set of them."""

    train: Source
    test: Source
    classes: tuple[str, ...]
    words: str
    """What they are, for a table."""
    train_labels: Labels | None = None
    """[N] where every image has one class."""
    test_labels: Labels | None = None
    train_sets: LabelSets | None = None
    """[N, classes] 1 present, 0 absent, -1 difficult; of images with one class as well."""
    test_sets: LabelSets | None = None
    notes: tuple[str, ...] = ()

    def single(self, protocol: str) -> tuple[Labels, Labels]:
        """The labels of both parts, for a protocol that needs one class an image."""
        if self.train_labels is None or self.test_labels is None:
            raise SourceError(
                f"{protocol} needs one class an image, and {self.words} has sets of them: use svm or lowshot"
            )
        return self.train_labels, self.test_labels

    def sets(self) -> tuple[LabelSets, LabelSets]:
        """The label sets of both parts."""
        assert self.train_sets is not None
        assert self.test_sets is not None
        return self.train_sets, self.test_sets


def open_parts(
    data: str,
    train: str | None = None,
    test: str | None = None,
    test_data: str | None = None,
    options: dict[str, Any] | None = None,
) -> Parts:
    """The labelled images at a path.

    Args:
        data: a path, an address or a name, as for pretraining.
        train: the split to learn from; by default the one for training.
        test: the split to be asked about; by default test, or else val.
        test_data: another place for the test part.
        options: further options of the source.
    """
    known = open_source(data, train, **(options or {}))
    others = {name: value for name, value in (options or {}).items() if name != "split"}
    asked, test_name = find_test(known, data, test, test_data, others)
    train_name = train or str(getattr(known, "split", None) or "train")
    return put_in_step(known, asked, f"{data}, {train_name} {len(known)}, {test_name} {len(asked)}")


def find_test(
    known: Source, data: str, test: str | None, test_data: str | None, options: dict[str, Any]
) -> tuple[Source, str]:
    """The part to be asked about, and its name."""
    if test_data is not None:
        return open_source(test_data, test), f"{test_data} {test}" if test else test_data
    if test is not None:
        return open_source(data, test, **options), test
    for split in ("test", "val"):
        try:
            found = open_source(data, split, **options)
        except (SourceError, ValueError):
            continue
        if has_labels(found) and found.fingerprint() != known.fingerprint():
            return found, split
    raise SourceError(
        f"{data} has no labelled test or val part to be asked about: name a split with --test, or another place with "
        "--test-data"
    )


def has_labels(source: Source) -> bool:
    return source.labels() is not None or source.label_sets() is not None


def put_in_step(train: Source, test: Source, words: str) -> Parts:
    """Both parts with the classes of the first; refuses what has no labels, or other classes."""
    for part, name in ((train, "training"), (test, "test")):
        if not has_labels(part):
            raise SourceError(
                f"the {name} part of {words} has no labels to judge by: give labelled images, such as a folder a class"
            )
    if (train.labels() is None) != (test.labels() is None):
        raise SourceError(f"one part of {words} has one class an image and the other sets of them: give two of a kind")
    train, dropped = drop_unlabelled(train)
    test, dropped_too = drop_unlabelled(test)
    notes = [
        f"{count} {name} images have no label and are left out."
        for count, name in ((dropped, "training"), (dropped_too, "test"))
        if count
    ]
    parts = single_labels(train, test, words) if train.labels() is not None else sets_of_labels(train, test, words)
    assert parts.test_sets is not None
    absent = [name for name, there in zip(parts.classes, (parts.test_sets == 1).any(axis=0), strict=True) if not there]
    if absent:
        few = ", ".join(absent[:5]) + (" …" if len(absent) > 5 else "")
        notes.append(f"No test image shows {few}: {len(absent)} of {len(parts.classes)} classes are not asked about.")
    return replace(parts, notes=tuple(notes))


def drop_unlabelled(source: Source) -> tuple[Source, int]:
    """The images that have a label (0 or more), and how many have none."""
    labels = source.labels()
    if labels is None or (labels >= 0).all():
        return source, 0
    if not (labels >= 0).any():
        raise SourceError(f"none of the {len(source)} images has a label to judge by: give labelled images")
    return Subset(source, np.flatnonzero(labels >= 0)), int((labels < 0).sum())


def single_labels(train: Source, test: Source, words: str) -> Parts:
    """One class an image, numbered as in the training part."""
    known, asked = train.labels(), test.labels()
    assert known is not None
    assert asked is not None
    classes = class_names(train, int(known.max()) + 1)
    names = class_names(test, int(asked.max()) + 1)
    if names != classes:
        asked = places(names, classes, np.unique(asked).tolist(), words)[asked]
    unseen = sorted(set(asked.tolist()) - set(known.tolist()))
    if unseen:
        raise SourceError(
            f"the test part of {words} has images of class {classes[unseen[0]]} and the training part none: give parts "
            "of one set"
        )
    return Parts(train, test, classes, words, known, asked, one_hot(known, classes), one_hot(asked, classes))


def class_names(source: Source, count: int) -> tuple[str, ...]:
    """The names of a source's classes; where they are numbers, these, as words."""
    if source.classes is not None and len(source.classes) < count:
        raise SourceError(
            f"{source!r} has a label {count - 1} and names {len(source.classes)} classes: name all of them"
        )
    return source.classes or tuple(str(number) for number in range(count))


def places(names: tuple[str, ...], classes: tuple[str, ...], used: Sequence[int], words: str) -> npt.NDArray[np.int64]:
    """[names] where each class of the test part is among those of the training part, -1 where nowhere.

    Args:
        names: the classes of the test part.
        classes: those of the training part.
        used: the classes of the test part that must be there.
        words: what the parts are, for errors.
    """
    place = {name: number for number, name in enumerate(classes)}
    strange = [names[number] for number in used if names[number] not in place]
    if strange:
        known = ", ".join(classes[:5]) + (" …" if len(classes) > 5 else "")
        raise SourceError(
            f"the test part of {words} has the class {strange[0]!r}, which the training part lacks (it has {known}): "
            "give two parts of one set, both with names of classes or both with numbers"
        )
    return np.array([place.get(name, -1) for name in names], dtype=np.int64)


def one_hot(labels: Labels, classes: tuple[str, ...]) -> LabelSets:
    """[N, classes] the sets of one class each."""
    table = np.zeros((len(labels), len(classes)), dtype=np.int8)
    table[np.arange(len(labels)), labels] = 1
    return table


def sets_of_labels(train: Source, test: Source, words: str) -> Parts:
    """Sets of classes, in the columns of the training part. A class that the test part does not name is in no image."""
    known, asked = train.label_sets(), test.label_sets()
    assert known is not None
    assert asked is not None
    classes, names = class_names(train, known.shape[1]), class_names(test, asked.shape[1])
    if names != classes:
        table = np.zeros((len(asked), len(classes)), dtype=np.int8)
        table[:, places(names, classes, range(len(names)), words)] = asked
        asked = table
    return Parts(train, test, classes, words, train_sets=known, test_sets=asked)
