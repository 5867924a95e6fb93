"""i-Mix (Lee et al., 2021): every image of a batch is a class of its own, and a mixture has the labels of its parents.

    method = i_mix(encoder, feature_dim)                                    # on the N-pair loss, i-Mix's own setting
    objective = bsim(Mixup(lam_per="image", partner="permutation", lam_at_least_half=True))

On MoCo it is `moco_v2(encoder, feature_dim, loss_fn=batch_keys)`. On BYOL, where it regresses
`lam z_i + (1 - lam) z_j` without normalizing it, its gradient is that of Eq. 4: what `BYOL` does by itself.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from mixview.distributed import gather, gather_mixture, own_rows
from mixview.losses import check_temperature, l2_normalize
from mixview.methods.base import Method, MethodConfig, RunLength
from mixview.methods.moco import MoCo, MoCoConfig, moco_v2
from mixview.methods.simclr import SimCLR
from mixview.mixing import Mixture
from mixview.nn import MLP
from mixview.options import Positive, Width


def virtual_labels(
    query: Tensor,
    keys: Tensor,
    mixture: Mixture,
    temperature: float,
    *,
    queue: Tensor | None = None,
    rows: slice | None = None,
) -> Tensor:
    """i-Mix's loss: a query is told from all keys of the batch (and the queue); its label is lam at its own image and
    1 - lam at its partner. Mean over the queries.

    Args:
        query: [n, D] queries of the mixtures.
        keys: [N, D] keys of the unmixed views of the whole batch.
        mixture: A mixtures of these N images.
        temperature: tau.
        queue: [K, D] further negatives.
        rows: the mixtures, of A, that the queries are of; all by default.
    """
    check_temperature(temperature)
    rows = slice(None) if rows is None else rows
    if len(query) != len(mixture.lam[rows]) or len(keys) != mixture.images or query.shape[1:] != keys.shape[1:]:
        raise ValueError(
            f"queries {list(query.shape)} do not fit keys {list(keys.shape)} of a mixture of {mixture.images} images"
        )
    with torch.autocast(query.device.type, enabled=False):
        q, k = l2_normalize(query), l2_normalize(keys)
        logits = q @ k.T.to(q.dtype) / temperature
        denominator = logits
        if queue is not None:
            denominator = torch.cat([logits, q @ l2_normalize(queue).T.to(q.dtype) / temperature], dim=1)
        loss = torch.logsumexp(denominator, dim=1)
        for parent, share in mixture.parts(q.dtype, rows):
            loss = loss - share * logits.gather(1, parent.unsqueeze(1)).squeeze(1)
        return loss.mean()


def n_pair(
    mixed_z: Tensor, plain_z: Tensor, mixture: Mixture, temperature: float, *, rows: slice | None = None
) -> Tensor:
    """The N-pair loss under a mixture, in the place of `nt_xent`: no other anchor is among the negatives."""
    own = slice(None) if rows is None else rows
    return virtual_labels(mixed_z[own], plain_z, mixture, temperature, rows=rows)


def batch_keys(q: Tensor, keys: Tensor, queue: Tensor, mixture: Mixture, temperature: float, step: Tensor) -> Tensor:
    """i-Mix on MoCo: the keys of all processes' batches are told from each other, and from the queue."""
    rows = own_rows(len(mixture))
    return virtual_labels(q, gather(keys), gather_mixture(mixture), temperature, queue=queue, rows=rows)


def i_mix(encoder: nn.Module, feature_dim: int, projector: nn.Module | None = None, temperature: float = 0.2) -> SimCLR:
    """i-Mix on the N-pair loss: anchors from the first view, targets from the second. Encoder passes 2 / 2 / 3.

    Example:
        >>> method = i_mix(nn.Sequential(nn.Flatten(), nn.Linear(48, 8)), feature_dim=8)
        >>> type(method).__name__, method.temperature
        ('SimCLR', 0.2)
    """
    return SimCLR(encoder, feature_dim, projector, temperature, symmetric=False, loss_fn=n_pair)


@dataclass(frozen=True, kw_only=True)
class IMixConfig(MethodConfig):
    """i-Mix (Lee et al., 2021) on the N-pair loss; combine it with BSIM and Mixup.

    Example:
        >>> IMixConfig(dim=64).temperature
        0.2
    """

    name: ClassVar[str] = "imix"
    module: ClassVar[type[Method]] = SimCLR
    augment: ClassVar[str] = "simclr"
    optimizer: ClassVar[str] = "lars"

    temperature: Positive = 0.2
    """Temperature of the contrastive loss."""
    hidden: Width | None = None
    """Width of the projector's hidden layer; by default that of the encoder."""
    dim: Width = 128
    """Width of the projections."""

    def build(self, encoder: nn.Module, feature_dim: int, run: RunLength) -> SimCLR:
        projector = MLP((feature_dim, self.hidden or feature_dim, self.dim), last_norm="affine")
        return i_mix(encoder, feature_dim, projector, self.temperature)


@dataclass(frozen=True, kw_only=True)
class IMixMoCoConfig(MoCoConfig):
    """i-Mix (Lee et al., 2021) on MoCo v2; combine it with BSIM and Mixup.

    Example:
        >>> IMixMoCoConfig(queue_size=4096).temperature
        0.2
    """

    name: ClassVar[str] = "imix-moco"

    temperature: Positive = 0.2
    """Temperature of the contrastive loss."""
    hidden: Width | None = None
    """Width of the projector's hidden layer; by default that of the encoder."""

    def build(self, encoder: nn.Module, feature_dim: int, run: RunLength) -> MoCo:
        encoder = self.split(encoder)
        return moco_v2(
            encoder,
            feature_dim,
            hidden=self.hidden,
            temperature=self.temperature,
            loss_fn=batch_keys,
            **self.shared_options(),
        )
