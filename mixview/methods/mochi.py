"""MoCHi (Kalantidis et al., 2020): MoCo with negatives that are mixed of the hardest ones in the queue, as features.

    h  = unit(a n_i + (1 - a) n_j),  a in (0, 1):    between two of a query's hardest negatives
    h' = unit(b q + (1 - b) n_j),    b in (0, 0.5):  on the way from one of them to the query itself

They are made anew for every query and step, and take no gradient.
"""

import hashlib
from typing import Any, final

import torch
from torch import Tensor, nn

from mixview.distributed import rank
from mixview.losses import info_nce, unit
from mixview.methods.moco import MoCo, moco_v2
from mixview.mixing import Mixture


@final
class HardNegatives:
    """Eq. 3 with synthetic negatives beside the queue.

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
        self, q: Tensor, keys: Tensor, queue: Tensor, mixture: Mixture, temperature: float, step: int
    ) -> Tensor:
        if step < self.start or self.pairs + self.with_query == 0:
            return info_nce(q, keys, queue, mixture, temperature)
        if self.hardest > len(queue):
            raise ValueError(
                f"{self.hardest} hardest negatives of a queue of {len(queue)}: choose fewer, or a longer queue"
            )
        digest = hashlib.blake2b(f"mochi/{step}/{rank()}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
        made = self.synthesise(unit(q).detach(), unit(queue), generator)
        with torch.autocast(q.device.type, enabled=False):
            cosines = torch.einsum("nd,nsd->ns", unit(q), made.to(unit(q).dtype))
        return info_nce(q, keys, queue, mixture, temperature, extra=cosines)

    @torch.no_grad()
    def synthesise(self, q: Tensor, queue: Tensor, generator: torch.Generator) -> Tensor:
        """The synthetic negatives [n, pairs + with_query, D] of queries [n, D]: those of pairs first."""
        nearest = (q @ queue.T.to(q.dtype)).topk(self.hardest, dim=1).indices
        first, second, a, third, b = (each.to(q.device, non_blocking=True) for each in self.draw(len(q), generator))
        hard = queue[nearest].to(q.dtype)  # [n, hardest, D]

        def pick(index: Tensor) -> Tensor:
            return hard.gather(1, index.unsqueeze(2).expand(-1, -1, hard.shape[2]))

        a, b = (share.to(q.dtype).unsqueeze(2) for share in (a, b))
        between = a * pick(first) + (1 - a) * pick(second)
        towards = b * q.unsqueeze(1) + (1 - b) * pick(third)
        return torch.nn.functional.normalize(torch.cat([between, towards], dim=1), dim=2)

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Which of the hardest are mixed, and how: two and a share for the pairs, one and a share with the query."""
        first = torch.randint(self.hardest, (count, self.pairs), generator=generator)
        other = torch.randint(1, self.hardest, (count, self.pairs), generator=generator)  # never itself
        a = torch.rand(count, self.pairs, generator=generator, dtype=torch.float64)
        third = torch.randint(self.hardest, (count, self.with_query), generator=generator)
        b = torch.rand(count, self.with_query, generator=generator, dtype=torch.float64) / 2
        return first, (first + other) % self.hardest, a, third, b


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
    """MoCo v2 with hard negatives mixed in. See `HardNegatives`; `options` are `moco_v2`'s."""
    return moco_v2(encoder, feature_dim, contrast=HardNegatives(hardest, pairs, with_query, start), **options)
