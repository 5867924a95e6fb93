"""Applies every mutation of `tests/mutations.py` to a copy of the working tree and runs the tests that should notice.

    python -m tests.mutate                      # all of them; `make mutate`
    python -m tests.mutate --only recipes       # those whose file, text or tests contain this
    python -m tests.mutate --tests-from v0.1    # by the tests of another revision
    python -m tests.mutate --list

Prints one line per mutation, and the survivors with what was changed. Ends with an error when fewer than `GOAL` of them
are killed. A mutation that runs into the time limit is killed.

Tests run in forks of this process, which has imported the large libraries already and nothing of mixview: that is most
of the time that a short test takes.
"""

import argparse
import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import EllipsisType, ModuleType
from typing import NamedTuple

from tests.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parent.parent
GOAL = 0.95
TIME_LIMIT = 300
"""Seconds after which a mutated test is stopped: it noticed."""
PASSED, FAILED, INTERRUPTED = 0, 1, 2
"""Exit codes of pytest. Interrupted is an error while it imports tests; any other code is a mistake of the list."""
LIBRARIES = (
    "torch",
    "torchvision.transforms.v2",
    "lightning_fabric",
    "sklearn.svm",
    "scipy.stats",
    "numba",
    "timm",
    "hypothesis",
    "pytest",
)
"""What most tests import. None of them starts a thread, which a fork would lose."""


class Outcome(NamedTuple):
    """What became of a mutation."""

    mutation: Mutation
    killed: bool
    seconds: float
    note: str
    """The first test that failed, or why there is none."""


class Sandbox:
    """A copy of the working tree in which files may be broken, and the tests that run in it, one set at a time."""

    def __init__(self, root: Path, tests_from: str | None = None) -> None:
        self.root = root
        self.clock = int(time.time())
        self.process: int | None = None
        self.began = 0.0
        copy_tree(ROOT, root)
        if tests_from is not None:
            shutil.rmtree(root / "tests")
            archive = subprocess.run(
                ["git", "archive", tests_from, "tests"], cwd=ROOT, check=True, stdout=subprocess.PIPE
            ).stdout
            subprocess.run(["tar", "-x"], cwd=root, check=True, input=archive)

    def existing(self, tests: Sequence[str]) -> list[str]:
        """The tests whose files are there: another revision may lack some."""
        return [test for test in tests if (self.root / test.partition("::")[0]).exists()]

    def write(self, file: Path, text: str) -> None:
        """Replace a file's text, at a time of its own: Python tells compiled code by its source's time in seconds."""
        file.write_text(text, encoding="utf-8")
        self.clock += 2
        os.utime(file, (self.clock, self.clock))

    def start(self, tests: Sequence[str]) -> None:
        """Run these tests in a process of their own."""
        self.began = time.monotonic()
        sys.stdout.flush()
        self.process = os.fork()
        if self.process == 0:
            code = 70
            try:
                code = self.run_here(tests)
            finally:
                os._exit(code)

    def run_here(self, tests: Sequence[str]) -> int:
        """What the process does: become pytest in the sandbox."""
        os.setsid()
        os.chdir(self.root)
        output = os.open(self.root / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        os.environ |= {"PYTHONPATH": str(self.root), "NUMBA_CACHE_DIR": str(self.root / ".numba")}
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # no test needs one, and they take seconds
        os.environ.pop("PYTEST_ADDOPTS", None)
        sys.path[:] = [str(self.root), *(each for each in sys.path if each not in ("", str(ROOT)))]
        for name in [name for name in sys.modules if name.partition(".")[0] in ("mixview", "tests")]:
            del sys.modules[name]
        sys.modules["__main__"] = ModuleType("__main__")  # processes that a test spawns would run this one's again
        code = int(importlib.import_module("pytest").main(["-x", "-q", "--no-header", "--tb=line", *tests]))
        sys.stdout.flush()
        return code

    def poll(self) -> int | EllipsisType | None:
        """The exit code of pytest, None when it took too long, … while it runs."""
        assert self.process is not None
        process, status = os.waitpid(self.process, os.WNOHANG)
        late = time.monotonic() - self.began > TIME_LIMIT
        if not process and not late:
            return ...
        if not process:
            with contextlib.suppress(ProcessLookupError):  # it may not have its own group yet
                os.killpg(self.process, signal.SIGKILL)
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
        self.process = None
        return None if not process else os.waitstatus_to_exitcode(status)

    def output(self) -> str:
        """What the last tests printed."""
        return (self.root / "output.txt").read_text(encoding="utf-8", errors="replace")

    def judge(self, mutation: Mutation) -> Iterator[Outcome | None]:
        """Whether the tests of a mutation notice it: None while they run, then the outcome."""
        tests = self.existing(mutation.tests)
        if not tests:
            yield Outcome(mutation, False, 0.0, "none of its tests is there")
            return
        file = self.root / mutation.file
        original = file.read_text(encoding="utf-8")
        self.write(file, mutation.apply(original))
        self.start(tests)
        while (code := self.poll()) is ...:
            yield None
        seconds = time.monotonic() - self.began
        self.write(file, original)
        lines = self.output().strip().splitlines() or [""]
        if code not in (PASSED, FAILED, INTERRUPTED, None) and code > 0:  # below 0: a signal, a crash
            raise SystemExit(f"pytest ended with code {code} under {mutation.title}:\n" + "\n".join(lines[-30:]))
        named = [line.split(" - ")[0] for line in lines if line.startswith(("FAILED ", "ERROR "))]
        note = f"took more than {TIME_LIMIT} s" if code is None else named[0] if named else lines[-1]
        yield Outcome(mutation, code != PASSED, seconds, note)


def copy_tree(source: Path, target: Path) -> None:
    """Everything that git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=source,
        check=True,
        stdout=subprocess.PIPE,
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        if name.startswith("docs/") or not (source / name).is_file():
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, target / name)


def check_unmutated(sandboxes: Sequence[Sandbox], mutations: Sequence[Mutation]) -> None:
    """Stop when the tests do not pass as they are: they would kill everything."""
    tests = sorted({test for mutation in mutations for test in sandboxes[0].existing(mutation.tests)})
    files = {test for test in tests if "::" not in test}
    tests = [test for test in tests if test in files or test.partition("::")[0] not in files]
    parts = [tests[number :: len(sandboxes)] for number in range(len(sandboxes))]
    running = [sandbox for sandbox, part in zip(sandboxes, parts, strict=True) if part]
    for sandbox, part in zip(running, parts, strict=False):
        sandbox.start(part)
    for sandbox in running:
        _, status = os.waitpid(sandbox.process or 0, 0)
        if status:
            raise SystemExit(f"the tests do not pass without any mutation:\n{sandbox.output()[-5000:]}")


def judge_all(sandboxes: Sequence[Sandbox], mutations: Sequence[Mutation]) -> Iterator[Outcome]:
    """All outcomes as they come, as many at a time as there are sandboxes."""
    waiting = list(reversed(mutations))
    running: dict[Sandbox, Iterator[Outcome | None]] = {}
    while waiting or running:
        for sandbox in sandboxes:
            if sandbox not in running and waiting:
                running[sandbox] = sandbox.judge(waiting.pop())
            if sandbox in running and (outcome := next(running[sandbox])) is not None:
                del running[sandbox]
                yield outcome
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PATTERN", help="mutations whose file, text or tests contain this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutations at a time")
    parser.add_argument("--tests-from", metavar="REVISION", help="use the tests of this git revision")
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests without a mutation first")
    parser.add_argument("--list", action="store_true", help="print the mutations and do nothing")
    options = parser.parse_args()
    chosen = [each for each in MUTATIONS if options.only is None or options.only in each.text]
    if not chosen:
        raise SystemExit(f"no mutation contains {options.only!r}")
    if options.list:
        for mutation in chosen:
            print(mutation.title)
        print(f"{len(chosen)} mutations")
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: threads do not survive a fork
    for name in LIBRARIES:
        importlib.import_module(name)
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="mixview-mutate-") as folder:
        count = max(1, min(options.jobs, len(chosen)))
        sandboxes = [Sandbox(Path(folder) / str(number), options.tests_from) for number in range(count)]
        if not options.unchecked:
            print("the tests without any mutation …", flush=True)
            check_unmutated(sandboxes, chosen)
        for outcome in judge_all(sandboxes, chosen):
            outcomes.append(outcome)
            state = "killed  " if outcome.killed else "SURVIVED"
            print(f"{state} {outcome.seconds:5.0f} s  {outcome.mutation.title}", flush=True)
            print(f"                  {outcome.note.removeprefix('FAILED ')}", flush=True)
    report(outcomes)


def report(outcomes: Sequence[Outcome]) -> None:
    """The survivors and the total; an error when there are too many."""
    survivors = [each for each in outcomes if not each.killed]
    for outcome in survivors:
        print(f"\nSURVIVED {outcome.mutation.file}\n- {outcome.mutation.old}\n+ {outcome.mutation.new}")
    killed = len(outcomes) - len(survivors)
    print(f"\n{killed} of {len(outcomes)} mutations killed ({killed / len(outcomes):.0%})")
    if killed < GOAL * len(outcomes):
        raise SystemExit(f"fewer than {GOAL:.0%}: strengthen the tests that are named beside the survivors")


if __name__ == "__main__":
    main()
