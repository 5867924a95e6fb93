"""The page as a file: whatever state the runs are in, light, and without a name that becomes markup."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mixview.cli import main
from mixview.data.decoding import Decoder
from mixview.evaluate.knn import Neighbours
from mixview.report import content
from mixview.report.content import Showing, assemble
from mixview.report.embedding import Embedding
from mixview.report.page import render, report
from mixview.report.runs import gather
from tests.evaluate.judged import coloured
from tests.report.written import SCRIPT, write_images, write_run

LIMIT = 15_000_000


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
    (shown,) = page["sets"]
    assert shown["count"] == 24
    assert SCRIPT in shown["classes"]
    text = out.read_text()
    assert SCRIPT not in text
    assert not re.search(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", text)
    assert all(run["strip"]["rows"][0] == "images" and run["map"] and run["answers"] for run in page["runs"])
    assert not any(run["notes"] for run in page["runs"])


def test_whatever_state_a_run_is_in(tmp_path: Path) -> None:
    gone = write_images(tmp_path / "gone.npz")
    plain = coloured(tmp_path / "plain" / "one", {"a": 6, "b": 6}).parent
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
    images = coloured(tmp_path / "set", {".": 30}, size=20)
    run = write_run(tmp_path / "only", images)
    page = contents(report([str(run)], tmp_path / "a.html", workers=0))
    (shown,) = page["sets"]
    assert shown["labels"] is None
    assert "learned from" in shown["words"]
    assert page["runs"][0]["map"]["groups"] > 1
    assert page["runs"][0]["answers"] is None


def test_names_cannot_become_parts_of_the_template() -> None:
    page = render({"name": "{{script}} </script><!-- {{style}}"}, "<b>&").decode()
    assert "&lt;b&gt;&amp;" in page
    assert page.count("</script>") == 2
    assert "\\u003c/script\\u003e\\u003c!-- {{style}}" in page


@pytest.mark.parametrize(("runs", "wanted", "same"), [(50, 10_000, True), (50, 1000, False), (2, 10_000, True)])
def test_a_page_stays_below_15_megabytes(
    runs: int, wanted: int, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With random maps in place of encoders, which decide nothing about the weight."""
    generator = np.random.default_rng(0)
    paths = []
    for number in range(runs):
        # Smooth pictures, about as hard to compress as photographs of this size.
        options = {"count": 10_000, "size": 48, "seed": 0 if same else number}
        paths.append(write_run(tmp_path / f"run-{number}", "scenes", "bsim", encoder=False, data_options=options))
        (paths[-1] / "encoder.safetensors").touch()

    def anything(subject: Any, source: Any, work: Any) -> Embedding:
        count = len(source)
        places = generator.random((2, count, 2)).astype(np.float32)
        near = torch.from_numpy(generator.integers(0, count, (count, 20)))
        groups = np.arange(count) % 10
        parents = generator.random((count, 2)).astype(np.float32)
        empty = torch.empty(0)
        return Embedding(empty, places[0], Neighbours(torch.rand(count, 20), near), groups, places[1], parents, 32, Decoder())

    monkeypatch.setattr(content, "embed", anything)
    monkeypatch.setattr(content.encoders, "load", lambda *_, **__: None)
    monkeypatch.setattr(content, "boxes_of", lambda *_: np.zeros((wanted, 4), np.uint8))
    monkeypatch.setattr(content, "original_images", lambda *_: [])
    page = assemble(gather(paths), Showing(wanted))
    weight = len(render(page, "fifty"))
    assert weight < LIMIT
    assert len(page["sets"]) == (1 if same else runs)
    assert page["sets"][0]["count"] >= min(wanted, 200)
    if runs == 2:
        assert page["sets"][0]["count"] == 10_000


def test_impossible_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        report([str(tmp_path)], images=1)
    with pytest.raises(ValueError, match="at most 65,535"):
        report([str(tmp_path)], images=100_000)
