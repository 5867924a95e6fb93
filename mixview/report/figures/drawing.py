"""The common parts of all figures: their style, saving them, and opening their images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, OffsetImage

from mixview.data.sources.base import Pixels, Source
from mixview.data.sources.registry import open_dataset
from mixview.encoders.loading import LoadedEncoder, load
from mixview.io.atomic import atomic_write
from mixview.io.run_folders import is_run
from mixview.io.terminal import say
from mixview.report.runs import ReportRun, read_run, short_names
from mixview.report.showing import held_out, open_data

# Those of the page (see page/data.js): apart to most color-blind eyes, in print and on a screen.
COLORS = ("#e07b00", "#2f86d6", "#1f9e74", "#c9528f", "#8a6bd1", "#b3a100", "#d1495b", "#3aa6b9", "#8c6d4f", "#7f8ea3")
GOOD, BAD, PALE = "#137a45", "#c0312b", "#8a93a3"
DPI = 200

STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#566070",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "legend.frameon": False,
    "text.parse_math": False,  # a name with dollar signs is a name
    "svg.hashsalt": "mixview",  # the same figure is the same file
    "savefig.dpi": DPI,
}


in_style = mpl.rc_context(STYLE)
"""Around a function that draws: matplotlib's settings are the program's own again when it returns."""


def new_figure(width: float, height: float) -> Figure:
    """A figure of this size in inches, drawn without a screen."""
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, out: Path) -> list[Path]:
    """Write OUT.png and OUT.svg, and say so."""
    stem = out.with_suffix("") if out.suffix in (".png", ".svg") else out
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(f"{stem.name}{suffix}") for suffix in (".png", ".svg")]
    for path in paths:
        kind = path.suffix[1:]
        with atomic_write(path) as file:
            figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)
    say(f"wrote {paths[0]} and {paths[1]}")
    return paths


def show_picture(axes: Axes, pixels: Pixels, title: str = "", under: str = "") -> None:
    """A picture without axes; small ones show their pixels."""
    axes.imshow(pixels, interpolation="nearest" if max(pixels.shape[:2]) <= 64 else "antialiased")
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_title(title, fontsize=8, fontweight="normal", pad=3)
    axes.set_xlabel(under, fontsize=8, labelpad=2)


def put_picture(axes: Axes, pixels: Pixels, place: npt.NDArray[np.floating], color: str, inches: float) -> None:
    """A small picture with a frame at a place of a map."""
    zoom = inches * 72 / max(pixels.shape[:2])
    image = OffsetImage(pixels, zoom=zoom, interpolation="nearest" if max(pixels.shape[:2]) <= 64 else "antialiased")
    frame = {"edgecolor": color, "linewidth": 1.2, "boxstyle": "square,pad=0.02"}
    axes.add_artist(AnnotationBbox(image, (float(place[0]), float(place[1])), pad=0.08, bboxprops=frame, zorder=2))


def bare_map(axes: Axes, title: str) -> None:
    """Axes of a map, whose numbers mean nothing."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.06)
    for side in axes.spines.values():
        side.set(visible=True, color="#dde1e8")
    axes.set_title(title)


def open_images(place: str, split: str | None = None) -> Source:
    """The images at a path or of a name; of a run's folder, those that it held out."""
    if is_run(place):
        run = read_run(Path(place))
        return held_out(run, open_data(run))[0]
    return open_dataset(place, split)


def open_runs(folders: Sequence[str]) -> list[ReportRun]:
    """The runs in folders, each of which must hold one."""
    if not folders:
        raise ValueError("this figure is of runs: name their folders, such as runs/sim runs/bsim")
    paths = [Path(folder) for folder in folders]
    for path in paths:
        if not is_run(path):
            raise ValueError(f"{path} is not a run of mixview: name the --out of mixview pretrain")
    return [read_run(path, name) for path, name in zip(paths, short_names(paths), strict=True)]


def load_encoders(runs: Sequence[ReportRun], trust_remote_code: bool) -> list[LoadedEncoder]:
    """The encoders of runs, each of which must have one."""
    for run in runs:
        if run.encoder is None:
            raise ValueError(f"{run.path} has no encoder yet: wait for its first checkpoint")
    return [load(str(run.encoder), natural_size=32, trust_remote_code=trust_remote_code) for run in runs]
