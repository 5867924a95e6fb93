"""Distillation: a student learns the features of a frozen teacher, by the regression of Eq. 4 or by smooth L1.

With a mixture, the student sees the mixture and is compared with the teacher's features of both unmixed parents,
weighted by lam; or (`target="mixture"`) with what the teacher makes of the mixture itself, as in supervised
distillation with Mixup (Beyer et al., 2022, arXiv:2106.05237). By default the teacher sees the very view that the
student sees, so that only the mixture differs.

`Distillation` takes the teacher as a module and needs torch alone. `DistillationConfig.build` loads it from a file or
by name, and imports `mixview.encoders` only then: no other method knows of files of weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixview.distributed import gather
from mixview.losses import byol_loss, check_pair
from mixview.methods.base import (
    Method,
    MethodConfig,
    RunLength,
    Targets,
    Views,
    check_progress,
    check_two_views,
    memoize,
    unmixed_first,
)
from mixview.mixing import Identity, Mixture
from mixview.nn import MLP, EncoderWithProjector
from mixview.objective import Term
from mixview.options import NON_EMPTY, Width


def smooth_l1(prediction: Tensor, target: Tensor, mixture: Mixture) -> Tensor:
    """Smooth L1 (Huber) loss with both parents' features, weighted by lam and 1 - lam. Mean over batch and width.

    Args:
        prediction: [A, D] predictions from the mixtures.
        target: [N, D] features of the unmixed images.
        mixture: A mixtures of these N images.
    """
    check_pair(prediction, target, mixture, "prediction", "target")
    with torch.autocast(prediction.device.type, enabled=False):
        q = prediction.to(torch.promote_types(prediction.dtype, torch.float32))
        z = target.to(q.dtype)
        loss = q.new_zeros(len(q))
        for parent, share in mixture.parts(q.dtype):
            loss = loss + share * F.smooth_l1_loss(q, z[parent], reduction="none").mean(1)
        return loss.mean()


LOSSES: dict[str, Callable[[Tensor, Tensor, Mixture], Tensor]] = {"cosine": byol_loss, "smooth_l1": smooth_l1}


def standardize_features(features: Tensor) -> Tensor:
    """Features [N, D] with mean 0 and variance 1 in every dimension, by the statistics of all processes' batches."""
    everything = gather(features)
    variance, mean = torch.var_mean(everything, dim=0, correction=0)
    return (features - mean) * torch.rsqrt(variance + 1e-6)


@final
class Distillation(Method):
    """The student predicts, from a mixture, what a frozen teacher makes of its parents.

    Student passes under SIM / BSIM / WBSIM: 2 / 2 / 4. Teacher passes: 2, or with `target="mixture"` as many as the
    student's. The teacher is in evaluation mode always, and neither saved in checkpoints nor exported; checkpoints
    hold a fingerprint, so that a run does not resume with another teacher.

    Args:
        encoder: images [N, C, H, W] -> features [N, feature_dim], the student.
        feature_dim: the encoder's width.
        teacher: images [N, C, H, W] -> features [N, teacher_dim].
        teacher_dim: the teacher's width.
        projector: features -> predictions of the teacher's width; by default feature_dim-2048-teacher_dim.
        loss: `"cosine"`, the regression of Eq. 4, or `"smooth_l1"`.
        target: `"parents"`, or `"mixture"`.
        teacher_view: `"same"`, the teacher sees the student's view, or `"other"`.
        standardize: give every dimension of the teacher's features mean 0 and variance 1, by batch statistics: those of
            the view's (micro-)batch over all processes, not those of the dataset.

    Example:
        >>> from mixview import wbsim
        >>> views = list(torch.rand(2, 4, 3, 4, 4))  # two views of four images
        >>> student, teacher = (nn.Sequential(nn.Flatten(), nn.Linear(48, width)) for width in (8, 32))
        >>> method = Distillation(student, 8, teacher, teacher_dim=32)
        >>> loss, targets = method(views, wbsim().draw(views[0], torch.Generator()))
        >>> loss.shape
        torch.Size([])
    """

    def __init__(
        self,
        encoder: nn.Module,
        feature_dim: int,
        teacher: nn.Module,
        teacher_dim: int,
        projector: nn.Module | None = None,
        loss: Literal["cosine", "smooth_l1"] = "cosine",
        target: Literal["parents", "mixture"] = "parents",
        teacher_view: Literal["same", "other"] = "same",
        standardize: bool = False,
    ) -> None:
        super().__init__()
        if loss not in LOSSES:
            raise ValueError(f'loss must be "cosine" or "smooth_l1", got {loss!r}')
        if target not in ("parents", "mixture"):
            raise ValueError(f'target must be "parents" or "mixture", got {target!r}')
        if teacher_view not in ("same", "other"):
            raise ValueError(f'teacher_view must be "same" or "other", got {teacher_view!r}')
        projector = MLP((feature_dim, 2048, teacher_dim)) if projector is None else projector
        self.online = EncoderWithProjector(encoder, projector, feature_dim)
        self.teacher = EncoderWithProjector(teacher, nn.Identity(), teacher_dim).requires_grad_(False).eval()
        self.loss_fn = LOSSES[loss]
        self.mixed_target = target == "mixture"
        self.other_view = teacher_view == "other"
        self.standardize = standardize
        self.known_fingerprint: Tensor | None = None
        self.register_state_dict_post_hook(drop_teacher)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(expect_no_teacher)  # type: ignore[no-untyped-call]

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, views: Views, terms: Sequence[Term], targets: Targets = None) -> tuple[Tensor, Targets]:
        first, second = check_two_views(views)
        shown = (second, first) if self.other_view else (first, second)  # to the teacher
        teach = memoize(self.teach)
        if targets is None and not self.mixed_target:
            targets = tuple(teach(view) for view in shown)
        predict = memoize(self.online)
        loss = first.new_zeros(())
        for weight, mixture in unmixed_first(terms):
            if self.mixed_target:
                z_first, z_second = (teach(mixture(view)) for view in shown)
                compared = Identity().draw(mixture(first))
            else:
                assert isinstance(targets, tuple)
                (z_first, z_second), compared = targets, mixture
            side = self.loss_fn(predict(mixture(first)), z_first, compared)
            other = self.loss_fn(predict(mixture(second)), z_second, compared)
            loss = loss + weight * (side + other) / 2
        return loss, targets

    @torch.no_grad()
    def teach(self, images: Tensor) -> Tensor:
        """The teacher's features [N, teacher_dim]."""
        features: Tensor = self.teacher(images)
        features = features.to(torch.promote_types(features.dtype, torch.float32))
        return standardize_features(features) if self.standardize else features

    def update(self, *targets: Targets, progress: float | Tensor) -> None:
        """Nothing follows by itself: the teacher is frozen."""
        check_progress(progress)

    def fingerprint(self) -> Tensor:
        """Two sums over the teacher's weights, which tell one teacher from another."""
        if self.known_fingerprint is None:  # it never changes
            count, sums = 1, torch.zeros(2, dtype=torch.float64)
            for value in self.teacher.state_dict().values():  # one at a time: teachers are large
                weights = value.flatten().cpu().double()
                wave = torch.cos(torch.arange(count, count + len(weights), dtype=torch.float64))
                sums += torch.stack([weights.sum(), weights @ wave])
                count += len(weights)
            self.known_fingerprint = sums
        return self.known_fingerprint

    def get_extra_state(self) -> Tensor:
        return self.fingerprint()

    def set_extra_state(self, state: Tensor) -> None:
        if not torch.allclose(state.cpu(), self.fingerprint(), rtol=1e-6, atol=1e-6):
            raise ValueError(
                "the teacher is not the one that this checkpoint was trained with: put its file back, or start again"
            )


def drop_teacher(module: nn.Module, state: dict[str, Any], prefix: str, local_metadata: dict[str, Any]) -> None:
    """Keep the teacher out of checkpoints: it is where it was loaded from."""
    for key in [key for key in state if key.startswith(f"{prefix}teacher.")]:
        del state[key]


def expect_no_teacher(module: nn.Module, incompatible: Any) -> None:
    """Miss no teacher in a checkpoint."""
    incompatible.missing_keys[:] = [key for key in incompatible.missing_keys if not key.startswith("teacher.")]


class Renormalized(nn.Module):
    """An encoder for images that were normalized by other values than its own."""

    scale: Tensor
    shift: Tensor

    def __init__(self, encoder: nn.Module, scale: Sequence[float], shift: Sequence[float]) -> None:
        super().__init__()
        self.encoder = encoder
        self.register_buffer("scale", torch.tensor(scale).view(-1, 1, 1))
        self.register_buffer("shift", torch.tensor(shift).view(-1, 1, 1))

    def forward(self, images: Tensor) -> Any:
        return self.encoder(images * self.scale + self.shift)


@dataclass(frozen=True, kw_only=True)
class DistillationConfig(MethodConfig):
    """Distillation: learns the features of a frozen teacher, from mixtures or from images.

    Example:
        >>> DistillationConfig(teacher="resnet50", target="mixture").loss
        'cosine'
    """

    name: ClassVar[str] = "distillation"
    module: ClassVar[type[Method]] = Distillation
    augment: ClassVar[str] = "mocov2"

    teacher: Annotated[str, NON_EMPTY] | None = None
    """The teacher: a run's folder, a file of weights, or a torchvision or timm model by name; required."""
    teacher_weights: str | None = None
    """Weights of a teacher by name: imagenet, or a file."""
    loss: Literal["cosine", "smooth_l1"] = "cosine"
    """Regression of normalized features (Eq. 4), or smooth L1 on features as they are."""
    target: Literal["parents", "mixture"] = "parents"
    """Input of the teacher: the unmixed parents, weighted by lam, or the mixture itself."""
    teacher_view: Literal["same", "other"] = "same"
    """The view that the teacher sees: the student's, or the other one."""
    standardize: bool = False
    """Standardize the teacher's features by the statistics of each batch."""
    hidden: Width = 2048
    """Width of the projector's hidden layer."""

    def build(self, encoder: nn.Module, feature_dim: int, run: RunLength) -> Distillation:
        teacher, teacher_dim = self.load_teacher(run)
        return Distillation(
            encoder,
            feature_dim,
            teacher,
            teacher_dim,
            MLP((feature_dim, self.hidden, teacher_dim)),
            self.loss,
            self.target,
            self.teacher_view,
            self.standardize,
        )

    def load_teacher(self, run: RunLength) -> tuple[nn.Module, int]:
        """The teacher for views of this run, and its width."""
        from mixview.encoders.loading import load
        from mixview.encoders.transforms import IMAGENET

        if self.teacher is None:
            raise ValueError(
                "distillation needs a teacher: pass a run's folder, a file of weights, or a model by name with "
                "--method.teacher_weights imagenet, as --method.teacher"
            )
        try:
            loaded = load(
                self.teacher,
                natural_size=run.size,
                size=None if Path(self.teacher).expanduser().exists() else run.size,
                channels=run.channels,
                weights=self.teacher_weights,
            )
        except ValueError as error:
            if "run its code" not in str(error):
                raise
            raise ValueError(
                f"the teacher {self.teacher} is a network of your own, which its file may not import: pass its import "
                f"path as --method.teacher, and {self.teacher} as --method.teacher_weights"
            ) from None
        if loaded.name.startswith("random "):
            raise ValueError(
                f"the teacher {self.teacher} has random weights: pass --method.teacher_weights imagenet, or a file"
            )
        if loaded.channels != run.channels:
            raise ValueError(
                f"the teacher {self.teacher} is for images with {loaded.channels} channel"
                f"{'s' if loaded.channels > 1 else ''}, and the views have {run.channels}: use --channels "
                f"{loaded.channels}, or another teacher"
            )
        if loaded.size != run.size:
            raise ValueError(
                f"the teacher {self.teacher} takes images of {loaded.size} pixels, and the views have {run.size}: use "
                f"--size {loaded.size}, or another teacher"
            )
        (mean, std), (own_mean, own_std) = (
            run.normalize or IMAGENET.values(run.channels),
            loaded.normalize.values(run.channels),
        )
        if (list(mean), list(std)) == (own_mean, own_std):
            return loaded.encoder, loaded.feature_dim
        scale = [s / own for s, own in zip(std, own_std, strict=True)]
        shift = [(m - own) / s for m, own, s in zip(mean, own_mean, own_std, strict=True)]
        return Renormalized(loaded.encoder, scale, shift), loaded.feature_dim
