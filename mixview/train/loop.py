"""The training loop, top to bottom, and the step that it takes. Devices and precision are Lightning Fabric's."""

import json
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mixview.data.augment.policies import Normalize
from mixview.data.loader import Batch, EpochSampler
from mixview.encoders.loading import describe_normalize
from mixview.encoders.provenance import encoder_settings
from mixview.encoders.weights import ENCODER_FILE
from mixview.io.atomic import write_bytes
from mixview.methods import Method, Targets, Views, backward, cached_backward
from mixview.mixing import mix_strength_at, mixture_generators
from mixview.objective import Objective, Term
from mixview.rng import seed_from
from mixview.runs.checkpoints import Checkpoints
from mixview.runs.engine import ResumableEngine
from mixview.runs.graceful_stop import GracefulStop, seconds_of
from mixview.runs.metric_logger import MetricLogger
from mixview.runs.progress import Progress
from mixview.runs.run_directory import RunDirectory, State, read_metrics
from mixview.train import starting_weights
from mixview.train.config import PretrainConfig
from mixview.train.estimate import estimate
from mixview.train.monitor import Monitor
from mixview.train.optim import set_learning_rate
from mixview.train.profiler import StepProfiler
from mixview.train.step_timer import Part, StepTimer, describe
from mixview.train.waiting import DataWaitCheck, explain_waiting

BEST_FILE = "encoder-best.safetensors"
"""The best encoder of a run that stops if it gets worse."""
LAST_FILE = "encoder-last.safetensors"
"""The last encoder of a run that has kept a better one."""


class Run(NamedTuple):
    """The parts that a process trains with; `mixview.train.build.build` makes them."""

    config: PretrainConfig
    engine: "Engine"
    monitor: Monitor
    export: Callable[[dict[str, str], str], None]
    """Writes the encoder into a file of this name in the run directory, with this metadata."""
    notes: list[str]
    workers: int
    """Number of data loading workers of this process."""
    hints: list[str]
    """Ways to speed up data loading."""


def train(run: Run, folder: RunDirectory | None, notes: list[str]) -> None:
    """Train to the end, or until there is a reason to stop.

    Args:
        run: the run, at its start or as a checkpoint left it.
        folder: the run directory, on the first process only: it alone logs, evaluates and saves.
        notes: further notes to print at the start.
    """
    config, engine, timer = run.config, run.engine, run.engine.timer
    fabric, settings, epoch_steps = engine.fabric, config.monitor, engine.sampler.batches_per_epoch
    assert config.batch_size != "auto"
    read_every = 1 if fabric.device.type == "cpu" else settings.log_every  # reading a value waits for an accelerator
    save_every = settings.checkpoint_every or epoch_steps
    checkpoints = Checkpoints(Path(config.out) / "checkpoints", keep=settings.keep)
    about = {"method": config.method.name, "objective": config.objective, "data": str(config.data)}
    if config.value_range != "auto":  # which resolved is images of 8 bits
        about["value_range"] = config.value_range
    about |= {"seed": str(config.seed)} | describe_normalize(run.monitor.normalize or Normalize((0.0,), (1.0,)))
    if folder is not None:
        folder.begin()
        shaping = (encoder_settings(folder.path) or {}) | {"processes": fabric.world_size}  # each mixes on its own
        about["settings"] = json.dumps(shaping, sort_keys=True)
    with (
        Progress(engine.steps, epoch_steps, start=engine.step, enabled=folder is not None) as progress,
        MetricLogger(folder, settings, engine.step) as logger,
        GracefulStop(fabric, seconds_of(config.max_time), every=read_every) as stopping,
        StepProfiler(
            Path(config.out) / "trace.json.gz", config.profile if folder else None, timer, fabric.device, progress.say
        ) as profiler,
    ):
        for note in [*run.notes, *notes]:
            progress.say(note)
        prepare_run(run, folder, progress)
        if folder is not None and engine.step == 0:
            logger.log_file(folder.path / "views.png")
        if folder is not None and engine.step == engine.steps:  # killed between the last checkpoint and its encoder
            run.export(about | engine.position(), ENCODER_FILE)
        timer.restart()
        reason: str | None = None
        worse = False
        if is_evaluated(run, engine.step):  # the starting weights, or killed between a checkpoint and its evaluation
            if folder is not None and not was_evaluated(folder, engine.step):
                evaluate(run, logger, progress)
            worse = save_best_and_check_stop(run, folder, about)

        waiting = DataWaitCheck(timer)
        while engine.step < engine.steps and reason is None and not worse:
            engine.sampler.set_epoch(*divmod(engine.step, epoch_steps))
            began = time.process_time()
            timer.start("data")
            for views, _ in engine.loader:
                loss, lr = engine.take_step(views)
                timer.start("other")
                step = engine.step
                reason = stopping.stop_reason(step)
                engine.cpu_seconds += time.process_time() - began
                progress.update(step, config.batch_size, loss)
                if waiting.is_long():
                    rate = waiting.steps * config.batch_size / fabric.world_size / waiting.seconds
                    progress.say(explain_waiting(waiting.share, rate, run.workers, run.hints))

                save = step % save_every == 0 or step == engine.steps or reason is not None
                if step % read_every == 0 or save:
                    engine.check_finite(weights=save)
                # Stopping adds neither line nor evaluation: the resumed run logs what an uninterrupted one does.
                if step % settings.log_every == 0 or step % epoch_steps == 0:
                    logged = {"epoch": engine.epoch, **engine.mean_of_all({"loss": loss}), "lr": lr}
                    logger.log(step, logged | timer.log())
                if folder is not None and save:
                    folder.sync()
                    checkpoints.save(engine.state(), step)
                    run.export(about | engine.position(), ENCODER_FILE)
                    state: State = "interrupted" if reason else "running"
                    folder.set_status(state, step, engine.epoch, reason or "", engine.cpu_seconds)
                if is_evaluated(run, step):  # after saving: a failure costs nothing
                    if folder is not None:
                        evaluate(run, logger, progress)
                    worse = save_best_and_check_stop(run, folder, about)
                    if folder is not None and worse and not save:
                        folder.sync()
                        checkpoints.save(engine.state(), step)
                profiler.step()
                began = time.process_time()
                timer.start("data")
                if reason is not None:
                    progress.say(f"Stopped by {reason} at step {step}; --resume continues from here.")
                    break
                if worse:
                    break

        if description := describe(timer.seconds(wait=True)):
            progress.say(f"Time: {description}.")
        if folder is not None and (engine.step == engine.steps or (worse and reason is None)):
            finish(run, folder, about, progress)
            logger.log_file(folder.path / ENCODER_FILE)
    fabric.barrier()


def save_best_and_check_stop(run: Run, folder: RunDirectory | None, about: dict[str, str]) -> bool:
    """Return True, on every process, if the encoder stays worse than the starting weights, so that training stops.

    Call it after an evaluation. The best encoder of a run that may stop early is kept in a file of its own.
    """
    if not run.config.stop_if_worse:
        run.engine.fabric.barrier()
        return False
    records = [] if folder is None else read_metrics(folder.path)
    if folder is not None and starting_weights.best_step(records) == run.engine.step:
        run.export(about | run.engine.position(), BEST_FILE)
    return bool(run.engine.fabric.broadcast(starting_weights.should_stop_early(records)))


def finish(run: Run, folder: RunDirectory, about: dict[str, str], progress: Progress) -> None:
    """End a run: keep the better encoder if requested, and compare with the starting weights."""
    engine, records = run.engine, read_metrics(folder.path)
    kept = run.config.stop_if_worse and starting_weights.is_worse(records) and (folder.path / BEST_FILE).is_file()
    if kept:
        run.export(about | engine.position(), LAST_FILE)
        with folder.explain_disk_error("write the encoder of"):
            write_bytes(folder.path / ENCODER_FILE, (folder.path / BEST_FILE).read_bytes())
    comparison = starting_weights.compare(records, kept)
    early = f"stopped after epoch {engine.epoch:g}" if engine.step < engine.steps else ""
    message = ": ".join(filter(None, [early, comparison if early else None]))
    folder.set_status("finished", engine.step, engine.epoch, message, engine.cpu_seconds)
    if early:
        progress.say(
            f"{early.capitalize()}: it stays worse than the starting weights (pass --no_stop_if_worse to continue)."
        )
    progress.say(f"Done: {run.config.out}/encoder.safetensors")
    if comparison is not None:
        progress.say(comparison)


def prepare_run(run: Run, folder: RunDirectory | None, progress: Progress) -> None:
    """Bring the run directory to where training starts, draw some views, and estimate the cost."""
    engine = run.engine
    if folder is not None:
        folder.rewind(engine.step if engine.step else -1)
        before = folder.status  # perhaps of a later step than the checkpoint's
        share = min(1.0, engine.step / before["step"]) if before.get("step") else 0.0
        engine.cpu_seconds = share * before.get("cpu_seconds", 0.0)
        folder.set_status("running", engine.step, engine.epoch, cpu_seconds=engine.cpu_seconds)
        if engine.step == 0:
            with folder.explain_disk_error("draw the views of"):
                run.monitor.save_views(folder.path / "views.png")
    steps_left = engine.steps - engine.step
    if run.config.monitor.estimate and steps_left > 0:
        views = run.monitor.sample_views(engine.sampler.batch_size // engine.fabric.world_size)
        cost = estimate(lambda: engine.dry_run_step(views), steps_left, device=engine.fabric.device, trials=2)
        progress.say(f"{steps_left} steps remaining: {cost} (excluding data loading and evaluation).")


def is_evaluated(run: Run, step: int) -> bool:
    """Return True if the encoder is evaluated after this step: every `eval_every` epochs, and after the last.

    Weights to start from are evaluated before the first step.
    """
    every, epoch_steps = run.config.monitor.eval_every, run.engine.sampler.batches_per_epoch
    if not every or step % epoch_steps:
        return False
    if not step:
        return run.config.weights is not None
    return step == run.engine.steps or step // epoch_steps % every == 0


def was_evaluated(folder: RunDirectory, step: int) -> bool:
    """Return True if the metrics of a run have an evaluation after this step."""
    return any(record["step"] == step and "loss" not in record for record in read_metrics(folder.path))


def evaluate(run: Run, logger: MetricLogger, progress: Progress) -> None:
    """Evaluate the encoder and log the metrics. An evaluation that fails is reported, and training continues."""
    step, timer = run.engine.step, run.engine.timer
    timer.start("evaluation")
    try:
        metrics, warning = run.monitor.evaluate()
    except Exception as error:
        progress.warn(f"The evaluation after step {step} failed; training continues: {type(error).__name__}: {error}")
        return
    logger.log(step, metrics | timer.log(wait=True))
    progress.update(step, 0, knn=metrics.get("knn"))
    if not step and (text := starting_weights.describe_start([{"step": step} | metrics])):
        progress.say(text)
    if warning and step:  # what the starting weights are like is not for a lower learning rate to change
        progress.warn(warning)


@dataclass
class Engine(ResumableEngine):
    """The parts of a step. Nothing in it is random except by (seed, step, rank), so a step can be repeated."""

    state_key = "method"

    config: PretrainConfig
    objective: Objective
    sampler: EpochSampler
    loader: Iterable[Batch]
    channels_last: bool = False
    """Memory format of the views: as configured, where the encoder supports it."""
    cpu_seconds: float = 0.0
    """CPU time of these steps in this process, with the views that it makes itself; without evaluation and saving."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert isinstance(self.network, Method)
        self.method: Method = self.network
        self.timer = StepTimer(self.fabric.device)

    @property
    def steps(self) -> int:
        """Number of optimizer steps of the whole run."""
        return self.config.epochs * self.sampler.batches_per_epoch

    @property
    def epoch(self) -> float:
        """Number of epochs done."""
        return self.step / self.sampler.batches_per_epoch

    def position(self) -> dict[str, str]:
        """Step and epoch as text, for the encoder's file."""
        return {"step": str(self.step), "epoch": f"{self.epoch:g}"}

    def take_step(self, views: Views) -> tuple[Tensor, float]:
        """One optimizer step on this process's part of a batch; returns the loss and the learning rate."""
        self.timer.start("forward")
        views = [self.to_device(view) for view in views]
        lr = set_learning_rate(self.optimizer, self.config.optimizer, self.epoch, self.config.epochs)
        self.seed_generators(seed_from("step", self.config.seed, self.step, self.fabric.global_rank))  # dropout, if any
        loss, targets = self.accumulate_gradient(views)
        self.timer.start("update")
        self.finite &= torch.isfinite(loss)
        if (clip := self.config.optimizer.clip) is not None:
            # An overflow is no error here: a scaler skips the step, and without one `check_finite` finds the weights.
            self.fabric.clip_gradients(self.module, self.optimizer, max_norm=clip, error_if_nonfinite=False)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.method.update(*targets, progress=self.step / self.steps)  # EMA and queue
        self.step += 1
        return loss, lr

    def seed_generators(self, seed: int) -> None:
        """As `torch.manual_seed`, which also notes a stack trace for each accelerator that was never used."""
        torch.default_generator.manual_seed(seed)
        if self.fabric.device.type != "cpu":
            torch.get_device_module(self.fabric.device).manual_seed(seed)

    def accumulate_gradient(self, views: Views) -> tuple[Tensor, list[Targets]]:
        """The gradient of the step, micro-batch by micro-batch; the mean loss and all targets."""
        micro_batches = self.config.accumulate_grad_batches
        if self.config.grad_cache and micro_batches > 1:
            return self.cached_gradient(views)
        total, targets = torch.zeros((), device=views[0].device), []
        parts = list(zip(*(view.chunk(micro_batches) for view in views), strict=True))
        for number, part in enumerate(parts):
            share = len(part[0]) / len(views[0])
            group = self.fabric.global_rank * micro_batches + number
            loss, target = backward(
                self.module,
                part,
                self.draw_terms(part[0], group),
                call=partial(self.backward, share=share),
                no_sync=self.no_sync,
                sync=number == len(parts) - 1,
            )
            total = total + share * loss
            targets.append(target)
        return total, targets

    def cached_gradient(self, views: Views) -> tuple[Tensor, list[Targets]]:
        """The gradient of the whole batch by GradCache."""
        loss, target = cached_backward(
            self.module,
            views,
            self.draw_terms(views[0], self.fabric.global_rank),
            micro_batch=-(-len(views[0]) // self.config.accumulate_grad_batches),
            call=partial(self.backward, then="backward"),  # the second forward pass included
            context=self.fabric.autocast,
        )
        return loss, [target]

    def draw_terms(self, images: Tensor, group: int) -> list[Term]:
        """The objective's terms of this step for one group of images."""
        mixing = self.config.mixing
        generators = mixture_generators(self.config.seed, self.step, rank=group, mix_groups=mixing.mix_groups)
        mix_strength = mix_strength_at(self.step / self.steps, mixing.warmup)
        return self.objective.draw(images, generators, mix_strength=mix_strength)

    def backward(self, loss: Tensor, *, share: float = 1, then: Part = "forward") -> None:
        """Go backward through this share of a loss; the time after it counts for the part `then`."""
        self.timer.start("backward")
        self.fabric.backward(loss * share if share != 1 else loss)
        self.timer.start(then)

    def no_sync(self) -> AbstractContextManager[object]:
        """The context in which gradients do not cross processes."""
        context: AbstractContextManager[object] = self.fabric.no_backward_sync(self.module)
        return context

    def to_device(self, view: Tensor) -> Tensor:
        memory = torch.channels_last if self.channels_last else torch.preserve_format
        return view.to(self.fabric.device, non_blocking=True, memory_format=memory)

    def dry_run_step(self, views: Views) -> None:
        """Forward and backward of one step, which changes nothing: to measure its cost."""
        with torch.random.fork_rng(devices=[] if self.fabric.device.type == "cpu" else None):
            buffers = {name: buffer.clone() for name, buffer in self.method.named_buffers()}
            self.accumulate_gradient(views)
            self.optimizer.zero_grad()
            with torch.no_grad():
                for name, buffer in self.method.named_buffers():
                    buffer.copy_(buffers[name])
