"""Pictures of a study: accuracy while training, at the end, and against what it costs."""

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mixview.atomic import atomic_write
from mixview.study.grid import Study
from mixview.study.results import CellResult
from mixview.study.statistics import summarise
from mixview.study.tables import Row, in_words, of_seeds, rows_of

AXES: tuple[tuple[str, Callable[[CellResult], float]], ...] = (
    ("steps", lambda result: float(result.steps)),
    ("compute: million forward passes of an image\n(one backward counts as two)", lambda result: result.work / 1e6),
)
COLUMN = "linear"
"""What is drawn of the end, where a study has it; else its first column."""


def draw(study: Study, found: dict[str, CellResult], folder: Path) -> dict[Path, str]:
    """Write the pictures that the results allow, as PNG and SVG; returns the PNGs, and what they show."""
    written = {}
    rows = [row for row in rows_of(study, found) if row.results]
    column = COLUMN if COLUMN in study.columns else next(iter(study.columns), "")
    for data in dict.fromkeys(row.data for row in rows):
        part = [row for row in rows if row.data == data]
        trained = [row for row in part if row.trained]
        stem = "-".join(each.lower().replace(" ", "-") for each in (study.name, data) if each)
        if any(len(result.curve) > 1 for row in trained for result in row.results):
            written[save(curves(trained), folder / f"{stem}-training")] = "accuracy while training"
        if any(row.longer for row in trained):
            written[save(budgets(trained, column), folder / f"{stem}-compute")] = "accuracy against steps and compute"
        if any(row.figures(column) for row in trained):
            ends = finals(part, study.baseline, column)
            written[save(ends, folder / f"{stem}-final")] = "accuracy at the end of training"
    return written


def panels(methods: Sequence[str], legend: int) -> tuple[Any, Any]:
    """A figure with a column a method, a row for steps and one for compute, and room for a legend under it."""
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    figure = Figure(figsize=(1 + 3.6 * len(methods), 6.4 + 0.17 * legend), layout="constrained")
    return figure, figure.subplots(2, len(methods), squeeze=False, sharey="col")


def colours(names: Sequence[str]) -> dict[str, Any]:
    """A colour for each, twenty before they repeat."""
    from matplotlib import colormaps

    chosen = colormaps["tab10" if len(names) <= 10 else "tab20"].colors  # type: ignore[attr-defined, unused-ignore]
    return {name: chosen[number % len(chosen)] for number, name in enumerate(names)}


def lines_of(rows: Sequence[Row]) -> list[str]:
    """What is told apart by colour: knob and objective."""
    return list(dict.fromkeys(in_words(row.knob, row.objective) for row in rows))


def curves(rows: Sequence[Row]) -> Any:
    """k-NN accuracy while training: mean over seeds, and their standard deviation as a band."""
    methods = list(dict.fromkeys(row.method for row in rows))
    names = lines_of([row for row in rows if not row.longer])
    figure, axes = panels(methods, legend=len(names) // 3)
    colour = colours(names)
    for row in rows:
        told = [result for result in row.results if result.curve]
        steps = sorted(set.intersection(*(({step for step, _ in result.curve}) for result in told))) if told else []
        if not steps:
            continue
        values = np.array([[dict(result.curve)[step] for step in steps] for result in told])
        mean, spread = values.mean(axis=0), values.std(axis=0, ddof=1) if len(told) > 1 else np.zeros(len(steps))
        name = in_words(row.knob, row.objective)
        shade = next((colour[in_words(base.knob, base.objective)] for base in rows if is_longer_of(row, base)), "grey")
        look = {"color": shade, "linestyle": "--"} if row.longer else {"color": colour[name]}
        for line, (_, whole) in enumerate(AXES):
            axis = axes[line][methods.index(row.method)]
            x = np.array(steps) * np.mean([whole(result) / result.steps for result in told])
            axis.plot(x, mean, label=name, linewidth=1.2, **look)
            axis.fill_between(x, mean - spread, mean + spread, color=look["color"], alpha=0.12, linewidth=0)
    dress(
        figure,
        axes,
        methods,
        "k-NN accuracy while training, %",
        f"Mean of {seeds_of(rows)}, band: standard deviation; dashed: the baseline, trained longer.",
    )
    return figure


def budgets(rows: Sequence[Row], column: str) -> Any:
    """One column at the end of training against steps and compute; a line joins a baseline and its longer runs."""
    methods = list(dict.fromkeys(row.method for row in rows))
    names = lines_of([row for row in rows if not row.longer])
    figure, axes = panels(methods, legend=len(names) // 3)
    colour = colours(names)
    for row in rows:
        if row.longer:
            continue
        family = [row, *(each for each in rows if is_longer_of(each, row))]
        points = [(each, summarise(list(each.figures(column).values()))) for each in family if each.figures(column)]
        for line, (_, whole) in enumerate(AXES):
            x = np.array([float(np.mean([whole(result) for result in each.results])) for each, _ in points])
            order = np.argsort(x)
            axes[line][methods.index(row.method)].errorbar(
                x[order],
                np.array([score.mean for _, score in points])[order],
                yerr=np.array([score.std or 0.0 for _, score in points])[order],
                marker="o", markersize=4, capsize=2, linewidth=1, linestyle="-" if len(points) > 1 else "",
                color=colour[in_words(row.knob, row.objective)], label=in_words(row.knob, row.objective),
            )  # fmt: skip
    words = f"Mean and standard deviation of {seeds_of(rows)}; a line joins the lengths of the baseline."
    dress(figure, axes, methods, f"{column}, %", words)
    return figure


def is_longer_of(longer: Row, row: Row) -> bool:
    """Whether a row is the baseline `row`, trained longer."""
    return (
        longer.longer
        and not row.longer
        and longer.group == row.group
        and longer.objective.startswith(f"{row.objective} × ")
    )


def finals(rows: Sequence[Row], baseline: str | None, column: str) -> Any:
    """One column at the end of training, row by row: mean, standard deviation, and every seed as a dot."""
    from matplotlib.figure import Figure

    told = [row for row in rows if row.figures(column)]
    figure = Figure(figsize=(8.5, 1.1 + 0.26 * len(told)), layout="constrained")
    axis = figure.subplots()
    for place, row in enumerate(told):
        values = list(row.figures(column).values())
        score = summarise(values)
        plain = row.objective == baseline or row.longer
        colour = "tab:grey" if not row.trained else "tab:blue" if plain else "tab:orange"
        axis.plot(values, [place] * len(values), ".", color=colour, alpha=0.35, markersize=5)
        axis.errorbar(score.mean, place, xerr=score.std or 0.0, fmt="o", color=colour, capsize=2, markersize=5)
        if place and row.group != told[place - 1].group:
            axis.axhline(place - 0.5, color="lightgrey", linewidth=0.8)
    for first, last, mean in baseline_spans(told, baseline, column):
        axis.plot([mean, mean], [first - 0.4, last + 0.4], color="tab:blue", linestyle=":", linewidth=1)
    axis.set_yticks(range(len(told)), [f"{row.label} ({of_seeds(row)})" for row in told], fontsize=8)
    axis.invert_yaxis()
    axis.grid(axis="x", alpha=0.2)
    compared = f" Dotted: {baseline}, blue also where it was trained longer." if baseline is not None else ""
    axis.set_xlabel(f"{column}, %\nIn brackets and as dots: seeds; bars: standard deviation.{compared}", fontsize=8)
    return figure


def baseline_spans(rows: Sequence[Row], baseline: str | None, column: str) -> Iterator[tuple[int, int, float]]:
    """First and last place of each group that has a baseline, and the baseline's mean."""
    for row in rows:
        if row.objective == baseline:
            places = [place for place, each in enumerate(rows) if each.group == row.group]
            yield places[0], places[-1], summarise(list(row.figures(column).values())).mean


def seeds_of(rows: Sequence[Row]) -> str:
    """`5 seeds`, or `1 to 5 seeds` where rows have different numbers of them."""
    counts = sorted({len(row.results) for row in rows})
    text = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    return f"{text} seed{'' if text == '1' else 's'}"


def dress(figure: Any, axes: Any, methods: Sequence[str], label: str, words: str) -> None:
    """Titles, labels, and one legend under all panels."""
    handles: dict[str, Any] = {}
    for number, method in enumerate(methods):
        axes[0][number].set_title(method, fontsize=10)
        for line, (name, _) in enumerate(AXES):
            axes[line][number].grid(alpha=0.2)
            axes[line][number].set_xlabel(name, fontsize=8)
            for handle, told in zip(*axes[line][number].get_legend_handles_labels(), strict=True):
                handles.setdefault(told, handle)
    for line in range(len(AXES)):
        axes[line][0].set_ylabel(label, fontsize=8)
    columns = min(3, len(handles)) if len(methods) < 3 else min(6, len(handles))
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=columns, fontsize=7, frameon=False
    )
    figure.suptitle(words, fontsize=8)


def save(figure: Any, stem: Path) -> Path:
    """Write a figure as PNG and SVG, the same bytes for the same results; returns the PNG."""
    import matplotlib as mpl

    stem.parent.mkdir(parents=True, exist_ok=True)
    for kind, options in (("svg", {"metadata": {"Date": None}}), ("png", {"metadata": {"Software": None}, "dpi": 110})):
        content = io.BytesIO()
        with mpl.rc_context({"svg.hashsalt": stem.name, "svg.fonttype": "path"}):
            figure.savefig(content, format=kind, **options)
        with atomic_write(stem.with_name(f"{stem.name}.{kind}")) as file:
            file.write(content.getvalue())
    return stem.with_name(f"{stem.name}.png")
