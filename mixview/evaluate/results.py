"""Results of evaluations: the metrics, how they were computed, and where they are kept.

    result = Result(protocol="knn", metrics={"top-1": 45.2}, description="20 nearest …", …)
    save(result, Path("runs/first"))                     # runs/first/evaluations/knn-….json
    for row in summarize(read("runs/first")): …          # mean and standard deviation over seeds

Each result has a file of its own, named after all that decides it: another seed adds a file, the same command again
replaces its own. Metrics are in percent.
"""

import hashlib
import json
import math
import statistics
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from mixview.encoders.provenance import read_settings, with_settings
from mixview.evaluate import paper
from mixview.io.atomic import real_folder, write_bytes
from mixview.io.records import RecordError, Whole, read_versioned
from mixview.io.terminal import say, to_rich_text

FOLDER = "evaluations"
FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class Result:
    """One evaluation of one encoder.

    Example:
        >>> metrics = {"top-1": 45.2}
        >>> result = Result(protocol="knn", metrics=metrics, description="20 nearest", encoder="mine", data="scenes")
        >>> result.seed
        0
    """

    protocol: str
    """The protocol's name: knn, linear …"""
    metrics: dict[str, float]
    """In percent: top-1, top-5, mAP …"""
    description: str
    """The computation of the metrics."""
    encoder: str
    data: str
    seed: Whole = 0
    std: dict[str, float] = field(default_factory=dict)
    """Standard deviations of metrics that are themselves means over samples."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The protocol's options, except the seed."""
    about: dict[str, str] = field(default_factory=dict)
    """The encoder's run, by its file: method, objective, seed, epoch, and every setting that shaped it."""
    details: dict[str, Any] = field(default_factory=dict)
    """Values behind the metrics: AP of each class, the costs that were chosen …"""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    made: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def file_name(self) -> str:
        """A name that no other seed, encoder, dataset or setting has."""
        deciding = [self.protocol, self.settings, self.data, self.encoder, self.about, self.seed]
        digest = hashlib.blake2b(json.dumps(deciding, sort_keys=True).encode(), digest_size=6)
        return f"{self.protocol}-{digest.hexdigest()}.json"


class Row(NamedTuple):
    """A metric over results that differ only in their seeds."""

    protocol: str
    metric: str
    mean: float
    std: float | None
    """Over results (with n - 1); of a single result its own, or None."""
    runs: int
    result: Result
    """The first of the results."""


def save(result: Result, folder: Path) -> Path:
    """Write a result into the folder of a run, or any other, atomically."""
    place = folder / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = real_folder(place) / result.file_name()
    content = {"version": FORMAT, **asdict(result)}
    write_bytes(path, json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n")
    return path


def read(folder: str | Path) -> list[Result]:
    """The results in a folder, oldest first. Files that cannot be read are left out, with a warning."""
    results, faults = read_valid(folder)
    for fault in faults:
        warnings.warn(fault, stacklevel=2)
    return results


def read_valid(folder: str | Path) -> tuple[list[Result], list[str]]:
    """The results in a folder, oldest first, and a sentence for each file that is left out.

    Results of earlier versions do not say what shaped their encoder: those of the run in the folder get it from there.
    """
    folder, results, faults = Path(folder), [], []
    for path in sorted((folder / FOLDER).glob("*.json")):
        try:
            result = read_versioned(path, Result, FORMAT)
        except RecordError as error:
            faults.append(f"the result {path} was left out: {error.reason}; remove it, and evaluate again")
            continue
        if result.encoder.startswith(f"{folder.resolve().name} ("):
            result = replace(result, about=with_settings(result.about, folder))
        results.append(result)
    results.sort(key=lambda result: (result.made, result.seed))  # several may be of one second
    # The same evaluation may be there in an earlier version's format and in today's: the later one counts.
    return list({result.file_name(): result for result in results}.values()), faults


def summarize(results: Iterable[Result]) -> list[Row]:
    """Mean and standard deviation of every metric, over results that differ only in their seeds."""
    groups: dict[str, dict[tuple[str | None, int], Result]] = {}
    for result in results:
        key = json.dumps([result.protocol, result.settings, result.data, encoder_key(result)], sort_keys=True)
        # Of the same seeds the last: a run that was repeated is not a second one.
        groups.setdefault(key, {})[result.about.get("seed"), result.seed] = result
    rows = []
    for group in (list(each.values()) for each in groups.values()):
        for metric in group[0].metrics:
            values = [result.metrics[metric] for result in group if metric in result.metrics]
            std = stdev(values) if len(values) > 1 else group[0].std.get(metric)
            rows.append(Row(group[0].protocol, metric, statistics.fmean(values), std, len(values), group[0]))
    return rows


def average(results: Sequence[Result]) -> Result:
    """The mean over results of several seeds, with their standard deviations; of one result, itself."""
    if len(results) == 1:
        return results[0]
    values = {metric: [result.metrics[metric] for result in results] for metric in results[0].metrics}
    return replace(
        results[0],
        metrics={metric: statistics.fmean(each) for metric, each in values.items()},
        std={metric: stdev(each) for metric, each in values.items()},
        warnings=tuple(dict.fromkeys(warning for result in results for warning in result.warnings)),
    )


def stdev(values: Sequence[float]) -> float:
    """The standard deviation of two or more values, with n - 1; NaN if one of them is not finite."""
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def encoder_settings(result: Result) -> dict[str, Any]:
    """Every setting, except the seed, that shaped the encoder of a result.

    An encoder whose file does not record them has its name instead: it equals no other.
    """
    settings = read_settings(result.about)
    if settings is not None:
        epoch = result.about.get("epoch")
        return settings | ({} if epoch == str(settings.get("epochs")) else {"epoch": epoch})  # not at its end
    if result.about:
        return {"encoder": result.encoder, **result.about}
    return {"encoder": result.encoder.partition(", seed")[0]}


def encoder_key(result: Result) -> str:
    """A key that encoders share if they differ only in their seed."""
    return json.dumps(encoder_settings(result), sort_keys=True)


SHOWN_FIRST = ("backbone", "mixing.mixer", "mixing.alpha", "epochs", "epoch", "images")
"""Settings that are named first, where they differ."""


def distinguish(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """A label for each of several settings that distinguishes it from the others: `backbone small, mixing.alpha 0.5`.

    It names the settings of `SHOWN_FIRST`, and as few more as distinguish all of them.
    """
    names = list(dict.fromkeys([*SHOWN_FIRST, *sorted(name for each in settings for name in each)]))
    names_shown: list[str] = []

    def kinds(chosen: list[str]) -> int:
        return len({json.dumps([each.get(name) for name in chosen]) for each in settings})

    for name in names:
        differs = kinds([name]) > 1
        if differs and (name in SHOWN_FIRST or kinds([*names_shown, name]) > kinds(names_shown)):
            names_shown.append(name)
    return [
        ", ".join(f"{name} {each[name]}" for name in names_shown if each.get(name) is not None) for each in settings
    ]


def encoder_labels(results: Iterable[Result]) -> dict[str, str]:
    """Labels that distinguish encoders of one method and objective, by `encoder_key`; empty where there is only one."""
    by_label: dict[str, dict[str, dict[str, Any]]] = {}
    for result in results:
        label = method_label(result) if result.about else ""
        by_label.setdefault(label, {})[encoder_key(result)] = encoder_settings(result) if result.about else {}
    return {
        key: text
        for members in by_label.values()
        for key, text in zip(members, distinguish(list(members.values())), strict=True)
    }


def show(results: Iterable[Result], console: Console | None = None) -> None:
    """Print a table of the metrics, with the paper's numbers where it has them, and the protocols' descriptions."""
    results = list(results)
    console = console or Console(highlight=False)
    rows = summarize(results)
    cells = [paper.find(row.result, row.metric) for row in rows]
    apart = encoder_labels(results)
    table = Table("encoder", "protocol", "metric", box=None, padding=(0, 2, 0, 0))
    table.add_column("measured", justify="right")
    if any(row.runs > 1 for row in rows):
        table.add_column("runs", justify="right")
    if any(cells):
        table.add_column("paper", justify="right")
    for row, cell in zip(rows, cells, strict=True):
        name = row.result.encoder if row.runs == 1 else method_label(row.result)
        name = ", ".join(filter(None, [name, apart[encoder_key(row.result)]]))
        line = [name, row.protocol, row.metric, format_metric(row.mean, row.std)]
        if any(each.runs > 1 for each in rows):
            line.append(str(row.runs))
        if any(cells):
            line.append(f"{cell.printed} [{cell.label}]" if cell else "")
        table.add_row(*map(to_rich_text, line))
    console.print(table)
    for source in dict.fromkeys(f"[{cell.label}] Paper: {cell.where}" for cell in cells if cell):
        console.print(to_rich_text(source), soft_wrap=True)
    for text in dict.fromkeys(f"{result.protocol}: {result.description} On {result.data}." for result in results):
        console.print(to_rich_text(text), soft_wrap=True)
    for note in dict.fromkeys(note for result in results for note in result.notes):
        console.print(to_rich_text(note), soft_wrap=True)
    for warning in dict.fromkeys(warning for result in results for warning in result.warnings):
        console.print(to_rich_text(f"warning: {warning}", "yellow"), soft_wrap=True)


def show_runs(folders: Sequence[str]) -> None:
    """Show the results in folders: mean ± std over runs that differ only in the seed.

    Args:
        folders: folders of runs, or those given as --out.
    """
    results: list[Result] = []
    for folder in folders:
        valid, faults = read_valid(folder)
        results += valid
        for fault in faults:
            say(fault)
    if not results:
        raise ValueError(f"there are no results in {', '.join(folders)}: evaluate first, with mixview evaluate knn …")
    show(results)


def method_label(result: Result) -> str:
    """The label of several encoders: their method and objective, or the name without its seed."""
    of_run = " ".join(result.about[name] for name in ("method", "objective") if name in result.about)
    return of_run or result.encoder.partition(", seed")[0]


def format_metric(mean: float, std: float | None) -> str:
    """`45.2 %` or `45.2 ± 0.3 %`"""
    if not math.isfinite(mean):
        return "undefined"
    return f"{mean:.1f} %" if std is None else f"{mean:.1f} ± {std:.1f} %"


def percentages(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics from 0 to 1 in percent."""
    return {name: 100 * float(value) for name, value in metrics.items()}
