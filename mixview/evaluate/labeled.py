"""Labeled images to evaluate an encoder on: a training and a test split with the same classes in the same order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mixview.data.sources.base import Source, SourceError
from mixview.data.sources.fingerprint import explain_change
from mixview.data.sources.registry import open_dataset, other_parts
from mixview.data.sources.splits import Subset, drop_unlabeled, hold_out_labeled, without
from mixview.encoders.provenance import image_count, read_dict_or_none
from mixview.io.records import Config
from mixview.io.records import Data as DataRecord

Labels = npt.NDArray[np.int64]
LabelSets = npt.NDArray[np.int8]


@dataclass(frozen=True)
class LabeledSplits:
    """A training and a test split, each image with one label or a set of them."""

    train: Source
    test: Source
    classes: tuple[str, ...]
    description: str
    """Dataset, splits and sizes, for a table."""
    train_labels: Labels | None = None
    """[N] if every image has one class."""
    test_labels: Labels | None = None
    train_sets: LabelSets | None = None
    """[N, classes] 1 present, 0 absent, -1 difficult; also for images with one class."""
    test_sets: LabelSets | None = None
    notes: tuple[str, ...] = ()

    def single_labels(self, protocol: str) -> tuple[Labels, Labels]:
        """The labels of both splits, for a protocol that needs one class per image."""
        if self.train_labels is None or self.test_labels is None:
            raise SourceError(
                f"{protocol} needs one class per image, and {self.description} has sets of them: use svm or low-shot"
            )
        return self.train_labels, self.test_labels

    def label_sets(self) -> tuple[LabelSets, LabelSets]:
        """The label sets of both splits."""
        assert self.train_sets is not None
        assert self.test_sets is not None
        return self.train_sets, self.test_sets


def open_splits(
    data: str,
    train: str | None = None,
    test: str | None = None,
    test_data: str | None = None,
    options: dict[str, Any] | None = None,
    run: Path | None = None,
) -> LabeledSplits:
    """Open the labeled images at a path.

    Args:
        data: a path, an address or a name, as for pretraining.
        train: split to train on; by default the one for training.
        test: split to evaluate on; by default test, or else val, or else a fifth of the images, which is held out.
        test_data: another location of the test images.
        options: further options of the dataset.
        run: the folder of the run that trained the encoder: what it held out of the same images is held out again.
    """
    train_source = open_dataset(data, train, **(options or {}))
    train_name = train or str(getattr(train_source, "split", None) or "train")
    others = {name: value for name, value in (options or {}).items() if name != "split"}
    test_split = find_test(train_source, data, test, test_data, others)
    if test_split is None:
        train_source, test_source, note = hold_out(train_source, data, run)
        test_name = "held out"
    else:
        (test_source, test_name), note = test_split, ""
    description = f"{data}, {train_name} {len(train_source)}, {test_name} {len(test_source)}"
    splits = align_splits(train_source, test_source, description)
    return replace(splits, notes=(note, *splits.notes)) if note else splits


def find_test(
    train: Source, data: str, test: str | None, test_data: str | None, options: dict[str, Any]
) -> tuple[Source, str] | None:
    """The test split, and its name; None if there is none."""
    if test_data is not None:
        return open_dataset(test_data, test), f"{test_data} {test}" if test else test_data
    if test is not None:
        return open_dataset(data, test, **options), test
    for split, part in other_parts(data, train, ("test", "val"), **options):
        if has_labels(part):
            return part, split
    return None


TEST_SHARE = 0.2
"""The share of labeled images that is held out where there is no test split."""


def hold_out(source: Source, data: str, run: Path | None) -> tuple[Source, Source, str]:
    """Images to train on, images to test on, and a sentence on the choice.

    What the run of the encoder held out of these very images is the only part that it has not seen. Else it is a fifth,
    the same for every encoder and seed, so that results compare.
    """
    if not has_labels(source):
        raise SourceError(f"{data} has no labels: pass labeled images, such as one folder per class, or --labels")
    part = held_out_by(run, source) if run is not None else None
    if part is not None:
        what = f"the {len(part)} images that the run held out"
    else:
        part = hold_out_fifth(source, data)
        what = f"one fifth of its labeled images ({len(part)}, stratified by class)"
    return without(source, part), part, f"{data} has no test split: testing on {what}, training on the rest."


def hold_out_fifth(source: Source, data: str) -> Subset:
    """A fifth of the images of each class that has two images or more; the only image of a class stays."""
    labels = source.labels()
    if labels is None:
        return hold_out_labeled(source, TEST_SHARE)
    counts = np.bincount(labels[labels >= 0], minlength=1)
    common = np.flatnonzero((labels >= 0) & (counts[labels] > 1))
    if not common.size:
        raise SourceError(
            f"no class of {data} has two images, so that none can be held out to test on: add more images of each "
            "class, or pass test images as --test_data"
        )
    candidates = Subset(source, common)
    return Subset(source, candidates.indices[hold_out_labeled(candidates, TEST_SHARE).indices])


def held_out_by(run: Path, source: Source) -> Subset | None:
    """The images of a source that a run held out of its training for its k-NN accuracy; None if it used other data.

    Its settings determine them: the choice depends only on the share, the seed and the names of the images.
    """
    recorded = (read_dict_or_none(run / "data.json", DataRecord) or {}).get("fingerprint")
    config = read_dict_or_none(run / "config.yaml", Config) or {}
    share, labels = (config.get("monitor") or {}).get("hold_out"), source.labels()
    own = config.get("validation") is None and config.get("validation_split") is None
    if recorded is None or explain_change(recorded, source.fingerprint()) is not None or labels is None or not own:
        return None
    if not share:
        return None
    part = hold_out_labeled(source, share, config.get("seed") or 0)
    if image_count(run / "images.npz") != len(source) - len(part):
        return None
    # Of a class with one image the run held out that: no classifier can be trained to know it.
    has_others = np.isin(labels[part.indices], np.delete(labels, part.indices))
    return Subset(source, part.indices[has_others]) if has_others.any() else None


def has_labels(source: Source) -> bool:
    return source.labels() is not None or source.label_sets() is not None


def align_splits(train: Source, test: Source, description: str) -> LabeledSplits:
    """Both splits with the classes of the training split; raise if one has no labels, or other classes."""
    for source, name in ((train, "training"), (test, "test")):
        if not has_labels(source):
            raise SourceError(
                f"the {name} split of {description} has no labels: pass labeled images, such as one folder per class"
            )
    if (train.labels() is None) != (test.labels() is None):
        raise SourceError(
            f"one split of {description} has one class per image, the other sets of them: pass two of a kind"
        )
    train, dropped = drop_unlabeled(train)
    test, dropped_too = drop_unlabeled(test)
    notes = [
        f"{count} {name} images have no label and are left out."
        for count, name in ((dropped, "training"), (dropped_too, "test"))
        if count
    ]
    align = single_label_splits if train.labels() is not None else multi_label_splits
    splits = align(train, test, description)
    assert splits.test_sets is not None
    absent = [
        name for name, there in zip(splits.classes, (splits.test_sets == 1).any(axis=0), strict=True) if not there
    ]
    if absent:
        few = ", ".join(absent[:5]) + (" …" if len(absent) > 5 else "")
        notes.append(f"No test image shows {few}: {len(absent)} of {len(splits.classes)} classes are not evaluated.")
    return replace(splits, notes=tuple(notes))


def single_label_splits(train: Source, test: Source, description: str) -> LabeledSplits:
    """Splits with one class per image, numbered as in the training split."""
    train_labels, test_labels = train.labels(), test.labels()
    assert train_labels is not None
    assert test_labels is not None
    classes = class_names(train, int(train_labels.max()) + 1)
    names = class_names(test, int(test_labels.max()) + 1)
    if names != classes:
        test_labels = class_index(names, classes, np.unique(test_labels).tolist(), description)[test_labels]
    unseen = sorted(set(test_labels.tolist()) - set(train_labels.tolist()))
    if unseen:
        raise SourceError(
            f"the test split of {description} has images of class {classes[unseen[0]]} and the training split none: "
            "pass splits of one dataset"
        )
    sets = one_hot(train_labels, classes), one_hot(test_labels, classes)
    return LabeledSplits(train, test, classes, description, train_labels, test_labels, *sets)


def class_names(source: Source, count: int) -> tuple[str, ...]:
    """The names of a source's classes; numbers where it has no names."""
    if source.classes is not None and len(source.classes) < count:
        raise SourceError(
            f"{source!r} has a label {count - 1} and names {len(source.classes)} classes: name all of them"
        )
    return source.classes or tuple(str(number) for number in range(count))


def class_index(
    names: tuple[str, ...], classes: tuple[str, ...], used: Sequence[int], description: str
) -> npt.NDArray[np.int64]:
    """[names] the index of each class of the test split among those of the training split, -1 for none.

    Args:
        names: the classes of the test split.
        classes: the classes of the training split.
        used: the classes of the test split that the training split must have.
        description: description of the splits, for errors.
    """
    position = {name: number for number, name in enumerate(classes)}
    unknown = [names[number] for number in used if names[number] not in position]
    if unknown:
        some = ", ".join(classes[:5]) + (" …" if len(classes) > 5 else "")
        raise SourceError(
            f"the test split of {description} has the class {unknown[0]!r}, which the training split lacks (it has "
            f"{some}): pass two splits of one dataset, both with class names or both with numbers"
        )
    return np.array([position.get(name, -1) for name in names], dtype=np.int64)


def one_hot(labels: Labels, classes: tuple[str, ...]) -> LabelSets:
    """[N, classes] label sets of one class each."""
    table = np.zeros((len(labels), len(classes)), dtype=np.int8)
    table[np.arange(len(labels)), labels] = 1
    return table


def multi_label_splits(train: Source, test: Source, description: str) -> LabeledSplits:
    """Splits with label sets, in the columns of the training split. A class that test does not name is in no image."""
    train_sets, test_sets = train.label_sets(), test.label_sets()
    assert train_sets is not None
    assert test_sets is not None
    classes, names = class_names(train, train_sets.shape[1]), class_names(test, test_sets.shape[1])
    if names != classes:
        table = np.zeros((len(test_sets), len(classes)), dtype=np.int8)
        table[:, class_index(names, classes, range(len(names)), description)] = test_sets
        test_sets = table
    return LabeledSplits(train, test, classes, description, train_sets=train_sets, test_sets=test_sets)


def as_tensor(labels: Labels) -> Tensor:
    """Labels as a tensor of their own."""
    return torch.from_numpy(np.array(labels))
