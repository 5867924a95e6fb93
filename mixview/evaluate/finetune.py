"""Training the whole network: on a few labels from where pretraining left it, or on all of them from scratch."""

import copy
from typing import cast

import torch
from torch import nn

from mixview import backbones
from mixview.evaluate.encoders import Subject
from mixview.evaluate.training import Classifier, Schedule, Task, Work, head, train_classifier

SEMI = Schedule(epochs=20, lr=0.01, weight_decay=5e-4, steps=(12, 16), factor=0.2)
"""The paper's semi-supervised rows; the classifier learns `HEAD_RATE` times as fast."""

HEAD_RATE = 100.0

SCRATCH = Schedule(epochs=90, lr=0.1, weight_decay=1e-4, steps=(30, 60))
"""The usual ImageNet schedule of a ResNet (He et al., 2016), for the comparison row."""


def finetune(
    subject: Subject, task: Task, schedule: Schedule, work: Work, *, head_rate: float = HEAD_RATE
) -> dict[str, float]:
    """The accuracies, 0 to 1, of encoder and classifier trained together; the subject itself is left as it is."""
    layer = head(subject.feature_dim, task.classes, work.seed)
    network = Classifier(subject.encoder, {"avgpool": layer}, frozen=False)
    found = train_classifier(network, subject, task, schedule, work, head_rate=head_rate, drop_last=True)
    return found["avgpool"]


def from_scratch(subject: Subject, seed: int) -> Subject:
    """The same network with fresh weights."""
    if subject.spec is None:
        raise ValueError(f"{subject.name} has no network to train: name a backbone, such as random --backbone resnet50")
    name = str(subject.spec["name"])
    if name != "small" and not name.startswith(("torchvision/", "timm/")):
        fresh = copy.deepcopy(subject.encoder)
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
                size=int(subject.spec["size"]),
                channels=int(subject.spec["channels"]),
                stem=cast(backbones.Stem, subject.spec["stem"]),
            )
    return Subject(
        fresh,
        f"supervised {name}",
        subject.size,
        subject.channels,
        subject.feature_dim,
        subject.normalise,
        subject.spec,
    )
