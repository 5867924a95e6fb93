"""The time of mixview's loop beyond bare forward, backward and optimizer, and of WBSIM beyond SIM.

    python benchmarks/loop.py [--backbones resnet18 small] [--rounds 11] [--parts overhead wbsim]

overhead: `mixview.train.loop.train`, with its log, progress and checks, against a loop of forward, backward and
optimizer over the same network, loss and ready-made views. Each is a process of its own, one at a time, in turn.
Targets: at most 3 % with resnet18 and 8 % with small, of 0.3 M parameters.
wbsim: steps of MoCo v2 under WBSIM, with all anchors and with one per pair, against SIM, in turn. Target: at
most 1.45 times SIM's with one per pair.
Ratios: the median over rounds (middle half), of the clock and of CPU time.
"""

import argparse
import itertools
import statistics
import time

import numpy as np
import torch
from interleaved import Side, Turns, compare
from pretraining import SIZE, Setup, build_engine, mixview_side, mixview_views, settings_of

from mixview import mixture_generators
from mixview.data.synthetic.scenes import Scenes
from mixview.train.build import build_objective
from mixview.train.config import MixingConfig

TARGETS = {"resnet18": 1.03, "small": 1.08}


def bare_side(case: Setup) -> Side:
    """Forward, backward and optimizer, and nothing else."""

    def run(turns: Turns, folder: str) -> None:
        engine = build_engine(case, settings_of(case, folder), turns)
        method, optimizer = engine.method.train(), engine.optimizer
        memory = torch.channels_last if case.channels_last else torch.preserve_format
        for views, _ in turns:  # type: ignore[misc]
            views = [view.to(memory_format=memory) for view in views]
            loss, _ = method(views, engine.objective.draw(views[0], mixture_generators(0, 0)))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return Side(run, mixview_views(case), case.batch)


def middle(ratios: list[float]) -> str:
    """The median, and the middle half."""
    ratios = sorted(ratios)
    quarter = len(ratios) // 4
    return f"{statistics.median(ratios):.3f} ({ratios[quarter]:.3f} – {ratios[-1 - quarter]:.3f})"


def show_overhead(case: Setup, rounds: int, seconds: float) -> None:
    turns = compare(mixview_side(case), bare_side(case), rounds, seconds)
    clock, cpu = ([getattr(bare, name) / getattr(loop, name) for loop, bare in turns] for name in ("rate", "cpu_rate"))
    target = TARGETS.get(case.backbone)
    title = f"{case.method}, {case.backbone}, batch {case.batch}"
    print(f"{title:32}{middle(clock):>26}{middle(cpu):>26}" + ("" if target is None else f"   at most {target}"))


def show_wbsim(case: Setup, rounds: int) -> None:
    """One engine: the same weights, memory and optimizer."""
    settings = settings_of(case, "run")
    engine = build_engine(case, settings, ())
    objectives = {
        "SIM": build_objective("sim", settings.mixing),
        "WBSIM, all anchors": build_objective("wbsim", MixingConfig()),
        "WBSIM, one per pair": build_objective("wbsim", MixingConfig(lam_per="pair", anchors="one_per_pair")),
    }
    batches = mixview_views(case)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in objectives}
    for turn in range(-2, rounds):  # two to warm up
        for name, objective in objectives.items():
            engine.objective = objective
            views, _ = next(batches)  # type: ignore[misc]
            start, start_cpu = time.perf_counter(), time.process_time()
            engine.take_step(views)
            if turn >= 0:
                seconds[name].append((time.perf_counter() - start, time.process_time() - start_cpu))
    base = seconds.pop("SIM")
    for name, taken in seconds.items():
        clock, cpu = ([each[kind] / sim[kind] for each, sim in zip(taken, base, strict=True)] for kind in (0, 1))
        title = f"{name}, {case.backbone}, batch {case.batch}"
        target = "   at most 1.45" if name.endswith("pair") else ""
        print(f"{title:46}{middle(clock):>26}{middle(cpu):>26}{target}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbones", nargs="+", default=["resnet18", "small"])
    parser.add_argument("--methods", nargs="+", default=["simclr"], help="of overhead")
    parser.add_argument("--parts", nargs="+", choices=("overhead", "wbsim"), default=("overhead", "wbsim"))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn, about")
    options = parser.parse_args()
    torch.set_num_threads(1)
    scenes = Scenes(64, size=SIZE)
    pixels = np.stack([scenes.read(index) for index in range(len(scenes))])
    for part, backbone in itertools.product(options.parts, options.backbones):
        if part == "overhead":
            for method in options.methods:
                show_overhead(Setup(backbone, method, pixels, False, True), options.rounds, options.seconds)
        else:
            show_wbsim(Setup(backbone, "mocov2", pixels, False, True), options.rounds)


if __name__ == "__main__":
    main()
