"""The demonstration: SimCLR as published (SIM) and with mixed views (WBSIM), side by side on synthetic scenes.

    python examples/demo.py --out demo

Starts two runs of `mixview pretrain`, one per core. Then evaluates both encoders, a random one and raw pixels on
held-out scenes: by k-NN and (except for the pixels) with a linear classifier. `mixview report` writes demo/report.html.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from rich.progress import Progress

from mixview.data import Scenes
from mixview.evaluate import Result, results
from mixview.evaluate.knn import KNN
from mixview.evaluate.linear import Linear
from mixview.report import report
from mixview.runs import read_metrics


def pretrain(objective: str, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Start a run in a process of its own."""
    command = [sys.executable, "-m", "mixview.cli", "pretrain", "--recipe", "small/demo", "--objective", objective]
    command += ["--data_options", json.dumps({"count": options.count}), "--epochs", str(options.epochs)]
    command += ["--out", str(options.out / objective)]
    (options.out / objective).parent.mkdir(parents=True, exist_ok=True)
    log = (options.out / f"{objective}.log").open("wb")
    return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})


def wait(runs: dict[str, subprocess.Popen[bytes]], options: argparse.Namespace) -> None:
    """Show the progress of the runs, until they end."""
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


def evaluate(encoder: str, folder: Path, options: argparse.Namespace, linear: bool = True, **more: str) -> list[Result]:
    """Evaluate by k-NN and a linear classifier on scenes that no run has seen, and store the results in a folder."""
    common = {"encoder": encoder, "data": "scenes", "data_options": {"count": options.count}, "workers": 0, **more}
    knn = KNN(**common)
    context = knn.open()
    found = [knn.result(context)]
    if linear:
        found.append(Linear(**common, fast=True).result(context))
    for result in found:
        results.save(result, folder)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"))
    parser.add_argument("--count", type=int, default=4000, help="scenes to train on, and as many to test on")
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    start = time.monotonic()
    Scenes(options.count).read(options.count - 1)
    runs = {objective: pretrain(objective, options) for objective in ("sim", "wbsim")}
    wait(runs, options)

    others = options.out / "without"
    found = evaluate("pixels", others, options, linear=False)  # on 3,072 pixels that takes longer than all else
    found += evaluate("random", others, options, backbone="small")
    for name in runs:
        found += evaluate(str(options.out / name), options.out / name, options)
    results.show(found)
    title = "SimCLR with and without mixed views, on drawn scenes"
    folders = [str(options.out / name) for name in (*runs, "without")]
    page = report(folders, options.out / "report.html", title=title, workers=0)
    print(f"{time.monotonic() - start:.0f} s. Look at {page}")


if __name__ == "__main__":
    main()
