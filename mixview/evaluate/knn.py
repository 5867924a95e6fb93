"""Weighted k-NN classification of frozen features (Wu et al., 2018; the same in DINO): no training, nothing to tune.

The k images of a labelled bank nearest to a query by cosine each vote `exp(cos / temperature)` for their class.
The similarities are made and forgotten in blocks of `chunk` by `chunk`: a million queries against a million images take
the memory of one block. The same input gives the same answer: of equally near images the earlier in the bank counts, of
classes with equal votes the lower one wins.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Neighbours(NamedTuple):
    """The nearest of a bank, [Q, k] each, nearest first: their cosines and where in the bank they are."""

    cosine: Tensor
    position: Tensor


@torch.no_grad()
def knn_accuracy(
    bank: Tensor,
    bank_labels: Tensor,
    queries: Tensor,
    labels: Tensor,
    *,
    classes: int,
    top: int = 1,
    k: int = 20,
    temperature: float = 0.07,
    chunk: int = 4096,
) -> float:
    """The share of queries, 0 to 1, whose label is among the `top` classes that `knn_predict` names."""
    check_labels(labels, len(queries), classes, "queries")
    ranked = knn_predict(
        bank, bank_labels, queries, classes=classes, top=top, k=k, temperature=temperature, chunk=chunk
    )
    return float((ranked == labels.to(ranked.device).unsqueeze(1)).any(1).cpu().double().mean())


@torch.no_grad()
def knn_predict(
    bank: Tensor,
    bank_labels: Tensor,
    queries: Tensor,
    *,
    classes: int,
    top: int = 1,
    k: int = 20,
    temperature: float = 0.07,
    chunk: int = 4096,
) -> Tensor:
    """The classes that the neighbours vote for, most votes first. [Q, top] int64, on the queries' device

    Args:
        bank: [M, D] features of labelled images, normalised or not; may be on another device than the queries.
        bank_labels: [M] whole numbers, 0 to `classes - 1`.
        queries: [Q, D] features to classify.
        classes: how many classes there are.
        top: how many classes to name; all of them where there are fewer.
        k: how many neighbours vote; in a smaller bank everyone does.
        temperature: the smaller, the more the nearest decide.
        chunk: the side of a block of similarities.
    """
    check_features(bank, queries)
    check_labels(bank_labels, len(bank), classes, "bank")
    for name, number in (("top", top), ("k", k), ("chunk", chunk)):
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")
    if not temperature > 0:
        raise ValueError(f"temperature must be a positive number, got {temperature}: 0.07 is usual")
    voters = bank_labels.to(queries.device, torch.int64)
    ranked = []
    for part in queries.split(chunk):
        cosine, index = nearest(bank, part, k=k, chunk=chunk)
        votes = torch.exp((cosine - cosine[:, :1]) / temperature)  # relative to the nearest: no overflow
        scores = votes.new_zeros(len(part), classes)
        # A neighbour at a time: no two of them meet in a cell, so that an accelerator adds in a fixed order too.
        for vote, voter in zip(votes.unbind(1), voters[index].unbind(1), strict=True):
            scores.scatter_add_(1, voter.unsqueeze(1), vote.unsqueeze(1))
        ranked.append(scores.sort(dim=1, descending=True, stable=True).indices[:, :top])
    return torch.cat(ranked)


@torch.no_grad()
def nearest(bank: Tensor, queries: Tensor, *, k: int, chunk: int = 4096) -> Neighbours:
    """The `k` nearest of the bank [M, D] to each query [Q, D] by cosine, equal ones in the order of the bank."""
    asked = unit(queries)
    best: Neighbours | None = None
    for start in range(0, len(bank), chunk):
        block = unit(bank[start : start + chunk].to(queries.device)).to(asked.dtype)
        found = first_largest(asked @ block.T, k)
        found = Neighbours(found.cosine, found.position + start)
        if best is not None:
            # Earlier blocks stand first, and a stable sort leaves them first where they are equal.
            cosine = torch.cat([best.cosine, found.cosine], dim=1)
            index = torch.cat([best.position, found.position], dim=1)
            order = cosine.sort(dim=1, descending=True, stable=True).indices[:, :k]
            found = Neighbours(cosine.gather(1, order), index.gather(1, order))
        best = found
    assert best is not None
    return best


def first_largest(values: Tensor, k: int) -> Neighbours:
    """The `k` largest of each row (all, if there are fewer), largest first; of equal ones, the first in the row.

    `topk` alone leaves open which of several equal ones it returns. That matters at the k-th place only, and rarely:
    rows where it does are selected again by counting.
    """
    k = min(k, values.shape[1])
    largest, index = values.topk(k, dim=1)
    last = largest[:, -1:]
    equal = values == last
    wanted = (largest == last).sum(1)
    open_rows = (equal.sum(1) > wanted).nonzero().squeeze(1)
    if len(open_rows):
        equal = equal[open_rows]
        early = equal & (equal.cumsum(1) <= wanted[open_rows].unsqueeze(1))
        chosen = early | (values[open_rows] > last[open_rows])
        index[open_rows] = chosen.nonzero()[:, 1].view(len(open_rows), k)
    index = index.sort(dim=1).values
    largest, order = values.gather(1, index).sort(dim=1, descending=True, stable=True)
    return Neighbours(largest, index.gather(1, order))


def unit(features: Tensor) -> Tensor:
    """Features of length one, in float32 at least."""
    return F.normalize(features.to(torch.promote_types(features.dtype, torch.float32)), dim=1)


def check_features(bank: Tensor, queries: Tensor) -> None:
    """Refuse what are not two sets of finite features of one width."""
    if bank.ndim != 2 or queries.ndim != 2 or bank.shape[1] != queries.shape[1] or not len(bank) or not len(queries):
        raise ValueError(
            f"bank and queries must be [M, D] and [Q, D], got {list(bank.shape)} and {list(queries.shape)}"
        )
    for name, features in (("bank", bank), ("queries", queries)):
        if not bool(features.isfinite().all()):
            raise ValueError(
                f"the features of the {name} contain NaN or infinity, which have no neighbours: "
                "look for a loss that diverged, or an encoder in half precision that overflows"
            )


def check_labels(labels: Tensor, count: int, classes: int, name: str) -> None:
    """Refuse labels that do not fit the features or the number of classes."""
    if labels.shape != (count,) or labels.is_floating_point():
        raise ValueError(
            f"the {name} needs one whole number for each of its {count} features, "
            f"got labels of shape {list(labels.shape)} in {labels.dtype}"
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ValueError(
            f"the labels of the {name} go from {low} to {high}, expected 0 to {classes - 1}: leave out what has no "
            "label, and number the classes from 0"
        )
