"""BYOL (Grill et al., 2020) and BYOL-BSIM (Eq. 4)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self, final

import torch
from torch import Tensor, nn

from mixview.losses import byol_loss
from mixview.methods.base import (
    Method,
    MethodConfig,
    RunLength,
    Targets,
    Views,
    check_progress,
    check_two_views,
    memoize,
    unmixed_first,
)
from mixview.nn import (
    MLP,
    EncoderWithProjector,
    check_momentum,
    cosine_momentum,
    ema_update,
    momentum_copy,
    momentum_for,
)
from mixview.objective import Term
from mixview.options import Share, Width


@final
class BYOL(Method):
    """The online network predicts, from the mixture, what the target network makes of its two unmixed parents.

    Online passes under SIM / BSIM / WBSIM: 2 / 2 / 4, target passes 2.

    Args:
        encoder: images [N, C, H, W] -> features [N, feature_dim].
        feature_dim: the encoder's width.
        projector: features -> projections; by default feature_dim-4096-256.
        predictor: projections -> predictions; by default 256-4096-256.
        momentum: the momentum of the target network at the start; it goes to 1 by a cosine over training.
        target: `"parents"`, both parents in turn (Eq. 4), or `"interpolated"`, one target between them.

    Example:
        >>> from mixview import wbsim
        >>> views = torch.rand(2, 4, 3, 4, 4)  # two views of four images
        >>> method = BYOL(nn.Sequential(nn.Flatten(), nn.Linear(48, 8)), feature_dim=8)
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
        self.online = EncoderWithProjector(encoder, projector, feature_dim)
        self.predictor = MLP((256, 4096, 256)) if predictor is None else predictor
        self.target = momentum_copy(self.online)
        self.momentum = momentum
        self.interpolated = target == "interpolated"

    def forward(self, views: Views, terms: Sequence[Term], targets: Targets = None) -> tuple[Tensor, Targets]:
        first, second = check_two_views(views)
        if targets is None:
            with torch.no_grad():
                targets = self.target(first), self.target(second)
        z_first, z_second = targets
        predict = memoize(lambda images: self.predictor(self.online(images)))
        loss = first.new_zeros(())
        for weight, mixture in unmixed_first(terms):
            side = byol_loss(predict(mixture(first)), z_second, mixture, interpolated=self.interpolated)  # L'
            other = byol_loss(predict(mixture(second)), z_first, mixture, interpolated=self.interpolated)  # L''
            loss = loss + weight * (side + other)  # the sum, as published: a mean would halve the learning rate
        return loss, targets

    def update(self, *targets: Targets, progress: float | Tensor) -> None:
        """The target network follows."""
        check_progress(progress)
        momentum = cosine_momentum(self.momentum, progress)
        ema_update(self.target, self.online, momentum)


@dataclass(frozen=True, kw_only=True)
class BYOLConfig(MethodConfig):
    """BYOL (Grill et al., 2020): predicts the projections of a momentum encoder, without negatives.

    Example:
        >>> BYOLConfig(hidden=512, dim=64).resolve(RunLength(images=1000, steps=200, batch_size=100)).momentum
        0.99
    """

    name: ClassVar[str] = "byol"
    module: ClassVar[type[Method]] = BYOL
    augment: ClassVar[str] = "byol"
    optimizer: ClassVar[str] = "lars"

    momentum: Share | None = None
    """Momentum of the target network at the start; by default 0.996, and 0.99 in runs of less than 20,000 steps."""
    hidden: Width = 4096
    """Width of the hidden layers of projector and predictor."""
    dim: Width = 256
    """Width of the projections."""
    target: Literal["parents", "interpolated"] = "parents"
    """Target of a mixture: both parents in turn, or one target between them."""

    def resolve(self, run: RunLength) -> Self:
        return replace(self, momentum=momentum_for(self.momentum, 0.996, run.steps))

    def build(self, encoder: nn.Module, feature_dim: int, run: RunLength) -> BYOL:
        assert self.momentum is not None
        projector = MLP((feature_dim, self.hidden, self.dim))
        predictor = MLP((self.dim, self.hidden, self.dim))
        return BYOL(encoder, feature_dim, projector, predictor, self.momentum, self.target)
