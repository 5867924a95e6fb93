"""Runs the cells of a study side by side, a core each, and picks up where an earlier process left off."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import rich.progress
from rich.console import Console

from mixview.data.cache import cache_folder
from mixview.study import results
from mixview.study.cell import INTERRUPTED, PARENT, to_json
from mixview.study.estimate import Estimate, Pace
from mixview.study.grid import Cell, Study
from mixview.terminal import plain
from mixview.train.progress import duration
from mixview.train.run_folder import lock_exclusively, read_status

PATIENCE = 120.0
"""Seconds that a cell has to stop in good order; then it is killed, and goes on from its last checkpoint."""


class StudyError(RuntimeError):
    """A study that cannot be run, or cells of it that failed."""


@dataclass
class Job:
    """A cell that is running."""

    cell: Cell
    process: subprocess.Popen[bytes]
    log: Path
    began: float


@dataclass
class Runner:
    """Works off the cells of a study.

    Args:
        out: the folder of results.
        runs: where the runs go, which are large; the run of a cell is removed once it is judged.
        cores: cells that run at a time, one thread each.
        keep_runs: do not remove them.
        seconds: stop in good order after this time.
        command: what runs a cell, given its description, the folder of its run, and the file for its result.
    """

    study: Study
    out: Path
    runs: Path
    cores: int = 1
    keep_runs: bool = False
    seconds: float | None = None
    command: tuple[str, ...] = (sys.executable, "-P", "-m", "mixview.study.cell")
    console: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))

    def __post_init__(self) -> None:
        if self.cores < 1:
            raise ValueError(f"cores must be at least 1, got {self.cores}")
        self.asked_to_stop: str | None = None
        self.failed: dict[str, str] = {}

    def run(self) -> bool:
        """Run what is not done yet. Returns whether the study is complete; raises when cells failed."""
        with locked(self.runs / self.study.name), self.listening():
            done = results.found(self.study.cells, self.out)
            todo = [cell for cell in self.study.cells if cell.name not in done]
            estimate = Estimate(self.study.cells, done.values())
            left = estimate.seconds(todo)
            self.say(
                f"{self.study.name}: {len(self.study.cells)} cells, {len(done)} done; "
                f"about {duration(left)} of a core to go, {duration(left / self.cores)} on {self.cores}."
            )
            if todo:
                self.work_off(todo, estimate)
        if self.failed:
            name, log = next(iter(self.failed.items()))
            raise StudyError(
                f"{len(self.failed)} cells of {self.study.name} failed, {name} for one: {last_line(Path(log))} "
                f"({log} has the rest); the others are kept, and the same command tries these again"
            )
        return len(results.found(self.study.cells, self.out)) == len(self.study.cells)

    def work_off(self, todo: list[Cell], estimate: Estimate) -> None:
        """Keep `cores` cells running until there are none left, or it is time to stop."""
        deadline = None if self.seconds is None else time.monotonic() + self.seconds
        waiting, running, pace = list(todo), list[Job](), Pace()
        with self.bar(estimate.seconds(todo)) as show:
            try:
                while waiting or running:
                    if deadline is not None and time.monotonic() >= deadline:
                        self.asked_to_stop = self.asked_to_stop or "the time limit"
                    if self.asked_to_stop:
                        self.say(f"Stopping for {self.asked_to_stop}; the same command goes on from here.")
                        return
                    while waiting and len(running) < self.cores:
                        cell = waiting.pop(0)
                        if results.find(cell, self.out) is not None:  # another study has run it meanwhile
                            continue
                        running.append(self.start(cell))
                        pace.begin(cell.name, self.share_done(cell, estimate))
                    for job in [job for job in running if job.process.poll() is not None]:
                        running.remove(job)
                        pace.end(job.cell.name, estimate.seconds([job.cell]), job.process.returncode == 0)
                        self.finish(job, estimate)
                    show(
                        len(todo) - len(waiting) - len(running),
                        len(todo),
                        *self.ahead(waiting, running, estimate, pace),
                    )
                    time.sleep(0.5)
            finally:
                self.stop(running, estimate)

    def ahead(self, waiting: list[Cell], running: list[Job], estimate: Estimate, pace: Pace) -> tuple[float, float]:
        """Seconds of a core that are still to be spent, and seconds on the clock until then."""
        seconds = {job.cell.name: estimate.seconds([job.cell]) for job in running}
        shares = {job.cell.name: self.share_done(job.cell, estimate) for job in running}
        left = estimate.seconds(waiting) + sum((1 - shares[name]) * seconds[name] for name in seconds)
        return left, left * pace.slowdown(shares, seconds) / self.cores

    def share_done(self, cell: Cell, estimate: Estimate) -> float:
        """How much of a cell's training is in its last checkpoint, 0 to 1."""
        step = read_status(self.runs / self.study.name / cell.name).get("step", 0)
        seen = estimate.images_seen(cell)
        return min(1.0, step * int(cell.pretraining.batch) / seen) if seen else 0.0

    def start(self, cell: Cell) -> Job:
        """Start a cell as a process of its own."""
        place = self.runs / self.study.name
        place.mkdir(parents=True, exist_ok=True)
        description, log = place / f"{cell.name}.json", place / f"{cell.name}.log"
        description.write_text(to_json(cell), encoding="utf-8")
        command = [*self.command, str(description), str(place / cell.name), str(results.path_of(cell, self.out))]
        one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
        # Features of one run are of no use to another; compiled kernels are.
        kernels = os.environ.get("NUMBA_CACHE_DIR") or str(cache_folder("numba"))
        # Not on Windows, where the interpreter of a virtual environment stands between the two.
        runner = {PARENT: str(os.getpid())} if os.name == "posix" else {}
        caches = {"MIXVIEW_CACHE": str((place / f"{cell.name}.cache").resolve()), "NUMBA_CACHE_DIR": kernels}
        with log.open("ab") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | one | caches | runner,
                start_new_session=True,  # Ctrl-C is for the study, which stops its cells in good order
            )
        return Job(cell, process, log, time.monotonic())

    def finish(self, job: Job, estimate: Estimate) -> None:
        """Take note of a cell that has ended."""
        place, code = self.runs / self.study.name, job.process.returncode
        result = results.find(job.cell, self.out) if code == 0 else None
        if result is None:
            if code != INTERRUPTED and not self.asked_to_stop:
                self.failed[job.cell.name] = str(job.log)
                self.say(f"failed: {job.cell.name}: {last_line(job.log)}")
            return
        estimate.learn(job.cell, result)
        if not self.keep_runs:
            shutil.rmtree(place / job.cell.name, ignore_errors=True)
            job.log.unlink(missing_ok=True)
        shutil.rmtree(place / f"{job.cell.name}.cache", ignore_errors=True)
        (place / f"{job.cell.name}.json").unlink(missing_ok=True)
        figures = ", ".join(f"{column} {value:.1f}" for column, value in result.metrics.items())
        self.say(f"{job.cell.name}: {figures} ({duration(time.monotonic() - job.began)})")

    def stop(self, running: list[Job], estimate: Estimate) -> None:
        """Ask the cells that run to stop, and wait for them."""
        for job in running:
            job.process.terminate()
        for job in running:
            try:
                job.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                job.process.kill()
                job.process.wait()
            self.finish(job, estimate)

    def say(self, text: str) -> None:
        self.console.print(plain(text), soft_wrap=True)

    @contextlib.contextmanager
    def bar(self, seconds: float) -> Iterator[Callable[[int, int, float, float], None]]:
        """A function that shows how far the study is: a bar on a terminal, else a line every five minutes.

        It takes the cells that are done, all cells, the seconds of a core that are left, and those on the clock.
        """
        if not self.console.is_terminal:
            shown = time.monotonic()

            def line(done: int, total: int, left: float, eta: float) -> None:
                nonlocal shown
                if time.monotonic() - shown >= 300:
                    shown = time.monotonic()
                    self.say(f"{done}/{total} cells  ETA {duration(eta)}")

            yield line
            return
        columns = (
            rich.progress.BarColumn(bar_width=None),
            rich.progress.TextColumn("{task.description}", markup=False),
        )
        with rich.progress.Progress(*columns, console=self.console, auto_refresh=False, expand=True) as progress:
            task = progress.add_task("", total=max(seconds, 1.0))

            def draw(done: int, total: int, left: float, eta: float) -> None:
                words = f"{done}/{total} cells  ETA {duration(eta)}"
                progress.update(task, completed=max(0.0, seconds - left), description=words)
                progress.refresh()

            yield draw

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """While it is entered, SIGTERM and Ctrl-C ask for a stop in good order."""

        def asked(number: int, frame: FrameType | None) -> None:
            self.asked_to_stop = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"

        previous = {}
        if threading.current_thread() is threading.main_thread():
            previous = {number: signal.signal(number, asked) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second process from running the same study in the same folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+b") as file:
        try:
            lock_exclusively(file)
        except BlockingIOError:
            raise StudyError(f"another process runs this study in {folder}: wait for it, or stop it") from None
        yield


def last_line(log: Path) -> str:
    """The last words of a process."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"
