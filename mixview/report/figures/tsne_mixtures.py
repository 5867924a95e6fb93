"""t-SNE of 32 images and their 32 mixtures, run beside run, as the paper shows how SIM and BSIM place them."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from torch import Tensor

from mixview.data.contact_sheet import to_rgb
from mixview.data.sources.base import Pixels, even_indices
from mixview.data.sources.splits import Subset, take_fraction
from mixview.encoders.loading import LoadedEncoder
from mixview.encoders.search import nearest
from mixview.losses import l2_normalize
from mixview.report.derived import MixerName, Mixtures, Recipe
from mixview.report.embedding import Work, draw_map, features_of
from mixview.report.figures.drawing import (
    BAD,
    COLORS,
    GOOD,
    PALE,
    bare_map,
    in_style,
    load_encoders,
    new_figure,
    open_images,
    open_runs,
    put_picture,
    save,
    show_picture,
)
from mixview.report.showing import read_images

COUNT = 32
PAIR = 6
"""The paper's: 6_25."""


class Placed(NamedTuple):
    """The places of images and mixtures by one encoder."""

    places: npt.NDArray[np.float32]
    """[2 N, 2] the images, then the mixtures."""
    near: Tensor
    """[N] whether the image that a mixture is nearest to is one of its parents."""
    cosine: Tensor
    """[N, 2] of each mixture to its two parents."""


@in_style
def draw_tsne_mixtures(
    runs: list[str],
    out: Path = Path("tsne-mixtures"),
    data: str | None = None,
    pair: int = PAIR,
    mixer: MixerName = "cutmix",
    lam: float = 0.5,
    seed: int = 0,
    device: str = "auto",
    workers: int | None = None,
    trust_remote_code: bool = False,
) -> list[Path]:
    """Draw where encoders place 32 images and their 32 mixtures (image i with image 31-i), run by run.

    Args:
        runs: Folders of runs. The paper has SIM on the left and BSIM on the right.
        out: Name of the figure: OUT.png and OUT.svg are written.
        data: Images by path or name; by default those that the first run held out.
        pair: Image whose mixtures with its partner are drawn larger.
        mixer: Mixture: cutmix or mixup.
        lam: Share of image i in mixture i_j. It is larger in CutMix where the border cuts the box off.
        seed: Seed that chooses the images and places the boxes.
        device: Device: cpu, cuda, mps, or auto, which takes an accelerator where there is one.
        workers: Processes that read images.
        trust_remote_code: Call the factory of a custom backbone that a run's file names. That runs its code.

    Example:
        >>> paths = draw_tsne_mixtures(["runs/sim", "runs/bsim"], data="scenes", mixer="mixup", workers=0)
        wrote tsne-mixtures.png and tsne-mixtures.svg
    """
    if not 0 <= pair < COUNT:
        raise ValueError(f"pair is one of the {COUNT} images, 0 to {COUNT - 1}, got {pair}")
    opened = open_runs(runs)
    encoders = load_encoders(opened, trust_remote_code)
    candidates = open_images(data or runs[0])
    some = read_images(
        take_fraction(candidates, min(1.0, 4 * COUNT / len(candidates)), seed),
        data or runs[0],
        len(candidates),
    )
    if len(some.source) < COUNT:
        raise ValueError(
            f"this figure needs {COUNT} images, and {some.description} has {len(candidates)}: pass others as --data"
        )
    chosen = even_indices(len(some.source), COUNT)
    source, pictures = Subset(some.source, chosen), [some.pictures[index] for index in chosen]
    recipe, work = Recipe(mixer, lam, seed), Work(device, workers)
    figure = new_figure(5.2 * len(runs), 6.9)
    top, bottom = figure.subfigures(2, 1, height_ratios=[5.2, 1.7], squeeze=False)[:, 0]
    panels = top.subplots(1, len(runs), squeeze=False)[0]
    placed = [place(encoder, source, recipe, work) for encoder in encoders]
    for axes, run, each in zip(panels, opened, placed, strict=True):
        title = f"{run.name} ({run.method or '?'}, {run.config.get('objective', '?')}): "
        draw_panel(axes, each, pictures, pair, title + f"{int(each.near.sum())} of {COUNT} mixtures beside a parent")
    mixed = Mixtures(source, max(encoder.size for encoder in encoders), encoders[0].decoder(source), recipe)
    partner = COUNT - 1 - pair
    tiles = [(str(index), pictures[index], "") for index in (pair, partner)]
    for index in (pair, partner):
        lines = [
            f"{run.name}: {each.cosine[index, 0]:.2f}, {each.cosine[index, 1]:.2f}"
            for run, each in zip(opened, placed, strict=True)
        ]
        tiles.append(
            (f"{index}_{COUNT - 1 - index}", to_rgb(mixed.read(index)), "\n".join(["cosine to its parents", *lines]))
        )
    for axes, (title, pixels, under) in zip(bottom.subplots(1, 4), tiles, strict=True):
        show_picture(axes, pixels, title, under)
    return save(figure, out)


def place(encoder: LoadedEncoder, source: Subset, recipe: Recipe, work: Work) -> Placed:
    """Features of images and mixtures, on one map."""
    plain = l2_normalize(features_of(encoder, source, work)["avgpool"])
    mixtures = Mixtures(source, encoder.size, encoder.decoder(source), recipe)
    mixed = l2_normalize(features_of(encoder, mixtures, work)["avgpool"])
    own = torch.arange(len(plain))
    partner = own.flip(0)
    closest = nearest(plain, mixed, k=1).position[:, 0]
    cosine = torch.stack([(mixed * plain).sum(1), (mixed * plain[partner]).sum(1)], 1)
    return Placed(draw_map(torch.cat([plain, mixed])), (closest == own) | (closest == partner), cosine)


def draw_panel(axes: Axes, placed: Placed, pictures: list[Pixels], pair: int, title: str) -> None:
    """One map: images with their numbers, mixtures as i_j with a line to the parent they are mostly of."""
    places, marked = placed.places, (pair, COUNT - 1 - pair)
    for index in range(COUNT):
        x, y = places[COUNT + index]
        bold = index in marked
        color = COLORS[0] if bold else GOOD if placed.near[index] else BAD
        axes.plot(*zip(places[index], (x, y), strict=True), color=color, linewidth=1.6 if bold else 0.6, zorder=1)
        axes.plot(x, y, "D", color=color, markersize=6 if bold else 4, zorder=4)
        name = f"{index}_{COUNT - 1 - index}"
        axes.annotate(
            name, (x, y), (3, 3), textcoords="offset points", color=color, fontsize=9 if bold else 6,
            fontweight="bold" if bold else "normal", zorder=5,
        )  # fmt: skip
        put_picture(axes, pictures[index], places[index], COLORS[0] if bold else PALE, 0.3 if bold else 0.22)
        axes.annotate(str(index), places[index], (-12, 7), textcoords="offset points", fontsize=6.5, zorder=6)
    bare_map(axes, title)
    axes.set_xlabel(
        "diamonds: mixtures; green where the nearest image is one of its two parents, red where not", fontsize=7
    )
