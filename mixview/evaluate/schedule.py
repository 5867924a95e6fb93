"""Published learning-rate schedules of classifiers, and what becomes of them when they are shortened or scaled."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import torch

from mixview.lars import LARS, step_decay
from mixview.options import Count, check_options


@final
@dataclass(frozen=True)
class Schedule:
    """An optimizer and its learning rate, which decays in steps, linearly, or along a cosine."""

    epochs: Count
    lr: float
    weight_decay: float
    steps: tuple[int, ...] = ()
    """Epochs after which the learning rate decays."""
    factor: float = 0.1
    """Decay factor at each step."""
    batch_size: Count = 256
    momentum: float = 0.9
    nesterov: bool = False
    optimizer: Literal["sgd", "lars", "adamw"] = "sgd"
    cosine: bool = False
    """Decay along half a cosine instead of in steps."""
    linear: bool = False
    """Decay linearly to 0 instead of in steps."""
    warmup: float = 0.0
    """With linear decay: the share of the epochs in which the learning rate rises from 0."""
    scale_lr: bool = False
    """Multiply the learning rate by batch_size / 256."""

    def __post_init__(self) -> None:
        check_options(self, prefix="")

    def changed(self, epochs: int | None, batch_size: int | None, lr: float | None) -> "Schedule":
        """A schedule with another number of epochs, in which the steps keep their place, batch size or learning rate.

        In a short run no step comes before the end of the first epoch.
        """
        length = self.epochs if epochs is None else epochs
        steps = tuple(max(1, round(step * length / self.epochs)) for step in self.steps)
        return replace(
            self,
            epochs=length,
            steps=steps,
            batch_size=self.batch_size if batch_size is None else batch_size,
            lr=self.lr if lr is None else lr,
            scale_lr=self.scale_lr and lr is None,
        )

    def fitted(self, images: int) -> "Schedule":
        """A schedule whose batch is no larger than the training set."""
        return replace(self, batch_size=min(self.batch_size, images))

    @property
    def peak_lr(self) -> float:
        """The highest learning rate."""
        return self.lr * self.batch_size / 256 if self.scale_lr else self.lr

    def lr_factor(self, epoch: float) -> float:
        """The factor of the learning rate in an epoch, or at a point within it."""
        if self.linear:
            rise = epoch / (self.warmup * self.epochs) if self.warmup else 1.0
            return min(rise, 1.0) * (1 - epoch / self.epochs)
        if self.cosine:
            return (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        return step_decay(self.factor, self.steps, epoch)

    def build_optimizer(self, groups: Iterable[Any]) -> torch.optim.Optimizer:
        """The optimizer for these parameters or parameter groups."""
        if self.optimizer == "lars":
            return LARS(groups, self.peak_lr, momentum=self.momentum, weight_decay=self.weight_decay)
        if self.optimizer == "adamw":
            return torch.optim.AdamW(groups, self.peak_lr, weight_decay=self.weight_decay)
        return torch.optim.SGD(
            groups, self.peak_lr, momentum=self.momentum, weight_decay=self.weight_decay, nesterov=self.nesterov
        )

    @property
    def description(self) -> str:
        """The schedule in a few words, for a result."""
        steps = " and ".join(str(step) for step in self.steps)
        falls = f", ×{self.factor:g} at epochs {steps}" if steps else ""
        falls = " along a cosine" if self.cosine else " falling linearly" if self.linear else falls
        if self.warmup:
            falls += f" after a warm-up of {self.warmup:.1%}"
        name = self.optimizer.upper() + (" with Nesterov momentum" if self.nesterov else "") + f" {self.momentum:g}"
        if self.optimizer == "adamw":
            name = "AdamW"
        return (
            f"{name}, {self.epochs} epochs, batch {self.batch_size}, lr {self.peak_lr:g}{falls}, "
            f"wd {self.weight_decay:g}"
        )
