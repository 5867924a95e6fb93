"""Nearest-neighbor search: exact where that is quick, by a graph (usearch) where there are too many pairs."""

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mixview.encoders.optional import import_optional
from mixview.losses import l2_normalize
from mixview.runs.progress_bar import bar

SearchMethod = Literal["auto", "exact", "graph"]

MAX_EXACT_PAIRS = 4e9
"""The most pairs of features that are compared one by one: about a minute at 2,048 numbers each on a few cores."""
CHECKED = 100
"""Queries whose neighbors are also found exactly, to say how good the graph's are."""
CHUNK = 4096


class Neighbors(NamedTuple):
    """The nearest of a bank, [Q, k] each, nearest first: their cosines and where in the bank they are."""

    cosine: Tensor
    position: Tensor


@torch.no_grad()
def nearest(bank: Tensor, queries: Tensor, *, k: int, chunk: int = 4096) -> Neighbors:
    """The `k` nearest of a bank [M, D] to each query [Q, D] by cosine; equal ones are in the order of the bank.

    Similarities are made and forgotten in blocks of `chunk` by `chunk`: a million queries against a million images take
    the memory of one block.
    """
    normalized = l2_normalize(queries)
    best: Neighbors | None = None
    for start in range(0, len(bank), chunk):
        block = l2_normalize(bank[start : start + chunk].to(queries.device)).to(normalized.dtype)
        neighbors = first_largest(normalized @ block.T, k)
        neighbors = Neighbors(neighbors.cosine, neighbors.position + start)
        if best is not None:
            # Earlier blocks stand first, and a stable sort leaves them first where they are equal.
            cosine = torch.cat([best.cosine, neighbors.cosine], dim=1)
            position = torch.cat([best.position, neighbors.position], dim=1)
            order = cosine.sort(dim=1, descending=True, stable=True).indices[:, :k]
            neighbors = Neighbors(cosine.gather(1, order), position.gather(1, order))
        best = neighbors
    assert best is not None
    return best


def first_largest(values: Tensor, k: int) -> Neighbors:
    """The `k` largest of each row (all, if there are fewer), largest first; of equal ones, the first in the row.

    `topk` alone leaves open which of several equal ones it returns. That matters at the k-th place only, and rarely:
    rows where it does are selected again by counting.
    """
    k = min(k, values.shape[1])
    largest, index = values.topk(k, dim=1)
    last = largest[:, -1:]
    equal = values == last
    ties = (largest == last).sum(1)
    open_rows = (equal.sum(1) > ties).nonzero().squeeze(1)
    if len(open_rows):
        equal = equal[open_rows]
        early = equal & (equal.cumsum(1) <= ties[open_rows].unsqueeze(1))
        chosen = early | (values[open_rows] > last[open_rows])
        index[open_rows] = chosen.nonzero()[:, 1].view(len(open_rows), k)
    index = index.sort(dim=1).values
    largest, order = values.gather(1, index).sort(dim=1, descending=True, stable=True)
    return Neighbors(largest, index.gather(1, order))


def find_nearest(bank: Tensor, queries: Tensor, k: int, how: SearchMethod = "auto") -> tuple[Neighbors, str]:
    """The `k` nearest of a bank [M, D] to each query [Q, D] by cosine, and a description of how they were found.

    Args:
        bank: features, normalized or not; may be mapped from a file.
        queries: features of the same kind.
        k: the number of neighbors; all of a smaller bank.
        how: `exact` compares every pair, `graph` follows a graph of neighbors (HNSW) and may miss a few; `auto` is
            exact for up to four thousand million pairs.
    """
    if k < 1:
        raise ValueError(f"the number of neighbors must be at least 1, got {k}")
    if how == "auto":
        how = "exact" if len(bank) * len(queries) <= MAX_EXACT_PAIRS else "graph"
    k = min(k, len(bank))
    if how == "exact":
        return search_exactly(bank, queries, k), "exact search"
    neighbors = search_graph(bank, queries, k)
    share = measure_recall(bank, queries, neighbors, k)
    return neighbors, f"search by a graph, which found {share:.1%} of the true neighbors of {CHECKED} images"


def search_exactly(bank: Tensor, queries: Tensor, k: int) -> Neighbors:
    """Compare every pair, block by block."""
    parts = []
    with bar("comparing", len(queries)) as advance:
        for some in queries.split(CHUNK):
            parts.append(nearest(bank, some, k=k, chunk=CHUNK))
            advance(len(some))
    return Neighbors(torch.cat([part.cosine for part in parts]), torch.cat([part.position for part in parts]))


def search_graph(bank: Tensor, queries: Tensor, k: int) -> Neighbors:
    """Build a graph of neighbors (HNSW, Malkov and Yashunin, 2016) and follow it."""
    usearch = import_optional("usearch.index", "embed")
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
            index.add(np.arange(start, start + len(some)), l2_normalize(some).numpy())
            advance(len(some))
    places = []
    with bar("searching", len(queries)) as advance:
        for some in queries.split(CHUNK):
            matches: Any = index.search(l2_normalize(some).numpy(), k)
            places.append(torch.from_numpy(np.atleast_2d(matches.keys).astype(np.int64)))
            advance(len(some))
    position = torch.cat(places)
    # The graph's own distances are of lower precision than a product of the features themselves.
    cosine = torch.cat([cosines(bank, some, where) for some, where in chunks(queries, position)])
    order = cosine.sort(dim=1, descending=True, stable=True)
    return Neighbors(order.values, position.gather(1, order.indices))


def chunks(queries: Tensor, position: Tensor, size: int = 256) -> list[tuple[Tensor, Tensor]]:
    return list(zip(queries.split(size), position.split(size), strict=True))


def cosines(bank: Tensor, queries: Tensor, position: Tensor) -> Tensor:
    """[Q, k] cosines of each query with the features of the bank at `position`."""
    near = l2_normalize(bank[position.flatten()]).view(*position.shape, -1)
    return (near @ l2_normalize(queries).unsqueeze(2)).squeeze(2)


def measure_recall(bank: Tensor, queries: Tensor, neighbors: Neighbors, k: int) -> float:
    """The share of true neighbors among the neighbors of some queries, evenly chosen."""
    some = torch.linspace(0, len(queries) - 1, min(CHECKED, len(queries))).long()
    true = nearest(bank, queries[some], k=k)
    # Equally near ones are as good: what counts is to be as near as the farthest true neighbor.
    near_enough = neighbors.cosine[some] >= true.cosine[:, -1:] - 1e-5
    return float(near_enough.float().mean())
