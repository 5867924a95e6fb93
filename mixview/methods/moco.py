"""MoCo v1 and v2 (He et al., 2020; Chen et al., 2020) and MoCo-BSIM (Eq. 3)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self, final

import torch
from torch import Tensor, nn

from mixview.distributed import gather, shuffle, unshuffle, world_size
from mixview.losses import check_sdmp, check_temperature, common_parents, info_nce, l2_normalize
from mixview.methods.base import (
    Method,
    MethodConfig,
    RunLength,
    Targets,
    Views,
    check_progress,
    check_targets,
    check_two_views,
    memoize,
    unmixed_first,
)
from mixview.mixing import Mixture
from mixview.nn import (
    MLP,
    EncoderWithProjector,
    KeyQueue,
    SplitBatchNorm2d,
    check_momentum,
    ema_update,
    momentum_copy,
    momentum_for,
    split_batch_norm,
)
from mixview.objective import Term
from mixview.options import AtLeast, AtMost, Count, Positive, Share, Width

LossFn = Callable[[Tensor, Tensor, Tensor, Mixture, float, Tensor], Tensor]
"""The loss of a term: queries [N, D], keys [N, D], queue [K, D], mixture, temperature, and the number of the step."""


@final
class MoCo(Method):
    """Queries are the mixtures; keys are unmixed, from a slowly following encoder; earlier keys are the negatives.

    Query passes under SIM / BSIM / WBSIM: 1 / 1 / 2, key passes 1; with SDMP 1 / 2 / 2.

    Args:
        encoder: images [N, C, H, W] -> features [N, feature_dim].
        feature_dim: the encoder's width.
        projector: features -> queries and keys of width `dim`.
        dim: the width of queries and keys.
        temperature: tau.
        momentum: the momentum of the key encoder.
        queue_size: the number of earlier keys that are negatives.
        other_parent: count a mixture's other parent among the negatives of each term.
        shuffle: shuffling BN: keys are batch-normalized among other images than the queries, which could cheat
            otherwise. Across processes, or, on one, across the groups of `mixview.nn.split_batch_norm`.
        loss_fn: the loss of a term; Eq. 3, or that of a related method (`mixview.methods.mixco`, `….mochi`).
        sdmp: the share of a mixed term whose positives are mixtures with common parents (`common_parents`), not the
            parents; the negatives are the queue's.

    Example:
        >>> from mixview import wbsim
        >>> views = torch.rand(2, 4, 3, 4, 4)  # two views of four images
        >>> method = MoCo(nn.Sequential(nn.Flatten(), nn.Linear(48, 8)), 8, nn.Linear(8, 16), dim=16, queue_size=32)
        >>> loss, targets = method(views, wbsim().draw(views[0], torch.Generator()))
        >>> loss.shape
        torch.Size([])
    """

    batch_norm: ClassVar[Literal["sync", "shuffle"]] = "shuffle"
    unmix_targets: ClassVar[bool] = False  # its published code mixes the queries, and leaves the keys alone

    def __init__(
        self,
        encoder: nn.Module,
        feature_dim: int,
        projector: nn.Module,
        dim: int = 128,
        temperature: float = 0.2,
        momentum: float = 0.999,
        queue_size: int = 65_536,
        other_parent: bool = False,
        shuffle: bool = True,
        loss_fn: LossFn | None = None,
        sdmp: float = 0.0,
    ) -> None:
        super().__init__()
        check_temperature(temperature)
        check_sdmp(sdmp)
        check_momentum(momentum)
        self.online = EncoderWithProjector(encoder, projector, feature_dim)
        self.target = momentum_copy(self.online)
        self.queue = KeyQueue(queue_size, dim)
        self.temperature = temperature
        self.momentum = momentum
        self.other_parent = other_parent
        self.loss_fn = loss_fn or partial(equation_3, other_parent)
        self.shuffle = shuffle
        self.sdmp = sdmp
        self.steps = torch.tensor(0)  # seeds the shuffle: the same on every process, and after a resume

    def forward(self, views: Views, terms: Sequence[Term], targets: Targets = None) -> tuple[Tensor, Targets]:
        x_q, x_k = check_two_views(views)
        keys = self.encode_keys(x_k) if targets is None else targets
        assert isinstance(keys, Tensor)
        encode = memoize(self.online)
        loss = x_q.new_zeros(())
        for weight, mixture in unmixed_first(terms):
            q = encode(mixture(x_q))
            term = self.loss_fn(q, keys, self.queue.keys, mixture, self.temperature, self.steps)
            if self.sdmp and not mixture.is_identity:
                mixed_keys, related = self.encode_keys(mixture(x_k)), common_parents(mixture)
                common = self.loss_fn(q, mixed_keys, self.queue.keys, related, self.temperature, self.steps)
                term = torch.lerp(term, common, self.sdmp)
            loss = loss + weight * term
        return loss, keys

    @torch.no_grad()
    def encode_keys(self, images: Tensor) -> Tensor:
        """Keys [N, dim] of unmixed images, of length one."""
        grouped = world_size() > 1 or any(isinstance(part, SplitBatchNorm2d) for part in self.target.modules())
        shuffled, permutation = shuffle(images, self.steps) if self.shuffle and grouped else (images, None)
        return l2_normalize(unshuffle(self.target(shuffled), permutation))

    @torch.no_grad()
    def update(self, *targets: Targets, progress: float | Tensor) -> None:
        """The key encoder follows (in time for the next key pass), and the keys of the whole batch join the queue."""
        check_progress(progress)
        keys = check_targets(targets, Tensor, "MoCo's queue needs the keys of the step")
        ema_update(self.target, self.online, self.momentum)
        self.queue.push(gather(torch.cat(keys)))
        self.steps += 1

    def get_extra_state(self) -> Tensor:
        return self.steps.clone()

    def set_extra_state(self, state: Tensor) -> None:
        self.steps = state.cpu().clone()


def equation_3(
    other_parent: bool, q: Tensor, keys: Tensor, queue: Tensor, mixture: Mixture, temperature: float, step: Tensor
) -> Tensor:
    """The paper's loss, which is the same at every step."""
    return info_nce(q, keys, queue, mixture, temperature, other_parent=other_parent)


def moco_v1(encoder: nn.Module, feature_dim: int, *, dim: int = 128, temperature: float = 0.07, **options: Any) -> MoCo:
    """MoCo v1: a linear head and temperature 0.07. `options` are `MoCo`'s.

    Example:
        >>> method = moco_v1(nn.Sequential(nn.Flatten(), nn.Linear(48, 8)), feature_dim=8, queue_size=32)
        >>> method.temperature, method.queue.keys.shape
        (0.07, torch.Size([32, 128]))
    """
    return MoCo(encoder, feature_dim, nn.Linear(feature_dim, dim), dim, temperature, **options)


def moco_v2(
    encoder: nn.Module,
    feature_dim: int,
    *,
    dim: int = 128,
    hidden: int | None = None,
    temperature: float = 0.2,
    **options: Any,
) -> MoCo:
    """MoCo v2: a two-layer head without batch norm, and temperature 0.2. `options` are `MoCo`'s.

    Example:
        >>> method = moco_v2(nn.Sequential(nn.Flatten(), nn.Linear(48, 8)), feature_dim=8, queue_size=32)
        >>> method.temperature, method.queue.keys.shape
        (0.2, torch.Size([32, 128]))
    """
    projector = MLP((feature_dim, hidden or feature_dim, dim), norm=False)
    return MoCo(encoder, feature_dim, projector, dim, temperature, **options)


@dataclass(frozen=True, kw_only=True)
class MoCoConfig(MethodConfig):
    """The options that MoCo and the methods that build on it have in common."""

    module: ClassVar[type[Method]] = MoCo
    augment: ClassVar[str] = "mocov2"

    momentum: Share | None = None
    """Momentum of the key encoder; by default 0.999, and 0.99 in runs of less than 20,000 steps."""
    queue_size: Annotated[int, AtLeast(1), AtMost(1 << 30)] | None = None
    """Number of earlier keys that are negatives; by default 65,536, or half of the images where there are fewer."""
    dim: Width = 128
    """Width of the queries and keys."""
    bn_splits: Count = 1
    """On one device: batch norm over this many parts of the batch, in place of shuffling BN."""

    def resolve(self, run: RunLength) -> Self:
        half = run.images // 2 // run.batch_size * run.batch_size
        queue_size = min(65_536, max(run.batch_size, half)) if self.queue_size is None else self.queue_size
        return replace(self, momentum=momentum_for(self.momentum, 0.999, run.steps), queue_size=queue_size)

    def split(self, encoder: nn.Module) -> nn.Module:
        """The encoder with its batch norm over `bn_splits` parts of the batch."""
        return split_batch_norm(encoder, self.bn_splits) if self.bn_splits > 1 else encoder

    def shared_options(self) -> dict[str, Any]:
        """Options of `MoCo` that every subclass passes on."""
        return {"dim": self.dim, "momentum": self.momentum, "queue_size": self.queue_size}


@dataclass(frozen=True, kw_only=True)
class MoCoV1Config(MoCoConfig):
    """MoCo v1 (He et al., 2020): contrasts queries with a queue of keys from a momentum encoder; linear projector.

    Example:
        >>> MoCoV1Config(queue_size=4096).temperature
        0.07
    """

    name: ClassVar[str] = "mocov1"
    augment: ClassVar[str] = "mocov1"

    temperature: Positive = 0.07
    """Temperature of the contrastive loss."""
    other_parent: bool = False
    """Count the key of a mixture's other parent among the negatives."""
    sdmp: Share = 0.0
    """Share of a mixed term's loss whose positives are mixtures with common parents (SDMP), not the parents."""

    def build(self, encoder: nn.Module, feature_dim: int, run: RunLength) -> MoCo:
        options = self.shared_options() | {"temperature": self.temperature, "sdmp": self.sdmp}
        options["other_parent"] = self.other_parent
        return moco_v1(self.split(encoder), feature_dim, **options)


@dataclass(frozen=True, kw_only=True)
class MoCoV2Config(MoCoConfig):
    """MoCo v2 (Chen et al., 2020): MoCo with a two-layer projector and SimCLR's augmentation.

    Example:
        >>> MoCoV2Config().resolve(RunLength(images=1000, steps=200, batch_size=100)).queue_size
        500
    """

    name: ClassVar[str] = "mocov2"

    temperature: Positive = 0.2
    """Temperature of the contrastive loss."""
    hidden: Width | None = None
    """Width of the projector's hidden layer; by default that of the encoder."""
    other_parent: bool = False
    """Count the key of a mixture's other parent among the negatives."""
    sdmp: Share = 0.0
    """Share of a mixed term's loss whose positives are mixtures with common parents (SDMP), not the parents."""

    def build(self, encoder: nn.Module, feature_dim: int, run: RunLength) -> MoCo:
        options = self.shared_options() | {"temperature": self.temperature, "sdmp": self.sdmp}
        options["other_parent"] = self.other_parent
        return moco_v2(self.split(encoder), feature_dim, hidden=self.hidden, **options)
