"""Many strings in two arrays.

A list of a million Python strings costs 100 MB, and every worker process comes to own a copy of it: counting references
writes to each string, and copy-on-write then copies its page. Two arrays are never written to and stay shared.
"""

import os
from collections.abc import Iterable, Sequence
from typing import final

import numpy as np
import numpy.typing as npt


@final
class PackedStrings:
    """An immutable sequence of strings, file names of any encoding included, in one array of bytes and one of ends."""

    def __init__(self, strings: Iterable[str | bytes]) -> None:
        encoded = [os.fsencode(string) for string in strings]
        self._data: npt.NDArray[np.uint8] = np.frombuffer(b"".join(encoded), dtype=np.uint8)
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        self._ends: npt.NDArray[np.int64] = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:
        return os.fsdecode(self.encoded(index))

    def encoded(self, index: int) -> bytes:
        """The string as the bytes that the file system knows it by."""
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)}")
        return self._data[self._ends[index] : self._ends[index + 1]].tobytes()

    @property
    def arrays(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """The bytes of all strings, and where each begins and ends, [N + 1]: for hashing and for saving."""
        return self._data, self._ends

    @classmethod
    def from_arrays(cls, data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> "PackedStrings":
        """The strings that `arrays` came from."""
        packed = cls(())
        packed._data, packed._ends = data, ends
        return packed

    @classmethod
    def joined(cls, parts: Sequence["PackedStrings"]) -> "PackedStrings":
        """All the strings of several, in order."""
        data = [part._data for part in parts]
        starts = np.cumsum([0, *(len(each) for each in data)])
        ends = [part._ends[1:] + start for part, start in zip(parts, starts, strict=False)]
        return cls.from_arrays(
            np.concatenate([np.zeros(0, np.uint8), *data]), np.concatenate([np.zeros(1, np.int64), *ends])
        )
