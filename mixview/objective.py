"""Objectives: weighted lists of mixers. SIM, BSIM, WBSIM and MixAug are one objective with other weights and mixers."""

import math
from collections.abc import Sequence
from typing import NamedTuple, final

from torch import Tensor

from mixview.mixing import CutMix, Generators, Identity, MixAug, Mixer, Mixture, Mixup, RandomChoice


class Term(NamedTuple):
    """One drawn term of an objective: how much it counts, and the mixture that its anchors are.

    Example:
        >>> import torch
        >>> for weight, mixture in wbsim(0.7, 0.3).draw(torch.rand(2, 3, 4, 4), torch.Generator()):
        ...     print(weight, mixture.is_identity)
        0.7 False
        0.3 True
    """

    weight: float
    mixture: Mixture


@final
class Objective:
    """A weighted sum of one method's loss under several mixtures.

    Args:
        terms: (weight, mixer) pairs, such as `[(0.5, CutMix()), (0.5, Identity())]`. A term of weight 0 is left out,
            and so costs nothing.

    Example:
        >>> import torch
        >>> objective = Objective([(0.5, CutMix()), (0.25, Mixup()), (0.25, Identity())])
        >>> terms = objective.draw(torch.rand(4, 3, 8, 8), torch.Generator())
        >>> [term.weight for term in terms]
        [0.5, 0.25, 0.25]
    """

    def __init__(self, terms: Sequence[tuple[float, Mixer]]) -> None:
        for weight, mixer in terms:
            if not isinstance(mixer, Mixer):
                raise TypeError(f"the mixer of a term must be an instance such as CutMix(), got {mixer!r}")
            if not isinstance(weight, int | float):
                raise TypeError(f"the weight of a term must be a number, got {weight!r}: wbsim(0.5, 0.5, CutMix())")
            if not (math.isfinite(weight) and weight >= 0):
                raise ValueError(f"the weight of a term must be a number of at least 0, got {weight}")
        self.terms = tuple((float(weight), mixer) for weight, mixer in terms if weight > 0)
        if not self.terms:
            raise ValueError("an objective needs a term of positive weight, such as (1.0, CutMix())")

    def draw(
        self, images: Tensor, generator: Generators, *, mix_groups: int = 1, mix_strength: float = 1.0
    ) -> list[Term]:
        """One mixture per term, for a batch shaped like `images`: draw once per step, apply to all views."""
        # A custom mixer need not know of mix_strength unless it is asked for.
        options: dict[str, float] = {} if mix_strength == 1 else {"mix_strength": mix_strength}
        return [
            Term(weight, mixer.draw(images, generator, mix_groups=mix_groups, **options))
            for weight, mixer in self.terms
        ]

    def __repr__(self) -> str:
        return "Objective([" + ", ".join(f"({weight:g}, {mixer!r})" for weight, mixer in self.terms) + "])"


def sim() -> Objective:
    """Single instance, multiple views: the method as published.

    Example:
        >>> sim()
        Objective([(1, Identity())])
    """
    return Objective([(1.0, Identity())])


def bsim(mixer: Mixer | None = None) -> Objective:
    """Beyond single instance: every anchor is a mixture (CutMix unless another mixer is given).

    Example:
        >>> [(weight, mixer)] = bsim(Mixup(alpha=0.5)).terms
        >>> weight, mixer.alpha
        (1.0, 0.5)
    """
    return Objective([(1.0, mixer or CutMix())])


def wbsim(w1: float = 0.5, w2: float = 0.5, mixer: Mixer | None = None) -> Objective:
    """Weighted BSIM: `w1 * BSIM + w2 * SIM`.

    Example:
        >>> [(weight, type(mixer).__name__) for weight, mixer in wbsim(0.7, 0.3).terms]
        [(0.7, 'CutMix'), (0.3, 'Identity')]
    """
    return Objective([(w1, mixer or CutMix()), (w2, Identity())])


def unmix(mixer: Mixer | None = None) -> Objective:
    """Un-Mix (Shen et al., 2022): SIM and a mixed term, of equal weight; CutMix or Mixup, one lam per batch.

    For MoCo as it is, and for the others inside `mixview.methods.UnMix`.

    Example:
        >>> [(weight, type(mixer).__name__) for weight, mixer in unmix().terms]
        [(1.0, 'RandomChoice'), (1.0, 'Identity')]
    """
    return Objective([(1.0, mixer or RandomChoice(Mixup(), CutMix())), (1.0, Identity())])


def mixaug(mixer: Mixer | None = None) -> Objective:
    """The ablation: mixed pixels, treated as if they were the unmixed image.

    Example:
        >>> [(weight, mixer)] = mixaug(Mixup()).terms
        >>> type(mixer).__name__, type(mixer.mixer).__name__
        ('MixAug', 'Mixup')
    """
    return Objective([(1.0, MixAug(mixer or CutMix()))])
