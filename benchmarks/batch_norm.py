"""Are encoders that saw mixtures evaluated with the wrong batch-norm statistics? Recounts them on unmixed views.

    MIXVIEW_DATA=… mixview study collapse --out study --keep-runs
    MIXVIEW_DATA=… python benchmarks/batch_norm.py runs/study/collapse/*/

Running means and variances are averages over what the encoder was trained with: mixtures, under BSIM. Here they are
recomputed over the plain views of the training images, in batches as large as those of training, and the encoder is
evaluated by k-NN and a linear classifier before and after. Some ten seconds per run.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn

from mixview.data.augment.policies import load_policy
from mixview.data.dataset import MODES, ImageDataset
from mixview.data.decode import Decoder
from mixview.data.loader import EpochSampler, view_loader
from mixview.data.sources.registry import open_dataset
from mixview.encoders.encoder_file import load_encoder, save_encoder
from mixview.evaluate.base import Protocol
from mixview.evaluate.knn import KNN
from mixview.evaluate.linear import Linear
from mixview.io.run_folders import is_run
from mixview.runs.run_directory import RunDirectory

LABELED = {"data": "cifar10", "train": "train[:5000]", "test": "train[15000:20000]"}


def recount(encoder: nn.Module, run: Path) -> float:
    """Count the statistics over one epoch of the run's plain views. Returns how far means moved, in deviations."""
    config = RunDirectory.open(run).config
    source = open_dataset(config["data"], config["split"], **(config["data_options"] or {}))
    reader = ImageDataset(source, Decoder(MODES.get(config["channels"], "stored")))
    norms = [module for module in encoder.modules() if isinstance(module, nn.BatchNorm2d)]
    before = [(norm.running_mean.clone(), norm.running_var.clone()) for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches
    encoder.train()
    policy = load_policy(config["augment"], config["size"], config["min_crop_scale"])
    with torch.no_grad():
        for (first, second), _ in view_loader(reader, policy, EpochSampler(len(reader), config["batch_size"], 0, 0, 1)):
            encoder(first)
            encoder(second)
    encoder.eval()
    moved = [
        ((norm.running_mean - mean).abs() / var.sqrt()).mean() for norm, (mean, var) in zip(norms, before, strict=True)
    ]
    return float(torch.stack(moved).mean())


def evaluate(encoder: Path, seed: int) -> tuple[float, float]:
    """20-NN and linear accuracy on the validation split, in percent, as the study evaluates a run of this seed."""
    protocols: list[Protocol] = [
        KNN(encoder=str(encoder), k=20, seed=seed, workers=0, **LABELED),
        Linear(encoder=str(encoder), fast=True, seed=seed, workers=0, **LABELED),
    ]
    case = protocols[0].open()
    knn, linear = (protocol.result(case).metrics["top-1"] for protocol in protocols)
    return knn, linear


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs on CIFAR-10")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| run | 20-NN | recounted | linear | recounted | means moved by |\n|---|---|---|---|---|---|")
    for run in options.runs:
        if not is_run(run):
            continue
        encoder, header = load_encoder(run)
        seed = int(RunDirectory.open(run).config["seed"])
        before = evaluate(run / "encoder.safetensors", seed)
        moved = recount(encoder, run)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "encoder.safetensors"
            save_encoder(path, encoder, header["spec"], header["metadata"])
            after = evaluate(path, seed)
        columns = " | ".join(f"{old:.1f} | {new:.1f}" for old, new in zip(before, after, strict=True))
        print(f"| {run.name} | {columns} | {moved:.3f} |", flush=True)


if __name__ == "__main__":
    main()
