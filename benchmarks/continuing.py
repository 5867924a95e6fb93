"""Does it help to continue from weights of other images? Starting point, continued, and from scratch, side by side.

    MIXVIEW_DATA=… python benchmarks/continuing.py [--sets imagenette voc2007] [--seeds 3] [--images 8000]
                                              [--first_images 40000]

For every seed an encoder is pretrained on CIFAR-10 (`small/cpu-simclr`) for longer, and then continued on the training
part of each set (`continue/cpu-small`); another starts from scratch there and sees as many images in as many steps of
the same network, which is the same time. All three are evaluated on the test part, which none has seen: k-NN and a
linear classifier, SVMs where images have several classes, and segmentation on the masks of scenes. Every metric is
printed, whichever way it falls; the last columns count the seeds in which the continued encoder is ahead.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mixview.data.sources.registry import open_dataset
from mixview.evaluate import evaluate
from mixview.evaluate.results import format_metric
from mixview.runs.run_directory import read_metrics
from mixview.train.starting_weights import compare

SETS = ("imagenette", "voc2007")
ENCODERS = ("starting point", "continued", "from scratch")


def arguments(out: Path, data: str, split: str | None, recipe: str, seed: int, epochs: int) -> list[str]:
    """Arguments of `mixview pretrain`; a recipe that continues starts from the encoder of the same seed."""
    settings: dict[str, Any] = {
        "recipe": recipe,
        "data": data,
        "epochs": epochs,
        "seed": seed,
        "out": out,
        "workers": 0,
        "monitor.loggers": "none",
        "monitor.eval_every": epochs,
    }
    settings |= {"split": split} if split else {}
    settings |= {"weights": out.parent / f"first-{seed}"} if recipe.startswith("continue/") else {}
    return ["--no_monitor.estimate", *(text for name, value in settings.items() for text in (f"--{name}", str(value)))]


def pretrain(out: Path, data: str, split: str | None, recipe: str, seed: int, images: int) -> Path:
    """One `mixview pretrain` in a process of its own; a run that was finished before is taken as it is."""
    if (out / "status.json").is_file() and json.loads((out / "status.json").read_text())["state"] == "finished":
        return out
    epochs = max(2, round(images / len(open_dataset(data, split))))  # the first is warm-up
    command = [sys.executable, "-m", "mixview", "pretrain", *arguments(out, data, split, recipe, seed, epochs)]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return out


def protocols(name: str, options: argparse.Namespace) -> list[tuple[str, dict[str, Any]]]:
    """The protocols for a set, and their options."""
    common: dict[str, Any] = {"data": name, "size": 32, "workers": 0}
    labeled = [("svm", common)] if name == "voc2007" else [("knn", common), ("linear", common | {"fast": True})]
    # Of the encoder's own size, so that fast mode shows them as they are, and of one large object each: of several
    # small ones an encoder of this size sees only the background.
    scenes = {"count": options.scenes, "size": 32}
    return [*labeled, ("segmentation", common | {"data": "scenes", "data_options": scenes, "fast": True})]


def measure(encoder: Path, name: str, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """The metrics of an encoder by all protocols."""
    metrics = {}
    for protocol, settings in protocols(name, options):
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: PTH123
            result = evaluate(str(encoder), protocol, seed=seed, **settings)
        metrics |= {f"{protocol}: {metric}": value for metric, value in result.metrics.items()}
    return metrics


def cpu_seconds(run: Path) -> float:
    """CPU time of a run's steps."""
    return float(json.loads((run / "status.json").read_text())["cpu_seconds"])


def show(name: str, rows: list[tuple[dict[str, float], ...]]) -> None:
    """A line for every metric; `rows` has the metrics of each encoder, seed by seed."""
    print(f"\n{name}\n{'metric':24} " + " ".join(f"{each:>16}" for each in ENCODERS) + "  continued wins over each")
    for metric in rows[0][0]:
        columns = [[row[place][metric] for row in rows] for place in range(len(ENCODERS))]
        cells = [
            format_metric(statistics.fmean(each), statistics.stdev(each) if len(each) > 1 else None) for each in columns
        ]
        wins = [sum(ours > other for ours, other in zip(columns[1], each, strict=True)) for each in columns]
        print(f"{metric:24} " + " ".join(f"{cell:>16}" for cell in cells) + f"  {wins[0]} and {wins[2]} of {len(rows)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--images", type=int, default=8000, help="that each run sees, over all epochs")
    parser.add_argument("--first_images", type=int, default=40_000, help="that the starting points have seen")
    parser.add_argument("--first", default="train[:4000]", help="part of CIFAR-10 to start from")
    parser.add_argument("--scenes", type=int, default=400, help="scenes of the segmentation")
    parser.add_argument("--folder", help="keep runs here, and go on with those that are there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary)
        for seed in range(options.seeds):
            pretrain(folder / f"first-{seed}", "cifar10", options.first, "small/cpu-simclr", seed, options.first_images)
        for name in options.sets:
            rows = []
            for seed in range(options.seeds):
                encoders = [folder / f"first-{seed}"]
                for what, recipe in (("continued", "continue/cpu-small"), ("scratch", "small/cpu-simclr")):
                    encoders.append(
                        pretrain(folder / f"{name}-{what}-{seed}", name, None, recipe, seed, options.images)
                    )
                times = ", ".join(f"{cpu_seconds(each):.0f}" for each in encoders)
                print(f"{name}, seed {seed}: CPU seconds {times}; {compare(read_metrics(encoders[1]))}", flush=True)
                rows.append(tuple(measure(each, name, seed, options) for each in encoders))
            show(name, rows)


if __name__ == "__main__":
    main()
