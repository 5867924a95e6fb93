"""What a cell found: one small JSON each, to be kept and committed while the runs themselves can go.

A result counts for a cell as long as the settings that both know agree: an option that mixview gets later does not make
it stale, a setting or a default that has changed does.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mixview.atomic import atomic_write
from mixview.evaluate.judging import PROTOCOLS
from mixview.records import Amount, Count, Number, RecordError, Whole, read_versioned
from mixview.study.grid import Cell
from mixview.train.run_folder import plain

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """One cell, run and judged."""

    name: str
    """Of the cell: its label and a hash of its settings."""
    data: str
    method: str
    knob: str
    objective: str
    seed: Whole
    metrics: dict[str, float]
    """By column, in per cent."""
    evaluate: dict[str, dict[str, Any]]
    """By column: protocol, metric and options, as the study says them."""
    judged: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By column: every setting of the protocol."""
    steps: Count = 0
    images_seen: Count = 0
    """Over all steps, each image as often as it was seen."""
    passes: tuple[Count, Count] = (0, 0)
    """Encoder passes a step, with a gradient and without."""
    cpu_seconds: Amount = 0.0
    """Processor time of the training steps."""
    judging_seconds: Amount = 0.0
    """Processor time of all judgements."""
    curve: list[tuple[Count, Number]] = field(default_factory=list)
    """(step, k-NN accuracy in per cent) while it trained."""
    signs: dict[str, Number] = field(default_factory=dict)
    """The last look's signs of collapse: standard deviation, effective rank …"""
    protocols: dict[str, str] = field(default_factory=dict)
    """How each column was measured, in words."""
    warnings: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    """Resolved, under dotted names."""
    images: dict[str, Any] = field(default_factory=dict)
    """What it was trained on: fingerprint, count."""
    versions: dict[str, Any] = field(default_factory=dict)
    cpu: str = ""
    made: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def group(self) -> tuple[str, str, str]:
        return self.data, self.method, self.knob

    @property
    def work(self) -> float:
        """Forward passes of one image, a step backward counted as two: the compute that does not depend on the day."""
        return (3 * self.passes[0] + self.passes[1]) * float(self.images_seen)


def path_of(cell: Cell, out: Path) -> Path:
    """Where the result of a cell is kept."""
    return out / cell.study / f"{cell.name}.json"


def save(result: CellResult, path: Path) -> None:
    """Write a result, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(json.dumps({"version": FORMAT, **asdict(result)}, indent=1, ensure_ascii=False).encode() + b"\n")


def load(path: Path) -> CellResult:
    """The result in a file."""
    try:
        return read_versioned(path, CellResult, FORMAT)
    except RecordError as error:
        raise ValueError(
            f"the result {path} cannot be read ({error.reason}): remove it, and run its study again"
        ) from None


def find(cell: Cell, out: Path, faults: dict[str, None] | None = None) -> CellResult | None:
    """The result of a cell, of its own study or another's, if it is still of its settings and has all its columns.

    Args:
        faults: gets a sentence for each file that cannot be read, and is left out; without it, the first is raised.
    """
    candidates = [path_of(cell, out), *sorted(out.glob(f"*/*-{cell.key}.json"))]
    for path in dict.fromkeys(candidates):
        if not os.path.lexists(path):
            continue
        try:
            result = load(path)
        except ValueError as error:
            if faults is None:
                raise
            faults.setdefault(str(error))
            continue
        if fits(result, cell):
            return replace(
                result,
                name=cell.name,
                data=cell.data,
                method=cell.method,
                knob=cell.knob,
                objective=cell.objective,
            )
    return None


def fits(result: CellResult, cell: Cell) -> bool:
    """Whether a result is of the settings that a cell has now, and judged by all that it asks for."""
    now = json.loads(json.dumps(cell.resolved()))
    changed = [name for name, value in result.settings.items() if now.get(name) != value]
    judged = all(
        result.evaluate.get(column) == judgement and not judged_otherwise(result.judged.get(column, {}), judgement)
        for column, judgement in cell.evaluate.items()
    )
    return not changed and judged


def judged_otherwise(then: dict[str, Any], judgement: dict[str, Any]) -> bool:
    """Whether a default of the protocol has changed since a column was measured."""
    protocols = [each for each in PROTOCOLS if each.protocol == judgement["protocol"]]
    usual = {
        each.name: plain(each.default, each.name)
        for protocol in protocols
        for each in fields(protocol)
        if each.name not in judgement and each.default is not MISSING and not is_dataclass(each.default)
    }
    return any(usual[name] != value for name, value in then.items() if name in usual and name != "size")


def found(cells: Iterable[Cell], out: Path, faults: dict[str, None] | None = None) -> dict[str, CellResult]:
    """The results that there are, by the name of their cell, under the labels that the study gives them."""
    pairs = ((cell, find(cell, out, faults)) for cell in cells)
    return {cell.name: result for cell, result in pairs if result is not None}
