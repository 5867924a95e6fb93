"""Many small images in a few JPEGs, as large as a page can afford: a thousand files would have a thousand headers."""

import base64
import io
import math
from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image

from mixview.data.contact_sheet import crop
from mixview.data.sources.base import Pixels, even_indices

SIDES = (96, 80, 64, 48, 40, 32, 24, 16)
"""Sides of a tile, tried in this order until the sheets are light enough."""
PER_SHEET = 1024
"""Tiles per sheet: larger pictures are more than some phones take."""
QUALITY = 82


class Sprites(NamedTuple):
    """Sheets of square tiles, row by row."""

    sheets: list[str]
    """As addresses that hold their data."""
    tile: int
    columns: int
    per_sheet: int


def make_sprites(pictures: Sequence[Pixels], budget: int) -> Sprites:
    """Sheets of the centers of pictures, of at most `budget` bytes where possible."""
    largest = max(min(picture.shape[:2]) for picture in pictures)
    sides = [side for side in SIDES if side <= largest] or [SIDES[-1]]
    if largest < SIDES[0] and largest not in sides:
        sides.insert(0, largest)  # as they are
    sample = [pictures[index] for index in even_indices(len(pictures), 128)]
    for side in sides:
        weight = len(encode_sheet(sample, side, grid(len(sample)))) * len(pictures) / len(sample)
        if weight <= budget or side == sides[-1]:
            break
    columns = grid(min(len(pictures), PER_SHEET))
    parts = [pictures[start : start + PER_SHEET] for start in range(0, len(pictures), PER_SHEET)]
    sheets = [as_address(encode_sheet(part, side, columns)) for part in parts]
    return Sprites(sheets, side, columns, PER_SHEET)


def grid(count: int) -> int:
    """Columns of a sheet that is about square."""
    return math.ceil(math.sqrt(count))


def encode_sheet(pictures: Sequence[Pixels], tile: int, columns: int) -> bytes:
    """One JPEG of square tiles."""
    sheet = Image.new("RGB", (columns * tile, math.ceil(len(pictures) / columns) * tile))
    for number, picture in enumerate(pictures):
        row, column = divmod(number, columns)
        sheet.paste(crop(picture, tile), (column * tile, row * tile))
    return encode_jpeg(sheet)


def encode_jpeg(picture: Image.Image, quality: int = QUALITY) -> bytes:
    """A picture as JPEG."""
    file = io.BytesIO()
    picture.convert("RGB").save(file, "JPEG", quality=quality, optimize=True)
    return file.getvalue()


def as_address(content: bytes) -> str:
    """A JPEG as an address that a page needs no network for."""
    return f"data:image/jpeg;base64,{base64.b64encode(content).decode()}"
