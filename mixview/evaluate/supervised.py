"""Supervised training of the encoder's network from scratch: the row to compare with."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import nn

from mixview.encoders import backbones
from mixview.encoders.loading import LoadedEncoder
from mixview.encoders.transforms import CenterCrop
from mixview.evaluate.base import EvalContext, Protocol
from mixview.evaluate.classifier import labeled_images
from mixview.evaluate.results import percentages
from mixview.evaluate.schedule import Schedule
from mixview.evaluate.semi_supervised import finetune
from mixview.evaluate.training import ClassifierConfig

SCHEDULE = Schedule(epochs=90, lr=0.1, weight_decay=1e-4, steps=(30, 60))
"""The usual ImageNet schedule of a ResNet (He et al., 2016)."""


@dataclass(frozen=True, kw_only=True)
class Supervised(ClassifierConfig, Protocol):
    """Train the encoder's network from scratch with all labels: the row to compare with."""

    name: ClassVar[str] = "supervised"
    examples: ClassVar[tuple[str, ...]] = (
        "random --backbone resnet18 --data imagenette/",
        "runs/first --data imagenette/ --epochs 30",
    )
    first_options: ClassVar[str] = "data backbone epochs devices resume out"
    run_order: ClassVar[float] = 7
    needs_network: ClassVar[bool] = True

    def evaluate(self, context: EvalContext) -> Iterable[tuple[str, float]]:
        schedule = self.adapt(SCHEDULE, len(context.splits.train))
        untrained = from_scratch(context.encoder, self.seed)
        with self.training(context) as run:
            accuracies = finetune(untrained, labeled_images(context), schedule, run, head_rate=1.0)
        context.description = (
            f"the encoder's network trained from scratch with all labels, random crops and flips, "
            f"{schedule.description}; last epoch, {CenterCrop(context.encoder.size).description}. The encoder's own "
            "weights play no part."
        )
        return percentages(accuracies).items()


def from_scratch(loaded: LoadedEncoder, seed: int) -> LoadedEncoder:
    """The same network with newly initialized weights."""
    if loaded.spec is None:
        raise ValueError(f"{loaded.name} has no network to train: name a backbone, such as random --backbone resnet50")
    name = str(loaded.spec["name"])
    if name not in backbones.BUILTIN and not name.startswith(("torchvision/", "timm/")):
        fresh = copy.deepcopy(loaded.encoder)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for module in fresh.modules():
                if hasattr(module, "reset_parameters"):
                    cast(nn.Linear, module).reset_parameters()
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            fresh, *_ = backbones.construct(
                name,
                size=int(loaded.spec["size"]),
                channels=int(loaded.spec["channels"]),
                stem=cast(backbones.Stem, loaded.spec["stem"]),
            )
    return LoadedEncoder(
        fresh,
        f"supervised {name}",
        loaded.size,
        loaded.channels,
        loaded.feature_dim,
        loaded.normalize,
        loaded.value_range,
        loaded.spec,
    )
