"""mixview: image representations without labels, learned from mixed views.

`mixview.mixing`, `mixview.losses` and `mixview.objective` need torch alone and fit into any training loop;
`mixview.methods` holds SimCLR, MoCo, BYOL and SimSiam as plain modules around any encoder.
"""

from mixview.mixing import CutMix, Identity, MixAug, Mixer, Mixture, Mixup, mixture_generators
from mixview.objective import Objective, Term, bsim, mixaug, sim, wbsim

__version__ = "0.1.0"

__all__ = [
    "CutMix",
    "Identity",
    "MixAug",
    "Mixer",
    "Mixture",
    "Mixup",
    "Objective",
    "Term",
    "bsim",
    "mixaug",
    "mixture_generators",
    "sim",
    "wbsim",
]
