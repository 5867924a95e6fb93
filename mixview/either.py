"""One mixture or another, by chance. Needs torch and nothing else."""

from typing import final

import torch
from torch import Tensor

from mixview.mixing import Generators, Mixer, Mixture, list_generators


@final
class Either(Mixer):
    """One mixer or the other, by chance, for a whole batch: Un-Mix's CutMix or Mixup.

    Args:
        first: drawn from with probability `p`.
        second: else.
        p: the probability of the first.
    """

    def __init__(self, first: Mixer, second: Mixer, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"p is a probability, 0 to 1, got {p}")
        self.first = first
        self.second = second
        self.p = p

    def draw(self, images: Tensor, generator: Generators, *, mix_groups: int = 1, strength: float = 1.0) -> Mixture:
        source = list_generators(generator, mix_groups)[0]
        chosen = float(torch.rand((), generator=source, device=source.device)) < self.p
        mixer = self.first if chosen else self.second
        return mixer.draw(images, generator, mix_groups=mix_groups, strength=strength)

    def __repr__(self) -> str:
        return f"Either({self.first!r}, {self.second!r}, p={self.p:g})"
