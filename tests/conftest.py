"""What holds for all tests.

One thread everywhere, here and in every process that a test starts: runs in this process are compared bit for bit with
runs in others, and sums depend on the number of threads; and OpenMP, once it has several, does not survive a fork.
Compiled kernels are kept from one run of the tests to the next, in pytest's own cache; without one (`-p
no:cacheprovider`) they are compiled for each run. Tests that need real images are marked (`needs_data`), and skip where
there are none: the end of the run says how many.
"""

import os
import sys
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import pytest
import torch

torch.set_num_threads(1)

# Modules stay compiled: every process of the tests would compile them again, and their assertions, which takes longer.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# No test cuts the power, and a kill loses nothing that was written: a run would wait for the disk thirty times.
os.fsync = lambda descriptor: None


def pytest_configure(config: pytest.Config) -> None:
    if "NUMBA_CACHE_DIR" in os.environ:
        return
    if config.pluginmanager.has_plugin("cacheprovider"):
        assert config.cache is not None
        os.environ["NUMBA_CACHE_DIR"] = str(config.cache.mkdir("numba"))
    else:
        kernels = tempfile.TemporaryDirectory(prefix="mixview-numba-")
        config.add_cleanup(kernels.cleanup)
        os.environ["NUMBA_CACHE_DIR"] = kernels.name


SLOWEST = (
    "test_documented_commands.py",
    "hostile/test_code_execution.py",
    "hostile/test_options.py",
    "train/test_pretraining.py",
    "train/test_faults.py",
    "train/test_memory.py",
    "test_extension_points.py",
    "commands/test_selftest.py",
    "experiments/test_runner.py",
    "experiments/test_own_code.py",
    "test_examples.py",
    "evaluate/test_training_runs.py",
    "encoders/export/test_command.py",
    "train/test_scale_out.py",
    "test_distributed.py",
    "evaluate/test_protocols.py",
    "evaluate/detection/test_protocol.py",
    "hostile/test_fuzzing.py",
    "hostile/test_bombs.py",
)
"""Files that take a minute or more: they come first, so that no process is left alone with one of them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(SLOWEST)}
    tests = Path(__file__).parent
    items.sort(key=lambda item: places.get(item.path.relative_to(tests).as_posix(), len(SLOWEST)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("real_images") and not os.environ.get("MIXVIEW_DATA"):
        pytest.skip("needs real images: set MIXVIEW_DATA to the folder that has them")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if "real_images" in report.keywords]
    if skipped:
        count = f"Tests skipped because they need real images: {len(skipped)}."
        terminalreporter.write_line(f"{count} Set MIXVIEW_DATA to the folder that has them.")
