"""Small trainings of the trained protocols, and what compares them."""

from pathlib import Path
from typing import Any

from mixview.data.files import ClassFolders
from mixview.evaluate.training import Task, Work, as_tensor
from mixview.train.devices import make_fabric
from tests.evaluate.judged import colours


def task(root: Path) -> Task:
    """Three colors."""
    train, test = ClassFolders(colours(root), "train"), ClassFolders(root, "val")
    labels, answers = train.labels(), test.labels()
    assert labels is not None
    assert answers is not None
    return Task(train, as_tensor(labels), test, as_tensor(answers), 3)


def work(out: Path, **options: Any) -> Work:
    """One process on the CPU that trains into a folder."""
    return Work(make_fabric(accelerator="cpu", precision="32-true"), out, workers=0)._replace(**options)
