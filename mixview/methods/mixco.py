"""MixCo (Kim et al., 2020): MoCo with semi-positive pairs of a mixture and its parents, told from all keys there are.

    method = moco_mixco(encoder, feature_dim)
    objective = wbsim(1.0, 1.0, Mixup(lam_per="image", partner="permutation"))     # MoCo's loss + beta times MixCo's

Its loss differs from Eq. 3 in two things: the other keys of the batch, both parents among them, stand in the
denominator besides the queue, as in i-Mix; and mixtures have a temperature of their own.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn

from mixview.losses import check_temperature, info_nce
from mixview.methods.base import RunLength
from mixview.methods.imix import batch_keys
from mixview.methods.moco import MoCo, MoCoConfig, moco_v2
from mixview.mixing import Mixture
from mixview.options import Positive, Width


def semi_positive(
    mix_temperature: float, q: Tensor, keys: Tensor, queue: Tensor, mixture: Mixture, temperature: float, step: Tensor
) -> Tensor:
    """MixCo's term for mixtures, MoCo's for unmixed images."""
    if mixture.is_identity:
        return info_nce(q, keys, queue, mixture, temperature)
    return batch_keys(q, keys, queue, mixture, mix_temperature, step)


def moco_mixco(encoder: nn.Module, feature_dim: int, *, mix_temperature: float = 1.0, **options: Any) -> MoCo:
    """MoCo v2 with MixCo's loss. `options` are `moco_v2`'s.

    Args:
        mix_temperature: the temperature of the mixtures' term; published are 1 for ImageNet and 0.05 for small images.

    Example:
        >>> encoder = nn.Sequential(nn.Flatten(), nn.Linear(48, 8))
        >>> method = moco_mixco(encoder, feature_dim=8, mix_temperature=0.05, queue_size=32)
        >>> type(method).__name__
        'MoCo'
    """
    check_temperature(mix_temperature)
    return moco_v2(encoder, feature_dim, loss_fn=partial(semi_positive, mix_temperature), **options)


@dataclass(frozen=True, kw_only=True)
class MixCoConfig(MoCoConfig):
    """MixCo (Kim et al., 2020): MoCo v2 whose mixtures are semi-positive pairs; combine it with WBSIM and Mixup.

    Example:
        >>> MixCoConfig(mix_temperature=0.05, queue_size=4096).temperature
        0.2
    """

    name: ClassVar[str] = "mixco"

    temperature: Positive = 0.2
    """Temperature of the contrastive loss of unmixed images."""
    mix_temperature: Positive = 1.0
    """Temperature of the contrastive loss of mixtures; published: 1 for ImageNet, 0.05 for small images."""
    hidden: Width | None = None
    """Width of the projector's hidden layer; by default that of the encoder."""

    def build(self, encoder: nn.Module, feature_dim: int, run: RunLength) -> MoCo:
        return moco_mixco(
            self.split(encoder),
            feature_dim,
            mix_temperature=self.mix_temperature,
            hidden=self.hidden,
            temperature=self.temperature,
            **self.shared_options(),
        )
