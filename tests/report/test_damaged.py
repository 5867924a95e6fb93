"""One odd file does not kill a page: what fits is shown, and what does not is left out and named."""

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from mixview.data.sources import cloud
from mixview.evaluate import show
from mixview.io.records import Config
from mixview.report.content import Showing, assemble
from mixview.report.embedding import Work
from mixview.report.page import render, report
from mixview.report.runs import gather
from tests.report.damage import HOSTILE, WHOLE, every_oddity
from tests.report.test_page import contents
from tests.report.written import make_result, write_run

FILES = ("config.yaml", "data.json", "environment.json", "status.json", "metrics.jsonl", "views.png", "evaluations")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs whose images are gone: what is left of a run is read, and nothing takes long."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("good", "bad"):
        run = write_run(folder / name, "scenes", "bsim", results_of={"top-1": 50.0, "top-5": 60.0})
        (run / "encoder.safetensors").unlink()
        config = {key: value for key, value in read_yaml(run).items() if key in Config.__annotations__}
        config |= {"data": "gone", "mixing": {"mixer": "cutmix", "alpha": 1.0}, "monitor": {"hold_out": 0.1}}
        (run / "config.yaml").write_text(json.dumps(config))
    return folder


@pytest.fixture
def runs(written: Path, tmp_path: Path) -> Iterator[Path]:
    yield Path(shutil.copytree(written, tmp_path / "runs"))
    for path in tmp_path.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o644)


def read_yaml(run: Path) -> Any:
    return yaml.safe_load((run / "config.yaml").read_text())


def shown(folder: Path) -> dict[str, Any]:
    content = assemble(gather([folder / "good", folder / "bad"]), Showing(20, work=Work("cpu", 0)))
    page = render(content, "title").decode()
    assert page.count("<script") == page.count("</script") == 2
    runs = {run["name"]: run for run in content["runs"]}
    assert runs["good"]["curves"]["loss"]
    assert runs["good"]["state"] == "finished"
    assert len(runs) == 2
    return runs


@pytest.mark.parametrize("damage", WHOLE)
@pytest.mark.parametrize("file", FILES)
def test_a_report_outlives_every_damage(file: str, damage: str, runs: Path) -> None:
    path = runs / "bad" / file if file != "evaluations" else next((runs / "bad" / file).iterdir())
    WHOLE[damage](path)
    if file == "config.yaml" and not path.is_file():
        content = assemble(gather([runs / "good", runs / "bad"]), Showing(20))
        assert len(content["runs"]) == 1  # the other is no run any more
        return
    notes = " ".join(shown(runs)["bad"]["notes"])
    silent = {"missing": ("metrics.jsonl", "views.png", "evaluations"), "empty": ("metrics.jsonl",)}
    readable = damage == "no permission" and path.stat().st_uid == 0
    torn = file == "metrics.jsonl" and damage in ("truncated", "zeros")  # a last line that is being written
    if file not in silent.get(damage, ()) and not readable and not torn:
        assert path.name in notes


ODDITIES = ("huge", "large", "hostile", "half a character", "dictionary")


@pytest.mark.parametrize("file", ["data.json", "environment.json", "status.json", "evaluations", "metrics.jsonl"])
def test_a_report_outlives_every_value(file: str, runs: Path) -> None:
    path = runs / "bad" / file if file != "evaluations" else next((runs / "bad" / file).iterdir())
    if path.suffix == ".jsonl":
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    for _ in every_oddity(path, ODDITIES):
        shown(runs)


@pytest.mark.parametrize("key", sorted(Config.__annotations__))
def test_a_report_outlives_every_setting(key: str, runs: Path) -> None:
    for _ in every_oddity(runs / "bad" / "config.yaml", ("huge", "hostile", "list"), [key]):
        shown(runs)


def test_a_report_fetches_nothing(runs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the data nor the labeled images of somebody else's run are asked of a server."""
    asked = []
    monkeypatch.setattr(urllib.request, "urlopen", lambda *arguments, **options: asked.append(arguments))
    url = "http://127.0.0.1:9/{0..1}.tar"
    for change in ({"data": url}, {"validation": url}, {"data_options": {"root": url}}):
        run = write_run(tmp_path / next(iter(change)), "scenes", encoder=False)
        (run / "config.yaml").write_text(json.dumps(read_yaml(run) | change))
        page = contents(report([str(run)], tmp_path / "a.html", workers=0))
        (note,) = page["runs"][0]["notes"]
        assert "its images are on a server (http://127.0.0.1:9" in note
        assert "--fetch" in note
    assert asked == []


@pytest.mark.parametrize("where", ["data", "list", "labels", "root"])
def test_a_report_reads_no_bucket(where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not even one that a list on the disk names."""
    asked: list[object] = []
    monkeypatch.setattr(cloud, "ask", lambda *arguments, **options: asked.append(arguments))
    listed = tmp_path / "list.txt"
    listed.write_text("s3://photos/a.png\n" if where == "list" else "a.png\n")
    changes: dict[str, dict[str, object]] = {
        "data": {"data": "s3://photos/folder"},
        "list": {"data": str(listed)},
        "labels": {"data_options": {"labels": "s3://photos/labels.csv"}},
        "root": {"data": str(listed), "data_options": {"root": "gs://photos/folder"}},
    }
    run = write_run(tmp_path / "run", "scenes", encoder=False)
    (run / "config.yaml").write_text(json.dumps(read_yaml(run) | changes[where]))
    (note,) = contents(report([str(run)], tmp_path / "a.html", workers=0))["runs"][0]["notes"]
    assert "its images are on a server" in note
    assert "--fetch" in note
    assert asked == []


def test_a_report_writes_no_cache_where_a_run_says(tmp_path: Path) -> None:
    options = {"count": 20, "size": 16, "cache": str(tmp_path / "elsewhere")}
    run = write_run(tmp_path / "a", "scenes", encoder=False, data_options=options)
    shutil.rmtree(tmp_path / "elsewhere", ignore_errors=True)
    report([str(run)], tmp_path / "a.html", workers=0)
    assert not (tmp_path / "elsewhere").exists()


def test_a_link_to_a_picture_is_not_embedded(runs: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    shutil.move(runs / "bad" / "views.png", secret)
    (runs / "bad" / "views.png").symlink_to(secret)
    bad = shown(runs)["bad"]
    assert bad["strip"] is None
    assert "Its views.png was left out: views.png is a link, which is not followed." in bad["notes"]


def test_show_names_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mixview.evaluate import results

    results.save(make_result(HOSTILE, {"top-1": 10.0}), tmp_path)
    (tmp_path / "evaluations" / "knn-0.json").write_text("{}")
    show([str(tmp_path)])
    told = capsys.readouterr().out
    assert "knn-0.json was left out: it does not say the version of its format; remove it" in told
    assert "10.0 %" in told
    assert "\x1b" not in told
