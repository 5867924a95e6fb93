"""What README and docs say holds: every Python block runs, in one namespace per document; YAML; links; the diff.

Shell blocks are run by tests/test_documented_commands.py.
"""

import importlib
import importlib.util
import pkgutil
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import mixview
from mixview import recipes
from mixview.data.augment.policies import load_policy
from mixview.experiments import results
from mixview.experiments import spec as grid
from mixview.extensions import METHODS, MIXERS, PROTOCOLS
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
    known = {"sh", "python", "yaml", "diff", "text", "{toctree}", "{include}"}
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
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]+))?\)", path.read_text()):
        page = path.parent / target if target else path
        assert page.exists(), target
        headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in map(github_anchor, headings), f"{target}#{anchor}"


def github_anchor(heading: str) -> str:
    """The anchor that GitHub and MyST give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


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


def test_the_reference_has_every_public_package(generating: ModuleType) -> None:
    packages = [each.name for each in pkgutil.walk_packages(mixview.__path__, "mixview.") if each.ispkg]
    public = [name for name in ["mixview", *packages] if importlib.import_module(name).__all__]
    assert sorted(generating.PACKAGES.values()) == sorted(public)
    for title, name in {**generating.PACKAGES, **generating.MODULES}.items():
        page = f"api-{generating.slug(name)}"
        text = generating.package_pages().get(page) or generating.module_page(title, name)
        assert all(f"## {each}\n" in text for each in getattr(importlib.import_module(name), "__all__", ()))


def test_reference_pages_have_every_recipe_protocol_and_method(generating: ModuleType) -> None:
    recipes_page, protocols, methods = generating.recipe_tables(), generating.protocol_page(), generating.method_page()
    assert all(f"| `{name}` |" in recipes_page for name in [*recipes.names(), *recipes.names(detection=True)])
    assert all(f"## {name}\n" in protocols for name in PROTOCOLS.names())
    assert all(f"## {name}\n" in methods for name in METHODS.names())
    assert all(f"| `{name}` |" in methods for name in MIXERS.names())


def test_the_page_of_commands_has_the_help_of_each(generating: ModuleType) -> None:
    page = generating.command_page()
    names = generating.command_names()
    assert {"pretrain", "evaluate knn", "study run"} <= set(names)
    for name in names:
        assert f"## mixview {name}\n\n```text\nusage: mixview {name}" in page
    assert page.count("\nexamples:\n") == len(names) + 1
    assert max(map(len, page.splitlines())) <= 80


def test_commands_are_in_blocks_that_are_run() -> None:
    """Not in indented blocks, which no test looks at."""
    for path in DOCUMENTS:
        text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        assert not re.search(r"\n\n(?: {4}|\t)(?:mixview|python|pip|make) ", text), path


def test_installation_is_as_it_works() -> None:
    """No index has the package, and every extra that a user may need is explained."""
    for path in DOCUMENTS:
        assert not re.search(r"pip install [\"']?mixview", path.read_text()), path
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    explained = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE))
    assert explained == extras.keys() - {"dev", "docs", "examples"}


@pytest.fixture(scope="module")
def generating() -> ModuleType:
    """docs/generating.py."""
    return load_script(ROOT / "docs" / "generating.py")


def load_script(path: Path) -> ModuleType:
    """A script that is in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_answer_is_what_the_study_says() -> None:
    """Its table is written from the results, and every difference in its text stands in the table."""
    page = (ROOT / "docs" / "does-mixing-pay.md").read_text()
    study_tables = load_script(ROOT / "docs" / "study_tables.py")
    assert study_tables.fill(page) == page, "run python docs/study_tables.py"
    assert len(page.splitlines()) <= 150
    table = page.partition(study_tables.START)[2].partition(study_tables.END)[0]
    for number in re.findall(r"[+-]\d+\.\d", page.replace(table, "")):
        assert re.search(rf"{re.escape(number)}(?! ?[,\]])", table), f"no difference in the table is {number}"


@pytest.mark.parametrize("name", ["study.md", "does-mixing-pay.md", "choosing.md", "collapse.md"])
def test_differences_are_in_the_complete_tables(name: str) -> None:
    tables = (ROOT / "study" / "results.md").read_text()
    for interval in re.findall(r"[+-]\d+\.\d \[[^\]]+\]", " ".join((ROOT / "docs" / name).read_text().split())):
        assert interval in tables, interval


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
    answer = (ROOT / "docs" / "does-mixing-pay.md").read_text()
    assert "Here every image has a λ\nof its own" in answer
    assert "it is BSIM with one λ per image" in answer
    study = (ROOT / "docs" / "study.md").read_text()
    compared = " ".join(study.partition("## How runs are compared")[2].partition("\n## ")[0].split())
    assert "**One λ per image, not the paper's one λ per batch.**" in compared
    for name, row in PER_BATCH:
        assert f"`{name}`" in compared
        assert row in compared
    tables = (ROOT / "study" / "results.md").read_text().split("\n## ")[1:]
    for table in tables:
        assert "one λ per image, not the paper's one λ per batch" in table or " BSIM |" not in table, (
            table.splitlines()[0]
        )
