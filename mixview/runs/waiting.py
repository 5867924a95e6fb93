"""Whether a loop waits for its batches, and what its user can do about that."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar, cast, final

import torch

T = TypeVar("T")

FIRST, LAST = 20.0, 60.0
"""Seconds after the first batch between which a loop that waits says so."""
MUCH = 0.3
"""The share of waiting that is worth a word."""


class Event(Protocol):
    """A mark in the work of an accelerator; `torch.cuda.Event` is one."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def elapsed_time(self, end_event: "Event", /) -> float: ...


def new_cuda_event() -> Event:
    event: Any = torch.cuda.Event(enable_timing=True)
    return cast(Event, event)


@final
class WaitingTime:
    """Measures how long a loop has no batch to work on, in the first minute.

        waiting = WaitingTime(device)
        for batch in waiting.timed(loader): ...
            if waiting.is_long(): say(f"{waiting.share:.0%}")

    A CPU waits while the loader does. A GPU works behind the loop, which may wait without it: there it counts from the
    end of its step to the beginning of the next. Nothing waits for the GPU to learn that.

    Args:
        device: which works.
        clock: returns the time in seconds.
        new_event: makes the marks in a GPU's work.
    """

    def __init__(
        self,
        device: torch.device,
        clock: Callable[[], float] = time.monotonic,
        new_event: Callable[[], Event] = new_cuda_event,
    ) -> None:
        self.clock = clock
        self.new_event = new_event if device.type == "cuda" else None
        self.began: float | None = None
        self.waited = 0.0
        self.batches = 0
        self.over = False
        self._ended: Event | None = None
        self._gaps: list[tuple[Event, Event]] = []

    def timed(self, loader: Iterable[T]) -> Iterator[T]:
        """The batches of a loader; the first of all is not waited for, for workers start with it."""
        batches = iter(loader)
        while True:
            start = self.clock()
            if self.new_event is not None and not self.over:
                self._ended = self.new_event()
                self._ended.record()
            try:
                batch = next(batches)
            except StopIteration:
                return
            now = self.clock()
            if self.began is None:
                self.began = now
            elif not self.over:
                self.batches += 1
                self._count(now - start)
            yield batch

    def _count(self, seconds: float) -> None:
        if self.new_event is None:
            self.waited += seconds
            return
        assert self._ended is not None
        begins = self.new_event()
        begins.record()
        self._gaps.append((self._ended, begins))
        while self._gaps and self._gaps[0][1].query():
            ended, begun = self._gaps.pop(0)
            self.waited += ended.elapsed_time(begun) / 1000

    @property
    def seconds(self) -> float:
        """Since the first batch."""
        return 0.0 if self.began is None else self.clock() - self.began

    @property
    def share(self) -> float:
        """Share of this time that was waiting, 0 to 1."""
        return self.waited / self.seconds if self.seconds else 0.0

    def is_long(self) -> bool:
        """Whether this is the moment to say that the loop waits; true at most once."""
        if self.over or self.seconds < FIRST or not self.batches:
            return False
        long = self.share >= MUCH
        self.over = long or self.seconds > LAST
        return long


def explain_waiting(share: float, rate: float, workers: int, remedies: list[str]) -> str:
    """The sentence about a loop that waits.

    Args:
        share: of the time.
        rate: images per second that arrive.
        workers: processes that make them.
        remedies: what helps, in the order of what it brings.
    """
    who = {0: "this process decodes", 1: "1 worker decodes"}.get(workers, f"{workers} workers decode")
    speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
    sentence = f"The network waits {share:.0%} of the time: {who} {speed} images/s.".replace("%", " %")
    return f"{sentence} Remedies: {'; '.join(remedies)}." if remedies else sentence
