"""Zip archives that anybody may have written, .npz and .pt2 and torch files, read without being filled by them."""

import stat
import tokenize
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_RATIO = 100
FREE_BYTES = 1 << 27
"""Bytes that a member may unpack to, however small it is packed; a larger one to `MAX_RATIO` times its size."""


@contextmanager
def open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """A zip archive, none of whose members unpacks to far more than it is; raises ValueError or OSError."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(f"{path} is not a regular file")
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        check_archive(archive, size)
        yield archive


def check_archive(archive: zipfile.ZipFile, size: int) -> None:
    """Raise ValueError if a member of an archive of this many bytes unpacks to far more than it is."""
    for info in archive.infolist():
        packed = min(info.compress_size, size)
        if info.file_size > (packed if info.compress_type == zipfile.ZIP_STORED else unpacked_limit(packed)):
            raise ValueError(f"{info.filename} in it would unpack {packed} bytes to {info.file_size}")


def unpacked_limit(packed: int) -> int:
    """The most bytes that `packed` bytes may unpack to."""
    return max(FREE_BYTES, MAX_RATIO * packed)


def array_header(member: Any, size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, Fortran order and type of an array of numbers or text in the .npy format, and the length of its header.

    Args:
        member: a file, read from its beginning.
        size: the bytes in it. A header that speaks of other than these is a ValueError: they would be allocated.
    """
    version = np.lib.format.read_magic(member)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"its version is {version}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        shape, fortran, dtype = read(member)
    except (SyntaxError, TypeError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise ValueError(f"its header cannot be read ({type(error).__name__})") from None
    header = int(member.tell())
    declared = dtype.itemsize
    for side in shape:
        declared *= side
    if dtype.hasobject:
        raise ValueError("it holds objects")
    if declared != size - header:
        raise ValueError(f"its header claims {declared} bytes, and {size - header} are there")
    return shape, fortran, dtype, header


def read_arrays(path: Path, *names: str) -> list[npt.NDArray[Any]]:
    """The arrays of these names in an .npz file; raises ValueError, KeyError or OSError."""
    try:
        with open_archive(path) as archive:
            return [read_array(archive, archive.getinfo(f"{name}.npy")) for name in names]
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:  # encrypted, for one
        raise ValueError(str(error)) from error


def read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> npt.NDArray[Any]:
    """One array of an .npz file, unpacked into memory."""
    with archive.open(info) as member:
        array_header(member, info.file_size)
        member.seek(0)
        return np.asarray(np.lib.format.read_array(member, allow_pickle=False))
