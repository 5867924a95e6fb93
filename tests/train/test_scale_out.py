"""The same run on one process, on two, and on two machines."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from mixview.runs.run_directory import RunDirectory, read_metrics
from mixview.train.config import MixingConfig, OptimizerConfig
from tests.processes import context
from tests.train.running import (
    METHOD_NAMES,
    assert_same_runs,
    command,
    free_port,
    last_state,
    lines,
    run_plain,
    start_ranks,
    tiny,
    torchrun_variables,
    wait_for,
)

OBJECTIVES = ("sim", "bsim", "wbsim")
CASES = [(method, objective) for method in METHOD_NAMES for objective in OBJECTIVES]
NORM = {
    "simclr": "2 in encoder, 2 in projector",
    "byol": "3 in online, 1 in predictor, 3 in target",
    "simsiam": "4 in online, 1 in predictor",
}


def plain(folder: Path, method: str, objective: str, *, norm: bool = False, **options: Any) -> dict[str, Any]:
    """A run of four steps of 128 images, which are two groups of 64, with batch norm or without."""
    settings = {"batch_size": 128, "optimizer": OptimizerConfig(name="sgd", lr=0.05), "epochs": 4}
    return tiny(
        folder / f"{method}-{objective}{'-norm' if norm else ''}",
        backbone=f"tests.train.running:{'backbone' if norm else 'plain_backbone'}",
        method=method,
        objective=objective,
        data_options={"count": 128, "size": 16},
        **(settings | options),
    )


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """All methods and objectives on two processes, and on one that mixes in two groups."""
    folder = tmp_path_factory.mktemp("curves")
    port = free_port()
    two = [plain(folder / "two", *case, devices=2, accelerator="cpu") for case in CASES]
    two += [plain(folder / "two", method, "wbsim", norm=True, devices=2, accelerator="cpu") for method in NORM]
    one = [plain(folder / "one", *case, mixing=MixingConfig(mix_groups=2)) for case in CASES]
    one += [plain(folder / "one", method, "wbsim", norm=True, mixing=MixingConfig(mix_groups=2)) for method in NORM]
    jobs = [(two, torchrun_variables(rank, 2, port), str(folder / f"log.{rank}")) for rank in range(2)]
    jobs.append((one, {}, str(folder / "log")))
    processes = [context.Process(target=run_plain, args=job) for job in jobs]
    for process in processes:
        process.start()
    for process, job in zip(processes, jobs, strict=True):
        process.join(180)
        said = Path(job[2]).read_text()
        assert process.exitcode == 0, said
        assert "Warning" not in said
    return folder / "two", folder / "one"


@pytest.mark.parametrize(("method", "objective"), CASES)
def test_two_processes_make_the_loss_curve_of_one_with_two_groups(
    method: str, objective: str, curves: tuple[Path, Path]
) -> None:
    two, one = (read_metrics(folder / f"{method}-{objective}") for folder in curves)
    assert [each["step"] for each in two] == [1, 2, 3, 4]
    assert [each["loss"] for each in two] == pytest.approx([each["loss"] for each in one], rel=2e-5)
    assert [each["lr"] for each in two] == [each["lr"] for each in one]
    assert len({each["loss"] for each in one}) == 4


@pytest.mark.parametrize("method", NORM)
def test_two_processes_make_the_weights_of_one_with_batch_norm(method: str, curves: tuple[Path, Path]) -> None:
    """Statistics of every network are of both processes' images, and the run says so."""
    two, one = (last_state(folder / f"{method}-wbsim-norm")[0]["method"] for folder in curves)
    assert any(key.endswith("running_var") for key in one)
    torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-5)
    said = " ".join((curves[0].parent / "log.0").read_text().split())
    assert f"Batch norm is synchronized over 2 processes: {NORM[method]}." in said


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on two processes that nothing happened to."""
    folder = tmp_path_factory.mktemp("pair")
    finish(start_ranks(arguments(folder / "run"), folder / "log"), folder / "log")
    return folder / "run"


def arguments(out: Path, *more: str) -> list[str]:
    return command(out, "--method", "mocov2", "--epochs", "4", "--devices", "2", "--accelerator", "cpu", *more)


def finish(ranks: list[Any], log: Path) -> str:
    """Wait for the end of all, which must be a good one."""
    for number, rank in enumerate(ranks):
        rank.join(120)
        assert rank.exitcode == 0, log.with_name(f"{log.name}.{number}").read_text()
    return log.with_name(f"{log.name}.0").read_text()


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_rank_that_dies_ends_the_other_and_a_restart_goes_on(victim: int, pair: Path, tmp_path: Path) -> None:
    """As torchrun restarts it: the same command, without --resume."""
    out, log = tmp_path / "run", tmp_path / "log"
    ranks = start_ranks(arguments(out), log)
    wait_for(lambda: lines(out / "metrics.jsonl") >= 6, what="six steps")
    ranks[victim].kill()
    killed = time.monotonic()
    ranks[1 - victim].join(30)
    assert ranks[1 - victim].exitcode not in (0, None)
    assert time.monotonic() - killed < 10
    assert 4 <= last_state(out)[1] < 16
    said = log.with_name(f"log.{1 - victim}").read_text()
    assert f"mixview: process {1 - victim} stops because another process of the run has ended" in said
    assert "Traceback" not in said
    if victim == 1:
        assert RunDirectory.open(out).status["state"] == "failed"
    said = finish(start_ranks(arguments(out), log, restart=1), log)
    assert "Resuming from step" in said
    assert_same_runs(pair, out)


def test_a_signal_to_one_rank_stops_all_at_the_same_step(pair: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    ranks = start_ranks(arguments(out), log)
    wait_for(lambda: lines(out / "metrics.jsonl") >= 2, what="two steps")
    os.kill(ranks[1].pid or 0, signal.SIGTERM)
    assert "Stopped by a signal to another process at step" in finish(ranks, log)
    assert RunDirectory.open(out).status["state"] == "interrupted"
    finish(start_ranks(arguments(out, "--resume"), log), log)
    assert_same_runs(pair, out)


def test_an_error_on_one_rank_is_every_ranks(tmp_path: Path) -> None:
    """Losses that are not finite end all processes with the same sentence."""
    out, log = tmp_path / "run", tmp_path / "log"
    ranks = start_ranks(arguments(out, "--optimizer.name", "sgd", "--optimizer.lr", "1e30"), log)
    for number, rank in enumerate(ranks):
        rank.join(60)
        assert rank.exitcode == 1
        said = log.with_name(f"log.{number}").read_text()
        assert "mixview: the loss was not finite" in said
        assert "Traceback" not in said


# --- by the real commands ---------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]


def launch(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        return subprocess.Popen(words, cwd=ROOT, env=environment, stdout=output, stderr=output)


def mixview_command(words: list[str]) -> list[str]:
    return [sys.executable, "-m", "mixview.cli", *words]


def torchrun(options: list[str], words: list[str]) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *options, "-m", "mixview.cli", *words]


def children(parent: int) -> list[int]:
    found = Path(f"/proc/{parent}/task/{parent}/children")
    return [int(word) for word in found.read_text().split()] if found.exists() else []


def has_ended(process: int) -> bool:
    """Also when nobody has asked how: its name stays until then."""
    stat = Path(f"/proc/{process}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.slow
def test_devices_2_is_two_ranks(pair: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    process = launch(mixview_command(arguments(out)), log)
    assert process.wait(180) == 0, log.read_text()
    assert_same_runs(pair, out)


@pytest.mark.slow
def test_devices_2_ends_when_a_rank_dies(pair: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    process = launch(mixview_command(arguments(out)), log)
    wait_for(lambda: lines(out / "metrics.jsonl") >= 6, 120, "six steps")
    os.kill(children(process.pid)[0], signal.SIGKILL)
    assert process.wait(15) != 0
    resumed = launch(mixview_command(arguments(out, "--resume")), log)
    assert resumed.wait(180) == 0, log.read_text()
    assert_same_runs(pair, out)


@pytest.mark.slow
def test_devices_2_ends_when_the_first_dies_before_they_met(tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    process = launch(mixview_command(arguments(out)), log)
    wait_for(lambda: children(process.pid), 120, "the second process")
    (other,) = children(process.pid)
    process.kill()
    process.wait()
    wait_for(lambda: has_ended(other), 60, "the end of the second process")


@pytest.mark.slow
def test_two_nodes_are_two_ranks(pair: Path, tmp_path: Path) -> None:
    """Two torchrun agents on loopback, one process each."""
    out, port = tmp_path / "run", free_port()
    words = command(out, "--method", "mocov2", "--epochs", "4", "--accelerator", "cpu")
    agents = []
    for node in range(2):
        options = ["--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(node)]
        options += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
        agents.append(launch(torchrun(options, words), tmp_path / f"log.{node}"))
    for node, agent in enumerate(agents):
        assert agent.wait(240) == 0, (tmp_path / f"log.{node}").read_text()
    assert_same_runs(pair, out)


@pytest.mark.slow
def test_torchrun_restarts_a_run_that_lost_a_rank(pair: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    options = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    agent = launch(torchrun(options, arguments(out)), log)
    wait_for(lambda: lines(out / "metrics.jsonl") >= 6, 120, "six steps")
    os.kill(children(agent.pid)[1], signal.SIGKILL)
    assert agent.wait(240) == 0, log.read_text()
    assert "Going on from step" in log.read_text()
    assert len(RunDirectory.open(out).environment["resumed"]) == 1
    assert_same_runs(pair, out)
