"""The demonstration: SimCLR as published (SIM) and with mixed views (WBSIM), side by side on the embedded scenes.

    python examples/demo.py --out demo

Two runs of `mixview pretrain`, one a core; then the k-NN accuracy and a linear probe of both encoders, of a random one
and of raw pixels, on scenes that no run has seen, and a page to look at: demo/report.html.
"""

import argparse
import base64
import html
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.progress import Progress
from torch import Tensor, nn

from mixview import backbones
from mixview.data.loading import to_tensor
from mixview.data.scenes import Scenes
from mixview.evaluate.knn import knn_accuracy
from mixview.export import load_encoder
from mixview.train.run_folder import read_metrics

CLASSES = 10
SIZE = 32
"""Of the views, as in the recipe small/demo."""


def pretrain(objective: str, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Start a run in a process of its own."""
    command = [sys.executable, "-m", "mixview.cli", "pretrain", "--recipe", "small/demo", "--objective", objective]
    command += ["--data_options", json.dumps({"count": options.count}), "--epochs", str(options.epochs)]
    command += ["--out", str(options.out / objective)]
    (options.out / objective).parent.mkdir(parents=True, exist_ok=True)
    log = (options.out / f"{objective}.log").open("wb")
    return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})


def wait(runs: dict[str, subprocess.Popen[bytes]], options: argparse.Namespace) -> None:
    """Show how far the runs are."""
    with Progress() as progress:
        bars = {name: progress.add_task(name, total=options.epochs) for name in runs}
        while any(run.poll() is None for run in runs.values()):
            for name, bar in bars.items():
                records = read_metrics(options.out / name)
                progress.update(bar, completed=max((r.get("epoch", 0) for r in records), default=0))
            time.sleep(1)
        for name, run in runs.items():
            progress.update(bars[name], completed=options.epochs)
            if run.returncode:
                log = (options.out / f"{name}.log").read_text()
                sys.exit(f"the {name} run failed:\n{log[-2000:]}")


@torch.no_grad()
def features(encoder: nn.Module, scenes: Scenes, size: int) -> Tensor:
    """[N, D]"""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    images = torch.stack([to_tensor(scenes.read(index)) for index in range(len(scenes))]).float() / 255
    images = F.interpolate(images, size=(size, size), mode="bilinear", antialias=True)
    return torch.cat([encoder.eval()((part - mean) / std) for part in images.split(500)])


def linear_accuracy(train: Tensor, labels: Tensor, test: Tensor, truth: Tensor) -> float:
    """A ridge classifier on standardised features."""
    mean, std = train.mean(0), train.std(0) + 1e-6
    x, t = (train - mean) / std, (test - mean) / std
    x, t = (torch.cat([part, torch.ones(len(part), 1)], 1).double() for part in (x, t))
    weights = torch.linalg.solve(x.T @ x + 0.01 * len(x) * torch.eye(x.shape[1]), x.T @ F.one_hot(labels).double())
    return float(((t @ weights).argmax(1) == truth).double().mean())


def report(rows: dict[str, tuple[float, float]], options: argparse.Namespace) -> Path:
    """A page: the table, the curves, and what the network saw."""
    cells = "".join(f"<tr><td>{name}<td>{knn:.1%}<td>{linear:.1%}" for name, (knn, linear) in rows.items())
    picture = base64.b64encode((options.out / "wbsim" / "views.png").read_bytes()).decode()
    curves = ""
    for name, colour in (("sim", "#888"), ("wbsim", "#d60")):
        records = [r for r in read_metrics(options.out / name) if "knn" in r]
        steps = max((r["step"] for r in records), default=1)
        line = " ".join(f"{600 * r['step'] / steps:.0f},{200 - 200 * r['knn']:.0f}" for r in records)
        curves += f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>'
    page = f"""<!doctype html><meta charset="utf-8"><title>mixview: demonstration</title>
<style>body{{font:16px sans-serif;max-width:46em;margin:2em auto;padding:0 1em}}
td,th{{padding:.2em 1em;text-align:left}}
img,svg{{width:100%;image-rendering:pixelated}}</style>
<h1>Did it learn?</h1>
<p>Accuracy on {options.test} scenes that no run has seen ({CLASSES} classes, chance {1 / CLASSES:.0%}, one seed). The
encoders learned from {options.count} scenes without labels; higher is better.
<table><tr><th>encoder<th>20 nearest neighbours<th>linear probe{cells}</table>
<h2>While it learned</h2><p>k-NN accuracy over training, 0 to 100 %: SIM grey, WBSIM orange. Rising is good.
<svg viewBox="0 0 600 200" style="border-left:1px solid;border-bottom:1px solid">{curves}</svg>
<h2>What it saw</h2><p>Two views of each image, and below them the mixtures that WBSIM compares with both their parents.
<p><img src="data:image/png;base64,{picture}" alt="views and mixtures">
<h2>Again</h2><pre>{html.escape("python examples/demo.py " + " ".join(sys.argv[1:]))}</pre>"""
    path = options.out / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"))
    parser.add_argument("--count", type=int, default=4000, help="scenes to learn from")
    parser.add_argument("--test", type=int, default=1000, help="scenes to ask about")
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    start = time.monotonic()
    train, test = Scenes(options.count), Scenes(options.test, split="test")
    train.read(len(train) - 1)
    runs = {objective: pretrain(objective, options) for objective in ("sim", "wbsim")}
    wait(runs, options)

    labels, truth = torch.as_tensor(train.labels()), torch.as_tensor(test.labels())
    torch.manual_seed(0)
    encoders = {"raw pixels": nn.Flatten(), "random encoder": backbones.build("small", size=SIZE).encoder}
    encoders |= {name.upper(): load_encoder(options.out / name)[0] for name in runs}
    rows = {}
    for name, encoder in encoders.items():
        known, asked = features(encoder, train, SIZE), features(encoder, test, SIZE)
        knn = knn_accuracy(known, labels, asked, truth, classes=CLASSES)
        rows[name] = knn, linear_accuracy(known, labels, asked, truth)
    print(f"{'':16} {'20-NN':>8} {'linear':>8}   ({options.test} unseen scenes, {CLASSES} classes, one seed)")
    for name, (knn, linear) in rows.items():
        print(f"{name:16} {knn:8.1%} {linear:8.1%}")
    print(f"{time.monotonic() - start:.0f} s. Look at {report(rows, options)}")


if __name__ == "__main__":
    main()
