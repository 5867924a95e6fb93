import errno
import os
import pickle
import shutil
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mixview.io import atomic
from mixview.runs.checkpoints import CheckpointError, Checkpoints

posix = pytest.mark.skipif(os.name == "nt", reason="needs fork, limits or mounts")


def state(value: float = 1.0) -> dict[str, Any]:
    return {"method": OrderedDict(weight=torch.full((50, 50), value)), "step": 3, "rest": [1, "two", None, (3.0, True)]}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    elif how == "tampered":
        content[len(content) // 2] ^= 1
    elif how == "empty":
        content = bytearray()
    path.write_bytes(content)


# What is saved comes back


def test_round_trip(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.load_latest() is None
    path = checkpoints.save(state(2.0), 7)
    assert path.name == "step-000000007.pt"
    loaded, step = checkpoints.load_latest() or ({}, -1)
    assert step == 7
    assert torch.equal(loaded["method"]["weight"], torch.full((50, 50), 2.0))
    assert loaded["rest"] == [1, "two", None, (3.0, True)]
    assert Checkpoints.load(path)[1] == 7
    assert torch.load(path, weights_only=True)["step"] == 7  # plain torch reads it too


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (5, 10, 1_000_000_000, 2_000_000_000):
        checkpoints.save(state(), step)
    assert checkpoints.steps() == [1_000_000_000, 2_000_000_000]
    assert checkpoints.load_latest()[1] == 2_000_000_000


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(state(1.0), 5)
    checkpoints.save(state(2.0), 5)
    assert checkpoints.load_latest()[0]["method"]["weight"][0, 0] == 2


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_a_damaged_later_one_never_crowds_out_a_good_one(tmp_path: Path, keep: int) -> None:
    checkpoints = Checkpoints(tmp_path, keep=keep)
    for step in (300, 400):
        checkpoints.path(step).write_bytes(b"rubbish")
    checkpoints.save(state(), 250)
    assert checkpoints.steps() == [250]


def test_keep_at_least_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
        Checkpoints(tmp_path, keep=0)
    with pytest.raises(ValueError, match="step must be 0 or more, got -1"):
        Checkpoints(tmp_path).save({}, -1)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (np.float64(1), "float64"),
        (np.zeros(2), "ndarray"),
        (Path("x"), "Path"),
        ({1}, "set"),
        (torch.nn.ReLU(), "ReLU"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path, value: object, name: str) -> None:
    with pytest.raises(TypeError, match=rf"state\['a'\]\[1\] is of type .*{name}, which a checkpoint does not hold"):
        Checkpoints(tmp_path).save({"a": [0, value]}, 1)
    with pytest.raises(TypeError, match="has the key"):
        Checkpoints(tmp_path).save({"a": {(1, 2): 0}}, 1)
    assert names(tmp_path) == []


# What is damaged is named, and the one before is used


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("truncated", "is cut short"),
        ("tampered", "is damaged or was changed"),
        ("empty", "is not a checkpoint of mixview"),
    ],
)
def test_a_damaged_newest(tmp_path: Path, how: str, message: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1.0), 1)
    damage(checkpoints.save(state(2.0), 2), how)
    with pytest.warns(
        UserWarning, match=f"step-000000002.pt {message}.*; resuming from the checkpoint of step 1 instead"
    ):
        loaded, step = checkpoints.load_latest()
    assert step == 1
    assert loaded["method"]["weight"][0, 0] == 1
    damage(checkpoints.path(1), "truncated")
    with pytest.raises(CheckpointError) as caught:
        checkpoints.load_latest()
    assert "no checkpoint in" in str(caught.value)
    assert "step-000000002.pt" in str(caught.value)
    assert "step-000000001.pt is cut short" in str(caught.value)


def test_every_single_flipped_byte_is_found(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path).save({"weight": torch.arange(4)}, 1)
    content = path.read_bytes()
    for position in range(0, len(content), 7):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :])
        with pytest.raises(CheckpointError):
            Checkpoints.load(path)


class Evil:
    def __reduce__(self) -> Any:
        return (os.mkdir, ("evil",))


def test_nothing_loaded_runs_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mixview.runs.checkpoints.check_plain", lambda value, name: None)
    path = Checkpoints(tmp_path).save({"evil": Evil()}, 1)  # with a SHA-256 that is right
    with pytest.raises(CheckpointError, match="holds more than tensors and plain values, and was not loaded"):
        Checkpoints.load(path)
    assert not Path("evil").exists()


@pytest.mark.parametrize("foreign", ["text", "pickle", "torch", "folder"])
def test_a_foreign_file(tmp_path: Path, foreign: str) -> None:
    path = tmp_path / "other.pt"
    if foreign == "text":
        path.write_text("hello " * 100)
    elif foreign == "pickle":
        path.write_bytes(pickle.dumps(Evil()))
    elif foreign == "torch":
        torch.save({"state_dict": {}}, path)
    else:
        path.mkdir()
    with pytest.raises(
        CheckpointError, match=r"other.pt (is not a checkpoint|is cut short, or is not|cannot be read)"
    ) as e:
        Checkpoints.load(path)
    assert "\n" not in str(e.value)


def test_a_missing_file_and_a_later_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        Checkpoints.load(tmp_path / "step-000000001.pt")
    with monkeypatch.context() as patch:
        patch.setattr("mixview.runs.checkpoints.FORMAT", 9)
        path = Checkpoints(tmp_path).save(state(), 1)
    with pytest.raises(CheckpointError, match="has checkpoint format 9, and this mixview reads 1"):
        Checkpoints.load(path)


def test_other_files_are_let_be(tmp_path: Path) -> None:
    for name in ("notes.txt", "step-best.pt", "step-1.pt"):
        (tmp_path / name).write_text("mine")
    (tmp_path / ".step-000000004.pt.123.mixview-tmp").write_text("of a process that was killed")
    Checkpoints(tmp_path).load_latest()
    assert len(names(tmp_path)) == 4  # a reader deletes nothing
    Checkpoints(tmp_path, keep=1).save(state(), 5)
    assert names(tmp_path) == ["notes.txt", "step-000000005.pt", "step-1.pt", "step-best.pt"]


# A disk that fails


def failing(number: int) -> Any:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("where", ["sync", "replace", "verify"])
@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "No space left on device; free some space"), (errno.EACCES, "Permission denied; make the folder")],
)
def test_a_failing_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, number: int, remedy: str) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "sync", failing(number))
        with pytest.raises(CheckpointError, match="no earlier checkpoint exists"):
            checkpoints.save(state(), 1)
    checkpoints.save(state(1.0), 1)
    with monkeypatch.context() as patch:
        if where == "sync":
            patch.setattr(atomic, "sync", failing(number))
        elif where == "replace":
            patch.setattr(Path, "replace", failing(number))
        else:
            sync = atomic.sync
            patch.setattr(atomic, "sync", lambda fd: (sync(fd), os.pwrite(fd, b"\xff", 100))[0])
        with pytest.raises(CheckpointError) as caught:
            checkpoints.save(state(2.0), 2)
    text = str(caught.value)
    assert "step-000000002.pt" in text
    assert remedy in text if where != "verify" else "is damaged or was changed" in text
    assert text.endswith("then resume: the last good checkpoint, of step 1, is intact")
    assert names(tmp_path) == ["step-000000001.pt"]
    assert checkpoints.load_latest()[1] == 1


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("mine")
    with pytest.raises(CheckpointError, match="move away what is in its place"):
        Checkpoints(tmp_path / "checkpoints").save(state(), 1)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root writes anywhere")
def test_an_unwritable_folder(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(), 1)
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(CheckpointError, match=r"Permission denied; make the folder .* of step 1, is intact"):
            checkpoints.save(state(), 2)
    finally:
        tmp_path.chmod(0o755)


def python(code: str, *arguments: object, before: Sequence[str] = ()) -> str:
    """Run a script of its own, where it may fork, be limited and be killed."""
    command = [*before, sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


FULL_DISK = """
import sys, torch
from pathlib import Path
from mixview.runs.checkpoints import CheckpointError, Checkpoints

folder = Path(sys.argv[1])
checkpoints = Checkpoints(folder, keep=1)
checkpoints.save({"weight": torch.ones(1000)}, 1)
for count in (230_000, 300_000, 2_000_000):  # fails while torch writes, and while the last buffer is flushed
    try:
        checkpoints.save({"weight": torch.ones(count), "more": torch.ones(21_000)}, 2)
        sys.exit(f"{count} numbers were written")
    except CheckpointError as error:
        assert "No space left on device; free some space" in str(error), error
        assert "of step 1, is intact" in str(error), error
        assert [path.name for path in folder.iterdir()] == ["step-000000001.pt"]
state, step = checkpoints.load_latest()
assert step == 1 and state["weight"].sum() == 1000
checkpoints.save({"weight": torch.ones(1000)}, 3)
print("survived")
"""


@posix
@pytest.mark.parametrize("count", [230_000, 300_000, 2_000_000])
def test_a_file_that_may_not_grow(tmp_path: Path, count: int) -> None:
    import resource

    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(state(), 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="File too large; free some space on that disk, or raise its quota"):
            checkpoints.save({"weight": torch.ones(count), "more": torch.ones(21_000)}, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == ["step-000000001.pt"]
    assert checkpoints.load_latest()[1] == 1


@posix
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """On a disk of 1 MB in memory, which nobody else sees and which is gone with the process."""
    mount = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=1000000 none "$0" && exec "$@"', str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run([*mount, "true"], capture_output=True).returncode:
        pytest.skip("may not mount a small disk here")
    assert python(FULL_DISK, tmp_path, before=mount) == "survived"


# A process that is killed

# When to kill follows from what the child has reported and left on the disk, never from how long a save should take.
KILLS = """
import os, random, signal, sys, time, warnings
import torch
from pathlib import Path
from mixview.runs.checkpoints import Checkpoints

torch.set_num_threads(1)  # OpenMP does not survive a fork
warnings.simplefilter("error")  # no damaged checkpoint, not even a passed-over one
checkpoints = Checkpoints(Path(sys.argv[1]) / "kills", keep=1)
checkpoints.save({"weight": torch.zeros(100_000)}, 0)

def writing(child):
    return any(path.name.endswith(".mixview-tmp") for path in checkpoints.folder.iterdir())

def stop(child):
    os.kill(child, signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)

random.seed(0)
last, midway = 0, 0
for life in range(25):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)  # so that it ends with its parent, by a broken pipe
        step = last
        while True:
            os.write(write, b"%d\\n" % step)
            step += 1
            checkpoints.save({"weight": torch.full((100_000,), float(step))}, step)
    os.close(write)
    with os.fdopen(read) as pipe:
        began = time.perf_counter()
        promised = [int(pipe.readline()) for _ in range(1 + life % 3)]  # it lives to save none, one or two
        took = (time.perf_counter() - began) / len(promised)
        time.sleep(random.uniform(0, 2 * took))
        stop(child)
        for _ in range(200):  # every second one is killed while it writes a file
            if life % 2 == 0 or writing(child):
                break
            os.kill(child, signal.SIGCONT)
            time.sleep(random.uniform(0, took))
            stop(child)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        promised += [int(line) for line in pipe]
    midway += writing(child)
    state, step = checkpoints.load_latest()
    assert step >= promised[-1], (step, promised)  # what was reported as saved is there
    assert (state["weight"] == step).all()
    last = step
checkpoints.save({}, last + 1)
assert [path.name for path in checkpoints.folder.iterdir()] == [checkpoints.path(last + 1).name]
assert last >= 24 and midway >= 12, (last, midway)  # they saved, and died while a file was being written
"""

CALLS = """
checkpoints = Checkpoints(Path(sys.argv[1]) / "calls", keep=1)
found, code = [], None
while code != 0:
    for path in checkpoints.folder.glob("*"):
        path.unlink()
    checkpoints.save({"weight": torch.ones(10)}, 1)
    child = os.fork()
    if child == 0:
        calls = len(found)  # that it lives to make
        def dying(function):
            def call(*args, **kwargs):
                global calls
                calls -= 1
                return function(*args, **kwargs) if calls >= 0 else os._exit(9)
            return call
        for place, names in ((os, ("fsync", "unlink", "replace", "open")), (Path, ("replace", "unlink", "open"))):
            for name in names:
                setattr(place, name, dying(getattr(place, name)))
        checkpoints.save({"weight": torch.ones(10)}, 2)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found.append(checkpoints.load_latest()[1])
assert found == sorted(found) and set(found) == {1, 2} and len(found) > 5, found
print("never without a good checkpoint")
"""


@posix
def test_killed_at_any_moment_and_between_any_two_calls_of_the_system(tmp_path: Path) -> None:
    assert python(KILLS + CALLS, tmp_path) == "never without a good checkpoint"
