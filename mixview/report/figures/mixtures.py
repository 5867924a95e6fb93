"""CutMix and Mixup over λ, as in the paper's comparison of the two."""

from pathlib import Path

import torch
from torch import Tensor

from mixview.data.contact_sheet import to_rgb
from mixview.data.dataset import ImageDataset, find_range, natural_size
from mixview.data.decode import Decoder
from mixview.data.loader import to_tensor
from mixview.encoders.transforms import CenterCrop
from mixview.mixing import CutMix, Mixup, mixture_generators
from mixview.report.dataset_sheet import to_pictures
from mixview.report.figures.drawing import in_style, new_figure, open_images, save, show_picture

LARGEST = 224


@in_style
def draw_mixtures(
    images: str,
    out: Path = Path("mixtures"),
    lams: list[float] | None = None,
    pairs: int = 2,
    split: str | None = None,
    seed: int = 0,
) -> list[Path]:
    """Draw how CutMix and Mixup mix two images, over λ, the share of the first one.

    Args:
        images: Folder of a run, or any images by path or name.
        out: Name of the figure: OUT.png and OUT.svg are written.
        lams: Shares of the first image to show; by default 0.9, 0.7, 0.5, 0.3 and 0.1.
        pairs: Number of pairs of images.
        split: Split of the images, such as train or val.
        seed: Seed that chooses the images and places the boxes.

    Example:
        >>> paths = draw_mixtures("scenes", out=Path("mixtures"), lams=[0.7, 0.3])
        wrote mixtures.png and mixtures.svg
    """
    lams = [0.9, 0.7, 0.5, 0.3, 0.1] if lams is None else lams
    source = open_images(images, split)
    if pairs < 1 or len(source) < 2 * pairs:
        raise ValueError(f"{pairs} pairs need {2 * max(pairs, 1)} images, and {images} has {len(source)}")
    dataset = ImageDataset(source, Decoder("RGB", value_range=find_range(source), eight_bits=True))
    crop = CenterCrop(min(natural_size(dataset), LARGEST), None)
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))[: 2 * pairs].tolist()
    crops = torch.stack([crop(to_tensor(to_rgb(dataset[index].pixels))) for index in order])
    figure = new_figure(1.15 * (len(lams) + 2), 2.75 * pairs)
    grid = figure.subplots(2 * pairs, len(lams) + 2, squeeze=False)
    for number in range(pairs):
        pair = crops[2 * number : 2 * number + 2]
        first, second = to_pictures(pair)
        step = clearest(pair, lams, seed, number)
        for place, mixer in enumerate((CutMix(), Mixup())):
            row = grid[2 * number + place]
            show_picture(row[0], first, "first image" if not place else "")
            show_picture(row[-1], second, "second image" if not place else "")
            row[0].set_ylabel(type(mixer).__name__, fontsize=10, fontweight="bold")
            for axes, lam in zip(row[1:-1], lams, strict=True):
                mixture = mixer.draw(pair, mixture_generators(seed, step), lam=lam)
                share = f"{float(mixture.lam[0]):.0%} of the first"
                show_picture(axes, to_pictures(mixture(pair)[:1])[0], f"λ = {lam:g}", share)
    return save(figure, out)


def clearest(pair: Tensor, lams: list[float], seed: int, number: int, tries: int = 64) -> int:
    """The step whose boxes the border of the image cuts off least, of some: the figure is of λ, not of chance."""
    cut = {}
    for step in range(number * tries, (number + 1) * tries):
        shares = [float(CutMix().draw(pair, mixture_generators(seed, step), lam=lam).lam[0]) for lam in lams]
        cut[step] = sum(abs(share - lam) for share, lam in zip(shares, lams, strict=True))
    return min(cut, key=lambda step: cut[step])
