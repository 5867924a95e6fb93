"""Linear classification on a frozen encoder: on augmented images as published, or, faster, on features of them.

- MoCo's protocol: SGD, 100 epochs, batch 256, lr 30, no weight decay, ×0.1 at 30 and 60 as the paper prints it (60 and
  80 in MoCo's own code).
- BYOL's, as the paper used it: 90 epochs, lr 0.01, weight decay 1e-4, ×0.1 at 30 and 60.
- SimSiam's: LARS, 90 epochs, batch 4096, lr 0.1 × batch / 256 along a cosine, no weight decay. Its code adapts the bias
  too (apex's LARC does), and so does this.
- On features there is no augmentation, so that the metrics are close to these, but not the same: say which is which.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixview.encoders.loading import LoadedEncoder
from mixview.encoders.transforms import CenterCrop
from mixview.evaluate.base import EvalContext, LabeledFeatures, Protocol
from mixview.evaluate.classifier import (
    Classifier,
    LabeledImages,
    accuracy,
    head,
    labeled_images,
    train_classifier,
    train_on_features,
)
from mixview.evaluate.results import percentages
from mixview.evaluate.schedule import Schedule
from mixview.evaluate.training import ClassifierConfig, TrainingRun

ScheduleName = Literal["moco", "moco-code", "byol", "simsiam"]

SCHEDULES: dict[ScheduleName, Schedule] = {
    "moco": Schedule(epochs=100, lr=30.0, weight_decay=0.0, steps=(30, 60)),
    "moco-code": Schedule(epochs=100, lr=30.0, weight_decay=0.0, steps=(60, 80)),
    "byol": Schedule(epochs=90, lr=0.01, weight_decay=1e-4, steps=(30, 60)),
    "simsiam": Schedule(
        epochs=90, lr=0.1, weight_decay=0.0, batch_size=4096, optimizer="lars", cosine=True, scale_lr=True
    ),
}

WEIGHT_DECAYS = tuple(10.0**power for power in range(-6, 1))
"""Weight decays that `choose_weight_decay` chooses from."""

MAX_DOUBLE = 2**27
"""The largest number of feature values that are fitted in double precision."""


@dataclass(frozen=True, kw_only=True)
class Linear(ClassifierConfig, Protocol):
    """Evaluate by a linear classifier on the frozen encoder, trained on augmented images; --fast on features."""

    schedule: ScheduleName = "moco"
    """moco: lr 30, steps at 30 and 60, as the paper prints; moco-code: at 60 and 80; byol: lr 0.01, weight decay;
    simsiam: LARS, batch size 4096, cosine."""
    fast: bool = False
    """Fit features of center crops instead of training on augmented images: takes seconds, and comes close."""
    solver: Literal["optimum", "sgd"] = "optimum"
    """With --fast: the optimum (with weight decay chosen on held-out images), or SGD by the schedule."""

    name: ClassVar[str] = "linear"
    examples: ClassVar[tuple[str, ...]] = (
        "runs/first --data imagenette/ --fast",
        "moco_v2_200ep_pretrain.pth.tar --data imagenette/",
    )
    first_options: ClassVar[str] = "data schedule fast epochs devices out"
    run_order: ClassVar[float] = 4

    @property
    def trains_on_images(self) -> bool:
        return not self.fast

    def evaluate(self, context: EvalContext) -> Iterable[tuple[str, float]]:
        if self.fast and self.solver == "optimum" and self.epochs is not None:
            raise ValueError("--fast finds the optimum, which has no epochs: leave --epochs out, or use --solver sgd")
        schedule = self.adapt(SCHEDULES[self.schedule], len(context.splits.train))
        if not self.fast:
            with self.training(context) as run:
                accuracies = linear_on_images(context.encoder, labeled_images(context), schedule, run)
            context.description = (
                f"a linear classifier on the frozen encoder's output, trained on random crops and flips "
                f"({self.schedule}: {schedule.description}); last epoch, "
                f"{CenterCrop(context.encoder.size).description}."
            )
            return percentages(accuracies).items()
        fast = "fast mode, on features of center crops without augmentation"
        features, classes = context.labeled_features(), len(context.splits.classes)
        if self.solver == "optimum":
            accuracies, weight_decay = fit_optimum(features, classes, self.seed)
            context.details["strength"] = weight_decay
            context.description = (
                f"{fast}: the optimum of multinomial logistic regression on standardized features, weight decay "
                f"{weight_decay:g} chosen on a held-out fifth of the training images."
            )
            return percentages(accuracies).items()
        layer = linear_on_features(
            features.train, features.train_labels, classes=classes, schedule=schedule, seed=self.seed
        )
        context.description = f"{fast}: {schedule.description}; last epoch."
        with torch.no_grad():
            return percentages(accuracy(layer(features.test), features.test_labels)).items()


def fit_optimum(features: LabeledFeatures, classes: int, seed: int) -> tuple[dict[str, float], float]:
    """Test accuracies, 0 to 1, of multinomial logistic regression on standardized features, and its weight decay,
    which is chosen on held-out training images."""
    train, labels, test, test_labels = features
    if train.numel() <= MAX_DOUBLE and train.device.type != "mps":
        train, test = train.double(), test.double()
    standardize = Standardization.fit(train)
    train, test = standardize(train), standardize(test)
    weight_decay = choose_weight_decay(train, labels, classes=classes, seed=seed)
    classifier = logistic_regression(train, labels, classes=classes, weight_decay=weight_decay, tolerance=1e-5)
    return accuracy(classifier(test), test_labels), weight_decay


def linear_on_images(
    loaded: LoadedEncoder, labeled: LabeledImages, schedule: Schedule, run: TrainingRun
) -> dict[str, float]:
    """The accuracies, 0 to 1, of a classifier that is trained on random crops through the frozen encoder."""
    layer = head(loaded.feature_dim, labeled.classes, run.seed)
    network = Classifier(loaded.encoder, {"avgpool": layer}, frozen=True)
    return train_classifier(network, loaded, labeled, schedule, run)["avgpool"]


def linear_on_features(
    features: Tensor, labels: Tensor, *, classes: int, schedule: Schedule, seed: int = 0
) -> nn.Linear:
    """The classifier that the same schedule finds on fixed features [N, D]."""
    layer = head(features.shape[1], classes, seed).to(features.device)
    optimizer = schedule.build_optimizer(layer.parameters())

    def loss(rows: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(layer(rows), targets)

    train_on_features(loss, optimizer, features, labels, schedule, seed=seed, what="linear classifier")
    return layer


class Standardization(NamedTuple):
    """Shift and scale of features, so that those of the training split have mean 0 and standard deviation 1."""

    mean: Tensor
    std: Tensor

    @classmethod
    def fit(cls, features: Tensor) -> "Standardization":
        return cls(features.mean(0), features.std(0, correction=0).clamp_min(1e-6))

    def __call__(self, features: Tensor) -> Tensor:
        return (features - self.mean) / self.std


def logistic_regression(
    features: Tensor,
    labels: Tensor,
    *,
    classes: int,
    weight_decay: float,
    tolerance: float = 1e-7,
    max_iter: int = 2000,
) -> nn.Linear:
    """The minimum of mean cross-entropy + weight_decay/2 · ‖weight‖², by L-BFGS: not a schedule's last step.

    The bias is free. scikit-learn's `LogisticRegression(C=1 / (weight_decay · N))` has the same minimum.

    Args:
        features: [N, D], in the precision of the fit.
        labels: [N] 0 to `classes - 1`.
        weight_decay: weight decay.
        tolerance: the largest component of the gradient at which it stops.
        max_iter: maximum number of iterations.
    """
    layer: nn.Linear = nn.utils.skip_init(
        nn.Linear, features.shape[1], classes, device=features.device, dtype=features.dtype
    )
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimizer = torch.optim.LBFGS(
        layer.parameters(),
        max_iter=max_iter,
        max_eval=2 * max_iter,
        tolerance_grad=tolerance,
        tolerance_change=0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        value: Tensor = F.cross_entropy(layer(features), labels) + weight_decay / 2 * layer.weight.square().sum()
        value.backward()
        return value

    optimizer.step(objective)
    return layer.requires_grad_(False)


def choose_weight_decay(features: Tensor, labels: Tensor, *, classes: int, seed: int = 0) -> float:
    """The weight decay of `WEIGHT_DECAYS` with the best accuracy on a fifth of each class that is kept from the fit.

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
    for weight_decay in WEIGHT_DECAYS:
        fit = logistic_regression(
            features[~held], labels[~held], classes=classes, weight_decay=weight_decay, tolerance=1e-4
        )
        scores[weight_decay] = float((fit(features[held]).argmax(1) == labels[held]).cpu().double().mean())
    return max(WEIGHT_DECAYS, key=lambda weight_decay: (scores[weight_decay], weight_decay))
