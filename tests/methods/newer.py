"""What the tests of Barlow Twins, VICReg and MoCo v3 share."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mixview import Identity, Objective, mixture_generators
from mixview.methods import Method, backward
from mixview.mixing import BetaMixer
from mixview.objective import Term
from tests.methods.test_methods import move, two_views
from tests.networks import NEWER

Published = Callable[[Method, Tensor, Tensor, Sequence[Term]], Tensor]
"""The loss of a step on a method's own networks, as its paper has it."""


def make(name: str, norm: bool = True) -> Method:
    torch.manual_seed(0)
    return NEWER[name](norm).double()


def assert_trains_alike(name: str, objective: Callable[[], Objective], published: Published, steps: int = 10) -> None:
    """The losses of ten optimizer steps, and the weights after them, are those of the published loss."""
    ours, theirs = make(name, norm=False), make(name, norm=False)
    optimizers = [
        torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.02, momentum=0.9)
        for method in (ours, theirs)
    ]
    for step in range(steps):
        views = two_views(5, seed=step, dtype=torch.float64)
        terms = objective().draw(views[0], mixture_generators(0, step))
        loss, targets = backward(ours, views, terms)
        expected = published(theirs, *views, terms)
        expected.backward()
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-10, atol=1e-10)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        ours.update(targets, progress=step / steps)
        if hasattr(theirs, "target"):
            move(theirs.target, theirs.online, 1 - (1 - theirs.momentum) * (math.cos(math.pi * step / steps) + 1) / 2)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def assert_lam_one_is_sim_and_lam_zero_its_relabeling(name: str, mixer: BetaMixer) -> None:
    """At lam = 1 the loss is SIM's, bit for bit, and its gradients to rounding; at lam = 0 but for the order."""
    views = two_views(7, dtype=torch.float64)
    whole = mixer.draw(views[0], torch.Generator().manual_seed(0), lam=1.0)
    swapped = mixer.draw(views[0], torch.Generator().manual_seed(0), lam=0.0)
    assert torch.equal(whole(views[0]), views[0])
    results = []
    for mixture in (Identity().draw(views[0]), whole, swapped):
        method = make(name, norm=False)
        loss, _ = backward(method, views, [Term(1.0, mixture)])
        results.append([loss, *(p.grad for p in method.parameters() if p.grad is not None)])
    plain, one, zero = results
    assert torch.equal(plain[0], one[0])
    torch.testing.assert_close(one, plain, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(zero, plain, rtol=1e-9, atol=1e-11)
