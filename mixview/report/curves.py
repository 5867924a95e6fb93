"""The curves of a run: its metrics over the epochs, as few points as a screen can show."""

from typing import Any, NamedTuple

from mixview.report.runs import ReportRun
from mixview.train.starting_weights import is_number
from mixview.train.step_timer import PARTS, Part, shares

CURVE_METRICS = (
    "loss",
    "knn",
    "std",
    "effective_rank",
    "alignment",
    "uniformity",
    "mixture_larger",
    "mixture_smaller",
    "mixture_follows_lam",
)
"""Metrics that have a curve."""


class Curve(NamedTuple):
    """A metric over the epochs."""

    epochs: list[float]
    values: list[float]


def steps_per_epoch(records: list[dict[str, Any]]) -> float | None:
    """By the last record that has both."""
    for record in reversed(records):
        if record.get("epoch") and record["step"]:
            return float(record["step"] / record["epoch"])
    return None


def follow(run: ReportRun, points: int) -> dict[str, Curve]:
    """The curves of a run, each of at most `points` points; a metric that was never finite has none."""
    each = steps_per_epoch(run.metrics)
    curves = {}
    for name in CURVE_METRICS:
        recorded = [(record["step"], record[name]) for record in run.metrics if is_number(record.get(name))]
        if recorded and each:
            thin = thin_out([(step / each, float(value)) for step, value in recorded], points)
            curves[name] = Curve([rounded(x) for x, _ in thin], [rounded(y) for _, y in thin])
    return curves


def time_shares(run: ReportRun) -> dict[Part, float]:
    """The share of time that each part of training took, all sessions together; of a run that did not log it, {}."""
    seconds: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
    for record in run.metrics:
        passed: Any = record.get("time/seconds")
        for part in PARTS:
            share: Any = record.get(f"time/{part}")
            if is_number(passed) and is_number(share):
                seconds[part] += max(0.0, float(passed)) * max(0.0, float(share))
    return {part: rounded(share) for part, share in shares(seconds).items()} if any(seconds.values()) else {}


def thin_out(points: list[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Means of neighboring points where there are too many; the last stays itself, for it is what is quoted."""
    if len(points) <= most:
        return points
    each = len(points) / (most - 1)
    parts = [points[round(number * each) : round((number + 1) * each)] for number in range(most - 1)]
    means = [tuple(sum(axis) / len(part) for axis in zip(*part, strict=True)) for part in parts if part]
    return [*((x, y) for x, y in means), points[-1]]


def rounded(value: float) -> float:
    """Five digits: more than a screen has."""
    return float(f"{value:.5g}")
