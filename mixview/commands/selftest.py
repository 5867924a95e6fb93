"""`mixview selftest`: mixview on this machine's accelerator, checked in two minutes; a table to paste into an issue."""

import importlib
import math
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

import mixview
from mixview.distributed import average_gradients, synchronize_batch_norm
from mixview.encoders import backbones
from mixview.encoders.features import pick_device
from mixview.extensions import METHODS, MIXERS
from mixview.io.terminal import say
from mixview.methods import Method, RunLength, backward
from mixview.mixing import mixture_generators
from mixview.objective import wbsim
from mixview.report.figures.cost import Setup, device_name, measure, take_step
from mixview.train.build import build_method, build_mixer
from mixview.train.config import MixingConfig, OptimizerConfig, method_config
from mixview.train.estimate import format_bytes, synchronize
from mixview.train.optim import build_optimizer

Check = Literal["equality", "throughput", "memory", "sync_bn"]
SMALL: dict[str, Any] = {"hidden": 64, "dim": 32, "queue_size": 64, "prototypes": 32, "synthetic": (8, 4)}
"""Options of methods that make them small."""
STEPS, IMAGES, SIDE = 3, 16, 32
"""Steps, images per step, and pixels per side of the comparisons."""
TOLERANCE = 2e-3
"""The largest relative difference of losses and weights: float32 adds up in another order on every device."""


class Row(NamedTuple):
    """A line of the table."""

    check: str
    result: str
    verdict: Literal["ok", "FAILED", "not checked"]


def selftest(
    device: str = "auto",
    checks: list[Check] | None = None,
    backbone: str | None = None,
    batch_size: int | None = None,
    size: int | None = None,
    rounds: int = 10,
) -> None:
    """Check mixview on this machine's accelerator, and print a table to paste into an issue.

    Equality: every method trains a few steps on the device and on the CPU, and every mixer mixes on both. Throughput:
    a step of SimCLR beside one made of lightly's parts. Memory: a step of MoCo under SIM, BSIM and WBSIM. Synchronized
    batch norm: two processes against one. The table names what this machine cannot check.

    Args:
        device: Device: cpu, cuda, mps, or auto, which takes an accelerator where there is one.
        checks: Checks to run: equality, throughput, memory and sync_bn; by default all.
        backbone: Backbone for throughput and memory; by default resnet50 on an accelerator, and small on a CPU.
        batch_size: Images per step for both; by default 64 on an accelerator, and 16 on a CPU.
        size: View size in pixels for both; by default 224 on an accelerator, and 32 on a CPU.
        rounds: Steps of each that are timed, in turn.
    """
    place = pick_device(device)
    on_cpu = place.type == "cpu"
    if rounds < 1 or (batch_size is not None and batch_size < 2):
        raise ValueError(f"rounds must be at least 1 and batch_size at least 2, got {rounds} and {batch_size}")
    setup = Setup(
        "mocov2",
        backbone or ("small" if on_cpu else "resnet50"),
        batch_size or (16 if on_cpu else 64),
        size or (32 if on_cpu else 224),
    )
    run: dict[Check, Callable[[], Iterator[Row]]] = {
        "equality": lambda: compare_devices(place),
        "throughput": lambda: compare_lightly(setup, place, rounds),
        "memory": lambda: compare_memory(setup, place, rounds),
        "sync_bn": lambda: compare_processes(place),
    }
    chosen = get_args(Check) if checks is None else tuple(checks)
    if wrong := [each for each in chosen if each not in run]:
        raise ValueError(f"there is no check {wrong[0]!r}: pass some of {', '.join(run)}")
    say(f"mixview {mixview.__version__} selftest: {describe(place)}\n")
    say("| check | result | |\n|---|---|---|")
    verdicts = []
    for name in chosen:
        for row in run[name]():
            say(f"| {row.check} | {row.result} | {row.verdict} |")
            verdicts.append(row.verdict)
    failed = verdicts.count("FAILED")
    say(f"\n{verdicts.count('ok')} ok, {failed} failed, {verdicts.count('not checked')} not checked.")
    if failed:
        sys.exit(1)


def describe(device: torch.device) -> str:
    """Device and versions."""
    versions = [f"torch {torch.__version__}", f"Python {platform.python_version()}", platform.system()]
    if device.type == "cuda":
        versions.append(f"CUDA {torch.version.cuda}, {torch.cuda.device_count()} of it")
    return ", ".join([device_name(device), *versions])


def small_method(name: str) -> Method:
    """A small method of this name, the same each time."""
    torch.manual_seed(0)
    config = method_config(name)
    names = {field.name for field in fields(config)}
    config = replace(config, **{option: value for option, value in SMALL.items() if option in names})
    return build_method(
        config, backbones.build("small", size=SIDE), RunLength(images=256, steps=100, batch_size=IMAGES)
    )


def views_of(step: int, device: torch.device) -> list[Tensor]:
    """Two views of the images of a step, the same on every device."""
    generator = torch.Generator().manual_seed(step)
    return list(torch.rand(2, IMAGES, 3, SIDE, SIDE, generator=generator).to(device))


def train(method: Method, device: torch.device, rank: int = 0, world_size: int = 1) -> tuple[list[float], list[Tensor]]:
    """A few steps on this process's part of the images: the losses, and the trained weights."""
    method.to(device)
    weights = [each for each in method.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=0.01)
    losses = []
    for step in range(STEPS):
        views = [view.chunk(world_size)[rank] for view in views_of(step, device)]
        # Two processes mix as one does in two groups.
        generators = mixture_generators(0, step, rank=rank, mix_groups=2 // world_size)
        loss, targets = backward(method, views, wbsim().draw(views[0], generators))
        average_gradients(weights)
        optimizer.step()
        optimizer.zero_grad()
        method.update(targets, progress=step / STEPS)
        losses.append(float(loss))
    return losses, [each.detach().cpu() for each in weights]


def difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The relative difference of two lists of tensors."""
    squares = [float((a - b).double().square().sum()) for a, b in zip(ours, theirs, strict=True)]
    norms = [float(b.double().square().sum()) for b in theirs]
    return math.sqrt(sum(squares) / sum(norms))


def verdict(deviation: float) -> Literal["ok", "FAILED"]:
    """Check whether a difference is within the tolerance; NaN is not."""
    return "ok" if deviation <= TOLERANCE else "FAILED"


# --- equality with the CPU --------------------------------------------------------------------------------------------


@contextmanager
def exact_float32() -> Iterator[None]:
    """Without TF32, which rounds to ten bits."""
    flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = flags


def compare_devices(device: torch.device) -> Iterator[Row]:
    """Every method and mixer on the device and on the CPU."""
    if device.type == "cpu":
        yield Row("equality with the CPU", "there is no accelerator here", "not checked")
        return
    with exact_float32():
        for name in METHODS.names():
            if name == "distillation":
                yield Row(f"equality, {name}", "needs a teacher", "not checked")
                continue
            (losses, weights), (expected, expected_weights) = (
                train(small_method(name), each) for each in (device, torch.device("cpu"))
            )
            loss = difference([torch.tensor(losses)], [torch.tensor(expected)])
            moved = difference(weights, expected_weights)
            result = f"{STEPS} steps: loss differs by {loss:.1e}, weights by {moved:.1e}"
            yield Row(f"equality, {name}", result, verdict(max(loss, moved)))
        for name in MIXERS.names():
            mixer, images = build_mixer(MixingConfig(mixer=name)), views_of(0, torch.device("cpu"))[0]
            here, there = (
                mixer.draw(each, mixture_generators(0, 0))(each).cpu() for each in (images.to(device), images)
            )
            deviation = difference([here], [there])
            yield Row(f"equality, {name}", f"pixels differ by {deviation:.1e}", verdict(deviation))


# --- throughput -------------------------------------------------------------------------------------------------------


def compare_lightly(setup: Setup, device: torch.device, rounds: int) -> Iterator[Row]:
    """Steps of SimCLR by mixview and of the same network by lightly's head and loss, in turn."""
    check = f"throughput, SimCLR, {setup.backbone}, {setup.batch_size} × {setup.size} px"
    views = list(torch.rand(2, setup.batch_size, 3, setup.size, setup.size, device=device))
    steps = {"mixview": mixview_step(setup, device, views)}
    try:
        steps["lightly"] = lightly_step(setup, device, views)
    except ImportError:
        yield Row(check, "lightly is not installed: pip install lightly", "not checked")
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(-2, rounds):  # two to warm up
        for name, step in steps.items():
            synchronize(device)
            start = time.perf_counter()
            step()
            synchronize(device)
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
    rates = {name: setup.batch_size / statistics.median(each) for name, each in seconds.items()}
    result = ", ".join(f"{name} {rate:.4g} images/s" for name, rate in rates.items())
    if "lightly" not in seconds:
        yield Row(check, result, "ok")
        return
    ratios = sorted(theirs / ours for ours, theirs in zip(seconds["mixview"], seconds["lightly"], strict=True))
    ratio = statistics.median(ratios)
    result += f": {ratio:.2f} × lightly's ({ratios[0]:.2f} – {ratios[-1]:.2f})"
    yield Row(check, result, "ok" if ratio >= 0.9 else "FAILED")


def mixview_step(setup: Setup, device: torch.device, views: list[Tensor]) -> Callable[[], None]:
    """A step of mixview's SimCLR, as published (SIM)."""
    config = method_config("simclr")
    built = backbones.build(setup.backbone, size=setup.size)
    method = build_method(config, built, RunLength(8192, 1000, setup.batch_size)).to(device)
    optimizer = build_optimizer(method, OptimizerConfig(name="sgd"), setup.batch_size)
    return partial(take_step, method, optimizer, mixview.sim(), views)


def lightly_step(setup: Setup, device: torch.device, views: list[Tensor]) -> Callable[[], None]:
    """A step of the same backbone with lightly's projection head and loss, as in its documentation."""
    heads = importlib.import_module("lightly.models.modules.heads")
    criterion = importlib.import_module("lightly.loss").NTXentLoss(temperature=0.1)
    built = backbones.build(setup.backbone, size=setup.size)
    head = heads.SimCLRProjectionHead(built.feature_dim, built.feature_dim, 128)
    network = nn.Sequential(built.encoder, head).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)

    def step() -> None:
        loss = criterion(network(views[0]), network(views[1]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# --- memory -----------------------------------------------------------------------------------------------------------


def compare_memory(setup: Setup, device: torch.device, rounds: int) -> Iterator[Row]:
    """Memory and time of MoCo's step under each objective."""
    costs = measure(setup, device, rounds)
    base = costs["sim"]
    kind = "peak" if device.type == "cuda" else "activations"
    for name, cost in costs.items():
        memory, seconds = cost.memory / base.memory, cost.median / base.median
        result = f"{kind} {format_bytes(cost.memory)} ({memory:.2f} ×), {1e3 * cost.median:.1f} ms ({seconds:.2f} ×)"
        # The paper's WBSIM takes 1.49 times the memory.
        check = f"{name.upper()} beside SIM, MoCo v2, {setup.backbone}, {setup.batch_size} × {setup.size} px"
        yield Row(check, result, "ok" if memory <= 1.3 else "FAILED")


# --- synchronized batch norm ------------------------------------------------------------------------------------------


def compare_processes(device: torch.device) -> Iterator[Row]:
    """Two processes with synchronized batch norm against one with all images."""
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    check = f"SyncBN, two processes ({'NCCL' if gpus > 1 else 'gloo, on the CPU'})"
    kind = "cuda" if gpus > 1 else "cpu"
    with tempfile.TemporaryDirectory() as folder, exact_float32():
        spawn(train_rank, (kind, folder), nprocs=2)
        ranks = [torch.load(Path(folder) / str(rank), weights_only=True) for rank in range(2)]
        losses, weights = train(small_method("byol"), torch.device(kind))
    loss = difference([torch.tensor([rank["losses"] for rank in ranks]).mean(0)], [torch.tensor(losses)])
    moved = max(difference(rank["weights"], weights) for rank in ranks)
    result = f"BYOL, {STEPS} steps: loss differs by {loss:.1e}, weights by {moved:.1e}"
    yield Row(check, result, verdict(max(loss, moved)))
    if kind == "cpu":
        yield Row("SyncBN, two GPUs (NCCL)", f"there {'is one GPU' if gpus else 'are no GPUs'} here", "not checked")


def train_rank(rank: int, kind: str, folder: str) -> None:
    """Train, in each of two processes, on half of the images, and write losses and weights to a folder."""
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    backend = "nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        with exact_float32():
            method = small_method("byol")
            synchronize_batch_norm(method, device)
            losses, weights = train(method, device, rank, 2)
        torch.save({"losses": losses, "weights": weights}, Path(folder) / str(rank))
    finally:
        dist.destroy_process_group()
