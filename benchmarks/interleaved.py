"""Two training loops side by side: each in a process of its own, one at a time let go on for a while, in turn."""

import contextlib
import gc
import multiprocessing
import os
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import NamedTuple

ENDLESS = 1_000_000
"""Images of an epoch, so that none ends: what an epoch's end does (evaluation, checkpoints) is not compared."""


class Finished(Exception):
    """Ends a loop from outside."""


class Turn(NamedTuple):
    """Images per second, and per second of CPU time."""

    rate: float
    cpu_rate: float


class Turns:
    """A loader that yields as many batches as requested, and then reports how long the loop took over them.

    Args:
        batches: the source of the batches.
        batch_size: images in each.
        pipe: connection to the process that requests batches.
        ahead: batches that workers have ready while the loop waits for its turn: these many are not timed.
    """

    def __init__(self, batches: Iterable[object], batch_size: int, pipe: Connection, ahead: int = 0) -> None:
        self.batches = batches
        self.batch_size = batch_size
        self.pipe = pipe
        self.ahead = ahead

    def __len__(self) -> int:
        return ENDLESS // self.batch_size

    def __iter__(self) -> Iterator[object]:
        source = iter(self.batches)
        while count := self.pipe.recv():
            for _ in range(self.ahead):
                yield next(source)
            start, start_cpu = time.perf_counter(), time.process_time()
            for _ in range(count):
                yield next(source)
            seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
            self.pipe.send(Turn(count * self.batch_size / seconds, count * self.batch_size / cpu_seconds))
        raise Finished


class Side:
    """A training loop in a process of its own.

    Args:
        run: trains on a loader, in a folder.
        batches: the source of the batches.
        batch_size: images in each.
        ahead: batches that workers have ready when a turn begins.
    """

    def __init__(
        self, run: Callable[[Turns, str], None], batches: Iterable[object], batch_size: int, ahead: int = 0
    ) -> None:
        self.batch_size = batch_size
        self.pipe, pipe = multiprocessing.Pipe()
        fork = multiprocessing.get_context("fork")
        self.process = fork.Process(target=work, args=(run, Turns(batches, batch_size, pipe, ahead)))
        self.process.start()
        pipe.close()

    def steps(self, count: int) -> Turn:
        """Take this many steps; 0 ends the loop."""
        self.pipe.send(count)
        answer = self.pipe.recv()
        if isinstance(answer, str):
            raise RuntimeError(answer)
        assert isinstance(answer, Turn)
        return answer

    def end(self) -> None:
        with contextlib.suppress(OSError):  # after an error it has ended already
            self.pipe.send(0)
        self.process.join()


def work(run: Callable[[Turns, str], None], turns: Turns) -> None:
    """Run a side in its process. Progress bars and hints are written, but to nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    try:
        with tempfile.TemporaryDirectory() as folder:
            run(turns, folder)
    except Finished:
        pass
    except BaseException:
        turns.pipe.send(traceback.format_exc())
    turns.batches = ()  # whose workers end with it: at the end of this process nobody would wait for them in order
    gc.collect()


def compare(ours: Side, theirs: Side, rounds: int, seconds: float) -> list[tuple[Turn, Turn]]:
    """The turns of both sides in each round: of equally many steps; who begins alternates."""
    turns = []
    try:
        for side in (ours, theirs):
            side.steps(2)  # warms up
        count = max(1, round(seconds * ours.steps(1).rate / ours.batch_size))
        for turn in range(rounds):
            first, second = (ours, theirs) if turn % 2 == 0 else (theirs, ours)
            taken = {id(side): side.steps(count) for side in (first, second)}
            turns.append((taken[id(ours)], taken[id(theirs)]))
    finally:
        ours.end()
        theirs.end()
    return turns


def report(title: str, turns: list[tuple[Turn, Turn]]) -> None:
    """One line: each side's median and spread, and the first side's ratio to the second's."""
    cells = []
    for side in zip(*turns, strict=True):
        rates = [turn.rate for turn in side]
        digits = 0 if min(rates) >= 10 else 2
        middle, low, high = (f"{rate:.{digits}f}" for rate in (statistics.median(rates), min(rates), max(rates)))
        cells.append(f"{middle} ({low} – {high})")
    for ratios in (
        sorted(ours.rate / theirs.rate for ours, theirs in turns),
        sorted(ours.cpu_rate / theirs.cpu_rate for ours, theirs in turns),
    ):
        quarter = len(ratios) // 4
        cells.append(f"{statistics.median(ratios):.3f} ({ratios[quarter]:.3f} – {ratios[-1 - quarter]:.3f})")
    print(line(title, *cells), flush=True)


def line(title: str, *cells: str) -> str:
    return f"{title:24}" + "".join(f"{cell:>22}" for cell in cells)
