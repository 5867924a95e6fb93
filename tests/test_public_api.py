"""The public API: what the packages declare, the example of each name, and what the documents import."""

import ast
import doctest
import importlib
import inspect
import io
import pkgutil
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import mixview
from mixview import pretrain
from mixview.evaluate import evaluate
from mixview.train import MonitorConfig
from tests.test_documents import DOCUMENTS, ROOT, blocks

PACKAGES = ["mixview", *(each.name for each in pkgutil.walk_packages(mixview.__path__, "mixview.") if each.ispkg)]
CORE = {"mixview.mixing", "mixview.losses", "mixview.objective", "mixview.nn", "mixview.distributed"}
"""Modules that are public as they are: they need torch alone, and other people's loops import them."""
LOSSES = ("nt_xent", "info_nce", "byol_loss")


def public() -> dict[str, Any]:
    """Every public class and function, by the name under which it is defined. Aliases of types have no docstring."""
    names = [(package, name) for package in PACKAGES for name in importlib.import_module(package).__all__]
    names += [("mixview.losses", name) for name in LOSSES]
    found = [getattr(importlib.import_module(module), name) for module, name in names]
    found = [each for each in found if inspect.isclass(each) or inspect.isfunction(each)]
    return {f"{each.__module__}.{each.__qualname__}": each for each in found}


PUBLIC = public()


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_declare_what_is_public(package: str) -> None:
    module = importlib.import_module(package)
    assert "__all__" in vars(module)
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert not inspect.ismodule(getattr(module, name)), f"a module hides {package}.{name}: rename the module"
        assert name in dir(module)


def test_no_module_has_the_name_of_something_public() -> None:
    """Importing such a module would put it in the place of what the package declares."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        modules = {each.name for each in pkgutil.iter_modules(module.__path__)}
        own = {name for name in module.__all__ if name in modules}
        assert not own, f"{package} has modules with the names of {own}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs and the study that examples speak of."""
    folder = tmp_path_factory.mktemp("world")
    small = {"data": "scenes", "data_options": {"count": 40, "size": 16}, "backbone": "small", "batch_size": 16}
    silent = MonitorConfig(estimate=False, loggers="none")
    objectives = {"sim": "sim", "bsim": "bsim", "alpha-0.5": "bsim", "alpha-1": "bsim"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MIXVIEW_CACHE", str(folder / "cache"))
        for name, objective in objectives.items():
            mixing = {"alpha": 0.5 if name == "alpha-0.5" else 1.0}
            pretrain(
                **small, epochs=1, workers=0, objective=objective, mixing=mixing, monitor=silent, out=f"runs/{name}"
            )
            evaluate(f"runs/{name}", "knn", data="scenes", data_options={"count": 40, "size": 16}, workers=0)
        shutil.copytree("runs/sim", "runs/first")
        Path("study/confirm").mkdir(parents=True)
        shutil.copy(ROOT / "study/confirm/study.yaml", "study/confirm")
        shutil.copy(
            ROOT / "study/confirm/results.jsonl", "study/confirm/results-left.jsonl"
        )  # as a machine leaves them
    return folder


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_have_an_example_that_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    target = PUBLIC[name]
    text = vars(target).get("__doc__") if inspect.isclass(target) else target.__doc__
    assert text is not None, f"{name} has no docstring"
    assert ">>> " in text, f"the docstring of {name} has no example"
    assert "+SKIP" not in text, f"the example of {name} is not run"
    if re.search(r'"(?:runs|study)/?', text):
        shutil.copytree(request.getfixturevalue("world"), tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIXVIEW_CACHE", str(tmp_path / "cache"))
    space = dict(vars(sys.modules[target.__module__]))
    test = doctest.DocTestParser().get_doctest(inspect.cleandoc(text), space, name, None, None)
    report = io.StringIO()
    failed, _ = doctest.DocTestRunner(verbose=False).run(test, out=report.write)
    assert not failed, report.getvalue()


def imported(block: str) -> set[str]:
    """The modules of mixview that Python code imports from."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
            # `from mixview import cli` imports a module that nobody declares.
            found |= {path for each in node.names if is_module(path := f"{node.module}.{each.name}")}
    return {name for name in found if name.split(".")[0] == "mixview"}


def is_module(path: str) -> bool:
    """Whether this is a module of mixview."""
    place = ROOT.joinpath(*path.split("."))
    return path.startswith("mixview.") and (place.with_suffix(".py").is_file() or (place / "__init__.py").is_file())


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_import_what_is_public(path: Path) -> None:
    for block in blocks(path, "python"):
        private = imported(block) - {*PACKAGES, *CORE}
        assert not private, f"{path.name} imports {', '.join(sorted(private))}: import from the packages"
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module in PACKAGES:
                declared = importlib.import_module(node.module).__all__
                names = [each.name for each in node.names if not is_module(f"{node.module}.{each.name}")]
                assert set(names) <= set(declared), f"{path.name} imports {names} from {node.module}"
