"""Semi-supervised evaluation: the whole network fine-tuned on a small share of the labels."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from mixview.data.sources.base import Source
from mixview.data.sources.splits import Subset, take_files, take_fraction
from mixview.encoders.loading import LoadedEncoder
from mixview.encoders.transforms import CenterCrop
from mixview.evaluate.base import EvalContext, Protocol
from mixview.evaluate.classifier import Classifier, LabeledImages, head, labeled_images, train_classifier
from mixview.evaluate.labeled import as_tensor
from mixview.evaluate.results import percentages
from mixview.evaluate.schedule import Schedule
from mixview.evaluate.training import ClassifierConfig, TrainingRun
from mixview.options import AtMost, MoreThan, Positive

SCHEDULE = Schedule(epochs=20, lr=0.01, weight_decay=5e-4, steps=(12, 16), factor=0.2)
"""As in the paper's semi-supervised rows; the classifier's learning rate is `HEAD_RATE` times the encoder's."""

HEAD_RATE = 100.0

Fraction = Annotated[float, MoreThan(0), AtMost(1)]


@dataclass(frozen=True, kw_only=True)
class SemiSupervised(ClassifierConfig, Protocol):
    """Evaluate by fine-tuning the whole network on 1 % and 10 % of the labels."""

    fractions: list[Fraction] = field(default_factory=lambda: [0.01, 0.1])
    """Shares of the labels, stratified and chosen by the seed; every class keeps at least one image."""
    files: list[str] | None = None
    """Lists of images to fine-tune on instead, such as the published 1percent.txt and 10percent.txt."""
    head_rate: Positive = HEAD_RATE
    """Learning rate of the classifier, as a multiple of the encoder's."""

    name: ClassVar[str] = "semi-supervised"
    examples: ClassVar[tuple[str, ...]] = ("runs/first --data imagenette/", "runs/first --data imagenette/ --epochs 50")
    first_options: ClassVar[str] = "data fractions epochs devices resume out"
    run_order: ClassVar[float] = 6
    needs_network: ClassVar[bool] = True

    def evaluate(self, context: EvalContext) -> Iterable[tuple[str, float]]:
        schedule = self.adapt(SCHEDULE, len(context.splits.train))
        metrics: dict[str, float] = {}
        counts: dict[str, int] = {}
        with self.training(context) as run:
            for name, subset in self.subsets(context.splits.train).items():
                labels = subset.labels()
                assert labels is not None
                counts[name] = len(subset)
                accuracies = finetune(
                    context.encoder,
                    labeled_images(context)._replace(train=subset, labels=as_tensor(labels)),
                    schedule.fitted(len(subset)),
                    run._replace(out=run.out / re.sub(r"\W+", "-", name).strip("-")),
                    head_rate=self.head_rate,
                )
                metrics |= {f"{name} {metric}": value for metric, value in accuracies.items()}
        chosen = ", ".join(f"{name} is {count} images" for name, count in counts.items())
        context.description = (
            f"everything fine-tuned on {chosen} ({'given lists' if self.files else 'a seeded stratified split'}), "
            f"random crops and flips, {schedule.description}, the classifier's lr ×{self.head_rate:g}; last epoch, "
            f"{CenterCrop(context.encoder.size).description}."
        )
        context.details["images"] = counts
        return percentages(metrics).items()

    def subsets(self, source: Source) -> dict[str, Subset]:
        """The images to fine-tune on, by name."""
        if self.files is not None:
            return {Path(file).stem: take_files(source, file) for file in self.files}
        return {f"{100 * fraction:g} %": take_fraction(source, fraction, self.seed) for fraction in self.fractions}


def finetune(
    loaded: LoadedEncoder, labeled: LabeledImages, schedule: Schedule, run: TrainingRun, *, head_rate: float = HEAD_RATE
) -> dict[str, float]:
    """The accuracies, 0 to 1, of encoder and classifier trained together; the encoder itself is left as it is."""
    layer = head(loaded.feature_dim, labeled.classes, run.seed)
    network = Classifier(loaded.encoder, {"avgpool": layer}, frozen=False)
    return train_classifier(network, loaded, labeled, schedule, run, head_rate=head_rate, drop_last=True)["avgpool"]
