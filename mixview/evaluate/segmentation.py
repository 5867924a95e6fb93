"""Semantic segmentation by a linear layer on frozen patch features, as DINOv2 was evaluated (Oquab et al., 2023).

A batch norm and a 1×1 convolution classify every patch; the scores are upsampled to the resolution of the labels. The
settings are those of DINOv2's linear evaluation on VOC2012: AdamW, 60 epochs (40,000 iterations on the 10,582 augmented
images), batch 16, lr 0.001 falling linearly after a warm-up, weight decay 1e-4; square crops of a third of the shorter
side to all of it, no class on more than 75 % of a crop where possible, flips and photometric distortion. At
test, windows of the encoder's input size slide over the image, whose shorter side has that size, by half their side.
DINOv2's crops are of 640 pixels: `--size 640` has them too.

- VOC has a palette image per image in `SegmentationClass`; 255, the outlines, does not count.
- COCO's polygons and run lengths are painted; where objects of different classes overlap, nothing counts.
- The background is a class, as in VOC's own evaluation. mIoU is the mean over the classes that occur or are predicted.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from mixview.data.augment.params import view_generator
from mixview.data.augment.policies import Normalize
from mixview.data.dataset import ImageDataset
from mixview.data.loader import Key, Loader, to_tensor
from mixview.data.sources.base import IGNORED, ClassMap, Source, SourceError
from mixview.encoders.features import PATCHES, PatchMaps, Stage, extract_for, measure_patches, pick_device
from mixview.encoders.loading import LoadedEncoder
from mixview.encoders.transforms import ResizeToSquare, normalized
from mixview.evaluate.base import EvalContext, Protocol
from mixview.evaluate.classifier import train_on_features
from mixview.evaluate.labeled import class_index, class_names
from mixview.evaluate.schedule import Schedule
from mixview.evaluate.training import (
    ClassifierConfig,
    TrainingRun,
    epoch_batches,
    image_loader,
    train_in_folder,
    workers_of,
)
from mixview.evaluate.training_loop import SupervisedEngine
from mixview.lazy import Module
from mixview.runs.progress_bar import bar

if TYPE_CHECKING:
    from mixview.encoders.features import PatchStage
    from mixview.runs.fabric import Fabric

images_of = Module("torchvision.transforms.v2.functional")

SCHEDULE = Schedule(
    epochs=60, lr=1e-3, weight_decay=1e-4, batch_size=16, optimizer="adamw", linear=True, warmup=1500 / 40000
)
MAX_SCALE = 3.0
"""The shorter side of a training image is one to this many times the side of a crop."""
MAX_CLASS_SHARE = 0.75
CROP_ATTEMPTS = 10
LABELS_PER_PATCH = 4
"""In fast mode: labels along the side of a patch."""


@dataclass(frozen=True, kw_only=True)
class Segmentation(ClassifierConfig, Protocol):
    """Evaluate by a linear layer on frozen patch features, upsampled to the labels: mIoU; --fast on stored features."""

    stage: Stage = "avgpool"
    """Stage that the patch features come from: stem, res2 … res5 of a ResNet; avgpool is the last maps, or a ViT's
    tokens."""
    fast: bool = False
    """Train on features of whole images, squashed into a square, without augmentation: a few minutes instead of hours.
    """

    name: ClassVar[str] = "segmentation"
    examples: ClassVar[tuple[str, ...]] = (
        "runs/first --data VOCdevkit/VOC2012 --test val",
        "runs/first --data coco --fast",
    )
    first_options: ClassVar[str] = "data fast epochs size devices out"
    run_order: ClassVar[float] = 4.5
    multi_label: ClassVar[bool] = True

    @property
    def trains_on_images(self) -> bool:
        return not self.fast

    def unsupported_reason(self, context: EvalContext) -> str | None:
        """The reason why this protocol cannot evaluate this encoder on these images; None if it can."""
        try:
            for split, part in (("training", context.splits.train), ("test", context.splits.test)):
                segmented = part.segmentation()
                if segmented is None:
                    return f"it needs a class for every pixel, and the {split} images of {self.data} have no masks"
                segmented.class_map(0)
            measure_patches(context.encoder, self.stage)
        except (SourceError, ValueError) as error:
            return str(error)
        return None

    def evaluate(self, context: EvalContext) -> Iterable[tuple[str, float]]:
        segmented = segmented_images(context)
        schedule = self.adapt(SCHEDULE, len(segmented.train.source))
        of_stage = "patch features" if self.stage == "avgpool" else f"maps of {self.stage}"
        counts = f"{len(segmented.train.source)} training and {len(segmented.test.source)} test images with masks"
        linear = f"a batch norm and a 1×1 convolution on the frozen encoder's {of_stage}"
        if self.fast:
            confusion = segment_features(context, segmented, schedule, self.stage)
            context.description = (
                f"fast mode: {linear} of whole images squashed to {context.encoder.size}×{context.encoder.size} "
                f"pixels, without augmentation ({schedule.description}); last epoch, {counts}, scores upsampled to the "
                "labels."
            )
            metrics, per_class = score(confusion, segmented.classes)
        else:
            with self.training(context) as run:
                measured = segment_images(context.encoder, segmented, schedule, run, self.stage)
            metrics, per_class = measured["metrics"], measured["IoU"]
            context.description = (
                f"{linear}, trained on random square crops, flips and photometric distortion ({schedule.description}); "
                f"last epoch, {counts}, sliding windows of {context.encoder.size} pixels by half their side, scores "
                "upsampled to the labels."
            )
        absent = [name for name in segmented.classes if name not in per_class]
        if absent:
            some = ", ".join(absent[:5]) + (" …" if len(absent) > 5 else "")
            context.notes.append(
                f"{some}: {len(absent)} of {len(segmented.classes)} classes are in no test image with masks and were "
                "not predicted; they do not count in the mIoU."
            )
        context.details["IoU"] = {name: 100 * value for name, value in per_class.items()}
        return [(name, 100 * value) for name, value in metrics.items()]


class SegmentedImages(NamedTuple):
    """Images with a class for every pixel."""

    source: Source
    numbers: npt.NDArray[np.int16]
    """The class of each number in the source's class maps: 0 is the background; the last one, at -1, is `IGNORED`."""

    def class_map(self, index: int, height: int, width: int) -> ClassMap:
        """The class map of an image of this size."""
        values = self.source.class_map(index)
        if values.shape != (height, width):
            raise SourceError(
                f"the mask of {self.source.name(index)} is of {values.shape[1]}×{values.shape[0]} pixels, and the "
                f"image of {width}×{height}: make them the same size"
            )
        return np.asarray(self.numbers[values])


class SegmentedSplits(NamedTuple):
    """Training and test images with the same classes, the background first."""

    train: SegmentedImages
    test: SegmentedImages
    classes: tuple[str, ...]


def segmented_images(context: EvalContext) -> SegmentedSplits:
    """The images of both splits that have a class for every pixel, their classes numbered as in the training split."""
    train, test = context.splits.train.segmentation(), context.splits.test.segmentation()
    assert train is not None
    assert test is not None
    classes = class_names(train, len(train.classes or ()))
    names = class_names(test, len(test.classes or ()))
    own = np.arange(len(classes))
    others = own if names == classes else class_index(names, classes, range(len(names)), context.splits.description)
    parts = [
        SegmentedImages(source, np.array([0, *(numbers + 1), IGNORED], dtype=np.int16))
        for source, numbers in ((train, own), (test, others))
    ]
    return SegmentedSplits(parts[0], parts[1], ("background", *classes))


@final
class Segmenter(nn.Module):
    """A linear layer on the patch features of a copy of an encoder, which is frozen: scores [N, classes, h, w]."""

    def __init__(self, loaded: LoadedEncoder, stage: Stage, classes: int, seed: int) -> None:
        super().__init__()
        self.patches = PatchMaps(copy.deepcopy(loaded.encoder), stage).requires_grad_(False)
        self.head = patch_head(measure_patches(loaded, stage)[2], classes, seed)

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            maps = self.patches(images)
        scores: Tensor = self.head(maps)
        return scores

    def train(self, mode: bool = True) -> "Segmenter":
        super().train(mode)
        self.patches.eval()
        return self


def patch_head(width: int, classes: int, seed: int) -> nn.Sequential:
    """Batch norm and a 1×1 convolution with weights from N(0, 0.01²)."""
    convolution = nn.Conv2d(width, classes, 1)
    nn.init.normal_(convolution.weight, std=0.01, generator=torch.Generator().manual_seed(seed))
    nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
    return nn.Sequential(nn.BatchNorm2d(width), convolution)


def upsample(scores: Tensor, height: int, width: int) -> Tensor:
    """Scores [N, K, h, w] at another resolution."""
    return F.interpolate(scores, size=(height, width), mode="bilinear", align_corners=False)


# On images


@final
class SegmentedViews(Dataset[tuple[Tensor, Tensor]]):
    """A random square crop of each image and of its class map, perhaps flipped, distorted in color, by (epoch, index).

    Args:
        images: decoded images by index.
        segmented: the same images' class maps.
        size: side of the views in pixels.
        normalize: the normalization the encoder was trained with.
        seed: random seed.
    """

    def __init__(
        self, images: ImageDataset, segmented: SegmentedImages, size: int, normalize: Normalize, seed: int
    ) -> None:
        self.images = images
        self.segmented = segmented
        self.size = size
        self.normalize = normalize
        self.seed = seed

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, keys: list[Key]) -> tuple[Tensor, Tensor]:
        """[B, C, S, S], and the class of each pixel [B, S, S]."""
        views, labels = zip(*(self.view(epoch, index) for epoch, index in keys), strict=True)
        return torch.stack(views), torch.stack(labels)

    def view(self, epoch: int, index: int) -> tuple[Tensor, Tensor]:
        """[C, S, S] and [S, S]"""
        sample = self.images[index]
        height, width = sample.pixels.shape[:2]
        classes = self.segmented.class_map(sample.index, height, width)
        generator = view_generator(self.seed, epoch, index)
        top, left, side = choose_crop(classes, generator)
        crop = to_tensor(np.ascontiguousarray(sample.pixels[top : top + side, left : left + side]))
        image = images_of.to_dtype(crop, torch.float32, scale=True)
        image = images_of.resize(image, [self.size, self.size]).clamp(0, 1)
        labels = torch.from_numpy(nearest(classes[top : top + side, left : left + side], self.size, self.size))
        if torch.rand((), generator=generator) < 0.5:
            image, labels = image.flip(-1), labels.flip(-1)
        if len(image) == 3:
            image = distort_colors(image, generator)
        return normalized(image, self.normalize), labels


def choose_crop(classes: ClassMap, generator: torch.Generator) -> tuple[int, int, int]:
    """Top, left and side of a random square, of several the first in which no class has more than its share."""
    height, width = classes.shape
    scale = 1 + (MAX_SCALE - 1) * float(torch.rand((), generator=generator, dtype=torch.float64))
    side = max(1, round(min(height, width) / scale))
    top = left = 0
    for x, y in torch.rand(CROP_ATTEMPTS, 2, generator=generator, dtype=torch.float64).tolist():
        top, left = int(y * (height - side + 1)), int(x * (width - side + 1))
        values = classes[top : top + side, left : left + side]
        counts = np.bincount(values[values != IGNORED])
        if np.count_nonzero(counts) > 1 and counts.max() < MAX_CLASS_SHARE * counts.sum():
            break
    return top, left, side


def distort_colors(image: Tensor, generator: torch.Generator) -> Tensor:
    """mmsegmentation's photometric distortion of an image in [0, 1]: each part of it with probability 1/2."""
    brightness, contrast, saturation, hue = torch.rand(4, generator=generator).tolist()
    use = (torch.rand(5, generator=generator) < 0.5).tolist()
    if use[0]:
        image = image + (2 * brightness - 1) * 32 / 255
    if use[1] and use[4]:
        image = image * (0.5 + contrast)
    image = image.clamp(0, 1)
    if use[2]:
        image = images_of.adjust_saturation(image, 0.5 + saturation)
    if use[3]:
        image = images_of.adjust_hue(image, 0.1 * (2 * hue - 1))
    if use[1] and not use[4]:
        image = (image * (0.5 + contrast)).clamp(0, 1)
    return image


def nearest(classes: ClassMap, height: int, width: int) -> npt.NDArray[np.int64]:
    """A class map at another resolution: each place has the class at its center."""
    rows = ((np.arange(height) + 0.5) * classes.shape[0] / height).astype(np.int64)
    columns = ((np.arange(width) + 0.5) * classes.shape[1] / width).astype(np.int64)
    return np.asarray(classes[rows[:, None], columns], dtype=np.int64)


@dataclass
class SegmentationEngine(SupervisedEngine):
    """The steps of a segmenter."""

    schedule: Schedule = field(kw_only=True)

    def set_learning_rate(self) -> float:
        rate = self.schedule.peak_lr * self.schedule.lr_factor(self.step / self.batches.batches_per_epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def split(self, batch: tuple[Tensor, Tensor]) -> list[tuple[tuple[Tensor, Tensor], float]]:
        parts = zip(*(each.chunk(self.accumulate_grad_batches) for each in batch), strict=True)
        return [(part, len(part[0]) / len(batch[0])) for part in parts]

    def losses(self, part: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        images, labels = (each.to(self.fabric.device, non_blocking=True) for each in part)
        return {"segmentation": segmentation_loss(self.module(images), labels)}


def segmentation_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of scores [N, K, h, w], upsampled to labels [N, H, W]; 0 where no pixel counts."""
    scores = upsample(scores.float(), *labels.shape[1:])
    total = F.cross_entropy(scores, labels, ignore_index=IGNORED, reduction="sum")
    return total / (labels != IGNORED).sum().clamp(min=1)


def segment_images(
    loaded: LoadedEncoder, segmented: SegmentedSplits, schedule: Schedule, run: TrainingRun, stage: Stage
) -> dict[str, dict[str, float]]:
    """`score` of a linear layer that is trained on random crops through the frozen encoder."""
    fabric, source = run.fabric, segmented.train.source
    network = Segmenter(loaded, stage, len(segmented.classes), run.seed)
    fingerprint = f"{source.fingerprint()}; tested on {segmented.test.source.fingerprint()}"

    def make_engine(module: Any, optimizer: torch.optim.Optimizer) -> SegmentationEngine:
        dataset = ImageDataset(source, loaded.decoder(source))
        views = SegmentedViews(dataset, segmented.train, loaded.size, loaded.normalize, run.seed)
        batches = epoch_batches(len(dataset), schedule.batch_size, run, drop_last=False)
        return SegmentationEngine(
            fabric=fabric,
            module=module,
            network=network.head,
            optimizer=optimizer,
            batches=batches,
            loader=image_loader(views, batches, run),
            steps=schedule.epochs * batches.batches_per_epoch,
            seed=run.seed,
            accumulate_grad_batches=run.accumulate_grad_batches,
            schedule=schedule,
        )

    def evaluate() -> dict[str, dict[str, float]]:
        confusion = confuse_windows(network, loaded, segmented, fabric, run.workers)
        metrics, per_class = score(confusion, segmented.classes)
        return {"metrics": metrics, "IoU": per_class}

    groups = [{"params": list(network.head.parameters()), "lr": schedule.peak_lr}]
    data = {"kind": source.kind, "count": len(source), "fingerprint": fingerprint}
    return train_in_folder(run, network, network.head, schedule, groups, data, make_engine, evaluate)


class Windows(NamedTuple):
    """An image cut into windows, and its class map."""

    images: Tensor
    """[n, C, S, S]"""
    corners: list[tuple[int, int]]
    """Top and left of each."""
    height: int
    """Height of the resized image."""
    width: int
    classes: Tensor
    """[H, W] at the resolution of the labels."""
    image: int
    """The index of the image: that of another in place of a bad one."""


@final
class WindowedImages(Dataset[Windows]):
    """Test images, the shorter side resized to `size`, in windows that overlap by half."""

    def __init__(self, images: ImageDataset, segmented: SegmentedImages, size: int, normalize: Normalize) -> None:
        self.images = images
        self.segmented = segmented
        self.size = size
        self.normalize = normalize

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: list[int]) -> Windows:
        """The windows of one image."""
        sample = self.images[indices[0]]
        height, width = sample.pixels.shape[:2]
        classes = self.segmented.class_map(sample.index, height, width)
        image = images_of.to_dtype(to_tensor(sample.pixels), torch.float32, scale=True)
        size, scale = self.size, self.size / min(height, width)
        image = images_of.resize(image, [max(size, round(height * scale)), max(size, round(width * scale))])
        image = normalized(image, self.normalize)
        corners = [(top, left) for top in starts(image.shape[1], size) for left in starts(image.shape[2], size)]
        windows = torch.stack([image[:, top : top + size, left : left + size] for top, left in corners])
        labels = torch.from_numpy(classes.astype(np.int64))
        return Windows(windows, corners, image.shape[1], image.shape[2], labels, sample.index)


def starts(length: int, size: int) -> list[int]:
    """The first pixels of the windows along a side: half a window apart, the last one at the end."""
    stride = max(1, size // 2)
    count = -(-(length - size) // stride) + 1
    return [min(number * stride, length - size) for number in range(count)]


@torch.no_grad()
def confuse_windows(
    network: Segmenter, loaded: LoadedEncoder, segmented: SegmentedSplits, fabric: "Fabric", workers: int | None
) -> Tensor:
    """[K, K] pixels of each class (rows) by the predicted class, over all test images and processes."""
    network.eval()
    test, count = segmented.test, len(segmented.classes)
    confusion = torch.zeros(count, count, dtype=torch.long, device=fabric.device)
    indices = range(fabric.global_rank, len(test.source), fabric.world_size)
    dataset = ImageDataset(test.source, loaded.decoder(test.source))
    loader = Loader(
        WindowedImages(dataset, test, loaded.size, loaded.normalize),
        workers=min(workers_of(fabric, workers), len(indices)),
        batch_sampler=[[index] for index in indices],
    )
    with bar("evaluating", len(indices)) as advance:
        for index, windows in zip(indices, loader, strict=True):
            if windows.image == index:
                with fabric.autocast():
                    scores = network(windows.images.to(fabric.device))
                merged = merge_windows(scores.float(), windows, loaded.size)
                confusion += confuse(merged, windows.classes.to(fabric.device))
            advance(1)
    total: Tensor = fabric.all_reduce(confusion, reduce_op="sum")  # type: ignore[assignment]
    return total.cpu()


def merge_windows(scores: Tensor, windows: Windows, size: int) -> Tensor:
    """[K, H, W] scores at the labels' resolution: the mean of those of all windows at a place."""
    scores = upsample(scores, size, size)
    canvas = scores.new_zeros(scores.shape[1], windows.height, windows.width)
    count = scores.new_zeros(windows.height, windows.width)
    for each, (top, left) in zip(scores, windows.corners, strict=True):
        canvas[:, top : top + size, left : left + size] += each
        count[top : top + size, left : left + size] += 1
    return upsample((canvas / count)[None], *windows.classes.shape)[0]


# On features


def segment_features(context: EvalContext, segmented: SegmentedSplits, schedule: Schedule, stage: Stage) -> Tensor:
    """[K, K] the confusion of a linear layer that is trained on features of whole images without augmentation."""
    loaded, protocol = context.encoder, context.protocol
    height, width, feature_dim = measure_patches(loaded, stage)
    device = pick_device(protocol.device)
    patches: PatchStage = f"{stage}{PATCHES}"  # type: ignore[assignment]
    transform = ResizeToSquare(loaded.size, loaded.normalize)
    train, test = (
        extract_for(protocol, loaded, part.source, transform, patches) for part in (segmented.train, segmented.test)
    )
    labels = torch.stack(
        [
            torch.from_numpy(nearest(classes, LABELS_PER_PATCH * height, LABELS_PER_PATCH * width)).to(torch.int16)
            for classes in (own_map(segmented.train, index) for index in train.indices.tolist())
        ]
    )
    head = patch_head(feature_dim, len(segmented.classes), protocol.seed).to(device)

    def scores_of(rows: Tensor) -> Tensor:
        maps = rows.to(device).view(-1, height, width, feature_dim).permute(0, 3, 1, 2)
        scores: Tensor = head(maps)
        return scores

    def loss(rows: Tensor, targets: Tensor) -> Tensor:
        return segmentation_loss(scores_of(rows), targets.to(device).long())

    optimizer = schedule.build_optimizer([{"params": list(head.parameters()), "lr": schedule.peak_lr}])
    train_on_features(loss, optimizer, train[patches], labels, schedule, seed=protocol.seed, what="segmentation")
    head.eval()
    confusion = torch.zeros(len(segmented.classes), len(segmented.classes), dtype=torch.long)
    with torch.no_grad(), bar("evaluating", len(test.indices)) as advance:
        for row, index in zip(test[patches], test.indices.tolist(), strict=True):
            classes = torch.from_numpy(own_map(segmented.test, index).astype(np.int64)).to(device)
            confusion += confuse(upsample(scores_of(row), *classes.shape)[0], classes).cpu()
            advance(1)
    return confusion


def own_map(segmented: SegmentedImages, index: int) -> ClassMap:
    """The class map of an image at its own size."""
    return np.asarray(segmented.numbers[segmented.source.class_map(index)])


# The metric


def confuse(scores: Tensor, classes: Tensor) -> Tensor:
    """[K, K] pixels of each class (rows) by the predicted class; scores [K, H, W], classes [H, W].

    Example:
        >>> scores = torch.tensor([[[0.9, 0.1, 0.2]], [[0.1, 0.9, 0.8]]])
        >>> confuse(scores, torch.tensor([[0, 0, IGNORED]])).tolist()
        [[1, 1], [0, 0]]
    """
    count, there = len(scores), classes != IGNORED
    pairs = classes[there] * count + scores.argmax(0)[there]
    return torch.bincount(pairs, minlength=count * count).view(count, count)


def score(confusion: Tensor, classes: tuple[str, ...]) -> tuple[dict[str, float], dict[str, float]]:
    """mIoU and pixel accuracy, 0 to 1, and the IoU of every class that occurs or is predicted.

    Example:
        >>> score(torch.tensor([[2, 1], [0, 1]]), ("background", "star"))
        ({'mIoU': 0.5833333333333334, 'pixel accuracy': 0.75}, {'background': 0.6666666666666666, 'star': 0.5})
    """
    hits = confusion.diag().double()
    union = confusion.sum(0) + confusion.sum(1) - confusion.diag()
    total = int(confusion.sum())
    if total == 0:
        raise ValueError("no pixel of the test images has a class: provide masks that are not 255 everywhere")
    per_class = {name: float(hits[number] / union[number]) for number, name in enumerate(classes) if int(union[number])}
    mean = sum(per_class.values()) / len(per_class)
    return {"mIoU": mean, "pixel accuracy": float(hits.sum() / total)}, per_class
