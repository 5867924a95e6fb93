"""How an image is shown to an encoder that is judged: the middle of it, or all of it squashed into a square."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from mixview.data.augmentation import Normalise

IMAGENET = Normalise()
"""The colours of ImageNet, which nearly every encoder is trained with."""

MARGIN = 256 / 224
"""The usual margin: images are resized to 256 pixels and 224 of them are shown."""


@final
@dataclass(frozen=True)
class CentreCrop:
    """The shorter side resized to `size` and the usual margin, the middle cropped, the colours normalised."""

    size: int
    normalise: Normalise | None = IMAGENET

    def __call__(self, image: Tensor) -> Tensor:
        """[C, H, W] of uint8 -> [C, size, size]"""
        height, width = image.shape[1:]
        margin = 1.0 if max(height, width) <= self.size else MARGIN  # none for images no larger than what is shown
        scale = margin * self.size / min(height, width)
        resized = F.resize(F.to_dtype(image, torch.float32, scale=True), [round(height * scale), round(width * scale)])
        return normalised(F.center_crop(resized, [self.size, self.size]), self.normalise)

    @property
    def words(self) -> str:
        return f"centre crop of {self.size} pixels"


@final
@dataclass(frozen=True)
class Squash:
    """The whole image in a square, whatever its shape: the published SVM protocol's way (resize 256, then to 224×224).

    The first resize, of the shorter side to 256, changes nothing but the smoothing of images that are larger.
    """

    size: int
    normalise: Normalise | None = IMAGENET

    def __call__(self, image: Tensor) -> Tensor:
        """[C, H, W] of uint8 -> [C, size, size]"""
        image = F.to_dtype(image, torch.float32, scale=True)
        height, width = image.shape[1:]
        scale = round(MARGIN * self.size) / min(height, width)
        if scale < 1:
            image = F.resize(image, [round(height * scale), round(width * scale)])
        return normalised(F.resize(image, [self.size, self.size]), self.normalise)

    @property
    def words(self) -> str:
        return f"whole image squashed to {self.size}×{self.size} pixels"


Transform = CentreCrop | Squash


def normalised(image: Tensor, normalise: Normalise | None) -> Tensor:
    """The image [C, H, W] with its colours normalised."""
    if normalise is None:
        return image
    shifted: Tensor = F.normalize(image, *normalise.values(len(image)))
    return shifted
