"""Training views of a run: its images, and below them the views and mixtures of `views.png`; and its detections."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from mixview.data.contact_sheet import crop
from mixview.data.sources.base import Pixels
from mixview.io.records import RecordError, read_bytes
from mixview.report.runs import ReportRun
from mixview.report.sprites import as_address, encode_jpeg

COLUMNS = 8
"""Images in `views.png`, as `Monitor.picture` draws them."""
WIDTHS = (1200, 900, 640, 480)
ROWS = 16
"""Rows of `views.png` that are named, at most: there are three."""
MAX_PIXELS, MAX_SIDE = 40_000_000, 32_000


class Strip(NamedTuple):
    """One picture, and the names of its rows."""

    source: str
    width: int
    height: int
    rows: list[str]


def geometry(run: ReportRun, picture: Image.Image) -> tuple[float, float, int]:
    """The side of an image in `views.png`, the gap between two, and the number of rows."""
    size = run.config.get("size") or 224
    pad = max(1, size // 16)
    scale = picture.width / (COLUMNS * (size + pad) + pad)
    rows = max(1, min(ROWS, round((picture.height / scale - pad) / (size + pad))))
    return size * scale, pad * scale, rows


def name_rows(config: dict[str, Any], count: int) -> list[str]:
    """The names of the rows of `views.png`."""
    mixer = {"cutmix": "CutMix", "mixup": "Mixup"}.get((config.get("mixing") or {}).get("mixer", "cutmix"), "mixed")
    return ["one view", "another view", *[f"mixtures of the first views ({mixer})"] * max(0, count - 2)][:count]


def read_picture(path: Path) -> Image.Image:
    """A PNG that a run left."""
    content = read_bytes(path)
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as opened:
            if opened.width * opened.height > MAX_PIXELS or max(opened.size) > MAX_SIDE:
                raise RecordError(path, f"{opened.width} × {opened.height} pixels are too many")
            return opened.convert("RGB")
    except RecordError:
        raise
    except Exception as error:  # Pillow raises whatever it stumbles over in a damaged file
        raise RecordError(path, f"it is no picture ({type(error).__name__})") from None


def show_picture(run: ReportRun, path: Path, notes: list[str] | None) -> Image.Image | None:
    """A picture of a run; None, and a note on why, where it cannot be shown."""
    try:
        return read_picture(path)
    except RecordError as error:
        if notes is not None:
            notes.append(f"Its {path.relative_to(run.path)} was left out: {error.reason}.")
        return None


def make_strip(
    run: ReportRun, originals: Sequence[Pixels], budget: int, notes: list[str] | None = None
) -> Strip | None:
    """The picture of a run with its images above, at most `budget` bytes; None where the run has drawn none."""
    path = run.path / "views.png"
    picture = show_picture(run, path, notes) if path.exists() else None
    if picture is None:
        return None
    tile, gap, count = geometry(run, picture)
    names = name_rows(run.config, count)
    if originals and tile >= 1:
        top = round(tile + gap)
        joined = Image.new("RGB", (picture.width, picture.height + top), "white")
        joined.paste(picture, (0, top))
        for number, original in enumerate(originals[:COLUMNS]):
            joined.paste(crop(original, round(tile)), (round(gap + number * (tile + gap)), round(gap)))
        picture, names = joined, ["images", *names]
    return Strip(*shrink(picture, budget), names)


def detection_strips(run: ReportRun, budget: int, notes: list[str] | None = None) -> list[Strip]:
    """Detections of a run: the picture of the first trial of each protocol and dataset."""
    pictures = sorted(run.path.glob("detection/*/detections.png"), reverse=True)
    trials = {path.parent.name.rpartition("-seed-")[0]: path for path in pictures}
    strips = []
    for name, path in sorted(trials.items()):
        if (picture := show_picture(run, path, notes)) is None:
            continue
        strips.append(Strip(*shrink(picture, budget // len(trials)), [name]))
    return strips


def shrink(picture: Image.Image, budget: int) -> tuple[str, int, int]:
    """A picture as an address, its width and height: as large as fits into the budget."""
    for width in WIDTHS:
        small = picture
        if picture.width > width:
            height = max(1, round(picture.height * width / picture.width))
            small = picture.resize((width, height), Image.Resampling.LANCZOS)
        content = encode_jpeg(small, 85 if width > 640 else 75)
        if len(content) <= budget:
            break
    return as_address(content), small.width, small.height
