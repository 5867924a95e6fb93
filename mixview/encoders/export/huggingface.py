"""A folder that Hugging Face transformers loads by `AutoModel`, and reads back.

The ResNets that transformers has itself (`ResNetModel`) are written under its names; what timm has goes through
transformers' wrapper of timm; any other network of mixview's (the small stem, `small`, the rest of torchvision) is a
model type of mixview's own, which `import mixview.encoders.export.transformers_model` teaches transformers.
"""

import json
import re
from pathlib import Path
from typing import Any

from torch import Tensor

from mixview.encoders.backbones import BUILTIN
from mixview.encoders.export.base import ExportedFiles, ExportSource, join_lines, normalize_of
from mixview.encoders.export.state_dicts import FALLBACK_HINT, save_tensors, timm_config
from mixview.encoders.transforms import CROP_RATIO
from mixview.runs.run_directory import write_json

DEPTHS: dict[str, tuple[str, list[int]]] = {
    "resnet18": ("basic", [2, 2, 2, 2]),
    "resnet34": ("basic", [3, 4, 6, 3]),
    "resnet50": ("bottleneck", [3, 4, 6, 3]),
    "resnet101": ("bottleneck", [3, 4, 23, 3]),
    "resnet152": ("bottleneck", [3, 8, 36, 3]),
}
"""The networks that transformers' ResNetModel can be: the kind of block, and how many per stage."""


def write_huggingface(source: ExportSource, path: Path) -> ExportedFiles:
    """config.json, model.safetensors and preprocessor_config.json, in the folder of `path`."""
    folder = path.parent
    native = source.spec["stem"] == "standard" and source.library in ("torchvision", "timm")
    lines: list[str] = []
    if native and source.model in DEPTHS:
        tensors = {to_transformers(name): tensor for name, tensor in source.tensors.items()}
        write_json(folder / "config.json", resnet_config(source))
        output = "model(images).pooler_output.flatten(1)"
        checked_with: tuple[str, ...] = ("transformers",)
    elif native and source.library == "timm":
        tensors = source.tensors
        config = {
            "model_type": "timm_wrapper",
            "architectures": ["TimmWrapperModel"],
            **timm_config(source, source.model),
        }
        write_json(folder / "config.json", config)
        output = "model(images).pooler_output"
        checked_with = ("transformers", "timm")
    else:
        if source.library not in ("torchvision", "timm", *BUILTIN):
            raise ValueError(
                f"{source.spec['name']} is your own network, which nothing else can build: {FALLBACK_HINT}"
            )
        tensors = {f"encoder.{name}": tensor for name, tensor in source.tensors.items()}
        config = {"model_type": "mixview", "architectures": ["MixviewModel"], "spec": dict(source.spec)}
        write_json(folder / "config.json", config)
        lines = ["import mixview.encoders.export.transformers_model  # this network is not in transformers itself"]
        output = "model(images).pooler_output"
        checked_with = ("transformers", "mixview")
    save_tensors(path, tensors, source.header)
    write_json(folder / "preprocessor_config.json", preprocessor_config(source))
    snippet = join_lines(
        lines,
        "from transformers import AutoModel",
        "",
        "model = AutoModel.from_pretrained(PATH).eval()",
        f"features = {output}",
        source.shape_comment(),
    )
    return ExportedFiles(folder, snippet, checked_with)


def resnet_config(source: ExportSource) -> dict[str, Any]:
    """The config.json of transformers' own ResNetModel."""
    kind, depths = DEPTHS[source.model]
    widths = [64, 128, 256, 512] if kind == "basic" else [256, 512, 1024, 2048]
    return {
        "model_type": "resnet",
        "architectures": ["ResNetModel"],
        "num_channels": source.spec["channels"],
        "embedding_size": 64,
        "hidden_sizes": widths,
        "depths": depths,
        "layer_type": kind,
        "hidden_act": "relu",
        "downsample_in_first_stage": False,
        "downsample_in_bottleneck": False,
    }


def preprocessor_config(source: ExportSource) -> dict[str, Any]:
    """The image processor of transformers that is nearest to the encoder's preprocessing: resize, crop, normalize."""
    normalize, size = normalize_of(source), int(source.spec["size"])
    return {
        "image_processor_type": "BitImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": round(size * CROP_RATIO)},
        "do_center_crop": True,
        "crop_size": {"height": size, "width": size},
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(normalize.mean),
        "image_std": list(normalize.std),
    }


def to_transformers(name: str) -> str:
    """A torchvision ResNet's tensor under transformers' name."""
    name = re.sub(r"^conv1\.", "embedder.embedder.convolution.", name)
    name = re.sub(r"^bn1\.", "embedder.embedder.normalization.", name)
    name = re.sub(r"^layer(\d)\.(\d+)\.", lambda m: f"encoder.stages.{int(m[1]) - 1}.layers.{m[2]}.", name)
    name = re.sub(r"\.conv(\d)\.", lambda m: f".layer.{int(m[1]) - 1}.convolution.", name)
    name = re.sub(r"\.bn(\d)\.", lambda m: f".layer.{int(m[1]) - 1}.normalization.", name)
    return name.replace(".downsample.0.", ".shortcut.convolution.").replace(
        ".downsample.1.", ".shortcut.normalization."
    )


def from_transformers(name: str) -> str:
    """The other way round; `resnet.` stands in front in a model with a classifier."""
    name = name.removeprefix("resnet.")
    name = name.replace("embedder.embedder.convolution.", "conv1.").replace("embedder.embedder.normalization.", "bn1.")
    name = re.sub(r"^encoder\.stages\.(\d)\.layers\.(\d+)\.", lambda m: f"layer{int(m[1]) + 1}.{m[2]}.", name)
    name = re.sub(r"\.layer\.(\d)\.convolution\.", lambda m: f".conv{int(m[1]) + 1}.", name)
    name = re.sub(r"\.layer\.(\d)\.normalization\.", lambda m: f".bn{int(m[1]) + 1}.", name)
    return name.replace(".shortcut.convolution.", ".downsample.0.").replace(
        ".shortcut.normalization.", ".downsample.1."
    )


def read_names(folder: Path, tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], str | None]:
    """The tensors of such a folder under mixview's names, and the backbone that its config.json names."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("it holds no settings")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{folder / 'config.json'} cannot be read ({error}): import a folder that transformers or timm wrote, or "
            "name the file of weights itself"
        ) from None
    kind = config.get("model_type")
    if kind == "resnet":
        named = {from_transformers(name): tensor for name, tensor in tensors.items()}
        shape = (config.get("layer_type"), config.get("depths"))
        backbones = [f"torchvision/{name}" for name, blocks in DEPTHS.items() if blocks == shape]
        return named, backbones[0] if backbones else None
    if kind == "mixview":
        return {name.removeprefix("encoder."): tensor for name, tensor in tensors.items()}, None
    if isinstance(architecture := config.get("architecture"), str):
        return {name.removeprefix("timm_model."): tensor for name, tensor in tensors.items()}, f"timm/{architecture}"
    raise ValueError(
        f"{folder} holds a {kind or 'nameless'} model, which mixview does not have: it reads ResNets of transformers, "
        "and models of timm and of mixview"
    )
