"""Listing studies reads YAML and nothing else: it must not wait for torch."""

import ast
import sys
from pathlib import Path

import pytest

import mixview
from mixview.experiments import command, definitions

PACKAGE = Path(mixview.__file__).parent
LIGHT = {"mixview", "yaml", "rich"}


def imported_at_once(path: Path) -> set[str]:
    """The modules that importing a file imports: not those in functions, and not those for type checkers."""
    modules = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            modules |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def files_of(module: str) -> set[Path]:
    """The files of mixview that importing a module runs, except for mixview/__init__.py."""
    parts = module.split(".")[1:]
    files = {PACKAGE.joinpath(*parts[:count], "__init__.py") for count in range(1, len(parts) + 1)}
    files.add(PACKAGE.joinpath(*parts).with_suffix(".py"))
    return {file for file in files if file.is_file()}


def test_listing_imports_no_torch() -> None:
    seen: set[Path] = set()
    waiting = files_of("mixview.experiments.command")
    assert {file.name for file in waiting} == {"__init__.py", "command.py"}
    while waiting:
        file = waiting.pop()
        seen.add(file)
        for module in imported_at_once(file):
            if module.startswith("mixview."):
                waiting |= files_of(module) - seen
            else:
                library = module.partition(".")[0]
                assert library in LIGHT or library in sys.stdlib_module_names, f"{file} imports {library}"
    assert {"definitions.py", "yaml_files.py", "__init__.py"} <= {file.name for file in seen}


def test_every_study_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    command.list_studies()
    text = capsys.readouterr().out
    assert all(name in text for name in definitions.names() if len(name) < 10)
    assert " 106 " in text
