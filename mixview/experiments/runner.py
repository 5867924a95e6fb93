"""Run a study: several runs side by side, one core each, from where an earlier process left off."""

import contextlib
import itertools
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
from mixview.experiments import results
from mixview.experiments.cost import Estimate, Pace
from mixview.experiments.run import INTERRUPTED, PARENT, TRUST, to_json
from mixview.experiments.spec import Study, StudyRun
from mixview.io.terminal import plain
from mixview.runs.progress import duration
from mixview.runs.run_directory import lock_exclusively, read_status

STOP_TIMEOUT = 120.0
"""Seconds that a run has to stop gracefully; then it is killed, and resumes from its last checkpoint."""


class StudyError(RuntimeError):
    """A study that cannot be run, or runs of it that failed."""


@dataclass
class Job:
    """A run and its process."""

    run: StudyRun
    process: subprocess.Popen[bytes]
    log: Path
    began: float


@dataclass
class Runner:
    """Carries out the runs of a study.

    Args:
        study: the study.
        out: the folder of results.
        runs: the folder for the run directories, which are large; each is removed once it is evaluated.
        cores: number of runs at a time, one thread each.
        keep_runs: do not remove run directories.
        seconds: stop gracefully after this time.
        trust_remote_code: let the processes import code that the study names.
        command: the command that carries out a run, given its description, its run directory, and the file of results.
    """

    study: Study
    out: Path
    runs: Path
    cores: int = 1
    keep_runs: bool = False
    seconds: float | None = None
    trust_remote_code: bool = False
    command: tuple[str, ...] = (sys.executable, "-P", "-m", "mixview.experiments.run")
    console: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))

    def __post_init__(self) -> None:
        if self.cores < 1:
            raise ValueError(f"cores must be at least 1, got {self.cores}")
        self.stop_reason: str | None = None
        self.failed: dict[str, str] = {}

    def run(self) -> bool:
        """Carry out the runs that are not done yet. Returns whether the study is complete; raises if runs failed."""
        with locked(self.runs / self.study.name), self.handle_signals():
            results.check_writable(self.study.name, self.out)
            faults: dict[str, list[str]] = {}
            done = results.match(self.study.runs, results.read_all(self.out, faults))
            for fault in itertools.chain.from_iterable(faults.values()):
                self.say(f"left out: {fault}")
            todo = [run for run in self.study.runs if run.name not in done]
            estimate = Estimate(self.study.runs, done)
            left = estimate.seconds(todo)
            self.say(
                f"{self.study.name}: {len(self.study.runs)} runs, {len(done)} done; "
                f"about {duration(left)} of core time left, {duration(left / self.cores)} on {self.cores} cores."
            )
            if todo:
                self.run_all(todo, estimate)
        if self.failed:
            name, log = next(iter(self.failed.items()))
            raise StudyError(
                f"{len(self.failed)} runs of {self.study.name} failed, {name} for one: {last_line(Path(log))} "
                f"({log} has the rest); the others are kept, and the same command tries these again"
            )
        return len(results.match(self.study.runs, results.read_all(self.out))) == len(self.study.runs)

    def run_all(self, todo: list[StudyRun], estimate: Estimate) -> None:
        """Keep `cores` runs running until there are none left, or it is time to stop."""
        deadline = None if self.seconds is None else time.monotonic() + self.seconds
        waiting, running, pace = list(todo), list[Job](), Pace()
        with self.bar(estimate.seconds(todo)) as show:
            try:
                while waiting or running:
                    if deadline is not None and time.monotonic() >= deadline:
                        self.stop_reason = self.stop_reason or "the time limit"
                    if self.stop_reason:
                        self.say(f"Stopping for {self.stop_reason}; the same command resumes from here.")
                        return
                    while waiting and len(running) < self.cores:
                        run = waiting.pop(0)
                        if results.find(run, self.out) is not None:  # another study has run it in the meantime
                            continue
                        running.append(self.start(run))
                        pace.begin(run.name, self.share_done(run, estimate))
                    for job in [job for job in running if job.process.poll() is not None]:
                        running.remove(job)
                        pace.end(job.run.name, estimate.seconds([job.run]), job.process.returncode == 0)
                        self.finish(job, estimate)
                    show(
                        len(todo) - len(waiting) - len(running),
                        len(todo),
                        *self.time_left(waiting, running, estimate, pace),
                    )
                    time.sleep(0.5)
            finally:
                self.stop(running, estimate)

    def time_left(
        self, waiting: list[StudyRun], running: list[Job], estimate: Estimate, pace: Pace
    ) -> tuple[float, float]:
        """Seconds of core time and of wall-clock time that are left."""
        seconds = {job.run.name: estimate.seconds([job.run]) for job in running}
        shares = {job.run.name: self.share_done(job.run, estimate) for job in running}
        left = estimate.seconds(waiting) + sum((1 - shares[name]) * seconds[name] for name in seconds)
        return left, left * pace.slowdown(shares, seconds) / self.cores

    def share_done(self, run: StudyRun, estimate: Estimate) -> float:
        """The share of a run's training that is in its last checkpoint, 0 to 1."""
        step = read_status(self.runs / self.study.name / run.name).get("step", 0)
        seen = estimate.images_seen(run)
        return min(1.0, step * int(run.pretraining.batch_size) / seen) if seen else 0.0

    def start(self, run: StudyRun) -> Job:
        """Start a run as a process of its own."""
        place = self.runs / self.study.name
        place.mkdir(parents=True, exist_ok=True)
        description, log = place / f"{run.name}.json", place / f"{run.name}.log"
        description.write_text(to_json(run), encoding="utf-8")
        files = (description, place / run.name, results.path_of(self.study.name, self.out))
        command = [*self.command, *([TRUST] if self.trust_remote_code else []), *map(str, files)]
        one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
        # Features of one run are of no use to another; compiled kernels are.
        kernels = os.environ.get("NUMBA_CACHE_DIR") or str(cache_folder("numba"))
        # Not on Windows, where the interpreter of a virtual environment stands between the two.
        runner = {PARENT: str(os.getpid())} if os.name == "posix" else {}
        caches = {"MIXVIEW_CACHE": str((place / f"{run.name}.cache").resolve()), "NUMBA_CACHE_DIR": kernels}
        with log.open("ab") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | one | caches | runner,
                start_new_session=True,  # Ctrl-C is for the study, which stops its runs gracefully
            )
        return Job(run, process, log, time.monotonic())

    def finish(self, job: Job, estimate: Estimate) -> None:
        """Record the end of a run's process."""
        place, code = self.runs / self.study.name, job.process.returncode
        result = results.find(job.run, self.out) if code == 0 else None
        if result is None:
            if code != INTERRUPTED and not self.stop_reason:
                self.failed[job.run.name] = str(job.log)
                self.say(f"failed: {job.run.name}: {last_line(job.log)}")
            return
        estimate.learn(job.run, result)
        if not self.keep_runs:
            shutil.rmtree(place / job.run.name, ignore_errors=True)
            job.log.unlink(missing_ok=True)
        shutil.rmtree(place / f"{job.run.name}.cache", ignore_errors=True)
        (place / f"{job.run.name}.json").unlink(missing_ok=True)
        metrics = ", ".join(f"{column} {value:.1f}" for column, value in result.metrics.items())
        self.say(f"{job.run.name}: {metrics} ({duration(time.monotonic() - job.began)})")

    def stop(self, running: list[Job], estimate: Estimate) -> None:
        """Stop the running processes gracefully, and wait for them."""
        for job in running:
            job.process.terminate()
        for job in running:
            try:
                job.process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                job.process.kill()
                job.process.wait()
            self.finish(job, estimate)

    def say(self, text: str) -> None:
        self.console.print(plain(text), soft_wrap=True)

    @contextlib.contextmanager
    def bar(self, seconds: float) -> Iterator[Callable[[int, int, float, float], None]]:
        """A function that shows how far the study is: a bar on a terminal, else a line every five minutes.

        It takes the numbers of finished and of all runs, and the seconds of core time and of wall-clock time left.
        """
        if not self.console.is_terminal:
            last_time = time.monotonic()

            def line(done: int, total: int, left: float, eta: float) -> None:
                nonlocal last_time
                if time.monotonic() - last_time >= 300:
                    last_time = time.monotonic()
                    self.say(f"{done}/{total} runs  ETA {duration(eta)}")

            yield line
            return
        columns = (
            rich.progress.BarColumn(bar_width=None),
            rich.progress.TextColumn("{task.description}", markup=False),
        )
        with rich.progress.Progress(*columns, console=self.console, auto_refresh=False, expand=True) as progress:
            task = progress.add_task("", total=max(seconds, 1.0))

            def draw(done: int, total: int, left: float, eta: float) -> None:
                text = f"{done}/{total} runs  ETA {duration(eta)}"
                progress.update(task, completed=max(0.0, seconds - left), description=text)
                progress.refresh()

            yield draw

    @contextlib.contextmanager
    def handle_signals(self) -> Iterator[None]:
        """While it is entered, SIGTERM and Ctrl-C stop the study gracefully."""

        def handle(number: int, frame: FrameType | None) -> None:
            self.stop_reason = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"

        previous = {}
        if threading.current_thread() is threading.main_thread():
            previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
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
    """The last line that a process printed."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it printed nothing"
