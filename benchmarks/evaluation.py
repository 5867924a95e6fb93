"""The gain from a few minutes of pretraining: the pretrained encoder and the random one, under every protocol.

    MIXVIEW_DATA=… python benchmarks/evaluation.py [--sets imagenette voc2007 scenes] [--seeds 3] [--images 16000]

For every set and seed an encoder is pretrained on the training part (SimCLR, small ResNet, one core per run); it and a
random one of the same seed are evaluated on the test part, which no run has seen. Every metric is printed, also where
pretraining loses; `wins` counts the seeds in which it does not. --images is the budget of pretraining (two epochs at
least). The published schedules of the protocols that train are far too long for minutes: --epochs and --trained-batch
shorten them. VOC has enough positives for k up to 8; larger k are evaluated on the built-in synthetic scenes.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mixview.data.sources.registry import open_dataset
from mixview.evaluate.base import Protocol
from mixview.evaluate.knn import KNN
from mixview.evaluate.linear import Linear
from mixview.evaluate.low_shot import LowShot
from mixview.evaluate.probe import Probe
from mixview.evaluate.results import Result, format_metric
from mixview.evaluate.semi_supervised import SemiSupervised
from mixview.evaluate.supervised import Supervised
from mixview.evaluate.svm import SVM

SETS = ("imagenette", "voc2007", "scenes")


def source_options(name: str, options: argparse.Namespace) -> dict[str, Any]:
    return {"data_options": {"count": options.scenes}} if name == "scenes" else {}


def pretrain(name: str, seed: int, options: argparse.Namespace) -> Path:
    """One `mixview pretrain` in a process of its own."""
    out = Path(options.folder) / f"{name}-{seed}"
    images = len(open_dataset(name, **(source_options(name, options).get("data_options") or {})))
    epochs = max(2, round(options.images / images))  # the first is warm-up
    command = [sys.executable, "-m", "mixview.cli", "pretrain", "--recipe", "small/cpu-simclr", "--data", name]
    command += ["--objective", options.objective, "--epochs", str(epochs), "--size", str(options.size)]
    command += [
        "--batch_size",
        str(min(options.batch_size, images)),
        "--seed",
        str(seed),
        "--out",
        str(out),
        "--workers",
        "0",
    ]
    command += ["--monitor.eval_every", "0", "--no_monitor.estimate", "--monitor.loggers", "none"]
    if name == "scenes":
        command += ["--data_options", f'{{"count": {options.scenes}}}']
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return out


def protocols(name: str, common: dict[str, Any], options: argparse.Namespace) -> Iterator[Protocol]:
    """The protocols for a dataset."""
    shots = [k for k in options.shots if k <= 8 or name != "voc2007"]
    yield SVM(**common)
    yield LowShot(**common, shots=shots)
    if name == "voc2007":
        return
    yield KNN(**common)
    yield Linear(**common, fast=True)
    trained = common | {"epochs": options.epochs, "batch_size": options.trained_batch}
    yield Linear(**trained)
    yield Linear(**trained, schedule="byol")
    yield Probe(**trained)
    yield SemiSupervised(**common)


def evaluate(name: str, encoder: str, seed: int, options: argparse.Namespace) -> list[Result]:
    """All protocols; the encoder and the images are opened once."""
    common: dict[str, Any] = {
        "encoder": encoder,
        "data": name,
        "seed": seed,
        "size": options.size,
        "backbone": "small" if encoder == "random" else None,
        "workers": options.workers,
        **source_options(name, options),
    }
    context = KNN(**common).open()
    for warning in context.warnings:
        print(f"warning: {warning}")
    return [protocol.result(context) for protocol in protocols(name, common, options)]


def label(result: Result) -> str:
    """The protocol, and which of several of a kind."""
    if result.protocol == "linear":
        return "linear, fast" if result.settings["fast"] else f"linear, {result.settings['schedule']}"
    return result.protocol


def compare(name: str, random: list[list[Result]], pretrained: list[list[Result]]) -> None:
    """A line for every metric of every protocol; the lists are a seed each."""
    print(f"\n{name}: {random[0][0].data}")
    print(f"{'protocol':18} {'metric':22} {'random':>16} {'pretrained':>16} {'wins':>6}")
    for place, example in enumerate(random[0]):
        for metric in example.metrics:
            before, after = ([seed[place].metrics[metric] for seed in side] for side in (random, pretrained))
            wins = sum(one >= other for one, other in zip(after, before, strict=True))
            cells = [
                format_metric(statistics.fmean(each), statistics.stdev(each) if len(each) > 1 else None)
                for each in (before, after)
            ]
            print(f"{label(example):18} {metric:22} {cells[0]:>16} {cells[1]:>16} {wins:>3}/{len(after)}", flush=True)


def supervised(name: str, options: argparse.Namespace) -> None:
    """The comparison row, which no pretraining changes."""
    found = []
    for seed in range(options.seeds):
        common: dict[str, Any] = {"encoder": "random", "backbone": "small", "data": name, "seed": seed}
        common |= {"size": options.size, "workers": options.workers, **source_options(name, options)}
        protocol = Supervised(**common, epochs=options.supervised_epochs, batch_size=options.trained_batch)
        found.append(protocol.result(protocol.open()).metrics["top-1"])
    std = statistics.stdev(found) if len(found) > 1 else None
    what = f"supervised from scratch, {options.supervised_epochs} epochs: top-1"
    print(f"{what:41} {format_metric(statistics.fmean(found), std):>16}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--images", type=int, default=16_000, help="that each run sees, over all epochs")
    parser.add_argument("--objective", default="wbsim")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch_size", type=int, default=128, help="of pretraining")
    parser.add_argument("--epochs", type=int, default=5, help="of linear and probe")
    parser.add_argument("--trained-batch", type=int, default=64, help="of linear, probe and supervised")
    parser.add_argument("--supervised-epochs", type=int, default=10)
    parser.add_argument("--scenes", type=int, default=2000, help="number of synthetic scenes")
    parser.add_argument("--shots", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 96])
    parser.add_argument("--jobs", type=int, default=2, help="runs of pretraining at once")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--folder", help="keep runs here")
    options = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(options.jobs) as pool:
        options.folder = options.folder or temporary
        if "scenes" in options.sets:  # draws them once, before the runs would each do it
            open_dataset("scenes", count=options.scenes).read(0)
        combinations = [(name, seed) for name in options.sets for seed in range(options.seeds)]
        runs = dict(zip(combinations, pool.map(lambda each: pretrain(*each, options), combinations), strict=True))
        print(f"pretrained {len(runs)} encoders (SimCLR {options.objective}, about {options.images} images each) in "
              f"{time.monotonic() - start:.0f} s")  # fmt: skip
        for name in options.sets:
            seeds = range(options.seeds)
            random = [evaluate(name, "random", seed, options) for seed in seeds]
            compare(name, random, [evaluate(name, str(runs[name, seed]), seed, options) for seed in seeds])
            if name != "voc2007":
                supervised(name, options)
    print(f"\n{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
