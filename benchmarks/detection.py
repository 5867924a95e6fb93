"""Does pretraining help a detector? Box and mask AP50 against iterations, pretrained and from random initialization.

    python benchmarks/detection.py [--encoder RUN] [--seeds 3] [--iterations 200] [--jobs 2] [--picture curves.png]

A ResNet-18 is pretrained by SimCLR on single scenes of 64 pixels (or --encoder names a run that was), and fine-tuned
as a small Mask R-CNN (recipe small-fpn) on scenes of several objects that it has not seen; beside it the same from
random initialization. One core per run. The curves are drawn, and the iterations at which AP50 first reaches 50 are
printed, each evaluation being of the same held-out scenes.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from mixview.runs.run_directory import read_metrics

METRICS = ("AP50", "mask AP50")
WANTED = 50.0
COLORS = {"pretrained": (0, 114, 178), "random": (213, 94, 0)}
Curve = dict[int, float]
"""Iteration -> percent."""


def call(*arguments: str) -> float:
    """A command of mixview on one core; the seconds that it took."""
    start = time.monotonic()
    command = [sys.executable, "-m", "mixview.cli", *arguments, "--workers", "0"]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return time.monotonic() - start


def pretrain(out: Path, epochs: int) -> Path:
    """A ResNet-18 with the standard stem, by SimCLR."""
    options = ["--recipe", "small/cpu-simclr", "--objective", "sim", "--backbone", "resnet18", "--stem", "standard"]
    options += ["--size", "64", "--data", "scenes", "--data_options", '{"count": 3000, "size": 64}']
    options += ["--epochs", str(epochs), "--monitor.eval_every", "0", "--monitor.loggers", "none"]
    seconds = call("pretrain", *options, "--out", str(out))
    print(f"pretrained for {epochs} epochs in {seconds / 60:.1f} min", flush=True)
    return out


def finetune(start: str, encoder: Path, seed: int, options: argparse.Namespace, folder: Path) -> dict[str, Curve]:
    """One detector; its curves by metric."""
    given = [str(encoder)] if start == "pretrained" else ["random", "--backbone", "resnet18", "--size", "224"]
    data = f'{{"count": 800, "size": {options.size}, "objects": "multiple", "classes": {options.classes}, "seed": 1}}'
    arguments = ["--data", "scenes", "--data-options", data, "--recipe", "small-fpn", "--seed", str(seed)]
    arguments += ["--scales.train", f"[{options.size}]", "--scales.test", str(options.size)]
    arguments += [
        "--iterations",
        str(options.iterations),
        "--max_test_images",
        str(options.max_test_images),
        "--precise-bn",
        "5",
    ]
    arguments += ["--logging.eval_every", str(options.every), "--logging.loggers", "none"]
    call("evaluate", "detection", *given, *arguments, "--out", str(folder / start), "--resume")  # what --keep has
    records = read_metrics(folder / start / "detection" / f"small-fpn-scenes-seed-{seed}")
    return {metric: {r["step"]: r[metric] for r in records if metric in r} for metric in METRICS}


def reached(curve: Curve) -> int | None:
    """The first evaluated iteration at which the curve is high enough."""
    return min((step for step, value in curve.items() if value >= WANTED), default=None)


def draw(curves: dict[str, list[dict[str, Curve]]], path: Path) -> None:
    """One panel per metric: every seed as a thin line, the mean as a thick one."""
    width, height, margin = 420, 300, 48
    sheet = Image.new("RGB", (width * len(METRICS), height), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    last = max(step for runs in curves.values() for run in runs for curve in run.values() for step in curve)
    for number, metric in enumerate(METRICS):
        left = number * width + margin

        def place(step: float, value: float, left: int = left) -> tuple[float, float]:
            return left + (width - margin - 16) * step / last, height - margin - (height - 2 * margin) * value / 100

        for tick in range(0, 101, 25):
            pen.line([place(0, tick), place(last, tick)], (210, 210, 210), 2 if tick == WANTED else 1)
            pen.text((left - 30, place(0, tick)[1] - 8), str(tick), (60, 60, 60), font)
        for part in range(5):
            x, y = place(last * part / 4, 0)
            pen.text((x - 10, y + 6), f"{last * part / 4:g}", (60, 60, 60), font)
        pen.text((left, 8), f"{metric} against iterations", (30, 30, 30), font)
        for row, (start, runs) in enumerate(curves.items()):
            pen.text((left + 200, 8 + 15 * row), start, COLORS[start], font)
            for run in runs:
                pen.line([place(*point) for point in sorted(run[metric].items())], COLORS[start], 1)
            steps = sorted(runs[0][metric])
            mean = [place(step, statistics.fmean(run[metric][step] for run in runs)) for step in steps]
            pen.line(mean, COLORS[start], 4)
    sheet.save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", type=Path, help="a pretrained run; by default one is made")
    parser.add_argument("--epochs", type=int, default=12, help="of pretraining")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=200, help="of 8 images")
    parser.add_argument("--every", type=int, default=40, help="iterations between two evaluations")
    parser.add_argument("--max_test_images", type=int, default=50, help="number of held-out scenes to evaluate on")
    parser.add_argument("--size", type=int, default=64, help="of the scenes")
    parser.add_argument("--classes", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--picture", type=Path, default=Path("detection-curves.png"))
    parser.add_argument("--keep", type=Path, help="keep the detectors' folders here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(options.jobs) as pool:
        folder = options.keep or Path(temporary)
        encoder = options.encoder or pretrain(folder / "pretrained", options.epochs)
        combinations = [(start, seed) for seed in range(options.seeds) for start in COLORS]
        runs = list(pool.map(lambda each: finetune(each[0], encoder, each[1], options, folder), combinations))
    curves = {
        start: [run for each, run in zip(combinations, runs, strict=True) if each[0] == start] for start in COLORS
    }
    held_out = f"{options.max_test_images} held-out ones"
    print(f"scenes of {options.size} px, {options.classes} classes, {held_out}; ResNet-18, small-fpn, batch 8")
    for metric in METRICS:
        print(f"\n{metric}: mean ± deviation over {options.seeds} seeds")
        for start, found in curves.items():
            for step in sorted(found[0][metric]):
                values = [run[metric][step] for run in found]
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                print(f"  {start:10} iteration {step:5}   {statistics.fmean(values):5.1f} ± {spread:4.1f}")
        for start, found in curves.items():
            steps = [reached(run[metric]) for run in found]
            reached = ", ".join(f"not in {options.iterations}" if step is None else str(step) for step in steps)
            print(f"  {start:10} reaches {WANTED:g} at iteration: {reached}")
    draw(curves, options.picture)
    print(f"\nwrote {options.picture}")


if __name__ == "__main__":
    main()
