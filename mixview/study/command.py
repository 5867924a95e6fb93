"""`mixview study …`: run a study, or go on with it; show what is there; list the studies that have a name."""

import os
import sys
from pathlib import Path
from urllib.parse import quote

import yaml  # type: ignore[import-untyped, unused-ignore]
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from mixview.atomic import atomic_write
from mixview.backbones import require_consent
from mixview.records import read_text
from mixview.report.document import write_page
from mixview.study import grid, plots, results, tables
from mixview.study.estimate import Estimate
from mixview.study.names import digest
from mixview.study.running import Runner, locked
from mixview.terminal import inline, plain, printable, say
from mixview.train.progress import duration
from mixview.train.stopping import seconds_of
from mixview.yaml_files import parse_yaml

TEXT = "study.yaml"
"""In a study's folder of results: what the study said when it was run last."""


def run(
    study: str,
    data: Path | None = None,
    out: Path = Path("study"),
    runs: Path = Path("runs/study"),
    cores: int = 1,
    max_time: str | None = None,
    keep_runs: bool = False,
    dry_run: bool = False,
    seeds: list[int] | None = None,
    trust: bool = False,
) -> None:
    """Run the cells of a study that are not done yet, several at a time; then write tables and pictures.

    Args:
        study: its name (`mixview study list`), or a YAML file of yours.
        data: the folder of data sets that names such as cifar10 are found in; by default what MIXVIEW_DATA says.
        out: the folder of results: one small file a cell, tables, pictures.
        runs: where the runs go, which are large: each is removed once it is judged.
        cores: cells that run at a time, each on one core.
        max_time: stop in good order after this time: 45m, 1h30m; the same command goes on.
        keep_runs: keep the folders of the runs.
        dry_run: only list the cells, which of them are done, and what the rest will cost.
        seeds: run these seeds of the study only.
        trust: import a backbone of your own that the study names. That runs its code.
    """
    if data is not None:
        os.environ["MIXVIEW_DATA"] = str(data.resolve())
    whole = grid.read(study)
    require_consent(whole.text, f"the study {study}", trust)
    chosen = whole if seeds is None else only_seeds(whole, seeds)
    if dry_run:
        list_cells(chosen, out)
        return
    limit = seconds_of(max_time)
    folder = out / whole.name
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        with atomic_write(folder / TEXT) as file:
            file.write(yaml.safe_dump(whole.text, sort_keys=False, allow_unicode=True).encode())
        try:
            complete = Runner(chosen, out, runs, cores, keep_runs, limit).run()
        finally:
            _, page = write_report(out)
    say(f"{'complete' if complete else 'not complete yet: the same command goes on'}; wrote {page}")


def only_seeds(study: grid.Study, seeds: list[int]) -> grid.Study:
    """The study with the cells of these seeds alone."""
    known = {cell.seed for cell in study.cells}
    if strange := sorted(set(seeds) - known):
        raise ValueError(f"{study.name} has no seed {strange[0]}: it has {', '.join(map(str, sorted(known)))}")
    cells = tuple(cell for cell in study.cells if cell.seed in seeds)
    return grid.Study(study.name, study.text, cells, study.baseline, study.about)


def list_cells(study: grid.Study, out: Path) -> None:
    """Every cell, whether it is done, and its cost."""
    done = results.found(study.cells, out)
    estimate = Estimate(study.cells, done.values())
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("cell", overflow="fold")  # the end of a name says what it is: it is never cut off
    for head in ("epochs", "passes with, without gradient", "core time"):
        table.add_column(head)
    for cell in study.cells:
        cost = "done" if cell.name in done else duration(estimate.seconds([cell]))
        epochs = str(cell.epochs) if cell.encoder is None else cell.encoder
        table.add_row(cell.name, plain(epochs), f"{cell.passes.with_gradient}, {cell.passes.without}", cost)
    Console(highlight=False, width=None if sys.stdout.isatty() else 160).print(table)
    todo = [cell for cell in study.cells if cell.name not in done]
    say(f"{len(study.cells)} cells, {len(done)} done; about {duration(estimate.seconds(todo))} of a core to go")


def show(folder: Path) -> None:
    """Write the tables and pictures of all studies in a folder anew from their results, and print the tables.

    They are in results.md, and in results.html, one page for a browser that needs no other file.

    Args:
        folder: the --out of the studies.
    """
    written, page = write_report(folder)
    console = Console()
    text = written.read_text(encoding="utf-8")
    if console.is_terminal:
        console.print(Markdown(printable(text, keep="\n")))
    else:
        say(text)
    say(f"wrote {written} and {page}")


def list_studies() -> None:
    """The studies that have a name: what they ask, their size and what they cost."""
    table = Table("study", "what", "cells", "cost", box=None, padding=(0, 2, 0, 0))
    for name in grid.names():
        study = grid.read(name)
        what, cost = (plain(study.about.get(key, "")) for key in ("what", "cost"))
        table.add_row(name, what, str(len(study.cells)), cost)
    Console(highlight=False).print(table)


def write_report(out: Path) -> tuple[Path, Path]:
    """Tables of every study that has results in this folder, with their pictures: results.md, and results.html."""
    folders = sorted(path.parent for path in out.glob(f"*/{TEXT}"))
    if not folders:
        raise ValueError(
            f"there are no studies in {out}: run one first, with mixview study run paper-small --out {out}"
        )
    parts: list[str] = []
    ran: dict[str, results.CellResult] = {}  # each once: studies share what two of them ask for
    for folder in folders:
        try:
            text, found = report_of(folder, out)
            parts += text
            ran |= found
        except Exception as error:  # one that is broken, in whatever way, does not cost the others
            words = " ".join(str(error).split()) or type(error).__name__
            told = f"**Cannot be shown**: {inline(words)} (in {inline(folder.name)}/{TEXT})"
            parts += [f"## {inline(folder.name)}", "", told, ""]
            say(f"{folder / TEXT} cannot be shown: {words}", file=sys.stderr)
    spent = f"All studies together: {len(ran)} cells, {tables.core_hours(ran.values()):.1f} core-hours."
    parts = ["# What the studies found", "", "Written by `mixview study show`; do not edit.", "", spent, "", *parts]
    path = out / "results.md"
    with atomic_write(path) as file:
        file.write("\n".join(parts).rstrip().encode() + b"\n")
    return path, write_page(path)


def report_of(folder: Path, out: Path) -> tuple[list[str], dict[str, results.CellResult]]:
    """The part of results.md of one study, and its results by what was run and asked; draws its pictures."""
    text = read_text(folder / TEXT)
    study = grid.expand(folder.name, parse_yaml(text, TEXT))
    faults: dict[str, None] = {}
    found = results.found(study.cells, out, faults)
    parts = [
        tables.render(study, found),
        *(line for fault in faults for line in (f"**Left out**: {inline(fault)}", "")),
    ]
    for fault in faults:
        say(f"left out: {fault}", file=sys.stderr)
    try:
        pictures = plots.draw(study, found, folder)
    except Exception as error:  # of matplotlib, over figures that are too odd to draw: the tables have them
        parts += [f"**Its pictures cannot be drawn**: {inline(error)}", ""]
        pictures = {}
    for picture, words in pictures.items():
        parts += [f"![{inline(study.name)}: {words}]({quote(picture.relative_to(out).as_posix())})", ""]
    pairs = [(cell.key, found[cell.name]) for cell in study.cells if cell.name in found]
    return parts, {digest([key, result.evaluate]): result for key, result in pairs}
