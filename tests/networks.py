"""Small networks and methods that the tests share."""

from collections.abc import Callable

from torch import nn

from mixview import CutMix, Identity, Mixup, Objective, PatchMix, bsim, mixaug, sim, wbsim
from mixview.methods import (
    BYOL,
    DINO,
    BarlowTwins,
    Distillation,
    Method,
    MoCoV3,
    SimCLR,
    SimSiam,
    SwAV,
    UnMix,
    VICReg,
    i_mix,
    moco_mixco,
    moco_mochi,
    moco_v1,
    moco_v2,
)
from mixview.methods.imix import batch_keys
from mixview.nn import MLP

WIDTH = 8


def encoder(norm: bool = True) -> nn.Module:
    def block(channels: int, width: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, width, 3, 2, 1), nn.BatchNorm2d(width) if norm else nn.Identity(), nn.ReLU()]

    return nn.Sequential(*block(3, 6), *block(6, WIDTH), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _simclr(norm: bool, symmetric: bool, sdmp: float = 0.0) -> SimCLR:
    projector = MLP((WIDTH, WIDTH, 5), norm=norm, last_norm="affine" if norm else None)
    return SimCLR(encoder(norm), WIDTH, projector, symmetric=symmetric, sdmp=sdmp)


METHODS: dict[str, Callable[[bool], Method]] = {
    "simclr": lambda norm: _simclr(norm, True),
    "simclr-one-sided": lambda norm: _simclr(norm, False),
    "moco-v1": lambda norm: moco_v1(encoder(norm), WIDTH, dim=5, queue_size=24, momentum=0.9),
    "moco-v2": lambda norm: moco_v2(encoder(norm), WIDTH, dim=5, queue_size=24, momentum=0.9),
    "byol": lambda norm: BYOL(encoder(norm), WIDTH, MLP((WIDTH, 9, 5), norm), MLP((5, 9, 5), norm), momentum=0.9),
    "simsiam": lambda norm: SimSiam(
        encoder(norm), WIDTH, MLP((WIDTH, 9, 5), norm, "plain" if norm else None), MLP((5, 4, 5), norm)
    ),
}

SMALL_QUEUE = {"dim": 5, "queue_size": 24, "momentum": 0.9}


def _expander(norm: bool) -> MLP:
    return MLP((WIDTH, 9, 9, 5), norm, last_bias=False)


def _mocov3(norm: bool, sdmp: float) -> MoCoV3:
    projector = MLP((WIDTH, 9, 5), norm, "plain" if norm else None)
    return MoCoV3(encoder(norm), WIDTH, projector, MLP((5, 9, 5), norm), momentum=0.9, sdmp=sdmp)


NEWER: dict[str, Callable[[bool], Method]] = {
    "barlow-twins": lambda norm: BarlowTwins(encoder(norm), WIDTH, _expander(norm)),
    "barlow-twins-symmetric": lambda norm: BarlowTwins(encoder(norm), WIDTH, _expander(norm), symmetric=True),
    "barlow-twins-mixed": lambda norm: BarlowTwins(encoder(norm), WIDTH, _expander(norm), 0.05, mix_regularizer=4.0),
    "vicreg": lambda norm: VICReg(encoder(norm), WIDTH, _expander(norm)),
    "vicreg-symmetric": lambda norm: VICReg(encoder(norm), WIDTH, _expander(norm), symmetric=True),
    "mocov3": lambda norm: _mocov3(norm, 0.0),
    "mocov3-sdmp": lambda norm: _mocov3(norm, 0.5),
}

RELATIVES: dict[str, Callable[[bool], Method]] = {
    **NEWER,
    "imix": lambda norm: i_mix(encoder(norm), WIDTH, MLP((WIDTH, WIDTH, 5), norm)),
    "imix-moco": lambda norm: moco_v2(encoder(norm), WIDTH, loss_fn=batch_keys, **SMALL_QUEUE),
    "simclr-sdmp": lambda norm: _simclr(norm, True, 0.3),
    "simclr-one-sided-sdmp": lambda norm: _simclr(norm, False, 0.3),
    "moco-v2-sdmp": lambda norm: moco_v2(encoder(norm), WIDTH, sdmp=0.3, **SMALL_QUEUE),
    "mixco": lambda norm: moco_mixco(encoder(norm), WIDTH, **SMALL_QUEUE),
    "mochi": lambda norm: moco_mochi(encoder(norm), WIDTH, hardest=6, pairs=4, with_query=3, **SMALL_QUEUE),
    "swav": lambda norm: SwAV(encoder(norm), WIDTH, MLP((WIDTH, 9, 5), norm), 5, prototypes=4),
    "swav-queue": lambda norm: SwAV(
        encoder(norm), WIDTH, MLP((WIDTH, 9, 5), norm), 5, prototypes=4, queue_size=15, freeze_steps=1
    ),
    "dino": lambda norm: DINO(
        encoder(norm), WIDTH, MLP((WIDTH, 9, 5), norm), 5, prototypes=7, momentum=0.9, warmup_steps=2
    ),
    "distillation": lambda norm: Distillation(
        encoder(norm), WIDTH, encoder(norm), WIDTH, MLP((WIDTH, 9, WIDTH), norm), standardize=True
    ),
    "unmix-byol": lambda norm: UnMix(METHODS["byol"](norm)),
    "unmix-simclr": lambda norm: UnMix(METHODS["simclr"](norm)),
    "unmix-vicreg": lambda norm: UnMix(NEWER["vicreg"](norm)),
}

OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "sim": sim,
    "bsim": lambda: bsim(CutMix(lam_per="image")),
    "wbsim": wbsim,
    "mixaug": mixaug,
    "one-per-pair": lambda: wbsim(0.5, 0.5, CutMix(lam_per="pair", partner="pairs", anchors="one_per_pair")),
    "three-parents": lambda: bsim(PatchMix(lam_per="image", parents=3)),
    "own": lambda: Objective([(0.2, Mixup(partner="permutation")), (0.3, Identity()), (0.7, CutMix(0.5))]),
}
