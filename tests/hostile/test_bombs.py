"""Small files that ask for much: sizes are checked before anything is allocated (items 16 and 20)."""

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mixview.encoders.encoder_file import write_header
from tests.hostile.conftest import PRETRAIN
from tests.hostile.harness import Sandbox
from tests.hostile.writing import KNN, SMALL, npy_bytes, npy_header, safetensors_bytes, scenes, write_encoder, zip_bytes

EMBED = ("embed", "foreign.safetensors", *scenes(8), "--out", "out/a.npy", *SMALL)
DATA = ("embed", "pixels", "--size", "16", *SMALL, "--out", "out/a.npy", "--data")


def compressed_npz(shape: tuple[int, ...]) -> bytes:
    """Zeros by the gigabyte, in some megabytes at most."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
        archive.open("images.npy", "w", force_zip64=True) as member,
    ):
        member.write(npy_header(shape))
        left = int(np.prod(shape))
        while left > 0:
            member.write(bytes(min(left, 1 << 24)))
            left -= 1 << 24
    return buffer.getvalue()


@pytest.mark.slow
def test_an_npz_of_four_gigabytes(box: Sandbox) -> None:
    box.write("a.npz", compressed_npz((1400, 1000, 1000, 3)))
    box.run(*DATA, "a.npz").answered()


@pytest.mark.parametrize(
    "shape", [(10**6, 1000, 1000, 3), (1, 10**5, 10**5, 3), (10**12, 1, 1, 1), (2**31, 2, 2, 3)], ids=str
)
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
def test_an_npz_that_claims_to_be_large(compression: int, shape: tuple[int, ...], box: Sandbox) -> None:
    box.write("a.npz", zip_bytes({"images.npy": npy_header(shape) + bytes(1000)}, compression))
    box.run(*DATA, "a.npz").rejected("a.npz")


@pytest.mark.parametrize("labels", [(10**12,), (2**62,)], ids=str)
def test_labels_that_claim_to_be_many(labels: tuple[int, ...], box: Sandbox) -> None:
    images = npy_bytes(np.zeros((4, 8, 8, 3), np.uint8))
    box.write("a.npz", zip_bytes({"images.npy": images, "labels.npy": npy_header(labels, "<i8") + bytes(100)}))
    box.run(*DATA, "a.npz").rejected("a.npz")


LARGE = (
    "timm/vit_giant_patch14_dinov2",
    "timm/vit_gigantic_patch14_224",
    "timm/eva02_enormous_patch14_clip_224",
    "torchvision/vit_h_14",
    "torchvision/regnet_y_128gf",
    "timm/vit_7b_patch16_dinov3",
)


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("command", ["embed", "import", "export"])
def test_a_header_that_names_a_large_network(command: str, name: str, box: Sandbox) -> None:
    """A file of a kilobyte: the tensors that it has say that this cannot be."""
    spec = {"name": name, "size": 224, "channels": 3, "stem": "standard", "feature_dim": 1024}
    box.write("foreign.safetensors", safetensors_bytes({"__metadata__": {"mixview": write_header(spec, {})}}))
    lines = {
        "embed": EMBED,
        "import": ("import", "foreign.safetensors", "--out", "out/a.safetensors"),
        "export": ("export", "foreign.safetensors", "--format", "torchvision", "--out", "out"),
    }
    box.run(*lines[command]).rejected("foreign")


@pytest.mark.parametrize(
    "spec",
    [
        {"size": 4096},
        {"size": 10**9},
        {"size": -1},
        {"channels": 4096},
        {"channels": 10**9},
        {"feature_dim": 10**12},
        {"feature_dim": -1},
        {"size": 4096, "channels": 4096},
        {"size": 1.5},
        {"name": "small", "stem": "standard"},
        {"name": 3},
        {"name": ""},
        {"stem": "x"},
        {"size": "16"},
        {"size": True},
        {"feature_dim": "x"},
        {"name": "timm/"},
        {"name": "torchvision/x"},
    ],
    ids=str,
)
def test_odd_specs(spec: dict[str, Any], box: Sandbox) -> None:
    write_encoder(box.work / "foreign.safetensors", **spec)
    box.run(*EMBED).answered()


HEADERS: dict[str, bytes] = {
    "length-huge": safetensors_bytes({}, length=2**63),
    "length-gigabytes": safetensors_bytes({}, length=3 << 30),
    "length-zero": safetensors_bytes({}, length=0),
    "deep": safetensors_bytes(b"[" * 100_000),
    "shape-huge": safetensors_bytes({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}}, bytes(4)),
    "offsets": safetensors_bytes({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 2**50]}}, bytes(4)),
    "negative": safetensors_bytes({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, bytes(4)),
    "overlap": safetensors_bytes({n: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for n in "ab"}, bytes(4)),
    "dtype": safetensors_bytes({"a": {"dtype": "F7", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "metadata-list": safetensors_bytes({"__metadata__": []}),
    "metadata-number": safetensors_bytes({"__metadata__": {"mixview": 3}}),
    "metadata-deep": safetensors_bytes({"__metadata__": {"mixview": "[" * 100_000}}),
    "metadata-version": safetensors_bytes({"__metadata__": {"mixview": '{"version": 99}'}}),
    "metadata-huge": safetensors_bytes({"__metadata__": {"mixview": '{"version": ' + "9" * 5000 + "}"}}),
    "metadata-null": safetensors_bytes({"__metadata__": {"mixview": "null"}}),
    "many": safetensors_bytes({f"{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(50_000)}),
    "scalar": safetensors_bytes({"a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}, bytes(4)),
    "zero-huge": safetensors_bytes({"a": {"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]}}),
    "duplicate": safetensors_bytes(b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "a": 3}', bytes(4)),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_headers_of_safetensors(kind: str, box: Sandbox) -> None:
    box.write("foreign.safetensors", HEADERS[kind])
    box.run(*EMBED).rejected("foreign")


def stride_zero(shape: tuple[int, ...]) -> bytes:
    """A file of one number that says it is a tensor of any shape."""
    buffer = io.BytesIO()
    torch.save({"conv1.weight": torch.zeros(1).expand(shape), "fc.weight": torch.zeros(1).expand(shape)}, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("shape", [(10**5, 10**5), (2**20, 2**20), (2048, 10**6)], ids=str)
@pytest.mark.parametrize("command", ["embed", "import", "pretrain"])
def test_tensors_of_stride_zero(command: str, shape: tuple[int, ...], box: Sandbox) -> None:
    box.write("weights.pth", stride_zero(shape))
    lines = {
        "embed": ("embed", "weights.pth", *EMBED[2:]),
        "import": ("import", "weights.pth", "--out", "out/a.safetensors"),
        "pretrain": (*PRETRAIN, "--weights", "weights.pth", "--out", "out"),
    }
    box.run(*lines[command]).rejected("weights.pth")


def sparse_torch() -> bytes:
    """A sparse tensor of a huge shape."""
    buffer = io.BytesIO()
    torch.save(
        {
            "conv1.weight": torch.sparse_coo_tensor(
                torch.zeros(2, 1, dtype=torch.long), torch.ones(1), (10**6, 10**6), check_invariants=True
            )
        },
        buffer,
    )
    return buffer.getvalue()


def torch_bytes(value: Any) -> bytes:
    """What torch.save writes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def nested(depth: int) -> Any:
    """Dictionaries in each other, as checkpoints hold their state_dict."""
    value: Any = {"state_dict": {}}
    for _ in range(depth):
        value = {"state_dict": value}
    return value


TORCH = {
    "sparse": sparse_torch(),
    "empty": torch_bytes({}),
    "number": torch_bytes(3),
    "list": torch_bytes([1]),
    "tensor": torch_bytes(torch.zeros(3)),
    "keys": torch_bytes({3: torch.zeros(3)}),
    "loop": torch_bytes({"state_dict": {"model": {}}}),
    "nested": torch_bytes(nested(200)),
    "meta": torch_bytes({"conv1.weight": torch.zeros(3, 3, device="meta")}),
    "complex": torch_bytes({"conv1.weight": torch.zeros(16, 3, 3, 3, dtype=torch.complex64)}),
    "text": torch_bytes({"conv1.weight": "x"}),
    "pickle-bomb": b"\x80\x04" + b"]" * 1000 + b".",
    "long": pickle.dumps({"a": 1}),
    "memo": b"\x80\x04r\xff\xff\xff\x7f.",
    "frame": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f",
    "bytes8": b"\x80\x04\x8e\xff\xff\xff\xff\xff\x00\x00\x00",
}


@pytest.mark.parametrize("kind", TORCH)
def test_odd_files_of_torch(kind: str, box: Sandbox) -> None:
    box.write("weights.pth", TORCH[kind])
    outcome = box.run("import", "weights.pth", "--out", "out/a.safetensors").rejected("weights.pth")
    assert "weights_only" not in outcome.stderr


def bomb_zip(inner: str, size: int) -> bytes:
    """A zip whose member unpacks to many gigabytes."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
        archive.open(inner, "w", force_zip64=True) as member,
    ):
        for _ in range(size >> 24):
            member.write(bytes(1 << 24))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "inner",
    [
        "archive/data.pkl",
        "data.pkl",
        "archive/data/weights/model_weights_config.json",
        "archive/data/weights/weight_0",
        "serialized_state_dict.json",
        "serialized_state_dict.pt",
        "archive/models/model.json",
        "archive_format",
        "version",
    ],
    ids=lambda inner: inner.replace("/", "|"),
)
@pytest.mark.parametrize("suffix", [".pt2", pytest.param(".pth", marks=pytest.mark.slow)])
def test_archives_that_unpack_to_gigabytes(suffix: str, inner: str, box: Sandbox) -> None:
    box.write(f"weights{suffix}", bomb_zip(inner, 1600 << 20))
    box.run("import", f"weights{suffix}", "--out", "out/a.safetensors").rejected("weights")


@pytest.mark.parametrize("kind", ["varint", "deep", "external", "raw", "huge-dims"])
def test_graphs_of_onnx(kind: str, box: Sandbox) -> None:
    onnx = pytest.importorskip("onnx")
    content = {"varint": b"\x0a\xff\xff\xff\xff\xff\x7f", "deep": b"\x3a\x80\x01" * 1000, "raw": b"\x08\x07"}.get(kind)
    if content is None:
        tensor = onnx.TensorProto(name="conv1.weight", data_type=1, dims=[10**6, 10**6] if kind == "huge-dims" else [3])
        if kind == "external":
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="../../canary/precious.txt")
        content = onnx.ModelProto(
            ir_version=8, graph=onnx.GraphProto(name="g", initializer=[tensor])
        ).SerializeToString()
    box.write("model.onnx", content)
    box.run("import", "model.onnx", "--out", "out/a.safetensors").rejected("model.onnx")


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"])
@pytest.mark.parametrize("content", ["huge", "negative", "short", "gzip-bomb", "dimensions", "empty"])
def test_idx_files(content: str, name: str, box: Sandbox) -> None:
    import gzip
    import struct

    sound = {
        "train-images-idx3-ubyte": struct.pack(">IIII", 2051, 4, 8, 8) + bytes(256),
        "train-labels-idx1-ubyte": struct.pack(">II", 2049, 4) + bytes(4),
        "t10k-images-idx3-ubyte": struct.pack(">IIII", 2051, 4, 8, 8) + bytes(256),
        "t10k-labels-idx1-ubyte": struct.pack(">II", 2049, 4) + bytes(4),
    }
    for each, data in sound.items():
        box.write(f"set/{each}", data)
    path = box.work / "set" / name
    head = struct.pack(">I", 2051 if "images" in name else 2049)
    match content:
        case "huge":
            path.write_bytes(head + b"\x7f\xff\xff\xff" * 3)
        case "negative":
            path.write_bytes(head + b"\xff" * 12)
        case "short":
            path.write_bytes(path.read_bytes()[:-1])
        case "dimensions":
            path.write_bytes(b"\x00\x00\x08\xff" + path.read_bytes()[4:])
        case "empty":
            path.write_bytes(b"")
        case _:
            path.unlink()
            path.with_name(f"{name}.gz").write_bytes(
                gzip.compress(head + b"\x00\xff\xff\xff" * 3 + bytes(1500 << 20), 9)
            )
    box.run(*DATA, "set").rejected()


@pytest.mark.parametrize("kind", ["deep", "text", "short", "memo", "shape", "dtype", "huge"])
def test_pickles_of_cifar(kind: str, box: Sandbox) -> None:
    contents = {
        "deep": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
        "text": b"hello",
        "short": pickle.dumps({b"data": 1})[:-5],
        "memo": b"\x80\x02]r\xff\xff\xff\x0f.",
        "shape": pickle.dumps({b"data": np.zeros((4, 7), np.uint8), b"labels": [0, 1, 2, 3]}),
        "dtype": pickle.dumps({b"data": np.zeros((4, 3072), np.float64), b"labels": [0] * 4}),
        "huge": b"\x80\x04\x8e\xff\xff\xff\xff\xff\x00\x00\x00",
    }
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch", "batches.meta"):
        box.write(f"cifar-10-batches-py/{name}", contents[kind])
    box.run(*DATA, "cifar-10-batches-py").rejected()


def test_a_full_disk_under_the_cache_of_features(box: Sandbox) -> None:
    """A bus error once: a file that is mapped into memory must not be larger than its disk."""
    box.run(*KNN, *scenes(2000), file_size=200_000, seconds=30).harmless(seconds=30)


def fill_a_small_disk(folder: str) -> None:
    """Runs in a sandbox: features into a cache on a disk of 1 MB, which only root can make."""
    import ctypes
    import sys

    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.unshare(0x00020000)
        or libc.mount(b"none", b"/", None, 0x44000, None)
        or libc.mount(b"tmpfs", folder.encode(), b"tmpfs", 0, b"size=1m")
    ):
        print("no small disk here")
        return
    os.environ["MIXVIEW_CACHE"] = folder
    from mixview.cli import main

    main([*KNN, *scenes(3000)])
    sys.stdout.flush()


def test_features_on_a_small_disk(box: Sandbox) -> None:
    folder = box.folder / "cache" / "small"
    folder.mkdir()
    outcome = box.start(
        {"call": "tests.hostile.test_bombs:fill_a_small_disk", "options": {"folder": str(folder)}},
        ["small disk"],
        seconds=60,
    )
    if "no small disk" in outcome.stdout:
        pytest.skip("needs the right to mount")
    outcome.harmless(seconds=60)


@pytest.mark.parametrize("levels", [9, 30])
@pytest.mark.parametrize("where", ["recipe", "config", "resume", "study", "study-show", "report"])
def test_aliases_of_yaml(where: str, levels: int, box: Sandbox, run: Path) -> None:
    """Nine lists of nine of the one before are 387 million; thirty are more than there are atoms here."""
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, levels)
    )
    text += f"data_options: *a{levels - 1}\n"
    box.write("a.yaml", text)
    match where:
        case "recipe":
            box.run("pretrain", "--recipe", "a.yaml").rejected()
        case "config":
            box.run("pretrain", "--config", "a.yaml").rejected()
        case "resume":
            (run / "config.yaml").write_text(text)
            box.run("pretrain", "--resume", "--out", "run", writes=["run"]).rejected()
        case "study":
            box.run("study", "run", "a.yaml", "--dry-run").rejected()
        case "study-show":
            box.write("study/a/study.yaml", text)
            box.run("study", "show", "study", writes=["study"]).answered()
        case _:
            (run / "config.yaml").write_text(text)
            box.run("report", "run", "--out", "out/a.html", *SMALL, writes=["out", "run"]).succeeded()


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "status.json", "config.yaml", "evaluations/knn-a.json", "images.npz", "data.json"]
)
def test_files_of_a_run_that_are_gigabytes(name: str, box: Sandbox, run: Path) -> None:
    """Sparse: three gigabytes of zeros that take no disk."""
    path = run / name
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.truncate(3 << 30)
    box.run("report", "run", "--out", "out/a.html", *SMALL, writes=["out", "run"]).answered()
