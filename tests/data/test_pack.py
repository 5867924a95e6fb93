"""A packed source has the images and labels of the one that it was made of."""

from pathlib import Path

import numpy as np
import pytest

from mixview.cli import main
from mixview.data.decode import Decoder
from mixview.data.pack import pack
from mixview.data.sources.base import SourceError
from mixview.data.sources.files import Folder
from mixview.data.sources.registry import open_dataset
from mixview.data.synthetic.scenes import Scenes
from tests.data.writing import encode


def test_files_that_are_small_stay_as_they_are(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(encode(number, "PNG", 20, 30))
    (tmp_path / "broken.png").write_bytes(b"no image")
    source = Folder(tmp_path)
    packed = pack(source, tmp_path / "packed.npz", size=20)
    assert packed.images == 3
    assert list(packed.bad) == ["broken.png"]
    again = open_dataset(tmp_path / "packed.npz")
    assert [again.read(index) for index in range(3)] == [(tmp_path / f"{n}.png").read_bytes() for n in range(3)]
    assert not list(tmp_path.glob("*.partial"))


def test_large_ones_are_shrunk(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(encode(0, "JPEG", 60, 90))
    pack(Folder(tmp_path), tmp_path / "packed.npz", size=20)
    assert Decoder()(open_dataset(tmp_path / "packed.npz").read(0)).shape == (20, 30, 3)


def test_pixels_and_labels(tmp_path: Path) -> None:
    scenes = Scenes(6)
    pack(scenes, tmp_path / "packed.npz", size=32, format="pixels")
    again = open_dataset(tmp_path / "packed.npz")
    assert len(again) == 6
    assert again.classes == scenes.classes
    np.testing.assert_array_equal(again.labels(), scenes.labels())
    for index in range(6):
        np.testing.assert_array_equal(again.read(index), scenes.read(index))


def test_what_cannot_be_packed_raises(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encode(0, "PNG", 20, 30))
    (tmp_path / "b.png").write_bytes(encode(0, "PNG", 30, 20))
    source = Folder(tmp_path)
    with pytest.raises(SourceError, match="pack them as jpeg"):
        pack(source, tmp_path / "packed.npz", format="pixels")
    assert not (tmp_path / "packed.npz").exists()
    with pytest.raises(ValueError, match=r"call it .*packed.npz"):
        pack(source, tmp_path / "packed.tar")
    pack(source, tmp_path / "packed.npz")
    with pytest.raises(FileExistsError, match="exists already"):
        pack(source, tmp_path / "packed.npz")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(encode(0, "PNG", 20, 30))
    main(["data", "pack", str(tmp_path / "images"), str(tmp_path / "packed.npz"), "--size", "16"])
    assert "1 images" in capsys.readouterr().out
