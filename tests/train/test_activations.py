"""WBSIM at BSIM's memory, counted as `benchmarks/memory.py` counts it for every method."""

import pytest
import torch
from torch import nn
from torchvision.models import resnet50

from mixview import CutMix, bsim, wbsim
from mixview.methods import moco_v2
from mixview.train.activations import peak_activations


@pytest.mark.parametrize("size", [64, pytest.param(224, marks=pytest.mark.slow)])
def test_wbsim_holds_hardly_more_than_bsim(size: int) -> None:
    encoder = resnet50()
    encoder.fc = nn.Identity()
    method = moco_v2(encoder, 2048, queue_size=1024)
    first, second = torch.rand(2, 4, 3, size, size)
    mixer = CutMix(lam_per="image")
    one, both = (
        peak_activations(method, objective, (first, second)) for objective in (bsim(mixer), wbsim(mixer=mixer))
    )
    assert both <= 1.05 * one
