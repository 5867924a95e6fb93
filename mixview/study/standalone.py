"""Protocols that open images and encoder themselves, and that a column of a study can have beside those of features."""

import dataclasses
import importlib
from collections.abc import Callable, Iterable
from typing import Any

from mixview.evaluate.results import Result

PROTOCOLS = {"detection": ("mixview.detection.judging", "detect", "Detection")}
"""By name: the module; its function of the encoder, its own `protocol` (a column says `recipe`) and options, which
returns a result for each of its trials; and the dataclass that has the options as fields."""


def load(protocol: str) -> Callable[..., Iterable[Result]]:
    """The function that judges."""
    module, function, _ = PROTOCOLS[protocol]
    found: Callable[..., Iterable[Result]] = getattr(importlib.import_module(module), function)
    return found


def options(protocol: str) -> list[str]:
    """What a column can say to it."""
    module, _, settings = PROTOCOLS[protocol]
    fields: Any = dataclasses.fields(getattr(importlib.import_module(module), settings))
    return ["recipe", *(field.name for field in fields if field.name != "protocol")]
