"""The identity of the images a run was trained on, so that an evaluation can tell if it tests on the same ones.

An image is known by a hash of its content: the bytes of its file, or its pixels. The name, the folder and the split
that it is in do not matter; another encoding of the same picture is another image.
"""

import hashlib
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mixview.data.sources.base import BadImage, Pixels, Source, even_indices
from mixview.io.atomic import atomic_write

ContentHashes = npt.NDArray[np.uint64]

MAX_SAMPLED = 100_000
"""The most images of a source that are recorded; of a larger one, this many, evenly chosen."""


def content_hash(stored: bytes | Pixels) -> int:
    """A 64-bit hash of the content of an image."""
    digest = hashlib.blake2b(digest_size=8)
    if not isinstance(stored, bytes):
        digest.update(str(stored.shape).encode())
        stored = np.ascontiguousarray(stored).tobytes()
    digest.update(stored)
    return int.from_bytes(digest.digest(), "little")


def content_hashes(source: Source, indices: Iterable[int]) -> ContentHashes:
    """[M] the hashes of these images, those that can be read."""
    hashes = []
    for index in indices:
        try:
            hashes.append(content_hash(source.read(index)))
        except BadImage:
            continue
    return np.array(hashes, dtype=np.uint64)


def find_shared(source: Source, others: ContentHashes) -> npt.NDArray[np.bool_]:
    """[N] True for images of a source that have the content of one of these; False for one that cannot be read."""
    shared = [np.isin(content_hashes(source, [index]), others).any() for index in range(len(source))]
    return np.array(shared, dtype=np.bool_)


def sample_hashes(source: Source, most: int = MAX_SAMPLED, seconds: float = 60.0) -> ContentHashes:
    """[M] the hashes of a source's images, sorted: all, or an even sample where they are many or slow to read.

    Images are only read, not decoded. Every further one of a sequence that stays even wherever time runs out is taken.
    """
    chosen = even_indices(len(source), most)
    count = len(chosen)
    golden = (np.arange(count) * 0.6180339887498949) % 1.0  # any beginning of this order is spread evenly
    end = time.monotonic() + seconds
    parts = []
    for part in np.array_split(chosen[np.argsort(np.argsort(golden, kind="stable"), kind="stable")], -(-count // 64)):
        parts.append(content_hashes(source, part.tolist()))
        if time.monotonic() > end:
            break
    return np.sort(np.concatenate(parts))


def save_hashes(path: Path, source: Source) -> None:
    """Write which images a source has, and how many, unless the file is there already."""
    if not path.exists():
        sampled = sample_hashes(source)
        with atomic_write(path) as file:
            np.savez(file, identities=sampled, count=np.array(len(source)))
