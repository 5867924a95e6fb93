"""Fashion-MNIST: Debian's, torchvision's, and one that the test writes."""

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from mixview.data.sources.base import SourceError
from mixview.data.sources.idx import DEBIAN, FASHION, Idx, locate
from tests.data.writing import pixels, raises, write

IMAGES = np.stack([pixels(seed, 28, 28, 1) for seed in range(4)])


def write_idx(root: Path, packed: bool) -> Path:
    for prefix in ("train", "t10k"):
        images = struct.pack(">4B3I", 0, 0, 8, 3, 4, 28, 28) + IMAGES.tobytes()
        labels = struct.pack(">4BI", 0, 0, 8, 1, 4) + bytes([9, 0, 3, 1])
        for name, data in ((f"{prefix}-images-idx3-ubyte", images), (f"{prefix}-labels-idx1-ubyte", labels)):
            write(root / (f"{name}.gz" if packed else name), gzip.compress(data) if packed else data)
    return root


@pytest.mark.parametrize("packed", [True, False])
def test_idx(tmp_path: Path, packed: bool) -> None:
    root = write_idx(tmp_path / "FashionMNIST" / "raw", packed)
    assert locate(tmp_path) == locate(root) == root
    source = pickle.loads(pickle.dumps(Idx(root)))
    np.testing.assert_array_equal(source.read(2), IMAGES[2])
    assert source.labels().tolist() == [9, 0, 3, 1]
    assert source.classes == FASHION
    assert len(Idx(root, split="test")) == 4


def test_mnist_has_digits(tmp_path: Path) -> None:
    assert Idx(write_idx(tmp_path / "MNIST" / "raw", True)).classes == tuple("0123456789")


def test_errors(tmp_path: Path) -> None:
    root = write_idx(tmp_path, False)
    with raises(SourceError, "no split 'val'", "train, test"):
        Idx(root, split="val")
    path = root / "train-images-idx3-ubyte"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with raises(SourceError, "should hold", "3135"):
        Idx(root)
    path.write_bytes(b"text" * 10)
    with raises(SourceError, "is not an idx file"):
        Idx(root)
    path.unlink()
    write(root / "train-images-idx3-ubyte.gz", gzip.compress(whole)[:100])
    with raises(SourceError, "cannot be unpacked"):
        Idx(root)
    (root / "train-images-idx3-ubyte.gz").unlink()
    with raises(SourceError, "lacks train-images-idx3-ubyte"):
        Idx(root)


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed")
def test_debian() -> None:
    source = Idx(DEBIAN, split="test")
    assert len(source) == 10_000
    labels = source.labels()
    assert labels is not None
    assert np.bincount(labels).tolist() == [1000] * 10
    assert source.classes == FASHION
    assert source.read(0).shape == (28, 28, 1)
