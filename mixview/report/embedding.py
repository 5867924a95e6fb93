"""The embedding of images by an encoder: a map, neighbors, clusters, and the places of mixtures."""

import contextlib
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from torch import Tensor

from mixview.data.cache import cache_folder
from mixview.data.decode import Decoder
from mixview.data.sources.base import Source
from mixview.encoders.features import Features, extract
from mixview.encoders.loading import LoadedEncoder
from mixview.encoders.neighbors import OUTLIER_NEIGHBORS
from mixview.encoders.search import Neighbors, nearest
from mixview.encoders.transforms import CenterCrop
from mixview.evaluate.knn import check_features
from mixview.io.atomic import atomic_write
from mixview.losses import l2_normalize
from mixview.report.derived import Mixtures, Recipe
from mixview.report.findings import Findings, find

Array = npt.NDArray[np.float32]

NEIGHBORS = 8
"""The number that the page shows of each image."""
VOTERS = 20
"""The neighbors that vote on the class of an image, as in the k-NN evaluation."""
TEMPERATURE = 0.07
PERPLEXITY = 30.0
DIMENSIONS = 50
"""Dimensions that t-SNE starts from: more only take longer."""
SEED = 0
MIXED = Recipe("cutmix", 0.6)
"""The explorer's mixtures: about six tenths of one image, the rest of the other."""


@dataclass(frozen=True)
class Embedding:
    """An encoder's view of N images."""

    features: Tensor
    """[N, D] of length one."""
    places: Array
    """[N, 2] on the map, each coordinate within 0 and 1."""
    neighbors: Neighbors
    """The nearest other images, [N, k]."""
    clusters: npt.NDArray[np.int64]
    """[N] found without labels."""
    mixed_places: Array
    """[N, 2] where the mixture of image i and N-1-i falls."""
    parents: Array
    """[N, 2] cosine of this mixture to image i, and to image N-1-i."""
    raw: Tensor
    """[N, D] the features as they are."""
    findings: Findings
    """Findings in the features without labels."""
    size: int
    """Input size of the encoder in pixels."""
    decoder: Decoder


class Work(NamedTuple):
    """Device and workers of the feature extraction."""

    device: str = "auto"
    workers: int | None = None


def embed(encoder: LoadedEncoder, source: Source, work: Work) -> Embedding:
    """The embedding of the images of a source."""
    made = features_of(encoder, source, work)
    features = l2_normalize(made["avgpool"])
    check_features(features, features)
    mixtures = Mixtures(source, encoder.size, encoder.decoder(source), MIXED)
    mixed = l2_normalize(features_of(encoder, mixtures, work)["avgpool"])
    places = kept_map(made, features)
    partner = torch.arange(len(features)).flip(0)
    parents = torch.stack([(mixed * features).sum(1), (mixed * features[partner]).sum(1)], 1)
    raw, clusters = made["avgpool"], cluster(features)
    centered = raw - raw.mean(0)
    return Embedding(
        features,
        places,
        others(features, max(NEIGHBORS, VOTERS)),
        clusters,
        place_between(mixed, features, places),
        parents.numpy(),
        raw,
        find(centered, others(centered, OUTLIER_NEIGHBORS), clusters),
        encoder.size,
        encoder.decoder(source),
    )


def features_of(encoder: LoadedEncoder, source: Source, work: Work) -> Features:
    """The features of all images of a source."""
    made = extract(
        encoder, source, CenterCrop(encoder.size, encoder.normalize), device=work.device, workers=work.workers
    )
    if len(made.indices) < len(source):
        raise ValueError(f"{len(source) - len(made.indices)} of its images cannot be read")
    return made


def kept_map(made: Features, features: Tensor) -> Array:
    """The map of these features, from the cache or made now: the slowest part of a report."""
    file = cache_folder("maps") / f"{made.folder.name}.npy"
    try:
        places: Array = np.load(file, allow_pickle=False)
        if places.shape == (len(features), 2):
            return places
    except (OSError, ValueError, EOFError):
        pass
    places = draw_map(features)
    with contextlib.suppress(OSError):  # a full or read-only disk: it is made again
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as opened:
            np.save(opened, places, allow_pickle=False)
    return places


def draw_map(features: Tensor) -> Array:
    """[N, 2] two dimensions of features [N, D] of length one by t-SNE; of a handful, by PCA."""
    rows = features.cpu().numpy().astype(np.float64)
    count = len(rows)
    if count < 4:
        return spread(np.stack([np.arange(count), np.zeros(count)], 1))
    if not np.ptp(rows, axis=0).max() > 1e-9:
        return np.full((count, 2), 0.5, np.float32)  # every image has the same features: one place
    width = min(DIMENSIONS, rows.shape[1], count)
    rows = PCA(width, svd_solver="full" if count < 500 else "randomized", random_state=SEED).fit_transform(rows)
    if count < 8:
        return spread(rows[:, :2] if rows.shape[1] > 1 else np.pad(rows, ((0, 0), (0, 1))))
    perplexity = min(PERPLEXITY, (count - 1) / 3)
    return spread(TSNE(perplexity=perplexity, init="pca", random_state=SEED).fit_transform(rows))


def spread(places: npt.NDArray[np.floating], of: npt.NDArray[np.floating] | None = None) -> Array:
    """Places moved and scaled, both ways alike, so that they (or those of others) just fill the unit square."""
    of = places if of is None else of
    low, high = of.min(0), of.max(0)
    moved: Array = ((places - (low + high) / 2) / (float((high - low).max()) or 1.0) + 0.5).astype(np.float32)
    return moved


def others(features: Tensor, k: int) -> Neighbors:
    """The nearest of the other images to each image; no image is its own neighbor."""
    k = min(k, len(features) - 1)
    neighbors = nearest(features, features, k=k + 1)
    own = neighbors.position == torch.arange(len(features)).unsqueeze(1)
    own[:, -1] |= ~own.any(1)  # of many equal images an image may not be among its own nearest: the last goes
    cosine, position = (each[~own].view(len(features), k) for each in neighbors)
    return Neighbors(cosine, position)


def cluster(features: Tensor) -> npt.NDArray[np.int64]:
    """[N] groups of images by k-means on the sphere, the largest first."""
    count = max(1, min(10, len(features) // 5))
    model = KMeans(count, n_init=2, random_state=SEED)
    distinct = len(torch.unique(features, dim=0))
    if distinct < count:
        model.set_params(n_clusters=distinct)
    labels: npt.NDArray[np.int64] = model.fit_predict(features.numpy()).astype(np.int64)
    order = np.argsort(-np.bincount(labels), kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank[labels]


def place_between(mixed: Tensor, features: Tensor, places: Array, k: int = 5) -> Array:
    """[M, 2] places for features that are not on the map: the mean of the nearest places on it, weighted by closeness.

    t-SNE has no rule for new points, and to draw them from the start would move everything else.
    """
    cosine, position = nearest(features, mixed, k=k)
    weight = torch.softmax(cosine / TEMPERATURE, dim=1).unsqueeze(2)
    return (weight * torch.from_numpy(places)[position]).sum(1).numpy()


def aligned(embedding: Embedding, model: Array) -> Embedding:
    """The embedding with its map rotated and mirrored to match another: t-SNE's directions mean nothing."""
    center = embedding.places.mean(0)
    one, _, other = np.linalg.svd((embedding.places - center).T @ (model - model.mean(0)))
    places, mixed = ((each - center) @ (one @ other) for each in (embedding.places, embedding.mixed_places))
    return replace(embedding, places=spread(places), mixed_places=spread(mixed, places))
