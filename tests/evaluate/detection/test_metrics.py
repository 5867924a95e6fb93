import contextlib
import io

import numpy as np
import pytest
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from mixview.data.decode import Decoder
from mixview.data.sources.coco import Coco
from mixview.evaluate.detection.inference import truth_of
from mixview.evaluate.detection.metrics import (
    Detections,
    Truth,
    as_text,
    coco_metrics,
    coco_results,
    encode_masks,
    voc_metrics,
)
from mixview.evaluate.detection.targets import align_classes
from tests.data.writing import needs_data, real

NAMES = ("AP", "AP50", "AP75", "AP small", "AP medium", "AP large")


def shaken(truth: list[Truth], classes: int, seed: int = 0) -> list[Detections]:
    """Detections as a middling detector makes them: boxes moved, some of the wrong class, some twice, some nowhere."""
    rng = np.random.default_rng(seed)
    found = []
    for each in truth:
        count = len(each.boxes)
        chosen = np.concatenate([np.arange(count), rng.integers(0, max(count, 1), 3)]) if count else np.zeros(0, int)
        boxes = each.boxes[chosen]
        size = np.tile(boxes[:, 2:] - boxes[:, :2], 2)
        boxes = boxes + size * rng.normal(0, 0.12, boxes.shape)
        boxes = np.concatenate([boxes, rng.uniform(0, 10, (2, 4)) + np.array([0, 0, 20, 20])])
        labels = np.concatenate([each.classes[chosen], rng.integers(0, classes, 2)])
        wrong = rng.random(len(labels)) < 0.15
        labels[wrong] = rng.integers(0, classes, wrong.sum())
        boxes = np.stack([np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], 1)
        boxes = boxes.reshape(-1, 4).clip(0, [each.width, each.height] * 2)
        masks = np.zeros((len(boxes), each.height, each.width), np.bool_)
        for mask, (left, top, right, bottom) in zip(masks, boxes.round().astype(int), strict=True):
            mask[top:bottom, left : max(left, right - 2)] = True
        order = np.argsort(-(scores := rng.random(len(boxes))))
        found.append(Detections(boxes[order], labels[order], scores[order], encode_masks(masks[order])))
    return found


def by_pycocotools(reference: COCO, results: list[dict[str, object]], kind: str) -> dict[str, float]:
    with contextlib.redirect_stdout(io.StringIO()):
        count = COCOeval(reference, reference.loadRes(results), kind)
        count.evaluate()
        count.accumulate()
        count.summarize()
    prefix = "mask " if kind == "segm" else ""
    return {f"{prefix}{name}": value for name, value in zip(NAMES, count.stats[:6], strict=True) if value >= 0}


@needs_data
def test_equal_to_pycocotools_on_the_official_annotations() -> None:
    """COCO's val images, with gaps in the ids and all sizes; ours from the source, theirs from the JSON file."""
    root = real("coco")
    source = Coco(root, "val")
    assert source.classes is not None
    place = align_classes(source, source.classes)
    truth = []
    for index in range(len(source)):
        height, width = Decoder()(source.read(index)).shape[:2]
        objects = source.objects(index)
        assert objects is not None
        truth.append(truth_of(objects, height, width, place, masks=True))
    found = shaken(truth, len(source.classes))
    ours = coco_metrics(truth, found, source.classes, masks=True)
    with contextlib.redirect_stdout(io.StringIO()):
        reference = COCO(root / "annotations" / "instances_val2017.json")
    wanted: dict[str, float] = {}
    for kind in ("bbox", "segm"):
        results = coco_results(
            found, masks=kind == "segm", image_ids=source.image_ids.tolist(), category_ids=source.category_ids.tolist()
        )
        wanted |= by_pycocotools(reference, results, kind)
    assert set(ours) == set(wanted)
    assert {name: ours[name] for name in wanted} == pytest.approx(wanted, abs=1e-6)
    assert 0.1 < ours["AP"] < 0.9


def random_truth(images: int, classes: int, seed: int) -> list[Truth]:
    rng = np.random.default_rng(seed)
    truth = []
    for number in range(images):
        count = int(rng.integers(0, 6)) if number else 0  # the first image is empty
        corner = rng.uniform(0, 60, (count, 2))
        boxes = np.concatenate([corner, corner + rng.uniform(4, 60, (count, 2))], 1)
        boxes[: count // 4, 2:] = boxes[: count // 4, :2]  # some have no area
        masks = np.zeros((count, 128, 128), np.bool_)
        for mask, (left, top, right, bottom) in zip(masks, boxes.astype(int), strict=True):
            mask[top:bottom, left:right] = True
        areas = masks.sum((1, 2)).astype(float)
        labels = rng.integers(0, classes, count)
        truth.append(Truth(128, 128, boxes, labels, rng.random(count) < 0.2, areas, encode_masks(masks)))
    return truth


@pytest.mark.parametrize("seed", range(3))
def test_equal_to_pycocotools_on_anything(seed: int) -> None:
    """Empty images, crowds, objects without area, classes that do not occur."""
    truth = random_truth(20, 4, seed)
    names = ("a", "b", "c", "d", "absent")
    found = shaken(truth, 4, seed)
    ours = coco_metrics(truth, found, names, masks=True)
    reference = COCO()
    reference.dataset = {
        "info": {},
        "images": [{"id": n + 1, "height": 128, "width": 128} for n in range(20)],
        "categories": [{"id": n + 1, "name": name} for n, name in enumerate(names)],
        "annotations": [],
    }
    for number, each in enumerate(truth):
        for place in range(len(each.boxes)):
            left, top, right, bottom = each.boxes[place]
            assert each.masks is not None
            reference.dataset["annotations"].append(
                {
                    "id": len(reference.dataset["annotations"]) + 1,
                    "image_id": number + 1,
                    "category_id": int(each.classes[place]) + 1,
                    "bbox": [left, top, right - left, bottom - top],
                    "area": each.areas[place],
                    "iscrowd": int(each.ignored[place]),
                    "segmentation": each.masks[place],
                }
            )
    with contextlib.redirect_stdout(io.StringIO()):
        reference.createIndex()
    wanted = by_pycocotools(reference, coco_results(found, masks=False), "bbox")
    wanted |= by_pycocotools(reference, coco_results(found, masks=True), "segm")
    assert ours == pytest.approx(wanted, abs=1e-6)


def voc_by_loops(truth: list[Truth], found: list[Detections], label: int, threshold: float, eleven: bool) -> float:
    """VOC's own evaluation, as its development kit and Detectron2 write it: a slow and obvious reference."""
    rows = [
        (score, number, box)
        for number, each in enumerate(found)
        for score, own, box in zip(each.scores, each.classes, each.boxes, strict=True)
        if own == label
    ]
    rows.sort(key=lambda row: -row[0])
    objects = [each.boxes[each.classes == label] for each in truth]
    aside = [each.ignored[each.classes == label] for each in truth]
    taken = [np.zeros(len(each), bool) for each in objects]
    wanted = sum(int((~each).sum()) for each in aside)
    right, wrong = [], []
    for _, number, box in rows:
        best, place = -1.0, -1
        for other, there in enumerate(objects[number]):
            width = max(0.0, min(box[2], there[2]) - max(box[0], there[0]))
            height = max(0.0, min(box[3], there[3]) - max(box[1], there[1]))
            areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (box, there)]
            union = sum(areas) - width * height
            if union > 0 and width * height / union > best:
                best, place = width * height / union, other
        if best > threshold and aside[number][place]:
            continue
        hit = best > threshold and not taken[number][place]
        if hit:
            taken[number][place] = True
        right.append(float(hit))
        wrong.append(float(not hit))
    recall = np.cumsum(right) / wanted
    precision = np.cumsum(right) / np.maximum(np.cumsum(right) + np.cumsum(wrong), 1e-12)
    if eleven:
        points = [t / 10 for t in range(11)]
        return float(np.mean([max(precision[recall >= t - 1e-12], default=0.0) for t in points]))
    recall, precision = np.concatenate([[0.0], recall, [1.0]]), np.concatenate([[0.0], precision, [0.0]])
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(np.diff(recall) * precision[1:]))


@pytest.mark.parametrize("seed", range(2))
def test_vocs_average_precisions_against_loops(seed: int) -> None:
    truth = random_truth(15, 3, seed)
    found = shaken(truth, 3, seed)
    ours = voc_metrics(truth, found, ("a", "b", "c", "absent"))
    for name, eleven in (("11-point", True), ("all-points", False)):
        for metric, threshold in (("AP50", 0.5), ("AP75", 0.75)):
            wanted = np.mean([voc_by_loops(truth, found, label, threshold, eleven) for label in range(3)])
            assert ours[f"{name} {metric}"] == pytest.approx(wanted, abs=1e-9), (name, metric)
    assert 0 < ours["11-point AP"] < ours["11-point AP50"]


def test_nothing_found_and_everything_found() -> None:
    truth = [each._replace(ignored=np.zeros(len(each.boxes), bool)) for each in random_truth(6, 2, 5)]
    truth = [each for each in truth if len(each.boxes) and (each.areas > 0).all()]
    nothing = [Detections(np.zeros((0, 4)), np.zeros(0, int), np.zeros(0), []) for _ in truth]
    names = ("a", "b")
    assert coco_metrics(truth, nothing, names, masks=True)["mask AP"] == 0.0
    assert voc_metrics(truth, nothing, names)["all-points AP50"] == 0.0
    everything = [Detections(each.boxes, each.classes, np.ones(len(each.boxes)), each.masks) for each in truth]
    assert coco_metrics(truth, everything, names, masks=True)["mask AP"] == pytest.approx(1.0)
    assert voc_metrics(truth, everything, names)["all-points AP"] == pytest.approx(1.0)


def test_masks_in_code_and_back() -> None:
    masks = np.random.default_rng(0).random((3, 9, 7)) > 0.5
    codes = encode_masks(masks)
    assert np.array_equal(coco_mask.decode(codes).transpose(2, 0, 1), masks)
    assert isinstance(as_text(codes[0])["counts"], str)
    assert encode_masks(masks[:0]) == []
