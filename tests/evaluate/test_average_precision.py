from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score
from torch import Tensor
from torchmetrics.functional.classification import binary_average_precision

from mixview.evaluate.average_precision import Interpolation, average_precision, mean_average_precision


def curve(scores: list[float], relevant: list[bool]) -> list[tuple[Fraction, Fraction]]:
    """(recall, precision) at every threshold, by counting."""
    points = []
    for threshold in sorted(set(scores), reverse=True):
        chosen = [r for s, r in zip(scores, relevant, strict=True) if s >= threshold]
        points.append((Fraction(sum(chosen), sum(relevant)), Fraction(sum(chosen), len(chosen))))
    return points


def devkit(scores: list[float], relevant: list[bool], interpolation: str) -> float:
    """VOCap.m and the 11-point loop of VOCevalcls.m, in fractions."""
    points = curve(scores, relevant)
    if interpolation == "11-point":
        best = [max((p for r, p in points if r >= Fraction(t, 10)), default=Fraction(0)) for t in range(11)]
        return float(sum(best) / 11)
    recall = [Fraction(0), *[r for r, _ in points], Fraction(1)]
    precision = [Fraction(0), *[p for _, p in points], Fraction(0)]
    for i in reversed(range(len(precision) - 1)):
        precision[i] = max(precision[i], precision[i + 1])
    return float(sum((recall[i] - recall[i - 1]) * precision[i] for i in range(1, len(recall))))


def draw(seed: int, count: int, levels: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (count, columns), generator=generator).double() / 7 - 1
    relevant = torch.rand(count, columns, generator=generator) < 0.3
    ignored = torch.rand(count, columns, generator=generator) < 0.2
    return scores, relevant, ignored


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 40), levels=st.sampled_from([1, 2, 5, 20, 10**6]))
@pytest.mark.parametrize("interpolation", ["all-points", "11-point"])
def test_equals_the_devkit_worked_by_hand(interpolation: Interpolation, seed: int, count: int, levels: int) -> None:
    scores, relevant, ignored = draw(seed, count, levels, 3)
    found = average_precision(scores, relevant, ignored, interpolation=interpolation)
    for column in range(3):
        kept = ~ignored[:, column]
        names = relevant[kept, column].tolist()
        if any(names):
            expected = devkit(scores[kept, column].tolist(), names, interpolation)
            assert found[column].item() == pytest.approx(expected, abs=1e-12)
        else:
            assert found[column].isnan()


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(2, 60), levels=st.sampled_from([2, 5, 20, 10**6]))
def test_plain_equals_scikit_learn_and_torchmetrics(seed: int, count: int, levels: int) -> None:
    scores, relevant, ignored = draw(seed, count, levels, 2)
    relevant[0], ignored[0] = True, False
    found = average_precision(scores, relevant, ignored, interpolation="plain")
    for column in range(2):
        kept = ~ignored[:, column]
        chosen, names = scores[kept, column], relevant[kept, column]
        expected = average_precision_score(names.numpy(), chosen.numpy())
        assert found[column].item() == pytest.approx(expected, abs=1e-12)
        # torchmetrics takes scores from 0 to 1.
        share = binary_average_precision(
            (chosen - chosen.min()) / max(1, float(chosen.max() - chosen.min())), names.int()
        )
        assert found[column].item() == pytest.approx(float(share), abs=1e-5)


def test_values_by_hand() -> None:
    scores = torch.tensor([0.9, 0.8, 0.7, 0.6])[:, None]
    relevant = torch.tensor([False, True, False, True])[:, None]
    for interpolation, expected in (("plain", 0.5), ("all-points", 0.5), ("11-point", 0.5)):
        assert average_precision(scores, relevant, interpolation=interpolation).tolist() == pytest.approx([expected])  # type: ignore[arg-type]
    relevant = torch.tensor([True, False, False, True])[:, None]
    assert average_precision(scores, relevant, interpolation="all-points").item() == pytest.approx(0.75)
    assert average_precision(scores, relevant, interpolation="11-point").item() == pytest.approx((6 + 5 * 0.5) / 11)
    constant = torch.zeros(4, 1)
    assert average_precision(constant, relevant).item() == pytest.approx(0.5)


@pytest.mark.parametrize("interpolation", ["all-points", "11-point", "plain"])
def test_the_order_of_the_images_does_not_matter(interpolation: Interpolation) -> None:
    scores, relevant, ignored = draw(3, 200, 6, 5)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    plain = average_precision(scores, relevant, ignored, interpolation=interpolation)
    shuffled = average_precision(scores[order], relevant[order], ignored[order], interpolation=interpolation)
    assert torch.equal(plain, shuffled)


def test_broadcasts_over_costs() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(50, 4, 3, generator=generator)
    relevant = torch.rand(50, 1, 3, generator=generator) < 0.4
    found = average_precision(scores, relevant)
    assert found.shape == (4, 3)
    for cost in range(4):
        assert torch.equal(found[cost], average_precision(scores[:, cost], relevant[:, 0]))


def test_a_class_that_does_not_occur_is_left_out_of_the_mean_and_named() -> None:
    scores = torch.tensor(np.random.default_rng(0).normal(size=(20, 3)))
    relevant = torch.zeros(20, 3, dtype=torch.bool)
    relevant[:5, 0] = relevant[10:, 2] = relevant[3, 1] = True
    ignored = torch.zeros_like(relevant)
    ignored[3, 1] = True
    found = mean_average_precision(scores, relevant, ignored)
    assert found.absent == (1,)
    assert found.per_class[1] is None
    columns = average_precision(scores[:, [0, 2]], relevant[:, [0, 2]])
    assert found.value == pytest.approx(columns.mean().item())


def test_errors() -> None:
    scores, relevant = torch.zeros(3, 1), torch.zeros(3, 1, dtype=torch.bool)
    with pytest.raises(ValueError, match="no class has a relevant image"):
        mean_average_precision(scores, relevant)
    with pytest.raises(ValueError, match="NaN or infinity"):
        average_precision(scores / 0, relevant)
    with pytest.raises(ValueError, match="one of all-points, 11-point, plain"):
        average_precision(scores, relevant, interpolation="12-point")  # type: ignore[arg-type]
