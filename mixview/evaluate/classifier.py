"""Linear classifiers on an encoder, which is frozen or trained with them: on images, or on precomputed features."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from mixview.data.augment import numba_backend
from mixview.data.augment.params import sample_params, view_generator
from mixview.data.augment.policies import Augmentation, Crop, Jitter, Normalize
from mixview.data.dataset import ImageDataset
from mixview.data.loader import EpochSampler, Key
from mixview.data.sources.base import Source
from mixview.encoders.features import BLOCK, Stage, StageFeatures, load_blocks
from mixview.encoders.loading import LoadedEncoder
from mixview.encoders.transforms import CenterCrop
from mixview.evaluate.base import EvalContext
from mixview.evaluate.labeled import as_tensor
from mixview.evaluate.schedule import Schedule
from mixview.evaluate.training import TrainingRun, epoch_batches, image_loader, train_in_folder, workers_of
from mixview.evaluate.training_loop import SupervisedEngine
from mixview.runs.progress_bar import bar

if TYPE_CHECKING:
    from mixview.runs.fabric import Fabric


class LabeledImages(NamedTuple):
    """Images of one class each, to train and to test on."""

    train: Source
    labels: Tensor
    """[N]"""
    test: Source
    test_labels: Tensor
    """[M]"""
    classes: int


def labeled_images(context: EvalContext) -> LabeledImages:
    """The images and labels of both splits."""
    splits = context.splits
    train_labels, test_labels = (as_tensor(labels) for labels in splits.single_labels(context.protocol.name))
    return LabeledImages(splits.train, train_labels, splits.test, test_labels, len(splits.classes))


@dataclass(frozen=True)
class Lighting:
    """AlexNet's noise along the principal components of ImageNet's colors, as OpenSelfSup has it."""

    std: float = 0.1
    """Standard deviation of the noise along each component, in units of its eigenvalue."""

    def shift(self, generator: torch.Generator) -> Tensor:
        """[3] the shift of red, green and blue in [0, 1]; draws three numbers from the generator."""
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
        """Views [B, C, S, S] and the indices [B] of their images."""
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
    """[N] the labels of all training images, on the device."""

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
        run: devices, folder, seed and time limit.
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
            loader=image_loader(images, batches, run),
            steps=schedule.epochs * batches.batches_per_epoch,
            seed=run.seed,
            accumulate_grad_batches=run.accumulate_grad_batches,
            schedule=schedule,
            labels=labeled.labels.to(fabric.device),
        )

    def evaluate() -> dict[str, dict[str, float]]:
        return evaluate_classifier(network, loaded, labeled, fabric, run.workers)

    return train_in_folder(run, network, network.trained, schedule, groups, data, make_engine, evaluate)


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
    workers = workers_of(fabric, workers)
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
