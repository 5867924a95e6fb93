"""Benchmarks of whole runs give settings that there are: they are run too seldom to notice that one has changed."""

import argparse
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from mixview.commands.pretrain import build_parser
from mixview.data import open_dataset
from mixview.evaluate.base import build
from mixview.train.config import from_plain

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("recipe", ["small/cpu-simclr", "continue/cpu-small"])
def test_continuing(recipe: str, tmp_path: Path) -> None:
    arguments = load("continuing").arguments(tmp_path / "run", "imagenette", "train[:40]", recipe, 3, 7)
    values = build_parser("mixview pretrain", arguments).parse_args(arguments).as_dict()
    config = from_plain(
        {name: value for name, value in values.items() if name in ("data", "monitor", "seed", "weights")}
    )
    assert (config.data, config.seed, config.monitor.estimate) == ("imagenette", 3, False)
    assert config.weights == (str(tmp_path / "first-3") if recipe.startswith("continue/") else None)


@pytest.mark.parametrize("name", ["imagenette", "voc2007"])
def test_continuing_evaluates_by_protocols_that_there_are(name: str) -> None:
    names = []
    for protocol, settings in load("continuing").protocols(name, argparse.Namespace(scenes=8)):
        built = build(protocol, {"encoder": "random", **settings})
        names.append(built.name)
    assert names[-1] == "segmentation"
    segmented = open_dataset(settings["data"], **settings["data_options"]).segmentation()
    assert segmented is not None
    assert len(segmented) == 8


def test_bit_depth(tmp_path: Path) -> None:
    pytest.importorskip("tifffile")
    config = from_plain(load("bit_depth").settings(tmp_path, "8 bits", 1, 2, 32))
    assert (config.seed, config.size, config.monitor.loggers) == (1, 32, "none")
