"""The compute of a step, counted: passes of images through the encoder, with and without a gradient."""

from dataclasses import fields, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mixview.encoders import backbones
from mixview.methods import RunLength, backward
from mixview.mixing import mixture_generators
from mixview.nn import EncoderWithProjector
from mixview.train.build import build_method, build_objective, view_sizes
from mixview.train.config import PretrainConfig


class Passes(NamedTuple):
    """Encoder passes of a whole batch that one step makes; one of local crops counts by their share of the pixels."""

    with_gradient: float
    without: float

    @property
    def work(self) -> float:
        """Total in forward passes: a backward pass takes about as long as two of them."""
        return 3 * self.with_gradient + self.without


def count_passes(settings: PretrainConfig) -> Passes:
    """The passes per step of this method under this objective, counted during one tiny step."""
    batch, size = 4, 8
    sizes = view_sizes(settings)
    # Global views are of 8 pixels here, and local crops of 9 and more: they only have to differ.
    tiny_sizes = {crop: size + number for number, crop in enumerate(dict.fromkeys(sizes))}
    shares = {tiny: (crop / sizes[0]) ** 2 for crop, tiny in tiny_sizes.items()}
    small = {"hidden": 8, "dim": 8, "queue_size": 8, "bn_splits": 1, "hardest": 4, "synthetic": (2, 2), "prototypes": 4}
    small |= {"teacher": "pixels", "teacher_weights": None}  # any will do: its passes are counted, not their cost
    options = {field.name for field in fields(settings.method)}
    config = replace(settings.method, **{name: value for name, value in small.items() if name in options})
    with torch.random.fork_rng(devices=[]):
        backbone = backbones.build("small", size=size)
        method = build_method(config, backbone, RunLength(batch, 1, batch, size), settings.objective)
        counts = {True: 0.0, False: 0.0}

        def count(module: nn.Module, images: tuple[Tensor, ...]) -> None:
            counts[torch.is_grad_enabled()] += len(images[0]) // batch * shares[images[0].shape[-1]]

        for module in method.modules():
            if isinstance(module, EncoderWithProjector):
                module.encoder.register_forward_pre_hook(count)
        views = [torch.rand(batch, 3, tiny_sizes[crop], tiny_sizes[crop]) for crop in sizes]
        terms = build_objective(settings.objective, settings.mixing).draw(views[0], mixture_generators(0, 0))
        backward(method, views, terms)
    return Passes(*(int(count) if count == int(count) else count for count in (counts[True], counts[False])))
