"""Detections in test images, with their annotations; and batch norm statistics for testing."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN

from mixview.data.dataset import ImageDataset, decoder_for, find_range
from mixview.data.loader import Loader, to_tensor
from mixview.data.sources.base import Objects, Source
from mixview.evaluate.detection.metrics import Detections, Truth, encode_masks
from mixview.evaluate.detection.targets import Sample, masks_of, objects_of
from mixview.evaluate.detection.training import to_device
from mixview.runs.fabric import Fabric
from mixview.runs.progress_bar import bar


class Predictions(NamedTuple):
    """Test images with their annotations and detections."""

    indices: list[int]
    """Indices of the images."""
    truth: list[Truth]
    detections: list[Detections]


def truth_of(
    objects: Objects, height: int, width: int, classes: npt.NDArray[np.int64], *, masks: bool, name: str = "an image"
) -> Truth:
    """The ground truth of an image: all of its objects as annotated.

    Args:
        classes: [own classes] the index of each class of its source among those of the detector.
        masks: also encode masks, which are evaluated too.
        name: name of the image, for errors.
    """
    boxes = objects.boxes.astype(np.float64)
    codes = None
    areas = objects.areas
    if masks:
        drawn = masks_of(objects, height, width, name)
        codes = encode_masks(drawn)
        areas = drawn.sum(axis=(1, 2)).astype(np.float64) if areas is None else areas
    if areas is None:
        areas = (boxes[:, 2:] - boxes[:, :2]).clip(0).prod(axis=1)
    ignored = objects.crowd | objects.difficult
    return Truth(height, width, boxes, classes[objects.classes], ignored, areas.astype(np.float64), codes)


@final
class TestImages(Dataset[Any]):
    """Test images with their ground truth; None for one that cannot be read."""

    def __init__(self, source: Source, indices: list[int], classes: Any, *, channels: int, masks: bool) -> None:
        self.images = ImageDataset(source, decoder_for(channels, find_range(source), eight_bits=True))
        self.indices = indices
        self.classes = classes
        self.masks = masks

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, place: int) -> tuple[Tensor, Truth] | None:
        index = self.indices[place]
        sample = self.images[index]
        if sample.index != index:
            return None
        height, width = sample.pixels.shape[:2]
        source = self.images.source
        objects = objects_of(source, index)
        truth = truth_of(objects, height, width, self.classes, masks=self.masks, name=source.name(index))
        return to_tensor(sample.pixels), truth


@torch.no_grad()
def predict(
    detector: GeneralizedRCNN,
    fabric: Fabric,
    source: Source,
    classes: npt.NDArray[np.int64],
    *,
    channels: int,
    masks: bool,
    workers: int,
) -> Predictions:
    """The detections in all images of a source, each process evaluating its share.

    Args:
        classes: [own classes] the index of each class of the source among those of the detector.
    """
    own = list(range(fabric.global_rank, len(source), fabric.world_size))
    loader = Loader(TestImages(source, own, classes, channels=channels, masks=masks), workers=workers, batch_size=None)
    predictions = Predictions([], [], [])
    detector.eval()
    with bar("detecting", len(own)) as advance, fabric.autocast():
        for index, example in zip(own, loader, strict=True):
            advance(1)
            if example is None:
                continue
            image, truth = example
            (output,) = detector([image.to(fabric.device).float() / 255])
            predictions.indices.append(index)
            predictions.truth.append(truth)
            predictions.detections.append(detections_of(output))
    return gather(predictions, fabric)


def detections_of(output: dict[str, Tensor]) -> Detections:
    """The output of torchvision's detectors for an image, as arrays; masks are thresholded at 0.5."""
    masks = output.get("masks")
    return Detections(
        output["boxes"].cpu().double().numpy(),
        output["labels"].cpu().numpy() - 1,
        output["scores"].cpu().double().numpy(),
        None if masks is None else encode_masks((masks[:, 0] > 0.5).cpu().numpy()),
    )


def gather(predictions: Predictions, fabric: Fabric) -> Predictions:
    """The predictions of all processes, in the order of the images."""
    if fabric.world_size == 1:
        return predictions
    parts: list[Any] = [None] * fabric.world_size
    dist.all_gather_object(parts, predictions)
    rows = sorted((row for part in parts for row in zip(*part, strict=True)), key=lambda row: row[0])
    indices, truth, detections = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    return Predictions(indices, truth, detections)


@torch.no_grad()
def recount_statistics(detector: nn.Module, batches: Iterator[list[Sample]], count: int, fabric: Fabric) -> None:
    """Batch norms' means and variances as averages over `count` training batches of the detector as it is now.

    The protocol tests with these ("precise BN"): running averages lag behind weights that still move. 0 keeps the
    running ones. With several processes all get the mean of what each has.
    """
    norms = [module for module in detector.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    before = [module.momentum for module in norms]
    if count:
        for module in norms:
            module.reset_running_stats()
            module.momentum = None  # a plain average
        detector.train()
        with fabric.autocast():
            for samples in islice(batches, count):
                detector(*to_device(samples, fabric.device))
        for module, momentum in zip(norms, before, strict=True):
            module.momentum = momentum
    if fabric.world_size > 1:
        for module in norms:
            for buffer in (module.running_mean, module.running_var):
                if buffer is not None:
                    mean: Any = fabric.all_reduce(buffer, reduce_op="mean")
                    buffer.copy_(mean)
