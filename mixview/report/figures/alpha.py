"""How much the α of Beta(α, α) matters: figures of runs that differ in nothing else, beside the paper's table."""

import statistics
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes

from mixview.evaluate import paper
from mixview.report.figures.drawing import COLOURS, PALE, in_style, new_figure, open_runs, save
from mixview.report.runs import Run

WATCHED = "k-NN while training"


class Point(NamedTuple):
    """The figures of the runs of one α."""

    alpha: float
    values: list[float]


@in_style
def alpha(runs: list[str], out: Path = Path("alpha"), metrics: list[str] | None = None) -> list[Path]:
    """Draw a figure over α, from runs that differ in --mixing.alpha (and in their seeds); runs of SIM are a line.

    Args:
        runs: their folders.
        out: OUT.png and OUT.svg are written.
        metrics: which, such as "knn top-1"; by default all that runs of two α have, at most four.
    """
    found = open_runs(runs)
    curves = gather_curves(found)
    names = [name for name in curves if metrics is None or name in metrics]
    names = [name for name in names if any(len(points) > 1 for points in curves[name].values())][:4]
    if not names:
        known = ", ".join(curves) or "none"
        raise ValueError(
            "there are no two α to compare: give runs that differ in --mixing.alpha and have been judged (metrics: "
            f"{known})"
        )
    figure = new_figure(3.6 * (len(names) + 1), 3.3)
    panels = figure.subplots(1, len(names) + 1)
    for axes, name in zip(panels[:-1], names, strict=True):
        for number, (group, points) in enumerate(curves[name].items()):
            draw_curve(axes, sorted(points), group, COLOURS[number % len(COLOURS)])
        plain = [
            value
            for run in found
            if run.config.get("objective") == "sim"
            for value in [figures(run).get(name)]
            if value is not None
        ]
        if plain:
            axes.axhline(statistics.fmean(plain), color=PALE, linestyle="--", label="SIM, nothing mixed")
        axes.set(xlabel="α", ylabel=f"{name} (%)", title=name)
        axes.legend(fontsize=7)
    draw_paper(panels[-1])
    return save(figure, out)


def figures(run: Run) -> dict[str, float]:
    """What is known of a run, in per cent: its last evaluations, and its own k-NN at the end."""
    known = {f"{result.protocol} {name}": value for result in run.results for name, value in result.metrics.items()}
    watched = [record["knn"] for record in run.metrics if record.get("knn") is not None]
    return known | ({WATCHED: 100 * watched[-1]} if watched else {})


def gather_curves(runs: list[Run]) -> dict[str, dict[str, list[Point]]]:
    """{metric: {method, objective and mixer: points}}"""
    curves: dict[str, dict[str, list[Point]]] = {}
    for run in runs:
        mixing = run.config.get("mixing") or {}
        if run.config.get("objective") == "sim" or "alpha" not in mixing:
            continue
        group = f"{run.config.get('method')} {run.config.get('objective')}, {mixing.get('mixer')}"
        for name, value in figures(run).items():
            points = curves.setdefault(name, {}).setdefault(group, [])
            same = [point for point in points if point.alpha == float(mixing["alpha"])]
            if same:
                same[0].values.append(value)
            else:
                points.append(Point(float(mixing["alpha"]), [value]))
    return curves


def draw_curve(axes: Axes, points: list[Point], name: str, colour: str) -> None:
    """Means, and deviations where an α has several runs."""
    means = [statistics.fmean(point.values) for point in points]
    spread = [statistics.stdev(point.values) if len(point.values) > 1 else 0.0 for point in points]
    alphas = [point.alpha for point in points]
    axes.errorbar(alphas, means, spread if any(spread) else None, color=colour, marker="o", capsize=3, label=name)


def draw_paper(axes: Axes) -> None:
    """The paper's own table of α."""
    (table,) = paper.tables()["tab: sensitivity_alpha"]
    points = sorted((float(row[1]), paper.number(row[2])) for row in table.rows)
    axes.plot(*zip(*points, strict=True), color=COLOURS[4], marker="s", linestyle=":", label=table.rows[0][0])
    baseline = paper.number(paper.tables()["tab:svm"][0].cell("MoCoV2", "SVM"))
    assert baseline is not None
    axes.axhline(baseline, color=PALE, linestyle="--", label="MoCoV2")
    axes.set(xlabel="α", ylabel="SVM on VOC2007, mAP (%)", title=f"the paper's, Table {table.number}")
    axes.legend(fontsize=7)
