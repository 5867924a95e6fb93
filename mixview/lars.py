"""Optimization that pretraining and supervised training share: LARS and step decay."""

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor


def step_decay(gamma: float, milestones: Iterable[float], now: float) -> float:
    """The factor of the learning rate when `now` has passed some of the milestones: gamma for each."""
    return float(gamma ** sum(now >= milestone for milestone in milestones))


class LARS(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling (You et al., 2017), with the momentum of its Algorithm 1:

        v = momentum v + lr r (g + wd w);  w = w - v;  r = trust |w| / (|g| + wd |w|)

    lr is inside v, as in the paper and in SimCLR's code, so that a step keeps the learning rate that it was
    taken at; timm's `Lars` scales v by the lr of the day, which differs whenever lr moves. A group with `adapt=False`
    has r = 1, as has a tensor without weight or gradient.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        momentum: momentum of v.
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
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust": trust,
            "adapt": adapt,
        }
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
