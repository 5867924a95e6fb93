"""The methods of the paper and related ones, one file each: network, options and published settings.

from mixview.methods import MoCoV2Config, SimCLR, backward, moco_v2
"""

from mixview.methods.barlow_twins import BarlowTwins, BarlowTwinsConfig
from mixview.methods.base import Method, MethodConfig, RunLength, Targets, Views, backward
from mixview.methods.byol import BYOL, BYOLConfig
from mixview.methods.dino import DINO, DINOConfig
from mixview.methods.distillation import Distillation, DistillationConfig
from mixview.methods.grad_cache import cached_backward
from mixview.methods.imix import IMixConfig, IMixMoCoConfig, i_mix
from mixview.methods.mixco import MixCoConfig, moco_mixco
from mixview.methods.mochi import MoCHiConfig, moco_mochi
from mixview.methods.moco import MoCo, MoCoV1Config, MoCoV2Config, moco_v1, moco_v2
from mixview.methods.moco_v3 import MoCoV3, MoCoV3Config
from mixview.methods.simclr import SimCLR, SimCLRConfig
from mixview.methods.simsiam import SimSiam, SimSiamConfig
from mixview.methods.swav import SwAV, SwAVConfig
from mixview.methods.unmix import UnMix
from mixview.methods.vicreg import VICReg, VICRegConfig

__all__ = [
    "BYOL",
    "DINO",
    "BYOLConfig",
    "BarlowTwins",
    "BarlowTwinsConfig",
    "DINOConfig",
    "Distillation",
    "DistillationConfig",
    "IMixConfig",
    "IMixMoCoConfig",
    "Method",
    "MethodConfig",
    "MixCoConfig",
    "MoCHiConfig",
    "MoCo",
    "MoCoV1Config",
    "MoCoV2Config",
    "MoCoV3",
    "MoCoV3Config",
    "RunLength",
    "SimCLR",
    "SimCLRConfig",
    "SimSiam",
    "SimSiamConfig",
    "SwAV",
    "SwAVConfig",
    "Targets",
    "UnMix",
    "VICReg",
    "VICRegConfig",
    "Views",
    "backward",
    "cached_backward",
    "i_mix",
    "moco_mixco",
    "moco_mochi",
    "moco_v1",
    "moco_v2",
]
