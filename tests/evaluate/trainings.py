"""Small trainings of the trained protocols, and what compares them."""

from pathlib import Path
from typing import Any

from mixview.data.sources.files import ClassFolders
from mixview.evaluate.classifier import LabeledImages
from mixview.evaluate.labeled import as_tensor
from mixview.evaluate.training import TrainingRun
from mixview.runs.devices import make_fabric
from tests.evaluate.small_encoders import colors


def task(root: Path) -> LabeledImages:
    """Three colors."""
    train, test = ClassFolders(colors(root), "train"), ClassFolders(root, "val")
    labels, test_labels = train.labels(), test.labels()
    assert labels is not None
    assert test_labels is not None
    return LabeledImages(train, as_tensor(labels), test, as_tensor(test_labels), 3)


def training_run(out: Path, **options: Any) -> TrainingRun:
    """One process on the CPU that trains into a folder."""
    return TrainingRun(make_fabric(accelerator="cpu", precision="32-true"), out, workers=0)._replace(**options)
