"""Who started a process, and with how many others."""

from pathlib import Path

import pytest
import torch.distributed as dist

from mixview.runs.devices import make_fabric
from mixview.runs.launching import Launcher, LostProcess, explain_lost_peer, launcher
from tests.train.running import assert_same_runs, command, free_port, start, start_ranks

TORCHRUN = {"TORCHELASTIC_RUN_ID": "a", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}
SRUN = {"SLURM_NTASKS": "16", "SLURM_NNODES": "2", "SLURM_PROCID": "3"}


def test_torchrun_and_srun_say_how_many_there_are() -> None:
    assert launcher({}) is None
    assert launcher(TORCHRUN) == ("torchrun", 8, 2)
    assert launcher(SRUN) == ("srun", 8, 2)
    assert launcher(SRUN | TORCHRUN) == ("torchrun", 8, 2)
    assert launcher(SRUN | {"SLURM_JOB_NAME": "bash"}) is None


@pytest.mark.parametrize(("devices", "nodes"), [("auto", "auto"), (8, 2), ("8", 2), (-1, "auto")])
def test_settings_may_repeat_what_the_launcher_says(devices: int | str, nodes: int | str) -> None:
    Launcher("torchrun", 8, 2).check_agrees(devices, nodes)


def test_settings_that_contradict_the_launcher_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"--devices is 4, but torchrun has started 8 processes on each of 2 machines"):
        make_fabric(devices=4, accelerator="cpu", precision="32-true")
    with pytest.raises(ValueError, match="leave --nodes out, or make it 2"):
        make_fabric(nodes=1, accelerator="cpu", precision="32-true")


def test_a_lost_connection_is_explained() -> None:
    with pytest.raises(LostProcess, match="another process of the run has ended"), explain_lost_peer():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1")
    with pytest.raises(LostProcess), explain_lost_peer():
        raise dist.DistNetworkError("no route")
    with pytest.raises(RuntimeError, match="shapes"), explain_lost_peer():
        raise RuntimeError("shapes do not fit")


def test_torchrun_and_srun_need_no_further_options(tmp_path: Path) -> None:
    """The same run on two processes, whoever started them."""
    words = ["--method", "mocov2", "--accelerator", "cpu"]
    ranks = start_ranks(command(tmp_path / "torchrun", *words), tmp_path / "torchrun.log")
    port = free_port()
    for rank in range(2):
        slurm = {
            "SLURM_JOB_ID": "12",
            "SLURM_JOB_NAME": "mixview",
            "SLURM_NTASKS": "2",
            "SLURM_NTASKS_PER_NODE": "2",
            "SLURM_NNODES": "1",
            "SLURM_NODELIST": "127.0.0.1",
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank),
            "SLURM_NODEID": "0",
            "MASTER_PORT": str(port),
        }
        ranks.append(start(command(tmp_path / "srun", *words), tmp_path / f"srun.log.{rank}", slurm))
    for rank in ranks:
        rank.join(120)
    assert [rank.exitcode for rank in ranks] == [0] * 4, [log.read_text() for log in tmp_path.glob("*.log.*")]
    assert_same_runs(tmp_path / "torchrun", tmp_path / "srun")
