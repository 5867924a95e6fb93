"""Reading what runs left, whatever state they are in."""

from pathlib import Path

import pytest

from mixview.report.runs import gather, read_run
from tests.report.written import make_result, write_run


def test_a_crashed_run_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", "scenes", state="failed", encoder=False)
    (path / "data.json").write_text("{torn")
    (path / "environment.json").unlink()
    (path / "evaluations").mkdir()
    (path / "evaluations" / "knn-0.json").write_text("{}")
    run = read_run(path)
    assert run.state == "failed"
    assert run.encoder is None
    assert run.data == {}
    assert run.seconds is None
    assert [word for note in run.notes for word in ("data.json", "environment.json", "knn-0.json") if word in note] == [
        "data.json", "environment.json", "knn-0.json",
    ]  # fmt: skip


def test_names_tell_runs_apart(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name, "scenes", encoder=False) for name in ("x/same", "y/same", "other")]
    (tmp_path / "notes.txt").write_text("no run")
    found = gather([*paths, paths[0], tmp_path / "notes.txt"])
    assert [run.name for run in found.runs] == ["x/same", "y/same", "other"]
    assert "notes.txt is no run" in found.notes[0]


def test_folders_that_hold_results_only_count(tmp_path: Path) -> None:
    from mixview.evaluate import results

    results.save(make_result("raw pixels", {"top-1": 10.0}), tmp_path / "baselines")
    assert [result.encoder for result in gather([tmp_path / "baselines"]).others] == ["raw pixels"]


def test_what_is_no_run_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a run of mixview: name the --out"):
        gather([tmp_path])
    with pytest.raises(ValueError, match=r"there is no folder .*absent"):
        gather([tmp_path / "absent"])
    (tmp_path / "study" / "mine").mkdir(parents=True)
    (tmp_path / "study" / "mine" / "study.yaml").write_text("")
    with pytest.raises(ValueError, match="holds studies, not runs: mixview study show"):
        gather([tmp_path / "study"])


def test_runs_of_one_experiment_differ_in_their_seed_only(tmp_path: Path) -> None:
    first, second = (write_run(tmp_path / str(seed), "scenes", "bsim", seed=seed, encoder=False) for seed in (0, 1))
    third = write_run(tmp_path / "alpha", "scenes", "bsim", alpha=0.5, encoder=False)
    runs = [run.settings for run in gather([first, second, third]).runs]
    assert runs[0] == runs[1] != runs[2]
    (first / "data.json").write_text("{torn")
    (second / "data.json").write_text("{torn")
    runs = [run.settings for run in gather([first, second]).runs]
    assert runs[0] != runs[1]  # nobody knows
