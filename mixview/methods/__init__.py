"""The methods of the paper, one file each, all with the same two verbs: `forward` and `advance`."""

from mixview.methods.byol import BYOL
from mixview.methods.gradcache import cached_backward
from mixview.methods.method import Method, backward
from mixview.methods.moco import MoCo, moco_v1, moco_v2
from mixview.methods.simclr import SimCLR
from mixview.methods.simsiam import SimSiam

__all__ = ["BYOL", "Method", "MoCo", "SimCLR", "SimSiam", "backward", "cached_backward", "moco_v1", "moco_v2"]
