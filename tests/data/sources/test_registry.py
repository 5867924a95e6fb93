"""Any source by its path or name."""

import sys
import tarfile
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixview.data.sources.base import SourceError
from mixview.data.sources.files import Folder
from mixview.data.sources.idx import DEBIAN
from mixview.data.sources.registry import FORMATS, NAMES, open_dataset, recognize
from tests.data.sources.test_cifar import write_cifar10
from tests.data.sources.test_coco import write_coco
from tests.data.sources.test_idx import write_idx
from tests.data.sources.test_voc import write_year
from tests.data.writing import needs_data, pixels, raises, tar, write, write_classes


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIXVIEW_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_a_path_is_recognized_by_its_content(tmp_path: Path) -> None:
    write(tmp_path / "photos" / "a.png")
    write(tmp_path / "photos" / "deep" / "b.png")
    write_classes(tmp_path / "classes", {"a": 1, "b": 1})
    write_classes(tmp_path / "parts" / "train", {"a": 2, "b": 1})
    write_classes(tmp_path / "parts" / "val", {"a": 1, "b": 1})
    write(tmp_path / "one" / "only" / "a.png")
    write(tmp_path / "list.csv", "path\nphotos/a.png\n")
    np.savez(tmp_path / "arrays.npz", images=np.stack([pixels(0)]))
    write_year(tmp_path / "voc")
    write_coco(tmp_path / "coco")
    write_cifar10(tmp_path / "torchvision")
    write_idx(tmp_path / "fashion", packed=True)
    write(tmp_path / "stl" / "stl10_binary" / "train_X.bin", bytes(27648))
    write(tmp_path / "stl" / "stl10_binary" / "train_y.bin", b"\1")
    write(tmp_path / "shards" / "a-0.tar", tar({"a.png": b"x"}))
    expected = {
        "photos": "folder",
        "classes": "imagefolder",
        "parts": "imagefolder",
        "one": "folder",
        "list.csv": "list",
        "arrays.npz": "npz",
        "voc": "voc",
        "voc/VOC2007": "voc",
        "coco": "coco",
        "torchvision": "cifar",
        "torchvision/cifar-10-batches-py": "cifar",
        "fashion": "idx",
        "stl": "stl10",
        "shards": "webdataset",
        "shards/a-0.tar": "webdataset",
        "shards/a-{0..0}.tar": "webdataset",
    }
    for name, kind in expected.items():
        source = open_dataset(tmp_path / name)
        assert source.kind == kind, name
        assert len(source) > 0
    assert len(open_dataset(tmp_path / "parts", "val")) == 2
    assert isinstance(open_dataset(tmp_path / "classes", kind="folder"), Folder)
    assert recognize("https://server/a-{000..009}.tar")[0] == "webdataset"


def test_a_hugging_face_folder(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    from tests.data.sources.test_huggingface import table

    table().save_to_disk(tmp_path / "set")
    assert open_dataset(tmp_path / "set").kind == "huggingface"


def test_a_folder_of_data_sets_is_not_guessed_at(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    write(tmp_path / "photos" / "a.png")
    with raises(SourceError, "cifar-10-batches-py and also photos", "the path of one"):
        open_dataset(tmp_path)
    write_year(tmp_path)
    with raises(SourceError, "several datasets"):
        open_dataset(tmp_path)


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIXVIEW_DATA", str(tmp_path / "data"))
    with raises(SourceError, "cifar10 is not in", "cifar-10-batches-py", "path"):
        open_dataset("cifar10")
    write_cifar10(tmp_path / "data")
    assert open_dataset("cifar10", "test").kind == "cifar"
    monkeypatch.delenv("MIXVIEW_DATA")
    with raises(SourceError, "MIXVIEW_DATA"):
        open_dataset("cifar10")
    write(tmp_path / "coco" / "a.png")  # what exists as a path is a path
    assert open_dataset("coco").kind == "folder"


def test_scenes_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(tmp_path / "some" / "a.png")

    class Scenes(Folder.__mro__[1]):  # type: ignore[misc]
        kind = "scenes"

        def __init__(self, count: int = 10, seed: int = 0) -> None:
            self.count = count

    module = types.ModuleType("mixview.data.synthetic.scenes")
    module.Scenes = Scenes  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mixview.data.synthetic.scenes", module)
    assert open_dataset("scenes", count=5).count == 5  # type: ignore[attr-defined]
    with raises(SourceError, "kind scenes", "no option 'cuont'", "did you mean count"):
        open_dataset("scenes", cuont=5)


def test_errors(tmp_path: Path) -> None:
    with raises(SourceError, "neither a path nor a source named cifar11", "did you mean cifar10"):
        open_dataset("cifar11")
    with raises(SourceError, "neither a path", "check the path"):
        open_dataset(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with raises(SourceError, "empty holds no images"):
        open_dataset(tmp_path / "empty")
    with raises(SourceError, "a.md", "is not a file that holds images"):
        open_dataset(write(tmp_path / "a.md", "text"))
    write(tmp_path / "photos" / "a.png")
    with raises(SourceError, "kind of source 'fodler'", "did you mean folder"):
        open_dataset(tmp_path / "photos", kind="fodler")
    write_year(tmp_path / "voc")
    with raises(SourceError, "no option 'year'", "did you mean years"):
        open_dataset(tmp_path / "voc", year=2007)
    with raises(SourceError, "kind list has no splits", "split='val'"):
        open_dataset(write(tmp_path / "a.txt", "photos/a.png"), "val")


def test_links_that_lead_nowhere_are_no_obstacle(tmp_path: Path) -> None:
    write_classes(tmp_path / "set", {"a": 1, "b": 1})
    (tmp_path / "set" / "itself").symlink_to("itself")
    (tmp_path / "set" / "loop").symlink_to(tmp_path / "set", target_is_directory=True)
    source = open_dataset(tmp_path / "set")
    assert source.kind == "imagefolder"
    assert list(source.skipped) == ["loop"]


def test_every_kind_says_what_it_is() -> None:
    for kind, family in FORMATS.items():
        assert family.make.kind == kind  # type: ignore[attr-defined]
        assert family.about
    assert all(places for _, places in NAMES.values())


@needs_data
@pytest.mark.parametrize(
    ("name", "split", "count"),
    [
        ("cifar10", "test", 5_000),
        ("imagenette", None, 1_500),
        ("imagenette", "val", 500),
        ("voc2007", None, 800),
        ("voc", "test", 800),
        ("coco", None, 160),
        ("coco", "val", 100),
    ],
)
def test_real_names(name: str, split: str | None, count: int) -> None:
    assert len(open_dataset(name, split)) == count


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed")
def test_debians_fashion_mnist_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIXVIEW_DATA", raising=False)
    assert len(open_dataset("fashion-mnist", "test")) == 10_000


def test_a_split_among_the_options(tmp_path: Path) -> None:
    options: dict[str, Any] = {"split": "val", "count": 5}
    assert open_dataset("scenes", **options).name(0).startswith("val")
    assert open_dataset("scenes", None, **options).name(0).startswith("val")
    with raises(SourceError, "two splits", "'train'", "'val'"):
        open_dataset("scenes", "train", **options)
    with raises(SourceError, "is not a split"):
        open_dataset("scenes", **{"split": ["val"]})


def test_no_option_says_where_to_write(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    with tarfile.open(tmp_path / "shards" / "a.tar", "w") as archive:
        archive.add(write(tmp_path / "a.png"), "a.png")
    for data in ("scenes", tmp_path / "shards"):
        with raises(SourceError, "MIXVIEW_CACHE"):
            open_dataset(data, cache=str(tmp_path / "elsewhere"))
    assert not (tmp_path / "elsewhere").exists()
    assert len(open_dataset("scenes", cache=False, count=3)) == 3


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ("scenes", {"count": "many"}),
        ("scenes", {"count": None}),
        ("scenes", {"count": 1.5}),
        ("scenes", {"count": {"a": 1}}),
        ("scenes", {"objects": "three"}),
        ("scenes", {"classes": [1]}),
        ("list.txt", {"root": 5}),
    ],
)
def test_options_of_another_type_are_named(tmp_path: Path, data: str, options: dict[str, Any]) -> None:
    write(tmp_path / "list.txt", "a.png")
    place = data if data == "scenes" else tmp_path / data
    with raises(SourceError, next(iter(options)), "does not fit"):
        open_dataset(place, **options)


def test_no_source_is_without_end() -> None:
    with pytest.raises(ValueError, match="at most"):
        open_dataset("scenes", count=10**18)
