import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score
from sklearn.model_selection import cross_val_score
from sklearn.svm import LinearSVC
from torch import Tensor

from mixview.evaluate.average_precision import average_precision
from mixview.evaluate.svm import SVM, MultiLabelFeatures, evaluate_svm
from mixview.evaluate.svm_fitting import COSTS, FitConfig, ProgressCounter, make_solver, stratified_folds

FEW = (1.0, 10.0, 0.0625, 0.001)
NAMES = ("cat", "dog", "cow")


def draw(seed: int, count: int, classes: int = 3, width: int = 12, difficult: float = 0.1) -> MultiLabelFeatures:
    """Features that say something about the labels, and labels some of which are difficult."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, width, generator=generator) + 1
    scores = features[:, :classes] + 0.8 * torch.randn(count, classes, generator=generator)
    labels = torch.where(scores > 1.8, 1, 0)
    labels[torch.rand(count, classes, generator=generator) < difficult] = -1
    return MultiLabelFeatures(features, labels.to(torch.int8))


def few_costs(**changes: Any) -> FitConfig:
    return FitConfig(costs=FEW, **changes)


def published(
    train: MultiLabelFeatures, test: MultiLabelFeatures, costs: tuple[float, ...]
) -> tuple[list[float], list[float]]:
    """The published script, class by class: chosen costs, and AP of what is not difficult."""
    x, y = (set_.features.double().numpy() for set_ in (train, test))
    x, y = (part / (np.linalg.norm(part, axis=1) + 1e-5)[:, None] for part in (x, y))
    chosen, precision = [], []
    for column in range(train.labels.shape[1]):
        labels = train.labels[:, column].numpy().copy()
        labels[labels != 1] = -1
        models = [
            LinearSVC(C=cost, class_weight={1: 2, -1: 1}, dual=True, tol=1e-8, max_iter=100_000, random_state=0)
            for cost in costs
        ]
        scores = [cross_val_score(model, x, labels, cv=3, scoring="average_precision").mean() for model in models]
        best = int(np.argmax(scores))
        chosen.append(costs[best])
        scores = torch.from_numpy(models[best].fit(x, labels).decision_function(y))
        truth = test.labels[:, column]
        precision.append(float(average_precision(scores[truth != -1], truth[truth != -1] == 1)))
    return chosen, precision


def test_equals_the_published_script() -> None:
    train, test = draw(0, 90), draw(1, 80)
    found = evaluate_svm(train, test, classes=NAMES, fit=few_costs())
    chosen, precision = published(train, test, FEW)
    assert list(found.costs) == chosen
    assert list(found.per_class) == pytest.approx(precision, abs=1e-6)
    assert found.mean_ap == pytest.approx(np.mean(precision), abs=1e-6)
    assert found.top1 is None
    assert found.notes == ()
    assert found.classes == NAMES
    assert "difficult objects negative in training and ignored in testing" in found.description
    assert "3-fold" in found.description
    assert "all-points" in found.description


def test_the_defaults_are_the_published_ones() -> None:
    svm = SVM(encoder="random")
    fit = svm.fit
    assert len(fit.costs) == 19
    assert fit.costs == COSTS == (1.0, 10.0, 100.0, *(2.0**-power for power in range(4, 20)))
    assert (fit.folds, fit.positive_weight, fit.interpolation, fit.normalization, fit.intercept) == (
        3,
        2.0,
        "all-points",
        "l2",
        1.0,
    )
    assert svm.difficult == "negative"


@pytest.mark.parametrize("dual", [True, False])
def test_both_backends_agree(dual: bool) -> None:
    train, test = draw(2, 90), draw(3, 60)
    ours = evaluate_svm(train, test, fit=few_costs())
    theirs = evaluate_svm(
        train,
        test,
        fit=few_costs(backend="liblinear", jobs=1, tolerance=1e-9, liblinear_dual=dual, liblinear_iterations=100_000),
    )
    assert theirs.costs == ours.costs
    assert theirs.mean_ap == pytest.approx(ours.mean_ap, abs=1e-6)
    assert theirs.cross_validated == pytest.approx(ours.cross_validated, abs=1e-6)
    assert "LIBLINEAR" in theirs.description


def test_both_backends_reach_the_same_objective() -> None:
    train, test = draw(2, 60), draw(3, 20)
    fits = FitConfig(costs=FEW), FitConfig(costs=FEW, backend="liblinear", jobs=1, tolerance=1e-9, liblinear_dual=False)
    positive = train.labels == 1
    ours, theirs = (
        make_solver(train.features, test.features, fit, ProgressCounter(None, 0)).run(
            positive, torch.ones_like(positive)
        )
        for fit in fits
    )
    assert ours.objective.shape == (len(FEW), 3, 4)
    assert torch.allclose(ours.objective, theirs.objective, rtol=1e-10)
    assert torch.allclose(ours.test_scores, theirs.test_scores, atol=1e-5)


def test_liblinear_says_when_it_stops_short() -> None:
    train, test = draw(2, 40), draw(3, 30)
    found = evaluate_svm(
        train, test, fit=few_costs(backend="liblinear", jobs=1, tolerance=1e-12, liblinear_iterations=2)
    )
    assert any("stopped at 2 iterations" in note for note in found.notes)


@pytest.mark.slow  # two processes that import torch
def test_liblinear_in_two_processes() -> None:
    train, test = draw(2, 40), draw(3, 30)
    one, two = (evaluate_svm(train, test, fit=few_costs(backend="liblinear", jobs=jobs)) for jobs in (1, 2))
    assert one == two


@pytest.mark.parametrize(
    "changes",
    [
        {"positive_weight": 5.0},
        {"normalization": "none"},
        {"intercept": 0.0},
        {"interpolation": "11-point"},
        {"costs": (0.01,)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_every_quirk_is_an_option_and_described(changes: dict[str, Any]) -> None:
    train, test = draw(4, 80), draw(5, 80)
    plain = evaluate_svm(train, test, fit=few_costs())
    other = evaluate_svm(train, test, fit=dataclasses.replace(few_costs(), **changes))
    assert other.description != plain.description
    assert other.per_class != plain.per_class


def test_difficult_images_can_be_left_out_of_training() -> None:
    train, test = draw(4, 80, difficult=0.3), draw(5, 80)
    ignored = evaluate_svm(train, test, fit=few_costs(), difficult="ignored")
    assert "difficult objects ignored in training" in ignored.description
    column = MultiLabelFeatures(train.features[train.labels[:, 0] != -1], train.labels[train.labels[:, 0] != -1][:, :1])
    alone = evaluate_svm(column, MultiLabelFeatures(test.features, test.labels[:, :1]), fit=few_costs())
    assert alone.per_class[0] == pytest.approx(ignored.per_class[0])
    assert alone.costs[0] == ignored.costs[0]


def test_one_class_an_image_also_has_top1() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 4
    features = torch.nn.functional.one_hot(labels, 4) + 0.6 * torch.randn(120, 4, generator=generator)
    sets = [
        MultiLabelFeatures(features[part], torch.nn.functional.one_hot(labels[part], 4))
        for part in (slice(0, 60), slice(60, 120))
    ]
    found = evaluate_svm(*sets, fit=FitConfig(costs=(1.0,), positive_weight=1))
    x = torch.nn.functional.normalize(features.double()).numpy()
    model = LinearSVC(C=1.0, dual=False, tol=1e-8).fit(x[:60], labels[:60].numpy())
    assert found.top1 == pytest.approx(accuracy_score(labels[60:].numpy(), model.predict(x[60:])), abs=0.02)


def test_what_falls_short_is_left_out_or_done_with_fewer_folds_and_named() -> None:
    train, test = draw(6, 60, classes=6, difficult=0), draw(7, 60, classes=6, difficult=0)
    train.labels[:, 0] = 0
    train.labels[:, 1] = 1
    test.labels[:, 2] = 0
    train.labels[:, 3:5] = 0
    train.labels[:2, 3] = 1
    train.labels[7, 4] = 1
    names = ["nowhere", "everywhere", "untested", "two", "one", "usual"]
    for backend in ("batched", "liblinear"):
        found = evaluate_svm(train, test, classes=names, fit=few_costs(backend=backend, jobs=1))
        assert [value is None for value in found.per_class] == [True, True, True, False, False, False]
        assert [value is None for value in found.costs] == [True, True, True, False, False, False]
        assert found.cross_validated[4] is None
        assert found.costs[4] == 1.0
        assert found.mean_ap == pytest.approx(np.mean([value for value in found.per_class if value is not None]))
        assert found.notes == (
            "left out of the mean, no positive in training: nowhere",
            "left out of the mean, no negative in training: everywhere",
            "left out of the mean, no positive in testing: untested",
            "two has too few images for 3 folds: C by 2-fold cross-validation",
            "one has too few images to cross-validate: C = 1",
        )


def test_folds_are_those_of_what_counts() -> None:
    positive = torch.tensor([[1], [0], [1], [0], [1], [0], [0], [0], [0]]).bool()
    counted = torch.ones_like(positive)
    counted[0] = False
    held = stratified_folds(positive, counted, 3)
    assert held.shape == (9, 1, 3)
    assert held.any(2)[:, 0].tolist() == counted[:, 0].tolist()
    assert held.any(0).tolist() == [[True, True, False]]  # two positives, two folds
    assert (held & positive.unsqueeze(2)).sum(0).tolist() == [[1, 1, 0]]


def test_blocks_of_classes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = draw(8, 50), draw(9, 50)
    whole = evaluate_svm(train, test, fit=few_costs())
    monkeypatch.setattr("mixview.evaluate.svm_fitting.MAX_ELEMENTS", 1)
    seen: list[tuple[int, int]] = []
    parts = evaluate_svm(train, test, fit=few_costs(), report=lambda done, total: seen.append((done, total)))
    assert parts.costs == whole.costs
    assert parts.mean_ap == pytest.approx(whole.mean_ap, abs=1e-9)
    fits = len(FEW) * 3 * 4
    assert [total for _, total in seen] == [fits] * len(seen)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (fits, fits)


def changed(
    labeled: MultiLabelFeatures, features: Tensor | None = None, labels: Tensor | None = None
) -> MultiLabelFeatures:
    return MultiLabelFeatures(
        labeled.features if features is None else features, labeled.labels if labels is None else labels
    )


def test_errors() -> None:
    train, test = draw(0, 30), draw(1, 30)
    cases = [
        (changed(train, features=train.features[0]), test, r"training features must be \[N, D\]"),
        (train, changed(test, labels=test.labels[:5]), r"test labels must be \[30, classes\]"),
        (changed(train, labels=train.labels * 2), test, "must be 1 .present., 0 .absent. or -1 .difficult."),
        (changed(train, labels=torch.where(train.labels == 1, 1, -1)), test, "which means difficult: absent is 0"),
        (changed(train, features=train.features / 0), test, "training features contain NaN or infinity"),
        (changed(train, features=train.features[:, :3]), test, "do not fit: 3 and 12 features"),
        (train, changed(test, labels=test.labels[:, :2]), "3 and 2 classes"),
        (changed(train, labels=torch.zeros_like(train.labels)), test, "no class has positives and negatives"),
    ]
    for first, second, message in cases:
        with pytest.raises(ValueError, match=message):
            evaluate_svm(first, second, fit=few_costs())
    with pytest.raises(ValueError, match="2 names for 3 classes"):
        evaluate_svm(train, test, classes=["cat", "dog"])
    for changes, message in (
        ({"costs": ()}, "costs must be"),
        ({"costs": (1.0, 1.0)}, "different"),
        ({"costs": (1.0, 0.0)}, "--fit.costs must be a list, each a number, more than 0"),
        ({"folds": 1}, "--fit.folds must be a whole number, at least 2, got 1"),
        ({"positive_weight": 0}, "--fit.positive_weight must be a number, more than 0"),
        ({"backend": "torch"}, "--fit.backend must be batched or liblinear"),
        ({"normalization": "l1"}, "--fit.normalization must be l2 or none"),
    ):
        with pytest.raises(ValueError, match=message):
            FitConfig(**changes)  # type: ignore[arg-type]


def test_a_fallback_that_is_not_one_of_the_costs_raises_when_it_is_needed() -> None:
    train, test = draw(0, 30, difficult=0), draw(1, 30)
    train.labels[:, 0] = 0
    train.labels[3, 0] = 1
    with pytest.raises(ValueError, match="fallback_cost 7 is not one of the costs"):
        evaluate_svm(train, test, fit=few_costs(fallback_cost=7.0))
