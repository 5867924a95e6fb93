"""GradCache (Gao et al., 2021): the gradient of a SimCLR batch of any size, at the memory of a micro-batch.

NT-Xent compares every image of a batch with every other, so that averaging the gradients of small batches is another,
weaker objective. But the loss sees projections only, and those are small:

1. project all micro-batches without a graph; the loss then gives the gradient of every projection;
2. project them again with a graph, one micro-batch at a time, and send these gradients back into the network.

The price is a second forward pass: on a CPU, ResNet-18 in micro-batches of 16 took 1.6 times as long.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from mixview.distributed import average_gradients
from mixview.methods.base import Method, Targets, Views
from mixview.objective import Term


def cached_backward(
    method: nn.Module,
    views: Views,
    terms: Sequence[Term],
    *,
    micro_batch: int,
    call: Callable[[Tensor], None] = torch.Tensor.backward,
    context: Callable[[], AbstractContextManager[object]] = nullcontext,
    synchronize: bool = True,
) -> tuple[Tensor, Targets]:
    """Accumulate the gradient of the objective over the whole batch, holding the activations of `micro_batch` images.

    Means what `mixview.methods.backward` means. The gradient is the full batch's exactly where an image's projection
    does not depend on its batch. Batch norm makes it depend: the gradient is then that of batch norm in groups of
    `micro_batch`, as on that many devices (`mixview.nn.split_batch_norm`). Random layers draw the same in both passes,
    and the running statistics move in the second pass only: once for every micro-batch of every view and mixture.

    On many processes every one calls this with a batch of one size. The network is called without its
    DistributedDataParallel, which would average after every micro-batch: the gradients are averaged here, once, at the
    end.

    Args:
        method: one that has `grad_cache`, such as `SimCLR`, or a wrapper that has it as `module`
            (DistributedDataParallel, Fabric's).
        micro_batch: the number of images in a pass of the network; the last micro-batch may be shorter.
        call: the function that takes the loss backward, to its projections: `fabric.backward`, or that of a scaler,
            whose scale carries through.
        context: the context that each pass of the network runs in, such as `fabric.autocast`.
        synchronize: average the gradients over the processes; False before the last of several batches that accumulate.

    Returns:
        The detached loss and the targets (there are none), for `update`.

    Example:
        >>> from mixview import wbsim
        >>> from mixview.methods import SimCLR
        >>> method = SimCLR(nn.Sequential(nn.Flatten(), nn.Linear(48, 8)), feature_dim=8)
        >>> views = torch.rand(2, 8, 3, 4, 4)  # two views of eight images
        >>> terms = wbsim().draw(views[0], torch.Generator())
        >>> loss, targets = cached_backward(method, views, terms, micro_batch=4)
    """
    inner: Any = method if isinstance(method, Method) else getattr(method, "module", method)
    if not getattr(inner, "grad_cache", False):
        raise TypeError(
            f"gradients cannot be cached for {type(inner).__name__}: caching is for methods such as SimCLR, whose "
            "negatives are the batch; average the gradients of micro-batches with `backward` instead"
        )
    if micro_batch < 1:
        raise ValueError(f"micro_batch must be at least 1, got {micro_batch}: the number of images that fits in memory")

    network: nn.Module = inner.online
    projected: list[tuple[Tensor, Tensor, list[RandomState]]] = []  # images, their projections, one state a micro-batch

    def project(images: Tensor) -> Tensor:
        states, parts = [], []
        for part in images.split(micro_batch):
            states.append(RandomState(part.device))
            with torch.no_grad(), context():
                parts.append(network(part))
        projections = torch.cat(parts).requires_grad_()
        projected.append((images, projections, states))
        return projections

    buffers = [(buffer, buffer.clone()) for buffer in network.buffers()]
    loss: Tensor = inner.loss(project, views, terms)
    # Backward outside autocast, as ever: inside, the products of the loss's gradient would be rounded.
    with torch.autocast(loss.device.type, enabled=False):
        call(loss)
    for buffer, before in buffers:
        buffer.copy_(before)
    torch.clear_autocast_cache()  # of weights cast without a graph: they would take no gradient in the second pass

    for images, projections, states in projected:
        assert projections.grad is not None
        for part, gradient, state in zip(
            images.split(micro_batch), projections.grad.split(micro_batch), states, strict=True
        ):
            state.restore()
            with context():
                again = network(part)
            with torch.autocast(loss.device.type, enabled=False):
                again.backward(gradient)
    if synchronize:
        average_gradients(inner.parameters())
    return loss.detach(), None


class RandomState:
    """The state of the random generators of the CPU and of `device`, to be put back there."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cpu = torch.get_rng_state()
        self.own: Tensor | None = None
        if device.type != "cpu":
            self.own = torch.get_device_module(device).get_rng_state(device)

    def restore(self) -> None:
        """Put them back."""
        torch.set_rng_state(self.cpu)
        if self.own is not None:
            torch.get_device_module(self.device).set_rng_state(self.own, self.device)
