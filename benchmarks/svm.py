"""The SVM protocol on the real VOC2007 subset: all classes, costs and folds by LIBLINEAR and by the batched solver.

    MIXVIEW_DATA=… python benchmarks/svm.py [--encoder resnet50] [--threads 2] [--published 1]
    python benchmarks/svm.py --synthetic 5011 8192 --liblinear 0 --published 0

Features: res5 pooled to 2×2, images squashed to 224², of a network with random weights (or of `--encoder`, a run's
folder), made once and kept in `--cache`. The same features, folds, weights and costs go to both; both regularize the
intercept. Each run is the whole protocol in a process of its own: 20 classes × 19 costs × (3 folds + 1), with
cross-validated AP, and mAP on test. CPU seconds are of all threads and processes, and tell more on a busy solver.

- LIBLINEAR: its Newton method on the primal, tol 1e-4, which comes to about 1e-6 of the optimum, one process a thread.
- LIBLINEAR as published: coordinate descent on the dual, tol 1e-4, at most 2,000 iterations; for `--published` classes
  only, because it takes long where costs are large.
- Batched: a relative duality gap of 1e-12; a run before, between and after the others.
"""

import argparse
import hashlib
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from joblib.externals.loky import get_reusable_executor
from torch import Tensor

from mixview.data.decode import Decoder
from mixview.data.sources.voc import Voc
from mixview.encoders import backbones
from mixview.encoders.encoder_file import load_encoder
from mixview.evaluate.average_precision import mean_average_precision
from mixview.evaluate.svm import MultiLabelFeatures
from mixview.evaluate.svm_fitting import FitConfig, ProgressCounter, best_cost, make_solver

SIZE = 224
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


class Measured(NamedTuple):
    """One run of the protocol."""

    seconds: float
    cpu: float
    mean_ap: float
    per_class: tuple[float | None, ...]
    costs: tuple[float, ...]
    objective: Tensor
    """[costs, classes, 1 + folds]"""
    megabytes: float
    notes: list[str]


def features_of_voc(encoder_name: str, cache: Path, threads: int) -> tuple[MultiLabelFeatures, MultiLabelFeatures]:
    """Features and labels of trainval and test, from the cache if they are there."""
    folder = os.environ.get("MIXVIEW_DATA")
    if folder is None:
        sys.exit("the images are found through MIXVIEW_DATA: set it, or use --synthetic IMAGES FEATURES")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    path = Path(encoder_name)
    encoder = load_encoder(path)[0] if path.exists() else backbones.build(encoder_name, size=SIZE).encoder
    digest = hashlib.sha256()
    for weights in encoder.state_dict().values():
        digest.update(weights.numpy().tobytes())
    sets = []
    for split in ("trainval", "test"):
        source = Voc(Path(folder) / "VOCdevkit" / "VOC2007", split)
        file = cache / f"{digest.hexdigest()[:16]}-{source.fingerprint().split()[-1]}-{split}.npy"
        if not file.exists():
            cache.mkdir(parents=True, exist_ok=True)
            begin = time.perf_counter()
            np.save(file, extract(encoder, source).numpy())
            print(f"features of {len(source)} images of {split}: {time.perf_counter() - begin:.0f} s", flush=True)
        sets.append(MultiLabelFeatures(torch.from_numpy(np.load(file)), torch.from_numpy(source.label_sets())))
    return sets[0], sets[1]


@torch.inference_mode()
def extract(encoder: torch.nn.Module, source: Voc, batch_size: int = 32) -> Tensor:
    """Features of layer4 (res5), pooled to 2×2. [N, 4 channels]"""
    found: list[Tensor] = []
    hook = encoder.get_submodule("layer4").register_forward_hook(
        lambda module, inputs, output: found.append(F.adaptive_avg_pool2d(output, 2).flatten(1))
    )
    decode = Decoder()
    encoder.eval()
    for first in range(0, len(source), batch_size):
        images = []
        for index in range(first, min(first + batch_size, len(source))):
            pixels = torch.tensor(decode(source.read(index), source.name(index))).permute(2, 0, 1).float() / 255
            images.append(F.interpolate(pixels[None], (SIZE, SIZE), mode="bilinear", antialias=True))
        encoder((torch.cat(images) - MEAN.view(3, 1, 1)) / STD.view(3, 1, 1))
    hook.remove()
    return torch.cat(found)


def synthetic(images: int, width: int, classes: int = 20) -> tuple[MultiLabelFeatures, MultiLabelFeatures]:
    """Features whose variance falls like 1/rank, with a common part, as those of a trained network, and labels."""
    generator = torch.Generator().manual_seed(0)
    hidden = (
        torch.randn(2 * images, min(images, width), generator=generator)
        / torch.arange(1, min(images, width) + 1).sqrt()
    )
    noise = 0.7 * torch.randn(2 * images, classes, generator=generator)
    labels = torch.where(hidden[:, :classes] * torch.arange(1, classes + 1).sqrt() + noise > 1.6, 1, 0)
    features = hidden @ torch.randn(hidden.shape[1], width, generator=generator) / width**0.5 + 3 / width**0.5
    train, test = slice(images), slice(images, None)
    return MultiLabelFeatures(features[train], labels[train]), MultiLabelFeatures(features[test], labels[test])


def measure(train: MultiLabelFeatures, test: MultiLabelFeatures, fit: FitConfig, threads: int) -> Measured:
    """The protocol, timed, in a process that has done nothing else."""
    torch.set_num_threads(threads)
    before = resource.getrusage(resource.RUSAGE_SELF)
    begin = time.perf_counter()
    solver = make_solver(train.features, test.features, fit, ProgressCounter(None, 0))
    positive = train.labels == 1
    scored = solver.run(positive, torch.ones_like(positive))
    chosen = best_cost(scored.cross_validated, fit)
    scores = scored.test_scores[chosen, :, torch.arange(len(chosen))].T
    found = mean_average_precision(scores, test.labels == 1, test.labels == -1)
    seconds = time.perf_counter() - begin
    get_reusable_executor().shutdown(wait=True)
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    used = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime - before.ru_utime - before.ru_stime
    memory = own.ru_maxrss + (fit.jobs * children.ru_maxrss if fit.backend == "liblinear" else 0)
    costs = tuple(fit.costs[index] for index in chosen.tolist())
    return Measured(
        seconds, used, found.value, found.per_class, costs, scored.objective.clone(), memory / 1024, solver.notes()
    )


def alone(train: MultiLabelFeatures, test: MultiLabelFeatures, fit: FitConfig, threads: int) -> Measured:
    """`measure` in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, train, test, fit, threads).result()


def some(labeled: MultiLabelFeatures, classes: int) -> MultiLabelFeatures:
    return MultiLabelFeatures(labeled.features, labeled.labels[:, :classes])


def compare(name: str, theirs: Measured, runs: list[Measured], classes: int) -> None:
    """Print a reference run next to ours, which have at least its classes."""
    ours = runs[0]
    count = theirs.objective.shape[1]
    part = ours.objective[:, :count]
    excess = theirs.objective / part - 1
    precision = [value for value in ours.per_class[:count] if value is not None]
    apart = 100 * abs(theirs.mean_ap - statistics.fmean(precision))
    same = sum(a == b for a, b in zip(theirs.costs, ours.costs, strict=False))
    whole = theirs.seconds * classes / count
    scaled = "" if count == classes else f" (of {count} classes in {theirs.seconds:.1f} s)"
    cpu = theirs.cpu * classes / count
    print(f"{name}: {whole:.1f} s{scaled}, {cpu:.1f} CPU s, {theirs.megabytes:.0f} MB, mAP {100 * theirs.mean_ap:.3f}")
    print(f"  objective against batched: {float(excess.min()):+.1e} to {float(excess.max()):+.1e} relative")
    print(f"  mAP differs by {apart:.4f} points; the same cost for {same} of {count} classes")
    faster = whole / statistics.median(run.seconds for run in runs), cpu / statistics.median(run.cpu for run in runs)
    print(f"  batched is {faster[0]:.0f} times faster, {faster[1]:.0f} times in CPU seconds")
    for note in theirs.notes:
        print(f"  {note}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="torchvision/resnet50", help="a backbone, random, or a run's folder")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "mixview-benchmarks")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--liblinear", type=int, default=1000, help="how many classes LIBLINEAR gets at most")
    parser.add_argument("--published", type=int, default=1, help="how many classes in the published setting")
    parser.add_argument("--synthetic", type=int, nargs=2, metavar=("IMAGES", "FEATURES"))
    options = parser.parse_args()
    # Threads that wait sleep: on a busy solver they would spin most of their time away.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # of the processes that are started
    if options.synthetic:
        train, test = synthetic(*options.synthetic)
    else:
        train, test = features_of_voc(options.encoder, options.cache, options.threads)
    classes = train.labels.shape[1]
    batched = FitConfig()
    primal = FitConfig(backend="liblinear", jobs=options.threads, liblinear_dual=False)
    published = FitConfig(backend="liblinear", jobs=options.threads)
    fits = len(batched.costs) * classes * (1 + batched.folds)
    what = "synthetic features" if options.synthetic else options.encoder
    print(
        f"{what}: {len(train.features)} + {len(test.features)} images of {train.features.shape[1]} features, "
        f"{fits} SVMs, {options.threads} threads",
        flush=True,
    )
    runs = [alone(train, test, batched, options.threads)]
    print(f"batched, first run: {runs[0].seconds:.1f} s, {runs[0].cpu:.1f} CPU s", flush=True)
    references = {}
    for name, fit, count in (
        ("LIBLINEAR, primal, tol 1e-4", primal, min(options.liblinear, classes)),
        ("LIBLINEAR as published, dual, tol 1e-4, 2,000 iterations", published, min(options.published, classes)),
    ):
        if count:
            references[name] = alone(some(train, count), some(test, count), fit, options.threads)
            runs.append(alone(train, test, batched, options.threads))
    seconds = [run.seconds for run in runs]
    print(
        f"batched: {statistics.median(seconds):.1f} s ({min(seconds):.1f} – {max(seconds):.1f}), "
        f"{statistics.median(run.cpu for run in runs):.1f} CPU s, "
        f"{max(run.megabytes for run in runs):.0f} MB, mAP {100 * runs[0].mean_ap:.3f}"
    )
    for name, theirs in references.items():
        compare(name, theirs, runs, classes)


if __name__ == "__main__":
    main()
