"""Estimates of the duration of runs: from their passes and sizes, corrected by finished runs."""

import json
import math
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mixview.data.sources.base import SourceError
from mixview.data.sources.registry import open_dataset
from mixview.data.sources.splits import parse_range
from mixview.experiments.results import RunResult, read
from mixview.experiments.study_run import StudyRun, to_json

DEFAULT_PASS_SECONDS = 7.5e-7
"""CPU seconds per pixel for a forward pass of the small ResNet on a busy machine: a first guess."""

DEFAULT_EVALUATION_SECONDS = 30.0
"""A first guess, too."""

DEFAULT_IMAGES = 5000.0
"""Training images where the number is unknown."""

MEASURED_STEPS = 150
"""Steps of a measurement: enough to make the slow first ones negligible."""

MEASURED = "measured"
"""The name in place of a study's for runs that are only measured."""

KIND = (
    "backbone", "stem", "size", "channels", "data", "augment", "method.name", "method.symmetric", "objective",
    "mixing.anchors", "batch_size", "encoder",
)  # fmt: skip
"""Settings that decide what a pass of an image costs, the most important first."""

DEFAULTS = {"stem": "auto", "channels": 3, "mixing.anchors": "all"}
"""Values of settings that older results do not have."""


class Rates:
    """Seconds by kind, or of the nearest kind where one was not measured.

    A kind is a tuple whose first parts are the most important: the nearest kinds are those that share the longest
    beginning.
    """

    def __init__(self) -> None:
        self.values: dict[tuple[Any, ...], list[float]] = {}

    def learn(self, kind: tuple[Any, ...], value: float) -> None:
        for length in range(len(kind) + 1):
            self.values.setdefault(kind[:length], []).append(value)

    def nearest(self, kind: tuple[Any, ...], otherwise: float) -> float:
        for length in range(len(kind), -1, -1):
            if values := self.values.get(kind[:length]):
                return sum(values) / len(values)
        return otherwise

    def has(self, kind: tuple[Any, ...]) -> bool:
        return kind in self.values


class Costs:
    """Rates of training, in seconds per image and pass, and of evaluation, in seconds per run."""

    def __init__(self) -> None:
        self.training, self.evaluation = Rates(), Rates()

    def learn(self, result: RunResult) -> None:
        """Learn the costs of a result."""
        training, evaluation = kinds_of(result.settings, result.eval_data, result.evaluate)
        self.evaluation.learn(evaluation, result.evaluation_seconds)
        if result.work:
            self.training.learn(training, result.cpu_seconds / result.work)


class Estimate:
    """Learns the cost of each kind of run from every finished one.

    Args:
        runs: all runs of the study.
        done: existing results, by the name of their run.
        others: results of other studies, used where this one has none of a kind.
    """

    def __init__(
        self, runs: Iterable[StudyRun], done: Mapping[str, RunResult], others: Iterable[RunResult] = ()
    ) -> None:
        self.own, self.foreign = Costs(), Costs()
        self.images: dict[str, float] = {}  # per epoch, by dataset and variant
        for result in others:
            self.foreign.learn(result)
        for run in runs:
            if run.name in done:
                self.learn(run, done[run.name])

    def learn(self, run: StudyRun, result: RunResult) -> None:
        """Take a result into account."""
        if result.work:
            self.images[run.data + run.variant] = result.images_seen / run.epochs
        self.own.learn(result)

    def images_seen(self, run: StudyRun) -> float:
        """Images over all epochs."""
        if run.encoder is not None:
            return 0.0
        images = self.images.get(run.data + run.variant)
        if images is None:
            images = self.images[run.data + run.variant] = images_of(run)
        return run.epochs * images

    def knows(self, run: StudyRun) -> bool:
        """Return True if a finished run had the same cost per image."""
        training, evaluation = kinds_of(run.resolved, run.eval_data, run.evaluate)
        known = (self.own, self.foreign)
        trained = run.encoder is not None or any(costs.training.has(training) for costs in known)
        return trained and any(costs.evaluation.has(evaluation) for costs in known)

    def seconds(self, runs: Iterable[StudyRun]) -> float:
        """CPU time of these runs. Those that share an encoder train it once, and run equal evaluations once."""
        total = 0.0
        trained: set[str] = set()
        evaluated: set[tuple[Any, ...]] = set()
        for run in runs:
            training, evaluation = kinds_of(run.resolved, run.eval_data, run.evaluate)
            if (run.encoder_name, *evaluation) in evaluated:
                continue
            evaluated.add((run.encoder_name, *evaluation))
            total += rate_of(evaluation, self.own.evaluation, self.foreign.evaluation, DEFAULT_EVALUATION_SECONDS)
            if run.encoder is None and run.encoder_key not in trained:
                trained.add(run.encoder_key)
                guess = DEFAULT_PASS_SECONDS * (run.pretraining.size or 32) ** 2
                rate = rate_of(training, self.own.training, self.foreign.training, guess)
                total += rate * run.passes.work * self.images_seen(run)
        return total


def rate_of(kind: tuple[Any, ...], own: Rates, foreign: Rates, guess: float) -> float:
    """The rate of a kind: where it was measured by this study or another; else of the nearest kind; else a guess."""
    if foreign.has(kind) and not own.has(kind):
        return foreign.nearest(kind, guess)
    return own.nearest(kind, foreign.nearest(kind, guess))


def kinds_of(
    settings: Mapping[str, Any], eval_data: Mapping[str, Any], columns: Mapping[str, Mapping[str, Any]]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The kinds of a run: settings that decide its cost per image of training, and its cost of evaluation."""
    training = tuple(settings.get(name, DEFAULTS.get(name)) for name in KIND)
    evaluation = (
        json.dumps([dict(sorted(column.items())) for column in columns.values()]),
        json.dumps(eval_data, sort_keys=True),
        *training[:4],
        settings.get("encoder"),
    )
    return training, evaluation


def measure(run: StudyRun, place: Path, command: Sequence[str]) -> RunResult | None:
    """The result of a few steps of a run and its evaluation; None if they fail, as the run itself will.

    Args:
        run: the run to measure.
        place: the folder of the runs of its study.
        command: the command that carries out runs (see `mixview.experiments.runner.Runner`).
    """
    short = replace(run, study=MEASURED, plan="")
    if run.encoder is None:
        steps = max(1.0, images_of(run) / int(run.pretraining.batch_size))
        optimizer = {**run.settings.get("optimizer", {}), "warmup_epochs": 0}
        epochs = min(run.epochs, math.ceil(MEASURED_STEPS / steps))
        short = replace(short, settings=run.settings | {"epochs": epochs, "optimizer": optimizer})
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as folder:
        description, results_file = Path(folder, "run.json"), Path(folder, "results.jsonl")
        description.write_text(to_json([short]), encoding="utf-8")
        files = (description, place / f"{MEASURED}-{Path(folder).name}", results_file)
        subprocess.run([*command, *map(str, files)], stdin=subprocess.DEVNULL, capture_output=True, check=False)
        shutil.rmtree(files[1], ignore_errors=True)
        return next(iter(read(results_file, [])), None)


class SlowdownTracker:
    """Tracks how much slower runs are than their estimate, on a machine that is busy with other things.

    Args:
        clock: a function that returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.passed, self.expected = 0.0, 0.0
        self.running: dict[str, tuple[float, float]] = {}  # when each began, and how far it was then

    def begin(self, name: str, share: float = 0.0) -> None:
        """Start the clock for a run of which this share is already done."""
        self.running[name] = self.clock(), share

    def end(self, name: str, seconds: float, finished: bool) -> None:
        """Stop the clock for a run; `seconds` is the estimate for all of it."""
        began, share = self.running.pop(name)
        if finished:
            self.passed += self.clock() - began
            self.expected += (1 - share) * seconds

    def slowdown(self, shares: Mapping[str, float], seconds: Mapping[str, float]) -> float:
        """Wall-clock seconds per estimated second, by the runs that have ended and the progress of the others."""
        passed, expected = self.passed, self.expected
        for name, (began, before) in self.running.items():
            if shares.get(name, 0.0) > before:
                passed += self.clock() - began
                expected += (shares[name] - before) * seconds[name]
        return passed / expected if expected > 1 else 1.0


def images_of(run: StudyRun) -> float:
    """Number of training images of a run: by its part of a split such as train[:5000], or by opening the data."""
    given = run.pretraining
    part = parse_range(given.split)[1] if given.split else None
    if part is not None and part.stop is not None:
        return float(part.stop - (part.start or 0))
    if given.data is None:
        return DEFAULT_IMAGES
    try:
        options: dict[str, Any] = {**(given.data_options or {})}
        return float(len(open_dataset(given.data, given.split, **options)))
    except (SourceError, OSError):  # not there (yet): the run itself will report it
        return DEFAULT_IMAGES
