"""Pretraining with shrunk copies of large images: the same run whatever becomes of the cache."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import mixview
from mixview.runs.run_directory import RunDirectory
from tests.data.writing import jpeg, smooth, write
from tests.processes import context
from tests.train.running import assert_same_runs, resume, stopped_at, tiny, wait_for


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    for number in range(32):
        write(folder / "class" / f"{number}.jpg", jpeg(smooth(100 + number, 140, number)))
    return folder


def settings(photographs: Path, out: Path, **options: Any) -> dict[str, Any]:
    return tiny(out, data=str(photographs), data_options=None, **options)


@pytest.fixture(scope="module")
def whole(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    return mixview.pretrain(**settings(photographs, folder / "run", cache=str(folder / "cache")))


def test_a_resumed_run_is_an_uninterrupted_one_with_and_without_the_cache(
    photographs: Path, whole: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    for number, then in enumerate(("kept", "deleted", "left out")):
        out = tmp_path / str(number)
        with stopped_at(2):
            mixview.pretrain(**settings(photographs, out, cache=str(cache), workers=number % 2))
        if then == "deleted":
            shutil.rmtree(cache)
        resume(out, **({"cache": None} if then == "left out" else {}))
        assert_same_runs(whole, out)
    assert RunDirectory.open(whole).config["cache_size"] == 32


def test_a_run_that_is_killed_while_it_fills_the_cache(photographs: Path, whole: Path, tmp_path: Path) -> None:
    out, cache = tmp_path / "run", tmp_path / "cache"
    options = settings(photographs, out, cache=str(cache), workers=1)
    process = context.Process(target=mixview.pretrain, kwargs=options)
    process.start()
    wait_for(lambda: any(file.stat().st_size > 100 for file in cache.glob("*")), what="the first image of the cache")
    process.kill()
    process.join()
    with next(cache.iterdir()).open("ab") as file:
        file.write(b"\xffimg of which no more was written")
    resume(out, workers=0)
    assert_same_runs(whole, out)
    assert b"no more was written" not in next(cache.iterdir()).read_bytes()


def test_a_folder_that_cannot_be_used_costs_one_sentence(
    photographs: Path, whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "place"
    place.write_text("something")
    mixview.pretrain(**settings(photographs, tmp_path / "run", cache=str(place)))
    assert_same_runs(whole, tmp_path / "run")
    said = [line for line in capfd.readouterr().err.splitlines() if "cache" in line]
    assert len(said) == 1
    assert said[0].startswith(f"There is no cache in {place} (File exists: move away what is in its place)")
    assert place.read_text() == "something"
