"""Plots of a study: accuracy during training, at the end, and against compute."""

import io
import json
import math
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mixview.experiments.file_names import digest, slug
from mixview.experiments.plan import Comparison, PlannedRows, compare_rows, missing_rows
from mixview.experiments.results import RunResult
from mixview.experiments.spec import Study
from mixview.experiments.stats import summarize
from mixview.experiments.tables import Row, count_seeds, join_labels, rows_of
from mixview.io.atomic import atomic_write

AXES: tuple[tuple[str, Callable[[RunResult], float]], ...] = (
    ("steps", lambda result: float(result.steps)),
    ("compute: million forward passes of an image\n(one backward counts as two)", lambda result: result.work / 1e6),
)
MAX_COLUMNS = 4
"""Panels in a row."""
POINT_SPACING = 0.012
"""Distance between points of equal cost, which would hide each other: a share of the axis."""
COLUMN = "linear"
"""The column that is drawn for the end of training, if a study has it; otherwise its first."""


def draw(study: Study, results: dict[str, RunResult], folder: Path) -> dict[Path, str]:
    """Write the plots that the results allow, as PNG and SVG; returns the PNGs and their descriptions."""
    import matplotlib as mpl

    with mpl.rc_context({"text.parse_math": False}):  # a label with dollar signs is a label
        return draw_all(study, results, folder)


def draw_all(study: Study, results: dict[str, RunResult], folder: Path) -> dict[Path, str]:
    """`draw`, with the settings of matplotlib as they are."""
    written: dict[Path, str] = {}
    stems: set[str] = set()
    if study.plan is not None and study.plan.confirmatory:
        comparisons = compare_rows(study, rows_of(study, results))
        if any(each.difference is not None for each in comparisons):
            missing = missing_rows(study, comparisons)
            figure = plot_differences(comparisons, str(study.baseline), study.plan.margin, missing)
            description = f"difference to {study.baseline} at equal compute"
            written[save(figure, folder / f"{slug(study.name)}-differences")] = description
    rows = [row for row in rows_of(study, results) if row.results]
    column = COLUMN if COLUMN in study.columns else next(iter(study.columns), "")
    for data in dict.fromkeys(row.data for row in rows):
        part = [row for row in rows if row.data == data]
        trained = [row for row in part if row.trained]
        stem = slug(study.name, data)
        if stem in stems:  # labels that differ in capitals, say
            stem = f"{stem}-{digest(data)}"
        stems.add(stem)
        if any(len(result.curve) > 1 for row in trained for result in row.results):
            written[save(plot_training(trained), folder / f"{stem}-training")] = "accuracy during training"
        if any(len(line) > 1 for panel in panels_of(trained) for line in panel.lines.values()):
            written[save(plot_cost(trained, column), folder / f"{stem}-compute")] = "accuracy against steps and compute"
        if any(row.values(column) for row in trained):
            ends = plot_final(part, study.baseline, column)
            written[save(ends, folder / f"{stem}-final")] = "accuracy at the end of training"
    return written


class Panel(NamedTuple):
    """Rows that are compared with each other. A line is an objective, with the lengths that it was trained for."""

    title: str
    lines: dict[str, list[Row]]


def panels_of(rows: Sequence[Row]) -> list[Panel]:
    """A panel per method and variant; variants that differ only in their length share one.

    If the variants are compared, each with one objective, there is a panel per method and a line per variant.
    """
    groups: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        groups.setdefault(row.group, row)
    of_objectives = any(not row.is_matched_baseline and row.objective != groups[row.group].objective for row in rows)
    lines_by_panel: dict[tuple[str, ...], dict[str, list[Row]]] = {}
    for row in rows:
        plain = next((each for each in rows if is_longer_of(row, each)), row)
        name = plain.objective if of_objectives else join_labels(plain.variant, plain.objective)
        key = (row.method, settings_but_length(groups[row.group])) if of_objectives else (row.method,)
        lines_by_panel.setdefault(key, {}).setdefault(name, []).append(row)
    panels = []
    for (method, *_), lines in lines_by_panel.items():
        variants = dict.fromkeys(row.variant for line in lines.values() for row in line)
        subtitle = join_variants(list(variants)) if of_objectives and "" not in variants else ""
        panels.append(Panel("\n".join((method, *textwrap.wrap(subtitle, 46))), lines))
    return panels


def join_variants(variants: Sequence[str]) -> str:
    """One name for several variants: `500 images, 2 epochs / 4 epochs`."""
    parts = [variant.split(", ") for variant in variants]
    if len({len(each) for each in parts}) > 1:
        return "; ".join(variants)
    return ", ".join(" / ".join(dict.fromkeys(place)) for place in zip(*parts, strict=True))


def settings_but_length(row: Row) -> str:
    """The settings of a row without its epochs and its seed."""
    settings = {name: value for name, value in row.runs[0].settings.items() if name not in ("epochs", "seed")}
    return json.dumps(settings, sort_keys=True, default=str)


def canvas(panels: Sequence[Panel], label: str, title: str) -> tuple[Any, list[tuple[Any, Any]], dict[str, Any]]:
    """A figure with its legend, for every panel its axes of steps and of compute, and for every line its color."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure  # without pyplot: no display, no global state
    from matplotlib.lines import Line2D

    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    chosen = colormaps["tab10" if len(names) <= 10 else "tab20"].colors  # type: ignore[attr-defined, unused-ignore]
    colors = {name: chosen[number % len(chosen)] for number, name in enumerate(names)}

    across = min(MAX_COLUMNS, len(panels))
    bands = math.ceil(len(panels) / across)
    width = max(1 + 3.6 * across, 6.0)
    columns = max(1, min(len(names), int(width / (0.7 + 0.055 * max(map(len, names), default=0)))))
    figure = Figure(figsize=(width, 6.2 * bands + 0.17 * math.ceil(len(names) / columns)), layout="constrained")
    grid = figure.subplots(2 * bands, across, squeeze=False)
    pairs = []
    for number in range(bands * across):
        pair = (grid[number // across * 2][number % across], grid[number // across * 2 + 1][number % across])
        if number >= len(panels):
            for axis in pair:
                axis.remove()
            continue
        pair[1].sharey(pair[0])
        pair[0].set_title(panels[number].title, fontsize=8)
        for axis, (name, _) in zip(pair, AXES, strict=True):
            axis.grid(alpha=0.2)
            axis.set_xlabel(name, fontsize=8)
            axis.tick_params(labelsize=8)
            if number % across == 0:
                axis.set_ylabel(label, fontsize=8)
        pairs.append(pair)
    handles = [Line2D([], [], color=colors[name]) for name in names]
    figure.legend(handles, names, loc="outside lower center", ncols=columns, fontsize=7, frameon=False)
    figure.suptitle("\n".join(textwrap.wrap(title, int(15 * width))), fontsize=8)
    return figure, pairs, colors


def plot_training(rows: Sequence[Row]) -> Any:
    """k-NN accuracy during training: mean over seeds, and the standard deviation as a band."""
    panels = panels_of(rows)
    title = f"Mean of {seeds_of(rows)}, band: standard deviation; dashed: the baseline, trained longer."
    figure, pairs, colors = canvas(panels, "k-NN accuracy during training, %", title)
    for panel, pair in zip(panels, pairs, strict=True):
        for name, row in ((name, row) for name, line in panel.lines.items() for row in line):
            drawn = [result for result in row.results if result.curve and result.steps]
            common = [{step for step, _ in result.curve} for result in drawn]
            steps = sorted(set.intersection(*common)) if common else []
            if not steps:
                continue
            values = np.array([[dict(result.curve)[step] for step in steps] for result in drawn])
            mean, std = values.mean(axis=0), values.std(axis=0, ddof=1) if len(drawn) > 1 else np.zeros(len(steps))
            for axis, (_, cost_of) in zip(pair, AXES, strict=True):
                x = np.array(steps) * np.mean([cost_of(result) / result.steps for result in drawn])
                axis.plot(
                    x, mean, linewidth=1.2, color=colors[name], linestyle="--" if row.is_matched_baseline else "-"
                )
                axis.fill_between(x, mean - std, mean + std, color=colors[name], alpha=0.12, linewidth=0)
    return figure


def plot_cost(rows: Sequence[Row], column: str) -> Any:
    """One column at the end of training against steps and compute; a line joins the lengths of an objective."""
    panels = panels_of(rows)
    title = (
        f"Mean and standard deviation of {seeds_of(rows)}; a line joins the lengths of an objective; "
        "points of equal cost are drawn side by side."
    )
    figure, pairs, colors = canvas(panels, f"{column}, %", title)
    for panel, pair in zip(panels, pairs, strict=True):
        points = [(name, row) for name, line in panel.lines.items() for row in line if row.values(column)]
        scores = [summarize(list(row.values(column).values())) for _, row in points]
        for axis, (_, cost_of) in zip(pair, AXES, strict=True):
            x = side_by_side([float(np.mean([cost_of(result) for result in row.results])) for _, row in points])
            for name in panel.lines:
                line = sorted((x[place], score) for place, score in enumerate(scores) if points[place][0] == name)
                axis.errorbar(
                    [cost for cost, _ in line],
                    [score.mean for _, score in line],
                    yerr=[score.std or 0.0 for _, score in line],
                    marker="o", markersize=4, capsize=2, linewidth=1, color=colors[name],
                )  # fmt: skip
            axis.set_xlim(0, 1.1 * max(x, default=1.0))
    return figure


def side_by_side(costs: Sequence[float]) -> list[float]:
    """Costs, equal ones moved apart a little."""
    width = POINT_SPACING * max(costs, default=0.0)
    alike = [[place for place, each in enumerate(costs) if math.isclose(each, cost, rel_tol=1e-2)] for cost in costs]
    return [
        cost + width * (others.index(place) - (len(others) - 1) / 2)
        for place, (cost, others) in enumerate(zip(costs, alike, strict=True))
    ]


def is_longer_of(longer: Row, row: Row) -> bool:
    """Return True if `longer` is the baseline `row`, trained longer."""
    return (
        longer.is_matched_baseline
        and not row.is_matched_baseline
        and longer.group == row.group
        and longer.objective.startswith(f"{row.objective} × ")
    )


def plot_final(rows: Sequence[Row], baseline: str | None, column: str) -> Any:
    """One column at the end of training, row by row: mean, standard deviation, and every seed as a dot."""
    from matplotlib.figure import Figure

    drawn = [row for row in rows if row.values(column)]
    places, headings = places_of(drawn)
    lines = places[-1] + 1
    figure = Figure(figsize=(8.5, 1.1 + 0.26 * lines), layout="constrained")
    axis = figure.subplots()
    labels = []
    for number, (place, row) in enumerate(zip(places, drawn, strict=True)):
        values = list(row.values(column).values())
        score = summarize(values)
        plain = row.objective == baseline or row.is_matched_baseline
        color = "tab:gray" if not row.trained else "tab:blue" if plain else "tab:orange"
        axis.plot(values, [place] * len(values), ".", color=color, alpha=0.35, markersize=5)
        axis.errorbar(score.mean, place, xerr=score.std or 0.0, fmt="o", color=color, capsize=2, markersize=5)
        if number and row.group != drawn[number - 1].group:
            axis.axhline(places[number - 1] + 0.5, color="lightgray", linewidth=0.8)
        labels.append(f"{row.objective if row.group in headings else row.label} ({count_seeds(row)})")
    for first, last, mean in baseline_spans(drawn, places, baseline, column):
        axis.plot([mean, mean], [first - 0.4, last + 0.4], color="tab:blue", linestyle=":", linewidth=1)
    for group, place in headings.items():
        heading = join_labels(*group[1:])
        axis.text(0.01, place, heading, transform=axis.get_yaxis_transform(), fontsize=8, weight="bold", va="center")
    axis.set_yticks(places, labels, fontsize=8)
    axis.set_ylim(lines - 0.5, -0.5)
    axis.grid(axis="x", alpha=0.2)
    compared = f" Dotted: {baseline}, blue also where it was trained longer." if baseline is not None else ""
    axis.set_xlabel(f"{column}, %", fontsize=8)
    figure.suptitle(f"In brackets and as dots: seeds; bars: standard deviation.{compared}", fontsize=8)
    return figure


def plot_differences(
    comparisons: Sequence[Comparison], baseline: str, margin: float, missing: Sequence[PlannedRows] = ()
) -> Any:
    """The difference to the baseline of equal compute in every column, with its interval, row by row.

    Args:
        comparisons: the planned comparisons of the existing rows.
        baseline: the objective that they are compared with.
        margin: the number of points that a default may be behind.
        missing: planned rows without results.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    columns = list(dict.fromkeys(each.column for each in comparisons))
    colors = dict(zip(columns, colormaps["tab10"].colors, strict=False))  # type: ignore[attr-defined, unused-ignore]
    own, rows = difference_rows(comparisons, missing)
    figure = Figure(figsize=(8.5, 1.4 + 0.36 * len(rows)), layout="constrained")
    axis = figure.subplots()
    for each, key in zip(comparisons, own, strict=True):
        difference = each.difference
        if difference is None:
            continue
        place = rows.index(key) + 0.22 * (columns.index(each.column) - (len(columns) - 1) / 2)
        low, high = (difference.mean if end is None else end for end in (difference.low, difference.high))
        axis.errorbar(
            difference.mean, place, xerr=[[difference.mean - low], [high - difference.mean]], capsize=2, markersize=5,
            color=colors.get(each.column, "tab:gray"), fmt="o", alpha=0.35 if each.verdict == "open" else 1,
            markerfacecolor=None if each.verdict in ("ahead", "behind") else "white",
        )  # fmt: skip
    labels = []
    for number, row in enumerate(rows):
        shown = [each for each, key in zip(comparisons, own, strict=True) if key == row]
        if not any(each.difference for each in shown):
            axis.text(0.01, number, "open", transform=axis.get_yaxis_transform(), color="gray", fontsize=8, va="center")
        labels.append(join_labels(*row) + missing_seeds(shown))
        if number and row[:2] != rows[number - 1][:2]:
            new_method = row[0] != rows[number - 1][0]
            axis.axhline(number - 0.5, color="gray" if new_method else "lightgray", linewidth=0.8)
    axis.axvline(0, color="black", linewidth=0.8)
    axis.axvline(-margin, color="gray", linestyle=":", linewidth=1)
    axis.set_yticks(range(len(rows)), labels, fontsize=8)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.grid(axis="x", alpha=0.2)
    axis.set_xlabel(f"difference to {baseline} at equal compute, points", fontsize=8)
    handles = [Line2D([], [], marker="o", color=colors.get(column, "tab:gray"), label=column) for column in columns]
    figure.legend(handles=handles, fontsize=7, frameon=False, loc="outside lower center", ncols=len(columns))
    title = (
        "Mean over seeds and its interval, not corrected; filled: ahead or behind after correction; pale: seeds are "
        f"missing; dotted: {margin:g} points behind."
    )
    figure.suptitle("\n".join(textwrap.wrap(title, 110)), fontsize=8)
    return figure


DifferenceRow = tuple[str, str, str]
"""Method, data, and the label of a row of `plot_differences`."""


def difference_rows(
    comparisons: Sequence[Comparison], missing: Sequence[PlannedRows]
) -> tuple[list[DifferenceRow], list[DifferenceRow]]:
    """The row of each comparison, and all rows in their order: methods and their datasets stand together."""
    variants = Counter(group[:2] for group in {each.row.group for each in comparisons})
    own = [
        (row.method, row.data, join_labels(row.variant if variants[row.group[:2]] > 1 else "", row.objective))
        for row in (each.row for each in comparisons)
    ]
    every = dict.fromkeys([*own, *((each.method, each.data, f"not chosen yet ({each.number})") for each in missing)])
    methods, groups = list(dict.fromkeys(row[0] for row in every)), list(dict.fromkeys(row[:2] for row in every))
    return own, sorted(every, key=lambda row: (methods.index(row[0]), groups.index(row[:2])))


def missing_seeds(comparisons: Sequence[Comparison]) -> str:
    """` (2 of 5 seeds)` for the comparisons of a row, some of which are open; empty if none is."""
    pairs = [each.difference.pairs if each.difference else 0 for each in comparisons if each.verdict == "open"]
    return f" ({min(pairs)} of {len(comparisons[0].row.runs)} seeds)" if pairs else ""


def places_of(rows: Sequence[Row]) -> tuple[list[int], dict[tuple[str, str, str], int]]:
    """The line of each row, and of the heading of each group of two or more: full labels would be wide."""
    members = Counter(row.group for row in rows)
    places: list[int] = []
    headings: dict[tuple[str, str, str], int] = {}
    line = 0
    for row in rows:
        if members[row.group] > 1 and any(row.group[1:]) and row.group not in headings:
            headings[row.group] = line
            line += 1
        places.append(line)
        line += 1
    return places, headings


def baseline_spans(
    rows: Sequence[Row], places: Sequence[int], baseline: str | None, column: str
) -> Iterator[tuple[int, int, float]]:
    """First and last line of each group that has a baseline, and the baseline's mean."""
    for row in rows:
        if row.objective == baseline:
            lines = [place for place, each in zip(places, rows, strict=True) if each.group == row.group]
            yield lines[0], lines[-1], summarize(list(row.values(column).values())).mean


def seeds_of(rows: Sequence[Row]) -> str:
    """`5 seeds`, or `1 to 5 seeds` where rows have different numbers of them."""
    counts = sorted({len(row.results) for row in rows})
    text = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    return f"{text} seed{'' if text == '1' else 's'}"


def save(figure: Any, stem: Path) -> Path:
    """Write a figure as PNG and SVG, the same bytes for the same results; returns the PNG."""
    import matplotlib as mpl

    stem.parent.mkdir(parents=True, exist_ok=True)
    for kind, options in (("svg", {"metadata": {"Date": None}}), ("png", {"metadata": {"Software": None}, "dpi": 110})):
        content = io.BytesIO()
        with mpl.rc_context({"svg.hashsalt": stem.name, "svg.fonttype": "path"}), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from font")  # boxes, where the font has no such letter
            figure.savefig(content, format=kind, **options)
        with atomic_write(stem.with_name(f"{stem.name}.{kind}")) as file:
            file.write(content.getvalue())
    return stem.with_name(f"{stem.name}.png")
