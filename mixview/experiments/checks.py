"""Mistakes in a study, named before anything is run."""

from collections.abc import Mapping
from typing import Any

from mixview.experiments import evaluations
from mixview.experiments.definitions import AXES
from mixview.experiments.plan import check_plan, check_references
from mixview.extensions import PROTOCOLS, is_import_path
from mixview.io.terminal import escape_control_chars
from mixview.options import suggestion, truncated_repr

COLUMN = ("protocol", "metric")
MAX_LABEL = 100
"""Characters that a table and a picture have room for."""


def check(name: str, definition: Mapping[str, Any]) -> None:
    """Raise ValueError when a study does not have the form that `mixview.experiments.spec` describes.

    Args:
        name: the study's name, for the message.
        definition: its YAML, bases included.
    """
    for key in ("about", "encoders", "settings", *AXES, "evaluate"):
        require(name, key, definition.get(key, {}), dict, "names, each with what it means")
    for axis in AXES:
        for value, content in definition.get(axis, {}).items():
            if isinstance(value, bool):
                raise ValueError(
                    f"{name}: YAML reads a name among the {axis} as {value}: put it in quotes, as it was written"
                )
            check_label(name, value)
            where = f"{truncated_repr(value)} among the {axis}"
            require(name, where, {} if content is None else content, dict, "settings, such as {epochs: 10}")
            if axis != "data" and content and "evaluate" in content:
                check_columns(f"{name}, {where}", content["evaluate"])
    for column in definition.get("evaluate", {}):
        check_label(name, column)
    check_columns(name, definition.get("evaluate", {}))
    check_seeds(name, definition.get("seeds", [0]))
    grids = definition.get("grids", [{}])
    require(name, "grids", grids, list, "a list, such as [{methods: [MoCo v2], objectives: [SIM, BSIM]}]")
    for grid in grids:
        require(name, "a grid", grid, dict, "values by axis, such as {methods: [MoCo v2], objectives: [SIM, BSIM]}")
        for axis, values in grid.items():
            if axis == "added":
                require(name, "added", values, str, 'a reason, such as "requested by a reviewer"')
                continue
            require(name, f"{axis} of a grid", values, list, "a list, such as [MoCo v2]")
            for value in values:
                if isinstance(value, dict):
                    check_reference(name, axis, value)
        check_seeds(name, grid.get("seeds", [0]))
    check_baseline(name, definition)
    if definition.get("match_compute", False) not in (True, False, "epochs"):
        raise ValueError(
            f"{name}: match_compute should be true, false or epochs, got {truncated_repr(definition['match_compute'])}"
        )
    check_references(name, definition)
    check_plan(name, definition)


def check_reference(name: str, axis: str, value: Mapping[str, Any]) -> None:
    """A value that an earlier study chooses names that study."""
    if axis not in ("variants", "objectives") or not isinstance(value.get("best_of"), str):
        raise ValueError(
            f"{name}: variants and objectives of a grid can be chosen by an earlier study, as {{best_of: tune}}; "
            f"got {truncated_repr(value)} among the {axis}"
        )
    if unknown := sorted(set(value) - {"best_of", "data", "method", "columns"}):
        raise ValueError(f"{name}: best_of has no {unknown[0]!r}: there are data, method and columns")


def check_label(name: str, label: object) -> None:
    """A label is one line of text, or a number."""
    if str(label) != escape_control_chars(label) or len(str(label)) > MAX_LABEL:
        raise ValueError(
            f"{name}: the label {escape_control_chars(label)[:MAX_LABEL]} has control characters, or more than "
            f"{MAX_LABEL} characters: use a short name of one line"
        )


def require(name: str, what: str, value: object, kind: type, form: str) -> None:
    """Raise unless a part of the study is of this kind."""
    if not isinstance(value, kind):
        raise ValueError(f"{name}: {what} should be {form}, got {truncated_repr(value)}")


def check_seeds(name: str, seeds: object) -> None:
    """Seeds are whole numbers in a list."""
    form = "a list of whole numbers, such as [0, 1, 2]"
    require(name, "seeds", seeds, list, form)
    assert isinstance(seeds, list)
    if not seeds or not all(isinstance(seed, int) and not isinstance(seed, bool) for seed in seeds):
        raise ValueError(f"{name}: seeds should be {form}, got {truncated_repr(seeds)}")


def check_baseline(name: str, definition: Mapping[str, Any]) -> None:
    """The baseline is one of the objectives, and one that is trained."""
    baseline = definition.get("baseline")
    objectives = {str(value): each for value, each in definition.get("objectives", {}).items()}
    if baseline is None:
        return
    if str(baseline) not in objectives:
        raise ValueError(
            f"{name}: the baseline {truncated_repr(baseline)} is none of the objectives"
            f"{suggestion(baseline, list(objectives))}"
        )
    if (objectives[str(baseline)] or {}).get("encoder") is not None:
        raise ValueError(
            f"{name}: the baseline {truncated_repr(baseline)} is not trained: others have no steps to share with it"
        )


def check_columns(name: str, columns: object) -> None:
    """Every column has a protocol that exists, options that it takes, and a metric to show."""
    require(name, "evaluate", columns, dict, "columns, such as {k-NN: {protocol: knn, metric: top-1}}")
    assert isinstance(columns, dict)
    for column, evaluation in columns.items():
        if not isinstance(evaluation, dict) or not all(isinstance(evaluation.get(each), str) for each in COLUMN):
            raise ValueError(f"{name}: {column} needs a protocol and a metric, got {truncated_repr(evaluation)}")
        protocol, builtins = evaluation["protocol"], PROTOCOLS.names()
        if protocol not in builtins and not is_import_path(protocol):
            raise ValueError(
                f"{name}: {column} has no protocol {truncated_repr(protocol)}{suggestion(protocol, builtins)}"
            )
        options = evaluations.options(protocol)
        for option in evaluation:
            if option not in COLUMN and option not in options:
                raise ValueError(
                    f"{name}: {column}: {protocol} has no option {truncated_repr(option)}{suggestion(option, options)}"
                )
