import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import mixview
from mixview.data.augment.policies import load_policy
from mixview.data.sources.base import Source, SourceError
from mixview.data.sources.identity import content_hashes
from mixview.data.sources.registry import open_dataset
from mixview.data.sources.splits import Subset, take_evenly
from mixview.encoders.transforms import CenterCrop
from mixview.train.monitor import KNNImages, drop_shared_images, hold_out, note_trained_on
from tests.data.writing import encode, write, write_classes
from tests.train.running import tiny


def test_a_part_of_its_own_asks_the_questions(tmp_path) -> None:
    write_classes(tmp_path / "train", {"cat": 4, "dog": 4})
    write_classes(tmp_path / "val", {"cat": 2, "dog": 3})
    source = open_dataset(tmp_path)
    left, held, words = hold_out(source, str(tmp_path), {}, None, 0.1, 0)
    assert left is source
    assert held is not None
    assert (len(held.bank), len(held.queries)) == (8, 5)
    assert "5 images of the val part" in words


def test_a_part_by_name_asks_the_questions(tmp_path) -> None:
    write_classes(tmp_path / "train", {"cat": 6, "dog": 6})
    write_classes(tmp_path / "val", {"cat": 2, "dog": 3})
    source = open_dataset(tmp_path, "train[:8]")
    left, held, words = hold_out(source, str(tmp_path), {}, None, 0.1, 0, "train[8:]")
    assert left is source
    assert held is not None
    assert (len(held.bank), len(held.queries)) == (8, 4)
    assert f"4 queries from {tmp_path} train[8:]" in words


def test_without_one_some_images_are_held_out(tmp_path) -> None:
    write_classes(tmp_path, {"cat": 10, "dog": 10})
    source = open_dataset(tmp_path)
    left, held, words = hold_out(source, str(tmp_path), {}, None, 0.2, 0)
    assert held is not None
    assert (len(left), len(held.queries)) == (16, 4)
    names = {left.name(i) for i in range(16)} | {held.queries.name(i) for i in range(4)}
    assert len(names) == 20
    assert np.bincount(held.queries.labels()).tolist() == [2, 2]
    assert "4 labeled images are held out" in words
    assert hold_out(source, str(tmp_path), {}, None, 0.0, 0)[1] is None


def test_without_labels_there_is_nothing_to_ask(tmp_path) -> None:
    write_classes(tmp_path, {"cat": 3})
    source = open_dataset(tmp_path, kind="folder")
    left, held, words = hold_out(source, str(tmp_path), {"kind": "folder"}, None, 0.1, 0)
    assert left is source
    assert held is None
    assert "no labels" in words
    with pytest.raises(SourceError, match="has no labels for a k-NN accuracy"):
        hold_out(source, str(tmp_path), {}, str(tmp_path / "cat"), 0.1, 0)


# No query is in the feature bank


def write_distinct(root: Path, count: int, first: int = 0) -> Path:
    """Two classes with so many images each, of which no two are the same."""
    for number in range(2 * count):
        write(root / ("cat" if number < count else "dog") / f"{number:03d}.png", encode(first + number))
    return root


def contents(source: Source) -> set[int]:
    return set(content_hashes(source, range(len(source))).tolist())


def test_distinct_images_are_left_alone(tmp_path: Path) -> None:
    bank, queries = (
        open_dataset(write_distinct(tmp_path / name, 6, first)) for name, first in (("train", 0), ("val", 12))
    )
    held, note = drop_shared_images(KNNImages(bank, queries), 100)
    assert held == KNNImages(bank, queries)
    assert note == ""


def test_copies_by_other_names_leave_the_feature_bank(tmp_path: Path) -> None:
    """As when --validation is the same folder by another path, or the val part was copied from train."""
    write_distinct(tmp_path / "train", 10)
    write_distinct(tmp_path / "val", 3, first=20)
    for number in (2, 5, 13):
        name = "cat" if number < 10 else "dog"
        shutil.copy(tmp_path / "train" / name / f"{number:03d}.png", tmp_path / "val" / name / f"copy-{number}.png")
    held, note = drop_shared_images(KNNImages(open_dataset(tmp_path / "train"), open_dataset(tmp_path / "val")), 100)
    assert held is not None
    assert (len(held.bank), len(held.queries)) == (17, 9)
    assert not contents(held.bank) & contents(held.queries)
    assert note == (
        "k-NN: 3 of the 20 images in the feature bank are also among the 9 queries, by content, and were excluded: "
        "17 remain in the bank."
    )


@pytest.mark.parametrize(("images", "bank", "queries"), [(2000, 30, 10), (20, 18, 5)])
def test_the_same_images_are_parted(images: int, bank: int, queries: int, tmp_path: Path) -> None:
    """Only what the k-NN uses is compared; few images are parted as 3 to 1."""
    source = open_dataset(write_distinct(tmp_path, 20))
    held, note = drop_shared_images(KNNImages(source, source), images)
    assert held is not None
    assert (len(held.bank), len(held.queries)) == (bank, queries)
    assert not contents(held.bank) & contents(held.queries)
    assert f"{bank} remain in the bank" in note


def test_duplicates_within_a_folder_are_not_held_out_and_remembered(tmp_path: Path) -> None:
    write_distinct(tmp_path, 20)
    for name in ("cat", "dog"):
        for path in sorted((tmp_path / name).iterdir())[:15]:
            shutil.copy(path, path.with_name(f"again-{path.name}"))
    source = open_dataset(tmp_path)
    left, held, _ = hold_out(source, str(tmp_path), {}, None, 0.2, 0)
    assert held is not None
    assert contents(held.bank) & contents(held.queries)
    held, note = drop_shared_images(held, 2000)
    assert held is not None
    assert not contents(held.bank) & contents(held.queries)
    assert f"of the {len(left)} images in the feature bank are also among the {len(held.queries)} queries" in note


def test_images_that_are_all_the_same_give_no_accuracy(tmp_path: Path) -> None:
    for name in ("train/cat/a", "train/cat/b", "train/dog/c", "val/cat/d", "val/dog/e"):
        write(tmp_path / f"{name}.png", encode(0))
    held, note = drop_shared_images(KNNImages(open_dataset(tmp_path, "train"), open_dataset(tmp_path, "val")), 2000)
    assert held is None
    assert note == (
        "There will be no k-NN accuracy: 3 of the 3 images in the feature bank are also among the 1 queries, by "
        "content."
    )
    options = tiny(tmp_path / "run", {"eval_every": 1}, data=str(tmp_path), data_options=None, batch_size=2, epochs=1)
    with pytest.raises(SourceError, match=r"There will be no k-NN .*Pass other images as --validation or"):
        mixview.pretrain(**options, validation_split="val")
    assert not (tmp_path / "run").exists()
    mixview.pretrain(**options)  # nobody asked for this accuracy
    assert "knn" not in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_the_training_images_as_queries_are_not_their_own_neighbors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three steps teach nothing about other images."""
    more = {"data_options": {"count": 200, "size": 16}, "backbone": "small", "batch_size": 64, "epochs": 1}
    options = tiny(tmp_path / "run", {"eval_every": 1}, **more)
    out = mixview.pretrain(**options, validation_split="train")
    accuracy = [json.loads(line).get("knn") for line in (out / "metrics.jsonl").read_text().splitlines()][-1]
    assert accuracy < 0.3
    said = " ".join(capsys.readouterr().err.split())
    assert "k-NN: 50 of the 200 images in the feature bank are also among the 50 queries, by content" in said
    assert "The encoder was pretrained on 50 of the 50 k-NN queries: the k-NN accuracy" in said
    other = mixview.pretrain(**tiny(tmp_path / "other", {"eval_every": 1}, epochs=1))
    assert "feature bank" not in capsys.readouterr().err
    held = KNNImages(open_dataset("scenes", "train", count=9, size=16), open_dataset("scenes", "val", count=9, size=16))
    assert note_trained_on(other, held) == []


def test_take_evenly_is_even() -> None:
    scenes = open_dataset("scenes", count=50, cache=False)
    assert take_evenly(scenes, 50) is scenes
    few = take_evenly(scenes, 5)
    assert isinstance(few, Subset)
    assert len(few) == 5


@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 500, 375), (3, 20, 90), (1, 24, 24)])
def test_prepare_makes_views_of_one_size(shape: tuple[int, int, int]) -> None:
    image = torch.full(shape, 128, dtype=torch.uint8)
    view = CenterCrop(24, load_policy("simclr", 24)[0].normalize)(image)
    assert view.shape == (shape[0], 24, 24)
    assert view.std() < 1.0
