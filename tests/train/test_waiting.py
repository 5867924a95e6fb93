"""Training that waits for its data says so within the first minute, and training that does not says nothing."""

import pytest
import torch

from mixview.train.step_timer import StepTimer
from mixview.train.waiting import LAST, DataWaitCheck, explain_waiting


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def loop(waits: float, works: float, steps: int = 200, first: float = 30.0) -> tuple[list[float], DataWaitCheck]:
    """The times at which a loop on a CPU says that it waits, which waits and works this long in each step."""
    clock = Clock()
    timer = StepTimer(torch.device("cpu"), clock)
    check = DataWaitCheck(timer, clock)
    said = []
    for step in range(steps):
        timer.start("data")
        clock.now += waits if step else first
        timer.start("forward")
        clock.now += works
        timer.start("other")
        if check.is_long():
            said.append(clock.now - first)
    return said, check


def test_a_loop_that_waits_says_so_once() -> None:
    said, check = loop(waits=0.71, works=0.29)
    assert said == [pytest.approx(20, abs=1.5)]
    assert check.share == pytest.approx(0.71 * check.steps / check.seconds)


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


class Mark:
    """An event in the stream of a GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.at = 0.0

    def record(self) -> None:
        self.at = max(self.gpu.free_at, self.gpu.clock.now)

    def query(self) -> bool:
        return self.gpu.clock.now >= self.at

    def synchronize(self) -> None:
        self.gpu.clock.now = max(self.gpu.clock.now, self.at)

    def elapsed_time(self, end_event: "Mark") -> float:
        return 1000 * (end_event.at - self.at)


@pytest.mark.parametrize(("loads", "works", "share"), [(0.9, 1.0, 0.0), (2.0, 1.0, 0.5)])
def test_a_gpu_that_works_behind_the_loop_does_not_wait(
    loads: float, works: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    gpu = Gpu(clock)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Mark(gpu))
    timer = StepTimer(torch.device("cuda"))
    check = DataWaitCheck(timer, clock)
    said = []
    while clock.now < 100:
        timer.start("data")
        clock.now += loads  # the loop waits nearly always, whether the GPU does or not
        timer.start("forward")
        gpu.take(works)
        timer.start("other")
        if check.is_long():
            said.append(check.share)
    assert said == ([] if share == 0 else [pytest.approx(share, abs=0.06)])


def test_the_sentence() -> None:
    assert explain_waiting(0.714, 38.2, 3, ["--cache DIR", "--workers 7"]) == (
        "Training waits for data 71 % of the time: 3 workers decode 38 images/s. To speed up: --cache DIR; --workers 7."
    )
    assert explain_waiting(0.5, 3.21, 0, []) == (
        "Training waits for data 50 % of the time: this process decodes 3.2 images/s."
    )
