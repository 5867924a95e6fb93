"""The effect of the α of Beta(α, α): metrics of runs that differ in nothing else, beside the paper's table."""

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from mixview.evaluate import paper
from mixview.evaluate.results import distinguish, encoder_settings, stdev
from mixview.io.records import flatten
from mixview.report.figures.drawing import COLORS, PALE, in_style, new_figure, open_runs, save
from mixview.report.runs import ReportRun

ONLINE_KNN = "online k-NN"


class Measured(NamedTuple):
    """One metric of one encoder."""

    name: str
    """The protocol and the metric."""
    how: dict[str, Any]
    """Settings of the protocol, and the data."""
    settings: dict[str, Any]
    """Settings of the encoder, except the seed."""
    value: float
    """In percent."""


class Point(NamedTuple):
    """The values of the runs of one α, which differ in their seeds only."""

    alpha: float | None
    """None where nothing is mixed."""
    values: list[float]


class Curve(NamedTuple):
    """Runs that differ in nothing but α and their seeds; runs of SIM have one point."""

    name: str
    points: list[Point]


@in_style
def draw_alpha(runs: list[str], out: Path = Path("alpha"), metrics: list[str] | None = None) -> list[Path]:
    """Draw a metric over α, from runs that differ in --mixing.alpha and in their seeds; runs of SIM are a line.

    Runs that differ in any other setting are on different curves.

    Args:
        runs: Folders of the runs.
        out: Name of the figure: OUT.png and OUT.svg are written.
        metrics: Metrics to draw, such as "knn top-1"; by default up to four that have at least two values of α.

    Example:
        >>> paths = draw_alpha(["runs/alpha-0.5", "runs/alpha-1"], metrics=["knn top-1"])
        wrote alpha.png and alpha.svg
    """
    panels = gather_curves(open_runs(runs))
    compared = {name for name, curves in panels.items() if any(len(curve.points) > 1 for curve in curves)}
    names = [name for name in panels if name in compared and (metrics is None or name in metrics)][:4]
    if not names:
        available = ", ".join(panels) or "none"
        raise ValueError(
            "there are no two α to compare: pass runs that differ in --mixing.alpha and in no other setting, and have "
            f"been evaluated (metrics: {available})"
        )
    figure = new_figure(3.6 * (len(names) + 1), 3.3)
    axes_of = figure.subplots(1, len(names) + 1)
    for axes, name in zip(axes_of[:-1], names, strict=True):
        unmixed = [curve for curve in panels[name] if curve.points[0].alpha is None]
        for number, curve in enumerate(curve for curve in panels[name] if curve not in unmixed):
            draw_curve(axes, curve.points, curve.name, COLORS[number % len(COLORS)])
        for number, curve in enumerate(unmixed):
            style = ("--", ":", "-.")[number % 3]
            axes.axhline(statistics.fmean(curve.points[0].values), color=PALE, linestyle=style, label=curve.name)
        axes.set(xlabel="α", ylabel=f"{name} (%)", title=name)
        axes.legend(fontsize=7)
    draw_paper(axes_of[-1])
    return save(figure, out)


def measurements(run: ReportRun) -> Iterator[Measured]:
    """The evaluations in a run's folder, the mean over seeds of the evaluation, and its own k-NN at the end."""
    seeds: dict[str, list[Measured]] = {}
    for result in run.results:
        how = flatten(result.settings) | {"data": result.data}
        for metric, value in result.metrics.items():
            each = Measured(f"{result.protocol} {metric}", how, encoder_settings(result), value)
            encoder = result.about.get("seed")
            seeds.setdefault(json.dumps([each.name, each.how, each.settings, encoder]), []).append(each)
    for same in seeds.values():
        yield same[0]._replace(value=statistics.fmean(each.value for each in same))
    online = [record for record in run.metrics if record.get("knn") is not None]
    if online:
        settings = run.settings | {"step": online[-1]["step"]}
        config = flatten(run.config)
        how = {
            name: config.get(name) for name in ("validation", "validation_split", "monitor.images", "monitor.hold_out")
        }
        yield Measured(ONLINE_KNN, how, settings, 100 * online[-1]["knn"])


def gather_curves(runs: list[ReportRun]) -> dict[str, list[Curve]]:
    """The curves of each metric, measured in one way. What differs in more than α and seed is on different curves."""
    measured = [
        each for run in runs for each in measurements(run) if is_unmixed(each) or "mixing.alpha" in each.settings
    ]
    panels: dict[str, list[Curve]] = {}
    for name in dict.fromkeys(each.name for each in measured):
        ways: dict[str, list[Measured]] = {}
        for each in measured:
            if each.name == name:
                ways.setdefault(json.dumps(each.how, sort_keys=True), []).append(each)
        for group, apart in zip(ways.values(), distinguish([group[0].how for group in ways.values()]), strict=True):
            panels[f"{name}, {apart}" if apart else name] = curves_of(group)
    return panels


def curves_of(measured: list[Measured]) -> list[Curve]:
    """Values that were measured alike, as curves over α."""
    families: dict[str, dict[str, list[Measured]]] = {}
    for each in measured:
        rest = json.dumps(each.settings | {"mixing.alpha": None}, sort_keys=True)
        families.setdefault(name_curve(each), {}).setdefault(rest, []).append(each)
    curves = []
    for name, groups in families.items():
        for group, apart in zip(groups.values(), distinguish([json.loads(each) for each in groups]), strict=True):
            values: dict[float | None, list[float]] = {}
            for each in group:
                values.setdefault(each.settings.get("mixing.alpha"), []).append(each.value)
            points = [Point(value, values[value]) for value in sorted(values, key=lambda value: value or 0.0)]
            curves.append(Curve(f"{name}, {apart}" if apart else name, points))
    return curves


def is_unmixed(measured: Measured) -> bool:
    return measured.settings.get("objective") == "sim"


def name_curve(measured: Measured) -> str:
    """The name of a curve."""
    if is_unmixed(measured):
        return "SIM, nothing mixed"
    method, objective, mixer = (measured.settings.get(name) for name in ("method.name", "objective", "mixing.mixer"))
    return f"{method} {objective}, {mixer}"


def draw_curve(axes: Axes, points: list[Point], name: str, color: str) -> None:
    """Means, and standard deviations where an α has several runs."""
    means = [statistics.fmean(point.values) for point in points]
    std = [stdev(point.values) if len(point.values) > 1 else 0.0 for point in points]
    alphas = [point.alpha or 0.0 for point in points]
    axes.errorbar(alphas, means, std if any(std) else None, color=color, marker="o", capsize=3, label=name)


def draw_paper(axes: Axes) -> None:
    """The paper's own table of α."""
    (table,) = paper.tables()["tab: sensitivity_alpha"]
    points = sorted((float(row[1]), paper.number(row[2])) for row in table.rows)
    axes.plot(*zip(*points, strict=True), color=COLORS[4], marker="s", linestyle=":", label=table.rows[0][0])
    baseline = paper.number(paper.tables()["tab:svm"][0].cell("MoCoV2", "SVM"))
    assert baseline is not None
    axes.axhline(baseline, color=PALE, linestyle="--", label="MoCoV2")
    axes.set(
        xlabel="α",
        ylabel="SVM on VOC2007, mAP (%)",
        title=f"the paper's, Table {table.number}\n(ResNet-50 on ImageNet)",
    )
    axes.legend(fontsize=7)
