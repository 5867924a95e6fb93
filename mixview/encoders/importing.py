"""`mixview import`: an encoder from another program's file, as mixview's own.

    mixview import exported/model.onnx --out encoder.safetensors

Reads what `mixview export` writes and, of the same formats, what others wrote. Only weights are read, by name: no
graph is run, nothing in a file is. What mixview exported says its own network; of other files the usual ResNets are
tried, or `--backbone` names it.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mixview.data.dataset import SMALL_IMAGE_SIZE
from mixview.encoders import backbones, weights
from mixview.encoders.backbones import Spec
from mixview.encoders.encoder_file import check_size, read_header, rebuild, save_encoder
from mixview.encoders.export import detectron2, graphs, huggingface
from mixview.encoders.loading import DEFAULT_SIZE
from mixview.io.pickles import read_torch
from mixview.io.terminal import say

SMALL_SIZE = 32
"""The image size that an encoder with the small stem is taken to be for, where nothing says it."""

FOLDER_FILES = ("model.safetensors", "model.pth", "model.onnx", "model.pt2", "model.pkl", "encoder.safetensors")
"""The files of a folder that are tried, in this order."""


@dataclass(frozen=True, kw_only=True)
class Import:
    """Read an encoder from another program's file."""

    file: str
    """File to read: .safetensors, .pth, .onnx, .pt2 or .pkl, or a folder of Hugging Face, timm or mixview export."""
    out: str = "encoder.safetensors"
    """Encoder file to write, which every command of mixview takes."""
    backbone: str | None = None
    """The network, where the file does not say it; by default the usual ResNet that fits."""
    size: int | None = None
    """Input size in pixels; by default what the file says, or 224 (32 with the small stem)."""
    channels: int = 3
    """Image channels, where the file does not say."""

    def run(self) -> Path:
        """Read, rebuild, write. Returns the file."""
        path = find_file(Path(self.file).expanduser())
        tensors, text, backbone = read_weights(path)
        encoder, spec, metadata, note = self.build(path, tensors, text, self.backbone or backbone)
        out = Path(self.out)
        out.parent.mkdir(parents=True, exist_ok=True)
        save_encoder(out, encoder, spec, metadata)
        say(note)
        say(f"wrote {out}: {spec['name']}, {spec['feature_dim']} features of {spec['size']} pixels")
        return out

    def build(
        self, path: Path, tensors: dict[str, Tensor], text: str | None, backbone: str | None
    ) -> tuple[nn.Module, Spec, dict[str, str], str]:
        """The encoder with these weights, its spec and metadata, and a sentence on how they fitted."""
        if text is not None and self.backbone is None:
            header = read_header(path, {"mixview": text})
            spec: Spec = header["spec"]
            encoder = rebuild(path, spec, trust_remote_code=False, tensors=tensors)
            load_all(encoder, tensors, path, str(spec["name"]))
            if self.size is not None:
                spec = spec | {"size": self.size}
            metadata = {str(key): str(value) for key, value in header["metadata"].items()}
            return encoder, spec, metadata, f"{path.name} is {spec['name']}, as mixview exported it."
        stem: backbones.Stem = "standard"
        if backbone is None:
            backbone, stem = backbones.guess_backbone(tensors, str(path))
        size = self.size or (SMALL_SIZE if stem == "small" or backbone in backbones.BUILTIN else DEFAULT_SIZE)
        if self.backbone is not None and size <= SMALL_IMAGE_SIZE:
            stem = "auto"
        with torch.random.fork_rng(devices=[]):
            construct = partial(backbones.construct, backbone, size=size, channels=self.channels, stem=stem)
            check_size(path, backbone, construct, tensors)
            encoder, name, resolved, _ = construct()
        note = weights.load_weights(encoder, tensors, str(path), name)
        width = backbones.feature_width(encoder, name, size=size, channels=self.channels)
        spec = {"name": name, "size": size, "channels": self.channels, "stem": resolved, "feature_dim": width}
        return encoder, spec, {"imported": path.name}, note


def import_encoder(file: str, **options: Any) -> Path:
    """Read an encoder from another program's file: what mixview export writes, or others wrote. Runs nothing of it.

    Args:
        file: .safetensors, .pth, .onnx, .pt2 or .pkl, or a folder of Hugging Face's, of timm's or of mixview export.
        options: fields of `Import`.

    Example:
        >>> torch.save(backbones.build("resnet18", size=224).encoder.state_dict(), "theirs.pth")
        >>> path = import_encoder("theirs.pth", out="mine.safetensors")
        Weights: 100 of the 100 tensors of torchvision/resnet18 from theirs.pth.
        wrote mine.safetensors: torchvision/resnet18, 512 features of 224 pixels
    """
    return Import(file=file, **options).run()


def find_file(path: Path) -> Path:
    """The file of weights that a path means."""
    if path.is_dir():
        files = [path / name for name in FOLDER_FILES if (path / name).is_file()]
        if not files:
            raise FileNotFoundError(f"{path} holds none of {', '.join(FOLDER_FILES)}: name the file itself")
        return files[0]
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}: check the path")
    return path


def read_weights(path: Path) -> tuple[dict[str, Tensor], str | None, str | None]:
    """Tensors by mixview's names, mixview's header if there is one, and the backbone that a config.json names."""
    if path.suffix == ".onnx":
        return *graphs.read_onnx(path), None
    if path.suffix == ".pt2":
        return *graphs.read_torch_export(path), None
    if path.suffix == ".pkl":
        return *detectron2.read_detectron2(path), None
    if path.suffix != ".safetensors":
        return weights.read_tensors(path), header_of_torch_file(path), None
    tensors, metadata = weights.read_safetensors(path)
    backbone = None
    has_header = "mixview" in metadata
    has_own_names = has_header and "format" not in metadata  # which exports for other programs say
    if (path.parent / "config.json").is_file() and not has_own_names:
        try:
            tensors, backbone = huggingface.read_names(path.parent, tensors)
        except ValueError:
            if not has_header:  # else the config.json may be of anything that lies in the same folder
                raise
    return tensors, metadata.get("mixview"), backbone


def header_of_torch_file(path: Path) -> str | None:
    """The header that `mixview export` left with the tensors, where state dicts keep what is not a tensor."""
    content = read_torch(path)
    entry = getattr(content, "_metadata", {}).get("mixview")
    return entry.get("header") if isinstance(entry, dict) else None


def load_all(encoder: nn.Module, tensors: dict[str, Tensor], path: Path, name: str) -> None:
    """Every tensor of the encoder from the file; counters of batch norms may be missing, for nothing uses them."""
    own = encoder.state_dict()
    missing = [key for key in own if key not in tensors and not key.endswith("num_batches_tracked")]
    wrong = [key for key in own if key in tensors and tensors[key].shape != own[key].shape]
    if missing or wrong:
        raise ValueError(
            f"{len(missing) + len(wrong)} tensors of {path} do not fit {name} "
            f"({weights.shorten([*missing, *wrong])}): export the encoder again"
        )
    encoder.load_state_dict({key: tensors[key] for key in own if key in tensors}, strict=False)
