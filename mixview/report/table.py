"""The table of evaluations: one row per encoder, one column per metric, mean ± std, with the paper's numbers."""

import json
import math
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from mixview.evaluate import paper
from mixview.evaluate.base import protocols
from mixview.evaluate.results import Result, Row, encoder_key, encoder_labels, format_metric, method_label, summarize
from mixview.report.runs import ReportRun


class Column(NamedTuple):
    """A metric of a protocol on some data."""

    protocol: str
    metric: str
    data: str
    descriptions: list[str]
    """Descriptions of the measurement: one sentence, or one per encoder where something was chosen for it."""


class Cell(NamedTuple):
    """A measurement, and the paper's number for it."""

    mean: float
    text: str
    runs: int
    best: bool
    paper: paper.PaperNumber | None


class Line(NamedTuple):
    """An encoder, or the runs of one experiment."""

    name: str
    runs: list[str]
    cells: list[Cell | None]


class Evaluations(NamedTuple):
    """The whole table."""

    columns: list[Column]
    lines: list[Line]
    notes: list[str]
    warnings: list[str]


def tabulate(runs: Iterable[ReportRun], others: list[Result]) -> Evaluations:
    """The table of all results of runs, and of encoders without a run."""
    runs = list(runs)
    results = [result for run in runs for result in run.results] + others
    names, members = name_lines(runs, others)
    parts: dict[str, list[Row]] = {key: [] for key in names}
    for row in summarize(results):
        parts[encoder_key(row.result)].append(row)
    columns = find_columns(row for part in parts.values() for row in part)
    keys = list(columns)
    best = best_values((key_of(row), row.mean) for part in parts.values() for row in part)
    lines = []
    for encoder, part in parts.items():
        cells: list[Cell | None] = [None] * len(keys)
        for row in part:
            printed = paper.find(row.result, row.metric)
            is_best = math.isclose(row.mean, best.get(key_of(row), math.nan), abs_tol=1e-9)
            text = format_metric(row.mean, row.std)
            cells[keys.index(key_of(row))] = Cell(row.mean, text, row.runs, is_best, printed)
        lines.append(Line(names[encoder], members[encoder], cells))
    notes = list(dict.fromkeys(note for result in results for note in result.notes))
    warnings = list(dict.fromkeys(f"{result.encoder}: {each}" for result in results for each in result.warnings))
    return Evaluations(list(columns.values()), lines, notes, warnings)


def name_lines(runs: list[ReportRun], others: list[Result]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """By `encoder_key`: the name of each line, and the runs that are in it.

    A line is named after its run or encoder; one of several after method and objective, and what tells it from others.
    """
    examples: dict[str, Result] = {}
    members: dict[str, dict[str, None]] = {}  # runs, in their order
    encoders: dict[str, dict[str, None]] = {}
    for owner, result in [(run, each) for run in runs for each in run.results] + [(None, each) for each in others]:
        key, name = encoder_key(result), result.encoder.partition(", seed")[0]
        examples.setdefault(key, result)
        line = members.setdefault(key, {})
        if owner is not None and name.startswith(f"{owner.path.resolve().name} ("):  # not of another, only kept here
            line[owner.name] = None
            name = owner.name
        encoders.setdefault(key, {})[name] = None
    names = {
        key: next(iter(own)) if len(own) == 1 else f"{method_label(examples[key])}, {len(own)} runs"
        for key, own in encoders.items()
    }
    apart = encoder_labels(examples.values())
    shared = {name for name, count in Counter(names.values()).items() if count > 1}
    for key, name in names.items():
        if apart[key] and (len(encoders[key]) > 1 or name in shared):
            names[key] = f"{name} ({apart[key]})"
    return names, {key: list(line) for key, line in members.items()}


def key_of(row: Row) -> str:
    """The key of a row's column."""
    return json.dumps([row.protocol, row.metric, row.result.settings, row.result.data], sort_keys=True)


def find_columns(rows: Iterable[Row]) -> dict[str, Column]:
    """The columns by their key, the cheapest protocols first."""
    columns: dict[str, Column] = {}
    costs = {each.name: each.run_order for each in protocols()}
    for row in sorted(rows, key=lambda row: costs.get(row.protocol, math.inf)):
        column = columns.setdefault(key_of(row), Column(row.protocol, row.metric, row.result.data, []))
        if row.result.description not in column.descriptions:
            column.descriptions.append(row.result.description)
    return columns


def best_values(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The best of each column that has something to compare."""
    means_by_column: dict[str, list[float]] = {}
    for key, mean in values:
        if math.isfinite(mean):
            means_by_column.setdefault(key, []).append(mean)
    return {key: max(means) for key, means in means_by_column.items() if len(means) > 1}
