"""Files that are either whole or not there: what a run writes survives a kill, a full disk and a power cut."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".mixview-tmp"  # a name that no file of anybody else has


@contextlib.contextmanager
def atomic_write(path: Path, verify: Callable[[Path], None] | None = None) -> Iterator[BinaryIO]:
    """A binary file that appears under `path`, in place of what was there, when the block ends without an error.

    It is written beside it, flushed to the disk, checked by `verify` and only then renamed: whoever reads `path` finds
    the old content or the new, whole. An error removes the temporary file and leaves the old content.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            sync(file.fileno())
            if hasattr(os, "posix_fadvise"):  # forget the cached pages, so that `verify` reads what the disk holds
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if verify is not None:
            verify(temporary)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync(descriptor: int) -> None:
    """Flush a file to the disk itself; on macOS `fsync` stops at the drive's cache."""
    try:
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # type: ignore[attr-defined, unused-ignore]
    except (ImportError, AttributeError, OSError):
        os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Flush a folder's list of names, so that a rename survives a power cut. Windows has no way to, nor a need."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems refuse; the rename itself has been done
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files of a process that was killed while writing. For the folder's only writer."""
    for path in folder.glob(f".*{TEMPORARY}"):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
