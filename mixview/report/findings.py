"""Findings in features without any labels: near-duplicates, outliers, clusters, and signs of collapse."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mixview.encoders.neighbors import DUPLICATE_COSINE, OUTLIER_NEIGHBORS, group_duplicates, rank_outliers
from mixview.encoders.search import Neighbors
from mixview.losses import l2_normalize
from mixview.train.collapse import COLLAPSED_RANK, COLLAPSED_STD, effective_rank, feature_std

GROUPS = 8
"""Groups of near-duplicates that are shown, of up to as many images."""
OUTLIERS = 12
TYPICAL = 8
"""Images that are shown of each cluster."""
MEASURED = 1000
"""Images that the effective rank is measured on, at most: it takes their singular values."""


class Group(NamedTuple):
    """Images that belong together."""

    size: int
    images: list[int]
    """Those that are shown."""


class Collapse(NamedTuple):
    """The verdict on the collapse of a representation, with its numbers."""

    collapsed: bool
    text: str


class Findings(NamedTuple):
    """Findings in N images without labels."""

    duplicates: list[Group]
    """The closest groups."""
    duplicate_groups: int
    """The number of all groups …"""
    duplicate_images: int
    """… and of images beyond the first of each, which a list without duplicates would leave out."""
    threshold: float
    outliers: list[int]
    clusters: list[Group]
    """The largest first, with the images nearest to their centers."""


def find(features: Tensor, near: Neighbors, clusters: npt.NDArray[np.int64]) -> Findings:
    """The findings in features [N, D].

    Args:
        features: centered features, as `mixview neighbors` compares them.
        near: the nearest other images to each by these features, [N, k].
        clusters: [N] the cluster of each image.
    """
    groups = group_duplicates(near, features, DUPLICATE_COSINE)
    outliers = rank_outliers(Neighbors(*(each[:, :OUTLIER_NEIGHBORS] for each in near)), OUTLIERS).images
    return Findings(
        [Group(len(each.images), each.images[:GROUPS]) for each in groups[:GROUPS]],
        len(groups),
        sum(len(each.images) - 1 for each in groups),
        DUPLICATE_COSINE,
        outliers if len(features) > OUTLIERS else [],
        [typical(features, np.flatnonzero(clusters == number)) for number in range(int(clusters.max()) + 1)],
    )


def typical(features: Tensor, members: npt.NDArray[np.int64]) -> Group:
    """The images of a cluster that are nearest to its center."""
    own = l2_normalize(features[members])
    order = (own @ own.mean(0)).argsort(descending=True, stable=True)[:TYPICAL]
    return Group(len(members), members[order.numpy()].tolist())


def detect_collapse(features: Tensor, logged: dict[str, float]) -> Collapse:
    """Check whether features [N, D] of N images have collapsed, or the projections that the loss saw.

    Args:
        features: the encoder's output, as it is.
        logged: the last collapse metrics of the run, which are of projections; empty if it has none.
    """
    measured = features[torch.linspace(0, len(features) - 1, min(len(features), MEASURED)).long()]
    std, rank, possible = feature_std(measured), effective_rank(measured), min(measured.shape)
    numbers = (
        f"the features of {len(measured)} images have a standard deviation of {std:.2f} (0: all are the same, 1: "
        f"spread evenly) and an effective rank of {rank:.1f} of {possible}"
    )
    stds = [std]
    if "std" in logged and "effective_rank" in logged:
        stds.append(logged["std"])
        numbers += (
            f"; at its last evaluation, the projections that the loss compares had {logged['std']:.2f} and "
            f"{logged['effective_rank']:.1f}"
        )
    if min(stds) < COLLAPSED_STD:
        return Collapse(True, f"Collapsed: every image gets nearly the same features. In numbers, {numbers}.")
    if min(rank, logged.get("effective_rank", rank)) < max(1.5, COLLAPSED_RANK * possible):
        return Collapse(True, f"Collapsed to few directions: images differ in little. In numbers, {numbers}.")
    return Collapse(False, f"No sign of collapse: {numbers}.")
