"""Average precision of rankings, many at once: VOC's all-points and 11-point interpolation, and the plain sum.

With P(n) and R(n) the precision and recall of the n best-scored images, and R(0) = 0:

    all-points   sum over n of (R(n) - R(n-1)) · max of P(m) for m >= n       VOC since 2010, VISSL and OpenSelfSup
    11-point     mean over r = 0, 0.1 … 1 of max of P(m) for R(m) >= r        VOC2007's own, and Detectron2's for 2007
    plain        sum over n of (R(n) - R(n-1)) · P(n)                         scikit-learn's

Images of equal score enter together: the curve has a point only where the score changes. So the order of the images
never matters, and a constant score gives the share of relevant images. Ignored images are as if they were not there.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Interpolation = Literal["all-points", "11-point", "plain"]


@dataclass(frozen=True)
class MeanAveragePrecision:
    """The mean over the classes that have a relevant image, 0 to 1."""

    value: float
    per_class: tuple[float | None, ...]
    """None for a class without a relevant image, which the mean leaves out."""

    @property
    def absent(self) -> tuple[int, ...]:
        """The classes that the mean leaves out."""
        return tuple(index for index, value in enumerate(self.per_class) if value is None)


def mean_average_precision(
    scores: Tensor, relevant: Tensor, ignored: Tensor | None = None, *, interpolation: Interpolation = "all-points"
) -> MeanAveragePrecision:
    """Average precision of each class and the mean of those that occur. scores, relevant, ignored: [N, classes]"""
    values = average_precision(scores, relevant, ignored, interpolation=interpolation).tolist()
    per_class = tuple(None if value != value else value for value in values)
    present = [value for value in per_class if value is not None]
    if not present:
        raise ValueError(
            "no class has a relevant image that counts, so there is no average precision: check the labels"
        )
    return MeanAveragePrecision(sum(present) / len(present), per_class)


@torch.no_grad()
def average_precision(
    scores: Tensor,
    relevant: Tensor,
    ignored: Tensor | None = None,
    *,
    missed: Tensor | None = None,
    interpolation: Interpolation = "all-points",
) -> Tensor:
    """Average precision of every column. [N, ...] -> [...] float64; NaN where a column has no relevant image.

    Args:
        scores: [N, ...], finite, higher is better.
        relevant: booleans that broadcast to `scores`: [N, classes] or, for scores [N, costs, classes], [N, 1, classes].
        ignored: images that do not count, as booleans of the same form; none by default.
        missed: [...] the number of relevant ones without any score, such as objects that a detector did not find.
        interpolation: the definition, see above.
    """
    if interpolation not in get_args(Interpolation):
        raise ValueError(f"interpolation is one of {', '.join(get_args(Interpolation))}, not {interpolation!r}")
    if not bool(scores.isfinite().all()):
        raise ValueError("the scores contain NaN or infinity, which have no rank: look at the features first")
    # Columns first, so that what is sorted and summed lies together.
    columns = scores.movedim(0, -1).contiguous()
    counts = torch.ones_like(columns, dtype=torch.bool)
    if ignored is not None:
        counts = (~ignored.bool()).expand_as(scores).movedim(0, -1)
    positives = relevant.bool().expand_as(scores).movedim(0, -1) & counts
    columns = columns.masked_fill(~counts, -torch.inf)  # last, where they change neither precision nor recall
    ranked, order = columns.sort(dim=-1, descending=True)
    true_positives = positives.gather(-1, order).cumsum(-1)
    seen = counts.gather(-1, order).cumsum(-1).clamp_(min=1)
    changes = torch.ones_like(ranked, dtype=torch.bool)
    changes[..., :-1] = ranked[..., :-1] != ranked[..., 1:]
    precision = (true_positives.double() / seen).masked_fill_(~changes, 0)
    if interpolation != "plain":
        precision = precision.flip(-1).cummax(-1).values.flip(-1)
    total = true_positives[..., -1] if missed is None else true_positives[..., -1] + missed
    if interpolation == "11-point":
        tenths = torch.arange(11, device=scores.device)
        # In integers, since 3 of 10 must reach 0.3: true_positives / total >= tenths / 10.
        needed = (tenths * total.unsqueeze(-1) + 9) // 10
        first = torch.searchsorted(true_positives, needed.contiguous())
        reached = first < true_positives.shape[-1]
        value = (reached * precision.gather(-1, first.clamp_(max=true_positives.shape[-1] - 1))).mean(-1)
    else:
        counted = torch.where(changes, true_positives, 0).cummax(-1).values
        gained = counted.diff(dim=-1, prepend=torch.zeros_like(counted[..., :1]))
        value = (gained * precision).sum(-1) / total
    return value.masked_fill(total == 0, torch.nan)
