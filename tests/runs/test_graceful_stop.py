import os
import signal

import pytest
from lightning_fabric import Fabric

from mixview.runs.graceful_stop import GracefulStop, seconds_of


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        ("90", 90),
        ("45m", 2700),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("1.5h", 5400),
        (60, 60),
        (None, None),
        ("1h 5s", 3605),
    ],
)
def test_time_limits(limit, seconds) -> None:
    assert seconds_of(limit) == seconds


@pytest.mark.parametrize("limit", ["soon", "5x", "-3m", "h"])
def test_an_invalid_limit_raises(limit: str) -> None:
    with pytest.raises(ValueError, match="a time limit is a number of seconds, or such as 45m"):
        seconds_of(limit)


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "Ctrl-C")])
def test_a_signal_requests_a_stop(number: int, reason: str) -> None:
    before = signal.getsignal(number)
    with GracefulStop(Fabric(accelerator="cpu", devices=1)) as stopping:
        assert stopping.stop_reason(1) is None
        os.kill(os.getpid(), number)
        assert stopping.stop_reason(2) == reason
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_interrupts() -> None:
    with GracefulStop(Fabric(accelerator="cpu", devices=1)) as stopping:
        os.kill(os.getpid(), signal.SIGINT)
        assert stopping.stop_reason(1) == "Ctrl-C"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_the_time_limit() -> None:
    with GracefulStop(Fabric(accelerator="cpu", devices=1), seconds=0) as stopping:
        assert stopping.stop_reason(1) == "the time limit"
