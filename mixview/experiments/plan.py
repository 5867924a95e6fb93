"""Plans that are written before a study begins, and the decisions of its results under them.

    plan:
      date: "2026-11-18T21:00:00+00:00"      # when it was written; its commit says the same
      document: study/plan.md
      hypotheses: [Mixing half of the pairs is ahead of SIM]
      regimes: {few images: 1,000 images for 100 epochs}
      budget: 24 core-hours
      rule: The objective that is ahead in most columns, and never 0.5 points behind, becomes the default.
      columns: [k-NN 20, linear, 10-shot]
      confirmatory: true                     # its comparisons decide something: they get verdicts
      correction: holm                       # or bonferroni, over all planned comparisons of a family
      family: method                         # or study: what is corrected together
      level: 0.95
      margin: 0.5

A comparison is one of a row and a column with the baseline of equal compute, over pairs of seeds. Every result has the
hash of the plan under which it was measured. It is confirmatory only if that is the plan that the study has now (or
another that decides something and has the same document), the run was part of it, and the run began after the plan's
date.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from mixview.experiments.definitions import AXES, names, read_definition
from mixview.experiments.file_names import digest
from mixview.options import truncated_repr

if TYPE_CHECKING:
    from mixview.experiments.results import RunResult
    from mixview.experiments.spec import Study
    from mixview.experiments.stats import Difference
    from mixview.experiments.study_run import StudyRun
    from mixview.experiments.tables import Row

Correction = Literal["holm", "bonferroni"]
Family = Literal["method", "study"]
Verdict = Literal["ahead", "behind", "undecided", "open"]
PLANNED, ADDED, CHANGED, OLDER = (
    "planned",
    "added later",
    "another plan",
    "older than the plan",
)
"""The status of a result under the plan: only the first can be confirmatory."""

NOT_PLANNED = ("monitor", "accelerator", "devices", "nodes", "workers")
"""Settings that are no part of a plan: where a run works, and how it is monitored."""


@dataclass(frozen=True)
class Plan:
    """The plan of a study, in the form in which a program can follow it."""

    date: str
    """The time it was written, with a time zone: results that began earlier are not confirmatory."""
    document: str = ""
    """The document that explains it."""
    hypotheses: list[str] = field(default_factory=list)
    regimes: dict[str, str] = field(default_factory=dict)
    """Descriptions of the regimes that the datasets of the study represent, by label."""
    budget: str = ""
    rule: str = ""
    """The rule in words."""
    columns: list[str] = field(default_factory=list)
    """The columns that decide."""
    confirmatory: bool = False
    """True if its comparisons decide something."""
    correction: Correction = "holm"
    """The correction of p-values for the number of planned comparisons."""
    family: Family = "method"
    """Comparisons that are corrected together: those of a method, or all of the study."""
    level: float = 0.95
    margin: float = 0.5
    """The number of points that a default may be behind the baseline in any column and regime."""

    @property
    def time(self) -> datetime:
        return datetime.fromisoformat(self.date)


def check_plan(name: str, definition: Mapping[str, Any]) -> None:
    """Raise ValueError where the plan of a study is not of the form that this module describes."""
    content = definition.get("plan")
    if content is None:
        return
    if not isinstance(content, dict) or not isinstance(content.get("date"), str):
        raise ValueError(f'{name}: a plan needs a date, such as date: "2026-11-18T21:00:00+00:00", in quotes')
    known = [each.name for each in fields(Plan)]
    for key in content:
        if key not in known:
            raise ValueError(f"{name}: a plan has no {truncated_repr(key)}: there are {', '.join(known)}")
    try:
        plan = msgspec.convert(content, Plan)
    except msgspec.ValidationError as error:
        raise ValueError(f"{name}: the plan does not have its form: {error}") from None
    try:
        zone = plan.time.tzinfo
    except ValueError:
        zone = None
    if zone is None:
        raise ValueError(
            f"{name}: the date of the plan should be a time with its zone, got {truncated_repr(plan.date)}"
        )
    if not 0 < plan.level < 1:
        raise ValueError(f"{name}: level of the plan should be between 0 and 1, got {plan.level}")
    for column in plan.columns:
        if column not in definition.get("evaluate", {}):
            raise ValueError(f"{name}: the plan has a column {truncated_repr(column)} that the study does not evaluate")
    if plan.confirmatory and (not plan.columns or definition.get("baseline") is None):
        raise ValueError(f"{name}: a confirmatory plan needs columns, and the study a baseline")


def check_references(name: str, definition: Mapping[str, Any], later: tuple[str, ...] = ()) -> None:
    """Raise ValueError where a study chooses by results that choose by its own."""
    later = (*later, name)
    for earlier in sorted({value["best_of"] for grid in definition.get("grids", [{}]) for value in references(grid)}):
        if earlier in later:
            raise ValueError(f"the study {name} chooses by its own results: {' -> '.join((*later, earlier))}")
        check_references(earlier, read_definition(earlier), later)


def plan_hash(definition: Mapping[str, Any]) -> str:
    """A hash of all that was planned: the study without its description and without what was added later."""
    grids = definition.get("grids", [{}])
    planned = [grid for grid in grids if "added" not in grid]
    content = {key: value for key, value in definition.items() if key not in ("about", "grids", *AXES)}
    for axis in AXES:
        added = {str(value) for grid in grids if "added" in grid for value in grid.get(axis, [])}
        kept = {str(value) for grid in planned for value in grid.get(axis, definition.get(axis, {}))}
        content[axis] = {
            str(value): each for value, each in definition.get(axis, {}).items() if str(value) not in added - kept
        }
    earlier = sorted({value["best_of"] for grid in planned for value in references(grid)})
    return digest([without_monitoring(content), planned, [plan_hash(read_definition(name)) for name in earlier]])


def without_monitoring(content: Any) -> Any:
    """Settings without those that change no result, and so may change after the plan."""
    if not isinstance(content, dict):
        return content
    return {key: without_monitoring(value) for key, value in content.items() if key not in NOT_PLANNED}


def references(grid: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The values of a grid that earlier results choose."""
    return [value for axis in AXES for value in grid.get(axis, []) if isinstance(value, dict)]


def plan_status(study: "Study", run: "StudyRun", result: "RunResult") -> str:
    """The status of a result under the plan of the study."""
    assert study.plan is not None
    if not run.planned:
        return ADDED
    if not result.plan or datetime.fromisoformat(result.began or result.made) < study.plan.time:
        return OLDER
    return PLANNED if result.plan in {run.plan, *study.sister_plans} else CHANGED


def sister_plans(plan: Plan) -> frozenset[str]:
    """The hashes of all confirmatory plans with the document of this one: their studies share runs."""
    if not (plan.confirmatory and plan.document):
        return frozenset()
    definitions = [each for each in map(read_definition, names()) if each.get("plan", {}).get("confirmatory")]
    return frozenset(plan_hash(each) for each in definitions if each["plan"].get("document") == plan.document)


class Comparison(NamedTuple):
    """A row and the baseline of equal compute, in one column, by results that are confirmatory."""

    row: "Row"
    column: str
    difference: "Difference | None"
    adjusted: float
    """The p-value, corrected for all planned comparisons of the family."""
    verdict: Verdict


def compare_rows(study: "Study", rows: Sequence["Row"]) -> list[Comparison]:
    """The planned comparisons of the existing rows of a study, with their verdicts.

    A comparison is open until all of its seeds are finished. It counts in the correction of the others all the same.
    """
    from mixview.experiments.stats import adjust, compare

    plan = study.plan
    assert plan is not None
    by_name = {(*row.group, row.objective): row for row in rows}
    families: dict[str, list[tuple[Row, str, Difference | None, bool]]] = {}
    for row in rows:
        base = by_name.get((*row.group, str(row.runs[0].matched)))
        if base is None or not row.trained or not row.runs[0].planned or row.is_matched_baseline:
            continue
        family = row.method if plan.family == "method" else ""
        for column in plan.columns:
            ours, theirs = (values_of(study, each, column) for each in (row, base))
            complete = {run.seed for run in row.runs} <= set(ours) & set(theirs)
            difference = compare(ours, theirs, plan.level)
            families.setdefault(family, []).append((row, column, difference, complete))
    planned = count_comparisons(study, plan)
    comparisons = []
    for family, members in families.items():
        values = [
            difference.p if complete and difference is not None and difference.p is not None else 1.0
            for _, _, difference, complete in members
        ]
        count = max(planned.get(family, 0), len(values))
        adjusted = adjust(values, count, bonferroni=plan.correction == "bonferroni")
        for (row, column, difference, complete), p in zip(members, adjusted, strict=True):
            verdict: Verdict = "open"
            if complete and difference is not None:
                ahead: Verdict = "ahead" if difference.mean > 0 else "behind"
                verdict = ahead if p < 1 - plan.level else "undecided"
            comparisons.append(Comparison(row, column, difference, p, verdict))
    return comparisons


def values_of(study: "Study", row: "Row", column: str) -> dict[int, float]:
    """A column by seed, of the results that are confirmatory."""
    by_seed = {run.seed: run for run in row.runs}
    confirmatory = tuple(each for each in row.results if plan_status(study, by_seed[each.seed], each) == PLANNED)
    return row._replace(results=confirmatory).values(column)


class PlannedRows(NamedTuple):
    """The rows that were planned to be compared, of a method in a regime."""

    method: str
    data: str
    number: int
    """Those that wait for an earlier study are among them."""


def planned_rows(study: "Study") -> list[PlannedRows]:
    """The rows of each method and regime that were planned to be compared with the baseline."""
    counts: dict[tuple[str, str], int] = {}
    objectives = study.definition.get("objectives", {})
    for grid in study.definition.get("grids", [{}]):
        if "added" in grid:
            continue
        others = [
            each
            for each in grid.get("objectives", objectives)
            if isinstance(each, dict)
            or (str(each) != study.baseline and "encoder" not in (objectives[str(each)] or {}))
        ]
        for method in grid.get("methods", study.definition.get("methods", {})):
            for data in grid.get("data", study.definition.get("data", {})):
                key = str(method), str(data)
                counts[key] = counts.get(key, 0) + len(grid.get("variants", [""])) * len(others)
    return [PlannedRows(*key, count) for key, count in counts.items() if count]


def missing_rows(study: "Study", comparisons: Iterable[Comparison]) -> list[PlannedRows]:
    """The planned rows that are still missing because an earlier study has not chosen them."""
    there = {(each.row.method, each.row.data, each.row.variant, each.row.objective) for each in comparisons}
    found = Counter(key[:2] for key in there)
    return [
        each._replace(number=each.number - found[each[:2]])
        for each in planned_rows(study)
        if each.number > found[each[:2]]
    ]


def count_comparisons(study: "Study", plan: Plan) -> dict[str, int]:
    """The number of planned comparisons by family, those that wait for an earlier study among them."""
    counts: dict[str, int] = {}
    for each in planned_rows(study):
        family = each.method if plan.family == "method" else ""
        counts[family] = counts.get(family, 0) + each.number * len(plan.columns)
    return counts


class Decision(NamedTuple):
    """The default of a method, by the rule of the plan."""

    method: str
    objective: str
    reason: str
    done: int
    """The number of its planned comparisons that have results."""
    planned: int

    @property
    def final(self) -> bool:
        """True if no open comparison could change it."""
        return self.done == self.planned


def decide(study: "Study", comparisons: Iterable[Comparison]) -> list[Decision]:
    """The default of each method, by the rule of the plan.

    A candidate has a row in every regime of the method. It is admitted if none of its comparisons is open, if its mean
    is nowhere more than the margin behind the baseline's, if no verdict is that it is behind, and if one is that it is
    ahead. Of those admitted the one that is ahead most often wins, and of equals the one with the larger mean
    difference. Without any, it is the baseline.
    """
    plan, baseline = study.plan, study.baseline
    assert plan is not None
    assert baseline is not None
    every = list(comparisons)
    planned = planned_rows(study)
    decisions = []
    for method in dict.fromkeys(each.method for each in planned):
        mine = [each for each in every if each.row.method == method]
        regimes = {each.data for each in planned if each.method == method}
        admitted: list[tuple[int, float, str]] = []
        refused: list[str] = []
        for objective in dict.fromkeys(each.row.objective for each in mine):
            own = [each for each in mine if each.row.objective == objective]
            if {each.row.data for each in own} != regimes:
                continue
            closed = [each for each in own if each.verdict != "open"]
            differences = [each.difference.mean for each in closed if each.difference is not None]
            ahead = sum(each.verdict == "ahead" for each in own)
            worst = min(differences, default=0.0)
            if worst < -plan.margin or any(each.verdict == "behind" for each in own):
                refused.append(f"{objective} is {-worst:.1f} points behind somewhere")
            elif len(closed) < len(own):
                refused.append(f"{len(own) - len(closed)} of the {len(own)} comparisons of {objective} are open")
            elif not ahead:
                refused.append(f"{objective} is ahead nowhere")
            else:
                admitted.append((ahead, sum(differences) / len(differences), objective))
        if admitted:
            ahead, mean, objective = max(admitted)
            reason = f"ahead in {ahead} comparisons, {mean:+.1f} points in the mean"
        else:
            objective, reason = baseline, "; ".join(refused) or "no candidate has a row in every regime"
        count = len(plan.columns) * sum(each.number for each in planned if each.method == method)
        decisions.append(Decision(method, objective, reason, sum(each.verdict != "open" for each in mine), count))
    return decisions
