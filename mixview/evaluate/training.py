"""What the protocols that train share: SGD in steps as published, one augmented view an image, accuracy.

The order and the views are functions of (seed, epoch, index), as in pretraining: the same command gives the same
figure, whatever the number of workers.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from mixview.data import fused
from mixview.data.augmentation import Augmentation, Crop, Normalise, view_generator
from mixview.data.decoding import Decoder
from mixview.data.loading import Batches, Key, as_it_is, default_workers, leave_signals_to_the_main_process
from mixview.data.reading import MODES, Reader
from mixview.data.source import Source
from mixview.evaluate.encoders import Subject
from mixview.evaluate.features import BLOCK, shown
from mixview.evaluate.progress import bar
from mixview.evaluate.transforms import CentreCrop


@final
@dataclass(frozen=True)
class Schedule:
    """SGD whose learning rate falls in steps."""

    epochs: int
    lr: float
    weight_decay: float
    steps: tuple[int, ...]
    """Epochs after which the rate falls."""
    factor: float = 0.1
    """What it is multiplied by there."""
    batch: int = 256
    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1:
            raise ValueError(f"epochs and batch must be at least 1, got {self.epochs} and {self.batch}")

    def changed(self, epochs: int | None, batch: int | None, lr: float | None) -> "Schedule":
        """With another number of epochs, in which the steps keep their place, another batch or another rate."""
        length = self.epochs if epochs is None else epochs
        steps = tuple(round(step * length / self.epochs) for step in self.steps)
        return replace(
            self,
            epochs=length,
            steps=steps,
            batch=self.batch if batch is None else batch,
            lr=self.lr if lr is None else lr,
        )

    def rate(self, epoch: int) -> float:
        """What the learning rate is multiplied by in an epoch."""
        return float(self.factor ** sum(epoch >= step for step in self.steps))

    def optimizer(self, groups: Iterable[Any]) -> torch.optim.SGD:
        """SGD for these parameters, or groups of them."""
        return torch.optim.SGD(
            groups, self.lr, momentum=self.momentum, weight_decay=self.weight_decay, nesterov=self.nesterov
        )

    @property
    def words(self) -> str:
        steps = " and ".join(str(step) for step in self.steps)
        falls = f", ×{self.factor:g} at epochs {steps}" if steps else ""
        name = "SGD with Nesterov momentum" if self.nesterov else "SGD"
        return (
            f"{name} {self.momentum:g}, {self.epochs} epochs, batch {self.batch}, lr {self.lr:g}{falls}, "
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


class Work(NamedTuple):
    """Where the work is done, and by which seed."""

    device: torch.device
    seed: int = 0
    workers: int | None = None
    """Processes that read images; by default the cores, less one."""


@final
class Augmented(Dataset[tuple[Tensor, int]]):
    """One random crop, perhaps flipped, of each image, by (epoch, index)."""

    def __init__(self, reader: Reader, size: int, normalise: Normalise, seed: int) -> None:
        self.reader = reader
        self.augmentation = Augmentation(crop=Crop(size), order=(), normalise=normalise)
        self.seed = seed

    def __len__(self) -> int:
        return len(self.reader)

    def __getitems__(self, keys: list[Key]) -> tuple[Tensor, Tensor]:
        """[B, C, S, S], and which images they are [B]."""
        views, which = [], []
        for epoch, index in keys:
            reading = self.reader[index]
            height, width = reading.pixels.shape[:2]
            draw = self.augmentation.draw(height, width, view_generator(self.seed, epoch, index))
            views.append(fused.apply(reading.pixels, self.augmentation, draw))
            which.append(reading.index)
        return torch.stack(views), torch.tensor(which)


def train(
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    subject: Subject,
    task: Task,
    schedule: Schedule,
    work: Work,
    *,
    drop_last: bool = False,
    what: str = "training",
) -> None:
    """Minimise a loss of (images [B, C, S, S], labels [B]) over random crops of the training images."""
    device, seed = work.device, work.seed
    reader = Reader(task.train, Decoder(MODES.get(subject.channels, "stored")))
    batches = Batches(len(reader), min(schedule.batch, len(reader)), seed, drop_last=drop_last)
    workers = default_workers(1) if work.workers is None else work.workers
    fused.prepare()
    loader = DataLoader(
        Augmented(reader, subject.size, subject.normalise, seed),
        batch_sampler=batches,
        collate_fn=as_it_is,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        persistent_workers=workers > 0,
        worker_init_fn=leave_signals_to_the_main_process if workers else None,
    )
    labels = task.labels.to(device)

    def images_and_labels() -> Iterator[tuple[Tensor, Tensor]]:
        for images, index in loader:
            yield images.to(device, non_blocking=True), labels[index.to(device, non_blocking=True)]

    descend(loss, optimizer, schedule, batches, images_and_labels, what)


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
    """The same on features [N, D] that are there already, on their device."""
    batches = Batches(len(features), min(schedule.batch, len(features)), seed, drop_last=False)

    def rows() -> Iterator[tuple[Tensor, Tensor]]:
        for keys in batches:
            index = torch.tensor([number for _, number in keys], device=features.device)
            yield features[index], labels[index]

    descend(loss, optimizer, schedule, batches, rows, what)


def descend(
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    batches: Batches,
    examples: Callable[[], Iterator[tuple[Tensor, Tensor]]],
    what: str,
) -> None:
    """All epochs of a schedule."""
    initial = [group["lr"] for group in optimizer.param_groups]
    with bar(what, schedule.epochs * batches.total) as advance:
        for epoch in range(schedule.epochs):
            batches.go_to(epoch)
            for group, lr in zip(optimizer.param_groups, initial, strict=True):
                group["lr"] = lr * schedule.rate(epoch)
            for inputs, labels in examples():
                optimizer.zero_grad()
                value = loss(inputs, labels)
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


@torch.inference_mode()
def predict(
    classify: Callable[[Tensor], Tensor], subject: Subject, source: Source, work: Work
) -> tuple[Tensor, Tensor]:
    """What a classifier says of the centre crops of a source's images: scores [M, …], and of which images [M]."""
    blocks = range(-(-len(source) // BLOCK))
    workers = default_workers(1) if work.workers is None else work.workers
    scores, which = [], []
    with bar("asking", len(blocks)) as advance:
        for images, index in shown(subject, source, CentreCrop(subject.size, subject.normalise), blocks, workers):
            scores.append(classify(images.to(work.device)).float().cpu())
            which.append(index)
            advance(1)
    index = torch.cat(which)
    own = index == torch.arange(len(source))  # another image that stands in for a bad one is not asked about
    return torch.cat(scores)[own], index[own]


def accuracy(scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Top-1 and, of more than five classes, top-5 of scores [N, classes], each 0 to 1."""
    wanted = {"top-1": 1} | ({"top-5": 5} if scores.shape[1] > 5 else {})
    ranked = scores.topk(max(wanted.values()), dim=1).indices == labels.to(scores.device).unsqueeze(1)
    return {name: float(ranked[:, :top].any(1).cpu().double().mean()) for name, top in wanted.items()}


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores, labels)


def as_tensor(labels: "np.ndarray[Any, np.dtype[np.int64]]") -> Tensor:
    """Labels as a tensor of their own."""
    return torch.from_numpy(np.array(labels))
