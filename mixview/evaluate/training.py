"""Training for evaluation, in a run of its own: the options of it, and a folder that can be resumed.

Order and views are functions of (seed, epoch, index), as in pretraining: the same command gives the same metrics,
whatever the number of workers, processes and restarts.
"""

import contextlib
import functools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import torch
from torch import nn
from torch.utils.data import Dataset

from mixview.data.loader import EpochSampler, Loader, default_workers
from mixview.distributed import synchronize_batch_norm
from mixview.evaluate import results
from mixview.evaluate.base import EvalContext, TrainingStopped
from mixview.evaluate.schedule import Schedule
from mixview.evaluate.training_loop import SupervisedEngine, run_supervised
from mixview.io.atomic import raise_if_link
from mixview.io.records import Accuracies, read_json
from mixview.io.run_folders import is_run
from mixview.options import Count, Epochs, Positive
from mixview.runs.devices import (
    Precision,
    describe_precision,
    latest_state,
    launch_once,
    make_fabric,
    precision_of,
    reset_grad_scaler,
    resolve_precision,
)
from mixview.runs.graceful_stop import seconds_of
from mixview.runs.launching import explain_lost_peer, is_restarted, launcher, process_rank
from mixview.runs.logging_config import LoggingConfig
from mixview.runs.run_directory import RunDirectory, record_failure, start_or_resume, write_json

if TYPE_CHECKING:
    from mixview.runs.fabric import Fabric


class TrainingRun(NamedTuple):
    """The environment of a classifier's training: devices, folder, seed and time limit."""

    fabric: "Fabric"
    out: Path
    """The folder of the run, with its settings, metrics and checkpoints."""
    config: Mapping[str, Any] = MappingProxyType({})
    """The settings that decide the outcome: a resumed run must have been started with the same."""
    seed: int = 0
    workers: int | None = None
    """Data-loading processes per training process; by default its share of the cores, minus one."""
    accumulate_grad_batches: int = 1
    """Micro-batches per step and device."""
    logging: LoggingConfig = LoggingConfig()
    deadline: float | None = None
    """The time to stop, by the monotonic clock."""
    resume: bool = False
    """Continue the run in the folder."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Options of all protocols that train on images."""

    batch_size: Count | None = None
    """Images per step, over all devices; by default as published, or all images if there are fewer."""
    accumulate_grad_batches: Count = 1
    """Micro-batches per step and device, to save memory; each has its own batch norm statistics."""
    nodes: Count | Literal["auto"] = "auto"
    """Number of machines; auto is as many as torchrun or srun started processes on."""
    precision: Precision = "auto"
    """Numeric precision; auto is bf16-mixed on accelerators that support it, else 32-true. Most CPUs are many times
    slower with mixed precision."""
    max_time: str | None = None
    """Stop gracefully after this time, all trials together: 45m, 1h30m, 2d."""
    resume: bool = False
    """Resume a stopped or killed training, bit-exact; a finished one stays unchanged."""

    @property
    def trains_on_images(self) -> bool:
        return True

    def resolve(self, device: str) -> Self:
        return replace(self, precision=resolve_precision(self.precision, device))

    def deadline(self, context: EvalContext) -> float | None:
        """The time to stop, by the monotonic clock."""
        seconds = seconds_of(self.max_time)
        return None if seconds is None else context.started + seconds

    def fabric(self, context: EvalContext) -> "Fabric":
        """Devices, processes and precision."""
        return shared_fabric(context.protocol.device, context.protocol.devices, self.nodes, self.precision)


@functools.cache
def shared_fabric(device: str, devices: int, nodes: int | Literal["auto"], precision: Precision) -> "Fabric":
    """One Fabric for all trainings of a command, which share their processes."""
    several = devices if launcher() is None or devices > 1 else "auto"
    return make_fabric(devices=several, nodes=nodes, accelerator=device, precision=precision)


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig(TrainingConfig):
    """Options of the protocols that train a classifier."""

    epochs: Epochs | None = None
    """Passes over the images; by default as published. The learning-rate steps scale with them."""
    lr: Positive | None = None
    """Learning rate; by default as published."""
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    """Intervals of logging and of checkpoints, and what is kept."""

    def adapt(self, published: Schedule, images: int) -> Schedule:
        """A published schedule with the options' changes, for this number of training images."""
        return published.changed(self.epochs, self.batch_size, self.lr).fitted(images)

    @contextlib.contextmanager
    def training(self, context: EvalContext) -> Iterator[TrainingRun]:
        """The run of this protocol: in a folder beside the result's file, of the same name.

        Without a folder for results it is a temporary one.
        """
        protocol = context.protocol
        every = asdict(protocol).items()
        config = {name: value for name, value in every if name not in ("resume", "trials", "trust_remote_code")}
        results_folder = protocol.folder()
        if results_folder is not None:
            raise_if_link(results_folder / results.FOLDER)
        with contextlib.nullcontext(results_folder) if results_folder else tempfile.TemporaryDirectory() as folder:
            try:
                yield TrainingRun(
                    self.fabric(context),
                    Path(folder) / results.FOLDER / Path(context.result({}).file_name()).stem,
                    config | {"protocol": protocol.name, "weights_key": context.encoder.weights_key()},
                    protocol.seed,
                    protocol.workers,
                    self.accumulate_grad_batches,
                    self.logging,
                    self.deadline(context),
                    self.resume,
                )
            except TrainingStopped:
                if results_folder:
                    raise
                raise TrainingStopped(
                    f"{protocol.name} was stopped, and {protocol.encoder} has no folder to keep checkpoints in: with "
                    "--out FOLDER a stopped training can be resumed"
                ) from None


def train_in_folder(
    run: TrainingRun,
    network: nn.Module,
    trained: nn.Module,
    schedule: Schedule,
    groups: list[dict[str, Any]],
    data: dict[str, Any],
    make_engine: Callable[[Any, torch.optim.Optimizer], SupervisedEngine],
    evaluate: Callable[[], dict[str, dict[str, float]]],
) -> dict[str, dict[str, float]]:
    """Train a network in a run's folder, resume its training, or read the result of a finished one.

    Args:
        run: devices, folder, seed and time limit.
        network: the module that is called with images.
        trained: the part of it that is trained, and saved in checkpoints.
        schedule: the schedule, which builds the optimizer.
        groups: the optimizer's parameter groups.
        data: the record of the images, which a resumed run must have, too.
        make_engine: a function of the network and the optimizer as Fabric set them up.
        evaluate: a function that evaluates the network, on all processes together.

    Returns:
        The result of `evaluate` at the end.
    """
    fabric, finished = run.fabric, run.out / "accuracy.json"
    resume = (run.resume or is_restarted()) and is_run(run.out)
    notes = [f"There is nothing to resume in {run.out}: a new training begins."] if run.resume and not resume else []
    if resume and finished.is_file():
        RunDirectory.open(run.out).check_resumable(dict(run.config), data, MAY_CHANGE)
        return read_json(finished, Accuracies)
    if not resume and process_rank() == 0 and finished.is_file():
        # The same command again replaces its earlier result; without its checkpoints nothing would resume.
        shutil.rmtree(run.out / "checkpoints")
        shutil.rmtree(run.out)
    folder = start_or_resume(run.out, dict(run.config), data, resume=resume, may_change=MAY_CHANGE)
    with record_failure(folder), explain_lost_peer():
        launch_once(fabric)
        fabric.barrier()  # the folder is there now
        # A frozen encoder's batch norms use their stored statistics: there is nothing to synchronize in them.
        notes += synchronize_batch_norm(trained, fabric.device)
        notes.append(describe_precision(precision_of(fabric)))
        reset_grad_scaler(fabric)
        engine = make_engine(*fabric.setup(network, schedule.build_optimizer(groups)))
        notes += resume_engine(engine, run.out)
        accuracies: dict[str, dict[str, float]] = {}

        def evaluate_and_keep() -> dict[str, float]:
            accuracies.update(evaluate())
            return {f"{stage} {name}": value for stage, each in accuracies.items() for name, value in each.items()}

        metrics = run_supervised(
            engine,
            folder,
            run.logging,
            out=run.out,
            seconds=None if run.deadline is None else run.deadline - time.monotonic(),
            notes=notes,
            evaluate=evaluate_and_keep,
        )
        if metrics is not None and folder is not None:
            with folder.explain_disk_error("write the result into"):
                write_json(finished, accuracies)
            folder.set_status("finished", engine.step, engine.epoch)
    if metrics is None:
        raise TrainingStopped(
            f"the training in {run.out} was stopped at step {engine.step} of {engine.steps}: the same command with "
            "--resume continues it"
        )
    return accuracies


def resume_engine(engine: SupervisedEngine, out: Path) -> list[str]:
    """Continue from the last checkpoint in a run's folder, if there is one; returns a note that says so."""
    state = latest_state(engine.fabric, out)
    if state is None:
        return []
    engine.load_state(state)
    return [f"Resuming from step {engine.step} of {engine.steps}."]


def epoch_batches(count: int, batch: int, run: TrainingRun, *, drop_last: bool) -> EpochSampler:
    """The batches of this process: of all images as many as the processes can share equally, if a batch is all."""
    fabric = run.fabric
    if batch == count:
        batch = max(1, batch // fabric.world_size) * fabric.world_size
    return EpochSampler(count, batch, run.seed, fabric.global_rank, fabric.world_size, drop_last=drop_last)


MAY_CHANGE = frozenset(
    {
        "data",
        "device",
        "devices",
        "encoder",
        "logging",
        "max_time",
        "nodes",
        "out",
        "test_data",
        "trust_remote_code",
        "workers",
    }
)
"""Settings that a resumed training may change: place, duration and logging. Encoder and images are compared by their
content."""


def image_loader(images: Dataset[Any], batches: EpochSampler, run: TrainingRun) -> Loader:
    """The batches of training images."""
    workers = workers_of(run.fabric, run.workers)
    pin_memory = run.fabric.device.type == "cuda"
    return Loader(images, workers=workers, batch_sampler=batches, pin_memory=pin_memory, persistent_workers=workers > 0)


def workers_of(fabric: "Fabric", workers: int | None) -> int:
    """Data-loading processes of each process: the requested number, or its share of this machine's cores."""
    nodes: int = getattr(fabric.strategy, "num_nodes", 1)
    return default_workers(fabric.world_size // nodes) if workers is None else workers
