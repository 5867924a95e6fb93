"""Training with labels, as detectors and the trained evaluations do it: one loop that logs, saves, resumes and stops.

A subclass of `SupervisedEngine` says what the loss of a batch is and how the learning rate moves. Devices, processes
and precision are Lightning Fabric's.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mixview.data.loader import EpochSampler
from mixview.rng import seed_from
from mixview.runs.checkpoints import Checkpoints
from mixview.runs.engine import ResumableEngine
from mixview.runs.graceful_stop import GracefulStop
from mixview.runs.logging_config import LoggingConfig
from mixview.runs.metric_logger import MetricLogger
from mixview.runs.progress import Progress
from mixview.runs.run_directory import RunDirectory


@dataclass
class SupervisedEngine(ResumableEngine):
    """The parts of a step. Nothing in it is random but by (seed, step, rank), so a step can be repeated."""

    batches: EpochSampler
    loader: Iterable[Any]
    steps: int
    """Optimizer steps of the whole run."""
    seed: int = 0
    accumulate_grad_batches: int = 1
    """Micro-batches per step and device."""

    @abstractmethod
    def set_learning_rate(self) -> float:
        """Give every parameter group its learning rate for the step that comes next; returns the first group's."""

    @abstractmethod
    def split(self, batch: Any) -> Sequence[tuple[Any, float]]:
        """The micro-batches of a batch, each with its share of the images."""

    @abstractmethod
    def losses(self, part: Any) -> dict[str, Tensor]:
        """The losses of a micro-batch, by name; their sum is minimized."""

    @property
    def epoch(self) -> float:
        """Passes over the images that are done."""
        return self.step / self.batches.batches_per_epoch

    def train(self, graceful_stop: GracefulStop) -> Iterator[tuple[dict[str, Tensor], float, str | None]]:
        """Train on from `step`; after every step yields the losses, the rate, and why to stop, if it is time."""
        while self.step < self.steps:
            self.batches.set_epoch(*divmod(self.step, self.batches.batches_per_epoch))
            for batch in self.loader:
                rate = self.set_learning_rate()
                losses = self.take_step(batch)
                self.step += 1
                reason = graceful_stop.stop_reason(self.step)
                yield losses, rate, reason
                if reason is not None or self.step == self.steps:
                    return

    def take_step(self, batch: Any) -> dict[str, Tensor]:
        """One optimizer step on this process's part of a batch; its losses, and their sum as `loss`."""
        torch.manual_seed(seed_from("step", self.seed, self.step, self.fabric.global_rank))  # dropout, regions …
        self.module.train()
        parts = self.split(batch)
        total: dict[str, Tensor] = {}
        for number, (part, share) in enumerate(parts):
            with self.fabric.no_backward_sync(self.module, enabled=number < len(parts) - 1):
                losses = self.losses(part)
                loss = torch.stack(list(losses.values())).sum()
                self.fabric.backward(loss * share)
            for name, value in (losses | {"loss": loss}).items():
                total[name] = total.get(name, 0.0) + share * value.detach()
        self.finite &= torch.isfinite(total["loss"])
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total


def run_supervised(
    engine: SupervisedEngine,
    folder: RunDirectory | None,
    logging: LoggingConfig,
    *,
    out: Path,
    seconds: float | None,
    notes: Sequence[str],
    evaluate: Callable[[], dict[str, float]],
    evaluate_every: int = 0,
) -> dict[str, float] | None:
    """Train; log, evaluate and save at intervals; stop on request. Rank 0, which has the folder, writes.

    Args:
        engine: at step 0, or where a checkpoint left it.
        folder: the run's, on rank 0.
        logging: intervals; a `checkpoint_every` of 0 is one per epoch.
        out: the path of the folder, on every process.
        seconds: the time limit.
        notes: sentences to print first.
        evaluate: a function that evaluates the network on all processes together.
        evaluate_every: steps between two evaluations before the last one; 0 for none.

    Returns:
        The metrics of the last evaluation; None if the run was stopped before its end.
    """
    fabric, length = engine.fabric, engine.steps
    read_every = 1 if fabric.device.type == "cpu" else logging.log_every  # reading a value waits for an accelerator
    save_every = logging.checkpoint_every or engine.batches.batches_per_epoch
    checkpoints = Checkpoints(out / "checkpoints", keep=logging.keep)
    metrics: dict[str, float] | None = None
    if folder is not None:
        folder.begin()
    with (
        Progress(length, engine.batches.batches_per_epoch, start=engine.step, enabled=folder is not None) as progress,
        MetricLogger(folder, logging, engine.step) as logger,
        GracefulStop(fabric, seconds, every=read_every) as graceful_stop,
    ):
        for note in notes:
            progress.say(note)
        if folder is not None:
            # The last evaluation comes after the last checkpoint, and is about to be repeated.
            folder.rewind(engine.step if engine.step else -1, needs="lr" if engine.step == length else None)
            folder.set_status("running", engine.step, engine.epoch)
        for losses, rate, reason in engine.train(graceful_stop):
            step = engine.step
            reason = None if step == length else reason  # too late to stop
            save = step % save_every == 0 or step == length or reason is not None
            progress.update(step, engine.batches.batch_size, losses["loss"])
            if step % read_every == 0 or save:
                engine.check_finite(weights=save)
            if step % logging.log_every == 0 or step == length:
                logger.log(step, {"epoch": engine.epoch, **engine.mean_of_all(losses), "lr": rate})
            if evaluate_every and step % evaluate_every == 0 and step < length:
                logger.log(step, evaluate())
            if folder is not None and save:
                folder.sync()
                checkpoints.save(engine.state(), step)
                folder.set_status("interrupted" if reason else "running", step, engine.epoch, reason or "")
            if reason is not None:
                progress.say(f"Stopped by {reason} at step {step}; --resume continues from here.")
        if engine.step == length:
            metrics = evaluate()
            logger.log(length, metrics)
    fabric.barrier()
    return metrics
