"""A study as one YAML: data sets × methods × knobs × objectives × seeds, every combination a cell.

    about: {what: …, cost: …}                 # for people
    settings: {backbone: small, epochs: 60}   # of every cell: what `mixview pretrain` takes
    data: {CIFAR-10: {data: cifar10, split: "train[:5000]", evaluate: {train: train, test: test}}}
    methods: {MoCo v2: {method: mocov2, head: {queue_size: 1024}}}
    knobs: {short: {epochs: 10}}
    objectives: {SIM: {objective: sim}, BSIM: {objective: bsim}, random: {encoder: random}}
    evaluate: {k-NN 20: {protocol: knn, k: 20, metric: top-1}}
    seeds: [0, 1, 2, 3, 4]
    grids: [{methods: [MoCo v2], objectives: [SIM, BSIM]}, …]   # seeds, too, if they differ
    baseline: SIM                             # what the others of the same data, method and knob are compared with
    match_compute: true                       # add a baseline that is trained as much longer as the other costs more

Levels lay their settings over each other in this order: settings, data, method, knob, objective. A level may also say
`encoder: random` (or pixels): nothing is pretrained; and `evaluate`, which on data says what images are judged with
and elsewhere which judgements are made instead. A study may have a `base`, another one that it changes.
"""

import copy
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

from mixview.evaluate.judging import PROTOCOLS
from mixview.evaluate.provenance import flatten
from mixview.options import brief
from mixview.study.checking import AXES, check, hint
from mixview.study.names import digest, slug
from mixview.study.passes import Passes, count_passes
from mixview.train.pretraining import Pretraining, from_plain
from mixview.train.recipes import merge
from mixview.train.run_folder import plain
from mixview.yaml_files import read_yaml

KEYS = ("about", "settings", *AXES, "seeds", "evaluate", "grids", "baseline", "match_compute")
WHERE = ("out", "resume", "max_time", "devices", "nodes", "accelerator", "workers")
"""Settings that say where and for how long, not what: a result is the same under any of them."""
UNTRAINED = Passes(0, 0)
MAX_CELLS = 100_000
IMAGES = ("data", "data_options", "split")
"""Settings that say which images are trained on, and so how many an epoch has."""
SCALE = ("backbone", "stem", "channels", "size", *IMAGES)
"""Settings that change what a pass, or an epoch, costs: passes tell the compute only where these are the same."""


@dataclass(frozen=True)
class Cell:
    """One run and how it is judged."""

    study: str
    data: str
    method: str
    knob: str
    objective: str
    seed: int
    settings: dict[str, Any]
    """Of `Pretraining`, the seed among them, as plain values and as given."""
    evaluate: dict[str, dict[str, Any]]
    """Judgements by the name of their column: protocol, metric, and options of the protocol."""
    labelled: dict[str, Any]
    """The images to judge with: data, train, test …, options of every protocol."""
    encoder: str | None = None
    """What is judged instead of a pretrained encoder: random or pixels."""
    matched: str | None = None
    """The objective of the baseline that costs as much as this cell, where the study has one."""
    passes: Passes = UNTRAINED
    """Of a step."""
    longer: bool = False
    """A baseline that was added because it costs as much as another cell."""

    @property
    def key(self) -> str:
        """A hash of everything that was set, but for the judgements: studies share the runs that they both ask for."""
        what = {name: value for name, value in self.settings.items() if name not in WHERE}
        return digest([what, self.labelled, self.encoder])

    @property
    def name(self) -> str:
        """Names its files and its run: what it is in letters, and the hash."""
        return f"{slug(self.data, self.method, self.knob, self.objective, f's{self.seed}')}-{self.key}"

    @property
    def group(self) -> tuple[str, str, str]:
        """What it has in common with the cells that it is compared with."""
        return self.data, self.method, self.knob

    @property
    def epochs(self) -> int:
        return 0 if self.encoder else int(self.pretraining.epochs)

    @cached_property
    def pretraining(self) -> Pretraining:
        """The settings of its run, with all defaults."""
        return from_plain(copy.deepcopy(self.settings))

    def resolved(self) -> dict[str, Any]:
        """Every setting of the run that decides what comes out, under dotted names, those that are None too."""
        if self.encoder is not None:
            return {"encoder": self.encoder, **flatten(self.settings)}
        config: dict[str, Any] = plain(self.pretraining.config(), "settings")
        return flatten({name: value for name, value in config.items() if name not in WHERE}, empty=True)


@dataclass(frozen=True)
class Study:
    """A study: its cells, in the order in which they are run, and how they are compared."""

    name: str
    text: dict[str, Any]
    """As written, bases included."""
    cells: tuple[Cell, ...]
    baseline: str | None = None
    about: dict[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """The names of the judgements, in the order of the study."""
        return list(dict.fromkeys(column for cell in self.cells for column in cell.evaluate))


def names() -> list[str]:
    """The studies that come with mixview; those that begin with an underscore are bases only."""
    found = [file.name for file in (resources.files("mixview") / "studies").iterdir()]
    return sorted(name.removesuffix(".yaml") for name in found if name.endswith(".yaml") and not name.startswith("_"))


def read(name: str) -> Study:
    """The study of a name, or of a YAML file of one's own."""
    text = read_text(name)
    return expand(Path(name).stem if name.endswith((".yaml", ".yml")) else name, text)


def read_text(name: str, below: tuple[str, ...] = ()) -> dict[str, Any]:
    """What a study says, laid over what its base says."""
    if name in below:
        raise ValueError(f"the study {below[0]} is its own base: {' -> '.join((*below, name))}")
    own = Path(name)
    if own.suffix in (".yaml", ".yml"):
        if not own.is_file():
            raise ValueError(f"there is no study file {own}: give a path, or one of {', '.join(names())}")
        content = read_yaml(own)
    else:
        file = resources.files("mixview") / "studies" / f"{name}.yaml"
        if not file.is_file():
            raise ValueError(f"there is no study {name}: {hint(name, names())}")
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"the study {name} says nothing: it should have lines such as `settings: {{backbone: small}}`")
    base = content.pop("base", None)
    for key in content:
        if key not in KEYS:
            raise ValueError(f"a study has no {brief(key)}: there are {', '.join(KEYS)} and base (in {name})")
    if base is None:
        return content
    text = read_text(str(base), (*below, name))
    for key in ("about", "grids", *(["evaluate"] if "evaluate" in content else [])):  # whole, not laid over each other
        text.pop(key, None)
    merge(text, content)
    return text


def expand(name: str, text: dict[str, Any]) -> Study:
    """The cells of a study: seed by seed, so that what is there early compares fairly."""
    check(name, text)
    # YAML reads a level that is called 0.1 or 64 as a number.
    text = text | {axis: {str(level): each for level, each in text.get(axis, {}).items()} for axis in AXES}
    baseline = None if text.get("baseline") is None else str(text["baseline"])
    cells: dict[str, Cell] = {}
    for grid in text.get("grids", [{}]):
        for levels in combinations(name, text, grid):
            for seed in grid.get("seeds", text.get("seeds", [0])):
                cell = make_cell(name, text, levels, int(seed))
                cells.setdefault(cell.name, cell)
    found = list(cells.values())
    if not found:
        raise ValueError(f"the study {name} has no cells: give it grids, or methods and objectives")
    if baseline is not None:
        found = match_compute(found, baseline, add=bool(text.get("match_compute", False)))
    order = {seed: number for number, seed in enumerate(dict.fromkeys(cell.seed for cell in found))}
    return Study(name, text, tuple(sorted(found, key=lambda cell: order[cell.seed])), baseline, text.get("about", {}))


def combinations(name: str, text: dict[str, Any], grid: dict[str, Any]) -> Iterator[dict[str, str]]:
    """One level of each axis, in every combination that a grid asks for. No knobs are the default, all of the rest."""
    strange = sorted(set(grid) - {*AXES, "seeds"})
    if strange:
        raise ValueError(f"a grid has no {strange[0]!r}: there are {', '.join(AXES)} and seeds (in {name})")
    chosen: list[list[str]] = []
    for axis in AXES:
        known = list(text[axis])
        wanted = [str(level) for level in grid.get(axis, known if axis != "knobs" else [""])] or [""]
        for level in wanted:
            if level and level not in known:
                raise ValueError(f"the study {name} has no {brief(level)} among its {axis}: {hint(level, known)}")
        chosen.append(wanted)
    if math.prod(map(len, chosen)) > MAX_CELLS:
        raise ValueError(f"the study {name} has more than {MAX_CELLS:,} cells: give its grids fewer levels")
    for levels in itertools.product(*chosen):
        yield dict(zip(AXES, levels, strict=True))


def make_cell(study: str, text: dict[str, Any], levels: dict[str, str], seed: int) -> Cell:
    """The cell of these levels."""
    settings: dict[str, Any] = copy.deepcopy(text.get("settings", {}))
    evaluate: dict[str, Any] = text.get("evaluate", {})
    labelled: dict[str, Any] = {}
    encoder: str | None = None
    for axis, level in levels.items():
        content = copy.deepcopy(text[axis][level] or {}) if level else {}
        own = content.pop("evaluate", None)
        if own is not None and axis == "data":
            labelled = own
        elif own is not None:
            evaluate = own
        encoder = content.pop("encoder", encoder)
        merge(settings, content)
    settings["seed"] = seed
    labelled = {"data": settings.get("data")} | labelled
    if encoder == "pixels":  # there is no network that could be trained
        evaluate = {column: each for column, each in evaluate.items() if not trains_network(each["protocol"])}
    if encoder is not None:  # nothing of training matters, but what it would have trained
        settings = {key: settings[key] for key in ("backbone", "size", "channels", "seed") if key in settings}
    passes = UNTRAINED if encoder else counted(settings)
    return Cell(
        study=study,
        data=levels["data"],
        method=levels["methods"],
        knob=levels["knobs"],
        objective=levels["objectives"],
        seed=seed,
        settings=settings,
        evaluate=copy.deepcopy(evaluate),
        labelled=labelled,
        encoder=encoder,
        passes=passes,
    )


def counted(settings: dict[str, Any]) -> Passes:
    """The passes of a step under these settings, counted once for each that matter."""
    given = from_plain(copy.deepcopy(settings))
    if given.batch == "auto":
        raise ValueError("a study compares runs of as many steps: give batch a number instead of auto")
    key = repr((given.method, given.objective, given.head, given.mixing))
    if key not in COUNTED:
        COUNTED[key] = count_passes(given)
    return COUNTED[key]


def trains_network(protocol: str) -> bool:
    """Whether a protocol trains the encoder itself."""
    return all(each.needs_network for each in PROTOCOLS if each.protocol == protocol)


COUNTED: dict[str, Passes] = {}


def match_compute(cells: list[Cell], baseline: str, *, add: bool) -> list[Cell]:
    """The cells, each with the name of the baseline that costs as much.

    Args:
        cells: of the study.
        baseline: its objective.
        add: where there is none, add one that is trained for as much; else such cells have no match.
    """
    plain_ones = {(*cell.group, cell.seed): cell for cell in cells if cell.objective == baseline}
    found: dict[str, Cell] = {}
    for cell in cells:
        base = plain_ones.get((*cell.group, cell.seed))
        if base is None or base is cell or cell.encoder is not None or not of_one_scale(cell, base):
            found.setdefault(cell.name, cell)
            continue
        ratio = cell.passes.work * cell.epochs / (base.passes.work * base.epochs)
        epochs = max(1, round(base.epochs * ratio))
        if epochs == base.epochs:
            found.setdefault(cell.name, replace(cell, matched=baseline))
            continue
        if not add:
            found.setdefault(cell.name, cell)
            continue
        name = f"{baseline} × {ratio:.3g}"
        longer = replace(base, objective=name, settings=base.settings | {"epochs": epochs}, longer=True)
        found.setdefault(cell.name, replace(cell, matched=name))
        found.setdefault(longer.name, longer)
    return list(found.values())


def of_one_scale(cell: Cell, other: Cell) -> bool:
    """Whether a pass costs as much in both, and an epoch has as many."""
    return all(cell.settings.get(name) == other.settings.get(name) for name in SCALE)
