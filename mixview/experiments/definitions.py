"""The YAML of studies: those of mixview and those of users, each merged over its base. Needs no torch."""

from importlib import resources
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

from mixview.io.yaml_files import read_yaml
from mixview.options import suggestion, truncated_repr
from mixview.recipes import merge

FOLDER = resources.files("mixview") / "studies"
AXES = ("data", "methods", "variants", "objectives")
KEYS = ("about", "plan", "encoders", "settings", *AXES, "seeds", "evaluate", "grids", "baseline", "match_compute")


def names() -> list[str]:
    """The studies that come with mixview; those that begin with an underscore are bases only."""
    files = [file.name for file in FOLDER.iterdir()]
    return sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml") and not name.startswith("_"))


def read_definition(name: str, below: tuple[str, ...] = ()) -> dict[str, Any]:
    """The content of a study, by its name or the path of its YAML file, merged over that of its base."""
    if name in below:
        raise ValueError(f"the study {below[0]} is its own base: {' -> '.join((*below, name))}")
    own = Path(name)
    if own.suffix in (".yaml", ".yml"):
        if not own.is_file():
            raise ValueError(f"there is no study file {own}: pass a path, or one of {', '.join(names())}")
        content = read_yaml(own)
    else:
        file = FOLDER / f"{name}.yaml"
        if not file.is_file():
            raise ValueError(f"there is no study {name}{suggestion(name, names())}")
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"the study {name} is empty: it should have lines such as `settings: {{backbone: small}}`")
    base = content.pop("base", None)
    for key in content:
        if key not in KEYS:
            raise ValueError(f"a study has no {truncated_repr(key)}: there are {', '.join(KEYS)} and base (in {name})")
    if base is None:
        return content
    definition = read_definition(str(base), (*below, name))
    for key in ("about", "grids", *(["evaluate"] if "evaluate" in content else [])):  # replaced, not merged
        definition.pop(key, None)
    merge(definition, content)
    return definition
