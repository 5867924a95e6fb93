"""A message when training waits for its data, with what the user can do about that."""

import time
from collections.abc import Callable
from typing import final

from mixview.train.step_timer import StepTimer

FIRST, LAST = 20.0, 60.0
"""Seconds after the first step between which training that waits says so."""
MUCH = 0.3
"""Share of the time that is worth a message."""


@final
class DataWaitCheck:
    """Notices, in the first minute, that training waits for its data.

    The first step does not count, since data loading workers start with it.

    Args:
        timer: the timer of the run.
        clock: returns the time in seconds.
    """

    def __init__(self, timer: StepTimer, clock: Callable[[], float] = time.monotonic) -> None:
        self.timer = timer
        self.clock = clock
        self.began: float | None = None
        self.waited_before = 0.0
        self.over = False
        self.steps = 0
        """Steps since the first."""
        self.seconds = 0.0
        """Seconds since the first step."""
        self.share = 0.0
        """Share of these seconds that was waiting, 0 to 1."""

    def is_long(self) -> bool:
        """Return True, at most once, if training waits for data; to be called after every step."""
        if self.over:
            return False
        if self.began is None:
            self.waited_before = self.timer.seconds(wait=True)["data"]
            self.began = self.clock()
            return False
        self.steps += 1
        self.seconds = self.clock() - self.began
        if self.seconds < FIRST:
            return False
        self.share = (self.timer.seconds()["data"] - self.waited_before) / self.seconds
        long = self.share >= MUCH
        self.over = long or self.seconds > LAST
        return long


def explain_waiting(share: float, rate: float, workers: int, hints: list[str]) -> str:
    """The message about training that waits for its data.

    Args:
        share: share of the time spent waiting.
        rate: images per second that arrive.
        workers: number of processes that decode them.
        hints: ways to speed it up, the most effective first.
    """
    who = {0: "this process decodes", 1: "1 worker decodes"}.get(workers, f"{workers} workers decode")
    speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
    sentence = f"Training waits for data {share:.0%} of the time: {who} {speed} images/s.".replace("%", " %")
    return f"{sentence} To speed up: {'; '.join(hints)}." if hints else sentence
