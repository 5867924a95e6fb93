"""Datasets: sources of images, decoding, augmentation, and the built-in synthetic scenes."""

from typing import TYPE_CHECKING

from mixview.lazy import attach

if TYPE_CHECKING:
    from mixview.data.augment.policies import Augmentation as Augmentation
    from mixview.data.augment.policies import Blur as Blur
    from mixview.data.augment.policies import Crop as Crop
    from mixview.data.augment.policies import Jitter as Jitter
    from mixview.data.augment.policies import Normalize as Normalize
    from mixview.data.augment.policies import RandAugment as RandAugment
    from mixview.data.augment.policies import load_policy as load_policy
    from mixview.data.dataset import ImageDataset as ImageDataset
    from mixview.data.loader import EpochSampler as EpochSampler
    from mixview.data.loader import view_loader as view_loader
    from mixview.data.sources.base import Source as Source
    from mixview.data.sources.registry import open_dataset as open_dataset
    from mixview.data.sources.splits import take_files as take_files
    from mixview.data.sources.splits import take_fraction as take_fraction
    from mixview.data.sources.splits import take_per_class as take_per_class
    from mixview.data.synthetic.scenes import Scenes as Scenes

PUBLIC = {
    **dict.fromkeys(
        ("Augmentation", "Blur", "Crop", "Jitter", "Normalize", "RandAugment", "load_policy"),
        "mixview.data.augment.policies",
    ),
    "ImageDataset": "mixview.data.dataset",
    **dict.fromkeys(("EpochSampler", "view_loader"), "mixview.data.loader"),
    "Source": "mixview.data.sources.base",
    "open_dataset": "mixview.data.sources.registry",
    **dict.fromkeys(("take_files", "take_fraction", "take_per_class"), "mixview.data.sources.splits"),
    "Scenes": "mixview.data.synthetic.scenes",
}
"""Every public name of the package, and the module that defines it."""

__all__ = [*PUBLIC]
__getattr__, __dir__ = attach(__name__, PUBLIC)
