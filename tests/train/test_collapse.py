import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mixview import CutMix, Identity, Mixture, Mixup
from mixview.train.collapse import (
    Diagnostics,
    alignment,
    collapse_warning,
    diagnose,
    effective_rank,
    feature_std,
    mixture_fit,
    uniformity,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit_rows(features: Tensor) -> list[list[float]]:
    return [[x / math.hypot(*row) for x in row] for row in features.tolist()]


def slow_std(features: Tensor) -> float:
    rows = unit_rows(features)
    n, d = len(rows), len(rows[0])
    total = 0.0
    for j in range(d):
        mean = sum(row[j] for row in rows) / n
        total += math.sqrt(sum((row[j] - mean) ** 2 for row in rows) / n)
    return math.sqrt(d) * total / d


def slow_alignment(first: Tensor, second: Tensor) -> float:
    pairs = list(zip(unit_rows(first), unit_rows(second), strict=True))
    return sum(math.dist(u, v) ** 2 for u, v in pairs) / len(pairs)


def slow_uniformity(features: Tensor) -> float:
    rows = unit_rows(features)
    terms = [math.exp(-2 * math.dist(rows[i], rows[j]) ** 2) for i in range(len(rows)) for j in range(i)]
    return math.log(sum(terms) / len(terms))


def slow_rank(features: Tensor) -> float:
    """From the eigenvalues of the Gram matrix rather than the singular values."""
    values = torch.linalg.eigvalsh(features.T @ features).clamp(min=0).sqrt().tolist()
    p = [value / sum(values) for value in values if value > 1e-9]
    return math.exp(-sum(x * math.log(x) for x in p))


def test_against_slow_references() -> None:
    first, second = normal(12, 5) + 0.5, normal(12, 5, seed=1)
    assert feature_std(first) == pytest.approx(slow_std(first), rel=1e-12)
    assert effective_rank(first) == pytest.approx(slow_rank(first), rel=1e-8)
    assert alignment(first, second) == pytest.approx(slow_alignment(first, second), rel=1e-12)
    expected = (slow_uniformity(first) + slow_uniformity(second)) / 2
    assert uniformity(first, second) == pytest.approx(expected, rel=1e-10)


CASES: dict[str, Callable[[], Tensor]] = {
    "collapsed": lambda: torch.ones(256, 32) + 1e-4 * normal(256, 32),
    "zero": lambda: torch.zeros(256, 32),
    "rank-1": lambda: normal(256, 1) * normal(1, 32, seed=1),
    "few directions": lambda: normal(512, 1) * normal(1, 128, seed=1) + 1e-3 * normal(512, 128, seed=2),
    "isotropic": lambda: normal(256, 32),
    "healthy": lambda: normal(256, 8) @ normal(8, 32, seed=1) + 0.3 * normal(256, 32, seed=2),
    "classes": lambda: 3 * normal(10, 128)[torch.arange(512) % 10] + normal(512, 128, seed=1),
}


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("collapsed", r"has collapsed: .* \(std 0\.000, .* Try "),
        ("zero", "has collapsed"),
        ("rank-1", r"few directions: its effective rank is 1\.0 of 32\. Try "),
        ("few directions", "few directions"),
        ("isotropic", None),
        ("healthy", None),
        ("classes", None),
    ],
)
def test_verdict(case: str, says: str | None) -> None:
    features = CASES[case]()
    warning = collapse_warning(diagnose(features, features), dim=min(features.shape))
    if says is None:
        assert warning is None
    else:
        assert warning is not None
        assert re.search(says, warning)


def test_values_that_are_known() -> None:
    even = CASES["isotropic"]()
    assert 0.97 < feature_std(even) <= 1
    assert 29 < effective_rank(even) < 32
    assert effective_rank(torch.eye(6)) == pytest.approx(6)
    assert effective_rank(CASES["rank-1"]()) == pytest.approx(1, abs=1e-9)
    assert effective_rank(CASES["zero"]()) == 0
    assert feature_std(torch.ones(4, 3)) == 0
    assert alignment(even, even) == 0
    assert alignment(even, -even) == pytest.approx(4)
    assert uniformity(torch.ones(4, 3)) == 0
    assert -4 < uniformity(normal(500, 200)) < -3.7
    for figure in (feature_std, effective_rank, uniformity):  # the length of a feature says nothing
        if figure is not effective_rank:
            assert figure(even) == pytest.approx(figure(even * torch.rand(256, 1, dtype=torch.float64)))
        assert figure(even) == pytest.approx(figure(7 * even))


def test_features_of_mixtures() -> None:
    plain, images = normal(63, 64), torch.rand(63, 3, 8, 8)
    mixture = CutMix(lam_per="image").draw(images, torch.Generator().manual_seed(0))
    lam = mixture.lam.double().unsqueeze(1)
    linear = mixture_fit(lam * plain + (1 - lam) * plain[mixture.partner], plain, mixture)
    assert linear.larger > 0.8 > 0.5 > linear.smaller
    assert linear.follows_lam > 0.9
    ignorant = mixture_fit(normal(63, 64, seed=5), plain, mixture)
    assert abs(ignorant.follows_lam) < 0.3
    assert abs(ignorant.larger) < 0.1


def test_features_of_mixtures_against_a_loop() -> None:
    mixed, plain = normal(5, 4), normal(5, 4, seed=1)
    mixture = Mixture(torch.tensor([4, 3, 2, 1, 0]), torch.tensor([0.9, 0.2, 0.7, 0.8, 0.1]))
    u, v = unit_rows(mixed), unit_rows(plain)
    larger, smaller, points = [], [], []
    for i in (0, 1, 3, 4):  # 2 is its own partner
        j, share = int(mixture.partner[i]), float(mixture.lam[i])
        to_i, to_j = (sum(a * b for a, b in zip(u[i], v[other], strict=True)) for other in (i, j))
        larger.append(to_i if share > 0.5 else to_j)
        smaller.append(to_j if share > 0.5 else to_i)
        points += [(share, to_i), (1 - share, to_j)]
    expected = torch.corrcoef(torch.tensor(points, dtype=torch.float64).T)[0, 1]
    found = mixture_fit(mixed, plain, mixture)
    assert found.larger == pytest.approx(sum(larger) / 4)
    assert found.smaller == pytest.approx(sum(smaller) / 4)
    assert found.follows_lam == pytest.approx(float(expected))


def test_all_figures_have_a_name() -> None:
    features, images = normal(8, 4), torch.rand(8, 3, 4, 4)
    mixture = Mixup().draw(images, torch.Generator().manual_seed(0), lam=0.5)
    found = diagnose(features, features, mixed=features, mixture=mixture)
    assert list(found.items()) == [
        "std",
        "effective_rank",
        "alignment",
        "uniformity",
        "mixture_larger",
        "mixture_smaller",
        "mixture_follows_lam",
    ]
    assert found.mixture is not None
    assert found.mixture.follows_lam == 0, "equal shares say nothing about following them"
    assert set(diagnose(features, features).items()) == {"std", "effective_rank", "alignment", "uniformity"}
    assert isinstance(found, Diagnostics)


def test_half_precision_on_a_graph() -> None:
    features = normal(8, 4).to(torch.bfloat16).requires_grad_()
    assert feature_std(features) == pytest.approx(feature_std(features.detach().float()))


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"at least 2 images, got \[1, 4\]"):
        feature_std(torch.ones(1, 4))
    with pytest.raises(ValueError, match=r"NaN or infinity: lower the learning rate"):
        effective_rank(torch.full((4, 4), math.nan))
    with pytest.raises(ValueError, match=r"one shape, got \[4, 2\] and \[4, 3\]"):
        diagnose(torch.ones(4, 2), torch.ones(4, 3))
    with pytest.raises(ValueError, match="nothing is mixed here"):
        mixture_fit(torch.ones(4, 2), torch.ones(4, 2), Identity().draw(torch.rand(4, 3, 2, 2)))
