"""A linear classifier on every stage of a frozen ResNet, all trained in one pass over the images (OpenSelfSup).

Each stage's maps are pooled to about nine thousand numbers (`mixview.evaluate.features.POOLS`), normalised by a batch
norm without affine, and classified. The classifiers share the images and nothing else: their losses are added.
"""

import torch
from torch import Tensor, nn

from mixview.evaluate.encoders import Subject
from mixview.evaluate.features import Staged, measure_widths, stages_of
from mixview.evaluate.training import Schedule, Task, Work, accuracy, cross_entropy, head, predict, train

SCHEDULE = Schedule(epochs=90, lr=0.01, weight_decay=1e-4, steps=(30, 60, 90), nesterov=True)


def probe(subject: Subject, task: Task, work: Work, schedule: Schedule = SCHEDULE) -> dict[str, dict[str, float]]:
    """The accuracies, 0 to 1, of every stage that the encoder has."""
    stages = stages_of(subject.encoder)
    encoder = Staged(subject.encoder, stages).to(work.device).eval()
    widths = measure_widths(subject, stages)
    heads = nn.ModuleDict(
        {
            stage: nn.Sequential(nn.BatchNorm1d(width, affine=False), head(width, task.classes, work.seed))
            for stage, width in widths.items()
        }
    ).to(work.device)

    def loss(images: Tensor, answers: Tensor) -> Tensor:
        with torch.no_grad():
            features = encoder(images)
        losses = [cross_entropy(heads[stage](each), answers) for stage, each in features.items()]
        return torch.stack(losses).sum()

    def classify(images: Tensor) -> Tensor:
        """[N, stages, classes]"""
        return torch.stack([heads[stage](each) for stage, each in encoder(images).items()], dim=1)

    optimizer, what = schedule.optimizer(heads.parameters()), f"{len(stages)} linear classifiers"
    train(loss, optimizer, subject, task, schedule, work, drop_last=True, what=what)
    heads.eval()
    scores, which = predict(classify, subject, task.test, work)
    return {stage: accuracy(scores[:, place], task.test_labels[which]) for place, stage in enumerate(stages)}
