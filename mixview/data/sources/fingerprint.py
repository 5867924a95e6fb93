"""The fingerprint that a run records of its images and checks at resume: count, bytes, a hash of names and sizes."""

import hashlib

import numpy as np
import numpy.typing as npt

from mixview.data.sources.packed_strings import PackedStrings


def fingerprint(
    names: PackedStrings,
    sizes: npt.NDArray[np.int64],
    *more: npt.NDArray[np.generic] | None,
    count: int | None = None,
) -> str:
    """A line such as `800 images, 21403112 bytes, 5f1c0a9be2d04c11`, legible so that a change explains itself.

    Args:
        names: the name of each image, or of each file that holds images.
        sizes: [N] the bytes of each.
        more: whatever else decides what is learned, labels for one.
        count: the number of images, where a file holds many.
    """
    digest = hashlib.blake2b(digest_size=8)
    for array in (*names.arrays, sizes.astype(np.int64), *more):
        digest.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
    return f"{len(names) if count is None else count} images, {int(sizes.clip(0).sum())} bytes, {digest.hexdigest()}"


def explain_change(recorded: str, current: str) -> str | None:
    """One sentence on how a source changed since its fingerprint was recorded; None if it did not."""
    if recorded == current:
        return None
    for was, now in zip(recorded.split(", "), current.split(", "), strict=False):
        if was != now and was.split()[-1] in ("images", "bytes"):
            return f"the source had {was} when the run began and has {now} now: restore it, or start a new run"
    return "the source has other names, sizes or labels than when the run began: restore it, or start a new run"
