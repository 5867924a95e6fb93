"""`--profile`: a table, a trace, and the same run."""

import gzip
import json
import re
from pathlib import Path

import pytest
import torch

import mixview
from mixview.cli import main
from mixview.runs.run_directory import RunDirectory
from mixview.train.profiler import StepProfiler
from mixview.train.step_timer import StepTimer
from tests.train.running import assert_same_runs, command, resume, tiny


def test_a_profiled_run_is_the_same_run_and_leaves_a_table_and_a_trace(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plain = mixview.pretrain(**tiny(tmp_path / "plain"))
    capfd.readouterr()
    main(command(tmp_path / "run", "--profile", "3", "--objective", "wbsim"))
    said = capfd.readouterr().err
    assert_same_runs(plain, tmp_path / "run")
    assert "Profile of 3 steps" in said
    assert "profiler_start" not in said
    parts = dict(re.findall(r"^(forward|backward|update|data loading) +[\d.]+ +([\d.]+)%$", said, re.MULTILINE))
    assert len(parts) == 4
    assert float(parts["forward"]) > 0
    assert re.search(r"^aten::convolution_backward +[\d.]+ +[\d.]+ +[\d.]+%$", said, re.MULTILINE)
    events = json.loads(gzip.decompress((tmp_path / "run" / "trace.json.gz").read_bytes()))["traceEvents"]
    names = [event.get("name") for event in events]
    assert names.count("mixview update") == 3
    assert names.count("mixview backward") == 3  # SimCLR's terms share a graph
    assert "profile" not in RunDirectory.open(tmp_path / "run").config
    resume(tmp_path / "run")  # nothing is profiled again
    assert "Profile" not in capfd.readouterr().err


def profiler(path: Path, steps: int, said: list[str]) -> StepProfiler:
    return StepProfiler(path, steps, StepTimer(torch.device("cpu")), torch.device("cpu"), said.append)


@pytest.mark.parametrize(("taken", "message"), [(2, "There is no profile"), (4, "Profile of 2 steps")])
def test_a_run_that_is_shorter_than_its_profile(taken: int, message: str, tmp_path: Path) -> None:
    said: list[str] = []
    with profiler(tmp_path / "trace.json.gz", 50, said) as profiled:
        for _ in range(taken):
            profiled.timer.start("forward")
            torch.ones(2, 2) @ torch.ones(2, 2)
            profiled.step()
    assert message in "\n".join(said)


def test_a_trace_that_cannot_be_written_ends_no_run(tmp_path: Path) -> None:
    said: list[str] = []
    with profiler(tmp_path / "gone" / "trace.json.gz", 1, said) as profiled:
        for _ in range(4):
            profiled.step()
    assert "could not be written" in said[-1]
    assert "training continues" in said[-1]
