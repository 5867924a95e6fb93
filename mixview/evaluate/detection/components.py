"""Parts of a detector in which Detectron2 and torchvision differ in more than numbers, done as Detectron2 does.

All of them subclass torchvision's. Boxes and scores are float32 also where the networks run in bfloat16, whose eight
bits cannot tell pixel 800 from pixel 803.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.roi_heads import RoIHeads, maskrcnn_inference, maskrcnn_loss
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform, resize_boxes
from torchvision.ops import roi_align
from torchvision.transforms.v2 import functional as V

Target = dict[str, Tensor]
"""boxes [K, 4], labels [K] from 1 on, and with masks masks [K, H, W]."""


class Floats(nn.Module):
    """Converts its input to float32."""

    def forward(self, values: Tensor) -> Tensor:
        return values.float()


class ShortSide(GeneralizedRCNNTransform):
    """Normalizes the colors, and resizes with smoothing until the shorter side is one of `train`, or `test`.

    torchvision's own does not smooth what it shrinks, and tests at the last of the sizes for training.
    """

    def __init__(self, train: list[int], test: int, longest: int, mean: list[float], std: list[float]) -> None:
        super().__init__(train, longest, mean, std)
        self.test = test

    def resize(self, image: Tensor, target: Target | None = None) -> tuple[Tensor, Target | None]:
        """An image [C, H, W] and its objects, at one of the sizes."""
        height, width = image.shape[-2:]
        short = self.torch_choice(self.min_size) if self.training else self.test
        scale = min(short / min(height, width), self.max_size / max(height, width))
        size = [max(1, int(height * scale + 0.5)), max(1, int(width * scale + 0.5))]
        image = V.resize(image, size, antialias=True)
        if target is not None:
            target = target | {"boxes": resize_boxes(target["boxes"], [height, width], size)}
            if "masks" in target:
                target["masks"] = F.interpolate(target["masks"][:, None].float(), size, mode="nearest")[:, 0].byte()
        return image, target


class Anchors(AnchorGenerator):
    """Anchors in float32, for maps of any precision."""

    def set_cell_anchors(self, dtype: torch.dtype, device: torch.device) -> None:
        super().set_cell_anchors(torch.float32, device)


class ProposalsHead(RPNHead):
    """Scores and shifts of the anchors in float32."""

    def forward(self, maps: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        scores, shifts = super().forward(maps)
        return [each.float() for each in scores], [each.float() for each in shifts]


class Proposals(RegionProposalNetwork):
    """A region proposal network that learns by Detectron2's losses: L1, over the anchors that could be sampled."""

    def compute_loss(
        self, objectness: Tensor, pred_bbox_deltas: Tensor, labels: list[Tensor], regression_targets: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        positive, negative = (torch.cat(each).bool() for each in self.fg_bg_sampler(labels))
        targets, sampled = torch.cat(regression_targets), positive | negative
        most = self.fg_bg_sampler.batch_size_per_image * len(labels)
        answers = torch.cat(labels)[sampled]
        scores = F.binary_cross_entropy_with_logits(objectness.flatten()[sampled], answers, reduction="sum")
        shifts = F.l1_loss(pred_bbox_deltas[positive], targets[positive], reduction="sum")
        return scores / most, shifts / most


class Pool(nn.Module):
    """Regions cut out of one map, with half-pixel alignment (Detectron2's ROIAlignV2).

    Args:
        size: side in pixels that a region is pooled to.
        stride: pixels of the image per pixel of the map.
    """

    def __init__(self, size: int, stride: int) -> None:
        super().__init__()
        self.size = size
        self.stride = stride

    def forward(self, features: dict[str, Tensor], regions: list[Tensor], image_shapes: Any = None) -> Tensor:
        """The map [N, C, h, w] and the boxes [K, 4] of each image -> [sum of K, C, size, size]"""
        (maps,) = features.values()
        cut: Tensor = roi_align(maps.float(), regions, self.size, 1 / self.stride, sampling_ratio=0, aligned=True)
        return cut


class Predictor(nn.Module):
    """Class scores [K, outputs] and a box for each class [K, 4 * outputs] of region features [K, width]."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.scores = nn.Linear(width, outputs)
        self.shifts = nn.Linear(width, 4 * outputs)
        nn.init.normal_(self.scores.weight, std=0.01)
        nn.init.normal_(self.shifts.weight, std=0.001)
        nn.init.zeros_(self.scores.bias)
        nn.init.zeros_(self.shifts.bias)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.scores(features).float(), self.shifts(features).float()


class Res5Heads(RoIHeads):
    """C4's region head: a region goes through res5 once, and class, box and mask are all read off what comes out.

    torchvision's own would run res5 again for the masks, over other regions.
    """

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: list[Target] | None = None,
    ) -> tuple[list[Target], dict[str, Tensor]]:
        """Detections of each image in testing; losses in training."""
        if self.training:
            assert targets is not None
            return [], self.losses(features, proposals, targets)
        maps = self.box_head(self.box_roi_pool(features, proposals))
        boxes, scores, labels = self.postprocess_detections(
            *self.box_predictor(maps.mean((2, 3))), proposals, image_shapes
        )
        names = ("boxes", "scores", "labels")
        detections = [dict(zip(names, each, strict=True)) for each in zip(boxes, scores, labels, strict=True)]
        if self.has_mask():
            shapes = self.mask_head(self.box_head(self.mask_roi_pool(features, boxes)))
            for each, mask in zip(detections, maskrcnn_inference(shapes, labels), strict=True):
                each["masks"] = mask
        return detections, {}

    def losses(self, features: dict[str, Tensor], proposals: list[Tensor], targets: list[Target]) -> dict[str, Tensor]:
        """The losses of the classes, the boxes and, with masks, the masks."""
        regions, matched, labels, shifts = self.select_training_samples(proposals, targets)
        maps = self.box_head(self.box_roi_pool(features, regions))
        classes = torch.cat(labels)
        scores, boxes = self.box_predictor(maps.mean((2, 3)))
        losses = {
            "loss_classifier": F.cross_entropy(scores, classes),
            "loss_box_reg": box_loss(boxes, classes, torch.cat(shifts)),
        }
        if self.has_mask():
            positive = [each > 0 for each in labels]
            losses["loss_mask"] = maskrcnn_loss(
                self.mask_head(maps[torch.cat(positive)]),
                [each[on] for each, on in zip(regions, positive, strict=True)],
                [each["masks"] for each in targets],
                [each["labels"] for each in targets],
                [each[on] for each, on in zip(matched, positive, strict=True)],
            )
        return losses


def box_loss(boxes: Tensor, classes: Tensor, targets: Tensor) -> Tensor:
    """L1 of the boxes of regions on objects, over all regions.

    Args:
        boxes: [K, 4 * outputs] a box for each class.
        classes: [K], 0 for background.
        targets: [K, 4]
    """
    on = torch.where(classes > 0)[0]
    own = boxes.view(len(boxes), -1, 4)[on, classes[on]]
    return F.l1_loss(own, targets[on], reduction="sum") / max(1, len(classes))
