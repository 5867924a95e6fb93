"""The protocols that train: per-stage probe, semi-supervised and supervised."""

from pathlib import Path

import pytest
import torch
from torch import nn

from mixview.data.files import ClassFolders
from mixview.evaluate import finetune, probe
from mixview.evaluate.encoders import Pixels, Subject
from mixview.evaluate.finetune import from_scratch
from mixview.evaluate.linear import Logistic, logistic_regression
from mixview.evaluate.training import Schedule, Task, Work, accuracy, as_tensor, train_on_features
from tests.evaluate.judged import SIZE, colours, means, small
from tests.evaluate.test_linear import blobs

WORK = Work(torch.device("cpu"), workers=0)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    root = colours(tmp_path_factory.mktemp("colours"))
    train, test = ClassFolders(root, "train"), ClassFolders(root, "val")
    labels, answers = train.labels(), test.labels()
    assert labels is not None
    assert answers is not None
    return Task(train, as_tensor(labels), test, as_tensor(answers), 3)


def test_published_settings() -> None:
    assert (probe.SCHEDULE.lr, probe.SCHEDULE.weight_decay, probe.SCHEDULE.epochs) == (0.01, 1e-4, 90)
    assert probe.SCHEDULE.nesterov
    assert probe.SCHEDULE.steps == (30, 60, 90)
    semi = finetune.SEMI
    assert (semi.epochs, semi.lr, semi.weight_decay, semi.batch) == (20, 0.01, 5e-4, 256)
    assert [semi.rate(epoch) for epoch in (11, 12, 16)] == pytest.approx([1, 0.2, 0.04])
    assert finetune.HEAD_RATE == 100


def test_the_probe_trains_every_stage_and_leaves_the_encoder_alone(task: Task) -> None:
    subject = small()
    before = subject.weights_key()
    schedule = Schedule(epochs=5, lr=0.05, weight_decay=1e-4, steps=(), batch=30, nesterov=True)

    def run() -> dict[str, dict[str, float]]:
        return probe.probe(subject, task, WORK._replace(seed=1), schedule)

    found = run()
    assert list(found) == ["stem", "res2", "res3", "res4", "res5", "avgpool"]
    assert min(each["top-1"] for each in found.values()) > 0.6
    assert found == run()
    assert subject.weights_key() == before
    assert list(probe.probe(means(), task, WORK, schedule)) == ["avgpool"]


def test_heads_in_one_pass_are_heads_alone() -> None:
    """Losses that share nothing: each head's weights are those it would have had by itself."""
    features, labels = blobs(64)
    features = features.float()
    views = {"a": features[:, :4], "b": features[:, 4:]}

    def heads(names: list[str]) -> nn.ModuleDict:
        made = nn.ModuleDict()
        for name in names:
            torch.manual_seed(len(name))
            made[name] = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 4))
        return made

    def fit(names: list[str]) -> nn.ModuleDict:
        made = heads(names)
        schedule = Schedule(epochs=4, lr=0.1, weight_decay=1e-2, steps=(2,), batch=16, nesterov=True)

        def loss(rows: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
            split = {"a": rows[:, :4], "b": rows[:, 4:]}
            return torch.stack([nn.functional.cross_entropy(made[name](split[name]), answers) for name in names]).sum()

        train_on_features(loss, schedule.optimizer(made.parameters()), features, labels, schedule, seed=0)
        return made

    both, alone = fit(["a", "b"]), fit(["b"])
    torch.testing.assert_close(both["b"].state_dict(), alone["b"].state_dict())
    assert views["a"].shape == (64, 4)


def test_a_probe_reaches_the_optimum_of_its_objective() -> None:
    """Batch norm over the whole set standardises; weight decay on weight alone is logistic regression's."""
    features, labels = blobs(80)
    standard = (features - features.mean(0)) / (features.var(0, correction=0) + 1e-5).sqrt()
    optimum = logistic_regression(standard, labels, classes=4, strength=0.05)
    layer = nn.Linear(8, 4).double()
    probe_head = nn.Sequential(nn.BatchNorm1d(8, affine=False).double(), layer)
    schedule = Schedule(epochs=600, lr=0.5, weight_decay=0.05, steps=(400, 500), batch=80, nesterov=True)
    groups = [{"params": [layer.weight]}, {"params": [layer.bias], "weight_decay": 0.0}]
    train_on_features(
        lambda rows, answers: nn.functional.cross_entropy(probe_head(rows), answers),
        schedule.optimizer(groups),
        features,
        labels,
        schedule,
        seed=0,
    )
    fitted = Logistic(layer.weight.detach(), layer.bias.detach())(standard)
    expected = optimum(standard)
    torch.testing.assert_close(
        fitted - fitted.mean(1, keepdim=True), expected - expected.mean(1, keepdim=True), atol=1e-4, rtol=1e-3
    )
    assert accuracy(fitted, labels) == accuracy(expected, labels)


def test_fine_tuning_learns_and_leaves_the_subject_as_it_was(task: Task) -> None:
    subject = small()
    before = subject.weights_key()
    schedule = Schedule(epochs=6, lr=0.01, weight_decay=5e-4, steps=(4,), factor=0.2, batch=20)

    def run(seed: int) -> dict[str, float]:
        return finetune.finetune(subject, task, WORK._replace(seed=seed), schedule, head_rate=10)

    assert run(0)["top-1"] > 0.8
    assert run(0) == run(0)
    assert subject.weights_key() == before


def test_the_head_learns_faster(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = []

    def look(loss: object, optimizer: torch.optim.Optimizer, *more: object, **options: object) -> None:
        rates.append([group["lr"] for group in optimizer.param_groups])

    monkeypatch.setattr(finetune, "train", look)
    finetune.finetune(small(), task, WORK)
    assert rates == [[0.01, 1.0]]


def test_from_scratch_is_the_same_network_with_weights_of_the_seed() -> None:
    subject = small(7)
    fresh = from_scratch(subject, 3)
    assert fresh.weights_key() == from_scratch(subject, 3).weights_key()
    assert len({subject.weights_key(), fresh.weights_key(), from_scratch(subject, 4).weights_key()}) == 3
    own = Subject(small(7).encoder, "own", SIZE, 3, 128, spec={"name": "my.module:net"})
    assert from_scratch(own, 3).weights_key() == from_scratch(own, 3).weights_key() != own.weights_key()
    with pytest.raises(ValueError, match="raw pixels has no network to train: name a backbone"):
        from_scratch(Subject(Pixels(), "raw pixels", SIZE, 3, 768), 0)


def test_seeds_change_what_is_drawn(tmp_path: Path) -> None:
    features, labels = blobs(64)

    def weights(seed: int) -> torch.Tensor:
        layer = nn.Linear(8, 4)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        schedule = Schedule(epochs=1, lr=0.1, weight_decay=0.0, steps=(), batch=16)
        train_on_features(
            lambda rows, answers: nn.functional.cross_entropy(layer(rows), answers),
            schedule.optimizer(layer.parameters()),
            features.float(),
            labels,
            schedule,
            seed=seed,
        )
        return layer.weight.detach()

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))
