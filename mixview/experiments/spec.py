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

Values of these axes lay their settings over each other in this order: settings, data, method, variant, objective. A
value may also have `encoder: random` (or pixels): nothing is pretrained; and `evaluate`, which under data names the
images to evaluate with, and elsewhere replaces the evaluations. A study may have a `base`, another one that it changes.
"""

import copy
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from mixview.experiments.checks import check
from mixview.experiments.definitions import AXES, hint, read_definition
from mixview.experiments.evaluations import trains_network
from mixview.experiments.passes import Passes, count_passes
from mixview.experiments.slugs import digest, slug
from mixview.extensions import require_consent
from mixview.io.records import flatten
from mixview.options import brief
from mixview.recipes import merge
from mixview.runs.run_directory import plain
from mixview.train.config import PretrainConfig, from_plain, to_plain

RUNTIME_SETTINGS = ("out", "resume", "max_time", "devices", "nodes", "accelerator", "workers")
"""Settings for where and how long a run works, which do not change its result."""
UNTRAINED = Passes(0, 0)
MAX_RUNS = 100_000
IMAGES = ("data", "data_options", "split")
"""Settings that decide which images are trained on, and so how many an epoch has."""
COST_SETTINGS = ("backbone", "stem", "channels", "size", *IMAGES)
"""Settings that change the cost of a pass or an epoch: passes measure compute only where these are the same."""


@dataclass(frozen=True)
class StudyRun:
    """One run and how it is evaluated."""

    study: str
    data: str
    method: str
    variant: str
    objective: str
    seed: int
    settings: dict[str, Any]
    """Fields of `PretrainConfig`, the seed among them, as plain values and as given."""
    evaluate: dict[str, dict[str, Any]]
    """Evaluations by the name of their column: protocol, metric, and options of the protocol."""
    eval_data: dict[str, Any]
    """The images to evaluate with: data, train, test …, options of every protocol."""
    encoder: str | None = None
    """What is evaluated instead of a pretrained encoder: random or pixels."""
    matched: str | None = None
    """The objective of the baseline that costs as much as this run, where the study has one."""
    passes: Passes = UNTRAINED
    """Encoder passes per step."""
    is_matched_baseline: bool = False
    """A baseline that was added because it costs as much as another run."""

    @property
    def key(self) -> str:
        """A hash of everything that was set, except for the evaluations."""
        what = {name: value for name, value in self.settings.items() if name not in RUNTIME_SETTINGS}
        return digest([what, self.eval_data, self.encoder])

    @property
    def name(self) -> str:
        """The name of its files: its labels, and the hash."""
        return f"{slug(self.data, self.method, self.variant, self.objective, f's{self.seed}')}-{self.key}"

    @property
    def group(self) -> tuple[str, str, str]:
        """What it has in common with the runs that it is compared with."""
        return self.data, self.method, self.variant

    @property
    def epochs(self) -> int:
        return 0 if self.encoder else int(self.pretraining.epochs)

    @cached_property
    def pretraining(self) -> PretrainConfig:
        """The settings of its run, with all defaults."""
        return from_plain(copy.deepcopy(self.settings))

    @cached_property
    def resolved(self) -> dict[str, Any]:
        """Every setting of the run that decides its result, under dotted names, those that are None too."""
        if self.encoder is not None:
            return {"encoder": self.encoder, **flatten(self.settings)}
        return flat_settings(self.pretraining)


def flat_settings(config: PretrainConfig) -> dict[str, Any]:
    """The settings of a pretraining that decide its result, under dotted names."""
    settings: dict[str, Any] = plain(to_plain(config), "settings")
    return flatten({name: value for name, value in settings.items() if name not in RUNTIME_SETTINGS}, empty=True)


def default_settings(run: StudyRun) -> Mapping[str, Any]:
    """What the settings of a run are where nothing is given."""
    if run.encoder is not None:
        return {}
    method = run.settings.get("method")
    return defaults_of(method["name"] if isinstance(method, dict) else method)


@cache
def defaults_of(method: str | None) -> Mapping[str, Any]:
    """The default settings of a method."""
    return flat_settings(from_plain({} if method is None else {"method": method}))


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

    @property
    def columns(self) -> list[str]:
        """The names of the evaluations, in the order of the study."""
        return list(dict.fromkeys(column for run in self.runs for column in run.evaluate))


def read(name: str, *, trust_remote_code: bool = False) -> Study:
    """The study of a name, or of a YAML file of the user's own.

    Args:
        name: the name, or the path.
        trust_remote_code: import the code that it names. That runs it.

    Example:
        >>> read("paper-small").baseline
        'SIM'
    """
    definition = read_definition(name)
    require_consent(definition, f"the study {name}", trust_remote_code)
    return expand(Path(name).stem if name.endswith((".yaml", ".yml")) else name, definition)


def expand(name: str, definition: dict[str, Any]) -> Study:
    """The runs of a study: seed by seed, so that what is there early compares fairly."""
    check(name, definition)
    # YAML reads a value that is called 0.1 or 64 as a number.
    definition = definition | {
        axis: {str(value): each for value, each in definition.get(axis, {}).items()} for axis in AXES
    }
    baseline = None if definition.get("baseline") is None else str(definition["baseline"])
    by_name: dict[str, StudyRun] = {}
    for grid in definition.get("grids", [{}]):
        for values in combinations(name, definition, grid):
            for seed in grid.get("seeds", definition.get("seeds", [0])):
                run = make_run(name, definition, values, int(seed))
                by_name.setdefault(run.name, run)
    runs = list(by_name.values())
    if not runs:
        raise ValueError(f"the study {name} has no runs: give it grids, or methods and objectives")
    if baseline is not None:
        runs = match_compute(runs, baseline, add=bool(definition.get("match_compute", False)))
    order = {seed: number for number, seed in enumerate(dict.fromkeys(run.seed for run in runs))}
    return Study(
        name, definition, tuple(sorted(runs, key=lambda run: order[run.seed])), baseline, definition.get("about", {})
    )


def combinations(name: str, definition: dict[str, Any], grid: dict[str, Any]) -> Iterator[dict[str, str]]:
    """One value of each axis, in every combination that a grid has. By default no variant, and all of the rest."""
    unknown = sorted(set(grid) - {*AXES, "seeds"})
    if unknown:
        raise ValueError(f"a grid has no {unknown[0]!r}: there are {', '.join(AXES)} and seeds (in {name})")
    chosen: list[list[str]] = []
    for axis in AXES:
        choices = list(definition[axis])
        values = [str(value) for value in grid.get(axis, choices if axis != "variants" else [""])] or [""]
        for value in values:
            if value and value not in choices:
                raise ValueError(f"the study {name} has no {brief(value)} among its {axis}{hint(value, choices)}")
        chosen.append(values)
    if math.prod(map(len, chosen)) > MAX_RUNS:
        raise ValueError(f"the study {name} has more than {MAX_RUNS:,} runs: give its grids fewer values")
    for combination in itertools.product(*chosen):
        yield dict(zip(AXES, combination, strict=True))


def make_run(study: str, definition: dict[str, Any], values: dict[str, str], seed: int) -> StudyRun:
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
    )


def passes_per_step(settings: dict[str, Any]) -> Passes:
    """The passes per step under these settings, counted once for all that share what matters."""
    given = from_plain(copy.deepcopy(settings))
    if given.batch_size == "auto":
        raise ValueError("a study compares runs of equal length: give batch_size a number instead of auto")
    key = repr((given.method, given.objective, given.mixing, given.augment, given.size))
    if key not in PASSES_CACHE:
        PASSES_CACHE[key] = count_passes(given)
    return PASSES_CACHE[key]


PASSES_CACHE: dict[str, Passes] = {}


def match_compute(runs: list[StudyRun], baseline: str, *, add: bool) -> list[StudyRun]:
    """The runs, each with the name of the baseline that costs as much.

    Args:
        runs: the runs of the study.
        baseline: the objective of the baseline.
        add: where there is none, add one that is trained for as long; otherwise such runs have no match.
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
        if epochs == base.epochs:
            matched.setdefault(run.name, replace(run, matched=baseline))
            continue
        if not add:
            matched.setdefault(run.name, run)
            continue
        name = f"{baseline} × {ratio:.3g}"
        longer = replace(base, objective=name, settings=base.settings | {"epochs": epochs}, is_matched_baseline=True)
        matched.setdefault(run.name, replace(run, matched=name))
        matched.setdefault(longer.name, longer)
    return list(matched.values())


def equally_expensive(run: StudyRun, other: StudyRun) -> bool:
    """Whether a pass costs the same in both, and an epoch has equally many."""
    return all(run.settings.get(name) == other.settings.get(name) for name in COST_SETTINGS)
