"""Pictures of detections below the ground truth."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from mixview.data.contact_sheet import COLORS, INK, Row, contact_sheet, draw_objects, to_rgb
from mixview.data.dataset import ImageDataset, decoder_for, find_range
from mixview.data.sources.base import Objects, Pixels, Source, even_indices
from mixview.evaluate.detection.inference import Predictions
from mixview.evaluate.detection.metrics import Floats, Rle, library

TILE = 240
SURE = 0.5
"""Minimum score of the detections that are drawn, unless no detection has it."""
SUREST = 3
"""Number of detections that are drawn in that case."""


def draw_predictions(
    predictions: Predictions, source: Source, classes: Sequence[str], count: int, channels: int = 3
) -> Image.Image:
    """A sheet of `count` images, evenly over the test images: annotations above, detections below."""
    images = ImageDataset(source, decoder_for(channels, find_range(source), eight_bits=True))
    chosen = even_indices(len(predictions.indices), count).tolist()
    annotated, detected, names, counts = [], [], [], []
    for place in chosen:
        picture = to_rgb(images.decode(predictions.indices[place]))
        truth, detections = predictions.truth[place], predictions.detections[place]
        sure = detections.scores >= (SURE if (detections.scores >= SURE).any() else lowest(detections.scores))
        annotated.append(draw_labeled(picture, truth.boxes, truth.classes, truth.masks, classes, ignored=truth.ignored))
        masks = None if detections.masks is None else [m for m, on in zip(detections.masks, sure, strict=True) if on]
        detected.append(
            draw_labeled(
                picture, detections.boxes[sure], detections.classes[sure], masks, classes, detections.scores[sure]
            )
        )
        names.append(source.name(predictions.indices[place]).rpartition("/")[2])
        counts.append(f"{int((detections.scores >= SURE).sum())} with a score of {SURE:g} or more")
    return contact_sheet([Row("ground truth", annotated, names), Row("detections", detected, counts)], TILE)


def lowest(scores: Floats) -> float:
    """The lowest score of the `SUREST` most confident detections."""
    return float(np.sort(scores)[::-1][:SUREST][-1]) if len(scores) else SURE


def draw_labeled(
    picture: Pixels,
    boxes: Floats,
    labels: npt.NDArray[np.int64],
    masks: list[Rle] | None,
    classes: Sequence[str],
    scores: Floats | None = None,
    ignored: npt.NDArray[np.bool_] | None = None,
) -> Pixels:
    """The picture, at least `TILE` pixels large, with boxes, masks and the names of classes."""
    scale = max(1, round(TILE / max(picture.shape[:2])))
    large = picture.repeat(scale, 0).repeat(scale, 1)
    thin = np.zeros(len(boxes), np.bool_) if ignored is None else ignored
    drawn = None
    if masks is not None and len(masks):
        drawn = np.stack([library("faster_coco_eval.core.mask").decode(mask) for mask in masks]).astype(np.bool_)
        drawn = drawn.repeat(scale, 1).repeat(scale, 2)
    objects = Objects((boxes * scale).astype(np.float32), labels, thin, thin, drawn)
    image = Image.fromarray(draw_objects(large, objects))
    draw = ImageDraw.Draw(image)
    size = max(9, max(image.size) // 28)
    font = ImageFont.load_default(size)
    for number, (left, top, _, _) in enumerate(objects.boxes.tolist()):
        text = classes[int(labels[number])] + ("" if scores is None else f" {scores[number]:.2f}")
        place = (max(0, min(left, image.width - font.getlength(text))), max(0, top - size - 2))
        draw.rectangle(draw.textbbox(place, text, font), fill=COLORS[number % len(COLORS)])
        draw.text(place, text, INK, font)
    return np.array(image)
