"""SimCLR (Chen et al., 2020) and SimCLR-BSIM (Eq. 1 and 2)."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from mixview.distributed import gather, gather_mixture, own_rows
from mixview.losses import check_sdmp, check_temperature, common_parents, nt_xent
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
from mixview.options import Positive, Share, Width

LossFn = Callable[..., Tensor]
"""A loss like `nt_xent`: `(mixed_z, plain_z, mixture, temperature, *, rows) -> scalar`."""


@final
class SimCLR(Method):
    """Every mixture finds its two parents among all the batch's unmixed other views.

    Targets carry gradient and unmixed projections serve every term, so the terms share a graph. Encoder passes under
    SIM / BSIM / WBSIM: 2 / 4 / 4, one-sided 2 / 2 / 3.

    Args:
        encoder: images [N, C, H, W] -> features [N, feature_dim].
        feature_dim: the encoder's width.
        projector: features -> projections; by default two layers to 128, each with batch norm.
        temperature: tau.
        symmetric: anchors from both views (Eq. 2); False takes them from the first view only, at SimCLR's own cost.
        loss_fn: the loss of one side; `nt_xent`, or that of a related method (`mixview.methods.imix`).
        sdmp: the share of a mixed term whose positives are mixtures with common parents (`common_parents`) of the other
            view, not the parents; one-sided, for one more pass.

    Example:
        >>> import torch
        >>> from mixview import wbsim
        >>> views = torch.rand(2, 4, 3, 4, 4)  # two views of four images
        >>> method = SimCLR(nn.Sequential(nn.Flatten(), nn.Linear(48, 8)), feature_dim=8)
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
        temperature: float = 0.1,
        symmetric: bool = True,
        loss_fn: LossFn = nt_xent,
        sdmp: float = 0.0,
    ) -> None:
        super().__init__()
        check_temperature(temperature)
        check_sdmp(sdmp)
        if projector is None:
            projector = MLP((feature_dim, feature_dim, 128), last_norm="affine")
        self.online = EncoderWithProjector(encoder, projector, feature_dim)
        self.temperature = temperature
        self.symmetric = symmetric
        self.loss_fn = loss_fn
        self.sdmp = sdmp

    def forward(self, views: Views, terms: Sequence[Term], targets: Targets = None) -> tuple[Tensor, Targets]:
        return self.loss(self.online, views, terms), None

    def loss(self, project: Callable[[Tensor], Tensor], views: Views, terms: Sequence[Term]) -> Tensor:
        """The weighted sum of the terms' losses, with the projections that `project` makes: images [N, …] -> [N, D].

        It is called once per batch of views or mixtures. `forward` passes the network; `cached_backward`, which
        projects in micro-batches, a function that returns what it has projected.
        """
        first, second = check_two_views(views)
        encode = memoize(lambda images: gather(project(images)))  # z of every process
        loss = first.new_zeros(())
        for weight, mixture in unmixed_first(terms):
            everyone = gather_mixture(mixture)
            mixed = memoize(mixture)
            sides = [(first, second), (second, first)] if self.symmetric else [(first, second)]  # l' and l''
            term = self.compare([(encode(mixed(a)), encode(b)) for a, b in sides], everyone, len(mixture))
            if self.sdmp and not mixture.is_identity:
                related = gather_mixture(common_parents(mixture))
                pairs = [(encode(mixed(a)), encode(mixed(b))) for a, b in sides]
                term = torch.lerp(term, self.compare(pairs, related, len(mixture)), self.sdmp)
            loss = loss + weight * term
            if len(everyone) == 1:
                warnings.warn("a batch of one has no negatives, and SimCLR learns nothing from it", stacklevel=3)
        return loss

    def compare(self, sides: Sequence[tuple[Tensor, Tensor]], mixture: Mixture, anchors: int) -> Tensor:
        """The mean loss of the sides, (anchors, targets) of all processes, over this process's part of the anchors."""
        rows = own_rows(anchors)
        losses = [self.loss_fn(*side, mixture, self.temperature, rows=rows) for side in sides]
        return torch.stack(losses).mean()

    def update(self, *targets: Targets, progress: float | Tensor) -> None:
        """Nothing follows by itself in SimCLR."""


@dataclass(frozen=True, kw_only=True)
class SimCLRConfig(MethodConfig):
    """SimCLR (Chen et al., 2020): contrasts both views of an image with all other images of the batch.

    Example:
        >>> SimCLRConfig(temperature=0.2).dim
        128
    """

    name: ClassVar[str] = "simclr"
    module: ClassVar[type[Method]] = SimCLR
    augment: ClassVar[str] = "simclr"
    optimizer: ClassVar[str] = "lars"

    temperature: Positive = 0.1
    """Temperature of the contrastive loss."""
    hidden: Width | None = None
    """Width of the projector's hidden layer; by default that of the encoder."""
    dim: Width = 128
    """Width of the projections."""
    symmetric: bool = True
    """Take anchors from both views; false takes them from the first only, at half the cost of BSIM."""
    sdmp: Share = 0.0
    """Share of a mixed term's loss whose positives are mixtures with common parents (SDMP), not the parents."""

    def build(self, encoder: nn.Module, feature_dim: int, run: RunLength) -> SimCLR:
        projector = MLP((feature_dim, self.hidden or feature_dim, self.dim), last_norm="affine")
        return SimCLR(encoder, feature_dim, projector, self.temperature, self.symmetric, sdmp=self.sdmp)
