"""Tiny datasets in the real formats, written by the tests themselves."""

import functools
import io
import os
import pickle
import struct
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mixview.data.sources.base import Source

REAL = Path(os.environ["MIXVIEW_DATA"]) if os.environ.get("MIXVIEW_DATA") else None
needs_data = pytest.mark.real_images  # skips where MIXVIEW_DATA is not set, and is counted: see tests/conftest.py


def real(name: str) -> Path:
    """A real dataset in the folder that MIXVIEW_DATA names."""
    assert REAL is not None
    path = REAL / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path


def pixels(seed: int, height: int = 8, width: int = 10, channels: int = 3) -> np.ndarray:
    """Random pixels [H, W, C]."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def smooth(height: int, width: int, seed: int = 0) -> np.ndarray:
    """[H, W, 3] waves that a copy of a quarter of the size can still show."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / 40 + c + seed) * np.cos(y / 30 - c) * 100 + 128 for c in range(3)]
    return np.stack(waves, axis=2).astype(np.uint8)


class Encoded(Source):
    """A source of encoded files in memory, which counts how often each is read."""

    kind = "encoded"

    def __init__(self, *files: bytes) -> None:
        self.files = files
        self.reads = [0] * len(files)

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> bytes:
        self.reads[index] += 1
        return self.files[index]

    def name(self, index: int) -> str:
        return f"file {index}"

    def fingerprint(self) -> str:
        return f"{len(self)} images, {sum(map(len, self.files))} bytes, {hash(self.files):x}"


def jpeg(image: np.ndarray, quality: int = 90) -> bytes:
    """The bytes of a JPEG of these pixels."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


@functools.cache
def encode(seed: int = 0, format: str = "PNG", height: int = 8, width: int = 10) -> bytes:
    """An encoded image of random pixels."""
    buffer = io.BytesIO()
    Image.fromarray(pixels(seed, height, width)).save(buffer, format)
    return buffer.getvalue()


def write(path: Path, content: bytes | str | None = None) -> Path:
    """A file, with its folders; an image if nothing is said."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        path.write_text(content)
    else:
        path.write_bytes(encode() if content is None else content)
    return path


def write_classes(root: Path, counts: Mapping[str, int]) -> Path:
    """Class folders with so many images each."""
    for name, count in counts.items():
        for number in range(count):
            write(root / name / f"{number:03d}.png", encode(number))
    return root


def python2_pickle(value: Any) -> bytes:
    """A pickle as Python 2 wrote it: protocol 2, strings of bytes, NumPy's array of bytes by its old names."""

    def save(value: Any) -> bytes:
        if isinstance(value, bytes):
            short = len(value) < 256
            return (b"U" + bytes([len(value)]) if short else b"T" + struct.pack("<i", len(value))) + value
        if isinstance(value, bool):
            return b"\x88" if value else b"\x89"
        if isinstance(value, int):
            return b"J" + struct.pack("<i", value)
        if value is None:
            return b"N"
        if isinstance(value, list):
            return b"](" + b"".join(map(save, value)) + b"e"
        if isinstance(value, tuple):
            return b"(" + b"".join(map(save, value)) + b"t"
        if isinstance(value, dict):
            return b"}(" + b"".join(save(key) + save(each) for key, each in value.items()) + b"u"
        assert isinstance(value, np.ndarray)
        assert value.dtype == np.uint8
        dtype = b"cnumpy\ndtype\n" + save((b"u1", 0, 1)) + b"R" + save((3, b"|", None, None, None, -1, -1, 0)) + b"b"
        start = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + save((0,)) + save(b"b") + b"tR"
        state = b"(" + save(1) + save(value.shape) + dtype + save(False) + save(value.tobytes()) + b"t"
        return start + state + b"b"

    return pickle.PROTO + b"\x02" + save(value) + b"."


def tar(members: Mapping[str, bytes], format: int = tarfile.USTAR_FORMAT) -> bytes:
    """A tar file of these members."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def raises(error: type[Exception], *words: str) -> Any:
    """Expects an error of one sentence with these words in it."""
    return pytest.raises(error, match="".join(f"(?=.*{word})" for word in words))
