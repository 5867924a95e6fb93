"""Encoders for Detectron2: its pickle of NumPy arrays under its own names, written, and read without running code.

    save_detectron2("encoder.pkl", encoder.state_dict())     # MODEL.WEIGHTS of a Detectron2 configuration
    state, notes = load_detectron2("encoder.pkl")            # torchvision's names again

A torchvision ResNet's `conv1` is Detectron2's `stem.conv1`, `layer1` to `layer4` are `res2` to `res5`, a norm `bn1` is
the `norm` of its convolution, and the shortcut is `shortcut`. Pixels stay RGB in the order and scale of torchvision's,
and the stride of a bottleneck is in its 3×3 convolution; a configuration has to say so, and the file does:

    MODEL.PIXEL_MEAN [123.675, 116.280, 103.530]   MODEL.PIXEL_STD [58.395, 57.120, 57.375]
    INPUT.FORMAT RGB                               MODEL.RESNETS.STRIDE_IN_1X1 False
"""

import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mixview.encoders.export.base import ExportedFiles, ExportSource, join_lines
from mixview.io.atomic import write_bytes
from mixview.io.pickles import PickledArray, UntrustedPickle, read_arrays

Arrays = dict[str, npt.NDArray[Any]]

INPUT_FORMATS = {1: "L", 3: "RGB"}
"""Detectron2's name of the pixels, by the number of channels."""
HEADER = "mixview"
"""The key of the file's description, besides the arrays."""

NOTES: dict[str, str] = {
    "__author__": "mixview",
    "input_format": "RGB",
    "pixel_mean": "123.675, 116.280, 103.530",
    "pixel_std": "58.395, 57.120, 57.375",
    "stride_in_1x1": "False",
}
"""The entries of the file besides the arrays: for 8-bit pixels, in the order of `input_format`."""

# One rule for each direction, in the order in which they apply. A number n of `layer` is res n + 1.
BLOCK = re.compile(r"layer([1-4])\.(\d+)\.(?:(conv|bn)([1-3])|downsample\.([01]))\.(\w+)")
OWN_BLOCK = re.compile(r"res([2-5])\.(\d+)\.(?:conv([1-3])|(shortcut))\.(norm\.)?(\w+)")


def to_detectron2(state: Mapping[str, Tensor]) -> Arrays:
    """A torchvision ResNet's tensors under Detectron2's names. Anything beyond its trunk is an error that names it.

    `num_batches_tracked`, which Detectron2 has no use for, and a classifier `fc` are left out.
    """
    arrays: Arrays = {}
    for name, tensor in state.items():
        if name.endswith("num_batches_tracked") or name.startswith("fc."):
            continue
        arrays[detectron2_name(name)] = tensor.detach().cpu().contiguous().numpy().copy()
    if "stem.conv1.weight" not in arrays:
        raise ValueError(
            "these are not the tensors of a ResNet, which has a conv1.weight: export a ResNet for Detectron2"
        )
    if arrays["stem.conv1.weight"].shape[2:] != (7, 7):
        raise ValueError(
            "Detectron2's ResNets have the standard stem (7×7, max-pool) and this one has the small stem: pretrain "
            "with --stem standard to export for Detectron2"
        )
    return arrays


def detectron2_name(name: str) -> str:
    """Detectron2's name of a torchvision ResNet's tensor."""
    if name == "conv1.weight":
        return "stem.conv1.weight"
    if name.startswith("bn1."):
        return f"stem.conv1.norm.{name.removeprefix('bn1.')}"
    match = BLOCK.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} is not a tensor of a torchvision ResNet, as Detectron2 needs it: export a ResNet")
    layer, block, kind, number, place, what = match.groups()
    start = f"res{int(layer) + 1}.{block}"
    if kind is not None:
        return f"{start}.conv{number}.{'norm.' if kind == 'bn' else ''}{what}"
    return f"{start}.shortcut.{'norm.' if place == '1' else ''}{what}"


def from_detectron2(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Tensor]:
    """The same tensors under torchvision's names; each batch norm with the counter that torchvision's has."""
    state: dict[str, Tensor] = {}
    for name, array in arrays.items():
        own = torchvision_name(name)
        state[own] = torch.from_numpy(np.array(array))
        if own.endswith(".running_var"):
            state[own.replace("running_var", "num_batches_tracked")] = torch.tensor(0)
    return state


def torchvision_name(name: str) -> str:
    """torchvision's name of a tensor of Detectron2's ResNets."""
    if name == "stem.conv1.weight":
        return "conv1.weight"
    if name.startswith("stem.conv1.norm."):
        return f"bn1.{name.removeprefix('stem.conv1.norm.')}"
    match = OWN_BLOCK.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} is not a tensor of Detectron2's ResNets: pass the file of a trunk, not of a detector")
    res, block, number, shortcut, norm, what = match.groups()
    start = f"layer{int(res) - 1}.{block}"
    if shortcut is not None:
        return f"{start}.downsample.{'1' if norm else '0'}.{what}"
    return f"{start}.{'bn' if norm else 'conv'}{number}.{what}"


def save_detectron2(path: str | Path, state: Mapping[str, Tensor], notes: Mapping[str, str] | None = None) -> None:
    """Write an encoder for Detectron2's checkpointer, atomically.

    `matching_heuristics` makes Detectron2 find the arrays under its own prefixes (`backbone.`, and `roi_heads.` for
    the res5 of a C4 detector).

    Args:
        path: the file, whose name ends in .pkl, by which Detectron2 knows the format.
        state: tensors of a torchvision ResNet.
        notes: more to say besides the arrays, such as method and epoch.

    Example:
        >>> from mixview.encoders import build
        >>> save_detectron2("encoder.pkl", build("resnet18", size=224).encoder.state_dict(), {"method": "mocov2"})
    """
    path = Path(path)
    if path.suffix != ".pkl":
        raise ValueError(f"Detectron2 reads pickles by their name, not {path.name!r}: end it in .pkl")
    content = {"model": to_detectron2(state), "matching_heuristics": True, **NOTES, **(notes or {})}
    write_bytes(path, pickle.dumps(content, protocol=2))


def load_detectron2(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of such a file under torchvision's names, and what it says besides them. Runs nothing of the file's.

    Also reads the pickles that Detectron2's own converters write, and those of MoCo's.

    Example:
        >>> from mixview.encoders import build
        >>> save_detectron2("encoder.pkl", build("resnet18", size=224).encoder.state_dict(), {"method": "mocov2"})
        >>> state, notes = load_detectron2("encoder.pkl")
        >>> state["conv1.weight"].shape, notes["method"]
        (torch.Size([64, 3, 7, 7]), 'mocov2')
    """
    path = Path(path)
    try:
        content = read_arrays(path, "an encoder for Detectron2", encoding="latin1")
    except UntrustedPickle:
        raise
    except ValueError as error:
        raise ValueError(f"{error}: export it again") from error
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict) or not all(isinstance(each, PickledArray) for each in model.values()):
        raise ValueError(f"{path} holds no arrays under `model`: it is not a file for Detectron2; export it again")
    state = from_detectron2({str(name): each.value for name, each in model.items()})
    return state, {str(name): str(value) for name, value in content.items() if name != "model"}


def write_detectron2(source: ExportSource, path: Path) -> ExportedFiles:
    """A pickle of arrays under Detectron2's names, for `MODEL.WEIGHTS`."""
    name = source.model_name_in(
        "torchvision", "Detectron2 has ResNets only, use --format safetensors for other programs"
    )
    depth, channels = name.removeprefix("resnet"), int(source.spec["channels"])
    if not depth.isdecimal():
        raise ValueError(f"Detectron2 has no {name}: export resnet18, 34, 50, 101 or 152 for it")
    if channels not in INPUT_FORMATS:
        raise ValueError(f"Detectron2 reads images of 1 or 3 channels, and this encoder has {channels}")
    mean, std = source.loaded.normalize.values(channels)
    pixels = [[round(255 * value, 3) for value in values] for values in (mean, std)]
    texts = [", ".join(f"{value:.3f}" for value in values) for values in pixels]
    notes = {"input_format": INPUT_FORMATS[channels], "pixel_mean": texts[0], "pixel_std": texts[1]}
    save_detectron2(path, source.tensors, notes | {HEADER: source.header})
    # Detectron2's C4 head is of bottlenecks, which the two smallest have not.
    basic = depth in ("18", "34")
    base = "COCO-Detection/faster_rcnn_R_50_FPN_1x.yaml" if basic else "PascalVOC-Detection/faster_rcnn_R_50_C4.yaml"
    config = [
        "from detectron2 import model_zoo",
        "",
        f'config = model_zoo.get_config("{base}")',
        "config.MODEL.WEIGHTS = PATH",
        f"config.MODEL.RESNETS.DEPTH = {depth}",
        *(["config.MODEL.RESNETS.RES2_OUT_CHANNELS = 64"] if basic else []),
        'config.MODEL.RESNETS.NORM = "SyncBN"',
        "config.MODEL.RESNETS.STRIDE_IN_1X1 = False",
        "config.MODEL.BACKBONE.FREEZE_AT = 0  # train all of it",
        "config.TEST.PRECISE_BN.ENABLED = True",
        f'config.INPUT.FORMAT = "{INPUT_FORMATS[channels]}"',
        f"config.MODEL.PIXEL_MEAN, config.MODEL.PIXEL_STD = {pixels[0]}, {pixels[1]}",
    ]
    if not basic:
        config.append("# The norm after res5: ROI_HEADS.NAME Res5ROIHeadsExtraNorm, of MoCo's detection/train_net.py")
    return ExportedFiles(path, join_lines(config), (), read_back=read_detectron2)


def read_detectron2(path: Path) -> tuple[dict[str, Tensor], str | None]:
    """The tensors under torchvision's names, and mixview's header; nothing in the pickle is run."""
    tensors, notes = load_detectron2(path)
    header = notes.get(HEADER)
    try:
        json.loads(header or "")
    except ValueError:
        return tensors, None
    return tensors, header
