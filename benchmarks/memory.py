"""Encoder passes and saved activations: every method under every objective, with all anchors or one per pair.

    python benchmarks/memory.py [--methods mocov2 dino] [--backbone resnet50] [--batch_size 16] [--size 224]
    python benchmarks/memory.py --recipes

Encoder passes (grad / no grad) of a batch, and their cost in forward passes (a backward counts as two) relative to
SIM. Peak of the activations that autograd saves, relative to SIM; of WBSIM also relative to BSIM, and "joint": as if
both terms went backward together, as in the paper's code. Its cost table has 5.5 / 5.5 / 8.2 GB for MoCo, MoCo-BSIM and
MoCo-WBSIM, a ratio of 1.49. Fails if WBSIM takes more than 1.05 times BSIM's peak where the terms share no graph.

Counted by hooks in a step of the method around a stand-in for the encoder, which saves as much as the encoder does.
With --recipes: the memory per device that each published recipe is estimated to need, next to its hardware.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from step_memory import step_memory

from mixview import recipes
from mixview.encoders import backbones
from mixview.encoders.encoder_file import save_encoder
from mixview.experiments.passes import count_passes
from mixview.extensions import METHODS
from mixview.train.config import MixingConfig, PretrainConfig, from_plain

IMAGENET = 1_281_167
LIMIT = 1.05
"""Highest peak of WBSIM, relative to BSIM's."""
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "simclr": [{"symmetric": False}, {"sdmp": 0.5}],
    "mocov2": [{"sdmp": 0.5}],
    "mocov3": [{"sdmp": 0.5}],
    "barlow-twins": [{"symmetric": True}, {"mix_regularizer": 0.1}],
    "vicreg": [{"symmetric": True}],
    "distillation": [{"target": "mixture"}],
}
"""Options that change the passes."""
COLUMNS = [("sim", "all"), ("bsim", "all"), ("wbsim", "all"), ("bsim", "one_per_pair"), ("wbsim", "one_per_pair")]


def show_recipes() -> None:
    """Print one line for each recipe that names its hardware."""
    for name in recipes.names():
        recipe = recipes.read(name)
        if recipe.hardware is None:
            continue
        memory = step_memory(from_plain(recipe.settings), devices=recipe.hardware.devices, images=IMAGENET)
        print(f"{name:28} {memory.total / 1e9:6.1f} GB per device, for {recipe.about['hardware']}")


def show_method(method: dict[str, Any], common: dict[str, Any]) -> bool:
    """Print one line; return True if WBSIM's peak is as low as it should be."""
    work, saved, cells, joint = {}, {}, [], 0
    for objective, anchors in COLUMNS:
        mixing = MixingConfig(lam_per="pair", anchors=anchors)  # type: ignore[arg-type]
        settings = PretrainConfig(method=method, objective=objective, mixing=mixing, **common)  # type: ignore[arg-type]
        passes = count_passes(settings)
        key = objective, anchors
        work[key], saved[key] = passes.work, step_memory(settings, devices=1, images=IMAGENET).activations
        if key == ("wbsim", "all"):
            joint = step_memory(settings, devices=1, images=IMAGENET, joint=True).activations
        count = f"{passes.with_gradient:.3g} + {passes.without:.3g}"
        memory = f"{saved[key] / 1e6:.0f} MB" if objective == "sim" else f"{saved[key] / saved['sim', 'all']:.2f} ×"
        cells.append(f"{count:>11} {work[key] / work['sim', 'all']:6.3f} × {memory:>8}")
    bsim, wbsim = saved["bsim", "all"], saved["wbsim", "all"]
    shared = not settings.method.module.independent_terms
    title = " ".join(
        [method["name"], *(f"{key}={value}" for key, value in method.items() if key not in ("name", "teacher"))]
    )
    print(f"{title:34}" + "".join(cells) + f"{wbsim / bsim:8.2f}{joint / bsim:8.2f}   {'shared' if shared else ''}")
    return shared or wbsim <= LIMIT * bsim


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=METHODS.names())
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--recipes", action="store_true")
    options = parser.parse_args()
    if options.recipes:
        show_recipes()
        return
    common = {"backbone": options.backbone, "batch_size": options.batch_size, "size": options.size}
    titles = ["SIM", "BSIM", "WBSIM", "BSIM, one per pair", "WBSIM, one per pair"]
    print(f"{options.backbone}, batch {options.batch_size}, {options.size} px: passes, their cost, saved activations")
    print(" " * 34 + "".join(f"{title:>29}" for title in titles) + " WB/BSIM   joint   graph of the terms")
    good = True
    with tempfile.TemporaryDirectory() as folder:
        teacher = backbones.build("resnet18", size=options.size)  # it saves nothing, whatever it is
        save_encoder(Path(folder) / "encoder.safetensors", teacher.encoder, teacher.spec, {})
        for name in options.methods:
            method = {"name": name} | ({"teacher": folder} if name == "distillation" else {})
            for variant in ({}, *VARIANTS.get(name, [])):
                good &= show_method(method | variant, common)
    if not good:
        sys.exit(f"WBSIM's peak is more than {LIMIT} × BSIM's where the terms share no graph")


if __name__ == "__main__":
    main()
