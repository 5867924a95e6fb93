"""The folder of a run: everything that repeating, resuming or reporting it needs, from the first second on.

    config.yaml         the resolved configuration
    environment.json    versions, devices, command line, seed; one entry more for every resume
    data.json           what it was trained on: fingerprint, number of images, kind, where from
    status.json         running, finished, interrupted or failed; at which step and epoch, and why
    metrics.jsonl       one JSON object per line
    checkpoints/        see `mixview.runs.checkpoints`

Trainings add files of their own. All but the metrics are replaced atomically. One process writes (rank 0), and holds
the folder's lock.
"""

import contextlib
import errno
import functools
import importlib.metadata
import json
import math
import os
import platform
import shlex
import socket
import sys
import time
import warnings
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Literal, Self
from weakref import WeakValueDictionary

import torch
import yaml  # type: ignore[import-untyped, unused-ignore]

from mixview.io.atomic import atomic_write, open_regular, raise_if_link, remove_leftovers, sync
from mixview.io.disk_errors import reason_of, remedy
from mixview.io.environment import process_rank
from mixview.io.records import Data, Environment, RecordError, Status, flatten, parse_metrics, read_dict
from mixview.io.run_folders import is_run
from mixview.io.yaml_files import read_yaml
from mixview.runs.launching import is_restarted

State = Literal["running", "finished", "interrupted", "failed"]

FILES = ("config.yaml", "environment.json", "data.json", "status.json", "metrics.jsonl", "checkpoints")
FOLDERS = ("checkpoints", "tensorboard", "evaluations", "wandb")
PACKAGES = ("mixview", "torch", "torchvision", "timm", "lightning", "numpy", "safetensors", "jsonargparse")


class RunDirectoryError(RuntimeError):
    """A folder that cannot be used as requested: one sentence with the folder, the cause and the remedy."""


class RunDirectory:
    """One run on disk. `create` starts one, `open` finds one again; both by the path that the user gave.

    To resume: `open`, `lock`, `check_resumable`, `resume`, then `begin`, and `rewind` to the step of the checkpoint.
    """

    def __init__(self, path: Path, config: dict[str, Any], data: dict[str, Any], environment: dict[str, Any]) -> None:
        self.path = path
        self.config = config
        self.data = data
        self.environment = environment
        self.changes: tuple[dict[str, Any], dict[str, Any]] | None = None  # not written yet: config and environment
        self.lock_file: BinaryIO | None = None
        self.metrics_file: BinaryIO | None = None

    @classmethod
    def create(
        cls, path: str | Path, config: dict[str, Any], data: dict[str, Any], environment: dict[str, Any] | None = None
    ) -> Self:
        """Start a run in a new folder, or in one that holds none yet, and lock it.

        Args:
            config: the resolved configuration, of plain values and paths.
            data: the record of the training data; `fingerprint` and `count` are compared on resume.
            environment: by default the result of `describe_environment`.
        """
        path = Path(path)
        config, data = to_serializable(config, "config"), to_serializable(data, "data")
        environment = to_serializable(environment or describe_environment(config.get("seed")), "environment")
        run = cls(path, config, data, environment)
        taken = [name for name in FILES if (path / name).exists()] if not (path / ".lock").exists() else []
        if taken:
            raise RunDirectoryError(f"{path} holds a {taken[0]} that is not of a run: choose another --out")
        try:
            path.mkdir(parents=True, exist_ok=True)
            run.take_lock()
            state = read_status(path)
            # A run that failed before its first checkpoint has nothing to lose, and a corrected one takes its place.
            never_began = state.get("state") == "failed" and not any(run.checkpoints.glob("*.pt"))
            if (path / "config.yaml").exists() and not never_began:
                where = f", {state['state']} at step {state['step']}" if state else ""
                raise RunDirectoryError(
                    f"{path} already holds a run{where}: continue it with --resume, or choose another --out"
                )
            write_json(path / "environment.json", environment)
            write_json(path / "data.json", data)
            write_json(path / "status.json", describe_status("running", step=0, epoch=0.0))
            write_yaml(path / "config.yaml", config)  # the last: with it the folder is a run
        except BaseException as error:
            run.close()
            if not isinstance(error, OSError):
                raise
            raise RunDirectoryError(
                f"cannot make the run folder {path}: {reason_of(error)}; {remedy(error)}, or choose another --out"
            ) from error
        return run

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Find a run again, to resume or to read it; it is not locked."""
        path = Path(path)
        if not is_run(path):
            what = "does not exist" if not path.exists() else "is not a run of mixview: it has no config.yaml"
            raise RunDirectoryError(f"{path} {what}; name the --out of an earlier run, or start one without --resume")
        try:
            config = read_yaml(path / "config.yaml", consent="drop")
            data = read_dict(path / "data.json", Data)
            environment = read_dict(path / "environment.json", Environment)
        except RecordError as error:
            raise RunDirectoryError(
                f"{error.path} cannot be read: {error.reason}; restore it, or start a new run with another --out"
            ) from None
        except (OSError, ValueError, yaml.YAMLError) as error:
            reason = " ".join(reason_of(error).split())
            raise RunDirectoryError(
                f"the run in {path} cannot be read: {reason}; restore its config.yaml, data.json and environment.json, "
                "or start a new run with another --out"
            ) from error
        if not isinstance(config, dict):
            raise RunDirectoryError(
                f"{path / 'config.yaml'} was not written by mixview: it holds no settings; restore it, or start a new "
                "run with another --out"
            )
        return cls(path, config, data, environment)

    @property
    def checkpoints(self) -> Path:
        """The folder for `Checkpoints`."""
        return self.path / "checkpoints"

    @property
    def status(self) -> dict[str, Any]:
        """The last status that `set_status` wrote; empty if it is lost."""
        return read_status(self.path)

    def set_status(
        self, state: State, step: int, epoch: float, message: str = "", cpu_seconds: float | None = None
    ) -> None:
        """Write the state and progress of the run; `cpu_seconds` is what its steps have taken, by default as before."""
        spent = self.status.get("cpu_seconds", 0.0) if cpu_seconds is None else cpu_seconds
        with self.explain_disk_error("write the status of"):
            write_json(self.path / "status.json", describe_status(state, step, epoch, message, spent))

    def check_resumable(
        self,
        config: dict[str, Any],
        data: dict[str, Any],
        may_change: Collection[str],
        earlier: Mapping[str, Any] = MappingProxyType({}),
    ) -> dict[str, tuple[Any, Any]]:
        """Raise if data or experiment have changed; return what else has, as {setting: (old, new)}.

        Args:
            config: the settings now.
            data: the data now.
            may_change: settings, with all below them, that may differ.
            earlier: values of settings that a run of an earlier version does not record.
        """
        if not any(self.checkpoints.glob("step-*.pt")) and (reached := self.reached()):
            raise RunDirectoryError(
                f"the run in {self.path} had reached step {reached}, and its checkpoints are gone: put "
                f"{self.checkpoints} back, or start a new run with another --out"
            )
        data = to_serializable(data, "data")
        if data.get("fingerprint") != self.data.get("fingerprint"):
            before, now = self.data.get("count"), data.get("count")
            counts = f"{before} images then, {now} now" if before != now else f"still {now} images, but not the same"
            raise RunDirectoryError(
                f"the data has changed since the run in {self.path} began ({counts}): restore it, or start a new run "
                "with another --out"
            )
        old, new = {**earlier, **flatten(self.config)}, flatten(to_serializable(config, "config"))
        changed = {
            name: (old.get(name), new.get(name))
            for name in dict.fromkeys([*old, *new])
            if old.get(name) != new.get(name)
        }
        for name, (before, now) in changed.items():
            if not any(name == free or name.startswith(f"{free}.") for free in may_change):
                raise RunDirectoryError(
                    f"{name} was {show(before)} when the run in {self.path} began and is {show(now)} now: resume it as "
                    "it was, or start a new run with another --out"
                )
        return changed

    def reached(self) -> int:
        """The last step that was saved, as the run's files tell; 0 if it never got that far."""
        step = int(self.status.get("step", 0))
        if step or not any(self.path.glob("*.safetensors")):  # weights, written with a checkpoint
            return step
        return max((record["step"] for record in read_metrics(self.path)), default=1)

    def resume(self, config: dict[str, Any], environment: dict[str, Any] | None = None) -> None:
        """Resume with these settings, under these versions and this command. `begin` writes them."""
        before = self.config.get("epochs")
        config = to_serializable(config, "config")
        entry = to_serializable(environment or describe_environment(config.get("seed")), "environment")
        if before != config.get("epochs"):  # a schedule that was extended is not that of a longer run
            entry["extended_from"] = before
        self.changes = config, self.environment | {"resumed": [*self.environment.get("resumed", []), entry]}

    def begin(self) -> None:
        """Start to resume, now that everything it needs is there: until now a mistake has changed nothing."""
        if self.changes is None:
            return
        self.config, self.environment = self.changes
        with self.explain_disk_error("update"):
            write_json(self.path / "environment.json", self.environment)
            write_yaml(self.path / "config.yaml", self.config)
        self.changes = None

    def log(self, record: dict[str, Any]) -> None:
        """Append one line to the metrics; it must have a `step`.

        JSON has no NaN and infinity: they become null, and `non_finite` says which and what.
        """
        if type(record.get("step")) is not int:
            raise ValueError(f'a record needs its step as an integer, got {record.get("step")!r}: {{"step": 1, …}}')
        line = encode(record)
        with self.explain_disk_error("write the metrics of"):
            if self.metrics_file is None:
                self.metrics_file = open_regular(self.path / "metrics.jsonl", "a")
            start = os.fstat(self.metrics_file.fileno()).st_size
            try:
                if self.metrics_file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                with contextlib.suppress(OSError):  # no half line for the next one to be glued to
                    self.metrics_file.truncate(start)
                raise

    def sync(self) -> None:
        """Flush the metrics to the disk: before a checkpoint, so that none survives a power cut without its metrics."""
        if self.metrics_file is not None:
            with self.explain_disk_error("write the metrics of"):
                sync(self.metrics_file.fileno())

    def rewind(self, step: int, needs: str | None = None) -> None:
        """Drop the metrics after `step`, and a torn last line: the resumed run is going to write them again.

        Log what belongs to a step before saving its checkpoint. -1 drops everything, for a run without a checkpoint.

        Args:
            step: step of the checkpoint.
            needs: drop also records of this very step without this metric: they were logged after the checkpoint.
        """
        if self.metrics_file is not None:
            self.metrics_file.close()
            self.metrics_file = None
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return
        content = path.read_bytes()
        remaining = b"".join(
            line
            for line, record in parse(content, path)
            if record["step"] < step or (record["step"] == step and (needs is None or needs in record))
        )
        if remaining != content:
            with self.explain_disk_error("rewind the metrics of"), atomic_write(path) as file:
                file.write(remaining)

    def lock(self) -> None:
        """Make sure that no other process trains into this folder, until `close` or the end of this process.

        The system holds the lock for this process alone, not for its data loading workers, and drops it however the
        process ends: there is nothing to clean up after a kill.
        """
        with self.explain_disk_error("lock"):
            self.take_lock()

    def take_lock(self) -> None:
        """`lock`, with the errors of the disk as they are."""
        if self.lock_file is not None:
            return
        path = self.path / ".lock"
        if path.resolve() in LOCKED:
            raise RunDirectoryError(f"this process is training into {self.path} already: choose another --out")
        for name in FOLDERS:
            raise_if_link(self.path / name)
        file = open_regular(path, "a")
        try:
            lock_exclusively(file)
        except BlockingIOError:
            file.seek(0)
            owner = file.read(200).decode(errors="replace").strip() or "another process"
            file.close()
            raise RunDirectoryError(
                f"{owner} is training into {self.path} right now: wait for it, stop it, or choose another --out"
            ) from None
        except OSError as error:
            warnings.warn(
                f"{self.path} cannot be locked ({reason_of(error)}): make sure that no other process trains into it",
                stacklevel=4,
            )
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        file.flush()
        self.lock_file = file
        LOCKED[path.resolve()] = self
        remove_leftovers(self.path)
        remove_leftovers(self.checkpoints)

    def close(self) -> None:
        """Close the metrics and let go of the lock."""
        if self.metrics_file is not None:
            self.metrics_file.close()
            self.metrics_file = None
        if self.lock_file is not None:
            LOCKED.pop((self.path / ".lock").resolve(), None)
            with contextlib.suppress(OSError):
                self.lock_file.close()
            self.lock_file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def explain_disk_error(self, what: str) -> Iterator[None]:
        """Turn an error of the disk into one sentence with its remedy."""
        try:
            yield
        except OSError as error:
            raise RunDirectoryError(
                f"cannot {what} the run in {self.path}: {reason_of(error)}; {remedy(error)}, then resume"
            ) from error


def start_or_resume(
    out: str | Path,
    config: dict[str, Any],
    data: dict[str, Any],
    *,
    resume: bool,
    may_change: Collection[str],
    earlier: Mapping[str, Any] = MappingProxyType({}),
) -> RunDirectory | None:
    """The folder of a run, made or reopened and locked by the first process; None for any other.

    It is called before any other process starts, so that a mistake ends here. After a restart by torchrun, a run
    resumes by itself.
    """
    if process_rank() > 0:
        return None
    if not resume and not (is_restarted() and is_run(out)):
        return RunDirectory.create(out, config, data)
    folder = RunDirectory.open(out)
    folder.lock()
    try:
        folder.check_resumable(config, data, may_change, earlier)
        folder.resume(config)
    except BaseException:
        folder.close()
        raise
    return folder


@contextlib.contextmanager
def record_failure(folder: RunDirectory | None) -> Iterator[None]:
    """While a run trains into a folder: an error is written into its status, and the folder let go of at the end."""
    try:
        yield
    except BaseException as error:
        if folder is not None and folder.changes is None:  # else it has not begun, and is as it was
            status = folder.status
            state: State = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            with contextlib.suppress(RunDirectoryError):
                message = f"{type(error).__name__}: {error}"
                folder.set_status(state, status.get("step", 0), status.get("epoch", 0.0), message)
        raise
    finally:
        if folder is not None:
            folder.close()


LOCKED: WeakValueDictionary[Path, RunDirectory] = WeakValueDictionary()
"""The locks that this process has: a POSIX lock does not keep its own process out, and is lost by opening it again."""


def lock_exclusively(file: BinaryIO) -> None:
    """Take the system's lock on an open file, or raise BlockingIOError when another process has it."""
    if sys.platform == "win32":
        import msvcrt

        file.seek(1 << 30)  # past the text: Windows keeps others from reading what is locked
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(*error.args) from None
        finally:
            file.seek(0)
    else:
        import fcntl

        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except PermissionError as error:  # what some systems say instead
            raise BlockingIOError(*error.args) from None


def wait_for_lock(file: BinaryIO, seconds: float) -> None:
    """Take the system's lock on an open file, trying every few seconds until no other process has it."""
    while True:
        try:
            lock_exclusively(file)
            break
        except BlockingIOError:
            time.sleep(seconds)


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The records of a `metrics.jsonl`, or of the run folder it is in; also of a run that is running or crashed.

    A torn last line is left out; so is a damaged one elsewhere, with a warning. Of a run without metrics: [].

    Example:
        >>> file = Path("metrics.jsonl")
        >>> _ = file.write_text('{"step": 1, "loss": 4.5}\\n{"step": 2, "lo')
        >>> read_metrics(file)
        [{'step': 1, 'loss': 4.5}]
    """
    path = Path(path)
    path = path / "metrics.jsonl" if path.is_dir() else path
    return [record for _, record in parse(path.read_bytes(), path)] if path.exists() else []


def parse(content: bytes, path: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """The good lines of a metrics file, as bytes and as a record."""
    good, damaged = parse_metrics(content)
    if damaged:
        others = f", and so are {len(damaged) - 1} others" if len(damaged) > 1 else ""
        warnings.warn(f"line {damaged[0]} of {path} is damaged and was left out{others}", stacklevel=3)
    return good


def encode(record: dict[str, Any]) -> bytes:
    """A record as one line of valid JSON."""
    non_finite: dict[str, str] = {}

    def clean(value: Any, name: str) -> Any:
        if hasattr(value, "item") and not isinstance(value, dict | list | tuple):  # a NumPy or torch scalar
            value = value.item()
        if isinstance(value, float) and not math.isfinite(value):
            non_finite[name] = str(value)
            return None
        if isinstance(value, dict):
            return {str(key): clean(item, f"{name}.{key}" if name else str(key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [clean(item, f"{name}[{index}]") for index, item in enumerate(value)]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise TypeError(f"{name} is a {type(value).__name__}: log numbers, strings, lists and dictionaries of them")

    cleaned = clean(record, "")
    if non_finite:
        cleaned["non_finite"] = non_finite
    return json.dumps(cleaned, allow_nan=False, ensure_ascii=False).encode() + b"\n"


def describe_status(
    state: State, step: int, epoch: float, message: str = "", cpu_seconds: float = 0.0
) -> dict[str, Any]:
    """The content of status.json, as of now."""
    where = {"state": state, "step": step, "epoch": epoch, "message": message, "cpu_seconds": round(cpu_seconds, 3)}
    return where | {"updated": datetime.now(UTC).isoformat(timespec="seconds")}


def read_status(path: Path) -> dict[str, Any]:
    """The status of the run in a folder; empty when there is none that can be read."""
    try:
        return read_dict(path / "status.json", Status)
    except RecordError:
        return {}


@functools.cache
def installed_version(package: str) -> str | None:
    """The version of an installed package; None for one that is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe_environment(seed: int | None = None) -> dict[str, Any]:
    """Versions, machine, devices, command line and seed: what somebody who repeats the run has to match."""
    import mixview

    versions = {name: installed_version(name) for name in PACKAGES}
    versions |= {"mixview": mixview.__version__, "torch": str(torch.__version__)}  # with its build, which matters
    return {
        "versions": versions | {"python": platform.python_version(), "cuda": torch.version.cuda},
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cpu": {"name": cpu_name(), "cores": os.cpu_count()},
        "devices": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "command": shlex.join(sys.argv),
        "seed": seed,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def cpu_name() -> str:
    """The processor's name; Linux has it in a file of its own."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def to_serializable(value: Any, name: str) -> Any:
    """A copy in the types that YAML and JSON give back: tuples as lists, paths and enumerations as text."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Enum):
        return to_serializable(value.value, name)
    if isinstance(value, dict):
        return {str(key): to_serializable(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_serializable(item, f"{name}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        return sorted(to_serializable(item, name) for item in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{name} is a {type(value).__name__}, which has no place in a run folder: pass its plain settings")


def show(value: Any) -> str:
    """A setting in an error message."""
    return "not set" if value is None else str(value)


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file."""
    with atomic_write(path) as file:
        file.write(json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n")


def write_yaml(path: Path, value: Any) -> None:
    """Replace a YAML file, the settings in their own order."""
    with atomic_write(path) as file:
        file.write(yaml.safe_dump(value, sort_keys=False, allow_unicode=True).encode())
