"""What a report says without labels: planted duplicates, outliers and clusters are found, and collapse is called so."""

import numpy as np
import torch

from mixview.encoders.search import Neighbors
from mixview.losses import l2_normalize
from mixview.report.embedding import cluster, others
from mixview.report.findings import OUTLIERS, detect_collapse, find


def planted() -> torch.Tensor:
    """Three clusters of 40 directions, two copies of image 3, and one image (100) like no other."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.eye(3, 16).repeat_interleave(40, dim=0)
    features = centers + 0.15 * torch.randn(120, 16, generator=generator)
    features[50] = features[3] + 1e-3
    features[7] = features[3]
    features[100] = -torch.ones(16)
    return features


def test_what_was_planted_is_found() -> None:
    features = planted()
    clusters = cluster(l2_normalize(features))
    findings = find(features, others(features, 10), clusters)
    assert [each.images for each in findings.duplicates if 3 in each.images] == [[3, 7, 50]]
    assert findings.duplicate_images == sum(each.size - 1 for each in findings.duplicates)
    assert findings.outliers[0] == 100
    assert len(findings.outliers) == OUTLIERS
    assert sum(each.size for each in findings.clusters) == 120
    assert [each.size for each in findings.clusters] == sorted((each.size for each in findings.clusters), reverse=True)
    for number, each in enumerate(findings.clusters):
        assert (clusters[each.images] == number).all()
        own = l2_normalize(features[clusters == number])
        center = own.mean(0)
        assert each.images[0] == np.flatnonzero(clusters == number)[int((own @ center).argmax())]


def test_a_handful_of_images_has_no_outliers() -> None:
    features = torch.eye(4)
    findings = find(features, others(features, 10), np.array([0, 0, 1, 1]))
    assert findings.outliers == []
    assert findings.duplicates == []
    assert isinstance(others(features, 10), Neighbors)


def test_the_verdict_is_in_words_with_its_numbers() -> None:
    generator = torch.Generator().manual_seed(0)
    alive = torch.randn(200, 32, generator=generator)
    text = detect_collapse(alive, {"std": 0.93, "effective_rank": 20.04})
    assert not text.collapsed
    assert text.text.startswith(
        "No sign of collapse: the features of 200 images have a standard deviation of 0.99 (0: all"
    )
    assert "an effective rank of 31." in text.text
    assert text.text.endswith("the projections that the loss compares had 0.93 and 20.0.")
    same = torch.ones(200, 32) + 0.01 * alive
    assert detect_collapse(same, {}).text.startswith("Collapsed: every image gets nearly the same features. In numbers")
    line = alive[:, :1] * torch.ones(32)
    assert detect_collapse(line, {}).text.startswith("Collapsed to few directions")
    # The projections collapse first, while the encoder's features are still apart.
    assert detect_collapse(alive, {"std": 0.02, "effective_rank": 20.0}).text.startswith("Collapsed: every image")
    assert detect_collapse(alive, {"std": 0.9, "effective_rank": 1.2}).collapsed
