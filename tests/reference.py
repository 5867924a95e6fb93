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


def byol_loss(prediction: Tensor, target: Tensor, mixture: Mixture, interpolated: bool = False) -> Tensor:
    """Eq. 4, one direction; or, interpolated, against the normalized point between the two parents."""
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


def virtual_labels(query: Tensor, keys: Tensor, mixture: Mixture, tau: float, queue: Tensor | None = None) -> Tensor:
    """i-Mix: - sum_n v_n log(exp(s(f_i, f_n) / tau) / sum over all keys), v_i = lam e_i + (1 - lam) e_j."""
    total = torch.zeros((), dtype=torch.float64)
    negatives = [] if queue is None else list(queue)
    for i in range(len(query)):
        label = torch.zeros(len(keys), dtype=torch.float64)
        label[i] += mixture.lam[i]
        label[int(mixture.partner[i])] += 1 - mixture.lam[i]
        everything = sum(torch.exp(cosine(query[i], key) / tau) for key in [*keys, *negatives])
        for n in range(len(keys)):
            total = total - label[n] * torch.log(torch.exp(cosine(query[i], keys[n]) / tau) / everything)
    return total / len(query)


def mochi(query: Tensor, keys: Tensor, queue: Tensor, mixture: Mixture, tau: float, hardest: int, drawn) -> Tensor:
    """MoCHi's loss: InfoNCE whose negatives are the queue and, of each query, what it mixes of its hardest."""
    first, second, a, third, b = drawn
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(query)):
        q = (query[i] / query[i].norm()).detach()
        ranked = sorted(queue, key=lambda n: -float(cosine(q, n)))[:hardest]
        hard = [n.detach() / n.norm().detach() for n in ranked]
        made = []
        for s in range(first.shape[1]):
            made.append(a[i, s] * hard[first[i, s]] + (1 - a[i, s]) * hard[second[i, s]])
        for s in range(third.shape[1]):
            made.append(b[i, s] * q + (1 - b[i, s]) * hard[third[i, s]])
        lam, j = mixture.lam[i], int(mixture.partner[i])
        negatives = sum(torch.exp(cosine(query[i], n) / tau) for n in [*queue, *made])
        for positive, weight in ((i, lam), (j, 1 - lam)):
            numerator = torch.exp(cosine(query[i], keys[positive]) / tau)
            total = total - weight * torch.log(numerator / (numerator + negatives))
    return total / len(query)


def sinkhorn(scores: Tensor, epsilon: float, iterations: int) -> Tensor:
    """SwAV's listing: the matrix Q (prototypes by images) normalized to rows of 1/K and columns of 1/B, in turn."""
    q = torch.exp(scores / epsilon).T
    q = q / q.sum()
    for _ in range(iterations):
        q = q / q.sum(dim=1, keepdim=True) / len(q)
        q = q / q.sum(dim=0, keepdim=True) / q.shape[1]
    return (q * q.shape[1]).T


class SwAVCodes:
    """SwAV's training loop as published, cell by cell: a queue per view and process, Sinkhorn over all of them.

    Args:
        processes: how many there are; each has a part of the queue.
        queue_size: of all processes together; 0 is no queue.
        queue_start: the step at which the queue begins, empty.
    """

    def __init__(self, processes: int, queue_size: int, queue_start: int, epsilon: float, iterations: int) -> None:
        self.each, self.start = queue_size // processes, queue_start
        self.queue: list[list[list[Tensor]]] = [[[] for _ in range(processes)] for _ in range(2)]
        self.epsilon, self.iterations, self.step = epsilon, iterations, 0

    def codes(self, views: list[list[Tensor]], prototypes: Tensor) -> list[list[Tensor]]:
        """Of one step: the codes of each view's and each process's embeddings, which then join the queue."""
        return [
            self.balance(
                [self.with_queue(view, p, z) for p, z in enumerate(parts)], [len(z) for z in parts], prototypes
            )
            for view, parts in enumerate(views)
        ]

    def with_queue(self, view: int, process: int, z: Tensor) -> list[Tensor]:
        queue, rows = self.queue[view][process], list(z)
        used = queue + rows if self.each and len(queue) == self.each else rows
        if self.each and self.step >= self.start:
            self.queue[view][process] = (rows + queue)[: self.each]  # the newest first, the oldest fall out
        return used

    def balance(self, parts: list[list[Tensor]], counts: list[int], prototypes: Tensor) -> list[Tensor]:
        rows = [row for part in parts for row in part]
        q = [[float(torch.exp(row @ prototype / self.epsilon)) for row in rows] for prototype in prototypes]
        for _ in range(self.iterations):
            for k in range(len(q)):
                total = sum(q[k])
                q[k] = [value / total / len(q) for value in q[k]]
            for i in range(len(rows)):
                total = sum(q[k][i] for k in range(len(q)))
                for k in range(len(q)):
                    q[k][i] = q[k][i] / total / len(rows)
        codes = torch.tensor(q, dtype=torch.float64).T * len(rows)
        ends = [sum(len(part) for part in parts[: p + 1]) for p in range(len(parts))]
        return [codes[end - count : end] for end, count in zip(ends, counts, strict=True)]


def swapped_prediction(scores: Tensor, codes: Tensor, mixture: Mixture, tau: float) -> Tensor:
    """SwAV's - sum_k q_k log p_k, of both parents' codes."""
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(scores)):
        j, lam = int(mixture.partner[i]), mixture.lam[i]
        everything = torch.exp(scores[i] / tau).sum()
        for k in range(scores.shape[1]):
            log_p = torch.log(torch.exp(scores[i, k] / tau) / everything)
            total = total - lam * codes[i, k] * log_p - (1 - lam) * codes[j, k] * log_p
    return total / len(scores)


def standardized(z: Tensor) -> list[list[Tensor]]:
    """Each dimension of the batch less its mean, over the root of its biased variance and BN's epsilon; [d][i]."""
    columns = []
    for d in range(z.shape[1]):
        mean = sum(z[i, d] for i in range(len(z))) / len(z)
        variance = sum((z[i, d] - mean) ** 2 for i in range(len(z))) / len(z)
        columns.append([(z[i, d] - mean) / torch.sqrt(variance + 1e-5) for i in range(len(z))])
    return columns


def correlation(a: list[list[Tensor]], b: list[list[Tensor]]) -> list[list[Tensor]]:
    """Barlow Twins' C_ij, the mean over the batch of dimension i of one side and j of the other."""
    return [[sum(x * y for x, y in zip(one, other, strict=True)) / len(one) for other in b] for one in a]


def barlow_twins(mixed_z: Tensor, plain_z: Tensor, mixture: Mixture, lambda_bt: float) -> Tensor:
    """Eq. 1 of Barlow Twins with the targets between both parents."""
    between = [
        mixture.lam[i] * plain_z[i] + (1 - mixture.lam[i]) * plain_z[int(mixture.partner[i])]
        for i in range(len(plain_z))
    ]
    c = correlation(standardized(mixed_z), standardized(torch.stack(between)))
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(c)):
        for j in range(len(c)):
            total = total + ((1 - c[i][i]) ** 2 if i == j else lambda_bt * c[i][j] ** 2)
    return total


def mixed_barlow_twins(z_m: Tensor, z_a: Tensor, z_b: Tensor, partner: Tensor, lam: float) -> Tensor:
    """Mixed Barlow Twins: C(M, A) and C(M, B) against those of linearly mixed projections."""
    m, a, b = standardized(z_m), standardized(z_a), standardized(z_b)
    shuffled = [[column[int(p)] for p in partner] for column in b]
    total = torch.zeros((), dtype=torch.float64)
    for other in (a, b):
        mixed, of_a, of_b = correlation(m, other), correlation(a, other), correlation(shuffled, other)
        for i in range(len(m)):
            for j in range(len(m)):
                total = total + (mixed[i][j] - lam * of_a[i][j] - (1 - lam) * of_b[i][j]) ** 2 / 2
    return total


def vicreg(mixed_z: Tensor, plain_z: Tensor, mixture: Mixture, weights: tuple[float, float, float]) -> Tensor:
    """Eq. 6 of VICReg, its distance weighed between both parents, with the means of its code."""
    n, dims = mixed_z.shape
    distance = torch.zeros((), dtype=torch.float64)
    for i in range(n):
        j, lam = int(mixture.partner[i]), mixture.lam[i]
        for d in range(dims):
            distance = distance + lam * (mixed_z[i, d] - plain_z[i, d]) ** 2 / (n * dims)
            distance = distance + (1 - lam) * (mixed_z[i, d] - plain_z[j, d]) ** 2 / (n * dims)
    variance, covariance = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for z in (mixed_z, plain_z):
        mean = [sum(z[i, d] for i in range(n)) / n for d in range(dims)]
        for d in range(dims):
            for e in range(dims):
                c = sum((z[i, d] - mean[d]) * (z[i, e] - mean[e]) for i in range(n)) / (n - 1)
                if d != e:
                    covariance = covariance + c**2 / dims
                elif torch.sqrt(c + 1e-4) < 1:
                    variance = variance + (1 - torch.sqrt(c + 1e-4)) / dims / 2
    return weights[0] * distance + weights[1] * variance + weights[2] * covariance


def moco_v3(query: Tensor, keys: Tensor, mixture: Mixture, tau: float) -> Tensor:
    """One direction of MoCo v3's Algorithm 1: 2 tau times the cross-entropy, of both parents' keys in turn."""
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(query)):
        everything = sum(torch.exp(cosine(query[i], key) / tau) for key in keys)
        for positive, weight in ((i, mixture.lam[i]), (int(mixture.partner[i]), 1 - mixture.lam[i])):
            total = total - weight * torch.log(torch.exp(cosine(query[i], keys[positive]) / tau) / everything)
    return 2 * tau * total / len(query)


def shares(a: int, mixture: Mixture) -> dict[int, float]:
    """How much of each image is in mixture a."""
    content: dict[int, float] = {}
    for index, share in mixture.parts():
        content[int(index[a])] = content.get(int(index[a]), 0.0) + float(share[a])
    return content


def sdmp_weights(a: int, mixture: Mixture) -> list[float]:
    """SDMP's weights of the positives of mixture a: what each mixture has in common with it, as shares."""
    own = shares(a, mixture)
    common = []
    for b in range(len(mixture)):
        other = shares(b, mixture)
        common.append(sum(min(own[image], other.get(image, 0.0)) for image in own))
    return [each / sum(common) for each in common]


def sdmp(query: Tensor, mixed_keys: Tensor, mixture: Mixture, tau: float) -> Tensor:
    """Cross-entropy of mixtures with the mixtures of the other view that have parents in common with them."""
    total = torch.zeros((), dtype=torch.float64)
    for a in range(len(query)):
        everything = sum(torch.exp(cosine(query[a], key) / tau) for key in mixed_keys)
        for b, weight in enumerate(sdmp_weights(a, mixture)):
            total = total - weight * torch.log(torch.exp(cosine(query[a], mixed_keys[b]) / tau) / everything)
    return total / len(query)


def count_unchanged(before: Tensor, after: Tensor) -> float:
    """The share of pixels that are the same in both [C, H, W], one at a time."""
    height, width = before.shape[-2:]
    same = sum(bool((before[:, y, x] == after[:, y, x]).all()) for y in range(height) for x in range(width))
    return same / (height * width)
