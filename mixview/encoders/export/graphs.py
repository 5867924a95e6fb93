"""The encoder as a graph that needs no Python class to run: ONNX, and `torch.export`.

Batches may have any length; the size of the images is fixed. Weights keep the encoder's own names in both, so that
they can be read back without running anything (`mixview.encoders.importing`).
"""

import json
import math
import struct
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mixview.encoders.export.base import ExportedFiles, ExportSource, join_lines
from mixview.encoders.optional import import_optional
from mixview.io.archives import open_archive, unpacked_limit

HEADER_FILE = "mixview.json"
DTYPES = {7: torch.float32, 5: torch.int64, 6: torch.float16, 8: torch.float64, 13: torch.bfloat16, 12: torch.bool}
"""torch.export's numbers for types, those that encoders have."""


def example_inputs(source: ExportSource) -> tuple[Tensor, Any]:
    """Two images, for the tracer, and which of their dimensions is free."""
    size = int(source.spec["size"])
    images = torch.zeros(2, int(source.spec["channels"]), size, size)
    return images, ({0: torch.export.Dim("batch", min=1)},)


def write_torch_export(source: ExportSource, path: Path) -> ExportedFiles:
    """A graph of ATen operations: for torch without this network's code, AOTInductor and ExecuTorch."""
    images, dynamic = example_inputs(source)
    program = torch.export.export(source.loaded.encoder.cpu().eval(), (images,), dynamic_shapes=dynamic)
    torch.export.save(program, path, extra_files={HEADER_FILE: source.header})
    snippet = join_lines(
        "import torch",
        "",
        "model = torch.export.load(PATH).module()",
        "features = model(images)",
        source.shape_comment(),
    )
    return ExportedFiles(path, snippet, ("torch",))


def write_onnx(source: ExportSource, path: Path) -> ExportedFiles:
    """An ONNX graph: for ONNX Runtime, TensorRT, OpenVINO and browsers."""
    images, dynamic = example_inputs(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter about itself; what it made is checked
        program = torch.onnx.export(
            source.loaded.encoder.cpu().eval(),
            (images,),
            dynamo=True,
            optimize=False,  # which would fold weights, and lose their names; runtimes optimize when they load
            input_names=["images"],
            output_names=["features"],
            dynamic_shapes=dynamic,
            verbose=False,
        )
    assert program is not None
    program.model.metadata_props["mixview"] = source.header
    program.save(str(path))
    snippet = join_lines(
        "import onnxruntime",
        "",
        'session = onnxruntime.InferenceSession(PATH, providers=["CPUExecutionProvider"])',
        '(features,) = session.run(None, {"images": images.numpy()})',
        source.shape_comment(),
    )
    return ExportedFiles(path, snippet, ("onnxruntime",))


def read_onnx(path: Path) -> tuple[dict[str, Tensor], str | None]:
    """The weights of an ONNX file by name, and mixview's header; nothing is run, and no other file is opened."""
    onnx: Any = import_optional("onnx", "export")
    try:
        model = onnx.load(path, load_external_data=False)
        tensors = {}
        for each in model.graph.initializer:
            if onnx.external_data_helper.uses_external_data(each):
                raise ValueError("its weights are in another file")
            tensors[each.name] = torch.from_numpy(np.array(onnx.numpy_helper.to_array(each)))
    except Exception as error:  # protobuf raises a type of its own
        raise ValueError(
            f"{path} cannot be read as ONNX with its weights inside ({error}): export it again, as one file"
        ) from None
    header = next((each.value for each in model.metadata_props if each.key == "mixview"), None)
    return tensors, header


def read_torch_export(path: Path) -> tuple[dict[str, Tensor], str | None]:
    """The weights of a .pt2 archive by name, and mixview's header, from the raw bytes: its graph is not looked at."""
    try:
        with open_archive(path) as archive:
            names = {name.partition("/")[2]: name for name in archive.namelist()}
            left = unpacked_limit(4 * path.stat().st_size)  # tensors may share their bytes, and a few do
            config = json.loads(archive.read(names["data/weights/model_weights_config.json"]))["config"]
            tensors = {}
            for name, entry in config.items():
                if entry["use_pickle"]:
                    raise ValueError(f"{name} is pickled, and unpickling would run code")
                tensors[name] = from_bytes(archive.read(names[f"data/weights/{entry['path_name']}"]), entry)
                left -= tensors[name].nbytes
                if left < 0:
                    raise ValueError("its tensors are larger than the file")
            held = names.get(f"extra/{HEADER_FILE}")
            return tensors, archive.read(held).decode() if held else None
    except (
        KeyError, TypeError, ValueError, AttributeError, OSError, RuntimeError, OverflowError, struct.error,
        zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        raise ValueError(
            f"{path} cannot be read as a torch.export archive of plain weights ({error}): export the encoder again, or "
            "import another format of it"
        ) from None


def from_bytes(content: bytes, entry: dict[str, Any]) -> Tensor:
    """A tensor of torch.export's raw bytes."""
    meta = entry["tensor_meta"]
    sizes, strides = ([int(each["as_int"]) for each in meta[key]] for key in ("sizes", "strides"))
    kind, offset = DTYPES[meta["dtype"]], int(meta["storage_offset"]["as_int"])
    flat = torch.frombuffer(bytearray(content), dtype=kind) if content else torch.empty(0, dtype=kind)
    reach = 1 + offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    count = math.prod(sizes)  # one number may not stand for many, by a stride of 0
    if min([*sizes, *strides, offset], default=0) < 0 or (count and max(reach, count) > len(flat)):
        raise ValueError("a tensor is larger than its bytes")
    return flat.as_strided(sizes, strides, offset).clone(memory_format=torch.contiguous_format)
