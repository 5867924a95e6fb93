"""Cases: a command of mixview in a sandbox, what it did, and the conditions that hold for every one of them.

    def test_something(box: Sandbox) -> None:
        box.write("recipe.yaml", "data_options: {count: {class_path: os.system}}")
        box.run("pretrain", "--recipe", "recipe.yaml", "--out", "out").rejected("class_path")

A sandbox is a folder of a few: `work`, where the command runs and may write what its line names (`out` and what else
`writes` says), its own home, caches and temporary files, and a `canary`, which nothing may touch.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

from tests.hostile.watching import MARKER

ROOT = Path(__file__).parent.parent.parent
SECONDS = 10.0
GIGABYTE = 1 << 30
TRACEBACK = "Traceback (most recent call last)"
LOGS = ("stdout", "stderr", "trespasses", "baseline")
LINES = 3
"""Lines of an error: one sentence, wrapped perhaps, and one of usage."""


def sometimes(values: Iterable[Any], quick: Iterable[Any]) -> list[Any]:
    """Parameters, of which all but a few are for `make test-slow`."""
    quick = list(quick)
    return [each if each in quick else pytest.param(each, marks=pytest.mark.slow) for each in values]


class Server:
    """The process that cases are forked from."""

    def __init__(self, kernels: str, folder: Path) -> None:
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "NUMBA_CACHE_DIR": kernels,
            "MPLCONFIGDIR": str(folder / "matplotlib"),
            "MPLBACKEND": "Agg",
            "MIXVIEW_CACHE": str(folder / "cache"),
            "HOME": str(folder),
            "TERM": "dumb",
        }
        for name in ("COLUMNS", "MIXVIEW_DATA", "PYTEST_CURRENT_TEST", "FORCE_COLOR"):
            environment.pop(name, None)
        self.errors = (folder / "server.txt").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.hostile.serving"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        assert self.answer() == {"ready": True}

    def answer(self) -> dict[str, Any]:
        """The next line from the server."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process that forks cases has ended: {Path(self.errors.name).read_text()[-2000:]}")
        answered: dict[str, Any] = json.loads(line)
        return answered

    def run(self, case: dict[str, Any]) -> dict[str, Any]:
        """Run a case."""
        assert self.process.stdin is not None
        print(json.dumps(case), file=self.process.stdin, flush=True)
        return self.answer()

    def close(self) -> None:
        """End the server."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()  # nothing is lost, and an interpreter with all of these libraries takes seconds to end
        self.process.wait(30)
        self.process.stdin.close()
        self.process.stdout.close()
        self.errors.close()


@dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    arguments: Sequence[str]
    status: int
    """The exit status; below 0 the signal that ended it."""
    seconds: float
    memory: int
    """Bytes at its largest, beyond what it started with."""
    stdout: str
    stderr: str
    trespasses: tuple[str, ...]
    """What the audit hook and the snapshots saw: writes outside, programs, imports, connections."""
    hung: bool

    @property
    def story(self) -> str:
        """For a failed assertion."""
        errors = self.stderr if len(self.stderr) < 3000 else f"{self.stderr[:1000]} … {self.stderr[-2000:]}"
        return (
            f"mixview {' '.join(self.arguments)}\nstatus {self.status}, {self.seconds:.1f} s, "
            f"{self.memory / 1e6:.0f} MB\n{errors}\n{self.stdout[-1000:]}"
        )

    def harmless(self, *, signal: int | None = None, seconds: float = SECONDS) -> Self:
        """Check the conditions that hold for every case.

        Args:
            signal: that the case was sent, and may have ended by.
            seconds: after which it counts as hanging.
        """
        assert not self.trespasses, "\n".join(self.trespasses[:10]) + "\n" + self.story
        assert not self.hung, f"hangs for more than {self.seconds:.0f} s\n{self.story}"
        assert self.status >= 0 or -self.status == signal, f"died of signal {-self.status}\n{self.story}"
        assert TRACEBACK not in self.stderr + self.stdout, f"a traceback\n{self.story}"
        assert self.memory < GIGABYTE, f"{self.memory / 1e9:.1f} GB of memory\n{self.story}"
        assert self.seconds < seconds, f"took {self.seconds:.0f} s\n{self.story}"
        return self

    def rejected(self, *says: str, lines: int = LINES, stdout: bool = False) -> Self:
        """Check that it ended with an error of one sentence that says all of these (regular expressions)."""
        self.harmless()
        assert self.status in (1, 2), f"status {self.status}, not an error\n{self.story}"
        printed = [line for line in self.stderr.splitlines() if line.strip()]
        begins = [number for number, line in enumerate(printed) if line.startswith("mixview: ")]
        printed = printed[begins[-1] :] if begins else printed  # what a training said of itself before is no error
        assert 1 <= len(printed) <= lines, f"{len(printed)} lines of error\n{self.story}"
        text = " ".join(self.stderr.split()) + (self.stdout if stdout else "")
        for each in says:
            assert re.search(each, text, re.IGNORECASE), f"says nothing of {each!r}\n{self.story}"
        return self

    def succeeded(self, *says: str, seconds: float = SECONDS) -> Self:
        """Check that it ended well, and said all of these (regular expressions) on either output."""
        self.harmless(seconds=seconds)
        assert self.status == 0, f"status {self.status}\n{self.story}"
        text = " ".join((self.stdout + self.stderr).split())
        for each in says:
            assert re.search(each, text, re.IGNORECASE), f"says nothing of {each!r}\n{self.story}"
        return self

    def answered(self, *says: str) -> Self:
        """Check that it ended well, or with an error of one sentence; either way that it says all of these."""
        return self.succeeded(*says) if self.status == 0 else self.rejected(*says, stdout=True)


class Sandbox:
    """The folders of one case."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder = folder
        self.server = server
        self.work = folder / "work"
        self.canary = folder / "canary"
        self.home = folder / "home"
        self.marker = folder / MARKER
        self.count = 0
        for name in ("work/out", "home", "tmp", "cache", "canary/inner", "logs"):
            (folder / name).mkdir(parents=True)
        (self.canary / "precious.txt").write_text("precious")
        (self.canary / "inner" / "precious.bin").write_bytes(bytes(range(256)))
        self.command = f"touch {self.marker}"

    def write(self, name: str, content: str | bytes | Any) -> Path:
        """A file in the working folder: text, bytes, or anything else as JSON (which is YAML too)."""
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, str | bytes):
            content = json.dumps(content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape"))
        return path

    def copy(self, source: Path, name: str) -> Path:
        """A copy of a file or folder in the working folder."""
        target = self.work / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target, symlinks=True) if source.is_dir() else shutil.copy2(source, target)
        return target

    def call(self, function: str, **options: Any) -> Outcome:
        """Run a function of the tests, `module:function`, in the sandbox; it may take its time."""
        return self.start({"call": function, "options": options}, [function], seconds=options.pop("seconds", 3000.0))

    def run(self, *arguments: str, **options: Any) -> Outcome:
        """Run a command of mixview in the working folder; see `start` for options."""
        return self.start({"arguments": list(arguments)}, arguments, **options)

    def start(
        self,
        case: dict[str, Any],
        arguments: Sequence[str],
        *,
        writes: Iterable[str] = ("out",),
        servers: Iterable[tuple[str, int]] = (),
        environment: dict[str, str] | None = None,
        seconds: float = SECONDS,
        signal: int = 0,
        signal_when: Path | None = None,
        signal_after: float = 0.0,
        file_size: int | None = None,
        path: Sequence[str] = (),
    ) -> Outcome:
        """Run a case, watched.

        Args:
            case: what is run.
            arguments: to show.
            writes: what it may write to, besides its caches and temporary files, relative to the working folder.
            servers: host and port that it may connect to.
            environment: to change.
            seconds: after which it is ended, and counts as hanging.
            signal: to send to it.
            signal_when: once this exists.
            signal_after: and so many seconds have passed.
            file_size: the largest file that it can write, as on a full disk.
            path: of Python, in front of the usual.
        """
        self.count += 1
        logs = {name: self.folder / "logs" / f"{name}-{self.count}" for name in LOGS}
        own = {
            "HOME": self.home,
            "TMPDIR": self.folder / "tmp",
            "XDG_CACHE_HOME": self.folder / "cache",
            "MIXVIEW_CACHE": self.folder / "cache" / "mixview",
            "NUMBA_CACHE_DIR": self.folder / "cache" / "numba",
            "TORCH_HOME": self.folder / "cache" / "torch",
            "HF_HOME": self.folder / "cache" / "huggingface",
        }
        allowed = [self.folder / name for name in ("tmp", "cache", "logs")]
        allowed += [Path(os.path.normpath(self.work / name)) for name in writes]
        before = self.snapshot(allowed)
        answer = self.server.run(
            {
                **case,
                **{name: str(path) for name, path in logs.items()},
                "folder": str(self.work),
                "sandbox": str(self.folder),
                "environment": {name: str(value) for name, value in own.items()} | (environment or {}),
                "unset": ["MIXVIEW_DATA", "PYTHONPATH"],
                "allowed": [str(each) for each in allowed],
                "servers": list(servers),
                "seconds": seconds,
                "memory": 6 << 30,
                "close_stdin": True,
                "signal": signal,
                "signal_when": str(signal_when) if signal_when else "",
                "signal_after": signal_after,
                "file_size": file_size,
                "path": list(path),
            }
        )
        trespasses = logs["trespasses"].read_text().splitlines() if logs["trespasses"].exists() else []
        after = self.snapshot(allowed)
        trespasses += [
            f"{'changed' if name in before and name in after else 'made' if name in after else 'removed'}: {name}"
            for name in sorted(before.keys() | after.keys())
            if before.get(name) != after.get(name)
        ]
        if self.marker.exists():
            trespasses.insert(0, "code ran: it left its marker")
        return Outcome(
            arguments=arguments,
            status=answer["status"],
            seconds=answer["seconds"],
            memory=answer["memory"],
            stdout=logs["stdout"].read_text(errors="surrogateescape"),
            stderr=logs["stderr"].read_text(errors="surrogateescape"),
            trespasses=tuple(dict.fromkeys(trespasses)),
            hung=answer["hung"],
        )

    def snapshot(self, allowed: Sequence[Path]) -> dict[str, tuple[Any, ...]]:
        """Everything in the sandbox outside of these folders: kind, mode, and content."""
        seen: dict[str, tuple[Any, ...]] = {}
        skipped = {str(each) for each in allowed}
        for folder, folders, files in os.walk(self.folder):
            folders[:] = [
                name for name in folders if f"{folder}/{name}" not in skipped or Path(folder, name).is_symlink()
            ]
            for name in [*folders, *files]:
                path = Path(folder, name)
                if str(path) in skipped and not path.is_symlink():
                    continue
                with contextlib.suppress(FileNotFoundError):
                    status = path.lstat()
                    content: Any = None
                    if stat.S_ISLNK(status.st_mode):
                        content = os.readlink(path)  # noqa: PTH115
                    elif stat.S_ISREG(status.st_mode):
                        small = status.st_size < 1 << 20 and os.access(path, os.R_OK)
                        digest = hashlib.blake2b(path.read_bytes()).hexdigest() if small else None
                        content = status.st_size, digest
                    seen[os.fsencode(path.relative_to(self.folder)).decode("utf-8", "backslashreplace")] = (
                        status.st_mode,
                        content,
                    )
        return seen
