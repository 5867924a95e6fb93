from typing import Any

import pytest
import torch
from lightning_fabric import Fabric

from mixview.data.loader import EpochSampler
from mixview.data.synthetic.scenes import Scenes
from mixview.evaluate.detection.targets import training_loader
from mixview.evaluate.detection.training import Engine, Schedule, build_optimizer, to_device
from mixview.rng import seed_from
from mixview.runs.finite import NonFiniteLoss
from mixview.runs.graceful_stop import GracefulStop
from tests.evaluate.detection.tiny import detector


def test_published_rates() -> None:
    """voc-c4: 100 iterations of warm-up from a thousandth, 0.02, and a tenth of it at 18k and 22k."""
    schedule = Schedule()
    assert schedule.rate(0) == pytest.approx(0.02 * 0.001)
    assert schedule.rate(50) == pytest.approx(0.02 * (0.5 + 0.5 * 0.001))
    assert schedule.rate(100) == schedule.rate(17999) == 0.02
    assert schedule.rate(18000) == pytest.approx(0.002)
    assert schedule.rate(22000) == schedule.rate(23999) == pytest.approx(0.0002)


def test_another_batch_scales_the_whole_schedule() -> None:
    half = Schedule().resolve(None, 8, None)
    assert (half.batch_size, half.lr, half.iterations, half.steps, half.warmup) == (8, 0.01, 48000, (36000, 44000), 200)
    assert Schedule().resolve(None, None, None) == Schedule()
    double = Schedule().resolve(None, 32, None)
    assert (double.lr, double.iterations, double.warmup) == (0.04, 12000, 50)


def test_another_length_keeps_the_steps_in_their_place() -> None:
    short = Schedule().resolve(240, 2, None)
    assert (short.iterations, short.steps, short.warmup, short.lr) == (240, (180, 220), 24, 0.0025)
    assert Schedule().resolve(240, 2, 0.01).lr == 0.01
    with pytest.raises(ValueError, match=r"--schedule\.iterations must be a whole number, at least 1, got 0"):
        Schedule().resolve(0, None, None)


def test_batch_norms_do_not_decay() -> None:
    built = detector()
    decaying, others = build_optimizer(built, Schedule()).param_groups
    assert (decaying["weight_decay"], others["weight_decay"]) == (1e-4, 0.0)
    norms = [m for m in built.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert {id(w) for w in others["params"]} == {id(w) for m in norms for w in m.parameters()}
    assert len(decaying["params"]) + len(others["params"]) == len(list(built.parameters()))


def test_adamw_is_there_for_small_budgets() -> None:
    schedule = Schedule(optimizer="adamw", lr=1e-3)
    assert isinstance(build_optimizer(detector(), schedule), torch.optim.AdamW)
    assert "AdamW, 24000 iterations" in schedule.description


def engine(accumulate_grad_batches: int = 1, lr: float = 0.02, batch_size: int = 4, iterations: int = 30) -> Engine:
    fabric = Fabric(accelerator="cpu", devices=1)
    scenes = Scenes(8, 32, objects="multiple", classes=3, cache=False)
    built = detector()
    schedule = Schedule(iterations=iterations, batch_size=batch_size, lr=lr, steps=(), warmup=2)
    module, optimizer = fabric.setup(built, build_optimizer(built, schedule))
    batches = EpochSampler(8, batch_size)
    loader: Any = training_loader(scenes, batches, channels=3, masks=True, seed=0, workers=0, pin_memory=False)
    return Engine(
        fabric,
        module,
        built,
        optimizer,
        batches,
        loader,
        iterations,
        accumulate_grad_batches=accumulate_grad_batches,
        schedule=schedule,
    )


def test_the_loss_falls() -> None:
    run = engine()
    losses = [float(losses["loss"]) for losses, _, _ in run.train(GracefulStop(run.fabric))]
    assert len(losses) == 30
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


def test_accumulation_is_the_mean_over_micro_batches() -> None:
    """With batch norm, micro-batches are batches of their own: their gradients add up to their mean."""
    run = engine(accumulate_grad_batches=2)
    samples = next(iter(run.loader))
    seen: list[torch.Tensor] = []
    run.optimizer.register_step_pre_hook(
        lambda *_: seen.extend(w.grad.clone() for w in run.network.parameters() if w.grad is not None)
    )
    total = run.take_step(samples)
    again = engine()
    torch.manual_seed(seed_from("step", 0, 0, 0))
    losses = []
    for part in (samples[:2], samples[2:]):
        found = again.network.train()(*to_device(part, torch.device("cpu")))
        loss = torch.stack(list(found.values())).sum()
        (loss / 2).backward()
        losses.append(float(loss.detach()))
    assert float(total["loss"]) == pytest.approx(sum(losses) / 2)
    wanted = [w.grad for w in again.network.parameters() if w.grad is not None]
    assert len(seen) == len(wanted)
    for one, other in zip(seen, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_a_loss_that_is_no_number_stops_the_run() -> None:
    run = engine()
    with torch.no_grad():
        run.network.roi_heads.box_predictor.scores.weight.fill_(float("nan"))
    run.take_step(next(iter(run.loader)))
    with pytest.raises(NonFiniteLoss, match="not finite at or before step 0"):
        run.check_finite()
