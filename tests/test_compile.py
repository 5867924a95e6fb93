"""Every method's step is one graph for torch.compile, and is compiled once, not in every step."""

import copy

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from mixview import mixture_generators
from tests.networks import METHODS, OBJECTIVES, RELATIVES

VARIANTS = ("simclr-one-sided", "moco-v1", "barlow-twins-symmetric", "vicreg-symmetric", "imix", "swav-queue")
VARIANTS += ("unmix-simclr", "unmix-vicreg")
"""Slow, as each takes a few seconds to trace, and they add little to the others."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in VARIANTS else []) for name in (*METHODS, *RELATIVES)],
)
def test_a_step_is_one_graph(name: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    method = (METHODS | RELATIVES)[name](True)
    expected, counter = copy.deepcopy(method), CompileCounter()
    forward = torch.compile(method.forward, backend=counter, fullgraph=True)
    for step in range(3):
        views = torch.rand(6, 3, 16, 16), torch.rand(6, 3, 16, 16)
        terms = OBJECTIVES["wbsim"]().draw(views[0], mixture_generators(0, step))
        loss, targets = forward(views, terms)
        loss.backward()
        right, right_targets = expected(views, terms)
        right.backward()
        torch.testing.assert_close(loss, right)
        for one, other in zip(method.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
        method.update(targets, progress=step / 3)
        expected.update(right_targets, progress=step / 3)
    assert counter.frame_count == 1
