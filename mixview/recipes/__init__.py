"""Recipes: named settings, one file each. A recipe says what it changes of its `base`, so that no two are copies."""

import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from mixview.io.yaml_files import parse_yaml, read_text
from mixview.options import did_you_mean, truncated_repr

__all__ = ["Hardware", "Recipe", "names", "read"]


class Hardware(NamedTuple):
    """The devices that a recipe is made for.

    Example:
        >>> read("paper/mocov2-wbsim").hardware
        Hardware(devices=8, name='V100', gigabytes=32)
    """

    devices: int
    name: str
    gigabytes: int
    """Memory of each device."""


class Recipe(NamedTuple):
    """A recipe, with everything that its bases say.

    Example:
        >>> recipe = read("small/demo")
        >>> recipe.settings["method"]
        {'name': 'simclr', 'temperature': 0.2}
    """

    name: str
    about: dict[str, str]
    """Text for people (`what`, `cost`, `paper`), and `hardware`, such as 8 × V100-32GB, by default that of its base."""
    settings: dict[str, Any]
    """Fields of `mixview.train.config.PretrainConfig`, or of `mixview.evaluate.detection.protocol.Detection`."""

    @property
    def hardware(self) -> Hardware | None:
        """The hardware that it is made for, if it says so."""
        if "hardware" not in self.about:
            return None
        match = re.fullmatch(r"(\d+) × (\S+)-(\d+)GB", self.about["hardware"])
        if match is None:
            raise ValueError(
                f"the recipe {self.name} names the hardware {self.about['hardware']!r}: write it as 8 × V100-32GB"
            )
        return Hardware(int(match[1]), match[2], int(match[3]))


DETECTION = "detection/"
"""The beginning of the names of detection protocols; all others are of pretraining."""


def names(*, detection: bool = False) -> list[str]:
    """The recipes that come with mixview, of pretraining or of detection; `_…` are bases only, and left out.

    Example:
        >>> "small/demo" in names()
        True
    """
    folder = resources.files("mixview") / "recipes"
    files = [f"{group.name}/{file.name}" for group in folder.iterdir() if group.is_dir() for file in group.iterdir()]
    recipes = [name.removesuffix(".yaml") for name in files if name.endswith(".yaml") and "/_" not in name]
    return sorted(name for name in recipes if name.startswith(DETECTION) == detection)


def read(name: str) -> Recipe:
    """The recipe of a name, or of your own YAML file.

    Example:
        >>> read("small/demo").name
        'small/demo'
    """
    chain: list[tuple[str, dict[str, Any]]] = []
    base: str | None = name
    while base is not None:
        if base in (seen for seen, _ in chain):
            raise ValueError(f"the recipe {name} is its own base: {' -> '.join(seen for seen, _ in chain)} -> {base}")
        content = parse_yaml(text_of(base), f"the recipe {base}")
        if not isinstance(content, dict):
            raise ValueError(f"the recipe {base} holds no settings: it should be lines such as `method: mocov2`")
        if not isinstance(content.get("about", {}), dict):
            raise ValueError(f"about of the recipe {base} must be a group such as `what: …`, got {content['about']!r}")
        chain.append((base, content))
        base = content.pop("base", None)
        if not isinstance(base, str | None):
            raise ValueError(f"base of the recipe {name} must be the name of another, got {base!r}")
    about: dict[str, str] = {}
    settings: dict[str, Any] = {}
    for _, content in reversed(chain):
        own = {str(key): str(text) for key, text in content.pop("about", {}).items()}
        about = {key: text for key, text in about.items() if key == "hardware"} | own
        merge(settings, content)
    return Recipe(name, about, settings)


def text_of(name: str) -> str:
    """A recipe's file."""
    own = Path(name)
    if own.suffix in (".yaml", ".yml"):
        if not own.is_file():
            raise ValueError(f"there is no recipe file {own}: pass a path, or one of the names in `mixview recipes`")
        return read_text(own)
    group, _, file = name.partition("/")
    resource = resources.files("mixview") / "recipes" / group / f"{file}.yaml"
    if not file or not resource.is_file():
        hint = did_you_mean(name, [*names(), *names(detection=True)], cutoff=0.4) or ": `mixview recipes` lists them"
        raise ValueError(f"there is no recipe {name}{hint}")
    return resource.read_text(encoding="utf-8")


def merge(settings: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Lay changes over settings, group by group. Another method replaces the whole group of the one before."""
    for name, value in changes.items():
        if name == "method" and isinstance(value, str | dict):
            before, value = method_group(settings.get(name) or {}), method_group(value)
            kept = "name" not in before or value.get("name", before["name"]) == before["name"]
            settings[name] = before | value if kept else value
        elif isinstance(value, dict) and isinstance(settings.get(name), dict):
            merge(settings[name], value)
        else:
            settings[name] = value


def method_group(method: Any) -> dict[str, Any]:
    """The long form, `{"name": "mocov2"}`, of a method that may be given as `"mocov2"`."""
    if isinstance(method, Mapping):
        return dict(method)
    if isinstance(method, str):
        return {"name": method}
    raise ValueError(
        f"--method must be a name, or a group of settings such as name: mocov2, got {truncated_repr(method)}"
    )
