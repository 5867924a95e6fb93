"""Stopping when the loss or the weights of a run are not finite any more."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from mixview.runs.fabric import Fabric


class NonFiniteLoss(RuntimeError):
    """The loss is not a number any more."""


@torch.no_grad()
def check_finite(fabric: "Fabric", finite: Tensor, weights: Sequence[Tensor], where: str) -> None:
    """Raise, on every process, when `finite` is false or a weight is not finite on any of them.

    Args:
        finite: a boolean, whether all losses so far were finite.
        weights: weights to check as well, before they are saved: a gradient can overflow where its loss did not.
        where: the step, for the message.
    """
    if weights:
        finite = finite & torch.stack([torch.isfinite(each).all() for each in weights]).all()
    bad: Any = fabric.all_reduce(1.0 - finite.float(), reduce_op="sum")
    if bool(bad):
        raise NonFiniteLoss(
            f"the loss was not finite at or before {where}: nothing was saved after it; resume from the last "
            "checkpoint in another --precision, or start a new run with a smaller learning rate (--optimizer.lr; in an "
            "evaluation --lr) or, in pretraining, with --optimizer.clip 1"
        )
