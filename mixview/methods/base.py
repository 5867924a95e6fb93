"""The interface of a method, its options, and the backward pass of one step.

    terms = objective.draw(views[0], generator)        # one mixture per term
    loss, targets = backward(method, views, terms)     # one term at a time: WBSIM at BSIM's memory
    optimizer.step()
    method.update(targets, progress=step / steps)      # EMA and queue change only here

A method is one file with two classes: a `Method`, which is the network, and a `MethodConfig`, whose fields are the
method's options and whose class variables are its published settings. Nothing else in mixview knows it by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar, final

import torch
from torch import Tensor, nn

from mixview.nn import EncoderWithProjector
from mixview.objective import Term
from mixview.options import check_options

Views = Sequence[Tensor]
"""Augmented views of the same images, [N, C, H, W] each: two for the paper's methods, more for multi-crop."""
Targets = Tensor | tuple[Tensor, ...] | None
T = TypeVar("T")


class Method(nn.Module, ABC):
    """A self-supervised method around an encoder. Optimize `parameters()`; keep `encoder`.

    Example:
        >>> class Alignment(Method):
        ...     def __init__(self, encoder, width):
        ...         super().__init__()
        ...         self.online = EncoderWithProjector(encoder, nn.Linear(width, 4), width)
        ...     def forward(self, views, terms, targets=None):
        ...         plain = self.online(views[1]).detach() if targets is None else targets
        ...         losses = [w * (self.online(m(views[0])) - m.interpolate(plain)).square().mean() for w, m in terms]
        ...         return sum(losses), plain
        ...     def update(self, *targets, progress):
        ...         pass
        >>> method = Alignment(nn.Sequential(nn.Flatten(), nn.Linear(48, 8)), 8)
    """

    independent_terms: ClassVar[bool] = True
    """True if the terms of an objective share no graph, so that each can go backward before the next is computed."""

    batch_norm: ClassVar[Literal["sync", "shuffle"]] = "sync"
    """Batch norm on several processes: synchronized in every network of the method (target and predictor too), or on
    each process by itself, the method shuffling its images between them."""

    num_views: ClassVar[int | None] = 2
    """Views per image; None for any number."""

    grad_cache: ClassVar[bool] = False
    """True if the loss sees nothing but projections, so that their gradients can be cached (`cached_backward`). Such a
    method has `loss(project, views, terms)`, where `project` takes the place of `online`."""

    unmix_targets: ClassVar[bool] = True
    """True if Un-Mix mixes the targets of this method, by the wrapper `UnMix`, False if only its anchors."""

    online: EncoderWithProjector

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
            views: augmented views of the same images, [N, C, H, W] each.
            terms: the terms to sum, as drawn by an objective for these images.
            targets: the targets that an earlier call of the same step returned, so that no target is computed twice.
        """

    @abstractmethod
    def update(self, *targets: Targets, progress: float | Tensor) -> None:
        """After the optimizer's step, and only then: move what follows by itself (EMA, queue).

        Args:
            targets: the targets that `forward` returned, of every micro-batch since the last optimizer step.
            progress: the share of training that is done, 0 to 1. A CUDA graph repeats the kernels of an update and none
                of its Python: there it is a tensor on the device, to be filled before each replay.
        """

    @final
    def backward_groups(self, terms: Sequence[Term]) -> list[list[Term]]:
        """The terms in groups that go backward together."""
        ordered = unmixed_first(terms)
        return [[term] for term in ordered] if self.independent_terms else [ordered]


class RunLength(NamedTuple):
    """The length of a run, the size of its steps and its images: what a method's options may depend on.

    Example:
        >>> RunLength(images=1000, steps=200, batch_size=100).epoch_steps
        10
    """

    images: int
    """Images in the training set."""
    steps: int
    """Optimizer steps of the whole run."""
    batch_size: int
    """Images per step, over all devices."""
    size: int = 224
    """Size of the global views in pixels."""
    channels: int = 3
    """Channels of the images."""
    normalize: tuple[Sequence[float], Sequence[float]] | None = None
    """Mean and standard deviation of each channel that views are normalized by; None for ImageNet's."""

    @property
    def epoch_steps(self) -> int:
        """Optimizer steps per epoch; a short last batch is dropped."""
        return max(1, self.images // self.batch_size)


@dataclass(frozen=True, kw_only=True)
class MethodConfig(ABC):
    """The options of a method: its fields, each with a docstring that becomes its `--help`.

    Your own method is a subclass in a file of yours, used as `--method mine.BarlowTwins --method.weight 0.01`:

        @dataclass(frozen=True, kw_only=True)
        class BarlowTwins(MethodConfig):
            "Barlow Twins (Zbontar et al., 2021)."

            module: ClassVar[type[Method]] = CrossCorrelation
            augment: ClassVar[str] = "byol"
            weight: Positive = 0.005
            "Weight of the off-diagonal terms."

            def build(self, encoder: nn.Module, feature_dim: int, run: RunLength) -> Method:
                return CrossCorrelation(encoder, feature_dim, weight=self.weight)

    Example:
        >>> from mixview.methods import SimCLRConfig
        >>> encoder = nn.Sequential(nn.Flatten(), nn.Linear(48, 8))
        >>> run = RunLength(images=1000, steps=200, batch_size=100)
        >>> config = SimCLRConfig(temperature=0.2).resolve(run)
        >>> config.build(encoder, 8, run).temperature
        0.2
    """

    name: ClassVar[str]
    """The short name of a built-in method. Any other is called by its import path."""
    module: ClassVar[type[Method]]
    """The class of what `build` returns, which says what the trainer has to know."""
    augment: ClassVar[str]
    """Published augmentation policy."""
    optimizer: ClassVar[str] = "sgd"
    """Published optimizer: sgd, lars or adamw."""
    zero_init_residual: ClassVar[bool | None] = False
    """True if residual blocks start as shortcuts, as published; None: in backbones that have such blocks."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for fact in ("module", "augment"):
            if not hasattr(cls, fact):
                raise TypeError(
                    f"{cls.__qualname__} needs the class variable `{fact}`: see mixview.methods.MethodConfig"
                )
        if not cls.__module__.startswith("mixview."):
            cls.name = f"{cls.__module__}.{cls.__qualname__}"

    def __post_init__(self) -> None:
        check_options(self, "method")

    def resolve(self, run: RunLength) -> Self:
        """The options with numbers for those that depend on the length of the run.

        They are stored with the run, so that they stay the same when it is extended.
        """
        return self

    @abstractmethod
    def build(self, encoder: nn.Module, feature_dim: int, run: RunLength) -> Method:
        """The method around an encoder, from options that are resolved.

        Args:
            encoder: images [N, C, H, W] -> features [N, feature_dim].
            feature_dim: the encoder's width.
            run: the length of the run.
        """


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
    """Accumulate the gradient of the objective, holding the activations of one group of terms at a time.

    Args:
        method: a `Method`, or one in wrappers (DistributedDataParallel, Fabric, torch.compile): gradients are then
            synchronized in the last group only.
        call: the function that goes backward: `fabric.backward`, `LightningModule.manual_backward`, a scaler's.
        no_sync: the context in which gradients are not synchronized. Not needed for DistributedDataParallel; with
            Fabric pass `lambda: fabric.no_backward_sync(method)`.
        sync: False for all micro-batches of a step but the last.

    Returns:
        The detached loss and the targets, for `update`.

    Example:
        >>> from mixview import wbsim
        >>> from mixview.methods import SimCLR
        >>> method = SimCLR(nn.Sequential(nn.Flatten(), nn.Linear(48, 8)), feature_dim=8)
        >>> views = torch.rand(2, 4, 3, 4, 4)  # two views of four images
        >>> loss, targets = backward(method, views, wbsim().draw(views[0], torch.Generator()))
        >>> method.update(targets, progress=0.0)  # after the optimizer's step
    """
    groups = unwrap(method).backward_groups(terms)
    if no_sync is None:
        no_sync = method.no_sync if isinstance(method, nn.parallel.DistributedDataParallel) else nullcontext
    total = views[0].new_zeros(())
    targets: Targets = None
    for group in groups:
        with nullcontext() if sync and group is groups[-1] else no_sync():
            loss, targets = method(views, group, targets)
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


class memoize:
    """Calls `encode` once per tensor, however many terms need it: `Identity` returns the very tensor of a view."""

    def __init__(self, encode: Callable[[Tensor], Tensor]) -> None:
        self.encode = encode
        self.encoded: list[tuple[Tensor, Tensor]] = []

    def __call__(self, images: Tensor) -> Tensor:
        for known, encoded in self.encoded:
            if known is images:  # not by `id`, for which torch.compile would compile every step again
                return encoded
        self.encoded.append((images, self.encode(images)))
        return self.encoded[-1][1]


def check_progress(progress: float | Tensor) -> None:
    """Raise if this is not in [0, 1], such as a step number."""
    if isinstance(progress, Tensor):  # reading it would wait for the accelerator
        return
    if not 0 <= progress <= 1:
        raise ValueError(f"progress is the share of training that is done, 0 to 1, got {progress}: pass step / steps")


def check_targets(targets: Sequence[Targets], kind: type[T], need: str) -> list[T]:
    """The targets of all micro-batches, of one kind; raise if any is missing, with what they are needed for."""
    batches = [each for each in targets if isinstance(each, kind)]
    if not batches or len(batches) < len(targets):
        raise TypeError(
            f"{need}: pass what `forward` or `backward` returned as targets, one argument per micro-batch, got "
            f"{[type(each).__name__ for each in targets]}"
        )
    return batches


def check_two_views(views: Views) -> tuple[Tensor, Tensor]:
    """The two views; raise if there are more or fewer, or if they differ in shape."""
    if len(views) != 2 or views[0].shape != views[1].shape or views[0].ndim != 4:
        raise ValueError(f"expected two views [N, C, H, W] of one shape, got {[list(view.shape) for view in views]}")
    return views[0], views[1]


def check_multi_crop(views: Views) -> tuple[Views, Views]:
    """The two global views and the local ones, of which there may be none; raise if they do not belong together."""
    shapes = [list(view.shape) for view in views]
    if len(views) < 2 or views[0].shape != views[1].shape or any(view.ndim != 4 for view in views):
        raise ValueError(f"expected two global views [N, C, H, W] of one shape, then any local ones, got {shapes}")
    if any(view.shape[:2] != views[0].shape[:2] for view in views):
        raise ValueError(f"expected views of the same images, as many and of the same channels, got {shapes}")
    return views[:2], views[2:]


def encode_crops(encode: Callable[[Tensor], Tensor], views: Views) -> list[Tensor]:
    """The encoded views, [N, D] each, in one pass per size, as published with multi-crop.

    Batch norm is over all views of a size. A single view is passed as the tensor that it is.
    """
    encoded: dict[int, Tensor] = {}
    sizes: dict[torch.Size, list[int]] = {}
    for index, view in enumerate(views):
        sizes.setdefault(view.shape, []).append(index)
    for indices in sizes.values():
        together = views[indices[0]] if len(indices) == 1 else torch.cat([views[index] for index in indices])
        encoded.update(zip(indices, encode(together).chunk(len(indices)), strict=True))
    return [encoded[index] for index in range(len(views))]
