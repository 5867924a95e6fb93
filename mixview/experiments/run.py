"""Runs of a study that share an encoder, in a process of their own: pretrain or resume, evaluate, append the results.

python -m mixview.experiments.run [--trust_remote_code] RUNS.json RUN_FOLDER RESULTS.jsonl
"""

import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from mixview.evaluate.base import EvalContext, TrainingStopped
from mixview.experiments import evaluations, results
from mixview.experiments.study_run import ENCODER_PREFIX, StudyRun, from_json
from mixview.extensions import require_consent
from mixview.io.records import flatten
from mixview.io.run_folders import is_run
from mixview.runs.launching import exit_when_orphaned
from mixview.runs.run_directory import (
    RunDirectory,
    describe_environment,
    read_metrics,
    to_serializable,
    wait_for_lock,
)
from mixview.train import pretraining

INTERRUPTED = 75
"""The exit code of a run that was stopped gracefully and is resumed next time (sysexits' "try again")."""

PARENT = "MIXVIEW_STUDY_PROCESS"
"""The environment variable with the process that runs the study: a run ends with it."""

TRUST = "--trust_remote_code"

RESOLVED = ("augment", "cache_size", "method.", "normalize", "precision", "size", "value_range")
"""Settings, or the first part of their names, that a run resolves itself where they are not given."""

COLLAPSE_METRICS = ("std", "effective_rank", "alignment", "uniformity")


def main(arguments: list[str]) -> int:
    """Carry out the runs that a file describes: train their encoder once, and evaluate it for each."""
    runner = os.environ.get(PARENT)
    exit_when_orphaned(parent=None if runner is None else int(runner))
    torch.set_num_threads(1)
    trust_remote_code = TRUST in arguments
    description, folder, result = (Path(each) for each in arguments if each != TRUST)
    runs = from_json(description.read_text(encoding="utf-8"))
    content = [[run.settings, run.evaluate, run.encoders] for run in runs]
    require_consent(content, f"the run {description.name}", trust_remote_code)
    began = datetime.now(UTC).isoformat(timespec="seconds")
    if runs[0].encoder is None:
        if not pretrain(runs[0], folder):
            return INTERRUPTED
        began = str(RunDirectory.open(folder).environment.get("started") or began)
    made: list[results.RunResult] = []
    for run in runs:
        if results.match_one(run, {run.study: made}) is not None:  # another label for the same
            continue
        try:
            made.append(evaluate(run, folder, trust_remote_code=trust_remote_code, began=began))
        except TrainingStopped:
            return INTERRUPTED
        results.append(made[-1], result)
    return 0


def train_encoders(run: StudyRun, place: Path) -> StudyRun | None:
    """The run with the folders of the encoders that it starts from or learns from; None when stopped before.

    The first run that needs an encoder trains it; the others wait.
    """
    folders = {}
    for key, settings in run.encoders.items():
        folder = place / f"encoder-{key}"
        place.mkdir(parents=True, exist_ok=True)
        with (place / f"encoder-{key}.lock").open("a+b") as file:
            wait_for_lock(file, seconds=1)
            first = dataclasses.replace(run, settings=settings, encoders={})
            if not pretrain(first, folder):
                return None
        folders[f"{ENCODER_PREFIX}{key}"] = str(folder.resolve())
    return dataclasses.replace(run, settings=fill_in(run.settings, folders), encoders={})


def fill_in(settings: dict[str, Any], folders: Mapping[str, str]) -> dict[str, Any]:
    """Settings with the folders of encoders in place of their keys."""
    filled: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            filled[name] = fill_in(value, folders)
        else:
            filled[name] = folders.get(str(value), value)
    return filled


def pretrain(run: StudyRun, folder: Path) -> bool:
    """Train to the end, from where an earlier process left off; False when it was stopped before."""
    if run.encoders:
        ready = train_encoders(run, folder.parent)
        return ready is not None and pretrain(ready, folder)
    if folder.exists() and not (is_run(folder) and has_settings_of(run, RunDirectory.open(folder).config)):
        shutil.rmtree(folder)  # killed before it was a run, or begun under other defaults
    if not (is_run(folder) and RunDirectory.open(folder).status.get("state") == "finished"):
        own = run.pretraining
        workers = 0 if own.workers is None else own.workers  # a run has one core
        pretraining.pretrain(dataclasses.replace(own, out=str(folder), resume=is_run(folder), workers=workers))
    return RunDirectory.open(folder).status.get("state") == "finished"


def has_settings_of(run: StudyRun, config: dict[str, Any]) -> bool:
    """Return True if a run directory was started under the current meaning of the run's settings."""
    then = flatten(config, empty=True)
    return all(
        then.get(name) == value
        for name, value in run.resolved.items()
        if value not in (None, "auto") or not name.startswith(RESOLVED)
    )


def evaluate(run: StudyRun, folder: Path, *, trust_remote_code: bool = False, began: str = "") -> results.RunResult:
    """Evaluate the encoder by every column of the run."""
    start = time.process_time()
    metrics: dict[str, float] = {}
    descriptions: dict[str, str] = {}
    evaluated: dict[str, dict[str, Any]] = {}
    warnings: dict[str, None] = {}
    contexts: dict[str, EvalContext] = {}
    for column, evaluation in run.evaluate.items():
        metric = evaluation["metric"]
        result = evaluations.run_column(run, folder, evaluation, contexts, trust_remote_code)
        if metric not in result.metrics:
            raise ValueError(
                f"{column}: {evaluation['protocol']} has no metric {metric!r}: it has {', '.join(result.metrics)}"
            )
        metrics[column] = round(result.metrics[metric], 4)
        descriptions[column] = f"{metric}; {result.description} On {result.data}."
        evaluated[column] = to_serializable(result.settings, column)
        warnings |= dict.fromkeys(result.warnings)
    seconds = time.process_time() - start
    environment = describe_environment()
    return results.RunResult(
        data=run.data,
        method=run.method,
        variant=run.variant,
        objective=run.objective,
        seed=run.seed,
        metrics=metrics,
        evaluate=run.evaluate,
        eval_data=run.eval_data,
        evaluated=evaluated,
        passes=(run.passes.with_gradient, run.passes.without),
        evaluation_seconds=round(seconds, 2),
        descriptions=descriptions,
        warnings=list(warnings),
        settings=run.resolved,
        versions=environment["versions"],
        cpu=environment["cpu"]["name"],
        plan=run.plan,
        began=began,
        **({} if run.encoder is not None else training_record(folder)),
    )


def training_record(folder: Path) -> dict[str, Any]:
    """Steps, cost and curve of the training in a run directory."""
    directory = RunDirectory.open(folder)
    status, steps = directory.status, directory.status["step"]
    online = [record for record in read_metrics(folder) if "std" in record or "knn" in record]
    last = online[-1] if online else {}
    return {
        "steps": steps,
        "images_seen": steps * int(directory.config["batch_size"]),
        "cpu_seconds": status["cpu_seconds"],
        "curve": [(each["step"], round(100 * each["knn"], 2)) for each in online if each.get("knn") is not None],
        "collapse_metrics": {name: last[name] for name in COLLAPSE_METRICS if last.get(name) is not None},
        "images": directory.data,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
