"""Optimisers and learning-rate schedules as the methods publish them: SGD, LARS, AdamW; warm-up, cosine, steps.

    optimizer = build_optimizer(method, settings, batch=256)
    lr = set_learning_rate(optimizer, settings, epoch=step / steps_per_epoch, epochs=200)     # before every step

The learning rate is a function of progress and of nothing else: a resumed run needs no scheduler state.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, overload

import torch
from torch import Tensor, nn

from mixview.methods import Method
from mixview.options import AtLeast, AtMost, LessThan, MoreThan, NonNegativeFloat, Positive, check_options

Name = Literal["sgd", "lars", "adamw"]
Schedule = Literal["cosine", "steps", "constant"]
Fading = Annotated[float, AtLeast(0), LessThan(1)]
"""The share of an average that a step keeps."""


@dataclass(frozen=True)
class Optimizer:
    """Which optimiser, and how its learning rate moves over training."""

    name: Name = "adamw"
    """sgd (MoCo, SimSiam), lars (SimCLR, BYOL) or adamw (small budgets, ViTs)."""

    lr: Positive = 1e-3
    """The highest learning rate; with scale_lr, that of a batch of 256."""

    scale_lr: bool = False
    """Multiply lr by batch / 256."""

    weight_decay: NonNegativeFloat = 1e-4
    """Decay of the weights: added to the gradient (sgd, lars) or applied on its own (adamw)."""

    momentum: Fading = 0.9
    """Of sgd and lars."""

    betas: tuple[Fading, Fading] = (0.9, 0.999)
    """Of adamw."""

    decay_norm_and_bias: bool | None = None
    """Decay norm layers and biases too. By default as published: sgd does; lars and adamw do not."""

    schedule: Schedule = "cosine"
    """How lr falls after the warm-up: along a cosine to 0, in steps, or not at all."""

    warmup_epochs: NonNegativeFloat = 0.0
    """Epochs over which lr first rises from 0 in a straight line."""

    milestones: tuple[int, ...] = ()
    """The epochs, counted from the start, at which the schedule "steps" multiplies lr by gamma."""

    gamma: Annotated[float, MoreThan(0), AtMost(1)] = 0.1
    """What a milestone multiplies lr by."""

    fixed_predictor_lr: bool = False
    """Keep the predictor at lr throughout, without schedule and warm-up (SimSiam)."""

    predictor_rate: Positive = 1.0
    """How many times as fast as everything else the predictor learns (BYOL, SimSiam)."""

    clip: Positive | None = None
    """Scale the gradient down to this norm when it is longer. By default it is left alone."""

    def __post_init__(self) -> None:
        check_options(self, "optimizer")
        good = list(self.milestones) == sorted(set(self.milestones)) and min(self.milestones, default=1) > 0
        check("milestones", self.milestones, good, "epochs in rising order, such as (120, 160)")
        if bool(self.milestones) != (self.schedule == "steps"):
            raise ValueError(
                f'--optimizer.milestones {self.milestones} do not go with schedule "{self.schedule}": give both '
                'schedule="steps" and milestones such as (120, 160), or neither'
            )

    @property
    def decays_norm_and_bias(self) -> bool:
        """`decay_norm_and_bias`, or what is published with this optimiser."""
        return self.name == "sgd" if self.decay_norm_and_bias is None else self.decay_norm_and_bias

    def peak_lr(self, batch: int) -> float:
        """The highest learning rate for a global batch of this size."""
        check("batch", batch, batch >= 1, "at least 1")
        return self.lr * batch / 256 if self.scale_lr else self.lr


def check(name: str, value: object, good: bool, rule: str) -> None:
    """Refuse a value that breaks its rule, and infinity, which breaks none."""
    if not good or value == math.inf:
        raise ValueError(f"{name} must be {rule}, got {value}")


class LARS(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling (You et al., 2017), with the momentum of its Algorithm 1:

        v = momentum v + lr r (g + wd w);  w = w - v;  r = trust |w| / (|g| + wd |w|)

    lr is inside v, as in the paper and in SimCLR's code, so that a step keeps the learning rate that it was
    taken at; timm's `Lars` scales v by the lr of the day, which differs whenever lr moves. A group with `adapt=False`
    has r = 1, as has a tensor without weight or gradient.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        momentum: of v.
        weight_decay: wd.
        trust: the share of a layer's norm that a step of lr 1 moves it by.
        adapt: False takes r = 1: plain SGD.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
        adapt: bool = True,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "adapt": adapt}
        super().__init__(params, defaults)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step, without waiting for an accelerator."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            for weight in weights:
                if "velocity" not in self.state[weight]:
                    self.state[weight]["velocity"] = torch.zeros_like(weight)
            gradients = [weight.grad for weight in weights]
            velocity = [self.state[weight]["velocity"] for weight in weights]
            move = move_one_by_one if weights[0].device.type == "cpu" else move_together
            move(weights, gradients, velocity, self.rates(group, weights, gradients), group)
        return loss

    @staticmethod
    def rates(group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> Tensor:
        """lr r of every tensor, [N]."""
        if not group["adapt"]:
            return weights[0].new_full((len(weights),), group["lr"])
        norm, gradient_norm = (torch.stack(torch._foreach_norm(each)) for each in (weights, gradients))
        ratio = group["trust"] * norm / (gradient_norm + group["weight_decay"] * norm)
        rates: Tensor = group["lr"] * torch.where((norm > 0) & (gradient_norm > 0), ratio, 1.0)
        return rates


def move_one_by_one(
    weights: list[Tensor], gradients: list[Tensor], velocity: list[Tensor], rates: Tensor, group: dict[str, Any]
) -> None:
    """LARS's step on a CPU, whose cache still has a tensor when the next operation asks for it."""
    decay, momentum = group["weight_decay"], group["momentum"]
    for weight, gradient, v, rate in zip(weights, gradients, velocity, rates.tolist(), strict=True):
        v.mul_(momentum).add_(gradient, alpha=rate)
        if decay:
            v.add_(weight, alpha=rate * decay)
        weight.sub_(v)


def move_together(
    weights: list[Tensor], gradients: list[Tensor], velocity: list[Tensor], rates: Tensor, group: dict[str, Any]
) -> None:
    """LARS's step on an accelerator: a few kernels for all tensors, and nothing to wait for."""
    update = torch._foreach_add(gradients, weights, alpha=group["weight_decay"])
    torch._foreach_mul_(update, list(rates.unbind()))
    torch._foreach_mul_(velocity, group["momentum"])
    torch._foreach_add_(velocity, update)
    torch._foreach_sub_(weights, velocity)


def parameter_groups(method: Method, settings: Optimizer, batch: int) -> list[dict[str, Any]]:
    """The trained parameters in groups: matrices or norm and bias; the predictor apart where it learns otherwise, and
    what is frozen at first, since torch's fused SGD takes no parameter whose gradients begin later than its group's.

    A parameter of at most one dimension is a norm's or a bias, whatever its layer is called and wherever it sits.
    Every group carries `base_lr`, the highest learning rate, and `fixed`, whether it stays there.
    """
    apart = {id(weight) for weight in predictor_apart(method, settings)}
    frozen = {id(weight) for weight in method.frozen}
    members: dict[tuple[bool, bool, bool], list[nn.Parameter]] = {}
    for weight in method.parameters():
        if weight.requires_grad:
            members.setdefault((id(weight) in apart, id(weight) in frozen, weight.ndim <= 1), []).append(weight)
    if not members:
        raise ValueError(f"{type(method).__name__} has no parameter that takes a gradient: unfreeze its encoder")
    groups = []
    for (is_apart, _, norm_or_bias), weights in sorted(members.items()):
        excluded = norm_or_bias and not settings.decays_norm_and_bias
        lr = settings.peak_lr(batch) * (settings.predictor_rate if is_apart else 1.0)
        group = {"params": weights, "lr": lr, "base_lr": lr, "fixed": is_apart and settings.fixed_predictor_lr}
        group["weight_decay"] = 0.0 if excluded else settings.weight_decay
        groups.append(group | ({"adapt": not excluded} if settings.name == "lars" else {}))
    return groups


def predictor_apart(method: Method, settings: Optimizer) -> list[nn.Parameter]:
    """The predictor's parameters where they learn at a rate of their own, else none."""
    asked = {"fixed_predictor_lr": settings.fixed_predictor_lr, "predictor_rate": settings.predictor_rate != 1}
    if not any(asked.values()):
        return []
    predictor = getattr(method, "predictor", None)
    if not isinstance(predictor, nn.Module):
        named = next(name for name, given in asked.items() if given)
        raise ValueError(
            f"{named} needs a method with a predictor (BYOL, SimSiam), and {type(method).__name__} has none: leave it "
            "out"
        )
    return list(predictor.parameters())


def build_optimizer(
    method: Method, settings: Optimizer, batch: int, *, fused: bool = True, scaled: bool = False
) -> torch.optim.Optimizer:
    """The optimiser of everything in `method` that takes a gradient.

    Args:
        batch: images a step, over all processes and micro-batches.
        fused: one kernel for all tensors, where torch has one for their device.
        scaled: whether gradients are scaled (fp16). A fused optimizer undoes the scale inside its step, too late to
            clip, so clipping then takes one that is not fused.
    """
    fused = fused and not (scaled and settings.clip is not None)
    groups = parameter_groups(method, settings, batch)
    if settings.name == "lars":
        return LARS(groups, lr=groups[0]["lr"], momentum=settings.momentum)
    kinds = {(weight.device, weight.dtype) for group in groups for weight in group["params"]}
    fused = fused and all(has_fused_kernel(*kind) for kind in kinds)
    if settings.name == "sgd":
        return torch.optim.SGD(groups, momentum=settings.momentum, fused=fused or None)
    return torch.optim.AdamW(groups, betas=settings.betas, fused=fused or None)


def has_fused_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch has fused optimisers for such tensors: found by trying, as it has no public list of them."""
    try:
        probe = nn.Parameter(torch.zeros(1, device=device, dtype=dtype))
        probe.grad = torch.zeros_like(probe)
        torch.optim.SGD([probe], lr=0.0, momentum=0.9, fused=True).step()
        torch.optim.AdamW([probe], lr=0.0, fused=True).step()
    except (RuntimeError, ValueError, TypeError):
        return False
    return True


def schedule_factor(settings: Optimizer, epoch: float, epochs: float) -> float:
    """What the highest learning rate is multiplied by after `epoch` of `epochs`: 0 to 1.

    The warm-up rises from 0; the cosine then runs from 1 to 0 over what is left (SimCLR, BYOL; without a warm-up it is
    MoCo's and SimSiam's). Milestones count from the start of training, warm-up included.
    """
    warmup = settings.warmup_epochs
    if not warmup < epochs:
        raise ValueError(
            f"a warm-up of {warmup:g} epochs leaves nothing of a run of {epochs:g}: lower "
            f"--optimizer.warmup_epochs, or train for more than {warmup:g} epochs"
        )
    if epoch < 0:
        raise ValueError(f"epoch counts from 0, got {epoch}")
    if epoch < warmup:
        return epoch / warmup
    if settings.schedule == "cosine":
        return (1 + math.cos(math.pi * min(1.0, (epoch - warmup) / (epochs - warmup)))) / 2
    if settings.schedule == "steps":
        return float(settings.gamma ** sum(epoch >= milestone for milestone in settings.milestones))
    return 1.0


def set_learning_rate(optimizer: torch.optim.Optimizer, settings: Optimizer, epoch: float, epochs: float) -> float:
    """Give every group its learning rate for the step that starts at `epoch` (a fraction too), and return the lr.

    Pure: the same epoch gives the same rates, whatever was set before.
    """
    factor = schedule_factor(settings, epoch, epochs)
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] if group["fixed"] else group["base_lr"] * factor
    return float(optimizer.param_groups[0]["base_lr"] * factor)
