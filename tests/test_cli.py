"""The command line."""

from pathlib import Path

import pytest
from PIL import Image

from mixview.cli import expand, main
from tests.data.writing import needs_data, write_classes


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    main(["data", "list"])
    text = capsys.readouterr().out
    for word in ("scenes", "cifar10", "voc2007", "webdataset", "huggingface", "folder"):
        assert word in text


def test_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_classes(tmp_path / "set", {"cat": 3, "dog": 3})
    (tmp_path / "set" / "cat" / "x.png").mkdir()
    main(["data", "show", str(tmp_path / "set"), "--out", str(tmp_path / "a.png"), "--count", "4"])
    text, told = capsys.readouterr()
    assert "6 images" in text
    assert told.count("skipped cat/x.png") == 1
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width > 4 * 160


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["data", "show", "x", "--cuont", "3"], ["--cuont", "did you mean --count?"]),
        (["data", "shwo", "x"], ["shwo", "did you mean show?"]),
        (["dta"], ["did you mean data?"]),
        (["data", "show", "x", "--count", "many"], ["count", "many"]),
        (["data", "show"], ["path"]),
    ],
)
def test_mistakes_name_what_was_meant(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    text = capsys.readouterr().err
    assert all(word in text for word in words)


def test_an_error_is_one_sentence_without_a_traceback() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["data", "show", "absent/folder"])
    assert caught.value.code == "mixview: there is neither a path nor a source named absent/folder: check the path"


def test_show_views_of_scenes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIXVIEW_CACHE", str(tmp_path / "cache"))
    plain, augmented = tmp_path / "plain.png", tmp_path / "views.png"
    main(["data", "show", "scenes", "--out", str(plain), "--count", "3"])
    main(["data", "show", "scenes", "--out", str(augmented), "--count", "3", "--augment", "byol-small"])
    with Image.open(plain) as before, Image.open(augmented) as after:
        assert after.height > before.height  # two rows more


@pytest.mark.parametrize("layout", ["folder", "voc", "coco"])
def test_make_writes_what_show_opens(layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["data", "make", str(tmp_path / "set"), "--count", "20", "--size", "32", "--layout", layout])
    main(["data", "show", str(tmp_path / "set"), "--out", str(tmp_path / "a.png"), "--count", "4"])
    assert "20 images" in capsys.readouterr().out


@needs_data
def test_show_real(tmp_path: Path) -> None:
    main(["data", "show", "voc2007", "--split", "test", "--out", str(tmp_path / "a.png")])
    assert (tmp_path / "a.png").stat().st_size > 100_000


def test_a_study_is_run_by_its_name_alone() -> None:
    assert expand(["study", "paper-small", "--dry-run"]) == ["study", "run", "paper-small", "--dry_run=true"]
    assert expand(["study", "show", "study"]) == ["study", "show", "study"]
    assert expand(["study", "--help"]) == ["study", "--help"]
