"""Linear classifiers against scikit-learn's optimum, and the published schedules."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from mixview.evaluate import probe, semi_supervised, supervised
from mixview.evaluate.classifier import accuracy, head
from mixview.evaluate.linear import (
    SCHEDULES,
    Standardization,
    choose_weight_decay,
    linear_on_features,
    linear_on_images,
    logistic_regression,
)
from mixview.evaluate.schedule import Schedule
from mixview.runs.checkpoints import Checkpoints
from tests.evaluate.small_encoders import small
from tests.evaluate.trainings import task, training_run
from tests.train.running import assert_same


def blobs(count: int = 120, width: int = 8, classes: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Overlapping classes, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    centers = torch.randn(classes, width, generator=generator, dtype=torch.float64)
    return centers[labels] + torch.randn(count, width, generator=generator, dtype=torch.float64), labels


@pytest.mark.parametrize("weight_decay", [1e-3, 1e-1, 10.0])
def test_logistic_regression_is_scikit_learns_optimum(weight_decay: float) -> None:
    features, labels = blobs()
    fit = logistic_regression(features, labels, classes=4, weight_decay=weight_decay)
    reference = LogisticRegression(C=1 / (weight_decay * len(labels)), tol=1e-12, max_iter=10_000).fit(
        features.numpy(), labels.numpy()
    )
    # The bias is free up to a constant; compare what is decided by it.
    expected = torch.from_numpy(reference.decision_function(features.numpy()))
    found = fit(features)
    torch.testing.assert_close(
        found - found.mean(1, keepdim=True), expected - expected.mean(1, keepdim=True), atol=1e-4, rtol=1e-4
    )
    assert accuracy(found, labels)["top-1"] == pytest.approx(reference.score(features.numpy(), labels.numpy()))


def test_descent_on_features_comes_to_the_same_optimum() -> None:
    """SGD with weight decay on weight and bias, long enough, against the closed problem it minimizes."""
    features, labels = blobs(96)
    features = Standardization.fit(features)(features)
    schedule = Schedule(epochs=400, lr=0.5, weight_decay=0.05, steps=(200, 300), batch_size=96)
    layer = linear_on_features(features.float(), labels, classes=4, schedule=schedule)
    padded = torch.cat([features, torch.ones(96, 1, dtype=torch.float64)], 1)  # decays the bias as well
    weight = torch.zeros(4, 9, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(padded @ weight.T, labels) + 0.025 * weight.square().sum()
        value.backward()
        return value

    optimizer.step(objective)
    expected = weight.detach().float()
    torch.testing.assert_close(layer.weight.detach(), expected[:, :-1], atol=2e-3, rtol=2e-2)
    torch.testing.assert_close(layer.bias.detach(), expected[:, -1], atol=2e-3, rtol=2e-2)


def test_the_weight_decay_is_chosen_by_the_seed_and_suits_the_noise() -> None:
    features, labels = blobs(200)
    noise = torch.randn(200, 60, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert choose_weight_decay(torch.cat([features, noise], 1), labels, classes=4) >= 1e-2
    assert choose_weight_decay(features, labels, classes=4, seed=3) == choose_weight_decay(
        features, labels, classes=4, seed=3
    )
    few = torch.tensor([0, 1, 2, 3])
    assert choose_weight_decay(features[:4], few, classes=4) > 0  # one image a class: nothing to hold out


def test_published_schedules() -> None:
    moco, code, byol = (SCHEDULES[name] for name in ("moco", "moco-code", "byol"))
    assert [moco.lr_factor(epoch) for epoch in (0, 29, 30, 59, 60, 99)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    assert (moco.lr, moco.weight_decay, moco.epochs, moco.batch_size) == (30, 0, 100, 256)
    assert code.steps == (60, 80)
    assert (byol.lr, byol.weight_decay, byol.epochs, byol.steps) == (0.01, 1e-4, 90, (30, 60))
    assert moco.changed(10, None, None).steps == (3, 6)
    simsiam = SCHEDULES["simsiam"]
    assert (simsiam.optimizer, simsiam.epochs, simsiam.weight_decay, simsiam.momentum) == ("lars", 90, 0.0, 0.9)
    assert (simsiam.batch_size, simsiam.peak_lr) == (4096, pytest.approx(1.6))
    assert simsiam.changed(None, 512, None).peak_lr == pytest.approx(0.2)  # 0.1 × batch / 256
    assert simsiam.changed(None, 512, 3.0).peak_lr == 3.0
    assert simsiam.fitted(256).peak_lr == pytest.approx(0.1)
    assert [simsiam.lr_factor(epoch) for epoch in (0, 45)] == pytest.approx([1, 0.5])
    assert "LARS 0.9, 90 epochs, batch 4096, lr 1.6 along a cosine, wd 0" in simsiam.description
    assert "10 epochs" in moco.changed(10, None, None).description
    with pytest.raises(ValueError, match="epochs must be a whole number, at least 1, got 0"):
        moco.changed(0, None, None)


@pytest.mark.parametrize(
    "published", [*SCHEDULES.values(), probe.SCHEDULE, semi_supervised.SCHEDULE, supervised.SCHEDULE]
)
@pytest.mark.parametrize("epochs", [1, 2, 3, 5])
def test_a_short_run_begins_at_the_full_rate(published: Schedule, epochs: int) -> None:
    short = published.changed(epochs, None, None)
    assert 0 not in short.steps
    assert short.lr_factor(0) == 1


def test_the_head_begins_as_mocos() -> None:
    layer = head(2000, 50, seed=0)
    assert layer.bias.abs().max() == 0
    assert float(layer.weight.detach().std()) == pytest.approx(0.01, rel=0.02)
    assert torch.equal(layer.weight, head(2000, 50, seed=0).weight)


def test_on_images_it_learns_leaves_the_encoder_alone_and_repeats_itself(tmp_path: Path) -> None:
    three, loaded = task(tmp_path / "set"), small()
    before = loaded.weights_key()
    schedule = Schedule(epochs=6, lr=1.0, weight_decay=0.0, steps=(4,), batch_size=32)
    found = [
        linear_on_images(loaded, three, schedule, training_run(tmp_path / f"{workers}", seed=4, workers=workers))
        for workers in (0, 1)
    ]
    assert found[0] == found[1]
    assert found[0]["top-1"] > 0.9
    states = [Checkpoints(tmp_path / each / "checkpoints").load_latest() for each in ("0", "1")]
    assert_same(*states)
    assert loaded.weights_key() == before


def test_a_loss_that_diverges_names_the_rate() -> None:
    features, labels = blobs()
    schedule = Schedule(epochs=3, lr=1e30, weight_decay=1.0, steps=())
    with pytest.raises(ValueError, match=r"the loss is .* after epoch .*: use a smaller --lr than 1e\+30"):
        linear_on_features(features.float(), labels, classes=4, schedule=schedule)


def test_accuracy_counts_the_right_answer_among_the_first() -> None:
    scores = torch.tensor(np.random.default_rng(0).normal(size=(50, 7)))
    labels = torch.arange(50) % 7
    by_hand = [int(label in np.argsort(-row)[:5]) for row, label in zip(scores.numpy(), labels.numpy(), strict=True)]
    assert accuracy(scores, labels)["top-5"] == pytest.approx(np.mean(by_hand))
    assert list(accuracy(scores[:, :5], labels.clamp(max=4))) == ["top-1"]
