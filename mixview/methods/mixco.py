"""MixCo (Kim et al., 2020): MoCo with semi-positive pairs of a mixture and its parents, told from all keys there are.

    method = moco_mixco(encoder, feature_dim)
    objective = wbsim(1.0, 1.0, Mixup(per_sample=True, partner="permutation"))     # MoCo's loss + beta times MixCo's

Its loss differs from Eq. 3 in two things: the other keys of the batch, both parents among them, stand in the
denominator beside the queue, as in i-Mix; and mixtures have a temperature of their own.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn

from mixview.losses import check_temperature, info_nce
from mixview.methods.imix import batch_keys
from mixview.methods.moco import MoCo, moco_v2
from mixview.mixing import Mixture


def semi_positive(
    mix_temperature: float, q: Tensor, keys: Tensor, queue: Tensor, mixture: Mixture, temperature: float, step: int
) -> Tensor:
    """MixCo's term for mixtures, MoCo's for unmixed images."""
    if mixture.is_identity:
        return info_nce(q, keys, queue, mixture, temperature)
    return batch_keys(q, keys, queue, mixture, mix_temperature, step)


def moco_mixco(encoder: nn.Module, feature_dim: int, *, mix_temperature: float = 1.0, **options: Any) -> MoCo:
    """MoCo v2 with MixCo's loss. `options` are `moco_v2`'s.

    Args:
        mix_temperature: of the term of the mixtures; published are 1 for ImageNet and 0.05 for small images.
    """
    check_temperature(mix_temperature)
    return moco_v2(encoder, feature_dim, contrast=partial(semi_positive, mix_temperature), **options)
