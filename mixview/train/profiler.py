"""Some steps of a run under torch's profiler: a table of what takes their time, and a trace for Perfetto."""

import gzip
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from mixview.io.atomic import atomic_write
from mixview.io.disk_errors import reason_of
from mixview.train.step_timer import LABELS, PARTS, Part, StepTimer, shares

FIRST = 2
"""Steps before the profile begins: they compile, choose kernels and fill caches."""
MAX_OPERATIONS = 12
"""Rows of the table of operations."""


class StepProfiler:
    """Profiles some steps of a run, the first two left out.

    Args:
        path: file of the trace.
        steps: number of steps; None profiles nothing.
        timer: the timer of the run, whose parts are shown in the trace.
        device: the device of the networks.
        say: prints text.
    """

    def __init__(
        self, path: Path, steps: int | None, timer: StepTimer, device: torch.device, say: Callable[[str], None]
    ) -> None:
        self.path = path
        self.steps = steps
        self.timer = timer
        self.on_cuda = device.type == "cuda"
        self.say = say
        self.taken = 0
        self.profile: profile | None = None
        self.before: dict[Part, float] = {}
        self.label: record_function | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.profile is not None:  # the run was shorter
            self.end()

    def step(self) -> None:
        """A step is done: begin or end the profile if it is time."""
        if self.steps is None:
            return
        self.taken += 1
        if self.taken == FIRST:
            self.begin()
        elif self.profile is not None and self.taken == FIRST + self.steps:
            self.end()
            self.steps = None

    def begin(self) -> None:
        """Start the profile."""
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it would print lines of its own
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self.on_cuda else [])
        self.profile = profile(activities=activities)
        self.profile.start()
        self.before = self.timer.seconds(wait=True)
        self.timer.on_start = self.name_part

    def name_part(self, part: Part | None) -> None:
        """Show in the trace that a part of a step starts here."""
        if self.label is not None:
            self.label.__exit__(None, None, None)
        self.label = None if part is None else record_function(f"mixview {part}")
        if self.label is not None:
            self.label.__enter__()

    def end(self) -> None:
        """Stop the profile, print the table, and write the trace."""
        assert self.profile is not None
        self.timer.on_start = None
        self.name_part(None)
        after = self.timer.seconds(wait=True)
        self.profile.stop()
        steps = self.taken - FIRST
        passed = {part: after[part] - self.before[part] for part in PARTS}
        if not steps:
            self.say(f"There is no profile: it begins after {FIRST} steps, and there were no more.")
            return
        events = self.profile.key_averages()
        self.say(f"\nProfile of {steps} step{'s' * (steps > 1)}, in milliseconds per step:\n")
        self.say("\n".join([*part_table(passed, steps), "", *operation_table(events, steps, self.on_cuda)]))
        try:
            write_trace(self.profile, self.path)
            self.say(f"\nTrace: {self.path} (open it at https://ui.perfetto.dev)\n")
        except OSError as error:
            self.say(f"\nThe trace could not be written to {self.path}: {reason_of(error)}; training continues.\n")
        self.profile = None


def part_table(seconds: dict[Part, float], steps: int) -> list[str]:
    """Lines of time and share for each part of a step."""
    share = shares(seconds)
    lines = [f"{'part':20} {'ms':>9} {'share':>7}"]
    for part in PARTS:
        lines.append(f"{LABELS.get(part, part):20} {1e3 * seconds[part] / steps:9.2f} {share[part]:7.1%}")
    return lines


def operation_table(events: Any, steps: int, on_cuda: bool) -> list[str]:
    """Lines of calls, time and share for the operations that take most, without what they call."""
    rows = []
    for event in events:
        microseconds = float(event.self_device_time_total if on_cuda else event.self_cpu_time_total)
        name = str(event.key)
        if name.startswith("mixview "):  # a part of the step: what of it is in no operation
            name, microseconds = f"Python in {name.removeprefix('mixview ')}", 0.0 if on_cuda else microseconds
        rows.append((microseconds, name, int(event.count)))
    total = sum(microseconds for microseconds, *_ in rows) or 1.0
    lines = [f"{'operation, on the ' + ('GPU' if on_cuda else 'CPU'):44} {'calls':>7} {'ms':>9} {'share':>7}"]
    for microseconds, name, count in sorted(rows, reverse=True)[:MAX_OPERATIONS]:
        lines.append(
            f"{name[:44]:44} {count / steps:7.1f} {microseconds / 1e3 / steps:9.2f} {microseconds / total:7.1%}"
        )
    return lines


def write_trace(trace: profile, path: Path) -> None:
    """Write the trace of a profile, compressed."""
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.json"
        trace.export_chrome_trace(str(plain))
        with plain.open("rb") as content, atomic_write(path) as file, gzip.GzipFile(fileobj=file, mode="wb") as packed:
            shutil.copyfileobj(content, packed)
