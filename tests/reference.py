"""The paper's equations as slow Python loops in float64, a scalar at a time: what the fast losses are held against."""

from itertools import permutations

import torch
from torch import Tensor

from mixview import Mixture


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / (a.pow(2).sum().sqrt() * b.pow(2).sum().sqrt())


def parents(i: int, mixture: Mixture) -> set[int]:
    """The images that mixture i really contains."""
    found = set()
    if mixture.lam[i] > 0:
        found.add(i)
    if mixture.lam[i] < 1:
        found.add(int(mixture.partner[i]))
    return found


def nt_xent(mixed_z: Tensor, plain_z: Tensor, mixture: Mixture, tau: float) -> Tensor:
    """Eq. 1 and 2, one direction, with the indicator read as "mixture k shares no parent with mixture i"."""
    n = len(mixed_z)
    total = torch.zeros((), dtype=torch.float64)
    for i in range(n):
        j, lam = int(mixture.partner[i]), float(mixture.lam[i])
        denominator = torch.zeros((), dtype=torch.float64)
        for k in range(n):
            denominator = denominator + torch.exp(cosine(mixed_z[i], plain_z[k]) / tau)
            if k != i and not parents(i, mixture) & parents(k, mixture):
                denominator = denominator + torch.exp(cosine(mixed_z[i], mixed_z[k]) / tau)
        total = total - lam * torch.log(torch.exp(cosine(mixed_z[i], plain_z[i]) / tau) / denominator)
        total = total - (1 - lam) * torch.log(torch.exp(cosine(mixed_z[i], plain_z[j]) / tau) / denominator)
    return total / n


def info_nce(
    query: Tensor, keys: Tensor, queue: Tensor, mixture: Mixture, tau: float, other_parent: bool = False
) -> Tensor:
    """Eq. 3 with each term's own positive and the queue in its denominator."""
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(query)):
        j, lam = int(mixture.partner[i]), float(mixture.lam[i])
        negatives = torch.zeros((), dtype=torch.float64)
        for k in range(len(queue)):
            negatives = negatives + torch.exp(cosine(query[i], queue[k]) / tau)
        for (positive, other), weight in zip(permutations((i, j)), (lam, 1 - lam), strict=True):
            numerator = torch.exp(cosine(query[i], keys[positive]) / tau)
            denominator = numerator + negatives
            if other_parent and len(parents(i, mixture)) == 2:
                denominator = denominator + torch.exp(cosine(query[i], keys[other]) / tau)
            total = total - weight * torch.log(numerator / denominator)
    return total / len(query)


def regression(prediction: Tensor, target: Tensor, mixture: Mixture, interpolated: bool = False) -> Tensor:
    """Eq. 4, one direction; or, interpolated, against the normalised point between the two parents."""
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(prediction)):
        j, lam = int(mixture.partner[i]), float(mixture.lam[i])
        if interpolated:
            between = lam * target[i] / target[i].norm() + (1 - lam) * target[j] / target[j].norm()
            total = total + 2 - 2 * cosine(prediction[i], between)
        else:
            total = total + 2
            total = total - 2 * lam * cosine(prediction[i], target[i])
            total = total - 2 * (1 - lam) * cosine(prediction[i], target[j])
    return total / len(prediction)


def count_unchanged(before: Tensor, after: Tensor) -> float:
    """The share of pixels that are the same in both [C, H, W], one at a time."""
    height, width = before.shape[-2:]
    same = sum(bool((before[:, y, x] == after[:, y, x]).all()) for y in range(height) for x in range(width))
    return same / (height * width)
