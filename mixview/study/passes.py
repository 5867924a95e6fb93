"""What a step costs, counted: passes of images through the encoder, with and without a gradient."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mixview import backbones
from mixview.methods import backward
from mixview.mixing import mixture_generators
from mixview.nn import Projected
from mixview.train.pretraining import Pretraining
from mixview.train.settings import build_method, build_objective


class Passes(NamedTuple):
    """Encoder passes of a whole batch that one step makes."""

    with_gradient: int
    without: int

    @property
    def work(self) -> int:
        """In forward passes: going backward takes about as long as two of them."""
        return 3 * self.with_gradient + self.without


def count_passes(settings: Pretraining) -> Passes:
    """The passes of a step of this method under this objective: counted while a tiny one is taken."""
    batch, size = 4, 8
    head = replace(settings.head, hidden=8, dim=8, queue_size=8, bn_splits=1, hardest=4, synthetic=(2, 2), prototypes=4)
    with torch.random.fork_rng(devices=[]):
        backbone = backbones.build("small", size=size)
        method = build_method(
            settings.method, backbone, head, images=batch, steps=1, batch=batch, objective=settings.objective
        )
        counts = {True: 0, False: 0}

        def count(module: nn.Module, images: tuple[Tensor, ...]) -> None:
            counts[torch.is_grad_enabled()] += len(images[0]) // batch

        for module in method.modules():
            if isinstance(module, Projected):
                module.encoder.register_forward_pre_hook(count)
        first, second = torch.rand(2, batch, 3, size, size)
        terms = build_objective(settings.objective, settings.mixing).draw(first, mixture_generators(0, 0))
        backward(method, (first, second), terms)
    return Passes(counts[True], counts[False])
