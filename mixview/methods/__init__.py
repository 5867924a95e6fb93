"""The methods of the paper and their relatives, one file each, all with the same two verbs: `forward`, `advance`."""

from mixview.methods.byol import BYOL
from mixview.methods.gradcache import cached_backward
from mixview.methods.imix import i_mix
from mixview.methods.method import Method, backward
from mixview.methods.mixco import moco_mixco
from mixview.methods.mochi import moco_mochi
from mixview.methods.moco import MoCo, moco_v1, moco_v2
from mixview.methods.simclr import SimCLR
from mixview.methods.simsiam import SimSiam
from mixview.methods.swav import SwAV
from mixview.methods.unmix import UnMix

__all__ = [
    "BYOL",
    "Method",
    "MoCo",
    "SimCLR",
    "SimSiam",
    "SwAV",
    "UnMix",
    "backward",
    "cached_backward",
    "i_mix",
    "moco_mixco",
    "moco_mochi",
    "moco_v1",
    "moco_v2",
]
