"""CIFAR's official files, and pickles that only claim to be one of them."""

import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixview.data.sources.base import SourceError
from mixview.data.sources.cifar import Cifar, locate
from tests.data.writing import pixels, python2_pickle, raises, write

COUNT = 4
IMAGES = np.stack([pixels(seed, 32, 32) for seed in range(5 * COUNT)])
ROWS = IMAGES.transpose(0, 3, 1, 2).reshape(-1, 3072)
LABELS = [number % 10 for number in range(5 * COUNT)]


def write_cifar10(root: Path) -> Path:
    root = root / "cifar-10-batches-py"
    for batch in range(5):
        own = slice(batch * COUNT, (batch + 1) * COUNT)
        content = {
            b"batch_label": b"training batch",
            b"labels": LABELS[own],
            b"data": ROWS[own],
            b"filenames": [b"a.png"],
        }
        write(root / f"data_batch_{batch + 1}", python2_pickle(content))
    write(root / "test_batch", python2_pickle({b"labels": LABELS[:2], b"data": ROWS[:2]}))
    write(root / "batches.meta", python2_pickle({b"num_vis": 3072, b"label_names": [b"airplane", b"automobile"]}))
    return root


def test_the_pickles_of_the_tests_are_those_of_python_2() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy moved the name that is in the pickle
        content = pickle.loads(python2_pickle({b"data": ROWS, b"labels": LABELS}), encoding="bytes")
    np.testing.assert_array_equal(content[b"data"], ROWS)
    assert content[b"labels"] == LABELS


def test_cifar10(tmp_path: Path) -> None:
    root = write_cifar10(tmp_path)
    assert locate(tmp_path) == locate(root) == root
    source = pickle.loads(pickle.dumps(Cifar(root)))
    assert len(source) == 5 * COUNT
    for index in range(len(source)):
        np.testing.assert_array_equal(source.read(index), IMAGES[index])
    assert source.labels().tolist() == LABELS
    assert source.classes == ("airplane", "automobile")
    assert len(Cifar(root, split="test")) == 2
    assert source.fingerprint() != Cifar(root, split="test").fingerprint()


def test_cifar100(tmp_path: Path) -> None:
    root = tmp_path / "cifar-100-python"
    for split in ("train", "test"):
        content = {b"fine_labels": LABELS, b"coarse_labels": [0] * len(LABELS), b"data": ROWS}
        write(root / split, python2_pickle(content))
    write(root / "meta", python2_pickle({b"fine_label_names": [b"apple"], b"coarse_label_names": [b"fruit"]}))
    assert locate(tmp_path) == root
    source = Cifar(root, split="test")
    np.testing.assert_array_equal(source.read(7), IMAGES[7])
    assert source.labels().tolist() == LABELS
    assert source.classes == ("apple",)


def test_binary(tmp_path: Path) -> None:
    ten, hundred = tmp_path / "cifar-10-batches-bin", tmp_path / "cifar-100-binary"
    label = np.array(LABELS, np.uint8)[:, None]
    for batch in range(1, 6):
        write(ten / f"data_batch_{batch}.bin", np.hstack([label, ROWS]).tobytes())
    write(ten / "batches.meta.txt", "airplane\nautomobile\n\n")
    write(hundred / "train.bin", np.hstack([label * 0, label, ROWS]).tobytes())
    assert len(Cifar(ten)) == 5 * len(ROWS)
    np.testing.assert_array_equal(Cifar(ten).read(21), IMAGES[1])
    assert Cifar(ten).classes == ("airplane", "automobile")
    np.testing.assert_array_equal(Cifar(hundred).read(3), IMAGES[3])
    assert Cifar(hundred).labels().tolist() == LABELS
    write(hundred / "train.bin", b"123")
    with raises(SourceError, "3 bytes", "3074"):
        Cifar(hundred)


def test_missing_parts(tmp_path: Path) -> None:
    root = write_cifar10(tmp_path)
    (root / "data_batch_3").unlink()
    with raises(SourceError, "lacks", "data_batch_3", "unpack"):
        Cifar(root)
    with raises(SourceError, "no split 'val'"):
        Cifar(root, split="val")


class Exploit:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_runs_code_raises_and_does_not_run(tmp_path: Path, protocol: int) -> None:
    root = write_cifar10(tmp_path)
    trace = tmp_path / "trace"
    for call in ((os.mkdir, str(trace)), (eval, f"__import__('os').mkdir({str(trace)!r})"), (open, str(trace), "w")):
        write(root / "test_batch", pickle.dumps(Exploit(*call), protocol))
        with raises(SourceError, "do not trust it"):
            Cifar(root, split="test")
        assert not trace.exists()


def test_arrays_of_objects_and_calls_of_ndarray_raise(tmp_path: Path) -> None:
    root = write_cifar10(tmp_path)
    objects = python2_pickle({b"data": ROWS[:1], b"labels": [0]}).replace(b"U\x02u1", b"U\x02O8")
    write(root / "test_batch", objects)
    with raises(SourceError, "O8", "do not trust it"):
        Cifar(root, split="test")
    write(root / "test_batch", b"\x80\x02cnumpy\nndarray\n(J\x01\x00\x00\x00tR.")
    with raises(SourceError, "calls numpy.ndarray"):
        Cifar(root, split="test")


@pytest.mark.parametrize("content", [b"", b"\x80\x02", b"text", python2_pickle([1]), python2_pickle({b"a": 1})])
def test_broken_pickles(tmp_path: Path, content: bytes) -> None:
    root = write_cifar10(tmp_path)
    write(root / "test_batch", content)
    with raises(SourceError, "test_batch", "unpack the archive again"):
        Cifar(root, split="test")
