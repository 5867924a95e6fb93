"""One run of a study: its settings, how it is evaluated, and the hashes by which results and encoders are found."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from typing import Any

from mixview.experiments.file_names import digest, slug
from mixview.experiments.passes import Passes
from mixview.io.records import flatten
from mixview.runs.run_directory import to_serializable
from mixview.train.config import PretrainConfig, from_plain, to_plain

ENCODER_PREFIX = "@"
"""The first character of a setting that names an encoder of the study."""
RUNTIME_SETTINGS = ("out", "resume", "max_time", "devices", "nodes", "accelerator", "workers")
"""Settings of place and duration, which do not change the result of a run."""
UNTRAINED = Passes(0, 0)


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
    """The encoder that is evaluated instead of a pretrained one: random or pixels."""
    matched: str | None = None
    """The objective of the baseline that costs as much as this run, where the study has one."""
    passes: Passes = UNTRAINED
    """Encoder passes per step."""
    is_matched_baseline: bool = False
    """A baseline that was added because it costs as much as another run."""
    encoders: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings of the encoders that its settings name as @KEY, by key."""
    plan: str = ""
    """The hash of the plan of its study, if there is one."""
    planned: bool = True
    """True if it was part of the study from the beginning."""

    @property
    def key(self) -> str:
        """A hash of everything that was set, except for the evaluations."""
        what = {name: value for name, value in self.settings.items() if name not in RUNTIME_SETTINGS}
        return digest([what, self.eval_data, self.encoder])

    @property
    def name(self) -> str:
        """The name of its files: its labels, and the hash."""
        return f"{slug(self.data, self.method, self.variant, self.objective, f's{self.seed}')}-{self.key}"

    @cached_property
    def encoder_key(self) -> str:
        """A hash of what decides its encoder: runs that differ in labels or in columns have it in common."""
        return digest([self.resolved, self.settings.get("backbone"), self.encoder])

    @property
    def encoder_name(self) -> str:
        """The name of the folder of its encoder, which runs may share."""
        return f"s{self.seed}-{self.encoder_key}"

    @property
    def group(self) -> tuple[str, str, str]:
        """The labels that it shares with the runs that it is compared with."""
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
    settings: dict[str, Any] = to_serializable(to_plain(config), "settings")
    if config.accelerator == "cpu" and config.precision == "auto":
        settings["precision"] = "32-true"  # what auto is there, and what results say
    return flatten({name: value for name, value in settings.items() if name not in RUNTIME_SETTINGS}, empty=True)


def default_settings(run: StudyRun) -> Mapping[str, Any]:
    """The default settings of a run's method."""
    if run.encoder is not None:
        return {}
    method = run.settings.get("method")
    return defaults_of(method["name"] if isinstance(method, dict) else method)


@cache
def defaults_of(method: str | None) -> Mapping[str, Any]:
    """The default settings of a method."""
    return flat_settings(from_plain({} if method is None else {"method": method}))


def to_json(runs: Sequence[StudyRun]) -> str:
    """Runs for another process."""
    return json.dumps([asdict(run) for run in runs])


def from_json(text: str) -> list[StudyRun]:
    """The runs that `to_json` wrote."""
    return [StudyRun(**(content | {"passes": Passes(*content["passes"])})) for content in json.loads(text)]
