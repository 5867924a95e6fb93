"""What SIM, BSIM and WBSIM cost on this machine, memory and time of a step, as in the paper's cost tables."""

import statistics
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from mixview import backbones
from mixview.evaluate import paper
from mixview.evaluate.features import pick_device
from mixview.evaluate.progress import Advance, bar
from mixview.methods import Method, backward
from mixview.mixing import mixture_generators
from mixview.objective import Objective
from mixview.report.figures.drawing import COLOURS, in_style, new_figure, open_runs, save
from mixview.train.activations import peak_activations
from mixview.train.estimate import wait
from mixview.train.settings import Head, MethodName, Mixing, ObjectiveName, build_method, build_objective

OBJECTIVES: tuple[ObjectiveName, ...] = ("sim", "bsim", "wbsim")


class Setup(NamedTuple):
    """What is measured."""

    method: MethodName
    backbone: str
    batch: int
    size: int


class Cost(NamedTuple):
    """Of a step under one objective."""

    activations: int
    """Bytes that the step holds for its backward."""
    seconds: list[float]


@in_style
def cost(
    runs: list[str] | None = None,
    out: Path = Path("cost"),
    methods: list[MethodName] | None = None,
    backbone: str = "resnet50",
    batch: int = 8,
    size: int = 224,
    rounds: int = 3,
    device: str = "auto",
) -> list[Path]:
    """Measure memory and time of a step under SIM, BSIM and WBSIM here, and draw them beside the paper's.

    Args:
        runs: folders of runs whose method, backbone, batch and size are measured.
        out: OUT.png and OUT.svg are written.
        methods: without runs, which ones; by default mocov2, that of the paper's table.
        backbone: without runs.
        batch: images a step, without runs.
        size: of the images, without runs.
        rounds: steps of each that are timed, in turn, after one that is not.
        device: cpu, cuda, mps, or auto: an accelerator where there is one.
    """
    if rounds < 1 or batch < 2:
        raise ValueError(f"rounds must be at least 1 and batch at least 2, got {rounds} and {batch}")
    if runs:
        configs = [run.config for run in open_runs(runs)]
        setups = [Setup(each["method"], each["backbone"], int(each["batch"]), int(each["size"])) for each in configs]
    else:
        setups = [Setup(method, backbone, batch, size) for method in methods or ["mocov2"]]
    setups = list(dict.fromkeys(setups))
    place = pick_device(device)
    with bar("steps", len(setups) * len(OBJECTIVES) * (rounds + 2)) as advance:
        measured = {setup: measure(setup, place, rounds, advance) for setup in setups}
    show(measured, place)
    return draw(measured, place, out)


def measure(
    setup: Setup, device: torch.device, rounds: int, advance: Advance = lambda amount: None
) -> dict[ObjectiveName, Cost]:
    """The cost of each objective; steps are timed in turn, so that what else the machine does meets all of them."""
    torch.manual_seed(0)
    built = backbones.build(setup.backbone, size=setup.size)
    head = Head(queue_size=max(setup.batch, 4096 // setup.batch * setup.batch))
    method = build_method(setup.method, built, head, images=4096, steps=1000, batch=setup.batch).to(device)
    first, second = torch.rand(2, setup.batch, 3, setup.size, setup.size, device=device)
    objectives = {name: build_objective(name, Mixing()) for name in OBJECTIVES}
    held = {}
    for name, objective in objectives.items():
        held[name] = peak_activations(method, objective, (first, second))
        advance(1)
    seconds: dict[ObjectiveName, list[float]] = {name: [] for name in OBJECTIVES}
    for number in range(rounds + 1):
        for name, objective in objectives.items():
            taken = time_step(method, objective, (first, second), device)
            if number:  # the first warms up
                seconds[name].append(taken)
            advance(1)
    return {name: Cost(held[name], seconds[name]) for name in OBJECTIVES}


def time_step(
    method: Method, objective: Objective, views: tuple[torch.Tensor, torch.Tensor], device: torch.device
) -> float:
    """Seconds of one step, without optimiser and data."""
    wait(device)
    start = time.perf_counter()
    terms = objective.draw(views[0], mixture_generators(0, 0))
    _, targets = backward(method, views, terms)
    method.zero_grad()
    method.advance(targets, progress=0.0)
    wait(device)
    return time.perf_counter() - start


def show(measured: dict[Setup, dict[ObjectiveName, Cost]], device: torch.device) -> None:
    """The table, on the terminal."""
    table = Table("measured here", "", "SIM", "BSIM", "WBSIM", "WBSIM / SIM", box=None, padding=(0, 2, 0, 0))
    for setup, costs in measured.items():
        what = f"{setup.method}, {setup.backbone}, batch {setup.batch}, {setup.size} px, {device.type}"
        held = [costs[name].activations for name in OBJECTIVES]
        table.add_row(what, "activations held", *(f"{each / 1e6:.0f} MB" for each in held), f"{held[2] / held[0]:.2f}")
        medians = [statistics.median(costs[name].seconds) for name in OBJECTIVES]
        spans = [
            f"{m:.3g} s ({min(costs[n].seconds):.3g} – {max(costs[n].seconds):.3g})"
            for m, n in zip(medians, OBJECTIVES, strict=True)
        ]
        table.add_row("", "a step, median (span)", *spans, f"{medians[2] / medians[0]:.2f}")
    for name, row in published().items():
        table.add_row("the paper's Table 11, MoCo, 8 V100", name, *row, f"{float(row[2]) / float(row[0]):.2f}")
    Console(highlight=False).print(table)


def published() -> dict[str, tuple[str, str, str]]:
    """The paper's cost table: SIM, BSIM and WBSIM of MoCo."""
    table = paper.tables()["tab:moco-mem-cost"][0]
    return {row[0]: (row[1], row[2], row[3]) for row in table.rows}


def draw(measured: dict[Setup, dict[ObjectiveName, Cost]], device: torch.device, out: Path) -> list[Path]:
    """Bars of both, each setup relative to its own SIM, and the paper's ratios beside them."""
    figure = new_figure(9, 1.1 + 0.9 * (len(measured) + 1))
    panels = figure.subplots(1, 2)
    rows = [f"{s.method}, {s.backbone}\nbatch {s.batch}, {s.size} px" for s in measured] + ["the paper's\nMoCo, 8 V100"]
    for axes, title, which, key in (
        (panels[0], "Memory held for the backward, SIM = 1", "activations", "Memory(G)"),
        (panels[1], "Time of a step, SIM = 1", "seconds", "Cost (Hour)"),
    ):
        printed = [float(value) for value in published()[key]]
        for place, name in enumerate(OBJECTIVES):
            heights, texts = [], []
            for costs in measured.values():
                value, base = (amount(costs[each], which) for each in (name, "sim"))
                heights.append(value / base)
                texts.append(f"{value / 1e6:.0f} MB" if which == "activations" else f"{value:.3g} s")
            heights.append(printed[place] / printed[0])
            texts.append(f"{printed[place]:g} " + ("GB" if which == "activations" else "h"))
            at = np.arange(len(rows)) + 0.26 * (place - 1)
            bars = axes.barh(at, heights, 0.24, color=COLOURS[place], label=name.upper())
            bars.patches[-1].set(hatch="///", edgecolor="white")
            axes.bar_label(bars, texts, padding=3, fontsize=7)
        axes.set_yticks(range(len(rows)), rows if which == "activations" else [""] * len(rows))
        axes.set_xlim(0, 1.25 * axes.get_xlim()[1])
        axes.invert_yaxis()
        axes.set_title(title)
    title = f"measured on this machine ({device.type}); hatched: the paper's"
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, title=title, title_fontsize=8)
    return save(figure, out)


def amount(cost: Cost, which: str) -> float:
    return float(cost.activations) if which == "activations" else statistics.median(cost.seconds)
