"""All parsers of all commands, and what their options take."""

import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from jsonargparse import ArgumentParser

from mixview.cli import COMMANDS, Command, Group, load
from mixview.commands.pretrain import build_parser
from mixview.extensions import METHODS
from mixview.parsing import add_switches, configure, make_parser

LEAVES = (str, int, float, bool, type(None), Path)
CONTAINERS = (dict, list, tuple, typing.Union, types.UnionType, Literal)


def parsers() -> Iterator[tuple[tuple[str, ...], ArgumentParser]]:
    """Every command and its parser."""
    configure()
    for name, command in COMMANDS.items():
        yield from below((name,), command)


def below(words: tuple[str, ...], command: Command | Group) -> Iterator[tuple[tuple[str, ...], ArgumentParser]]:
    """The parser of a command, or those of a group; `pretrain` has one for each method."""
    prog = " ".join(("mixview", *words))
    if isinstance(command, Group):
        for name, each in command.commands.items():
            yield from below((*words, name), each)
    elif words == ("pretrain",):
        for method in METHODS.names():
            yield (*words, "--method", method), build_parser(prog, ["--method", method])
        yield words, build_parser(prog, [])
    else:
        parser = make_parser(prog, load(command.target))
        add_switches(parser)
        yield words, parser


def options(parser: ArgumentParser) -> Iterator[tuple[str, Any]]:
    """The options and positional arguments of a parser, and their types; None where there is none."""
    for action in parser._actions:
        if action.dest not in ("help", "config", "print_config", "print_completion"):
            yield action.dest, getattr(action, "_typehint", None) or getattr(action, "_basetype", None) or action.type


def admitted(kind: Any) -> Iterator[str]:
    """What a type admits besides text, numbers and paths, lists and dictionaries of them, in words."""
    origin = get_origin(kind)
    if origin is typing.Annotated:
        yield from admitted(get_args(kind)[0])
    elif origin in CONTAINERS:
        if origin is not Literal:
            for each in get_args(kind):
                if each is not Ellipsis:
                    yield from admitted(each)
    elif kind in (dict, list, tuple, Any, object):
        yield f"{kind}, which is anything"
    elif kind not in LEAVES and isinstance(kind, type):
        yield f"{kind}, whose value is an instance that a parser makes"
    elif kind is not None and kind not in LEAVES and not isinstance(kind, types.FunctionType):
        yield f"{kind}, which the test does not know"


def parse_all(command: list[str], payload: Any, forms: list[Any], required: list[str]) -> None:
    """Give a payload to every option of a command, in all forms, and make of it what the command would."""
    import contextlib
    import io
    import json

    parser = dict(parsers_of(command[0]))[tuple(command)]
    for name, _ in options(parser):
        for form in forms:
            value = json.dumps(json.loads(json.dumps(form).replace('"PAYLOAD"', json.dumps(payload))))
            given = [*required, f"--{name}={value}"] if name not in ("encoder", "path", "file", "folder") else [value]
            with contextlib.suppress(SystemExit, ValueError), contextlib.redirect_stderr(io.StringIO()):
                parser.instantiate_classes(parser.parse_args(given))


def parsers_of(command: str) -> Iterator[tuple[tuple[str, ...], ArgumentParser]]:
    """The parsers of one command, or of its subcommands."""
    configure()
    yield from below((command,), COMMANDS[command])
