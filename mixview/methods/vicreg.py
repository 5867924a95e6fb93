"""VICReg (Bardes et al., 2022) and its form under mixtures.

The invariance term weighs the distances of a mixture's projection to both parents' by lam and 1 - lam. The variance and
covariance terms are those of the mixtures on one branch, and of the unmixed views on the other. At lam = 1 this is
VICReg.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor, nn

from mixview.distributed import gather, gather_mixture, own_part, world_size
from mixview.losses import covariance_loss, invariance_loss, variance_loss
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
from mixview.mixing import Mixture
from mixview.nn import MLP, EncoderWithProjector
from mixview.objective import Term
from mixview.options import NonNegativeFloat, Width


@final
class VICReg(Method):
    """A mixture's projection is near those of its parents, and no dimension is constant or follows from another.

    Targets carry gradient and unmixed projections serve every term, so the terms share a graph. Encoder passes under
    SIM / BSIM / WBSIM: 2 / 2 / 3, symmetric 2 / 4 / 4.

    Args:
        encoder: images [N, C, H, W] -> features [N, feature_dim].
        feature_dim: the encoder's width.
        projector: features -> projections; by default three layers of four times the encoder's width.
        invariance_weight: lambda in the paper.
        variance_weight: mu.
        covariance_weight: nu.
        symmetric: anchors from both views, the mean of the two; SIM is the same either way.

    Example:
        >>> import torch
        >>> from mixview import wbsim
        >>> views = torch.rand(2, 4, 3, 4, 4)  # two views of four images
        >>> method = VICReg(nn.Sequential(nn.Flatten(), nn.Linear(48, 8)), 8, MLP((8, 16)))
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
        invariance_weight: float = 25.0,
        variance_weight: float = 25.0,
        covariance_weight: float = 1.0,
        symmetric: bool = False,
    ) -> None:
        super().__init__()
        weights = (invariance_weight, variance_weight, covariance_weight)
        if not all(weight >= 0 for weight in weights):
            raise ValueError(f"VICReg's weights must be at least 0, got {weights}: published are 25, 25 and 1")
        if projector is None:
            projector = MLP((feature_dim, *[4 * feature_dim] * 3), last_bias=False)
        self.online = EncoderWithProjector(encoder, projector, feature_dim)
        self.invariance_weight, self.variance_weight, self.covariance_weight = weights
        self.symmetric = symmetric

    def forward(self, views: Views, terms: Sequence[Term], targets: Targets = None) -> tuple[Tensor, Targets]:
        return self.loss(self.online, views, terms), None

    def loss(self, project: Callable[[Tensor], Tensor], views: Views, terms: Sequence[Term]) -> Tensor:
        """The weighted sum of the terms' losses, with the projections that `project` makes: images [N, …] -> [N, D]."""
        first, second = check_two_views(views)
        encode = memoize(lambda images: gather(project(images)))  # z of every process
        regularize = memoize(self.regularize)
        loss = first.new_zeros(())
        for weight, mixture in unmixed_first(terms):
            everyone = gather_mixture(mixture)
            side = self.compare(encode(mixture(first)), encode(second), everyone, regularize)
            if self.symmetric:
                other = self.compare(encode(mixture(second)), encode(first), everyone, regularize)
                side = (side + other) / 2
            loss = loss + weight * side
        return loss

    def compare(self, z: Tensor, targets: Tensor, mixture: Mixture, regularize: Callable[[Tensor], Tensor]) -> Tensor:
        """The loss of the mixtures' projections [N, D] and those of the other, unmixed view [N, D]."""
        invariance = self.invariance_weight * invariance_loss(z, targets, mixture)
        return invariance + regularize(z) + regularize(targets)

    def regularize(self, z: Tensor) -> Tensor:
        """The variance and covariance terms of one branch [N, D].

        Every process has the projections of all, and sums over a part of the covariance matrix: the mean over processes
        is the term of the joined batch.
        """
        covariance = covariance_loss(z, dims=own_part(z.shape[1])) * world_size()
        return self.variance_weight * variance_loss(z) / 2 + self.covariance_weight * covariance

    def update(self, *targets: Targets, progress: float | Tensor) -> None:
        """Nothing follows by itself in VICReg."""


@dataclass(frozen=True, kw_only=True)
class VICRegConfig(MethodConfig):
    """VICReg (Bardes et al., 2022): near projections of two views, kept apart by their variance and covariance.

    Example:
        >>> VICRegConfig(covariance_weight=0.1).variance_weight
        25.0
    """

    name: ClassVar[str] = "vicreg"
    module: ClassVar[type[Method]] = VICReg
    augment: ClassVar[str] = "vicreg"
    optimizer: ClassVar[str] = "lars"
    zero_init_residual: ClassVar[bool | None] = None

    invariance_weight: NonNegativeFloat = 25.0
    """Weight of the distance between projections."""
    variance_weight: NonNegativeFloat = 25.0
    """Weight of the hinge on the standard deviation of each dimension."""
    covariance_weight: NonNegativeFloat = 1.0
    """Weight of the squared covariances between dimensions."""
    hidden: Width | None = None
    """Width of the projector's two hidden layers; by default four times the encoder's: 8192 with a ResNet-50."""
    dim: Width | None = None
    """Width of the projections; by default four times the encoder's: 8192 with a ResNet-50."""
    symmetric: bool = False
    """Take anchors from both views; false takes them from the first only, at half the cost of BSIM."""

    def build(self, encoder: nn.Module, feature_dim: int, run: RunLength) -> VICReg:
        hidden, dim = self.hidden or 4 * feature_dim, self.dim or 4 * feature_dim
        projector = MLP((feature_dim, hidden, hidden, dim), last_bias=False)
        return VICReg(
            encoder,
            feature_dim,
            projector,
            self.invariance_weight,
            self.variance_weight,
            self.covariance_weight,
            self.symmetric,
        )
