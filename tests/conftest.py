"""Compiled kernels are kept from one run of the tests to the next, in pytest's own cache."""

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if config.cache is not None:
        os.environ.setdefault("NUMBA_CACHE_DIR", str(config.cache.mkdir("numba")))
