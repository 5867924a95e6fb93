"""How long the cells of a study take: from their passes and sizes, corrected by those that are done."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mixview.data.opening import open_source
from mixview.data.source import SourceError
from mixview.data.splits import parse_range
from mixview.study.grid import Cell
from mixview.study.results import CellResult

USUAL = 7.5e-7
"""Seconds of a core for a forward pass of the small ResNet, a pixel, on a busy machine: a guess to begin with."""

JUDGING = 30.0
"""Seconds for judging, likewise."""

IMAGES = 5000.0
"""To train on, where nothing tells."""


class Estimate:
    """Learns from every cell that is done: seconds a unit of work, apart for training and judging.

    Args:
        cells: all of the study.
        done: the results that there are.
    """

    def __init__(self, cells: Iterable[Cell], done: Iterable[CellResult]) -> None:
        by_name = {cell.name: cell for cell in cells}
        self.trained, self.worked = 0.0, 0.0
        self.judging: list[float] = []
        self.images: dict[str, float] = {}  # an epoch, by data set and knob
        for result in done:
            self.learn(by_name[result.name], result)

    def learn(self, cell: Cell, result: CellResult) -> None:
        """Take a result into account."""
        self.judging.append(result.judging_seconds)
        if result.work:
            self.images[cell.data + cell.knob] = result.images_seen / cell.epochs
            self.trained += result.cpu_seconds
            self.worked += self.work(cell)

    def images_seen(self, cell: Cell) -> float:
        """Images over all epochs."""
        if cell.encoder is not None:
            return 0.0
        images = self.images.get(cell.data + cell.knob)
        if images is None:
            images = self.images[cell.data + cell.knob] = images_of(cell)
        return cell.epochs * images

    def work(self, cell: Cell) -> float:
        """Forward passes of a pixel, in all."""
        return 0.0 if cell.encoder else cell.passes.work * self.images_seen(cell) * (cell.pretraining.size or 32) ** 2

    def seconds(self, cells: Iterable[Cell]) -> float:
        """What these cells take, one after the other on one core."""
        rate = self.trained / self.worked if self.worked else USUAL
        judging = sum(self.judging) / len(self.judging) if self.judging else JUDGING
        return sum(judging + rate * self.work(cell) for cell in cells)


class Pace:
    """How much longer things take than their estimate, on a machine that has other things to do.

    Args:
        clock: what tells the time, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.passed, self.expected = 0.0, 0.0
        self.running: dict[str, tuple[float, float]] = {}  # when each began, and how far it was then

    def begin(self, name: str, share: float = 0.0) -> None:
        """Something starts, with this share of it done already."""
        self.running[name] = self.clock(), share

    def end(self, name: str, seconds: float, finished: bool) -> None:
        """It has ended; `seconds` is what was expected of all of it."""
        began, share = self.running.pop(name)
        if finished:
            self.passed += self.clock() - began
            self.expected += (1 - share) * seconds

    def slowdown(self, shares: Mapping[str, float], seconds: Mapping[str, float]) -> float:
        """Seconds on the clock for each that was expected, by what has ended and how far the rest is."""
        passed, expected = self.passed, self.expected
        for name, (began, before) in self.running.items():
            if shares.get(name, 0.0) > before:
                passed += self.clock() - began
                expected += (shares[name] - before) * seconds[name]
        return passed / expected if expected > 1 else 1.0


def images_of(cell: Cell) -> float:
    """How many images a cell trains on: by its part of a split such as train[:5000], else by looking."""
    given = cell.pretraining
    part = parse_range(given.split)[1] if given.split else None
    if part is not None and part.stop is not None:
        return float(part.stop - (part.start or 0))
    if given.data is None:
        return IMAGES
    try:
        options: dict[str, Any] = {**(given.data_options or {})}
        return float(len(open_source(given.data, given.split, **options)))
    except (SourceError, OSError):  # not there (yet): a cell that is run will say so
        return IMAGES
