"""What holds for all tests.

One thread everywhere, here and in every process that a test starts: runs in this process are compared bit for bit with
runs in others, and sums depend on the number of threads; and OpenMP, once it has several, does not survive a fork.
Compiled kernels are kept from one run of the tests to the next, in pytest's own cache.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import pytest
import torch

torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    if config.cache is not None:
        os.environ.setdefault("NUMBA_CACHE_DIR", str(config.cache.mkdir("numba")))
