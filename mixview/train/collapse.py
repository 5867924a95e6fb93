"""Measures of collapse, from the features of two views of the same images, and a warning in words.

Each is a pure function of features [N, D], computed in float64 on the CPU: a few hundred images every few epochs. Take
the projections: they collapse first, while batch norm can keep the encoder's features apart for long.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mixview.mixing import Mixture

# Below these projections are called collapsed. Random ResNet-18s and -50s had a std of 0.32 to 1 and 0.5 to 0.9 of the
# rank; pulled together with nothing to keep images apart, a std of 0.14 after 5 steps, 0.09 after 10.
COLLAPSED_STD = 0.1
COLLAPSED_RANK = 0.03


class MixtureFit(NamedTuple):
    """The features of mixtures relative to those of their parents."""

    larger: float
    """Mean cosine to the parent with the larger share."""
    smaller: float
    """Mean cosine to the parent with the smaller share."""
    follows_lam: float
    """Correlation of a parent's cosine with its share: 1, the features follow the pixels; 0, they do not."""


class Diagnostics(NamedTuple):
    """Measures of a representation at one step."""

    std: float
    effective_rank: float
    alignment: float
    uniformity: float
    mixture: MixtureFit | None = None

    def items(self) -> dict[str, float]:
        """Name and value of each measure, for a log."""
        named = {key: value for key, value in self._asdict().items() if key != "mixture"}
        if self.mixture is not None:
            named |= {f"mixture_{key}": value for key, value in self.mixture._asdict().items()}
        return named


def diagnose(
    first: Tensor, second: Tensor, *, mixed: Tensor | None = None, mixture: Mixture | None = None
) -> Diagnostics:
    """All measures at once.

    Args:
        first: [N, D] features, or projections, of one view of N images.
        second: [N, D] of another view of the same images.
        mixed: [N, D] of mixtures of the first view.
        mixture: the mixture that they were mixed by.
    """
    if first.shape != second.shape:
        raise ValueError(f"both views need features of one shape, got {list(first.shape)} and {list(second.shape)}")
    first, second = to_float64(first), to_float64(second)
    fit = mixture_fit(mixed, first, mixture) if mixed is not None and mixture is not None else None
    return Diagnostics(
        feature_std(first), effective_rank(first), alignment(first, second), uniformity(first, second), fit
    )


def feature_std(features: Tensor) -> float:
    """`sqrt(D)` times the standard deviation over the images of `z / |z|`, mean over its D entries (SimSiam, fig. 2).

    0: every image has the same features, complete collapse. 1: spread evenly over the sphere.
    """
    z = F.normalize(to_float64(features), dim=1)
    return float(z.std(0, correction=0).mean()) * math.sqrt(z.shape[1])


def effective_rank(features: Tensor) -> float:
    """`exp(-sum p log p)` with `p` the singular values over their sum (RankMe, Garrido et al., 2023).

    The number of directions that the features use, 1 to min(N, D); 0 for features that are all zero. As published the
    features are not centered: a large common mean counts as a direction, and lowers the share of the others.
    """
    values = torch.linalg.svdvals(to_float64(features))
    if not float(values.sum()):
        return 0.0
    p = values / values.sum()
    return math.exp(float(torch.special.entr(p).sum()))


def alignment(first: Tensor, second: Tensor) -> float:
    """`mean |u_i - v_i|²` of the unit features of two views (Wang & Isola, 2020). 0: views of an image agree."""
    u, v = F.normalize(to_float64(first), dim=1), F.normalize(to_float64(second), dim=1)
    return float((u - v).square().sum(1).mean())


def uniformity(*views: Tensor) -> float:
    """`log mean exp(-2 |u_i - u_j|²)` over the pairs i < j of unit features, mean over the views (Wang & Isola, 2020).

    0: all in one place. About -4 is the least there is, reached by many dimensions spread evenly.
    """
    each = []
    for view in views:
        distance = F.pdist(F.normalize(to_float64(view), dim=1)).square()
        each.append(float(torch.logsumexp(-2 * distance, dim=0)) - math.log(len(distance)))
    return sum(each) / len(each)


def mixture_fit(mixed: Tensor, plain: Tensor, mixture: Mixture) -> MixtureFit:
    """The place of mixtures among features: cosines to their two parents, and their correlation with the shares.

    Images that are their own partner are no mixtures and left out. Of more than two parents the first two are compared.

    Args:
        mixed: [A, D] features of the mixtures.
        plain: [N, D] features of the unmixed images, of the same view.
    """
    u, v = F.normalize(to_float64(mixed), dim=1), F.normalize(to_float64(plain), dim=1)
    own, partner, lam = mixture.own.cpu(), mixture.partner.cpu(), mixture.lam.cpu().double()
    kept = partner != own
    if not bool(kept.any()):
        raise ValueError("nothing is mixed here, every image is its own partner: draw the mixture with CutMix or Mixup")
    cosine = torch.stack([(u * v[own]).sum(1), (u * v[partner]).sum(1)], dim=1)[kept]  # to each parent
    share = torch.stack([lam, 1 - lam], dim=1)[kept]
    order = share.sort(dim=1, descending=True, stable=True).indices
    larger, smaller = cosine.gather(1, order).mean(0).tolist()
    std_product = float(share.std(correction=0) * cosine.std(correction=0))
    covariance = float(((share - share.mean()) * (cosine - cosine.mean())).mean())
    return MixtureFit(larger, smaller, covariance / std_product if std_product > 1e-12 else 0.0)


def collapse_warning(diagnostics: Diagnostics, dim: int) -> str | None:
    """A warning in words where the representation has collapsed, or None.

    Args:
        dim: the rank that was possible: the lesser of the number of images and the width of the features.
    """
    if diagnostics.std < COLLAPSED_STD:
        return (
            f"the representation has collapsed: every image gets nearly the same features (std {diagnostics.std:.3f}, "
            "where 1 is spread evenly). Try a lower learning rate with a longer warm-up, and check that views of "
            "different images do differ; for BYOL a momentum nearer to 1, for SimSiam batch norm in the projector"
        )
    least = max(1.5, COLLAPSED_RANK * dim)
    if diagnostics.effective_rank < least:
        return (
            f"the representation is collapsing to few directions: its effective rank is "
            f"{diagnostics.effective_rank:.1f} of {dim}. Try a lower learning rate, stronger augmentation, a larger "
            "batch or queue, or a higher temperature"
        )
    return None


def to_float64(features: Tensor) -> Tensor:
    """The features in float64 on the CPU; raise if they are not at least two rows of finite numbers."""
    if features.ndim != 2 or len(features) < 2:
        raise ValueError(f"diagnostics need the features [N, D] of at least 2 images, got {list(features.shape)}")
    features = features.detach().cpu().double()
    if not bool(features.isfinite().all()):
        raise ValueError("the features contain NaN or infinity: lower the learning rate, or train in bf16 or float32")
    return features
