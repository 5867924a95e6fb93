"""The training loop, in plain sight. Devices, processes and precision are Lightning Fabric's."""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from mixview.data.loading import Batch, Batches
from mixview.methods import Method, backward
from mixview.methods.gradcache import cached_backward
from mixview.methods.method import Targets, Views, unwrap
from mixview.methods.simclr import SimCLR
from mixview.mixing import mixture_generators, strength_at
from mixview.objective import Objective, Term
from mixview.train.checkpoints import CheckpointError
from mixview.train.devices import grad_scaler
from mixview.train.optimisers import Optimizer, set_learning_rate
from mixview.train.stopping import Stopping


class NonFiniteLoss(RuntimeError):
    """The loss is not a number any more."""


@dataclass
class Engine:
    """Everything a step needs. Nothing in it is random but by (seed, step, rank), so a step can be repeated."""

    fabric: Fabric
    module: nn.Module
    """The method, set up by Fabric."""
    optimizer: torch.optim.Optimizer
    settings: Optimizer
    objective: Objective
    batches: Batches
    loader: Iterable[Batch]
    epochs: int
    seed: int = 0
    accumulate: int = 1
    """Micro-batches a step and device."""
    exact_batch: bool = False
    """SimCLR: accumulate by cached gradients, so that the negatives are the whole batch's."""
    mix_groups: int = 1
    ramp: tuple[float, float] | None = None
    """The shares of training between which mixtures grow."""
    channels_last: bool = False
    step: int = 0
    """Optimiser steps that are done."""
    cpu_seconds: float = 0.0
    """Processor time that they took this process, views included if it makes them itself; looks and saves apart."""

    def __post_init__(self) -> None:
        self.method: Method = unwrap(self.module)
        self.finite = torch.ones((), dtype=torch.bool, device=self.fabric.device)

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.epochs * self.batches.total

    @property
    def epoch(self) -> float:
        """Epochs that are done."""
        return self.step / self.batches.total

    def train(self, stopping: Stopping) -> Iterator[tuple[Tensor, float, str | None]]:
        """Train on from `step`; after every step yields the loss, the learning rate, and why to stop, if it is time."""
        while self.step < self.steps:
            epoch, position = divmod(self.step, self.batches.total)
            self.batches.go_to(epoch, position)
            began = time.process_time()
            for first, second, _ in self.loader:
                rate = set_learning_rate(self.optimizer, self.settings, self.epoch, self.epochs)
                loss = self.take_step(self.to_device(first), self.to_device(second))
                self.step += 1
                reason = stopping.now(self.step)
                self.cpu_seconds += time.process_time() - began
                yield loss, rate, reason
                began = time.process_time()
                if reason is not None:
                    return

    def take_step(self, first: Tensor, second: Tensor) -> Tensor:
        """One optimiser step on this process's part of a batch."""
        torch.manual_seed(step_seed(self.seed, self.step, self.fabric.global_rank))  # dropout, should there be any
        loss, targets = self.accumulate_gradient(first, second)
        self.finite &= torch.isfinite(loss)
        if self.settings.clip is not None:
            # An overflow is no error here: a scaler skips the step, and without one `check_finite` finds the weights.
            self.fabric.clip_gradients(
                self.module, self.optimizer, max_norm=self.settings.clip, error_if_nonfinite=False
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.method.advance(*targets, progress=self.step / self.steps)
        return loss

    def accumulate_gradient(self, first: Tensor, second: Tensor) -> tuple[Tensor, list[Targets]]:
        """The gradient of the step, micro-batch by micro-batch; the mean loss and all targets."""
        if self.exact_batch and self.accumulate > 1:
            return self.cached_gradient(first, second)
        total, targets = torch.zeros((), device=first.device), []
        parts = list(zip(first.chunk(self.accumulate), second.chunk(self.accumulate), strict=True))
        for number, views in enumerate(parts):
            share = len(views[0]) / len(first)
            group = self.fabric.global_rank * self.accumulate + number
            loss, target = backward(
                self.module,
                views,
                self.draw_terms(views[0], group),
                call=self.backward_by(share),
                no_sync=self.no_sync,
                sync=number == len(parts) - 1,
            )
            total = total + share * loss
            targets.append(target)
        return total, targets

    def cached_gradient(self, first: Tensor, second: Tensor) -> tuple[Tensor, list[Targets]]:
        """The gradient of the whole batch by GradCache."""
        assert isinstance(self.method, SimCLR)
        terms = self.draw_terms(first, self.fabric.global_rank)
        micro_batch = -(-len(first) // self.accumulate)
        loss, target = cached_backward(
            self.module,
            (first, second),
            terms,
            micro_batch=micro_batch,
            call=self.fabric.backward,
            context=self.fabric.autocast,
        )
        return loss, [target]

    def draw_terms(self, images: Tensor, group: int) -> list[Term]:
        """The objective's terms of this step for one group of images."""
        generators = mixture_generators(self.seed, self.step, rank=group, mix_groups=self.mix_groups)
        return self.objective.draw(images, generators, strength=strength_at(self.step / self.steps, self.ramp))

    def backward_by(self, share: float) -> Callable[[Tensor], None]:
        """Goes backward through this share of a loss."""
        return lambda loss: self.fabric.backward(loss * share if share != 1 else loss)

    def no_sync(self) -> AbstractContextManager[object]:
        """The context in which gradients do not cross processes."""
        context: AbstractContextManager[object] = self.fabric.no_backward_sync(self.module)  # type: ignore[arg-type]
        return context

    def to_device(self, view: Tensor) -> Tensor:
        memory = torch.channels_last if self.channels_last else torch.preserve_format
        return view.to(self.fabric.device, non_blocking=True, memory_format=memory)

    def check_finite(self, *, weights: bool = False) -> None:
        """Raise, on every process, when any loss so far was not finite on any of them.

        Reads a value back: not for every step on an accelerator.

        Args:
            weights: look at the weights too, before they are saved: a gradient can overflow where its loss did not.
        """
        checked = list(self.method.parameters()) if weights else []
        refuse_non_finite(self.fabric, self.finite, checked, f"step {self.step} (epoch {self.epoch:.2f})")

    @torch.no_grad()
    def loss_of_all(self, loss: Tensor) -> float:
        """The mean over processes."""
        mean: Any = self.fabric.all_reduce(loss.detach(), reduce_op="mean")
        return float(mean)

    def state(self) -> dict[str, Any]:
        """Everything that a run needs to go on as if nothing had happened."""
        scaler = grad_scaler(self.fabric)
        return {
            "method": self.method.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "step": self.step,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        try:
            self.method.load_state_dict(state["method"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"the checkpoint does not fit this {type(self.method).__name__}: it is of another method, backbone or "
                "optimiser; put back the run's own, or start a new run with another --out"
            ) from error
        scaler = grad_scaler(self.fabric)
        if scaler is not None and state["scaler"] is not None:
            scaler.load_state_dict(state["scaler"])
        self.step = int(state["step"])

    def try_step(self, views: Views) -> None:
        """Forward and backward of one step, without a trace: to see what it costs."""
        with torch.random.fork_rng(devices=[] if self.fabric.device.type == "cpu" else None):
            buffers = {name: buffer.clone() for name, buffer in self.method.named_buffers()}
            self.accumulate_gradient(*views)
            self.optimizer.zero_grad()
            with torch.no_grad():
                for name, buffer in self.method.named_buffers():
                    buffer.copy_(buffers[name])


@torch.no_grad()
def refuse_non_finite(fabric: Fabric, finite: Tensor, weights: Sequence[Tensor], where: str) -> None:
    """Raise, on every process, when `finite` is false or a weight is not finite on any of them."""
    if weights:
        finite = finite & torch.stack([torch.isfinite(each).all() for each in weights]).all()
    bad: Any = fabric.all_reduce(1.0 - finite.float(), reduce_op="sum")
    if bool(bad):
        raise NonFiniteLoss(
            f"the loss was not finite at or before {where}: nothing was saved after it; resume from the last "
            "checkpoint in another --precision, or start a new run with a smaller learning rate (--optimizer.lr; in an "
            "evaluation --lr) or, in pretraining, with --optimizer.clip 1"
        )


def step_seed(seed: int, step: int, rank: int) -> int:
    """The seed of whatever in a network is random, of one step on one process."""
    return int.from_bytes(hashlib.blake2b(f"step/{seed}/{step}/{rank}".encode(), digest_size=8).digest(), "big") >> 1
