import numpy as np
import pytest
import torch

from mixview.data.augmentation import named
from mixview.data.opening import open_source
from mixview.data.source import SourceError
from mixview.data.splits import Subset
from mixview.evaluate.transforms import CentreCrop
from mixview.train.watching import hold_out, pick
from tests.data.writing import write_classes


def test_a_part_of_its_own_asks_the_questions(tmp_path) -> None:
    write_classes(tmp_path / "train", {"cat": 4, "dog": 4})
    write_classes(tmp_path / "val", {"cat": 2, "dog": 3})
    source = open_source(tmp_path)
    left, held, words = hold_out(source, str(tmp_path), {}, None, 0.1, 0)
    assert left is source
    assert held is not None
    assert (len(held.memory), len(held.questions)) == (8, 5)
    assert "5 images of the val part" in words


def test_a_part_by_name_asks_the_questions(tmp_path) -> None:
    write_classes(tmp_path / "train", {"cat": 6, "dog": 6})
    write_classes(tmp_path / "val", {"cat": 2, "dog": 3})
    source = open_source(tmp_path, "train[:8]")
    left, held, words = hold_out(source, str(tmp_path), {}, None, 0.1, 0, "train[8:]")
    assert left is source
    assert held is not None
    assert (len(held.memory), len(held.questions)) == (8, 4)
    assert f"4 questions from {tmp_path} train[8:]" in words


def test_without_one_some_images_are_held_out(tmp_path) -> None:
    write_classes(tmp_path, {"cat": 10, "dog": 10})
    source = open_source(tmp_path)
    left, held, words = hold_out(source, str(tmp_path), {}, None, 0.2, 0)
    assert held is not None
    assert (len(left), len(held.questions)) == (16, 4)
    names = {left.name(i) for i in range(16)} | {held.questions.name(i) for i in range(4)}
    assert len(names) == 20
    assert np.bincount(held.questions.labels()).tolist() == [2, 2]
    assert "4 labelled images are held out" in words
    assert hold_out(source, str(tmp_path), {}, None, 0.0, 0)[1] is None


def test_without_labels_there_is_nothing_to_ask(tmp_path) -> None:
    write_classes(tmp_path, {"cat": 3})
    source = open_source(tmp_path, kind="folder")
    left, held, words = hold_out(source, str(tmp_path), {"kind": "folder"}, None, 0.1, 0)
    assert left is source
    assert held is None
    assert "no labels" in words
    with pytest.raises(SourceError, match="has no labels for a k-NN accuracy"):
        hold_out(source, str(tmp_path), {}, str(tmp_path / "cat"), 0.1, 0)


def test_pick_is_even() -> None:
    scenes = open_source("scenes", count=50, cache=False)
    assert pick(scenes, 50) is scenes
    few = pick(scenes, 5)
    assert isinstance(few, Subset)
    assert len(few) == 5


@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 500, 375), (3, 20, 90), (1, 24, 24)])
def test_prepare_makes_views_of_one_size(shape: tuple[int, int, int]) -> None:
    image = torch.full(shape, 128, dtype=torch.uint8)
    view = CentreCrop(24, named("simclr", 24)[0].normalise)(image)
    assert view.shape == (shape[0], 24, 24)
    assert view.std() < 1.0
