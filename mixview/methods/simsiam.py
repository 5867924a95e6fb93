"""SimSiam (Chen & He, 2021) and SimSiam-BSIM."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from mixview.losses import regression
from mixview.methods.method import Method, Targets, Views, check_views, once, unmixed_first
from mixview.nn import MLP, Projected
from mixview.objective import Term


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
        self.online = Projected(encoder, projector, feature_dim)
        self.predictor = MLP((2048, 512, 2048)) if predictor is None else predictor

    def forward(self, views: Views, terms: Sequence[Term], targets: Targets = None) -> tuple[Tensor, Targets]:
        check_views(views)
        first, second = views
        project = once(self.online)
        if targets is None:
            if any(mixture.is_identity for _, mixture in terms):
                # An unmixed term needs these projections with their graph: one pass serves as both.
                targets = project(first).detach(), project(second).detach()
            else:
                with torch.no_grad():
                    targets = self.online(first), self.online(second)
        z_first, z_second = targets
        predict = once(lambda images: self.predictor(project(images)))
        loss = first.new_zeros(())
        for weight, mixture in unmixed_first(terms):
            side = regression(predict(mixture(first)), z_second, mixture)
            other = regression(predict(mixture(second)), z_first, mixture)
            loss = loss + weight * ((side + other) / 4 - 1)  # from 2 - 2 cos to SimSiam's -cos, mean of the two sides
        return loss, targets

    def advance(self, *targets: Targets, progress: float) -> None:
        """Nothing follows by itself in SimSiam."""
