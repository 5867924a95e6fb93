"""The contents of a run's folder, read leniently: reports matter most for runs that crashed or are still running."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from mixview.encoders.provenance import encoder_settings
from mixview.evaluate import results
from mixview.evaluate.results import Result
from mixview.io.records import (
    MAX_METRICS,
    Config,
    Data,
    Environment,
    Record,
    RecordError,
    Status,
    parse_metrics,
    read_bytes,
    read_dict,
)
from mixview.io.run_folders import is_run


@dataclass(frozen=True)
class ReportRun:
    """One run, as far as its folder can be read."""

    name: str
    """The name on the page, unique within a report."""
    path: Path
    config: dict[str, Any]
    data: dict[str, Any]
    environment: dict[str, Any]
    status: dict[str, Any]
    metrics: list[dict[str, Any]]
    results: list[Result]
    notes: tuple[str, ...] = ()
    """Sentences for the report on everything that could not be read."""

    @property
    def method(self) -> str | None:
        """The name of its method, if its settings say it."""
        return (self.config.get("method") or {}).get("name")

    @property
    def encoder(self) -> Path | None:
        """The exported encoder; a run that has not come to its first checkpoint has none."""
        path = self.path / "encoder.safetensors"
        return path if path.is_file() else None

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """Settings of its encoder, except the seed; where they are unknown, its folder, which no other run has."""
        return encoder_settings(self.path) or {"folder": str(self.path)}

    @property
    def state(self) -> str:
        """running, finished, interrupted, failed, or unknown."""
        return str(self.status.get("state", "unknown"))

    @property
    def seconds(self) -> float | None:
        """From its start to its last update; None for one that was resumed, because the pauses were not counted."""
        if self.environment.get("resumed"):
            return None
        try:
            start = datetime.fromisoformat(self.environment["started"])
            return (datetime.fromisoformat(self.status["updated"]) - start).total_seconds()
        except (KeyError, TypeError, ValueError):
            return None


@dataclass(frozen=True)
class Gathered:
    """All that a report is made of."""

    runs: list[ReportRun]
    others: list[Result]
    """Results in folders without a run: raw pixels, random encoders, other people's weights."""
    notes: tuple[str, ...]


def gather(folders: Sequence[str | Path]) -> Gathered:
    """Read folders: those of runs, and those that hold results only. What is neither is left out, with a note."""
    paths = list(dict.fromkeys(Path(folder) for folder in folders))
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise ValueError(f"there is no folder {missing[0]}: check the path, or leave it out")
    runs = [path for path in paths if is_run(path)]
    others = [path for path in paths if path not in runs and (path / results.FOLDER).is_dir()]
    studies = [path for path in paths if any(path.glob("*/study.yaml"))]
    if studies and not runs and not others:
        raise ValueError(f"{studies[0]} holds studies, not runs: mixview study show {studies[0]} writes their page")
    if not runs and not others:
        raise ValueError(
            f"none of {', '.join(map(str, paths)) or 'no folders'} is a run of mixview: name the --out of "
            "mixview pretrain, such as runs/first"
        )
    notes = [f"{path} is no run and was left out." for path in paths if path not in runs and path not in others]
    other_results: list[Result] = []
    for path in others:
        valid, problems = results.read_valid(path)
        other_results += valid
        notes += problems
    names = short_names(runs)
    return Gathered([read_run(path, name) for path, name in zip(runs, names, strict=True)], other_results, tuple(notes))


def read_run(path: Path, name: str | None = None) -> ReportRun:
    """The run in a folder; what cannot be read is empty, and noted."""
    notes: list[str] = []

    def read(file: str, kind: Any) -> dict[str, Any]:
        try:
            return read_dict(path / file, kind)
        except RecordError as error:
            notes.append(f"Its {file} was left out: {error.reason}.")
        return {}

    config, data = read("config.yaml", Config), read("data.json", Data)
    environment, status = read("environment.json", Environment), read("status.json", Status)
    metrics, lines = read_curves(path / "metrics.jsonl")
    evaluations, problems = results.read_valid(path)
    notes += [*lines, *problems]
    return ReportRun(
        name or path.resolve().name, path, config, data, environment, status, metrics, evaluations, tuple(notes)
    )


def read_curves(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The records of a run's metrics, and a sentence on what of them cannot be read; a young run has none."""
    if not path.exists() and not path.is_symlink():
        return [], []
    try:
        good, damaged = parse_metrics(read_bytes(path, MAX_METRICS), Record)
    except RecordError as error:
        return [], [f"Its {path.name} was left out: {error.reason}."]
    count = "1 line" if len(damaged) == 1 else f"{len(damaged)} lines"
    messages = [f"{count} of its {path.name} left out, line {damaged[0]} first: damaged."] if damaged else []
    return [record for _, record in good], messages


def short_names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of paths that tell them apart."""
    parts = [path.resolve().parts for path in paths]
    names = []
    for own in parts:
        length = 1
        while length < len(own) and sum(other[-length:] == own[-length:] for other in parts) > 1:
            length += 1
        names.append("/".join(own[-length:]))
    return names
