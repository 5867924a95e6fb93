"""`.npz` files of arrays and of encoded files."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixview.data.dataset import STRICT, ImageDataset
from mixview.data.sources.arrays import Npz
from mixview.data.sources.base import SourceError
from mixview.io import archives
from mixview.io.archives import read_arrays
from tests.data.writing import encode, needs_data, pixels, raises, real

IMAGES = np.stack([pixels(seed) for seed in range(5)])
LABELS = np.arange(5) % 3


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("keys", [("images", "labels"), ("x_train", "y_train"), ("train_images", "train_labels")])
def test_arrays_under_the_usual_names(tmp_path: Path, save, keys: tuple[str, str]) -> None:
    path = tmp_path / "a.npz"
    save(path, **{keys[0]: IMAGES, keys[1]: LABELS[:, None], "classes": np.array(["a", "b", "c"])})
    source = pickle.loads(pickle.dumps(Npz(path)))
    assert len(source) == 5
    np.testing.assert_array_equal(source.read(3), IMAGES[3])
    np.testing.assert_array_equal(source.labels(), LABELS)
    assert source.classes == ("a", "b", "c")
    assert source.name(3).endswith("3")
    assert source.read(0).flags.writeable


def test_uncompressed_arrays_are_mapped_and_a_pickle_is_a_path(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((100, 32, 32, 3), np.uint8))
    source = Npz(tmp_path / "a.npz")
    assert isinstance(source._data, np.memmap)
    assert len(pickle.dumps(source)) < 1000


def test_grayscale_channels_first_and_many_channels(tmp_path: Path) -> None:
    np.savez(tmp_path / "gray.npz", images=IMAGES[..., 0])
    np.savez(tmp_path / "first.npz", images=IMAGES.transpose(0, 3, 1, 2))
    np.savez(tmp_path / "many.npz", images=np.zeros((2, 8, 9, 13), np.uint8))
    assert Npz(tmp_path / "gray.npz").read(0).shape == (8, 10, 1)
    np.testing.assert_array_equal(Npz(tmp_path / "first.npz").read(2), IMAGES[2])
    assert Npz(tmp_path / "many.npz").read(0).shape == (8, 9, 13)
    assert Npz(tmp_path / "many.npz", channels_first=True).read(0).shape == (9, 13, 8)


def test_encoded_files(tmp_path: Path) -> None:
    files = [encode(seed) for seed in range(3)]
    data = np.frombuffer(b"".join(files), np.uint8)
    offsets = np.cumsum([0, *map(len, files)])
    np.savez(tmp_path / "a.npz", train_jpeg=data, train_offsets=offsets, test_jpeg=data, test_offsets=offsets[:2])
    source = Npz(tmp_path / "a.npz")
    assert [source.read(index) for index in range(3)] == files
    assert len(Npz(tmp_path / "a.npz", split="test")) == 1
    assert source.labels() is None
    np.savez(tmp_path / "b.npz", jpeg=data, offsets=offsets + 1)
    with raises(SourceError, "offsets", "must rise from 0"):
        Npz(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", jpeg=data)
    with raises(SourceError, "jpeg without offsets"):
        Npz(tmp_path / "c.npz")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": IMAGES.astype(np.complex64)}, ["complex64", "store numbers"]),
        ({"images": IMAGES, "labels": LABELS[:3]}, ["5 images and 3 labels"]),
        ({"images": IMAGES, "labels": LABELS / 2}, ["float64", "integers"]),
        ({"stuff": IMAGES}, ["holds stuff and no images"]),
        ({"images": IMAGES[0, 0]}, [r"shape \[10, 3\]", r"\[N, H, W, C\]"]),
        ({"images": np.array([{}, {}], dtype=object)}, ["images.npy", "not objects"]),
    ],
)
def test_bad_arrays(tmp_path: Path, arrays: dict[str, np.ndarray], words: list[str]) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with raises(SourceError, *words):
        Npz(tmp_path / "a.npz")


def test_bad_files(tmp_path: Path) -> None:
    with raises(SourceError, "absent.npz", "cannot be opened"):
        Npz(tmp_path / "absent.npz")
    (tmp_path / "a.npz").write_text("no zip")
    with raises(SourceError, "a.npz", "save it again"):
        Npz(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", images=IMAGES)
    with raises(SourceError, "no split 'val'", "no splits"):
        Npz(tmp_path / "b.npz", split="val")


def test_the_fingerprint_knows_the_content(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES)
    before = Npz(tmp_path / "a.npz").fingerprint()
    assert before == Npz(tmp_path / "a.npz").fingerprint()
    np.savez(tmp_path / "a.npz", images=IMAGES ^ 1)
    assert Npz(tmp_path / "a.npz").fingerprint() != before


@needs_data
def test_real_cifar() -> None:
    source = Npz(real("cifar10_25k_jpeg.npz"))
    assert len(source) == 20_000
    assert len(Npz(real("cifar10_25k_jpeg.npz"), split="test")) == 5_000
    assert source.classes is not None
    assert source.classes[3] == "cat"
    assert ImageDataset(source, tolerance=STRICT)[19_999].pixels.shape == (32, 32, 3)


def bomb(path: Path, header: dict[str, Any], content: bytes = b"", name: str = "images.npy") -> Path:
    """An .npz whose array says more of itself than it holds."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|u1", "fortran_order": False, "shape": (1,), **header})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, buffer.getvalue() + content)
    return path


@pytest.mark.parametrize(
    "header",
    [
        {"shape": (10**6, 1000, 1000, 3)},
        {"shape": (2**40, 2**40)},
        {"shape": (2**32, 2**32, 1, 1)},
        {"shape": (5, 8, 8, 3), "descr": "<f8"},
        {"shape": (0,)},
    ],
)
def test_a_header_that_speaks_of_more_than_there_is(tmp_path: Path, header: dict[str, Any]) -> None:
    with raises(SourceError, "header claims|has the shape"):
        Npz(bomb(tmp_path / "a.npz", header, bytes(100)))


def test_what_unpacks_to_far_more_than_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "FREE_BYTES", 1 << 16)
    size = 1 << 20
    path = bomb(tmp_path / "a.npz", {"shape": (size // 64, 8, 8)}, bytes(size))
    with raises(SourceError, "would unpack"):
        Npz(path)
    with pytest.raises(ValueError, match="would unpack"):
        read_arrays(path, "images")
    monkeypatch.undo()
    assert len(Npz(path)) == size // 64
