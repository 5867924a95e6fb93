"""DINO (Caron et al., 2021, arXiv:2104.14294): a student predicts the outputs of its own moving average, the teacher.

The first two views are global, all further ones (multi-crop) local. With g the outputs of the teacher, c their moving
mean, and P_t = softmax((g - c) / tau_t), the student's output for each view is compared with the teacher's for every
*other* global view, by cross-entropy, and the loss is the mean over these pairs.

Under a mixture the student sees mixtures of the global views, and its targets are `lam P_i + (1 - lam) P_j` of the
unmixed other view: cross-entropy is linear in its target, so that DINO-BSIM is Eq. 4's idea, as SwAV-BSIM is. Local
crops stay unmixed, and are compared with their own image.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self, cast, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixview.distributed import gather
from mixview.losses import check_temperature, l2_normalize
from mixview.methods.base import (
    Method,
    MethodConfig,
    RunLength,
    Targets,
    Views,
    check_multi_crop,
    check_progress,
    check_targets,
    encode_crops,
    memoize,
    unmixed_first,
)
from mixview.mixing import Mixture
from mixview.nn import (
    EncoderWithProjector,
    check_momentum,
    cosine_momentum,
    ema_update,
    momentum_copy,
    momentum_for,
)
from mixview.objective import Term
from mixview.options import NonNegativeFloat, Positive, Share, Width


class WeightNormLinear(nn.Module):
    """A linear layer without bias whose weights are directions (Salimans & Kingma, 2016): [N, dim] -> [N, out].

    Args:
        dim: width of the input.
        out: width of the output.
        fixed_norm: every row has length one (DINO's `norm_last_layer`); otherwise the lengths learn, from one.
    """

    def __init__(self, dim: int, out: int, fixed_norm: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out, dim))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))  # a linear layer's, as published
        self.length = None if fixed_norm else nn.Parameter(torch.ones(out, 1))

    def forward(self, features: Tensor) -> Tensor:
        weight = F.normalize(self.weight, dim=1)
        return F.linear(features, weight if self.length is None else weight * self.length)


def projection_head(feature_dim: int, hidden: int = 2048, dim: int = 256, batch_norm: bool = False) -> nn.Sequential:
    """DINO's head up to its bottleneck: three linear layers with GELU, and batch norm if wanted, between them."""
    layers: list[nn.Module] = []
    for width in (feature_dim, hidden):
        norm = [nn.BatchNorm1d(hidden)] if batch_norm else []
        layers += [nn.Linear(width, hidden), *norm, nn.GELU()]
    head = nn.Sequential(*layers, nn.Linear(hidden, dim))
    for layer in head:
        if isinstance(layer, nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
    return head


def cross_entropy(scores: Tensor, targets: Tensor, mixture: Mixture | None, temperature: float) -> Tensor:
    """Cross-entropy of the student's outputs with `lam P_i + (1 - lam) P_j`. Mean over the batch.

    Args:
        scores: [A, K] outputs of the student.
        targets: [N, K] probabilities from the teacher; each row has the same sum.
        mixture: the mixture that the student saw; None for local crops, which are of image i alone.
        temperature: the student's tau_s.
    """
    with torch.autocast(scores.device.type, enabled=False):
        exact = torch.promote_types(scores.dtype, torch.float32)
        log_p = F.log_softmax(scores.to(exact) / temperature, dim=1)
        if mixture is not None:
            targets = mixture.interpolate(targets.to(log_p.dtype))
        return -(targets * log_p).sum(1).mean()


@final
class DINO(Method):
    """The student predicts, from a mixture or a local crop, what the teacher makes of the unmixed global views.

    Student passes of global views under SIM / BSIM / WBSIM: 2 / 2 / 4, teacher passes 2. Terms that go backward one at
    a time each encode the local crops again: the price of holding the activations of one term.

    Args:
        encoder: images [N, C, H, W] of the sizes of all views -> features [N, feature_dim].
        feature_dim: the encoder's width.
        projector: features -> bottleneck of width `dim`; by default feature_dim-2048-2048-256 with GELU.
        dim: the width of the bottleneck.
        prototypes: K, the width of the outputs; 65,536 as published.
        norm_last_layer: keep the weights of the last layer at length one.
        temperature: tau_s, the student's.
        teacher_temperature: tau_t at the start, and after the warm-up.
        warmup_steps: optimizer steps in which the teacher's temperature rises linearly.
        center_momentum: the momentum of the moving mean of the teacher's outputs.
        momentum: the momentum of the teacher at the start; it goes to 1 by a cosine over training.
        freeze_steps: optimizer steps at the start in which the last layer does not learn; published: one epoch.

    Example:
        >>> from mixview import wbsim
        >>> views = list(torch.rand(2, 4, 3, 4, 4))  # two views of four images
        >>> method = DINO(nn.Sequential(nn.Flatten(), nn.Linear(48, 8)), feature_dim=8, prototypes=16)
        >>> loss, targets = method(views, wbsim().draw(views[0], torch.Generator()))
        >>> loss.shape
        torch.Size([])
    """

    num_views: ClassVar[int | None] = None
    unmix_targets: ClassVar[bool] = False

    center: Tensor
    step: Tensor

    def __init__(
        self,
        encoder: nn.Module,
        feature_dim: int,
        projector: nn.Module | None = None,
        dim: int = 256,
        prototypes: int = 65536,
        norm_last_layer: bool = True,
        temperature: float = 0.1,
        teacher_temperature: tuple[float, float] = (0.04, 0.07),
        warmup_steps: int = 0,
        center_momentum: float = 0.9,
        momentum: float = 0.996,
        freeze_steps: int = 0,
    ) -> None:
        super().__init__()
        for each in (temperature, *teacher_temperature):
            check_temperature(each)
        for share in (center_momentum, momentum):
            check_momentum(share)
        if prototypes < 2 or min(warmup_steps, freeze_steps) < 0:
            raise ValueError(
                "DINO needs at least 2 prototypes, and warmup_steps and freeze_steps of 0 or more, got "
                f"{prototypes}, {warmup_steps} and {freeze_steps}"
            )
        projector = projection_head(feature_dim, dim=dim) if projector is None else projector
        self.online = EncoderWithProjector(encoder, projector, feature_dim)
        self.prototypes = WeightNormLinear(dim, prototypes, norm_last_layer)
        self.target = momentum_copy(self.online)
        self.target_prototypes = momentum_copy(self.prototypes)
        self.register_buffer("center", torch.zeros(prototypes))
        # `steps` as a tensor, for the forward pass: a number there would be compiled, or captured in a CUDA graph.
        self.register_buffer("step", torch.zeros((), dtype=torch.int64), persistent=False)
        self.temperature = temperature
        self.teacher_temperatures = teacher_temperature
        self.warmup_steps = warmup_steps
        self.center_momentum = center_momentum
        self.momentum = momentum
        self.freeze_steps = freeze_steps
        self.steps = 0

    @property
    def teacher_temperature(self) -> float:
        """tau_t of this step."""
        start, end = self.teacher_temperatures
        return end if self.steps >= self.warmup_steps else start + (end - start) * self.steps / self.warmup_steps

    def tau_t(self, like: Tensor) -> Tensor:
        """`teacher_temperature` as a tensor of the type and on the device of `like`."""
        start, end = self.teacher_temperatures
        warm = start + (end - start) * self.step.to(like.dtype) / max(1, self.warmup_steps)
        return torch.where(self.step >= self.warmup_steps, torch.full_like(warm, end), warm)

    def forward(self, views: Views, terms: Sequence[Term], targets: Targets = None) -> tuple[Tensor, Targets]:
        global_views, local_views = check_multi_crop(views)
        if targets is None:
            targets = self.teach(global_views)
        p_first, p_second, _ = targets
        both = p_first + p_second if local_views else p_first
        pairs = 2 + 2 * len(local_views)  # (student's view, teacher's view), of different views

        student = memoize(lambda images: self.prototypes(l2_normalize(self.online(images))))
        local_loss: Tensor | None = None
        loss = views[0].new_zeros(())
        for weight, mixture in unmixed_first(terms):
            first, second = encode_crops(student, [mixture(view) for view in global_views])
            term = cross_entropy(first, p_second, mixture, self.temperature)
            term = term + cross_entropy(second, p_first, mixture, self.temperature)
            if local_views:
                if local_loss is None:  # the same for all terms
                    crops = encode_crops(student, local_views)
                    local_loss = torch.stack([cross_entropy(s, both, None, self.temperature) for s in crops]).sum()
                term = term + local_loss
            loss = loss + weight * term / pairs
        return loss, targets

    @torch.no_grad()
    def teach(self, global_views: Views) -> tuple[Tensor, Tensor, Tensor]:
        """The teacher's probabilities [N, K] of both global views, and the mean [K] of its outputs, for the center."""
        outputs = encode_crops(lambda images: self.target_prototypes(l2_normalize(self.target(images))), global_views)
        with torch.autocast(outputs[0].device.type, enabled=False):
            first, second = (g.to(torch.promote_types(g.dtype, torch.float32)) for g in outputs)
            p_first, p_second = (F.softmax((g - self.center) / self.tau_t(g), 1) for g in (first, second))
            return p_first, p_second, (first.mean(0) + second.mean(0)) / 2

    @property
    def frozen(self) -> tuple[nn.Parameter, ...]:
        """The last layer, at first."""
        return tuple(self.prototypes.parameters()) if self.steps < self.freeze_steps else ()

    @torch.no_grad()
    def update(self, *targets: Targets, progress: float | Tensor) -> None:
        """The teacher follows, and the center: the mean over all micro-batches and processes."""
        check_progress(progress)
        momentum = cosine_momentum(self.momentum, progress)
        ema_update(self.target, self.online, momentum)
        ema_update(self.target_prototypes, self.prototypes, momentum)
        batches = check_targets(targets, tuple, "DINO's center needs the outputs of the step")
        images = sum(len(p) for p, *_ in batches)
        mean = cast(Tensor, sum(len(p) / images * mean for p, _, mean in batches))
        mean = gather(mean.unsqueeze(0)).mean(0)
        self.center.mul_(self.center_momentum).add_(mean, alpha=1 - self.center_momentum)
        self.step.add_(1)
        self.steps += 1

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.steps])

    def set_extra_state(self, state: Tensor) -> None:
        self.steps = int(state[0])
        self.step.fill_(self.steps)


@dataclass(frozen=True, kw_only=True)
class DINOConfig(MethodConfig):
    """DINO (Caron et al., 2021): predicts the outputs of a momentum teacher, from multi-crop views, without labels.

    Example:
        >>> DINOConfig(prototypes=256).prototypes
        256
    """

    name: ClassVar[str] = "dino"
    module: ClassVar[type[Method]] = DINO
    augment: ClassVar[str] = "dino"
    optimizer: ClassVar[str] = "adamw"

    temperature: Positive = 0.1
    """Temperature of the student's softmax."""
    teacher_temperature: Positive = 0.07
    """Temperature of the teacher's softmax after the warm-up."""
    warmup_teacher_temperature: Positive = 0.04
    """Temperature of the teacher's softmax at the start."""
    warmup_teacher_epochs: NonNegativeFloat | None = None
    """Epochs in which the teacher's temperature rises linearly; by default 30, at most 0.3 of the run."""
    momentum: Share | None = None
    """Momentum of the teacher at the start; by default 0.996, and 0.99 in runs of less than 20,000 steps."""
    center_momentum: Share = 0.9
    """Momentum of the center, the moving mean of the teacher's outputs."""
    hidden: Width = 2048
    """Width of the projector's hidden layers."""
    dim: Width = 256
    """Width of the bottleneck, the last layer's input."""
    head_batch_norm: bool = False
    """Batch norm in the projector, which keeps small ResNets from collapsing; published without."""
    prototypes: Width | None = None
    """Number of outputs; by default 65,536, or as many as there are images in a smaller training set."""
    norm_last_layer: bool = True
    """Keep the weights of the last layer at length one."""
    freeze_last_layer: NonNegativeFloat = 1.0
    """Epochs at the start in which the last layer is frozen."""

    def resolve(self, run: RunLength) -> Self:
        warmup = self.warmup_teacher_epochs
        return replace(
            self,
            momentum=momentum_for(self.momentum, 0.996, run.steps),
            prototypes=self.prototypes or min(65536, max(2, run.images)),
            warmup_teacher_epochs=min(30.0, 0.3 * run.steps / run.epoch_steps) if warmup is None else warmup,
        )

    def build(self, encoder: nn.Module, feature_dim: int, run: RunLength) -> DINO:
        assert self.momentum is not None
        assert self.prototypes is not None
        assert self.warmup_teacher_epochs is not None
        if self.prototypes < 2:
            raise ValueError("--method.prototypes 1 leaves nothing to predict: use at least 2, published are 65,536")
        return DINO(
            encoder,
            feature_dim,
            projection_head(feature_dim, self.hidden, self.dim, self.head_batch_norm),
            self.dim,
            prototypes=self.prototypes,
            norm_last_layer=self.norm_last_layer,
            temperature=self.temperature,
            teacher_temperature=(self.warmup_teacher_temperature, self.teacher_temperature),
            warmup_steps=round(self.warmup_teacher_epochs * run.epoch_steps),
            center_momentum=self.center_momentum,
            momentum=self.momentum,
            freeze_steps=round(self.freeze_last_layer * run.epoch_steps),
        )
