"""Contact sheets: rows of small images with captions, boxes and masks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mixview.data.decode import to_eight_bits
from mixview.data.sources.base import Objects, Pixels, Source

TILE = 160
GAP = 8
LINE = 18
INK = (32, 32, 32)
# Distinct on light and dark images, and to most color-blind eyes (Okabe and Ito).
COLORS = ((230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0), (204, 121, 167))


@dataclass(frozen=True)
class Row:
    """A row of a contact sheet."""

    title: str
    pictures: Sequence[Pixels]
    """[H, W, 3] each, of any size."""
    captions: Sequence[str]
    """A line under each picture."""


def contact_sheet(rows: Sequence[Row], tile: int = TILE) -> Image.Image:
    """Rows of pictures, each fitted into a square of `tile` pixels, with titles and captions."""
    columns = max(len(row.pictures) for row in rows)
    height = tile + 2 * LINE + 2 * GAP
    sheet = Image.new("RGB", (GAP + columns * (tile + GAP), GAP + len(rows) * height), "white")
    draw = ImageDraw.Draw(sheet)
    bold, plain = ImageFont.load_default(14), ImageFont.load_default(11)
    for number, row in enumerate(rows):
        top = GAP + number * height
        draw.text((GAP, top), row.title, INK, bold)
        for column, (picture, caption) in enumerate(zip(row.pictures, row.captions, strict=True)):
            left = GAP + column * (tile + GAP)
            thumbnail = fit(picture, tile)
            place = (left + (tile - thumbnail.width) // 2, top + LINE + (tile - thumbnail.height) // 2)
            sheet.paste(thumbnail, place)
            draw.text((left, top + LINE + tile + 2), shorten(caption, tile, plain), INK, plain)
    return sheet


def caption(source: Source, index: int) -> str:
    """The class or classes of an image, or its name."""
    labels, sets = source.labels(), source.label_sets()
    if labels is not None:
        label = int(labels[index])
        return source.classes[label] if source.classes else f"class {label}"
    if sets is not None and source.classes:
        return ", ".join(source.classes[column] for column in np.flatnonzero(sets[index] != 0)) or "no class"
    return source.name(index).rpartition("/")[2]


def to_rgb(pixels: Pixels) -> Pixels:
    """[H, W, 3] of 8 bits to look at: one channel as gray, of more than three the first three."""
    pixels = to_eight_bits(pixels)
    return np.repeat(pixels[:, :, :1], 3, axis=2) if pixels.shape[2] < 3 else np.ascontiguousarray(pixels[:, :, :3])


def fit(picture: Pixels, tile: int) -> Image.Image:
    """The whole picture in a square; small ones grow by whole pixels, so that one sees what there is."""
    image = Image.fromarray(picture)
    scale = tile / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.NEAREST if scale > 2 else Image.Resampling.LANCZOS)


def crop(picture: Pixels, tile: int) -> Image.Image:
    """The middle of a picture as a square."""
    image = Image.fromarray(picture)
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    return image.resize((tile, tile), Image.Resampling.NEAREST if tile > 2 * side else Image.Resampling.LANCZOS, box)


def draw_objects(picture: Pixels, objects: Objects | None) -> Pixels:
    """The picture with its boxes and masks in colors; what is "difficult" or a crowd has a thin line."""
    if objects is None:
        return picture
    painted = picture.astype(np.float32)
    if objects.masks is not None:
        for number, mask in enumerate(objects.masks):
            if mask.shape == picture.shape[:2]:
                painted[mask] = 0.5 * painted[mask] + 0.5 * np.array(COLORS[number % len(COLORS)], np.float32)
    image = Image.fromarray(painted.astype(np.uint8))
    draw = ImageDraw.Draw(image)
    line = max(1, max(image.size) // 100)
    for number, (left, top, right, bottom) in enumerate(objects.boxes.tolist()):
        thin = objects.difficult[number] or objects.crowd[number]
        box = (left, top, max(left, right - 1), max(top, bottom - 1))
        draw.rectangle(box, outline=COLORS[number % len(COLORS)], width=1 if thin else line)
    return np.array(image)


def shorten(text: str, width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """Shorten a text to what fits."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"{text}…") > width:
        text = text[:-1]
    return f"{text}…"


def picture_format(path: Path) -> str:
    """Pillow's name of the format that a file's name asks for."""
    extensions = Image.registered_extensions()
    if (name := extensions.get(path.suffix.lower())) is None:
        raise ValueError(f"{path} does not say the format of the picture: end its name in .png or .jpg")
    return name
