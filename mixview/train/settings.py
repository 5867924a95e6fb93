"""What can be set of a method and of its mixtures: groups of options, each with the words that become its help."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from mixview.backbones import Backbone
from mixview.either import Either
from mixview.methods import (
    BYOL,
    Method,
    MoCo,
    SimCLR,
    SimSiam,
    SwAV,
    UnMix,
    i_mix,
    moco_mixco,
    moco_mochi,
    moco_v1,
    moco_v2,
)
from mixview.methods.imix import batch_keys
from mixview.mixing import CutMix, Mixer, Mixup, Partner
from mixview.nn import MLP, split_batch_norm
from mixview.objective import Objective, bsim, mixaug, sim, unmix, wbsim
from mixview.options import (
    AtLeast,
    AtMost,
    Count,
    NonNegative,
    NonNegativeFloat,
    Positive,
    Share,
    Width,
    allows,
    check_options,
    describe,
    suggest,
)

MethodName = Literal["simclr", "mocov1", "mocov2", "byol", "simsiam", "swav", "imix", "imix-moco", "mixco", "mochi"]
ObjectiveName = Literal["sim", "bsim", "wbsim", "mixaug", "unmix"]

PUBLISHED_MOMENTUM: dict[MethodName, float] = {
    "mocov1": 0.999,
    "mocov2": 0.999,
    "imix-moco": 0.999,
    "mixco": 0.999,
    "mochi": 0.999,
    "byol": 0.996,
}
AUGMENTED_LIKE: dict[MethodName, str] = {
    "swav": "simclr",
    "imix": "simclr",
    "imix-moco": "mocov2",
    "mixco": "mocov2",
    "mochi": "mocov2",
}
"""Methods that have no augmentation of their own name, and whose they take."""

SHORT = 20_000
"""Optimiser steps below which a momentum encoder must follow faster than the published ones do."""


@dataclass(frozen=True)
class Mixing:
    """How views are mixed."""

    mixer: Literal["cutmix", "mixup", "either"] = "cutmix"
    """CutMix (a box of the other image), Mixup (a blend), or either by chance, batch by batch, as Un-Mix does."""
    alpha: Positive = 1.0
    """lam ~ Beta(alpha, alpha); 1 is uniform, towards 0 nothing is mixed."""
    per_sample: bool = True
    """One lam an image; False is one a batch and device, as in the paper."""
    partner: Partner = "reversal"
    """Mix image i with N-1-i, or with a random one."""
    fold: bool = False
    """lam = max(lam, 1 - lam), as i-Mix does."""
    share: Share = 1.0
    """The part of the images that is mixed, by chance; the others stay whole, in the same passes."""
    weight: NonNegativeFloat = 0.5
    """w1 of WBSIM, of the mixed term."""
    sim_weight: NonNegativeFloat = 0.5
    """w2 of WBSIM, of the unmixed term."""
    mix_groups: Count = 1
    """Mix within this many parts of each device's batch, as so many devices would."""
    ramp: tuple[Share, Share] | None = None
    """Two shares of training: nothing is mixed before the first, and the partner's part grows until the second."""

    def __post_init__(self) -> None:
        check_options(self, "mixing")

    def build(self) -> Mixer:
        """The mixer."""
        options = self.alpha, self.per_sample, self.partner, self.fold, self.share
        if self.mixer == "either":
            return Either(Mixup(*options), CutMix(*options))
        return CutMix(*options) if self.mixer == "cutmix" else Mixup(*options)


@dataclass(frozen=True)
class Head:
    """What a method adds to the encoder. What is not set is as published, or, where that cannot work, fits the run."""

    temperature: Positive | None = None
    """Of the contrastive losses: SimCLR 0.1, MoCo v1 0.07, v2 and relatives 0.2; of SwAV's softmax 0.1."""
    momentum: Share | None = None
    """Of the momentum encoder: MoCo 0.999, BYOL 0.996; 0.99 in runs of less than 20,000 steps."""
    queue_size: Annotated[int, AtLeast(0), AtMost(1 << 30)] | None = None
    """Of MoCo: 65,536, or half of the images where there are fewer. Of SwAV, for batches smaller than the prototypes:
    none; 3,840 as published for batches of 256."""
    hidden: Width | None = None
    """Width of the hidden layers: SimCLR and MoCo v2 that of the encoder, BYOL 4096, SimSiam and SwAV 2048."""
    dim: Width | None = None
    """Width of projections: SimCLR, MoCo and SwAV 128, BYOL 256, SimSiam 2048."""
    symmetric: bool = True
    """SimCLR: anchors from both views; False takes them from the first only, at half the cost of BSIM."""
    other_parent: bool = False
    """MoCo: the other parent's key counts among the negatives."""
    mix_temperature: Positive | None = None
    """MixCo: of the term of the mixtures; 1, as published for ImageNet (for small images 0.05)."""
    hardest: Count | None = None
    """MoCHi: so many of a query's nearest keys are mixed to negatives; 1024, or a quarter of a shorter queue."""
    synthetic: tuple[NonNegative, NonNegative] | None = None
    """MoCHi: mixtures of two of these, and mixtures of one with the query; as many as these, and an eighth."""
    synthetic_from: Share | None = None
    """MoCHi: the share of training after which there are any; 0."""
    prototypes: Width | None = None
    """SwAV: how many; 3000, or as many as there are images in a smaller batch and its queue."""
    freeze_prototypes: NonNegativeFloat | None = None
    """SwAV: epochs at the start in which the prototypes do not learn; 1 as published, 0 for none."""
    epoch_queue_starts: NonNegativeFloat | None = None
    """SwAV: the epoch from which its queue fills, to be used once full; 15, or half of a run of less than 30 epochs."""
    target: Literal["parents", "interpolated"] = "parents"
    """BYOL: both parents in turn, or one target between them."""
    bn_splits: Count = 1
    """MoCo on one device: batch norm over this many parts of the batch, which stands in for shuffling BN."""

    def __post_init__(self) -> None:
        check_options(self, "head")

    def settle(self, method: MethodName, *, images: int, steps: int, batch: int) -> "Head":
        """With numbers for what depends on the length of a run: they stay what they are when it is extended.

        Args:
            images: how many there are to learn from.
            steps: optimiser steps of the whole run.
            batch: images a step.
        """
        if method == "swav" and self.queue_size and self.epoch_queue_starts is None:
            return replace(self, epoch_queue_starts=min(15.0, steps / steps_per_epoch(images, batch) / 2))
        if method not in PUBLISHED_MOMENTUM:
            return self
        momentum, queue = self.momentum, self.queue_size
        if momentum is None:
            momentum = 0.99 if steps < SHORT else PUBLISHED_MOMENTUM[method]
        if queue is None and method != "byol":
            queue = min(65_536, max(batch, images // 2 // batch * batch))
        return replace(self, momentum=momentum, queue_size=queue)


def require(value: str, choices: Any, name: str) -> None:
    """Raise if a value is not one of a `Literal`'s."""
    if not allows(choices, value):
        raise ValueError(f"{name} must be {describe(choices)}, got {value!r}{suggest(choices, value)}")


def build_objective(name: ObjectiveName, mixing: Mixing) -> Objective:
    """The objective of this name under these mixtures."""
    require(name, ObjectiveName, "objective")
    if name == "wbsim":
        return wbsim(mixing.weight, mixing.sim_weight, mixing.build())
    if name == "unmix":
        if mixing.per_sample or mixing.partner != "reversal":
            raise ValueError(
                "unmix needs one lam a batch and mutual partners: set --mixing.per_sample false and --mixing.partner "
                "reversal"
            )
        return unmix(mixing.build())
    return sim() if name == "sim" else {"bsim": bsim, "mixaug": mixaug}[name](mixing.build())


def build_method(
    name: MethodName,
    backbone: Backbone,
    head: Head,
    *,
    images: int,
    steps: int,
    batch: int,
    objective: ObjectiveName = "sim",
) -> Method:
    """The method of this name around a backbone.

    Args:
        images: how many there are to learn from.
        steps: optimiser steps of the whole run.
        batch: images a step.
        objective: that it is trained under; unmix mixes the second view of all but MoCo, and so goes around them.
    """
    require(name, MethodName, "method")
    head = head.settle(name, images=images, steps=steps, batch=batch)
    if name == "swav":
        method: Method = build_swav(backbone, head, epoch_steps=steps_per_epoch(images, batch), batch=batch)
    else:
        method = build_plain_method(name, backbone, head, steps=steps)
    return UnMix(method) if objective == "unmix" and not isinstance(method, MoCo) else method


def steps_per_epoch(images: int, batch: int) -> int:
    """Optimizer steps in one pass over the images, of which a short last batch is left out."""
    return max(1, images // batch)


def build_plain_method(name: MethodName, backbone: Backbone, head: Head, *, steps: int) -> Method:
    """The method of this name, with a head that is settled."""
    encoder, width = backbone.encoder, backbone.feature_dim
    if name in ("simclr", "imix"):
        projector = MLP((width, head.hidden or width, head.dim or 128), last_norm="affine")
        if name == "imix":
            return i_mix(encoder, width, projector, head.temperature or 0.2)
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
    return build_moco(name, backbone, head, steps)


def build_swav(backbone: Backbone, head: Head, *, epoch_steps: int, batch: int) -> SwAV:
    """SwAV, with epochs counted in steps."""
    queue_size = head.queue_size or 0
    if 0 < queue_size < batch:
        raise ValueError(
            f"--head.queue_size {queue_size} does not hold a batch of {batch}: set at least {batch}, or 0 for none, "
            "which batches larger than the number of prototypes do not need"
        )
    width, dim = backbone.feature_dim, head.dim or 128
    return SwAV(
        backbone.encoder,
        width,
        MLP((width, head.hidden or 2048, dim)),
        dim,
        prototypes=head.prototypes or min(3000, max(2, batch + queue_size)),
        temperature=head.temperature or 0.1,
        queue_size=queue_size,
        queue_start=round((head.epoch_queue_starts or 0.0) * epoch_steps),
        freeze_steps=round((1.0 if head.freeze_prototypes is None else head.freeze_prototypes) * epoch_steps),
    )


def build_moco(name: MethodName, backbone: Backbone, head: Head, steps: int) -> Method:
    """MoCo, or a relative that has its two encoders and its queue."""
    if head.bn_splits > 1:
        split_batch_norm(backbone.encoder, head.bn_splits)
    assert head.queue_size is not None
    options: dict[str, Any] = {
        "dim": head.dim or 128,
        "momentum": head.momentum,
        "queue_size": head.queue_size,
        "other_parent": head.other_parent,
    }
    if name != "mocov1":
        options["hidden"] = head.hidden
    if head.temperature is not None:
        options["temperature"] = head.temperature
    if name == "imix-moco":
        options["contrast"] = batch_keys
    if name == "mixco":
        options["mix_temperature"] = head.mix_temperature or 1.0
    if name == "mochi":
        hardest = head.hardest or min(1024, max(2, head.queue_size // 4))
        pairs, with_query = head.synthetic or (hardest, hardest // 8)
        start = round((head.synthetic_from or 0.0) * steps)
        options |= {"hardest": hardest, "pairs": pairs, "with_query": with_query, "start": start}
    make: Callable[..., Method] = {"mocov1": moco_v1, "mixco": moco_mixco, "mochi": moco_mochi}.get(name, moco_v2)
    return make(backbone.encoder, backbone.feature_dim, **options)
