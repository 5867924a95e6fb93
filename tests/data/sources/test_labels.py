"""Labels from a CSV file beside the images."""

from pathlib import Path

import pytest

from mixview.data.sources.base import SourceError
from mixview.data.sources.registry import open_dataset
from tests.data.writing import encode, write


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Four images without labels, in folders that are not classes."""
    for number, name in enumerate(("2019/a.png", "2019/b.png", "2020/c.png", "2020/d.png")):
        write(tmp_path / "photos" / name, encode(number))
    return tmp_path / "photos"


def table(photos: Path, text: str) -> str:
    path = photos.parent / "labels.csv"
    path.write_text(text)
    return str(path)


def test_words_become_classes_and_missing_files_are_named(photos: Path) -> None:
    text = "path,label\n2019/a.png,oak\nphotos/2020/c.png,ash\nd.png,oak\nabsent.png,ash\n"
    source = open_dataset(photos, labels=table(photos, text))
    assert source.classes == ("ash", "oak")
    assert [source.name(index) for index in range(4)] == ["2019/a.png", "2019/b.png", "2020/c.png", "2020/d.png"]
    assert source.labels().tolist() == [1, -1, 0, 1]  # type: ignore[union-attr]
    note = source.notes[-1]
    assert note.endswith("1 row names no image (absent.png), and 1 image has no label (2019/b.png).")
    assert source.fingerprint() != open_dataset(photos, kind="folder").fingerprint()
    assert source.fingerprint() != open_dataset(photos, labels=table(photos, text.replace("oak", "elm"))).fingerprint()


def test_several_labels_are_sets(photos: Path) -> None:
    text = "path,label\n2019/a.png,oak;ash\n2019/b.png,oak\n2020/c.png,ash\n2020/c.png,elm\n"
    source = open_dataset(photos, labels=table(photos, text))
    assert source.labels() is None
    assert source.label_sets().tolist() == [[1, 0, 1], [0, 0, 1], [1, 1, 0], [0, 0, 0]]  # type: ignore[union-attr]


def test_numbers_stay_numbers_and_parts_share_a_file(tmp_path: Path) -> None:
    for number, name in enumerate(("train/a.png", "train/b.png", "val/a.png")):
        write(tmp_path / "set" / name, encode(number))
    path = tmp_path / "labels.csv"
    path.write_text("file,class\ntrain/a.png,0\ntrain/b.png,2\nval/a.png,2\n")
    train, val = (open_dataset(tmp_path / "set", split, labels=str(path)) for split in (None, "val"))
    assert train.labels().tolist() == [0, 2]  # type: ignore[union-attr]
    assert val.labels().tolist() == [2]  # type: ignore[union-attr]
    assert train.classes is None
    assert not train.notes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\nx.png,oak\n", r"labels.csv names no image of .*: it begins with 'x.png', and the images with"),
        ("path\n2019/a.png\n", "has no labels: give it the columns path and label"),
        ("path,label\n2019/a.png,-1\n", "has the label -1: count classes from 0"),
        ("one,two\n1,2\n", "say which is the path with path_column"),
    ],
)
def test_mistakes(photos: Path, text: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        open_dataset(photos, labels=table(photos, text))
    with pytest.raises(SourceError, match="cannot be read"):
        open_dataset(photos, labels="absent.csv")
    with pytest.raises(SourceError, match="labels 3 is not a file"):
        open_dataset(photos, labels=3)
