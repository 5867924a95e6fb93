"""Pictures of a study: accuracy while training and at the end, against steps and against what they cost."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mixview.study.grid import Study
from mixview.study.results import CellResult
from mixview.study.statistics import summarise
from mixview.study.tables import Row, rows_of

AXES: tuple[tuple[str, Callable[[CellResult], float]], ...] = (
    ("steps", lambda result: float(result.steps)),
    ("CPU minutes of training", lambda result: result.cpu_seconds / 60),
)


def draw(study: Study, found: dict[str, CellResult], folder: Path) -> list[Path]:
    """Write the pictures that the results allow, as PNG and SVG; returns the PNGs."""
    written = []
    rows = [row for row in rows_of(study, found) if row.results]
    for data in dict.fromkeys(row.data for row in rows):
        part = [row for row in rows if row.data == data]
        trained = [row for row in part if row.cells[0].encoder is None]
        untrained = [row for row in part if row.cells[0].encoder is not None]
        stem = "-".join(each.lower().replace(" ", "-") for each in (study.name, data) if each)
        if any(len(result.curve) > 1 for row in trained for result in row.results):
            written.append(save(curves(trained), folder / f"{stem}-training"))
        if trained and study.columns:
            column = "linear" if "linear" in study.columns else study.columns[0]
            written.append(save(finals(trained, untrained, column), folder / f"{stem}-final"))
    return written


def panels(methods: Sequence[str]) -> tuple[Any, Any]:
    """A figure with a column a method and a row for steps and for compute."""
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    figure = Figure(figsize=(1 + 3.4 * len(methods), 6.2), layout="constrained")
    return figure, figure.subplots(2, len(methods), squeeze=False, sharey="col")


def curves(rows: Sequence[Row]) -> Any:
    """k-NN accuracy while training: mean over seeds, and their standard deviation as a band."""
    methods = list(dict.fromkeys(row.method for row in rows))
    figure, axes = panels(methods)
    for row in rows:
        told = [result for result in row.results if result.curve]
        steps = sorted(set.intersection(*(({step for step, _ in result.curve}) for result in told))) if told else []
        if not steps:
            continue
        values = np.array([[dict(result.curve)[step] for step in steps] for result in told])
        mean, spread = values.mean(axis=0), values.std(axis=0, ddof=1) if len(told) > 1 else np.zeros(len(steps))
        for line, (name, whole) in enumerate(AXES):
            axis = axes[line][methods.index(row.method)]
            x = np.array(steps) * np.mean([whole(result) / result.steps for result in told])
            (drawn,) = axis.plot(x, mean, label=" · ".join(each for each in (row.knob, row.objective) if each))
            axis.fill_between(x, mean - spread, mean + spread, color=drawn.get_color(), alpha=0.15, linewidth=0)
            axis.set_xlabel(name)
    dress(axes, methods, "k-NN accuracy while training, %")
    return figure


def finals(rows: Sequence[Row], untrained: Sequence[Row], column: str) -> Any:
    """One column at the end of training: mean and standard deviation; a line joins the budgets of an objective."""
    methods = list(dict.fromkeys(row.method for row in rows))
    figure, axes = panels(methods)
    for number, method in enumerate(methods):
        own = [row for row in rows if row.method == method and row.figures(column)]
        for objective in dict.fromkeys(base_name(row.objective) for row in own):
            members = [row for row in own if base_name(row.objective) == objective]
            scores = [summarise(list(row.figures(column).values())) for row in members]
            for line, (name, whole) in enumerate(AXES):
                x = [float(np.mean([whole(result) for result in row.results])) for row in members]
                order = np.argsort(x)
                joined = len({row.results[0].steps for row in members}) > 1  # budgets; other knobs have no order
                axes[line][number].errorbar(
                    np.array(x)[order],
                    np.array([score.mean for score in scores])[order],
                    yerr=np.array([score.std or 0.0 for score in scores])[order],
                    marker="o", markersize=4, capsize=2, linestyle="-" if joined else "", linewidth=1, label=objective,
                )  # fmt: skip
                axes[line][number].set_xlabel(name)
        for row in untrained:
            if values := list(row.figures(column).values()):
                for line in range(len(AXES)):
                    axes[line][number].axhline(summarise(values).mean, color="grey", linestyle=":", linewidth=1)
    dress(axes, methods, f"{column}, % (dotted: untrained)" if untrained else f"{column}, %")
    return figure


def base_name(objective: str) -> str:
    """An objective without the factor by which it was trained longer."""
    return objective.partition(" × ")[0]


def dress(axes: Any, methods: Sequence[str], label: str) -> None:
    """Titles, labels, legend."""
    for number, method in enumerate(methods):
        axes[0][number].set_title(method, fontsize=10)
        handles, _ = axes[0][number].get_legend_handles_labels()
        if handles:
            axes[0][number].legend(fontsize=7, frameon=False)
        for line in range(len(AXES)):
            axes[line][number].grid(alpha=0.2)
    for line in range(len(AXES)):
        axes[line][0].set_ylabel(label, fontsize=8)


def save(figure: Any, stem: Path) -> Path:
    """Write a figure as PNG and SVG, the same bytes for the same results; returns the PNG."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": stem.name, "svg.fonttype": "path"}):
        figure.savefig(stem.with_name(f"{stem.name}.svg"), metadata={"Date": None})
    png = stem.with_name(f"{stem.name}.png")
    figure.savefig(png, dpi=110, metadata={"Software": None})
    return png
