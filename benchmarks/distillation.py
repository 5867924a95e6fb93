"""Distillation against SimCLR at equal compute: a small student of a larger teacher that mixview trained, CIFAR-10.

    MIXVIEW_DATA=… python benchmarks/distillation.py [--epochs 24] [--teacher_epochs 128] [--seeds 3]

The teacher is the backbone `small`, trained by MoCo v2 with half of the images mixed (the study `confirm`); the student
has half its widths, a quarter of its parameters. It learns from 5,000 images of 16 pixels: by SimCLR for --epochs, and
by distillation with BSIM for as many as take the same number of floating-point operations, forward and backward, the
teacher's included. Evaluated on the 5,000 test images; the mean, and the paired differences to SimCLR.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import torch
from learning import accuracies, data_settings, pretrain, read
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mixview import mixture_generators
from mixview.encoders import backbones
from mixview.encoders.backbones import SmallResNet
from mixview.encoders.encoder_file import load_encoder
from mixview.methods import RunLength, backward
from mixview.train.build import build_method, build_objective
from mixview.train.config import PretrainConfig

COUNT, SIZE, BATCH = 5000, 16, 128
COMMON = [*data_settings("cifar10", COUNT), "--size", str(SIZE), "--batch_size", str(BATCH)]
COMMON += ["--optimizer.lr", "2e-3", "--optimizer.weight_decay", "0.01"]
TEACHER = ["--method", "mocov2", "--method.momentum", "0.99", "--method.queue_size", "1024", "--method.bn_splits", "2"]
TEACHER += ["--backbone", "small", "--objective", "bsim", "--mixing.prob", "0.5"]
SIMCLR = {"name": "simclr", "temperature": 0.2}


def student(channels: int = 3) -> nn.Module:
    """A ResNet of 0.08 million parameters."""
    return SmallResNet(channels, widths=(8, 16, 32, 64))


def distillation(teacher: Path, target: str) -> dict[str, str]:
    """The options of the method."""
    return {"name": "distillation", "teacher": str(teacher), "target": target}


def operations(method: dict[str, str | float], objective: str) -> int:
    """Floating-point operations of a step, per image of the batch."""
    config = PretrainConfig(method=method, objective=objective, size=SIZE)
    encoder = backbones.Backbone(student(), 64, notes=(), spec={})
    module = build_method(config.method, encoder, RunLength(COUNT, 1, BATCH, SIZE), objective)
    views = torch.rand(2, BATCH, 3, SIZE, SIZE).unbind()
    terms = build_objective(objective, config.mixing).draw(views[0], mixture_generators(0, 0))
    with FlopCounterMode(display=False) as counter:
        backward(module, views, terms)
    return counter.get_total_flops() // BATCH


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=24, help="of SimCLR")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--teacher_epochs", type=int, default=128)
    options = parser.parse_args()
    train, test = read("cifar10", "train", COUNT, SIZE), read("cifar10", "test", 5000, SIZE)
    linear: dict[str, list[float]] = {}

    def evaluate(name: str, encoder: nn.Module, about: str = "") -> None:
        knn, accuracy = accuracies(encoder, train, test)
        linear.setdefault(name, []).append(accuracy)
        print(f"{name:28} {knn:8.1%} {accuracy:8.1%}   {about}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        teacher = Path(folder) / "teacher"
        minutes = pretrain([*COMMON, *TEACHER, "--epochs", str(options.teacher_epochs)], teacher)
        print(f"{'CIFAR-10, 16 px':28} {'20-NN':>8} {'linear':>8}")
        evaluate("teacher", load_encoder(teacher)[0], f"{options.teacher_epochs} epochs, {minutes:.1f} min of a core")
        simclr = operations(SIMCLR, "sim")
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            evaluate("random student", student())
            runs = {"SimCLR": (SIMCLR, "sim")} | {
                f"distillation, {target}": (distillation(teacher, target), "bsim") for target in ("parents", "mixture")
            }
            for name, (method, objective) in runs.items():
                epochs = max(1, round(options.epochs * simclr / operations(method, objective)))
                out = Path(folder) / f"{name.replace(', ', '-')}-{seed}"
                settings = ["--backbone", "distillation:student", "--objective", objective, "--seed", str(seed)]
                settings += ["--epochs", str(epochs)]
                for option, value in method.items():
                    settings += ["--method" if option == "name" else f"--method.{option}", str(value)]
                minutes = pretrain([*COMMON, *settings], out)
                encoder = load_encoder(out, module=student())[0]
                evaluate(name, encoder, f"seed {seed}, {epochs} epochs, {minutes:.1f} min of a core")
    print("\nlinear: mean and, less SimCLR's, the mean and the range over seeds")
    for name, values in linear.items():
        line = f"{name:28} {statistics.mean(values):8.1%}"
        if name.startswith("distillation"):
            gains = [one - other for one, other in zip(values, linear["SimCLR"], strict=True)]
            line += f"   {statistics.mean(gains):+.1%} ({min(gains):+.1%} … {max(gains):+.1%})"
        print(line)


if __name__ == "__main__":
    main()
