"""t-SNE of 10 images per class, 5 augmentations each, drawn three times: do classes lie apart, and views together?"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes

from mixview.data.augment.policies import Policy, load_policy
from mixview.data.dataset import SMALL_IMAGE_SIZE
from mixview.data.sources.splits import Subset, take_per_class
from mixview.encoders.loading import LoadedEncoder
from mixview.extensions import require_consent
from mixview.losses import l2_normalize
from mixview.report.derived import Augmented
from mixview.report.embedding import Work, draw_map, features_of, others
from mixview.report.figures.drawing import (
    COLORS,
    bare_map,
    in_style,
    load_encoders,
    new_figure,
    open_images,
    open_runs,
    save,
)


@in_style
def draw_tsne_classes(
    runs: list[str],
    out: Path = Path("tsne-classes"),
    data: str | None = None,
    split: str | None = None,
    classes: int = 10,
    images: int = 10,
    augmentations: int = 5,
    samples: int = 3,
    augment: str | None = None,
    seed: int = 0,
    device: str = "auto",
    workers: int | None = None,
    trust_remote_code: bool = False,
) -> list[Path]:
    """Draw where encoders place augmented images of some classes, for several samples of images.

    Args:
        runs: Folders of runs; each is a row.
        out: Name of the figure: OUT.png and OUT.svg are written.
        data: Labeled images by path or name; by default those that the first run held out.
        split: Split of the images, such as train or val.
        classes: Number of classes; the first ones are taken.
        images: Images per class.
        augmentations: Augmented views per image.
        samples: Number of samples of images; each is a column.
        augment: Augmentation by name; by default that of the first run.
        seed: Seed that chooses the images and augments them.
        device: Device: cpu, cuda, mps, or auto, which takes an accelerator where there is one.
        workers: Processes that read images.
        trust_remote_code: Call the factory of a custom backbone that a run's file names. That runs its code.

    Example:
        >>> scenes = {"data": "scenes", "classes": 3, "images": 4, "augmentations": 2, "samples": 1, "workers": 0}
        >>> paths = draw_tsne_classes(["runs/sim", "runs/bsim"], **scenes)  # doctest: +ELLIPSIS
        wrote tsne-classes.png and tsne-classes.svg...
    """
    if min(classes, images, augmentations, samples) < 1:
        raise ValueError("classes, images, augmentations and samples must all be at least 1")
    opened = open_runs(runs)
    encoders = load_encoders(opened, trust_remote_code)
    source = open_images(data or runs[0], split)
    labels = source.labels()
    if labels is None:
        raise ValueError(f"{data or runs[0]} has no labels, one class per image: pass labeled images as --data")
    few = Subset(source, np.flatnonzero((labels >= 0) & (labels < classes)))
    name = (
        augment
        or opened[0].config.get("augment")
        or ("simclr-small" if encoders[0].size <= SMALL_IMAGE_SIZE else "simclr")
    )
    if augment is None:
        require_consent({"augment": name}, str(runs[0]), trust_remote_code)
    crop = None if augment else opened[0].config.get("min_crop_scale")
    figure = new_figure(3.6 * samples, 2.9 * len(runs) + 0.5)
    grid = figure.subplots(len(runs), samples, squeeze=False)
    for row, run, encoder in zip(grid, opened, encoders, strict=True):
        views = tuple(replace(each, normalize=None) for each in load_policy(str(name), encoder.size, crop))
        for number, axes in enumerate(row):
            chosen = take_per_class(few, images, seed + number)
            share = draw_sample(axes, encoder, chosen, views, augmentations, seed, Work(device, workers))
            what = f"{run.name} ({run.config.get('objective', '?')})" if not number else "other images"
            bare_map(axes, f"{what}: {share:.0%}")
    names = source.classes or tuple(str(label) for label in range(classes))
    marks = [
        grid[0][0].plot([], [], "o", color=COLORS[n % len(COLORS)], label=each)[0]
        for n, each in enumerate(names[:classes])
    ]
    title = "percent: nearest neighbors, other images only, of the same class. Numbers: images; colors: classes"
    figure.legend(handles=marks, loc="outside lower center", ncols=min(10, classes), title=title, title_fontsize=8)
    return save(figure, out)


def draw_sample(
    axes: Axes,
    encoder: LoadedEncoder,
    chosen: Subset,
    views: Policy,
    times: int,
    seed: int,
    work: Work,
) -> float:
    """One map, and the share of views whose nearest view of another image is of the same class."""
    augmented = Augmented(chosen, views, times, encoder.decoder(chosen), seed)
    features = l2_normalize(features_of(encoder, augmented, work)["avgpool"])
    places = draw_map(features)
    labels = chosen.labels()
    assert labels is not None
    seen: dict[int, int] = {}
    for image, label in enumerate(labels.tolist()):
        number = seen[label] = seen.get(label, -1) + 1
        for x, y in places[times * image : times * (image + 1)]:
            color = COLORS[label % len(COLORS)]
            axes.plot(x, y, ".", color=color, markersize=1, alpha=0.4)  # for the limits: text has none
            axes.text(x, y, str(number), color=color, fontsize=6, ha="center", va="center", fontweight="bold")
    owner = torch.arange(len(features)) // times
    near = others(features, times)  # an image has times - 1 further views: one of these is another's
    strange = owner[near.position] != owner.unsqueeze(1)
    first = near.position.gather(1, strange.int().argmax(1, keepdim=True))[:, 0]
    targets = torch.from_numpy(labels)[owner]
    return float((targets[first] == targets).double().mean())
