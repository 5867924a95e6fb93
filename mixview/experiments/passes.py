"""The compute of a step, counted as encoder passes (grad / no grad)."""

from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mixview.encoders import backbones
from mixview.methods import MethodConfig, RunLength, backward
from mixview.mixing import mixture_generators
from mixview.nn import EncoderWithProjector
from mixview.train.build import build_method, build_objective, view_sizes
from mixview.train.config import PretrainConfig

BATCH_SIZE, IMAGE_SIZE = 4, 8
SMALL_OPTIONS: dict[str, Any] = {
    "hidden": 8, "dim": 8, "queue_size": 8, "bn_splits": 1, "hardest": 4, "synthetic": (2, 2), "prototypes": 4,
}  # fmt: skip
"""Values for options that many methods have, so that the counted network is tiny. The passes do not depend on them."""


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
    if "teacher" in current:
        small |= {"teacher": "pixels", "teacher_weights": None}  # its passes are counted, not their cost
    return replace(config, **small)


def count_during_step(settings: PretrainConfig, config: MethodConfig) -> Passes:
    """The passes of one step on a tiny backbone and tiny images."""
    sizes = view_sizes(settings)
    # Global views are of 8 pixels here, and local crops of 9 and more: they only have to differ.
    tiny_sizes = {crop: IMAGE_SIZE + number for number, crop in enumerate(dict.fromkeys(sizes))}
    shares = {tiny: (crop / sizes[0]) ** 2 for crop, tiny in tiny_sizes.items()}
    with torch.random.fork_rng(devices=[]):
        backbone = backbones.build("small", size=IMAGE_SIZE)
        method = build_method(config, backbone, RunLength(BATCH_SIZE, 1, BATCH_SIZE, IMAGE_SIZE), settings.objective)
        counts = {True: 0.0, False: 0.0}

        def count(module: nn.Module, images: tuple[Tensor, ...]) -> None:
            counts[torch.is_grad_enabled()] += len(images[0]) / BATCH_SIZE * shares[images[0].shape[-1]]

        for module in method.modules():
            if isinstance(module, EncoderWithProjector):
                module.encoder.register_forward_pre_hook(count)
        views = [torch.rand(BATCH_SIZE, 3, tiny_sizes[crop], tiny_sizes[crop]) for crop in sizes]
        terms = build_objective(settings.objective, settings.mixing).draw(views[0], mixture_generators(0, 0))
        backward(method, views, terms)
    return Passes(*(int(count) if count == int(count) else count for count in (counts[True], counts[False])))
