"""Images shrunk to what views need, and kept in a file: photographs are decoded once rather than every epoch.

    source = CacheFolder(Path("cache"), 384, Decoder()).shrunk(open_dataset("photos/"))

`ShrunkImages` is a source whose images are JPEG files of a shorter side of at most `size`. An image is shrunk in the
same way whether it comes from the cache, goes into it, or there is none, so that views, and with them a run, depend
neither on when the cache was filled nor on whether it could be.

The cache is one file per source, to which records are appended: a header (what follows is of which image and how long,
with a checksum) and a JPEG file. Any number of processes and runs read and fill it at a time: only the holder of the
file's lock appends, after it has read what others did, and has cut off what a killed one left unfinished. Nothing in
it is trusted: a record that does not fit its checksum is read from the source again.
"""

import contextlib
import errno
import hashlib
import json
import os
import struct
import time
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch
from PIL import Image

from mixview.data.dataset import log_once
from mixview.data.decode import Decoder, largest_factor, open_encoded
from mixview.data.sources.base import BadImage, Objects, Pixels, Source, even_indices
from mixview.data.sources.identity import content_hashes
from mixview.data.sources.splits import Subset
from mixview.io.atomic import open_regular
from mixview.io.disk_errors import reason_of, remedy

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
"""Version of the file and of how images are shrunk; raised when the same key would mean other pixels."""

QUALITY = 95
SUBSAMPLING = "420"
"""Quality of the JPEGs: 1/7 of the bytes of the pixels, at 38 dB. Color at full resolution would be 3 dB better, 30 %
larger and a third slower to decode, and most photographs do not have it to begin with."""

SAMPLED = 32
"""Images whose content is part of the key, besides the names and sizes of all."""

HEADER = struct.Struct("<24s40s")
MAGIC = b"mixview image cache\n"
RECORD = struct.Struct("<4sIQI")
"""`START`, checksum of index, length and data, index, length."""
START = b"\xffimg"
MAX_LENGTH = 1 << 28
"""Bytes of an image; more than that is no record of ours."""

LOCK_SECONDS = 30.0
"""Time to wait for other processes, which hold the lock for milliseconds."""


def default_size(view_size: int) -> int:
    """The shorter side that images are shrunk to for views of a size: 384 for 224, about that of ImageNet's images."""
    return -(-view_size * 12 // (7 * 32)) * 32


def checksum(index: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(struct.pack("<QI", index, len(data))))


class CacheError(OSError):
    """The cache cannot be used; the message says why in one sentence."""


@final
class ImageCache:
    """Encoded images by index, in a file that all processes of all runs share.

    Where the records are is in memory that worker processes share; each process opens the file for itself.

    Args:
        path: the file, which is made if it is not there.
        key: the identity of the images; a file of other ones is not touched.
        count: number of images.
    """

    def __init__(self, path: Path, key: str, count: int) -> None:
        self._file: BinaryIO | None = None
        self._process = -1
        self.path = path
        self._header = HEADER.pack(MAGIC, key.encode())
        self._where = torch.full((2, count), -1, dtype=torch.int64).share_memory_()  # offset of the data, length
        self._state = torch.zeros(2, dtype=torch.int64).share_memory_()  # end of the known records; whether writable
        self._state[1] = 1
        try:
            with self._locked() as descriptor:
                self._read_new(descriptor)
        except PermissionError:
            if not path.is_file():
                raise
            self._read_only()
        except OSError as error:
            if error.errno != errno.EROFS or not path.is_file():
                raise
            self._read_only()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None, "_process": -1}

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __len__(self) -> int:
        """Images that are in the cache, as far as this run knows."""
        return int((self._where[0] >= 0).sum())

    @property
    def writable(self) -> bool:
        """True if images can still be added."""
        return bool(self._state[1])

    def get(self, index: int) -> bytes | None:
        """The data of an image, if it is there and sound."""
        offset, length = (int(each) for each in self._where.numpy()[:, index])
        if offset < 0:
            return None
        try:
            stored = os.pread(self._open().fileno(), RECORD.size + length, offset - RECORD.size)
        except OSError:
            return None
        data = stored[RECORD.size :]
        if stored[: RECORD.size] != RECORD.pack(START, checksum(index, data), index, length) or len(data) != length:
            self._where.numpy()[0, index] = -1  # damaged: it is made, and appended, again
            return None
        return data

    def put(self, index: int, data: bytes) -> None:
        """Append an image, unless another process did meanwhile; `CacheError` once if that fails, then nothing."""
        if not self.writable or len(data) > MAX_LENGTH:
            return
        try:
            with self._locked() as descriptor:
                if not self.writable:
                    return
                end = self._read_new(descriptor)
                if self._where.numpy()[0, index] >= 0:
                    return
                try:
                    write_all(descriptor, RECORD.pack(START, checksum(index, data), index, len(data)) + data)
                except OSError:
                    self._state[1] = 0
                    with contextlib.suppress(OSError):
                        os.ftruncate(descriptor, end)
                    raise
                self._add(index, end, len(data))
        except OSError as error:
            self._state[1] = 0
            raise CacheError(
                f"the cache {self.path} is not continued ({reason_of(error)}: {remedy(error)}); training continues"
            ) from error

    def _add(self, index: int, start: int, length: int) -> None:
        where = self._where.numpy()
        where[1, index] = length
        where[0, index] = start + RECORD.size
        self._state[0] = start + RECORD.size + length

    def _open(self) -> BinaryIO:
        """The file, opened by this process: a lock belongs to whoever opened it, and is shared with forked ones."""
        if self._file is None or self._process != os.getpid():
            self._close()
            self._file = open_regular(self.path, "a" if self.writable else "r")
            self._process = os.getpid()
        return self._file

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """The file's descriptor, while no other process changes the file."""
        if fcntl is None:
            raise OSError(errno.ENOSYS, "this system has no file locks")
        descriptor, end = self._open().fileno(), time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise OSError(errno.EBUSY, "another process does not let go of it") from None
                time.sleep(0.002)
        try:
            yield descriptor
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def _read_new(self, descriptor: int, *, repair: bool = True) -> int:
        """Learn of the records that were appended since, and cut off what is none; returns where the next one goes."""
        size, end = os.fstat(descriptor).st_size, int(self._state[0])
        if size < end:  # somebody emptied it
            self._where.fill_(-1)
            end = 0
        if end == 0:
            stored = os.pread(descriptor, HEADER.size, 0)
            if repair and self._header.startswith(stored) and len(stored) < HEADER.size:  # new, or killed right away
                os.ftruncate(descriptor, 0)
                write_all(descriptor, self._header)
                stored, size = self._header, HEADER.size
            if stored != self._header:
                raise OSError(errno.EEXIST, "there is another file in its place")
            end = HEADER.size
        while end < size:
            head = os.pread(descriptor, RECORD.size, end)
            if len(head) < RECORD.size:
                break
            start, _, index, length = RECORD.unpack(head)
            if start != START or index >= self._where.shape[1] or end + RECORD.size + length > size:
                break
            self._add(index, end, length)
            end += RECORD.size + length
        self._state[0] = end
        if repair and end < size:
            os.ftruncate(descriptor, end)
        return end

    def _read_only(self) -> None:
        """Use what others put there, without a lock: a record that is being written is not whole yet, and not used."""
        self._state[1] = 0
        self._close()
        self._read_new(self._open().fileno(), repair=False)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it; a disk that is nearly full takes a part at first."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@final
class ShrunkImages(Source):
    """The images of a source as JPEG files whose shorter side is at most `size`; smaller files stay as they are.

    Images that are pixels already, and not encoded, are left as they are, too.

    Args:
        source: the images.
        size: the length that the shorter side is shrunk to.
        decoder: the decoder of the images.
        cache: keeps them, by their index in the source that `source` is a part of.
        exact_decoding: shrink what was decoded whole; otherwise at the nearest of the sizes that decoders offer.
    """

    def __init__(
        self,
        source: Source,
        size: int,
        decoder: Decoder,
        cache: ImageCache | None = None,
        exact_decoding: bool = False,
    ) -> None:
        self.source = source
        self.size = size
        self.decoder = decoder
        self.cache = cache
        self.exact_decoding = exact_decoding
        self.kind = source.kind  # type: ignore[misc]
        self.classes = source.classes
        self.skipped = dict(source.skipped)  # which, unlike a view of it, can be sent to a process
        self.notes = source.notes
        self._indices = whole_of(source)[1]

    def __len__(self) -> int:
        return len(self.source)

    def __repr__(self) -> str:
        return f"ShrunkImages({self.source!r}, {self.size})"

    def read(self, index: int) -> bytes | Pixels:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} images")
        number = int(self._indices[index])
        kept = None if self.cache is None else self.cache.get(number)
        if kept is not None:
            return kept
        stored = self.source.read(index)
        if not isinstance(stored, bytes):
            return stored
        shrunk = shrink_file(stored, self.size, self.decoder, self.name(index), self.exact_decoding)
        if self.cache is not None:
            try:
                self.cache.put(number, shrunk)
            except CacheError as error:
                log_once(self, str(error))
        return shrunk

    def name(self, index: int) -> str:
        return self.source.name(index)

    def fingerprint(self) -> str:
        return self.source.fingerprint()

    def labels(self) -> npt.NDArray[np.int64] | None:
        return self.source.labels()

    def label_sets(self) -> npt.NDArray[np.int8] | None:
        return self.source.label_sets()

    def objects(self, index: int) -> Objects | None:
        return self.source.objects(index)


def shrink_file(data: bytes, size: int, decoder: Decoder, name: str, exact_decoding: bool = False) -> bytes:
    """The file of an image whose shorter side is at most `size`; the same file if it is no larger."""
    with contextlib.suppress(BadImage):  # which the decoder names
        if min(open_encoded(data, name).size) <= size:
            return data
    pixels = decoder(data, name, None if exact_decoding else partial(largest_factor, side=size))
    height, width, channels = pixels.shape
    scale = size / min(height, width)
    target = max(size, round(width * scale)), max(size, round(height * scale))
    image = Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)
    small = np.array(image.resize(target, Image.Resampling.BICUBIC)).reshape(target[1], target[0], channels)
    if channels == 1:
        return bytes(simplejpeg.encode_jpeg(small, QUALITY, "GRAY", "Gray"))
    return bytes(simplejpeg.encode_jpeg(small, QUALITY, "RGB", SUBSAMPLING))


def whole_of(source: Source) -> tuple[Source, npt.NDArray[np.int64]]:
    """The source that a source is a part of, and which of its images the part has."""
    indices = np.arange(len(source))
    while isinstance(source, Subset):
        indices = source.indices[indices]
        source = source.source
    return source, indices


@final
class CacheFolder:
    """The caches in a folder, one per source, of images that are shrunk in one way.

    Args:
        folder: the folder of the caches, made if it is not there; None shrinks the images each time.
        size: the length that the shorter side is shrunk to.
        decoder: the decoder of the images.
        exact_decoding: shrink what was decoded whole.
    """

    def __init__(self, folder: Path | None, size: int, decoder: Decoder, exact_decoding: bool = False) -> None:
        if decoder.mode not in ("RGB", "L"):
            raise ValueError("--cache keeps JPEG files, for images of 1 or 3 channels: leave it out for others")
        if decoder.value_range is not None:
            raise ValueError("--cache keeps JPEG files, for images of 8 bits: leave it out for these, which have more")
        self.folder = folder
        self.size = size
        self.decoder = decoder
        self.exact_decoding = exact_decoding
        self.notes: list[str] = []
        self._caches: dict[Source, ImageCache | None] = {}

    def shrunk(self, source: Source) -> ShrunkImages:
        """A source whose images are shrunk, and kept where that is possible."""
        whole, _ = whole_of(source)
        if whole not in self._caches:
            self._caches[whole] = self._open(whole)
        return ShrunkImages(source, self.size, self.decoder, self._caches[whole], self.exact_decoding)

    def _open(self, whole: Source) -> ImageCache | None:
        if self.folder is None:
            return None
        with contextlib.suppress(BadImage):
            if not isinstance(whole.read(0), bytes):
                self.notes.append(f"The images of {whole!r} are pixels already: they need no cache.")
                return None
        key = self._key(whole)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            cache = ImageCache(self.folder / f"{whole.kind}-{key}.images", key, len(whole))
        except OSError as error:
            self.notes.append(
                f"There is no cache in {self.folder} ({reason_of(error)}: {remedy(error)}); training continues without."
            )
            return None
        there = f"The cache {cache.path} has {len(cache)} of {len(whole)} images"
        if len(cache) == len(whole):
            self.notes.append(f"{there}.")
        elif cache.writable:
            self.notes.append(f"{there}; the others are added as they are read.")
        else:
            self.notes.append(f"{there} and cannot be written to; the others are decoded every time.")
        return cache

    def _key(self, whole: Source) -> str:
        """Everything that decides the content of a cache."""
        sample = even_indices(len(whole), SAMPLED).tolist()
        images = [whole.fingerprint(), content_hashes(whole, sample).tolist(), self.decoder.mode]
        how = [FORMAT, self.size, QUALITY, SUBSAMPLING, self.exact_decoding]
        return hashlib.blake2b(json.dumps([images, how]).encode(), digest_size=12).hexdigest()
