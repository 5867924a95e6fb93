"""Folders that the library `datasets` wrote."""

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from mixview.data.sources.base import BadImage, SourceError
from mixview.data.sources.huggingface import HuggingFace, locate
from tests.data.writing import encode, raises, write

datasets = pytest.importorskip("datasets")


def table(count: int = 4, **more: Any) -> Any:
    images = [{"bytes": encode(number), "path": None} for number in range(count)]
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    content = {"image": images, "label": [number % 2 for number in range(count)]}
    for name, (feature, values) in more.items():
        features[name], content[name] = feature, values
    return datasets.Dataset.from_dict(content, features=datasets.Features(features))


def test_a_data_set(tmp_path: Path) -> None:
    table().save_to_disk(tmp_path / "set")
    assert locate(tmp_path / "set") == tmp_path / "set"
    assert locate(tmp_path) is None
    source = pickle.loads(pickle.dumps(HuggingFace(tmp_path / "set")))
    assert len(source) == 4
    assert [source.read(index) for index in range(4)] == [encode(index) for index in range(4)]
    assert source.labels().tolist() == [0, 1, 0, 1]
    assert source.classes == ("cat", "dog")
    assert source.name(3) == "3"
    assert source.fingerprint() == HuggingFace(tmp_path / "set").fingerprint()
    with raises(SourceError, "no split 'train'", "leave split out"):
        HuggingFace(tmp_path / "set", split="train")


def test_splits(tmp_path: Path) -> None:
    datasets.DatasetDict({"test": table(2), "train": table(3)}).save_to_disk(tmp_path / "set")
    assert locate(tmp_path / "set") is not None
    assert len(HuggingFace(tmp_path / "set")) == 3
    source = HuggingFace(tmp_path / "set", split="test")
    assert len(source) == 2
    assert source.name(0) == "test/0"
    with raises(SourceError, "no split 'val'", "test, train"):
        HuggingFace(tmp_path / "set", split="val")


def test_columns(tmp_path: Path) -> None:
    more = {"other": (datasets.Image(), [{"bytes": encode(9), "path": None}] * 4)}
    table(**more).save_to_disk(tmp_path / "two")
    with raises(SourceError, "image, other", "image_column"):
        HuggingFace(tmp_path / "two")
    assert HuggingFace(tmp_path / "two", image_column="other").read(0) == encode(9)
    with raises(SourceError, "no column 'x'", "image, label, other"):
        HuggingFace(tmp_path / "two", image_column="x")
    table().remove_columns(["image"]).save_to_disk(tmp_path / "none")
    with raises(SourceError, "no column of images", "label"):
        HuggingFace(tmp_path / "none")
    table().remove_columns(["label"]).save_to_disk(tmp_path / "unlabeled")
    assert HuggingFace(tmp_path / "unlabeled").labels() is None


def test_images_beside_the_table_and_missing_ones(tmp_path: Path) -> None:
    file = write(tmp_path / "a.png", encode(5))
    values = [{"bytes": None, "path": str(file)}, None]
    content = datasets.Dataset.from_dict({"image": values}, features=datasets.Features({"image": datasets.Image()}))
    content.save_to_disk(tmp_path / "set")
    source = HuggingFace(tmp_path / "set")
    # The library packs the files that it finds into the table when it saves.
    assert source.read(0) == encode(5)
    with raises(BadImage, "1", "has no image"):
        source.read(1)


def test_without_the_library_and_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table().save_to_disk(tmp_path / "set")
    write(tmp_path / "set" / "state.json", "{")
    with raises(SourceError, "cannot be opened by datasets"):
        HuggingFace(tmp_path / "set")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with raises(SourceError, "not installed", "pip install"):
        HuggingFace(tmp_path / "set")
