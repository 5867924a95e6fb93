"""Linear SVMs on frozen features: the VOC2007 protocol of VISSL and OpenSelfSup, and one class against the rest.

    train = Labelled(features, from_label_sets(source.label_sets()))
    result = evaluate_svm(train, test, classes=source.classes)
    print(result.mean_ap, result.protocol, *result.notes)

One SVM a class. Its cost is the one with the best average precision under cross-validation (the first of equal ones,
in the order of `costs`); folds are scikit-learn's stratified ones without shuffling, and their average precision is
scikit-learn's: `cross_val_score(cv=3, scoring="average_precision")` in the published code. Then mean average
precision on the test set. An object that is marked difficult makes its image a negative in training, as published,
and is ignored at test.

A class with fewer positives than folds gets fewer folds, one with a single positive the `fallback_cost`. A class
without any positive or negative in training, or without any positive at test, is left out of the mean, and named. No
class left is an error.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mixview.evaluate.average_precision import mean_average_precision
from mixview.evaluate.svm_fitting import Counter, Fit, Report, best_cost, start

Difficult = Literal["negative", "ignored"]
T = TypeVar("T")


class Labelled(NamedTuple):
    """Features and what the images show."""

    features: Tensor
    """[N, D], on the device that does the work."""
    labels: Tensor
    """[N, classes]: 1 present, -1 absent, 0 difficult, as in VOC's own files. See `from_label_sets`, `from_classes`."""


def from_label_sets(label_sets: npt.NDArray[np.int8] | Tensor | None) -> Tensor:
    """The labels of a source with several classes an image: its 1, 0 (absent), -1 (difficult) become 1, -1, 0."""
    if label_sets is None:
        raise ValueError(
            "there are no label sets, and an SVM needs labels: use a source that has them, or k-NN on others"
        )
    known = torch.as_tensor(label_sets)
    return torch.where(known == 1, 1, torch.where(known == 0, -1, 0)).to(torch.int8)


def from_classes(labels: npt.NDArray[np.int64] | Tensor | None, classes: int) -> Tensor:
    """The labels of a source with one class an image, one against the rest. [N] -> [N, classes]"""
    if labels is None:
        raise ValueError("there are no labels, and an SVM needs them: use a source that has some")
    known = torch.as_tensor(labels)
    if known.ndim != 1 or not len(known) or int(known.min()) < 0 or int(known.max()) >= classes:
        raise ValueError(f"labels must be [N] whole numbers from 0 to {classes - 1}: number the classes from 0")
    return (2 * torch.nn.functional.one_hot(known.long(), classes) - 1).to(torch.int8)


@dataclass(frozen=True)
class SvmSettings:
    """The whole training set."""

    fit: Fit = field(default_factory=Fit)
    difficult: Difficult = "negative"
    """What an object marked difficult makes of its image in training: a negative, as published, or nothing."""


@dataclass(frozen=True)
class SvmResult:
    """What the SVMs of the whole training set reach. Figures are from 0 to 1."""

    mean_ap: float
    top1: float | None
    """The share of test images whose own class has the highest score, where every image has exactly one class."""
    classes: tuple[str, ...]
    per_class: tuple[float | None, ...]
    """The average precision of each class; None where it was left out."""
    costs: tuple[float | None, ...]
    """The chosen C of each class."""
    cross_validated: tuple[float | None, ...]
    """The average precision under cross-validation at that C; None where there was none."""
    protocol: str
    notes: tuple[str, ...]
    """What was left out or done otherwise, in sentences."""

    def metrics(self) -> dict[str, float]:
        """Names and values, for tables."""
        found = {"mAP": self.mean_ap}
        return found if self.top1 is None else {**found, "top-1": self.top1}


def evaluate_svm(
    train: Labelled,
    test: Labelled,
    *,
    classes: Sequence[str] | None = None,
    settings: SvmSettings | None = None,
    report: Report | None = None,
) -> SvmResult:
    """Train on all of `train`, the cost of each class by cross-validation, and judge on `test`.

    Args:
        train: features [N, D] and labels [N, classes].
        test: the same of other images.
        classes: their names; numbers by default.
        settings: the published ones by default.
        report: told how far it is.
    """
    settings = settings or SvmSettings()
    fit = settings.fit
    names = check_sets(train, test, classes)
    labels = train.labels.cpu()
    counted = torch.ones_like(labels, dtype=torch.bool) if settings.difficult == "negative" else labels != 0
    kept, notes = usable(labels == 1, counted, test.labels.cpu() == 1, names)
    machine = start(train.features, test.features, fit, Counter(report, len(fit.costs) * len(kept) * (1 + fit.folds)))
    outcome = machine.run((labels == 1)[:, kept], counted[:, kept])
    chosen = best_cost(outcome.cross_validated, fit)
    scores = outcome.test_scores[chosen, :, torch.arange(len(kept))].T
    truth = test.labels.to(scores.device)[:, kept]
    found = mean_average_precision(scores, truth == 1, truth == 0, interpolation=fit.interpolation)
    folds = outcome.folds
    for index, column in enumerate(kept):
        if folds[index] < fit.folds:
            notes.append(few_positives(names[column], int(folds[index]), fit))
    validated = outcome.cross_validated[chosen, torch.arange(len(kept))].tolist()
    return SvmResult(
        mean_ap=found.value,
        top1=top1(scores, test.labels.to(scores.device), kept),
        classes=names,
        per_class=spread_out(found.per_class, kept, len(names)),
        costs=spread_out([fit.costs[index] for index in chosen.tolist()], kept, len(names)),
        cross_validated=spread_out([None if math.isnan(value) else value for value in validated], kept, len(names)),
        protocol=(
            f"{fit.in_words()}; C of each class from {len(fit.costs)} values by {fit.folds}-fold cross-validated AP; "
            f"difficult objects {settings.difficult} in training and ignored at test; mean over {len(kept)} classes of "
            f"{fit.interpolation} AP; {len(train.features)} images to train and {len(test.features)} to test"
        ),
        notes=(*notes, *machine.notes()),
    )


def check_sets(train: Labelled, test: Labelled, classes: Sequence[str] | None) -> tuple[str, ...]:
    """The names of the classes, after refusing what does not fit together."""
    for name, (features, labels) in (("training", train), ("test", test)):
        if features.ndim != 2 or not features.numel():
            raise ValueError(
                f"the {name} features must be [N, D] with at least one of each, got {list(features.shape)}"
            )
        if labels.ndim != 2 or len(labels) != len(features):
            raise ValueError(
                f"the {name} labels must be [{len(features)}, classes], a row for each row of features, "
                f"got {list(labels.shape)}: see from_label_sets and from_classes"
            )
        if not bool(((labels == 1) | (labels == 0) | (labels == -1)).all()):
            raise ValueError(
                f"the {name} labels must be 1 (present), -1 (absent) or 0 (difficult): see from_label_sets"
            )
        if 2 * int((labels == 0).sum()) > labels.numel():
            raise ValueError(
                f"most of the {name} labels are 0, which means difficult: a source's label_sets say 0 for absent, "
                "so pass them through from_label_sets"
            )
        if not bool(features.isfinite().all()):
            raise ValueError(
                f"the {name} features contain NaN or infinity: look for an encoder that overflows in half precision"
            )
    if train.features.shape[1] != test.features.shape[1] or train.labels.shape[1] != test.labels.shape[1]:
        raise ValueError(
            f"training and test do not fit: {train.features.shape[1]} and {test.features.shape[1]} features, "
            f"{train.labels.shape[1]} and {test.labels.shape[1]} classes; take both from one encoder and one data set"
        )
    names = tuple(classes) if classes is not None else tuple(str(index) for index in range(train.labels.shape[1]))
    if len(names) != train.labels.shape[1]:
        raise ValueError(f"there are {len(names)} names for {train.labels.shape[1]} classes: pass one name a class")
    return names


def usable(positive: Tensor, counted: Tensor, in_test: Tensor, names: Sequence[str]) -> tuple[list[int], list[str]]:
    """The classes that can be trained and judged, and sentences about the others."""
    lacking = {
        "no positive in training": ~(positive & counted).any(0),
        "no negative in training": ~(~positive & counted).any(0),
        "no positive at test": ~in_test.any(0),
    }
    notes = [
        f"left out of the mean, {reason}: {', '.join(names[index] for index in missing.nonzero().flatten().tolist())}"
        for reason, missing in lacking.items()
        if bool(missing.any())
    ]
    out = torch.stack(list(lacking.values())).any(0)
    kept = (~out).nonzero().flatten().tolist()
    if not kept:
        raise ValueError(
            "no class has positives and negatives in training and positives at test "
            f"({'; '.join(notes)}): check the labels"
        )
    return kept, notes


def few_positives(name: str, folds: int, fit: Fit) -> str:
    """What was done about a class with fewer positives or negatives than folds."""
    if folds < 2:
        return f"{name} has too few images to cross-validate: C = {fit.fallback_cost:g}"
    return f"{name} has too few images for {fit.folds} folds: C by {folds}-fold cross-validation"


def spread_out(values: Sequence[T], kept: Sequence[int], count: int) -> tuple[T | None, ...]:
    """Values of the kept classes among all, None for the others."""
    known = dict(zip(kept, values, strict=True))
    return tuple(known.get(index) for index in range(count))


def single_label(labels: Tensor) -> bool:
    """Whether every image has exactly one class, and nothing is difficult."""
    return bool(((labels == 1).sum(1) == 1).all()) and not bool((labels == 0).any())


def top1(scores: Tensor, labels: Tensor, kept: Sequence[int]) -> float | None:
    """The share of images [N] whose class [N, classes] has the highest of scores [N, kept]; None for label sets."""
    if not single_label(labels):
        return None
    guess = torch.tensor(kept, device=scores.device)[scores.argmax(1)]
    return float((guess == labels.argmax(1)).cpu().double().mean())
