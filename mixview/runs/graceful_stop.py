"""Graceful stops: SIGTERM, Ctrl-C and a time limit end a run after a step, the same one on all processes."""

import signal
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from mixview.io.environment import process_rank

if TYPE_CHECKING:
    from mixview.runs.fabric import Fabric

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(limit: str | float | None) -> float | None:
    """Seconds of a time limit such as 90, "45m", "1h30m" or "2d"."""
    if limit is None:
        return None
    if isinstance(limit, int | float):
        return float(limit)
    total, number = 0.0, ""
    for character in limit.strip().lower().replace(" ", ""):
        if character in UNITS and number:
            total += float(number) * UNITS[character]
            number = ""
        elif character.isdigit() or character == ".":
            number += character
        else:
            raise ValueError(f"a time limit is a number of seconds, or such as 45m, 1h30m, 2d; got {limit!r}")
    if not limit.strip():
        raise ValueError(f"a time limit is a number of seconds, or such as 45m, 1h30m, 2d; got {limit!r}")
    return total + (float(number) if number else 0.0)


last_signal: int | None = None
"""The signal that stopped the last training, which decides the exit status of a command."""


class GracefulStop:
    """While it is entered, a signal asks for a stop instead of killing; a second Ctrl-C interrupts at once.

    Args:
        fabric: its processes agree on when to stop.
        seconds: time limit, from now.
        every: number of steps after which processes agree (on an accelerator this waits for it).
    """

    def __init__(self, fabric: "Fabric", seconds: float | None = None, every: int = 1) -> None:
        self.fabric = fabric
        self.deadline = None if seconds is None else time.monotonic() + seconds
        self.every = every
        self.reason: str | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "GracefulStop":
        global last_signal
        last_signal = None
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.reason is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.reason = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
        if process_rank() == 0:  # the launcher of the others would take their status for a crash
            global last_signal
            last_signal = number

    def stop_reason(self, step: int) -> str | None:
        """The reason to stop after this step, the same on every process, or None."""
        if self.reason is None and self.deadline is not None and time.monotonic() >= self.deadline:
            self.reason = "the time limit"
        if self.fabric.world_size == 1:
            return self.reason
        if step % self.every:
            return None
        stopping = torch.tensor(0 if self.reason is None else 1, device=self.fabric.device)
        if not bool(self.fabric.all_reduce(stopping, reduce_op="sum")):
            return None
        return self.reason or "a signal to another process"
