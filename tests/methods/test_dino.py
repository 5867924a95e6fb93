"""DINO against lightly's loss, and against the published training loop written out in float64, view by view."""

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import DINOLoss
from lightly.models.modules.heads import DINOProjectionHead
from torch import Tensor

import mixview
from mixview import CutMix, Identity, Mixture, Mixup, bsim, mixture_generators, sim, wbsim
from mixview.methods import DINO, DINOConfig, RunLength, backward
from mixview.methods.dino import WeightNormLinear, cross_entropy, projection_head
from mixview.nn import MLP
from mixview.objective import Term
from mixview.train.config import OptimizerConfig
from mixview.train.optim import build_optimizer, set_learning_rate
from tests.networks import OBJECTIVES, WIDTH, encoder
from tests.test_losses import assert_same_value_and_gradient, features, mixtures
from tests.train.running import assert_same_runs, resume, stopped_at, tiny

K, STEPS, LOCAL = 7, 10, 3


def make(norm: bool = False, **options) -> DINO:
    torch.manual_seed(0)
    options = {"prototypes": K, "momentum": 0.9, "warmup_steps": 4} | options
    return DINO(encoder(norm), WIDTH, MLP((WIDTH, 9, 5), norm), 5, **options).double()


def crops(n: int = 6, seed: int = 0, local: int = LOCAL, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = [16, 16] + [8] * local
    return [torch.rand(n, 3, size, size, generator=generator, dtype=dtype) for size in sizes]


def slow_loss(student: list[Tensor], teacher: list[Tensor], mixture: Mixture, tau_s: float, tau_t: float, center):
    """The paper's H(P_t, P_s) over all pairs of views that differ, one image and one output at a time."""
    total, pairs = torch.zeros((), dtype=torch.float64), 0
    for t, g in enumerate(teacher):
        for s, scores in enumerate(student):
            if s == t:
                continue
            pairs += 1
            for i in range(len(scores)):
                j, lam = (int(mixture.partner[i]), mixture.lam[i]) if s < 2 else (i, 1.0)
                everything = torch.exp(scores[i] / tau_s).sum()
                for parent, weight in ((i, lam), (j, 1 - lam)):
                    p = torch.exp((g[parent] - center) / tau_t)
                    for k in range(len(p)):
                        log_p = torch.log(torch.exp(scores[i, k] / tau_s) / everything)
                        total = total - weight * p[k] / p.sum() * log_p / len(scores)
    return total / pairs


def outputs(method: DINO, views: list[Tensor], teacher: bool = False) -> list[Tensor]:
    network = method.target if teacher else method.online
    weight = (method.target_prototypes if teacher else method.prototypes).weight
    rows = weight / weight.norm(dim=1, keepdim=True)
    z = [network(view) for view in views]
    return [each / each.norm(dim=1, keepdim=True) @ rows.T for each in z]


@given(mixture=mixtures, seed=st.integers(0, 10**6), tau=st.floats(0.05, 2))
@settings(max_examples=25, deadline=None)
def test_cross_entropy_is_the_papers(mixture: Mixture, seed: int, tau: float) -> None:
    n = len(mixture)
    g, center = features(n, 5, seed + 1) / 10, features(1, 5, seed + 2)[0] / 10
    p = torch.softmax((g - center) / 0.05, dim=1)

    def slow(scores: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for i in range(n):
            j, lam = int(mixture.partner[i]), mixture.lam[i]
            log_p = torch.log(torch.exp(scores[i] / tau) / torch.exp(scores[i] / tau).sum())
            total = total - ((lam * p[i] + (1 - lam) * p[j]) * log_p).sum() / n
        return total

    assert_same_value_and_gradient(
        lambda scores: cross_entropy(scores, p, mixture, tau), slow, features(n, 5, seed) / 10
    )


@pytest.mark.parametrize("local", [0, 3])
def test_sim_is_lightlys_loss_and_center(local: int) -> None:
    method = make(warmup_steps=0, teacher_temperature=(0.04, 0.05)).float()
    theirs = DINOLoss(K, teacher_temp=0.05, student_temp=0.1, center_momentum=0.9)
    for step in range(4):
        views = crops(seed=step, local=local, dtype=torch.float32)
        with torch.no_grad():
            student, teacher = outputs(method, views), outputs(method, views[:2], teacher=True)
        expected = theirs(teacher, student)
        loss, targets = method(views, sim().draw(views[0], mixture_generators(0, step)))
        torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
        method.update(targets, progress=0.0)
        torch.testing.assert_close(method.center, theirs.center.flatten(), rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_the_head_is_lightlys() -> None:
    theirs = DINOProjectionHead(8, 12, 6, 9).double()
    head, last = projection_head(8, 12, 6).double(), WeightNormLinear(6, 9).double()
    for ours, layer in zip((0, 2, 4), (0, 2, 4), strict=True):
        head[ours].load_state_dict(theirs.layers[layer].state_dict())
    last.weight.data.copy_(theirs.last_layer.weight_v)
    x = torch.randn(5, 8, dtype=torch.float64)
    ours = last(torch.nn.functional.normalize(head(x), dim=1))
    torch.testing.assert_close(ours, theirs(x), rtol=1e-12, atol=1e-12)
    (ours**2).sum().backward()
    (theirs(x) ** 2).sum().backward()
    torch.testing.assert_close(last.weight.grad, theirs.last_layer.weight_v.grad, rtol=1e-10, atol=1e-12)
    assert [name for name, _ in last.named_parameters()] == ["weight"]
    assert [name for name, _ in WeightNormLinear(6, 9, fixed_norm=False).named_parameters()] == ["weight", "length"]


@pytest.mark.parametrize("objective", ["sim", "bsim", "wbsim"])
def test_ten_steps_are_those_of_the_published_loop(objective: str) -> None:
    """AdamW with both schedules, frozen last layer, rising teacher temperature, moving center and teacher."""
    fast, slow = make(freeze_steps=2), make()
    config = OptimizerConfig("adamw", lr=0.01, weight_decay=0.04, weight_decay_end=0.4, warmup_epochs=2)
    optimizer = build_optimizer(fast, config, 256)
    decayed = [each for each in slow.parameters() if each.requires_grad and each.ndim > 1]
    others = [each for each in slow.parameters() if each.requires_grad and each.ndim <= 1]
    reference = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=0.01)
    center = torch.zeros(K, dtype=torch.float64)
    for step in range(STEPS):
        views = crops(seed=step)
        terms = OBJECTIVES[objective]().draw(views[0], mixture_generators(0, step))
        set_learning_rate(optimizer, config, epoch=step, epochs=STEPS)
        loss, targets = backward(fast, views, terms)
        optimizer.step()
        optimizer.zero_grad()
        fast.update(targets, progress=step / STEPS)

        cosine = (1 + math.cos(math.pi * max(0, step - 2) / (STEPS - 2))) / 2
        for group in reference.param_groups:
            group["lr"] = 0.01 * (step / 2 if step < 2 else cosine)
        reference.param_groups[0]["weight_decay"] = 0.4 - 0.36 * (1 + math.cos(math.pi * step / STEPS)) / 2
        with torch.no_grad():
            teacher = outputs(slow, views[:2], teacher=True)
        tau_t = min(0.07, 0.04 + 0.03 * step / 4)
        expected = torch.zeros((), dtype=torch.float64)
        for weight, mixture in terms:
            student = outputs(slow, [mixture(view) for view in views[:2]] + views[2:])
            expected = expected + weight * slow_loss(student, teacher, mixture, 0.1, tau_t, center)
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-10, atol=1e-10)
        expected.backward()
        if step < 2:
            slow.prototypes.weight.grad = None
        reference.step()
        reference.zero_grad()
        momentum = 1 - 0.1 * (math.cos(math.pi * step / STEPS) + 1) / 2
        with torch.no_grad():
            for target, online in ((slow.target, slow.online), (slow.target_prototypes, slow.prototypes)):
                for one, other in zip(target.parameters(), online.parameters(), strict=True):
                    one.copy_(momentum * one + (1 - momentum) * other)
        center = 0.9 * center + 0.1 * torch.cat(teacher).mean(0)
    torch.testing.assert_close(fast.center, center, rtol=1e-10, atol=1e-10)
    for one, other in zip(fast.parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_lam_of_one_is_sim_and_of_zero_sim_relabeled() -> None:
    views = crops()
    mixer = CutMix()
    for lam in (1.0, 0.0):
        mixed, plain = make(), make()
        mixture = mixer.draw(views[0], torch.Generator().manual_seed(0), lam=lam)
        loss, _ = backward(mixed, views, [Term(1.0, mixture)])
        # At lam = 0 the mixture of i is x_j, compared with p_j: the same pairs in another order.
        expected, _ = backward(plain, views, [Term(1.0, Identity().draw(views[0]))])
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
        for one, other in zip(mixed.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_sequential_and_joint_are_equal(objective: str) -> None:
    views = crops(7)
    terms = OBJECTIVES[objective]().draw(views[0], mixture_generators(0, 0))
    joint, sequential = make(), make()
    loss, _ = joint(views, terms)
    loss.backward()
    total, _ = backward(sequential, views, terms)
    torch.testing.assert_close(total, loss.detach(), rtol=1e-12, atol=1e-12)
    for one, other in zip(joint.parameters(), sequential.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-12)


# Passes of global and local views through the student, and of global ones through the teacher.
PASSES = {"sim": (2, 3, 2), "bsim": (2, 3, 2), "wbsim": (4, 6, 2)}


@pytest.mark.parametrize("objective", PASSES)
def test_encoder_passes(objective: str) -> None:
    method, views = make(), crops()
    counts = {"global": 0, "local": 0, "teacher": 0}

    def count(module, images):
        assert torch.is_grad_enabled()
        counts["global" if images[0].shape[-1] == 16 else "local"] += len(images[0]) // 6

    def count_teacher(module, images):
        assert not torch.is_grad_enabled()
        counts["teacher"] += len(images[0]) // 6

    method.online.encoder.register_forward_pre_hook(count)
    method.target.encoder.register_forward_pre_hook(count_teacher)
    backward(method, views, OBJECTIVES[objective]().draw(views[0], mixture_generators(0, 0)))
    assert tuple(counts.values()) == PASSES[objective]


def test_only_update_moves_the_center_and_the_teacher() -> None:
    for objective in (sim(), bsim(), wbsim(mixer=Mixup())):
        method = make()
        before = copy.deepcopy(method.state_dict())
        parts = [crops(4, seed=0), crops(2, seed=1)]
        targets = [
            backward(method, views, objective.draw(views[0], mixture_generators(0, 0, rank=rank)))[1]
            for rank, views in enumerate(parts)
        ]
        for key, value in method.state_dict().items():
            assert torch.equal(value, before[key]), key
        whole = [torch.cat(views) for views in zip(*parts, strict=True)]
        expected = 0.1 * torch.cat(outputs(method, whole[:2], teacher=True)).mean(0)
        method.update(*targets, progress=0.0)
        torch.testing.assert_close(method.center, expected, rtol=1e-10, atol=1e-12)
    with pytest.raises(TypeError, match="center needs the outputs of the step"):
        method.update(None, progress=0.0)


def test_the_last_layer_is_frozen_and_the_temperature_rises_by_the_state() -> None:
    method = make(freeze_steps=2)
    views = crops()
    temperatures = []
    for step in range(6):
        temperatures.append(method.teacher_temperature)
        _, targets = backward(method, views, sim().draw(views[0], mixture_generators(0, step)))
        assert (method.prototypes.weight.grad is None) == (step < 2)
        method.update(targets, progress=0.0)
    assert temperatures == pytest.approx([0.04, 0.0475, 0.055, 0.0625, 0.07, 0.07])
    again = make(freeze_steps=2)
    again.load_state_dict(method.state_dict())
    assert again.steps == 6
    assert again.frozen == ()


def test_options_by_the_length_of_the_run() -> None:
    published = DINOConfig().resolve(RunLength(1_281_167, 100 * 1251, 1024))
    assert (published.prototypes, published.momentum, published.warmup_teacher_epochs) == (65536, 0.996, 30)
    short = DINOConfig().resolve(RunLength(640, 100, 64))
    assert (short.prototypes, short.momentum) == (640, 0.99)
    assert short.warmup_teacher_epochs == pytest.approx(3)
    method = replace(short, hidden=8, dim=4, prototypes=5).build(encoder(), WIDTH, RunLength(640, 100, 64))
    assert (method.freeze_steps, method.warmup_steps) == (10, 30)
    with pytest.raises(ValueError, match="use at least 2"):
        replace(short, prototypes=1).build(encoder(), WIDTH, RunLength(640, 100, 64))


def test_views_that_do_not_belong_together() -> None:
    method = make()
    views = crops()
    terms = sim().draw(views[0], mixture_generators(0, 0))
    with pytest.raises(ValueError, match="two global views"):
        method(views[:1], terms)
    with pytest.raises(ValueError, match="two global views"):
        method([views[0], views[2]], terms)
    with pytest.raises(ValueError, match="views of the same images"):
        method([*views[:2], views[2][:4]], terms)


@pytest.mark.parametrize("objective", ["sim", "wbsim"])
def test_a_resumed_run_is_bit_exact(objective: str, tmp_path: Path) -> None:
    options = {
        "method": {"name": "dino", "hidden": 16, "dim": 8, "prototypes": 12},
        "objective": objective,
        "optimizer": OptimizerConfig(weight_decay=0.04, weight_decay_end=0.4, warmup_epochs=0.5),
        "augment": "dino-small",
        "accumulate_grad_batches": 2,
    }
    mixview.pretrain(**tiny(tmp_path / "whole", **options))
    with stopped_at(5):
        mixview.pretrain(**tiny(tmp_path / "stopped", **options))
    resume(tmp_path / "stopped")
    assert_same_runs(tmp_path / "whole", tmp_path / "stopped")
