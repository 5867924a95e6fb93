"""Training of classifiers on images, for the protocols that do: published schedules, one augmented view per image, runs
that can be resumed.

Order and views are functions of (seed, epoch, index), as in pretraining: the same command gives the same metrics,
whatever the number of workers, processes and restarts.
"""

import contextlib
import copy
import functools
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from mixview.data.augment import numba_backend
from mixview.data.augment.params import sample_params, view_generator
from mixview.data.augment.policies import Augmentation, Crop, Jitter, Normalize
from mixview.data.dataset import ImageDataset
from mixview.data.loader import EpochSampler, Key, Loader, default_workers
from mixview.data.sources.base import Source
from mixview.distributed import synchronize_batch_norm
from mixview.encoders.features import BLOCK, Stage, StageFeatures, load_blocks
from mixview.encoders.loading import LoadedEncoder
from mixview.encoders.transforms import CenterCrop
from mixview.evaluate import results
from mixview.evaluate.base import EvalContext, TrainingStopped
from mixview.evaluate.labeled import as_tensor
from mixview.evaluate.training_loop import SupervisedEngine, run_supervised
from mixview.io.atomic import raise_if_link
from mixview.io.records import Accuracies, read_json
from mixview.io.run_folders import is_run
from mixview.optim import LARS, step_decay
from mixview.options import Count, Epochs, Positive, logger_names
from mixview.runs.checkpoints import Checkpoints
from mixview.runs.devices import Precision, agree_on_checkpoint, launch_once, make_fabric, reset_grad_scaler
from mixview.runs.graceful_stop import seconds_of
from mixview.runs.launching import explain_lost_peer, is_restarted, launcher, process_rank
from mixview.runs.progress_bar import bar
from mixview.runs.run_directory import RunDirectory, record_failure, start_or_resume, write_json

if TYPE_CHECKING:
    from mixview.runs.fabric import Fabric


@final
@dataclass(frozen=True)
class Schedule:
    """An optimizer and its learning rate, which decays in steps, linearly, or along a cosine."""

    epochs: int
    lr: float
    weight_decay: float
    steps: tuple[int, ...] = ()
    """Epochs after which the learning rate decays."""
    factor: float = 0.1
    """Decay factor at each step."""
    batch_size: int = 256
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
        if self.epochs < 1 or self.batch_size < 1:
            raise ValueError(f"epochs and batch_size must be at least 1, got {self.epochs} and {self.batch_size}")

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


class LabeledImages(NamedTuple):
    """Images of one class each, to train and to test on."""

    train: Source
    labels: Tensor
    """[N]"""
    test: Source
    test_labels: Tensor
    """[M]"""
    classes: int


@dataclass(frozen=True)
class Logging:
    """How often a training logs and saves, and what it keeps."""

    log_every: int = 20
    """Optimizer steps between two lines of metrics."""
    checkpoint_every: int = 0
    """Optimizer steps between two checkpoints; 0 saves one per epoch."""
    keep: int = 2
    """Number of checkpoints to keep."""
    loggers: str = "none"
    """Trackers that get the metrics, besides the run directory: tensorboard, mlflow, wandb, several as in
    tensorboard,mlflow, or none. mlflow and wandb need 'mixview[trackers]'."""
    project: str = "mixview"
    """Project of Weights & Biases, and experiment of MLflow."""
    tracking_uri: str | None = None
    """Address of the MLflow server, such as http://localhost:5000; by default MLFLOW_TRACKING_URI."""

    def __post_init__(self) -> None:
        if min(self.log_every, self.keep) < 1 or self.checkpoint_every < 0:
            raise ValueError(f"log_every and keep must be at least 1, and checkpoint_every 0 or more, got {self}")
        logger_names(self.loggers, "--logging.loggers")


class TrainingRun(NamedTuple):
    """Where and how a classifier is trained: devices, folder, seed and time limit."""

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
    logging: Logging = Logging()
    deadline: float | None = None
    """When to stop, by the monotonic clock."""
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
    precision: Precision = "32-true"
    """Mixed precision is for accelerators: most CPUs are many times slower with it."""
    max_time: str | None = None
    """Stop gracefully after this time, all trials together: 45m, 1h30m, 2d."""
    resume: bool = False
    """Resume what was stopped or killed, bit-exact; what is finished stays as it is."""

    @property
    def trains_on_images(self) -> bool:
        return True

    def deadline(self, context: EvalContext) -> float | None:
        """When to stop, by the monotonic clock."""
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
    logging: Logging = field(default_factory=Logging)
    """How often a training logs and saves, and what it keeps."""

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


def labeled_images(context: EvalContext) -> LabeledImages:
    """The images and labels of both splits."""
    splits = context.splits
    train_labels, test_labels = (as_tensor(labels) for labels in splits.single(context.protocol.name))
    return LabeledImages(splits.train, train_labels, splits.test, test_labels, len(splits.classes))


@dataclass(frozen=True)
class Lighting:
    """AlexNet's noise along the principal components of ImageNet's colors, as OpenSelfSup has it."""

    std: float = 0.1
    """Standard deviation of the noise along each component, in units of its eigenvalue."""

    def shift(self, generator: torch.Generator) -> Tensor:
        """[3] what is added to red, green and blue in [0, 1]; three numbers of the generator."""
        alpha = self.std * torch.randn(3, generator=generator)
        return torch.tensor(EIGENVECTORS) @ (alpha * torch.tensor(EIGENVALUES))


EIGENVALUES = (0.2175, 0.0188, 0.0045)
EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))
"""Principal components of ImageNet's RGB values, one per column (Krizhevsky et al., 2012)."""


@final
class AugmentedImages(Dataset[tuple[Tensor, int]]):
    """One random crop, perhaps flipped, of each image, by (epoch, index).

    Args:
        images: decoded images by index.
        size: crop size in pixels.
        normalize: the normalization the encoder was trained with.
        seed: random seed.
        jitter: color jitter, if any.
        lighting: PCA noise in the colors, if any; only images of three channels get it.
    """

    def __init__(
        self,
        images: ImageDataset,
        size: int,
        normalize: Normalize,
        seed: int,
        jitter: Jitter | None = None,
        lighting: Lighting | None = None,
    ) -> None:
        self.images = images
        self.augmentation = Augmentation(
            crop=Crop(size), jitter=jitter, order=("jitter",) if jitter else (), normalize=normalize
        )
        self.lighting = lighting
        self.seed = seed

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, keys: list[Key]) -> tuple[Tensor, Tensor]:
        """[B, C, S, S], and which images they are [B]."""
        views, which = [], []
        for epoch, index in keys:
            sample = self.images[index]
            height, width = sample.pixels.shape[:2]
            generator = view_generator(self.seed, epoch, index)
            params = sample_params(self.augmentation, height, width, generator)
            view = numba_backend.apply(sample.pixels, self.augmentation, params)
            if self.lighting is not None and len(view) == 3 and self.augmentation.normalize is not None:
                _, std = self.augmentation.normalize.values(3)
                view += (self.lighting.shift(generator) / torch.tensor(std)).view(3, 1, 1)
            views.append(view)
            which.append(sample.index)
        return torch.stack(views), torch.tensor(which)


@final
class Classifier(nn.Module):
    """Linear classifiers on stages of an encoder, a copy of which is frozen or trained with them.

    Args:
        encoder: the network to copy.
        heads: one classifier per stage: features [N, D] -> scores [N, classes].
        frozen: keep the encoder as it is, including its batch norm statistics.
    """

    def __init__(self, encoder: nn.Module, heads: Mapping[Stage, nn.Module], *, frozen: bool) -> None:
        super().__init__()
        self.encoder = StageFeatures(copy.deepcopy(encoder), tuple(heads)).requires_grad_(not frozen)
        self.heads = nn.ModuleDict({str(stage): layer for stage, layer in heads.items()})
        self.frozen = frozen

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """[N, C, S, S] -> {stage: scores [N, classes]}"""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            features = self.encoder(images)
        return {stage: head(features[stage]) for stage, head in self.heads.items()}

    def train(self, mode: bool = True) -> "Classifier":
        super().train(mode)
        self.encoder.train(mode and not self.frozen)
        return self

    @property
    def trained(self) -> nn.Module:
        """The part that is trained and saved in checkpoints."""
        return self.heads if self.frozen else self


@dataclass
class ClassifierEngine(SupervisedEngine):
    """The steps of a classifier."""

    schedule: Schedule = field(kw_only=True)
    labels: Tensor = field(kw_only=True)
    """[N] of all training images, on the device."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peak_lr: list[float] = [group["lr"] for group in self.optimizer.param_groups]

    def set_learning_rate(self) -> float:
        factor = self.schedule.lr_factor(self.step // self.batches.batches_per_epoch)
        for group, peak in zip(self.optimizer.param_groups, self.peak_lr, strict=True):
            group["lr"] = peak * factor
        return self.peak_lr[0] * factor

    def split(self, batch: tuple[Tensor, Tensor]) -> list[tuple[tuple[Tensor, Tensor], float]]:
        # Processes count alike in the mean of gradients, though one may have an image more of the last batch.
        start = self.step % self.batches.batches_per_epoch * self.batches.batch_size
        share = min(self.batches.batch_size, self.batches.count - start) / self.fabric.world_size
        parts = zip(*(each.chunk(self.accumulate_grad_batches) for each in batch), strict=True)
        return [(part, len(part[0]) / share) for part in parts]

    def losses(self, part: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        images, index = (each.to(self.fabric.device, non_blocking=True) for each in part)
        scores: dict[str, Tensor] = self.module(images)
        labels = self.labels[index]
        return {name: F.cross_entropy(each.float(), labels) for name, each in scores.items()}


def train_classifier(
    network: Classifier,
    loaded: LoadedEncoder,
    labeled: LabeledImages,
    schedule: Schedule,
    run: TrainingRun,
    *,
    head_rate: float = 1.0,
    jitter: Jitter | None = None,
    lighting: Lighting | None = None,
    drop_last: bool = False,
) -> dict[str, dict[str, float]]:
    """Train the classifiers of a network on random crops, in a run of its own, and evaluate them on center crops.

    Args:
        network: encoder and classifiers.
        loaded: the encoder it is built on, with its input size and normalization.
        labeled: images and labels.
        schedule: fitted to the number of images.
        run: where.
        head_rate: learning rate of the heads, as a multiple of the encoder's.
        jitter: color jitter, besides random crops and flips.
        lighting: PCA noise in the colors.
        drop_last: drop the short last batch of an epoch, for the sake of batch norm.

    Returns:
        {stage: {"top-1": accuracy, …}}, 0 to 1, the same on every process.
    """
    fabric = run.fabric
    fingerprint = f"{labeled.train.fingerprint()}; tested on {labeled.test.fingerprint()}"
    data = {"kind": labeled.train.kind, "count": len(labeled.train), "fingerprint": fingerprint}
    groups = [{"params": list(network.heads.parameters()), "lr": schedule.peak_lr * head_rate}]
    if not network.frozen:
        groups.insert(0, {"params": list(network.encoder.parameters()), "lr": schedule.peak_lr})

    def make_engine(module: Any, optimizer: torch.optim.Optimizer) -> ClassifierEngine:
        dataset = ImageDataset(labeled.train, loaded.decoder(labeled.train))
        images = AugmentedImages(dataset, loaded.size, loaded.normalize, run.seed, jitter, lighting)
        batches = epoch_batches(len(dataset), schedule.batch_size, run, drop_last=drop_last)
        numba_backend.prepare(floats=dataset.decoder.value_range is not None)
        return ClassifierEngine(
            fabric=fabric,
            module=module,
            network=network.trained,
            optimizer=optimizer,
            batches=batches,
            loader=image_loader(images, batches, processes_here(fabric), run.workers, fabric.device),
            steps=schedule.epochs * batches.batches_per_epoch,
            seed=run.seed,
            accumulate_grad_batches=run.accumulate_grad_batches,
            schedule=schedule,
            labels=labeled.labels.to(fabric.device),
        )

    def evaluate() -> dict[str, dict[str, float]]:
        return evaluate_classifier(network, loaded, labeled, fabric, run.workers)

    return train_in_folder(run, network, network.trained, schedule, groups, data, make_engine, evaluate)


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
    """Train a network in a run's folder, or resume or read what was trained there.

    Args:
        run: where.
        network: what is called with images.
        trained: the part of it that is trained, and saved in checkpoints.
        schedule: which has the optimizer.
        groups: the optimizer's parameter groups.
        data: the record of the images, which a resumed run must have, too.
        make_engine: takes the network and the optimizer as Fabric set them up.
        evaluate: evaluates the network, on all processes together.

    Returns:
        What `evaluate` found at the end.
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
        reset_grad_scaler(fabric)
        module, optimizer = fabric.setup(network, schedule.build_optimizer(groups))
        engine = make_engine(module, optimizer)
        checkpoint = Checkpoints(run.out / "checkpoints").load_latest(fabric.device)
        agree_on_checkpoint(fabric, -1 if checkpoint is None else checkpoint[1], str(run.out))
        if checkpoint is not None:
            engine.load_state(checkpoint[0])
            notes.append(f"Resuming from step {engine.step} of {engine.steps}.")
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
"""Settings that a resumed training may change: they say where, how long and how closely it is logged. Encoder and
images are compared by their content."""


def image_loader(
    images: Dataset[Any], batches: EpochSampler, processes: int, workers: int | None, device: torch.device
) -> Loader:
    """The batches of training images."""
    workers = default_workers(processes) if workers is None else workers
    return Loader(
        images,
        workers=workers,
        batch_sampler=batches,
        pin_memory=device.type == "cuda",
        persistent_workers=workers > 0,
    )


@torch.no_grad()
def evaluate_classifier(
    network: Classifier, loaded: LoadedEncoder, labeled: LabeledImages, fabric: "Fabric", workers: int | None
) -> dict[str, dict[str, float]]:
    """The accuracies, 0 to 1, on center crops of the test images, each process evaluating its share of them."""
    tops = {"top-1": 1} | ({"top-5": 5} if labeled.classes > 5 else {})
    network.eval()
    labels = labeled.test_labels.to(fabric.device)
    correct = torch.zeros(len(network.heads), len(tops), dtype=torch.long, device=fabric.device)
    count = torch.zeros((), dtype=torch.long, device=fabric.device)
    blocks = range(fabric.global_rank, -(-len(labeled.test) // BLOCK), fabric.world_size)
    workers = default_workers(processes_here(fabric)) if workers is None else workers
    transform = CenterCrop(loaded.size, loaded.normalize)
    with bar("evaluating", len(blocks)) as advance:
        for block, (images, index) in zip(
            blocks, load_blocks(loaded, labeled.test, transform, blocks, workers), strict=True
        ):
            own = index == torch.arange(len(index)) + block * BLOCK  # not another image in place of a bad one
            with fabric.autocast():
                scores = torch.stack(list(network(images[own].to(fabric.device)).values()))  # [heads, N, classes]
            ranked = scores.topk(max(tops.values()), dim=2).indices == labels[index[own].to(fabric.device)][:, None]
            correct += torch.stack([ranked[:, :, :top].any(2).sum(1) for top in tops.values()], dim=1)
            count += own.sum().to(fabric.device)
            advance(1)
    total: Any = fabric.all_reduce(torch.cat([correct.flatten(), count[None]]), reduce_op="sum")
    *hits, images_seen = total.tolist()
    shares = iter(each / images_seen for each in hits)
    return {stage: {name: next(shares) for name in tops} for stage in network.heads}


def processes_here(fabric: "Fabric") -> int:
    """Training processes on this machine."""
    nodes: int = getattr(fabric.strategy, "num_nodes", 1)
    return fabric.world_size // nodes


def train_on_features(
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    features: Tensor,
    labels: Tensor,
    schedule: Schedule,
    *,
    seed: int,
    what: str = "training",
) -> None:
    """Train on precomputed features [N, D], on their device: it takes seconds, and is not a run."""
    batches = EpochSampler(len(features), min(schedule.batch_size, len(features)), seed, drop_last=False)
    peak = [group["lr"] for group in optimizer.param_groups]
    with bar(what, schedule.epochs * batches.batches_per_epoch) as advance:
        for epoch in range(schedule.epochs):
            batches.set_epoch(epoch)
            for group, lr in zip(optimizer.param_groups, peak, strict=True):
                group["lr"] = lr * schedule.lr_factor(epoch)
            for keys in batches:
                index = torch.tensor([number for _, number in keys], device=features.device)
                optimizer.zero_grad()
                value = loss(features[index], labels[index])
                value.backward()
                optimizer.step()
                advance(1)
            if not bool(value.isfinite()):
                raise ValueError(
                    f"the loss is {value.item()} after epoch {epoch + 1}: use a smaller --lr than {schedule.lr:g}"
                )


def head(width: int, classes: int, seed: int) -> nn.Linear:
    """A linear classifier initialized as MoCo's: weights from N(0, 0.01²), zero bias."""
    layer = nn.Linear(width, classes)
    generator = torch.Generator().manual_seed(seed)
    nn.init.normal_(layer.weight, std=0.01, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def accuracy(scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Top-1 and, for more than five classes, top-5 accuracy of scores [N, classes], each 0 to 1."""
    tops = {"top-1": 1} | ({"top-5": 5} if scores.shape[1] > 5 else {})
    ranked = scores.topk(max(tops.values()), dim=1).indices == labels.to(scores.device).unsqueeze(1)
    return {name: float(ranked[:, :top].any(1).cpu().double().mean()) for name, top in tops.items()}
