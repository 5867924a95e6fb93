"""mixview: image representations without labels, learned from mixed views.

`mixview.mixing`, `mixview.losses` and `mixview.objective` need torch alone and fit into any training loop;
`mixview.methods` holds SimCLR, MoCo, BYOL, SimSiam and their relatives as plain modules around any encoder.
"""

from typing import Any

from mixview.either import Either
from mixview.mixing import CutMix, Identity, MixAug, Mixer, Mixture, Mixup, mixture_generators
from mixview.objective import Objective, Term, bsim, mixaug, sim, unmix, wbsim

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # What trains needs more than torch, and longer to import: it comes when it is asked for.
    if name in ("pretrain", "resume"):
        from mixview.train import pretraining

        return getattr(pretraining, name)
    if name == "load":
        from mixview.using import encoder

        return encoder.load
    raise AttributeError(f"module 'mixview' has no attribute {name!r}")


__all__ = [
    "CutMix",
    "Either",
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
    "unmix",
    "wbsim",
]
