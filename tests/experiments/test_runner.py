"""Real runs in real processes: stopped, killed, gone on with."""

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
from mixview.evaluate.detection.protocol import Detection
from mixview.evaluate.results import Result, average
from mixview.experiments import command, cost, results
from mixview.experiments import run as processes
from mixview.experiments import spec as grid
from mixview.experiments.cost import Estimate, measure
from mixview.experiments.runner import Runner, StudyError, group_by_encoder
from mixview.experiments.study_run import StudyRun, from_json, to_json
from mixview.runs.run_directory import RunDirectory
from tests.experiments.trials import invented, trial
from tests.train.running import wait_for


def write(path: Path, text: dict[str, object]) -> str:
    path.write_text(yaml.safe_dump(text))
    return str(path)


def test_a_study_is_killed_resumes_and_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watch = {"estimate": False, "loggers": "none", "eval_every": 20, "images": 40, "checkpoint_every": 4}
    grids = [{"objectives": ["SIM"]}, {"methods": [""], "objectives": ["random"]}]
    text = trial(settings={"epochs": 60, "monitor": watch}, grids=grids, seeds=[0])
    study = write(tmp_path / "long.yaml", text)
    out, runs = tmp_path / "out", tmp_path / "runs"
    arguments = ["study", study, "--out", str(out), "--runs", str(runs)]
    go_on = partial(command.run_study, study, out=out, runs=runs)
    main([*arguments, "--dry-run"])
    assert "2 runs, 0 done" in capsys.readouterr().out
    assert not out.exists()

    process = subprocess.Popen(
        [sys.executable, "-m", "mixview.cli", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    run = grid.read(study).runs[0]
    folder = runs / "long" / run.encoder_name
    wait_for(lambda: any((folder / "checkpoints").glob("*.pt")), seconds=240, what="the first checkpoint")
    process.send_signal(signal.SIGKILL)
    process.wait()
    owner = int((folder / ".lock").read_text().split()[1])
    wait_for(lambda: not alive(owner), what="the end of the run")
    before = RunDirectory.open(folder).status
    assert before["step"] < 240
    assert results.find(run, out) is None

    go_on(max_time="0")
    assert "not complete yet: the same command resumes" in capsys.readouterr().out
    go_on(cores=2)
    assert "complete; wrote" in capsys.readouterr().out
    records = [json.loads(line) for line in (out / "long" / "results.jsonl").read_text().splitlines()]
    (result,) = [record for record in records if record["objective"] == "SIM"]
    assert (result["steps"], result["images_seen"], result["passes"]) == (240, 240 * 16, [1, 1])
    assert result["cpu_seconds"] > before["cpu_seconds"]
    assert [step for step, _ in result["curve"]] == [80, 160, 240]
    assert "effective_rank" in result["collapse_metrics"]
    assert 0 <= result["metrics"]["k-NN"] <= 100
    assert result["settings"]["mixing.alpha"] == 1.0
    assert result["images"]["count"] == 64
    assert result["versions"]["torch"]
    assert [path.name for path in (runs / "long").iterdir()] == [".lock"]  # what is large is gone

    go_on()
    assert "2 runs, 2 done" in capsys.readouterr().err
    command.show(out)
    assert "| MoCo v2 · SIM | 1 | 240 | 1.00 |" in capsys.readouterr().out


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_run_that_fails_is_named(tmp_path: Path) -> None:
    text = trial(grids=[{"methods": [""], "objectives": ["random"], "seeds": [0]}])
    fails = (sys.executable, "-c", "import sys; sys.exit('ValueError: too small')")
    with pytest.raises(StudyError, match=r"1 runs of bad failed, scenes-random-s0-.*: ValueError: too small"):
        Runner(grid.expand("bad", text), tmp_path / "out", tmp_path / "runs", command=fails).run()


def random_run(seed: int = 0, **columns: object) -> StudyRun:
    text = trial(grids=[{"methods": [""], "objectives": ["random"], "seeds": [seed]}], evaluate=columns)
    (run,) = grid.expand("evaluated", text).runs
    return run


def test_an_unknown_metric(tmp_path: Path) -> None:
    run = random_run(found={"protocol": "knn", "metric": "top-7"})
    with pytest.raises(ValueError, match="found: knn has no metric 'top-7': it has top-1"):
        processes.evaluate(run, tmp_path)


def test_every_column_is_measured_as_it_says(tmp_path: Path) -> None:
    knn = {"protocol": "knn", "metric": "top-1", "k": 5}
    run = random_run(plain=knn, large=knn | {"size": 32}, again=knn)
    result = processes.evaluate(run, tmp_path)
    assert [words.rpartition("crop of ")[2][:2] for words in result.descriptions.values()] == ["16", "32", "16"]
    assert result.evaluated["large"]["size"] == 32
    assert result.evaluated["plain"]["temperature"] == 0.07
    assert results.match_one(run, {"evaluated": [result]}) is not None


def test_a_protocol_of_trials_is_averaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Detection, "run", detect)
    run = random_run(3, AP50={"protocol": "detection", "recipe": "small-c4", "trials": 2, "metric": "AP50"})
    result = processes.evaluate(run, tmp_path)
    assert result.metrics == {"AP50": 15.0}
    assert result.descriptions == {"AP50": "AP50; random small-c4 3. On scenes."}


def test_columns_that_ask_otherwise_do_not_meet_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Detection, "run", detect)
    once = {"protocol": "detection", "recipe": "small-c4", "trials": 1, "metric": "AP50"}
    result = processes.evaluate(random_run(once=once, again=once, twice=once | {"trials": 2}), tmp_path)
    assert result.metrics == {"once": 10.0, "again": 10.0, "twice": 15.0}
    begun, resumed = zip(*(path.read_text().split() for path in sorted(tmp_path.rglob("trials"))), strict=True)
    assert sorted(begun) == ["1", "2"]
    assert sorted(resumed) == ["False", "True"]  # what was asked again went on with what was there


def detect(self: Detection) -> Result:
    """Stands in for a detector that is trained."""
    assert self.data_options == {"count": 64, "size": 16}
    out = Path(str(self.out))
    out.mkdir(parents=True, exist_ok=self.resume)
    (out / "trials").write_text(f"{self.trials} {self.resume}")
    return average(
        [
            Result(
                protocol="detection",
                metrics={"AP50": 10.0 * number},
                description=f"{self.encoder} {self.recipe} {self.seed}.",
                encoder="",
                data="scenes",
            )
            for number in range(1, self.trials + 1)
        ]
    )


def test_a_run_travels_between_processes_as_json() -> None:
    runs = list(grid.expand("trial", trial()).runs)
    assert from_json(to_json(runs)) == runs


def test_a_run_that_was_begun_under_other_defaults_is_not_evaluated(tmp_path: Path) -> None:
    text = trial(settings={"epochs": 1}, grids=[{"objectives": ["SIM"]}], seeds=[0])
    (run,) = grid.expand("trial", text).runs
    folder = tmp_path / "run"
    assert processes.pretrain(run, folder)
    began = RunDirectory.open(folder).config
    stamp = (folder / "encoder.safetensors").stat().st_mtime_ns
    assert processes.pretrain(run, folder)
    assert (folder / "encoder.safetensors").stat().st_mtime_ns == stamp  # done is done
    assert processes.has_settings_of(run, began)
    assert not processes.has_settings_of(run, began | {"mixing": began["mixing"] | {"alpha": 0.5}})
    assert not processes.has_settings_of(run, began | {"optimizer": began["optimizer"] | {"clip": 0.5}})
    (folder / "config.yaml").write_text(yaml.safe_dump(began | {"zero_init": True}))
    assert processes.pretrain(run, folder)  # as if the default of zero_init had been another: trained anew
    assert RunDirectory.open(folder).config["zero_init"] is None


def test_a_run_whose_study_is_gone_already_ends(tmp_path: Path) -> None:
    nobody = subprocess.Popen([sys.executable, "-c", ""])
    nobody.wait()
    description = tmp_path / "run.json"
    text = trial(settings={"epochs": 10_000}, grids=[{"objectives": ["SIM"]}], seeds=[0])
    description.write_text(to_json(grid.expand("trial", text).runs[:1]))
    command_line = [
        sys.executable,
        "-m",
        "mixview.experiments.run",
        *map(str, (description, tmp_path / "run", tmp_path / "out")),
    ]
    ended = subprocess.run(command_line, env=os.environ | {processes.PARENT: str(nobody.pid)}, timeout=120)
    assert ended.returncode == 1


def test_what_another_study_has_run_meanwhile_is_not_run_again(tmp_path: Path) -> None:
    study = grid.expand("trial", trial(grids=[{"methods": [""], "objectives": ["random"]}]))
    first, second = study.runs
    fails = (sys.executable, "-c", "import sys; sys.exit('it was run again')")
    runner = Runner(study, tmp_path / "out", tmp_path / "runs", command=fails)
    for run in (first, second):
        results.append(invented(run, 30.0), results.path_of("trial", tmp_path / "out"))
    runner.run_all([[first], [second]], Estimate(study.runs, {}))
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
            command.run_study(study, out=tmp_path, runs=tmp_path / "elsewhere")
        assert not (tmp_path / "trial" / command.STUDY_FILE).exists()
        other.communicate(b"\n")


def test_runs_that_differ_in_labels_or_columns_share_an_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = trial(settings={"epochs": 1}, seeds=[0], match_compute=False)
    more = {
        "5-NN": {"protocol": "knn", "k": 5, "metric": "top-1"},
        "3-NN": {"protocol": "knn", "k": 3, "metric": "top-1"},
    }
    text["objectives"] |= {"again": {"objective": "sim"}, "more": {"objective": "sim", "evaluate": more}}
    text["grids"] = [{"objectives": ["SIM", "again", "more", "WBSIM"]}]
    study = grid.expand("trial", text)
    groups = group_by_encoder(study.runs)
    assert [[run.objective for run in runs] for runs in groups] == [["SIM", "again", "more"], ["WBSIM"]]
    trained, evaluated = [], []
    pretrain, evaluate = processes.pretrain, processes.evaluate
    monkeypatch.setattr(processes, "pretrain", lambda *given: trained.append(1) or pretrain(*given))
    monkeypatch.setattr(processes, "evaluate", lambda *a, **b: evaluated.append(a[0].objective) or evaluate(*a, **b))
    monkeypatch.setattr(processes, "exit_when_orphaned", lambda parent: None)
    description, path = tmp_path / "runs.json", results.path_of("trial", tmp_path / "out")
    description.write_text(to_json(groups[0]))
    assert processes.main([str(description), str(tmp_path / "run"), str(path)]) == 0
    assert len(trained) == 1
    assert evaluated == ["SIM", "more"]  # the other is the same by another name
    done = results.match(study.runs, results.read_all(tmp_path / "out"))
    assert [result.objective for result in done.values()] == ["SIM", "again", "more"]
    assert all(result.began for result in done.values())
    assert Estimate(study.runs, {}).seconds(groups[0]) < 2.2 * Estimate(study.runs, {}).seconds(groups[1])


def test_runs_begin_with_an_encoder_of_the_study(tmp_path: Path) -> None:
    text = trial(settings={"epochs": 2}, seeds=[0, 1], grids=[{"objectives": ["SIM"]}])
    options = {"data": "scenes", "data_options": {"count": 64, "size": 16}, "method": {"name": "simclr"}, "epochs": 1}
    text["encoders"] = {"first": options | {"objective": "sim"}}
    text["data"]["scenes"]["weights"] = "@first"
    study = grid.expand("trial", text)
    key = study.runs[0].settings["weights"]
    for run in study.runs:
        folder = tmp_path / run.encoder_name
        assert run.settings["weights"] == key
        assert processes.pretrain(run, folder)
        assert processes.pretrain(run, folder)  # done is done
        assert RunDirectory.open(folder).config["weights"] == str(tmp_path / f"encoder-{key[1:]}")
        result = processes.evaluate(run, folder)
        assert result.settings["weights"] == key
        assert results.match_one(run, {"trial": [result]}) is not None
    assert len(list(tmp_path.glob("encoder-*/encoder.safetensors"))) == 1
    text["encoders"]["first"]["epochs"] = 3
    assert grid.expand("trial", text).runs[0].settings["weights"] != key
    assert grid.expand("trial", text).runs[0].encoder_key != study.runs[0].encoder_key


def test_a_dry_run_measures_what_it_does_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = grid.expand("trial", trial(seeds=[0, 1], grids=[{"methods": [""], "objectives": ["random"]}]))
    run = study.runs[0]
    measured = measure(run, tmp_path / "runs", Runner.command)
    assert measured is not None
    assert (measured.evaluation_seconds > 0, list((tmp_path / "runs").iterdir())) == (True, [])
    estimate = Estimate(study.runs, {})
    assert not estimate.knows(run)
    estimate.own.learn(measured)
    assert estimate.knows(run)
    assert estimate.seconds(study.runs) == pytest.approx(2 * measured.evaluation_seconds)
    assert measure(run, tmp_path / "runs", ("false",)) is None


def test_a_run_that_trains_is_measured_by_a_few_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "MEASURED_STEPS", 8)
    long = trial({"epochs": 1000}, seeds=[0], grids=[{"objectives": ["SIM"]}])
    study = grid.expand("trial", long)
    measured = measure(study.runs[0], tmp_path / "runs", Runner.command)
    assert measured is not None
    assert measured.steps == 8
    estimate = Estimate(study.runs, {})
    estimate.own.learn(measured)
    expected = measured.evaluation_seconds + measured.cpu_seconds * 4000 / 8
    assert estimate.seconds(study.runs) == pytest.approx(expected, rel=0.01)
