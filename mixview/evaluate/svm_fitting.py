"""SVMs of many problems, at every cost, with cross-validation; the protocols of `svm` and `low_shot` use it.

A problem is a class, or a class of one sample: which images are positive, and which count. It is trained on all that
count and again without each fold, at every cost; the folds give its average precision under cross-validation.

Two backends fit the same objective. `batched` solves all problems, folds and costs together
(`mixview.evaluate.svm_solver`), on the device of the features; `liblinear` is scikit-learn's `LinearSVC`, one fit
after the other on all cores, as published.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mixview.evaluate.average_precision import Interpolation, average_precision
from mixview.evaluate.svm_solver import TOLERANCE, Basis, principal_basis, solve_path
from mixview.options import AtLeast, Positive, check_options

Backend = Literal["batched", "liblinear"]
Normalization = Literal["l2", "none"]
ProgressCallback = Callable[[int, int], object]
"""Called with the numbers of finished and of all SVMs."""

COSTS = (1.0, 10.0, 100.0, *(0.5**power for power in range(4, 20)))
"""The published costs, in their order."""

LIBLINEAR_TOLERANCE = 1e-4
"""The published one."""

MAX_ELEMENTS = 2**25
"""The most images × problems at once: a quarter of a gigabyte for each of the solver's ten or so matrices."""


@dataclass(frozen=True)
class FitConfig:
    """Settings of the SVMs and of their evaluation; the defaults are the published ones."""

    costs: tuple[Positive, ...] = COSTS
    """Candidates for C; the first of equally good ones is chosen."""
    folds: Annotated[int, AtLeast(2)] = 3
    """Folds of the cross-validation that chooses C."""
    positive_weight: Positive = 2.0
    """Weight of a positive example relative to a negative one."""
    normalization: Normalization = "l2"
    """l2: features divided by their norm + 1e-5; none: features as they are."""
    intercept: float = 1.0
    """The constant feature whose weight is the intercept, regularized like every other; 0 for none."""
    interpolation: Interpolation = "all-points"
    """Definition of average precision on the test set. (Cross-validation uses the plain one, as published.)"""
    fallback_cost: Positive = 1.0
    """C for classes with too few positives to cross-validate."""
    backend: Backend = "batched"
    """Solver: batched, or liblinear, the reference."""
    tolerance: float | None = None
    """Convergence criterion: relative duality gap for batched (default 1e-12), tol for liblinear (1e-4)."""
    liblinear_dual: bool = True
    """true: coordinate descent on the dual, as published; false: Newton on the primal, faster for large costs."""
    liblinear_iterations: int = 2000
    """Maximum number of iterations of liblinear; the result says how often it was reached."""
    jobs: int = -1
    """Processes of liblinear; -1 for one per core."""

    def __post_init__(self) -> None:
        check_options(self, "fit")
        if len(set(self.costs)) < max(1, len(self.costs)):
            raise ValueError(f"--fit.costs must be one or more different numbers, got {list(self.costs)}")

    def description(self) -> str:
        """A description of the fit in one sentence."""
        features = "L2-normalized features" if self.normalization == "l2" else "features as they are"
        if self.backend == "batched":
            how = f"solved together to a relative duality gap of {self.tolerance or TOLERANCE:g}"
        else:
            space = "dual" if self.liblinear_dual else "primal"
            how = (
                f"by LIBLINEAR, {space}, tolerance {self.tolerance or LIBLINEAR_TOLERANCE:g}, "
                f"at most {self.liblinear_iterations} iterations"
            )
        intercept = "intercept regularized" if self.intercept else "no intercept"
        return (
            f"one linear SVM per class (squared hinge, L2, {intercept}) on {features}, "
            f"positives weighted {self.positive_weight:g}, {how}"
        )


def best_cost(validated: Tensor, fit: FitConfig) -> Tensor:
    """The first of the best costs, as an index into `fit.costs`: [costs, P] -> [P]; the fallback where all are NaN."""
    chosen = validated.nan_to_num(-1).cpu().argmax(0)
    nowhere = validated.isnan().all(0).cpu()
    if bool(nowhere.any()):
        if fit.fallback_cost not in fit.costs:
            raise ValueError(
                f"there are too few positives to cross-validate, and the fallback_cost {fit.fallback_cost:g} is not "
                f"one of the costs: choose one of {', '.join(f'{cost:g}' for cost in fit.costs)}"
            )
        chosen[nowhere] = fit.costs.index(fit.fallback_cost)
    return chosen


def stratified_folds(positive: Tensor, counted: Tensor, folds: int) -> Tensor:
    """The images that each fold holds out, [N, P, folds] bool: scikit-learn's stratified folds.

    Where there are fewer positives or negatives than `folds`, there are fewer folds; with only one, there are none.
    """
    from sklearn.model_selection import StratifiedKFold  # takes a second to import

    held = torch.zeros(*positive.shape, folds, dtype=torch.bool)
    for column in range(positive.shape[1]):
        rows = counted[:, column].nonzero().flatten()
        signs = positive[rows, column].numpy()
        possible = min(folds, int(signs.sum()), int((~signs).sum()))
        if possible >= 2:
            for fold, (_, out) in enumerate(StratifiedKFold(possible).split(signs, signs)):
                held[rows[torch.from_numpy(out)], column, fold] = True
    return held


class Scores(NamedTuple):
    """Scores of P problems at every cost, in the order of `FitConfig.costs`."""

    cross_validated: Tensor
    """[costs, P] plain average precision, the mean over the folds; NaN without any."""
    test_scores: Tensor
    """[costs, M, P]"""
    folds: Tensor
    """[P] the number of folds."""
    objective: Tensor
    """[costs, P, 1 + folds] the training objective: on everything, and without each fold."""


class FittedSVMs(NamedTuple):
    """K problems at one cost."""

    cost: float
    scores: Tensor
    """[N, K]"""
    test_scores: Tensor
    """[M, tested]"""
    objective: Tensor
    """[K]"""


class ProgressCounter:
    """The numbers of finished and of all SVMs."""

    def __init__(self, report: ProgressCallback | None, total: int) -> None:
        self.report = report
        self.total = total
        self.done = 0

    def add(self, count: int) -> None:
        self.done += count
        if self.report is not None:
            self.report(self.done, self.total)


class LinearSVMs(ABC):
    """Fits problems on one training set and scores one test set; backends differ in `fit_all` only."""

    def __init__(self, train: Tensor, test: Tensor, fit: FitConfig, counter: ProgressCounter) -> None:
        self.train = train
        self.test = test
        self.fit = fit
        self.counter = counter

    def run(self, positive: Tensor, counted: Tensor) -> Scores:
        """Fit P problems at every cost, on everything that counts and without each fold. positive, counted: [N, P]"""
        at_once = max(1, MAX_ELEMENTS // (len(positive) * (1 + self.fit.folds)))
        blocks = [
            self.run_block(*block) for block in zip(positive.split(at_once, 1), counted.split(at_once, 1), strict=True)
        ]
        return Scores(
            torch.cat([block.cross_validated for block in blocks], dim=1),
            torch.cat([block.test_scores for block in blocks], dim=2),
            torch.cat([block.folds for block in blocks]),
            torch.cat([block.objective for block in blocks], dim=1),
        )

    def run_block(self, positive: Tensor, counted: Tensor) -> Scores:
        n, count = positive.shape
        folds = self.fit.folds
        held = stratified_folds(positive, counted, folds)
        used = held.any(0)
        # Everything first, then what a fold leaves of it; a fold that there is not has no weight at all.
        seen = torch.cat([counted, (counted.unsqueeze(2) & ~held & used).flatten(1)], dim=1)
        signs = torch.cat([positive, positive.unsqueeze(2).expand_as(held).flatten(1)], dim=1).double().mul_(2).sub_(1)
        weights = seen * torch.where(signs > 0, self.fit.positive_weight, 1.0)
        device = self.train.device
        relevant, ignored = positive.to(device).unsqueeze(2), ~held.to(device)
        order = {cost: index for index, cost in enumerate(self.fit.costs)}
        validated = self.train.new_zeros(len(order), count)
        test_scores = self.train.new_zeros(len(order), len(self.test), count)
        objective = self.train.new_zeros(len(order), count, 1 + folds)
        for fitted in self.fit_all(signs.to(device), weights.to(device), count):
            index = order[fitted.cost]
            out = fitted.scores[:, count:].view(n, count, folds)
            validated[index] = average_precision(out, relevant, ignored, interpolation="plain").nanmean(1)
            test_scores[index] = fitted.test_scores
            objective[index, :, 0] = fitted.objective[:count]
            objective[index, :, 1:] = fitted.objective[count:].view(count, folds)
        return Scores(validated, test_scores, used.sum(1), objective)

    @abstractmethod
    def fit_all(self, signs: Tensor, weights: Tensor, tested: int) -> Iterator[FittedSVMs]:
        """Solve the problems [N, K] at every cost, in any order; the first `tested` score the test set."""

    def notes(self) -> list[str]:
        """Sentences about the fits, such as a missed tolerance."""
        return []


class Batched(LinearSVMs):
    """All problems together, by `solve_path`."""

    def __init__(self, train: Tensor, test: Tensor, fit: FitConfig, counter: ProgressCounter) -> None:
        super().__init__(train, test, fit, counter)
        self.all_coordinates: tuple[Basis, Tensor] | None = None

    def coordinates(self, rows: Tensor) -> tuple[Basis, Tensor]:
        """A basis of the images in these rows, and the test images in it; of all images it is made once."""
        if len(rows) == len(self.train) and self.all_coordinates is not None:
            return self.all_coordinates
        basis = principal_basis(self.train[rows], self.fit.intercept)
        coordinates = basis, basis.project(self.test)
        if len(rows) == len(self.train):
            self.all_coordinates = coordinates
        return coordinates

    def fit_all(self, signs: Tensor, weights: Tensor, tested: int) -> Iterator[FittedSVMs]:
        rows = (weights > 0).any(1).nonzero().flatten()
        if 2 * len(rows) > len(self.train):
            rows = torch.arange(len(self.train), device=rows.device)
        basis, test = self.coordinates(rows)
        tolerance = self.fit.tolerance or TOLERANCE
        for solved in solve_path(basis, signs[rows], weights[rows], sorted(self.fit.costs), tolerance=tolerance):
            scores = torch.zeros_like(signs).index_copy_(0, rows, solved.scores)
            self.counter.add(signs.shape[1])
            yield FittedSVMs(solved.cost, scores, test @ solved.coefficients[:, :tested], solved.objective)


class Liblinear(LinearSVMs):
    """One problem after the other, by scikit-learn's `LinearSVC`, several processes at once."""

    def __init__(self, train: Tensor, test: Tensor, fit: FitConfig, counter: ProgressCounter) -> None:
        super().__init__(train, test, fit, counter)
        self.unconverged = 0

    def fit_all(self, signs: Tensor, weights: Tensor, tested: int) -> Iterator[FittedSVMs]:
        from joblib import Parallel, delayed

        costs = sorted(self.fit.costs)
        train, test = self.train.cpu().numpy(), self.test.cpu().numpy()
        y, s = signs.cpu().numpy(), weights.cpu().numpy()
        tasks = (delayed(liblinear_path)(train, test, y[:, k], s[:, k], costs, self.fit) for k in range(y.shape[1]))
        columns = []
        for column in Parallel(n_jobs=self.fit.jobs, return_as="generator")(tasks):
            columns.append(column)
            self.unconverged += sum(one.unconverged for one in column)
            self.counter.add(len(costs))
        for cost, solved in zip(costs, zip(*columns, strict=True), strict=True):
            yield FittedSVMs(
                cost,
                torch.from_numpy(np.stack([one.scores for one in solved], axis=1)).to(self.train),
                torch.from_numpy(np.stack([one.test_scores for one in solved[:tested]], axis=1)).to(self.train),
                torch.tensor([one.objective for one in solved], dtype=torch.float64).to(self.train),
            )

    def notes(self) -> list[str]:
        if not self.unconverged:
            return []
        return [
            f"{self.unconverged} of {self.counter.done} fits of LIBLINEAR stopped at {self.fit.liblinear_iterations} "
            "iterations, short of their tolerance"
        ]


class LiblinearFit(NamedTuple):
    """One problem at one cost."""

    scores: npt.NDArray[np.float64]
    test_scores: npt.NDArray[np.float64]
    objective: float
    unconverged: bool
    """True if it stopped before it had converged."""


def liblinear_path(
    train: npt.NDArray[np.float64],
    test: npt.NDArray[np.float64],
    signs: npt.NDArray[np.float64],
    weights: npt.NDArray[np.float64],
    costs: Sequence[float],
    fit: FitConfig,
) -> list[LiblinearFit]:
    """One problem at every cost: as `LinearSVC(class_weight={1: 2, -1: 1})`, with a weight per image."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.svm import LinearSVC

    rows = weights > 0
    if not rows.any():
        return [LiblinearFit(np.zeros(len(train)), np.zeros(len(test)), 0.0, False) for _ in costs]
    columns = []
    features, targets, counts = train[rows], signs[rows], weights[rows]
    for cost in costs:
        model = LinearSVC(
            C=cost,
            loss="squared_hinge",
            penalty="l2",
            dual=fit.liblinear_dual,
            tol=fit.tolerance or LIBLINEAR_TOLERANCE,
            max_iter=fit.liblinear_iterations,
            fit_intercept=fit.intercept != 0,
            intercept_scaling=fit.intercept or 1.0,
            random_state=0,
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            model.fit(features, targets, sample_weight=counts)
        unconverged = any(issubclass(warning.category, ConvergenceWarning) for warning in caught)
        scores = model.decision_function(train)
        constant = float(np.ravel(model.intercept_)[0]) / (fit.intercept or 1.0)
        loss = np.maximum(0, 1 - targets * scores[rows])
        objective = (model.coef_[0] @ model.coef_[0] + constant**2) / 2 + cost * (counts * loss) @ loss
        columns.append(LiblinearFit(scores, model.decision_function(test), float(objective), unconverged))
    return columns


def make_solver(train: Tensor, test: Tensor, fit: FitConfig, counter: ProgressCounter) -> LinearSVMs:
    """The solver of the chosen backend. Features [N, D] and [M, D], normalized here, on the device of the former."""
    prepared = [features.to(train.device, torch.float64) for features in (train, test)]
    if fit.normalization == "l2":
        prepared = [features / (features.norm(dim=1, keepdim=True) + 1e-5) for features in prepared]
    backend = Batched if fit.backend == "batched" else Liblinear
    return backend(prepared[0], prepared[1], fit, counter)
