"""The launcher of this process and its peers, and the end of this process when one of them dies."""

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch.distributed as dist

from mixview.io.environment import process_rank as process_rank


class Launcher(NamedTuple):
    """The program that started the processes of a run before mixview ran."""

    name: str
    devices: int
    """Processes on each machine."""
    nodes: int
    """Machines."""

    def check_agrees(self, devices: int | str, nodes: int | str) -> None:
        """Raise if settings say something else."""
        for name, setting, started in (("devices", devices, self.devices), ("nodes", nodes, self.nodes)):
            if str(setting) not in ("auto", "-1", str(started)):
                raise ValueError(
                    f"--{name} is {setting}, but {self.name} has started {self.devices} processes on each of "
                    f"{self.nodes} machines: leave --{name} out, or make it {started}"
                )


class LostProcess(RuntimeError):
    """Another process of the run has ended, and this one cannot continue alone."""


def launcher(environment: Mapping[str, str] = os.environ) -> Launcher | None:
    """torchrun or SLURM's srun, where one of them has started this process; None where mixview starts its own."""
    if "TORCHELASTIC_RUN_ID" in environment:
        each = int(environment["LOCAL_WORLD_SIZE"])
        return Launcher("torchrun", each, int(environment["WORLD_SIZE"]) // each)
    # As in Fabric: in an interactive shell within an allocation nothing has been started yet.
    if "SLURM_NTASKS" in environment and environment.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        nodes = int(environment.get("SLURM_NNODES") or 1)
        return Launcher("srun", int(environment["SLURM_NTASKS"]) // nodes, nodes)
    return None


def is_restarted() -> bool:
    """Return True if torchrun has started this process in place of one that died, by the same command."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0) > 0


def reinit_process_group(device: str) -> None:
    """After a restart by torchrun, rejoin the process group under a name of this attempt's own.

    Its agent keeps one store over all attempts, in which Fabric's processes would find the addresses of dead ones.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT") or "0"
    if attempt == "0" or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world_size > 1 and not dist.is_initialized():
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        agent = dist.TCPStore(*address, world_size, is_master=False)  # type: ignore[attr-defined, unused-ignore]
        name = dist.PrefixStore(f"mixview/{attempt}", agent)  # type: ignore[attr-defined, unused-ignore]
        dist.init_process_group("nccl" if device == "cuda" else "gloo", store=name, rank=rank, world_size=world_size)


def exit_with_parent() -> None:
    """A process that mixview itself has started for a device ends when the one that started it dies.

    Once they have met, the next collective notices a death; before, one would wait for the other for half an hour.
    """
    if launcher() is None and os.environ.get("LOCAL_RANK", "0") not in ("", "0"):
        exit_when_orphaned()


def exit_when_orphaned(parent: int | None = None) -> None:
    """End this process, as a kill would, soon after the one that started it has died.

    Args:
        parent: the one that started it; by default the parent of now, which is another if that one is dead already.
    """
    parent = os.getppid() if parent is None else parent

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=follow, name="end with parent", daemon=True).start()


def require_main_guard() -> None:
    """Raise in a process that is being started, and calls mixview because it imports the script that started it."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing itself checks
        raise ValueError(
            "a worker process imports the script that started it, which calls mixview again: put the calls under "
            '`if __name__ == "__main__":`'
        )


TRAINING = threading.Lock()
"""Held while this process trains: random numbers, signals and connections belong to the whole process."""


@contextmanager
def one_training_per_process() -> Iterator[None]:
    """Keep a second training out of this process."""
    require_main_guard()
    if not TRAINING.acquire(blocking=False):
        raise ValueError("this process is training already, and two would share random numbers: use a process for each")
    try:
        yield
    finally:
        TRAINING.release()


@contextmanager
def explain_lost_peer() -> Iterator[None]:
    """Turn an error of the processes' connection into one sentence with its remedy."""
    try:
        yield
    except RuntimeError as error:
        if not is_lost_connection(error):
            raise
        rank = process_rank()
        raise LostProcess(
            f"process {rank} stops because another process of the run has ended or cannot be reached: its last "
            "message says why; --resume continues from the last checkpoint"
        ) from error


def is_lost_connection(error: RuntimeError) -> bool:
    """Return True if an error says that another process is gone: gloo's are plain RuntimeErrors."""
    signs = ("gloo", "Connection closed by peer", "Connection reset by peer", "NCCL", "Broken pipe")
    return isinstance(error, dist.DistError) or any(sign in str(error) for sign in signs)
