"""Folders, class folders, ImageNet and lists of files."""

import json
import os
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from mixview.data import decode as decoding
from mixview.data.sources.base import BadImage, SourceError
from mixview.data.sources.files import ClassFolders, FileList, Folder
from mixview.data.sources.fingerprint import explain_change
from mixview.data.sources.registry import open_dataset
from tests.data.writing import encode, needs_data, raises, real, write, write_classes


def names(source: Folder | ClassFolders | FileList) -> list[str]:
    return [source.name(index) for index in range(len(source))]


def test_a_folder_at_any_depth_in_sorted_order(tmp_path: Path) -> None:
    for name in ("b.PNG", "a/z.jpeg", "a/b/c/d.webp", "a.tif"):
        write(tmp_path / name)
    for name in ("notes.txt", ".hidden.png", ".git/x.png", "a/._z.jpeg"):
        write(tmp_path / name, "no image")
    source = Folder(tmp_path)
    assert names(source) == ["a.tif", "a/b/c/d.webp", "a/z.jpeg", "b.PNG"]
    assert source.read(0) == encode()
    assert source.labels() is None
    assert source.kind == "folder"
    assert not source.skipped


def test_names_with_spaces_newlines_and_other_encodings(tmp_path: Path) -> None:
    for name in (b"with space.png", b"new\nline.png", b"caf\xe9.png", "日本.png".encode()):
        with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:  # noqa: PTH118, PTH123, names of bytes
            file.write(encode())
    source = pickle.loads(pickle.dumps(Folder(tmp_path)))
    assert all(source.read(index) == encode() for index in range(4))
    assert source.fingerprint().startswith("4 images")


def test_what_is_no_image_is_left_out_and_named(tmp_path: Path) -> None:
    write(tmp_path / "good.png")
    write(tmp_path / "folder.png" / "inside.png")
    (tmp_path / "nowhere.jpg").symlink_to(tmp_path / "absent")
    (tmp_path / "itself.jpg").symlink_to("itself.jpg")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "loop").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(tmp_path / "pipe.png")
    source = Folder(tmp_path)
    assert names(source) == ["folder.png/inside.png", "good.png"]
    assert set(source.skipped) == {"folder.png", "nowhere.jpg", "itself.jpg", "sub/loop", "pipe.png"}
    assert "folder" in source.skipped["folder.png"]
    assert "broken link" in source.skipped["nowhere.jpg"]
    assert "link" in source.skipped["itself.jpg"]
    assert "holds it" in source.skipped["sub/loop"]
    assert "regular" in source.skipped["pipe.png"]


def test_links_to_files_and_folders_are_followed(tmp_path: Path) -> None:
    write(tmp_path / "store" / "a.png")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one").symlink_to(tmp_path / "store", target_is_directory=True)
    (tmp_path / "data" / "two").symlink_to(tmp_path / "store", target_is_directory=True)
    (tmp_path / "data" / "b.png").symlink_to(tmp_path / "store" / "a.png")
    assert names(Folder(tmp_path / "data")) == ["b.png", "one/a.png", "two/a.png"]


def test_a_file_that_cannot_be_read_is_a_bad_image(tmp_path: Path) -> None:
    write(tmp_path / "a.png")
    if os.geteuid() == 0:  # root may read everything, but not a process's memory at address 0
        (tmp_path / "b.png").symlink_to("/proc/self/mem")
    else:
        write(tmp_path / "b.png").chmod(0)
    source = Folder(tmp_path)
    with raises(BadImage, "b.png", "cannot be read"):
        source.read(1)
    (tmp_path / "a.png").unlink()
    with raises(BadImage, "a.png", "No such file"):
        source.read(0)


def test_missing_and_empty_folders(tmp_path: Path) -> None:
    with raises(SourceError, "there is no folder", "absent"):
        Folder(tmp_path / "absent")
    with raises(SourceError, "holds no images", "check the path"):
        Folder(tmp_path)
    with raises(SourceError, "is a file"):
        Folder(write(tmp_path / "a.png"))


def test_memory_is_packed(tmp_path: Path) -> None:
    for number in range(50):
        write(tmp_path / f"{number % 5}" / f"image_{number:04d}.png", b"x")
    source = ClassFolders(tmp_path)
    assert not [value for value in vars(source).values() if isinstance(value, list)]
    assert len(pickle.dumps(source)) < 4000
    tracemalloc.start()
    for _ in range(3):
        for index in range(len(source)):
            source.read(index)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 20_000


def test_class_folders(tmp_path: Path) -> None:
    source = ClassFolders(write_classes(tmp_path, {"dog": 2, "cat": 3, "deep/er": 1}))
    assert source.classes == ("cat", "deep", "dog")
    labels = source.labels()
    assert labels is not None
    assert labels.tolist() == [0, 0, 0, 1, 2, 2]
    assert labels.dtype == np.int64
    write(tmp_path / "stray.png")
    with raises(SourceError, "stray.png", "kind='folder'"):
        ClassFolders(tmp_path)


def test_splits(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"a": 3, "b": 1})
    write_classes(tmp_path / "val", {"a": 1, "b": 1})
    assert len(ClassFolders(tmp_path)) == 4
    assert len(ClassFolders(tmp_path, split="val")) == 2
    with raises(SourceError, "no split 'test'", "train, val"):
        ClassFolders(tmp_path, split="test")
    with raises(SourceError, "no split 'val'", "leave split out"):
        Folder(tmp_path / "train", split="val")


def test_imagenet_has_its_names(tmp_path: Path) -> None:
    train = tmp_path / "ILSVRC" / "Data" / "CLS-LOC" / "train"
    write_classes(train, {"n02012849": 1, "n01440764": 2, "n03126707": 1})
    write(train.parent / "val" / "ILSVRC2012_val_00000001.JPEG")
    write(train.parent / "val" / "ILSVRC2012_val_00000002.JPEG")
    assert ClassFolders(train).classes == ("n01440764", "n02012849", "n03126707")
    write(tmp_path / "LOC_synset_mapping.txt", "n01440764 tench, Tinca tinca\nn02012849 crane\nn03126707 crane\n")
    assert ClassFolders(train.parent).classes == ("tench", "crane (n02012849)", "crane (n03126707)")
    with raises(SourceError, "outside of any class folder"):
        ClassFolders(train.parent, split="val")
    rows = [
        "ImageId,PredictionString",
        "ILSVRC2012_val_00000001,n02012849 1 2 3 4",
        "ILSVRC2012_val_00000002,n01440764 5",
    ]
    write(tmp_path / "LOC_val_solution.csv", "\n".join(rows))
    source = ClassFolders(train.parent, split="val")
    labels = source.labels()
    assert labels is not None
    assert labels.tolist() == [1, 0]


def test_all_of_imagenet_is_named_by_torchvision(tmp_path: Path) -> None:
    for number in range(1000):
        write(tmp_path / f"n{number:08d}" / "a.JPEG", b"x")
    classes = ClassFolders(tmp_path).classes
    assert classes is not None
    assert classes[0] == "tench"
    assert len(set(classes)) == 1000


@pytest.mark.parametrize(
    ("name", "text", "labels", "classes"),
    [
        ("a.txt", "# a list\nx/1.png\n\nx/with space.png\n", None, None),
        ("a.txt", "x/1.png 3\nx/with space.png 0\n", [3, 0], None),
        ("a.txt", "x/1.png\tdog\nx/with space.png\tcat\n", [1, 0], ("cat", "dog")),
        ("a.csv", "label,path\ndog,x/1.png\ncat,x/with space.png\n", [1, 0], ("cat", "dog")),
        ("a.csv", 'x/1.png,7\n"x/with space.png",8\n', [7, 8], None),
        ("a.csv", "\ufefffilename\nx/1.png\nx/with space.png\n", None, None),
        ("a.tsv", "path\tclass\nx/1.png\t1\nx/with space.png\t1\n", [1, 1], None),
    ],
)
def test_lists(tmp_path: Path, name: str, text: str, labels: list[int] | None, classes: tuple[str, ...] | None) -> None:
    write(tmp_path / "x" / "1.png", encode(1))
    write(tmp_path / "x" / "with space.png", encode(2))
    source = FileList(write(tmp_path / name, text))
    assert names(source) == ["x/1.png", "x/with space.png"]
    assert [source.read(0), source.read(1)] == [encode(1), encode(2)]
    assert (None if (found := source.labels()) is None else found.tolist()) == labels
    assert source.classes == classes


def test_lists_elsewhere_and_columns(tmp_path: Path) -> None:
    file = write(tmp_path / "lists" / "a.csv", f"id,where,what\n1,1.png,dog\n2,{tmp_path}/y/2.png,cat\n")
    write(tmp_path / "x" / "1.png", encode(1))
    write(tmp_path / "y" / "2.png", encode(2))
    source = FileList(file, root=tmp_path / "x", path_column="where", label_column="what")
    assert [source.read(0), source.read(1)] == [encode(1), encode(2)]
    assert source.classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.txt", "# nothing\n", ["names no files"]),
        ("a.txt", "a.png 1\nb.png\n", ["labels some", "b.png"]),
        ("a.csv", "id,where\n1,2\n", ["id, where", "path_column"]),
        ("a.csv", "path,label\na.png\n", ["row 1", "1 columns, not 2"]),
    ],
)
def test_bad_lists(tmp_path: Path, name: str, text: str, words: list[str]) -> None:
    with raises(SourceError, *words):
        FileList(write(tmp_path / name, text))


def test_bad_columns_and_missing_list(tmp_path: Path) -> None:
    with raises(SourceError, "no column 'x'", "it has path"):
        FileList(write(tmp_path / "a.csv", "path\na.png\n"), label_column="x")
    with raises(SourceError, "absent.txt", "cannot be read"):
        FileList(tmp_path / "absent.txt")


def test_a_fingerprint_changes_with_names_sizes_and_labels(tmp_path: Path) -> None:
    first = ClassFolders(write_classes(tmp_path / "one", {"a": 2, "b": 1})).fingerprint()
    assert ClassFolders(write_classes(tmp_path / "two", {"a": 2, "b": 1})).fingerprint() == first
    count = ClassFolders(write_classes(tmp_path / "three", {"a": 2, "b": 2})).fingerprint()
    write(tmp_path / "two" / "a" / "000.png", encode() + b"!")
    size = ClassFolders(tmp_path / "two").fingerprint()
    (tmp_path / "one" / "a" / "000.png").rename(tmp_path / "one" / "a" / "0.png")
    name = ClassFolders(tmp_path / "one").fingerprint()
    assert len({first, count, size, name}) == 4
    assert explain_change(first, first) is None
    assert "3 images when the run began and has 4 images" in (explain_change(first, count) or "")
    assert "bytes now" in (explain_change(first, size) or "")
    assert "other names" in (explain_change(first, name) or "")


@needs_data
def test_real_folders() -> None:
    photos = Folder(real("photos"))
    assert len(photos) == 100
    imagenette = ClassFolders(real("imagenette"), split="val")
    assert len(imagenette) == 500
    assert imagenette.classes is not None
    assert len(imagenette.classes) == 10


def write_run(folder: Path) -> None:
    write(folder / "config.yaml", "data: .")
    write(folder / "status.json", json.dumps({"state": "finished", "step": 4}))
    write(folder / "views.png")
    write(folder / "evaluations" / "b.png")


def test_the_folders_of_runs_are_no_data(tmp_path: Path) -> None:
    """A run in the folder of its own data must find the same data when it is resumed."""
    for name in ("photos/a.png", "photos/b.png"):
        write(tmp_path / name)
    before = open_dataset(tmp_path)
    write_run(tmp_path / "runs" / "first")
    write_run(tmp_path / "runs" / "second")
    after = open_dataset(tmp_path)
    assert (after.kind, after.fingerprint()) == (before.kind, before.fingerprint())
    assert [after.name(index) for index in range(len(after))] == ["photos/a.png", "photos/b.png"]
    assert sorted(after.notes) == [
        f"left out runs/{name}: it is the folder of a run of mixview, not data" for name in ("first", "second")
    ]
    with raises(SourceError, "holds no images", "folder of a run"):
        Folder(tmp_path / "runs" / "first")


def test_runs_beside_splits_and_classes(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"cat": 2, "dog": 1})
    write_classes(tmp_path / "val", {"cat": 1, "dog": 1})
    before = open_dataset(tmp_path, "val")
    write_run(tmp_path / "runs" / "first")
    after = open_dataset(tmp_path, "val")
    assert (after.kind, after.classes, after.fingerprint()) == (before.kind, before.classes, before.fingerprint())


def test_a_note_names_pictures_that_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "heic_plugin", lambda: None)
    for name in ("a.png", "b.HEIC", "sub/c.heic", "d.cr2", "notes.txt"):
        write(tmp_path / name)
    assert Folder(tmp_path).notes == (
        "left out 1 files that end in .cr2 (d.cr2): convert them to JPEG or PNG",
        "left out 2 files that end in .heic (b.HEIC, sub/c.heic): pip install pillow-heif",
    )
    monkeypatch.undo()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_a_list_that_names_pipes_and_devices(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with (tmp_path / "sparse.png").open("wb") as file:
        file.truncate(1 << 40)
    listed = write(tmp_path / "list.txt", f"{tmp_path}/pipe.png\n/dev/zero\n{tmp_path}/sparse.png\n{tmp_path}\n")
    source = FileList(listed)
    for index, word in enumerate(["regular", "regular", "GB", "regular"]):
        with pytest.raises(BadImage, match=word):
            source.read(index)
    os.mkfifo(tmp_path / "list.csv")
    for kind in (tmp_path / "list.csv", "/dev/zero"):
        with raises(SourceError, "regular file"):
            FileList(kind)


def test_missing_labels_raise_and_large_ones_are_names(tmp_path: Path) -> None:
    def rows(*labels: str) -> Path:
        return write(tmp_path / "list.csv", "\n".join(["path,label", *(f"{n}.png,{x}" for n, x in enumerate(labels))]))

    with raises(SourceError, "labels some files and not others", "1.png"):
        FileList(rows("0", "", "2"))
    for large in ("1234567890123456789012345678901", "9999999"):  # numbers of products, say
        named = FileList(rows("0", large))
        assert named.classes == ("0", large)
        assert named.labels().tolist() == [0, 1]  # type: ignore[union-attr]
    assert FileList(rows("", "")).labels() is None
    labels = FileList(rows("²", "1")).labels()
    assert labels is not None
    assert labels.tolist() == [1, 0]
    with raises(SourceError, "cannot be read"):
        FileList(write(tmp_path / "b.csv", f"path\n{'a' * 200_000}"))
