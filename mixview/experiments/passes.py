"""The compute of a step, counted: passes of images through the encoder, with and without a gradient."""

from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mixview.encoders import backbones
from mixview.methods import MethodConfig, RunLength, backward
from mixview.mixing import mixture_generators
from mixview.nn import EncoderWithProjector
from mixview.train.build import build_method, build_objective
from mixview.train.config import PretrainConfig

BATCH_SIZE, IMAGE_SIZE = 4, 8
SMALL_OPTIONS: dict[str, Any] = {
    "hidden": 8, "dim": 8, "queue_size": 8, "bn_splits": 1, "hardest": 4, "synthetic": (2, 2), "prototypes": 4,
}  # fmt: skip
"""Values for options that many methods have, so that the counted network is tiny. The passes do not depend on them."""


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
    try:
        return count_during_step(settings, shrink(settings.method))
    except Exception:  # a user's own method need not accept small values: then it is counted with its own
        return count_during_step(settings, settings.method)


def shrink(config: MethodConfig) -> MethodConfig:
    """The options of a method with small sizes, wherever it has an option of that name and type."""
    current = {field.name: getattr(config, field.name) for field in fields(config)}
    small = {
        name: value
        for name, value in SMALL_OPTIONS.items()
        if isinstance(current.get(name), type(value)) and not isinstance(current[name], bool)
    }
    return replace(config, **small)


def count_during_step(settings: PretrainConfig, config: MethodConfig) -> Passes:
    """The passes of one step on a tiny backbone and tiny images."""
    with torch.random.fork_rng(devices=[]):
        backbone = backbones.build("small", size=IMAGE_SIZE)
        method = build_method(config, backbone, RunLength(BATCH_SIZE, 1, BATCH_SIZE), settings.objective)
        counts = {True: 0, False: 0}

        def count(module: nn.Module, images: tuple[Tensor, ...]) -> None:
            counts[torch.is_grad_enabled()] += len(images[0]) // BATCH_SIZE

        for module in method.modules():
            if isinstance(module, EncoderWithProjector):
                module.encoder.register_forward_pre_hook(count)
        views = torch.rand(method.num_views or 2, BATCH_SIZE, 3, IMAGE_SIZE, IMAGE_SIZE).unbind()
        terms = build_objective(settings.objective, settings.mixing).draw(views[0], mixture_generators(0, 0))
        backward(method, views, terms)
    return Passes(counts[True], counts[False])
