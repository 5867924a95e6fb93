"""Estimates of how long the runs of a study take: by their passes and sizes, corrected by those that are done."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mixview.data.sources.base import SourceError
from mixview.data.sources.registry import open_dataset
from mixview.data.sources.splits import parse_range
from mixview.experiments.results import RunResult
from mixview.experiments.spec import StudyRun

DEFAULT_PASS_SECONDS = 7.5e-7
"""Core seconds per pixel for a forward pass of the small ResNet on a busy machine: a first guess."""

DEFAULT_EVALUATION_SECONDS = 30.0
"""A first guess, too."""

DEFAULT_IMAGES = 5000.0
"""Training images where the number is unknown."""


class Estimate:
    """Learns from every finished run: seconds per unit of work, separately for training and evaluation.

    Args:
        runs: all runs of the study.
        done: the results that there are, by the name of their run.
    """

    def __init__(self, runs: Iterable[StudyRun], done: Mapping[str, RunResult]) -> None:
        self.training_seconds, self.training_work = 0.0, 0.0
        self.evaluation_seconds: list[float] = []
        self.images: dict[str, float] = {}  # per epoch, by dataset and variant
        for run in runs:
            if run.name in done:
                self.learn(run, done[run.name])

    def learn(self, run: StudyRun, result: RunResult) -> None:
        """Take a result into account."""
        self.evaluation_seconds.append(result.evaluation_seconds)
        if result.work:
            self.images[run.data + run.variant] = result.images_seen / run.epochs
            self.training_seconds += result.cpu_seconds
            self.training_work += self.work(run)

    def images_seen(self, run: StudyRun) -> float:
        """Images over all epochs."""
        if run.encoder is not None:
            return 0.0
        images = self.images.get(run.data + run.variant)
        if images is None:
            images = self.images[run.data + run.variant] = images_of(run)
        return run.epochs * images

    def work(self, run: StudyRun) -> float:
        """Forward passes times pixels, in total."""
        return 0.0 if run.encoder else run.passes.work * self.images_seen(run) * (run.pretraining.size or 32) ** 2

    def seconds(self, runs: Iterable[StudyRun]) -> float:
        """Core time of these runs."""
        rate = self.training_seconds / self.training_work if self.training_work else DEFAULT_PASS_SECONDS
        measured = self.evaluation_seconds
        evaluation = sum(measured) / len(measured) if measured else DEFAULT_EVALUATION_SECONDS
        return sum(evaluation + rate * self.work(run) for run in runs)


class Pace:
    """How much longer runs take than their estimate, on a machine that is busy with other things.

    Args:
        clock: a function that returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.passed, self.expected = 0.0, 0.0
        self.running: dict[str, tuple[float, float]] = {}  # when each began, and how far it was then

    def begin(self, name: str, share: float = 0.0) -> None:
        """Start the clock for a run of which this share is done already."""
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
