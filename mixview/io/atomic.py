"""Files that are written atomically: what a run writes survives a kill, a full disk and a power cut.

Nothing here follows a link that somebody may have put into a folder, or waits for a pipe: a folder that came from
someone else can neither direct a file to another place nor stop the program.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

TEMPORARY = ".mixview-tmp"  # a name that no file of anybody else has


@contextlib.contextmanager
def atomic_write(path: Path, verify: Callable[[Path], None] | None = None) -> Iterator[BinaryIO]:
    """A binary file that appears under `path`, in place of what was there, when the block ends without an error.

    It is written beside it, flushed to the disk, checked by `verify` and only then renamed: a reader of `path` finds
    either the old content or the new. An error removes the temporary file and leaves the old content.
    """
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}{TEMPORARY}")  # nobody can guess it
    try:
        with temporary.open("xb") as file:
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


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically; an error of the disk names the remedy."""
    try:
        with atomic_write(path) as file:
            file.write(content)
    except OSError as error:
        raise OSError(
            error.errno, f"{path} could not be written ({error.strerror}): free the disk or choose another folder"
        ) from error


FLAGS = {"r": os.O_RDONLY, "a": os.O_RDWR | os.O_CREAT | os.O_APPEND}


def open_regular(path: str | Path, mode: Literal["r", "a"] = "r", *, follow: bool = False) -> BinaryIO:
    """Open a file to read it, or to append to it without a buffer; OSError if it is not a regular file, such as a pipe.

    Args:
        follow: follow a link, if it is one.
    """
    # Opening a pipe would otherwise wait for somebody who writes.
    flags = FLAGS[mode] | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    if not follow:
        raise_if_link(Path(path))  # where there is no O_NOFOLLOW this is what there is
        flags |= getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{Path(path).name} is not a regular file", str(path))
    return os.fdopen(descriptor, "rb") if mode == "r" else os.fdopen(descriptor, "a+b", buffering=0)


def read_regular(path: Path, limit: int, *, follow: bool = False) -> bytes:
    """The content of a regular file; OSError if it is not one, or holds more than `limit` bytes."""
    with open_regular(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has {size} bytes, and may have {limit}", str(path))
        return file.read(size)


def real_folder(path: Path) -> Path:
    """A folder in a folder, made if it is not there; OSError if it is a link."""
    raise_if_link(path)
    path.mkdir(exist_ok=True)
    return path


def raise_if_link(path: Path) -> None:
    """Raise OSError if a path is a link."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, f"{path.name} is a link, which is not followed", str(path))


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
