"""`mixview report`: one HTML page that compares runs, in one file that needs no network.

Curves are SVG and maps a canvas, written by hand: Plotly alone weighs 4.5 MB, a third of what a page of 50 runs may,
and what it shows over 10,000 points is text, not images.
"""

import html
import json
from pathlib import Path
from typing import Any

from mixview.io.atomic import atomic_write
from mixview.io.terminal import say
from mixview.report.assets import asset, frame
from mixview.report.content import Showing, assemble
from mixview.report.embedding import Work
from mixview.report.runs import gather

SCRIPTS = ("elements", "data", "tiles", "curves", "table", "explorer", "neighbors", "findings", "runs", "main")
"""In this order: a later one uses what an earlier one defines."""


def report(
    runs: list[str],
    out: Path = Path("report.html"),
    images: int = 1000,
    data: str | None = None,
    split: str | None = None,
    title: str = "What the runs learned",
    device: str = "auto",
    workers: int | None = None,
    trust_remote_code: bool = False,
    fetch: bool = False,
) -> Path:
    """Compare runs on one HTML page: a single file, which needs no network.

    Args:
        runs: Folders of the runs, or of results alone (--out of mixview evaluate).
        out: Page to write. Write it again for a run that goes on.
        images: Maximum number of images per dataset; fewer where the page would become too large.
        data: Images to show instead of those that each run held out: a path or a name (see `mixview data list`).
        split: Split of these images, such as train or val.
        title: Title of the page.
        device: Device: cpu, cuda, mps, or auto, which takes an accelerator where there is one.
        workers: Processes that read images; by default the cores, minus one.
        trust_remote_code: Call the factory of a custom backbone that a run's file names. That runs its code.
        fetch: Read the images of a run from the server that its settings name; otherwise no network is used.

    Example:
        >>> report(["runs/sim", "runs/bsim"], out=Path("report.html"), images=20, workers=0).name  # doctest: +ELLIPSIS
        wrote report.html...
        'report.html'
    """
    if images < 2:
        raise ValueError(f"images must be at least 2, for neighbors to be shown, got {images}")
    if images > 65_535:
        raise ValueError(f"a page holds at most 65,535 images per dataset, got {images}")
    content = assemble(gather(runs), Showing(images, data, split, trust_remote_code, fetch, Work(device, workers)))
    page = render(content, title)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as file:
        file.write(page)
    for run in content["runs"]:
        for note in run["notes"]:
            say(f"{run['name']}: {note}")
    for note in content["notes"]:
        say(note)
    count = len(content["runs"])
    say(f"wrote {out}: {count} {'run' if count == 1 else 'runs'}, {len(page) / 1e6:.1f} MB")
    return out


def render(content: dict[str, Any], title: str) -> bytes:
    """The page: template, style, data and scripts in one."""
    parts = {
        "title": html.escape(title),
        "data": embed_json(content),
        "script": "\n".join(asset(f"{name}.js") for name in SCRIPTS),
    }
    return frame("page.html", parts, style=asset("style.css"), scripts=True)


def embed_json(content: Any) -> str:
    """JSON that can stand in a script element: no name in it can end that element, or begin a comment."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
