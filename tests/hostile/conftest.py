"""The server of the cases, a sandbox for each, and one small finished run that they get copies of."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.harness import Sandbox, Server
from tests.hostile.writing import pretraining

if sys.platform != "linux":
    collect_ignore_glob = ["test_*.py"]  # /proc, setrlimit and audit events of Linux are what the harness is made of


QUICK = 3
"""Cases of one test function that `make test` runs, spread over all of them; `make test-slow` runs the others."""


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        if Path(__file__).parent in item.path.parents and item.path.name not in ("test_fuzzing.py", "test_harness.py"):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in functions.values():
        quick = [case for case in cases if not case.get_closest_marker("slow")]
        kept = {round(number * (len(quick) - 1) / max(1, QUICK - 1)) for number in range(QUICK)}
        for number, case in enumerate(quick):
            if number not in kept:
                case.add_marker("slow")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The process that cases are forked from."""
    started = Server(os.environ["NUMBA_CACHE_DIR"], tmp_path_factory.mktemp("server"))
    yield started
    started.close()


@pytest.fixture
def box(server: Server, tmp_path: Path) -> Iterator[Sandbox]:
    """A sandbox; large ones do not pile up."""
    yield Sandbox(tmp_path / "box", server)
    shutil.rmtree(tmp_path / "box", ignore_errors=True)


PRETRAIN = (*pretraining(16, "--data_options", '{"count": 32, "size": 16}', "--monitor.eval_every", "0"), "scenes")
"""A pretraining of a second."""


@pytest.fixture(scope="session")
def finished(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of 32 images, made once; cases work on copies."""
    made = Sandbox(tmp_path_factory.mktemp("finished") / "box", server)
    made.run(*PRETRAIN, "--out", "out", seconds=60).succeeded(seconds=60)
    return made.work / "out"


@pytest.fixture
def run(box: Sandbox, finished: Path) -> Path:
    """A copy of the finished run, `run` in the working folder."""
    return box.copy(finished, "run")
