"""The classes that an encoder confuses: every image classified by its neighbors, and the mistakes counted."""

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
    predicted: int
    mistakes: int
    total: int
    """Images of the true class that were classified."""
    examples: list[int]


class Confusions(NamedTuple):
    """The classification of all labeled images by their neighbors."""

    correct: int
    queries: int
    worst: list[Confusion]


def confuse(neighbors: Neighbors, labels: npt.NDArray[np.int64], most: int = 8) -> Confusions | None:
    """The classes that are taken for each other most often, as a share of the true class.

    Every labeled image is classified by its nearest others, which vote exp(cosine / temperature); None without labels.
    """
    targets = torch.from_numpy(labels)
    classes = int(targets.max()) + 1
    if classes < 2:
        return None
    voters = targets[neighbors.position]
    votes = torch.exp((neighbors.cosine - neighbors.cosine[:, :1]) / TEMPERATURE) * (voters >= 0)
    scores = torch.zeros(len(targets), classes).scatter_add_(1, voters.clamp(min=0), votes)
    predicted = scores.argmax(1)
    classified = (targets >= 0) & (scores.sum(1) > 0)
    table = torch.zeros(classes, classes, dtype=torch.int64)
    table.index_put_(
        (targets[classified], predicted[classified]),
        torch.ones(int(classified.sum()), dtype=torch.int64),
        accumulate=True,
    )
    correct = int(table.diagonal().sum())
    totals = table.sum(1)
    wrong = table.float() / totals.clamp(min=1).unsqueeze(1)
    wrong.fill_diagonal_(0)
    worst = []
    for place in wrong.flatten().argsort(descending=True, stable=True)[:most].tolist():
        true, prediction = divmod(place, classes)
        count = int(table[true, prediction])
        if not count or true == prediction:
            break
        which = (classified & (targets == true) & (predicted == prediction)).nonzero().flatten()
        sure = scores[which, prediction].argsort(descending=True, stable=True)
        worst.append(Confusion(true, prediction, count, int(totals[true]), which[sure][:EXAMPLES].tolist()))
    return Confusions(correct, int(classified.sum()), worst)
