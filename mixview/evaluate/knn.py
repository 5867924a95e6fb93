"""Weighted k-NN classification of frozen features (Wu et al., 2018; the same in DINO): no training, nothing to tune.

The k images of a labeled feature bank nearest to a query by cosine each vote `exp(cos / temperature)` for their class.
The similarities are computed in blocks of `chunk` by `chunk`: a million queries against a million images take the
memory of one block. The same input gives the same predictions: of equally near images the earlier in the bank counts,
of classes with equal votes the lower one wins.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mixview.encoders.search import nearest
from mixview.encoders.transforms import CenterCrop
from mixview.evaluate.base import EvalContext, Protocol
from mixview.options import Count, Positive


@dataclass(frozen=True, kw_only=True)
class KNN(Protocol):
    """Evaluate by weighted k-NN classification. Nothing is trained; it takes seconds once there are features."""

    k: Count = 20
    """Number of neighbors that vote."""
    temperature: Positive = 0.07
    """Votes are weighted exp(cosine / temperature): the smaller, the more the nearest decide."""

    name: ClassVar[str] = "knn"
    examples: ClassVar[tuple[str, ...]] = ("runs/first --data imagenette/", "pixels --data imagenette/ --k 200")
    first_options: ClassVar[str] = "data test_data k size device out"
    run_order: ClassVar[float] = 1

    def evaluate(self, context: EvalContext) -> Iterator[tuple[str, float]]:
        bank, bank_labels, queries, labels = context.labeled_features()
        classes = len(context.splits.classes)
        top = 5 if classes > 5 else 1
        ranked = knn_predict(
            bank, bank_labels, queries, classes=classes, top=top, k=self.k, temperature=self.temperature
        )
        hits = ranked == labels.unsqueeze(1)
        context.description = (
            f"the {self.k} nearest training images by cosine vote with exp(cosine / {self.temperature:g}), "
            f"features of a {CenterCrop(context.encoder.size).description}."
        )
        for count in sorted({1, top}):
            yield f"top-{count}", 100 * float(hits[:, :count].any(1).cpu().double().mean())


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
    """The share of queries, 0 to 1, whose label is among the `top` predicted classes."""
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
    """The classes that the neighbors vote for, most votes first. [Q, top] int64, on the queries' device

    Args:
        bank: [M, D] features of labeled images, normalized or not; may be on another device than the queries.
        bank_labels: [M] integers, 0 to `classes - 1`.
        queries: [Q, D] features to classify.
        classes: number of classes.
        top: number of classes to predict; all of them if there are fewer.
        k: number of neighbors that vote; all of a smaller bank.
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
        # A neighbor at a time: no two of them meet in a cell, so that an accelerator adds in a fixed order too.
        for vote, voter in zip(votes.unbind(1), voters[index].unbind(1), strict=True):
            scores.scatter_add_(1, voter.unsqueeze(1), vote.unsqueeze(1))
        ranked.append(scores.sort(dim=1, descending=True, stable=True).indices[:, :top])
    return torch.cat(ranked)


def check_features(bank: Tensor, queries: Tensor) -> None:
    """Raise if these are not two sets of finite features of the same width."""
    if bank.ndim != 2 or queries.ndim != 2 or bank.shape[1] != queries.shape[1] or not len(bank) or not len(queries):
        raise ValueError(
            f"bank and queries must be [M, D] and [Q, D], got {list(bank.shape)} and {list(queries.shape)}"
        )
    for name, features in (("bank", bank), ("queries", queries)):
        if not bool(features.isfinite().all()):
            raise ValueError(
                f"the features of the {name} contain NaN or infinity, which have no neighbors: "
                "look for a loss that diverged, or an encoder in half precision that overflows"
            )


def check_labels(labels: Tensor, count: int, classes: int, name: str) -> None:
    """Raise if labels do not fit the features or the number of classes."""
    if labels.shape != (count,) or labels.is_floating_point():
        raise ValueError(
            f"the {name} needs one integer for each of its {count} features, "
            f"got labels of shape {list(labels.shape)} in {labels.dtype}"
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ValueError(
            f"the labels of the {name} go from {low} to {high}, expected 0 to {classes - 1}: leave out what has no "
            "label, and number the classes from 0"
        )
