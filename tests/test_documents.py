"""What README and docs say runs: every Python block, in order, in one namespace a document; links; the diff."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_blocks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for block in blocks(path, "python"):
        exec(compile(block, str(path), "exec"), namespace)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


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
