"""Pictures of a source: its images with their classes, boxes and masks, and their mixtures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from mixview.data.augmentation import named, views
from mixview.data.decoding import Decoder
from mixview.data.reading import Reader
from mixview.data.source import BadImage, Objects, Pixels, Source
from mixview.mixing import CutMix, Mixup

TILE = 160
GAP = 8
LINE = 18
INK = (32, 32, 32)
# Distinct on light and dark images, and to most colour-blind eyes (Okabe and Ito).
COLOURS = ((230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0), (204, 121, 167))


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


def source_rows(
    source: Source, count: int = 8, seed: int = 0, tile: int = TILE, augment: str | None = None
) -> list[Row]:
    """What a source looks like: `count` of its images, drawn by the seed, their views, and their mixtures.

    With the name of an augmentation there are both views of each image, and it is the first ones that are mixed, as in
    training; without, the images themselves.
    """
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))
    reader = Reader(source, Decoder("RGB" if is_encoded(source, int(order[0])) else "stored"))
    readings = [reader[index] for index in order[:count].tolist()]
    pictures = [to_rgb(reading.pixels) for reading in readings]
    objects = [source.objects(reading.index) for reading in readings]
    marked = [draw_objects(picture, each) for picture, each in zip(pictures, objects, strict=True)]
    captions = [f"{number + 1}: {caption(source, reading.index)}" for number, reading in enumerate(readings)]
    rows = [Row(f"{source.kind}: {len(source):,} images", marked, captions)]
    if augment is None:
        square = np.stack([np.array(crop(picture, tile)) for picture in pictures])
        batch = torch.from_numpy(square).permute(0, 3, 1, 2).float() / 255
    else:
        augmentations = named(augment)
        shown = (replace(augmentations[0], normalise=None), replace(augmentations[1], normalise=None))
        images = [torch.from_numpy(picture).permute(2, 0, 1) for picture in pictures]
        pairs = [views(image, seed, 0, reading.index, shown) for image, reading in zip(images, readings, strict=True)]
        for number, each in enumerate(zip(*pairs, strict=True)):
            batch = torch.stack(each)
            rows.append(Row(f"{augment}, view {number + 1}", to_pictures(batch), [""] * len(each)))
        batch = torch.stack([pair[0] for pair in pairs])
    if len(pictures) > 1:
        for mixer in (CutMix(alpha=1.0, per_sample=True), Mixup(alpha=1.0, per_sample=True)):
            mixture = mixer.draw(batch, torch.Generator().manual_seed(seed))
            shares = [f"{share:.0%} of {number + 1}" for number, share in enumerate(mixture.lam.tolist())]
            others = [f"{shares[i]}, the rest of {j + 1}" for i, j in enumerate(mixture.partner.tolist())]
            rows.append(Row(f"{type(mixer).__name__}, the first with the last", to_pictures(mixture(batch)), others))
    return rows


def to_pictures(batch: Tensor) -> list[Pixels]:
    """[H, W, 3] of each image of a batch [N, 3, H, W] in [0, 1]."""
    return list((batch.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy())


def is_encoded(source: Source, index: int) -> bool:
    """Whether a source reads files, not arrays, which may have any number of channels."""
    try:
        return isinstance(source.read(index), bytes)
    except BadImage:
        return True


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
    """[H, W, 3] to look at: one channel as grey, of more than three the first three."""
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
    """The picture with its boxes and masks in colours; what is "difficult" or a crowd has a thin line."""
    if objects is None:
        return picture
    painted = picture.astype(np.float32)
    if objects.masks is not None:
        for number, mask in enumerate(objects.masks):
            if mask.shape == picture.shape[:2]:
                painted[mask] = 0.5 * painted[mask] + 0.5 * np.array(COLOURS[number % len(COLOURS)], np.float32)
    image = Image.fromarray(painted.astype(np.uint8))
    draw = ImageDraw.Draw(image)
    line = max(1, max(image.size) // 100)
    for number, (left, top, right, bottom) in enumerate(objects.boxes.tolist()):
        thin = objects.difficult[number] or objects.crowd[number]
        box = (left, top, max(left, right - 1), max(top, bottom - 1))
        draw.rectangle(box, outline=COLOURS[number % len(COLOURS)], width=1 if thin else line)
    return np.array(image)


def shorten(text: str, width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """As much of a text as fits."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"{text}…") > width:
        text = text[:-1]
    return f"{text}…"


def picture_format(path: Path) -> str:
    """How Pillow calls the format that a file's name asks for."""
    extensions = Image.registered_extensions()
    if (found := extensions.get(path.suffix.lower())) is None:
        raise ValueError(f"{path} does not say what kind of picture it is to be: end its name in .png or .jpg")
    return found
