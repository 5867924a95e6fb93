"""Faster and Mask R-CNN around a pretrained ResNet: C4, as the paper's protocols have it, and FPN.

    detector = build_detector(encoder, classes=20, model=Model(), scales=Scales(), normalize=Normalize())
    losses = detector(images, targets)         # in training: a dictionary of scalars
    found = detector.eval()(images)            # boxes, labels, scores and masks of each image, in its own pixels

Built of torchvision's parts, with Detectron2's numbers; `docs/detection.md` says where the two differ.
"""

import copy
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.models.detection.backbone_utils import BackboneWithFPN, LastLevelMaxPool
from torchvision.models.detection.faster_rcnn import TwoMLPHead
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.ops import MultiScaleRoIAlign

from mixview.data.augment.policies import Normalize
from mixview.encoders.features import stages_of
from mixview.evaluate.detection.components import (
    Anchors,
    Floats,
    Pool,
    Predictor,
    Proposals,
    ProposalsHead,
    Res5Heads,
    ShortSide,
)

RATIOS = (0.5, 1.0, 2.0)
"""Height / width of the anchors."""


@dataclass(frozen=True)
class Model:
    """The detector around the encoder."""

    architecture: Literal["c4", "fpn"] = "c4"
    """c4: regions are cut out of res4 and go through res5, as in the paper; fpn: a pyramid of res2 to res5."""
    masks: bool = False
    """Mask R-CNN: a mask for every object as well."""
    extra_norm: bool = True
    """C4: a batch norm after res5, as in MoCo's protocol, which the paper follows."""
    anchors: tuple[int, ...] = (32, 64, 128, 256, 512)
    """Sides of the anchors in pixels, each in three shapes. An FPN has one per level, of five levels."""
    sampled: int = 256
    """Anchors per image that train the proposals, at most half of them on objects."""
    regions: int = 512
    """Training regions per image, at most a quarter of them on objects."""
    proposals: int = 1000
    """Regions per image in testing."""
    pooled: int | None = None
    """Side in pixels that a region is pooled to: 14 for C4, whose res5 halves them, and 7 for FPN."""
    channels: int = 256
    """Channels of the pyramid and of the mask head."""
    hidden: int = 1024
    """FPN: width of the two layers of the region head."""

    def __post_init__(self) -> None:
        if (
            not self.anchors
            or min(self.anchors) < 1
            or min(self.sampled, self.regions, self.proposals, self.channels, self.hidden) < 1
        ):
            raise ValueError(f"anchors, and all numbers of a model, must be at least 1, got {self}")
        if self.architecture == "fpn" and len(self.anchors) != 5:
            raise ValueError(f"an FPN has five levels and one anchor size for each, not {len(self.anchors)}: pass five")


@dataclass(frozen=True)
class Scales:
    """Image sizes in training and testing."""

    train: tuple[int, ...] = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)
    """Shorter sides in training: one is drawn per image."""
    test: int = 800
    """Shorter side in testing."""
    longest: int = 1333
    """Maximum longer side; elongated images are shrunk to fit."""

    def __post_init__(self) -> None:
        if not self.train or min(*self.train, self.test, self.longest) < 32:
            raise ValueError(f"images must be shown with at least 32 pixels per side, got {self}")


def build_detector(
    encoder: nn.Module, *, classes: int, model: Model, scales: Scales, normalize: Normalize, channels: int = 3
) -> GeneralizedRCNN:
    """A detector whose trunk, and with C4 whose region head, are copies of the encoder's stages, all of them trained.

    New weights are initialized from torch's global generator.

    Args:
        encoder: a ResNet of torchvision or timm, or mixview's small one.
        classes: number of classes; labels count from 1, and 0 is background.
        normalize: the colors that the encoder was trained with; images come in [0, 1].
        channels: image channels.
    """
    if "res5" not in stages_of(encoder):
        raise ValueError(
            f"a detector is built on the stages of a ResNet, which {type(encoder).__name__} has not: pretrain one, "
            "such as resnet50, resnet18 or small"
        )
    encoder = copy.deepcopy(encoder).requires_grad_(True)
    make = build_c4 if model.architecture == "c4" else build_fpn
    backbone, rpn, heads = make(encoder, classes + 1, model, channels)
    mean, std = normalize.values(channels)
    transform = ShortSide(list(scales.train), scales.test, scales.longest, list(mean), list(std))
    return GeneralizedRCNN(backbone, rpn, heads, transform)


def build_c4(encoder: nn.Module, outputs: int, model: Model, channels: int) -> tuple[nn.Module, Proposals, RoIHeads]:
    """The trunk to res4, proposals on it, and res5 as the head of a region."""
    trunk = IntermediateLayerGetter(encoder, {"layer3": "0"})
    (res4,) = measure(trunk, channels).values()
    res5 = encoder.get_submodule("layer4")
    pooled = model.pooled or 14
    with torch.no_grad():
        copied = copy.deepcopy(res5).eval()
        width = int(copied(torch.zeros(1, res4.width, pooled, pooled)).shape[1])
    rpn = build_rpn(res4.width, (model.anchors,), model.sampled, train=(12000, 2000), test=(6000, model.proposals))
    head = OrderedDict([("res5", res5)])
    if model.extra_norm:
        head["norm"] = nn.BatchNorm2d(width)
    pool = Pool(pooled, res4.stride)
    masks = build_c4_masks(width, model.channels, outputs) if model.masks else None
    heads = Res5Heads(
        pool,
        nn.Sequential(head),
        Predictor(width, outputs),
        *region_rules(model),
        mask_roi_pool=pool if model.masks else None,
        mask_head=masks,
        mask_predictor=nn.Identity() if model.masks else None,
    )
    return trunk, rpn, heads


def build_c4_masks(width: int, channels: int, outputs: int) -> nn.Sequential:
    """Masks of twice the size of res5's maps, one per class, as Detectron2's head without convolutions makes them."""
    upsample, masks = nn.ConvTranspose2d(width, channels, 2, 2), nn.Conv2d(channels, outputs, 1)
    nn.init.kaiming_normal_(upsample.weight, mode="fan_out", nonlinearity="relu")
    nn.init.normal_(masks.weight, std=0.001)
    for layer in (upsample, masks):
        assert layer.bias is not None
        nn.init.zeros_(layer.bias)
    return nn.Sequential(upsample, nn.ReLU(inplace=True), masks, Floats())


def build_fpn(encoder: nn.Module, outputs: int, model: Model, channels: int) -> tuple[nn.Module, Proposals, RoIHeads]:
    """A pyramid of res2 to res5, proposals and regions on all of its levels."""
    layers = {f"layer{number + 1}": str(number) for number in range(4)}
    widths = [stage.width for stage in measure(IntermediateLayerGetter(encoder, layers), channels).values()]
    pyramid = BackboneWithFPN(encoder, layers, widths, model.channels, LastLevelMaxPool(), nn.BatchNorm2d)
    sizes = tuple((side,) for side in model.anchors)
    rpn = build_rpn(model.channels, sizes, model.sampled, train=(2000, 1000), test=(1000, model.proposals))
    pooled, levels = model.pooled or 7, list(layers.values())
    wide = model.channels
    heads = RoIHeads(
        MultiScaleRoIAlign(levels, pooled, sampling_ratio=0),
        TwoMLPHead(wide * pooled**2, model.hidden),
        Predictor(model.hidden, outputs),
        *region_rules(model),
        mask_roi_pool=MultiScaleRoIAlign(levels, 2 * pooled, sampling_ratio=0) if model.masks else None,
        mask_head=MaskRCNNHeads(wide, (wide,) * 4, 1) if model.masks else None,
        mask_predictor=nn.Sequential(MaskRCNNPredictor(wide, wide, outputs), Floats()) if model.masks else None,
    )
    return pyramid, rpn, heads


def build_rpn(
    width: int, sizes: tuple[tuple[int, ...], ...], sampled: int, *, train: tuple[int, int], test: tuple[int, int]
) -> Proposals:
    """Proposals by Detectron2's numbers: IoU 0.3 and 0.7, half of the anchors on objects, suppression at 0.7.

    Args:
        sizes: sizes of the anchors, for every map.
        sampled: anchors per image that are trained on.
        train: numbers of proposals before and after suppression in training.
        test: the same in testing.
    """
    head = ProposalsHead(width, len(sizes[0]) * len(RATIOS))
    before, after = ({"training": train[place], "testing": test[place]} for place in (0, 1))
    return Proposals(Anchors(sizes, (RATIOS,) * len(sizes)), head, 0.7, 0.3, sampled, 0.5, before, after, 0.7)


def region_rules(model: Model) -> tuple[float, float, int, float, None, float, float, int]:
    """Detectron2's: an object from IoU 0.5 on, a quarter objects; score 0.05, suppression 0.5, 100 detections."""
    return 0.5, 0.5, model.regions, 0.25, None, 0.05, 0.5, 100


@dataclass(frozen=True)
class Stage:
    """The shape of a stage's output."""

    width: int
    """Channels."""
    stride: int
    """Pixels of the image per pixel of the map."""


def measure(trunk: nn.Module, channels: int, side: int = 128) -> dict[str, Stage]:
    """The stages of a trunk, measured by a forward pass of a copy."""
    with torch.no_grad():
        maps: dict[str, Tensor] = copy.deepcopy(trunk).eval()(torch.zeros(1, channels, side, side))
    stages = {name: Stage(each.shape[1], side // each.shape[-1]) for name, each in maps.items()}
    for stage in stages.values():
        assert math.log2(stage.stride).is_integer(), "anchors and maps would not meet"
    return stages
