"""Who may import whom, and what `import mixview` costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mixview

PACKAGE = Path(mixview.__file__).parent

# What each part of mixview may import of mixview. `nn` is a leaf; `mixing` and `losses` are the add-on.
ALLOWED = {
    "mixing": set(),
    "losses": {"mixing"},
    "either": {"mixing"},
    "objective": {"mixing", "either"},
    "nn": set(),
    "options": set(),
    "terminal": set(),
    "yaml_files": set(),
    "atomic": set(),
    "distributed": {"mixing"},
    "methods": {"mixing", "losses", "objective", "nn", "distributed", "methods"},
    "archives": set(),
    "data": {"data", "mixing", "pickles", "archives"},
    # The protocols that train are runs as pretraining's is: `RUNS` says what of it they may know.
    "evaluate": {"evaluate", "train", "data", "nn", "distributed", "mixing", "backbones", "export", "archives"},
    "backbones": {"pickles"},
    "export": {"atomic", "backbones"},
    "detectron2": {"export", "pickles"},
    "pickles": {"archives"},
    "using": {"using", "evaluate", "data", "atomic", "backbones"},
    "formats": {"formats", "using", "evaluate", "data", "atomic", "backbones", "export", "detectron2", "archives"}
    | {"pickles"},
    # A study ends in a page of the report's.
    "study": {"study", "train", "evaluate", "methods", "data", "nn", "mixing", "atomic", "backbones", "report"},
    "train": {"train", "evaluate", "methods", "data", "objective", "nn", "mixing", "either", "atomic", "backbones"}
    | {"export", "distributed"},
    # A detector is a run as pretraining's is, around an encoder; it knows no method.
    "detection": {"detection", "train", "evaluate", "data", "export", "distributed"},
    "report": {"report", "train", "evaluate", "methods", "data", "objective", "mixing", "atomic", "backbones"},
}
LEAVES = {"atomic", "csv_files", "options", "records", "terminal", "yaml_files"}
"""What is no part of any of these, and anybody may import who does not have to do with torch alone."""
RUNS = {"checkpoints", "devices", "launching", "optimisers", "run_folder", "stopping", "supervised"}
"""What of `train` is about runs and not about pretraining: all that evaluations may import of it."""
TORCH_ALONE = {"mixing", "either", "losses", "objective", "nn", "distributed", "methods", "__init__"}
# Files that must do with torch and a few named packages more: reading a run needs no Lightning.
TORCH_AND: dict[str, set[str]] = {
    "train/optimisers.py": set(),
    "options.py": set(),
    "atomic.py": set(),
    "train/checkpoints.py": set(),
    "train/run_folder.py": {"yaml", "numpy"},
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
    for name in imports(path):
        first, *rest = name.split(".")
        if first == "mixview" and rest and part in ALLOWED:
            leaves = set() if part in TORCH_ALONE else LEAVES
            assert rest[0] in ALLOWED[part] | leaves, f"{part} must not import {name}"
            assert (part, rest[0]) != ("evaluate", "train") or rest[1] in RUNS, f"{part} must not import {name}"
        elif first != "mixview" and extra is not None:
            known = first in {"torch", *extra, *sys.stdlib_module_names}
            assert known, f"{part} must do with torch {' and '.join(extra) or 'alone'}, not {name}"


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
from mixview.losses import info_nce, nt_xent, regression

images, z = torch.rand(4, 3, 8, 8), torch.rand(4, 5, requires_grad=True)
for mixer in (CutMix(per_sample=True), Mixup()):
    mixture = mixer.draw(images, torch.Generator().manual_seed(0))
    mixture(images)
    (nt_xent(z, z, mixture, 0.1) + info_nce(z, z, z, mixture, 0.1) + regression(z, z, mixture)).backward()
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
