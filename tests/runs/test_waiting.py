"""A loop that waits for its batches says so within the first minute, and one that does not says nothing."""

from collections.abc import Iterator

import pytest
import torch

from mixview.runs.waiting import LAST, WaitingTime, explain_waiting


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def loop(waits: float, works: float, steps: int = 200, first: float = 30.0) -> tuple[list[float], WaitingTime]:
    """When a loop on a CPU that waits and works so long in each step says that it waits."""
    clock = Clock()
    waiting = WaitingTime(torch.device("cpu"), clock)

    def batches() -> Iterator[int]:
        for step in range(steps):
            clock.now += waits if step else first
            yield step

    said = []
    for _ in waiting.timed(batches()):
        clock.now += works
        if waiting.is_long():
            said.append(clock.now - first)
    return said, waiting


def test_a_loop_that_waits_says_so_once() -> None:
    said, waiting = loop(waits=0.71, works=0.29)
    assert said == [pytest.approx(20, abs=1.01)]
    assert waiting.share == pytest.approx(0.71 * waiting.batches / waiting.seconds)


def test_slow_steps_are_in_time_too() -> None:
    (said,), _ = loop(waits=20, works=10)
    assert said < LAST


def test_a_loop_that_works_says_nothing() -> None:
    assert loop(waits=0.1, works=0.9)[0] == []
    assert loop(waits=0, works=1, first=300)[0] == []  # workers that start
    assert loop(waits=0.1, works=0.02, steps=50)[0] == []  # too short to matter


class Gpu:
    """Works through what it is given, behind a loop that only hands it on."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.free_at = 0.0

    def take(self, seconds: float) -> None:
        self.free_at = max(self.free_at, self.clock.now) + seconds

    def event(self) -> "Mark":
        return Mark(self)


class Mark:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.at = 0.0

    def record(self) -> None:
        self.at = max(self.gpu.free_at, self.gpu.clock.now)

    def query(self) -> bool:
        return self.gpu.clock.now >= self.at

    def elapsed_time(self, end_event: "Mark") -> float:
        return 1000 * (end_event.at - self.at)


@pytest.mark.parametrize(("loads", "works", "share"), [(0.9, 1.0, 0.0), (2.0, 1.0, 0.5)])
def test_a_gpu_that_works_behind_the_loop_does_not_wait(loads: float, works: float, share: float) -> None:
    clock = Clock()
    gpu = Gpu(clock)
    waiting = WaitingTime(torch.device("cuda"), clock, gpu.event)

    def batches() -> Iterator[None]:
        while clock.now < 100:
            clock.now += loads  # the loop waits nearly always, whether the GPU does or not
            yield

    said = []
    for _ in waiting.timed(batches()):
        gpu.take(works)
        if waiting.is_long():
            said.append(waiting.share)
    assert said == ([] if share == 0 else [pytest.approx(share, abs=0.06)])


def test_the_sentence() -> None:
    assert explain_waiting(0.714, 38.2, 3, ["--cache DIR", "--workers 7"]) == (
        "The network waits 71 % of the time: 3 workers decode 38 images/s. Remedies: --cache DIR; --workers 7."
    )
    assert explain_waiting(0.5, 3.21, 0, []) == "The network waits 50 % of the time: this process decodes 3.2 images/s."
