"""A folder or file for Detectron2, and back; the layout itself is `mixview.detectron2`'s."""

import json
from pathlib import Path

from torch import Tensor

from mixview.detectron2 import load_detectron2, save_detectron2
from mixview.formats.written import Cargo, Written, join_lines

INPUT_FORMATS = {1: "L", 3: "RGB"}
"""Detectron2's name of the pixels, by the number of channels."""
HEADER = "mixview"
"""Under which the file says what it is of, beside the arrays."""


def write_detectron2(cargo: Cargo, path: Path) -> Written:
    """A pickle of arrays under Detectron2's names, for `MODEL.WEIGHTS`."""
    name = cargo.named_in("torchvision", "Detectron2 has ResNets only, use --format safetensors for other programs")
    depth, channels = name.removeprefix("resnet"), int(cargo.spec["channels"])
    if not depth.isdecimal():
        raise ValueError(f"Detectron2 has no {name}: export resnet18, 34, 50, 101 or 152 for it")
    if channels not in INPUT_FORMATS:
        raise ValueError(f"Detectron2 reads images of 1 or 3 channels, and this encoder has {channels}")
    mean, std = cargo.subject.normalise.values(channels)
    pixels = [[round(255 * value, 3) for value in values] for values in (mean, std)]
    told = [", ".join(f"{value:.3f}" for value in values) for values in pixels]
    notes = {"input_format": INPUT_FORMATS[channels], "pixel_mean": told[0], "pixel_std": told[1]}
    save_detectron2(path, cargo.tensors, notes | {HEADER: cargo.header})
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
