"""The table of evaluations: encoders down, figures across, mean ± deviation, the paper's own figures beside them."""

import json
import math
from collections.abc import Iterable
from typing import NamedTuple

from mixview.evaluate import paper
from mixview.evaluate.results import Result, Row, figure, summarise
from mixview.report.runs import Run, experiments
from mixview.train.run_folder import flatten

PROTOCOLS = ("knn", "linear", "probe", "svm", "lowshot", "semi", "supervised")


class Column(NamedTuple):
    """One figure: a metric of a protocol on some data."""

    protocol: str
    metric: str
    data: str
    words: list[str]
    """How it was measured: one sentence, or one for each encoder where something was chosen for it."""


class Cell(NamedTuple):
    """What was measured, and what the paper has in its place."""

    mean: float
    text: str
    runs: int
    best: bool
    paper: paper.Cell | None


class Line(NamedTuple):
    """An encoder, or the runs of one experiment."""

    name: str
    runs: list[str]
    cells: list[Cell | None]


class Judged(NamedTuple):
    """The whole table."""

    columns: list[Column]
    lines: list[Line]
    notes: list[str]
    warnings: list[str]


def tabulate(runs: Iterable[Run], others: list[Result]) -> Judged:
    """The table of all results of runs, and of encoders without a run."""
    groups = experiments(runs)
    named: list[tuple[str, list[str], list[Row]]] = []
    for group, name in zip(groups, name_groups(groups), strict=True):
        rows = summarise(result for run in group for result in run.results)
        # A run that was judged at several epochs has a line for each.
        for epoch in dict.fromkeys(row.example.about.get("epoch") for row in rows):
            part = [row for row in rows if row.example.about.get("epoch") == epoch]
            several = len({row.example.about.get("epoch") for row in rows}) > 1
            named.append((f"{name}, epoch {epoch}" if several else name, [run.name for run in group], part))
    rows = summarise(others)
    for encoder in dict.fromkeys(row.example.encoder.partition(", seed")[0] for row in rows):
        part = [row for row in rows if row.example.encoder.partition(", seed")[0] == encoder]
        named.append((encoder, [], part))
    columns = find_columns(row for _, _, part in named for row in part)
    keys = list(columns)
    best = best_figures((key_of(row), row.mean) for _, _, part in named for row in part)
    lines = []
    for name, members, part in named:
        cells: list[Cell | None] = [None] * len(keys)
        for row in part:
            printed = paper.find(row.protocol, row.metric, row.example.about)
            is_best = math.isclose(row.mean, best.get(key_of(row), math.nan), abs_tol=1e-9)
            text = figure(row.mean, row.std)
            cells[keys.index(key_of(row))] = Cell(row.mean, text, row.runs, is_best, printed)
        lines.append(Line(name, members, cells))
    results = [result for group in groups for run in group for result in run.results] + others
    notes = list(dict.fromkeys(note for result in results for note in result.notes))
    warnings = list(dict.fromkeys(f"{result.encoder}: {each}" for result in results for each in result.warnings))
    return Judged(list(columns.values()), lines, notes, warnings)


def key_of(row: Row) -> str:
    """What figures of one column have in common."""
    return json.dumps([row.protocol, row.metric, row.example.settings, row.example.data], sort_keys=True)


def find_columns(rows: Iterable[Row]) -> dict[str, Column]:
    """The columns by their key, in the order of the protocols."""
    columns: dict[str, Column] = {}
    for row in sorted(rows, key=lambda row: PROTOCOLS.index(row.protocol) if row.protocol in PROTOCOLS else 99):
        column = columns.setdefault(key_of(row), Column(row.protocol, row.metric, row.example.data, []))
        if row.example.words not in column.words:
            column.words.append(row.example.words)
    return columns


def best_figures(figures: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The best of each column that has something to compare."""
    found: dict[str, list[float]] = {}
    for key, mean in figures:
        if math.isfinite(mean):
            found.setdefault(key, []).append(mean)
    return {key: max(means) for key, means in found.items() if len(means) > 1}


def name_groups(groups: list[list[Run]]) -> list[str]:
    """A run's own name; several runs' method and objective, and in what they differ from other groups."""
    settings = [flatten(group[0].config) for group in groups]
    names = []
    for group, own in zip(groups, settings, strict=True):
        if len(group) == 1:
            names.append(group[0].name)
            continue
        alike = [each for each in settings if alike_in(each, own, ("method", "objective"))]
        differing = sorted(
            key
            for key in own
            if any(each.get(key) != own[key] for each in alike) and not key.startswith(("watch.", "out", "seed"))
        )
        more = ", ".join(f"{key} {own[key]}" for key in differing[:3])
        name = f"{own.get('method', '?')} {own.get('objective', '?')}"
        names.append(f"{name}, {len(group)} runs" + (f" ({more})" if more else ""))
    return names


def alike_in(one: dict[str, object], other: dict[str, object], names: Iterable[str]) -> bool:
    return all(one.get(name) == other.get(name) for name in names)
