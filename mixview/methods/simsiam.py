"""SimSiam (Chen & He, 2021) and SimSiam-BSIM."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from mixview.losses import byol_loss
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
from mixview.options import Width


@final
class SimSiam(Method):
    """BYOL's loss without a target network: targets are the same encoder's projections of the unmixed views, detached.

    Passes with gradient under SIM / BSIM / WBSIM: 2 / 2 / 4; without: 0 / 2 / 0, for where an unmixed term is present
    its own projections are every term's targets.

    Args:
        encoder: images [N, C, H, W] -> features [N, feature_dim].
        feature_dim: the encoder's width.
        projector: features -> projections; by default three layers of 2048, the last batch norm without affine.
        predictor: projections -> predictions; by default 2048-512-2048.

    Example:
        >>> from mixview import wbsim
        >>> views = torch.rand(2, 4, 3, 4, 4)  # two views of four images
        >>> method = SimSiam(nn.Sequential(nn.Flatten(), nn.Linear(48, 8)), feature_dim=8)
        >>> loss, targets = method(views, wbsim().draw(views[0], torch.Generator()))
        >>> loss.shape
        torch.Size([])
    """

    def __init__(
        self,
        encoder: nn.Module,
        feature_dim: int,
        projector: nn.Module | None = None,
        predictor: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if (projector is None) != (predictor is None):
            raise ValueError("projector and predictor fit each other: pass both, or neither for the published ones")
        if projector is None:
            projector = MLP((feature_dim, 2048, 2048, 2048), last_norm="plain")
        self.online = EncoderWithProjector(encoder, projector, feature_dim)
        self.predictor = MLP((2048, 512, 2048)) if predictor is None else predictor

    def forward(self, views: Views, terms: Sequence[Term], targets: Targets = None) -> tuple[Tensor, Targets]:
        first, second = check_two_views(views)
        project = memoize(self.online)
        if targets is None:
            if any(mixture.is_identity for _, mixture in terms):
                # An unmixed term needs these projections with their graph: one pass serves as both.
                targets = project(first).detach(), project(second).detach()
            else:
                with torch.no_grad():
                    targets = self.online(first), self.online(second)
        z_first, z_second = targets
        predict = memoize(lambda images: self.predictor(project(images)))
        loss = first.new_zeros(())
        for weight, mixture in unmixed_first(terms):
            side = byol_loss(predict(mixture(first)), z_second, mixture)
            other = byol_loss(predict(mixture(second)), z_first, mixture)
            loss = loss + weight * ((side + other) / 4 - 1)  # from 2 - 2 cos to SimSiam's -cos, mean of the two sides
        return loss, targets

    def update(self, *targets: Targets, progress: float | Tensor) -> None:
        """Nothing follows by itself in SimSiam."""


@dataclass(frozen=True, kw_only=True)
class SimSiamConfig(MethodConfig):
    """SimSiam (Chen & He, 2021): predicts one view's projection from the other's, without negatives or momentum.

    Example:
        >>> SimSiamConfig(hidden=512, dim=512).augment
        'simsiam'
    """

    name: ClassVar[str] = "simsiam"
    module: ClassVar[type[Method]] = SimSiam
    augment: ClassVar[str] = "simsiam"
    zero_init_residual: ClassVar[bool | None] = None

    hidden: Width = 2048
    """Width of the projector's hidden layers."""
    dim: Width = 2048
    """Width of the projections; the predictor's hidden layer has a quarter of it."""

    def build(self, encoder: nn.Module, feature_dim: int, run: RunLength) -> SimSiam:
        projector = MLP((feature_dim, self.hidden, self.hidden, self.dim), last_norm="plain")
        return SimSiam(encoder, feature_dim, projector, MLP((self.dim, max(self.dim // 4, 1), self.dim)))
