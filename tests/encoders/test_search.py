"""Search: the graph against every pair compared."""

import pytest
import torch

from mixview.encoders import search
from mixview.encoders.search import find_nearest


def clustered(count: int, width: int = 32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(40, width, generator=generator)
    which = torch.randint(40, (count,), generator=generator)
    return centers[which] + 0.5 * torch.randn(count, width, generator=generator)


def test_exact_is_the_sorted_cosines() -> None:
    bank, queries = clustered(300), clustered(20, seed=1)
    found, words = find_nearest(bank, queries, 7)
    cosine = torch.nn.functional.cosine_similarity(queries.double()[:, None], bank.double()[None], dim=2)
    expected = cosine.sort(dim=1, descending=True)
    assert torch.equal(found.position, expected.indices[:, :7])
    torch.testing.assert_close(found.cosine.double(), expected.values[:, :7], rtol=0, atol=1e-6)
    assert words == "exact search"


def test_the_graph_finds_what_exact_search_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, queries = clustered(3000), clustered(100, seed=1)
    monkeypatch.setattr(search, "CHUNK", 512)
    monkeypatch.setattr(search, "MAX_EXACT_PAIRS", 1000)
    found, words = find_nearest(bank, queries, 10)
    exact, _ = find_nearest(bank, queries, 10, "exact")
    same = (found.position.unsqueeze(2) == exact.position.unsqueeze(1)).any(2).float().mean()
    assert same > 0.98
    assert "by a graph, which found" in words
    hits = found.position == exact.position
    torch.testing.assert_close(found.cosine[hits], exact.cosine[hits], rtol=0, atol=1e-5)
    assert (found.cosine.diff(dim=1) <= 0).all()


def test_a_small_bank_and_no_neighbors() -> None:
    bank = clustered(3)
    assert find_nearest(bank, bank, 10)[0].position.shape == (3, 3)
    assert find_nearest(bank, bank, 10, "graph")[0].position.shape == (3, 3)
    with pytest.raises(ValueError, match="the number of neighbors must be at least 1, got 0"):
        find_nearest(bank, bank, 0)
