"""Linear SVMs on frozen features: the VOC2007 protocol of VISSL and OpenSelfSup, and one class against the rest.

    train = Labeled(features, label_sets)
    result = evaluate_svm(train, test, classes=source.classes)
    print(result.mean_ap, result.description, *result.notes)

There is one SVM per class. Its cost is the one with the best average precision under cross-validation (the first of
equal ones, in the order of `costs`); folds are scikit-learn's stratified ones without shuffling, and their average
precision is scikit-learn's: `cross_val_score(cv=3, scoring="average_precision")` in the published code. The metric is
mean average precision on the test set. An object that is marked difficult makes its image a negative in training, as
published, and is ignored in testing.

A class with fewer positives than folds gets fewer folds, one with a single positive the `fallback_cost`. A class
without any positive or negative in training, or without any positive in testing, is left out of the mean, and named.
If no class is left, that is an error.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from mixview.encoders.features import Stage, pick_device, stages_of
from mixview.encoders.transforms import CenterCrop, ResizeToSquare
from mixview.evaluate.average_precision import mean_average_precision
from mixview.evaluate.base import EvalContext, Protocol
from mixview.evaluate.svm_fitting import FitConfig, ProgressCallback, ProgressCounter, best_cost, make_solver
from mixview.runs.progress_bar import Advance, bar

Difficult = Literal["negative", "ignored"]
T = TypeVar("T")


class MultiLabelFeatures(NamedTuple):
    """Features and label sets."""

    features: Tensor
    """[N, D], on the device that does the work."""
    labels: Tensor
    """[N, classes]: 1 present, 0 absent, -1 difficult, as a source's `label_sets` are."""


@dataclass(frozen=True, kw_only=True)
class SVMConfig:
    """Options of the protocols that train linear SVMs."""

    stage: Stage | None = None
    """Features; by default res5 pooled to 2×2 (the paper writes res4), and the output of encoders without stages."""
    resize: Literal["squash", "crop"] = "squash"
    """Squash the whole image into a square, as published, or crop its center."""
    fit: FitConfig = field(default_factory=FitConfig)
    """Training and evaluation of the SVMs."""

    def labeled(self, context: EvalContext) -> tuple[MultiLabelFeatures, MultiLabelFeatures, str]:
        """Features and label sets of both splits, and a description of the features."""
        stage = self.stage
        if stage is None:
            stage = "res5" if "res5" in stages_of(context.encoder.encoder) else "avgpool"
            if stage == "avgpool":
                name = context.encoder.name
                context.notes.append(f"{name} is not a ResNet, so that the features are its output (avgpool).")
        make = ResizeToSquare if self.resize == "squash" else CenterCrop
        transform = make(context.encoder.size, context.encoder.normalize)
        device = pick_device(context.protocol.device)
        if device.type == "mps":  # which has no double precision
            device = torch.device("cpu")
        train, test = (
            MultiLabelFeatures(part[stage].to(device), torch.from_numpy(label_sets[part.indices]).to(device))
            for part, label_sets in zip(context.features(transform, stage), context.splits.label_sets(), strict=True)
        )
        return train, test, f"{stage} ({train.features.shape[1]}-d), {transform.description}"


@contextlib.contextmanager
def progress() -> Iterator[Callable[[int, int], None]]:
    """A progress bar for SVMs, whose fitting reports the numbers of finished and of all."""
    with contextlib.ExitStack() as stack:
        state: list[tuple[Advance, int]] = []

        def report(done: int, total: int) -> None:
            advance, before = state.pop() if state else (stack.enter_context(bar("SVMs", total)), 0)
            advance(done - before)
            state.append((advance, done))

        yield report


@dataclass(frozen=True, kw_only=True)
class SVM(SVMConfig, Protocol):
    """Evaluate by one linear SVM per class on all training images, as published for VOC2007: mean average precision."""

    difficult: Difficult = "negative"
    """Training images whose objects are marked difficult: a negative, as published, or ignored."""

    name: ClassVar[str] = "svm"
    examples: ClassVar[tuple[str, ...]] = (
        "runs/first --data VOCdevkit/VOC2007",
        "runs/first --data imagenette/ --stage res4",
    )
    first_options: ClassVar[str] = "data stage resize size device out"
    run_order: ClassVar[float] = 2
    multi_label: ClassVar[bool] = True

    def evaluate(self, context: EvalContext) -> Iterator[tuple[str, float]]:
        train, test, features = self.labeled(context)
        with progress() as report:
            result = evaluate_svm(
                train, test, classes=context.splits.classes, fit=self.fit, difficult=self.difficult, report=report
            )
        context.description = f"{result.description}; features {features}."
        context.details |= {"classes": result.classes, "AP": result.per_class, "C": result.costs}
        context.notes += result.notes
        yield "mAP", 100 * result.mean_ap
        if result.top1 is not None:
            yield "top-1", 100 * result.top1


@dataclass(frozen=True)
class SVMResult:
    """Metrics of SVMs on the whole training set, from 0 to 1."""

    mean_ap: float
    top1: float | None
    """Share of test images whose own class has the highest score, if every image has exactly one class."""
    classes: tuple[str, ...]
    per_class: tuple[float | None, ...]
    """The average precision of each class; None where it was left out."""
    costs: tuple[float | None, ...]
    """The chosen C of each class."""
    cross_validated: tuple[float | None, ...]
    """The average precision under cross-validation at that C; None where there was none."""
    description: str
    notes: tuple[str, ...]
    """Sentences about what was left out or done differently."""


def evaluate_svm(
    train: MultiLabelFeatures,
    test: MultiLabelFeatures,
    *,
    classes: Sequence[str] | None = None,
    fit: FitConfig | None = None,
    difficult: Difficult = "negative",
    report: ProgressCallback | None = None,
) -> SVMResult:
    """Train on all of `train`, with the cost of each class by cross-validation, and evaluate on `test`.

    Args:
        train: features [N, D] and label sets [N, classes].
        test: features and label sets of the test images.
        classes: the names of the classes; numbers by default.
        fit: settings of training and evaluation; as published by default.
        difficult: the label of images with difficult objects in training.
        report: a callback that gets the number of finished SVMs, and of all.
    """
    fit = fit or FitConfig()
    names = check_sets(train, test, classes)
    labels = train.labels.cpu()
    counted = torch.ones_like(labels, dtype=torch.bool) if difficult == "negative" else labels != -1
    columns, notes = usable_classes(labels == 1, counted, test.labels.cpu() == 1, names)
    solver = make_solver(
        train.features, test.features, fit, ProgressCounter(report, len(fit.costs) * len(columns) * (1 + fit.folds))
    )
    scored = solver.run((labels == 1)[:, columns], counted[:, columns])
    chosen = best_cost(scored.cross_validated, fit)
    scores = scored.test_scores[chosen, :, torch.arange(len(columns))].T
    truth = test.labels.to(scores.device)[:, columns]
    precision = mean_average_precision(scores, truth == 1, truth == -1, interpolation=fit.interpolation)
    folds = scored.folds
    for index, column in enumerate(columns):
        if folds[index] < fit.folds:
            notes.append(few_positives(names[column], int(folds[index]), fit))
    validated = scored.cross_validated[chosen, torch.arange(len(columns))].tolist()
    return SVMResult(
        mean_ap=precision.value,
        top1=top1(scores, test.labels.to(scores.device), columns),
        classes=names,
        per_class=scatter_to_classes(precision.per_class, columns, len(names)),
        costs=scatter_to_classes([fit.costs[index] for index in chosen.tolist()], columns, len(names)),
        cross_validated=scatter_to_classes(
            [None if math.isnan(value) else value for value in validated], columns, len(names)
        ),
        description=describe(fit, difficult, len(columns), len(train.features), len(test.features)),
        notes=(*notes, *solver.notes()),
    )


def describe(fit: FitConfig, difficult: Difficult, classes: int, train: int, test: int) -> str:
    """The protocol in one sentence."""
    return (
        f"{fit.description()}; C of each class from {len(fit.costs)} values by {fit.folds}-fold cross-validated "
        f"AP; difficult objects {difficult} in training and ignored in testing; mean over {classes} classes "
        f"of {fit.interpolation} AP; {train} images to train and {test} to test"
    )


def check_sets(train: MultiLabelFeatures, test: MultiLabelFeatures, classes: Sequence[str] | None) -> tuple[str, ...]:
    """The names of the classes; raise if features and labels do not fit together."""
    for name, (features, labels) in (("training", train), ("test", test)):
        if features.ndim != 2 or not features.numel():
            raise ValueError(
                f"the {name} features must be [N, D] with at least one of each, got {list(features.shape)}"
            )
        if labels.ndim != 2 or len(labels) != len(features):
            raise ValueError(
                f"the {name} labels must be [{len(features)}, classes], a row for each row of features, "
                f"got {list(labels.shape)}"
            )
        if not bool(((labels == 1) | (labels == 0) | (labels == -1)).all()):
            raise ValueError(
                f"the {name} labels must be 1 (present), 0 (absent) or -1 (difficult), as a source's label_sets are"
            )
        if 2 * int((labels == -1).sum()) > labels.numel():
            raise ValueError(
                f"most of the {name} labels are -1, which means difficult: absent is 0, as in a source's label_sets"
            )
        if not bool(features.isfinite().all()):
            raise ValueError(
                f"the {name} features contain NaN or infinity: look for an encoder that overflows in half precision"
            )
    if train.features.shape[1] != test.features.shape[1] or train.labels.shape[1] != test.labels.shape[1]:
        raise ValueError(
            f"training and test do not fit: {train.features.shape[1]} and {test.features.shape[1]} features, "
            f"{train.labels.shape[1]} and {test.labels.shape[1]} classes; take both from one encoder and one dataset"
        )
    names = tuple(classes) if classes is not None else tuple(str(index) for index in range(train.labels.shape[1]))
    if len(names) != train.labels.shape[1]:
        raise ValueError(f"there are {len(names)} names for {train.labels.shape[1]} classes: pass one name per class")
    return names


def usable_classes(
    positive: Tensor, counted: Tensor, in_test: Tensor, names: Sequence[str]
) -> tuple[list[int], list[str]]:
    """The classes that can be trained and evaluated, and sentences about the others."""
    lacking = {
        "no positive in training": ~(positive & counted).any(0),
        "no negative in training": ~(~positive & counted).any(0),
        "no positive in testing": ~in_test.any(0),
    }
    notes = [
        f"left out of the mean, {reason}: {', '.join(names[index] for index in missing.nonzero().flatten().tolist())}"
        for reason, missing in lacking.items()
        if bool(missing.any())
    ]
    out = torch.stack(list(lacking.values())).any(0)
    columns = (~out).nonzero().flatten().tolist()
    if not columns:
        raise ValueError(
            "no class has positives and negatives in training and positives in testing "
            f"({'; '.join(notes)}): check the labels"
        )
    return columns, notes


def few_positives(name: str, folds: int, fit: FitConfig) -> str:
    """A sentence about a class with fewer positives or negatives than folds."""
    if folds < 2:
        return f"{name} has too few images to cross-validate: C = {fit.fallback_cost:g}"
    return f"{name} has too few images for {fit.folds} folds: C by {folds}-fold cross-validation"


def scatter_to_classes(values: Sequence[T], columns: Sequence[int], count: int) -> tuple[T | None, ...]:
    """Values of the kept classes among all, None for the others."""
    by_class = dict(zip(columns, values, strict=True))
    return tuple(by_class.get(index) for index in range(count))


def single_label(labels: Tensor) -> bool:
    """Return True if every image has exactly one class and nothing is difficult."""
    return bool(((labels == 1).sum(1) == 1).all()) and not bool((labels == -1).any())


def top1(scores: Tensor, labels: Tensor, columns: Sequence[int]) -> float | None:
    """Share of images whose class [N, classes] has the highest of scores [N, kept]; None for label sets."""
    if not single_label(labels):
        return None
    guess = torch.tensor(columns, device=scores.device)[scores.argmax(1)]
    return float((guess == labels.argmax(1)).cpu().double().mean())
