"""One cell, in a process of its own: pretrain or go on with it, judge, write the result.

python -m mixview.study.cell CELL.json RUN_FOLDER RESULT.json
"""

import dataclasses
import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from mixview.evaluate.judging import PROTOCOLS, Case, Evaluation, Setting, Trained
from mixview.evaluate.provenance import flatten
from mixview.evaluate.results import Result
from mixview.evaluate.training import Stopped
from mixview.study import results, standalone
from mixview.study.grid import Cell
from mixview.study.names import digest
from mixview.study.passes import Passes
from mixview.train.launching import end_when_orphaned
from mixview.train.run_folder import RunFolder, describe_environment, is_run, plain, read_metrics

INTERRUPTED = 75
"""The exit code of a cell that was stopped in good order and goes on next time (sysexits' "try again")."""

PARENT = "MIXVIEW_STUDY_PROCESS"
"""The environment variable that tells a cell who runs the study: with that one it ends."""

SETTLED = ("size", "augment", "head.momentum", "head.queue_size", "head.epoch_queue_starts")
"""Settings that a run fills in itself where they are not given."""

ELSEWHERE = ("device", "devices", "workers", "out")
"""Options of a protocol that change neither encoder nor images."""

SIGNS = ("std", "effective_rank", "alignment", "uniformity")


def main(arguments: list[str]) -> int:
    """Run the cell that a file describes."""
    runner = os.environ.get(PARENT)
    end_when_orphaned(parent=None if runner is None else int(runner))
    torch.set_num_threads(1)
    description, run, result = (Path(each) for each in arguments)
    cell = from_json(description.read_text(encoding="utf-8"))
    if cell.encoder is None and not pretrain(cell, run):
        return INTERRUPTED
    try:
        results.save(judge(cell, run), result)
    except Stopped:
        return INTERRUPTED
    return 0


def to_json(cell: Cell) -> str:
    """A cell for another process."""
    return json.dumps(dataclasses.asdict(cell))


def from_json(text: str) -> Cell:
    """The cell that `to_json` wrote."""
    content = json.loads(text)
    return Cell(**(content | {"passes": Passes(*content["passes"])}))


def pretrain(cell: Cell, run: Path) -> bool:
    """Train to the end, from where an earlier process left off; False when it was stopped before."""
    if run.exists() and not (is_run(run) and has_settings_of(cell, RunFolder.open(run).config)):
        shutil.rmtree(run)  # killed before it was a run, or begun under other defaults
    if not (is_run(run) and RunFolder.open(run).status.get("state") == "finished"):
        own = cell.pretraining
        workers = 0 if own.workers is None else own.workers  # a cell has one core
        dataclasses.replace(own, out=str(run), resume=is_run(run), workers=workers).run()
    return RunFolder.open(run).status.get("state") == "finished"


def has_settings_of(cell: Cell, config: dict[str, Any]) -> bool:
    """Whether a run was begun under what the settings of the cell mean today."""
    then, now = flatten(config, empty=True), cell.resolved()
    return all(then.get(name) == value for name, value in now.items() if value is not None or name not in SETTLED)


def judge(cell: Cell, run: Path) -> results.CellResult:
    """Judge the encoder by everything that the cell asks for."""
    began = time.process_time()
    metrics: dict[str, float] = {}
    protocols: dict[str, str] = {}
    judged: dict[str, dict[str, Any]] = {}
    warnings: dict[str, None] = {}
    opened: dict[str, Case] = {}
    for column, judgement in cell.evaluate.items():
        metric = judgement["metric"]
        found = measure(cell, run, judgement, opened)
        if metric not in found[0].metrics:
            known = ", ".join(found[0].metrics)
            raise ValueError(f"{column}: {judgement['protocol']} has no {metric!r}: it has {known}")
        metrics[column] = round(statistics.fmean(result.metrics[metric] for result in found), 4)
        protocols[column] = f"{metric}; {found[0].words} On {found[0].data}."
        judged[column] = plain(found[0].settings, column)
        warnings |= dict.fromkeys(warning for result in found for warning in result.warnings)
    judging = time.process_time() - began
    training = {} if cell.encoder is not None else of_training(run)
    environment = describe_environment()
    return results.CellResult(
        name=cell.name,
        data=cell.data,
        method=cell.method,
        knob=cell.knob,
        objective=cell.objective,
        seed=cell.seed,
        metrics=metrics,
        evaluate=cell.evaluate,
        judged=judged,
        passes=(cell.passes.with_gradient, cell.passes.without),
        judging_seconds=round(judging, 2),
        protocols=protocols,
        warnings=list(warnings),
        settings=cell.resolved(),
        versions=environment["versions"],
        cpu=environment["cpu"]["name"],
        **training,
    )


def measure(cell: Cell, run: Path, judgement: dict[str, Any], opened: dict[str, Case]) -> list[Result]:
    """What a column asks for: one result, or one a trial. Images that were opened for an earlier one stay open."""
    known: dict[str, type[Evaluation]] = {each.protocol: each for each in PROTOCOLS}
    name, options = judgement["protocol"], options_of(cell, run, judgement)
    if name in standalone.PROTOCOLS:
        # Columns that ask alike share what is trained; others have a folder of their own, or would meet in one.
        place = run / name / digest({key: value for key, value in options.items() if key != "encoder"})
        own = {"out": str(place), "resume": place.exists()}
        return list(standalone.load(name)(protocol=options.pop("recipe"), **(own | options)))
    if issubclass(known[name], Trained):
        options["resume"] = True  # what an earlier process began
    evaluation = known[name](**options)
    asked = [each.name for each in dataclasses.fields(Setting) if each.name not in ELSEWHERE]
    shown = json.dumps({each: getattr(evaluation, each) for each in asked}, sort_keys=True)
    if shown not in opened:
        opened[shown] = evaluation.open()
    return [evaluation.result(opened[shown])]


def options_of(cell: Cell, run: Path, judgement: dict[str, Any]) -> dict[str, Any]:
    """The options of a protocol, encoder and images among them."""
    options = {key: value for key, value in judgement.items() if key not in ("protocol", "metric")}
    chosen: dict[str, Any] = {"seed": cell.seed, "workers": 0, **cell.labelled}
    if cell.encoder is None:
        chosen["encoder"] = str(run)
    else:
        chosen["encoder"] = cell.encoder
        chosen |= {key: cell.settings[key] for key in ("size", "channels") if key in cell.settings}
        if cell.encoder == "random":
            chosen["backbone"] = cell.settings["backbone"]
    return chosen | options


def of_training(run: Path) -> dict[str, Any]:
    """What the run's folder says of its training."""
    folder = RunFolder.open(run)
    status, looks = folder.status, [record for record in read_metrics(run) if "std" in record or "knn" in record]
    last = looks[-1] if looks else {}
    return {
        "steps": status["step"],
        "images_seen": status["step"] * int(folder.config["batch"]),
        "cpu_seconds": status["cpu_seconds"],
        "curve": [(record["step"], round(100 * record["knn"], 2)) for record in looks if record.get("knn") is not None],
        "signs": {name: last[name] for name in SIGNS if last.get(name) is not None},
        "images": folder.data,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
