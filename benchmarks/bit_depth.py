"""A test of whether images of 12 bits in 16-bit files teach an encoder as much as the same images of 8 bits.

    python benchmarks/bit_depth.py [--images 800 --epochs 12 --seeds 3]

Photographs of Imagenette (`MIXVIEW_DATA`) are written three times: as 8-bit PNG; as 12 bits in 16-bit TIFF; and as
what a reader that takes 16 bits for granted makes of these, 8-bit PNG with values up to 16. An encoder is pretrained on
each with the same settings and seeds, and evaluated by weighted k-NN on the validation images of its own kind.
"""

import argparse
import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from PIL import Image

from mixview import pretrain
from mixview.data import open_dataset
from mixview.data.decode import Decoder
from mixview.data.sources.splits import take_evenly
from mixview.evaluate import evaluate

KINDS = ("8 bits", "12 bits in 16", "12 bits taken for 16")


def write(folder: Path, split: str, count: int, side: int) -> None:
    """Write `count` images of a split, in each of the three kinds, in class folders."""
    source = take_evenly(open_dataset("imagenette", split), count)
    labels, decoder = source.labels(), Decoder()
    assert labels is not None
    for index in range(len(source)):
        pixels = np.array(Image.fromarray(decoder(source.read(index))).resize((side, side), Image.Resampling.BOX))
        twelve = np.round(pixels * (4095 / 255)).astype(np.uint16)
        for kind in KINDS:
            place = folder / kind / split / str(labels[index])
            place.mkdir(parents=True, exist_ok=True)
            if kind == "12 bits in 16":
                tifffile.imwrite(place / f"{index}.tif", twelve, photometric="rgb")
            else:
                shown = pixels if kind == "8 bits" else np.round(twelve * (255 / 65535)).astype(np.uint8)
                Image.fromarray(shown).save(place / f"{index}.png")


def settings(folder: Path, kind: str, seed: int, epochs: int, side: int) -> dict[str, Any]:
    """The pretraining settings for one kind of images."""
    return {
        "data": str(folder / kind),
        "out": str(folder / "runs" / f"{kind}-{seed}"),
        "method": "mocov2",
        "objective": "sim",
        "backbone": "small",
        "size": side,
        "epochs": epochs,
        "batch_size": 64,
        "seed": seed,
        "workers": 0,
        "monitor": {"eval_every": 0, "hold_out": 0.0, "estimate": False, "loggers": "none"},
    }


def accuracy(folder: Path, kind: str, seed: int, epochs: int, side: int) -> float:
    """k-NN accuracy in percent of an encoder pretrained on one kind of images."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):  # noqa: PTH123
        out = pretrain(**settings(folder, kind, seed, epochs, side))
        result = evaluate(str(out), "knn", data=str(folder / kind), test="val", workers=0)
    return float(result.metrics["top-1"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=800)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--side", type=int, default=32)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for split, count in (("train", options.images), ("val", 500)):
            write(folder, split, count, options.side)
        print(f"{'seed':>6}", *(f"{kind:>22}" for kind in KINDS), flush=True)
        rows = []
        for seed in range(options.seeds):
            rows.append([accuracy(folder, kind, seed, options.epochs, options.side) for kind in KINDS])
            print(f"{seed:6}", *(f"{value:20.1f} %" for value in rows[-1]), flush=True)
        table = np.array(rows)
        print(f"{'mean':>6}", *(f"{value:20.1f} %" for value in table.mean(0)))
        print(f"{'std':>6}", *(f"{value:20.1f} %" for value in table.std(0, ddof=min(1, len(rows) - 1))))


if __name__ == "__main__":
    main()
