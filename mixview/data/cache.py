"""The cache folder, for what mixview would otherwise make again."""

import errno
import os
from pathlib import Path

ZEROS = bytes(1 << 20)


def cache_folder(name: str) -> Path:
    """A folder for one kind of thing in `$MIXVIEW_CACHE`, or in the user's folder for caches."""
    if folder := os.environ.get("MIXVIEW_CACHE"):
        return Path(folder) / name
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mixview" / name


def reserve(path: Path) -> None:
    """Take the space on the disk for all of a file that has been given its length.

    A file that is mapped into memory gets its space as it is written, and when the disk is full by then, the process is
    killed (SIGBUS); here it is an error.
    """
    size = path.stat().st_size
    try:
        with path.open("r+b") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                for start in range(0, size, len(ZEROS)):
                    file.seek(start)
                    piece = file.read(len(ZEROS))
                    file.seek(start)
                    file.write(piece)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)):
            return  # a file system that cannot say
        raise OSError(
            error.errno,
            f"the disk has no room for {path.name} of {size / 1e6:.0f} MB in {path.parent.parent} ({error.strerror}): "
            "free some, or let MIXVIEW_CACHE name a folder on another disk",
        ) from error
