"""Odd labels, odd texts and damaged results: a study runs, its page is written, and nothing lands elsewhere."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from mixview.experiments import command, plots, results
from mixview.experiments import spec as grid
from mixview.experiments.file_names import slug
from mixview.experiments.runner import Runner
from mixview.io.terminal import escape_control_chars
from tests.experiments.trials import invented, trial
from tests.report.damage import HOSTILE, WHOLE, every_oddity

LABELS = {
    "umlaut": "Größe ü",
    "percent": "100 % %s %(x)s",
    "brackets": "[a](b) {x} [/red]",
    "Chinese": "日本語",
    "above": "../../above",
    "slashes": "/a\\b",
    "HTML": "</script><script>alert(1)</script>&lt;|`*_",
    "picture": "![x](/etc/passwd)",
    "mathematics": "$\\nothing{$",
}


def labeled(label: str) -> dict[str, Any]:
    """The trial with everything called so."""
    text = trial(seeds=[0], match_compute=False)
    text["data"] = {label: text["data"]["scenes"]}
    text["methods"] = {label: text["methods"]["MoCo v2"]}
    text["objectives"][label] = text["objectives"].pop("WBSIM")
    text["grids"][0]["objectives"] = ["SIM", label]
    text["evaluate"] = {label: text["evaluate"]["k-NN"]}
    return text


def save(study: grid.Study, out: Path, **changes: Any) -> Path:
    folder = out / study.name
    folder.mkdir(parents=True)
    (folder / "study.yaml").write_text(yaml.safe_dump(study.definition, allow_unicode=True), encoding="utf-8")
    path = results.path_of(study.name, out)
    for run in study.runs:
        results.append(replace(invented(run, 50.0), **changes), path)
    return path


@pytest.fixture
def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made and not painted, which takes longest."""
    monkeypatch.setattr(plots, "save", lambda figure, stem: stem.with_name(f"{stem.name}.png"))


@pytest.mark.parametrize("label", LABELS.values(), ids=LABELS)
def test_any_label_is_shown(label: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a" / "out"
    save(grid.expand("trial", labeled(label)), out)
    command.show(out)
    page = (out / "results.html").read_text()
    assert page.count("data:image/png") == 2
    assert "<script" not in page
    assert "annot be" not in capsys.readouterr().out
    assert [path for path in tmp_path.rglob("*.png") if path.parent != out / "trial"] == []
    assert all(path.name.isascii() for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("label", LABELS.values(), ids=LABELS)
def test_any_label_is_run_and_gone_on_with(label: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A run that copies a result stands in for one that trains."""
    study = grid.expand("trial", labeled(label))
    made = save(study, tmp_path / "made")
    copy = f"import shutil, sys; shutil.copy({str(made)!r}, sys.argv[-1])"
    out, runs = tmp_path / "out", tmp_path / "runs"
    runner = Runner(study, out, runs, command=(sys.executable, "-S", "-c", copy))
    assert runner.run()
    assert Runner(study, out, runs, command=("false",)).run()  # nothing is left to do
    command.list_runs(study, out)
    assert "3 runs, 3 done" in capfd.readouterr().out


@pytest.mark.usefixtures("unpainted")
def test_similar_labels_have_files_of_their_own(tmp_path: Path) -> None:
    assert len({slug("日本"), slug("中国"), slug("a%"), slug("a["), slug("a")}) == 5
    assert "/" not in slug("../../x")
    assert len(slug("x" * 1000)) < 200
    scenes = trial()["data"]["scenes"]
    other = scenes | {"data_options": {"count": 32, "size": 16}}
    study = grid.expand("trial", trial(data={"Same": scenes, "same": other}, seeds=[0]))
    drawn = plots.draw(study, {run.name: invented(run, 50.0) for run in study.runs}, tmp_path)
    assert len(drawn) == 6


def test_labels_of_several_lines_raise_an_error() -> None:
    for label in ("a\nb", "\x1b[2J", "x" * 200):
        with pytest.raises(ValueError, match=r"the label .* has control characters, or more than 100 characters"):
            grid.expand("trial", trial(data={label: {"data": "scenes"}}))
    axis: dict[str, Any] = {str(number): {} for number in range(400)}
    with pytest.raises(ValueError, match="more than 100,000 runs"):
        grid.expand("trial", trial(data=axis, methods=axis, objectives=axis, grids=[{}], baseline=None))


@pytest.mark.usefixtures("unpainted")
def test_texts_embed_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"\x89PNG\r\n\x1a\nsecret")
    evil = (
        f"{HOSTILE} ![s]({secret}) ![s](../secret.png)\n\n![s](file://{secret})\n\n<img src={secret}>\n\n[l](file:///)"
    )
    study = grid.expand("trial", trial(seeds=[0], about={"what": evil}))
    save(study, tmp_path / "out", warnings=[evil], descriptions=dict.fromkeys(study.columns, evil), made=evil)
    command.show(tmp_path / "out")
    page = (tmp_path / "out" / "results.html").read_text()
    assert "<img" not in page
    assert '<a href="file' not in page
    assert "<script" not in page
    assert page.count("<section") == 1
    printed = capsys.readouterr().out
    assert printed == escape_control_chars(printed, keep="\n")


def test_a_page_embeds_only_pictures_below_it(tmp_path: Path) -> None:
    from mixview.report.document import write_page

    secret, out = tmp_path / "secret.png", tmp_path / "out"
    (out / "a b").mkdir(parents=True)
    secret.write_bytes(b"\x89PNG\r\n\x1a\nsecret")
    (out / "a b" / "own.png").write_bytes(b"\x89PNG\r\n\x1a\nown")
    (out / "text.png").write_bytes(b"password")
    (out / "link.png").symlink_to(secret)
    (out / "way").symlink_to(tmp_path)
    names = ("a%20b/own.png", "../secret.png", str(secret), "text.png", "link.png", "way/secret.png", "none.png")
    (out / "results.md").write_text("# A\n\n## B\n\n" + "\n\n".join(f"![{name}]({name})" for name in names))
    page = write_page(out / "results.md").read_text()
    assert page.count("<img") == page.count("data:image/png") == 1


@pytest.mark.usefixtures("unpainted")
@pytest.mark.parametrize("damage", WHOLE)
def test_a_damaged_file_of_results_is_left_out_and_named(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    path = save(grid.expand("trial", trial(seeds=[0])), out)
    WHOLE[damage](path)
    command.show(out)
    printed = capsys.readouterr()
    readable = damage == "no permission" and path.stat().st_uid == 0
    assert (str(path) in printed.err) == (damage not in ("missing", "empty") and not readable)
    assert "**Partial: " in printed.out or readable


CONTENTS = ("empty", "truncated", "binary", "zeros", "list", "text", "null", "nested", "very nested", "digits")


@pytest.mark.usefixtures("unpainted")
@pytest.mark.parametrize("damage", CONTENTS)
def test_a_damaged_line_does_not_cost_the_others(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(grid.expand("trial", trial(seeds=[0])), tmp_path / "out")
    first, *others = path.read_bytes().splitlines(keepends=True)
    line = tmp_path / "line"
    line.write_bytes(first)
    WHOLE[damage](line)
    path.write_bytes(b"".join([line.read_bytes().rstrip(b"\n"), b"\n", *others]))
    command.show(tmp_path / "out")
    printed = capsys.readouterr()
    assert f"left out: line 1 of {path} cannot be read" in printed.err
    assert "**Partial: 3 of 4 runs are done**" in printed.out


@pytest.mark.usefixtures("unpainted")
@pytest.mark.parametrize("damage", WHOLE)
def test_a_damaged_study_does_not_cost_the_others(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    save(grid.expand("trial", trial(seeds=[0])), out)
    save(grid.expand("other", trial(seeds=[0], match_compute=False)), out)
    WHOLE[damage](out / "trial" / "study.yaml")
    command.show(out)
    printed = capsys.readouterr()
    assert "## other" in printed.out
    if damage not in ("missing", "no permission"):
        assert "study.yaml cannot be shown" in printed.err


@pytest.mark.usefixtures("unpainted")
def test_a_study_outlives_every_value(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = save(grid.expand("trial", trial(seeds=[0])), out)
    for _ in every_oddity(path, ("huge", "NaN"), ("metrics", "curve", "steps", "collapse_metrics")):
        command.write_report(out)
