"""Names from earlier formats of results: a result outlives renamed settings.

If you rename a setting after a release, add a format here with the old name. Records are translated
when they are read, one format after the other; those of the newest format are not touched.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FORMAT = 2
"""The format that is written."""


@dataclass(frozen=True)
class Renames:
    """The changes from one format to the next, old name → new name."""

    fields: Mapping[str, str] = field(default_factory=dict)
    """Fields of the record itself."""
    settings: Mapping[str, str | None] = field(default_factory=dict)
    """Dotted names of pretraining settings, or the first part of them with its dot; None drops a setting."""
    values: Mapping[str, Mapping[str | bool, Any]] = field(default_factory=dict)
    """New values by old value, by the new name of the setting."""
    unset: tuple[str, ...] = ()
    """New first parts of names whose null meant "the default": such a setting is left out, as if it had not existed."""
    protocols: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Options of evaluation protocols, by the new name of the protocol; "" has those of all."""
    descriptions: Mapping[str, str] = field(default_factory=dict)
    """Phrases in the descriptions of protocols."""

    def apply(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The record under the new names. Anything without the form of a record stays unchanged."""
        new = {self.fields.get(name, name): value for name, value in record.items()}
        if isinstance(settings := new.get("settings"), dict):
            new["settings"] = dict(self.translate(settings))
        if isinstance(descriptions := new.get("descriptions"), dict):
            new["descriptions"] = {column: self.reword(text) for column, text in descriptions.items()}
        columns = new.get("evaluate")
        if not isinstance(columns, dict) or not all(isinstance(each, dict) for each in columns.values()):
            return new
        new["evaluate"] = {column: self.translate_column(options) for column, options in columns.items()}
        if isinstance(evaluated := new.get("evaluated"), dict):
            protocols = {column: options.get("protocol") for column, options in new["evaluate"].items()}
            new["evaluated"] = {
                column: self.translate_options(options, protocols.get(column)) for column, options in evaluated.items()
            }
        return new

    def translate(self, settings: Mapping[str, Any]) -> Any:
        """Pairs of name and value of the settings of pretraining."""
        for name, value in settings.items():
            first, dot, rest = name.partition(".")
            if name in self.settings:
                renamed = self.settings[name]
            else:
                renamed = f"{self.settings.get(first + dot, first + dot)}{rest}"
            if renamed is None or (value is None and renamed.startswith(self.unset)):
                continue
            values = self.values.get(renamed, {})
            yield renamed, values.get(value, value) if isinstance(value, str | bool) else value

    def reword(self, description: Any) -> Any:
        """A description of a protocol in today's words."""
        if isinstance(description, str):
            for old, new in self.descriptions.items():
                description = description.replace(old, new)
        return description

    def translate_column(self, column: Mapping[str, Any]) -> dict[str, Any]:
        """The definition of one column: protocol, metric, and options of the protocol."""
        protocol = column.get("protocol")
        if isinstance(protocol, str):
            protocol = self.protocols.get(protocol, protocol)
        options = {name: value for name, value in column.items() if name not in ("protocol", "metric")}
        same = {name: value for name, value in column.items() if name == "metric"}
        return {"protocol": protocol, **self.translate_options(options, protocol), **same}

    def translate_options(self, options: Any, protocol: object) -> Any:
        """Options of an evaluation protocol."""
        if not isinstance(options, dict):
            return options
        names = {**self.options.get("", {}), **(self.options.get(protocol, {}) if isinstance(protocol, str) else {})}
        return {names.get(name, name): value for name, value in options.items()}


RENAMES: Mapping[int, Renames] = {
    1: Renames(
        fields={
            "knob": "variant",
            "judged": "evaluated",
            "judging_seconds": "evaluation_seconds",
            "signs": "collapse_metrics",
            "protocols": "descriptions",
        },
        settings={
            "batch": "batch_size",
            "accumulate": "accumulate_grad_batches",
            "exact_batch": "grad_cache",
            "smallest_crop": "min_crop_scale",
            "augment_on": "augment_device",
            "mixing.per_sample": "mixing.lam_per",
            "mixing.fold": "mixing.lam_at_least_half",
            "mixing.share": "mixing.prob",
            "mixing.ramp": "mixing.warmup",
            "watch.look_every": "monitor.eval_every",
            "watch.tensorboard": "monitor.loggers",
            "watch.wandb": None,
            "watch.": "monitor.",
            "method": "method.name",
            "head.": "method.",
        },
        values={
            "mixing.lam_per": {True: "image", False: "batch"},
            "mixing.mixer": {"either": "random_choice"},
            "monitor.loggers": {True: "tensorboard", False: "none"},
        },
        unset=("method.",),
        protocols={"lowshot": "low-shot", "semi": "semi-supervised"},
        options={
            "": {
                "batch": "batch_size",
                "accumulate": "accumulate_grad_batches",
                "shown": "resize",
                "questions": "max_test_images",
            },
            "linear": {"recipe": "schedule"},
            "detection": {"protocol": "recipe", "keeping": "logging"},
        },
        descriptions={
            "centre crop": "center crop",
            "standardised": "standardized",
            "regularised": "regularized",
            "normalised": "normalized",
            "one linear SVM a class": "one linear SVM per class",
            "one C a sample": "one C per sample",
            "mean ± standard deviation": "mean ± std",
            "every other class a class (as many as there are)": "every other class per class (as many as there are)",
        },
    ),
}
"""By the format that has the old names."""

SHARED_OPTIONS: Mapping[int, str] = {1: "method."}
"""Formats in which every method had the options of all methods, and the first part of the names of these options today.
Those that a method does not have any more never had an effect on it."""


def translate(record: Mapping[str, Any], version: int) -> dict[str, Any]:
    """A record of an earlier format in the names of the newest."""
    new = dict(record)
    for number in range(version, FORMAT):
        new = RENAMES[number].apply(new)
    return new
