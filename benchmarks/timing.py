"""Timing side by side: every candidate in turn, again and again, so that a noisy machine is noisy for all of them."""

import statistics
import time
from collections.abc import Callable


def interleaved(
    candidates: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each candidate in each round, after one round to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(rounds + 1):
        for name, run in candidates.items():
            start = clock()
            run()
            if turn:
                seconds[name].append(clock() - start)
    return seconds


def row(name: str, seconds: list[float], unit: float = 1e3) -> str:
    """Median and spread, in milliseconds by default."""
    low, high = min(seconds) * unit, max(seconds) * unit
    return f"{name:34} {statistics.median(seconds) * unit:10.2f}   ({low:.2f} – {high:.2f})"
