"""The cost of a run, and the largest batch that fits: by trying a few steps before it starts."""

import gc
import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from mixview.runs.progress import duration


class Estimate(NamedTuple):
    """The cost of a run."""

    seconds_per_step: float
    total_seconds: float
    memory_bytes: int

    def __str__(self) -> str:
        return (
            f"about {duration(self.total_seconds)}, {self.seconds_per_step:.2g} s per step, "
            f"{format_bytes(self.memory_bytes)} of memory"
        )


def estimate(
    step: Callable[[], None],
    steps_total: int,
    *,
    device: torch.device | str = "cpu",
    trials: int = 5,
    at_most: float = 60.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Estimate:
    """Time and memory of a run of `steps_total` steps, from a first step that does not count and a few that do.

    Args:
        step: takes one step, data and all; whoever passes it puts the state back afterwards.
        device: the device, whose memory is measured: this accelerator's, or this process's on the CPU.
        trials: number of steps to take the median of.
        at_most: seconds after which no further step is tried; the first one counts if it alone takes longer.
        clock: returns the time in seconds.
    """
    if steps_total < 1 or trials < 1:
        raise ValueError(f"steps_total and trials must be at least 1, got {steps_total} and {trials}")
    device = torch.device(device)
    seconds: list[float] = []

    def run() -> None:
        begin = clock()
        while len(seconds) <= trials and (not seconds or clock() - begin < at_most):
            start = clock()
            step()
            synchronize(device)
            seconds.append(clock() - start)

    memory = peak_memory(run, device)
    each = statistics.median(seconds[1:] or seconds)
    return Estimate(each, each * steps_total, memory)


def largest_batch(
    try_batch: Callable[[int], None],
    start: int,
    limit: int,
    *,
    device: torch.device | str = "cpu",
    multiple: int = 8,
    share: float = 0.8,
    peak: Callable[[Callable[[], None], torch.device], int] | None = None,
    available: Callable[[], int] | None = None,
) -> int:
    """The largest batch that fits in memory: a multiple of `multiple` (8) between that and `limit`.

    An accelerator says when it is full: the batch doubles until it does, and a bisection finds the place. A CPU's
    machine would swap or kill instead, so there a larger batch is tried only where the peaks of smaller ones, taken to
    be on a line, say that it stays within `share` of the free memory.

    Args:
        try_batch: takes one whole step, optimizer included, with a batch of this size.
        start: the first batch to try; it should be a modest one.
        limit: no batch beyond this.
        device: the device of the step.
        multiple: divisor of the batch size.
        share: share of the CPU's free memory that may be used.
        peak: measures a call's peak memory in bytes, `peak_memory` by default.
        available: the CPU's free memory in bytes, `available_memory` by default.
    """
    if multiple < 1 or start < 1 or limit < multiple:
        raise ValueError(
            f"start must be at least 1 and limit at least {multiple}, a multiple of which is looked for, "
            f"got start {start} and limit {limit}"
        )
    if not 0 < share <= 1:
        raise ValueError(f"share is a part of the free memory, above 0 and up to 1, got {share}")
    device = torch.device(device)
    top = limit // multiple  # from here on in multiples
    first = min(top, max(1, start // multiple))
    if device.type == "cpu":
        measure, free = peak or peak_memory, available or available_memory
        count = predict_limit(lambda n: measure(lambda: try_batch(n * multiple), device), first, top, free, share)
    else:
        count = search_limit(lambda n: fits(lambda: try_batch(n * multiple), device), first, top)
    if count < 1:
        raise MemoryError(
            f"not even a batch of {multiple} fits in the memory of this {device.type}: use smaller images, a smaller "
            "backbone, or half precision"
        )
    return count * multiple


def search_limit(good: Callable[[int], bool], first: int, top: int) -> int:
    """The largest n up to `top` that is `good`, by doubling from `first` and then bisecting; 0 if none is."""
    low, high, n = 0, top + 1, first  # low is good, high is not
    while low < n < high:
        if good(n):
            low, n = n, min(2 * n, top)
        else:
            high = n
    while high - low > 1:
        n = (low + high) // 2
        low, high = (n, high) if good(n) else (low, n)
    return low


def predict_limit(peak: Callable[[int], int], first: int, top: int, available: Callable[[], int], share: float) -> int:
    """The largest n up to `top` whose peak stays within `share` of the memory, trying none but `first` that would not.

    Memory is taken to be linear in n. The process at rest is the first point of the line, which then errs on the safe
    side: what does not grow with n is counted as if it did. Every try is a better second point.
    """
    rest = resident_memory()
    room = share * available() + rest  # the peak of a process counts what it holds already
    before, held, n = 0, float(rest), first
    while True:
        used = float(peak(n))
        slope = (used - held) / (n - before)
        if slope <= 0:  # noise
            slope = max(0.0, used - rest) / n
        following = n + math.floor((room - used) / slope) if slope > 0 else top
        if following < 1.25 * n or n >= top:  # near enough to be believed unseen
            return max(0, min(following, top))
        before, held, n = n, used, min(following, 2 * n, top)


def fits(run: Callable[[], None], device: torch.device) -> bool:
    """Check whether an accelerator has the memory for a call; memory that a failed try left behind is freed."""
    enough = True
    try:
        run()
        synchronize(device)
    except torch.OutOfMemoryError:
        enough = False
    # Out here the exception is gone, and with it the frames that held the tensors.
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return enough


def synchronize(device: torch.device) -> None:
    """Wait until an accelerator has done its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def peak_memory(run: Callable[[], None], device: torch.device) -> int:
    """The most memory in use during `run`, in bytes: the accelerator's, or the resident memory of this process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        run()
        synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    before, most, done = lifetime_peak(), resident_memory(), threading.Event()

    def sample_memory() -> None:
        nonlocal most
        while not done.wait(0.002):
            most = max(most, resident_memory())

    sampler = threading.Thread(target=sample_memory, daemon=True)
    sampler.start()
    try:
        run()
    finally:
        done.set()
        sampler.join()
    after = lifetime_peak()
    return after if after > before else most  # the system's own record is exact, where this run broke it


def lifetime_peak() -> int:
    """The most resident memory that this process ever had, in bytes; 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def resident_memory() -> int:
    """The resident memory of this process now, in bytes; its lifetime's peak where the system says no more."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return lifetime_peak()
    return pages * os.sysconf("SC_PAGE_SIZE")


def available_memory() -> int:
    """The free memory in bytes, which this process can take without driving out anything, within its container."""
    free = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free.append(next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")))
    except (OSError, StopIteration):
        if hasattr(os, "sysconf"):
            free.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)  # half of what there is
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            free.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    if not free:
        raise RuntimeError("this system does not say how much memory is free: choose the batch size yourself")
    return max(0, min(free))


def format_bytes(count: int) -> str:
    """Bytes as text: `3.1 GB`, `420 MB`."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
