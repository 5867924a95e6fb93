import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mixview.encoders.search import first_largest, nearest
from mixview.evaluate.knn import knn_accuracy, knn_predict


def reference(
    bank: Tensor, labels: Tensor, queries: Tensor, classes: int, k: int, temperature: float
) -> list[list[int]]:
    """Every class ranked by its votes, one query at a time."""
    ranked = []
    for query in queries.double().tolist():
        similar = []
        for index, image in enumerate(bank.double().tolist()):
            dot = sum(a * b for a, b in zip(query, image, strict=True))
            similar.append((dot / (math.hypot(*query) * math.hypot(*image)), index))
        similar.sort(key=lambda pair: (-pair[0], pair[1]))
        votes = [0.0] * classes
        for cosine, index in similar[:k]:
            votes[int(labels[index])] += math.exp(cosine / temperature)
        ranked.append(sorted(range(classes), key=lambda label: (-votes[label], label)))
    return ranked


@pytest.mark.parametrize("chunk", [1, 3, 7, 4096])
@pytest.mark.parametrize("k", [1, 5, 20, 100])
def test_equals_a_float64_loop(k: int, chunk: int) -> None:
    generator = torch.Generator().manual_seed(k)
    bank = torch.randn(31, 6, generator=generator, dtype=torch.float64)
    queries = torch.randn(10, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(5, (31,), generator=generator)
    expected = reference(bank, labels, queries, 5, k, 0.07)
    found = knn_predict(bank, labels, queries, classes=5, k=k, chunk=chunk, top=5)
    assert found.tolist() == expected
    assert found.dtype == torch.int64


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), k=st.integers(1, 12), chunk=st.integers(1, 12))
def test_equal_neighbors_count_in_the_order_of_the_bank(seed: int, k: int, chunk: int) -> None:
    """Axis-aligned vectors: cosines are exactly -1, 0 or 1, and nearly everything is tied."""
    generator = torch.Generator().manual_seed(seed)
    axes = torch.cat([torch.eye(3), -torch.eye(3)]).double()
    bank = axes[torch.randint(6, (11,), generator=generator)]
    queries = axes[torch.randint(6, (4,), generator=generator)]
    labels = torch.randint(4, (11,), generator=generator)
    found = nearest(bank, queries, k=k, chunk=chunk)
    cosine = queries @ bank.T
    expected = [sorted(range(11), key=lambda i: (-row[i], i))[:k] for row in cosine.tolist()]
    assert found.position.tolist() == expected
    assert torch.equal(found.cosine, cosine.gather(1, found.position))
    ranked = knn_predict(bank, labels, queries, classes=4, k=k, chunk=chunk, temperature=0.5)
    # The most votes of the reference, added in the same order: equal sums tie exactly there and here.
    assert ranked.squeeze(1).tolist() == [row[0] for row in reference(bank, labels, queries, 4, k, 0.5)]


def test_collapsed_features_still_have_a_defined_answer() -> None:
    bank, queries = torch.ones(50, 4), torch.ones(7, 4)
    labels = torch.tensor([2, 1] * 25)
    assert nearest(bank, queries, k=4, chunk=8).position.tolist() == [[0, 1, 2, 3]] * 7
    assert knn_predict(bank, labels, queries, classes=3, k=4).squeeze(1).tolist() == [1] * 7  # 2 : 2, the lower class


def test_first_largest() -> None:
    values = torch.tensor([[1.0, 3, 3, 3, 0], [5, 4, 3, 2, 1], [2, 2, 2, 2, 2]])
    found = first_largest(values, 2)
    assert found.position.tolist() == [[1, 2], [0, 1], [0, 1]]
    assert first_largest(values, 9).position.tolist() == [[1, 2, 3, 0, 4], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]


def test_accuracy() -> None:
    bank = torch.eye(4)
    labels = torch.arange(4)
    queries = torch.tensor([[1.0, 0.5, 0, 0], [0.5, 1, 0, 0], [0, 0, 1, 0.5], [1, 0, 0, 0.5]])
    truth = torch.tensor([0, 0, 2, 1])
    assert knn_accuracy(bank, labels, queries, truth, classes=4) == 0.5
    assert knn_accuracy(bank, labels, queries, truth, classes=4, top=2) == 0.75
    assert knn_accuracy(bank, labels, queries, truth, classes=4, top=5) == 1.0


def test_length_and_precision_of_features_do_not_matter() -> None:
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(3, 16, generator=generator)
    labels = torch.arange(60) % 3
    bank = centers[labels] + 0.1 * torch.randn(60, 16, generator=generator)
    queries = centers + 0.1 * torch.randn(3, 16, generator=generator)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        found = knn_predict((1000 * bank).to(dtype), labels, (0.01 * queries).to(dtype), classes=3, temperature=1e-3)
        assert found.squeeze(1).tolist() == [0, 1, 2]


def test_memory_of_a_block() -> None:
    """No tensor is larger than a block, whatever the bank: 500 by 500 in blocks of 64."""

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = function(*args, **(kwargs or {}))
            if isinstance(result, Tensor) and result.untyped_storage().data_ptr() not in given:
                self.size = max(self.size, result.numel())
            return result

    bank, queries = torch.randn(500, 4), torch.randn(500, 4)
    labels = torch.randint(10, (500,))
    given = {tensor.untyped_storage().data_ptr() for tensor in (bank, queries, labels)}
    with Largest() as largest:
        knn_predict(bank, labels, queries, classes=10, chunk=64, k=5)
    assert largest.size <= 64 * 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queries": torch.ones(2, 5)}, r"\[M, D\] and \[Q, D\], got \[3, 4\] and \[2, 5\]"),
        ({"bank": torch.full((3, 4), math.nan)}, "bank contain NaN or infinity"),
        ({"bank_labels": torch.tensor([0, -1, 1])}, "go from -1 to 1, expected 0 to 1: leave out"),
        ({"bank_labels": torch.tensor([0, 1])}, r"each of its 3 features, got labels of shape \[2\]"),
        ({"bank_labels": torch.tensor([0.0, 1, 1])}, "in torch.float32"),
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"temperature": 0.0}, "temperature must be a positive number, got 0.0"),
    ],
)
def test_errors(change: dict[str, object], message: str) -> None:
    arguments = {"bank": torch.ones(3, 4), "bank_labels": torch.tensor([0, 1, 1]), "queries": torch.ones(2, 4)}
    with pytest.raises(ValueError, match=message):
        knn_predict(**{**arguments, "classes": 2, **change})  # type: ignore[arg-type]
