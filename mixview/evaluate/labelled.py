"""Labelled images to judge an encoder with: a part to learn from and one to be asked about, classes in step."""

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
    asked, test_name = find_test(known, data, test, test_data, options or {})
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
    classes = train.classes or tuple(str(number) for number in range(int(known.max()) + 1))
    if test.classes is not None and test.classes != train.classes and train.classes is not None:
        strange = [test.classes[number] for number in np.unique(asked) if test.classes[number] not in train.classes]
        if strange:
            raise SourceError(
                f"the test part of {words} has the class {strange[0]!r}, which the training part lacks: "
                "give two parts of one set"
            )
        place = {name: number for number, name in enumerate(train.classes)}
        asked = np.array([place[test.classes[number]] for number in asked], dtype=np.int64)
    unseen = sorted(set(asked.tolist()) - set(known.tolist()))
    if unseen:
        name = classes[unseen[0]] if unseen[0] < len(classes) else unseen[0]
        raise SourceError(
            f"the test part of {words} has images of class {name} and the training part none: give parts of one set"
        )
    eye = np.eye(len(classes), dtype=np.int8)
    return Parts(train, test, classes, words, known, asked, eye[known], eye[asked])


def sets_of_labels(train: Source, test: Source, words: str) -> Parts:
    """Sets of classes, in the columns of the training part. A class that the test part does not name is in no image."""
    known, asked = train.label_sets(), test.label_sets()
    assert known is not None
    assert asked is not None
    classes = train.classes or tuple(str(number) for number in range(known.shape[1]))
    if test.classes is not None and test.classes != classes:
        strange = sorted(set(test.classes) - set(classes))
        if strange:
            raise SourceError(
                f"the test part of {words} has the class {strange[0]!r}, which the training part lacks: "
                "give two parts of one set"
            )
        table = np.zeros((len(asked), len(classes)), dtype=np.int8)
        table[:, [classes.index(name) for name in test.classes]] = asked
        asked = table
    if asked.shape[1] != known.shape[1]:
        raise SourceError(
            f"the parts of {words} have {known.shape[1]} and {asked.shape[1]} classes: give two parts of one set"
        )
    return Parts(train, test, classes, words, train_sets=known, test_sets=asked)
