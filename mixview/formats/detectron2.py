"""A folder or file for Detectron2, and back; the layout itself is `mixview.detectron2`'s."""

import json
from pathlib import Path

from torch import Tensor

from mixview.detectron2 import load_detectron2, save_detectron2
from mixview.formats.written import Cargo, Written, join_lines

HEADER = "mixview"
"""Under which the file says what it is of, beside the arrays."""


def write_detectron2(cargo: Cargo, path: Path) -> Written:
    """A pickle of arrays under Detectron2's names, for `MODEL.WEIGHTS`."""
    name = cargo.named_in("torchvision", "Detectron2 has ResNets only, use --format safetensors for other programs")
    save_detectron2(path, cargo.tensors, {HEADER: cargo.header})
    mean, std = cargo.subject.normalise.values(int(cargo.spec["channels"]))
    pixels = [[round(255 * value, 3) for value in values] for values in (mean, std)]
    depth = name.removeprefix("resnet")
    config = [
        "from detectron2 import model_zoo",
        "",
        'config = model_zoo.get_config("PascalVOC-Detection/faster_rcnn_R_50_C4.yaml")',
        "config.MODEL.WEIGHTS = PATH",
        f"config.MODEL.RESNETS.DEPTH = {depth}",
        'config.MODEL.RESNETS.NORM = "SyncBN"  # and config.MODEL.BACKBONE.FREEZE_AT = 0 to train all of it',
        "config.MODEL.RESNETS.STRIDE_IN_1X1 = False",
        'config.INPUT.FORMAT = "RGB"',
        f"config.MODEL.PIXEL_MEAN, config.MODEL.PIXEL_STD = {pixels[0]}, {pixels[1]}",
    ]
    if not depth.isdecimal():
        raise ValueError(f"Detectron2 has no {name}: export resnet18, 34, 50, 101 or 152 for it")
    return Written(path, join_lines(config), (), reads=read_detectron2)


def read_detectron2(path: Path) -> tuple[dict[str, Tensor], str | None]:
    """The tensors under torchvision's names, and mixview's header; nothing in the pickle is run."""
    tensors, notes = load_detectron2(path)
    header = notes.get(HEADER)
    try:
        json.loads(header or "")
    except ValueError:
        return tensors, None
    return tensors, header
