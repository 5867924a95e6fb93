"""Pretraining: from a source of images to an encoder."""

from typing import TYPE_CHECKING

from mixview.lazy import attach

if TYPE_CHECKING:
    from mixview.train.config import MixingConfig as MixingConfig
    from mixview.train.config import MonitorConfig as MonitorConfig
    from mixview.train.config import OptimizerConfig as OptimizerConfig
    from mixview.train.config import PretrainConfig as PretrainConfig
    from mixview.train.pretraining import pretrain as pretrain
    from mixview.train.pretraining import resume as resume

PUBLIC = {
    **dict.fromkeys(("MixingConfig", "MonitorConfig", "OptimizerConfig", "PretrainConfig"), "mixview.train.config"),
    **dict.fromkeys(("pretrain", "resume"), "mixview.train.pretraining"),
}
"""Every public name of the package, and the module that defines it."""

__all__ = [*PUBLIC]
__getattr__, __dir__ = attach(__name__, PUBLIC)
