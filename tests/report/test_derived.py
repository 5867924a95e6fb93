"""Sources that are made of others: mixtures and views."""

import numpy as np
import pytest

from mixview.data.augment.policies import load_policy
from mixview.data.decode import Decoder
from mixview.report.derived import Augmented, Mixtures, Recipe
from tests.evaluate.small_encoders import SIZE, scenes


def test_mixtures_hold_what_their_boxes_say() -> None:
    source = scenes(9)
    mixed = Mixtures(source, SIZE, Decoder(), Recipe("cutmix", 0.6))
    boxes = mixed.boxes()
    for index in range(len(source)):
        top, bottom, left, right = np.round(boxes[index] / 255 * SIZE).astype(int)
        expected = source.read(index).copy()
        expected[top:bottom, left:right] = source.read(8 - index)[top:bottom, left:right]
        assert np.array_equal(mixed.read(index), expected)
        assert mixed.share(index) == pytest.approx(1 - (bottom - top) * (right - left) / SIZE**2, abs=1e-6)
    assert [mixed.name(0), mixed.name(8)] == ["0_8", "8_0"]
    assert np.array_equal(mixed.read(4), source.read(4))  # the middle one is its own partner


def test_mixup_blends() -> None:
    source = scenes(4)
    mixed = Mixtures(source, SIZE, Decoder(), Recipe("mixup", 0.25)).read(0)
    expected = 0.25 * source.read(0).astype(float) + 0.75 * source.read(3)
    assert np.abs(mixed - expected).max() <= 1


def test_what_is_mixed_otherwise_is_another_source() -> None:
    source = scenes(4)
    prints = [Mixtures(source, size, Decoder(), recipe).fingerprint() for size, recipe in
              ((SIZE, Recipe()), (SIZE, Recipe("mixup")), (SIZE, Recipe(seed=1)), (32, Recipe()))]  # fmt: skip
    assert len(set(prints)) == 4


def test_views_are_those_of_training_and_stay_the_same() -> None:
    from dataclasses import replace

    first, second = load_policy("simclr-small", SIZE)
    views = replace(first, normalize=None), replace(second, normalize=None)
    augmented = Augmented(scenes(3), views, 2, Decoder())
    assert len(augmented) == 6
    assert augmented.name(3).endswith("view 2")
    assert augmented.read(0).shape == (SIZE, SIZE, 3)
    assert np.array_equal(augmented.read(5), augmented.read(5))
    assert not np.array_equal(augmented.read(4), augmented.read(5))
    with pytest.raises(ValueError, match="normalize=None"):
        Augmented(scenes(3), (first, second), 2, Decoder())
