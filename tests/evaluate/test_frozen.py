"""What a protocol trains and what it leaves alone, seen from inside: every convolution and batch norm that it runs."""

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from mixview.evaluate import evaluate
from tests.evaluate.small_encoders import colors, run_folder

QUICK: dict[str, Any] = {"workers": 0, "device": "cpu", "size": 16, "epochs": 2, "batch_size": 16}


class Pass(NamedTuple):
    """One call of a batch norm."""

    module: nn.Module
    learning: bool
    """Whether gradients flow through it."""
    training: bool
    """Whether it normalized by the statistics of the batch."""


class MonitorConfig:
    """Every convolution and batch norm of an encoder, as it was when it first ran, and what became of it."""

    def __init__(self) -> None:
        self.first: dict[nn.Module, dict[str, Tensor]] = {}
        self.learned: set[nn.Module] = set()
        """Those that gradients flowed through."""
        self.passes: list[Pass] = []

    def see(self, module: nn.Module) -> None:
        if module not in self.first:
            self.first[module] = copy.deepcopy(module.state_dict())
        if torch.is_grad_enabled():
            self.learned.add(module)
        if isinstance(module, nn.BatchNorm2d):
            self.passes.append(Pass(module, torch.is_grad_enabled(), module.training))

    def changed(self, modules: Iterable[nn.Module], kind: type[nn.Module], name: str) -> list[bool]:
        """Of these modules of this kind, whether their weight or buffer of this name is another than at first."""
        return [
            not torch.equal(self.first[module][name], module.state_dict()[name])
            for module in modules
            if isinstance(module, kind)
        ]


@pytest.fixture
def run(tmp_path: Path) -> str:
    return str(run_folder(tmp_path / "run"))


@pytest.fixture
def watch(run: str, monkeypatch: pytest.MonkeyPatch) -> MonitorConfig:
    """Begins when the run is there: building its encoder is no part of a protocol."""
    watched = MonitorConfig()
    for kind in (nn.Conv2d, nn.BatchNorm2d):

        def forward(self: nn.Module, images: Tensor, original: Any = kind.forward) -> Tensor:
            watched.see(self)
            result: Tensor = original(self, images)
            return result

        monkeypatch.setattr(kind, "forward", forward)
    return watched


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(colors(tmp_path_factory.mktemp("colors") / "set", 20, 4))


@pytest.mark.parametrize("protocol", ["semi-supervised", "supervised"])
def test_fine_tuning_trains_everything_batch_norm_included(
    protocol: str, data: str, run: str, watch: MonitorConfig
) -> None:
    """Batch norm normalizes by the batch in every training step, its statistics move, and the test uses these."""
    options = {"fractions": [0.5]} if protocol == "semi-supervised" else {}
    evaluate(run, protocol, data=data, **QUICK, **options)
    learning = [each.training for each in watch.passes if each.learning]
    assert learning
    assert all(learning)
    testing = [each.training for each in watch.passes if not each.learning and each.module in watch.learned]
    assert testing
    assert not any(testing)
    for name in ("running_mean", "running_var", "num_batches_tracked", "weight", "bias"):
        changed = watch.changed(watch.learned, nn.BatchNorm2d, name)
        assert changed, name
        assert all(changed), name
    assert all(watch.changed(watch.learned, nn.Conv2d, "weight"))


@pytest.mark.parametrize("protocol", ["linear", "probe"])
def test_a_frozen_encoder_stays_as_it_is_to_the_last_bit(
    protocol: str, data: str, run: str, watch: MonitorConfig
) -> None:
    """Weights and statistics alike; and its batch norms use the statistics of pretraining throughout."""
    evaluate(run, protocol, data=data, **QUICK)
    assert len(watch.first) > 10
    assert not any(each.training for each in watch.passes)
    for kind in (nn.Conv2d, nn.BatchNorm2d):
        for name in next(each for each in watch.first if isinstance(each, kind)).state_dict():
            assert not any(watch.changed(watch.first, kind, name)), name


@pytest.mark.parametrize(
    ("protocol", "groups"),
    [
        # lr, momentum, Nesterov's or not, weight decay; MoCo's and OpenSelfSup's protocols, and He et al., 2016.
        ("linear", {(30.0, 0.9, False, 0.0)}),
        ("probe", {(0.01, 0.9, True, 1e-4)}),
        ("semi-supervised", {(0.01, 0.9, False, 5e-4), (1.0, 0.9, False, 5e-4)}),  # the classifier 100 times as fast
        ("supervised", {(0.1, 0.9, False, 1e-4)}),
    ],
)
def test_the_first_step_is_taken_as_published(
    protocol: str, groups: set[tuple[float, float, bool, float]], data: str, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stepped(Exception):
        pass

    def stop(self: torch.optim.SGD, *_: Any, **__: Any) -> None:
        keys = ("lr", "momentum", "nesterov", "weight_decay")
        taken = {tuple(group[key] for key in keys) for group in self.param_groups}
        assert taken == groups
        if protocol in ("linear", "probe"):  # weights and biases of classifiers of three classes, and no norm's
            assert {len(weight) for group in self.param_groups for weight in group["params"]} == {3}
        raise Stepped

    monkeypatch.setattr(torch.optim.SGD, "step", stop)
    options = {"fractions": [0.5]} if protocol == "semi-supervised" else {}
    with pytest.raises(Stepped):
        evaluate(run, protocol, data=data, **QUICK, **options)
