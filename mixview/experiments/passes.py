"""The compute of a step, counted: passes of images through the encoder, with and without a gradient."""

from dataclasses import fields, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mixview.encoders import backbones
from mixview.methods import RunLength, backward
from mixview.mixing import mixture_generators
from mixview.nn import EncoderWithProjector
from mixview.train.build import build_method, build_objective
from mixview.train.config import PretrainConfig


class Passes(NamedTuple):
    """Encoder passes of a whole batch that one step makes."""

    with_gradient: int
    without: int

    @property
    def work(self) -> int:
        """Total in forward passes: a backward pass takes about as long as two of them."""
        return 3 * self.with_gradient + self.without


def count_passes(settings: PretrainConfig) -> Passes:
    """The passes per step of this method under this objective, counted during one tiny step."""
    batch, size = 4, 8
    small = {"hidden": 8, "dim": 8, "queue_size": 8, "bn_splits": 1, "hardest": 4, "synthetic": (2, 2), "prototypes": 4}
    options = {field.name for field in fields(settings.method)}
    config = replace(settings.method, **{name: value for name, value in small.items() if name in options})
    with torch.random.fork_rng(devices=[]):
        backbone = backbones.build("small", size=size)
        method = build_method(config, backbone, RunLength(batch, 1, batch), settings.objective)
        counts = {True: 0, False: 0}

        def count(module: nn.Module, images: tuple[Tensor, ...]) -> None:
            counts[torch.is_grad_enabled()] += len(images[0]) // batch

        for module in method.modules():
            if isinstance(module, EncoderWithProjector):
                module.encoder.register_forward_pre_hook(count)
        first, second = torch.rand(2, batch, 3, size, size)
        terms = build_objective(settings.objective, settings.mixing).draw(first, mixture_generators(0, 0))
        backward(method, (first, second), terms)
    return Passes(counts[True], counts[False])
