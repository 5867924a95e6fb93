"""The page as a file: whatever state the runs are in, light, and without a name that becomes markup."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mixview.cli import main
from mixview.data.decode import Decoder
from mixview.data.synthetic.scenes import Scenes
from mixview.encoders.search import Neighbors
from mixview.report import content
from mixview.report.content import Budget, Opened, Showing, assemble
from mixview.report.embedding import Embedding
from mixview.report.findings import find
from mixview.report.page import render, report
from mixview.report.runs import ReportRun, gather
from mixview.report.showing import ImageSet
from tests.evaluate.small_encoders import colored
from tests.report.written import SCRIPT, write_images, write_run


def contents(path: Path) -> dict[str, Any]:
    """What a page holds."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    assert found is not None
    return dict(json.loads(found[1]))


def test_two_runs_share_their_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_images(tmp_path / "set.npz")
    runs = [str(write_run(tmp_path / name, data, name, results_of={"top-1": 30.0})) for name in ("sim", "bsim")]
    out = tmp_path / "page" / "report.html"
    main(["report", "--images", "24", *runs, "--workers=0", "--out", str(out)])
    assert f"wrote {out}: 2 runs" in capsys.readouterr().out
    page = contents(out)
    assert [run["name"] for run in page["runs"]] == ["sim", "bsim"]
    assert [run["set"] for run in page["runs"]] == [0, 0]
    (image_set,) = page["sets"]
    assert image_set["count"] == 24
    assert SCRIPT in image_set["classes"]
    text = out.read_text()
    assert SCRIPT not in text
    assert not re.search(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", text)
    assert all(run["strip"]["rows"][0] == "images" and run["map"] and run["confusions"] for run in page["runs"])
    for run in page["runs"]:
        assert sum(each["size"] for each in run["findings"]["clusters"]) == image_set["count"]
        assert "at its last evaluation, the projections" in run["findings"]["collapse"]["text"]
    assert not any(run["notes"] for run in page["runs"])


def test_whatever_state_a_run_is_in(tmp_path: Path) -> None:
    gone = write_images(tmp_path / "gone.npz")
    plain = colored(tmp_path / "plain" / "one", {"a": 6, "b": 6}).parent
    runs = {
        "gone": write_run(tmp_path / "gone", gone),
        "going": write_run(tmp_path / "going", plain, "bsim", state="running", encoder=False),
        "crashed": write_run(tmp_path / "crashed", plain, state="failed"),
    }
    shutil.rmtree(plain / "one" / "b")  # one class is left, and that is none
    gone.unlink()
    (runs["crashed"] / "encoder.safetensors").write_bytes(b"torn")
    (runs["crashed"] / "metrics.jsonl").unlink()
    page = contents(report([str(path) for path in runs.values()], tmp_path / "a.html", workers=0))
    found = {run["name"]: run for run in page["runs"]}
    assert "data cannot be opened" in found["gone"]["notes"][0]
    assert found["gone"]["map"] is None
    assert found["gone"]["strip"]["rows"][0] == "one view"
    assert found["gone"]["curves"]["loss"]["values"]
    assert "no encoder yet" in found["going"]["notes"][-1]
    assert any("not the same any more" in note for note in found["going"]["notes"])
    assert found["crashed"]["message"] == "out of memory"
    assert "encoder cannot be shown" in found["crashed"]["notes"][-1]
    assert found["crashed"]["curves"] == {}


def test_one_run_without_labels(tmp_path: Path) -> None:
    images = colored(tmp_path / "set", {".": 30}, size=20)
    run = write_run(tmp_path / "only", images)
    page = contents(report([str(run)], tmp_path / "a.html", workers=0))
    (image_set,) = page["sets"]
    assert image_set["labels"] is None
    assert image_set["description"].endswith(": the training images, because none were held out")
    assert page["runs"][0]["map"]["groups"] > 1
    assert page["runs"][0]["confusions"] is None


def test_names_cannot_become_parts_of_the_template() -> None:
    page = render({"name": "{{script}} </script><!-- {{style}}"}, "<b>&").decode()
    assert "&lt;b&gt;&amp;" in page
    assert page.count("</script>") == 2
    assert "\\u003c/script\\u003e\\u003c!-- {{style}}" in page


@pytest.mark.parametrize("same", [True, False])
def test_fifty_runs_stay_below_15_megabytes(same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random maps stand in for encoders and sixty-four scenes for ten thousand: neither decides what a page weighs."""
    generator = np.random.default_rng(0)
    pictures = [Scenes(64, 48).read(index) for index in range(64)]
    one = gather([write_run(tmp_path / "run", "scenes", "bsim", data_options={"count": 64, "size": 16})])
    fifty = replace(one, runs=[replace(one.runs[0], name=f"run {number}") for number in range(50)])

    def some_images(run: ReportRun, showing: Showing) -> Opened:
        return Opened(None, Scenes(10_000, 16, seed=0 if same else int(run.name[4:])), "scenes", [])

    def read(source: Scenes, description: str, count: int) -> ImageSet:
        names = [f"folder/of/images/{index:06d}.jpg" for index in range(count)]
        every = [pictures[index % 64] for index in range(count)]
        return ImageSet(Scenes(count, 16), every, description, names, names, np.arange(count) % 10, source.classes)

    def anything(encoder: Any, source: Scenes, work: Any) -> Embedding:
        count = len(source)
        places = generator.random((3, count, 2)).astype(np.float32)
        near = Neighbors(torch.rand(count, 20), torch.from_numpy(generator.integers(0, count, (count, 20))))
        clusters, raw = np.arange(count) % 10, torch.rand(count, 8)
        found = find(raw, near, clusters)
        return Embedding(raw, places[0], near, clusters, places[1], places[2], raw, found, 16, Decoder())

    monkeypatch.setattr(content, "open_images", some_images)
    monkeypatch.setattr(content, "read_images", read)
    monkeypatch.setattr(content, "embed", anything)
    monkeypatch.setattr(content, "boxes_of", lambda _, images: np.zeros((len(images.source), 4), np.uint8))
    page = assemble(fifty, Showing(10_000))
    assert len(page["sets"]) == (1 if same else 50)
    assert page["sets"][0]["count"] >= 200
    assert page["paper_cost"] == []  # which is of ImageNet
    assert len(render(page, "fifty")) < 15_000_000


def test_two_runs_are_shown_with_ten_thousand_images() -> None:
    assert Budget().images(10_000, runs=2, sets=1) == 10_000


def test_impossible_numbers_raise_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        report([str(tmp_path)], images=1)
    with pytest.raises(ValueError, match="at most 65,535"):
        report([str(tmp_path)], images=100_000)
