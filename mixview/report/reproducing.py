"""The command that repeats a run, from its settings: it needs neither the run's folder nor a recipe."""

import json
import shlex
from typing import Any

from mixview.evaluate.provenance import flatten
from mixview.train.pretraining import Pretraining
from mixview.train.run_folder import plain


def command(config: dict[str, Any]) -> str:
    """`mixview pretrain …` with every setting that is not the default."""
    whole = {"data_options"}  # of the source's own names, and so one option
    usual = flatten(plain(Pretraining().config(), "defaults"))
    given = {name: value for name, value in config.items() if name in whole and value}
    given |= flatten({name: value for name, value in config.items() if name not in whole})
    first = [name for name in ("data", "data_options", "method", "objective", "backbone") if name in given]
    options = ["mixview", "pretrain"]
    for name in dict.fromkeys([*first, *given]):
        if name in first or usual.get(name) != given[name]:
            options += [f"--{name}", spell(given[name])]
    return shlex.join(options)


def spell(value: Any) -> str:
    """A setting as the command line takes it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
