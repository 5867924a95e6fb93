"""A linear classifier on every stage of a frozen ResNet, all trained in one pass over the images (OpenSelfSup).

Each stage's maps are pooled to about nine thousand numbers (`mixview.evaluate.features.POOLS`), normalized by a batch
norm without affine, and classified. The classifiers share the images and nothing else: their losses are added.
"""

from torch import nn

from mixview.data.augmentation import Jitter
from mixview.evaluate.encoders import Subject
from mixview.evaluate.features import measure_widths, stages_of
from mixview.evaluate.training import Classifier, Lighting, Schedule, Task, Work, head, train_classifier

SCHEDULE = Schedule(epochs=90, lr=0.01, weight_decay=1e-4, steps=(30, 60, 90), nesterov=True)

JITTER = Jitter(0.4, 0.4, 0.4, 0.0, p=1.0)
LIGHTING = Lighting()
"""Beside random crops and flips, as in OpenSelfSup's `r50_multihead.py`."""


def probe(
    subject: Subject, task: Task, schedule: Schedule, work: Work, *, color_jitter: bool = True, lighting: bool = True
) -> dict[str, dict[str, float]]:
    """The accuracies, 0 to 1, of every stage that the encoder has."""
    heads = {
        stage: nn.Sequential(nn.BatchNorm1d(width, affine=False), head(width, task.classes, work.seed))
        for stage, width in measure_widths(subject, stages_of(subject.encoder)).items()
    }
    return train_classifier(
        Classifier(subject.encoder, heads, frozen=True),
        subject,
        task,
        schedule,
        work,
        jitter=JITTER if color_jitter else None,
        lighting=LIGHTING if lighting else None,
        drop_last=True,
    )
