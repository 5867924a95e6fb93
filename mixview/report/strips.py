"""What a run saw: its images, and below them the views and the mixtures of `views.png`; and what detectors found."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from PIL import Image

from mixview.data.picture import crop
from mixview.data.source import Pixels
from mixview.report.runs import Run
from mixview.report.sprites import as_address, encode_jpeg

COLUMNS = 8
"""Images in `views.png`, as `Watcher.picture` draws them."""
WIDTHS = (1200, 900, 640, 480)


class Strip(NamedTuple):
    """One picture, and what its rows are."""

    source: str
    width: int
    height: int
    rows: list[str]


def geometry(run: Run, picture: Image.Image) -> tuple[float, float, int]:
    """The side of an image in `views.png`, the gap between two, and the number of rows."""
    size = int(run.config.get("size") or 224)
    pad = max(1, size // 16)
    scale = picture.width / (COLUMNS * (size + pad) + pad)
    rows = max(1, round((picture.height / scale - pad) / (size + pad)))
    return size * scale, pad * scale, rows


def name_rows(config: dict[str, Any], count: int) -> list[str]:
    """What the rows of `views.png` are."""
    mixer = {"cutmix": "CutMix", "mixup": "Mixup"}.get((config.get("mixing") or {}).get("mixer", "cutmix"), "mixed")
    return ["one view", "another view", *[f"mixtures of the first views ({mixer})"] * max(0, count - 2)][:count]


def make_strip(run: Run, originals: Sequence[Pixels], budget: int) -> Strip | None:
    """The picture of a run with its images above, at most `budget` bytes; None where the run has drawn none."""
    path = run.path / "views.png"
    try:
        with Image.open(path) as opened:
            picture = opened.convert("RGB")
    except (OSError, ValueError):
        return None
    tile, gap, count = geometry(run, picture)
    names = name_rows(run.config, count)
    if originals and picture.width:
        top = round(tile + gap)
        whole = Image.new("RGB", (picture.width, picture.height + top), "white")
        whole.paste(picture, (0, top))
        for number, original in enumerate(originals[:COLUMNS]):
            whole.paste(crop(original, round(tile)), (round(gap + number * (tile + gap)), round(gap)))
        picture, names = whole, ["images", *names]
    return Strip(*shrink(picture, budget), names)


def found_by_detectors(run: Run, budget: int) -> list[Strip]:
    """What the detectors of a run found: the picture of the first trial of each protocol and data set."""
    pictures = sorted(run.path.glob("detection/*/detections.png"), reverse=True)
    trials = {path.parent.name.rpartition("-seed-")[0]: path for path in pictures}
    shown = []
    for name, path in sorted(trials.items()):
        try:
            with Image.open(path) as opened:
                picture = opened.convert("RGB")
        except (OSError, ValueError):
            continue
        shown.append(Strip(*shrink(picture, budget // len(trials)), [name]))
    return shown


def shrink(picture: Image.Image, budget: int) -> tuple[str, int, int]:
    """A picture as an address, its width and height: as large as fits into so many bytes."""
    for width in WIDTHS:
        small = picture
        if picture.width > width:
            small = picture.resize((width, round(picture.height * width / picture.width)), Image.Resampling.LANCZOS)
        content = encode_jpeg(small, 85 if width > 640 else 75)
        if len(content) <= budget:
            break
    return as_address(content, "jpeg"), small.width, small.height
