"""`mixview pretrain`: options that start from a recipe or a stored run, and those of one method only."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mixview.extensions import METHODS, require_consent
from mixview.parsing import (
    Parser,
    add_group,
    add_switches,
    group_options,
    make_parser,
    preparse,
    read_settings,
    set_defaults,
)
from mixview.recipes import merge, method_group, read
from mixview.train.config import DEFAULT_METHOD, EARLIER, PretrainConfig, from_plain

RECIPE = "Recipe to start from (`mixview recipes` lists them), or a YAML file of your own; further options change it."
METHOD = "Self-supervised method: {}, or your own by import path, such as mine.BarlowTwins."
TRUST = """Import a custom backbone, method, mixer or augmentation that a file names (a recipe, or the resumed run).
That runs its code. What you name on the command line needs no such consent."""


def parse(
    prog: str,
    target: type[PretrainConfig],
    arguments: list[str],
    key_options: Sequence[str] = (),
    examples: Sequence[str] = (),
) -> None:
    """Parse the options, and train."""
    parser = build_parser(prog, arguments)
    group_options(parser, key_options, examples)
    values = parser.parse_args(arguments).as_dict()
    config = from_plain(
        {name: value for name, value in values.items() if name not in ("recipe", "config", "trust_remote_code")}
    )
    from mixview.train.pretraining import pretrain  # not before the options are known to be right: it takes seconds

    pretrain(config)


def build_parser(prog: str, arguments: list[str]) -> Parser:
    """The parser for these arguments: the method decides the options, a recipe or stored run the defaults."""
    given = preparse(arguments, "recipe", "config", "resume", "out", "method", "trust_remote_code")
    settings, where = starting_settings(given, arguments)
    if given["method"]:
        merge(settings, {"method": given["method"]})
    method = method_group(settings.pop("method", DEFAULT_METHOD))
    name = method.pop("name", DEFAULT_METHOD)
    parser = make_parser(prog, PretrainConfig, skip=("method",))
    parser.add_argument("--recipe", type=str, help=RECIPE)
    parser.add_argument("--trust_remote_code", type=bool, default=False, help=" ".join(TRUST.split()))
    add_group(parser, METHODS.load(name), "method", name, METHOD.format(", ".join(METHODS.names())))
    add_switches(parser)
    set_defaults(parser, settings | {"method": method}, where)
    return parser


def starting_settings(given: dict[str, Any], arguments: list[str]) -> tuple[dict[str, Any], str]:
    """The settings of the run that is resumed, of a recipe, or of a file; and where they are from."""
    settings: dict[str, Any] = {}
    trust, where = bool(given["trust_remote_code"]), "the command line"
    if given["resume"]:
        if given["out"] is None:
            raise ValueError("--resume needs the folder of the run: pass --out")
        from mixview.runs.run_directory import RunDirectory

        where = str(Path(given["out"]) / "config.yaml")
        settings = EARLIER | {
            name: each for name, each in RunDirectory.open(given["out"]).config.items() if name in FIELDS
        }
    elif given["recipe"] is not None:
        where = f"the recipe {given['recipe']}"
        settings = read(given["recipe"]).settings
    require_consent(settings, where, trust, arguments)
    if given["config"] is not None:
        merge(settings, read_settings(given["config"], arguments, trust))
        where = given["config"]
    return settings, where


FIELDS = PretrainConfig.__dataclass_fields__
