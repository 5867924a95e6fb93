"""The training of a detector: its schedule and its steps; the loop is `mixview.evaluate.training_loop`'s."""

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from mixview.evaluate.detection.components import Target
from mixview.evaluate.detection.targets import Sample
from mixview.evaluate.training_loop import SupervisedEngine
from mixview.lars import step_decay
from mixview.options import Count, NonNegative, Positive, check_options
from mixview.runs.logging_config import LoggingConfig


@dataclass(frozen=True)
class Schedule:
    """The published schedule for a batch size; another batch size scales it."""

    optimizer: Literal["sgd", "adamw"] = "sgd"
    """Optimizer: sgd, as published, or adamw, which gets further in a few hundred iterations."""
    iterations: Count = 24000
    """Optimizer steps."""
    batch_size: Count = 16
    """Images per step, over all devices."""
    lr: Positive = 0.02
    """The highest learning rate."""
    steps: tuple[int, ...] = (18000, 22000)
    """Iterations after which the learning rate falls to a tenth."""
    warmup: NonNegative = 100
    """Iterations of linear warm-up, from a thousandth of the learning rate."""
    weight_decay: float = 1e-4
    """Weight decay of everything but batch norms."""
    momentum: float = 0.9
    """Momentum of sgd."""

    def __post_init__(self) -> None:
        check_options(self, "schedule")

    def resolve(self, iterations: int | None, batch_size: int | None, lr: float | None) -> "Schedule":
        """The schedule of another batch size, or of another number of iterations.

        k times the batch size is k times the learning rate and a k-th of all iterations (Goyal et al., 2017; Detectron2
        does so too). In a given number of iterations the steps keep their place; the warm-up is at most a tenth.
        """
        size = self.batch_size if batch_size is None else batch_size
        share = self.batch_size / size
        length = max(1, round(self.iterations * share)) if iterations is None else iterations
        return replace(
            self,
            batch_size=size,
            iterations=length,
            lr=self.lr / share if lr is None else lr,
            steps=tuple(max(1, round(step * length / self.iterations)) for step in self.steps),
            warmup=min(round(self.warmup * share), length // 10),
        )

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0: a function of nothing else, so that a run can be resumed."""
        rise = 1.0
        if step < self.warmup:
            part = step / self.warmup
            rise = 0.001 * (1 - part) + part
        return self.lr * rise * step_decay(0.1, self.steps, step)

    @property
    def description(self) -> str:
        """A short description of the schedule, for a result."""
        steps = " and ".join(str(step) for step in self.steps)
        falls = f", ×0.1 at {steps}" if steps else ""
        name = f"SGD {self.momentum:g}" if self.optimizer == "sgd" else "AdamW"
        return (
            f"{name}, {self.iterations} iterations, batch {self.batch_size}, lr {self.lr:g}{falls}, "
            f"warm-up {self.warmup}, wd {self.weight_decay:g}"
        )


def build_optimizer(detector: nn.Module, schedule: Schedule) -> torch.optim.Optimizer:
    """The optimizer of everything; batch norms do not decay, as in Detectron2."""
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
class Engine(SupervisedEngine):
    """The steps of a detector."""

    schedule: Schedule = field(kw_only=True)

    def set_learning_rate(self) -> float:
        rate = self.schedule.rate(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def split(self, batch: list[Sample]) -> list[tuple[list[Sample], float]]:
        size = -(-len(batch) // self.accumulate_grad_batches)
        parts = [batch[start : start + size] for start in range(0, len(batch), size)]
        return [(part, len(part) / len(batch)) for part in parts]

    def losses(self, part: list[Sample]) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = self.module(*to_device(part, self.fabric.device))
        return losses


def to_device(samples: list[Sample], device: torch.device) -> tuple[list[Tensor], list[Target]]:
    """Images in [0, 1] and their objects, on the device."""
    images = [sample.image.to(device, non_blocking=True).float() / 255 for sample in samples]
    targets = [{k: v.to(device, non_blocking=True) for k, v in sample.target.items()} for sample in samples]
    return images, targets


@dataclass(frozen=True)
class DetectionLogging(LoggingConfig):
    """Intervals of logging and of checkpoints, and what is kept."""

    eval_every: NonNegative = 0
    """Iterations between two evaluations on the test split, for a curve; 0 is only at the end."""
    checkpoint_every: Count = 1000
    """Iterations between two checkpoints."""
    pictures: NonNegative = 8
    """Number of test images to draw, with detections and annotations."""
    loggers: str = "tensorboard"
    """Trackers that get the metrics, besides the run directory: tensorboard, mlflow, wandb, several as in
    tensorboard,mlflow, or none. mlflow and wandb need 'mixview[trackers]'."""
