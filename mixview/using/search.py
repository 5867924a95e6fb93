"""The nearest of many features: exactly where that is quick, by a graph (usearch) where there are too many pairs."""

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from mixview.backbones import library
from mixview.evaluate.knn import Neighbours, nearest, unit
from mixview.evaluate.progress import bar

How = Literal["auto", "exact", "graph"]

PAIRS = 4e9
"""Up to so many pairs of features are compared one by one: about a minute at 2,048 numbers each on a few cores."""
CHECKED = 100
"""Queries whose neighbours are also found exactly, to say how good the graph's are."""
CHUNK = 4096


def find_nearest(bank: Tensor, queries: Tensor, k: int, how: How = "auto") -> tuple[Neighbours, str]:
    """The `k` nearest of a bank [M, D] to each query [Q, D] by cosine, and in words how they were found.

    Args:
        bank: features, normalised or not; may be mapped from a file.
        queries: features of the same kind.
        k: how many; all of a smaller bank.
        how: `exact` compares every pair, `graph` follows a graph of neighbours (HNSW) and may miss a few; `auto` is
            exact for up to four thousand million pairs.
    """
    if k < 1:
        raise ValueError(f"the number of neighbours must be at least 1, got {k}")
    if how == "auto":
        how = "exact" if len(bank) * len(queries) <= PAIRS else "graph"
    k = min(k, len(bank))
    if how == "exact":
        return search_exactly(bank, queries, k), "exact search"
    found = search_graph(bank, queries, k)
    share = measure_recall(bank, queries, found, k)
    return found, f"search by a graph, which found {share:.1%} of the true neighbours of {CHECKED} images"


def search_exactly(bank: Tensor, queries: Tensor, k: int) -> Neighbours:
    """Compare every pair, block by block."""
    parts = []
    with bar("comparing", len(queries)) as advance:
        for some in queries.split(CHUNK):
            parts.append(nearest(bank, some, k=k, chunk=CHUNK))
            advance(len(some))
    return Neighbours(torch.cat([part.cosine for part in parts]), torch.cat([part.position for part in parts]))


def search_graph(bank: Tensor, queries: Tensor, k: int) -> Neighbours:
    """Build a graph of neighbours (HNSW, Malkov and Yashunin, 2016) and follow it."""
    usearch = library("usearch.index", "embed")
    index = usearch.Index(
        ndim=bank.shape[1],
        metric="cos",
        dtype="f32",
        connectivity=32,
        expansion_add=256,
        expansion_search=max(256, 16 * k),
    )
    with bar("building a graph", len(bank)) as advance:
        for start in range(0, len(bank), CHUNK):
            some = bank[start : start + CHUNK]
            index.add(np.arange(start, start + len(some)), unit(some).numpy())
            advance(len(some))
    places = []
    with bar("searching", len(queries)) as advance:
        for some in queries.split(CHUNK):
            found: Any = index.search(unit(some).numpy(), k)
            places.append(torch.from_numpy(np.atleast_2d(found.keys).astype(np.int64)))
            advance(len(some))
    position = torch.cat(places)
    # The graph's own distances are of lower precision than a product of the features themselves.
    cosine = torch.cat([cosines(bank, some, where) for some, where in chunks(queries, position)])
    order = cosine.sort(dim=1, descending=True, stable=True)
    return Neighbours(order.values, position.gather(1, order.indices))


def chunks(queries: Tensor, position: Tensor, size: int = 256) -> list[tuple[Tensor, Tensor]]:
    return list(zip(queries.split(size), position.split(size), strict=True))


def cosines(bank: Tensor, queries: Tensor, position: Tensor) -> Tensor:
    """[Q, k] of each query with those of the bank at `position`."""
    near = unit(bank[position.flatten()]).view(*position.shape, -1)
    return (near @ unit(queries).unsqueeze(2)).squeeze(2)


def measure_recall(bank: Tensor, queries: Tensor, found: Neighbours, k: int) -> float:
    """The share of true neighbours among those found, of some queries, evenly chosen."""
    some = torch.linspace(0, len(queries) - 1, min(CHECKED, len(queries))).long()
    true = nearest(bank, queries[some], k=k)
    # Equally near ones are as good: what counts is to be as near as the farthest true neighbour.
    near_enough = found.cosine[some] >= true.cosine[:, -1:] - 1e-5
    return float(near_enough.float().mean())
