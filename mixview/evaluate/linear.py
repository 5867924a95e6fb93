"""Linear classification on a frozen encoder: on augmented images as published, or, faster, on features of them.

- MoCo's protocol: SGD, 100 epochs, batch 256, lr 30, no weight decay, ×0.1 at 30 and 60 as the paper prints it (60 and
  80 in MoCo's own code).
- BYOL's, as the paper used it: 90 epochs, lr 0.01, weight decay 1e-4, ×0.1 at 30 and 60.
- SimSiam's: LARS, 90 epochs, batch 4096, lr 0.1 × batch / 256 along a cosine, no weight decay. Its code adapts the bias
  too (apex's LARC does), and so does this.
- On features there is no augmentation, so that figures are close to these and not the same: say which is which.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixview.evaluate.encoders import Subject
from mixview.evaluate.training import Classifier, Schedule, Task, Work, head, train_classifier, train_on_features

Recipe = Literal["moco", "moco-code", "byol", "simsiam"]

SCHEDULES: dict[Recipe, Schedule] = {
    "moco": Schedule(epochs=100, lr=30.0, weight_decay=0.0, steps=(30, 60)),
    "moco-code": Schedule(epochs=100, lr=30.0, weight_decay=0.0, steps=(60, 80)),
    "byol": Schedule(epochs=90, lr=0.01, weight_decay=1e-4, steps=(30, 60)),
    "simsiam": Schedule(epochs=90, lr=0.1, weight_decay=0.0, batch=4096, optimizer="lars", cosine=True, scale_lr=True),
}

STRENGTHS = tuple(10.0**power for power in range(-6, 1))
"""Of the weight decay that `choose_strength` chooses from."""


def linear_on_images(subject: Subject, task: Task, schedule: Schedule, work: Work) -> dict[str, float]:
    """The accuracies, 0 to 1, of a classifier that is trained on random crops through the frozen encoder."""
    layer = head(subject.feature_dim, task.classes, work.seed)
    network = Classifier(subject.encoder, {"avgpool": layer}, frozen=True)
    return train_classifier(network, subject, task, schedule, work)["avgpool"]


def linear_on_features(
    features: Tensor, labels: Tensor, *, classes: int, schedule: Schedule, seed: int = 0
) -> nn.Linear:
    """The classifier that the same descent finds on fixed features [N, D]."""
    layer = head(features.shape[1], classes, seed).to(features.device)
    optimizer = schedule.build_optimizer(layer.parameters())

    def loss(rows: Tensor, answers: Tensor) -> Tensor:
        return F.cross_entropy(layer(rows), answers)

    train_on_features(loss, optimizer, features, labels, schedule, seed=seed, what="linear classifier")
    return layer


class Logistic(NamedTuple):
    """A linear classifier of features."""

    weight: Tensor
    """[classes, D]"""
    bias: Tensor
    """[classes]"""

    def __call__(self, features: Tensor) -> Tensor:
        """[N, D] -> scores [N, classes]"""
        return F.linear(features.to(self.weight), self.weight, self.bias)


class Standard(NamedTuple):
    """Features shifted and scaled to mean 0 and deviation 1, as those of the training part are."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, features: Tensor) -> "Standard":
        return cls(features.mean(0), features.std(0, correction=0).clamp_min(1e-6))

    def __call__(self, features: Tensor) -> Tensor:
        return (features - self.mean) / self.std


def logistic_regression(
    features: Tensor, labels: Tensor, *, classes: int, strength: float, tolerance: float = 1e-7, most: int = 2000
) -> Logistic:
    """The minimum of mean cross-entropy + strength/2 · ‖weight‖², by L-BFGS: the optimum, not a schedule's last step.

    The bias is free. scikit-learn's `LogisticRegression(C=1 / (strength · N))` has the same.

    Args:
        features: [N, D], in the precision that the optimum is wanted in.
        labels: [N] 0 to `classes - 1`.
        strength: of the weight decay.
        tolerance: the largest component of the gradient at which it stops.
        most: iterations.
    """
    weight = features.new_zeros(classes, features.shape[1], requires_grad=True)
    bias = features.new_zeros(classes, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=most,
        max_eval=2 * most,
        tolerance_grad=tolerance,
        tolerance_change=0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(F.linear(features, weight, bias), labels) + strength / 2 * weight.square().sum()
        value.backward()
        return value

    optimizer.step(objective)
    return Logistic(weight.detach(), bias.detach())


def choose_strength(features: Tensor, labels: Tensor, *, classes: int, seed: int = 0) -> float:
    """The weight decay of `STRENGTHS` with the best accuracy on a fifth of each class that is kept from the fit.

    Of equally good ones the strongest. A class of fewer than two images is all in the fit.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    held = torch.zeros(len(labels), dtype=torch.bool)
    for number in range(classes):
        own = order[labels.cpu()[order] == number]
        held[own[: len(own) // 5 if len(own) >= 5 else int(len(own) > 1)]] = True
    if not held.any():
        return 1e-2
    held = held.to(features.device)
    scores = {}
    for strength in STRENGTHS:
        fit = logistic_regression(features[~held], labels[~held], classes=classes, strength=strength, tolerance=1e-4)
        scores[strength] = float((fit(features[held]).argmax(1) == labels[held]).cpu().double().mean())
    return max(STRENGTHS, key=lambda strength: (scores[strength], strength))
