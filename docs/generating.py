"""Pages that are made from the code itself: recipes, protocols, methods, commands and the reference."""

import contextlib
import importlib
import inspect
import io
import os
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from mixview import recipes
from mixview.cli import COMMANDS, Group, main
from mixview.evaluate import Protocol
from mixview.extensions import METHODS, MIXERS, PROTOCOLS
from mixview.parsing import description_of, help_texts

PACKAGES = {
    "Mixtures, objectives, and what most programs need": "mixview",
    "Methods": "mixview.methods",
    "Pretraining": "mixview.train",
    "Encoders": "mixview.encoders",
    "Exporting": "mixview.encoders.export",
    "Evaluation": "mixview.evaluate",
    "Detection": "mixview.evaluate.detection",
    "Data": "mixview.data",
    "The built-in synthetic dataset": "mixview.data.synthetic",
    "Runs": "mixview.runs",
    "Recipes": "mixview.recipes",
    "Studies": "mixview.experiments",
    "Report": "mixview.report",
    "Figures": "mixview.report.figures",
}
"""The pages of the reference: what each package declares in `__all__`. A test checks that no package is missing."""

MODULES = {
    "Losses": "mixview.losses",
    "Building blocks": "mixview.nn",
    "Distributed helpers": "mixview.distributed",
}
"""Modules that are public as they are: they need torch alone."""


def write_all(folder: Path) -> None:
    """Write every page that is not there or has changed."""
    pages = {
        "recipes": recipe_tables(),
        "protocols": protocol_page(),
        "methods": method_page(),
        "commands": command_page(),
        **package_pages(),
        **{f"api-{slug(name)}": module_page(title, name) for title, name in MODULES.items()},
    }
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.md"):
        if old.stem not in pages:
            old.unlink()
    for name, text in pages.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def recipe_tables() -> str:
    """The recipes with their costs and the paper's numbers, from the YAML files."""
    lines = ["# Recipes", ""]
    lines += [
        "Start one with `mixview pretrain --recipe NAME --data IMAGES --out runs/NAME`. Options change its settings.",
        "",
    ]
    lines += [
        "The last column has the paper's numbers, of ResNet-50 on ImageNet. `mixview recipes` prints the same table.",
        "",
    ]
    lines += table(recipes.names())
    if detection := recipes.names(detection=True):
        lines += ["", "## Detection", "", "Use them with `mixview evaluate detection --recipe NAME`.", ""]
        lines += table(detection)
    return "\n".join(lines) + "\n"


def table(names: list[str]) -> list[str]:
    lines = ["| recipe | description | cost | numbers in the paper |", "|---|---|---|---|"]
    for name in names:
        about = recipes.read(name).about
        cells = [f"`{name}`", *(str(about.get(key, "")).replace("|", "\\|") for key in ("what", "cost", "paper"))]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def protocol_page() -> str:
    """The evaluation protocols with their own options, from the classes."""
    lines = ["# Evaluation protocols", ""]
    lines += [
        "Run one with `mixview evaluate NAME ENCODER --data IMAGES`. [Evaluation](../evaluation.md) explains them."
    ]
    lines += ["[Commands](commands.md) lists the options that all protocols share.", ""]
    shared = {field.name for field in fields(Protocol)}
    for name in PROTOCOLS.names():
        protocol = PROTOCOLS.load(name)
        lines += [f"## {name}", "", description_of(protocol), "", *options_table(protocol, shared), ""]
    return "\n".join(lines)


def method_page() -> str:
    """The methods and mixers with their options, from the classes."""
    lines = ["# Methods and mixers", ""]
    lines += ["Choose a method with `--method NAME`, and set its options with `--method.OPTION`.", ""]
    for name in METHODS.names():
        config = METHODS.load(name)
        lines += [f"## {name}", "", description_of(config), "", *options_table(config, set()), ""]
    lines += ["## Mixers", "", "Choose a mixer with `--mixing.mixer NAME`.", "", "| name | mixture |", "|---|---|"]
    lines += [f"| `{each.name}` | {plain(each.summary)} |" for each in MIXERS.builtins.values()]
    return "\n".join(lines) + "\n"


def options_table(target: type[Any], left_out: set[str]) -> list[str]:
    """The fields of a dataclass, with defaults and help."""
    texts = help_texts(target)
    rows = [
        f"| `{field.name}` | {default_of(field)} | {plain(texts.get(field.name, ''))} |"
        for field in fields(target)
        if field.name not in left_out
    ]
    return ["| option | default | meaning |", "|---|---|---|", *rows] if rows else ["It has no options of its own."]


def default_of(field: Field[Any]) -> str:
    """The default of an option, as one would type it."""
    if field.default is MISSING:
        return "" if field.default_factory is MISSING else "a group of options"
    return "" if field.default is None else f"`{field.default}`"


def plain(text: str) -> str:
    """A text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def command_page() -> str:
    """The help of every command, as the program prints it."""
    lines = ["# Commands", "", "```text", help_of().rstrip(), "```", ""]
    for words in command_names():
        lines += [f"## mixview {words}", "", "```text", help_of(*words.split()).rstrip(), "```", ""]
    return "\n".join(lines)


def command_names() -> list[str]:
    """Every command by the words that call it, in the order of the program's own help."""
    names = []
    for name, command in COMMANDS.items():
        names += [f"{name} {each}" for each in command.commands] if isinstance(command, Group) else [name]
    return names


def help_of(*words: str) -> str:
    """The text that `mixview ... --help` prints on a terminal of 80 columns."""
    text = io.StringIO()
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    try:
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            main([*words, "--help"])
    finally:
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns
    return text.getvalue()


def slug(name: str) -> str:
    """The name of a module in the name of a page."""
    return name.replace("mixview.", "").replace(".", "-")


def package_pages() -> dict[str, str]:
    """The names that each package declares, from the docstrings."""
    pages = {}
    described: set[int] = set()  # some names are declared by two packages
    for title, package in PACKAGES.items():
        module = importlib.import_module(package)
        lines = [f"# API: {title}", "", f"`from {package} import …`", ""]
        for name in module.__all__:
            each = getattr(module, name)
            kind = "autoclass" if inspect.isclass(each) else "autofunction" if callable(each) else "autodata"
            again = [":no-index:"] if id(each) in described else []
            lines += [f"## {name}", "", "```{eval-rst}", f".. {kind}:: {package}.{name}"]
            lines += [*(f"   {option}" for option in again), "```", ""]
            described.add(id(each))
        pages[f"api-{slug(package)}"] = "\n".join(lines)
    return pages


def module_page(title: str, name: str) -> str:
    """The reference of a module, from its docstrings."""
    return "\n".join([f"# API: {title}", "", f"`{name}`", "", "```{eval-rst}", f".. automodule:: {name}", "```", ""])
