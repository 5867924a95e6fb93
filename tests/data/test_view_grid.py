"""Grids of views are pictures of the right size that show the image first."""

import numpy as np
import pytest
import torch

from mixview.data.augmentation import named, names
from mixview.data.loading import to_tensor
from mixview.data.scenes import Scenes
from mixview.data.view_grid import GAP, fit, tile, view_grid


@pytest.mark.parametrize("name", names())
def test_a_grid_of_every_augmentation(name: str) -> None:
    scenes = Scenes(3)
    grid = view_grid([to_tensor(scenes.read(i)) for i in range(3)], named(name, 32), columns=2, cell=64)
    assert grid.shape == (3 * (64 + GAP) + GAP, 5 * 64 + 2 * 3 * GAP + 4 * GAP, 3)
    first = grid[GAP : GAP + 64, GAP : GAP + 64]
    assert (first[::2, ::2] == scenes.read(0)).all()


def test_any_channels_and_proportions_fit_a_cell() -> None:
    for channels in (1, 2, 3, 5):
        assert fit(torch.rand(channels, 10, 50), 40).shape == (40, 40, 3)
    assert (fit(torch.zeros(3, 10, 50), 40)[:10] == 255).all()
    assert (
        view_grid([torch.zeros(1, 9, 9, dtype=torch.uint8)], named("simclr", 16), columns=1, cell=20).dtype == np.uint8
    )


def test_no_images_are_refused() -> None:
    with pytest.raises(ValueError, match="pass at least one"):
        view_grid([], named("simclr"))


def test_tiles_lie_in_rows() -> None:
    black = np.zeros((2, 3, 3), np.uint8)
    grid = tile([[black, black], [black, black]])
    assert (grid[GAP : GAP + 2, GAP : GAP + 3] == 0).all()
    assert (grid == 0).all(-1).sum() == 4 * 6
