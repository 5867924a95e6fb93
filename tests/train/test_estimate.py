import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mixview.train import estimate as module
from mixview.train.estimate import Estimate, available_memory, estimate, largest_batch, peak_memory, resident_memory

GB = 10**9


class Clock:
    def __init__(self, *lengths: float) -> None:
        self.now, self.lengths, self.steps = 0.0, list(lengths), 0

    def __call__(self) -> float:
        return self.now

    def step(self) -> None:
        self.now += self.lengths[min(self.steps, len(self.lengths) - 1)]
        self.steps += 1


def test_median_after_the_first() -> None:
    clock = Clock(30.0, 0.4, 0.5, 9.0, 0.43, 0.42)
    found = estimate(clock.step, 28_000, clock=clock)
    assert clock.steps == 6
    assert found.seconds_per_step == pytest.approx(0.43)
    assert found.total_seconds == pytest.approx(0.43 * 28_000)
    assert found.memory_bytes > 0


def test_slow_steps_are_tried_less_often() -> None:
    clock = Clock(40.0, 35.0)
    assert estimate(clock.step, 10, clock=clock).seconds_per_step == 35
    assert clock.steps == 2
    clock = Clock(100.0)
    assert estimate(clock.step, 10, clock=clock).seconds_per_step == 100
    assert clock.steps == 1


def test_in_words() -> None:
    assert str(Estimate(0.43, 12_000, 3_100_000_000)) == "about 3 h 20 min, 0.43 s per step, 3.1 GB of memory"
    assert str(Estimate(12.0, 60, 420_000_000)) == "about 1 min 00 s, 12 s per step, 420 MB of memory"
    assert str(Estimate(0.0123, 30, 420_000_000)) == "about 30 s, 0.012 s per step, 420 MB of memory"


def test_peak_memory_sees_what_is_freed_again() -> None:
    def run() -> None:
        for _ in range(3):
            torch.ones(60_000_000).mul_(2)  # 240 MB

    before = resident_memory()
    for _ in range(2):  # the second time breaks no record of the process
        assert 200e6 < peak_memory(run, torch.device("cpu")) - before < 600e6
    assert resident_memory() - before < 100e6


# The largest batch on an accelerator (a fake one), which says when it is full


def fake_accelerator(monkeypatch: pytest.MonkeyPatch, holds: int) -> tuple[list[int], Callable[[int], None]]:
    tried: list[int] = []

    def try_batch(batch_size: int) -> None:
        tried.append(batch_size)
        if batch_size > holds:
            raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(module, "synchronize", lambda device: None)
    monkeypatch.setattr(module.gc, "collect", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return tried, try_batch


@pytest.mark.parametrize("start", [1, 8, 32, 100, 1000])
@pytest.mark.parametrize("holds", [8, 15, 64, 100, 333, 999, 1000, 5000])
def test_accelerator(monkeypatch: pytest.MonkeyPatch, holds: int, start: int) -> None:
    tried, try_batch = fake_accelerator(monkeypatch, holds)
    found = largest_batch(try_batch, start, limit=1000, device="cuda")
    assert found == min(holds, 1000) // 8 * 8
    assert all(batch % 8 == 0 and batch <= 1000 for batch in tried)
    assert len(tried) == len(set(tried)) <= 16


def test_accelerator_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    _, try_batch = fake_accelerator(monkeypatch, holds=7)
    with pytest.raises(MemoryError, match="not even a batch of 8 fits in the memory of this cuda: use smaller images"):
        largest_batch(try_batch, 64, limit=1000, device="cuda")


def test_other_errors_are_not_taken_for_a_full_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_accelerator(monkeypatch, holds=100)

    def broken(batch_size: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        largest_batch(broken, 64, limit=1000, device="cuda")


# The largest batch on a CPU, which must never be driven out of memory


class Machine:
    """A step takes `fixed + each * batch` bytes beyond what the process holds (1 GB)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: float, fixed: float, each: float) -> None:
        self.free, self.fixed, self.each = free, fixed, each
        self.tried: list[int] = []
        self.most = 0.0
        monkeypatch.setattr(module, "resident_memory", lambda: GB)

    def options(self) -> dict[str, Any]:
        return {"peak": self.peak, "available": lambda: int(self.free)}

    def peak(self, run: Callable[[], None], device: torch.device) -> int:
        run()
        used = self.fixed + self.each * self.tried[-1]
        self.most = max(self.most, used)
        return int(GB + used)


@pytest.mark.parametrize("start", [8, 32, 128])
@pytest.mark.parametrize("fixed", [0.0, 0.3 * GB, 2.0 * GB])
@pytest.mark.parametrize("each", [1e6, 7.7e6, 33e6])
def test_cpu(monkeypatch: pytest.MonkeyPatch, each: float, fixed: float, start: int) -> None:
    machine = Machine(monkeypatch, 16 * GB, fixed, each)
    found = largest_batch(machine.tried.append, start, limit=4096, **machine.options())
    room = 0.8 * machine.free
    expected = min(4096, int((room - fixed) / each) // 8 * 8)
    assert found % 8 == 0
    assert expected * 0.9 <= found <= expected, "no more than fits, and little less"
    assert machine.most <= room, "nothing was tried that takes more than its share"


def test_cpu_with_a_start_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 1 * GB, 0, 10e6)
    assert largest_batch(machine.tried.append, 128, limit=4096, **machine.options()) == 80
    assert machine.tried == [128]
    machine = Machine(monkeypatch, 0.05 * GB, 0, 10e6)
    with pytest.raises(MemoryError, match="this cpu"):
        largest_batch(machine.tried.append, 128, limit=4096, **machine.options())


def test_cpu_where_a_batch_costs_nothing_that_can_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 16 * GB, 0, 0)
    assert largest_batch(machine.tried.append, 8, limit=100, **machine.options()) == 96


def test_cpu_for_real() -> None:
    tried: list[int] = []

    def try_batch(batch_size: int) -> None:
        tried.append(batch_size)
        torch.ones(batch_size, 250_000).add_(1)  # 1 MB an image

    assert largest_batch(try_batch, 16, limit=64) == 64
    assert tried == [16, 32, 64]
    some = available_memory()
    assert some > 0
    found = largest_batch(try_batch, 16, limit=4096, available=lambda: 250_000_000)
    assert 80 <= found <= 260  # 200, were there no noise
    assert max(tried) <= 260


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start": 0, "limit": 64}, "got start 0 and limit 64"),
        ({"start": 8, "limit": 7}, "limit at least 8, a multiple of which is looked for, got start 8 and limit 7"),
        ({"start": 8, "limit": 64, "share": 1.5}, "above 0 and up to 1, got 1.5"),
    ],
)
def test_refusals(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        largest_batch(lambda batch: None, **arguments)
    with pytest.raises(ValueError, match="at least 1, got 0 and 5"):
        estimate(lambda: None, 0)
    assert math.isfinite(estimate(lambda: None, 3).total_seconds)
