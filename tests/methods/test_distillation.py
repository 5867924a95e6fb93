"""Distillation against slow loops, its teacher's isolation, and teachers that do not fit."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightly.loss import NegativeCosineSimilarity
from torch import Tensor, nn

import mixview
from mixview import CutMix, Identity, mixture_generators, sim
from mixview.encoders import backbones
from mixview.encoders.encoder_file import save_encoder
from mixview.experiments.passes import count_passes
from mixview.extensions import require_consent
from mixview.methods import Distillation, DistillationConfig, RunLength, backward
from mixview.methods.distillation import smooth_l1, standardize_features
from mixview.nn import MLP
from mixview.objective import Term
from mixview.train.config import PretrainConfig
from tests.methods.test_methods import two_views
from tests.networks import OBJECTIVES, WIDTH, encoder
from tests.train.running import assert_same_runs, last_state, resume, stopped_at, tiny


def teacher_network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def make(norm: bool = False, **options) -> Distillation:
    torch.manual_seed(0)
    return Distillation(encoder(norm), WIDTH, teacher_network(), 6, MLP((WIDTH, 9, 6), norm), **options).double()


def slow_pair(q: Tensor, z: Tensor, kind: str) -> Tensor:
    """One image against one target."""
    if kind == "cosine":
        return 2 - 2 * (q @ z) / q.norm() / z.norm()
    total = torch.zeros((), dtype=torch.float64)
    for one, other in zip(q, z, strict=True):
        gap = (one - other).abs()
        total = total + (0.5 * gap**2 if gap < 1 else gap - 0.5)
    return total / len(q)


@pytest.mark.parametrize(
    ("objective", "view", "steps"),
    [("sim", "same", 10), ("bsim", "other", 1), ("wbsim", "same", 10), ("sim", "other", 1)],
)
@pytest.mark.parametrize("target", ["parents", "mixture"])
@pytest.mark.parametrize("kind", ["cosine", "smooth_l1"])
def test_steps_are_those_of_the_slow_reference(kind: str, target: str, view: str, objective: str, steps: int) -> None:
    options = {"loss": kind, "target": target, "teacher_view": view, "standardize": kind == "smooth_l1"}
    fast, slow = make(**options), make()
    optimizers = [torch.optim.SGD(method.online.parameters(), lr=0.02, momentum=0.9) for method in (fast, slow)]

    def teach(images: Tensor) -> Tensor:
        with torch.no_grad():
            z = slow.teacher.encoder.eval()(images)
        if kind == "cosine":
            return z
        gaps = [column - column.mean() for column in z.T]
        columns = [gap / torch.sqrt((gap**2).mean() + 1e-6) for gap in gaps]
        return torch.stack(columns, dim=1)

    for step in range(steps):
        views = two_views(5, seed=step, dtype=torch.float64)
        terms = OBJECTIVES[objective]().draw(views[0], mixture_generators(0, step))
        loss, targets = backward(fast, views, terms)
        expected = torch.zeros((), dtype=torch.float64)
        for weight, mixture in terms:
            for side in (0, 1):
                shown = views[side] if view == "same" else views[1 - side]
                q = slow.online(mixture(views[side]))
                z = teach(mixture(shown) if target == "mixture" else shown)
                for i in range(len(q)):
                    j, lam = (i, 1.0) if target == "mixture" else (int(mixture.partner[i]), mixture.lam[i])
                    pair = lam * slow_pair(q[i], z[i], kind) + (1 - lam) * slow_pair(q[i], z[j], kind)
                    expected = expected + weight * pair / len(q) / 2
        expected.backward()
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-10, atol=1e-10)
        for one, other in zip(fast.online.parameters(), slow.online.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-8, atol=1e-10)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        fast.update(targets, progress=step / steps)


def test_sim_is_the_cosine_loss_of_lightly() -> None:
    method, views = make(), two_views(dtype=torch.float64)
    loss, _ = method(views, sim().draw(views[0], mixture_generators(0, 0)))
    cosine = sum(NegativeCosineSimilarity()(method.online(view), method.teach(view)) for view in views) / 2
    torch.testing.assert_close(loss, 2 + 2 * cosine, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("target", ["parents", "mixture"])
def test_lam_of_one_is_sim_and_of_zero_sim_relabeled(target: str) -> None:
    views = two_views(dtype=torch.float64)
    for lam in (1.0, 0.0):
        results = []
        for mixture in (Identity().draw(views[0]), CutMix().draw(views[0], torch.Generator().manual_seed(0), lam=lam)):
            method = make(target=target)
            loss, _ = backward(method, views, [Term(1.0, mixture)])
            results.append([loss, *(each.grad for each in method.online.parameters())])
        torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-12)


def test_features_are_standardized() -> None:
    z = standardize_features(torch.randn(50, 3, dtype=torch.float64) * 4 + 2)
    torch.testing.assert_close(z.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(z.std(0, correction=0), torch.ones(3, dtype=torch.float64), atol=1e-5, rtol=0)
    plain = Identity().draw(torch.rand(4, 3, 2, 2))
    q, t = torch.randn(2, 4, 5)
    torch.testing.assert_close(smooth_l1(q, t, plain), torch.nn.functional.smooth_l1_loss(q, t))


def test_the_teacher_stays_as_it_is_and_out_of_checkpoints() -> None:
    method = make(norm=True).float()
    before = copy.deepcopy(method.teacher.state_dict())
    optimizer = torch.optim.SGD([each for each in method.parameters() if each.requires_grad], lr=0.1)
    for step in range(3):
        views = two_views(seed=step)
        _, targets = backward(method.train(), views, OBJECTIVES["wbsim"]().draw(views[0], mixture_generators(0, step)))
        optimizer.step()
        method.update(targets, progress=0.0)
    assert method.training
    assert not any(module.training for module in method.teacher.modules())
    assert all(torch.equal(value, before[key]) for key, value in method.teacher.state_dict().items())
    state = method.state_dict()
    assert not any(key.startswith("teacher.") for key in state)
    again = make(norm=True).float()
    again.load_state_dict(state)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), method.parameters(), strict=True))
    again.teacher.encoder[0].weight.data.mul_(2)
    again.known_fingerprint = None
    with pytest.raises(ValueError, match="not the one that this checkpoint was trained with"):
        again.load_state_dict(state)
    with pytest.raises(RuntimeError, match="Missing key"):
        make(norm=True).load_state_dict({key: value for key, value in state.items() if "projector.0" not in key})


@pytest.mark.parametrize(
    ("target", "objective", "expected"),
    [
        *(("parents", *each) for each in (("sim", (2, 2)), ("bsim", (2, 2)), ("wbsim", (4, 2)))),
        *(("mixture", *each) for each in (("sim", (2, 2)), ("bsim", (2, 2)), ("wbsim", (4, 4)))),
    ],
)
def test_passes(target: str, objective: str, expected: tuple[int, int]) -> None:
    method = {"name": "distillation", "teacher": "resnet18", "target": target}
    assert tuple(count_passes(PretrainConfig(method=method, objective=objective))) == expected


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    built = backbones.build("small", size=16)
    (tmp_path / "teacher").mkdir()
    save_encoder(tmp_path / "teacher" / "encoder.safetensors", built.encoder, built.spec, {})
    return tmp_path / "teacher"


@pytest.mark.parametrize("objective", ["sim", "wbsim"])
def test_a_run_resumes_bit_exact_and_exports_the_student(objective: str, teacher: Path, tmp_path: Path) -> None:
    options = {
        "method": {"name": "distillation", "teacher": str(teacher), "hidden": 16},
        "objective": objective,
        "accumulate_grad_batches": 2,
    }
    mixview.pretrain(**tiny(tmp_path / "whole", **options))
    with stopped_at(5):
        mixview.pretrain(**tiny(tmp_path / "stopped", **options))
    resume(tmp_path / "stopped")
    assert_same_runs(tmp_path / "whole", tmp_path / "stopped")
    assert not any(key.startswith("teacher.") for key in last_state(tmp_path / "whole")[0]["method"])


def test_teachers_that_do_not_fit(teacher: Path) -> None:
    def build(run: RunLength, **options) -> Distillation:
        return DistillationConfig(**options).build(encoder(), WIDTH, run)

    run = RunLength(64, 8, 16, 16, 3)
    assert build(run, teacher=str(teacher)).teacher.feature_dim == 128
    with pytest.raises(ValueError, match=r"takes images of 16 pixels, and the views have 32: use --size 16"):
        build(run._replace(size=32), teacher=str(teacher))
    with pytest.raises(ValueError, match=r"is for images with 3 channels, and the views have 1: use --channels 3"):
        build(run._replace(channels=1), teacher=str(teacher))
    with pytest.raises(ValueError, match=r"resnet18 has random weights: pass --method.teacher_weights imagenet"):
        build(run, teacher="resnet18")
    with pytest.raises(ValueError, match=r"distillation needs a teacher: pass .* as --method\.teacher"):
        build(run)
    with pytest.raises(FileNotFoundError, match="there is no run or file"):
        build(run, teacher="runs/none")
    with pytest.raises(ValueError, match='loss must be "cosine" or "smooth_l1"'):
        make(loss="l2")


def test_a_teacher_of_ones_own_needs_consent(tmp_path: Path) -> None:
    own = "tests.train.running:backbone"
    require_consent({"method": {"name": "distillation", "teacher": "runs/teacher"}}, "mine.yaml")
    with pytest.raises(ValueError, match=r"names the teacher 'tests.train.running:backbone', and importing it"):
        require_consent({"method": {"name": "distillation", "teacher": own}}, "mine.yaml")
    built = backbones.build(own, size=16)
    save_encoder(tmp_path / "encoder.safetensors", built.encoder, built.spec, {})
    run = RunLength(64, 8, 16, 16, 3)
    with pytest.raises(ValueError, match=r"is a network of your own, .* pass its import path as --method\.teacher"):
        DistillationConfig(teacher=str(tmp_path)).load_teacher(run)
    loaded, width = DistillationConfig(teacher=own, teacher_weights=str(tmp_path)).load_teacher(run)
    assert width == WIDTH
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), built.encoder.parameters(), strict=True))


def test_importing_methods_imports_no_encoders() -> None:
    code = "import sys, mixview.methods; print(any(name.startswith('mixview.encoders') for name in sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
