"""Low-shot linear SVMs: k positives a class, as VISSL and OpenSelfSup do it on VOC2007.

    result = evaluate_low_shot(train, test, classes=source.classes)
    for row in result.shots:
        print(row.k, row.oracle.mean, row.oracle.std, row.cross_validated.mean)

For each class k of its positives and (classes - 1) · k of its negatives, or as many as there are, drawn at random,
several times; difficult ones are never drawn. Where every image has exactly one class, k images of each class are
drawn and serve all classes, as published for Places. The published code fails when a class has fewer than k
positives: here all of them are drawn, and the result names the class.

Two ways to choose the cost stand side by side. `oracle`, as published, takes one cost for all classes and samples,
the best *on the test set*. `cross_validated` takes one cost for all classes of a sample, the best by cross-validation
within what was drawn; with one positive a class there is nothing to hold out, and it takes `fallback_cost`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from mixview.evaluate.average_precision import average_precision
from mixview.evaluate.svm import Labelled, check_sets, single_label, usable
from mixview.evaluate.svm_fitting import Counter, Fit, Report, best_cost, start

SHOTS = (1, 2, 4, 8, 16, 32, 64, 96)


@dataclass(frozen=True)
class LowShotSettings:
    """A few images a class."""

    fit: Fit = field(default_factory=Fit)
    shots: tuple[int, ...] = SHOTS
    """k, how many positives a class."""
    samples: int = 3
    """How often to draw."""
    negatives: int | None = None
    """How many for each positive; by default as many as there are other classes, 19 for VOC. (Where every image has one
    class, what is drawn for the other classes.)"""
    seed: int = 0

    def __post_init__(self) -> None:
        numbers = (*self.shots, self.samples, 1 if self.negatives is None else self.negatives)
        if not self.shots or min(numbers) < 1:
            raise ValueError(
                f"shots, samples and negatives must be at least 1, got {list(self.shots)}, {self.samples} and "
                f"{self.negatives}"
            )


@dataclass(frozen=True)
class Spread:
    """One figure for each sample."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def std(self) -> float:
        """Of the samples themselves (divided by their number), as published."""
        return float(np.std(self.values))


@dataclass(frozen=True)
class Shots:
    """What the SVMs of k positives a class reach: mean average precision, 0 to 1."""

    k: int
    oracle: Spread
    oracle_cost: float
    """The C that is best on the test set, on average over the samples."""
    cross_validated: Spread
    costs: tuple[float, ...]
    """The C that cross-validation chose, for each sample."""
    short: tuple[str, ...]
    """Classes that have fewer than k positives; all of them were drawn."""


@dataclass(frozen=True)
class LowShotResult:
    """One row a number of shots."""

    shots: tuple[Shots, ...]
    classes: tuple[str, ...]
    protocol: str
    notes: tuple[str, ...]

    def metrics(self) -> dict[str, float]:
        """Names and values, for tables: means over the samples."""
        found = {}
        for row in self.shots:
            found[f"mAP k={row.k} oracle"] = row.oracle.mean
            found[f"mAP k={row.k} cross-validated"] = row.cross_validated.mean
        return found


def evaluate_low_shot(
    train: Labelled,
    test: Labelled,
    *,
    classes: Sequence[str] | None = None,
    settings: LowShotSettings | None = None,
    report: Report | None = None,
) -> LowShotResult:
    """Train on k positives a class, for every k several times, and judge on all of `test`: see `evaluate_svm`."""
    settings = settings or LowShotSettings()
    fit = settings.fit
    names = check_sets(train, test, classes)
    labels = train.labels.cpu()
    positive = labels == 1
    kept, notes = usable(positive, labels != 0, test.labels.cpu() == 1, names)
    count = settings.samples * len(kept) * (1 + fit.folds)
    machine = start(train.features, test.features, fit, Counter(report, len(settings.shots) * len(fit.costs) * count))
    truth = test.labels.to(train.features.device)[:, kept].unsqueeze(1)
    rows = []
    for k in settings.shots:
        drawn = torch.cat([draw(labels, k, settings, sample)[:, kept] for sample in range(settings.samples)], dim=1)
        outcome = machine.run(positive[:, kept].repeat(1, settings.samples), drawn)
        shape = settings.samples, len(kept)
        on_test = torch.stack(
            [
                average_precision(
                    scores.unflatten(1, shape), truth == 1, truth == 0, interpolation=fit.interpolation
                ).mean(1)
                for scores in outcome.test_scores
            ]
        ).cpu()
        validated = outcome.cross_validated.unflatten(1, shape).nanmean(2).cpu()
        chosen, oracle = best_cost(validated, fit), int(on_test.mean(1).argmax())
        rows.append(
            Shots(
                k=k,
                oracle=Spread(tuple(on_test[oracle].tolist())),
                oracle_cost=fit.costs[oracle],
                cross_validated=Spread(tuple(on_test[chosen, torch.arange(settings.samples)].tolist())),
                costs=tuple(fit.costs[index] for index in chosen.tolist()),
                short=tuple(names[column] for column in kept if int(positive[:, column].sum()) < k),
            )
        )
        if bool(validated.isnan().all()):
            notes.append(f"k = {k} leaves nothing to hold out: C = {fit.fallback_cost:g} instead of cross-validation")
        if short := rows[-1].short:
            notes.append(f"fewer than {k} positives, all of which were drawn: {', '.join(short)}")
    return LowShotResult(
        tuple(rows), names, in_words(settings, labels, len(kept), len(test.features)), (*notes, *machine.notes())
    )


def in_words(settings: LowShotSettings, labels: Tensor, classes: int, count: int) -> str:
    """The protocol in a sentence."""
    fit = settings.fit
    negatives = "k images of every other class" if single_label(labels) else f"{ratio(settings, labels)} k negatives"
    return (
        f"{fit.in_words()}; k positives and {negatives} a class (as many as there are), {settings.samples} samples of "
        f"seed {settings.seed}, mean ± standard deviation; oracle: one C of {len(fit.costs)} by test mAP; "
        f"cross-validated: one C a sample by {fit.folds}-fold cross-validated AP; difficult objects ignored; "
        f"mean over {classes} classes of {fit.interpolation} AP on {count} images"
    )


def ratio(settings: LowShotSettings, labels: Tensor) -> int:
    """Negatives for each positive."""
    return settings.negatives or max(1, labels.shape[1] - 1)


def draw(labels: Tensor, k: int, settings: LowShotSettings, sample: int) -> Tensor:
    """Which images are drawn for which class, [N, classes] bool, from (seed, sample, k) alone."""
    generator = np.random.default_rng([settings.seed, sample, k])

    def some(among: Tensor, count: int) -> Tensor:
        found = among.nonzero().flatten().numpy()
        return torch.from_numpy(generator.choice(found, min(count, len(found)), replace=False))

    drawn = torch.zeros_like(labels, dtype=torch.bool)
    if single_label(labels):
        for column in labels.T:
            drawn[some(column == 1, k)] = True
        return drawn
    for index, column in enumerate(labels.T):
        drawn[some(column == 1, k), index] = True
        drawn[some(column == -1, ratio(settings, labels) * k), index] = True
    return drawn
