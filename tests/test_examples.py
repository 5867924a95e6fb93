"""The examples run, as a user would run them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    "command",
    [
        ["demo.py", "--count", "128", "--epochs", "2"],
        ["plain_pytorch.py", "--steps", "3"],
        ["lightning_trainer.py", "--epochs", "1"],
        ["with_lightly.py", "--steps", "3"],
    ],
    ids=lambda c: c[0],
)
def test_example_runs(command: list[str], tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / command[0]), *command[1:]],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    if command[0] == "demo.py":
        assert all(name in run.stdout for name in ("raw pixels", "random small", "simclr sim", "simclr wbsim"))
        assert run.stdout.strip().endswith("Look at demo/report.html")
        page = (tmp_path / "demo" / "report.html").read_text()
        assert all(f'"name":"{name}"' in page for name in ("sim", "wbsim", "raw pixels"))
        assert "data:image/jpeg" in page
        # The paper's numbers are of ImageNet, and these are drawn scenes.
        assert "paper" not in run.stdout
        assert '"paper_cost":[]' in page
        assert '"paper":null' in page
        assert '"paper":{' not in page
        return
    assert "right class of the nearest neighbor" in run.stdout
    if command[0] == "plain_pytorch.py":
        assert (tmp_path / "demo" / "mixtures.png").stat().st_size > 1000


def test_every_example_is_tested() -> None:
    commands = test_example_runs.pytestmark[0].args[1]
    assert {path.name for path in EXAMPLES.glob("*.py")} == {command[0] for command in commands} | {"stripes.py"}
