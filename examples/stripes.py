"""Images for the examples: stripes in one of eight directions, with random colors, widths and positions.

The class is the direction. Colors and positions say nothing about it, so raw pixels are of little use. A network that
has learned to see directions can tell the classes apart.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 8
SIZE = 24


def draw(count: int, generator: torch.Generator, size: int = 32) -> tuple[Tensor, Tensor]:
    """Draw images [count, 3, size, size] in [0, 1], with their classes."""
    labels = torch.arange(count) % CLASSES
    angle = (labels + 0.6 * torch.rand(count, generator=generator)) * (math.pi / CLASSES)
    wave = 2 * math.pi * (2 + 4 * torch.rand(count, generator=generator)) / size
    phase = 2 * math.pi * torch.rand(count, generator=generator)
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    along = x * torch.cos(angle)[:, None, None] + y * torch.sin(angle)[:, None, None]
    share = (torch.sin(along * wave[:, None, None] + phase[:, None, None]) + 1).unsqueeze(1) / 2
    one, other = torch.rand(2, count, 3, 1, 1, generator=generator)
    noise = 0.05 * torch.randn(count, 3, size, size, generator=generator)
    return (share * one + (1 - share) * other + noise).clamp(0, 1), labels


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Make a view of each image: a random crop, new colors, noise. No flip: it would change the direction."""
    count, room = len(images), images.shape[-1] - SIZE
    top, left = torch.randint(0, room + 1, (2, count, 1), generator=generator)
    rows, columns = top + torch.arange(SIZE), left + torch.arange(SIZE)
    crop = images[torch.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    gain = 0.4 + torch.rand(count, 3, 1, 1, generator=generator)
    shift = 0.4 * torch.randn(count, 3, 1, 1, generator=generator)
    return (crop - 0.5) * gain + shift + 0.05 * torch.randn(crop.shape, generator=generator)


def small_encoder(width: int = 64) -> nn.Module:
    """Three convolutions: images -> features [N, width]."""

    def block(channels: int, out: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, out, 3, 2, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]

    return nn.Sequential(
        *block(3, width // 4),
        *block(width // 4, width // 2),
        *block(width // 2, width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


@torch.no_grad()
def nearest_neighbor_accuracy(encoder: nn.Module, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> float:
    """Accuracy when a test image gets the class of its nearest training image, by cosine similarity."""
    encoder.eval()
    bank, queries = (F.normalize(encoder(images - 0.5), dim=1) for images in (train[0], test[0]))
    nearest = train[1][(queries @ bank.T).argmax(1)]
    encoder.train()
    return float((nearest == test[1]).float().mean())
