"""The figures of the paper from the user's images and runs: `mixview figure …`. Each is a PNG and an SVG."""

from typing import TYPE_CHECKING

from mixview.lazy import attach

if TYPE_CHECKING:
    from mixview.report.figures.alpha import draw_alpha as draw_alpha
    from mixview.report.figures.beta import draw_beta as draw_beta
    from mixview.report.figures.cost import draw_cost as draw_cost
    from mixview.report.figures.mixtures import draw_mixtures as draw_mixtures
    from mixview.report.figures.tsne_classes import draw_tsne_classes as draw_tsne_classes
    from mixview.report.figures.tsne_mixtures import draw_tsne_mixtures as draw_tsne_mixtures

PUBLIC = {
    "draw_alpha": "mixview.report.figures.alpha",
    "draw_beta": "mixview.report.figures.beta",
    "draw_cost": "mixview.report.figures.cost",
    "draw_mixtures": "mixview.report.figures.mixtures",
    "draw_tsne_classes": "mixview.report.figures.tsne_classes",
    "draw_tsne_mixtures": "mixview.report.figures.tsne_mixtures",
}
"""Every public name of the package, and the module that defines it."""

__all__ = [*PUBLIC]
__getattr__, __dir__ = attach(__name__, PUBLIC)
