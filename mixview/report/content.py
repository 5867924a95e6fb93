"""The content of a report, gathered from runs into plain values for JSON. Everything that cannot be shown is a note."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import mixview
from mixview.data.sources.base import Source
from mixview.data.sources.registry import open_dataset
from mixview.encoders import loading as encoders
from mixview.evaluate import paper
from mixview.report.confusions import confuse
from mixview.report.curves import follow, time_shares
from mixview.report.derived import Mixtures
from mixview.report.embedding import MIXED, NEIGHBORS, Embedding, Work, aligned, embed
from mixview.report.findings import detect_collapse
from mixview.report.reproducing import command
from mixview.report.runs import Gathered, ReportRun
from mixview.report.showing import Data, ImageSet, changed_data, held_out, open_data, original_images, read_images
from mixview.report.sprites import make_sprites
from mixview.report.strips import COLUMNS, detection_strips, make_strip
from mixview.report.table import Cell, tabulate
from mixview.runs.progress import duration
from mixview.runs.progress_bar import bar
from mixview.train.starting_weights import compare

SMALLEST = 450
"""Bytes of the smallest recognizable tile."""


class Budget(NamedTuple):
    """The budget of a page of 15 MB, in bytes before base64 (which takes a third more)."""

    sprites: int = 5_000_000
    points: int = 3_000_000
    strips: int = 1_500_000
    detections: int = 600_000
    curve_points: int = 8_000
    """For each metric, of all runs together."""

    def images(self, wanted: int, runs: int, sets: int) -> int:
        """The number of images per run that fits into the budget with this number of runs and of sets of images."""
        each = 2 * 2 + 2 * NEIGHBORS + 2 * 2 + 2 + 1  # bytes per image and run, see `pack_map`
        affordable = min(self.points // (each * max(runs, 1)), self.sprites // (SMALLEST * max(sets, 1)))
        return min(wanted, max(50, affordable))


@dataclass(frozen=True)
class Showing:
    """Options of a report."""

    images: int = 1000
    data: str | None = None
    """Show these images instead of those of the runs."""
    split: str | None = None
    trust_remote_code: bool = False
    fetch: bool = False
    """Read the images of a run from a server, where its settings name one."""
    work: Work = field(default_factory=Work)
    budget: Budget = field(default_factory=Budget)


class Gallery:
    """The images of a report: runs that are shown with the same ones share them."""

    def __init__(self, showing: Showing, opened: Sequence["Opened"]) -> None:
        self.showing = showing
        sets = {each.source.fingerprint() for each in opened if each.source is not None}
        self.count = showing.budget.images(showing.images, len(opened), len(sets))
        self.sets: dict[str, ImageSet] = {}
        self.models: dict[str, Embedding] = {}
        """The first run's map of each set, to which the others are aligned."""

    def add(self, source: Source, description: str) -> str:
        """The key of the set of images from this source."""
        key = source.fingerprint()
        if key not in self.sets:
            self.sets[key] = read_images(source, description, self.count)
        return key

    def contents(self) -> list[dict[str, Any]]:
        """The sets, for the page."""
        share = self.showing.budget.sprites // max(len(self.sets), 1)
        return [
            {
                "description": image_set.description,
                "count": len(image_set.source),
                "sprites": make_sprites(image_set.pictures, share)._asdict(),
                "names": image_set.names,
                "captions": None if image_set.captions == image_set.names else image_set.captions,
                "labels": None if image_set.labels is None else pack(image_set.labels, np.int16),
                "classes": list(image_set.classes),
                "boxes": pack(boxes_of(self.models[key], image_set), np.uint8) if key in self.models else None,
            }
            for key, image_set in self.sets.items()
        ]


def boxes_of(embedding: Embedding, image_set: ImageSet) -> npt.NDArray[np.uint8]:
    """The boxes of the mixtures that were encoded."""
    return Mixtures(image_set.source, embedding.size, embedding.decoder, MIXED).boxes()


def assemble(gathered: Gathered, showing: Showing) -> dict[str, Any]:
    """Everything that the page shows."""
    runs = gathered.runs
    opened = [open_images(run, showing) for run in runs]
    gallery = Gallery(showing, opened)
    descriptions = []
    with bar("runs", len(runs)) as advance:
        for run, each in zip(runs, opened, strict=True):
            descriptions.append(describe(run, each, gallery, len(runs)))
            advance(1)
    keys = list(gallery.sets)
    for described in descriptions:
        described["set"] = keys.index(described["set"]) if described["set"] is not None else None
    notes = list(gathered.notes)
    if runs and gallery.count < showing.images:
        notes.append(f"Every run is shown with {gallery.count} images, not {showing.images}, to keep the page light.")
    evaluations = tabulate(runs, gathered.others)
    now = datetime.now(UTC)
    return {
        "made": f"{now:%B} {now.day}, {now:%Y, %H:%M} UTC",
        "version": mixview.__version__,
        "runs": descriptions,
        "sets": gallery.contents(),
        "evaluation": {
            "columns": [column._asdict() for column in evaluations.columns],
            "lines": [
                line._asdict() | {"cells": [None if cell is None else describe_cell(cell) for cell in line.cells]}
                for line in evaluations.lines
            ],
            "notes": evaluations.notes,
            "warnings": evaluations.warnings,
        },
        "paper_cost": [
            table._asdict()
            for table in paper.tables()["tab:moco-mem-cost"]
            if any(
                paper.matches_pretraining(run.settings) for run in runs
            )  # what else was trained costs something else
        ],
        "neighbors": NEIGHBORS,
        "notes": notes,
    }


def describe_cell(cell: Cell) -> dict[str, Any]:
    """A value of the table; where it is not a number there is only its text."""
    mean = cell.mean if np.isfinite(cell.mean) else None
    return cell._asdict() | {"mean": mean, "paper": cell.paper and cell.paper._asdict()}


class Opened(NamedTuple):
    """The data of a run, as far as it still exists."""

    data: Data | None
    source: Source | None
    """The images that the run is shown with."""
    description: str
    notes: list[str]


def open_images(run: ReportRun, showing: Showing) -> Opened:
    """The training data of a run, and the images to show it with. Every failure becomes a note."""
    data, source, description, notes = None, None, "", list(run.notes)
    try:
        data = open_data(run, showing.fetch)
        changed = changed_data(run, data)
        notes += [changed] if changed else []
        if showing.data is None:
            source, description = held_out(run, data, showing.fetch)
    except Exception as error:  # the settings may be anybody's: whatever they lead to is a note, and the rest is shown
        notes.append(f"Its data cannot be opened, so that only what the run itself left is shown: {one_line(error)}")
    if showing.data is not None:
        source, description = open_dataset(showing.data, showing.split), showing.data
    return Opened(data, source, description, notes)


def describe(run: ReportRun, opened: Opened, gallery: Gallery, runs: int) -> dict[str, Any]:
    """One run. Every failure with its images becomes a note, and the rest is shown."""
    budget, notes = gallery.showing.budget, opened.notes
    key, embedding = place(run, opened, gallery)
    points = max(30, min(200, budget.curve_points // max(runs, 1)))
    return {
        "name": run.name,
        "folder": str(run.path),
        "settings": describe_settings(run),
        "method": run.method or "?",
        "objective": str(run.config.get("objective", "?")),
        "state": run.state,
        "progress": describe_progress(run),
        "message": str(run.status.get("message") or ""),
        "notes": notes,
        "curves": {name: curve._asdict() for name, curve in follow(run, points).items()},
        "strip": strip_of(run, opened.data, budget.strips // max(runs, 1), notes),
        "detections": [each._asdict() for each in detection_strips(run, budget.detections // max(runs, 1), notes)],
        "set": key,
        "map": None if embedding is None else pack_map(embedding),
        "findings": None if embedding is None else findings_of(embedding, run),
        "confusions": None if key is None or embedding is None else confusions_of(embedding, gallery.sets[key]),
        "cost": cost_of(run),
        "command": command(run.config),
        "versions": {name: version for name, version in (run.environment.get("versions") or {}).items() if version},
    }


def place(run: ReportRun, opened: Opened, gallery: Gallery) -> tuple[str | None, Embedding | None]:
    """The images that a run is shown with and their embedding, as far as there are images and an encoder."""
    showing, notes = gallery.showing, opened.notes
    if opened.source is None:
        return None, None
    try:
        key = gallery.add(opened.source, opened.description)
    except Exception as error:  # as above
        notes.append(f"Its images cannot be shown: {one_line(error)}")
        return None, None
    if run.encoder is None:
        notes.append("It has no encoder yet: that comes with the first checkpoint.")
        return key, None
    try:
        source = gallery.sets[key].source
        encoder = encoders.load(str(run.encoder), natural_size=32, trust_remote_code=showing.trust_remote_code)
        embedding = embed(encoder, source, showing.work)
    except Exception as error:  # as above
        notes.append(f"Its encoder cannot be shown: {one_line(error)}")
        return key, None
    model = gallery.models.setdefault(key, embedding)
    return key, embedding if model is embedding else aligned(embedding, model.places)


def findings_of(embedding: Embedding, run: ReportRun) -> dict[str, Any]:
    """Findings in the features without labels, and the check for collapse."""
    last: dict[str, Any] = next((record for record in reversed(run.metrics) if "effective_rank" in record), {})
    logged = {name: float(last[name]) for name in ("std", "effective_rank") if isinstance(last.get(name), int | float)}
    findings = embedding.findings
    return findings._asdict() | {
        "duplicates": [group._asdict() for group in findings.duplicates],
        "clusters": [group._asdict() for group in findings.clusters],
        "collapse": detect_collapse(embedding.raw, logged)._asdict(),
    }


def confusions_of(embedding: Embedding, image_set: ImageSet) -> dict[str, Any] | None:
    """The accuracy of the neighbors, and the worst confusions."""
    confusions = None if image_set.labels is None else confuse(embedding.neighbors, image_set.labels)
    if confusions is None:
        return None
    return confusions._asdict() | {"worst": [each._asdict() for each in confusions.worst]}


def strip_of(run: ReportRun, data: Data | None, budget: int, notes: list[str]) -> dict[str, Any] | None:
    """The picture of the training views."""
    originals: Sequence[Any] = ()
    if data is not None:
        try:
            originals = original_images(run, data, COLUMNS)
        except Exception:  # as above; what is wrong with the images is noted where they are shown
            originals = ()
    strip = make_strip(run, originals, budget, notes)
    return None if strip is None else strip._asdict()


def describe_settings(run: ReportRun) -> list[list[str]]:
    """The main settings of a run: (name, value) pairs."""
    config, mixing = run.config, run.config.get("mixing") or {}
    pairs = {
        "method": run.method,
        "objective": config.get("objective"),
        "mixtures": f"{mixing.get('mixer', '?')}, α {mixing.get('alpha', '?')}"
        if config.get("objective") != "sim" and mixing
        else None,
        "backbone": config.get("backbone"),
        "data": config.get("data"),
        "images": f"{run.data['count']:,}" if isinstance(run.data.get("count"), int) else None,
        "views": f"{config.get('augment')}, {config.get('size')} px" if config.get("size") else None,
        "batch_size": config.get("batch_size"),
        "epochs": config.get("epochs"),
        "seed": config.get("seed"),
        "weights": config.get("weights"),
        "since then": compare(run.metrics),
    }
    return [[name, str(value)] for name, value in pairs.items() if value is not None]


def describe_progress(run: ReportRun) -> str:
    """The progress of a run as text."""
    epoch, of = run.status.get("epoch"), run.config.get("epochs")
    if epoch is None:
        return "no status"
    return f"epoch {epoch:g} of {of}, step {run.status.get('step', 0)}" if of else f"epoch {epoch:g}"


def cost_of(run: ReportRun) -> dict[str, Any]:
    """The cost of a run, as far as its folder records it."""
    seconds, step, batch = run.seconds, run.status.get("step"), run.config.get("batch_size")
    devices = run.environment.get("devices") or []
    cpu = run.environment.get("cpu") or {}
    speed = step * batch / seconds if seconds and isinstance(batch, int) and step else None
    return {
        "time": None if seconds is None else duration(seconds),
        "seconds": seconds,
        "resumed": bool(run.environment.get("resumed")),
        "steps": step,
        "speed": None if speed is None else float(f"{speed:.3g}"),
        "device": ", ".join(devices) or str(cpu.get("name") or "?"),
        "parts": time_shares(run),
    }


def pack_map(embedding: Embedding) -> dict[str, Any]:
    """An embedding in few bytes."""
    count = len(embedding.places)
    near = embedding.neighbors.position[:, :NEIGHBORS].numpy()
    return {
        "places": pack(to_grid(embedding.places), np.uint16),
        "near": pack(near, np.uint16),
        "near_count": near.shape[1] if count > 1 else 0,
        "mixed": pack(to_grid(embedding.mixed_places), np.uint16),
        "parents": pack(np.clip(127.5 + 127.5 * embedding.parents, 0, 255).round(), np.uint8),
        "clusters": pack(embedding.clusters, np.uint8),
        "groups": int(embedding.clusters.max()) + 1,
    }


def to_grid(places: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Places within the unit square in 65,535ths."""
    return np.clip(np.asarray(places, np.float64) * 65535, 0, 65535).round()


def pack(values: npt.NDArray[Any], kind: Any) -> str:
    """Numbers as text: little-endian, base64."""
    return base64.b64encode(np.ascontiguousarray(values).astype(np.dtype(kind).newbyteorder("<")).tobytes()).decode()


def one_line(error: BaseException) -> str:
    """The first line of an error."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
