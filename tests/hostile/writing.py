"""What cases are made of: small data sets, encoders, and studies, sound until a case breaks them."""

import io
import json
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mixview.data.synthetic.scenes import Scenes
from mixview.data.synthetic.writers import write as write_layout
from mixview.encoders import backbones, weights
from mixview.encoders.encoder_file import save_encoder, write_header
from tests.data.writing import encode

SMALL = ("--workers", "0")
KNN = ("evaluate", "knn", "random", "--backbone", "small", "--size", "16", *SMALL, "--out", "out")
"""A k-NN evaluation of a random encoder; `--data` follows."""
QUIET = ("--monitor.loggers", "none", "--no_monitor.estimate", "--method.hidden", "16", "--method.dim", "8", *SMALL)


def scenes(count: int) -> tuple[str, ...]:
    """Drawn images of 16 pixels, as data."""
    return ("--data", "scenes", "--data_options", json.dumps({"count": count, "size": 16}))


def pretraining(batch_size: int, *more: str) -> tuple[str, ...]:
    """An epoch of a small network on images of 16 pixels; what is after `--data` follows."""
    line = ("pretrain", "--backbone", "small", "--size", "16", "--batch_size", str(batch_size), "--epochs", "1")
    return (*line, *QUIET, *more, "--data")


def write_photos(folder: Path, count: int = 6, classes: Sequence[str] = ("cat", "dog")) -> Path:
    """Class folders of small PNG files."""
    for number in range(count):
        path = folder / classes[number % len(classes)] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(number, height=16, width=16))
    return folder


def write_coco(folder: Path, count: int = 4) -> Path:
    """A COCO of drawn scenes: train2017 and val2017."""
    parts = [Scenes(count, 32, 0, split, "multiple") for split in ("train", "val")]
    return Path(write_layout(parts, folder, "coco"))


def write_voc(folder: Path, count: int = 4) -> Path:
    """A VOC of drawn scenes: trainval and test."""
    parts = [Scenes(count, 32, 0, split, "multiple") for split in ("train", "test")]
    return Path(write_layout(parts, folder, "voc"))


def write_encoder(path: Path, **spec: Any) -> Path:
    """An encoder of random weights as mixview exports it; `spec` changes its header."""
    torch.manual_seed(0)
    built = backbones.build("small", size=16)
    save_encoder(path, built.encoder, built.spec, {"method": "simclr", "objective": "sim"})
    if spec:
        tensors, _ = weights.read_safetensors(path)
        write_safetensors(path, tensors, {"mixview": write_header(dict(built.spec) | spec, {})})
    return path


def write_safetensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> Path:
    """Tensors with any text in the header."""
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, dict(metadata))
    return path


def safetensors_bytes(header: Any, body: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file of any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def npy_header(shape: Sequence[int], dtype: str = "|u1") -> bytes:
    """The header of an .npy of any shape, without its content."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {tuple(shape)!r}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def zip_bytes(members: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def npy_bytes(array: Any) -> bytes:
    """An .npy file; of objects it holds a pickle."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


class Executes:
    """An object whose pickle runs a command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, (self.command,)


def executing(command: str) -> dict[str, Any]:
    """What jsonargparse would make of a class: a call of `os.system`."""
    return {"class_path": "os.system", "init_args": {"command": command}}


STUDY: dict[str, Any] = {
    "settings": {"backbone": "small", "epochs": 1, "batch_size": 16, "size": 16},
    "data": {"scenes": {"data": "scenes", "data_options": {"count": 32, "size": 16}}},
    "methods": {"SimCLR": {"method": "simclr"}},
    "objectives": {"SIM": {"objective": "sim"}, "BSIM": {"objective": "bsim"}},
    "evaluate": {"k-NN": {"protocol": "knn", "k": 5, "metric": "top-1"}},
    "seeds": [0],
    "baseline": "SIM",
}
"""A study of two runs."""


def positions(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in nested dictionaries and lists."""
    if path:
        yield path
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield from positions(value, (*path, key))


def planted(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value at one place."""
    if not path:
        return value
    copied = dict(content) if isinstance(content, dict) else list(content)
    copied[path[0]] = planted(copied[path[0]], path[1:], value)
    return copied
