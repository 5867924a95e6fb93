"""A picture to judge an augmentation by: images beside their views."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from mixview.data.augmentation import Augmentation, views
from mixview.data.source import Pixels

GAP = 4
"""Pixels between the pictures of a grid."""


def view_grid(
    images: Sequence[Tensor],
    augmentations: tuple[Augmentation, Augmentation],
    *,
    columns: int = 4,
    cell: int = 128,
    seed: int = 0,
) -> Pixels:
    """A picture to judge an augmentation by: a row an image, the image first, then `columns` draws of each view.

    Args:
        images: uint8 [C, H, W] each, of any size.
        augmentations: one for each view; shown as they are before normalisation.
        columns: draws of each view.
        cell: side of each picture in the grid.
        seed: of the draws.
    """
    if not images:
        raise ValueError("no images to draw a grid of: pass at least one")
    first, second = (replace(augmentation, normalise=None) for augmentation in augmentations)
    rows = []
    for index, image in enumerate(images):
        drawn = [views(image, seed, epoch, index, (first, second)) for epoch in range(columns)]
        row = [fit(F.to_dtype(image, torch.float32, scale=True), cell)]
        row += [to_cell(pair[0], cell) for pair in drawn] + [to_cell(pair[1], cell) for pair in drawn]
        rows.append(row)
    return tile(rows, groups=(1, columns, columns))


def fit(image: Tensor, cell: int) -> Pixels:
    """The whole image, as large as fits, in the middle of a white cell."""
    height, width = image.shape[1:]
    scale = cell / max(height, width)
    size = max(1, round(height * scale)), max(1, round(width * scale))
    pixels = to_pixels(resize(image, size))
    canvas = np.full((cell, cell, 3), 255, np.uint8)
    top, left = (cell - size[0]) // 2, (cell - size[1]) // 2
    canvas[top : top + size[0], left : left + size[1]] = pixels
    return canvas


def to_cell(view: Tensor, cell: int) -> Pixels:
    return to_pixels(resize(view, (cell, cell)))


def resize(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Small images are enlarged pixel by pixel, so that one sees what the network sees."""
    mode = InterpolationMode.NEAREST if max(image.shape[1:]) < max(size) else InterpolationMode.BILINEAR
    resized: Tensor = F.resize(image, list(size), interpolation=mode, antialias=True)
    return resized


def to_pixels(image: Tensor) -> Pixels:
    """[H, W, 3] of an image in [0, 1]; one channel is grey, and of many the first three are shown."""
    channels = image[:3] if len(image) >= 3 else image[:1].expand(3, -1, -1)
    pixels: Pixels = (channels.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return pixels


def tile(rows: Sequence[Sequence[Pixels]], groups: Sequence[int] = ()) -> Pixels:
    """Pictures of one size in rows on white, with a wider gap after each of the groups of columns."""
    height, width = rows[0][0].shape[:2]
    lefts, left = [], GAP
    ends = set(np.cumsum(groups).tolist())
    for column in range(len(rows[0])):
        lefts.append(left)
        left += width + (3 * GAP if column + 1 in ends and column + 1 < len(rows[0]) else GAP)
    canvas = np.full((len(rows) * (height + GAP) + GAP, left, 3), 255, np.uint8)
    for number, row in enumerate(rows):
        top = GAP + number * (height + GAP)
        for start, picture in zip(lefts, row, strict=True):
            canvas[top : top + height, start : start + width] = picture
    return canvas
