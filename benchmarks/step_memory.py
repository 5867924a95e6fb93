"""The memory that a device needs for a run, computed without running it: any batch, any number of devices, no GPU.

    step_memory(settings, devices=8, images=1_281_167).total      # bytes per device

The encoder goes forward once, on the meta device, to see what autograd would save per image. The method then takes a
step on the CPU around a stand-in that computes nothing and saves as much, so that the passes that are alive at the same
time are the method's own.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mixview.encoders import backbones
from mixview.methods import RunLength
from mixview.train.activations import SavedBytes, peak_activations
from mixview.train.build import build_method, build_objective, view_sizes
from mixview.train.config import PretrainConfig
from mixview.train.optim import build_optimizer

RESERVE = 2_500_000_000
"""Bytes for what is not a tensor: the CUDA context, workspaces of cuDNN and NCCL, gaps between allocations.

Chosen by the paper's cost table: MoCo takes 5.5 GiB per GPU there, of which tensors explain 3.2.
"""


FEW = 16
"""Images of the step that is counted: heads and losses hold as much for each further one."""


class Memory(NamedTuple):
    """Memory of a device at the worst moment of a step, in bytes."""

    weights: int
    """Parameters and buffers of all networks, target and queue included; half-precision copies in mixed precision."""
    gradients: int
    """Gradients; twice with several devices, where they also lie in the buckets that are sent."""
    optimizer: int
    """State of the optimizer."""
    views: int
    """The views of the device's part of a batch."""
    activations: int
    """Saved activations for the backward of one micro-batch."""
    reserve: int = RESERVE

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


def step_memory(settings: PretrainConfig, *, devices: int, images: int, joint: bool = False) -> Memory:
    """The memory that each device needs for a run with these settings.

    Args:
        settings: settings of the run; `batch_size` and `size` are numbers.
        devices: number of devices that share a batch.
        images: number of training images; a short queue depends on it.
        joint: all terms go backward together, as in the paper's own code, instead of one at a time.
    """
    if settings.batch_size == "auto" or settings.size is None:
        raise ValueError(
            f"the memory depends on the batch and the size of views: {settings.batch_size}, {settings.size}"
        )
    batch, size = settings.batch_size, settings.size
    sizes = view_sizes(settings)
    cost = encoder_cost(settings.backbone, size, settings.channels, settings.stem)
    # Views of 8 pixels stand for the global ones, and those of 9 and more for local crops of each size.
    tiny_sizes = {crop: 8 + number for number, crop in enumerate(dict.fromkeys([size, *sizes]))}
    saved = {
        tiny: encoder_cost(settings.backbone, size, settings.channels, settings.stem, crop).saved
        for crop, tiny in tiny_sizes.items()
    }
    backbone = backbones.Backbone(StandIn(cost, saved), cost.feature_dim, notes=(), spec={})
    length = RunLength(images, settings.epochs * (images // batch), batch, size, settings.channels)
    method = build_method(settings.method, backbone, length, settings.objective)
    per_device = batch // devices
    micro_batch = -(-per_device // settings.accumulate_grad_batches)
    few = min(micro_batch, FEW)
    views = [torch.zeros(few, settings.channels, tiny_sizes[crop], tiny_sizes[crop]) for crop in sizes]
    objective = build_objective(settings.objective, settings.mixing)
    held = peak_activations(method, objective, views, joint=joint)
    activations = held * micro_batch // few
    method.to("meta")
    trained = [weight for weight in method.parameters() if weight.requires_grad]
    optimizer = build_optimizer(method, settings.optimizer, batch)
    for weight in trained:
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    state = [value for values in optimizer.state.values() for value in values.values() if isinstance(value, Tensor)]
    mixed = settings.precision in ("bf16-mixed", "16-mixed")
    weights = size_of(*method.parameters(), *method.buffers())
    return Memory(
        weights=weights + (weights // 2 if mixed else 0),
        gradients=size_of(*trained) * (2 if devices > 1 else 1),
        optimizer=size_of(*state),
        views=sum(crop * crop for crop in sizes) * per_device * settings.channels * 4,
        activations=activations // 2 if mixed else activations,
    )


def size_of(*tensors: Tensor) -> int:
    """Their bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class EncoderCost(NamedTuple):
    """Facts about an encoder that a stand-in needs."""

    feature_dim: int
    matrices: int
    vectors: int
    """Numbers in its parameters: matrices, and norm layers and biases, which optimizers treat in another way."""
    buffers: int
    saved: int
    """Bytes that autograd holds of one image for the backward, the image included."""


@lru_cache(maxsize=16)
def encoder_cost(name: str, size: int, channels: int, stem: Any, crop: int | None = None) -> EncoderCost:
    """Counted in one forward pass on the meta device, of an encoder for this size; of local crops, if one is given."""
    backbone = backbones.build(name, size=size, channels=channels, stem=stem)
    encoder = backbone.encoder.to("meta").train()
    count = 4  # a batch norm's statistics, saved once however many images there are, are next to nothing
    with SavedBytes(encoder) as saved:
        encoder(torch.empty(count, channels, crop or size, crop or size, device="meta"))
    return EncoderCost(
        backbone.feature_dim,
        sum(weight.numel() for weight in encoder.parameters() if weight.ndim > 1),
        sum(weight.numel() for weight in encoder.parameters() if weight.ndim <= 1),
        sum(buffer.numel() for buffer in encoder.buffers()),
        saved.peak // count,
    )


class StandIn(nn.Module):
    """An encoder that has as many weights as another and saves as much for the backward, all on the meta device."""

    def __init__(self, cost: EncoderCost, saved: Mapping[int, int]) -> None:
        super().__init__()
        self.feature_dim = cost.feature_dim
        self.saved = dict(saved)  # bytes per image, by the side of the images that stand for it
        self.matrices = nn.Parameter(torch.empty(cost.matrices, 1, device="meta"))
        self.vectors = nn.Parameter(torch.empty(cost.vectors, device="meta"))
        self.register_buffer("statistics", torch.empty(cost.buffers, device="meta"))

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = SaveOnly.apply(images, self.matrices, self.saved[images.shape[-1]], self.feature_dim)
        return features


class SaveOnly(torch.autograd.Function):
    """Features of zeros, for which a number of bytes is saved per image."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weights: Tensor, saved: int, feature_dim: int) -> Tensor:
        ctx.save_for_backward(torch.empty(len(images), saved, dtype=torch.uint8, device="meta"))
        return images.new_zeros(len(images), feature_dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        return None, None, None, None
