import errno
import json
import math
import os
import signal
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mixview.io import atomic
from mixview.io.records import flatten
from mixview.runs.checkpoints import Checkpoints
from mixview.runs.run_directory import (
    RunDirectory,
    RunDirectoryError,
    describe_environment,
    encode,
    parse,
    read_metrics,
    to_serializable,
)

CONFIG = {
    "method": "mocov2",
    "backbone": "resnet18",
    "seed": 3,
    "epochs": 200,
    "batch_size": 256,
    "optimizer": {"name": "sgd", "lr": 0.03, "weight_decay": 1e-6, "milestones": (120, 160), "clip": None},
    "data": Path("photos"),
    "monitor": {"every": 5},
}
DATA = {"fingerprint": "abc", "count": 1000, "kind": "folder", "spec": "photos"}
MAY_CHANGE = ("data", "epochs", "monitor")


def create(path: Path) -> RunDirectory:
    return RunDirectory.create(path, CONFIG, DATA, {"versions": {}})


# A new run


def test_everything_is_there_at_once(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "runs" / "first", CONFIG, DATA) as run:
        names = {path.name for path in run.path.iterdir()}
        assert names == {"config.yaml", "environment.json", "data.json", "status.json", ".lock"}
        config = yaml.safe_load((run.path / "config.yaml").read_text())
        assert config["optimizer"]["weight_decay"] == 1e-6
        assert config["data"] == "photos"
        assert list(config)[:2] == ["method", "backbone"]  # in the order of the settings
        environment = json.loads((run.path / "environment.json").read_text())
        assert environment["versions"]["torch"] == torch.__version__
        assert environment["seed"] == 3
        assert run.status["state"] == "running"
        run.set_status("failed", step=7, epoch=0.5, message="the loss is not finite")
        assert {"state": "failed", "step": 7, "message": "the loss is not finite"}.items() <= run.status.items()
    again = RunDirectory.open(run.path)
    assert (again.config, again.data) == (run.config, run.data)
    assert again.status["step"] == 7


def test_the_environment_names_what_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mixview.runs.run_directory.PACKAGES", ("torch", "no-such-package"))
    monkeypatch.setattr(sys, "argv", ["mixview", "pretrain", "--out", "my runs"])
    environment = describe_environment(seed=1)
    assert environment["versions"]["no-such-package"] is None
    assert environment["command"] == "mixview pretrain --out 'my runs'"
    json.dumps(environment, allow_nan=False)


def test_an_existing_run_raises(tmp_path: Path) -> None:
    with create(tmp_path / "a") as run:
        run.set_status("finished", step=90, epoch=3.0)
    before = (run.path / "config.yaml").read_bytes()
    with pytest.raises(
        RunDirectoryError, match="already holds a run, finished at step 90: continue it with --resume, or"
    ):
        RunDirectory.create(run.path, CONFIG | {"seed": 4}, DATA)
    assert (run.path / "config.yaml").read_bytes() == before
    run.lock()  # the refused one did not keep the lock
    run.close()


def test_a_creation_that_was_killed_can_be_repeated(tmp_path: Path) -> None:
    with create(tmp_path / "a") as run:
        (run.path / "config.yaml").unlink()  # the last file to be written
        (run.path / ".config.yaml.1.mixview-tmp").write_text("half")
    create(tmp_path / "a").close()
    assert not (run.path / ".config.yaml.1.mixview-tmp").exists()


def test_a_folder_of_other_things_keeps_them(tmp_path: Path) -> None:
    for name in (".mine.tmp", "photo.jpg"):
        (tmp_path / name).write_text("mine")
    create(tmp_path).close()
    assert (tmp_path / ".mine.tmp").read_text() == "mine"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "data.json").write_text("mine")
    with pytest.raises(RunDirectoryError, match=r"holds a data.json that is not of a run: choose another --out"):
        create(tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["data.json"]


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(
            RunDirectoryError, match=r"cannot make the run folder .* move away .*, or choose another --out"
        ):
            create(path)


@pytest.mark.parametrize(("number", "remedy"), [(errno.ENOSPC, "free some space"), (errno.EROFS, "make the folder")])
def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    run = create(tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "sync", fail)
        with pytest.raises(RunDirectoryError, match=f"{os.strerror(number)}; {remedy}.*, or choose another --out"):
            create(tmp_path / "b")
        with pytest.raises(RunDirectoryError, match=f"cannot write the status of .*{remedy}.*, then resume"):
            run.set_status("finished", 1, 1.0)
    assert run.status["state"] == "running"  # the old one is whole
    run.close()
    create(tmp_path / "b").close()


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root writes anywhere")
def test_an_unwritable_place(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(
            RunDirectoryError, match="Permission denied; make the folder writable, or choose another --out"
        ):
            create(tmp_path / "a")
    finally:
        tmp_path.chmod(0o755)


def test_settings_must_be_plain(tmp_path: Path) -> None:
    class Color(Enum):
        red = "r"

    assert to_serializable({"a": (1, Path("x")), 2: Color.red, "s": {3, 1}}, "config") == {
        "a": [1, "x"],
        "2": "r",
        "s": [1, 3],
    }
    with pytest.raises(TypeError, match=r"config.mixer\[0\] is a ReLU, which has no place in a run folder"):
        RunDirectory.create(tmp_path / "a", {"mixer": [torch.nn.ReLU()]}, DATA)


# An old run


def test_what_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="does not exist; name the --out of an earlier run"):
        RunDirectory.open(tmp_path / "none")
    with pytest.raises(RunDirectoryError, match=r"is not a run of mixview: it has no config.yaml"):
        RunDirectory.open(tmp_path)
    with create(tmp_path / "a") as run:
        pass
    for content, reason in (("{", "cannot be read"), ("[]", "data.json .*was not written by mixview")):
        (run.path / "data.json").write_text(content)
        with pytest.raises(RunDirectoryError, match=reason):
            RunDirectory.open(run.path)
    (run.path / "data.json").unlink()
    with pytest.raises(RunDirectoryError, match=r"data\.json cannot be read: it is missing"):
        RunDirectory.open(run.path)
    (run.path / "config.yaml").write_text("a: !!python/object/apply:os.mkdir ['evil']")
    with pytest.raises(RunDirectoryError, match="cannot be read") as caught:
        RunDirectory.open(run.path)
    assert "\n" not in str(caught.value)
    (run.path / "status.json").write_text("{")
    assert run.status == {}


def test_other_data_raises(tmp_path: Path) -> None:
    with create(tmp_path / "a") as run:
        with pytest.raises(RunDirectoryError, match=r"\(1000 images then, 1001 now\): restore it, or start a new run"):
            run.check_resumable(CONFIG, DATA | {"fingerprint": "abd", "count": 1001}, MAY_CHANGE)
        with pytest.raises(RunDirectoryError, match=r"\(still 1000 images, but not the same\)"):
            run.check_resumable(CONFIG, DATA | {"fingerprint": "abd"}, MAY_CHANGE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"method": "byol"},
            r"method was mocov2 when the run in .* began and is byol now: resume it as it was, or start a new run",
        ),
        ({"seed": 4}, r"seed was 3 .* is 4 now"),
        ({"batch_size": None}, r"batch_size was 256 .* is not set now"),
        ({"optimizer": {**CONFIG["optimizer"], "lr": 0.1}}, r"optimizer.lr was 0.03 .* is 0.1 now"),
        ({"optimizer": {**CONFIG["optimizer"], "clip": 1.0}}, r"optimizer.clip was not set .* is 1.0 now"),
        ({"method": "byol", "seed": 4}, "method was"),
    ],
)
def test_another_experiment_raises(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with create(tmp_path / "a") as run, pytest.raises(RunDirectoryError, match=message):
        run.check_resumable(CONFIG | change, DATA, MAY_CHANGE)


def test_what_may_change(tmp_path: Path) -> None:
    with create(tmp_path / "a") as run:
        assert run.check_resumable(CONFIG, DATA, MAY_CHANGE) == {}
        assert (
            run.check_resumable(
                CONFIG | {"new": None, "optimizer": CONFIG["optimizer"] | {"more": None}}, DATA, MAY_CHANGE
            )
            == {}
        )
        longer = CONFIG | {"epochs": 800, "monitor": {"every": 10}, "data": "moved/photos"}
        changed = run.check_resumable(longer, DATA | {"spec": "moved/photos"}, MAY_CHANGE)
        assert changed == {"epochs": (200, 800), "data": ("photos", "moved/photos"), "monitor.every": (5, 10)}
        with pytest.raises(RunDirectoryError, match=r"epochs was 200 .* 800"):
            run.check_resumable(CONFIG | {"epochs": 800}, DATA, may_change=())
        run.resume(longer, {"host": "b"})
        assert RunDirectory.open(run.path).config["epochs"] == 200  # nothing is written before everything else is there
        run.begin()
        run.resume(longer, {"host": "c"})
        run.begin()
    again = RunDirectory.open(run.path)
    assert again.config["epochs"] == 800
    assert again.environment == {"versions": {}, "resumed": [{"host": "b", "extended_from": 200}, {"host": "c"}]}


def test_flatten() -> None:
    assert flatten({"a": {"b": 1, "c": {"d": 2}}, "e": None}) == {"a.b": 1, "a.c.d": 2}


# Metrics


def test_metrics_are_valid_json_always(tmp_path: Path) -> None:
    with create(tmp_path / "a") as run:
        run.log({"step": 1, "loss": math.nan, "knn": {"top1": -math.inf}, "each": [1.0, math.inf], "é": "ü\n"})
        run.log({"step": 2, "loss": torch.tensor(0.5), "lr": np.float64(0.25), "n": np.int64(3), "note": None})
        run.sync()
        lines = (run.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        assert len(lines) == 2  # readable while the run goes on
    for line in lines:
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    first, second = read_metrics(run.path)
    assert first["loss"] is None
    assert first["non_finite"] == {"loss": "nan", "knn.top1": "-inf", "each[1]": "inf"}
    assert second == {"step": 2, "loss": 0.5, "lr": 0.25, "n": 3, "note": None}
    assert read_metrics(run.path / "metrics.jsonl") == [first, second]
    assert read_metrics(tmp_path / "none") == []


def test_records_that_cannot_be_logged(tmp_path: Path) -> None:
    with create(tmp_path / "a") as run:
        with pytest.raises(ValueError, match="a record needs its step as an integer, got None"):
            run.log({"loss": 1.0})
        with pytest.raises(TypeError, match=r"loss.a is a ReLU: log numbers"):
            run.log({"step": 1, "loss": {"a": torch.nn.ReLU()}})


numbers = st.floats(allow_nan=True) | st.integers(-5, 5) | st.text(max_size=5) | st.none()


@given(
    records=st.lists(st.dictionaries(st.text(max_size=3), numbers | st.lists(numbers, max_size=3)), max_size=6),
    cut=st.integers(0, 400),
)
@settings(max_examples=50)
def test_a_torn_file_gives_its_whole_lines(records: list[dict[str, Any]], cut: int) -> None:
    lines = [encode(record | {"step": step}) for step, record in enumerate(records)]
    content = b"".join(lines)[:cut]
    whole = [line for line, _ in parse(content, Path("metrics.jsonl"))]
    assert b"".join(whole) == b"".join(lines)[: len(b"".join(whole))]
    assert len(whole) == content.count(b"\n")


def test_rewinding_makes_the_file_of_an_uninterrupted_run(tmp_path: Path) -> None:
    def train(run: RunDirectory, first: int, last: int) -> None:
        for step in range(first, last + 1):
            run.log({"step": step, "loss": 1 / step})
            if step % 5 == 0:
                run.log({"step": step, "knn": 0.5})

    with create(tmp_path / "whole") as whole:
        train(whole, 1, 20)
    with create(tmp_path / "killed") as run:
        run.rewind(0)  # nothing there yet
        train(run, 1, 13)
        with (run.path / "metrics.jsonl").open("ab") as file:
            file.write(b'{"step": 14, "lo')
        assert read_metrics(run.path)[-1]["step"] == 13
        run.rewind(10)
        train(run, 11, 20)
        assert (run.path / "metrics.jsonl").read_bytes() == (whole.path / "metrics.jsonl").read_bytes()
        run.rewind(-1)
        assert read_metrics(run.path) == []


def test_a_damaged_line_is_left_out_with_a_warning(tmp_path: Path) -> None:
    with create(tmp_path / "a") as run:
        (run.path / "metrics.jsonl").write_bytes(b'{"step": 1}\n\0\0\0\n{"step": 2}\n')
        with pytest.warns(UserWarning, match=r"line 2 of .*metrics.jsonl is damaged and was left out"):
            assert read_metrics(run.path) == [{"step": 1}, {"step": 2}]


@pytest.mark.skipif(os.name == "nt", reason="needs a limit on files")
def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    import resource

    with create(tmp_path / "a") as run:
        run.log({"step": 1, "text": "x" * 900})
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            with pytest.raises(
                RunDirectoryError, match="free some space on that disk, or raise its quota, then resume"
            ):
                run.log({"step": 2, "text": "x" * 900})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        run.log({"step": 3})
        assert [record["step"] for record in read_metrics(run.path)] == [1, 3]


# The lock

HOLD = """
import os, sys, time
from mixview.runs.run_directory import RunDirectory
run = RunDirectory.open(sys.argv[1])
run.lock()
if hasattr(os, "fork") and os.fork() == 0:  # as a data loading worker, which outlives a killed parent a while
    os.close(1)
    time.sleep(3)
    os._exit(0)
print("locked", flush=True)
time.sleep(60)
"""


def test_two_processes_do_not_train_into_one_folder(tmp_path: Path) -> None:
    create(tmp_path / "a").close()
    command = [sys.executable, "-c", HOLD, str(tmp_path / "a")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        run = RunDirectory.open(tmp_path / "a")  # reading is free
        checkpoint = Checkpoints(run.checkpoints).save({}, 1)
        temporary = checkpoint.with_name(".step-000000002.pt.1.mixview-tmp")
        temporary.write_text("being written by the holder")
        for _ in range(2):
            with pytest.raises(
                RunDirectoryError, match=rf"process {holder.pid} on .* is training into .* right now: wait"
            ):
                run.lock()
        assert temporary.exists()
        with pytest.raises(RunDirectoryError, match="is training into"):
            create(tmp_path / "a")
        holder.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))
        holder.wait()
        run.lock()  # at once, though a worker of the dead one may live on
        assert not temporary.exists()  # its leftovers are gone
        run.close()


def test_one_process_does_not_train_into_one_folder_twice(tmp_path: Path) -> None:
    with create(tmp_path / "a") as run:
        run.lock()  # it has it already
        with pytest.raises(RunDirectoryError, match=r"this process is training into .* already"):
            RunDirectory.open(run.path).lock()
    with RunDirectory.open(run.path) as again:
        again.lock()


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("mixview.runs.run_directory.lock_exclusively", fail)
    with pytest.warns(UserWarning, match=r"cannot be locked \(No locks available\): make sure"):
        create(tmp_path / "a").close()
