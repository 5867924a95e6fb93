"""Evaluating on labeled images that have no test split."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixview
from mixview.data.sources.base import Source, SourceError
from mixview.data.sources.registry import open_dataset
from mixview.evaluate import evaluate
from mixview.evaluate.labeled import open_splits
from mixview.train.monitor import hold_out
from tests.data.writing import encode, write
from tests.train.running import tiny


def write_colors(root: Path, counts: dict[str, int]) -> Path:
    """Class folders of images that all differ."""
    number = 0
    for name, count in counts.items():
        for _ in range(count):
            write(root / name / f"{number:03d}.png", encode(number))
            number += 1
    return root


def names(source: Source) -> set[str]:
    return {source.name(index) for index in range(len(source))}


def test_a_fifth_of_every_class_is_held_out_always_the_same(tmp_path: Path) -> None:
    root = str(write_colors(tmp_path / "set", {"cat": 10, "dog": 20}))
    splits, again = open_splits(root), open_splits(root)
    train_labels, test_labels = splits.single_labels("knn")
    assert (np.bincount(train_labels).tolist(), np.bincount(test_labels).tolist()) == ([8, 16], [2, 4])
    assert not names(splits.train) & names(splits.test)
    assert names(splits.test) == names(again.test)
    assert splits.notes[0].startswith(
        f"{root} has no test split: testing on one fifth of its labeled images (6, stratified"
    )


def test_a_class_of_one_image_stays_in_training(tmp_path: Path) -> None:
    splits = open_splits(str(write_colors(tmp_path / "set", {"cat": 10, "dog": 10, "emu": 1})))
    assert np.bincount(splits.single_labels("knn")[0]).tolist() == [8, 8, 1]
    assert "No test image shows emu" in splits.notes[1]
    with pytest.raises(SourceError, match=r"no class of .* has two images, so that none can be held out to test on"):
        open_splits(str(write_colors(tmp_path / "ones", {"cat": 1, "dog": 1})))


def test_without_labels_it_says_how_to_give_them(tmp_path: Path) -> None:
    write_colors(tmp_path / "set", {"all": 4})
    with pytest.raises(SourceError, match="has no labels: pass labeled images, such as one folder per class, or --lab"):
        open_splits(str(tmp_path / "set" / "all"))


def test_what_the_run_held_out_is_held_out(tmp_path: Path) -> None:
    root = write_colors(tmp_path / "set", {"cat": 20, "dog": 20})
    settings: dict[str, Any] = {"data": str(root), "data_options": None, "backbone": "small", "epochs": 1, "seed": 3}
    run = mixview.pretrain(**tiny(tmp_path / "run", **settings))
    _, knn, _ = hold_out(open_dataset(root), str(root), {}, None, 0.1, 3)
    assert knn is not None
    splits = open_splits(str(root), run=run)
    assert names(splits.test) == names(knn.queries)
    assert "testing on the 4 images that the run held out" in splits.notes[0]
    result = evaluate(str(run), "knn", data=str(root), workers=0)
    assert any("that the run held out" in note for note in result.notes)
    assert not result.warnings
    write(root / "dog" / "more.png", encode(99))  # it is not the same data any more
    assert len(open_splits(str(root), run=run).test) == 8


def test_labels_from_a_file_do_for_every_command(tmp_path: Path) -> None:
    root = write_colors(tmp_path / "photos", {"2019": 12, "2020": 12})
    rows = "".join(
        f"{path.relative_to(root).as_posix()},{('oak', 'ash')[n % 2]}\n"
        for n, path in enumerate(sorted(root.rglob("*.png")))
    )
    (tmp_path / "labels.csv").write_text(f"path,label\n{rows}")
    labels = str(tmp_path / "labels.csv")
    settings: dict[str, Any] = {"data": str(root), "data_options": None, "backbone": "small", "epochs": 1}
    run = mixview.pretrain(**tiny(tmp_path / "run", {"eval_every": 1}, **settings, labels=labels))
    splits = open_splits(str(root), options={"labels": labels}, run=run)
    assert splits.classes == ("ash", "oak")
    assert "that the run held out" in splits.notes[0]
    for protocol in ("knn", "svm"):
        assert evaluate(str(run), protocol, data=str(root), labels=labels, workers=0).metrics
