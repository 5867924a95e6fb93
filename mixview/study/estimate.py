"""How long the cells of a study take: from their passes and sizes, corrected by those that are done."""

from collections.abc import Iterable

from mixview.data.splits import parse_range
from mixview.study.grid import Cell
from mixview.study.results import CellResult

USUAL = 5e-7
"""Seconds of a core for a forward pass of the small ResNet, a pixel; a guess, before anything was measured."""

JUDGING = 60.0
"""Seconds for judging, likewise."""


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
        self.images: dict[str, float] = {}  # an epoch, by data set
        for result in done:
            self.learn(by_name[result.name], result)

    def learn(self, cell: Cell, result: CellResult) -> None:
        """Take a result into account."""
        self.judging.append(result.judging_seconds)
        if result.work:
            self.images[cell.data] = result.images_seen / cell.epochs
            self.trained += result.cpu_seconds
            self.worked += self.work(cell)

    def work(self, cell: Cell) -> float:
        """Forward passes of a pixel, in all."""
        if cell.encoder is not None:
            return 0.0
        settings = cell.pretraining
        images = self.images.get(cell.data) or images_of(settings.split)
        return cell.passes.work * cell.epochs * images * (settings.size or 32) ** 2

    def seconds(self, cells: Iterable[Cell]) -> float:
        """What these cells take, one after the other on one core."""
        rate = self.trained / self.worked if self.worked else USUAL
        judging = sum(self.judging) / len(self.judging) if self.judging else JUDGING
        return sum(judging + rate * self.work(cell) for cell in cells)


def images_of(split: str | None) -> float:
    """How many images a part of a split such as train[:5000] has; a guess for any other."""
    part = parse_range(split)[1] if split else None
    return float(part.stop - (part.start or 0)) if part is not None and part.stop is not None else 5000.0
