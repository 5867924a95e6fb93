"""Communication of processes: features gathered with the right gradient, MoCo's shuffle, synchronized batch norm.

All of it does nothing on one process.
"""

import os
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mixview.mixing import Mixture


def world_size() -> int:
    """The number of processes that train together."""
    launched = int(os.environ.get("WORLD_SIZE") or 1)
    running = dist.get_world_size() if dist.is_available() and dist.is_initialized() else None
    if running is None and launched > 1:
        raise RuntimeError(
            f"launched as one of {launched} processes (WORLD_SIZE), but torch.distributed is not initialized, so each "
            "would train alone: call torch.distributed.init_process_group() first, or unset WORLD_SIZE"
        )
    if running is not None and launched not in (1, running):
        raise RuntimeError(f"WORLD_SIZE says {launched} processes, torch.distributed says {running}: launch them alike")
    return running or 1


def rank() -> int:
    """This process's number, 0 on one process."""
    return dist.get_rank() if world_size() > 1 else 0


def gather(local: Tensor) -> Tensor:
    """Every process's rows, in the order of ranks: [N, …] -> [world N, …].

    The backward sums the gradients that all processes have for a row. With each process's loss the mean over its own
    anchors, and gradients averaged over processes (as DistributedDataParallel does), the gradient is that of one
    process on the joined batch.
    """
    if world_size() == 1:
        return local
    check_same_rows(local)
    everything: Tensor = Gather.apply(local)
    return everything


class Gather(torch.autograd.Function):
    """`gather`, and its gradient. Our own, because torch's (torch.distributed.nn) warns of its end."""

    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        ctx.rows = own_rows(len(local))
        parts = [torch.empty_like(local, memory_format=torch.contiguous_format) for _ in range(world_size())]
        dist.all_gather(parts, local.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient[ctx.rows]


def gather_mixture(mixture: Mixture) -> Mixture:
    """The mixture of the joined batch, for the losses (it mixes no pixels: each process mixed its own)."""
    if world_size() == 1:
        return mixture
    offset = rank() * mixture.images
    (own, lam), (partner, _), *further = mixture.parts()
    columns = [own + offset, partner + offset, lam]
    for index, share in further:
        columns += [index + offset, share]
    own, partner, lam, *rest = gather(torch.stack([each.double() for each in columns], dim=1)).unbind(1)
    return Mixture(
        partner.long(),
        lam.to(mixture.lam.dtype),
        own=own.long(),
        images=mixture.images * world_size(),
        further=[(index.long(), share.to(lam.dtype)) for index, share in zip(rest[::2], rest[1::2], strict=True)],
    )


@torch.no_grad()
def average_gradients(parameters: Iterable[Tensor]) -> None:
    """Give every process the mean of all processes' gradients, for a backward outside DistributedDataParallel.

    One all-reduce for each dtype and device. What was averaged before (accumulated gradients) is the same everywhere
    and stays what it is.
    """
    if world_size() == 1:
        return
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            kinds.setdefault((parameter.grad.dtype, parameter.grad.device), []).append(parameter.grad)
    for gradients in kinds.values():
        joined = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(joined)
        joined /= world_size()
        for gradient, mean in zip(gradients, joined.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))


class AllReduce(torch.autograd.Function):
    """The sum over processes. The backward sums the gradients of all processes, as `Gather`'s does."""

    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        total = local.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient


class SyncBatchNorm(nn.SyncBatchNorm):
    """Batch norm over the batches of all processes, on accelerators: torch's own.

    Children, if any, come after the normalization: timm's batch norm ends in an activation.
    """

    def forward(self, input: Tensor) -> Tensor:
        return apply_children(self, super().forward(input))


class CPUSyncBatchNorm(_BatchNorm):
    """`SyncBatchNorm` for CPUs, which torch's own refuses."""

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of dimensions, as for `nn.SyncBatchNorm`."""

    def forward(self, input: Tensor) -> Tensor:
        together = self.training and world_size() > 1
        return apply_children(self, self.normalize_together(input) if together else super().forward(input))

    def normalize_together(self, input: Tensor) -> Tensor:
        """By the mean and variance of all processes' values, however many each has."""
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        axes = [axis for axis in range(x.ndim) if axis != 1]
        shape = [-1 if axis == 1 else 1 for axis in range(x.ndim)]
        own_count = x.new_full((1,), x.numel() / x.shape[1])
        total, count = AllReduce.apply(torch.cat([x.sum(axes), own_count])).split([x.shape[1], 1])
        mean = total / count
        deviation = x - mean.view(shape)
        variance = AllReduce.apply(deviation.square().sum(axes)) / count
        if self.track_running_stats:
            self.update_running_stats(mean, variance * count / (count - 1))
        output: Tensor = deviation * torch.rsqrt(variance + self.eps).view(shape)
        if self.weight is not None:
            output = output * self.weight.view(shape)
        if self.bias is not None:
            output = output + self.bias.view(shape)
        return output.to(input.dtype)

    @torch.no_grad()
    def update_running_stats(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics toward those of this batch; without a momentum they are a plain average."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), momentum)


SYNCHRONIZED = (nn.SyncBatchNorm, CPUSyncBatchNorm)


def apply_children(layer: nn.Module, output: Tensor) -> Tensor:
    """Apply the layers that follow the normalization inside a batch norm."""
    for child in layer.children():
        output = child(output)
    return output


def convert_batch_norm(module: nn.Module, device: torch.device) -> nn.Module:
    """`module` with every batch norm in it, or itself, synchronized; tensors and options stay the same.

    A batch norm whose class computes something of its own is left as it is, except timm's, which is known.

    Args:
        module: converted in place, except where it is a batch norm itself.
        device: the device that it is going to run on.
    """
    if isinstance(module, _BatchNorm) and not isinstance(module, SYNCHRONIZED):
        if is_frozen(module):
            return module
        appended = [name for name, _ in module.named_children()]
        if type(module).forward is not _BatchNorm.forward and appended != ["drop", "act"]:
            return module
        make = CPUSyncBatchNorm if device.type == "cpu" else SyncBatchNorm
        converted = make(module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats)
        # The very tensors: on their device, trained or not as before, and known to an optimizer.
        converted._parameters, converted._buffers = module._parameters, module._buffers
        converted._modules = module._modules
        converted.train(module.training)
        return converted
    for name, child in module.named_children():
        setattr(module, name, convert_batch_norm(child, device))
    return module


def is_frozen(module: nn.Module) -> bool:
    """Return True if a batch norm stays in evaluation mode (`mixview.encoders.layers.freeze`), and ignores batches."""
    return "train" in vars(module)


def synchronize_batch_norm(module: nn.Module, device: torch.device) -> list[str]:
    """Make all batch norms inside `module` normalize over the batches of all processes together.

    Call it on every process, with the process group up, before DistributedDataParallel.

    Args:
        module: converted in place.
        device: the device that it is going to run on.

    Returns:
        What was converted, as sentences for the log: each network by name, with its number of batch norms. Nothing on
        one process.
    """
    if world_size() == 1:
        return []
    convert_batch_norm(module, device)
    networks = list(module.named_children())
    while len(networks) == 1 and list(networks[0][1].children()):  # a wrapper: name what is inside
        networks = list(networks[0][1].named_children())
    norms = [(name, layer) for name, net in networks for layer in net.modules() if isinstance(layer, _BatchNorm)]
    synchronized = Counter(name for name, layer in norms if isinstance(layer, SYNCHRONIZED))
    local = Counter(
        type(layer).__name__ for _, layer in norms if not isinstance(layer, SYNCHRONIZED) and not is_frozen(layer)
    )
    notes = []
    if synchronized:
        layers = ", ".join(f"{count} in {name}" for name, count in synchronized.items())
        notes.append(f"Batch norm is synchronized over {world_size()} processes: {layers}.")
    if local:
        layers = ", ".join(f"{count} of type {name}" for name, count in local.items())
        notes.append(f"Batch norm stays local to each process in layers of an unknown kind: {layers}.")
    return notes


def own_rows(count: int) -> slice:
    """The place of this process's `count` rows in the result of `gather`."""
    return slice(rank() * count, (rank() + 1) * count)


def own_part(count: int) -> slice:
    """This process's part of `count` things that all processes have, such as dimensions: about as many for each."""
    return slice(rank() * count // world_size(), (rank() + 1) * count // world_size())


@torch.library.custom_op("mixview::permutation", mutates_args=())
def permutation(count: int, seed: Tensor) -> Tensor:
    """A random order of `count` rows: an operator of its own, because no graph of torch.compile holds a generator."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(int(seed)))


@permutation.register_fake
def _(count: int, seed: Tensor) -> Tensor:
    return torch.empty(count, dtype=torch.int64)


def shuffle(images: Tensor, seed: Tensor) -> tuple[Tensor, Tensor]:
    """Shuffling BN (MoCo): deal the images of all processes out anew, so that keys share no BN statistics with queries.

    On one process it changes the order of its images, which matters to split batch norm.

    Args:
        images: [N, C, H, W] of this process.
        seed: a whole number on the CPU, the same on every process; each makes the same permutation and none sends it.

    Returns:
        This process's share of the shuffled images, and the permutation for `unshuffle`.
    """
    everything = gather(images)
    order = permutation(len(everything), seed).to(images.device, non_blocking=True)
    return everything[order[own_rows(len(images))]], order


def unshuffle(features: Tensor, permutation: Tensor | None) -> Tensor:
    """Undo `shuffle` on the features [N, D] of the shuffled images; without a permutation there is nothing to undo."""
    if permutation is None:
        return features
    return gather(features)[torch.argsort(permutation)[own_rows(len(features))]]


_checked_groups: set[str] = set()


def check_same_rows(local: Tensor) -> None:
    """Raise, on every process, if batches differ between processes, where a collective would hang or crash.

    On the CPU always; on an accelerator, where the question costs a synchronization, the first time only.
    """
    group = str(dist.group.WORLD.group_name) if dist.group.WORLD else ""
    if local.device.type != "cpu":
        if group in _checked_groups:
            return
        _checked_groups.add(group)
    counts = [torch.zeros(1, dtype=torch.int64, device=local.device) for _ in range(world_size())]
    dist.all_gather(counts, torch.tensor([len(local)], device=local.device))
    rows = [int(count) for count in counts]
    if len(set(rows)) > 1:
        raise ValueError(
            f"every process needs a batch of the same size, but ranks 0 … {len(rows) - 1} have {rows}: "
            "drop the short last batch (drop_last=True) and divide the data evenly"
        )
