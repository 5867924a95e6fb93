"""Densities of Beta(α, α), from which λ is drawn."""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mixview.report.figures.drawing import COLORS, in_style, new_figure, open_runs, save

PUBLISHED = (0.25, 0.5, 0.75, 1.0)
"""The paper's, in its table of α."""


def density(alpha: float, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Density of Beta(α, α) at x within (0, 1)."""
    scale = math.lgamma(2 * alpha) - 2 * math.lgamma(alpha)
    return np.exp(scale + (alpha - 1) * (np.log(x) + np.log1p(-x)))


@in_style
def draw_beta(
    runs: list[str] | None = None, /, out: Path = Path("beta"), alphas: list[float] | None = None
) -> list[Path]:
    """Draw the densities of Beta(α, α): how often a mixture has how much of its first image.

    Args:
        runs: Folders of runs whose values of α are drawn, too.
        out: Name of the figure: OUT.png and OUT.svg are written.
        alphas: Values of α; by default those of the paper, 0.1 and 4.

    Example:
        >>> paths = draw_beta(out=Path("beta"), alphas=[0.25, 1.0])
        wrote beta.png and beta.svg
    """
    values = [0.1, *PUBLISHED, 4.0] if alphas is None else alphas
    bad = [alpha for alpha in values if not (math.isfinite(alpha) and alpha > 0)]
    if bad:
        raise ValueError(f"α must be a positive number, got {bad[0]}")
    of_runs: dict[float, list[str]] = {}
    for run in open_runs(runs) if runs else []:
        if run.config.get("objective") != "sim":
            of_runs.setdefault(float((run.config.get("mixing") or {}).get("alpha", 1.0)), []).append(run.name)
    figure = new_figure(5.2, 3.4)
    axes = figure.subplots()
    x = np.linspace(0.0025, 0.9975, 399)
    for number, alpha in enumerate(sorted({*values, *of_runs})):
        name = f"α = {alpha:g}" + (" (uniform)" if alpha == 1 else "")
        if alpha in of_runs:
            name += f": {', '.join(of_runs[alpha][:3])}" + (" …" if len(of_runs[alpha]) > 3 else "")
        wide = 3 if alpha in of_runs else 1.8
        axes.plot(x, density(alpha, x), color=COLORS[number % len(COLORS)], label=name, linewidth=wide)
    axes.set(xlim=(0, 1), ylim=(0, 4), xlabel="λ, the share of the first image", ylabel="density")
    axes.set_title("λ ~ Beta(α, α): the larger α, the more by halves")
    axes.legend(loc="upper center", ncols=2)
    return save(figure, out)
