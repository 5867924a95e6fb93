"""Real cells in real processes: stopped, killed, gone on with."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import yaml

from mixview.cli import main
from mixview.evaluate.results import Result
from mixview.study import cell as cells
from mixview.study import command, grid, results, standalone
from mixview.study.estimate import Estimate
from mixview.study.running import Runner, StudyError
from mixview.train.run_folder import RunFolder
from tests.study.trials import invented, trial
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


def random_cell(seed: int = 0, **columns: object) -> grid.Cell:
    text = trial(grids=[{"methods": [""], "objectives": ["random"], "seeds": [seed]}], evaluate=columns)
    (cell,) = grid.expand("judged", text).cells
    return cell


def test_a_figure_that_there_is_not(tmp_path: Path) -> None:
    cell = random_cell(found={"protocol": "knn", "metric": "top-7"})
    with pytest.raises(ValueError, match="found: knn has no 'top-7': it has top-1"):
        cells.judge(cell, tmp_path)


def test_every_column_is_measured_as_it_says(tmp_path: Path) -> None:
    knn = {"protocol": "knn", "metric": "top-1", "k": 5}
    cell = random_cell(plain=knn, large=knn | {"size": 32}, again=knn)
    result = cells.judge(cell, tmp_path)
    assert [words.rpartition("crop of ")[2][:2] for words in result.protocols.values()] == ["16", "32", "16"]
    assert result.judged["large"]["size"] == 32
    assert result.judged["plain"]["temperature"] == 0.07
    assert results.fits(result, cell)


def test_a_protocol_of_trials_is_averaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(standalone.PROTOCOLS, "detection", (__name__, "detect", "Detected"))
    cell = random_cell(3, AP50={"protocol": "detection", "recipe": "small-c4", "trials": 2, "metric": "AP50"})
    result = cells.judge(cell, tmp_path)
    assert result.metrics == {"AP50": 15.0}
    assert result.protocols == {"AP50": "AP50; random small-c4 3. On scenes."}


def test_columns_that_ask_otherwise_do_not_meet_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(standalone.PROTOCOLS, "detection", (__name__, "detect", "Detected"))
    once = {"protocol": "detection", "recipe": "small-c4", "trials": 1, "metric": "AP50"}
    result = cells.judge(random_cell(once=once, again=once, twice=once | {"trials": 2}), tmp_path)
    assert result.metrics == {"once": 10.0, "again": 10.0, "twice": 15.0}
    begun, resumed = zip(*(path.read_text().split() for path in sorted(tmp_path.rglob("trials"))), strict=True)
    assert sorted(begun) == ["1", "2"]
    assert sorted(resumed) == ["False", "True"]  # what was asked again went on with what was there


@dataclass
class Detected:
    """Its options."""

    trials: int


def detect(encoder: str, protocol: str, resume: bool, trials: int, **options: object) -> list[Result]:
    """Stands in for a detector that is trained."""
    assert options["data_options"] == {"count": 64, "size": 16}
    out = Path(str(options["out"]))
    out.mkdir(parents=True, exist_ok=resume)
    (out / "trials").write_text(f"{trials} {resume}")
    words = f"{encoder} {protocol} {options['seed']}."
    return [
        Result(protocol="detection", metrics={"AP50": 10.0 * number}, words=words, encoder="", data="scenes")
        for number in range(1, trials + 1)
    ]


def test_a_cell_travels_between_processes_as_json() -> None:
    for cell in grid.expand("trial", trial()).cells:
        assert cells.from_json(cells.to_json(cell)) == cell


def test_a_run_that_was_begun_under_other_defaults_is_not_judged(tmp_path: Path) -> None:
    text = trial(settings={"epochs": 1}, grids=[{"objectives": ["SIM"]}], seeds=[0])
    (cell,) = grid.expand("trial", text).cells
    run = tmp_path / "run"
    assert cells.pretrain(cell, run)
    began = RunFolder.open(run).config
    stamp = (run / "encoder.safetensors").stat().st_mtime_ns
    assert cells.pretrain(cell, run)
    assert (run / "encoder.safetensors").stat().st_mtime_ns == stamp  # done is done
    assert cells.has_settings_of(cell, began)
    assert not cells.has_settings_of(cell, began | {"mixing": began["mixing"] | {"alpha": 0.5}})
    assert not cells.has_settings_of(cell, began | {"optimizer": began["optimizer"] | {"clip": 0.5}})
    (run / "config.yaml").write_text(yaml.safe_dump(began | {"zero_init": True}))
    assert cells.pretrain(cell, run)  # as if the default of zero_init had been another: trained anew
    assert RunFolder.open(run).config["zero_init"] is None


def test_a_cell_whose_study_is_gone_already_ends(tmp_path: Path) -> None:
    nobody = subprocess.Popen([sys.executable, "-c", ""])
    nobody.wait()
    description = tmp_path / "cell.json"
    text = trial(settings={"epochs": 10_000}, grids=[{"objectives": ["SIM"]}], seeds=[0])
    description.write_text(cells.to_json(grid.expand("trial", text).cells[0]))
    command_line = [
        sys.executable,
        "-m",
        "mixview.study.cell",
        *map(str, (description, tmp_path / "run", tmp_path / "out")),
    ]
    ended = subprocess.run(command_line, env=os.environ | {cells.PARENT: str(nobody.pid)}, timeout=120)
    assert ended.returncode == 1


def test_what_another_study_has_run_meanwhile_is_not_run_again(tmp_path: Path) -> None:
    study = grid.expand("trial", trial(grids=[{"methods": [""], "objectives": ["random"]}]))
    first, second = study.cells
    fails = (sys.executable, "-c", "import sys; sys.exit('it was run again')")
    runner = Runner(study, tmp_path / "out", tmp_path / "runs", command=fails)
    for cell in (first, second):
        results.save(invented(cell, 30.0), results.path_of(cell, tmp_path / "out"))
    runner.work_off([first, second], Estimate(study.cells, []))
    assert not runner.failed


LOCK = "import fcntl, sys; f = open(sys.argv[1], 'ab'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"


def test_two_processes_do_not_run_one_study(tmp_path: Path) -> None:
    (tmp_path / "trial").mkdir()
    holder = [sys.executable, "-c", LOCK, str(tmp_path / "trial" / ".lock")]
    with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(StudyError, match="another process runs this study"):
            Runner(grid.expand("trial", trial()), tmp_path / "out", tmp_path).run()
        study = write(tmp_path / "trial.yaml", trial())
        with pytest.raises(StudyError, match="another process runs this study"):
            command.run(study, out=tmp_path, runs=tmp_path / "elsewhere")
        assert not (tmp_path / "trial" / command.TEXT).exists()
        other.communicate(b"\n")
