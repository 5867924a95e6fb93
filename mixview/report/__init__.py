"""Runs in; pictures, tables and one HTML page out."""

from typing import TYPE_CHECKING

from mixview.lazy import attach

if TYPE_CHECKING:
    from mixview.report.page import report as report

PUBLIC = {
    "report": "mixview.report.page",
}
"""Every public name of the package, and the module that defines it."""

__all__ = [*PUBLIC]
__getattr__, __dir__ = attach(__name__, PUBLIC)
