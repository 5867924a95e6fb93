"""What crosses processes: features gathered with the right gradient, MoCo's batch shuffle. No-ops on one process."""

import os
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mixview.mixing import Mixture


def world_size() -> int:
    """The number of processes that train together."""
    launched = int(os.environ.get("WORLD_SIZE") or 1)
    running = dist.get_world_size() if dist.is_available() and dist.is_initialized() else None
    if running is None and launched > 1:
        raise RuntimeError(
            f"launched as one of {launched} processes (WORLD_SIZE), but torch.distributed is not initialised, so each "
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

    The backward sums what all processes ask of a row. With each process's loss the mean over its own anchors, and
    gradients averaged over processes (as DistributedDataParallel does), the gradient is that of one process on the
    joined batch.
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
    offset = rank() * len(mixture)
    both = gather(torch.stack([(mixture.partner + offset).double(), mixture.lam.double()], dim=1))
    return Mixture(both[:, 0].long(), both[:, 1].to(mixture.lam.dtype))


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


def own_rows(count: int) -> slice:
    """Where this process's `count` rows are in what `gather` returns."""
    return slice(rank() * count, (rank() + 1) * count)


def shuffle(images: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Shuffling BN (MoCo): deal the images of all processes out anew, so that keys share no BN statistics with queries.

    On one process it changes the order of its images, which matters to split batch norm.

    Args:
        images: [N, C, H, W] of this process.
        seed: the same on every process; each makes the same permutation and none needs to send it.

    Returns:
        This process's share of the shuffled images, and the permutation for `unshuffle`.
    """
    everything = gather(images)
    permutation = torch.randperm(len(everything), generator=torch.Generator().manual_seed(seed))
    permutation = permutation.to(images.device, non_blocking=True)
    return everything[permutation[own_rows(len(images))]], permutation


def unshuffle(features: Tensor, permutation: Tensor | None) -> Tensor:
    """Undo `shuffle` on the features [N, D] of the shuffled images; without a permutation there is nothing to undo."""
    if permutation is None:
        return features
    return gather(features)[torch.argsort(permutation)[own_rows(len(features))]]


_checked_groups: set[str] = set()


def check_same_rows(local: Tensor) -> None:
    """Refuse batches that differ between processes, on every process, where a collective would hang or crash.

    On the CPU always; on an accelerator, where the question costs a synchronisation, the first time only.
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
