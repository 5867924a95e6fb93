"""Real cells in real processes: stopped, killed, gone on with."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml

from mixview.cli import main
from mixview.evaluate.results import Result
from mixview.study import cell as cells
from mixview.study import command, grid, results
from mixview.study.running import Runner, StudyError
from mixview.train.run_folder import RunFolder
from tests.study.trials import trial
from tests.train.running import wait_for


def write(path: Path, text: dict[str, object]) -> str:
    path.write_text(yaml.safe_dump(text))
    return str(path)


def test_a_study_is_killed_goes_on_and_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watch = {"estimate": False, "tensorboard": False, "look_every": 20, "images": 40, "checkpoint_every": 4}
    grids = [{"objectives": ["SIM"]}, {"methods": [""], "objectives": ["random"]}]
    text = trial(settings={"epochs": 60, "watch": watch}, grids=grids, seeds=[0])
    study = write(tmp_path / "long.yaml", text)
    out, runs = tmp_path / "out", tmp_path / "runs"
    arguments = ["study", study, "--out", str(out), "--runs", str(runs)]
    go_on = partial(command.run, study, out=out, runs=runs)
    main([*arguments, "--dry-run"])
    assert "2 cells, 0 done" in capsys.readouterr().out
    assert not out.exists()

    process = subprocess.Popen(
        [sys.executable, "-m", "mixview.cli", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    cell = grid.read(study).cells[0]
    run = runs / "long" / cell.name
    wait_for(lambda: any((run / "checkpoints").glob("*.pt")), seconds=240, what="the first checkpoint")
    process.send_signal(signal.SIGKILL)
    process.wait()
    owner = int((run / ".lock").read_text().split()[1])
    wait_for(lambda: not alive(owner), what="the end of the cell")
    before = RunFolder.open(run).status
    assert before["step"] < 240
    assert results.find(cell, out) is None

    go_on(max_time="0")
    assert "not complete yet: the same command goes on" in capsys.readouterr().out
    go_on(cores=2)
    assert "complete; wrote" in capsys.readouterr().out
    result = json.loads((out / "long" / f"{cell.name}.json").read_text())
    assert (result["steps"], result["images_seen"], result["passes"]) == (240, 240 * 16, [1, 1])
    assert result["cpu_seconds"] > before["cpu_seconds"]
    assert [step for step, _ in result["curve"]] == [80, 160, 240]
    assert "effective_rank" in result["signs"]
    assert 0 <= result["metrics"]["k-NN"] <= 100
    assert result["settings"]["mixing.alpha"] == 1.0
    assert result["images"]["count"] == 64
    assert result["versions"]["torch"]
    assert [path.name for path in (runs / "long").iterdir()] == [".lock"]  # what is large is gone

    go_on()
    assert "2 cells, 2 done" in capsys.readouterr().err
    command.show(out)
    assert "| MoCo v2 · SIM | 1 | 240 | 1.00 |" in capsys.readouterr().out


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_cell_that_fails_is_named(tmp_path: Path) -> None:
    text = trial(grids=[{"methods": [""], "objectives": ["random"], "seeds": [0]}])
    fails = (sys.executable, "-c", "import sys; sys.exit('ValueError: too small')")
    with pytest.raises(StudyError, match=r"1 cells of bad failed, scenes-random-s0-.*: ValueError: too small"):
        Runner(grid.expand("bad", text), tmp_path / "out", tmp_path / "runs", command=fails).run()


def test_judgements_that_there_are_not(tmp_path: Path) -> None:
    text = trial(grids=[{"methods": [""], "objectives": ["random"], "seeds": [0]}])
    text["evaluate"] = {"AP": {"protocol": "detecting", "metric": "AP50"}}
    (cell,) = grid.expand("bad", text).cells
    with pytest.raises(ValueError, match="there is no protocol 'detecting' to judge by: there are knn, "):
        cells.judge(cell, tmp_path)
    text["evaluate"] = {"k-NN": {"protocol": "knn", "metric": "top-7"}}
    (cell,) = grid.expand("bad", text).cells
    with pytest.raises(ValueError, match="k-NN: knn has no 'top-7': it has top-1"):
        cells.judge(cell, tmp_path)


def test_a_protocol_of_trials_is_averaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cells.WHOLE, "detection", f"{__name__}:detect")
    text = trial(grids=[{"methods": [""], "objectives": ["random"], "seeds": [3]}])
    text["evaluate"] = {"AP50": {"protocol": "detection", "recipe": "small-c4", "trials": 2, "metric": "AP50"}}
    (cell,) = grid.expand("found", text).cells
    result = cells.judge(cell, tmp_path)
    assert result.metrics == {"AP50": 15.0}
    assert result.protocols == {"AP50": "AP50; random small-c4 3. On scenes."}


def detect(encoder: str, protocol: str, resume: bool, trials: int, **options: object) -> list[Result]:
    """Stands in for a detector that is trained."""
    assert options["data_options"] == {"count": 64, "size": 16}
    assert not resume
    assert options["out"]
    words = f"{encoder} {protocol} {options['seed']}."
    return [
        Result(protocol="detection", metrics={"AP50": 10.0 * number}, words=words, encoder="", data="scenes")
        for number in range(1, trials + 1)
    ]


def test_a_cell_travels_between_processes_as_json() -> None:
    for cell in grid.expand("trial", trial()).cells:
        assert cells.from_json(cells.to_json(cell)) == cell


LOCK = "import fcntl, sys; f = open(sys.argv[1], 'ab'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"


def test_two_processes_do_not_run_one_study(tmp_path: Path) -> None:
    (tmp_path / "trial").mkdir()
    holder = [sys.executable, "-c", LOCK, str(tmp_path / "trial" / ".lock")]
    with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(StudyError, match="another process runs this study"):
            Runner(grid.expand("trial", trial()), tmp_path / "out", tmp_path).run()
        other.communicate(b"\n")
