"""A study as one YAML: datasets × methods × variants × objectives × seeds, every combination a run.

    about: {what: …, cost: …, runs: …}        # for people, who see it in `mixview study list`
    settings: {backbone: small, epochs: 60}   # options of `mixview pretrain` for every run
    data: {CIFAR-10: {data: cifar10, split: "train[:5000]", evaluate: {train: train, test: test}}}
    methods: {MoCo v2: {method: {name: mocov2, queue_size: 1024}}}
    variants: {short: {epochs: 10}}
    objectives: {SIM: {objective: sim}, BSIM: {objective: bsim}, random: {encoder: random}}
    evaluate: {k-NN 20: {protocol: knn, k: 20, metric: top-1}}
    seeds: [0, 1, 2, 3, 4]
    grids: [{methods: [MoCo v2], objectives: [SIM, BSIM]}, …]   # seeds, too, if they differ
    baseline: SIM                             # what others of the same data, method and variant are compared with
    match_compute: true                       # add a baseline that is trained as much longer as the other costs more
    encoders: {first: {epochs: 20}}           # encoders to begin with or to learn from: weights: "@first"
    plan: {date: …, columns: [k-NN 20]}       # what was planned, and when: see `mixview.experiments.plan`

Values of these axes lay their settings over each other in this order: settings, data, method, variant, objective. A
value may also have `encoder: random` (or pixels): nothing is pretrained; and `evaluate`, which under data names the
images to evaluate with, and elsewhere replaces the evaluations. A study may have a `base`, another one that it changes.

With `match_compute: epochs` nothing is added: what costs more or less than the baseline is trained for fewer or more
epochs, as many as cost what the baseline costs.

A value of a grid may be chosen by the results of an earlier study: `variants: [{best_of: tune}]` is the variant that
did best there, with the same data and method (or with those named: `{best_of: tune, data: CIFAR-10}`), by the mean of
the columns. A second such value is the best of the rest. Until that part of the earlier study is complete, these runs
wait.
A grid with `added: REASON` came after the plan: its rows are marked so, and no result of them is confirmatory.
"""

import copy
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mixview.experiments import results
from mixview.experiments.checks import check
from mixview.experiments.definitions import AXES, read_definition
from mixview.experiments.evaluations import trains_network
from mixview.experiments.file_names import digest
from mixview.experiments.passes import Passes, count_passes
from mixview.experiments.plan import Plan, plan_hash, sister_plans
from mixview.experiments.results import MAX_RUNS, Records
from mixview.experiments.study_run import ENCODER_PREFIX, UNTRAINED, StudyRun
from mixview.extensions import require_consent
from mixview.options import suggestion, truncated_repr
from mixview.recipes import merge
from mixview.train.config import from_plain

IMAGES = ("data", "data_options", "split")
"""Settings that decide which images are trained on, and so how many an epoch has."""
COST_SETTINGS = ("backbone", "stem", "channels", "size", *IMAGES)
"""Settings that change the cost of a pass or an epoch: passes measure compute only where these are the same."""


@dataclass(frozen=True)
class Study:
    """A study: its runs, in the order in which they are run, and how they are compared.

    Example:
        >>> study = read("paper-small")
        >>> study.baseline, study.runs[0].method, study.runs[0].seed
        ('SIM', 'SimCLR', 0)
    """

    name: str
    definition: dict[str, Any]
    """Its YAML, bases included."""
    runs: tuple[StudyRun, ...]
    baseline: str | None = None
    about: dict[str, str] = field(default_factory=dict)
    waiting: tuple[str, ...] = ()
    """The parts that wait for the choice of an earlier study, and the study."""

    @property
    def plan(self) -> Plan | None:
        """The plan, if there is one."""
        content = self.definition.get("plan")
        return None if content is None else Plan(**content)

    @cached_property
    def sister_plans(self) -> frozenset[str]:
        """The hashes of other plans under which its results can be measured, too."""
        return frozenset() if self.plan is None else sister_plans(self.plan)

    @property
    def columns(self) -> list[str]:
        """The names of the evaluations, in the order of the study."""
        return list(dict.fromkeys(column for run in self.runs for column in run.evaluate))


def read(name: str, records: Mapping[str, list[Any]] | None = None, *, trust_remote_code: bool = False) -> Study:
    """The study of a name, or of a YAML file of the user's own.

    Args:
        name: the name, or the path.
        records: existing results by study: those of earlier studies choose values of this one.
        trust_remote_code: import the code that it names. That runs it.

    Example:
        >>> read("paper-small").baseline
        'SIM'
    """
    definition = read_definition(name)
    require_consent(definition, f"the study {name}", trust_remote_code)
    return expand(Path(name).stem if name.endswith((".yaml", ".yml")) else name, definition, records)


def expand(name: str, definition: dict[str, Any], records: Records | None = None) -> Study:
    """The runs of a study, seed by seed: the first results already allow fair comparisons."""
    check(name, definition)
    # YAML reads a value that is called 0.1 or 64 as a number.
    definition = definition | {
        axis: {str(value): each for value, each in definition.get(axis, {}).items()} for axis in AXES
    }
    baseline = None if definition.get("baseline") is None else str(definition["baseline"])
    plan = plan_hash(definition) if "plan" in definition else ""
    encoders = {key: encoder_settings(definition, each) for key, each in definition.get("encoders", {}).items()}
    choices = Choices(records or {})
    by_name: dict[str, StudyRun] = {}
    for grid in definition.get("grids", [{}]):
        for values in combinations(name, definition, grid, choices):
            for seed in grid.get("seeds", definition.get("seeds", [0])):
                run = make_run(name, definition, values, int(seed), encoders)
                by_name.setdefault(run.name, replace(run, plan=plan, planned="added" not in grid))
    runs = list(by_name.values())
    if not runs and not choices.waiting:
        raise ValueError(f"the study {name} has no runs: add grids, or methods and objectives")
    if baseline is not None:
        runs = match_compute(runs, baseline, by=definition.get("match_compute", False))
    order = {seed: number for number, seed in enumerate(dict.fromkeys(run.seed for run in runs))}
    return Study(
        name,
        definition,
        tuple(sorted(runs, key=lambda run: order[run.seed])),
        baseline,
        definition.get("about", {}),
        tuple(choices.waiting),
    )


def encoder_settings(definition: dict[str, Any], content: dict[str, Any] | None) -> dict[str, Any]:
    """The settings of an encoder that runs of the study start from or learn from."""
    settings: dict[str, Any] = copy.deepcopy(definition.get("settings", {}))
    merge(settings, copy.deepcopy(content or {}))
    return settings


class Choices:
    """The values that the results of earlier studies choose.

    Args:
        records: existing results by study.
    """

    def __init__(self, records: Records) -> None:
        self.records = records
        self.studies: dict[str, Study] = {}
        self.waiting: dict[str, None] = {}

    def best(self, axis: str, reference: Mapping[str, Any], data: str, method: str, taken: list[str]) -> str | None:
        """The value of an axis that was best in an earlier study, beside those taken; None until it is complete."""
        name, data, method = reference["best_of"], reference.get("data", data), reference.get("method", method)
        if name not in self.studies:
            self.studies[name] = read(name, self.records)
        study = self.studies[name]
        runs = [run for run in study.runs if (run.data, run.method) == (data, method) and run.encoder is None]
        done = results.match(runs, self.records)
        if not runs or len(done) < len(runs):
            self.waiting.setdefault(f"{name} ({data}, {method}: {len(done)} of {len(runs) or '?'} runs)")
            return None
        columns = reference.get("columns") or (study.plan.columns if study.plan else None) or study.columns
        attribute = {"data": "data", "methods": "method", "variants": "variant", "objectives": "objective"}[axis]
        scores: dict[str, list[float]] = {}
        for run in runs:
            value = getattr(run, attribute)
            if value not in taken and not run.is_matched_baseline:
                scores.setdefault(value, []).extend(done[run.name].metrics[column] for column in columns)
        if not scores:
            raise ValueError(f"{name} has nothing left to choose from for {data}, {method}")
        return max(scores, key=lambda value: sum(scores[value]) / len(scores[value]))


def combinations(
    name: str, definition: dict[str, Any], grid: dict[str, Any], choices: Choices
) -> Iterator[dict[str, str]]:
    """One value of each axis, in every combination that a grid has. By default no variant, and all of the rest."""
    unknown = sorted(set(grid) - {*AXES, "seeds", "added"})
    if unknown:
        raise ValueError(f"a grid has no {unknown[0]!r}: there are {', '.join(AXES)}, seeds and added (in {name})")
    listed: list[list[Any]] = []
    for axis in AXES:
        known = list(definition[axis])
        given = grid.get(axis, known if axis != "variants" else [""]) or [""]
        values = [value if isinstance(value, dict) else str(value) for value in given]
        for value in values:
            if isinstance(value, str) and value and value not in known:
                raise ValueError(
                    f"the study {name} has no {truncated_repr(value)} among its {axis}{suggestion(value, known)}"
                )
        listed.append(values)
    if math.prod(map(len, listed)) > MAX_RUNS:
        raise ValueError(f"the study {name} has more than {MAX_RUNS:,} runs: use fewer values in its grids")
    for data, method in itertools.product(*listed[:2]):
        chosen = [
            choose(axis, values, data, method, choices) for axis, values in zip(AXES[2:], listed[2:], strict=True)
        ]
        for variant, objective in itertools.product(*chosen):
            yield dict(zip(AXES, (data, method, variant, objective), strict=True))


def choose(axis: str, values: list[Any], data: str, method: str, choices: Choices) -> list[str]:
    """Values of an axis, those that are chosen by name instead of their references; none while a choice is open."""
    names = [value for value in values if isinstance(value, str)]
    for reference in values:
        if isinstance(reference, dict):
            value = choices.best(axis, reference, data, method, names)
            if value is None:
                return []
            names.append(value)
    return names


def make_run(
    study: str,
    definition: dict[str, Any],
    values: dict[str, str],
    seed: int,
    encoders: Mapping[str, dict[str, Any]] = MappingProxyType({}),
) -> StudyRun:
    """The run of these values."""
    settings: dict[str, Any] = copy.deepcopy(definition.get("settings", {}))
    evaluate: dict[str, Any] = definition.get("evaluate", {})
    eval_data: dict[str, Any] = {}
    encoder: str | None = None
    for axis, value in values.items():
        content = copy.deepcopy(definition[axis][value] or {}) if value else {}
        own = content.pop("evaluate", None)
        if own is not None and axis == "data":
            eval_data = own
        elif own is not None:
            evaluate = own
        encoder = content.pop("encoder", encoder)
        merge(settings, content)
    settings["seed"] = seed
    used = resolve_encoders(study, settings, encoders)
    eval_data = {"data": settings.get("data")} | eval_data
    if encoder == "pixels":  # there is no network that could be trained
        evaluate = {column: each for column, each in evaluate.items() if not trains_network(each["protocol"])}
    if encoder is not None:  # nothing about training matters, except for what it would have trained
        settings = {key: settings[key] for key in ("backbone", "size", "channels", "seed") if key in settings}
    return StudyRun(
        study=study,
        data=values["data"],
        method=values["methods"],
        variant=values["variants"],
        objective=values["objectives"],
        seed=seed,
        settings=settings,
        evaluate=copy.deepcopy(evaluate),
        eval_data=eval_data,
        encoder=encoder,
        passes=UNTRAINED if encoder else passes_per_step(settings),
        encoders={} if encoder else used,
    )


def resolve_encoders(
    study: str, settings: dict[str, Any], encoders: Mapping[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Write @KEY, a hash of its settings, where settings have @NAME; returns the settings of each by key."""
    used: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            used |= resolve_encoders(study, value, encoders)
        elif isinstance(value, str) and value.startswith(ENCODER_PREFIX):
            label = value.removeprefix(ENCODER_PREFIX)
            if label not in encoders:
                raise ValueError(
                    f"the study {study} has no {truncated_repr(label)} among its encoders"
                    f"{suggestion(label, [*encoders])}"
                )
            key = digest(encoders[label])  # as given: a new option, or another default, makes no other encoder
            settings[name] = ENCODER_PREFIX + key
            used[key] = encoders[label]
    return used


def passes_per_step(settings: dict[str, Any]) -> Passes:
    """The passes per step under these settings, counted once for all that share what matters."""
    given = from_plain(copy.deepcopy(settings))
    if given.batch_size == "auto":
        raise ValueError("a study compares runs of equal length: set batch_size to a number instead of auto")
    key = repr((given.method, given.objective, given.mixing, given.augment, given.size))
    if key not in PASSES_CACHE:
        PASSES_CACHE[key] = count_passes(given)
    return PASSES_CACHE[key]


PASSES_CACHE: dict[str, Passes] = {}


def match_compute(runs: list[StudyRun], baseline: str, *, by: bool | str) -> list[StudyRun]:
    """The runs, each with the name of the baseline that costs as much.

    Args:
        runs: the runs of the study.
        baseline: the objective of the baseline.
        by: the way to match a run without such a baseline: add one with as much compute (True), or change the run's
            own epochs to cost what the baseline costs ("epochs"); with False it has no match.
    """
    baselines = {(*run.group, run.seed): run for run in runs if run.objective == baseline}
    matched: dict[str, StudyRun] = {}
    for run in runs:
        base = baselines.get((*run.group, run.seed))
        if base is None or base is run or run.encoder is not None or not equally_expensive(run, base):
            matched.setdefault(run.name, run)
            continue
        ratio = run.passes.work * run.epochs / (base.passes.work * base.epochs)
        epochs = max(1, round(base.epochs * ratio))
        if by == "epochs":
            own = max(1, round(run.epochs / ratio))
            fitted = replace(run, matched=baseline, settings=run.settings | {"epochs": own})
            matched.setdefault(fitted.name, fitted)
            continue
        if epochs == base.epochs:
            matched.setdefault(run.name, replace(run, matched=baseline))
            continue
        if not by:
            matched.setdefault(run.name, run)
            continue
        name = f"{baseline} × {ratio:.3g}"
        longer = replace(base, objective=name, settings=base.settings | {"epochs": epochs}, is_matched_baseline=True)
        matched.setdefault(run.name, replace(run, matched=name))
        matched.setdefault(longer.name, longer)
    return list(matched.values())


def equally_expensive(run: StudyRun, other: StudyRun) -> bool:
    """Return True if a pass costs the same in both, and an epoch has equally many."""
    return all(run.settings.get(name) == other.settings.get(name) for name in COST_SETTINGS)
