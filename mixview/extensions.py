"""The things that can be added in one file: methods, mixers and evaluation protocols, by short name or import path.

    METHODS.load("mocov2")               # built in: the class in mixview/methods/ that says `name = "mocov2"`
    METHODS.load("mine.BarlowTwins")     # your own: the class BarlowTwins of mine.py

There is no list to add a built-in to. A class that sets `name: ClassVar[str] = "…"` in the right package is found, and
its name and summary are read from the source without importing it: `mixview --help` must not wait for torch.

A name that is typed, or passed in Python, is the user's own word. One that stands in a file (a recipe, a study, a run's
config.yaml) is somebody else's: importing it needs consent (`require_consent`).
"""

import ast
import importlib
import re
import sys
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from mixview.options import did_you_mean, suggestion, truncated_repr

PACKAGE = Path(__file__).parent
IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*[.:][A-Za-z_]\w*")
FACTORY = re.compile(r"[\w.]+:[\w.]+")
"""The import path of a backbone needs the colon: names of timm's models have dots."""


class Builtin(NamedTuple):
    """A class of mixview's own that has a short name."""

    name: str
    module: str
    attribute: str
    summary: str
    """The first line of its docstring."""


class Registry:
    """All things of one kind.

    Args:
        kind: name of such a thing, for messages.
        where: the module or package that holds the built-in ones, as a path below mixview.
        base: the class that each is a subclass of, as module:name.
        example: an import path of a custom one, for error messages.
    """

    def __init__(self, kind: str, where: str, base: str, example: str) -> None:
        self.kind = kind
        self.where = where
        self.base = base
        self.example = example

    @cached_property
    def builtins(self) -> dict[str, Builtin]:
        """The built-in ones by name, in the order of their files and lines."""
        place = PACKAGE / self.where
        files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
        return {each.name: each for file in files for each in read_builtins(file)}

    def names(self) -> list[str]:
        """The short names of the built-in ones."""
        return list(self.builtins)

    def check(self, name: str) -> None:
        """Raise if a name is neither built in nor an import path. Imports nothing."""
        if not isinstance(name, str):  # a file can have anything there
            raise ValueError(f"expected the name of a {self.kind}, got {truncated_repr(name)}")
        if name not in self.builtins and not is_import_path(name):
            raise ValueError(
                f"there is no {self.kind} {truncated_repr(name)}{suggestion(name, self.names())}; your own is given by "
                f"its import path, such as {self.example}"
            )

    def load(self, name: str) -> Any:
        """The class or function of a name. An import path is imported, which runs its code: see `require_consent`."""
        self.check(name)
        if name in self.builtins:
            builtin = self.builtins[name]
            return getattr(importlib.import_module(builtin.module), builtin.attribute)
        target = import_object(name, self.kind)
        module, _, base = self.base.partition(":")
        if not (isinstance(target, type) and issubclass(target, getattr(importlib.import_module(module), base))):
            raise ValueError(f"{name} is not a valid {self.kind}: it must be a subclass of {module}.{base}")
        return target


def read_builtins(file: Path) -> list[Builtin]:
    """The classes in a file that have a short name."""
    source = file.read_text(encoding="utf-8")
    if "name: ClassVar[str] =" not in source:
        return []
    module = ".".join(("mixview", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    builtins = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            for line in node.body:
                if (
                    isinstance(line, ast.AnnAssign)
                    and isinstance(line.target, ast.Name)
                    and line.target.id == "name"
                    and isinstance(line.value, ast.Constant)
                ):
                    summary = (ast.get_docstring(node) or "").partition("\n")[0]
                    builtins.append(Builtin(str(line.value.value), module, node.name, summary))
    return builtins


def is_import_path(name: str) -> bool:
    """Return True if a name could be `package.module.Name` or `package.module:Name`, and is not a file of settings."""
    return IMPORT_PATH.fullmatch(name) is not None and not name.endswith((".yaml", ".yml"))


def import_object(path: str, kind: str) -> Any:
    """Import the object that a path names; modules are found in the working directory, too."""
    search_here()
    module_name, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    try:
        target: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # something that the module itself imports
        raise ValueError(
            f"no module {module_name!r} for the {kind} {path!r}: run from the folder that holds it, or install it"
        ) from None
    for part in attribute.split("."):
        if not hasattr(target, part):
            hint = did_you_mean(part, dir(target)) or f": pass its import path, such as {module_name}.Name"
            raise ValueError(f"{module_name} has no {attribute!r} for the {kind} {path!r}{hint}")
        target = getattr(target, part)
    return target


def search_here() -> None:
    """Make the working directory importable, for what the user names; last, so that it hides nothing."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


METHODS = Registry("method", "methods", "mixview.methods:MethodConfig", "mine.BarlowTwins")
MIXERS = Registry("mixer", "mixing", "mixview.mixing:Mixer", "mine.Checkerboard")
PROTOCOLS = Registry("evaluation protocol", "evaluate", "mixview.evaluate:Protocol", "mine.NearestMean")


def names_code(key: str, value: str) -> bool:
    """Return True if using this value of a setting would import custom code."""
    if key in ("backbone", "encoder", "teacher"):
        return FACTORY.fullmatch(value) is not None
    registries = {"method": METHODS, "mixer": MIXERS, "protocol": PROTOCOLS}
    if key in registries:
        return is_import_path(value) and value not in registries[key].builtins
    return key == "augment" and is_import_path(value)


def require_consent(settings: object, where: str, trust_remote_code: bool = False, typed: Iterable[str] = ()) -> None:
    """Raise if settings from a file name code that would be imported, unless the user trusts the file.

    Args:
        settings: the settings as they were read, however deep.
        where: the file, for the error.
        trust_remote_code: consent of the user, on the command line or in Python.
        typed: words of the command line itself, which are consented to.
    """
    waiting: list[tuple[str, object]] = [] if trust_remote_code else [("", settings)]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, str) and names_code(key, value) and value not in typed:
            raise ValueError(
                f"{where} names the {key} {value!r}, and importing it would run its code: add --trust_remote_code (in "
                "Python, trust_remote_code=True) if you trust the file"
            )
        if isinstance(value, list | tuple):
            waiting.extend((key, each) for each in value)
        elif isinstance(value, dict):
            # `method: {name: mine.BarlowTwins, …}` is the long form of `method: mine.BarlowTwins`.
            waiting.extend((key if name == "name" else str(name), each) for name, each in value.items())
