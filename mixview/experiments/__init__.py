"""Studies: many runs that answer one question."""

from typing import TYPE_CHECKING

from mixview.lazy import attach

if TYPE_CHECKING:
    from mixview.experiments.command import list_studies as list_studies
    from mixview.experiments.command import run_study as run_study
    from mixview.experiments.command import show as show
    from mixview.experiments.spec import Study as Study
    from mixview.experiments.spec import read as read

PUBLIC = {
    **dict.fromkeys(("list_studies", "run_study", "show"), "mixview.experiments.command"),
    **dict.fromkeys(("Study", "read"), "mixview.experiments.spec"),
}
"""Every public name of the package, and the module that defines it."""

__all__ = [*PUBLIC]
__getattr__, __dir__ = attach(__name__, PUBLIC)
