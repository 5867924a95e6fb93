"""The tests themselves: they run without pytest's cache, and say what they left out."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_without_a_cache_and_without_real_images() -> None:
    """Neither may end the run, and what was skipped for want of images is said even where nearly nothing is."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MIXVIEW_DATA", "NUMBA_CACHE_DIR")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # no test needs one, and they take seconds
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-k", "test_cache or real"]
    command += ["tests/data/test_cache.py", "tests/data/sources/test_voc.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = "Tests skipped because they need real images: 1. Set MIXVIEW_DATA to the folder that has them."
    assert expected in done.stdout.splitlines()
