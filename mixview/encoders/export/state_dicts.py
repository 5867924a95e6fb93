"""Files of weights under the names of torchvision, timm and Detectron2, or mixview's own."""

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mixview.encoders.backbones import BUILTIN, timm_options, torchvision_options
from mixview.encoders.encoder_file import save_encoder
from mixview.encoders.export.base import ExportedFiles, ExportSource, join_lines, normalize_of
from mixview.encoders.optional import import_optional
from mixview.encoders.weights import HEADS, first_convolution
from mixview.runs.run_directory import write_json

FALLBACK_HINT = "use --format safetensors, onnx or torch-export"


def save_tensors(path: Path, tensors: dict[str, Tensor], header: str) -> None:
    """Write tensors as safetensors or, by the name of the file, as a torch file; the header goes along in either."""
    if path.suffix == ".safetensors":
        # transformers asks for the format.
        import_optional("safetensors.torch").save_file(tensors, path, {"format": "pt", "mixview": header})
        return
    state: Any = OrderedDict(tensors)
    state._metadata = OrderedDict({"mixview": {"header": header}})  # where state dicts keep what is not a tensor
    torch.save(state, path)


def write_safetensors(source: ExportSource, path: Path) -> ExportedFiles:
    """mixview's own file: weights, and in its header what rebuilds the network."""
    save_encoder(path, source.loaded.encoder, source.spec, json.loads(source.header)["metadata"])
    trust = "" if source.library in ("torchvision", "timm", *BUILTIN) else ", trust_remote_code=True"
    snippet = join_lines(
        "import mixview",
        "",
        f"encoder = mixview.load(PATH{trust})  # encoder(…) takes paths, PIL images, arrays and tensors",
        "features = encoder.module(images.to(encoder.device))",
        source.shape_comment(),
    )
    return ExportedFiles(path, snippet, ("mixview", "safetensors"))


def write_torchvision(source: ExportSource, path: Path) -> ExportedFiles:
    """A state dict under torchvision's names."""
    name = source.model_name_in("torchvision", FALLBACK_HINT)
    save_tensors(path, source.tensors, source.header)
    options = "".join(
        f", {key}={value!r}" for key, value in torchvision_options(name, int(source.spec["size"])).items()
    )
    is_safe = path.suffix == ".safetensors"
    read = "safetensors.torch.load_file(PATH)" if is_safe else "torch.load(PATH, weights_only=True)"
    snippet = join_lines(
        ["import safetensors.torch"] if is_safe else [],
        "import torch",
        "import torchvision",
        "",
        f'model = torchvision.models.get_model("{name}", weights=None{options})',
        (f'model.set_submodule("{each}", torch.nn.Identity())  # no classifier' for each in classifier_of(source)),
        source.stem_lines(),
        f"model.load_state_dict({read})",
        "features = model.eval()(images)",
        source.shape_comment(),
    )
    return ExportedFiles(path, snippet, ("torchvision",), stem_notes(source, "torchvision"))


def classifier_of(source: ExportSource) -> list[str]:
    """The layers that mixview took out of torchvision's network, by name."""
    if source.library == "timm":  # one of the ResNets that both have
        return ["fc"]
    modules = source.loaded.encoder.named_modules()
    return [name for name, layer in modules if isinstance(layer, nn.Identity) and name.partition(".")[0] in HEADS]


def stem_notes(source: ExportSource, library: str) -> tuple[str, ...]:
    """A word on the small stem, which neither torchvision nor timm makes by itself."""
    if source.spec["stem"] != "small":
        return ()
    return (f"It has the small stem, which {library}'s own constructor does not make: the snippet does.",)


def write_timm(source: ExportSource, path: Path) -> ExportedFiles:
    """safetensors under timm's names, and next to them the config.json that timm and its hub read."""
    name = source.model_name_in("timm", FALLBACK_HINT)
    save_tensors(path, source.tensors, source.header)
    options = timm_options(name, int(source.spec["size"]), int(source.spec["channels"]))
    arguments = ", ".join([f'"{name}"', *(f"{key}={value!r}" for key, value in options.items())])
    if source.spec["stem"] == "small":  # which no config.json can ask for
        load = [f"model = timm.create_model({arguments})", *source.stem_lines()]
        load += ["timm.models.load_checkpoint(model, PATH)"]
    else:
        load = [f"model = timm.create_model({arguments}, checkpoint_path=PATH)"]
        write_json(path.with_name("config.json"), timm_config(source, name))
    snippet = join_lines(
        "import timm",
        ["import torch"] if source.spec["stem"] == "small" else [],
        "",
        load,
        "features = model.eval()(images)",
        source.shape_comment(),
    )
    return ExportedFiles(path, snippet, ("timm",), stem_notes(source, "timm"))


def timm_config(source: ExportSource, name: str) -> dict[str, Any]:
    """The config that timm writes next to its own weights: the network, and how images are prepared."""
    options = timm_options(name, int(source.spec["size"]), int(source.spec["channels"]))
    normalize, side = normalize_of(source), int(source.spec["size"])
    first = first_convolution(source.loaded.encoder)
    return {
        "architecture": name,
        "num_classes": 0,
        "num_features": source.spec["feature_dim"],
        "model_args": {key: value for key, value in options.items() if key != "num_classes"},
        "pretrained_cfg": {
            "tag": "mixview",
            "custom_load": False,
            "input_size": [source.spec["channels"], side, side],
            "fixed_input_size": "img_size" in options,
            "interpolation": "bilinear",
            "crop_pct": 0.875,
            "crop_mode": "center",
            "mean": list(normalize.mean),
            "std": list(normalize.std),
            "num_classes": 0,
            "first_conv": first[0] if first else None,
        },
    }
