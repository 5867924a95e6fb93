"""Results of runs: one line each in the results.jsonl of their study, which stays when the run directories are removed.

A result counts for a run if both have the same settings: those of pretraining with all defaults, the images that are
evaluated with, and the evaluations. What the run is called does not matter, so studies share the runs that both ask
for. A setting that mixview got later does not make a result stale, a setting or a default that has changed does; a
setting that was renamed is translated (`mixview.experiments.renames`).
"""

import errno
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from mixview.experiments import evaluations
from mixview.experiments.file_names import digest
from mixview.experiments.renames import FORMAT, SHARED_OPTIONS, translate
from mixview.experiments.study_run import StudyRun, default_settings
from mixview.io.atomic import open_regular, sync
from mixview.io.records import (
    MAX_METRICS,
    Amount,
    NonNegativeInt,
    Number,
    RecordError,
    Whole,
    fit,
    format_version,
    parse,
    read_bytes,
)
from mixview.runs.run_directory import wait_for_lock

FILE = "results.jsonl"
MAX_RUNS = 100_000
"""Runs of one study, and results in one file."""
MAX_FAULTS = 5
"""Damaged lines of one file that are described; further ones are counted."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """One run, trained and evaluated."""

    version: int = FORMAT
    """The format of the record that it was read from."""
    data: str
    method: str
    variant: str
    objective: str
    seed: Whole
    metrics: dict[str, float]
    """By column, in percent."""
    evaluate: dict[str, dict[str, Any]]
    """By column: protocol, metric and options, as in the study."""
    eval_data: dict[str, Any]
    """The images that it was evaluated with: data, train, test …"""
    evaluated: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By column: every setting of the protocol."""
    steps: NonNegativeInt = 0
    images_seen: NonNegativeInt = 0
    """Images over all steps, each as often as it was seen."""
    passes: tuple[Amount, Amount] = (0, 0)
    """Encoder passes per step (grad, no grad)."""
    cpu_seconds: Amount = 0.0
    """CPU time of the training steps."""
    evaluation_seconds: Amount = 0.0
    """CPU time of all evaluations."""
    curve: list[tuple[NonNegativeInt, Number]] = field(default_factory=list)
    """(step, k-NN accuracy in percent) during training."""
    collapse_metrics: dict[str, Number] = field(default_factory=dict)
    """Standard deviation, effective rank … at the last online evaluation."""
    descriptions: dict[str, str] = field(default_factory=dict)
    """The description of each column's measurement."""
    warnings: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    """Resolved, under dotted names."""
    images: dict[str, Any] = field(default_factory=dict)
    """The training images: fingerprint, count."""
    versions: dict[str, Any] = field(default_factory=dict)
    cpu: str = ""
    plan: str = ""
    """The hash of the plan that its study had, if there was one."""
    began: str = ""
    """The start of its training, or of its evaluation if nothing was trained."""
    made: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def group(self) -> tuple[str, str, str]:
        return self.data, self.method, self.variant

    @property
    def work(self) -> float:
        """Forward passes of one image, one backward counted as two: compute that does not depend on the machine."""
        return (3 * self.passes[0] + self.passes[1]) * float(self.images_seen)

    @cached_property
    def identity(self) -> str:
        """The same for every study that shares this result."""
        return digest([self.settings, self.eval_data, self.evaluate])


Records = Mapping[str, list[RunResult]]
"""Results by study."""


def path_of(study: str, out: Path, machine: str | None = None) -> Path:
    """The file with the results of a study, or with those of one of several machines that run it."""
    return out / study / (FILE if machine is None else f"results-{machine}.jsonl")


def check_writable(path: Path) -> None:
    """Raise OSError if results cannot be appended: better now than after hours of training."""
    path.parent.mkdir(parents=True, exist_ok=True)
    open_regular(path, "a").close()


def append(result: RunResult, path: Path) -> None:
    """Add a result to a file, safely against other processes that do the same, and against half a line at its end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(asdict(replace(result, version=FORMAT)), ensure_ascii=False).encode() + b"\n"
    with open_regular(path, "a") as file:
        wait_for_lock(file, seconds=0.05)
        if os.fstat(file.fileno()).st_size:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = b"\n" + line  # a process was killed here
        if file.write(line) != len(line):
            raise OSError(errno.ENOSPC, "there is no space left for the result", str(path))
        sync(file.fileno())


def read(path: Path, faults: list[str]) -> list[RunResult]:
    """The results in a file, oldest first.

    Args:
        path: the file; if there is none, there are no results.
        faults: a list that gets a sentence for everything that cannot be read and is left out.
    """
    if not os.path.lexists(path):
        return []
    try:
        content = read_bytes(path, MAX_METRICS)
    except RecordError as error:
        faults.append(str(error))
        return []
    if content.count(b"\n") > MAX_RUNS:  # before they fill the memory
        faults.append(f"{path} cannot be read: it has more than {MAX_RUNS:,} lines; restore it, or remove it")
        return []
    *lines, rest = content.split(b"\n")
    results: list[RunResult] = []
    damaged: list[str] = []
    for number, line in enumerate(lines, start=1):
        try:
            results.append(parse_line(path, line))
        except RecordError as error:
            damaged.append(f"line {number} of {path} cannot be read ({error.reason})")
    if rest:
        damaged.append(f"the last line of {path} is incomplete: it is being written, or its process was killed")
    faults += damaged[:MAX_FAULTS]
    if len(damaged) > MAX_FAULTS:
        faults.append(f"{len(damaged) - MAX_FAULTS:,} further lines of {path} cannot be read")
    return results


def parse_line(path: Path, line: bytes) -> RunResult:
    """The result in a line, in the names of the newest format."""
    try:
        content = parse(path, line.decode())
    except UnicodeDecodeError:
        raise RecordError(path, "it is not text") from None
    version = format_version(path, content, FORMAT)
    return fit(path, translate(content, version), RunResult)


def read_all(out: Path, faults: dict[str, list[str]] | None = None) -> Records:
    """The results of all studies in a folder.

    Args:
        out: the folder.
        faults: lists by study that get a sentence for everything that cannot be read and is left out.
    """
    faults = {} if faults is None else faults
    folders = sorted(path for path in out.iterdir() if path.is_dir()) if out.is_dir() else []
    return {folder.name: read_study(folder, faults.setdefault(folder.name, [])) for folder in folders}


def read_study(folder: Path, faults: list[str]) -> list[RunResult]:
    """The results in the folder of a study, oldest first: those of all machines that share it."""
    results = read(folder / FILE, faults)
    machines = sorted(folder.glob("results-*.jsonl"))
    if machines:
        results += [result for path in machines for result in read(path, faults)]
        results.sort(key=lambda result: result.made)
    return results


def merge(folder: Path) -> int:
    """Move the results of all machines in the folder of a study to its one file; returns how many were new."""
    faults: list[str] = []
    known = {digest(asdict(result)) for result in read(folder / FILE, faults)}
    paths = sorted(folder.glob("results-*.jsonl"))
    results = [result for path in paths for result in read(path, faults)]
    if faults:
        raise ValueError(f"{faults[0]}: correct or remove this line first, so that nothing is lost")
    new = [result for result in results if digest(asdict(result)) not in known]  # a merge may have been killed
    for result in sorted(new, key=lambda result: result.made):
        append(result, folder / FILE)
    for path in paths:
        path.unlink()
    return len(new)


def match(runs: Iterable[StudyRun], records: Records) -> dict[str, RunResult]:
    """Existing results by the name of their run, under the labels of the study."""
    pairs = ((run, match_one(run, records)) for run in runs)
    return {run.name: result for run, result in pairs if result is not None}


def match_one(run: StudyRun, records: Records) -> RunResult | None:
    """The newest result of a run: of its own study, or else of another."""
    for study in sorted(records, key=lambda name: (name != run.study, name)):
        for result in reversed(records[study]):
            columns = matching_columns(result, run) if has_settings_of(result, run) else None
            if columns is not None:
                return relabel(result, run, columns)
    return None


def find(run: StudyRun, out: Path) -> RunResult | None:
    """The result of a run in a folder of studies."""
    return match_one(run, read_all(out))


def has_settings_of(result: RunResult, run: StudyRun) -> bool:
    """Return True if a result has the current settings and images of a run."""
    if result.seed != run.seed or result.eval_data != run.eval_data:
        return False
    now, defaults = run.resolved, default_settings(run)
    if any(result.settings.get(name, defaults.get(name)) != value for name, value in now.items()):
        return False
    gone = [name for name, value in result.settings.items() if name not in now and value is not None]
    shared = SHARED_OPTIONS.get(result.version)
    return all(shared is not None and name.startswith(shared) for name in gone)


def matching_columns(result: RunResult, run: StudyRun) -> dict[str, str] | None:
    """The column of a result for each column of a run, by what is measured; None unless it has all of them."""
    columns: dict[str, str] = {}
    for column, evaluation in run.evaluate.items():
        for own, options in result.evaluate.items():
            same = options == evaluation and not evaluated_otherwise(result.evaluated.get(own, {}), evaluation)
            if same and own in result.metrics:
                columns[column] = own
                break
        else:
            return None
    return columns


def evaluated_otherwise(then: dict[str, Any], evaluation: dict[str, Any]) -> bool:
    """Return True if a default of the protocol has changed since a column was measured."""
    now = evaluations.defaults(evaluation["protocol"])
    unset = [name for name in then if name in now and name not in ("size", *evaluation)]
    return any(now[name] not in (then[name], "auto") for name in unset)  # a result has what "auto" was resolved to


def relabel(result: RunResult, run: StudyRun, columns: Mapping[str, str]) -> RunResult:
    """A result under the labels of a run."""

    def rename(values: dict[str, Any]) -> dict[str, Any]:
        others = {column: value for column, value in values.items() if column not in columns.values()}
        return others | {column: values[own] for column, own in columns.items() if own in values}

    return replace(
        result,
        data=run.data,
        method=run.method,
        variant=run.variant,
        objective=run.objective,
        metrics=rename(result.metrics),
        descriptions=rename(result.descriptions),
    )
