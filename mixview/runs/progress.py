"""The progress of a run: a bar on a terminal, a line now and then everywhere else.

epoch 3/100  step 240/8000  loss 4.321  1,234 images/s  k-NN 45.2 %  ETA 1 h 02 min
"""

import math
import time
from collections.abc import Callable
from typing import Self

import rich.progress
from rich.console import Console
from torch import Tensor

from mixview.io.terminal import to_rich_text

Loss = float | Tensor | Callable[[], float]


class Progress:
    """Shows the progress of a run, on one process of many.

        with Progress(steps=8000, steps_per_epoch=80) as progress:
            …
            progress.update(step, images=256, loss=loss)

    The bar is drawn from `update` and by no thread of its own, so that data loaders may fork at any time.

    Args:
        steps: number of steps of the whole run.
        steps_per_epoch: number of steps per epoch, to name the epoch.
        start: number of steps that an earlier session did.
        enabled: False on every process but rank 0: nothing is printed, and no loss is read.
        every: seconds between two readings of the loss; by default 0.5 on a terminal and 30 elsewhere.
        console: the output; by default standard error.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        steps: int,
        steps_per_epoch: int,
        *,
        start: int = 0,
        enabled: bool = True,
        every: float | None = None,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if steps < 1 or steps_per_epoch < 1:
            raise ValueError(f"a run needs at least one step, and one per epoch, got {steps} and {steps_per_epoch}")
        self.steps = steps
        self.steps_per_epoch = steps_per_epoch
        self.step = start
        self.enabled = enabled
        self.console = console or Console(stderr=True)
        self.terminal = self.console.is_terminal
        self.every = every if every is not None else 0.5 if self.terminal else 30.0
        self.clock = clock
        self.image_rate = Rate(memory=30)
        self.step_rate = Rate(memory=30, share=0.25)  # the longer it runs the steadier: epochs end in evaluations
        self.loss: Loss | None = None
        self.knn: float | None = None
        self.last_shown: float | None = None
        self.bar: rich.progress.Progress | None = None

    def __enter__(self) -> Self:
        if self.enabled and self.terminal:
            self.bar = rich.progress.Progress(
                rich.progress.BarColumn(bar_width=None),
                rich.progress.TextColumn("{task.description}", markup=False),
                console=self.console,
                auto_refresh=False,
                expand=True,
            )
            self.bar.add_task(self.text(short=True), total=self.steps, completed=self.step)
            self.bar.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self.bar is not None:
            if kind is None:
                self.show()
            self.bar.stop()
            self.bar = None

    def update(self, step: int, images: int, loss: Loss | None = None, knn: float | None = None) -> None:
        """Report that a step is done. Cheap, and waits for no accelerator unless it is time to show something.

        Args:
            step: number of steps of the run that are done.
            images: number of images of this step, over all processes.
            loss: a number, a tensor, or a function that returns one; read when it is shown and not before.
            knn: k-NN accuracy, 0 to 1; stays until the next one.
        """
        if not self.enabled:
            return
        now = self.clock()
        self.image_rate.add(now, images)
        self.step_rate.add(now, step - self.step)
        self.step = step
        self.loss = loss if loss is not None else self.loss
        self.knn = knn if knn is not None else self.knn
        due = self.last_shown is None or now - self.last_shown >= self.every
        if due or knn is not None or step >= self.steps:
            self.last_shown = now
            self.show()

    def say(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        if self.enabled:
            self.console.print(to_rich_text(text, keep="\n"), highlight=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print a warning, above the bar if there is one."""
        if self.enabled:
            self.console.print(to_rich_text(f"warning: {text}", "yellow", keep="\n"), highlight=False, soft_wrap=True)

    def show(self) -> None:
        """Show the progress now."""
        if self.bar is None:
            self.say(self.text())
        else:
            self.bar.update(self.bar.task_ids[0], completed=self.step, description=self.text(short=True))
            self.bar.refresh()

    @property
    def eta(self) -> float | None:
        """Seconds to go at the speed of this session; None before there is a speed."""
        rate = self.step_rate.value
        return (self.steps - self.step) / rate if rate else None

    def text(self, *, short: bool = False) -> str:
        """The line; `short` leaves room for a bar."""
        epochs = -(-self.steps // self.steps_per_epoch)
        epoch = min(epochs, max(1, -(-self.step // self.steps_per_epoch)))
        parts = {"epoch": f"epoch {epoch}/{epochs}", "step": f"{'' if short else 'step '}{self.step}/{self.steps}"}
        if self.loss is not None:
            parts["loss"] = f"loss {float(self.loss() if callable(self.loss) else self.loss):.3f}"
        if self.image_rate.value:
            parts["speed"] = f"{round_off(self.image_rate.value)} {'img/s' if short else 'images/s'}"
        if self.knn is not None:
            parts["knn"] = f"k-NN {100 * self.knn:.1f} %"
        if self.eta is not None and self.step < self.steps:
            parts["eta"] = f"ETA {duration(self.eta)}"
        for spare in ("step", "speed", "epoch", "knn"):  # in the order in which they can be spared
            if short and len("  ".join(parts.values())) > self.console.width - 9:
                parts.pop(spare, None)
        return "  ".join(parts.values())


class Rate:
    """Things per second, lately: what is older than `memory` seconds, or than `share` of the time, fades.

    The clock starts with the first report: what comes before it, such as compiling and filling caches, never counts.
    """

    def __init__(self, memory: float, share: float = 0.0) -> None:
        self.memory = memory
        self.share = share
        self.first: float | None = None
        self.last = 0.0
        self.things = 0.0
        self.seconds = 0.0

    def add(self, now: float, things: float) -> None:
        """Report `things` that were finished at `now`."""
        if self.first is None:
            self.first = self.last = now
            return
        passed = now - self.last
        fade = math.exp(-passed / max(self.memory, self.share * (now - self.first)))
        self.things = self.things * fade + things
        self.seconds = self.seconds * fade + passed
        self.last = now

    @property
    def value(self) -> float | None:
        """Things per second; None before the second report."""
        return self.things / self.seconds if self.seconds > 0 else None


def round_off(number: float) -> str:
    """A speed in about three digits: `1,234`, `56.7`, `0.432`."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 1 else f"{number:.3f}"


def duration(seconds: float) -> str:
    """A length of time in words: `45 s`, `3 min 20 s`, `1 h 02 min`, `2 d 03 h`."""
    if not math.isfinite(seconds):
        return "forever"
    total = max(0, round(seconds))
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02} s"
    minutes = round(total / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    hours = round(total / 3600)
    return f"{hours // 24} d {hours % 24:02} h"
