"""Processes of tests, forked from one that has imported torch and mixview, which takes seconds, and nothing else."""

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.multiprocessing as mp

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    ["mixview.train.pretraining", "mixview.cli", "mixview.evaluate.base", "tests.train.running", "torchvision"]
)


def spawn(work: Callable[..., None], arguments: tuple[Any, ...], nprocs: int) -> None:
    """As torch's `spawn`: `work(rank, *arguments)` in each of these processes."""
    mp.start_processes(work, arguments, nprocs=nprocs, start_method="forkserver")


class Finished(NamedTuple):
    """What became of a command."""

    returncode: int
    stdout: str
    stderr: str


def run_mixview(folder: Path, *words: str, seconds: float = 300, **variables: str) -> Finished:
    """`python -P -m mixview` with these arguments in a folder, with these variables of the environment changed."""
    environment = os.environ | variables
    with tempfile.TemporaryDirectory() as place:
        logs = [Path(place, name) for name in ("stdout", "stderr")]
        process = context.Process(target=become_mixview, args=(folder, words, environment, *logs))
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"mixview {' '.join(words)} takes more than {seconds:.0f} s")
        return Finished(process.exitcode, *(log.read_text(errors="replace") for log in logs))


def become_mixview(
    folder: Path, words: tuple[str, ...], environment: Mapping[str, str], stdout: Path, stderr: Path
) -> None:
    """What the process of a command does."""
    from mixview.cli import main

    for number, log in ((1, stdout), (2, stderr)):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), number)
    os.setpgid(0, 0)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = [each for each in sys.path if each not in ("", str(folder))]
    sys.argv = ["mixview", *words]
    multiprocessing.set_start_method("fork", force=True)  # for data loaders, as ever
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(words)
