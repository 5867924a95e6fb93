"""Where the time of training is said to go."""

from pathlib import Path
from typing import Any

import pytest
import torch

import mixview
from mixview.runs.run_directory import read_metrics
from mixview.train.step_timer import PARTS, StepTimer, describe
from tests.train.running import tiny


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_each_part_has_the_time_until_the_next() -> None:
    clock = Clock()
    timer = StepTimer(torch.device("cpu"), clock)
    timer.start("forward")
    clock.now += 5
    timer.restart()  # what a first step cost is forgotten
    clock.now += 7  # for nothing
    for part, seconds in (("data", 3), ("forward", 2), ("backward", 4), ("forward", 1)):
        timer.start(part)
        clock.now += seconds
    assert timer.seconds() == dict.fromkeys(PARTS, 0) | {"data": 3, "forward": 3, "backward": 4}
    clock.now += 2  # of the part that has not ended
    assert timer.log() == {
        "time/seconds": 12,
        "time/data": 0.25,
        "time/forward": round(5 / 12, 4),
        "time/backward": round(4 / 12, 4),
        "time/update": 0,
        "time/evaluation": 0,
        "time/other": 0,
    }
    clock.now += 1
    assert timer.log()["time/forward"] == 1  # since the last call
    assert describe(timer.seconds()) == "46 % forward, 31 % backward, 23 % data loading"


class FakeEvent:
    """An event of a stream that does what it is asked with a delay, on a clock of its own."""

    now = 0.0
    """Milliseconds on the device's clock that the stream has come to."""
    queued = 0.0
    """Milliseconds that the stream will have come to when it has done all that it was asked."""
    waits = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = FakeEvent.queued

    def query(self) -> bool:
        return self.at <= FakeEvent.now

    def synchronize(self) -> None:
        FakeEvent.waits += 1
        FakeEvent.now = max(FakeEvent.now, self.at)

    def elapsed_time(self, end: "FakeEvent") -> float:
        assert self.query()
        assert end.query()
        return end.at - self.at


def test_cuda_is_timed_by_events_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(FakeEvent, "now", 0.0)
    monkeypatch.setattr(FakeEvent, "queued", 0.0)
    timer = StepTimer(torch.device("cuda"))
    for _ in range(10):
        for part, milliseconds in (("data", 10), ("forward", 30), ("backward", 60)):
            timer.start(part)
            FakeEvent.queued += milliseconds
    assert not FakeEvent.waits
    assert sum(timer.seconds().values()) == 0  # the host is ahead: nothing has happened yet
    FakeEvent.now = 130.0
    assert timer.seconds() == pytest.approx(
        dict.fromkeys(PARTS, 0) | {"data": 0.01, "forward": 0.03, "backward": 0.06}, abs=0.011
    )
    assert not FakeEvent.waits
    last = timer.log(wait=True)
    assert last["time/seconds"] == pytest.approx(1.0)
    assert {part: last[f"time/{part}"] for part in ("data", "forward", "backward")} == pytest.approx(
        {"data": 0.1, "forward": 0.3, "backward": 0.6}
    )
    assert FakeEvent.waits == 1
    assert len(timer.spare) >= 30  # events are used again


@pytest.mark.parametrize("method", ["simclr", "mocov2"])
def test_a_run_logs_its_shares(method: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = mixview.pretrain(**tiny(tmp_path / "run", {"eval_every": 1, "log_every": 2}, method=method))
    records = read_metrics(out)
    assert [each["step"] for each in records] == [2, 4, 4, 6, 8, 8]
    for record in records:
        shares = {part: record[f"time/{part}"] for part in PARTS}
        assert sum(shares.values()) == pytest.approx(1, abs=1e-3)
        assert record["time/seconds"] > 0
        of_a_step = [shares[part] > 0 for part in ("data", "forward", "backward", "update")]
        assert of_a_step == [True] * 4 if "loss" in record else not any(of_a_step) and shares["evaluation"] > 0
    said = " ".join(capfd.readouterr().err.split())
    assert " % forward" in said[said.index("Time: ") :]
