"""Pages that are made from the code itself: the recipes, the commands and the reference of modules."""

import os
from pathlib import Path
from typing import Any

import mixview
from mixview import recipes

PACKAGE = Path(mixview.__file__).parent

PARTS = {
    "The add-on: torch alone": ("mixing", "losses", "objective", "methods", "nn", "distributed"),
    "Using encoders": ("encoders",),
    "Training": ("train", "runs"),
    "Judging": ("evaluate",),
    "Data": ("data",),
}
"""How the reference is divided; what is in none of them comes last."""


def write_all(folder: Path) -> None:
    """Write every page that is not there or has changed."""
    pages = {
        "recipes": recipe_tables(),
        "commands": command_page(),
        **{f"api-{number}": api_page(title, parts) for number, (title, parts) in enumerate(divided().items())},
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
    """Every recipe with its cost and the paper's figures, from the YAML files."""
    lines = ["# Every recipe", ""]
    lines += [
        "Start one with `mixview pretrain --recipe NAME --data IMAGES --out runs/NAME`; further options change it."
    ]
    lines += ["The figures are the paper's, of ResNet-50 on ImageNet; `mixview recipes` prints the same table.", ""]
    lines += table(recipes.names())
    if detection := recipes.names(detection=True):
        lines += ["", "## Detection", "", "Protocols of `mixview evaluate detection --recipe NAME`.", ""]
        lines += table(detection)
    return "\n".join(lines) + "\n"


def table(names: list[str]) -> list[str]:
    lines = ["| recipe | what | cost | the paper's figures |", "|---|---|---|---|"]
    for name in names:
        about = recipes.read(name).about
        cells = [f"`{name}`", *(str(about.get(key, "")).replace("|", "\\|") for key in ("what", "cost", "paper"))]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def command_page() -> str:
    """The help of every command, as the program prints it."""
    from jsonargparse import capture_parser

    from mixview.cli import main

    os.environ["COLUMNS"] = "100"
    parser = capture_parser(lambda: main(["recipes"]))
    lines = ["# Every command", ""]
    for name, each in sorted(commands(parser).items()):
        lines += [f"## mixview {name}", "", "```text", each.format_help().rstrip(), "```", ""]
    return "\n".join(lines)


def commands(parser: Any, prefix: str = "") -> dict[str, Any]:
    """Parsers by the words that lead to them."""
    found: dict[str, Any] = {}
    for action in parser._actions:
        for name, each in (getattr(action, "_name_parser_map", None) or {}).items():
            inner = commands(each, f"{prefix}{name} ")
            found |= inner or {f"{prefix}{name}": each}
    return found


def divided() -> dict[str, list[str]]:
    """The names of all modules, part by part."""
    modules: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        names = path.relative_to(PACKAGE).with_suffix("").parts
        if names[-1] == "__init__":
            names = names[:-1]
        if names and names != ("cli",):
            modules.setdefault(names[0], []).append(".".join(("mixview", *names)))
    parts = {title: [name for each in tops for name in modules.pop(each, [])] for title, tops in PARTS.items()}
    rest = [name for names in modules.values() for name in names]
    return {title: names for title, names in (parts | {"Further modules": rest}).items() if names}


def api_page(title: str, modules: list[str]) -> str:
    """The reference of some modules, from their docstrings."""
    lines = [f"# {title}", ""]
    for name in modules:
        lines += [f"## {name}", "", "```{eval-rst}", f".. automodule:: {name}", "```", ""]
    return "\n".join(lines)
