"""The harness itself: what it is there to notice, it notices."""

from pathlib import Path

import pytest

from tests.hostile.harness import Sandbox


def trespass(kind: str, folder: str) -> None:
    """Runs in a sandbox, and does what no command may."""
    import os
    import subprocess
    import time

    canary = Path(folder) / "canary"
    match kind:
        case "write":
            (canary / "new.txt").write_text("x")
        case "truncate":
            os.truncate(canary / "precious.txt", 0)
        case "link":
            (Path(folder) / "work" / "out").symlink_to(canary)
            (Path(folder) / "work" / "out" / "new.txt").write_text("x")
        case "program":
            subprocess.run(["true"], check=True)
        case "system":
            os.system("true")
        case "signal":
            os.abort()
        case "hang":
            time.sleep(60)
        case "memory":
            _ = bytearray(1500 << 20)
        case "error":
            raise KeyError("x")
        case "connect":
            import contextlib
            import socket

            with socket.socket() as opened, contextlib.suppress(OSError):
                opened.settimeout(0.1)
                opened.connect(("127.0.0.1", 9))


@pytest.mark.parametrize(
    "kind", ["write", "truncate", "link", "program", "system", "signal", "hang", "memory", "error", "connect"]
)
def test_notices(kind: str, box: Sandbox) -> None:
    outcome = box.start(
        {"call": "tests.hostile.test_harness:trespass", "options": {"kind": kind, "folder": str(box.folder)}},
        [kind],
        seconds=1.0 if kind == "hang" else 10.0,
    )
    with pytest.raises(AssertionError):
        outcome.harmless()


def test_a_good_command_is_harmless(box: Sandbox) -> None:
    box.run("data", "show", "scenes", "--out", "out/a.png", "--count", "2").succeeded("wrote")


def test_a_finished_run(run: Path) -> None:
    assert (run / "encoder.safetensors").is_file()
