"""Two machines on one folder: each run is carried out once, whoever dies."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mixview.experiments import results
from mixview.experiments import spec as grid
from mixview.experiments.command import merge_results
from mixview.experiments.cost import Estimate
from mixview.experiments.leases import Leases
from mixview.experiments.runner import Runner
from tests.experiments.trials import invented, trial
from tests.train.running import wait_for


def test_only_one_gets_the_lease(tmp_path: Path) -> None:
    with Leases(tmp_path, "a") as first, Leases(tmp_path, "b") as second:
        assert first.take("run")
        assert not second.take("run")
        assert second.take("other")
        first.release("run")
        assert second.take("run")
        assert not second.is_lost("run")
    assert list(tmp_path.iterdir()) == []


def test_the_lease_of_a_dead_process_is_taken_over_by_one(tmp_path: Path) -> None:
    dead, first, second = (Leases(tmp_path, name, expiry=60) for name in "abc")
    assert dead.take("run")
    assert not first.take("run")
    file = tmp_path / "run.0"
    os.utime(file, (file.stat().st_mtime - 61,) * 2)
    assert first.take("run")
    assert not second.take("run")
    assert dead.is_lost("run")  # it was only slow: it stops
    assert not first.is_lost("run")
    dead.release("run")
    assert not second.take("run")  # what the slow one gives back is not the lease any more
    first.release("run")
    assert second.take("run")


def test_two_that_see_the_same_expired_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both find the file free; the next one can be created only once."""
    first, second = Leases(tmp_path, "a"), Leases(tmp_path, "b")
    assert Leases(tmp_path, "dead").take("run")
    monkeypatch.setattr(second, "is_free", lambda path: first.take("run") or True)
    monkeypatch.setattr(first, "is_free", lambda path: True)
    assert not second.take("run")
    assert not first.is_lost("run")


def test_a_lease_is_kept_alive(tmp_path: Path) -> None:
    with Leases(tmp_path, "a", heartbeat=0.05) as leases:
        assert leases.take("run")
        file = tmp_path / "run.0"
        os.utime(file, (0, 0))
        wait_for(lambda: file.stat().st_mtime > 0, seconds=20, what="a sign of life")


def test_what_this_machine_began_before_is_its_own(tmp_path: Path) -> None:
    assert Leases(tmp_path, "a").take("run")
    assert Leases(tmp_path, "a").take("run")
    assert not Leases(tmp_path, "b").take("run")


def test_damaged_leases_expire(tmp_path: Path) -> None:
    for number, content in enumerate((b"", b"{", b"[]", b"\xff", b'{"owner": 3}')):
        (tmp_path / f"run{number}.0").write_bytes(content)
        assert not Leases(tmp_path, "a").take(f"run{number}")
        assert Leases(tmp_path, "a", expiry=-1).take(f"run{number}")


COPY = """
import json, sys
runs = [(run["objective"], run["seed"]) for run in json.load(open(sys.argv[1]))]
for line in open(sys.argv[0] + "made.jsonl"):
    result = json.loads(line)
    if (result["objective"], result["seed"]) in runs:
        open(sys.argv[3], "a").write(line)
"""
"""Stands in for a training: it copies a result that was made before."""


def test_two_machines_share_a_study(tmp_path: Path) -> None:
    """Two processes that begin at once."""
    text = trial(seeds=[0, 1], match_compute=False)
    (tmp_path / "shared.yaml").write_text(yaml.safe_dump(text))
    study = grid.read(str(tmp_path / "shared.yaml"))
    for run in study.runs:
        results.append(invented(run, 50.0), tmp_path / "made.jsonl")
    (tmp_path / "instead.py").write_text(COPY.replace('sys.argv[0] + "made.jsonl"', repr(str(tmp_path / "made.jsonl"))))
    script = tmp_path / "machine.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from mixview.experiments import runner, spec\n"
        "runner.RETRY_SECONDS = 0.2\n"
        "study, name = spec.read('shared.yaml'), sys.argv[1]\n"
        "command = (sys.executable, '-S', 'instead.py')\n"
        "print(runner.Runner(study, Path('out'), Path(name), machine=name, command=command).run())\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    machines = [
        subprocess.Popen(
            [sys.executable, str(script), name], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
        )
        for name in ("left", "right")
    ]
    assert [machine.communicate(timeout=600)[0] for machine in machines] == ["True\n", "True\n"]
    folder = tmp_path / "out" / "shared"
    lines = [json.loads(line) for path in folder.glob("results-*.jsonl") for line in path.read_text().splitlines()]
    assert sorted((line["objective"], line["seed"]) for line in lines) == sorted(
        (run.objective, run.seed) for run in study.runs
    )
    assert {path.name for path in folder.glob("results-*.jsonl")} == {"results-left.jsonl", "results-right.jsonl"}
    assert list((folder / "leases").iterdir()) == []
    assert len(results.match(study.runs, results.read_all(tmp_path / "out"))) == len(study.runs)
    (folder / "study.yaml").write_text(yaml.safe_dump(text))
    merge_results(tmp_path / "out")
    assert len((folder / "results.jsonl").read_text().splitlines()) == len(study.runs)
    assert sorted(path.name for path in folder.iterdir()) == ["results.jsonl", "study.yaml"]


SLOW = """
import json, os, sys, time
runs = [(run["objective"], run["seed"]) for run in json.load(open(sys.argv[1]))]
time.sleep(0.5)
if os.getppid() != int(os.environ["MIXVIEW_STUDY_PROCESS"]):
    sys.exit("the study is gone")
for line in open("made.jsonl"):
    result = json.loads(line)
    if (result["objective"], result["seed"]) in runs:
        open(sys.argv[3], "a").write(line)
"""
"""Stands in for a training that takes a while, and ends with the process that began it."""


@pytest.mark.skipif(os.name != "posix", reason="there is no kill -9")
def test_what_a_killed_machine_had_begun_is_done_by_the_other_once(tmp_path: Path) -> None:
    text = trial(seeds=[0, 1, 2], match_compute=False)
    (tmp_path / "shared.yaml").write_text(yaml.safe_dump(text))
    study = grid.read(str(tmp_path / "shared.yaml"))
    for run in study.runs:
        results.append(invented(run, 50.0), tmp_path / "made.jsonl")
    (tmp_path / "slow.py").write_text(SLOW)
    script = tmp_path / "machine.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from mixview.experiments import leases, runner, spec\n"
        "runner.RETRY_SECONDS = 0.2\n"
        "leases.Leases.__init__.__defaults__ = (3.0, 0.2)\n"  # expiry, heartbeat
        "study, name = spec.read('shared.yaml'), sys.argv[1]\n"
        "command = (sys.executable, '-S', 'slow.py')\n"
        "print(runner.Runner(study, Path('out'), Path(name), machine=name, command=command).run())\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def begin(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(script), name]
        return subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)

    folder = tmp_path / "out" / "shared"

    def done() -> list[tuple[str, int]]:
        lines = [line for path in folder.glob("results-*.jsonl") for line in path.read_text().splitlines()]
        return [(each["objective"], each["seed"]) for each in map(json.loads, lines)]

    left = begin("left")
    wait_for(lambda: len(done()) > 0, seconds=240, what="the first result")
    right = begin("right")
    wait_for(lambda: (folder / "results-right.jsonl").exists(), seconds=240, what="the second machine")
    left.kill()
    left.communicate()
    assert right.communicate(timeout=600)[0] == "True\n"
    assert sorted(done()) == sorted((run.objective, run.seed) for run in study.runs)
    assert begin("left").communicate(timeout=600)[0] == "True\n"  # nothing is left to do
    assert len(done()) == len(study.runs)
    (folder / "study.yaml").write_text(yaml.safe_dump(text))
    merge_results(tmp_path / "out")
    assert len((folder / "results.jsonl").read_text().splitlines()) == len(study.runs)
    assert not (folder / "leases").exists()  # one of them may have been that of a run whose result was there


def test_merging_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    runs = grid.expand("trial", trial()).runs
    results.append(invented(runs[0], 50.0), results.path_of("trial", tmp_path))
    for machine, run in (("a", runs[0]), ("a", runs[1]), ("b", runs[2])):
        result = invented(run, 51.0)
        results.append(result, results.path_of("trial", tmp_path, machine))
    folder = tmp_path / "trial"
    content = (folder / "results-b.jsonl").read_bytes()
    (folder / "results-b.jsonl").write_bytes(content + b"{\n")
    with pytest.raises(ValueError, match=r"line 2 of .*results-b.jsonl cannot be read"):
        results.merge(folder)
    assert len(list(folder.glob("results-*.jsonl"))) == 2
    (folder / "results-b.jsonl").write_bytes(content)
    kept = (folder / "results-a.jsonl").read_bytes()
    assert results.merge(folder) == 3
    assert not list(folder.glob("results-*.jsonl"))
    (folder / "results-a.jsonl").write_bytes(kept)  # as if it had been killed before it removed this one
    assert results.merge(folder) == 0
    merged = results.read(folder / results.FILE, [])
    assert [(each.objective, each.metrics["k-NN"]) for each in merged] == [
        ("SIM", 50.0), ("SIM", 51.0), ("WBSIM", 51.0), ("SIM × 1.75", 51.0),
    ]  # fmt: skip


def test_a_machine_waits_for_what_another_has_begun(tmp_path: Path) -> None:
    study = grid.expand("trial", trial(seeds=[0], grids=[{"objectives": ["SIM"]}]))
    (run,) = study.runs
    with Leases(tmp_path / "out" / "trial" / "leases", "another") as leases:
        assert leases.take(run.encoder_name)
        runner = Runner(study, tmp_path / "out", tmp_path / "runs", machine="own", command=("false",), seconds=1.5)
        assert not runner.run()
        assert runner.failed == {}


def test_a_machine_does_not_wait_for_a_dead_one_that_was_done(tmp_path: Path) -> None:
    """It was killed between its result and the end of its lease, which has not expired yet."""
    study = grid.expand("trial", trial(seeds=[0], grids=[{"objectives": ["SIM"]}]))
    (run,) = study.runs
    runner = Runner(study, tmp_path / "out", tmp_path / "runs", machine="own", command=("false",), seconds=60)
    assert runner.leases is not None
    with runner.leases:
        assert Leases(runner.leases.folder, "dead").take(run.encoder_name)
        results.append(invented(run, 50.0), results.path_of("trial", tmp_path / "out", "dead"))
        runner.run_all([[run]], Estimate(study.runs, {}))
    assert runner.stop_reason is None
    assert runner.failed == {}
