"""MoCo v1 and v2 (He et al., 2020; Chen et al., 2020) and MoCo-BSIM (Eq. 3)."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor, nn

from mixview.distributed import gather, shuffle, unshuffle, world_size
from mixview.losses import check_temperature, info_nce, unit
from mixview.methods.method import Method, Targets, Views, check_progress, check_views, once, unmixed_first
from mixview.mixing import Mixture
from mixview.nn import MLP, KeyQueue, Projected, SplitBatchNorm2d, check_momentum, follow, momentum_copy
from mixview.objective import Term

Contrast = Callable[[Tensor, Tensor, Tensor, Mixture, float, int], Tensor]
"""The loss of a term: queries [N, D], keys [N, D], queue [K, D], mixture, temperature, and the number of the step."""


@final
class MoCo(Method):
    """Queries are the mixtures; keys are unmixed, from a slowly following encoder; earlier keys are the negatives.

    Query passes under SIM / BSIM / WBSIM: 1 / 1 / 2, key passes 1.

    Args:
        encoder: images [N, C, H, W] -> features [N, feature_dim].
        feature_dim: the encoder's width.
        projector: features -> queries and keys of width `dim`.
        dim: the width of queries and keys.
        temperature: tau.
        momentum: of the key encoder.
        queue_size: how many earlier keys are negatives.
        other_parent: count a mixture's other parent among the negatives of each term.
        shuffle: shuffling BN: keys are batch-normalised among other images than the queries, which could cheat
            otherwise. Across processes, or, on one, across the groups of `mixview.nn.split_batch_norm`.
        contrast: the loss of a term; Eq. 3 unless it is a relative's (`mixview.methods.mixco`, `….mochi`).
    """

    batch_norm: ClassVar[Literal["sync", "shuffle"]] = "shuffle"

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
        contrast: Contrast | None = None,
    ) -> None:
        super().__init__()
        check_temperature(temperature)
        check_momentum(momentum)
        self.online = Projected(encoder, projector, feature_dim)
        self.target = momentum_copy(self.online)
        self.queue = KeyQueue(queue_size, dim)
        self.temperature = temperature
        self.momentum = momentum
        self.other_parent = other_parent
        self.contrast = contrast or partial(equation_3, other_parent)
        self.shuffle = shuffle
        self.steps = 0  # seeds the shuffle: the same on every process, and after a resume

    def forward(self, views: Views, terms: Sequence[Term], targets: Targets = None) -> tuple[Tensor, Targets]:
        check_views(views)
        x_q, x_k = views
        keys = self.encode_keys(x_k) if targets is None else targets
        assert isinstance(keys, Tensor)
        encode = once(self.online)
        loss = x_q.new_zeros(())
        for weight, mixture in unmixed_first(terms):
            q = encode(mixture(x_q))
            loss = loss + weight * self.contrast(q, keys, self.queue.keys, mixture, self.temperature, self.steps)
        return loss, keys

    @torch.no_grad()
    def encode_keys(self, images: Tensor) -> Tensor:
        """Keys [N, dim] of unmixed images, of length one."""
        grouped = world_size() > 1 or any(isinstance(part, SplitBatchNorm2d) for part in self.target.modules())
        shuffled, permutation = shuffle(images, self.steps) if self.shuffle and grouped else (images, None)
        return unit(unshuffle(self.target(shuffled), permutation))

    @torch.no_grad()
    def advance(self, *targets: Targets, progress: float) -> None:
        """The key encoder follows (in time for the next key pass), and the keys of the whole batch join the queue."""
        check_progress(progress)
        keys = [each for each in targets if isinstance(each, Tensor)]
        if not keys or len(keys) < len(targets):
            raise TypeError(
                "MoCo's queue needs the keys of the step: pass what `forward` or `backward` returned as targets, one "
                f"argument a micro-batch, got {[type(each).__name__ for each in targets]}"
            )
        follow(self.target, self.online, self.momentum)
        self.queue.push(gather(torch.cat(keys)))
        self.steps += 1

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.steps)

    def set_extra_state(self, state: Tensor) -> None:
        self.steps = int(state)


def equation_3(
    other_parent: bool, q: Tensor, keys: Tensor, queue: Tensor, mixture: Mixture, temperature: float, step: int
) -> Tensor:
    """The paper's loss, which is the same at every step."""
    return info_nce(q, keys, queue, mixture, temperature, other_parent=other_parent)


def moco_v1(encoder: nn.Module, feature_dim: int, *, dim: int = 128, temperature: float = 0.07, **options: Any) -> MoCo:
    """MoCo v1: a linear head and temperature 0.07. `options` are `MoCo`'s."""
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
    """MoCo v2: a two-layer head without batch norm, and temperature 0.2. `options` are `MoCo`'s."""
    projector = MLP((feature_dim, hidden or feature_dim, dim), norm=False)
    return MoCo(encoder, feature_dim, projector, dim, temperature, **options)
