"""One run of a study, in a process of its own: pretrain or resume, evaluate, append the result.

python -m mixview.experiments.run [--trust_remote_code] RUN.json RUN_FOLDER RESULTS.jsonl
"""

import dataclasses
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch

from mixview.evaluate.base import EvalContext, TrainingStopped
from mixview.experiments import evaluations, results
from mixview.experiments.passes import Passes
from mixview.experiments.spec import StudyRun
from mixview.extensions import require_consent
from mixview.io.records import flatten
from mixview.io.run_folders import is_run
from mixview.runs.launching import exit_when_orphaned
from mixview.runs.run_directory import RunDirectory, describe_environment, plain, read_metrics
from mixview.train import pretraining

INTERRUPTED = 75
"""The exit code of a run that was stopped gracefully and is resumed next time (sysexits' "try again")."""

PARENT = "MIXVIEW_STUDY_PROCESS"
"""The environment variable with the process that runs the study: a run ends with it."""

TRUST = "--trust_remote_code"

RESOLVED = ("size", "augment", "method.")
"""Settings, or the first part of their names, that a run resolves itself where they are not given."""

COLLAPSE_METRICS = ("std", "effective_rank", "alignment", "uniformity")


def main(arguments: list[str]) -> int:
    """Carry out the run that a file describes."""
    runner = os.environ.get(PARENT)
    exit_when_orphaned(parent=None if runner is None else int(runner))
    torch.set_num_threads(1)
    trust_remote_code = TRUST in arguments
    description, folder, result = (Path(each) for each in arguments if each != TRUST)
    run = from_json(description.read_text(encoding="utf-8"))
    require_consent([run.settings, run.evaluate], f"the run {description.name}", trust_remote_code)
    if run.encoder is None and not pretrain(run, folder):
        return INTERRUPTED
    try:
        results.append(evaluate(run, folder, trust_remote_code=trust_remote_code), result)
    except TrainingStopped:
        return INTERRUPTED
    return 0


def to_json(run: StudyRun) -> str:
    """A run for another process."""
    return json.dumps(dataclasses.asdict(run))


def from_json(text: str) -> StudyRun:
    """The run that `to_json` wrote."""
    content = json.loads(text)
    return StudyRun(**(content | {"passes": Passes(*content["passes"])}))


def pretrain(run: StudyRun, folder: Path) -> bool:
    """Train to the end, from where an earlier process left off; False when it was stopped before."""
    if folder.exists() and not (is_run(folder) and has_settings_of(run, RunDirectory.open(folder).config)):
        shutil.rmtree(folder)  # killed before it was a run, or begun under other defaults
    if not (is_run(folder) and RunDirectory.open(folder).status.get("state") == "finished"):
        own = run.pretraining
        workers = 0 if own.workers is None else own.workers  # a run has one core
        pretraining.pretrain(dataclasses.replace(own, out=str(folder), resume=is_run(folder), workers=workers))
    return RunDirectory.open(folder).status.get("state") == "finished"


def has_settings_of(run: StudyRun, config: dict[str, Any]) -> bool:
    """Whether a run directory was begun under what the settings of the run mean today."""
    then = flatten(config, empty=True)
    return all(
        then.get(name) == value
        for name, value in run.resolved.items()
        if value is not None or not name.startswith(RESOLVED)
    )


def evaluate(run: StudyRun, folder: Path, *, trust_remote_code: bool = False) -> results.RunResult:
    """Evaluate the encoder by every column of the run."""
    began = time.process_time()
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
        evaluated[column] = plain(result.settings, column)
        warnings |= dict.fromkeys(result.warnings)
    seconds = time.process_time() - began
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
