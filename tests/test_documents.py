"""What README and docs say holds: every Python block runs, in one namespace per document; YAML; links; the diff.

Shell blocks are run by tests/test_documented_commands.py.
"""

import re
from pathlib import Path

import pytest

from mixview.data.augment.policies import load_policy
from mixview.experiments import results
from mixview.experiments import spec as grid
from mixview.train.config import to_plain

ROOT = Path(__file__).parent.parent
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if not {"generated", "_build"} & set(path.parts)]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *PAGES]


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_blocks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIXVIEW_CACHE", str(tmp_path / "cache"))
    namespace: dict[str, object] = {}
    for block in blocks(path, "python"):
        exec(compile(block, str(path), "exec"), namespace)


def test_every_block_has_a_language_that_is_checked() -> None:
    known = {"sh", "python", "yaml", "diff", "text", "{toctree}", "{include}", "bibtex"}
    for path in DOCUMENTS:
        fences = re.findall(r"^```(\S*).*$", path.read_text(), re.MULTILINE)
        assert set(fences[::2]) <= known, path


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_yaml_blocks_are_studies_or_policies(path: Path, tmp_path: Path) -> None:
    for block in blocks(path, "yaml"):
        file = tmp_path / "mine.yaml"
        file.write_text(block)
        if path.name == "augmentations.md":
            assert load_policy(file)
            continue
        study = grid.read(str(file))
        assert study.runs
        assert all(to_plain(run.pretraining) for run in study.runs)


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


PER_BATCH = {
    ("ablations", "one λ per batch"),
    ("ablations", "α 0.01, one λ per batch"),
    ("collapse", "one λ per batch"),
    ("related", "Un-Mix"),
}
"""The mixtures of the committed studies that have the paper's one λ per batch."""


def test_documents_say_that_the_study_has_one_lam_per_image() -> None:
    """The paper has one per batch: wherever BSIM is shown behind SIM, this is said, with the exceptions."""
    per_batch = {
        (study, result.objective.replace("λ a batch", "λ per batch"))  # stored records are never rewritten
        for study, records in results.read_all(ROOT / "study").items()
        for result in records
        if result.settings.get("objective", "sim") != "sim" and result.settings["mixing.lam_per"] == "batch"
    }
    assert per_batch == PER_BATCH
    readme = (ROOT / "README.md").read_text().partition("## Does mixing pay?")[2].partition("\n## ")[0]
    assert "All mixtures in these tables have one λ per image, where the paper draws one λ per batch" in readme
    assert "BSIM is behind SIM here with one λ per image" in readme
    study = (ROOT / "docs" / "study.md").read_text()
    compared = " ".join(study.partition("## What is compared")[2].partition("\n## ")[0].split())
    assert "**One λ per image, not the paper's one λ per batch.**" in compared
    for name, row in PER_BATCH:
        assert f"`{name}`" in compared
        assert row in compared
    sections = study.partition("## What was found")[2].partition("\n## ")[0].split("\n### ")
    assert len(sections) == 10
    for section in sections:
        assert "λ per image" in section or not re.search(r"\bBSIM\b", section), section.splitlines()[0]
    tables = (ROOT / "study" / "results.md").read_text().split("\n## ")[1:]
    for table in tables:
        assert "one λ per image, not the paper's one λ per batch" in table or " BSIM |" not in table, (
            table.splitlines()[0]
        )
