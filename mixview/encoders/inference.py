"""An encoder with its preprocessing: images of any kind in, features out.

    encoder = mixview.load("runs/first")
    encoder("cat.jpg")                          # [D], of a path, a PIL image, an array or a tensor
    encoder(["cat.jpg", "dog.jpg"])             # [2, D], of any number of them
    encoder.module(prepared)                    # the bare network, for images that are prepared, and for gradients

Images are preprocessed as in evaluations: the middle of the image, at the size that the encoder was trained with.
"""

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Self, cast, final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn

from mixview.data.dataset import MODES
from mixview.data.decode import ChooseFactor, Decoder, Mode, channels_as, convert, upright
from mixview.data.loader import to_tensor
from mixview.data.sources.base import Pixels
from mixview.data.sources.files import read_file
from mixview.data.value_range import ValueRange
from mixview.encoders.features import PatchMaps, pick_device
from mixview.encoders.loading import EncoderConfig, LoadedEncoder
from mixview.encoders.transforms import CenterCrop

Picture = str | os.PathLike[str] | bytes | Image.Image | npt.NDArray[np.generic] | Tensor
"""One image: a path, the bytes of a file, a PIL image, an array [H, W] or [H, W, C], or a tensor [C, H, W]. Integers
are 0 to 255, others 0 to 1."""

BATCH = 64


@final
class Encoder:
    """Images to features, in evaluation mode and without gradients; `load` makes one.

    Args:
        loaded: the encoder, with its input size and normalization.
        device: the device that the encoder runs on.

    Example:
        >>> encoder = load("small", size=32, device="cpu")
        >>> encoder.prepare(Image.new("RGB", (80, 60), "orange")).shape  # what the network sees
        torch.Size([3, 32, 32])
        >>> encoder.feature_dim
        128
    """

    def __init__(self, loaded: LoadedEncoder, device: torch.device) -> None:
        self.loaded = loaded
        self.device = device
        self.transform = CenterCrop(loaded.size, loaded.normalize)
        self.module: nn.Module = loaded.encoder.to(device).eval()

    @property
    def feature_dim(self) -> int:
        """Number of features per image."""
        return self.loaded.feature_dim

    @property
    def size(self) -> int:
        """Input size of the network in pixels."""
        return self.loaded.size

    def __repr__(self) -> str:
        size = f"{self.loaded.channels}×{self.size}×{self.size}"
        return f"Encoder({self.loaded.name}: {size} -> {self.feature_dim}, on {self.device})"

    def to(self, device: str | torch.device) -> Self:
        """Move it to another device."""
        self.device = torch.device(device)
        self.module.to(self.device)
        return self

    def __call__(self, images: Picture | Iterable[Picture], *, batch_size: int = BATCH) -> Tensor:
        """Features [D] of one image, [N, D] of several: a list, or an array [N, H, W, C] or tensor [N, C, H, W].

        Args:
            images: one or several, of any sizes. They are read as they are needed, so a list of paths may be long.
            batch_size: images that go through the network at once.
        """
        batches = list(self.encode(self.module, images, batch_size))
        features = torch.cat(batches) if batches else torch.empty(0, self.feature_dim, device=self.device)
        return features[0] if is_one(images) else features

    def patches(self, images: Picture | Iterable[Picture], *, batch_size: int = BATCH) -> Tensor:
        """Features of each patch, [h, w, D] of one image, [N, h, w, D] of several: a ResNet's last maps, or the patch
        tokens of a ViT.

        Args:
            images: one or several, of any sizes.
            batch_size: images that go through the network at once.

        Example:
            >>> encoder = load("small-vit", size=32, device="cpu")  # cuts images into patches of 4 pixels
            >>> encoder.patches(Image.new("RGB", (80, 60), "orange")).shape
            torch.Size([8, 8, 128])
        """
        features = torch.cat(list(self.encode(PatchMaps(self.module), images, batch_size))).permute(0, 2, 3, 1)
        return features[0] if is_one(images) else features

    def encode(self, module: nn.Module, images: Picture | Iterable[Picture], batch_size: int) -> Iterator[Tensor]:
        """The output of a module for one image or several, batch by batch."""
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        pictures: Iterator[Picture] = iter([images] if is_one(images) else images)  # type: ignore[list-item, arg-type]
        while some := list(islice(pictures, batch_size)):
            with torch.inference_mode():
                yield module(torch.stack([self.prepare(each) for each in some]))

    def prepare(self, image: Picture) -> Tensor:
        """One image as the network sees it, [C, size, size] on the encoder's device."""
        pixels = as_tensor(image, self.loaded.channels, self.loaded.value_range, self.transform.decode_factor)
        return self.transform(pixels.to(self.device))


def load(
    encoder: str | os.PathLike[str],
    *,
    backbone: str | None = None,
    weights: str | None = None,
    size: int | None = None,
    channels: int = 3,
    device: str = "auto",
    trust_remote_code: bool = False,
) -> Encoder:
    """An encoder with its preprocessing, ready to be called with images.

    Args:
        encoder: the folder of a run, a file of weights (mixview's or another program's), or a model by name.
        backbone: the model of a file that does not say it; by default the usual ResNet that fits.
        weights: weights for a model by name: imagenet, or a file.
        size: input size in pixels; by default the one it was trained with.
        channels: image channels, for an encoder that does not say: 3 for color, 1 for grayscale.
        device: cpu, cuda, mps, or auto: an accelerator where there is one.
        trust_remote_code: call the factory of a backbone of your own, which a run's file names. That runs its code.

    Example:
        >>> encoder = load("small", size=32, device="cpu")  # or "runs/first", or "moco_v2_200ep_pretrain.pth.tar"
        >>> encoder(Image.new("RGB", (80, 60), "orange")).shape
        torch.Size([128])
        >>> encoder([np.zeros((50, 50, 3), np.uint8), torch.zeros(3, 40, 40)]).shape
        torch.Size([2, 128])
    """
    config = EncoderConfig(
        encoder=os.fspath(encoder),
        backbone=backbone,
        weights=weights,
        size=size,
        channels=channels,
        trust_remote_code=trust_remote_code,
    )
    return Encoder(config.load(), pick_device(device))


def is_one(images: Picture | Iterable[Picture]) -> bool:
    """Return True if this is a single image, not several."""
    if isinstance(images, np.ndarray | Tensor):
        return images.ndim < 4
    return isinstance(images, str | bytes | os.PathLike | Image.Image)


def as_tensor(
    image: Picture, channels: int, value_range: ValueRange | None = None, choose_factor: ChooseFactor | None = None
) -> Tensor:
    """One image as [C, H, W] of uint8, or of floats from 0 to 1.

    Args:
        image: any image.
        channels: the number of channels of the encoder.
        value_range: black and white of files of more than 8 bits.
        choose_factor: the function that says by how much a file may be decoded smaller.
    """
    mode: Mode = MODES.get(channels, "stored")
    if isinstance(image, Tensor):
        return check_tensor(image, channels)
    if isinstance(image, np.ndarray):
        return from_array(image, mode, channels)
    if isinstance(image, Image.Image):
        pixels = convert(upright(image), mode, "the image")
    elif isinstance(image, bytes):
        pixels = Decoder(mode, value_range=value_range)(image, choose_factor=choose_factor)
    elif isinstance(image, str | os.PathLike):
        decoder = Decoder(mode, value_range=value_range)
        name = os.fspath(image)
        pixels = decoder(read_file(Path(image).expanduser(), name), name, choose_factor)
    else:
        raise TypeError(f"an image is a path, bytes, a PIL image, an array or a tensor, not a {type(image).__name__}")
    return check_tensor(to_tensor(pixels), channels)


def from_array(array: npt.NDArray[np.generic], mode: Mode, channels: int) -> Tensor:
    """An array [H, W] or [H, W, C] as [C, H, W]."""
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3:
        raise ValueError(f"an image is an array [H, W] or [H, W, C], got {list(array.shape)}")
    if array.dtype == np.uint8 and array.shape[2] in (1, 3):
        array = channels_as(mode, cast(Pixels, array), "the array")
    return check_tensor(to_tensor(np.ascontiguousarray(array)), channels)


def check_tensor(image: Tensor, channels: int) -> Tensor:
    """Raise if an array would be taken for another image than it is; gray becomes as many channels as are wanted."""
    if image.ndim != 3:
        raise ValueError(f"an image is a tensor [C, H, W], and several are [N, C, H, W], got {list(image.shape)}")
    if image.dtype != torch.uint8:
        if not image.is_floating_point():
            raise ValueError(f"pixels are uint8, 0 to 255, or floats, 0 to 1, not {image.dtype}")
        low, high = (float(each) for each in image.aminmax())
        if not 0 <= low <= high <= 1:
            raise ValueError(
                f"pixels that are floats go from 0 to 1, and these go from {low:g} to {high:g}: divide them by their "
                "range, or pass images that are normalized already to encoder.module"
            )
    if image.shape[0] == 1 and channels == 3:
        return image.expand(3, -1, -1)
    if image.shape[0] != channels:
        raise ValueError(
            f"the encoder takes {channels} channels, and this image of shape {list(image.shape)} has "
            f"{image.shape[0]}: tensors are [C, H, W], arrays [H, W, C]"
        )
    return image
