"""SwAV (Caron et al., 2020): an image's code, its share in each of some prototypes, is predicted from its other view.

Under a mixture the prediction is made from the mixture, and the codes are those of its two unmixed parents, weighted by
lam: the loss is linear in the code, so that SwAV-BSIM is Eq. 4's idea with cross-entropy for cosine.

With multi-crop, the first two views are global and the further ones, smaller, local. Codes are of the global views
alone; every view predicts those of all other global views. Local crops stay unmixed.

As published, the prototypes do not learn at first, and small batches are balanced together with the projections of
earlier ones, kept in a queue: a few images cannot be spread evenly over many prototypes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixview.distributed import gather, own_rows
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
from mixview.mixing import Identity, Mixture
from mixview.nn import MLP, EncoderWithProjector, KeyQueue
from mixview.objective import Term
from mixview.options import AtLeast, AtMost, NonNegativeFloat, Positive, Width


@torch.no_grad()
def sinkhorn(scores: Tensor, epsilon: float = 0.05, iterations: int = 3) -> Tensor:
    """Codes [N, K]: every row sums to 1, and (nearly, after a few iterations) every prototype has N / K images.

    The Sinkhorn-Knopp algorithm on exp(scores / epsilon), in logarithms: nothing overflows.

    Args:
        scores: [N, K] cosines of images and prototypes.
        epsilon: the smaller, the harder the codes.
        iterations: the number of times that columns and rows are normalized in turn.
    """
    exact = torch.promote_types(scores.dtype, torch.float32)
    log_q = scores.to(exact) / epsilon
    for _ in range(iterations):
        log_q = log_q - torch.logsumexp(log_q, dim=0, keepdim=True)
        log_q = log_q - torch.logsumexp(log_q, dim=1, keepdim=True)
    return log_q.exp()


def swapped_prediction(scores: Tensor, codes: Tensor, mixture: Mixture, temperature: float) -> Tensor:
    """Cross-entropy of the codes of a mixture's parents with what is predicted from the mixture. Mean over the batch.

    Args:
        scores: [N, K] cosines of the mixtures with the prototypes.
        codes: [N, K] the codes of the unmixed other views.
        mixture: the mixture of these N images.
        temperature: tau.
    """
    check_temperature(temperature)
    with torch.autocast(scores.device.type, enabled=False):
        exact = torch.promote_types(scores.dtype, torch.float32)
        log_p = F.log_softmax(scores.to(exact) / temperature, dim=1)
        return -(mixture.interpolate(codes.to(log_p.dtype)) * log_p).sum(1).mean()


@final
class SwAV(Method):
    """Predict the code of one view from the other, or from a mixture of the other.

    Passes of global views with gradient under SIM / BSIM / WBSIM: 2 / 2 / 4; without: 0 / 2 / 0. Terms that go backward
    one at a time each encode the local crops again: the price of holding the activations of one term.

    Args:
        encoder: images [N, C, H, W] -> features [N, feature_dim].
        feature_dim: the encoder's width.
        projector: features -> projections of width `dim`; by default feature_dim-2048-128 with batch norm between.
        dim: the width of projections.
        prototypes: K; 3000 as published.
        temperature: tau, 0.1 as published.
        epsilon: the epsilon of Sinkhorn-Knopp, 0.05 as published.
        iterations: the number of iterations of Sinkhorn-Knopp, 3 as published.
        queue_size: earlier unmixed projections of each view, of all processes, that the codes of a batch are balanced
            with; 0 is no queue. Published: 3840 in batches of 256, none in batches of 4096.
        queue_start: optimizer steps after which the queue starts to fill; it is used once it is full.
        freeze_steps: optimizer steps at the start in which the prototypes do not learn; published: one epoch.

    Example:
        >>> from mixview import wbsim
        >>> views = list(torch.rand(2, 4, 3, 4, 4))  # two views of four images
        >>> method = SwAV(nn.Sequential(nn.Flatten(), nn.Linear(48, 8)), feature_dim=8, prototypes=10)
        >>> loss, targets = method(views, wbsim().draw(views[0], torch.Generator()))
        >>> loss.shape
        torch.Size([])
    """

    num_views: ClassVar[int | None] = None

    def __init__(
        self,
        encoder: nn.Module,
        feature_dim: int,
        projector: nn.Module | None = None,
        dim: int = 128,
        prototypes: int = 3000,
        temperature: float = 0.1,
        epsilon: float = 0.05,
        iterations: int = 3,
        queue_size: int = 0,
        queue_start: int = 0,
        freeze_steps: int = 0,
    ) -> None:
        super().__init__()
        check_temperature(temperature)
        if prototypes < 2 or epsilon <= 0 or iterations < 1:
            raise ValueError(
                "SwAV needs at least 2 prototypes, a positive epsilon and an iteration, got "
                f"{prototypes}, {epsilon} and {iterations}"
            )
        if min(queue_size, queue_start, freeze_steps) < 0:
            raise ValueError(
                "queue_size, queue_start and freeze_steps must be 0 or more, got "
                f"{queue_size}, {queue_start} and {freeze_steps}"
            )
        projector = MLP((feature_dim, 2048, dim)) if projector is None else projector
        self.online = EncoderWithProjector(encoder, projector, feature_dim)
        self.prototypes = nn.Linear(dim, prototypes, bias=False)
        self.queues = nn.ModuleList(KeyQueue(queue_size, dim) for _ in range(2 if queue_size else 0))  # one per view
        self.temperature = temperature
        self.epsilon = epsilon
        self.iterations = iterations
        self.queue_size = queue_size
        self.queue_start = queue_start
        self.freeze_steps = freeze_steps
        self.steps = 0
        self.queued = 0  # projections per view that the queues were given, up to their size
        self.normalize_prototypes()

    def forward(self, views: Views, terms: Sequence[Term], targets: Targets = None) -> tuple[Tensor, Targets]:
        global_views, local_views = check_multi_crop(views)
        first, second = global_views
        project = memoize(lambda images: l2_normalize(self.online(images)))
        if targets is None:
            if any(mixture.is_identity for _, mixture in terms):
                # An unmixed term needs these projections with their graph: one pass serves as both.
                z_first, z_second = project(first).detach(), project(second).detach()
            else:
                with torch.no_grad():
                    z_first, z_second = project.encode(first), project.encode(second)
            targets = self.assign(z_first, 0), self.assign(z_second, 1), z_first, z_second
        code_first, code_second, *_ = targets
        local_loss: Tensor | None = None
        loss = first.new_zeros(())
        for weight, mixture in unmixed_first(terms):
            scores_first, scores_second = (self.prototypes(project(mixture(view))) for view in global_views)
            side = swapped_prediction(scores_first, code_second, mixture, self.temperature)
            other = swapped_prediction(scores_second, code_first, mixture, self.temperature)
            term = side + other
            if local_views:
                if local_loss is None:  # the same for all terms
                    local_loss = self.predict_from_crops(local_views, code_first + code_second)
                term = term + local_loss
            loss = loss + weight * term / (2 * (len(views) - 1))  # pairs of a code and another view
        return loss, targets

    def predict_from_crops(self, local_views: Views, codes: Tensor) -> Tensor:
        """Sum over the local crops of the cross-entropy with the codes [N, K] of both global views, added up."""
        crops = encode_crops(lambda images: l2_normalize(self.online(images)), local_views)
        plain = Identity().draw(local_views[0])
        losses = [swapped_prediction(self.prototypes(z), codes, plain, self.temperature) for z in crops]
        return torch.stack(losses).sum()

    @torch.no_grad()
    def assign(self, z: Tensor, view: int) -> Tensor:
        """The codes [N, K] of this process's projections [N, dim] of one view.

        The images of all processes are balanced together, and with them those in the queue once it is full.
        """
        everything = gather(z)
        if self.queues and self.queued == self.queue_size:
            queue = self.queues[view]
            assert isinstance(queue, KeyQueue)
            everything = torch.cat([everything, queue.keys.to(z.dtype)])
        with torch.autocast(z.device.type, enabled=False):  # epsilon would blow up what half precision rounds
            scores = F.linear(everything, self.prototypes.weight.to(z.dtype))
        return sinkhorn(scores, self.epsilon, self.iterations)[own_rows(len(z))]

    @property
    def frozen(self) -> tuple[nn.Parameter, ...]:
        """The prototypes, at first."""
        return tuple(self.prototypes.parameters()) if self.steps < self.freeze_steps else ()

    @torch.no_grad()
    def normalize_prototypes(self) -> None:
        self.prototypes.weight.copy_(F.normalize(self.prototypes.weight, dim=1))

    def update(self, *targets: Targets, progress: float | Tensor) -> None:
        """Prototypes return to length one, and the unmixed projections of the whole batch join the queues."""
        check_progress(progress)
        self.normalize_prototypes()
        if self.queues and self.steps >= self.queue_start:
            self.enqueue(targets)
        self.steps += 1

    @torch.no_grad()
    def enqueue(self, targets: Sequence[Targets]) -> None:
        """Put the projections of all micro-batches and processes into the queue of their view.

        The published code keeps a part of each queue on every process. Sinkhorn-Knopp sums over all parts, so that the
        codes are those of one queue; here every process has all of it, and a checkpoint of one process is enough.
        """
        batches = check_targets(targets, tuple, "SwAV's queue needs the projections of the step")
        for queue, *parts in zip(self.queues, *(batch[2:] for batch in batches), strict=True):
            z = gather(torch.cat(parts))
            queue.push(z)
        self.queued = min(self.queue_size, self.queued + len(z))

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.steps, self.queued])

    def set_extra_state(self, state: Tensor) -> None:
        self.steps, self.queued = (int(each) for each in state)


@dataclass(frozen=True, kw_only=True)
class SwAVConfig(MethodConfig):
    """SwAV (Caron et al., 2020): predicts one view's cluster assignment from the others; multi-crop is an option.

    Example:
        >>> SwAVConfig(prototypes=300).temperature
        0.1
    """

    name: ClassVar[str] = "swav"
    module: ClassVar[type[Method]] = SwAV
    augment: ClassVar[str] = "simclr"
    optimizer: ClassVar[str] = "lars"

    temperature: Positive = 0.1
    """Temperature of the softmax over prototypes."""
    hidden: Width = 2048
    """Width of the projector's hidden layer."""
    dim: Width = 128
    """Width of the projections."""
    prototypes: Width | None = None
    """Number of prototypes; by default 3000, or as many as there are images in a smaller batch and its queue."""
    freeze_prototypes: NonNegativeFloat = 1.0
    """Epochs at the start in which the prototypes are frozen."""
    queue_size: Annotated[int, AtLeast(0), AtMost(1 << 30)] = 0
    """Number of earlier projections per view that the codes are balanced with, for batches smaller than the number of
    prototypes; published: 3,840 for batches of 256."""
    epoch_queue_starts: NonNegativeFloat | None = None
    """Epoch from which the queue fills, to be used once full; by default 15, at most half of the run."""

    def resolve(self, run: RunLength) -> Self:
        prototypes = self.prototypes or min(3000, max(2, run.batch_size + self.queue_size))
        starts = self.epoch_queue_starts
        if self.queue_size and starts is None:
            starts = min(15.0, run.steps / run.epoch_steps / 2)
        return replace(self, prototypes=prototypes, epoch_queue_starts=starts)

    def build(self, encoder: nn.Module, feature_dim: int, run: RunLength) -> SwAV:
        if 0 < self.queue_size < run.batch_size:
            raise ValueError(
                f"--method.queue_size {self.queue_size} does not hold a batch of {run.batch_size}: set at least "
                f"{run.batch_size}, or 0 for none, which batches larger than the number of prototypes do not need"
            )
        assert self.prototypes is not None
        if self.prototypes < 2:
            raise ValueError("--method.prototypes 1 leaves nothing to predict: use at least 2, published are 3,000")
        return SwAV(
            encoder,
            feature_dim,
            MLP((feature_dim, self.hidden, self.dim)),
            self.dim,
            prototypes=self.prototypes,
            temperature=self.temperature,
            queue_size=self.queue_size,
            queue_start=round((self.epoch_queue_starts or 0.0) * run.epoch_steps),
            freeze_steps=round(self.freeze_prototypes * run.epoch_steps),
        )
