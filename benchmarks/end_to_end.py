"""Speed from JPEGs on disk to a trained step: `mixview pretrain` and a lightly + Lightning Trainer script.

    python benchmarks/end_to_end.py [--photos FOLDER] [--workers 1] [--rounds 5] [--seconds 5]

Both sides have the same files, method, backbone, heads, optimizer, batch, workers and threads; views are of 224². Each
runs its own loop in a process of its own, in turns, as in `benchmarks/pretraining.py`; batches that workers have made
ready while a side waited are not timed.

"patches" is data-bound: one convolution over patches of 16×16, for on a CPU anything deeper computes for longer than
its images take to read. It stands for what an accelerator leaves of a step. "resnet50" is compute-bound.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lightly_trainer
import lightning
import torch
from interleaved import Side, Turns, compare, line, report
from lightly.data import LightlyDataset
from torch import nn
from torch.utils.data import DataLoader

from mixview.encoders import backbones
from mixview.train import build, pretraining
from mixview.train.config import MonitorConfig, OptimizerConfig

LINKS = 20_000
"""Images of an epoch, so that none ends."""
AHEAD = 2
"""Batches that a worker is ahead: torch's default, and mixview's."""
PATCHES = "end_to_end:patches"
BACKBONES = {"patches": PATCHES, "resnet50": "resnet50"}
BATCH = {"patches": 32, "resnet50": 8}


def patches(channels: int = 3) -> nn.Module:
    """The backbone `patches`: [N, C, 224, 224] -> [N, 128]."""
    convolution = nn.Conv2d(channels, 128, kernel_size=16, stride=16)
    return nn.Sequential(convolution, nn.BatchNorm2d(128), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Setup(NamedTuple):
    """The training settings of both sides."""

    backbone: str
    method: str
    folder: str
    workers: int

    @property
    def batch(self) -> int:
        return BATCH[self.backbone]

    @property
    def ahead(self) -> int:
        return AHEAD * self.workers


def mixview_side(case: Setup) -> Side:
    """The command as it is, but for its loader, which waits for its turns."""

    def run(turns: Turns, folder: str) -> None:
        make = build.view_loader

        def in_turns(*arguments: Any, **options: Any) -> Turns:
            turns.batches = make(*arguments, **options)
            return turns

        build.view_loader = in_turns  # type: ignore[assignment]
        pretraining.pretrain(
            data=case.folder,
            out=f"{folder}/run",
            method={"name": case.method, "hidden": lightly_trainer.HIDDEN, "dim": lightly_trainer.DIM},
            objective="sim",
            backbone=BACKBONES[case.backbone],
            batch_size=case.batch,
            epochs=1,
            workers=case.workers,
            size=224,
            optimizer=OptimizerConfig(name="sgd", lr=0.06, momentum=0.9, weight_decay=5e-4),
            monitor=MonitorConfig(eval_every=0, estimate=False),
        )

    return Side(run, (), case.batch, case.ahead)


def lightly_side(case: Setup) -> Side:
    """A training script as in lightly's documentation."""

    def run(turns: Turns, folder: str) -> None:
        data = LightlyDataset(case.folder, transform=lightly_trainer.transform_of(case.method, 224))
        loader = DataLoader(data, case.batch, shuffle=True, drop_last=True, num_workers=case.workers)

        def batches() -> Iterator[object]:
            for views, labels, _ in loader:
                yield views, labels

        turns.batches = batches()
        built = backbones.build(BACKBONES[case.backbone], size=224)
        module = lightly_trainer.MODULES[case.method](built.encoder, built.feature_dim)
        trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", devices=1, default_root_dir=folder)
        trainer.fit(module, turns)

    return Side(run, (), case.batch, case.ahead)


def link(photos: Path, folder: Path) -> int:
    """A folder of `LINKS` names of the photographs; how many they really are."""
    files = sorted(path.resolve() for path in photos.glob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    for number in range(LINKS if files else 0):
        (folder / f"{number:05}.jpg").symlink_to(files[number % len(files)])
    return len(files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, default=Path(os.environ.get("MIXVIEW_DATA", ".")) / "photos")
    parser.add_argument("--backbones", nargs="+", choices=BACKBONES, default=list(BACKBONES))
    parser.add_argument("--method", choices=("simclr", "byol"), default="simclr")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of mixview's turn, about")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        count = link(options.photos, Path(folder))
        if not count:
            print(
                f"no JPEGs in {options.photos}, so that there is nothing to compare: name a folder of some by --photos"
            )
            return
        print(f"{options.method}, {count} photographs, views of 224², {options.workers} workers, batch {BATCH}")
        print(
            f"{options.threads} threads, {options.rounds} rounds; images/s: median (min – max); ratios: (middle half)"
        )
        print(line("end to end", "mixview", "lightly + Trainer", "ratio, clock", "CPU time, no workers"))
        for backbone in options.backbones:
            case = Setup(backbone, options.method, folder, options.workers)
            report(backbone, compare(mixview_side(case), lightly_side(case), options.rounds, options.seconds))


if __name__ == "__main__":
    main()
