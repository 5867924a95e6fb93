import dataclasses

import numpy as np
import pytest
import torch

from mixview.evaluate.low_shot import Sampling, draw, evaluate_low_shot
from mixview.evaluate.svm import MultiLabelFeatures, evaluate_svm
from mixview.evaluate.svm_fitting import FitConfig

from .test_svm import FEW
from .test_svm import draw as labeled

FIT = FitConfig(costs=FEW)
SMALL = Sampling(shots=(1, 2, 8))


def test_what_is_drawn() -> None:
    labels = labeled(0, 200, difficult=0.2).labels
    for k in (1, 3, 500):
        drawn = draw(labels, k, SMALL, 0)
        for column in range(3):
            counts = [int((drawn[:, column] & (labels[:, column] == value)).sum()) for value in (1, -1, 0)]
            have = [int((labels[:, column] == value).sum()) for value in (1, 0)]
            assert counts == [min(k, have[0]), 0, min(2 * k, have[1])]
    more = dataclasses.replace(SMALL, negatives=5)
    assert draw(labels, 2, more, 0).sum(0).tolist() == [12, 12, 12]


def test_drawing_depends_on_seed_sample_and_k_alone() -> None:
    labels = labeled(0, 100).labels
    first = draw(labels, 4, SMALL, 0)
    assert torch.equal(first, draw(labels, 4, SMALL, 0))
    assert not torch.equal(first, draw(labels, 4, SMALL, 1))
    assert not torch.equal(first, draw(labels, 4, dataclasses.replace(SMALL, seed=1), 0))


def test_where_every_image_has_one_class_the_same_images_serve_all() -> None:
    labels = torch.nn.functional.one_hot(torch.arange(50) % 5, 5)
    drawn = draw(labels, 3, SMALL, 0)
    assert torch.equal(drawn, drawn[:, :1].expand_as(drawn))
    assert (drawn & (labels == 1)).sum(0).tolist() == [3] * 5


def test_each_sample_equals_the_svms_of_what_was_drawn() -> None:
    """The oracle by hand: every class and cost as a training set of its own."""
    train, test = labeled(1, 150), labeled(2, 100)
    found = evaluate_low_shot(train, test, fit=FIT, sampling=dataclasses.replace(SMALL, shots=(1, 6), samples=2))
    for row in found.shots:
        table = np.zeros((len(FEW), 2))
        for sample in range(2):
            drawn = draw(train.labels, row.k, SMALL, sample)
            for index, cost in enumerate(FEW):
                precision = []
                for column in range(3):
                    rows = drawn[:, column]
                    part = MultiLabelFeatures(train.features[rows], train.labels[rows, column : column + 1])
                    queries = MultiLabelFeatures(test.features, test.labels[:, column : column + 1])
                    one = FitConfig(costs=(cost,), fallback_cost=cost)
                    precision.append(evaluate_svm(part, queries, fit=one).mean_ap)
                table[index, sample] = np.mean(precision)
        best = int(table.mean(1).argmax())
        assert row.oracle_cost == FEW[best]
        assert row.oracle.values == pytest.approx(table[best], abs=1e-9)
        chosen = [FEW.index(cost) for cost in row.costs]
        assert row.cross_validated.values == pytest.approx(table[chosen, range(2)], abs=1e-9)
        assert row.oracle.mean == pytest.approx(table[best].mean())
        assert row.oracle.std == pytest.approx(table[best].std())


def test_both_backends_agree() -> None:
    train, test = labeled(3, 100), labeled(4, 60)
    ours = evaluate_low_shot(train, test, fit=FIT, sampling=SMALL)
    fit = dataclasses.replace(FIT, backend="liblinear", jobs=1, tolerance=1e-9, liblinear_dual=False)
    theirs = evaluate_low_shot(train, test, fit=fit, sampling=SMALL)
    for one, other in zip(ours.shots, theirs.shots, strict=True):
        assert other.oracle.values == pytest.approx(one.oracle.values, abs=1e-6)
        assert other.cross_validated.values == pytest.approx(one.cross_validated.values, abs=1e-6)
        assert (other.oracle_cost, other.costs, other.short) == (one.oracle_cost, one.costs, one.short)


def test_what_falls_short_is_said() -> None:
    train, test = labeled(5, 80, difficult=0), labeled(6, 80, difficult=0)
    train.labels[:, 1] = 0
    train.labels[:3, 1] = 1
    train.labels[:, 2] = 0
    found = evaluate_low_shot(train, test, classes=["cat", "dog", "cow"], fit=FIT, sampling=SMALL)
    assert found.notes == (
        "left out of the mean, no positive in training: cow",
        "k = 1 leaves nothing to hold out: C = 1 instead of cross-validation",
        "fewer than 8 positives, all of which were drawn: dog",
    )
    assert [row.short for row in found.shots] == [(), (), ("dog",)]
    assert found.shots[0].costs == (1.0, 1.0, 1.0)
    assert "2 k negatives" in found.description
    assert "oracle" in found.description


def test_single_label_sets_with_an_absent_class() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 3
    features = torch.nn.functional.one_hot(labels, 4) + 0.3 * torch.randn(90, 4, generator=generator)
    sets = [
        MultiLabelFeatures(features[part], torch.nn.functional.one_hot(labels[part], 4))
        for part in (slice(0, 45), slice(45, 90))
    ]
    found = evaluate_low_shot(*sets, fit=FIT, sampling=dataclasses.replace(SMALL, shots=(4,)))
    assert found.notes == (
        "left out of the mean, no positive in training: 3",
        "left out of the mean, no positive in testing: 3",
    )
    assert "k images of every other class" in found.description
    assert found.shots[0].oracle.mean > 0.8


def test_reports_how_far_it_is() -> None:
    seen: list[tuple[int, int]] = []
    evaluate_low_shot(
        labeled(0, 60), labeled(1, 40), fit=FIT, sampling=SMALL, report=lambda done, total: seen.append((done, total))
    )
    total = 3 * len(FEW) * 3 * 3 * 4
    assert seen[-1] == (total, total)
    assert len(seen) == 3 * len(FEW)


def test_errors() -> None:
    for changes in ({"shots": ()}, {"shots": (0,)}, {"samples": 0}, {"negatives": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            Sampling(**changes)  # type: ignore[arg-type]
