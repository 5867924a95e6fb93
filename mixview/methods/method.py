"""What a method is, and how one step of it goes backward.

terms = objective.draw(views[0], generator)                  # one mixture a term
loss, targets = backward(method, views, terms)               # a term at a time: WBSIM at BSIM's memory
optimizer.step()
method.advance(targets, progress=step / steps)               # EMA and queue change here and nowhere else
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Literal, final

import torch
from torch import Tensor, nn

from mixview.nn import Projected
from mixview.objective import Term

Views = tuple[Tensor, Tensor]
Targets = Tensor | tuple[Tensor, ...] | None


class Method(nn.Module, ABC):
    """A self-supervised method around an encoder. Optimise `parameters()`; keep `encoder`."""

    separable: ClassVar[bool] = True
    """Whether the terms of an objective share no graph, so that each can go backward before the next is computed."""

    batch_norm: ClassVar[Literal["sync", "shuffle"]] = "sync"
    """How batch norm works on several processes: over all of them together (in every network of the method: target and
    predictor too), or each on its own, the method shuffling its images between them."""

    online: Projected

    @property
    def encoder(self) -> nn.Module:
        """The encoder that is being trained, without its head."""
        return self.online.encoder

    @property
    def frozen(self) -> Sequence[nn.Parameter]:
        """Parameters that do not learn in this step: `backward` drops their gradients, so that optimizers skip them."""
        return ()

    @abstractmethod
    def forward(self, views: Views, terms: Sequence[Term], targets: Targets = None) -> tuple[Tensor, Targets]:
        """The weighted sum of the terms' losses, and the targets that they were compared with.

        Args:
            views: two augmented views of the same images, [N, C, H, W] each.
            terms: what to sum, as drawn by an objective for these images.
            targets: what an earlier call of the same step returned, so that no target is computed twice.
        """

    @abstractmethod
    def advance(self, *targets: Targets, progress: float) -> None:
        """After the optimiser's step, and only then: move what follows by itself (EMA, queue).

        Args:
            targets: what `forward` returned, of every micro-batch since the last optimiser step.
            progress: the share of training that is done, 0 to 1.
        """

    @final
    def sets(self, terms: Sequence[Term]) -> list[list[Term]]:
        """The terms in sets that go backward together."""
        ordered = unmixed_first(terms)
        return [[term] for term in ordered] if self.separable else [ordered]


def unmixed_first(terms: Sequence[Term]) -> list[Term]:
    """The terms in the order in which methods take them: projections of an unmixed term may be the others' targets."""
    if not terms:
        raise ValueError("there are no terms to train on: draw them with an objective, such as wbsim().draw(…)")
    return sorted((Term(*term) for term in terms), key=lambda term: not term.mixture.is_identity)


def backward(
    method: nn.Module,
    views: Views,
    terms: Sequence[Term],
    *,
    call: Callable[[Tensor], None] = torch.Tensor.backward,
    no_sync: Callable[[], AbstractContextManager[object]] | None = None,
    sync: bool = True,
) -> tuple[Tensor, Targets]:
    """Accumulate the gradient of the objective, holding the activations of one set of terms at a time.

    Args:
        method: a `Method`, or one in wrappers (DistributedDataParallel, Fabric, torch.compile): gradients then
            synchronise in the last set only.
        call: what goes backward: `fabric.backward`, `LightningModule.manual_backward`, a scaler's.
        no_sync: the context in which gradients do not synchronise: DistributedDataParallel's own is found by itself,
            with Fabric pass `lambda: fabric.no_backward_sync(method)`.
        sync: False for all micro-batches of a step but the last.

    Returns:
        The detached loss and the targets, for `advance`.
    """
    sets = unwrap(method).sets(terms)
    if no_sync is None:
        no_sync = method.no_sync if isinstance(method, nn.parallel.DistributedDataParallel) else nullcontext
    total = views[0].new_zeros(())
    targets: Targets = None
    for part in sets:
        with nullcontext() if sync and part is sets[-1] else no_sync():
            loss, targets = method(views, part, targets)
            call(loss)
        total = total + loss.detach()
    for parameter in unwrap(method).frozen:
        parameter.grad = None
    return total, targets


def unwrap(method: nn.Module) -> Method:
    """The method inside its wrappers."""
    while not isinstance(method, Method):
        inner = getattr(method, "module", None) or getattr(method, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            raise TypeError(f"expected a mixview Method, or a wrapper around one, got {type(method).__name__}")
        method = inner
    return method


class once:
    """Calls `encode` once for each tensor, however many terms ask: `Identity` hands back the very tensor of a view."""

    def __init__(self, encode: Callable[[Tensor], Tensor]) -> None:
        self.encode = encode
        self.known: dict[int, tuple[Tensor, Tensor]] = {}  # holds the inputs, so that no id is used twice

    def __call__(self, images: Tensor) -> Tensor:
        if id(images) not in self.known:
            self.known[id(images)] = (images, self.encode(images))
        return self.known[id(images)][1]


def check_progress(progress: float) -> None:
    """Refuse a step number where the share of training that is done is meant."""
    if not 0 <= progress <= 1:
        raise ValueError(f"progress is the share of training that is done, 0 to 1, got {progress}: pass step / steps")


def check_views(views: Views) -> None:
    """Refuse what is not two views of the same images."""
    if len(views) != 2 or views[0].shape != views[1].shape or views[0].ndim != 4:
        raise ValueError(f"expected two views [N, C, H, W] of one shape, got {[list(view.shape) for view in views]}")
