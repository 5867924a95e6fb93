"""A protocol of one's own is one file: it is evaluated, written, shown, reported and studied like the built-in ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mixview.evaluate.base import Protocol, build, protocols
from mixview.extensions import PROTOCOLS
from tests.evaluate.small_encoders import colors, run_folder

MINE = '''
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from mixview.evaluate import EvalContext, Protocol


@dataclass(frozen=True, kw_only=True)
class NearestMean(Protocol):
    """Classify by the nearest class mean."""

    centered: bool = False
    """Subtract the mean of the training features first."""

    def evaluate(self, context: EvalContext) -> Iterator[tuple[str, float]]:
        train, train_labels, test, test_labels = context.labeled_features()
        if self.centered:
            train, test = train - train.mean(0), test - train.mean(0)
        means = torch.stack([train[train_labels == label].mean(0) for label in train_labels.unique()])
        yield "top-1", 100 * (torch.cdist(test, means).argmin(1) == test_labels).double().mean().item()
'''

EVERYWHERE = """
import sys
from pathlib import Path

from mixview.encoders.export.command import export
from mixview.evaluate import evaluate, show
from mixview.experiments import run as study_run
from mixview.experiments import spec
from mixview.extensions import PROTOCOLS
from mixview.report.runs import gather
from mixview.report.table import tabulate
from tests.experiments.trials import trial

run, data = sys.argv[1:]
options = {"data": data, "workers": 0, "device": "cpu"}
result = PROTOCOLS.load("mine.NearestMean")(encoder=run, **options).run()
assert result.metrics["top-1"] > 90, result.metrics
evaluate(run, "mine.NearestMean", centered=True, seed=1, **options)
evaluate(run, "knn", **options)
print("SHOW")
show([run])
gathered = gather([run])
table = tabulate(gathered.runs, gathered.others)
print("REPORT", [(column.protocol, column.metric, column.descriptions) for column in table.columns])
export(run, format="safetensors", out="exported")
print("CARD", Path("exported/README.md").read_text())
column = {"protocol": "mine.NearestMean", "metric": "top-1", "centered": True}
text = trial(grids=[{"methods": [""], "objectives": ["random"], "seeds": [0]}], evaluate={"mean": column})
(planned,) = spec.expand("study", text).runs
study_result = study_run.evaluate(planned, Path("study-run"))
print("STUDY", study_result.metrics, study_result.evaluated, study_result.descriptions)
"""


def test_one_file_works_everywhere(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "everywhere.py").write_text(EVERYWHERE)
    run, data = run_folder(tmp_path / "first"), colors(tmp_path / "set", 8, 4)
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "everywhere.py", run, data], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(list((run / "evaluations").glob("mine.NearestMean-*.json"))) == 2
    text = done.stdout.partition("SHOW")[2]
    shown, _, text = text.partition("REPORT ")
    assert "mine.NearestMean  top-1" in shown
    assert "mine.NearestMean: Classify by the nearest class mean. On " in shown
    reported, _, text = text.partition("CARD ")
    assert reported.startswith("[('knn', 'top-1', ")  # the built-in ones first
    assert reported.count("('mine.NearestMean', 'top-1', ['Classify by the nearest class mean.'])") == 2  # two settings
    card, _, studied = text.partition("STUDY ")
    assert "| mine.NearestMean | top-1 |" in card
    assert "- **mine.NearestMean**: Classify by the nearest class mean." in card
    assert "'centered': True" in studied
    assert "Classify by the nearest class mean. On scenes" in studied


def test_there_is_one_list_and_it_is_in_the_order_of_cost() -> None:
    names = [each.name for each in protocols()]
    assert sorted(names) == sorted(PROTOCOLS.names())
    assert names == [
        *("knn", "svm", "low-shot", "linear", "segmentation", "probe", "semi-supervised", "supervised", "detection"),
    ]
    assert all(len([base for base in each.__mro__ if issubclass(base, Protocol)]) == 2 for each in protocols())


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="there is no evaluation protocol 'lowshot': did you mean low-shot"):
        build("lowshot", {"encoder": "random"})
    with pytest.raises(ValueError, match=r"pathlib.Path is not a valid evaluation protocol: it must be a subclass of"):
        build("pathlib.Path", {"encoder": "random"})
    with pytest.raises(ValueError, match="name is made of letters, digits"):
        type("Outside", (Protocol,), {"name": "../outside"})
