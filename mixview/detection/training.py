"""The training of a detector: its schedule, its steps, and the loop that logs, saves and stops."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN

from mixview.data.loading import Batches
from mixview.detection.parts import Target
from mixview.detection.targets import Sample
from mixview.train.checkpoints import CheckpointError, Checkpoints
from mixview.train.engine import refuse_non_finite, step_seed
from mixview.train.journal import Journal
from mixview.train.progress import Progress
from mixview.train.run_folder import RunFolder
from mixview.train.stopping import Stopping

GAMMA = 0.1
"""What the learning rate is multiplied by at a step."""


@dataclass(frozen=True)
class Schedule:
    """SGD as published, for a batch of so many images; another batch scales it."""

    optimizer: Literal["sgd", "adamw"] = "sgd"
    """sgd, as published, or adamw, which gets further in a few hundred iterations."""
    iterations: int = 24000
    """Optimiser steps."""
    batch: int = 16
    """Images a step, over all devices together."""
    lr: float = 0.02
    """The highest learning rate."""
    steps: tuple[int, ...] = (18000, 22000)
    """Iterations after which the rate falls to a tenth."""
    warmup: int = 100
    """Iterations over which the rate first rises, in a straight line from a thousandth of itself."""
    weight_decay: float = 1e-4
    """Of everything but batch norms."""
    momentum: float = 0.9
    """Of sgd."""

    def __post_init__(self) -> None:
        if self.iterations < 1 or self.batch < 1 or self.lr <= 0 or self.warmup < 0:
            raise ValueError(f"iterations, batch and lr must be positive, and warmup 0 or more, got {self}")

    def settle(self, iterations: int | None, batch: int | None, lr: float | None) -> "Schedule":
        """The schedule of another batch, or of another number of iterations.

        k times the batch is k times the rate and a k-th of all iterations (Goyal et al., 2017; Detectron2 does so
        too). Of a number that is given, the steps keep their place, and the warm-up is at most a tenth.
        """
        size = self.batch if batch is None else batch
        share = self.batch / size
        length = max(1, round(self.iterations * share)) if iterations is None else iterations
        return replace(
            self,
            batch=size,
            iterations=length,
            lr=self.lr / share if lr is None else lr,
            steps=tuple(round(step * length / self.iterations) for step in self.steps),
            warmup=min(round(self.warmup * share), length // 10),
        )

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0: a function of nothing else, so that a run can go on."""
        rise = 1.0
        if step < self.warmup:
            part = step / self.warmup
            rise = 0.001 * (1 - part) + part
        return float(self.lr * rise * GAMMA ** sum(step >= each for each in self.steps))

    @property
    def words(self) -> str:
        steps = " and ".join(str(step) for step in self.steps)
        falls = f", ×{GAMMA:g} at {steps}" if steps else ""
        name = f"SGD {self.momentum:g}" if self.optimizer == "sgd" else "AdamW"
        return (
            f"{name}, {self.iterations} iterations, batch {self.batch}, lr {self.lr:g}{falls}, "
            f"warm-up {self.warmup}, wd {self.weight_decay:g}"
        )


def build_optimizer(detector: nn.Module, schedule: Schedule) -> torch.optim.Optimizer:
    """The optimiser of everything; batch norms do not decay, as in Detectron2."""
    norms = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)
    modules = [module for module in detector.modules() if isinstance(module, norms)]
    of_norms = {id(weight) for module in modules for weight in module.parameters()}
    decaying = [weight for weight in detector.parameters() if id(weight) not in of_norms]
    others = [weight for weight in detector.parameters() if id(weight) in of_norms]
    groups = [
        {"params": decaying, "weight_decay": schedule.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    if schedule.optimizer == "adamw":
        return torch.optim.AdamW(groups, schedule.lr)
    return torch.optim.SGD(groups, schedule.lr, momentum=schedule.momentum)


@dataclass
class Engine:
    """Everything a step needs. Nothing in it is random but by (seed, step, rank), so a step can be repeated."""

    fabric: Fabric
    module: Any
    """The detector, set up by Fabric."""
    detector: GeneralizedRCNN
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    batches: Batches
    loader: Iterable[list[Sample]]
    seed: int = 0
    accumulate: int = 1
    """Micro-batches a step and device."""
    step: int = 0
    """Optimiser steps that are done."""

    def __post_init__(self) -> None:
        self.finite = torch.ones((), dtype=torch.bool, device=self.fabric.device)

    @property
    def epoch(self) -> float:
        """Passes over the images that are done."""
        return self.step / self.batches.total

    def train(self, stopping: Stopping) -> Iterator[tuple[dict[str, Tensor], float, str | None]]:
        """Train on from `step`; after every step yields the losses, the rate, and why to stop, if it is time."""
        while self.step < self.schedule.iterations:
            self.batches.go_to(*divmod(self.step, self.batches.total))
            for samples in self.loader:
                rate = self.schedule.rate(self.step)
                for group in self.optimizer.param_groups:
                    group["lr"] = rate
                losses = self.take_step(samples)
                self.step += 1
                reason = stopping.now(self.step)
                yield losses, rate, reason
                if reason is not None or self.step == self.schedule.iterations:
                    return

    def take_step(self, samples: list[Sample]) -> dict[str, Tensor]:
        """One optimiser step on this process's part of a batch; its losses, and their sum as `loss`."""
        torch.manual_seed(step_seed(self.seed, self.step, self.fabric.global_rank))  # sizes, anchors and regions
        self.module.train()
        size = -(-len(samples) // self.accumulate)
        parts = [samples[start : start + size] for start in range(0, len(samples), size)]
        total: dict[str, Tensor] = {}
        for number, part in enumerate(parts):
            share = len(part) / len(samples)
            with self.fabric.no_backward_sync(self.module, enabled=number < len(parts) - 1):
                losses: dict[str, Tensor] = self.module(*to_device(part, self.fabric.device))
                loss = torch.stack(list(losses.values())).sum()
                self.fabric.backward(loss * share)
            for name, value in (losses | {"loss": loss}).items():
                total[name] = total.get(name, 0.0) + share * value.detach()
        self.finite &= torch.isfinite(total["loss"])
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total

    def check_finite(self, *, weights: bool = False) -> None:
        """Raise, on every process, when any loss so far (or a weight) was not finite on any of them."""
        checked = list(self.detector.parameters()) if weights else []
        refuse_non_finite(self.fabric, self.finite, checked, f"iteration {self.step}")

    @torch.no_grad()
    def mean_of_all(self, losses: dict[str, Tensor]) -> dict[str, float]:
        """The means over processes."""
        means: Any = self.fabric.all_reduce(torch.stack(list(losses.values())), reduce_op="mean")
        return dict(zip(losses, means.tolist(), strict=True))

    def state(self) -> dict[str, Any]:
        """Everything that a run needs to go on as if nothing had happened."""
        scaler = getattr(self.fabric.strategy.precision, "scaler", None)
        return {
            "detector": self.detector.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "step": self.step,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        try:
            self.detector.load_state_dict(state["detector"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(
                "the checkpoint does not fit this detector: it is of another encoder or --model; put back the run's "
                "own, or start a new one with another --out"
            ) from error
        scaler = getattr(self.fabric.strategy.precision, "scaler", None)
        if scaler is not None and state["scaler"] is not None:
            scaler.load_state_dict(state["scaler"])
        self.step = int(state["step"])


def to_device(samples: list[Sample], device: torch.device) -> tuple[list[Tensor], list[Target]]:
    """Images in [0, 1] and their objects, on the device."""
    images = [sample.image.to(device, non_blocking=True).float() / 255 for sample in samples]
    targets = [{k: v.to(device, non_blocking=True) for k, v in sample.target.items()} for sample in samples]
    return images, targets


@dataclass(frozen=True)
class Keeping:
    """How often a run says how it fares, and what it keeps."""

    log_every: int = 20
    """Iterations between two lines of metrics."""
    evaluate_every: int = 0
    """Iterations between two evaluations on the test part, for a curve; 0 is at the end alone."""
    checkpoint_every: int = 1000
    """Iterations between two checkpoints."""
    keep: int = 2
    """Checkpoints that are kept."""
    pictures: int = 8
    """Test images that are drawn with what was found in them, beside what is there."""
    tensorboard: bool = True
    """Write TensorBoard events."""
    wandb: str | None = None
    """Also log to this Weights & Biases project (needs the wandb package)."""

    def __post_init__(self) -> None:
        if min(self.log_every, self.checkpoint_every, self.keep) < 1 or min(self.evaluate_every, self.pictures) < 0:
            raise ValueError(
                f"log_every, checkpoint_every and keep must be at least 1, the others 0 or more, got {self}"
            )


def run_training(
    engine: Engine,
    folder: RunFolder | None,
    keeping: Keeping,
    *,
    out: Path,
    seconds: float | None,
    notes: list[str],
    ask: Callable[[], dict[str, float]],
) -> bool:
    """Train; log, ask and save every now and then; stop when asked to. Rank 0, which has the folder, writes.

    Args:
        seconds: the time limit.
        notes: what to say first.
        ask: evaluates the detector, on all processes; its figures are those of the first.

    Returns:
        Whether the training is finished.
    """
    fabric, length = engine.fabric, engine.schedule.iterations
    read_every = 1 if fabric.device.type == "cpu" else keeping.log_every  # reading a value waits for an accelerator
    checkpoints = Checkpoints(out / "checkpoints", keep=keeping.keep)
    with (
        Progress(length, engine.batches.total, start=engine.step, shown=folder is not None) as progress,
        Journal(folder, keeping, engine.step) as journal,
        Stopping(fabric, seconds, every=read_every) as stopping,
    ):
        for note in notes:
            progress.say(note)
        if folder is not None:
            folder.rewind(engine.step if engine.step else -1)
            folder.set_status("running", engine.step, engine.epoch)
        for losses, rate, reason in engine.train(stopping):
            step = engine.step
            save = step % keeping.checkpoint_every == 0 or step == length or reason is not None
            progress.update(step, engine.schedule.batch, losses["loss"])
            if step % read_every == 0 or save:
                engine.check_finite(weights=save)
            if step % keeping.log_every == 0 or step == length:
                journal.log(step, {"epoch": engine.epoch, **engine.mean_of_all(losses), "lr": rate})
            if keeping.evaluate_every and step % keeping.evaluate_every == 0 and step < length:
                journal.log(step, ask())
            if folder is not None and save:
                folder.sync()
                checkpoints.save(engine.state(), step)
                folder.set_status("interrupted" if reason else "running", step, engine.epoch, reason or "")
            if reason is not None:
                progress.say(f"Stopped by {reason} at iteration {step}; --resume goes on from here.")
        finished = engine.step == length
        if finished:
            journal.log(length, ask())
    fabric.barrier()
    return finished
