"""Run a study: several runs side by side, one core each, from where an earlier process left off.

What is carried out at once is an encoder: it is trained once, and evaluated for all runs of the study that differ only
in their labels or columns.
"""

import contextlib
import itertools
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import rich.progress
from rich.console import Console

from mixview.data.cache import cache_folder
from mixview.experiments import results
from mixview.experiments.cost import Estimate, SlowdownTracker
from mixview.experiments.leases import Leases
from mixview.experiments.run import INTERRUPTED, PARENT, TRUST
from mixview.experiments.spec import Study
from mixview.experiments.study_run import StudyRun, to_json
from mixview.io.terminal import to_rich_text
from mixview.runs.progress import duration
from mixview.runs.run_directory import lock_exclusively, read_status

STOP_TIMEOUT = 120.0
"""Seconds that a run has to stop gracefully; then it is killed, and resumes from its last checkpoint."""

LEASES = "leases"
"""The folder of a study with the leases of the machines that share it."""
RETRY_SECONDS = 10.0
"""Seconds between two attempts to take over the runs of other machines."""


class StudyError(RuntimeError):
    """A study that cannot be run, or runs of it that failed."""


@dataclass
class Job:
    """Runs that share an encoder, and their process."""

    runs: list[StudyRun]
    process: subprocess.Popen[bytes]
    log: Path
    began: float

    @property
    def run(self) -> StudyRun:
        """The first of its runs."""
        return self.runs[0]

    @property
    def name(self) -> str:
        return self.run.encoder_name


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
        machine: the name of this machine, where several share `out`: each run is carried out by one of them.
        command: the command that carries out runs, given their description, their run directory, and the file of
            results.
    """

    study: Study
    out: Path
    runs: Path
    cores: int = 1
    keep_runs: bool = False
    seconds: float | None = None
    trust_remote_code: bool = False
    machine: str | None = None
    command: tuple[str, ...] = (sys.executable, "-P", "-m", "mixview.experiments.run")
    console: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))

    def __post_init__(self) -> None:
        if self.cores < 1:
            raise ValueError(f"cores must be at least 1, got {self.cores}")
        self.stop_reason: str | None = None
        self.next_retry = 0.0
        self.failed: dict[str, str] = {}
        self.place = self.runs / self.study.name
        self.results_file = results.path_of(self.study.name, self.out, self.machine)
        folder = self.out / self.study.name / LEASES
        # The lock of the folder of runs keeps out a second process of this name.
        self.leases = (
            None if self.machine is None else Leases(folder, f"{platform.node()} {self.machine} {self.place.resolve()}")
        )

    def run(self) -> bool:
        """Carry out the runs that are not done yet. Returns whether the study is complete; raises if runs failed."""
        with locked(self.place), self.handle_signals(), self.leases or contextlib.nullcontext():
            results.check_writable(self.results_file)
            faults: dict[str, list[str]] = {}
            records = results.read_all(self.out, faults)
            done = results.match(self.study.runs, records)
            for fault in itertools.chain.from_iterable(faults.values()):
                self.say(f"left out: {fault}")
            todo = [run for run in self.study.runs if run.name not in done]
            estimate = Estimate(self.study.runs, done, itertools.chain.from_iterable(records.values()))
            left = estimate.seconds(todo)
            self.say(
                f"{self.study.name}: {len(self.study.runs)} runs, {len(done)} done; "
                f"about {duration(left)} of CPU time left, {duration(left / self.cores)} on {self.cores} cores."
            )
            if todo:
                self.run_all(group_by_encoder(todo), estimate)
        if self.failed:
            name, log = next(iter(self.failed.items()))
            raise StudyError(
                f"{len(self.failed)} runs of {self.study.name} failed, {name} for one: {last_line(Path(log))} "
                f"({log} has the rest); the others are kept, and the same command tries these again"
            )
        return len(results.match(self.study.runs, results.read_all(self.out))) == len(self.study.runs)

    def run_all(self, todo: list[list[StudyRun]], estimate: Estimate) -> None:
        """Keep `cores` encoders in work until there are none left, or it is time to stop."""
        deadline = None if self.seconds is None else time.monotonic() + self.seconds
        waiting, running, tracker = list(todo), list[Job](), SlowdownTracker()
        with self.bar(estimate.seconds(itertools.chain(*todo))) as show:
            try:
                while waiting or running:
                    if deadline is not None and time.monotonic() >= deadline:
                        self.stop_reason = self.stop_reason or "the time limit"
                    if self.stop_reason:
                        self.say(f"Stopping for {self.stop_reason}; the same command resumes from here.")
                        return
                    for runs in self.next_of(waiting, self.cores - len(running)):
                        running.append(self.start(runs))
                        tracker.begin(runs[0].encoder_name, self.share_done(runs, estimate))
                    for job in [job for job in running if job.process.poll() is not None]:
                        running.remove(job)
                        if self.lost(job) and job.process.returncode:
                            waiting.append(job.runs)  # until the other has done it
                        tracker.end(job.name, estimate.seconds(job.runs), job.process.returncode == 0)
                        self.finish(job, estimate)
                    for job in filter(self.lost, running):
                        job.process.terminate()
                    show(
                        len(todo) - len(waiting) - len(running),
                        len(todo),
                        *self.time_left(waiting, running, estimate, tracker),
                    )
                    time.sleep(0.5)
            finally:
                self.stop(running, estimate)

    def lost(self, job: Job) -> bool:
        """Return True if another machine has taken over a job because this one gave no sign of life for too long."""
        return self.leases is not None and self.leases.is_lost(job.name)

    def next_of(self, waiting: list[list[StudyRun]], count: int) -> Iterator[list[StudyRun]]:
        """Up to `count` waiting encoders that can start now, removed from the list, with their leases taken."""
        if count < 1 or (self.leases is not None and time.monotonic() < self.next_retry):
            return
        records: results.Records | None = None
        for runs in list(waiting):
            if count < 1:
                return
            name = runs[0].encoder_name
            leased = self.leases is None or self.leases.take(name)
            if leased or records is None:
                records = results.read_all(self.out)
            done = results.match(runs, records)  # by another machine or study, in the meantime
            left = [run for run in runs if run.name not in done]
            if left and not leased:
                continue  # another machine is at it
            waiting.remove(runs)
            if left:
                count -= 1
                yield left
            elif leased and self.leases is not None:
                self.leases.release(name)
        self.next_retry = time.monotonic() + RETRY_SECONDS  # what is left is others': they finish it, or die

    def time_left(
        self, waiting: list[list[StudyRun]], running: list[Job], estimate: Estimate, tracker: SlowdownTracker
    ) -> tuple[float, float]:
        """Remaining seconds of CPU time and of wall-clock time."""
        seconds = {job.name: estimate.seconds(job.runs) for job in running}
        shares = {job.name: self.share_done(job.runs, estimate) for job in running}
        left = estimate.seconds(itertools.chain(*waiting)) + sum((1 - shares[name]) * seconds[name] for name in seconds)
        return left, left * tracker.slowdown(shares, seconds) / self.cores

    def share_done(self, runs: list[StudyRun], estimate: Estimate) -> float:
        """The share of a training that is in its last checkpoint, 0 to 1."""
        run = runs[0]
        step = read_status(self.place / run.encoder_name).get("step", 0)
        seen = estimate.images_seen(run)
        return min(1.0, step * int(run.pretraining.batch_size) / seen) if seen else 0.0

    def start(self, runs: list[StudyRun]) -> Job:
        """Start runs that share an encoder as a process of its own."""
        place, name = self.place, runs[0].encoder_name
        place.mkdir(parents=True, exist_ok=True)
        description, log = place / f"{name}.json", place / f"{name}.log"
        description.write_text(to_json(runs), encoding="utf-8")
        files = (description, place / name, self.results_file)
        command = [*self.command, *([TRUST] if self.trust_remote_code else []), *map(str, files)]
        one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
        # Features of one run are of no use to another; compiled kernels are.
        kernels = os.environ.get("NUMBA_CACHE_DIR") or str(cache_folder("numba"))
        # Not on Windows, where the interpreter of a virtual environment stands between the two.
        runner = {PARENT: str(os.getpid())} if os.name == "posix" else {}
        caches = {"MIXVIEW_CACHE": str((place / f"{name}.cache").resolve()), "NUMBA_CACHE_DIR": kernels}
        with log.open("ab") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | one | caches | runner,
                start_new_session=True,  # Ctrl-C is for the study, which stops its runs gracefully
            )
        return Job(runs, process, log, time.monotonic())

    def finish(self, job: Job, estimate: Estimate) -> None:
        """Record the end of a process."""
        code = job.process.returncode
        done = results.match(job.runs, results.read_all(self.out)) if code == 0 else {}
        if self.leases is not None:
            self.leases.release(job.name)
        if len(done) < len(job.runs):
            if code != INTERRUPTED and not self.stop_reason:
                self.failed[job.run.name] = str(job.log)
                self.say(f"failed: {job.run.name}: {last_line(job.log)}")
            return
        if not self.keep_runs:
            shutil.rmtree(self.place / job.name, ignore_errors=True)
            job.log.unlink(missing_ok=True)
        shutil.rmtree(self.place / f"{job.name}.cache", ignore_errors=True)
        (self.place / f"{job.name}.json").unlink(missing_ok=True)
        for run in job.runs:
            result = done[run.name]
            estimate.learn(run, result)
            metrics = ", ".join(f"{column} {value:.1f}" for column, value in result.metrics.items())
            self.say(f"{run.name}: {metrics} ({duration(time.monotonic() - job.began)})")

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
        self.console.print(to_rich_text(text), soft_wrap=True)

    @contextlib.contextmanager
    def bar(self, seconds: float) -> Iterator[Callable[[int, int, float, float], None]]:
        """A function that shows how far the study is: a bar on a terminal, else a line every five minutes.

        It takes the numbers of finished and of all runs, and the remaining seconds of CPU time and of wall-clock time.
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


def group_by_encoder(runs: Iterable[StudyRun]) -> list[list[StudyRun]]:
    """Runs that share an encoder together, in the order of the first of each."""
    groups: dict[str, list[StudyRun]] = {}
    for run in runs:
        groups.setdefault(run.encoder_name, []).append(run)
    return list(groups.values())


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
