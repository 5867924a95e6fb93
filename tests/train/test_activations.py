"""WBSIM at BSIM's memory: the methods of `benchmarks/memory.py`, counted as it counts them."""

import importlib.util
from pathlib import Path

import pytest
import torch

from mixview import CutMix, bsim, wbsim
from mixview.train.activations import peak_activations

PATH = Path(__file__).parents[2] / "benchmarks" / "memory.py"


@pytest.mark.parametrize(("name", "size"), [("MoCo v2", 64), pytest.param("MoCo v2", 224, marks=pytest.mark.slow)])
def test_wbsim_holds_hardly_more_than_bsim(name: str, size: int) -> None:
    spec = importlib.util.spec_from_file_location("memory", PATH)
    assert spec is not None
    assert spec.loader is not None
    memory = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(memory)
    method = memory.METHODS[name]()
    first, second = torch.rand(2, 4, 3, size, size)
    mixer = CutMix(lam_per="image")
    one, both = (
        peak_activations(method, objective, (first, second)) for objective in (bsim(mixer), wbsim(mixer=mixer))
    )
    assert both <= 1.05 * one
