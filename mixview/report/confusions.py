"""What an encoder takes for what: each image asked of its neighbors, and the mistakes counted."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mixview.encoders.search import Neighbors
from mixview.report.embedding import TEMPERATURE

EXAMPLES = 6


class Confusion(NamedTuple):
    """Images of one class whose neighbors are of another."""

    true: int
    said: int
    times: int
    of: int
    """So many images of the true class were asked about."""
    examples: list[int]


class Answers(NamedTuple):
    """What the neighbors of all labeled images said."""

    right: int
    asked: int
    worst: list[Confusion]


def confuse(neighbors: Neighbors, labels: npt.NDArray[np.int64], most: int = 8) -> Answers | None:
    """The classes that are taken for each other most often, as a share of the true class.

    Every labeled image is asked of its nearest others, which vote exp(cosine / temperature); None without labels.
    """
    known = torch.from_numpy(labels)
    classes = int(known.max()) + 1
    if classes < 2:
        return None
    voters = known[neighbors.position]
    votes = torch.exp((neighbors.cosine - neighbors.cosine[:, :1]) / TEMPERATURE) * (voters >= 0)
    scores = torch.zeros(len(known), classes).scatter_add_(1, voters.clamp(min=0), votes)
    said = scores.argmax(1)
    asked = (known >= 0) & (scores.sum(1) > 0)
    table = torch.zeros(classes, classes, dtype=torch.int64)
    table.index_put_((known[asked], said[asked]), torch.ones(int(asked.sum()), dtype=torch.int64), accumulate=True)
    right = int(table.diagonal().sum())
    totals = table.sum(1)
    wrong = table.float() / totals.clamp(min=1).unsqueeze(1)
    wrong.fill_diagonal_(0)
    worst = []
    for place in wrong.flatten().argsort(descending=True, stable=True)[:most].tolist():
        true, taken = divmod(place, classes)
        count = int(table[true, taken])
        if not count or true == taken:
            break
        which = (asked & (known == true) & (said == taken)).nonzero().flatten()
        sure = scores[which, taken].argsort(descending=True, stable=True)
        worst.append(Confusion(true, taken, count, int(totals[true]), which[sure][:EXAMPLES].tolist()))
    return Answers(right, int(asked.sum()), worst)
