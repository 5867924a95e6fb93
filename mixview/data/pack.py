"""Any source in one file: small images and slow disks read it as fast as memory.

    pack(open_dataset("imagenet"), Path("imagenet-256.npz"), size=256)
    source = open_dataset("imagenet-256.npz")

The file is an .npz of arrays that are stored as they are, so that `sources.arrays.Npz` maps it into memory: the
bytes of all images one after the other with where each begins, or their pixels where all have one size. Files that are
small enough already stay as they are, to the byte.
"""

import io
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image
from rich.console import Console
from rich.progress import track

from mixview.data.dataset import find_range, log_left_out
from mixview.data.decode import Decoder
from mixview.data.sources.base import BadImage, Pixels, Source, SourceError

Format = Literal["jpeg", "pixels"]


class Packed(NamedTuple):
    """The result of packing a source."""

    path: Path
    images: int
    bad: dict[str, str]
    """The images that were left out: name, and why."""


def pack(source: Source, out: Path, size: int = 256, format: Format = "jpeg", quality: int = 90) -> Packed:
    """Write a source to one file, its larger images shrunk until their shorter side is `size`."""
    if out.suffix != ".npz":
        raise ValueError(f"a packed source is an .npz file, got {out}: call it {out.with_suffix('.npz')}")
    if out.exists():
        raise FileExistsError(f"{out} exists already: remove it, or name another file")
    if size < 1 or not 1 <= quality <= 100:
        raise ValueError(f"size must be at least 1 and quality within 1 … 100, got {size} and {quality}")
    decoder = Decoder(value_range=find_range(source), eight_bits=True)  # JPEG has no more
    indices: list[int] = []
    lengths: list[int] = []
    shape: tuple[int, ...] | None = None
    bad: dict[str, str] = {}
    log_left_out(source)
    with tempfile.TemporaryFile(dir=out.parent) as data:
        for index in track(
            range(len(source)), f"packing {len(source)} images", console=Console(stderr=True), transient=True
        ):
            try:
                stored = source.read(index)
                full = decoder(stored, source.name(index))
            except BadImage as error:
                bad[error.name] = error.reason
                continue
            pixels = shrink(full, size)
            if format == "jpeg":
                untouched = isinstance(stored, bytes) and pixels is full
                lengths.append(data.write(bytes(stored) if untouched else encode(pixels, quality)))
            else:
                if shape not in (None, pixels.shape):
                    raise SourceError(
                        f"{source.name(index)} is {pixels.shape[1]}×{pixels.shape[0]} and others are "
                        f"{(shape or pixels.shape)[1]}×{(shape or pixels.shape)[0]}: pack them as jpeg"
                    )
                shape = pixels.shape
                data.write(np.ascontiguousarray(pixels).tobytes())
            indices.append(index)
        if not indices:
            raise SourceError(f"none of the {len(source)} images can be read: there is nothing to pack")
        partial = out.with_name(out.name + ".partial")
        try:
            with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
                if shape is None:
                    add_file(archive, "jpeg", data, (sum(lengths),))
                    add_array(archive, "offsets", np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
                else:
                    add_file(archive, "images", data, (len(indices), *shape))
                add_labels(archive, source, indices)
            partial.replace(out)  # whole, or not there at all
        finally:
            partial.unlink(missing_ok=True)
    return Packed(out, len(indices), bad)


def add_labels(archive: zipfile.ZipFile, source: Source, indices: list[int]) -> None:
    """Write the labels of these images and the names of the classes, where the source has them."""
    labels = source.labels()
    if labels is not None:
        add_array(archive, "labels", labels[indices])
    if source.classes is not None:
        add_array(archive, "classes", np.array(source.classes))


def shrink(pixels: Pixels, size: int) -> Pixels:
    """Pixels whose shorter side is at most `size`."""
    height, width = pixels.shape[:2]
    if min(height, width) <= size:
        return pixels
    scale = size / min(height, width)
    target = max(size, round(width * scale)), max(size, round(height * scale))
    return np.array(Image.fromarray(pixels).resize(target, Image.Resampling.BICUBIC))


def encode(pixels: Pixels, quality: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality, subsampling=0)
    return buffer.getvalue()


def add_array(archive: zipfile.ZipFile, name: str, array: npt.NDArray[Any]) -> None:
    with archive.open(f"{name}.npy", "w") as member:
        np.lib.format.write_array(member, array, allow_pickle=False)


def add_file(archive: zipfile.ZipFile, name: str, data: BinaryIO, shape: tuple[int, ...]) -> None:
    """The bytes of a file as an array, without holding them in memory."""
    data.seek(0)
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(member, header)
        shutil.copyfileobj(data, member, 1 << 20)
