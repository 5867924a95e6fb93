"""The parts of every run: its directory, checkpoints, logging, launching and graceful stops."""

from typing import TYPE_CHECKING

from mixview.lazy import attach

if TYPE_CHECKING:
    from mixview.runs.run_directory import read_metrics as read_metrics

PUBLIC = {
    "read_metrics": "mixview.runs.run_directory",
}
"""Every public name of the package, and the module that defines it."""

__all__ = [*PUBLIC]
__getattr__, __dir__ = attach(__name__, PUBLIC)
