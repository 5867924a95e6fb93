import pickle
from pathlib import Path

import numpy as np
import pytest

from mixview.data.sources.base import SourceError
from mixview.data.sources.stl10 import Stl10, locate
from tests.data.writing import pixels, raises, write

IMAGES = np.stack([pixels(seed, 96, 96) for seed in range(3)])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "stl10_binary"
    for split in ("train", "test", "unlabeled"):
        write(root / f"{split}_X.bin", IMAGES.transpose(0, 3, 2, 1).tobytes())
    for split in ("train", "test"):
        write(root / f"{split}_y.bin", bytes([2, 1, 10]))
    write(root / "class_names.txt", "airplane\nbird\n")
    return root


def test_stl10(root: Path) -> None:
    assert locate(root.parent) == locate(root) == root
    source = pickle.loads(pickle.dumps(Stl10(root)))
    np.testing.assert_array_equal(source.read(1), IMAGES[1])
    assert source.labels().tolist() == [1, 0, 9]
    assert source.classes == ("airplane", "bird")
    unlabeled = Stl10(root, split="unlabeled")
    assert unlabeled.labels() is None
    np.testing.assert_array_equal(unlabeled.read(2), IMAGES[2])


def test_torchvision_reads_the_same(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import STL10

    monkeypatch.setattr(STL10, "_check_integrity", lambda self: True)  # it knows the checksums of the real files
    write(root / "fold_indices.txt", "0 1")
    theirs = STL10(str(root.parent), split="train")
    image, label = theirs[2]
    np.testing.assert_array_equal(np.array(image), Stl10(root).read(2))
    assert label == Stl10(root).labels()[2]


def test_errors(root: Path) -> None:
    with raises(SourceError, "no split 'val'", "train, test, unlabeled"):
        Stl10(root, split="val")
    write(root / "test_X.bin", b"123")
    with raises(SourceError, "3 bytes", "27648"):
        Stl10(root, split="test")
    (root / "train_y.bin").unlink()
    with raises(SourceError, "lacks", "train_y.bin"):
        Stl10(root)
