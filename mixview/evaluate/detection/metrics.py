"""Average precision of detections: COCO's by faster-coco-eval, and VOC's own two, each by its name.

    truth = [truth_of(source, index, ...) ...]
    coco_metrics(truth, detections, classes, masks=True)     # AP, AP50, AP75, APs … and mask AP …
    voc_metrics(truth, detections, classes)                  # 11-point AP50 …, all-points AP50 …

COCO's AP is the mean over ten IoU thresholds, over classes, of the precision at 101 recalls. VOC's is of the 2007
challenge (11 recalls; what Detectron2 reports for VOC2007), or of the later ones (all points); here too over the same
ten thresholds for AP, at one of them for AP50 and AP75. All are shares, 0 to 1; a class without an object is left out.
"""

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision.ops import box_iou

from mixview.evaluate.average_precision import Interpolation, average_precision

Rle = dict[str, Any]
"""A mask in COCO's run-length code: size and counts."""
Floats = npt.NDArray[np.float64]

THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
VOC_KINDS: tuple[Interpolation, ...] = ("11-point", "all-points")


class Truth(NamedTuple):
    """The K objects in an image."""

    height: int
    width: int
    boxes: Floats
    """[K, 4] left, top, right, bottom"""
    classes: npt.NDArray[np.int64]
    """[K]"""
    ignored: npt.NDArray[np.bool_]
    """[K] crowds and difficult objects: neither required nor wrong."""
    areas: Floats
    """[K] the areas by which COCO calls an object small, medium or large."""
    masks: list[Rle] | None


class Detections(NamedTuple):
    """The K detections in an image, the most confident first."""

    boxes: Floats
    """[K, 4]"""
    classes: npt.NDArray[np.int64]
    """[K]"""
    scores: Floats
    """[K]"""
    masks: list[Rle] | None


def library(name: str = "faster_coco_eval") -> ModuleType:
    """The library that computes COCO's metrics, imported when it is needed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "faster_coco_eval":
            raise
        raise ModuleNotFoundError(
            'COCO\'s metrics need faster-coco-eval: pip install "mixview[detection]"', name=error.name
        ) from None


def encode_masks(masks: npt.NDArray[np.bool_]) -> list[Rle]:
    """Masks [K, H, W] in COCO's run-length code."""
    if not len(masks):
        return []
    packed = np.asfortranarray(masks.transpose(1, 2, 0).astype(np.uint8))
    return list(library("faster_coco_eval.core.mask").encode(packed))


def as_text(code: Rle) -> Rle:
    """A run-length code that JSON can hold."""
    counts = code["counts"]
    return {"size": list(code["size"]), "counts": counts.decode() if isinstance(counts, bytes) else counts}


def coco_metrics(
    truth: Sequence[Truth], detections: Sequence[Detections], classes: Sequence[str], *, masks: bool
) -> dict[str, float]:
    """AP, AP50, AP75, AP of small, medium and large objects, of the boxes and, with `masks`, of the masks.

    Sizes that do not occur are left out.
    """
    annotations = coco_annotations(truth, masks=masks)
    content = {
        "images": [{"id": n + 1, "height": each.height, "width": each.width} for n, each in enumerate(truth)],
        "categories": [{"id": n + 1, "name": name} for n, name in enumerate(classes)],
        "annotations": annotations,
    }
    metrics: dict[str, float] = {}
    coco = library()
    for kind, prefix in (("bbox", ""), ("segm", "mask "))[: 2 if masks else 1]:
        reference = coco.COCO(content)
        answers = reference.loadRes(coco_results(detections, masks=kind == "segm"))
        count = coco.COCOeval_faster(reference, answers, kind, print_function=lambda *_: None)
        count.evaluate()
        count.accumulate()
        count.summarize()
        names = ("AP", "AP50", "AP75", "AP small", "AP medium", "AP large")
        # -1 stands for "no such object".
        metrics |= {f"{prefix}{n}": float(v) for n, v in zip(names, count.all_stats[:6], strict=True) if v >= 0}
    return metrics


def coco_annotations(truth: Sequence[Truth], *, masks: bool) -> list[dict[str, Any]]:
    """Objects as COCO writes them; ids count from 1."""
    rows: list[dict[str, Any]] = []
    for number, each in enumerate(truth):
        for place in range(len(each.boxes)):
            row = {
                "id": len(rows) + 1,
                "image_id": number + 1,
                "category_id": int(each.classes[place]) + 1,
                "bbox": left_top_width_height(each.boxes[place]),
                "area": float(each.areas[place]),
                "iscrowd": int(each.ignored[place]),
            }
            if masks:
                assert each.masks is not None
                row["segmentation"] = each.masks[place]
            rows.append(row)
    return rows


def coco_results(
    detections: Sequence[Detections],
    *,
    masks: bool,
    image_ids: Sequence[int] | None = None,
    category_ids: Sequence[int] | None = None,
) -> list[dict[str, Any]]:
    """Detections as COCO's results are written; without ids images and categories count from 1.

    With masks there are no boxes: COCO's code then takes the areas of detections from their masks.
    """
    rows = []
    for number, each in enumerate(detections):
        for place in range(len(each.boxes)):
            own = int(each.classes[place])
            row: dict[str, Any] = {
                "image_id": number + 1 if image_ids is None else int(image_ids[number]),
                "category_id": own + 1 if category_ids is None else int(category_ids[own]),
                "score": float(each.scores[place]),
            }
            if masks:
                assert each.masks is not None
                row["segmentation"] = each.masks[place]
            else:
                row["bbox"] = left_top_width_height(each.boxes[place])
            rows.append(row)
    return rows


def left_top_width_height(box: Floats) -> list[float]:
    left, top, right, bottom = (float(side) for side in box)
    return [left, top, right - left, bottom - top]


def voc_metrics(truth: Sequence[Truth], detections: Sequence[Detections], classes: Sequence[str]) -> dict[str, float]:
    """VOC's average precisions of the boxes, 11-point and all-points: AP50, AP75, and AP over ten thresholds."""
    table = {kind: np.full((len(THRESHOLDS), len(classes)), np.nan) for kind in VOC_KINDS}
    for number in range(len(classes)):
        scores, hits, ignored, total = match_class(truth, detections, number)
        if not total:
            continue
        missed = total - (hits & ~ignored).sum(0)
        for kind in VOC_KINDS:
            if not len(scores):
                table[kind][:, number] = 0.0
                continue
            columns = scores[:, None].expand(-1, len(THRESHOLDS))
            table[kind][:, number] = average_precision(
                columns, hits, ignored, missed=missed, interpolation=kind
            ).numpy()
    metrics = {}
    for kind, values in table.items():
        if not np.isnan(values).all():
            metrics[f"{kind} AP"] = float(np.nanmean(values))
            metrics[f"{kind} AP50"] = float(np.nanmean(values[0]))
            metrics[f"{kind} AP75"] = float(np.nanmean(values[THRESHOLDS.index(0.75)]))
    return metrics


def match_class(
    truth: Sequence[Truth], detections: Sequence[Detections], number: int
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Match the detections of a class to objects by VOC's rules.

    A detection is compared with the object of its class that it overlaps most, even if that one is already matched; the
    IoU must exceed the threshold. Of several detections of one object the most confident is correct, and the others are
    wrong. Those of an ignored object do not count.

    Returns:
        scores [D], correct [D, thresholds], ignored [D, thresholds], and the number of objects to find.
    """
    scores: list[Tensor] = []
    hits: list[Tensor] = []
    ignored: list[Tensor] = []
    thresholds = torch.tensor(THRESHOLDS, dtype=torch.float64)
    total = 0
    for there, detected in zip(truth, detections, strict=True):
        own, predicted = there.classes == number, detected.classes == number
        objects, aside = torch.from_numpy(there.boxes[own]), torch.from_numpy(there.ignored[own])
        total += int((~aside).sum())
        score = torch.from_numpy(detected.scores[predicted])
        order = score.argsort(descending=True, stable=True)
        boxes = torch.from_numpy(detected.boxes[predicted])[order]
        scores.append(score[order])
        right, skipped = (torch.zeros(len(boxes), len(thresholds), dtype=torch.bool) for _ in range(2))
        if len(objects) and len(boxes):
            overlap, which = box_iou(boxes, objects).max(1)
            enough = overlap[:, None] > thresholds
            skipped = enough & aside[which][:, None]
            for each in which.unique():  # the first on every object, at every threshold
                on = enough & (which == each)[:, None]
                right |= on & (on.cumsum(0) == 1)
            right &= ~skipped
        hits.append(right)
        ignored.append(skipped)
    return torch.cat(scores), torch.cat(hits), torch.cat(ignored), total
