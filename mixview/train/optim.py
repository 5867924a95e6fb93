"""Optimizers and learning-rate schedules as the methods publish them: SGD, LARS, AdamW; warm-up, cosine, steps.

    optimizer = build_optimizer(method, settings, batch_size=256)
    lr = set_learning_rate(optimizer, settings, epoch=step / steps_per_epoch, epochs=200)     # before every step

The learning rate is a function of progress and of nothing else: a resumed run needs no scheduler state.
"""

import math
from typing import Any

import torch
from torch import nn

from mixview.encoders.layers import learning_rate_scales
from mixview.lars import LARS, step_decay
from mixview.methods import Method
from mixview.train.config import OptimizerConfig


def decays_norm_and_bias(settings: OptimizerConfig) -> bool:
    """`decay_norm_and_bias`, or what is published with this optimizer."""
    return settings.name == "sgd" if settings.decay_norm_and_bias is None else settings.decay_norm_and_bias


def peak_lr(settings: OptimizerConfig, batch_size: int) -> float:
    """The highest learning rate for a global batch of this size."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    return settings.lr * batch_size / 256 if settings.scale_lr else settings.lr


def parameter_groups(method: Method, settings: OptimizerConfig, batch_size: int) -> list[dict[str, Any]]:
    """The trained parameters in groups: matrices or norm and bias; the predictor apart where it learns otherwise, and
    what is frozen at first, since torch's fused SGD takes no parameter whose gradients begin later than its group's.

    A parameter of at most one dimension is a norm's or a bias, whatever its layer is called and wherever it sits. With
    `layer_decay`, every layer of the encoder is apart, and learns more slowly than the layer above it.
    Every group carries `base_lr`, the highest learning rate, `fixed`, whether it stays there, and `decays`, whether
    weight decay applies.
    """
    apart = {id(weight) for weight in predictor_apart(method, settings)}
    frozen = {id(weight) for weight in method.frozen}
    scales = layer_scales(method, settings)
    members: dict[tuple[bool, bool, bool, float], list[nn.Parameter]] = {}
    for weight in method.parameters():
        if weight.requires_grad:
            # The largest scale is that of the head, which comes first: its learning rate is the one that is logged.
            key = (id(weight) in apart, id(weight) in frozen, weight.ndim <= 1, -scales.get(id(weight), 1.0))
            members.setdefault(key, []).append(weight)
    if not members:
        raise ValueError(f"{type(method).__name__} has no parameter that takes a gradient: unfreeze its encoder")
    groups = []
    for (is_apart, _, norm_or_bias, scale), weights in sorted(members.items()):
        excluded = norm_or_bias and not decays_norm_and_bias(settings)
        lr = peak_lr(settings, batch_size) * (settings.predictor_rate if is_apart else 1.0) * -scale
        lr *= settings.norm_and_bias_rate if norm_or_bias else 1.0
        group = {"params": weights, "lr": lr, "base_lr": lr, "fixed": is_apart and settings.fixed_predictor_lr}
        group |= {"weight_decay": 0.0 if excluded else settings.weight_decay, "decays": not excluded}
        groups.append(group | ({"adapt": not excluded} if settings.name == "lars" else {}))
    return groups


def layer_scales(method: Method, settings: OptimizerConfig) -> dict[int, float]:
    """The factor of the learning rate of each parameter of the encoder, by its id; empty without decay."""
    if settings.layer_decay is None:
        return {}
    scales = learning_rate_scales(method.encoder, settings.layer_decay)
    return {id(weight): scales[name] for name, weight in method.encoder.named_parameters()}


def predictor_apart(method: Method, settings: OptimizerConfig) -> list[nn.Parameter]:
    """The predictor's parameters where they learn at a rate of their own, else none."""
    predictor_settings = {
        "fixed_predictor_lr": settings.fixed_predictor_lr,
        "predictor_rate": settings.predictor_rate != 1,
    }
    if not any(predictor_settings.values()):
        return []
    predictor = getattr(method, "predictor", None)
    if not isinstance(predictor, nn.Module):
        name = next(name for name, given in predictor_settings.items() if given)
        raise ValueError(
            f"{name} needs a method with a predictor (BYOL, SimSiam), and {type(method).__name__} has none: leave it "
            "out"
        )
    return list(predictor.parameters())


def build_optimizer(
    method: Method, settings: OptimizerConfig, batch_size: int, *, fused: bool = True, scaled: bool = False
) -> torch.optim.Optimizer:
    """The optimizer of everything in `method` that takes a gradient.

    Args:
        batch_size: images per step, over all processes and micro-batches.
        fused: one kernel for all tensors, where torch has one for their device.
        scaled: gradients are scaled (fp16). A fused optimizer undoes the scale inside its step, too late to
            clip, so clipping then takes one that is not fused.
    """
    fused = fused and not (scaled and settings.clip is not None)
    groups = parameter_groups(method, settings, batch_size)
    if settings.name == "lars":
        return LARS(groups, lr=groups[0]["lr"], momentum=settings.momentum)
    kinds = {(weight.device, weight.dtype) for group in groups for weight in group["params"]}
    fused = fused and all(has_fused_kernel(*kind) for kind in kinds)
    if settings.name == "sgd":
        return torch.optim.SGD(groups, momentum=settings.momentum, fused=fused or None)
    return torch.optim.AdamW(groups, betas=settings.betas, fused=fused or None)


def has_fused_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Check whether torch has fused optimizers for such tensors, by trying, as it has no public list of them."""
    try:
        probe = nn.Parameter(torch.zeros(1, device=device, dtype=dtype))
        probe.grad = torch.zeros_like(probe)
        torch.optim.SGD([probe], lr=0.0, momentum=0.9, fused=True).step()
        torch.optim.AdamW([probe], lr=0.0, fused=True).step()
    except (RuntimeError, ValueError, TypeError):
        return False
    return True


def schedule_factor(settings: OptimizerConfig, epoch: float, epochs: float) -> float:
    """The factor of the peak learning rate after `epoch` of `epochs`: 0 to 1.

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
        return step_decay(settings.gamma, settings.milestones, epoch)
    return 1.0


def weight_decay_at(settings: OptimizerConfig, epoch: float, epochs: float) -> float:
    """The weight decay after `epoch` of `epochs`: a cosine from the first to the last step, warm-up included."""
    start, end = settings.weight_decay, settings.weight_decay_end
    if end is None:
        return start
    return end + (start - end) * (1 + math.cos(math.pi * min(1.0, epoch / epochs))) / 2


def set_learning_rate(
    optimizer: torch.optim.Optimizer, settings: OptimizerConfig, epoch: float, epochs: float
) -> float:
    """Give every group its lr and weight decay for the step that starts at `epoch` (a fraction too); returns the lr.

    Pure: the same epoch gives the same rates, whatever was set before.
    """
    factor = schedule_factor(settings, epoch, epochs)
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] if group["fixed"] else group["base_lr"] * factor
        if settings.weight_decay_end is not None and group["decays"]:
            group["weight_decay"] = weight_decay_at(settings, epoch, epochs)
    return float(optimizer.param_groups[0]["base_lr"] * factor)
