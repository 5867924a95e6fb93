"""A test of whether encoders learn as much from photographs that are decoded only as far as their views need them.

    python benchmarks/decoding.py [--images 600 --epochs 10 --seeds 3]

Photographs of Imagenette (`MIXVIEW_DATA`), many times larger than the views, are decoded at a fraction of their sides,
and whole (`--exact_decoding`). An encoder is pretrained on either with the same settings and seeds, and evaluated by
weighted k-NN on the validation images. How far the views themselves differ, `benchmarks/photographs.py` says in dB.
"""

import argparse
import contextlib
import os
import statistics
import tempfile

from mixview import pretrain
from mixview.evaluate import evaluate
from mixview.train.config import MonitorConfig


def accuracy(options: argparse.Namespace, seed: int, exact: bool, out: str) -> float:
    """k-NN accuracy in percent of an encoder that is pretrained so."""
    with contextlib.redirect_stdout(open(os.devnull, "w")):  # noqa: PTH123
        pretrain(
            data="imagenette", split=f"train[:{options.images}]", out=out, method="simclr", backbone="small",
            size=options.size, epochs=options.epochs, batch_size=50, seed=seed, workers=0, objective="sim",
            exact_decoding=exact, monitor=MonitorConfig(eval_every=0, estimate=False, loggers="none"),
        )  # fmt: skip
        result = evaluate(out, "knn", data="imagenette", test="val", workers=0)
    return float(result.metrics["top-1"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--size", type=int, default=32, help="of the views")
    options = parser.parse_args()
    print(f"{'seed':>10}{'scaled':>12}{'exact':>12}{'difference':>12}")
    rows = []
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            scaled, exact = (accuracy(options, seed, each, f"{folder}/{each}") for each in (False, True))
        rows.append((scaled, exact, scaled - exact))
        print(f"{seed:10}" + "".join(f"{value:12.1f}" for value in rows[-1]), flush=True)
    columns = list(zip(*rows, strict=True))
    print(f"{'mean':>10}" + "".join(f"{statistics.mean(column):12.1f}" for column in columns))
    if len(rows) > 1:
        print(f"{'std':>10}" + "".join(f"{statistics.stdev(column):12.1f}" for column in columns))


if __name__ == "__main__":
    main()
