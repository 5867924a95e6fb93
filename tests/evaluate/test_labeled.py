"""The two splits of labeled images."""

from pathlib import Path

import numpy as np
import pytest

from mixview.data.sources.arrays import Npz
from mixview.data.sources.base import SourceError
from mixview.data.sources.files import ClassFolders, FileList
from mixview.data.synthetic.scenes import Scenes
from mixview.data.synthetic.writers import write as write_layout
from mixview.evaluate.labeled import align_splits, open_splits
from tests.data.writing import encode, write, write_classes
from tests.evaluate.small_encoders import colors


def test_the_test_split_is_found(tmp_path: Path) -> None:
    splits = open_splits(str(colors(tmp_path / "set", 4, 2)))
    assert splits.classes == ("blue", "green", "red")
    assert splits.description == f"{tmp_path}/set, train 12, val 6"
    labels, test_labels = splits.single_labels("knn")
    assert labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert test_labels.tolist() == [0, 0, 1, 1, 2, 2]
    sets, _ = splits.label_sets()
    assert sets.argmax(axis=1).tolist() == labels.tolist()
    assert sets.sum() == 12


def test_the_test_images_may_be_elsewhere(tmp_path: Path) -> None:
    write_classes(tmp_path / "set", {"a": 2, "b": 2})
    write_classes(tmp_path / "more", {"b": 1, "a": 1})
    assert len(open_splits(str(tmp_path / "set"), test_data=str(tmp_path / "more")).test) == 2


def test_a_class_absent_from_the_test_split_is_said_and_its_labels_stay_in_step(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"a": 2, "b": 2, "c": 2})
    write_classes(tmp_path / "test", {"a": 1, "c": 2})
    splits = align_splits(ClassFolders(tmp_path / "train"), ClassFolders(tmp_path / "test"), "set")
    assert splits.single_labels("knn")[1].tolist() == [0, 2, 2]
    assert splits.notes == ("No test image shows b: 1 of 3 classes are not evaluated.",)


def test_a_class_that_only_the_test_split_has_raises(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"a": 2, "b": 2})
    write_classes(tmp_path / "test", {"a": 1, "d": 2})
    with pytest.raises(SourceError, match="has the class 'd', which the training split lacks"):
        align_splits(ClassFolders(tmp_path / "train"), ClassFolders(tmp_path / "test"), "set")


def test_missing_labels(tmp_path: Path) -> None:
    for name in ("x.png", "y.png"):
        write(tmp_path / "plain" / name)
    write_classes(tmp_path / "test", {"a": 1, "b": 1})
    with pytest.raises(SourceError, match=r"the training split of .* has no labels: pass labeled images"):
        open_splits(str(tmp_path / "plain"), test_data=str(tmp_path / "test"))
    pixels = np.zeros((4, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "a.npz", images=pixels, labels=np.array([0, 1, -1, 1]))
    np.savez(tmp_path / "b.npz", images=pixels[:2] + 1, labels=np.array([0, 1]))
    splits = open_splits(str(tmp_path / "a.npz"), test_data=str(tmp_path / "b.npz"))
    assert len(splits.train) == 3
    assert splits.notes == ("1 training images have no label and are left out.",)
    np.savez(tmp_path / "a.npz", images=pixels, labels=np.full(4, -1))
    with pytest.raises(SourceError, match="none of the 4 images has a label"):
        open_splits(str(tmp_path / "a.npz"), test_data=str(tmp_path / "b.npz"))


def test_voc_has_sets_of_labels_and_no_single_ones(tmp_path: Path) -> None:
    scenes = [Scenes(12, 32, 0, split, "multiple") for split in ("train", "test")]  # type: ignore[arg-type]
    write_layout(scenes, tmp_path / "voc", "voc")
    splits = open_splits(str(tmp_path / "voc"))
    train, test = splits.label_sets()
    assert train.shape == test.shape == (12, len(splits.classes))
    assert set(np.unique(train)) <= {-1, 0, 1}
    with pytest.raises(SourceError, match=r"linear needs one class per image, and .* has sets of them: use svm"):
        splits.single_labels("linear")


def listed(folder: Path, name: str, labels: list[str]) -> FileList:
    for number in range(len(labels)):
        write(folder / f"{name}{number}.png", encode(number))
    rows = [f"{name}{number}.png,{label}" for number, label in enumerate(labels)]
    return FileList(write(folder / f"{name}.csv", "\n".join(["path,label", *rows])))


@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [
        (["2", "0", "1"], ["x", "1", "2"], None),
        (["a", "b", "a"], ["0", "1"], None),
        (["0", "1", "2"], ["2", "1"], [2, 1]),
        (["1", "word", "2"], ["2", "1"], [1, 0]),  # "1", "2" and "word" are its classes
    ],
)
def test_words_and_numbers_are_matched_by_name(
    tmp_path: Path, train: list[str], test: list[str], expected: list[int] | None
) -> None:
    splits = listed(tmp_path, "a", train), listed(tmp_path, "b", test)
    if expected is None:
        with pytest.raises(SourceError, match="which the training split lacks"):
            align_splits(*splits, "set")
    else:
        assert align_splits(*splits, "set").single_labels("knn")[1].tolist() == expected


def test_a_label_without_a_name(tmp_path: Path) -> None:
    pixels = np.zeros((2, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "a.npz", images=pixels, labels=np.array([0, 7]), classes=np.array(["a", "b"]))
    with pytest.raises(SourceError, match="label 7 and names 2 classes"):
        align_splits(Npz(tmp_path / "a.npz"), Npz(tmp_path / "a.npz"), "set")
