"""A study that names code of the user's own, in files of the working directory: with consent only, in all processes."""

import json
from pathlib import Path

import pytest
import yaml

from tests.experiments.trials import trial
from tests.processes import Finished, run_mixview

CODE = '''
from dataclasses import dataclass

from mixview.evaluate import Protocol
from torch import nn

open("imported", "a").close()


def tiny():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@dataclass(frozen=True, kw_only=True)
class NearestMean(Protocol):
    """Nearest class mean."""

    centered: bool = False

    def evaluate(self, context):
        train, labels, test, test_labels = context.labeled_features()
        means = nn.functional.one_hot(labels).float().T @ train
        hits = (test @ nn.functional.normalize(means).T).argmax(1) == test_labels
        yield "top-1", 100 * hits.float().mean().item()
'''


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(CODE)
    evaluate = {"NCM": {"protocol": "mine.NearestMean", "centered": True, "metric": "top-1"}}
    grids = [{"objectives": ["SIM"]}, {"methods": [""], "objectives": ["random"]}]
    text = trial(settings={"epochs": 1, "backbone": "mine:tiny"}, seeds=[0], evaluate=evaluate, grids=grids)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(text))
    return tmp_path


def mixview(place: Path, *words: str) -> Finished:
    return run_mixview(place, "study", *words, PYTHONPATH=str(Path(__file__).parents[2]))


def test_a_study_with_code_of_ones_own(place: Path) -> None:
    line = ("run", "study.yaml", "--out", "out", "--runs", "runs")
    refused = mixview(place, *line)
    assert refused.returncode != 0
    assert "add --trust_remote_code" in refused.stderr
    assert not (place / "imported").exists()

    done = mixview(place, *line, "--trust_remote_code")
    assert done.returncode == 0, done.stderr
    records = [json.loads(each) for each in (place / "out" / "study" / "results.jsonl").read_text().splitlines()]
    assert {record["objective"] for record in records} == {"SIM", "random"}
    assert all(0 <= record["metrics"]["NCM"] <= 100 for record in records)

    (place / "imported").unlink()
    shown = mixview(place, "show", "out")
    assert "add --trust_remote_code" in shown.stdout
    assert not (place / "imported").exists()
    shown = mixview(place, "show", "out", "--trust_remote_code")
    assert "| MoCo v2 · SIM | 1 |" in shown.stdout
