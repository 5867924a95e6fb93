"""The command that repeats a run, from its settings: it needs neither the run's folder nor a recipe."""

import json
import shlex
from typing import Any

from mixview.io.records import flatten
from mixview.options import negated
from mixview.runs.run_directory import to_serializable
from mixview.train.config import PretrainConfig, to_plain


def command(config: dict[str, Any]) -> str:
    """`mixview pretrain …` with every setting that is not the default."""
    single_options = {"data_options"}  # of the source's own names, and so one option
    defaults = to_serializable(to_plain(PretrainConfig()), "defaults")
    defaults.pop("method")  # all of its options are given: the defaults of another method are in code that is not ours
    usual = flatten(defaults)
    given = {name: value for name, value in config.items() if name in single_options and value}
    given |= flatten({name: value for name, value in config.items() if name not in single_options})
    first = [name for name in ("data", "data_options", "method.name", "objective", "backbone") if name in given]
    options = ["mixview", "pretrain"]
    for name in dict.fromkeys([*first, *given]):
        if name in first or usual.get(name) != given[name]:
            option = "--method" if name == "method.name" else f"--{name}"
            if isinstance(given[name], bool):
                options.append(option if given[name] else negated(option))
            else:
                options += [option, spell(given[name])]
    return shlex.join(options)


def spell(value: Any) -> str:
    """A setting as the command line takes it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
