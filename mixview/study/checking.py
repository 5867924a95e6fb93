"""Mistakes in a study, named before anything is run."""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from mixview.evaluate.judging import PROTOCOLS
from mixview.options import brief
from mixview.study import standalone
from mixview.terminal import printable

AXES = ("data", "methods", "knobs", "objectives")
COLUMN = ("protocol", "metric")
LONGEST_LABEL = 100
"""Characters that a table and a picture have room for."""


def check(name: str, text: Mapping[str, Any]) -> None:
    """Raise ValueError when a study does not have the form that `mixview.study.grid` describes.

    Args:
        name: of the study, for the message.
        text: what it says, bases included.
    """
    for key in ("about", "settings", *AXES, "evaluate"):
        wanted(name, key, text.get(key, {}), dict, "names, each with what it means")
    for axis in AXES:
        for level, content in text.get(axis, {}).items():
            if isinstance(level, bool):
                raise ValueError(
                    f"{name}: YAML reads a name among the {axis} as {level}: put it in quotes, as it was written"
                )
            check_label(name, level)
            where = f"{brief(level)} among the {axis}"
            wanted(name, where, {} if content is None else content, dict, "settings, such as {epochs: 10}")
            if axis != "data" and content and "evaluate" in content:
                check_columns(f"{name}, {where}", content["evaluate"])
    for level in text.get("evaluate", {}):
        check_label(name, level)
    check_columns(name, text.get("evaluate", {}))
    check_seeds(name, text.get("seeds", [0]))
    grids = text.get("grids", [{}])
    wanted(name, "grids", grids, list, "a list, such as [{methods: [MoCo v2], objectives: [SIM, BSIM]}]")
    for grid in grids:
        wanted(name, "a grid", grid, dict, "levels by axis, such as {methods: [MoCo v2], objectives: [SIM, BSIM]}")
        for axis, levels in grid.items():
            wanted(name, f"{axis} of a grid", levels, list, "a list, such as [MoCo v2]")
        check_seeds(name, grid.get("seeds", [0]))
    check_baseline(name, text)


def check_label(name: str, label: object) -> None:
    """A label is one line of text, or a number."""
    if str(label) != printable(label) or len(str(label)) > LONGEST_LABEL:
        raise ValueError(
            f"{name}: the label {printable(label)[:LONGEST_LABEL]} has control characters, or more than "
            f"{LONGEST_LABEL} characters: give it a short name of one line"
        )


def wanted(name: str, what: str, value: object, kind: type, form: str) -> None:
    """Raise unless a part of the study is of this kind."""
    if not isinstance(value, kind):
        raise ValueError(f"{name}: {what} should be {form}, got {brief(value)}")


def check_seeds(name: str, seeds: object) -> None:
    """Seeds are whole numbers in a list."""
    form = "a list of whole numbers, such as [0, 1, 2]"
    wanted(name, "seeds", seeds, list, form)
    assert isinstance(seeds, list)
    if not seeds or not all(isinstance(seed, int) and not isinstance(seed, bool) for seed in seeds):
        raise ValueError(f"{name}: seeds should be {form}, got {brief(seeds)}")


def check_baseline(name: str, text: Mapping[str, Any]) -> None:
    """The baseline is one of the objectives, and one that is trained."""
    baseline, objectives = (
        text.get("baseline"),
        {str(level): each for level, each in text.get("objectives", {}).items()},
    )
    if baseline is None:
        return
    if str(baseline) not in objectives:
        raise ValueError(
            f"{name}: the baseline {brief(baseline)} is none of the objectives: {hint(baseline, objectives)}"
        )
    if (objectives[str(baseline)] or {}).get("encoder") is not None:
        raise ValueError(
            f"{name}: the baseline {brief(baseline)} is not trained: others have no steps to share with it"
        )


def check_columns(name: str, columns: object) -> None:
    """Every column has a protocol that there is, options that it takes, and a figure to show."""
    wanted(name, "evaluate", columns, dict, "columns, such as {k-NN: {protocol: knn, metric: top-1}}")
    assert isinstance(columns, dict)
    known = {each.protocol: [field.name for field in dataclasses.fields(each)] for each in PROTOCOLS}
    for column, judgement in columns.items():
        if not isinstance(judgement, dict) or not all(isinstance(judgement.get(each), str) for each in COLUMN):
            raise ValueError(f"{name}: {column} needs a protocol and a metric, got {brief(judgement)}")
        protocol = judgement["protocol"]
        if protocol not in known and protocol not in standalone.PROTOCOLS:
            every = [*known, *standalone.PROTOCOLS]
            raise ValueError(f"{name}: {column} has no protocol {brief(protocol)} to judge by: {hint(protocol, every)}")
        options = known[protocol] if protocol in known else standalone.options(protocol)
        for option in judgement:
            if option not in COLUMN and option not in options:
                raise ValueError(f"{name}: {column}: {protocol} has no option {brief(option)}: {hint(option, options)}")


def hint(word: object, known: Iterable[str]) -> str:
    """What was meant, perhaps; else what there is."""
    known = list(known)
    close = difflib.get_close_matches(str(word), known, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known) or 'none'}"
