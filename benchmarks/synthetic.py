"""Does it learn? Every method on the built-in synthetic dataset, next to a random encoder and raw pixels: k-NN, linear.

    python benchmarks/synthetic.py [--methods simclr mocov2 byol simsiam] [--objectives sim wbsim] [--jobs 2]

Recipes small/cpu-METHOD as they are but for the objective, one core per run. The test scenes were in no run, and were
not used when the recipes were made (that was the val part).
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixview.data.loader import to_tensor
from mixview.data.synthetic.scenes import Scenes
from mixview.encoders import backbones
from mixview.encoders.encoder_file import load_encoder
from mixview.evaluate.knn import knn_accuracy
from mixview.runs.run_directory import RunDirectory

CLASSES = 10
SIZE = 32
"""Of the scenes, and of the recipes' views."""


def run(method: str, objective: str, seed: int, epochs: int | None, count: int, folder: Path) -> tuple[Path, float]:
    """One `mixview pretrain` in a process of its own; its folder, and the minutes that it took."""
    out = folder / f"{method}-{objective}-{seed}"
    command = [sys.executable, "-m", "mixview.cli", "pretrain", "--recipe", f"small/cpu-{method}", "--data", "scenes"]
    command += ["--data_options", f'{{"count": {count}}}', "--objective", objective]
    command += ["--seed", str(seed), "--out", str(out), "--workers", "0"]
    command += [] if epochs is None else ["--epochs", str(epochs)]
    command += ["--monitor.eval_every", "0", "--monitor.estimate", "false"]
    start = time.monotonic()
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return out, (time.monotonic() - start) / 60


@torch.no_grad()
def features(encoder: nn.Module, scenes: Scenes, size: int) -> Tensor:
    """[N, D]"""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    images = torch.stack([to_tensor(scenes.read(index)) for index in range(len(scenes))]).float() / 255
    images = F.interpolate(images, size=(size, size), mode="bilinear", antialias=True)
    return torch.cat([encoder.eval()((part - mean) / std) for part in images.split(500)])


def linear_accuracy(train: Tensor, labels: Tensor, test: Tensor, truth: Tensor) -> float:
    """A ridge classifier on standardized features."""
    mean, std = train.mean(0), train.std(0) + 1e-6
    x, t = (train - mean) / std, (test - mean) / std
    x, t = (torch.cat([part, torch.ones(len(part), 1)], 1).double() for part in (x, t))
    weights = torch.linalg.solve(x.T @ x + 0.01 * len(x) * torch.eye(x.shape[1]), x.T @ F.one_hot(labels).double())
    return float(((t @ weights).argmax(1) == truth).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["simclr", "mocov2", "byol", "simsiam"])
    parser.add_argument("--objectives", nargs="+", default=["sim", "wbsim"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, help="by default those of each recipe")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    train, test = Scenes(options.count), Scenes(1000, split="test")
    labels, truth = torch.as_tensor(train.labels()), torch.as_tensor(test.labels())

    def evaluate(name: str, encoder: nn.Module, about: str = "") -> None:
        bank, queries = features(encoder, train, SIZE), features(encoder, test, SIZE)
        knn = knn_accuracy(bank, labels, queries, truth, classes=CLASSES)
        print(f"{name:24} {knn:8.1%} {linear_accuracy(bank, labels, queries, truth):8.1%}   {about}", flush=True)

    print(f"{options.count} scenes of {SIZE} px; 1,000 held-out scenes, {CLASSES} classes")
    print(f"{'':24} {'20-NN':>8} {'linear':>8}")
    torch.manual_seed(0)
    evaluate("raw pixels", nn.Flatten())
    evaluate("random encoder", backbones.build("small", size=SIZE).encoder)
    combinations = [(m, o, s) for m in options.methods for o in options.objectives for s in range(options.seeds)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        done = pool.map(lambda each: run(*each, options.epochs, options.count, Path(folder)), combinations)
        for (method, objective, seed), (out, minutes) in zip(combinations, done, strict=True):
            status = RunDirectory.open(out).status
            about = f"{status['epoch']:g} epochs, {status['step']} steps, {minutes:.0f} min of a core"
            evaluate(f"{method} {objective} seed {seed}", load_encoder(out)[0], about)


if __name__ == "__main__":
    main()
