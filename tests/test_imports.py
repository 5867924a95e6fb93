"""Who may import whom, and what `import mixview` costs."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import mixview

PACKAGE = Path(mixview.__file__).parent

# What each part of mixview may import of mixview, besides itself. `mixing` and `losses` are the add-on.
ALLOWED: dict[str, set[str]] = {
    # The core: torch alone. Other people's loops import these.
    "rng": set(),
    "mixing": {"rng"},
    "losses": {"mixing"},
    "objective": {"mixing"},
    "nn": set(),
    "distributed": {"mixing"},
    "lars": set(),
    "methods": {"distributed", "losses", "mixing", "nn", "objective", "options", "rng"},
    # Settings: neither torch nor anything that is run.
    "options": set(),
    "lazy": set(),
    "io": set(),
    "extensions": {"options"},
    "recipes": {"io", "options"},
    # What is run. `runs` does not know what; `evaluate` knows encoders, and neither methods nor the trainer.
    "runs": {"io", "lazy", "options"},
    "data": {"extensions", "io", "lazy", "options", "rng"},
    "encoders": {"data", "extensions", "io", "lazy", "losses", "options", "runs"},
    "evaluate": {"data", "distributed", "encoders", "extensions", "io", "lars", "lazy", "options", "recipes", "rng"}
    | {"runs"},
    "train": {"data", "distributed", "encoders", "evaluate", "extensions", "io", "lazy", "methods", "mixing"}
    | {"lars", "nn", "objective", "options", "recipes", "rng", "runs"},
    "report": {"data", "encoders", "evaluate", "extensions", "io", "lazy", "losses", "methods", "mixing"}
    | {"objective", "options", "rng", "runs", "train"},
    # A study ends in a page of the report's.
    "experiments": {"data", "encoders", "evaluate", "extensions", "io", "lazy", "methods", "mixing", "nn"}
    | {"options", "recipes", "report", "runs", "train"},
    # The command line.
    "parsing": {"extensions", "io", "options"},
    "completion": {"io"},
    "cli": {"completion", "data", "extensions", "io", "options", "parsing"},
}
# Files that may import more than the rest of their package: a model card says what evaluations have measured, and
# distillation loads its teacher, an encoder (when it is built: `import mixview.methods` stays torch alone).
EXCEPTIONS: dict[str, set[str]] = {
    "encoders/export/model_card.py": {"evaluate"},
    "methods/distillation.py": {"encoders"},
}
TORCH_ALONE = {"rng", "lars", "mixing", "losses", "objective", "nn", "distributed", "methods", "__init__"}
# Files that must do with torch and a few named packages more: reading a run needs no Lightning.
TORCH_AND: dict[str, set[str]] = {
    "train/optim.py": set(),
    "options.py": set(),
    "io/atomic.py": set(),
    "runs/checkpoints.py": set(),
    "runs/run_directory.py": {"yaml"},
}


def imports(path: Path) -> set[str]:
    found = set()
    tree = ast.parse(path.read_text())
    lazy = {id(node) for top in tree.body if getattr(top, "name", "") == "__getattr__" for node in ast.walk(top)}
    for node in ast.walk(tree):
        if id(node) in lazy:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively: write the whole name"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_layers(path: Path) -> None:
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    extra = set() if part in TORCH_ALONE else TORCH_AND.get(path.relative_to(PACKAGE).as_posix())
    allowed = ALLOWED.get(part, set()) | {part} | EXCEPTIONS.get(path.relative_to(PACKAGE).as_posix(), set())
    for name in imports(path):
        first, *rest = name.split(".")
        if first == "mixview" and rest and part in ALLOWED:
            assert rest[0] in allowed, f"{part} must not import {name}"
        elif first != "mixview" and extra is not None:
            known = first in {"torch", *extra, *sys.stdlib_module_names}
            assert known, f"{part} must do with torch {' and '.join(extra) or 'alone'}, not {name}"


def runtime_imports(path: Path, modules: set[str]) -> set[str]:
    """The modules of mixview that a module imports when it runs, early or late; not those for type checkers alone."""
    tree = ast.parse(path.read_text())
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    skipped = {id(node) for block in blocks for node in ast.walk(block)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) not in skipped and isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif id(node) not in skipped and isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {f"{node.module}.{each.name}" for each in node.names}
            found |= names & modules or {node.module}
    return found & modules


def test_no_module_imports_in_a_circle() -> None:
    paths = {
        ".".join(("mixview", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }
    graph = {name: runtime_imports(path, set(paths)) - {name} for name, path in paths.items()}
    assert sum(map(len, graph.values())) > len(graph)
    TopologicalSorter(graph).prepare()  # raises CycleError with the circle


ONLY_TORCH = """
import sys
from importlib.metadata import PackageNotFoundError, requires, packages_distributions
from packaging.requirements import Requirement

needed, found = ["torch"], {"torch"}
while needed:
    for line in requires(needed.pop()) or []:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            if requirement.name not in found:
                found.add(requirement.name)
                try:
                    requires(requirement.name)
                except PackageNotFoundError:
                    continue
                needed.append(requirement.name)
found = {name.lower().replace("_", "-") for name in found}
modules = {module for module, owners in packages_distributions().items()
           if any(owner.lower().replace("_", "-") in found for owner in owners)}

class Absent:
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        if top not in modules | set(sys.stdlib_module_names) | {"mixview"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for module in [m for m in sys.modules if m.split(".")[0] == "packaging"]:
    del sys.modules[module]
sys.meta_path.insert(0, Absent())

import warnings
warnings.filterwarnings("ignore", message=".*NumPy.*")
import torch
import mixview
from mixview import CutMix, Mixup, wbsim
from mixview.losses import info_nce, nt_xent, byol_loss

images, z = torch.rand(4, 3, 8, 8), torch.rand(4, 5, requires_grad=True)
for mixer in (CutMix(lam_per="image"), Mixup()):
    mixture = mixer.draw(images, torch.Generator().manual_seed(0))
    mixture(images)
    (nt_xent(z, z, mixture, 0.1) + info_nce(z, z, z, mixture, 0.1) + byol_loss(z, z, mixture)).backward()
wbsim().draw(images, torch.Generator())
for absent in ("numpy", "torchvision", "lightning", "scipy", "PIL"):
    assert absent not in sys.modules, absent
print("works with torch alone")
"""


def test_mixing_and_losses_work_with_torch_alone() -> None:
    run = subprocess.run([sys.executable, "-c", ONLY_TORCH], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert run.stdout.strip() == "works with torch alone", run.stderr


def test_importing_mixview_costs_little_more_than_importing_torch() -> None:
    code = "import torch, time; t = time.perf_counter(); import mixview; print(time.perf_counter() - t)"
    seconds = [float(subprocess.check_output([sys.executable, "-c", code], cwd=PACKAGE.parent)) for _ in range(2)]
    assert min(seconds) < 0.2


def test_the_trainer_takes_no_packages_along_that_it_does_not_use() -> None:
    code = "import sys, mixview.train.pretraining; print(*{name.partition('.')[0] for name in sys.modules})"
    code += "; import torchmetrics; print(torchmetrics.__version__)"  # which others can still import
    run = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True)
    imported, version = run.stdout.splitlines()
    assert {"torch", "lightning_fabric"} <= set(imported.split())
    assert not {"torchmetrics", "transformers", "matplotlib"} & set(imported.split())
    assert version[0].isdigit()
