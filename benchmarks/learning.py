"""Does it learn? Every method on synthetic scenes or CIFAR-10, next to a random encoder and raw pixels: k-NN, linear.

    python benchmarks/learning.py [--recipes cpu-simclr cpu-dino-vit] [--objectives sim wbsim] [--jobs 2]
    MIXVIEW_DATA=… python benchmarks/learning.py --data cifar10 --size 16

Recipes small/NAME as they are but for the objective (and what is said here), one core per run. Test images were in no
run, and those of the scenes were not used when the recipes were made (that was the val part).
"""

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixview import recipes
from mixview.data.dataset import ImageDataset
from mixview.data.loader import to_tensor
from mixview.data.sources.registry import open_dataset
from mixview.encoders import backbones
from mixview.encoders.encoder_file import load_encoder
from mixview.evaluate.knn import knn_accuracy
from mixview.runs.run_directory import RunDirectory

TESTED = 2000
"""Held-out images."""


class Labeled(NamedTuple):
    """Images [N, 3, S, S] from 0 to 1, normalized by ImageNet's values, and their labels [N]."""

    images: Tensor
    labels: Tensor


def read(data: str, split: str, count: int, size: int) -> Labeled:
    """Read `count` images of a dataset, resized."""
    source = open_dataset(data, split, count=count) if data == "scenes" else open_dataset(data, f"{split}[:{count}]")
    labels, dataset = source.labels(), ImageDataset(source)
    assert labels is not None
    images = torch.stack([to_tensor(dataset.decode(index)) for index in range(len(dataset))]).float() / 255
    images = F.interpolate(images, size=(size, size), mode="bilinear", antialias=True)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return Labeled((images - mean) / std, torch.as_tensor(labels))


def data_settings(data: str, count: int) -> list[str]:
    """The settings of `mixview pretrain` for the training images of `read`."""
    if data == "scenes":
        return ["--data", data, "--data_options", f'{{"count": {count}}}']
    return ["--data", data, "--split", f"train[:{count}]"]


def pretrain(settings: list[str], out: Path) -> float:
    """One `mixview pretrain` in a process of its own, on one core; the minutes of CPU time that it took."""
    command = [sys.executable, "-m", "mixview.cli", "pretrain", *settings, "--out", str(out), "--workers", "0"]
    command += ["--monitor.eval_every", "0", "--no_monitor.estimate"]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])  # backbones of benchmarks
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(errors.decode()[-2000:])
    return (usage.ru_utime + usage.ru_stime) / 60


@torch.no_grad()
def accuracies(encoder: nn.Module, train: Labeled, test: Labeled) -> tuple[float, float]:
    """20-NN, and a ridge classifier on standardized features."""
    bank, queries = (torch.cat([encoder.eval()(part) for part in each.images.split(500)]) for each in (train, test))
    classes = int(train.labels.max()) + 1
    knn = knn_accuracy(bank, train.labels, queries, test.labels, classes=classes)
    mean, std = bank.mean(0), bank.std(0) + 1e-6
    x, t = (torch.cat([(each - mean) / std, torch.ones(len(each), 1)], 1).double() for each in (bank, queries))
    targets = F.one_hot(train.labels).double()
    weights = torch.linalg.solve(x.T @ x + 0.01 * len(x) * torch.eye(x.shape[1]), x.T @ targets)
    return knn, float(((t @ weights).argmax(1) == test.labels).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [name.removeprefix("small/") for name in recipes.names() if name.startswith("small/cpu-")]
    parser.add_argument("--data", default="scenes", choices=["scenes", "cifar10"])
    parser.add_argument("--recipes", nargs="+", default=every)
    parser.add_argument("--objectives", nargs="+", default=["sim", "wbsim"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, help="by default those of each recipe")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--size", type=int, default=32, help="of the views")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    train, test = (
        read(options.data, split, count, options.size) for split, count in (("train", options.count), ("test", TESTED))
    )

    def evaluate(name: str, encoder: nn.Module, about: str = "") -> None:
        knn, linear = accuracies(encoder, train, test)
        print(f"{name:28} {knn:8.1%} {linear:8.1%}   {about}", flush=True)

    def run(recipe: str, objective: str, seed: int) -> tuple[Path, float]:
        out = Path(folder) / f"{recipe}-{objective}-{seed}"
        settings = ["--recipe", f"small/{recipe}", *data_settings(options.data, options.count)]
        settings += ["--size", str(options.size), "--objective", objective, "--seed", str(seed)]
        settings += [] if options.epochs is None else ["--epochs", str(options.epochs)]
        return out, pretrain(settings, out)

    print(f"{options.data}: {len(train.images)} images of {options.size} px, {len(test.images)} held out")
    print(f"{'':28} {'20-NN':>8} {'linear':>8}")
    evaluate("raw pixels", nn.Flatten())
    for name in ("small", "small-vit"):
        torch.manual_seed(0)
        evaluate(f"random {name}", backbones.build(name, size=options.size).encoder)
    combinations = [(r, o, s) for r in options.recipes for o in options.objectives for s in range(options.seeds)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        done = pool.map(lambda each: run(*each), combinations)
        for (recipe, objective, seed), (out, minutes) in zip(combinations, done, strict=True):
            status = RunDirectory.open(out).status
            about = f"{status['epoch']:g} epochs, {status['step']} steps, {minutes:.1f} min of a core"
            evaluate(f"{recipe} {objective} seed {seed}", load_encoder(out)[0], about)


if __name__ == "__main__":
    main()
