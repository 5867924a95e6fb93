"""What README and docs say runs: every Python block, in one namespace a document; every command; links; the diff."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonargparse import capture_parser

from mixview.cli import expand, main
from mixview.train.pretraining import Pretraining
from mixview.train.run_folder import RunFolder

ROOT = Path(__file__).parent.parent
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if not {"generated", "_build"} & set(path.parts)]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
LAUNCHERS = ("torchrun", "srun")


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_blocks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIXVIEW_CACHE", str(tmp_path / "cache"))
    namespace: dict[str, object] = {}
    for block in blocks(path, "python"):
        exec(compile(block, str(path), "exec"), namespace)


@pytest.fixture(scope="module")
def parser() -> Any:
    return capture_parser(lambda: main([]))  # of a command alone, the others would not be there


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the runs and recipes that documents speak of are there."""
    monkeypatch.chdir(tmp_path)
    config = Pretraining(data="photos/").config()
    RunFolder.create("runs/first", config, {"kind": "folder", "count": 2, "fingerprint": ""}).close()
    Path("mine.yaml").write_text("base: paper/mocov2\nepochs: 3\n")
    return tmp_path


def command_lines(path: Path) -> list[list[str]]:
    """The words of every command in a document's shell blocks, without comments and without where output goes."""
    found = []
    for block in blocks(path, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                found.append(words[: words.index(">")] if ">" in words else words)
    return found


def check_command(words: list[str], parser: Any) -> None:
    """Refuse a command that the program would refuse, or that names what is not there."""
    program, *rest = words
    if program in LAUNCHERS:
        start = rest.index("mixview.cli") if "mixview.cli" in rest else rest.index("mixview")
        program, rest = "mixview", rest[start + 1 :]
    if program == "mixview" and rest[0] == "--print_completion":  # which uses a parser up; test_wheel.py tries it
        assert rest[1:] in (["shtab-bash"], ["shtab-zsh"])
    elif program == "mixview":
        parser.parse_args(expand(rest))
    elif program == "make":
        makefile = (ROOT / "Makefile").read_text()
        assert all(f"\n{target}:" in makefile for target in rest), words
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named = re.fullmatch(r"install mixview(?:\[([\w,]+)\])?", " ".join(rest))
        assert named, words
        assert set((named[1] or "embed").split(",")) <= extras.keys(), words
    elif program == "python":
        assert (ROOT / rest[0]).is_file(), words
    else:
        pytest.fail(f"nobody knows whether {shlex.join(words)} works")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_are_understood(path: Path, parser: Any, folder: Path) -> None:
    for words in command_lines(path):
        check_command(words, parser)


@pytest.mark.parametrize(
    "line", ["mixview embed runs/first --dta photos/", "mixview exprt x", "make nothing", "pip install mixview[all]"]
)
def test_a_wrong_command_would_be_noticed(line: str, parser: Any) -> None:
    with pytest.raises((AssertionError, SystemExit)):
        check_command(shlex.split(line), parser)


def test_every_block_has_a_language_that_is_checked() -> None:
    known = {"sh", "python", "yaml", "diff", "text", "{toctree}", "{include}", "bibtex"}
    for path in DOCUMENTS:
        fences = re.findall(r"^```(\S*).*$", path.read_text(), re.MULTILINE)
        assert set(fences[::2]) <= known, path


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_yaml_blocks_are_yaml(path: Path) -> None:
    assert all(isinstance(yaml.safe_load(block), dict) for block in blocks(path, "yaml"))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_every_page_is_in_the_contents() -> None:
    contents = (ROOT / "docs" / "index.md").read_text().splitlines()
    for path in PAGES:
        name = path.relative_to(ROOT / "docs").with_suffix("").as_posix()
        assert name == "index" or name in contents or any(
            line.endswith("*") and Path(name).match(line) for line in contents
        ), name  # fmt: skip


def test_the_diff_in_the_readme_is_the_example() -> None:
    code = (ROOT / "examples" / "with_lightly.py").read_text()
    (diff,) = blocks(ROOT / "README.md", "diff")
    for line in diff.splitlines():
        if line.startswith("-"):
            assert line[1:] not in code
        else:
            assert line[1:].strip() in code


def test_make_targets_in_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?<!data )\bmake ([a-z-]+)", (ROOT / "README.md").read_text()):
        assert f"\n{target}:" in makefile, target
