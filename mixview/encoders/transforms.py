"""Transforms from an image to an encoder's input: its center crop, or all of it squashed into a square."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from mixview.data.augment.policies import Normalize
from mixview.data.decode import largest_factor
from mixview.lazy import Module

F = Module("torchvision.transforms.v2.functional")
IMAGENET = Normalize()
"""The colors of ImageNet, which nearly every encoder is trained with."""

CROP_RATIO = 256 / 224
"""The usual margin: images are resized to 256 pixels and 224 of them are shown."""


def decode_factor(height: int, width: int, size: int) -> int:
    """The factor by which an image may be decoded smaller: twice the pixels per side remain that it is resized to.

    At 224 pixels that concerns photographs of 1024 pixels and more.
    """
    return largest_factor(height, width, 2 * round(CROP_RATIO * size))


@final
@dataclass(frozen=True)
class CenterCrop:
    """The shorter side resized to `size` and the usual margin, the middle cropped, the colors normalized."""

    size: int
    normalize: Normalize | None = IMAGENET

    def __call__(self, image: Tensor) -> Tensor:
        """[C, H, W] of uint8 -> [C, size, size]"""
        height, width = image.shape[1:]
        margin = 1.0 if max(height, width) <= self.size else CROP_RATIO  # none for images no larger than what is shown
        scale = margin * self.size / min(height, width)
        resized = F.resize(F.to_dtype(image, torch.float32, scale=True), [round(height * scale), round(width * scale)])
        return normalized(F.center_crop(resized, [self.size, self.size]), self.normalize)

    def decode_factor(self, height: int, width: int) -> int:
        """The factor by which an image may be decoded smaller."""
        return decode_factor(height, width, self.size)

    @property
    def description(self) -> str:
        return f"center crop of {self.size} pixels"


@final
@dataclass(frozen=True)
class ResizeToSquare:
    """The whole image in a square, whatever its shape: the published SVM protocol's way (resize 256, then to 224×224).

    The first resize, of the shorter side to 256, changes nothing but the smoothing of images that are larger.
    """

    size: int
    normalize: Normalize | None = IMAGENET

    def __call__(self, image: Tensor) -> Tensor:
        """[C, H, W] of uint8 -> [C, size, size]"""
        image = F.to_dtype(image, torch.float32, scale=True)
        height, width = image.shape[1:]
        scale = round(CROP_RATIO * self.size) / min(height, width)
        if scale < 1:
            image = F.resize(image, [round(height * scale), round(width * scale)])
        return normalized(F.resize(image, [self.size, self.size]), self.normalize)

    def decode_factor(self, height: int, width: int) -> int:
        """The factor by which an image may be decoded smaller."""
        return decode_factor(height, width, self.size)

    @property
    def description(self) -> str:
        return f"whole image squashed to {self.size}×{self.size} pixels"


Transform = CenterCrop | ResizeToSquare


def normalized(image: Tensor, normalize: Normalize | None) -> Tensor:
    """The image [C, H, W] with its colors normalized."""
    if normalize is None:
        return image
    shifted: Tensor = F.normalize(image, *normalize.values(len(image)))
    return shifted
