"""The values that an option may have, declared by its type and checked in the command line, files and Python.

    scale: Annotated[float, MoreThan(0), AtMost(1)] = 0.2     # in a dataclass
    mode: Literal["random", "center"] = "random"
    check_options(self, "crop")                               # in its __post_init__

--crop.mode must be random or center, got 'centr': did you mean center?
"""

import difflib
import operator
import os
import sys
import types
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Limit:
    """A bound of a number: `AtLeast(0)`."""

    words: str
    holds: Callable[[float, float], bool]
    limit: float

    def is_valid(self, value: float) -> bool:
        return self.holds(value, self.limit)

    def __str__(self) -> str:
        return f"{self.words} {self.limit}"


AtLeast = partial(Limit, "at least", operator.ge)
MoreThan = partial(Limit, "more than", operator.gt)
AtMost = partial(Limit, "at most", operator.le)
LessThan = partial(Limit, "less than", operator.lt)

MAX_SIDE = 4096
"""Pixels. A larger image, view or network input is a typing mistake, and would only fill the memory."""

Count = Annotated[int, AtLeast(1)]
Width = Annotated[int, AtLeast(1), AtMost(1 << 20)]
Epochs = Annotated[int, AtLeast(1), AtMost(1_000_000)]
Workers = Annotated[int, AtLeast(0), AtMost(1024)]
Side = Annotated[int, AtLeast(1), AtMost(MAX_SIDE)]
Channels = Annotated[int, AtLeast(1), AtMost(1024)]
Seed = Annotated[int, AtLeast(0), LessThan(2**63)]
NonNegative = Annotated[int, AtLeast(0)]
NonNegativeFloat = Annotated[float, AtLeast(0)]
Positive = Annotated[float, MoreThan(0)]
Share = Annotated[float, AtLeast(0), AtMost(1)]

Precision = Literal["auto", "32-true", "bf16-mixed", "16-mixed"]
Accelerator = Literal["auto", "cpu", "cuda", "gpu", "mps"]
SourceOptions = dict[str, str | bool | int | float | None]
"""Options of a dataset, plain values by name."""

NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false", Path: "a path"}
MAX_SHOWN = 200
NON_EMPTY = "not empty"
"""Marks text that may not be empty: `Annotated[str, NON_EMPTY]`."""


def check_options(options: Any, group: str = "", prefix: str = "--") -> None:
    """Raise ValueError if a field of a dataclass is not what its type allows.

    Types are read as deep as unions, literals, limits, tuples, lists and dictionaries go; other types allow anything.

    Args:
        group: the options' name on the command line, where they are part of others.
        prefix: "--" for options of the command line, nothing for settings of a file.
    """
    hints = get_type_hints(type(options), include_extras=True)
    for field in fields(options):
        value = getattr(options, field.name)
        if not is_valid(hints[field.name], value):
            name = f"{prefix}{group}.{field.name}" if group else f"{prefix}{field.name}"
            raise ValueError(
                f"{name} must be {describe(hints[field.name])}, got {truncated_repr(value)}"
                f"{suggest(hints[field.name], value)}"
            )


def is_valid(hint: Any, value: object) -> bool:
    """Return True if a value is of a type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        base, *limits = arguments
        if NON_EMPTY in limits:
            return bool(value) and is_valid(base, value)
        return is_valid(base, value) and all(limit.is_valid(value) for limit in limits if hasattr(limit, "is_valid"))
    if origin in (Union, types.UnionType):
        return any(is_valid(each, value) for each in arguments)
    if origin is Literal:
        return any(value == each and type(value) is type(each) for each in arguments)
    if hint is type(None):
        return value is None
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, float | int) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if hint in (str, Path):
        return isinstance(value, str | os.PathLike)
    if hint is bool or (isinstance(hint, type) and is_dataclass(hint)):
        return isinstance(value, hint)
    if origin in (list, tuple, Sequence):
        if not isinstance(value, list | tuple):
            return False
        if origin is tuple and Ellipsis not in arguments:
            return len(value) == len(arguments) and all(map(is_valid, arguments, value))
        return all(is_valid(arguments[0], each) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(is_valid(arguments[1], each) for each in value.values())
    return True


def describe(hint: Any) -> str:
    """The values that a type allows, in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        base, *limits = arguments
        return describe(base) + (f", {' and '.join(map(str, limits))}" if limits else "")
    if origin in (Union, types.UnionType):
        return " or ".join(describe(each) for each in arguments if each is not type(None))
    if origin is Literal:
        *most, last = map(str, arguments)
        return f"{', '.join(most)} or {last}" if most else last
    if origin is tuple and Ellipsis not in arguments:
        return f"a list of {len(arguments)}, each {describe(arguments[0])}"
    if origin in (list, tuple, Sequence):
        return f"a list, each {describe(arguments[0])}"
    if origin is dict:
        return "a dictionary of plain values"
    return NAMES.get(hint) or str(getattr(hint, "__name__", hint))


def truncated_repr(value: object) -> str:
    """The repr of a value for an error message, truncated."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**100 else "a number of more than 100 digits"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def suggest(hint: Any, value: object) -> str:
    """The value that was probably meant, of a type that has a few."""
    parts = [hint, *get_args(hint)]
    choices = [str(each) for part in parts if get_origin(part) is Literal for each in get_args(part)]
    return did_you_mean(value, choices) if isinstance(value, str) else ""


def split_names(text: str | None, choices: Sequence[str], option: str) -> tuple[str, ...]:
    """The names in `text`, separated by commas; raise if one is none of the choices.

    Example:
        >>> split_names("duplicates, outliers", ("duplicates", "outliers"), "--drop")
        ('duplicates', 'outliers')
    """
    names = tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))
    for name in names:
        if name not in choices:
            hint = did_you_mean(name, choices)
            raise ValueError(
                f"{option} takes {', '.join(choices)}, separated by commas, not {truncated_repr(name)}{hint}"
            )
    return names


LOGGERS = ("tensorboard", "mlflow", "wandb")
"""Trackers that metrics can go to, besides the run directory (`mixview.runs.trackers`)."""


def logger_names(text: str, option: str = "loggers") -> tuple[str, ...]:
    """The loggers in `text`, separated by commas, or none; raise if one is unknown.

    Example:
        >>> logger_names("tensorboard,wandb"), logger_names("none")
        (('tensorboard', 'wandb'), ())
    """
    return () if text == "none" else split_names(text, LOGGERS, option)


def did_you_mean(value: str, choices: Iterable[str], *, cutoff: float = 0.6) -> str:
    """ ": did you mean x?" for the choice that is most like a value, or nothing if none is."""
    close = difflib.get_close_matches(value[:MAX_SHOWN], choices, n=1, cutoff=cutoff)
    return f": did you mean {close[0]}?" if close else ""


def suggestion(value: object, choices: Collection[str], *, cutoff: float = 0.6) -> str:
    """The choice that was probably meant, or all of them, as the end of a message."""
    return did_you_mean(str(value), choices, cutoff=cutoff) or f": there are {', '.join(choices) or 'none'}"


def negated(option: str) -> str:
    """`--no_sync_bn` for `--sync_bn`."""
    return f"--no_{option.removeprefix('--')}"
