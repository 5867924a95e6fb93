import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from mixview.lars import LARS
from mixview.methods import BYOL, Method, MoCo, SimCLR, SimSiam
from mixview.nn import MLP
from mixview.train.config import OptimizerConfig
from mixview.train.optim import (
    build_optimizer,
    has_fused_kernel,
    parameter_groups,
    peak_lr,
    schedule_factor,
    set_learning_rate,
)


class Residual(nn.Module):
    """Two convolutions and, in the shortcut, a norm that no name gives away."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.shortcut = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.GroupNorm(2, 4))

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(images)) + self.shortcut(images)).mean((2, 3))


def simsiam() -> SimSiam:
    torch.manual_seed(0)
    return SimSiam(Residual(), 4, MLP((4, 8, 8), last_norm="plain"), MLP((8, 4, 8)))


def simclr() -> SimCLR:
    torch.manual_seed(0)
    return SimCLR(Residual(), 4, MLP((4, 8, 8)))


SGD = OptimizerConfig("sgd", lr=0.03)
LARS_SIMCLR = OptimizerConfig("lars", lr=0.3, weight_decay=1e-6, warmup_epochs=10)


# Parameter groups


@pytest.mark.parametrize("name", ["lars", "adamw"])
def test_norms_and_biases_are_left_out_by_shape(name: Any) -> None:
    method = simclr()
    matrices, rest = parameter_groups(method, OptimizerConfig(name, lr=0.1, weight_decay=0.5), 256)
    assert {weight.ndim for weight in matrices["params"]} == {2, 4}
    assert {weight.ndim for weight in rest["params"]} == {1}
    shortcut = method.encoder.shortcut[1]
    assert any(weight is shortcut.weight for weight in rest["params"])
    assert (matrices["weight_decay"], rest["weight_decay"]) == (0.5, 0.0)
    if name == "lars":
        assert (matrices["adapt"], rest["adapt"]) == (True, False)
    assert sum(len(group["params"]) for group in (matrices, rest)) == len(list(method.parameters()))


def test_sgd_decays_everything_and_each_default_can_be_overruled() -> None:
    assert {group["weight_decay"] for group in parameter_groups(simsiam(), SGD, 256)} == {1e-4}
    spared = OptimizerConfig("sgd", lr=0.03, decay_norm_and_bias=False)
    assert [group["weight_decay"] for group in parameter_groups(simsiam(), spared, 256)] == [1e-4, 0.0]
    everything = OptimizerConfig("lars", lr=0.3, decay_norm_and_bias=True)
    assert all(group["adapt"] and group["weight_decay"] for group in parameter_groups(simclr(), everything, 256))


@pytest.mark.parametrize("make", [BYOL, MoCo])
def test_the_momentum_copy_is_not_optimized(make: type[Method]) -> None:
    heads = {"predictor": MLP((8, 8))} if make is BYOL else {"dim": 8, "queue_size": 16}
    method = make(Residual(), 4, MLP((4, 8)), **heads)
    optimized = {id(weight) for group in parameter_groups(method, SGD, 256) for weight in group["params"]}
    assert optimized == {id(weight) for weight in method.parameters() if weight.requires_grad}
    assert not optimized & {id(weight) for weight in method.target.parameters()}


def test_the_fixed_predictor_keeps_its_learning_rate() -> None:
    method, settings = simsiam(), OptimizerConfig("sgd", lr=0.05, scale_lr=True, fixed_predictor_lr=True)
    optimizer = build_optimizer(method, settings, batch_size=512)
    fixed = {id(weight) for group in optimizer.param_groups if group["fixed"] for weight in group["params"]}
    assert fixed == {id(weight) for weight in method.predictor.parameters()}
    assert set_learning_rate(optimizer, settings, epoch=100, epochs=200) == pytest.approx(0.05)
    assert {(group["fixed"], round(group["lr"], 9)) for group in optimizer.param_groups} == {(True, 0.1), (False, 0.05)}
    with pytest.raises(ValueError, match="SimCLR has none: leave it out"):
        build_optimizer(simclr(), settings, batch_size=512)


def test_the_predictor_may_learn_at_a_rate_of_its_own() -> None:
    method, settings = simsiam(), OptimizerConfig("sgd", lr=0.05, predictor_rate=10)
    optimizer = build_optimizer(method, settings, batch_size=256)
    fast = {id(weight) for group in optimizer.param_groups if group["lr"] == 0.5 for weight in group["params"]}
    assert fast == {id(weight) for weight in method.predictor.parameters()}
    assert set_learning_rate(optimizer, settings, epoch=100, epochs=200) == pytest.approx(0.025)
    assert {round(group["lr"], 9) for group in optimizer.param_groups} == {0.025, 0.25}
    with pytest.raises(ValueError, match=r"predictor_rate needs a method with a predictor.*SimCLR has none"):
        build_optimizer(simclr(), settings, batch_size=256)
    with pytest.raises(ValueError, match="predictor_rate must be a number, more than 0, got 0"):
        OptimizerConfig(predictor_rate=0)


@pytest.mark.parametrize("name", ["sgd", "lars", "adamw"])
def test_norm_layers_and_biases_may_learn_at_a_rate_of_their_own(name: str) -> None:
    settings = OptimizerConfig(name, lr=0.2, scale_lr=True, norm_and_bias_rate=0.024)
    optimizer = build_optimizer(simsiam(), settings, batch_size=512)
    assert set_learning_rate(optimizer, settings, epoch=100, epochs=200) == pytest.approx(0.2)
    for group in optimizer.param_groups:
        for weight in group["params"]:
            assert group["lr"] == pytest.approx(0.2 if weight.ndim > 1 else 0.0048)
    with pytest.raises(ValueError, match="norm_and_bias_rate must be a number, more than 0, got 0"):
        OptimizerConfig(norm_and_bias_rate=0)


def test_nothing_to_train() -> None:
    with pytest.raises(ValueError, match="no parameter that takes a gradient: unfreeze"):
        build_optimizer(simclr().requires_grad_(False), SGD, 256)


def test_learning_rate_scales_with_the_batch() -> None:
    assert peak_lr(OptimizerConfig("lars", lr=0.2, scale_lr=True), 4096) == pytest.approx(3.2)  # BYOL
    assert peak_lr(OptimizerConfig("sgd", lr=0.03), 4096) == 0.03


# Optimizers


def lars_of_the_paper(
    weights: list[Tensor], gradients: list[list[Tensor]], lrs: list[float], adapt: bool, decay: float, simclr: bool
) -> list[Tensor]:
    """Algorithm 1 of You et al. (2017), a tensor at a time; or SimCLR's, with the norm of the decayed gradient."""
    weights = [weight.clone().double() for weight in weights]
    velocity = [torch.zeros_like(weight) for weight in weights]
    for step, lr in zip(gradients, lrs, strict=True):
        for i, gradient in enumerate(step):
            gradient = gradient.double()
            decayed = gradient + decay * weights[i]
            local = 1.0
            if adapt and weights[i].norm() > 0 and gradient.norm() > 0:
                below = decayed.norm() if simclr else gradient.norm() + decay * weights[i].norm()
                local = 1e-3 * weights[i].norm() / below
            velocity[i] = 0.9 * velocity[i] + lr * local * decayed
            weights[i] = weights[i] - velocity[i]
    return weights


def run(make: Any, weights: list[Tensor], gradients: list[list[Tensor]], lrs: list[float]) -> list[Tensor]:
    parameters = [nn.Parameter(weight.clone()) for weight in weights]
    optimizer = make(parameters)
    for step, lr in zip(gradients, lrs, strict=True):
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


def draw_steps() -> tuple[list[Tensor], list[list[Tensor]], list[float]]:
    torch.manual_seed(0)
    weights = [torch.randn(4, 3, 3, 3), torch.randn(5, 7) * 10, torch.zeros(3, 3), torch.randn(6)]
    gradients = [[torch.randn_like(weight) for weight in weights] for _ in range(6)]
    gradients[2][0].zero_()  # a tensor that gets no gradient keeps moving by its momentum
    return weights, gradients, [0.0, 10.0, 20.0, 15.0, 5.0, 0.0]


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("adapt", [True, False])
def test_lars_is_the_paper_s(adapt: bool, decay: float) -> None:
    weights, gradients, lrs = draw_steps()
    lrs = lrs if adapt else [lr / 100 for lr in lrs]
    got = run(lambda p: LARS(p, lr=1.0, weight_decay=decay, adapt=adapt), weights, gradients, lrs)
    want = lars_of_the_paper(weights, gradients, lrs, adapt, decay, simclr=False)
    torch.testing.assert_close(got, [weight.float() for weight in want], rtol=1e-5, atol=1e-6)
    if decay == 0:  # where the two forms of the ratio are one
        want = lars_of_the_paper(weights, gradients, lrs, adapt, decay, simclr=True)
        torch.testing.assert_close(got, [weight.float() for weight in want], rtol=1e-5, atol=1e-6)


def test_timm_s_lars_agrees_while_lr_stands_still_only() -> None:
    """Why there is a LARS here at all."""
    timm_optim = pytest.importorskip("timm.optim")
    weights, gradients, lrs = draw_steps()
    weights, gradients = weights[:2], [step[:2] for step in gradients if step[0].any()]

    def both(lrs: list[float]) -> tuple[list[Tensor], list[Tensor]]:
        ours = run(lambda p: LARS(p, lr=1.0, weight_decay=0.1), weights, gradients, lrs)
        theirs = run(lambda p: timm_optim.Lars(p, momentum=0.9, weight_decay=0.1), weights, gradients, lrs)
        return ours, theirs

    torch.testing.assert_close(*both([10.0] * 5))
    ours, theirs = both(lrs[:5])
    assert not torch.allclose(ours[0], theirs[0], rtol=1e-2)


def test_lars_takes_a_closure_and_leaves_gradients_alone() -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = LARS([weight], lr=1.0, weight_decay=0.1)

    def closure() -> float:
        weight.grad = None
        loss = (weight**2).sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 4.0
    assert torch.equal(weight.grad, torch.full((2, 2), 2.0))
    assert LARS([nn.Parameter(torch.ones(1))], lr=1.0).step() is None  # no gradient, nothing to do


@pytest.mark.parametrize("settings", [SGD, OptimizerConfig("adamw", lr=2e-3), LARS_SIMCLR], ids=lambda s: s.name)
def test_a_restored_optimizer_goes_on_bit_for_bit(settings: OptimizerConfig) -> None:
    def step(method: SimCLR, optimizer: torch.optim.Optimizer, number: int) -> None:
        set_learning_rate(optimizer, settings, epoch=11 + number, epochs=20)
        generator = torch.Generator().manual_seed(number)
        optimizer.zero_grad()
        (method.online(torch.rand(4, 3, 8, 8, generator=generator)) ** 2).sum().backward()
        optimizer.step()

    method = simclr()
    optimizer = build_optimizer(method, settings, 256)
    step(method, optimizer, 0)
    other = simclr()
    other.load_state_dict(method.state_dict())
    resumed = build_optimizer(other, settings, 256)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # torch would share the tensors
    for number in (1, 2):
        step(method, optimizer, number)
        step(other, resumed, number)
    assert all(torch.equal(a, b) for a, b in zip(method.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("settings", [SGD, OptimizerConfig("adamw", lr=2e-3)], ids=lambda s: s.name)
def test_fused_is_the_same_optimizer(settings: OptimizerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_fused_kernel(torch.device("cpu"), torch.float32)
    assert not has_fused_kernel(torch.device("meta"), torch.float32)
    after = []
    for fused in (True, False, "unsupported"):
        if fused == "unsupported":
            monkeypatch.setattr("mixview.train.optim.has_fused_kernel", lambda *kind: False)
        method = simclr()
        optimizer = build_optimizer(method, settings, 256, fused=bool(fused))
        assert bool(optimizer.param_groups[0]["fused"]) == (fused is True)
        for _ in range(3):
            optimizer.zero_grad()
            method.online(torch.ones(4, 3, 8, 8)).pow(2).sum().backward()
            optimizer.step()
        after.append([weight.detach().clone() for weight in method.parameters()])
    torch.testing.assert_close(after[0], after[1])
    torch.testing.assert_close(after[0], after[2])


# Schedules


def test_moco_v1_steps() -> None:
    settings = OptimizerConfig("sgd", lr=0.03, schedule="steps", milestones=(120, 160))
    optimizer = build_optimizer(simclr(), settings, 256)
    rates = [set_learning_rate(optimizer, settings, epoch, 200) for epoch in (0, 119.99, 120, 159, 160, 199.9)]
    assert rates == pytest.approx([0.03, 0.03, 0.003, 0.003, 0.0003, 0.0003])


def test_moco_v2_and_simsiam_cosine() -> None:
    for epoch in range(200):  # facebookresearch/moco and simsiam, adjust_learning_rate
        want = 0.5 * (1.0 + math.cos(math.pi * epoch / 200))
        assert schedule_factor(SGD, epoch, 200) == pytest.approx(want)


def test_simclr_warm_up_and_cosine() -> None:
    at = {epoch: schedule_factor(LARS_SIMCLR, epoch, 200) for epoch in (0, 1, 5, 10, 105, 200)}
    assert at == pytest.approx({0: 0, 1: 0.1, 5: 0.5, 10: 1, 105: 0.5, 200: 0})


def test_constant() -> None:
    settings = OptimizerConfig("adamw", lr=1e-3, schedule="constant", warmup_epochs=2)
    assert [schedule_factor(settings, epoch, 10) for epoch in (0, 1, 2, 9, 10)] == [0, 0.5, 1, 1, 1]


@given(
    schedule=st.sampled_from(["cosine", "constant", "steps"]),
    warmup=st.floats(0, 9),
    epoch=st.floats(0, 12),
    step=st.floats(0, 1),
)
def test_a_schedule_rises_then_never_rises_again(schedule: Any, warmup: float, epoch: float, step: float) -> None:
    milestones = (3, 9) if schedule == "steps" else ()
    settings = OptimizerConfig("sgd", lr=1.0, schedule=schedule, warmup_epochs=warmup, milestones=milestones)
    factor, later = schedule_factor(settings, epoch, 10), schedule_factor(settings, epoch + step, 10)
    assert 0 <= factor <= 1
    assert later >= factor if epoch + step < warmup else epoch < warmup or later <= factor


def test_learning_rate_depends_on_nothing_that_was_set_before() -> None:
    optimizer = build_optimizer(simclr(), LARS_SIMCLR, 256)
    first = set_learning_rate(optimizer, LARS_SIMCLR, 50.25, 200)
    set_learning_rate(optimizer, LARS_SIMCLR, 199, 200)
    assert set_learning_rate(optimizer, LARS_SIMCLR, 50.25, 200) == first
    assert {group["lr"] for group in optimizer.param_groups} == {first}


def test_schedules_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"a warm-up of 10 epochs leaves nothing of a run of 5: lower --optimizer"):
        schedule_factor(LARS_SIMCLR, 0, 5)
    with pytest.raises(ValueError, match="epoch counts from 0, got -1"):
        schedule_factor(SGD, -1, 5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "adam"}, "--optimizer.name must be sgd, lars or adamw, got 'adam': did you mean adamw?"),
        ({"schedule": "linear"}, "--optimizer.schedule must be cosine, steps or constant"),
        ({"lr": 0}, "--optimizer.lr must be a number, more than 0, got 0"),
        ({"lr": math.nan}, "got nan"),
        ({"lr": math.inf}, "got inf"),
        ({"weight_decay": -1e-4}, "weight_decay must be a number, at least 0, got -0.0001"),
        ({"momentum": 1}, "momentum must be a number, at least 0 and less than 1, got 1"),
        ({"betas": (0.9, 1.0)}, "betas must be a list of 2, each a number, at least 0 and less than 1"),
        ({"warmup_epochs": -1}, "warmup_epochs must be a number, at least 0, got -1"),
        ({"gamma": 0}, "gamma must be a number, more than 0 and at most 1, got 0"),
        ({"clip": 0}, "clip must be a number, more than 0, got 0"),
        ({"schedule": "steps"}, "milestones .* do not go with"),
        ({"milestones": (1, 2)}, 'do not go with schedule "cosine"'),
        ({"schedule": "steps", "milestones": (160, 120)}, "in rising order"),
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OptimizerConfig(**({"name": "sgd", "lr": 0.03} | wrong))


def test_a_wrong_batch() -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        build_optimizer(simclr(), SGD, batch_size=0)
