"""MoCHi (Kalantidis et al., 2020): MoCo with negatives that are mixed of the hardest ones in the queue, as features.

    h  = l2_normalize(a n_i + (1 - a) n_j),  a in (0, 1):    between two of a query's hardest negatives
    h' = l2_normalize(b q + (1 - b) n_j),    b in (0, 0.5):  on the way from one of them to the query itself

They are made for every query and step, and take no gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Self, final

import torch
from torch import Tensor, nn

from mixview.distributed import rank
from mixview.losses import info_nce, l2_normalize
from mixview.methods.base import RunLength
from mixview.methods.moco import MoCo, MoCoConfig, moco_v2
from mixview.mixing import Mixture
from mixview.options import AtLeast, NonNegative, Positive, Share, Width
from mixview.rng import seed_from


@torch.library.custom_op("mixview::mochi_draw", mutates_args=())
def draw(step: Tensor, rank: int, count: int, hardest: int, pairs: int, with_query: int) -> list[Tensor]:
    """Draw which hardest negatives are mixed, and how: two and a share for pairs, one and a share with the query.

    An operator of its own, because no graph of torch.compile holds a generator.
    """
    generator = torch.Generator().manual_seed(seed_from("mochi", int(step), rank))
    first = torch.randint(hardest, (count, pairs), generator=generator)
    other = torch.randint(1, hardest, (count, pairs), generator=generator)  # never itself
    a = torch.rand(count, pairs, generator=generator, dtype=torch.float64)
    third = torch.randint(hardest, (count, with_query), generator=generator)
    b = torch.rand(count, with_query, generator=generator, dtype=torch.float64) / 2
    return [first, (first + other) % hardest, a, third, b]


@draw.register_fake
def _(step: Tensor, rank: int, count: int, hardest: int, pairs: int, with_query: int) -> list[Tensor]:
    integers, shares = partial(torch.empty, dtype=torch.int64), partial(torch.empty, dtype=torch.float64)
    of_pairs, of_query = (count, pairs), (count, with_query)
    return [integers(of_pairs), integers(of_pairs), shares(of_pairs), integers(of_query), shares(of_query)]


@final
class HardNegatives:
    """Eq. 3 with synthetic negatives in addition to the queue.

    Args:
        hardest: N, how many of a query's nearest keys in the queue are mixed.
        pairs: s, mixtures of two of them.
        with_query: s', mixtures of one of them and the query.
        start: the step from which on there are any.
    """

    def __init__(self, hardest: int = 1024, pairs: int = 1024, with_query: int = 128, start: int = 0) -> None:
        if hardest < 2 or min(pairs, with_query, start) < 0:
            raise ValueError(
                f"at least 2 hardest negatives make a mixture, and no number is below 0: got {hardest} hardest, "
                f"{pairs} pairs, {with_query} with the query, start {start}"
            )
        self.hardest, self.pairs, self.with_query, self.start = hardest, pairs, with_query, start

    def __call__(
        self, q: Tensor, keys: Tensor, queue: Tensor, mixture: Mixture, temperature: float, step: Tensor
    ) -> Tensor:
        if self.pairs + self.with_query == 0:
            return info_nce(q, keys, queue, mixture, temperature)
        if self.hardest > len(queue):
            raise ValueError(
                f"{self.hardest} hardest negatives of a queue of {len(queue)}: choose fewer, or a longer queue"
            )
        drawn = draw(step, rank(), len(q), self.hardest, self.pairs, self.with_query)
        made = self.synthesize(l2_normalize(q).detach(), l2_normalize(queue), drawn)
        with torch.autocast(q.device.type, enabled=False):
            cosines = torch.einsum("nd,nsd->ns", l2_normalize(q), made.to(l2_normalize(q).dtype))
        if self.start:
            early = (step < self.start).to(q.device, non_blocking=True)
            cosines = cosines.masked_fill(early, -torch.inf)
        return info_nce(q, keys, queue, mixture, temperature, extra=cosines)

    @torch.no_grad()
    def synthesize(self, q: Tensor, queue: Tensor, drawn: Sequence[Tensor]) -> Tensor:
        """The synthetic negatives [n, pairs + with_query, D] of queries [n, D]: those of pairs first."""
        nearest = (q @ queue.T.to(q.dtype)).topk(self.hardest, dim=1).indices
        first, second, a, third, b = (each.to(q.device, non_blocking=True) for each in drawn)
        hard = queue[nearest].to(q.dtype)  # [n, hardest, D]

        def pick(index: Tensor) -> Tensor:
            return hard.gather(1, index.unsqueeze(2).expand(-1, -1, hard.shape[2]))

        a, b = (share.to(q.dtype).unsqueeze(2) for share in (a, b))
        between = a * pick(first) + (1 - a) * pick(second)
        towards = b * q.unsqueeze(1) + (1 - b) * pick(third)
        return torch.nn.functional.normalize(torch.cat([between, towards], dim=1), dim=2)


def moco_mochi(
    encoder: nn.Module,
    feature_dim: int,
    *,
    hardest: int = 1024,
    pairs: int = 1024,
    with_query: int = 128,
    start: int = 0,
    **options: Any,
) -> MoCo:
    """MoCo v2 with hard negatives mixed in. See `HardNegatives`; `options` are `moco_v2`'s.

    Example:
        >>> encoder = nn.Sequential(nn.Flatten(), nn.Linear(48, 8))
        >>> method = moco_mochi(encoder, feature_dim=8, hardest=8, pairs=8, with_query=2, queue_size=32)
        >>> type(method).__name__
        'MoCo'
    """
    return moco_v2(encoder, feature_dim, loss_fn=HardNegatives(hardest, pairs, with_query, start), **options)


@dataclass(frozen=True, kw_only=True)
class MoCHiConfig(MoCoConfig):
    """MoCHi (Kalantidis et al., 2020): MoCo v2 with negatives that are mixed from the hardest ones.

    Example:
        >>> config = MoCHiConfig(queue_size=4096, hardest=512)
        >>> config.resolve(RunLength(images=10_000, steps=1000, batch_size=100)).synthetic
        (512, 64)
    """

    name: ClassVar[str] = "mochi"

    temperature: Positive = 0.2
    """Temperature of the contrastive loss."""
    hidden: Width | None = None
    """Width of the projector's hidden layer; by default that of the encoder."""
    hardest: Annotated[int, AtLeast(2)] | None = None
    """Number of a query's nearest keys that are mixed to negatives; by default 1024, or a quarter of a short queue."""
    synthetic: tuple[NonNegative, NonNegative] | None = None
    """Number of mixtures of two of these keys, and of one with the query; by default `hardest` and an eighth of it."""
    synthetic_from: Share = 0.0
    """Share of training after which synthetic negatives are used."""

    def resolve(self, run: RunLength) -> Self:
        resolved = super().resolve(run)
        assert resolved.queue_size is not None
        hardest = self.hardest or min(1024, max(2, resolved.queue_size // 4))
        return replace(resolved, hardest=hardest, synthetic=self.synthetic or (hardest, hardest // 8))

    def build(self, encoder: nn.Module, feature_dim: int, run: RunLength) -> MoCo:
        assert self.hardest is not None
        assert self.synthetic is not None
        pairs, with_query = self.synthetic
        return moco_mochi(
            self.split(encoder),
            feature_dim,
            hidden=self.hidden,
            temperature=self.temperature,
            hardest=self.hardest,
            pairs=pairs,
            with_query=with_query,
            start=round(self.synthetic_from * run.steps),
            **self.shared_options(),
        )
