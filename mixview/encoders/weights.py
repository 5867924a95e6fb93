"""Weights from files: whose they are, where in a file the tensors lie, and how they get into an encoder.

Nothing that is read here can run code: torch files are opened with `weights_only=True`.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixview.encoders.optional import import_optional
from mixview.io.pickles import check_tensors, read_torch

ENCODER_FILE = "encoder.safetensors"
"""The exported encoder in a run folder."""

HEADS = ("fc", "classifier", "head", "heads", "head_dist")

PREFIXES = (
    *("module.", "_orig_mod.", "model.", "net."),  # DDP, torch.compile, Lightning, lucidrains' BYOL
    *("encoder_q.", "base_encoder.", "encoder."),  # MoCo, MoCo v3, SimSiam
    "backbone.",  # lightly, solo-learn, OpenSelfSup, MMSelfSup
    *("online.", "online_net.", "online_network.", "online_encoder."),  # mixview and BYOL, in four dialects
    *("base_model.", "trunk.", "_feature_blocks."),  # VISSL
)
"""Prefixes of other programs to an encoder's own names. Target and key encoders have others, and are never taken."""

CONTAINERS = (
    *("state_dict", "model_state_dict", "online_network_state_dict", "model", "encoder", "backbone"),
    *("classy_state_dict", "base_model", "trunk"),  # VISSL, one in the other
    "teacher",  # DINO
)
"""The keys of a file under which the tensors are."""

TORCH_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".tar", ".torch")

POS_EMBED_KEYS = ("pos_embed", "pos_embedding")
"""The names of timm's and torchvision's position embeddings of a vision transformer."""

MAX_PREFIX = 16
"""Class and register tokens in front of the patches, at most."""

MIN_MATCH_FRACTION = 0.7
"""The least share of tensors that must fit, of the model's and of the file's: ResNet-34 in ResNet-18 is 0.56."""


def weights_file(weights: str | Path) -> Path:
    """The file that `weights` means: itself, or the exported encoder of a run folder."""
    path = Path(weights).expanduser()
    if path.is_dir():
        if not (path / ENCODER_FILE).is_file():
            raise FileNotFoundError(
                f"{path} holds no {ENCODER_FILE}: pass the folder of a finished mixview run, or a file of weights"
            )
        return path / ENCODER_FILE
    if not path.is_file():
        raise FileNotFoundError(f'no weights at {path}: pass "imagenet", a file, or the folder of a mixview run')
    return path


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors or torch file, by name. Runs nothing that the file holds."""
    if path.suffix == ".safetensors":
        return read_safetensors(path)[0]
    if path.suffix not in TORCH_SUFFIXES:
        raise ValueError(f"{path} is not a known file of weights: use .safetensors or {', '.join(TORCH_SUFFIXES)}")
    content = read_torch(path)
    while isinstance(content, Mapping) and not any(isinstance(value, Tensor) for value in content.values()):
        inside = next((key for key in CONTAINERS if isinstance(content.get(key), Mapping)), None)
        if inside is None:
            break
        content = content[inside]
    tensors = {str(k): v for k, v in content.items() if isinstance(v, Tensor)} if isinstance(content, Mapping) else {}
    if not tensors:
        raise ValueError(f"{path} holds no state_dict: save one with torch.save(model.state_dict(), FILE)")
    check_tensors(tensors, path)
    return tensors


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file, and the text in its header."""
    with open_safetensors(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


def read_safetensors_header(path: Path) -> dict[str, str]:
    """The text in the header of a safetensors file."""
    with open_safetensors(path) as file:
        return dict(file.metadata() or {})


@contextmanager
def open_safetensors(path: Path) -> Iterator[Any]:
    """An open safetensors file."""
    safetensors = import_optional("safetensors")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            yield file
    except safetensors.SafetensorError as error:
        raise ValueError(
            f"{path} is not a complete safetensors file ({first_line(error)}): it was cut short or is something else; "
            "copy or export it again"
        ) from error


class MatchedTensors(NamedTuple):
    """Tensors that fit an encoder, under its names, and the names of those that were changed or left out."""

    matching: dict[str, Tensor]
    resized: list[str]
    misshapen: list[str]
    left: list[str]


def match_tensors(encoder: nn.Module, own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> MatchedTensors:
    """Match tensors to those of an encoder, `own`, adapting a first convolution and position embeddings."""
    first = first_convolution(encoder)
    first_weight = f"{first[0]}.weight".lstrip(".") if first else ""
    matched = MatchedTensors({}, [], [], [])
    children = [name for name, _ in encoder.named_children()]
    for full_key, value in tensors.items():
        key = strip_prefixes(full_key, own, children)
        if key not in own:
            matched.left.append(key)
            continue
        shape = own[key].shape
        if key == first_weight and value.ndim == 4 and value.shape[1] != shape[1] and value.is_floating_point():
            value = adapt_channels(value, shape[1])
        if value.shape == shape:
            matched.matching.setdefault(key, value)
            continue
        change = f"{key} {list(value.shape)} for {list(shape)}"
        embeddings = resize_positions(value, shape) if key.rpartition(".")[2] in POS_EMBED_KEYS else None
        if embeddings is None:
            matched.misshapen.append(change)
        elif key not in matched.matching:
            matched.matching[key] = embeddings
            matched.resized.append(change)
    return matched


def load_weights(encoder: nn.Module, tensors: Mapping[str, Tensor], source: str, name: str) -> str:
    """Copy the tensors that fit into the encoder, and say how many did and which did not.

    Known prefixes (of DDP, `torch.compile`, MoCo, lightly, mixview) are taken off, classifiers left out, and a first
    convolution of other channels and position embeddings of another image size are adapted. When too few fit, nothing
    is changed and an error names the file.
    """
    own = encoder.state_dict()
    matching, resized, misshapen, left = match_tensors(encoder, own, tensors)
    counted = [key for key in own if not key.endswith("num_batches_tracked")]
    fitting = [key for key in counted if key in matching]
    missing = [key for key in counted if key not in matching]
    parts = {key.partition(".")[0] for key in own} - set(HEADS)
    foreign = [k for k in left if k.partition(".")[0] in parts and not k.endswith("num_batches_tracked")]
    there = len(fitting) + len(misshapen) + len(foreign)
    troubles = [
        f"{what} {shorten(which)}"
        for what, which in (
            ("resized:", resized),
            ("other shapes:", misshapen),
            ("not in it:", missing),
            ("not in the model:", foreign),
        )
        if which
    ]
    if len(fitting) < MIN_MATCH_FRACTION * max(len(counted), there):
        raise ValueError(
            f"{len(fitting)} of {len(tensors)} tensors of {source} fit {name}, which has {len(counted)} "
            f"({'; '.join(troubles)}; it starts with {shorten(tensors, 2)}): "
            "pass the backbone that the file was made with"
        )
    encoder.load_state_dict(matching, strict=False)
    summary = f"Weights: {len(fitting)} of the {len(counted)} tensors of {name} from {source}"
    return f"{summary}; {'; '.join(troubles)}." if troubles else f"{summary}."


def strip_prefixes(key: str, own: Mapping[str, Tensor], children: Sequence[str]) -> str:
    """Take known prefixes off until the name is one of the model's, or none is left.

    A number that is left in front is of an `nn.Sequential`: of backbone and neck (OpenSelfSup: `encoder_q.0.conv1`), or
    of the model's own children without the last (lightly: `backbone.4.0.conv1` is `layer1.0.conv1`).
    """
    while key not in own:
        prefix = next((prefix for prefix in PREFIXES if key.startswith(prefix)), None)
        if prefix is None:
            break
        key = key.removeprefix(prefix)
    number, _, rest = key.partition(".")
    if key in own or not number.isdecimal():
        return key
    if number == "0" and rest in own:
        return rest
    return f"{children[int(number)]}.{rest}" if int(number) < len(children) else key


def first_convolution(model: nn.Module) -> tuple[str, nn.Conv2d] | None:
    return next(((name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)), None)


def adapt_channels(weight: Tensor, channels: int) -> Tensor:
    """A first convolution's weight [O, I, h, w] for other channels, keeping the scale of its output (as in timm).

    To one channel the filters are summed (a gray image is three equal channels), to more they are repeated in turn and
    scaled by I / channels.
    """
    have = weight.shape[1]
    if channels == 1:
        return weight.sum(dim=1, keepdim=True)
    return weight[:, torch.arange(channels) % have] * (have / channels)


def resize_positions(embeddings: Tensor, shape: torch.Size) -> Tensor | None:
    """Position embeddings [1, tokens, width] of a square grid of patches for another one, as timm resizes them.

    Those of class and register tokens, which come first, are kept. None if the shapes are not of such grids.
    """
    if embeddings.ndim != 3 or len(shape) != 3 or (embeddings.shape[0], embeddings.shape[2]) != (1, shape[2]):
        return None
    for prefix in range(min(embeddings.shape[1], shape[1], MAX_PREFIX + 1)):
        old, new = math.isqrt(embeddings.shape[1] - prefix), math.isqrt(shape[1] - prefix)
        if (old * old, new * new) == (embeddings.shape[1] - prefix, shape[1] - prefix):
            grid = embeddings[:, prefix:].float().unflatten(1, (old, old)).permute(0, 3, 1, 2)
            grid = F.interpolate(grid, (new, new), mode="bicubic", antialias=True)
            grid = grid.permute(0, 2, 3, 1).flatten(1, 2).to(embeddings.dtype)
            return torch.cat([embeddings[:, :prefix], grid], dim=1)
    return None


def shorten(names: Iterable[str], most: int = 4) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0].rstrip(".:")[:200] or type(error).__name__
