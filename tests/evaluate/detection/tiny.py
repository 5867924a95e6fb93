"""Tiny detectors and images that the tests of detection share."""

from typing import Any

import numpy as np
import torch
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN

from mixview.data.augment.policies import Normalize
from mixview.data.sources.base import Objects
from mixview.encoders import backbones
from mixview.evaluate.detection.components import Target
from mixview.evaluate.detection.models import Model, Scales, build_detector

SCENES = {"count": 12, "size": 32, "objects": "multiple", "classes": 3}
C4: dict[str, Any] = {"masks": True, "anchors": (8, 16), "sampled": 32, "regions": 8, "pooled": 4, "channels": 8}
FPN: dict[str, Any] = C4 | {"architecture": "fpn", "anchors": (4, 8, 16, 32, 64), "pooled": 3, "hidden": 16}
SCALES = {"train": (32, 40), "test": 40, "longest": 64}


def encoder(name: str = "small", size: int = 32) -> torch.nn.Module:
    torch.manual_seed(0)
    return backbones.build(name, size=size).encoder


def detector(classes: int = 3, name: str = "small", **changes: Any) -> GeneralizedRCNN:
    """A detector around a random encoder."""
    options = (FPN if changes.get("architecture") == "fpn" else C4) | {"proposals": 20} | changes
    built = encoder(name)
    torch.manual_seed(1)
    return build_detector(
        built, classes=classes, model=Model(**options), scales=Scales(**SCALES), normalize=Normalize()
    )


def images(count: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.rand(3, 32, 36 + 4 * number, generator=generator) for number in range(count)]


def targets(count: int = 2) -> list[Target]:
    """One object in each image, none in the last of several."""
    found = []
    for number in range(count):
        objects = 1 if number == 0 or number + 1 < count else 0
        masks = torch.zeros(objects, 32, 36 + 4 * number, dtype=torch.uint8)
        masks[:, 6:20, 4:18] = 1
        boxes = torch.tensor([[4.0, 6.0, 18.0, 20.0]])[:objects]
        found.append({"boxes": boxes, "labels": torch.tensor([2])[:objects], "masks": masks})
    return found


def objects(
    boxes: list[list[float]], crowd: list[bool] | None = None, masks: Any = None, classes: list[int] | None = None
) -> Objects:
    """Annotations as a source gives them."""
    count = len(boxes)
    return Objects(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(classes or [0] * count, np.int64),
        np.zeros(count, np.bool_),
        np.array(crowd or [False] * count, np.bool_),
        masks,
    )
