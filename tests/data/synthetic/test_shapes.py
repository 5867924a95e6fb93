"""The shapes cover equal areas, fit their objects, and keep to arithmetic that rounds alike everywhere."""

import numpy as np
import pytest

from mixview.data.synthetic.shapes import AREA, SHAPES

side = ((np.arange(800) + 0.5) / 800 * 4 - 2).astype(np.float32)
U, V = np.meshgrid(side, side)


@pytest.mark.parametrize("name", SHAPES)
def test_shape_has_the_common_area_and_fits(name: str) -> None:
    distance = SHAPES[name](U, V)
    inside = distance < 0
    assert distance.dtype == np.float32
    assert inside.mean() * 16 == pytest.approx(AREA, rel=0.01)
    assert np.sqrt(U[inside] ** 2 + V[inside] ** 2).max() < 1.3
    # About the middle of its box, so that an object is where its center says.
    for axis in (U, V):
        assert abs(axis[inside].min() + axis[inside].max()) < 0.3


@pytest.mark.parametrize("name", SHAPES)
def test_distance_grows_no_faster_than_the_way(name: str) -> None:
    distance = SHAPES[name](U, V)
    step = side[1] - side[0]
    for axis in (0, 1):
        assert np.abs(np.diff(distance, axis=axis)).max() < 1.01 * step


def test_no_shape_resembles_another() -> None:
    masks = [SHAPES[name](U, V) < 0 for name in SHAPES]
    for first, one in enumerate(masks):
        for other in masks[:first]:
            turned = [np.rot90(other, k) for k in range(4)]
            overlap = max((one & each).sum() / (one | each).sum() for each in [*turned, *(m[:, ::-1] for m in turned)])
            assert overlap < 0.85
