"""A linear classifier on every stage of a frozen ResNet, all trained in one pass over the images (OpenSelfSup).

Each stage's maps are pooled to about nine thousand numbers (`mixview.encoders.features.POOLS`), normalized by a batch
norm without affine, and classified. The classifiers share the images and nothing else: their losses are added.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from mixview.data.augment.policies import Jitter
from mixview.encoders.features import measure_widths, stages_of
from mixview.encoders.loading import LoadedEncoder
from mixview.encoders.transforms import CenterCrop
from mixview.evaluate.base import EvalContext, Protocol
from mixview.evaluate.classifier import Classifier, LabeledImages, Lighting, head, labeled_images, train_classifier
from mixview.evaluate.results import percentages
from mixview.evaluate.schedule import Schedule
from mixview.evaluate.training import ClassifierConfig, TrainingRun

SCHEDULE = Schedule(epochs=90, lr=0.01, weight_decay=1e-4, steps=(30, 60, 90), nesterov=True)

JITTER = Jitter(0.4, 0.4, 0.4, 0.0, p=1.0)
LIGHTING = Lighting()
"""Besides random crops and flips, as in OpenSelfSup's `r50_multihead.py`."""


@dataclass(frozen=True, kw_only=True)
class Probe(ClassifierConfig, Protocol):
    """Evaluate every stage of a frozen ResNet by a linear classifier, all trained in one pass."""

    color_jitter: bool = True
    """Jitter brightness, contrast and saturation of the training images by 0.4, as OpenSelfSup does."""
    lighting: bool = True
    """Add AlexNet's PCA noise to the colors of the training images, as OpenSelfSup does."""

    name: ClassVar[str] = "probe"
    examples: ClassVar[tuple[str, ...]] = (
        "runs/first --data imagenette/",
        "runs/first --data imagenette/ --epochs 20 --seed 1",
    )
    first_options: ClassVar[str] = "data epochs batch_size devices resume out"
    run_order: ClassVar[float] = 5

    def evaluate(self, context: EvalContext) -> Iterable[tuple[str, float]]:
        encoder = context.encoder
        schedule = self.adapt(SCHEDULE, len(context.splits.train))
        with self.training(context) as run:
            accuracies = probe(
                encoder,
                labeled_images(context),
                schedule,
                run,
                color_jitter=self.color_jitter,
                lighting=self.lighting,
            )
        if stages_of(encoder.encoder) == ("avgpool",):
            context.notes.append(f"{encoder.name} is not a ResNet and has no stages: only its output is probed.")
        views = ["random crops", "flips"]
        views += ["color jitter"] if self.color_jitter else []
        views += ["PCA lighting"] if self.lighting and encoder.channels == 3 else []
        context.description = (
            "linear classifiers on every stage of the frozen encoder, pooled to about 9,000 numbers, batch-normalized, "
            f"trained together on {', '.join(views[:-1])} and {views[-1]} ({schedule.description}); last epoch, "
            f"{CenterCrop(encoder.size).description}. The paper's headline is the better of res5 and avgpool."
        )
        metrics = {f"{stage} {name}": value for stage, each in accuracies.items() for name, value in each.items()}
        return percentages(metrics).items()


def probe(
    loaded: LoadedEncoder,
    labeled: LabeledImages,
    schedule: Schedule,
    run: TrainingRun,
    *,
    color_jitter: bool = True,
    lighting: bool = True,
) -> dict[str, dict[str, float]]:
    """The accuracies, 0 to 1, of every stage that the encoder has."""
    heads = {
        stage: nn.Sequential(nn.BatchNorm1d(width, affine=False), head(width, labeled.classes, run.seed))
        for stage, width in measure_widths(loaded, stages_of(loaded.encoder)).items()
    }
    return train_classifier(
        Classifier(loaded.encoder, heads, frozen=True),
        loaded,
        labeled,
        schedule,
        run,
        jitter=JITTER if color_jitter else None,
        lighting=LIGHTING if lighting else None,
        drop_last=True,
    )
