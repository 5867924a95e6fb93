"""fp16 with a scaler and clipping, on the CPU: the scaler is real, the computation stays in float32."""

import copy
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision
from torch import Tensor

import mixview
from mixview import CutMix, wbsim
from mixview.data.loader import EpochSampler
from mixview.methods import Method
from mixview.mixing import mixture_generators
from mixview.runs.devices import grad_scaler
from mixview.train import pretraining
from mixview.train.config import OptimizerConfig, PretrainConfig
from mixview.train.loop import Engine
from mixview.train.optim import build_optimizer
from tests.networks import METHODS
from tests.train.running import last_state, tiny

OPTIMIZERS = {
    "sgd": OptimizerConfig("sgd", lr=0.5, clip=0.05),
    "adamw": OptimizerConfig("adamw", lr=0.01, clip=0.05),
    "lars": OptimizerConfig("lars", lr=0.5, clip=0.05),
}
OBJECTIVE = wbsim(mixer=CutMix(lam_per="image"))


class Scaled(MixedPrecision):
    """`16-mixed` in float32, so that a step can be compared: scaling by a power of two changes no digit."""

    def __init__(self, scale: float = 2.0**16) -> None:
        super().__init__("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=scale))

    def forward_context(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def convert_input(self, data: Any) -> Any:
        return data


def scaled_fabric(scale: float = 2.0**16) -> Fabric:
    return Fabric(accelerator="cpu", devices=1, plugins=Scaled(scale))


def byol() -> Method:
    torch.manual_seed(0)
    return METHODS["byol"](True)


def views() -> tuple[Tensor, Tensor]:
    first, second = torch.rand(2, 8, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    return first, second


def scaled_engine(settings: OptimizerConfig, accumulate_grad_batches: int = 1, scale: float = 2.0**16) -> Engine:
    fabric, method = scaled_fabric(scale), byol()
    module, optimizer = fabric.setup(method, build_optimizer(method, settings, 8, scaled=True))
    config = PretrainConfig(optimizer=settings, epochs=1, accumulate_grad_batches=accumulate_grad_batches)
    return Engine(fabric, module, method, optimizer, config, OBJECTIVE, EpochSampler(8, 8), [])


def clipped_step(method: Method, settings: OptimizerConfig, accumulate_grad_batches: int) -> float:
    """The same step without a scaler, spelled out; the norm of the gradient before it is clipped."""
    for group, (first, second) in enumerate(
        zip(*(view.chunk(accumulate_grad_batches) for view in views()), strict=True)
    ):
        terms = OBJECTIVE.draw(first, mixture_generators(0, 0, rank=group))
        (method((first, second), terms)[0] / accumulate_grad_batches).backward()
    gradients = [weight.grad for weight in method.parameters() if weight.grad is not None]
    norm = float(sum((gradient.double() ** 2).sum() for gradient in gradients) ** 0.5)
    for gradient in gradients:
        gradient.mul_(min(1.0, (settings.clip or 0.0) / norm))
    build_optimizer(method, settings, 8, fused=False).step()
    return norm


@pytest.mark.parametrize("accumulate_grad_batches", [1, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_scaled_step_is_clipped_by_the_norm_of_the_unscaled_gradient(name: str, accumulate_grad_batches: int) -> None:
    settings = OPTIMIZERS[name]
    engine = scaled_engine(settings, accumulate_grad_batches)
    before, reference = copy.deepcopy(engine.method.online), byol()
    assert clipped_step(reference, settings, accumulate_grad_batches) > 2 * (
        settings.clip or 0.0
    )  # there is something to clip
    engine.take_step(views())
    torch.testing.assert_close(engine.method.online.state_dict(), reference.online.state_dict(), rtol=1e-4, atol=1e-6)
    assert not torch.equal(next(before.parameters()), next(engine.method.online.parameters()))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_overflow_skips_the_step_and_lowers_the_scale(name: str) -> None:
    """The first steps of fp16 do so as a rule: the scale starts too high."""
    engine = scaled_engine(OPTIMIZERS[name], scale=3e38)
    before = copy.deepcopy(dict(engine.method.online.named_parameters()))
    engine.take_step(views())
    torch.testing.assert_close(dict(engine.method.online.named_parameters()), before, rtol=0, atol=0)
    scaler = grad_scaler(engine.fabric)
    assert scaler is not None
    assert scaler.get_scale() == pytest.approx(1.5e38)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_in_16_mixed_clips(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole runs: with a scaler they end in the weights of those without."""
    states = []
    for scaled in (False, True):
        if scaled:
            monkeypatch.setattr(pretraining, "make_fabric", lambda **_: scaled_fabric())
        options = tiny(
            tmp_path / str(scaled), method="byol", epochs=1, optimizer=OPTIMIZERS[name], accumulate_grad_batches=2
        )
        mixview.pretrain(**options)
        states.append(last_state(tmp_path / str(scaled))[0])
    assert (states[0]["scaler"], states[1]["scaler"] is None) == (None, False)
    # Not biases: before a batch norm they have no gradient but noise, which AdamW makes as long as any other.
    plain, scaled = ({k: w for k, w in state["method"].items() if w.ndim > 1} for state in states)
    torch.testing.assert_close(plain, scaled, rtol=1e-4, atol=1e-5)
