"""Low-shot linear SVMs: k positives per class, as VISSL and OpenSelfSup do it on VOC2007.

    result = evaluate_low_shot(train, test, classes=source.classes)
    for row in result.shots:
        print(row.k, row.oracle.mean, row.oracle.std, row.cross_validated.mean)

For each class, k of its positives and (classes - 1) · k of its negatives, or as many as there are, are drawn at random,
several times; difficult ones are never drawn. If every image has exactly one class, k images of each class are drawn
and serve all classes, as published for Places. The published code fails when a class has fewer than k positives: here
all of them are drawn, and the result names the class.

Two ways to choose the cost stand side by side. `oracle`, as published, takes one cost for all classes and samples,
the best *on the test set*. `cross_validated` takes one cost for all classes of a sample, the best by cross-validation
within what was drawn; with one positive per class there is nothing to hold out, and it takes `fallback_cost`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from mixview.evaluate.average_precision import average_precision
from mixview.evaluate.base import EvalContext, Protocol
from mixview.evaluate.svm import MultiLabelFeatures, SVMConfig, check_sets, progress, single_label, usable_classes
from mixview.evaluate.svm_fitting import FitConfig, ProgressCallback, ProgressCounter, best_cost, make_solver
from mixview.options import Count

SHOTS = (1, 2, 4, 8, 16, 32, 64, 96)


@dataclass(frozen=True, kw_only=True)
class LowShot(SVMConfig, Protocol):
    """Evaluate by linear SVMs on 1, 2, 4 … 96 images per class: mean average precision, mean ± std over samples."""

    shots: list[Count] = field(default_factory=lambda: list(SHOTS))
    """Values of k, the number of positives per class; a class with fewer uses all of them."""
    samples: Count = 3
    """Number of random draws; the paper's table of α has 5."""
    negatives: Count | None = None
    """Negatives per positive; by default as many as there are other classes, 19 for VOC."""

    name: ClassVar[str] = "low-shot"
    examples: ClassVar[tuple[str, ...]] = (
        "runs/first --data VOCdevkit/VOC2007",
        'runs/first --data imagenette/ --shots "[1, 8]"',
    )
    first_options: ClassVar[str] = "data shots samples size device out"
    run_order: ClassVar[float] = 3
    multi_label: ClassVar[bool] = True

    def evaluate(self, context: EvalContext) -> Iterator[tuple[str, float]]:
        train, test, features = self.labeled(context)
        with progress() as report:
            result = evaluate_low_shot(
                train,
                test,
                classes=context.splits.classes,
                fit=self.fit,
                sampling=Sampling(tuple(self.shots), self.samples, self.negatives, self.seed),
                report=report,
            )
        context.description = f"mAP; {result.description}; features {features}."
        context.details["C"] = {
            row.k: {"oracle": row.oracle_cost, "cross-validated": row.costs} for row in result.shots
        }
        context.notes += result.notes
        for row in result.shots:
            for choice, values in (("oracle", row.oracle), ("cross-validated", row.cross_validated)):
                context.std[f"k={row.k} {choice}"] = 100 * values.std
                yield f"k={row.k} {choice}", 100 * values.mean


@dataclass(frozen=True)
class Sampling:
    """The random draws of training images."""

    shots: tuple[int, ...] = SHOTS
    """Values of k, the number of positives per class."""
    samples: int = 3
    """Number of random draws."""
    negatives: int | None = None
    """Negatives per positive; by default as many as there are other classes, 19 for VOC. (If every image has one class,
    the images that are drawn for the other classes.)"""
    seed: int = 0

    def __post_init__(self) -> None:
        numbers = (*self.shots, self.samples, 1 if self.negatives is None else self.negatives)
        if not self.shots or min(numbers) < 1:
            raise ValueError(
                f"shots, samples and negatives must be at least 1, got {list(self.shots)}, {self.samples} and "
                f"{self.negatives}"
            )


@dataclass(frozen=True)
class SampleValues:
    """One value per sample."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def std(self) -> float:
        """Population standard deviation (divided by n), as published."""
        return float(np.std(self.values))


@dataclass(frozen=True)
class Shots:
    """Mean average precision, 0 to 1, of SVMs with k positives per class."""

    k: int
    oracle: SampleValues
    oracle_cost: float
    """The C that is best on the test set, on average over the samples."""
    cross_validated: SampleValues
    costs: tuple[float, ...]
    """The C that cross-validation chose, for each sample."""
    short: tuple[str, ...]
    """Classes that have fewer than k positives; all of them were drawn."""


@dataclass(frozen=True)
class LowShotResult:
    """One row per value of k."""

    shots: tuple[Shots, ...]
    classes: tuple[str, ...]
    description: str
    notes: tuple[str, ...]


def evaluate_low_shot(
    train: MultiLabelFeatures,
    test: MultiLabelFeatures,
    *,
    classes: Sequence[str] | None = None,
    fit: FitConfig | None = None,
    sampling: Sampling | None = None,
    report: ProgressCallback | None = None,
) -> LowShotResult:
    """Train on k positives per class, several times for every k, and evaluate on all of `test`: see `evaluate_svm`."""
    fit, sampling = fit or FitConfig(), sampling or Sampling()
    names = check_sets(train, test, classes)
    labels = train.labels.cpu()
    positive = labels == 1
    columns, notes = usable_classes(positive, labels != -1, test.labels.cpu() == 1, names)
    count = sampling.samples * len(columns) * (1 + fit.folds)
    solver = make_solver(
        train.features, test.features, fit, ProgressCounter(report, len(sampling.shots) * len(fit.costs) * count)
    )
    truth = test.labels.to(train.features.device)[:, columns].unsqueeze(1)
    rows = []
    for k in sampling.shots:
        drawn = torch.cat([draw(labels, k, sampling, sample)[:, columns] for sample in range(sampling.samples)], dim=1)
        scored = solver.run(positive[:, columns].repeat(1, sampling.samples), drawn)
        shape = sampling.samples, len(columns)
        on_test = torch.stack(
            [
                average_precision(
                    scores.unflatten(1, shape), truth == 1, truth == -1, interpolation=fit.interpolation
                ).mean(1)
                for scores in scored.test_scores
            ]
        ).cpu()
        validated = scored.cross_validated.unflatten(1, shape).nanmean(2).cpu()
        chosen, oracle = best_cost(validated, fit), int(on_test.mean(1).argmax())
        rows.append(
            Shots(
                k=k,
                oracle=SampleValues(tuple(on_test[oracle].tolist())),
                oracle_cost=fit.costs[oracle],
                cross_validated=SampleValues(tuple(on_test[chosen, torch.arange(sampling.samples)].tolist())),
                costs=tuple(fit.costs[index] for index in chosen.tolist()),
                short=tuple(names[column] for column in columns if int(positive[:, column].sum()) < k),
            )
        )
        if bool(validated.isnan().all()):
            notes.append(f"k = {k} leaves nothing to hold out: C = {fit.fallback_cost:g} instead of cross-validation")
        if short := rows[-1].short:
            notes.append(f"fewer than {k} positives, all of which were drawn: {', '.join(short)}")
    return LowShotResult(
        tuple(rows), names, describe(fit, sampling, labels, len(columns), len(test.features)), (*notes, *solver.notes())
    )


def describe(fit: FitConfig, sampling: Sampling, labels: Tensor, classes: int, count: int) -> str:
    """The protocol in one sentence."""
    negatives = "k images of every other class" if single_label(labels) else f"{ratio(sampling, labels)} k negatives"
    return (
        f"{fit.description()}; k positives and {negatives} per class (as many as there are), "
        f"{sampling.samples} samples of seed {sampling.seed}, mean ± std; oracle: one C of {len(fit.costs)} by test "
        f"mAP; cross-validated: one C per sample by {fit.folds}-fold cross-validated AP; difficult objects ignored; "
        f"mean over {classes} classes of {fit.interpolation} AP on {count} images"
    )


def ratio(sampling: Sampling, labels: Tensor) -> int:
    """Negatives per positive."""
    return sampling.negatives or max(1, labels.shape[1] - 1)


def draw(labels: Tensor, k: int, sampling: Sampling, sample: int) -> Tensor:
    """The images that are drawn for each class, [N, classes] bool, a function of (seed, sample, k) alone."""
    generator = np.random.default_rng([sampling.seed, sample, k])

    def some(among: Tensor, count: int) -> Tensor:
        candidates = among.nonzero().flatten().numpy()
        return torch.from_numpy(generator.choice(candidates, min(count, len(candidates)), replace=False))

    drawn = torch.zeros_like(labels, dtype=torch.bool)
    if single_label(labels):
        for column in labels.T:
            drawn[some(column == 1, k)] = True
        return drawn
    for index, column in enumerate(labels.T):
        drawn[some(column == 1, k), index] = True
        drawn[some(column == 0, ratio(sampling, labels) * k), index] = True
    return drawn
