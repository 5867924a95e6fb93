"""MoCo v3 (Chen et al., 2021), https://arxiv.org/abs/2104.02057, and its form under mixtures (Eq. 3).

Queries are the predictions from mixtures; keys are those of a momentum encoder, of the unmixed other view. There is no
queue: the other keys of the batch, of all processes, are the negatives. Each parent's key in turn is the positive:

    2 tau [lam CE(q_ij · k / tau, i) + (1 - lam) CE(q_ij · k / tau, j)]

summed over the two directions. The two terms share their denominator, so that this is `virtual_labels`, i-Mix's loss.

With SDMP (Ren et al., 2022, https://arxiv.org/abs/2206.07692), a part of this compares the queries with the keys of the
mixtures of the other view: every mixture's positives are those that have parents in common with it (`common_parents`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from mixview.distributed import gather, gather_mixture, own_rows
from mixview.losses import check_sdmp, check_temperature, common_parents
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
from mixview.methods.imix import virtual_labels
from mixview.mixing import Mixture
from mixview.nn import MLP, EncoderWithProjector, check_momentum, cosine_momentum, ema_update, momentum_copy
from mixview.objective import Term
from mixview.options import AtLeast, AtMost, Positive, Share, Width


def patch_embedding(encoder: nn.Module) -> nn.Conv2d | None:
    """The convolution that embeds a vision transformer's patches (timm's, torchvision's); None of any other network."""
    layer = getattr(getattr(encoder, "patch_embed", None), "proj", None) or getattr(encoder, "conv_proj", None)
    return layer if isinstance(layer, nn.Conv2d) else None


@final
class MoCoV3(Method):
    """Every mixture finds its two parents among the keys of the batch, which a slowly following encoder makes.

    Online passes under SIM / BSIM / WBSIM: 2 / 2 / 4, key passes 2; with SDMP 2 / 4 / 4.

    Args:
        encoder: images [N, C, H, W] -> features [N, feature_dim].
        feature_dim: the encoder's width.
        projector: features -> projections; by default the published one, to 256: of 3 layers for a vision transformer,
            of 2 for others.
        predictor: projections -> queries; by default 256-4096-256, with a last batch norm for a vision transformer.
        temperature: tau.
        momentum: the momentum of the key encoder at the start; it goes to 1 by a cosine over training.
        freeze_patch_embed: leave a vision transformer's patch embedding as it was initialized, which keeps training
            stable; other networks have none.
        sdmp: the share of a mixed term whose positives are mixtures with common parents, not the parents.

    Example:
        >>> from mixview import wbsim
        >>> views = list(torch.rand(2, 4, 3, 4, 4))  # two views of four images
        >>> method = MoCoV3(nn.Sequential(nn.Flatten(), nn.Linear(48, 8)), feature_dim=8)
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
        temperature: float = 0.2,
        momentum: float = 0.99,
        freeze_patch_embed: bool = True,
        sdmp: float = 0.0,
    ) -> None:
        super().__init__()
        if (projector is None) != (predictor is None):
            raise ValueError("projector and predictor fit each other: pass both, or neither for the published ones")
        check_temperature(temperature)
        check_momentum(momentum)
        check_sdmp(sdmp)
        patches = patch_embedding(encoder)
        if projector is None or predictor is None:
            projector, predictor = published_heads(feature_dim, transformer=patches is not None)
        if patches is not None and freeze_patch_embed:
            patches.requires_grad_(False)
        self.online = EncoderWithProjector(encoder, projector, feature_dim)
        self.predictor = predictor
        self.target = momentum_copy(self.online)
        self.temperature = temperature
        self.momentum = momentum
        self.sdmp = sdmp

    def forward(self, views: Views, terms: Sequence[Term], targets: Targets = None) -> tuple[Tensor, Targets]:
        first, second = check_two_views(views)
        if targets is None:
            with torch.no_grad():
                targets = gather(self.target(first)), gather(self.target(second))
        k_first, k_second = targets  # keys of every process
        predict = memoize(lambda images: self.predictor(self.online(images)))
        loss = first.new_zeros(())
        for weight, mixture in unmixed_first(terms):
            mixed_first, mixed_second = mixture(first), mixture(second)
            q_first, q_second = predict(mixed_first), predict(mixed_second)
            term = self.contrast(q_first, k_second, mixture) + self.contrast(q_second, k_first, mixture)
            if self.sdmp and not mixture.is_identity:
                with torch.no_grad():
                    m_first, m_second = gather(self.target(mixed_first)), gather(self.target(mixed_second))
                related = common_parents(mixture)
                common = self.contrast(q_first, m_second, related) + self.contrast(q_second, m_first, related)
                term = torch.lerp(term, common, self.sdmp)
            loss = loss + weight * term
        return loss, targets

    def contrast(self, q: Tensor, keys: Tensor, mixture: Mixture) -> Tensor:
        """2 tau times the cross-entropy of this process's queries [A, D] with the keys [N, D] of all processes."""
        rows = own_rows(len(mixture))
        loss = virtual_labels(q, keys, gather_mixture(mixture), self.temperature, rows=rows)
        return 2 * self.temperature * loss

    def update(self, *targets: Targets, progress: float | Tensor) -> None:
        """The key encoder follows, in time for the next key pass."""
        check_progress(progress)
        momentum = cosine_momentum(self.momentum, progress)
        ema_update(self.target, self.online, momentum)


def published_heads(
    feature_dim: int, hidden: int = 4096, dim: int = 256, layers: int | None = None, *, transformer: bool
) -> tuple[MLP, MLP]:
    """Projector and predictor: no biases, and no affine in a last batch norm, which the predictor of ResNets lacks."""
    layers = layers or (3 if transformer else 2)
    projector = MLP((feature_dim, *[hidden] * (layers - 1), dim), last_norm="plain")
    return projector, MLP((dim, hidden, dim), last_norm="plain" if transformer else None, last_bias=False)


@dataclass(frozen=True, kw_only=True)
class MoCoV3Config(MethodConfig):
    """MoCo v3 (Chen et al., 2021): MoCo without a queue, with a predictor; made for vision transformers.

    Example:
        >>> MoCoV3Config(temperature=1.0).temperature
        1.0
    """

    name: ClassVar[str] = "mocov3"
    module: ClassVar[type[Method]] = MoCoV3
    augment: ClassVar[str] = "byol"
    optimizer: ClassVar[str] = "adamw"
    zero_init_residual: ClassVar[bool | None] = None

    temperature: Positive = 0.2
    """Temperature of the contrastive loss; published: 0.2 for vision transformers, 1 for a ResNet-50."""
    momentum: Share = 0.99
    """Momentum of the key encoder at the start; it goes to 1."""
    hidden: Width = 4096
    """Width of the hidden layers of projector and predictor."""
    dim: Width = 256
    """Width of the queries and keys."""
    projector_layers: Annotated[int, AtLeast(1), AtMost(16)] | None = None
    """Linear layers of the projector; by default 3 for vision transformers and 2 for others."""
    freeze_patch_embed: bool = True
    """Leave a vision transformer's patch embedding as it was initialized, for stability."""
    sdmp: Share = 0.0
    """Share of a mixed term's loss whose positives are mixtures with common parents (SDMP), not the parents; published:
    0.5, with WBSIM whose terms weigh 1."""

    def build(self, encoder: nn.Module, feature_dim: int, run: RunLength) -> MoCoV3:
        transformer = patch_embedding(encoder) is not None
        heads = published_heads(feature_dim, self.hidden, self.dim, self.projector_layers, transformer=transformer)
        return MoCoV3(encoder, feature_dim, *heads, self.temperature, self.momentum, self.freeze_patch_embed, self.sdmp)
