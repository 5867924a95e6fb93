"""Annotated images for a detector: training images cleaned, test images as annotated.

In training, crowds are left out, boxes are clipped to their image, and what has no area left, as box or as mask, is
left out too; an image may end up with no object. The ground truth is never touched: crowds and difficult
objects are there to be ignored, as the metrics say.
"""

from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from mixview.data.augment.params import view_generator
from mixview.data.dataset import ImageDataset, decoder_for, find_range
from mixview.data.loader import EpochSampler, Key, Loader, to_tensor
from mixview.data.sources.base import Objects, Source, SourceError
from mixview.data.sources.splits import Subset
from mixview.evaluate.detection.components import Target

SMALLEST = 1e-3
"""Pixels; narrower boxes are left out."""


class Sample(NamedTuple):
    """An image to train on."""

    image: Tensor
    """[C, H, W] uint8"""
    target: Target


def clean(objects: Objects, height: int, width: int, *, masks: bool, name: str = "an image") -> Target:
    """The objects of an image that a detector can learn from.

    Args:
        objects: the annotated objects.
        height: height of the image in pixels.
        width: width of the image in pixels.
        masks: also learn masks.
        name: name of the image, for errors.
    """
    boxes = objects.boxes.astype(np.float32).copy()
    boxes[:, 0::2] = boxes[:, 0::2].clip(0, width)
    boxes[:, 1::2] = boxes[:, 1::2].clip(0, height)
    usable = ~objects.crowd & (boxes[:, 2:] - boxes[:, :2] > SMALLEST).all(axis=1) & np.isfinite(boxes).all(axis=1)
    target: Target = {}
    if masks:
        drawn = masks_of(objects, height, width, name)
        usable &= drawn.any(axis=(1, 2))
        target["masks"] = torch.from_numpy(drawn[usable].astype(np.uint8))
    target["boxes"] = torch.from_numpy(boxes[usable])
    target["labels"] = torch.from_numpy(objects.classes[usable] + 1)
    return target


def masks_of(objects: Objects, height: int, width: int, name: str) -> npt.NDArray[np.bool_]:
    """[K, H, W] the masks of an image that must have them."""
    if objects.masks is None and len(objects.boxes):
        raise SourceError(
            f"{name} has boxes and no masks: train without masks (--model.masks false), or annotate all with masks"
        )
    drawn = np.zeros((0, height, width), np.bool_) if objects.masks is None else objects.masks
    if drawn.shape[1:] != (height, width):
        raise SourceError(
            f"{name} is {width}×{height} pixels and its masks are {drawn.shape[2]}×{drawn.shape[1]}: fix one of them"
        )
    return drawn


def flip(sample: Sample) -> Sample:
    """The image and its objects, left and right swapped."""
    width = sample.image.shape[-1]
    left, top, right, bottom = sample.target["boxes"].unbind(1)
    target = sample.target | {"boxes": torch.stack([width - right, top, width - left, bottom], 1)}
    if "masks" in target:
        target["masks"] = target["masks"].flip(-1)
    return Sample(sample.image.flip(-1), target)


@final
class Annotated(Dataset[Sample]):
    """Images and their objects, by (epoch, index); half of them flipped.

    Args:
        images: the images; one that cannot be read is replaced by the next, with its own objects.
        masks: also learn masks.
        seed: random seed of the flips.
    """

    def __init__(self, images: ImageDataset, *, masks: bool, seed: int) -> None:
        self.images = images
        self.masks = masks
        self.seed = seed

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, keys: list[Key]) -> list[Sample]:
        """The samples of these keys, in their order."""
        return [self.sample(epoch, index) for epoch, index in keys]

    def sample(self, epoch: int, index: int) -> Sample:
        decoded = self.images[index]
        height, width = decoded.pixels.shape[:2]
        name = self.images.source.name(decoded.index)
        target = clean(objects_of(self.images.source, decoded.index), height, width, masks=self.masks, name=name)
        sample = Sample(to_tensor(decoded.pixels), target)
        flipped = bool(torch.rand((), generator=view_generator(self.seed, epoch, index)) < 0.5)
        return flip(sample) if flipped else sample


def training_loader(
    source: Source, batches: EpochSampler, *, channels: int, masks: bool, seed: int, workers: int, pin_memory: bool
) -> Loader:
    """A loader of lists of samples, the same with any number of workers."""
    images = ImageDataset(source, decoder_for(channels, find_range(source), eight_bits=True))
    return Loader(
        Annotated(images, masks=masks, seed=seed),
        workers=workers,
        batch_sampler=batches,
        pin_memory=pin_memory,
        persistent_workers=workers > 0,
    )


def objects_of(source: Source, index: int) -> Objects:
    """The objects in an image of a source that must have them."""
    objects = source.objects(index)
    if objects is None:
        raise SourceError(f"{source.name(index)} has no boxes to learn from: pass data in VOC's or COCO's layout")
    return objects


def with_objects(source: Source) -> tuple[Source, int]:
    """The images that show any class, and the number of others, from which the published protocols learn nothing."""
    sets = source.label_sets()
    annotated = np.ones(len(source), np.bool_) if sets is None else (sets != 0).any(axis=1)
    if annotated.all():
        return source, 0
    return Subset(source, np.flatnonzero(annotated)), int((~annotated).sum())


def align_classes(source: Source, classes: tuple[str, ...]) -> npt.NDArray[np.int64]:
    """[own classes] the index of each class of a source among `classes`."""
    own = source.classes or classes
    unknown = sorted(set(own) - set(classes))
    if unknown:
        raise SourceError(
            f"the test split has the class {unknown[0]!r}, which the training split lacks: pass two splits of one "
            "dataset"
        )
    return np.array([classes.index(name) for name in own], dtype=np.int64)
