"""Barlow Twins (Zbontar et al., 2021), its form under mixtures, and Mixed Barlow Twins (Bandara et al., 2023).

Under a mixture the cross-correlation is that of the mixture's projections with the interpolated projections of its
unmixed parents, `lam z_i'' + (1 - lam) z_j''`. At lam = 1 this is Barlow Twins.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from mixview.distributed import gather, gather_mixture, own_part, shuffle, world_size
from mixview.losses import barlow_twins_loss, standardize
from mixview.methods.base import (
    Method,
    MethodConfig,
    RunLength,
    Targets,
    Views,
    check_two_views,
    memoize,
    unmixed_first,
)
from mixview.nn import MLP, EncoderWithProjector
from mixview.objective import Term
from mixview.options import NonNegativeFloat, Positive, Width
from mixview.rng import seed_from


@torch.library.custom_op("mixview::mixed_barlow_twins_lam", mutates_args=())
def draw_lam(step: Tensor) -> Tensor:
    """The share of the first views, of Beta(1, 1): an operator of its own, so that torch.compile makes one graph."""
    return torch.tensor(random.Random(seed_from("mixed barlow twins", int(step))).random(), dtype=torch.float64)


@draw_lam.register_fake
def _(step: Tensor) -> Tensor:
    return torch.empty((), dtype=torch.float64)


def mixed_correlation_loss(
    z_m: Tensor, z_a: Tensor, z_b: Tensor, partner: Tensor, lam: float | Tensor, *, dims: slice | None = None
) -> Tensor:
    """Mixed Barlow Twins' regularizer, https://arxiv.org/abs/2312.02151, for images `lam a + (1 - lam) b[partner]`:

        1/2 |C(M, A) - lam C(A, A) - (1 - lam) C(B', A)|^2 + 1/2 |C(M, B) - lam C(A, B) - (1 - lam) C(B', B)|^2

    with B' = B[partner] and all projections standardized: linearly mixed images should have the correlations that
    linearly mixed projections have.

        loss = mixed_correlation_loss(z_m, z_a, z_b, torch.randperm(256), lam=0.3)

    Args:
        z_m: [N, D] projections of the mixed images.
        z_a: [N, D] projections of the first views.
        z_b: [N, D] projections of the second views.
        partner: [N] the second view that each first view is mixed with.
        lam: the share of the first views.
        dims: the rows of the matrices to sum over, all by default; many processes share them out.
    """
    with torch.autocast(z_m.device.type, enabled=False):
        m, a, b = standardize(z_m), standardize(z_a), standardize(z_b)
        # C is linear in its first argument: the difference of the matrices is the matrix of the difference.
        difference = (m - lam * a - (1 - lam) * b[partner])[:, slice(None) if dims is None else dims].T / len(m)
        return ((difference @ a).square().sum() + (difference @ b).square().sum()) / 2


@final
class BarlowTwins(Method):
    """The dimensions of a mixture's projection correlate with the same dimension of its targets, and with no other.

    Targets carry gradient and unmixed projections serve every term, so the terms share a graph. Encoder passes under
    SIM / BSIM / WBSIM: 2 / 2 / 3, symmetric 2 / 4 / 4; with the regularizer 3 / 4 / 4.

    Args:
        encoder: images [N, C, H, W] -> features [N, feature_dim].
        feature_dim: the encoder's width.
        projector: features -> projections; by default three layers of four times the encoder's width.
        lambda_bt: weight of the off-diagonal part.
        symmetric: anchors from both views, the mean of the two; SIM is the same either way.
        mix_regularizer: weight lambda_reg of Mixed Barlow Twins' regularizer, which is added once per step.

    Example:
        >>> from mixview import wbsim
        >>> views = torch.rand(2, 4, 3, 4, 4)  # two views of four images
        >>> method = BarlowTwins(nn.Sequential(nn.Flatten(), nn.Linear(48, 8)), 8, MLP((8, 16)))
        >>> loss, targets = method(views, wbsim().draw(views[0], torch.Generator()))
        >>> loss.shape
        torch.Size([])
    """

    independent_terms: ClassVar[bool] = False
    grad_cache: ClassVar[bool] = True

    def __init__(
        self,
        encoder: nn.Module,
        feature_dim: int,
        projector: nn.Module | None = None,
        lambda_bt: float = 0.0051,
        symmetric: bool = False,
        mix_regularizer: float = 0.0,
    ) -> None:
        super().__init__()
        if not (lambda_bt > 0 and mix_regularizer >= 0):
            raise ValueError(
                "lambda_bt must be more than 0 and mix_regularizer at least 0, got "
                f"{lambda_bt} and {mix_regularizer}: published are 0.0051, and 0.1 to 4 of Mixed Barlow Twins"
            )
        if projector is None:
            projector = MLP((feature_dim, *[4 * feature_dim] * 3), last_bias=False)
        self.online = EncoderWithProjector(encoder, projector, feature_dim)
        self.lambda_bt = lambda_bt
        self.symmetric = symmetric
        self.mix_regularizer = mix_regularizer
        self.steps = torch.tensor(0)  # seeds the regularizer's mixtures: the same on every process, and after a resume

    def forward(self, views: Views, terms: Sequence[Term], targets: Targets = None) -> tuple[Tensor, Targets]:
        return self.loss(self.online, views, terms), None

    def loss(self, project: Callable[[Tensor], Tensor], views: Views, terms: Sequence[Term]) -> Tensor:
        """The weighted sum of the terms' losses, with the projections that `project` makes: images [N, …] -> [N, D].

        Every process has the projections of all, and sums over a part of the matrix: the mean over processes is the
        loss of the joined batch.
        """
        first, second = check_two_views(views)
        encode = memoize(lambda images: gather(project(images)))  # z of every process
        loss = first.new_zeros(())
        for weight, mixture in unmixed_first(terms):
            everyone = gather_mixture(mixture)
            anchors, targets = encode(mixture(first)), encode(second)
            part = own_part(anchors.shape[1])
            side = barlow_twins_loss(anchors, targets, everyone, self.lambda_bt, dims=part)
            if self.symmetric:
                other = encode(mixture(second)), encode(first)
                side = (side + barlow_twins_loss(*other, everyone, self.lambda_bt, dims=part)) / 2
            loss = loss + weight * side
        if self.mix_regularizer:
            lam = draw_lam(self.steps)
            shuffled, partner = shuffle(second, self.steps)
            z_m, z_a, z_b = (
                encode(torch.lerp(shuffled, first, lam.to(first, non_blocking=True))),
                encode(first),
                encode(second),
            )
            difference = mixed_correlation_loss(z_m, z_a, z_b, partner, lam, dims=own_part(z_m.shape[1]))
            loss = loss + self.mix_regularizer * self.lambda_bt * difference
        return loss * world_size()

    def update(self, *targets: Targets, progress: float | Tensor) -> None:
        """Nothing follows by itself in Barlow Twins; the next step draws another mixture for the regularizer."""
        self.steps += 1

    def get_extra_state(self) -> Tensor:
        return self.steps.clone()

    def set_extra_state(self, state: Tensor) -> None:
        self.steps = state.cpu().clone()


@dataclass(frozen=True, kw_only=True)
class BarlowTwinsConfig(MethodConfig):
    """Barlow Twins (Zbontar et al., 2021): decorrelates the dimensions of two views' projections; no negatives.

    Example:
        >>> BarlowTwinsConfig(mix_regularizer=4.0).lambda_bt
        0.0051
    """

    name: ClassVar[str] = "barlow-twins"
    module: ClassVar[type[Method]] = BarlowTwins
    augment: ClassVar[str] = "byol"
    optimizer: ClassVar[str] = "lars"
    zero_init_residual: ClassVar[bool | None] = None

    lambda_bt: Positive = 0.0051
    """Weight of the off-diagonal part of the cross-correlation."""
    hidden: Width | None = None
    """Width of the projector's two hidden layers; by default four times the encoder's: 8192 with a ResNet-50."""
    dim: Width | None = None
    """Width of the projections; by default four times the encoder's: 8192 with a ResNet-50."""
    symmetric: bool = False
    """Take anchors from both views; false takes them from the first only, at half the cost of BSIM."""
    mix_regularizer: NonNegativeFloat = 0.0
    """Weight of Mixed Barlow Twins' regularizer, for one more pass; published: 0.1 for ImageNet, 4 for CIFAR."""

    def build(self, encoder: nn.Module, feature_dim: int, run: RunLength) -> BarlowTwins:
        hidden, dim = self.hidden or 4 * feature_dim, self.dim or 4 * feature_dim
        projector = MLP((feature_dim, hidden, hidden, dim), last_bias=False)
        return BarlowTwins(encoder, feature_dim, projector, self.lambda_bt, self.symmetric, self.mix_regularizer)
