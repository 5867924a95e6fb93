"""Logging of metrics: to the run's JSON lines, and to the trackers that the user has chosen."""

import warnings
from collections.abc import Callable
from pathlib import Path

from mixview.runs.logging_config import LoggingConfig
from mixview.runs.run_directory import RunDirectory, RunDirectoryError
from mixview.runs.trackers import TRACKERS, Tracker, check_loggers


class MetricLogger:
    """Writes the metrics of a run, on the process that has its folder; on any other it does nothing.

    Args:
        folder: the run directory.
        options: the trackers to use.
        step: the step that the run starts or resumes at.
    """

    def __init__(self, folder: RunDirectory | None, options: LoggingConfig, step: int) -> None:
        self.folder = folder
        self.step = step
        self.trackers: dict[str, Tracker] = {}
        if folder is None:
            return
        for name in check_loggers(options):
            try:
                self.trackers[name] = TRACKERS[name](folder, options, step)
            except RunDirectoryError:
                raise
            except Exception as error:  # a server that is down, a login that is missing …
                warn(name, step, error)

    def __enter__(self) -> "MetricLogger":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        state = "failed" if kind is not None else "finished"
        if self.folder is not None and self.folder.status.get("state") == "interrupted":
            state = "interrupted"
        self.tell(lambda tracker: tracker.close(state))

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """One record."""
        if self.folder is None:
            return
        self.step = step
        self.folder.log({"step": step, **metrics})
        self.tell(lambda tracker: tracker.log(step, metrics))

    def log_file(self, path: Path) -> None:
        """A picture, or the encoder; only trackers take it, as it is in the folder already."""
        self.tell(lambda tracker: tracker.log_file(path, self.step))

    def tell(self, what: Callable[[Tracker], None]) -> None:
        """Call all trackers; leave out the ones that fail: the run itself has its metrics."""
        for name, tracker in list(self.trackers.items()):
            try:
                what(tracker)
            except Exception as error:
                del self.trackers[name]
                warn(name, self.step, error)


def warn(name: str, step: int, error: Exception) -> None:
    """Warn that a tracker is left out."""
    reason = (str(error).strip() or type(error).__name__).partition("\n")[0]
    warnings.warn(
        f"{name} is left out from step {step} on, and the run continues: {reason[:300]}; a resumed run tries it again",
        stacklevel=3,
    )
