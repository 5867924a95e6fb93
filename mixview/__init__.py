"""mixview: image encoders trained without labels, from mixed views.

`mixview.mixing`, `mixview.losses` and `mixview.objective` need torch alone and fit into any training loop;
`mixview.methods` holds SimCLR, MoCo, BYOL, SimSiam and related methods as plain modules around any encoder.
Everything here is imported when it is first used.
"""

from typing import TYPE_CHECKING

from mixview.lazy import attach

if TYPE_CHECKING:
    from mixview.encoders.inference import load as load
    from mixview.mixing import CutMix as CutMix
    from mixview.mixing import FMix as FMix
    from mixview.mixing import Identity as Identity
    from mixview.mixing import MixAug as MixAug
    from mixview.mixing import Mixer as Mixer
    from mixview.mixing import Mixture as Mixture
    from mixview.mixing import Mixup as Mixup
    from mixview.mixing import PatchMix as PatchMix
    from mixview.mixing import RandomChoice as RandomChoice
    from mixview.mixing import ResizeMix as ResizeMix
    from mixview.mixing import mixture_generators as mixture_generators
    from mixview.objective import Objective as Objective
    from mixview.objective import Term as Term
    from mixview.objective import bsim as bsim
    from mixview.objective import mixaug as mixaug
    from mixview.objective import sim as sim
    from mixview.objective import unmix as unmix
    from mixview.objective import wbsim as wbsim
    from mixview.train.pretraining import pretrain as pretrain
    from mixview.train.pretraining import resume as resume

__version__ = "0.1.0"

MIXING = ("CutMix", "FMix", "Identity", "MixAug", "Mixer", "Mixture", "Mixup", "PatchMix", "RandomChoice", "ResizeMix")
PUBLIC = {
    **dict.fromkeys(MIXING, "mixview.mixing"),
    "mixture_generators": "mixview.mixing",
    **dict.fromkeys(("Objective", "Term", "bsim", "mixaug", "sim", "unmix", "wbsim"), "mixview.objective"),
    **dict.fromkeys(("pretrain", "resume"), "mixview.train.pretraining"),
    "load": "mixview.encoders.inference",
}
"""Every public name of the package, and the module that defines it."""

__all__ = [*PUBLIC]
__getattr__, __dir__ = attach(__name__, PUBLIC)
