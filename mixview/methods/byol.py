"""BYOL (Grill et al., 2020) and BYOL-BSIM (Eq. 4)."""

import math
from collections.abc import Sequence
from typing import Literal, final

import torch
from torch import Tensor, nn

from mixview.losses import regression
from mixview.methods.method import Method, Targets, Views, check_progress, check_views, once, unmixed_first
from mixview.nn import MLP, Projected, check_momentum, follow, momentum_copy
from mixview.objective import Term


@final
class BYOL(Method):
    """The online network predicts, from the mixture, what the target network makes of its two unmixed parents.

    Online passes under SIM / BSIM / WBSIM: 2 / 2 / 4, target passes 2.

    Args:
        encoder: images [N, C, H, W] -> features [N, feature_dim].
        feature_dim: the encoder's width.
        projector: features -> projections; by default feature_dim-4096-256.
        predictor: projections -> predictions; by default 256-4096-256.
        momentum: of the target network at the start; it goes to 1 by a cosine over training.
        target: `"parents"`, both parents in turn (Eq. 4), or `"interpolated"`, one target between them.
    """

    def __init__(
        self,
        encoder: nn.Module,
        feature_dim: int,
        projector: nn.Module | None = None,
        predictor: nn.Module | None = None,
        momentum: float = 0.996,
        target: Literal["parents", "interpolated"] = "parents",
    ) -> None:
        super().__init__()
        if target not in ("parents", "interpolated"):
            raise ValueError(f'target must be "parents" or "interpolated", got {target!r}')
        if (projector is None) != (predictor is None):
            raise ValueError("projector and predictor fit each other: pass both, or neither for the published ones")
        check_momentum(momentum)
        projector = MLP((feature_dim, 4096, 256)) if projector is None else projector
        self.online = Projected(encoder, projector, feature_dim)
        self.predictor = MLP((256, 4096, 256)) if predictor is None else predictor
        self.target = momentum_copy(self.online)
        self.momentum = momentum
        self.interpolated = target == "interpolated"

    def forward(self, views: Views, terms: Sequence[Term], targets: Targets = None) -> tuple[Tensor, Targets]:
        check_views(views)
        first, second = views
        if targets is None:
            with torch.no_grad():
                targets = self.target(first), self.target(second)
        z_first, z_second = targets
        predict = once(lambda images: self.predictor(self.online(images)))
        loss = first.new_zeros(())
        for weight, mixture in unmixed_first(terms):
            side = regression(predict(mixture(first)), z_second, mixture, interpolated=self.interpolated)  # L'
            other = regression(predict(mixture(second)), z_first, mixture, interpolated=self.interpolated)  # L''
            loss = loss + weight * (side + other)  # the sum, as published: a mean would halve the learning rate
        return loss, targets

    def advance(self, *targets: Targets, progress: float) -> None:
        """The target network follows."""
        check_progress(progress)
        momentum = 1 - (1 - self.momentum) * (math.cos(math.pi * progress) + 1) / 2
        follow(self.target, self.online, momentum)
