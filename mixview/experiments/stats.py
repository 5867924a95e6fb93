"""Means over seeds, and paired differences of runs with the same seeds."""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scipy.stats import t as student

from mixview.evaluate.results import stdev


class Mean(NamedTuple):
    """The mean of a metric over seeds."""

    mean: float
    std: float | None
    """Standard deviation, with n - 1; None for a single seed."""
    seeds: int

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.std is None else f"{self.mean:.1f} ± {self.std:.1f}"


class Difference(NamedTuple):
    """The paired difference of a metric, seed by seed."""

    mean: float
    low: float | None
    """Ends of the 95 % interval of the mean, by Student's t; None for a single pair."""
    high: float | None
    pairs: int
    """Number of seeds that both have."""
    p: float | None = None
    """The two-sided p-value of a mean of zero, by Student's t."""

    @property
    def significant(self) -> bool:
        """True if the interval excludes zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:+.1f}"
        text = f"{self.mean:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"
        return f"**{text}**" if self.significant else text


def summarize(values: Sequence[float]) -> Mean:
    """Mean and standard deviation."""
    std = stdev(values) if len(values) > 1 else None
    return Mean(statistics.fmean(values), std, len(values))


def compare(ours: Mapping[int, float], theirs: Mapping[int, float], level: float = 0.95) -> Difference | None:
    """The mean of ours - theirs over the seeds that both have; None if there are none.

    Args:
        ours: a metric by seed.
        theirs: the same metric of the baseline.
        level: confidence level of the interval.
    """
    pairs = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if not pairs:
        return None
    mean, std, count = summarize(pairs)
    if std is None:
        return Difference(mean, None, None, count)
    error = std / count**0.5
    half = float(student.ppf((1 + level) / 2, count - 1)) * error
    p = 2 * float(student.sf(abs(mean) / error, count - 1)) if error else float(mean == 0)
    return Difference(mean, mean - half, mean + half, count, p)


def adjust(p_values: Sequence[float], count: int, *, bonferroni: bool = False) -> list[float]:
    """p-values corrected for multiple comparisons, by Holm's method or by Bonferroni's.

    Args:
        p_values: the known ones.
        count: the number of planned comparisons; unknown ones count as 1.
        bonferroni: multiply all by the count, which is simpler and finds less.
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted = [1.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(order):
        highest = max(highest, p_values[place] * (count if bonferroni else count - rank))
        adjusted[place] = min(1.0, highest)
    return adjusted
