"""The layers of an encoder from the first to the last, for learning rates that fall layer by layer, and for freezing.

layer_of(encoder)                    # {"conv1.weight": 0, …, "layer4.1.bn2.bias": 8}: blocks, as timm counts them
layer_of(encoder, coarse=True)       # … 4: the stages of a ResNet
freeze(encoder, "resnet18", stages=2)
"""

import re
from collections.abc import Callable
from typing import Any, cast

from torch import nn

from mixview.encoders.optional import import_optional

BLOCKS = re.compile(r"(layer\d+\.\d+|features\.\d+|encoder\.layers\.encoder_layer_\d+|blocks\.\d+)\.")
"""The beginning of a block's parameter names (residual or ViT) in torchvision's networks and mixview's own."""
STAGES = re.compile(r"(layer\d+|features\.\d+|encoder\.layers\.encoder_layer_\d+|blocks\.\d+)\.")


def layer_of(encoder: nn.Module, *, coarse: bool = False) -> dict[str, int]:
    """The number of the layer that each parameter is of, by its name: 0 for the stem, or the patch embedding.

    What comes after the last block, such as a ViT's last norm, belongs to it. Networks of timm say it themselves.

    Args:
        encoder: a network of timm, torchvision or mixview.
        coarse: count the stages of a ResNet rather than its blocks.
    """
    matcher = cast(Callable[..., Any] | None, getattr(encoder, "group_matcher", None))
    if matcher is not None:
        models = import_optional("timm.models")
        return dict(models.group_parameters(encoder, matcher(coarse=coarse), reverse=True))
    pattern = STAGES if coarse else BLOCKS
    seen: dict[str, int] = {}
    layers = {}
    for name, _ in encoder.named_parameters():
        match = pattern.match(name)
        if match is not None:
            seen.setdefault(match[1], 1 + len(seen))
        layers[name] = len(seen) if match is None else seen[match[1]]
    first = min(layers.values(), default=0)  # 1 where the stem is a block by its name
    return {name: layer - first for name, layer in layers.items()}


def learning_rate_scales(encoder: nn.Module, decay: float) -> dict[str, float]:
    """Multipliers of the learning rate of each parameter: `decay` for the last layer, its square before …

    These are the groups of timm's `param_groups_layer_decay` for a network with a classifier, in whose place is the
    head of a method.
    """
    layers = layer_of(encoder)
    count = 1 + max(layers.values(), default=0)
    if count == 1:
        raise ValueError(
            f"the layers of {type(encoder).__name__} are not known: leave --optimizer.layer_decay out, or use a "
            "network of timm, a ResNet or a ViT"
        )
    return {name: decay ** (count - layer) for name, layer in layers.items()}


def freeze(encoder: nn.Module, name: str, stages: int) -> str:
    """Freeze the first layer and this many stages of an encoder, statistics of batch norm too; returns a note.

    Args:
        encoder: changed in place; copies of it are frozen alike.
        name: the encoder's, for errors.
        stages: the stages of a ResNet, or the blocks of a ViT.
    """
    layers = layer_of(encoder, coarse=True)
    count = max(layers.values(), default=0)
    if not 0 <= stages < count:
        remedy = f"--freeze must be 0 to {count - 1}, so that the last one learns" if count else "leave --freeze out"
        raise ValueError(f"{name} has {count or 'no known'} stages or blocks, got --freeze {stages}: {remedy}")
    parameters = dict(encoder.named_parameters())
    for parameter, layer in layers.items():
        parameters[parameter].requires_grad_(layer > stages)
    for module in encoder.modules():
        own = [*module.parameters()]
        if own and not any(each.requires_grad for each in own):
            module.train = StayInEvaluation(module)  # type: ignore[method-assign]
            module.train()
    frozen = sum(each.numel() for each in parameters.values() if not each.requires_grad)
    return f"Frozen: the first layer and {stages} of {count} stages or blocks, {frozen / 1e6:.1f} M parameters."


class StayInEvaluation:
    """`train` of a frozen module, which stays in evaluation mode."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, mode: bool = True) -> nn.Module:
        return nn.Module.train(self.module, False)
