import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.svm import LinearSVC
from torch import Tensor

from mixview.evaluate import svm_solver
from mixview.evaluate.svm_solver import Solved, principal_basis, solve_path


def problems(seed: int, n: int, d: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features of length one with a common part, signs, and weights some of which are zero."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, d, generator=generator, dtype=torch.float64) + 1
    features = features / features.norm(dim=1, keepdim=True)
    signs = torch.where(torch.rand(n, count, generator=generator) < 0.3, 1, -1)
    signs[0], signs[1] = 1, -1
    weights = torch.where(signs > 0, 2.0, 1.0) * (torch.rand(n, count, generator=generator) < 0.7)
    weights[:2] = 1
    return features, signs, weights.double()


def objective(w: Tensor, features: Tensor, signs: Tensor, weights: Tensor, cost: float) -> Tensor:
    """f of one problem, w with the intercept last, as it is written down."""
    loss = (1 - signs * (features @ w[:-1] + w[-1])).clamp(min=0)
    return w.square().sum() / 2 + cost * (weights * loss.square()).sum()


def solve(features: Tensor, signs: Tensor, weights: Tensor, cost: float, tolerance: float = 1e-12) -> Solved:
    (solved,) = solve_path(principal_basis(features), signs, weights, [cost], tolerance=tolerance)
    return solved


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(2, 60),
    d=st.integers(1, 60),
    cost=st.sampled_from([1e-6, 1e-3, 0.1, 1.0, 10.0, 100.0]),
)
def test_equals_liblinear(seed: int, n: int, d: int, cost: float) -> None:
    features, signs, weights = problems(seed, n, d, 3)
    basis = principal_basis(features)
    (solved,) = solve_path(basis, signs, weights, [cost])
    w = basis.weights(solved.coefficients)
    for k in range(3):
        rows = weights[:, k] > 0
        model = LinearSVC(C=cost, loss="squared_hinge", dual=False, tol=1e-10, max_iter=10_000)
        model.fit(features[rows].numpy(), signs[rows, k].numpy(), sample_weight=weights[rows, k].numpy())
        theirs = torch.from_numpy(np.concatenate([model.coef_[0], model.intercept_]))
        reached = objective(w[:, k], features, signs[:, k], weights[:, k], cost)
        assert float(solved.objective[k]) == pytest.approx(float(reached), rel=1e-9)
        assert float(reached) == pytest.approx(
            float(objective(theirs, features, signs[:, k], weights[:, k], cost)), rel=1e-8
        )
        assert torch.allclose(w[:, k], theirs, rtol=1e-3, atol=1e-4 * float(theirs.norm()))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 40),
    d=st.integers(1, 40),
    cost=st.floats(-9, 4).map(lambda power: 10**power),
)
def test_is_optimal_by_duality(seed: int, n: int, d: int, cost: float) -> None:
    """The dual worked out in the features themselves: no point can be better than `objective - gap`."""
    features, signs, weights = problems(seed, max(n, 2), d, 4)
    basis = principal_basis(features)
    (solved,) = solve_path(basis, signs, weights, [cost])
    w = basis.weights(solved.coefficients)
    x = torch.cat([features, torch.ones(len(features), 1)], dim=1)
    assert torch.allclose(x @ w, solved.scores, rtol=1e-6, atol=1e-9)
    loss = (1 - signs * (x @ w)).clamp(min=0)
    primal = w.square().sum(0) / 2 + cost * (weights * loss.square()).sum(0)
    a = 2 * cost * weights * loss
    dual = a.sum(0) - (x.T @ (signs * a)).square().sum(0) / 2 - cost * (weights * loss.square()).sum(0)
    assert torch.allclose(primal, solved.objective, rtol=1e-9)
    assert torch.allclose(primal - dual, solved.gap, rtol=1e-3, atol=1e-11 * float(primal.max()))
    assert bool((primal - dual <= 1e-10 * primal).all())


def test_gradient_vanishes_by_autograd() -> None:
    features, signs, weights = problems(0, 50, 20, 2)
    basis = principal_basis(features)
    (solved,) = solve_path(basis, signs, weights, [5.0], tolerance=1e-18)
    w = basis.weights(solved.coefficients)[:, 0].requires_grad_()
    objective(w, features, signs[:, 0], weights[:, 0], 5.0).backward()
    assert w.grad is not None
    assert float(w.grad.norm()) < 1e-7


@pytest.mark.parametrize("shape", [(30, 80), (80, 30)])
def test_the_path_equals_each_cost_alone(shape: tuple[int, int]) -> None:
    features, signs, weights = problems(1, *shape, 5)
    costs = [10.0, 1e-4, 0.1, 100.0]
    path = list(solve_path(principal_basis(features), signs, weights, costs))
    assert [solved.cost for solved in path] == sorted(costs)
    for solved in path:
        alone = solve(features, signs, weights, solved.cost)
        assert torch.allclose(solved.objective, alone.objective, rtol=1e-10)
        assert torch.allclose(solved.scores, alone.scores, atol=1e-4)


def test_both_sizes_of_basis_describe_the_same_features() -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((7, 30), (30, 7), (9, 9)):
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        basis = principal_basis(x, intercept=0.5)
        z = basis.coordinates
        assert torch.allclose(z @ z.T, x @ x.T + 0.25, atol=1e-10)
        products = z.T @ z
        assert torch.allclose(products, products.diag().diag(), atol=1e-9)
        assert bool((products.diag().diff() <= 1e-9).all())
        assert torch.allclose(basis.project(x), z, atol=1e-9)
        other = torch.randn(4, shape[1], generator=generator, dtype=torch.float64)
        w = torch.randn(z.shape[1], 3, generator=generator, dtype=torch.float64)
        theirs = basis.weights(w)
        # The last weight is that of the constant feature, times its value: the intercept.
        assert torch.allclose(basis.project(other) @ w, other @ theirs[:-1] + theirs[-1], atol=1e-8)


def test_gram_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(23, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(svm_solver, "BLOCK", 4)
    assert torch.allclose(svm_solver.gram(rows), rows @ rows.T, atol=1e-14)


def test_weight_zero_is_absence_and_weight_two_a_duplicate() -> None:
    features, signs, weights = problems(2, 40, 10, 3)
    weights = torch.randint(3, weights.shape, generator=torch.Generator().manual_seed(0)).double()
    weighted = solve(features, signs, weights, 3.0)
    for k in range(3):
        copies = torch.arange(40).repeat_interleave(weights[:, k].long())
        plain = solve(features[copies], signs[copies, k : k + 1], torch.ones(len(copies), 1), 3.0)
        assert float(weighted.objective[k]) == pytest.approx(float(plain.objective), rel=1e-10)
        assert torch.allclose(weighted.scores[copies, k], plain.scores[:, 0], atol=1e-5)


def test_degenerate_problems_have_a_defined_outcome() -> None:
    signs = torch.tensor([[1, 1, 1], [1, -1, 1], [1, -1, -1]])
    weights = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    zero = solve(torch.zeros(3, 4), signs, weights, 1.0)
    # Nothing but the intercept: 1/2 b² + 3 (1 - b)² at b = 6/7, and 1/2 b² + (1 - b)² + 2 (1 + b)² at b = -2/7.
    assert torch.allclose(zero.scores[0], torch.tensor([6 / 7, -2 / 7, 0.0], dtype=torch.float64), atol=1e-6)
    assert float(zero.objective[2]) == 0
    same = solve(torch.ones(3, 4), signs, weights, 1.0)
    assert bool(same.scores.isfinite().all())
    assert torch.allclose(same.scores[0], same.scores[2])


@pytest.mark.parametrize("cost", [1e-12, 1e6])
def test_extreme_costs(cost: float) -> None:
    features, signs, weights = problems(3, 60, 200, 4)
    solved = solve(features, signs, weights, cost)
    assert bool((solved.gap <= 1e-12 * solved.objective).all())
    if cost > 1:  # more features than images: everything that counts can be told apart
        assert bool(((signs * solved.scores)[weights > 0] > 0.99).all())


def test_nearly_equal_features() -> None:
    """As of a random network: one large common part, and differences of a thousandth."""
    features, signs, weights = problems(4, 100, 300, 4)
    features = torch.ones_like(features) + 1e-3 * features
    features = features / features.norm(dim=1, keepdim=True)
    for solved in solve_path(principal_basis(features), signs, weights, [1e-4, 1.0, 100.0, 1e4]):
        assert bool((solved.gap <= 1e-12 * solved.objective).all())


def test_single_precision_features_are_taken_as_they_are() -> None:
    features, signs, weights = problems(5, 30, 50, 2)
    solved = solve(features.float(), signs, weights, 1.0)
    assert torch.allclose(solved.objective, solve(features.float().double(), signs, weights, 1.0).objective)
    assert solved.scores.dtype == torch.float64


def test_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    features, signs, weights = problems(0, 20, 5, 2)
    basis = principal_basis(features)
    with pytest.raises(ValueError, match="contain NaN or infinity"):
        principal_basis(features / 0)
    with pytest.raises(ValueError, match=r"features must be \[N, D\]"):
        principal_basis(features[0])
    with pytest.raises(ValueError, match=r"must be \[20, problems\]"):
        next(solve_path(basis, signs[:5], weights[:5], [1.0]))
    with pytest.raises(ValueError, match="signs must be 1 or -1"):
        next(solve_path(basis, signs * 0, weights, [1.0]))
    with pytest.raises(ValueError, match="weights must be finite and at least 0"):
        next(solve_path(basis, signs, -weights, [1.0]))
    with pytest.raises(ValueError, match="costs must be"):
        next(solve_path(basis, signs, weights, [0.0]))
    with pytest.raises(ValueError, match="tolerance must be between"):
        next(solve_path(basis, signs, weights, [1.0], tolerance=0))
    monkeypatch.setattr(svm_solver, "MAX_NEWTON_STEPS", 1)
    with pytest.raises(RuntimeError, match="2 SVMs of cost 100 have not converged after 1 Newton steps"):
        next(solve_path(basis, signs, weights, [100.0]))
