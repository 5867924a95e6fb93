"""Checkpoints: written atomically, verified, and never deleted before the next one is good.

    checkpoints = Checkpoints(folder, keep=2)
    checkpoints.save({"method": method.state_dict(), "optimizer": optimizer.state_dict()}, step)
    state, step = checkpoints.load_latest() or (None, 0)

A checkpoint is one file, `step-000000123.pt`: what `torch.save` writes, then one line with its SHA-256. It opens with a
plain `torch.load(path, weights_only=True)` too. Loading never runs code.
"""

import hashlib
import os
import pickle
import re
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from mixview.io.atomic import atomic_write, real_folder, remove_leftovers
from mixview.io.disk_errors import reason_of, remedy

FORMAT = 1
MAGIC = b"\nmixview checkpoint sha256 "
SEAL = len(MAGIC) + 64 + 1  # the line that ends the file
ZIP = b"PK\x03\x04"  # how a file of torch.save begins
PLAIN = (type(None), bool, int, float, str, bytes, torch.Size, torch.dtype, torch.device)
MapLocation = str | torch.device | None


class CheckpointError(RuntimeError):
    """A checkpoint that could not be written or read: one sentence with the file, the cause and the remedy."""


class Checkpoints:
    """The checkpoints of one run, in a folder of their own. One process writes; any number may read.

    Args:
        folder: made by the first `save`, in a folder that is there.
        keep: number of checkpoints to keep, the newest.
    """

    def __init__(self, folder: str | Path, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}: without a checkpoint there is nothing to resume")
        self.folder = Path(folder)
        self.keep = keep

    def path(self, step: int) -> Path:
        """The path of the checkpoint of this step, which need not exist."""
        return self.folder / f"step-{step:09d}.pt"

    def steps(self) -> list[int]:
        """The steps that there are files for, oldest first."""
        names = [path.name for path in self.folder.glob("step-*.pt")] if self.folder.is_dir() else []
        return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"step-(\d{9,})\.pt", name)))

    def save(self, state: dict[str, Any], step: int) -> Path:
        """Write a checkpoint, read it back, put it in place, and only then delete those that are no longer needed.

        `state` may hold tensors and plain values (numbers, strings, lists, tuples, dictionaries). Files of later steps
        go too: they are what a resumed run could not read, or chose not to.
        """
        if step < 0:
            raise ValueError(f"step must be 0 or more, got {step}")
        check_plain(state, "state")
        path = self.path(step)
        try:
            real_folder(self.folder)
            remove_leftovers(self.folder)
            with atomic_write(path, verify=check_seal) as file:
                write_sealed({"mixview_checkpoint": FORMAT, "step": step, "state": state}, file)
        except (OSError, CheckpointError) as error:
            raise CheckpointError(
                f"could not write the checkpoint {path}: {reason_of(error)}; {remedy(error)}, then resume: "
                f"{self.what_is_left()}"
            ) from error
        self.prune(step)
        return path

    def prune(self, newest: int) -> None:
        """Delete what is older than the last `keep` up to `newest`, and whatever is later than it."""
        older = [step for step in self.steps() if step < newest]
        later = [step for step in self.steps() if step > newest]
        for step in later + older[: max(0, len(older) + 1 - self.keep)]:
            try:
                self.path(step).unlink(missing_ok=True)
            except OSError as error:
                warnings.warn(
                    f"could not delete the old checkpoint {self.path(step)}: {reason_of(error)}", stacklevel=3
                )

    def load_latest(self, map_location: MapLocation = "cpu") -> tuple[dict[str, Any], int] | None:
        """The newest good checkpoint's state and step; None when there is no checkpoint at all.

        One that is damaged is named in a warning and passed over. If all are, that is an error.
        """
        faults = []
        for step in reversed(self.steps()):
            try:
                state, saved = self.load(self.path(step), map_location)
            except CheckpointError as error:
                faults.append(str(error))
                continue
            for fault in faults:
                warnings.warn(f"{fault}; resuming from the checkpoint of step {saved} instead", stacklevel=2)
            return state, saved
        if faults:
            raise CheckpointError(
                f"no checkpoint in {self.folder} can be used: {'; '.join(faults)}; restore one from a copy, or start "
                "a new run with another --out"
            )
        return None

    @staticmethod
    def load(path: str | Path, map_location: MapLocation = "cpu") -> tuple[dict[str, Any], int]:
        """The state and step of one checkpoint, after its SHA-256 has been checked."""
        path = Path(path)
        try:
            check_seal(path)
            content = torch.load(path, map_location=map_location, weights_only=True)
        except pickle.UnpicklingError as error:
            raise CheckpointError(f"{path} holds more than tensors and plain values, and was not loaded") from error
        except CheckpointError:
            raise
        except (OSError, RuntimeError, EOFError, KeyError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read: {reason_of(error)}") from error
        if not isinstance(content, dict) or content.get("mixview_checkpoint") != FORMAT:
            version = content.get("mixview_checkpoint") if isinstance(content, dict) else None
            raise CheckpointError(
                f"{path} has checkpoint format {version}, and this mixview reads {FORMAT}: use the version that "
                "wrote it"
            )
        return content["state"], content["step"]

    def what_is_left(self) -> str:
        """The newest checkpoint that is still good, as a sentence for an error."""
        for step in reversed(self.steps()):
            try:
                check_seal(self.path(step))
            except (OSError, CheckpointError):
                continue
            return f"the last good checkpoint, of step {step}, is intact"
        return "no earlier checkpoint exists"


class SealedWriter:
    """A file for `torch.save` that hashes what passes through, and keeps the error that torch would reword."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.sha256 = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            self.file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.sha256.update(data)
        return len(data)

    def flush(self) -> None:
        self.file.flush()


def write_sealed(content: dict[str, Any], file: BinaryIO) -> None:
    """`torch.save`, then the line with the SHA-256 of all that was meant to be written."""
    writer = SealedWriter(file)
    try:
        torch.save(content, writer)  # type: ignore[arg-type]
    except RuntimeError as error:
        raise writer.error or error from None
    file.write(MAGIC + writer.sha256.hexdigest().encode() + b"\n")


def check_seal(path: Path) -> None:
    """Raise if a file does not end in the SHA-256 of all that comes before."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END) - SEAL
        file.seek(max(size, 0))
        seal = file.read()
        file.seek(0)
        if not (size > 0 and seal.startswith(MAGIC)):
            if file.read(len(ZIP)) == ZIP:
                raise CheckpointError(f"{path} is cut short, or is not a checkpoint of mixview")
            raise CheckpointError(f"{path} is not a checkpoint of mixview")
        sha256 = hashlib.sha256()
        while size > 0:
            data = file.read(min(size, 1 << 20))
            sha256.update(data)
            size -= len(data) or size
    if seal != MAGIC + sha256.hexdigest().encode() + b"\n":
        raise CheckpointError(f"{path} is damaged or was changed: its SHA-256 is not the one it was written with")


def check_plain(value: object, name: str) -> None:
    """Raise, before anything is written, if a value could not be loaded again without running code."""
    if isinstance(value, Tensor) or type(value) in PLAIN:
        return
    if type(value) in (dict, OrderedDict):
        assert isinstance(value, dict)
        for key, item in value.items():
            if type(key) not in PLAIN:
                raise TypeError(f"{name} has the key {key!r} of type {type(key).__name__}: use a string or a number")
            check_plain(item, f"{name}[{key!r}]")
    elif type(value) in (list, tuple):
        assert isinstance(value, list | tuple)
        for index, item in enumerate(value):
            check_plain(item, f"{name}[{index}]")
    else:
        raise TypeError(
            f"{name} is of type {type(value).__module__}.{type(value).__name__}, which a checkpoint does not hold: "
            "store a tensor, number, string, list or dictionary (of a NumPy value, .item() or torch.as_tensor)"
        )
