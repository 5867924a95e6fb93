"""What can be set of a method and of its mixtures: groups of options, each with the words that become its help."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from mixview.backbones import Backbone
from mixview.methods import BYOL, Method, SimCLR, SimSiam, moco_v1, moco_v2
from mixview.mixing import CutMix, Mixer, Mixup, Partner
from mixview.nn import MLP, split_batch_norm
from mixview.objective import Objective, bsim, mixaug, sim, wbsim

MethodName = Literal["simclr", "mocov1", "mocov2", "byol", "simsiam"]
ObjectiveName = Literal["sim", "bsim", "wbsim", "mixaug"]

PUBLISHED_MOMENTUM: dict[MethodName, float] = {"mocov1": 0.999, "mocov2": 0.999, "byol": 0.996}

SHORT = 20_000
"""Optimiser steps below which a momentum encoder must follow faster than the published ones do."""


@dataclass(frozen=True)
class Mixing:
    """How views are mixed."""

    mixer: Literal["cutmix", "mixup"] = "cutmix"
    """CutMix (a box of the other image) or Mixup (a blend)."""
    alpha: float = 1.0
    """lam ~ Beta(alpha, alpha); 1 is uniform, towards 0 nothing is mixed."""
    per_sample: bool = True
    """One lam an image; False is one a batch and device, as in the paper."""
    partner: Partner = "reversal"
    """Mix image i with N-1-i, or with a random one."""
    fold: bool = False
    """lam = max(lam, 1 - lam), as i-Mix does."""
    weight: float = 0.5
    """w1 of WBSIM, of the mixed term."""
    sim_weight: float = 0.5
    """w2 of WBSIM, of the unmixed term."""
    mix_groups: int = 1
    """Mix within this many parts of each device's batch, as so many devices would."""
    ramp: tuple[float, float] | None = None
    """Two shares of training: nothing is mixed before the first, and the partner's part grows until the second."""

    def build(self) -> Mixer:
        """The mixer."""
        make = CutMix if self.mixer == "cutmix" else Mixup
        return make(self.alpha, self.per_sample, self.partner, self.fold)


@dataclass(frozen=True)
class Head:
    """What a method adds to the encoder. What is not set is as published, or, where that cannot work, fits the run."""

    temperature: float | None = None
    """Of the contrastive losses: SimCLR 0.1, MoCo v1 0.07, v2 0.2."""
    momentum: float | None = None
    """Of the momentum encoder: MoCo 0.999, BYOL 0.996; 0.99 in runs of less than 20,000 steps."""
    queue_size: int | None = None
    """Of MoCo: 65,536, or half of the images where there are fewer."""
    hidden: int | None = None
    """Width of the hidden layers: SimCLR and MoCo v2 that of the encoder, BYOL 4096, SimSiam 2048."""
    dim: int | None = None
    """Width of projections: SimCLR and MoCo 128, BYOL 256, SimSiam 2048."""
    symmetric: bool = True
    """SimCLR: anchors from both views; False takes them from the first only, at half the cost of BSIM."""
    other_parent: bool = False
    """MoCo: the other parent's key counts among the negatives."""
    target: Literal["parents", "interpolated"] = "parents"
    """BYOL: both parents in turn, or one target between them."""
    bn_splits: int = 1
    """MoCo on one device: batch norm over this many parts of the batch, which stands in for shuffling BN."""

    def settle(self, method: MethodName, *, images: int, steps: int, batch: int) -> "Head":
        """With numbers for what depends on the length of a run: they stay what they are when it is extended.

        Args:
            images: how many there are to learn from.
            steps: optimiser steps of the whole run.
            batch: images a step.
        """
        if method not in PUBLISHED_MOMENTUM:
            return self
        momentum, queue = self.momentum, self.queue_size
        if momentum is None:
            momentum = 0.99 if steps < SHORT else PUBLISHED_MOMENTUM[method]
        if queue is None and method != "byol":
            queue = min(65_536, max(batch, images // 2 // batch * batch))
        return replace(self, momentum=momentum, queue_size=queue)


def build_objective(name: ObjectiveName, mixing: Mixing) -> Objective:
    """The objective of this name under these mixtures."""
    if name == "wbsim":
        return wbsim(mixing.weight, mixing.sim_weight, mixing.build())
    return sim() if name == "sim" else {"bsim": bsim, "mixaug": mixaug}[name](mixing.build())


def build_method(name: MethodName, backbone: Backbone, head: Head, *, images: int, steps: int, batch: int) -> Method:
    """The method of this name around a backbone.

    Args:
        images: how many there are to learn from.
        steps: optimiser steps of the whole run.
        batch: images a step.
    """
    encoder, width = backbone.encoder, backbone.feature_dim
    head = head.settle(name, images=images, steps=steps, batch=batch)
    if name == "simclr":
        projector = MLP((width, head.hidden or width, head.dim or 128), last_norm="affine")
        return SimCLR(encoder, width, projector, head.temperature or 0.1, head.symmetric)
    if name == "byol":
        hidden, dim = head.hidden or 4096, head.dim or 256
        assert head.momentum is not None
        return BYOL(encoder, width, MLP((width, hidden, dim)), MLP((dim, hidden, dim)), head.momentum, head.target)
    if name == "simsiam":
        hidden = dim = head.dim or head.hidden or 2048
        hidden = head.hidden or hidden
        projector = MLP((width, hidden, hidden, dim), last_norm="plain")
        return SimSiam(encoder, width, projector, MLP((dim, max(dim // 4, 1), dim)))
    if head.bn_splits > 1:
        split_batch_norm(encoder, head.bn_splits)
    make: Callable[..., Method] = {"mocov1": moco_v1, "mocov2": moco_v2}[name]
    options: dict[str, Any] = {
        "dim": head.dim or 128,
        "momentum": head.momentum,
        "queue_size": head.queue_size,
        "other_parent": head.other_parent,
    }
    if name == "mocov2":
        options["hidden"] = head.hidden
    if head.temperature is not None:
        options["temperature"] = head.temperature
    return make(encoder, width, **options)
