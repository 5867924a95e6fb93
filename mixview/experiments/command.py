"""`mixview study …`: run or resume a study, show the results, list the studies that come with mixview."""

import contextlib
import itertools
import os
import re
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from mixview.experiments import definitions
from mixview.io.terminal import escape_control_chars, inline, say, to_rich_text

if TYPE_CHECKING:
    from mixview.experiments.results import Records, RunResult
    from mixview.experiments.spec import Study

MACHINE = re.compile("[A-Za-z0-9][A-Za-z0-9.-]{0,50}")
STUDY_FILE = "study.yaml"
"""The file in a study's folder with its YAML as of its last run."""


def run_study(
    study: str,
    data: Path | None = None,
    out: Path = Path("study"),
    runs: Path = Path("runs/study"),
    cores: int = 1,
    max_time: str | None = None,
    keep_runs: bool = False,
    dry_run: bool = False,
    measure: bool = False,
    seeds: list[int] | None = None,
    only: str | None = None,
    machine: str | None = None,
    trust_remote_code: bool = False,
) -> None:
    """Run what is left of a study, several runs at a time, and write its tables and plots.

    Args:
        study: Name of the study (`mixview study list`), or a YAML file of your own.
        data: Folder of the datasets that names such as cifar10 refer to; by default MIXVIEW_DATA.
        out: Folder for the results: one results.jsonl per study, tables, plots.
        runs: Folder for the run directories, which are large: each is removed once it is evaluated.
        cores: Number of runs at a time, each on one core.
        max_time: Stop gracefully after this time: 45m, 1h30m; the same command resumes.
        keep_runs: Keep the run directories.
        dry_run: List the runs, which of them are done, and the estimated cost of the rest; run nothing.
        measure: With dry_run, try a few steps and an evaluation of each new kind of run, for a better estimate.
        seeds: Seeds to run; by default all of the study.
        only: Text that the names of the runs must contain, such as imagenette-moco-v2; --dry_run lists the names.
        machine: Name of this machine, where several share the folder of results. Each takes runs that no other has
            and writes results-NAME.jsonl; `mixview study merge` merges these files.
        trust_remote_code: Import the custom methods, mixers, protocols and backbones that the study names. That runs
            their code.

    Example:
        >>> run_study("paper-small", out=Path("study"), dry_run=True)  # doctest: +ELLIPSIS
        run ...106 runs, 0 done; about ... of CPU time left
    """
    import yaml  # type: ignore[import-untyped, unused-ignore]

    from mixview.experiments import results, spec
    from mixview.experiments.runner import Runner, locked
    from mixview.io.atomic import atomic_write
    from mixview.runs.graceful_stop import seconds_of

    if data is not None:
        os.environ["MIXVIEW_DATA"] = str(data.resolve())
    if machine is not None and not MACHINE.fullmatch(machine):
        raise ValueError(f"--machine should be letters, digits, dots and dashes, got {machine!r}")
    full_study = spec.read(study, results.read_all(out), trust_remote_code=trust_remote_code)
    chosen = full_study if seeds is None else only_seeds(full_study, seeds)
    if only is not None:
        chosen = replace(chosen, runs=tuple(run for run in chosen.runs if only in run.name))
    if dry_run:
        list_runs(chosen, out, runs / full_study.name if measure else None)
        return
    limit = seconds_of(max_time)
    folder = out / full_study.name
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder) if machine is None else contextlib.nullcontext():
        with atomic_write(folder / STUDY_FILE) as file:
            file.write(yaml.safe_dump(full_study.definition, sort_keys=False, allow_unicode=True).encode())
        try:
            runner = Runner(chosen, out, runs, cores, keep_runs, limit, trust_remote_code, machine)
            complete = runner.run() and not chosen.waiting
        finally:
            _, page = write_report(out, trusted=[full_study.name] if trust_remote_code else [])
    say(f"{'complete' if complete else 'not complete yet: the same command resumes'}; wrote {page}")


def only_seeds(study: "Study", seeds: list[int]) -> "Study":
    """The study with the runs of these seeds alone."""
    available = {run.seed for run in study.runs}
    if unknown := sorted(set(seeds) - available):
        raise ValueError(f"{study.name} has no seed {unknown[0]}: it has {', '.join(map(str, sorted(available)))}")
    return replace(study, runs=tuple(run for run in study.runs if run.seed in seeds))


def list_runs(study: "Study", out: Path, place: Path | None = None) -> None:
    """Print every run, whether it is done, and its cost.

    Args:
        study: the study.
        out: the folder of results.
        place: a folder for runs that are only measured; by default, none are.
    """
    from rich.console import Console
    from rich.table import Table

    from mixview.experiments import results
    from mixview.experiments.cost import Estimate
    from mixview.experiments.cost import measure as measure_run
    from mixview.experiments.runner import Runner
    from mixview.runs.progress import duration

    records = results.read_all(out)
    done = results.match(study.runs, records)
    estimate = Estimate(study.runs, done, itertools.chain.from_iterable(records.values()))
    for run in study.runs:
        if place is not None and run.name not in done and not estimate.knows(run):
            measured = measure_run(run, place, Runner.command)
            if measured is not None:
                estimate.own.learn(measured)
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("run", overflow="fold")  # names differ at their ends: they are never cut off
    for head in ("epochs", "encoder passes (grad / no grad)", "CPU time"):
        table.add_column(head)
    for run in study.runs:
        cost = "done" if run.name in done else duration(estimate.seconds([run]))
        epochs = str(run.epochs) if run.encoder is None else run.encoder
        table.add_row(
            run.name, to_rich_text(epochs), f"{run.passes.with_gradient:.3g} / {run.passes.without:.3g}", cost
        )
    Console(highlight=False, width=None if sys.stdout.isatty() else 160).print(table)
    todo = [run for run in study.runs if run.name not in done]
    say(f"{len(study.runs)} runs, {len(done)} done; about {duration(estimate.seconds(todo))} of CPU time left")
    for part in study.waiting:
        say(f"waits for {part}")


def show(folder: Path, trust_remote_code: bool = False) -> None:
    """Write the tables and plots of all studies in a folder from their results, and print the tables.

    The tables go to results.md, and to results.html, a page that needs no other file.

    Args:
        folder: Folder of the results (the --out of the studies).
        trust_remote_code: Import the custom methods, mixers and protocols that the studies name. That runs their code.

    Example:
        >>> show(Path("study"))  # doctest: +ELLIPSIS
        # Results of the studies...wrote study/results.md and study/results.html
    """
    from rich.console import Console
    from rich.markdown import Markdown

    trusted = [path.parent.name for path in folder.glob(f"*/{STUDY_FILE}")] if trust_remote_code else []
    written, page = write_report(folder, trusted)
    console = Console()
    text = written.read_text(encoding="utf-8")
    if console.is_terminal:
        console.print(Markdown(escape_control_chars(text, keep="\n")))
    else:
        say(text)
    say(f"wrote {written} and {page}")


def merge_results(folder: Path) -> None:
    """Merge the results of all machines that shared a folder of studies into one file per study.

    Run it when none of the machines is running any more.

    Args:
        folder: Folder of the results (the --out of the studies).

    Example:
        >>> merge_results(Path("study"))  # doctest: +ELLIPSIS
        confirm: ... results merged
    """
    import shutil

    from mixview.experiments import results
    from mixview.experiments.runner import LEASES

    for path in sorted(path.parent for path in folder.glob(f"*/{STUDY_FILE}")):
        count = results.merge(path)
        shutil.rmtree(path / LEASES, ignore_errors=True)
        if count:
            say(f"{path.name}: {count} results merged")


def list_studies() -> None:
    """List the studies that come with mixview: their questions, sizes and costs.

    Example:
        >>> list_studies()  # doctest: +ELLIPSIS
        study ...
    """
    from rich.console import Console
    from rich.table import Table

    table = Table("study", "what", "runs", "cost", box=None, padding=(0, 2, 0, 0))
    for name in definitions.names():
        about = definitions.read_definition(name).get("about", {})
        table.add_row(name, *(to_rich_text(about.get(key, "")) for key in ("what", "runs", "cost")))
    Console(highlight=False).print(table)


def write_report(out: Path, trusted: Collection[str] = ()) -> tuple[Path, Path]:
    """Write the tables of every study in a folder, with their plots: results.md, and results.html.

    Args:
        out: the folder.
        trusted: studies whose code may be imported.
    """
    from mixview.experiments import results, tables
    from mixview.io.atomic import atomic_write
    from mixview.report.document import write_page

    folders = sorted(path.parent for path in out.glob(f"*/{STUDY_FILE}"))
    if not folders:
        raise ValueError(
            f"there are no studies in {out}: run one first, with mixview study run paper-small --out {out}"
        )
    faults: dict[str, list[str]] = {}
    records = results.read_all(out, faults)
    parts: list[str] = []
    by_identity: dict[str, RunResult] = {}  # each once: studies share the runs that both ask for
    for folder in folders:
        try:
            text, own = report_of(folder, records, faults.get(folder.name, []), folder.name in trusted)
            parts += text
            by_identity |= {result.identity: result for result in own}
        except Exception as error:  # a broken study, however it is broken, does not cost the others
            reason = " ".join(str(error).split()) or type(error).__name__
            note = f"**Cannot be shown**: {inline(reason)} (in {inline(folder.name)}/{STUDY_FILE})"
            parts += [f"## {inline(folder.name)}", "", note, ""]
            say(f"{folder / STUDY_FILE} cannot be shown: {reason}", file=sys.stderr)
    total = f"All studies together: {len(by_identity)} runs, {tables.core_hours(by_identity.values()):.1f} core-hours."
    parts = ["# Results of the studies", "", "Written by `mixview study show`; do not edit.", "", total, "", *parts]
    path = out / "results.md"
    with atomic_write(path) as file:
        file.write("\n".join(parts).rstrip().encode() + b"\n")
    return path, write_page(path)


def report_of(
    folder: Path, records: "Records", faults: list[str], trust_remote_code: bool = False
) -> tuple[list[str], list["RunResult"]]:
    """The part of results.md for one study, and its results; draws its plots."""
    from mixview.experiments import plots, results, spec, tables
    from mixview.extensions import require_consent
    from mixview.io.records import read_text
    from mixview.io.yaml_files import parse_yaml

    definition = parse_yaml(read_text(folder / STUDY_FILE), STUDY_FILE)
    require_consent(definition, f"the study {folder.name}", trust_remote_code)
    study = spec.expand(folder.name, definition, records)
    matched = results.match(study.runs, records)
    parts = [
        tables.render(study, matched),
        *tables.other_results(records.get(folder.name, []), matched.values()),
        *(line for fault in faults for line in (f"**Left out**: {inline(fault)}", "")),
    ]
    for fault in faults:
        say(f"left out: {fault}", file=sys.stderr)
    try:
        pictures = plots.draw(study, matched, folder)
    except Exception as error:  # matplotlib's, about values that are too odd to draw: the tables have them
        parts += [f"**Its plots cannot be drawn**: {inline(error)}", ""]
        pictures = {}
    for picture, description in pictures.items():
        address = quote(picture.relative_to(folder.parent).as_posix())
        parts += [f"![{inline(study.name)}: {description}]({address})", ""]
    return parts, list(matched.values())
