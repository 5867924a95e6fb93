"""The cost of SIM, BSIM and WBSIM on this machine, beside the paper's two cost tables (11 and 12)."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from rich.console import Console
from rich.table import Table

from mixview.encoders import backbones
from mixview.encoders.features import pick_device
from mixview.evaluate import paper
from mixview.extensions import require_consent
from mixview.io.terminal import to_rich_text
from mixview.methods import Method, RunLength, Views, backward
from mixview.mixing import mixture_generators
from mixview.objective import Objective
from mixview.report.figures.drawing import COLORS, PALE, in_style, new_figure, open_runs, save
from mixview.report.runs import ReportRun
from mixview.runs.progress_bar import Advance, bar
from mixview.train.activations import peak_activations
from mixview.train.build import build_method, build_objective
from mixview.train.config import MixingConfig, ObjectiveName, OptimizerConfig, method_config
from mixview.train.estimate import format_bytes, peak_memory, synchronize
from mixview.train.optim import build_optimizer

OBJECTIVES: tuple[ObjectiveName, ...] = ("sim", "bsim", "wbsim")
PAPER_NAMES: dict[str, str] = {"mocov1": "MoCo", "mocov2": "MoCo", "byol": "BYOL", "swav": "SwAV"}
SUFFIXES: dict[ObjectiveName, str] = {"sim": "", "bsim": "-BSIM", "wbsim": "-WBSIM"}
IMAGENET, EPOCHS = 1_281_167, 200
"""The length of the trainings in the paper's hours and GPU days."""


class Setup(NamedTuple):
    """The settings of a measurement."""

    method: str
    backbone: str
    batch_size: int
    """Images per step, on one device and without accumulation."""
    size: int


class Cost(NamedTuple):
    """The cost of a step under one objective."""

    memory: int
    """Bytes: on CUDA the peak that the device's allocator reports, elsewhere the activations held for the backward."""
    reserved: int | None
    """Bytes that the allocator took from the device for that, on CUDA only: what nvidia-smi shows, less its context."""
    seconds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def days(self, batch_size: int) -> float:
        """Days that one such device takes for 200 epochs of ImageNet, reading images apart."""
        return self.median / batch_size * IMAGENET * EPOCHS / 86_400


class PaperCost(NamedTuple):
    """A row of the paper's Table 12, and of its Table 11 where that has it too."""

    batch_size: int
    memory: float
    """GB of all GPUs together."""
    days: float
    per_gpu: float | None
    """GB (Table 11)."""
    hours: float | None


Costs = dict[ObjectiveName, Cost]


@in_style
def draw_cost(
    runs: list[str] | None = None,
    /,
    out: Path = Path("cost"),
    methods: list[str] | None = None,
    backbone: str = "resnet50",
    batch_size: int = 8,
    size: int = 224,
    rounds: int = 3,
    device: str = "auto",
    trust_remote_code: bool = False,
) -> list[Path]:
    """Measure the memory and time of a step under SIM, BSIM and WBSIM, and draw them beside the paper's.

    Args:
        runs: Folders of runs whose method, backbone, batch and size are measured.
        out: Name of the figure: OUT.png and OUT.svg are written.
        methods: Methods, if no runs are given; by default those of the paper's tables: mocov2, byol and swav.
        backbone: Backbone, if no runs are given.
        batch_size: Images per step, if no runs are given; the paper has 32 (MoCo), 256 (BYOL) and 64 (SwAV) per GPU.
        size: Image size in pixels, if no runs are given.
        rounds: Steps of each that are timed, in turn, after one to warm up.
        device: Device: cpu, cuda, mps, or auto, which takes an accelerator where there is one.
        trust_remote_code: Call the factory of a custom backbone that a run's file names. That runs its code.

    Example:
        >>> tiny = {"backbone": "small", "batch_size": 4, "size": 16, "rounds": 1}
        >>> paths = draw_cost(methods=["mocov2"], **tiny)  # doctest: +ELLIPSIS
        Relative to SIM...wrote cost.png and cost.svg
    """
    if rounds < 1 or batch_size < 2:
        raise ValueError(f"rounds must be at least 1 and batch_size at least 2, got {rounds} and {batch_size}")
    opened = open_runs(runs) if runs else []
    if opened:
        setups = [setup_of(run) for run in opened]
        for run in opened:
            named = {name: run.config.get(name) for name in ("backbone", "method")}
            require_consent(named, str(run.path / "config.yaml"), trust_remote_code)
    else:
        setups = [Setup(method, backbone, batch_size, size) for method in methods or ["mocov2", "byol", "swav"]]
    setups = list(dict.fromkeys(setups))
    place = pick_device(device)
    with bar("steps", len(setups) * len(OBJECTIVES) * (rounds + 2)) as advance:
        measured = {setup: measure(setup, place, rounds, advance) for setup in setups}
    console = Console(highlight=False)
    for table in (ratios(measured), amounts(measured, place), papers_tables(), recorded(opened)):
        if table.row_count:
            console.print(table, "")
    return draw(measured, place, out)


def setup_of(run: ReportRun) -> Setup:
    """The step of a run on one device: with gradient accumulation, one micro-batch."""
    config = run.config
    wanted = {"method": run.method, **{name: config.get(name) for name in ("backbone", "batch_size", "size")}}
    for name, value in wanted.items():
        if value in (None, "auto"):
            raise ValueError(f"{run.path} does not say its {name}, without which its cost is not known: leave it out")
    batch = config["batch_size"] // (config.get("accumulate_grad_batches") or 1)
    return Setup(str(run.method), config["backbone"], max(2, batch), config["size"])


def measure(
    setup: Setup, device: torch.device, rounds: int, advance: Advance = lambda amount: None
) -> dict[ObjectiveName, Cost]:
    """The cost of each objective; steps are timed in turn, so that what else the machine does meets all of them."""
    torch.manual_seed(0)
    built = backbones.build(setup.backbone, size=setup.size)
    config = method_config(setup.method)
    method = build_method(config, built, RunLength(images=8192, steps=1000, batch_size=setup.batch_size)).to(device)
    optimizer = build_optimizer(method, OptimizerConfig(name=config.optimizer), setup.batch_size)
    views = list(torch.rand(method.num_views or 2, setup.batch_size, 3, setup.size, setup.size, device=device))
    objectives = {name: build_objective(name, MixingConfig()) for name in OBJECTIVES}
    seconds: dict[ObjectiveName, list[float]] = {name: [] for name in OBJECTIVES}
    for number in range(rounds + 1):
        for name, objective in objectives.items():
            synchronize(device)
            start = time.perf_counter()
            take_step(method, optimizer, objective, views)
            synchronize(device)
            if number:  # the first warms up
                seconds[name].append(time.perf_counter() - start)
            advance(1)
    costs: Costs = {}
    for name, objective in objectives.items():  # last, when the optimizer has its state
        if device.type == "cuda":
            step = partial(take_step, method, optimizer, objective, views)
            memory, reserved = device_memory(step, device)
            costs[name] = Cost(memory, reserved, seconds[name])
        else:
            costs[name] = Cost(peak_activations(method, objective, views), None, seconds[name])
        advance(1)
    return costs


def device_memory(step: Callable[[], None], device: torch.device) -> tuple[int, int]:
    """The peak that a CUDA device reports for a step: bytes allocated, and bytes that its allocator reserved."""
    torch.cuda.empty_cache()  # what an earlier step had reserved would count again
    allocated = peak_memory(step, device)
    return allocated, torch.cuda.max_memory_reserved(device)


def take_step(method: Method, optimizer: torch.optim.Optimizer, objective: Objective, views: Views) -> None:
    """One step of training, reading images apart."""
    terms = objective.draw(views[0], mixture_generators(0, 0))
    _, targets = backward(method, views, terms)
    optimizer.step()
    optimizer.zero_grad()
    method.update(targets, progress=0.0)


# --- the paper's ------------------------------------------------------------------------------------------------------


def published(method: str) -> dict[ObjectiveName, PaperCost]:
    """The paper's cost of a method under each objective that its tables have."""
    per_gpu, total = (table_of(number) for number in (11, 12))
    costs: dict[ObjectiveName, PaperCost] = {}
    for objective in OBJECTIVES:
        name = PAPER_NAMES.get(method, "") + SUFFIXES[objective]
        for _, batch, memory, days in (row for row in total.rows if row[0] == name):
            in_table = name in per_gpu.columns
            costs[objective] = PaperCost(
                int(batch),
                float(memory),
                float(days),
                float(per_gpu.cell("Memory(G)", name)) if in_table else None,
                float(per_gpu.cell("Cost (Hour)", name)) if in_table else None,
            )
    return costs


def table_of(number: int) -> paper.PaperTable:
    """A table of the paper by its number."""
    return next(table for tables in paper.tables().values() for table in tables if table.number == number)


def paper_ratios(costs: dict[ObjectiveName, PaperCost], objective: ObjectiveName) -> tuple[float | None, float | None]:
    """Memory and time of an objective relative to SIM; None where the paper has none, or of another batch."""
    if objective not in costs:
        return None, None
    this, base = costs[objective], costs["sim"]
    return this.memory / base.memory if this.batch_size == base.batch_size else None, this.days / base.days


# --- tables -----------------------------------------------------------------------------------------------------------


def new_table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left", box=None, padding=(0, 2, 0, 0))
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position < 2 else "right")
    return table


def ratios(measured: dict[Setup, Costs]) -> Table:
    """The comparable part: each objective relative to SIM, here and in the paper."""
    table = new_table(
        "Relative to SIM: here and in the paper", "method", "", "memory, here", "paper", "time, here", "paper"
    )
    for setup, costs in measured.items():
        theirs = published(setup.method)
        for objective in OBJECTIVES[1:]:
            memory, days = paper_ratios(theirs, objective)
            table.add_row(
                setup.method if objective == "bsim" else "",
                objective.upper(),
                f"{costs[objective].memory / costs['sim'].memory:.2f}",
                "-" if memory is None else f"{memory:.2f}",
                f"{costs[objective].median / costs['sim'].median:.2f}",
                "-" if days is None else f"{days:.2f}",
            )
    table.caption = (
        "-: the paper has none, or of another batch size (BYOL-WBSIM: 1024). The paper holds the activations of both "
        "terms of WBSIM at once; here one goes backward before the other is computed."
    )
    return table


def amounts(measured: dict[Setup, Costs], device: torch.device) -> Table:
    """The measurements on this machine."""
    memory = "peak (reserved)" if device.type == "cuda" else "activations held"
    kind = "GPU" if device.type == "cuda" else device.type.upper()
    table = new_table(
        f"Measured here, on one {device_name(device)}",
        *("method", "", "batch", memory, "step", "range", f"{kind} days"),
    )
    for setup, costs in measured.items():
        for objective, what in zip(OBJECTIVES, (setup.method, setup.backbone, f"{setup.size} px"), strict=True):
            each = costs[objective]
            table.add_row(
                what,
                objective.upper(),
                str(setup.batch_size),
                format_bytes(each.memory) + ("" if each.reserved is None else f" ({format_bytes(each.reserved)})"),
                f"{each.median:.3g} s",
                f"{min(each.seconds):.3g} – {max(each.seconds):.3g}",
                f"{each.days(setup.batch_size):.3g}",
            )
    of = "what the device reports" if device.type == "cuda" else "counted, without weights: not what a GPU reports"
    table.caption = (
        f"Memory: {of}. Step: the median, with the optimizer and without reading images. {kind} days: of 200 epochs of "
        "ImageNet. Other than ratios, nothing here compares with the paper's V100s"
        + (" unless this is one." if device.type == "cuda" else ".")
    )
    return table


def papers_tables() -> Table:
    """Both of the paper's tables, joined."""
    table = new_table(
        "The paper's Tables 11 and 12, 200 epochs of ImageNet on V100s",
        *("method", "", "batch", "all GPUs", "GPU days", "each GPU", "hours"),
    )
    for name, method in (("MoCo", "mocov2"), ("BYOL", "byol"), ("SwAV", "swav")):
        for objective, row in published(method).items():
            table.add_row(
                name if objective == "sim" else "",
                objective.upper(),
                str(row.batch_size),
                f"{row.memory:g} GB",
                f"{row.days:g}",
                "-" if row.per_gpu is None else f"{row.per_gpu:g} GB",
                "-" if row.hours is None else f"{row.hours:g}",
            )
    table.caption = (
        "8 V100-32G, SwAV 64 V100-16G. BYOL's 4096 are two accumulated batches of 2048. SwAV's days are those of its "
        "published run with multi-crop, which mixview has not."
    )
    return table


def recorded(runs: list[ReportRun]) -> Table:
    """The time that the runs themselves recorded, on any machine."""
    table = new_table("Recorded by the runs, images and evaluations included", "run", "", "batch", "step")
    for run in runs:
        steps = run.status.get("step")
        if run.seconds and steps:
            objective, batch = (run.config.get(name, "?") for name in ("objective", "batch_size"))
            table.add_row(
                to_rich_text(run.name),
                to_rich_text(f"{run.method}, {objective}"),
                to_rich_text(batch),
                f"{run.seconds / steps:.3g} s",
            )
    return table


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper()


# --- figure -----------------------------------------------------------------------------------------------------------


class Bar(NamedTuple):
    """One bar: its length, None for none, and what stands beside it."""

    ratio: float | None
    text: str


def draw(measured: dict[Setup, Costs], device: torch.device, out: Path) -> list[Path]:
    """Memory and time relative to SIM, each setup above the paper's row of the same method, which is hatched."""
    rows = [row for setup, costs in measured.items() for row in rows_of(setup, costs, device)]
    figure = new_figure(10, 1.3 + 0.75 * len(rows))
    panels = figure.subplots(1, 2)
    memory = "peak on the device" if device.type == "cuda" else "activations held"
    for axes, title, which in (
        (panels[0], f"Memory ({memory}), SIM = 1", 0),
        (panels[1], "Time, SIM = 1", 1),
    ):
        draw_bars(axes, [(bars[which], hatched) for _, bars, hatched in rows])
        axes.set_yticks(range(len(rows)), [label for label, _, _ in rows] if which == 0 else [""] * len(rows))
        axes.set_title(title)
    title = f"solid: measured here, on one {device_name(device)}; hatched: the paper's, on V100s. Only ratios compare."
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles[:3], names[:3], loc="outside lower center", ncols=3, title=title, title_fontsize=8)
    return save(figure, out)


def rows_of(setup: Setup, costs: Costs, device: torch.device) -> list[tuple[str, tuple[list[Bar], list[Bar]], bool]]:
    """The row of a setup and the paper's of its method: a label, bars of memory and time, whether it is the paper's."""
    base, batch = costs["sim"], setup.batch_size
    memory = [Bar(costs[each].memory / base.memory, format_bytes(costs[each].memory)) for each in OBJECTIVES]
    times = [
        f"{costs[each].days(batch):.3g} GPU days" if device.type == "cuda" else f"{costs[each].median:.3g} s per step"
        for each in OBJECTIVES
    ]
    spent = [Bar(costs[each].median / base.median, text) for each, text in zip(OBJECTIVES, times, strict=True)]
    rows = [(f"{setup.method}, {setup.backbone}\nbatch {batch}, {setup.size} px", (memory, spent), False)]
    if theirs := published(setup.method):
        name, devices = PAPER_NAMES[setup.method], 64 if setup.method == "swav" else 8
        where = "Table 12" if theirs["sim"].per_gpu is None else "Tables 11, 12"
        bars = [paper_bars(theirs, objective, devices) for objective in OBJECTIVES]
        label = f"the paper's {name} ({where})\nbatch {theirs['sim'].batch_size}, {devices} V100s"
        rows.append((label, ([each[0] for each in bars], [each[1] for each in bars]), True))
    return rows


def paper_bars(costs: dict[ObjectiveName, PaperCost], objective: ObjectiveName, devices: int) -> tuple[Bar, Bar]:
    """The paper's memory and time of an objective."""
    if objective not in costs:
        return Bar(None, "not in the paper"), Bar(None, "not in the paper")
    row, (memory, days) = costs[objective], paper_ratios(costs, objective)
    held = f"{row.memory:g} GB" + ("" if row.per_gpu is None else f" = {devices} × {row.per_gpu:g}")
    held += "" if memory is not None else f" at batch {row.batch_size}: no ratio"
    spent = f"{row.days:g} GPU days" + ("" if row.hours is None else f", {row.hours:g} h")
    return Bar(memory, held), Bar(days, spent)


def draw_bars(axes: Axes, rows: list[tuple[list[Bar], bool]]) -> None:
    """Three bars per row, with ratio and amount beside each."""
    for place, name in enumerate(OBJECTIVES):
        at = np.arange(len(rows)) + 0.27 * (place - 1)
        bars = axes.barh(
            at, [bars[place].ratio or 0.0 for bars, _ in rows], 0.25, color=COLORS[place], label=name.upper()
        )
        for patch, y, (each, hatched) in zip(bars.patches, at, rows, strict=True):
            if hatched:
                patch.set(hatch="////", edgecolor="white", linewidth=0)
            ratio, text = each[place]
            label = text if ratio is None else f"{ratio:.2f}  ({text})"
            axes.annotate(
                *(label, (ratio or 0.0, y), (3, 0)),
                textcoords="offset points",
                va="center",
                fontsize=7,
                color="black" if ratio else PALE,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )
    axes.axvline(1, color=PALE, linewidth=0.6, zorder=0)
    axes.set_xlim(0, 1.5 * max(bar.ratio or 0.0 for bars, _ in rows for bar in bars))
    axes.invert_yaxis()
