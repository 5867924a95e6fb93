"""What the protocols that train share: a published schedule, one augmented view per image, runs that can be resumed.

The order and the views are functions of (seed, epoch, index), as in pretraining: the same command gives the same
figure, whatever the number of workers, processes and restarts.
"""

import copy
import math
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, final

import numpy as np
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.utils.data import Dataset

from mixview.data import fused
from mixview.data.augmentation import Augmentation, Crop, Jitter, Normalise, view_generator
from mixview.data.loading import Batches, Key, Loader, default_workers
from mixview.data.reading import Reader, decoder_for
from mixview.data.source import Source
from mixview.distributed import synchronize_batch_norm
from mixview.evaluate.encoders import Subject
from mixview.evaluate.features import BLOCK, Stage, Staged, shown
from mixview.evaluate.progress import bar
from mixview.evaluate.transforms import CentreCrop
from mixview.records import Accuracies, read_json
from mixview.train.checkpoints import Checkpoints
from mixview.train.devices import agree_on_checkpoint, launch_once, reset_grad_scaler
from mixview.train.launching import is_restarted, losing_no_process, process_rank
from mixview.train.optimisers import LARS
from mixview.train.run_folder import RunFolder, is_run, recorded, start_or_resume, write_json
from mixview.train.supervised import SupervisedEngine, run_supervised


@final
@dataclass(frozen=True)
class Schedule:
    """An optimizer whose learning rate falls in steps, or along a cosine, epoch by epoch."""

    epochs: int
    lr: float
    weight_decay: float
    steps: tuple[int, ...] = ()
    """Epochs after which the rate falls."""
    factor: float = 0.1
    """What it is multiplied by there."""
    batch: int = 256
    momentum: float = 0.9
    nesterov: bool = False
    optimizer: Literal["sgd", "lars"] = "sgd"
    cosine: bool = False
    """The rate falls along half a cosine instead."""
    scale_lr: bool = False
    """Multiply the rate by batch / 256."""

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1:
            raise ValueError(f"epochs and batch must be at least 1, got {self.epochs} and {self.batch}")

    def changed(self, epochs: int | None, batch: int | None, lr: float | None) -> "Schedule":
        """With another number of epochs, in which the steps keep their place, another batch or another rate.

        In a short run a step waits for the end of the first epoch, rather than fall before it.
        """
        length = self.epochs if epochs is None else epochs
        steps = tuple(max(1, round(step * length / self.epochs)) for step in self.steps)
        return replace(
            self,
            epochs=length,
            steps=steps,
            batch=self.batch if batch is None else batch,
            lr=self.lr if lr is None else lr,
            scale_lr=self.scale_lr and lr is None,
        )

    def fitted(self, images: int) -> "Schedule":
        """With a batch that is no larger than the training set."""
        return replace(self, batch=min(self.batch, images))

    @property
    def peak_lr(self) -> float:
        """The highest learning rate."""
        return self.lr * self.batch / 256 if self.scale_lr else self.lr

    def rate(self, epoch: int) -> float:
        """What the learning rate is multiplied by in an epoch."""
        if self.cosine:
            return (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        return float(self.factor ** sum(epoch >= step for step in self.steps))

    def build_optimizer(self, groups: Iterable[Any]) -> torch.optim.Optimizer:
        """The optimizer of these parameters, or groups of them."""
        if self.optimizer == "lars":
            return LARS(groups, self.peak_lr, momentum=self.momentum, weight_decay=self.weight_decay)
        return torch.optim.SGD(
            groups, self.peak_lr, momentum=self.momentum, weight_decay=self.weight_decay, nesterov=self.nesterov
        )

    @property
    def words(self) -> str:
        steps = " and ".join(str(step) for step in self.steps)
        falls = " along a cosine" if self.cosine else f", ×{self.factor:g} at epochs {steps}" if steps else ""
        name = self.optimizer.upper() + (" with Nesterov momentum" if self.nesterov else "")
        return (
            f"{name} {self.momentum:g}, {self.epochs} epochs, batch {self.batch}, lr {self.peak_lr:g}{falls}, "
            f"wd {self.weight_decay:g}"
        )


class Task(NamedTuple):
    """Images of one class each: some to train on, some to be asked about."""

    train: Source
    labels: Tensor
    """[N] of the training images."""
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
    """Optimizer steps between two checkpoints; 0 is one per epoch."""
    keep: int = 2
    """Checkpoints that are kept."""
    tensorboard: bool = False
    """Write TensorBoard events."""
    wandb: str | None = None
    """Also log to this Weights & Biases project (needs the wandb package)."""

    def __post_init__(self) -> None:
        if min(self.log_every, self.keep) < 1 or self.checkpoint_every < 0:
            raise ValueError(f"log_every and keep must be at least 1, and checkpoint_every 0 or more, got {self}")


class Work(NamedTuple):
    """Where a classifier is trained: devices, folder, seed and time limit."""

    fabric: Fabric
    out: Path
    """The folder of the run, with its settings, metrics and checkpoints."""
    config: Mapping[str, Any] = MappingProxyType({})
    """What decides the outcome: a run that is resumed must have been started with the same."""
    seed: int = 0
    workers: int | None = None
    """Processes that read images, per training process; by default its share of the cores, less one."""
    accumulate: int = 1
    """Micro-batches per step and device."""
    logging: Logging = Logging()
    deadline: float | None = None
    """When to stop, by the monotonic clock."""
    resume: bool = False
    """Continue the run in the folder."""


class Stopped(RuntimeError):
    """A training that was stopped before its end, and can be resumed."""


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
"""Of the RGB values of ImageNet, one component a column (Krizhevsky et al., 2012)."""


@final
class Augmented(Dataset[tuple[Tensor, int]]):
    """One random crop, perhaps flipped, of each image, by (epoch, index).

    Args:
        reader: decoded images by index.
        size: of the crops in pixels.
        normalise: what the encoder was trained with.
        seed: of everything random.
        jitter: of the colors, if any.
        lighting: noise in the colors, if any; images of other than three channels have none.
    """

    def __init__(
        self,
        reader: Reader,
        size: int,
        normalise: Normalise,
        seed: int,
        jitter: Jitter | None = None,
        lighting: Lighting | None = None,
    ) -> None:
        self.reader = reader
        self.augmentation = Augmentation(
            crop=Crop(size), jitter=jitter, order=("jitter",) if jitter else (), normalise=normalise
        )
        self.lighting = lighting
        self.seed = seed

    def __len__(self) -> int:
        return len(self.reader)

    def __getitems__(self, keys: list[Key]) -> tuple[Tensor, Tensor]:
        """[B, C, S, S], and which images they are [B]."""
        views, which = [], []
        for epoch, index in keys:
            reading = self.reader[index]
            height, width = reading.pixels.shape[:2]
            generator = view_generator(self.seed, epoch, index)
            draw = self.augmentation.draw(height, width, generator)
            view = fused.apply(reading.pixels, self.augmentation, draw)
            if self.lighting is not None and len(view) == 3 and self.augmentation.normalise is not None:
                _, std = self.augmentation.normalise.values(3)
                view += (self.lighting.shift(generator) / torch.tensor(std)).view(3, 1, 1)
            views.append(view)
            which.append(reading.index)
        return torch.stack(views), torch.tensor(which)


@final
class Classifier(nn.Module):
    """Linear classifiers on stages of an encoder, a copy of which is frozen or trained with them.

    Args:
        encoder: whose copy it is.
        heads: the classifier of every stage: features [N, D] -> scores [N, classes].
        frozen: keep the encoder as it is, its batch norms' statistics included.
    """

    def __init__(self, encoder: nn.Module, heads: Mapping[Stage, nn.Module], *, frozen: bool) -> None:
        super().__init__()
        self.encoder = Staged(copy.deepcopy(encoder), tuple(heads)).requires_grad_(not frozen)
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
        """The part that is trained, and that a checkpoint holds."""
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
        factor = self.schedule.rate(self.step // self.batches.total)
        for group, peak in zip(self.optimizer.param_groups, self.peak_lr, strict=True):
            group["lr"] = peak * factor
        return self.peak_lr[0] * factor

    def split(self, batch: tuple[Tensor, Tensor]) -> list[tuple[tuple[Tensor, Tensor], float]]:
        # Processes count alike in the mean of gradients, though one may have an image more of the last batch.
        start = self.step % self.batches.total * self.batches.batch
        share = min(self.batches.batch, self.batches.count - start) / self.fabric.world_size
        parts = zip(*(each.chunk(self.accumulate) for each in batch), strict=True)
        return [(part, len(part[0]) / share) for part in parts]

    def losses(self, part: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        images, index = (each.to(self.fabric.device, non_blocking=True) for each in part)
        scores: dict[str, Tensor] = self.module(images)
        labels = self.labels[index]
        return {name: F.cross_entropy(each.float(), labels) for name, each in scores.items()}


def train_classifier(
    network: Classifier,
    subject: Subject,
    task: Task,
    schedule: Schedule,
    work: Work,
    *,
    head_rate: float = 1.0,
    jitter: Jitter | None = None,
    lighting: Lighting | None = None,
    drop_last: bool = False,
) -> dict[str, dict[str, float]]:
    """Train the classifiers of a network on random crops, in a run of its own, and evaluate them on center crops.

    Args:
        network: what is trained.
        subject: whose encoder it is: says how images are shown.
        task: images and labels.
        schedule: fitted to the number of images.
        work: where.
        head_rate: how many times as fast as the encoder the heads learn.
        jitter: of the colors, beside random crops and flips.
        lighting: noise in the colors.
        drop_last: leave out the short last batch of an epoch, for the sake of batch norms.

    Returns:
        {stage: {"top-1": accuracy, …}}, 0 to 1, the same on every process.
    """
    fabric, finished = work.fabric, work.out / "accuracy.json"
    fingerprint = f"{task.train.fingerprint()}; tested on {task.test.fingerprint()}"
    data = {"kind": task.train.kind, "count": len(task.train), "fingerprint": fingerprint}
    resume = (work.resume or is_restarted()) and is_run(work.out)
    notes = [f"There is nothing to resume in {work.out}: a new training begins."] if work.resume and not resume else []
    if resume and finished.is_file():
        RunFolder.open(work.out).check_resumable(dict(work.config), data, MAY_CHANGE)
        return read_json(finished, Accuracies)
    if not resume and process_rank() == 0 and finished.is_file():
        # The same command again replaces what it found before; without its checkpoints nothing would resume.
        shutil.rmtree(work.out / "checkpoints")
        shutil.rmtree(work.out)
    folder = start_or_resume(work.out, dict(work.config), data, resume=resume, may_change=MAY_CHANGE)
    with recorded(folder), losing_no_process():
        launch_once(fabric)
        fabric.barrier()  # the folder is there now
        # A frozen encoder's batch norms use their stored statistics: there is nothing to synchronize in them.
        notes += synchronize_batch_norm(network.trained, fabric.device)
        reset_grad_scaler(fabric)
        groups = [{"params": list(network.heads.parameters()), "lr": schedule.peak_lr * head_rate}]
        if not network.frozen:
            groups.insert(0, {"params": list(network.encoder.parameters()), "lr": schedule.peak_lr})
        module, optimizer = fabric.setup(network, schedule.build_optimizer(groups))
        reader = Reader(task.train, decoder_for(subject.channels))
        images = Augmented(reader, subject.size, subject.normalise, work.seed, jitter, lighting)
        batch = schedule.batch
        if batch == len(reader):  # all of them, or as many as the processes can share equally
            batch = max(1, batch // fabric.world_size) * fabric.world_size
        batches = Batches(len(reader), batch, work.seed, fabric.global_rank, fabric.world_size, drop_last=drop_last)
        engine = ClassifierEngine(
            fabric=fabric,
            module=module,
            network=network.trained,
            optimizer=optimizer,
            batches=batches,
            loader=image_loader(images, batches, processes_here(fabric), work.workers, fabric.device),
            steps=schedule.epochs * batches.total,
            seed=work.seed,
            accumulate=work.accumulate,
            schedule=schedule,
            labels=task.labels.to(fabric.device),
        )
        found = Checkpoints(work.out / "checkpoints").load_latest(fabric.device)
        agree_on_checkpoint(fabric, -1 if found is None else found[1], str(work.out))
        if found is not None:
            engine.load_state(found[0])
            notes.append(f"Resuming from step {engine.step} of {engine.steps}.")
        outcome: dict[str, dict[str, float]] = {}

        def evaluate() -> dict[str, float]:
            outcome.update(evaluate_classifier(network, subject, task, fabric, work.workers))
            return {f"{stage} {name}": value for stage, each in outcome.items() for name, value in each.items()}

        metrics = run_supervised(
            engine,
            folder,
            work.logging,
            out=work.out,
            seconds=None if work.deadline is None else work.deadline - time.monotonic(),
            notes=notes,
            evaluate=evaluate,
        )
        if metrics is not None and folder is not None:
            with folder.explained("write what was found into"):
                write_json(finished, outcome)
            folder.set_status("finished", engine.step, engine.epoch)
    if metrics is None:
        raise Stopped(
            f"the training in {work.out} was stopped at step {engine.step} of {engine.steps}: the same command with "
            "--resume continues it"
        )
    return outcome


MAY_CHANGE = frozenset(
    {"data", "device", "devices", "encoder", "logging", "max_time", "nodes", "out", "test_data", "trust", "workers"}
)
"""Settings that a resumed training may change: they say where, how long and how closely it is logged. That encoder and
images are the same is told by their content."""


def image_loader(
    images: Augmented, batches: Batches, processes: int, workers: int | None, device: torch.device
) -> Loader:
    """The batches of augmented images."""
    workers = default_workers(processes) if workers is None else workers
    fused.prepare()
    return Loader(
        images,
        workers=workers,
        batch_sampler=batches,
        pin_memory=device.type == "cuda",
        persistent_workers=workers > 0,
    )


@torch.no_grad()
def evaluate_classifier(
    network: Classifier, subject: Subject, task: Task, fabric: Fabric, workers: int | None
) -> dict[str, dict[str, float]]:
    """The accuracies, 0 to 1, on the center crops of the test images, every process asking about its part of them."""
    tops = {"top-1": 1} | ({"top-5": 5} if task.classes > 5 else {})
    network.eval()
    labels = task.test_labels.to(fabric.device)
    correct = torch.zeros(len(network.heads), len(tops), dtype=torch.long, device=fabric.device)
    count = torch.zeros((), dtype=torch.long, device=fabric.device)
    blocks = range(fabric.global_rank, -(-len(task.test) // BLOCK), fabric.world_size)
    workers = default_workers(processes_here(fabric)) if workers is None else workers
    transform = CentreCrop(subject.size, subject.normalise)
    with bar("evaluating", len(blocks)) as advance:
        for block, (images, index) in zip(blocks, shown(subject, task.test, transform, blocks, workers), strict=True):
            own = index == torch.arange(len(index)) + block * BLOCK  # not another image that stands in for a bad one
            with fabric.autocast():
                scores = torch.stack(list(network(images[own].to(fabric.device)).values()))  # [heads, N, classes]
            ranked = scores.topk(max(tops.values()), dim=2).indices == labels[index[own].to(fabric.device)][:, None]
            correct += torch.stack([ranked[:, :, :top].any(2).sum(1) for top in tops.values()], dim=1)
            count += own.sum().to(fabric.device)
            advance(1)
    total: Any = fabric.all_reduce(torch.cat([correct.flatten(), count[None]]), reduce_op="sum")
    *hits, asked = total.tolist()
    shares = iter(each / asked for each in hits)
    return {stage: {name: next(shares) for name in tops} for stage in network.heads}


def processes_here(fabric: Fabric) -> int:
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
    """All epochs of a schedule on features [N, D] that are there already, on their device: seconds, and not a run."""
    batches = Batches(len(features), min(schedule.batch, len(features)), seed, drop_last=False)
    peak = [group["lr"] for group in optimizer.param_groups]
    with bar(what, schedule.epochs * batches.total) as advance:
        for epoch in range(schedule.epochs):
            batches.go_to(epoch)
            for group, lr in zip(optimizer.param_groups, peak, strict=True):
                group["lr"] = lr * schedule.rate(epoch)
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
    """A linear classifier as MoCo's begins: weights from N(0, 0.01²), no bias."""
    layer = nn.Linear(width, classes)
    generator = torch.Generator().manual_seed(seed)
    nn.init.normal_(layer.weight, std=0.01, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def accuracy(scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Top-1 and, of more than five classes, top-5 of scores [N, classes], each 0 to 1."""
    wanted = {"top-1": 1} | ({"top-5": 5} if scores.shape[1] > 5 else {})
    ranked = scores.topk(max(wanted.values()), dim=1).indices == labels.to(scores.device).unsqueeze(1)
    return {name: float(ranked[:, :top].any(1).cpu().double().mean()) for name, top in wanted.items()}


def as_tensor(labels: "np.ndarray[Any, np.dtype[np.int64]]") -> Tensor:
    """Labels as a tensor of their own."""
    return torch.from_numpy(np.array(labels))
