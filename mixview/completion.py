"""`mixview --print_completion bash`: a script that completes commands and options.

Options are read from the source of what a command calls, without importing it: a script of all commands would
otherwise wait for torch and everything else.
"""

import argparse
import ast
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from mixview.io.terminal import say

SHELLS = ("bash", "zsh", "tcsh")


def print_completion(arguments: list[str], commands: Mapping[str, Any]) -> None:
    """Print the script for the shell that the arguments name."""
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        say(f"mixview: --print_completion needs a shell: {', '.join(SHELLS)}", file=sys.stderr)
        sys.exit(2)
    import shtab

    parser = argparse.ArgumentParser(prog="mixview")
    parser.add_argument("--version", action="store_true")
    add_commands(parser, commands)
    say(shtab.complete(parser, arguments[0]))


def add_commands(parser: argparse.ArgumentParser, commands: Mapping[str, Any]) -> None:
    """Add a parser for each command, and for those below it."""
    below = parser.add_subparsers()
    for name, command in commands.items():
        inner = below.add_parser(name, help=command.summary)
        if hasattr(command, "commands"):
            add_commands(inner, command.commands)
        else:
            for option in sorted({"--config", *options(*command.target.split(":"))}):
                inner.add_argument(option)


def options(module: str, name: str, prefix: str = "--") -> Iterator[str]:
    """The options of a function, or of a dataclass, its bases and the dataclasses in it."""
    target = definition(module, name)
    if target is None:
        return
    module, node = target
    if isinstance(node, ast.FunctionDef):
        yield from (f"{prefix}{argument.arg}" for argument in (*node.args.args, *node.args.kwonlyargs))
        return
    for base in node.bases:
        if isinstance(base, ast.Name):
            yield from options(module, base.id, prefix)
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_field(field):
            option = f"{prefix}{field.target.id}"
            inner = field.annotation.id if isinstance(field.annotation, ast.Name) else ""
            nested = list(options(module, inner, f"{option}.")) if inner[:1].isupper() else []
            yield from nested or [option]


def is_field(node: ast.AnnAssign) -> bool:
    """Return True if a line of a dataclass is an option, not a class variable."""
    return "ClassVar" not in ast.dump(node.annotation)


def definition(module: str, name: str) -> tuple[str, ast.FunctionDef | ast.ClassDef] | None:
    """The module of mixview that defines a name of a module, and its source."""
    tree = parse(module)
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mixview."):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return definition(str(node.module), alias.name)
    return None


@lru_cache
def parse(module: str) -> ast.Module | None:
    """The source of a module, parsed."""
    path = Path(__file__).parent.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else None
