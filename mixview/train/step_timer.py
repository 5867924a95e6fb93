"""The time of each part of training: data, the forward and backward passes, the update, evaluation, anything else.

timer = StepTimer(device)
timer.start("data")        # what comes next is data loading …
timer.start("forward")     # … until here, and from here on the forward pass
timer.seconds()            # {"data": 0.8, "forward": 2.1, …}
"""

import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import torch

Part = Literal["data", "forward", "backward", "update", "evaluation", "other"]
"""A part of training; `other` is logging and saving."""

PARTS: tuple[Part, ...] = get_args(Part)


class StepTimer:
    """Adds up the time of each part of training. Starting one part ends the one before.

    On CUDA the marks are events in its stream, and nothing waits for them: the time of a part is then that of its
    kernels, and the time of `data` is what the GPU stands idle until a batch is there. Elsewhere a clock is read.

    Args:
        device: the device of the networks.
        clock: returns the time in seconds; not used on CUDA.
    """

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        self.on_cuda = device.type == "cuda"
        self.clock = clock
        self.part: Part | None = None
        self.started = 0.0
        self.totals: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
        self.logged = dict(self.totals)
        self.marks: list[tuple[Part | None, Any]] = []
        """On CUDA: what began at each event that was not read yet, in their order."""
        self.spare: list[Any] = []
        self.on_start: Callable[[Part], None] | None = None
        """Called with each part that starts."""

    def start(self, part: Part | None) -> None:
        """Count the time from now on for this part; None counts it for none."""
        if self.on_cuda:
            event = self.spare.pop() if self.spare else torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append((part, event))
        else:
            now = self.clock()
            if self.part is not None:
                self.totals[self.part] += now - self.started
            self.started = now
        if self.on_start is not None and part is not None and part != self.part:
            self.on_start(part)
        self.part = part

    def restart(self) -> None:
        """Forget what was counted so far."""
        self.start(None)
        self.seconds(wait=True)
        self.totals = dict.fromkeys(PARTS, 0.0)
        self.logged = dict(self.totals)

    def seconds(self, *, wait: bool = False) -> dict[Part, float]:
        """Seconds of each part until now.

        Args:
            wait: wait for all kernels; otherwise CUDA's times are those up to the last event that has happened.
        """
        self.start(self.part)
        if wait and self.on_cuda:
            self.marks[-1][1].synchronize()
        done = 0
        for (part, begin), (_, end) in itertools.pairwise(self.marks):
            if not end.query():
                break
            if part is not None:
                self.totals[part] += begin.elapsed_time(end) / 1000
            done += 1
        self.spare += [event for _, event in self.marks[:done]]
        del self.marks[:done]
        return dict(self.totals)

    def log(self, *, wait: bool = False) -> dict[str, float]:
        """The seconds since the last call, as `time/seconds`, and the share of each part in them."""
        totals = self.seconds(wait=wait)
        passed = {part: totals[part] - self.logged[part] for part in PARTS}
        self.logged = totals
        return {"time/seconds": round(sum(passed.values()), 4)} | {
            f"time/{part}": round(share, 4) for part, share in shares(passed).items()
        }


def shares(seconds: Mapping[Part, float]) -> dict[Part, float]:
    """The share of each part in all of the time, 0 to 1.

    Example:
        >>> shares({"data": 1.0, "forward": 3.0})
        {'data': 0.25, 'forward': 0.75}
    """
    total = sum(seconds.values())
    return {part: each / total if total else 0.0 for part, each in seconds.items()}


LABELS: dict[Part, str] = {"data": "data loading", "other": "logging and saving"}
"""Labels of parts whose name is not enough."""


def describe(seconds: Mapping[Part, float]) -> str:
    """The shares in words, the largest first; what would round to 0 is left out.

    Example:
        >>> describe({"data": 1.0, "forward": 3.0, "update": 0.001})
        '75 % forward, 25 % data loading'
    """
    percent = {part: round(100 * share) for part, share in shares(seconds).items()}
    ordered = sorted(percent, key=lambda part: -percent[part])
    return ", ".join(f"{percent[part]} % {LABELS.get(part, part)}" for part in ordered if percent[part])
