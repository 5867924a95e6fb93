"""Maps, neighbors, clusters and the places of mixtures."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mixview.losses import l2_normalize
from mixview.report.embedding import Embedding, Work, aligned, cluster, draw_map, embed, others, place_between
from tests.evaluate.small_encoders import scenes, small


def blobs(count: int = 20, dim: int = 8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    centers = 5 * torch.eye(3, dim).repeat_interleave(count, 0)
    return l2_normalize(centers + torch.randn(3 * count, dim, generator=generator) * 0.2)


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Embedding:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIXVIEW_CACHE", str(tmp_path_factory.mktemp("cache")))
        made = embed(small(), scenes(40), Work("cpu", 0))
        again = embed(small(), scenes(40), Work("cpu", 0))
    assert np.array_equal(made.places, again.places)
    return made


def test_groups_stay_together_on_the_map() -> None:
    features = blobs()
    places = draw_map(features)
    assert places.min() >= -1e-6
    assert places.max() <= 1 + 1e-6
    groups = places.reshape(3, 20, 2)
    within = max(float(np.linalg.norm(group - group.mean(0), axis=1).max()) for group in groups)
    between = min(float(np.linalg.norm(groups[a].mean(0) - groups[b].mean(0))) for a, b in ((0, 1), (0, 2), (1, 2)))
    assert within < between


@pytest.mark.parametrize("count", [2, 3, 5, 9])
def test_a_handful_has_a_map_too(count: int) -> None:
    places = draw_map(blobs()[:count])
    assert places.shape == (count, 2)
    assert np.isfinite(places).all()


def test_a_collapsed_encoder_has_one_place() -> None:
    features = torch.ones(30, 4) / 2
    assert np.ptp(draw_map(features)) == 0
    assert set(cluster(features)) == {0}
    found = others(features, 8)
    assert not (found.position == torch.arange(30).unsqueeze(1)).any()


def test_nobody_is_his_own_neighbor() -> None:
    features = blobs()
    found = others(features, 5)
    exact = (features @ features.T).fill_diagonal_(-2).topk(5).values
    assert torch.allclose(found.cosine, exact, atol=1e-6)
    assert not (found.position == torch.arange(60).unsqueeze(1)).any()


def test_clusters_are_the_groups() -> None:
    found = cluster(blobs()[: 20 * 2])
    assert len(set(found[:20])) + len(set(found[20:])) == len(set(found))  # no cluster in both groups
    assert np.bincount(found)[0] == np.bincount(found).max()


def test_what_lies_on_an_image_is_put_beside_it() -> None:
    features = blobs()
    places = np.random.default_rng(0).random((60, 2)).astype(np.float32)
    placed = place_between(features, features, places, k=1)
    assert np.allclose(placed, places)


def test_maps_are_turned_alike(embedding: Embedding) -> None:
    angle = 2.0
    turn = np.array([[np.cos(angle), np.sin(angle)], [np.sin(angle), -np.cos(angle)]], np.float32)  # and mirrored
    turned = replace(embedding, places=embedding.places @ turn, mixed_places=embedding.mixed_places @ turn)
    back = aligned(turned, embedding.places)
    assert np.allclose(back.places, embedding.places, atol=1e-4)
    assert np.allclose(back.mixed_places, embedding.mixed_places, atol=1e-4)


def test_mixtures_lie_nearer_to_what_they_mostly_are(embedding: Embedding) -> None:
    assert embedding.parents.shape == (40, 2)
    assert embedding.parents[:, 0].mean() > embedding.parents[:, 1].mean()


def test_features_that_are_no_numbers_raise_an_error() -> None:
    subject = small()
    with torch.no_grad():
        next(subject.encoder.parameters()).fill_(float("nan"))
    with pytest.raises(ValueError, match="NaN or infinity"):
        embed(subject, scenes(10), Work("cpu", 0))
