"""Pictures of what a detector found, beside what is there."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from mixview.data.picture import COLOURS, INK, Row, contact_sheet, draw_objects, to_rgb
from mixview.data.reading import Reader, decoder_for
from mixview.data.source import Objects, Pixels, Source
from mixview.detection.metrics import Floats, Rle, library
from mixview.detection.predicting import Judged

TILE = 240
SURE = 0.5
"""Detections of a lower score are not drawn, unless there is no other."""
SUREST = 3
"""So many of them are, then."""


def draw_judged(judged: Judged, source: Source, classes: Sequence[str], count: int, channels: int = 3) -> Image.Image:
    """A sheet of `count` images, evenly over those that were judged: what is there above, what was found below."""
    reader = Reader(source, decoder_for(channels))
    chosen = np.unique(np.linspace(0, len(judged.indices) - 1, count).astype(int)).tolist()
    there, found, names, counts = [], [], [], []
    for place in chosen:
        picture = to_rgb(reader.decode(judged.indices[place]))
        truth, detections = judged.truth[place], judged.detections[place]
        sure = detections.scores >= (SURE if (detections.scores >= SURE).any() else lowest(detections.scores))
        there.append(draw_labelled(picture, truth.boxes, truth.classes, truth.masks, classes, ignored=truth.ignored))
        masks = None if detections.masks is None else [m for m, on in zip(detections.masks, sure, strict=True) if on]
        found.append(
            draw_labelled(
                picture, detections.boxes[sure], detections.classes[sure], masks, classes, detections.scores[sure]
            )
        )
        names.append(source.name(judged.indices[place]).rpartition("/")[2])
        counts.append(f"{int((detections.scores >= SURE).sum())} with a score of {SURE:g} or more")
    return contact_sheet([Row("what is there", there, names), Row("what was found", found, counts)], TILE)


def lowest(scores: Floats) -> float:
    """The score of the last of the surest."""
    return float(np.sort(scores)[::-1][:SUREST][-1]) if len(scores) else SURE


def draw_labelled(
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
        draw.rectangle(draw.textbbox(place, text, font), fill=COLOURS[number % len(COLOURS)])
        draw.text(place, text, INK, font)
    return np.array(image)
