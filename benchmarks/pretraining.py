"""Images per second of mixview's training loop against a lightly + Lightning Trainer script, and of BSIM against SIM.

    python benchmarks/pretraining.py [--backbones small resnet18] [--rounds 7] [--seconds 2]

The two sides have the same CPU threads, backbone, widths of heads, queue, optimizer, batch and images. Each runs its
own loop from start to end, progress and metrics included, in a process of its own; one at a time is let go on for a
couple of seconds, in turn, so that a noisy machine is noisy for both. Ratios are medians over rounds of the ratio of
two neighboring turns: of their time on the clock, and of the CPU time that they took, which others who share the cores
disturb less.

"step" hands both sides the same views, ready-made: what is compared is the loop, the method and the optimizer.
"whole" starts from pixels in memory: each side augments with its own pipeline, without workers.
"bsim" is mixview alone: SIM and BSIM, step by step in turn.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import lightly_trainer
import lightning
import numpy as np
import torch
from interleaved import ENDLESS, Side, Turn, Turns, compare, line, report
from lightning_fabric import Fabric
from torch import Tensor
from torch.utils.data import DataLoader

from mixview import mixture_generators
from mixview.data.augment.policies import load_policy
from mixview.data.dataset import ImageDataset
from mixview.data.loader import EpochSampler, view_loader
from mixview.data.synthetic.scenes import Scenes
from mixview.encoders import backbones
from mixview.methods import RunLength
from mixview.objective import Objective
from mixview.runs.run_directory import RunDirectory
from mixview.train.build import build_method, build_mixer, build_objective, prepare_for_devices
from mixview.train.config import MixingConfig, MonitorConfig, OptimizerConfig, PretrainConfig, to_plain
from mixview.train.loop import Engine, Run, train
from mixview.train.monitor import Monitor
from mixview.train.optim import build_optimizer

METHODS = ("simclr", "mocov2", "byol", "simsiam")
OPTIONS: dict[str, dict[str, int]] = {
    "simclr": {"hidden": lightly_trainer.HIDDEN, "dim": lightly_trainer.DIM},
    "mocov2": {"hidden": lightly_trainer.HIDDEN, "dim": lightly_trainer.DIM, "queue_size": lightly_trainer.QUEUE},
    "byol": {"hidden": lightly_trainer.HIDDEN, "dim": lightly_trainer.DIM},
    "simsiam": {"hidden": lightly_trainer.HIDDEN, "dim": lightly_trainer.HIDDEN},
}
SIZE = 32
BATCH = {"small": 64, "resnet18": 16}
"""Images per step: few enough for a step to take about a second."""
PASSES = {
    "mocov2": (1, "query passes 1 and 1, key passes 1 and 1"),
    "byol": (2, "online passes 2 and 2, target passes 2 and 2"),
}
"""The number of views that BSIM mixes per step, and the passes of SIM and BSIM."""


class Setup(NamedTuple):
    """The training settings of both sides."""

    backbone: str
    method: str
    pixels: np.ndarray
    whole: bool
    """True to start from pixels, False to start from ready-made views."""
    channels_last: bool
    """Channels last: mixview's default; Lightning's Trainer has no such option."""

    @property
    def batch(self) -> int:
        return BATCH.get(self.backbone, 16)


def ready_made(case: Setup) -> list[tuple[Tensor, Tensor]]:
    """A few batches of views."""
    generator = torch.Generator().manual_seed(0)
    shape = (2, case.batch, 3, SIZE, SIZE)
    return [torch.randn(shape, generator=generator).unbind() for _ in range(4)]  # type: ignore[misc]


class Endless:
    """Images that start over, for `ENDLESS` of them."""

    def __init__(self, reader: ImageDataset) -> None:
        self.reader = [reader[index] for index in range(len(reader))]

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> object:
        return self.reader[index % len(self.reader)]


def build_engine(case: Setup, settings: PretrainConfig, loader: Iterable[object]) -> Engine:
    """Build the engine like `mixview.train.build.build`, around a loader of ours."""
    batches = EpochSampler(ENDLESS, case.batch)
    fabric = Fabric(accelerator="cpu", devices=1)
    backbone = backbones.build(case.backbone, size=SIZE)
    method = build_method(settings.method, backbone, RunLength(ENDLESS, batches.batches_per_epoch, case.batch))
    prepare_for_devices(settings, fabric, method, settings.channels_last)
    module, optimizer = fabric.setup(method, build_optimizer(method, settings.optimizer, case.batch))
    return Engine(
        fabric=fabric,
        module=module,
        network=method,
        optimizer=optimizer,
        config=replace(settings, epochs=1),
        objective=build_objective(settings.objective, settings.mixing),
        sampler=batches,
        loader=loader,  # type: ignore[arg-type]
        channels_last=settings.channels_last,
    )


def settings_of(case: Setup, out: str) -> PretrainConfig:
    return PretrainConfig(
        data="scenes",
        out=out,
        method={"name": case.method, **OPTIONS[case.method]},
        objective="sim",
        batch_size=case.batch,
        optimizer=OptimizerConfig(name="sgd", lr=0.06, momentum=0.9, weight_decay=5e-4),
        mixing=MixingConfig(lam_per="image"),
        channels_last=case.channels_last,
        monitor=MonitorConfig(eval_every=0, estimate=False),
    )


def mixview_views(case: Setup) -> Iterator[object]:
    """Ready-made batches as the engine takes them, without end."""
    index = torch.arange(case.batch)
    return itertools.cycle([(views, index) for views in ready_made(case)])


def mixview_side(case: Setup) -> Side:
    """mixview's own loop."""
    scenes = ImageDataset(Scenes(len(case.pixels), size=SIZE))
    policy = load_policy(f"{case.method}-small", SIZE)
    loader: Iterable[object] = mixview_views(case)
    if case.whole:
        loader = view_loader(Endless(scenes), policy, EpochSampler(ENDLESS, case.batch), workers=0)  # type: ignore[arg-type]

    def run(turns: Turns, folder: str) -> None:
        settings = settings_of(case, folder)
        engine = build_engine(case, settings, turns)
        monitor = Monitor(engine.fabric, engine.method, engine.objective, scenes, policy, None, 0)
        with RunDirectory.create(folder, to_plain(settings), {"fingerprint": "", "count": ENDLESS}) as run_folder:
            train(Run(settings, engine, monitor, lambda about, name: None, [], 0, []), run_folder, [])

    return Side(run, loader, case.batch)


def lightly_side(case: Setup) -> Side:
    """`lightly_trainer`'s module under Lightning's Trainer, with its progress bar and TensorBoard logger."""
    if case.whole:
        images = lightly_trainer.Images(case.pixels, lightly_trainer.transform_of(case.method, SIZE), ENDLESS)
        loader: Iterable[object] = DataLoader(images, case.batch, shuffle=True, drop_last=True, num_workers=0)
    else:
        index = torch.arange(case.batch)
        loader = itertools.cycle([([first, second], index) for first, second in ready_made(case)])

    def run(turns: Turns, folder: str) -> None:
        backbone = backbones.build(case.backbone, size=SIZE)
        module = lightly_trainer.MODULES[case.method](backbone.encoder, backbone.feature_dim)
        trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", devices=1, default_root_dir=folder)
        trainer.fit(module, turns)

    return Side(run, loader, case.batch)


def compare_objectives(case: Setup, rounds: int) -> list[tuple[Turn, Turn]]:
    """Steps of one engine under BSIM and SIM in turn: the same weights, memory and optimizer."""
    settings = settings_of(case, "run")
    engine = build_engine(case, settings, mixview_views(case))
    bsim, sim = build_objective("bsim", settings.mixing), build_objective("sim", settings.mixing)
    batches = mixview_views(case)

    def take_step(objective: Objective) -> Turn:
        engine.objective = objective
        views, _ = next(batches)  # type: ignore[misc]
        start, start_cpu = time.perf_counter(), time.process_time()
        engine.take_step(views)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
        return Turn(case.batch / seconds, case.batch / cpu_seconds)

    turns = []
    for turn in range(-2, rounds):  # two to warm up
        first, second = (bsim, sim) if turn % 2 == 0 else (sim, bsim)
        taken = {id(objective): take_step(objective) for objective in (first, second)}
        if turn >= 0:
            turns.append((taken[id(bsim)], taken[id(sim)]))
    return turns


def mixing_seconds(case: Setup, views: int) -> float:
    """CPU time per step of what BSIM does and SIM does not: draw a mixture, and mix this many views. Median of 100."""
    images, _ = ready_made(case)[0]
    if case.channels_last:
        images = images.to(memory_format=torch.channels_last)
    mixer, seconds = build_mixer(MixingConfig(lam_per="image")), []
    for step in range(100):
        start = time.process_time()
        mixture = mixer.draw(images, mixture_generators(0, step))
        for _ in range(views):
            mixture(images)
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbones", nargs="+", default=["small", "resnet18"])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--parts", nargs="+", choices=("step", "whole", "bsim"), default=("step", "whole", "bsim"))
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn, about")
    parser.add_argument("--steps", type=int, default=60, help="of SIM and of BSIM each")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--contiguous", action="store_true", help="mixview without channels_last, its default")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    scenes = Scenes(options.images, size=SIZE)
    pixels = np.stack([scenes.read(index) for index in range(len(scenes))])
    print(f"{SIZE} px, CPU, {options.threads} threads, {options.rounds} rounds; batch {BATCH}")
    print("images/s: median (min – max) of the turns; ratios: median (middle half) over rounds")
    for part, title in (("step", "step: views ready-made"), ("whole", "whole: from pixels")):
        if part in options.parts:
            print()
            print(line(title, "mixview", "lightly + Trainer", "ratio, clock", "ratio, CPU time"), "  (at least 1)")
            for backbone, method in itertools.product(options.backbones, options.methods):
                case = Setup(backbone, method, pixels, part == "whole", not options.contiguous)
                turns = compare(mixview_side(case), lightly_side(case), options.rounds, options.seconds)
                report(f"{method}, {backbone}", turns)
    if "bsim" in options.parts:
        print()
        print(line("BSIM against SIM: step", "BSIM", "SIM", "ratio, clock", "ratio, CPU time"), "  (at least 0.98)")
        for backbone, (method, (views, passes)) in itertools.product(options.backbones, PASSES.items()):
            case = Setup(backbone, method, pixels, False, not options.contiguous)
            turns = compare_objectives(case, options.steps)
            report(f"{method}, {backbone}", turns)
            step = case.batch / statistics.median(sim.cpu_rate for _, sim in turns)
            mixing = mixing_seconds(case, views)
            theory = 1 - mixing / step
            print(f"  {passes}; mixing takes {1e3 * mixing:.2f} ms of {1e3 * step:.0f}: {theory:.3f} in theory")


if __name__ == "__main__":
    main()
