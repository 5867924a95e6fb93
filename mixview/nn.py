"""The parts that methods are built of: encoder with its head, MLP heads, momentum copy, key queue, split batch norm."""

import copy
import itertools
import math
from collections.abc import Sequence
from typing import TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

Module = TypeVar("Module", bound=nn.Module)

SHORT_RUN = 20_000
"""Optimizer steps below which the published momenta are too slow."""


class EncoderWithProjector(nn.Module):
    """An encoder and the head that is thrown away after pretraining: images [N, C, H, W] -> projections [N, D]."""

    def __init__(self, encoder: nn.Module, projector: nn.Module, feature_dim: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.projector = projector
        self.feature_dim = feature_dim

    def forward(self, images: Tensor) -> Tensor:
        features = self.encoder(images)
        if features.shape != (len(images), self.feature_dim):
            raise ValueError(
                f"the encoder made features of shape {list(features.shape)} of {len(images)} images, expected "
                f"[{len(images)}, {self.feature_dim}]: end it in pooling and flattening, without a classifier "
                "(torchvision: model.fc = nn.Identity(); timm: num_classes=0), and pass its width as feature_dim"
            )
        return cast(Tensor, self.projector(features))


class MLP(nn.Sequential):
    """Linear layers with batch norm and ReLU between them.

    Args:
        dims: widths from input to output, such as (2048, 4096, 256): one linear layer less than numbers.
        norm: batch norm after the hidden layers.
        last_norm: batch norm after the last layer too; `"affine"`, or `"plain"` without its scale and shift (SimSiam).
        last_bias: a bias in the last layer, where no batch norm follows it.
    """

    def __init__(
        self, dims: Sequence[int], norm: bool = True, last_norm: str | None = None, last_bias: bool = True
    ) -> None:
        if len(dims) < 2 or min(dims) < 1:
            raise ValueError(f"an MLP needs at least an input and an output width, got {tuple(dims)}")
        if last_norm not in (None, "affine", "plain"):
            raise ValueError(f'last_norm must be None, "affine" or "plain", got {last_norm!r}')
        layers: list[nn.Module] = []
        for width, hidden in itertools.pairwise(dims[:-1]):
            layers.append(nn.Linear(width, hidden, bias=not norm))  # a bias before a batch norm does nothing
            if norm:
                layers.append(nn.BatchNorm1d(hidden))
            layers.append(nn.ReLU(inplace=True))
        layers.append(nn.Linear(dims[-2], dims[-1], bias=last_bias and last_norm is None))
        if last_norm is not None:
            layers.append(nn.BatchNorm1d(dims[-1], affine=last_norm == "affine"))
        super().__init__(*layers)

    def forward(self, features: Tensor) -> Tensor:
        if self.training and len(features) == 1 and any(isinstance(layer, nn.BatchNorm1d) for layer in self):
            raise ValueError(
                "a batch of one image cannot be batch-normalized: use a batch of at least 2 per process, and drop a "
                "short last batch (drop_last=True)"
            )
        return cast(Tensor, super().forward(features))  # type: ignore[no-untyped-call]


def momentum_copy(online: Module) -> Module:
    """A copy that takes no gradient and follows by `ema_update`; its batch norms keep statistics of their own.

    Nothing is dropped in it at random: stochastic depth (timm's `DropPath`) is the online network's, as in DINO.
    """
    target = copy.deepcopy(online).requires_grad_(False)
    for module in target.modules():
        if type(module).__name__ == "DropPath":  # by its name: the methods need torch alone
            vars(module)["drop_prob"] = 0.0
    return target


def check_momentum(momentum: float) -> None:
    """Raise if the momentum is not in [0, 1]."""
    if not 0 <= momentum <= 1:
        raise ValueError(f"momentum must be within [0, 1], got {momentum}: usual values are 0.99 to 0.999")


def momentum_for(momentum: float | None, published: float, steps: int) -> float:
    """The momentum that was chosen, or else the published one; in a short run the target has to follow faster."""
    if momentum is not None:
        return momentum
    return 0.99 if steps < SHORT_RUN else published


def cosine_momentum(momentum: float, progress: float | Tensor) -> float | Tensor:
    """The momentum after this share of training, 0 to 1, as BYOL moves it: from `momentum` to 1 along a cosine."""
    cosine = torch.cos(math.pi * progress) if isinstance(progress, Tensor) else math.cos(math.pi * progress)
    return 1 - (1 - momentum) * (cosine + 1) / 2


@torch.no_grad()
def ema_update(target: nn.Module, online: nn.Module, momentum: float | Tensor) -> None:
    """`target = momentum * target + (1 - momentum) * online`, for the parameters.

    By torch's own lerp over all tensors at once: exact at momentum 0 and 1, and a few kernel launches on an accelerator
    (`benchmarks/step.py` compares the other forms). A momentum that is a tensor is not checked, which would wait
    for the accelerator.
    """
    if not isinstance(momentum, Tensor):
        check_momentum(momentum)
    if followers := list(target.parameters()):
        if any(each.dtype in (torch.float16, torch.bfloat16) for each in followers):
            raise TypeError(
                "a momentum copy in half precision does not move, because its steps are below its precision: keep "
                "the weights in float32 and compute in mixed precision (bf16-mixed instead of bf16-true)"
            )
        onlines = list(online.parameters())
        if isinstance(momentum, Tensor):
            for follower, parameter in zip(followers, onlines, strict=True):
                follower.lerp_(parameter, (1 - momentum).to(follower.dtype))
        else:
            get_ema_multi_avg_fn(momentum)(followers, onlines, None)


class KeyQueue(nn.Module):
    """The last `size` keys, a ring: `keys` [size, dim], of length one. Up to `size` of them go in at a time."""

    keys: Tensor
    pointer: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        if size < 1 or dim < 1:
            raise ValueError(f"a queue needs a positive size and width, got {size} and {dim}")
        # The same first keys on every process, whatever each one's seed: a queue that differs would never agree again.
        first = torch.randn(size, dim, generator=torch.Generator().manual_seed(0))
        self.register_buffer("keys", F.normalize(first, dim=1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def push(self, keys: Tensor) -> None:
        """Overwrite the oldest keys with these [N, dim]."""
        size = len(self.keys)
        if len(keys) > size:
            raise ValueError(
                f"{len(keys)} keys per step do not fit a queue of {size}: use a queue of at least {len(keys)}, "
                "best a multiple of it"
            )
        # The pointer stays a tensor: reading it would wait for the accelerator every step.
        index = (self.pointer + torch.arange(len(keys), device=keys.device)) % size
        self.keys.index_copy_(0, index, keys.to(self.keys.dtype))
        self.pointer.add_(len(keys)).remainder_(size)


class SplitBatchNorm2d(nn.BatchNorm2d):
    """Batch norm over `splits` consecutive parts of the batch, each by its own statistics, as on that many devices.

    MoCo on one device needs it: where queries and keys share their batch statistics, the network can cheat. The running
    statistics move once a pass, to the mean over the parts.
    """

    def __init__(
        self,
        num_features: int,
        splits: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        if splits < 1:
            raise ValueError(f"splits must be at least 1, got {splits}")
        if momentum is None and track_running_stats:
            raise ValueError("split batch norm keeps moving averages: give it a momentum, such as 0.1, instead of None")
        self.splits = splits

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.splits == 1:
            return super().forward(input)
        if len(input) % self.splits:
            raise ValueError(
                f"a batch of {len(input)} does not split into {self.splits} batch-norm groups: "
                f"use a multiple of {self.splits}, and drop a short last batch (drop_last=True)"
            )
        means: list[Tensor | None] = [None] * self.splits
        variances: list[Tensor | None] = [None] * self.splits
        if self.running_mean is not None and self.running_var is not None:
            means = list(self.running_mean.repeat(self.splits, 1))
            variances = list(self.running_var.repeat(self.splits, 1))
        parts = [
            F.batch_norm(part, mean, variance, self.weight, self.bias, True, self.momentum or 0.0, self.eps)
            for part, mean, variance in zip(input.chunk(self.splits), means, variances, strict=True)
        ]
        with torch.no_grad():
            if self.running_mean is not None and self.running_var is not None:
                self.running_mean.copy_(torch.stack([mean for mean in means if mean is not None]).mean(0))
                self.running_var.copy_(torch.stack([each for each in variances if each is not None]).mean(0))
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
        return torch.cat(parts)


def split_batch_norm(module: nn.Module, splits: int) -> nn.Module:
    """`module` with every BatchNorm2d in it, or itself, as a `SplitBatchNorm2d`, its weights and options kept."""
    if type(module) is nn.BatchNorm2d:
        split = SplitBatchNorm2d(
            module.num_features, splits, module.eps, module.momentum, module.affine, module.track_running_stats
        )
        # The very tensors: on their device, trained or not as before, and known to an optimizer.
        split._parameters, split._buffers = module._parameters, module._buffers
        split.train(module.training)
        return split
    for name, child in module.named_children():
        setattr(module, name, split_batch_norm(child, splits))
    return module
