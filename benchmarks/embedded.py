"""Does it learn? Every method on the embedded scenes, against a random encoder and raw pixels, by k-NN and linearly.

    python benchmarks/embedded.py [--methods simclr mocov2 byol simsiam] [--objectives wbsim] [--epochs 30] [--jobs 2]

Recipes small/cpu-METHOD, one core a run. The scenes that are asked about were in no run.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from demo import CLASSES, features, linear_accuracy

from mixview import backbones
from mixview.data.scenes import Scenes
from mixview.evaluate.knn import knn_accuracy
from mixview.export import load_encoder


def run(method: str, objective: str, seed: int, epochs: int, count: int, size: int, folder: Path) -> Path:
    """One `mixview pretrain` in a process of its own."""
    out = folder / f"{method}-{objective}-{seed}"
    command = [sys.executable, "-m", "mixview.cli", "pretrain", "--recipe", f"small/cpu-{method}", "--data", "scenes"]
    command += ["--data_options", f'{{"count": {count}}}', "--objective", objective, "--epochs", str(epochs)]
    command += ["--size", str(size), "--seed", str(seed), "--out", str(out), "--workers", "0"]
    command += ["--watch.look_every", "0", "--watch.estimate", "false"]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["simclr", "mocov2", "byol", "simsiam"])
    parser.add_argument("--objectives", nargs="+", default=["wbsim"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--size", type=int, default=24)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    train, test = Scenes(options.count), Scenes(1000, split="test")
    labels, truth = torch.as_tensor(train.labels()), torch.as_tensor(test.labels())

    def judge(name: str, encoder: nn.Module) -> None:
        known, asked = features(encoder, train, options.size), features(encoder, test, options.size)
        knn = knn_accuracy(known, labels, asked, truth, classes=CLASSES)
        print(f"{name:24} {knn:8.1%} {linear_accuracy(known, labels, asked, truth):8.1%}", flush=True)

    print(f"{options.count} scenes, {options.epochs} epochs, {options.size} px; 1,000 unseen scenes, {CLASSES} classes")
    print(f"{'':24} {'20-NN':>8} {'linear':>8}")
    torch.manual_seed(0)
    judge("raw pixels", nn.Flatten())
    judge("random encoder", backbones.build("small", size=options.size).encoder)
    cells = [(m, o, s) for m in options.methods for o in options.objectives for s in range(options.seeds)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        arguments = options.epochs, options.count, options.size, Path(folder)
        for (method, objective, seed), out in zip(cells, pool.map(lambda c: run(*c, *arguments), cells), strict=True):
            judge(f"{method} {objective} seed {seed}", load_encoder(out)[0])


if __name__ == "__main__":
    main()
