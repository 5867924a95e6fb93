"""Many linear SVMs on the same features at once: LIBLINEAR's L2-regularized squared hinge, by matrix products.

The k-th problem, with signs y = ±1, weights s >= 0 and a cost C, over the features x and a constant one beside them
(the intercept, regularized as in LIBLINEAR), is

    minimize over w    f(w) = 1/2 |w|² + C · sum over i of s_i · max(0, 1 - y_i w·x_i)²

Weights are for every problem and image: twice for a positive, zero for an image that is ignored or in the fold that
is held out. So classes, folds and samples are all columns of one matrix, and a step of all of them is a few products.

**Basis.** The features are turned once into their principal directions, Z = X V with Z'Z diagonal, which changes
neither |w| nor any score. With N images of D features this takes the eigenvectors of the Gram matrix XX' [N, N] or,
where there are more images than features, of X'X [D, D]; from then on every problem has min(N, D) unknowns.

**Newton.** f is piecewise quadratic with the Hessian I + 2C Z'SZ over the images inside the margin. Its diagonal is
an excellent preconditioner in this basis, and directions along which it is nearly one (the features vary less than
the cost can see: most of them, for a small cost) need no solving. Steps are found by conjugate gradients in single
precision, their length by a line search that is exact up to a factor, gradients and scores are in double precision:
the steps need not be accurate for the result to be. Costs are taken in ascending order, each from the solution of the
one before; columns that have converged take no further part.

**Stopping.** a_i = 2 C s_i max(0, 1 - y_i w·x_i) is a feasible point of the dual, and its duality gap is exactly half
the squared length of the gradient. A column has converged when this is at most `tolerance · f(w)`, so that f(w) is
within that share of the true minimum: a guarantee, not an estimate.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

TOLERANCE = 1e-12
"""The relative duality gap at which a column has converged."""

MAX_NEWTON_STEPS = 200
"""Newton steps for one cost; some ten are usual for the largest costs, one to three for small ones."""

MAX_CG_STEPS = 250
"""Products with the Hessian for one Newton step."""

MIN_CURVATURE = 1e-4
"""A direction along which the curvature of the loss stays below this share of the regularizer's is not solved for."""

FINEST, COARSEST = 2e-3, 5e-2
"""Bounds of the accuracy of a Newton step, which is otherwise as accurate as the tolerance needs."""

BLOCK = 512
"""Rows of the Gram matrix that are made together."""


@dataclass(frozen=True)
class Basis:
    """Features in their principal directions, the constant feature included.

    The problem in `coordinates` is that in the features: |w| and every score are the same.
    """

    coordinates: Tensor
    """[N, R] float64, Z: its columns are orthogonal, the longest first."""
    directions: Tensor
    """[D, R] float64, V without its last row: features @ directions + offset are coordinates."""
    offset: Tensor
    """[R] float64, the last row of V times the constant feature."""

    def project(self, features: Tensor) -> Tensor:
        """The coordinates of other features. [M, D] -> [M, R]"""
        return torch.addmm(self.offset, features.double(), self.directions)

    def weights(self, coefficients: Tensor) -> Tensor:
        """The weights of the features, the intercept last. [R, K] -> [D + 1, K]"""
        return torch.cat([self.directions @ coefficients, (self.offset @ coefficients).unsqueeze(0)])


@dataclass(frozen=True)
class Solved:
    """All problems at one cost."""

    cost: float
    coefficients: Tensor
    """[R, K] float64, w in the coordinates of the basis."""
    scores: Tensor
    """[N, K] float64, w·x of every image, also of those whose weight is zero."""
    objective: Tensor
    """[K] float64, f(w)."""
    gap: Tensor
    """[K] float64, the duality gap: the minimum lies between `objective - gap` and `objective`."""
    steps: int
    """Newton steps."""


@torch.no_grad()
def principal_basis(features: Tensor, intercept: float = 1.0) -> Basis:
    """Turn features [N, D] into their principal directions, with a constant feature of value `intercept` beside them.

    By the smaller of XX' and X'X. Directions along which the features vary by no more than rounding are left out.
    """
    if features.ndim != 2 or not features.numel():
        raise ValueError(f"features must be [N, D] with at least one of each, got {list(features.shape)}")
    if not bool(features.isfinite().all()):
        raise ValueError("the features contain NaN or infinity: look for an encoder that overflows in half precision")
    x = features.double()
    n, d = x.shape
    if n <= d:
        variances, vectors = largest_first(gram(x).add_(intercept**2))
        coordinates = vectors * variances.sqrt()
        scaled = vectors / variances.sqrt()
        return Basis(coordinates, x.T @ scaled, intercept**2 * scaled.sum(0))
    x = torch.cat([x, x.new_full((n, 1), intercept)], dim=1)
    _, vectors = largest_first(gram(x.T))
    return Basis(x @ vectors, vectors[:-1], intercept * vectors[-1])


def gram(rows: Tensor) -> Tensor:
    """The products of all rows with each other, [N, D] -> [N, N], each pair once but for the blocks of the diagonal."""
    n = len(rows)
    product = rows.new_empty(n, n)
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        product[start:stop, start:] = rows[start:stop] @ rows[start:].T
        product[stop:, start:stop] = product[start:stop, stop:].T
    return product


def largest_first(symmetric: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors that are more than rounding: [R] and [N, R]."""
    values, vectors = torch.linalg.eigh(symmetric)
    rounding = values[-1].clamp(min=torch.finfo(values.dtype).tiny) * len(values) * torch.finfo(values.dtype).eps
    rank = max(1, int((values > rounding).sum()))
    return values[-rank:].clamp(min=rounding).flip(0), vectors[:, -rank:].flip(1)


@torch.no_grad()
def solve_path(
    basis: Basis, signs: Tensor, weights: Tensor, costs: Sequence[float], *, tolerance: float = TOLERANCE
) -> Iterator[Solved]:
    """Solve all problems for each cost, the smallest cost first, on the device of the basis.

    A column of one sign only is solved like any other, and of no use; one whose weights are all zero has the
    solution zero.

    Args:
        basis: basis of N images.
        signs: [N, K], 1 or -1.
        weights: [N, K], zero or more, times which the cost counts.
        costs: C, more than zero.
        tolerance: the relative duality gap to reach.
    """
    z = basis.coordinates
    check_problems(len(z), signs, weights, costs, tolerance)
    problems = Problems(
        z, z.float(), z.square().float(), signs.to(z).T.contiguous(), weights.to(z).T.contiguous(), tolerance
    )
    w = z.new_zeros(signs.shape[1], z.shape[1])
    scores = z.new_zeros(signs.shape[1], len(z))
    for cost in sorted(costs):
        objective, gap, steps = problems.solve(cost, w, scores)
        yield Solved(cost, w.T.clone(), scores.T.clone(), objective, gap, steps)


def check_problems(n: int, signs: Tensor, weights: Tensor, costs: Sequence[float], tolerance: float) -> None:
    """Raise if these are not problems over n images."""
    if signs.ndim != 2 or len(signs) != n or weights.shape != signs.shape:
        raise ValueError(
            f"signs and weights must be [{n}, problems] like the features, got {list(signs.shape)} and "
            f"{list(weights.shape)}"
        )
    if not bool((signs.abs() == 1).all()):
        raise ValueError("signs must be 1 or -1: give an image that does not count the weight 0, not the sign 0")
    if not bool(((weights >= 0) & weights.isfinite()).all()):
        raise ValueError("weights must be finite and at least 0")
    if not costs or not all(0 < cost < float("inf") for cost in costs):
        raise ValueError(f"costs must be one or more positive numbers, got {list(costs)}")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be between 0 and 1, got {tolerance}: 1e-12 is usual")


@dataclass(frozen=True)
class Problems:
    """The problems as rows: signs and weights [K, N] over coordinates [N, R]."""

    z: Tensor
    z_single: Tensor
    z_squared: Tensor
    signs: Tensor
    weights: Tensor
    tolerance: float

    def solve(self, cost: float, w: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, int]:
        """Newton's method from w [K, R] and its scores [K, N], which are changed: objective [K], gap [K], steps."""
        going = torch.arange(len(w), device=w.device)
        objective, gap = w.new_zeros(len(w)), w.new_zeros(len(w))
        leading = self.leading(cost)
        for step in range(MAX_NEWTON_STEPS):
            y, c = self.signs[going], cost * self.weights[going]
            here, margin = w[going], 1 - y * scores[going]
            loss = c * margin.clamp(min=0)
            gradient = here - (2 * y * loss) @ self.z
            objective[going] = here.square().sum(1) / 2 + (loss * margin).sum(1)
            gap[going] = gradient.square().sum(1) / 2
            allowed = self.tolerance * objective[going]
            left = ~(gap[going] <= allowed)  # also where it is NaN
            if not bool(left.any()):
                return objective, gap, step
            going, y, c, here, margin, gradient = (part[left] for part in (going, y, c, here, margin, gradient))
            accuracy = (0.5 * (allowed[left] / gap[going]).sqrt()).clamp(FINEST, COARSEST)
            direction = self.direction(gradient, 2 * c * (margin > 0), leading, accuracy.float())
            change = direction @ self.z.T
            length = line_search(here, direction, margin, y * change, c).unsqueeze(1)
            w[going] = here + length * direction
            scores[going] += length * change
        raise RuntimeError(
            f"{len(going)} SVMs of cost {cost:g} have not converged after {MAX_NEWTON_STEPS} Newton steps, the worst "
            f"has a relative duality gap of {float((gap / objective)[going].max()):.1e}, not {self.tolerance:.1e}: "
            "leave out such large costs, normalize the features, or raise the tolerance"
        )

    def leading(self, cost: float) -> Tensor:
        """The coordinates that the loss curves along, in single precision. [N, some of R]"""
        # The columns of z are orthogonal: the squared length of one bounds the curvature along it.
        curvature = 2 * cost * self.weights.amax() * self.z.square().sum(0)
        rank = max(1, int((curvature > MIN_CURVATURE).sum()))
        return self.z_single[:, :rank].contiguous()

    def direction(self, gradient: Tensor, curvature: Tensor, leading: Tensor, accuracy: Tensor) -> Tensor:
        """The Newton step of each row, about: gradient [K, R], curvature of each image's loss [K, N], accuracy [K]."""
        curvature = curvature.float()
        size = gradient.norm(dim=1, keepdim=True)
        right = (-gradient / size).float()
        inverse = 1 / torch.addmm(torch.ones_like(right), curvature, self.z_squared)
        solution = inverse * right
        enough = (solution * right).sum(1) * accuracy.square()
        rank = leading.shape[1]
        solution[:, :rank] = conjugate_gradients(leading, curvature, inverse[:, :rank], right[:, :rank], enough)
        return torch.mul(solution.double(), size)


def conjugate_gradients(z: Tensor, curvature: Tensor, inverse: Tensor, right: Tensor, enough: Tensor) -> Tensor:
    """Solve (I + z' diag(curvature) z) x = right for each row, preconditioned by `inverse`, the diagonal's.

    Args:
        z: [N, R].
        curvature: [K, N].
        inverse: [K, R].
        right: [K, R].
        enough: [K], the energy of the residual, residual · inverse residual, at which a row is done.
    """
    solution = torch.zeros_like(right)
    rows = torch.arange(len(right), device=right.device)
    x, residual = torch.zeros_like(right), right.clone()
    p = inverse * residual
    energy = (residual * p).sum(1)
    smallest = torch.finfo(right.dtype).tiny  # a row that is done but still among the others stays where it is
    for _ in range(MAX_CG_STEPS):
        left = energy > enough
        count = int(left.sum())
        if count == 0:
            break
        if count < 0.8 * len(rows):
            solution[rows[~left]] = x[~left]
            rows, x, residual, p, energy, enough, inverse, curvature = (
                part[left] for part in (rows, x, residual, p, energy, enough, inverse, curvature)
            )
        product = torch.addmm(p, curvature * (p @ z.T), z)
        length = (energy / (p * product).sum(1).clamp(min=smallest)).unsqueeze(1)
        x += length * p
        residual -= length * product
        conditioned = inverse * residual
        before, energy = energy.clamp(min=smallest), (residual * conditioned).sum(1)
        p = conditioned + (energy / before).unsqueeze(1) * p
    solution[rows] = x
    return solution


def line_search(w: Tensor, direction: Tensor, margin: Tensor, change: Tensor, c: Tensor) -> Tensor:
    """The step length at which the slope along the direction is at most a thousandth of its start. [K]

    The slope grows along the way and is linear between the places where an image enters or leaves the margin: Newton's
    method on it, kept between a point that is too near and one that is too far.

    Args:
        w: [K, R].
        direction: [K, R].
        margin: [K, N], 1 - y w·x.
        change: [K, N], y direction·x.
        c: [K, N], cost times weight.
    """
    across, along = (w * direction).sum(1), direction.square().sum(1)
    pull = 2 * c * change
    start = across - (pull * margin.clamp(min=0)).sum(1)
    enough = 1e-3 * start.abs()
    length = torch.ones_like(start)
    near, far = torch.zeros_like(start), torch.full_like(start, torch.inf)
    for _ in range(60):
        rest = torch.addcmul(margin, length.unsqueeze(1), change, value=-1)
        inside = pull * (rest > 0)
        slope = across + length * along - (inside * rest).sum(1)
        left = slope.abs() > enough
        if not bool(left.any()):
            break
        near, far = torch.where(slope < 0, length, near), torch.where(slope > 0, length, far)
        tried = length - slope / (along + (inside * change).sum(1))
        halved = torch.where(far.isinf(), 2 * length, (near + far) / 2)
        tried = torch.where((tried > near) & (tried < far), tried, halved)
        length = torch.where(left, tried, length)
    return length
