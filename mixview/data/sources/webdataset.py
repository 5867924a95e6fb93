"""WebDataset: tar shards, on disk or on a web server, for data larger than a disk.

A shard is a tar file in which the members of one sample follow each other and share a key: `0001.jpg`, `0001.cls`.
Streaming readers give up reading by index, and with it a resume in the middle that is exact. Here a shard has an index
instead, of where each image begins and how long it is, made once by walking the headers of the tar and kept in
`~/.cache/mixview` (or `$MIXVIEW_CACHE`). After that image i is one read at a known position: of the file, or by HTTP
Range, or of an object in a bucket. Reading in order streams (`RemoteFile` fetches ahead), reading at random fetches
single images, and no shard is ever stored.

To make an index the headers of a local shard are read and nothing else; a remote one is streamed through once if its
images are small, and skipped through if they are large (a mebibyte and more).

Only images (by their suffix) and `.cls` (the label as text) are looked at. Nothing in a shard is ever unpickled.
"""

import fnmatch
import hashlib
import io
import itertools
import os
import re
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, final
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from mixview.data.cache import cache_folder
from mixview.data.sources.base import BadImage, Source, SourceError, without_secrets
from mixview.data.sources.cloud import is_cloud, list_folder
from mixview.data.sources.files import MAX_BYTES, is_image_name, number_labels
from mixview.data.sources.fingerprint import fingerprint
from mixview.data.sources.packed_strings import PackedStrings
from mixview.data.sources.remote import RemoteFile
from mixview.io.archives import read_arrays
from mixview.io.atomic import open_regular

OPEN_SHARDS = 4
"""Remote shards that a process keeps a buffer of, 16 MiB each at most."""

INDEX_FORMAT = 1

MAX_SHARDS = 1_000_000
"""The most shards that a pattern may name."""
MAX_BRACES = 8
BRACES = re.compile(r"\{(\d{1,18})\.\.(\d{1,18})\}|\{([^{}]*,[^{}]*)\}", re.ASCII)


@final
@dataclass(frozen=True)
class ShardIndex:
    """The positions of the images in one shard."""

    names: PackedStrings
    """The members that are images."""
    starts: npt.NDArray[np.int64]
    """[N] the positions where the bytes of each begin."""
    sizes: npt.NDArray[np.int64]
    """[N] the number of bytes of each."""
    labels: PackedStrings
    """The text of each sample's `.cls`, empty where there is none."""

    def save(self, path: Path) -> None:
        """Write it in one move, so that a process that is reading never sees half of it."""
        (names, name_ends), (labels, label_ends) = self.names.arrays, self.labels.arrays
        arrays: dict[str, Any] = {"starts": self.starts, "sizes": self.sizes, "names": names, "name_ends": name_ends}
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            temporary = Path(folder) / "index.npz"
            np.savez(temporary, labels=labels, label_ends=label_ends, **arrays)
            temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> "ShardIndex":
        """The index that `save` wrote."""
        fields = "names", "name_ends", "labels", "label_ends", "starts", "sizes"
        names, name_ends, labels, label_ends, starts, sizes = read_arrays(path, *fields)
        members, classes = PackedStrings.from_arrays(names, name_ends), PackedStrings.from_arrays(labels, label_ends)
        if not len(members) == len(classes) == len(starts) == len(sizes):
            raise ValueError("its arrays are of different lengths")
        return cls(members, starts, sizes, classes)


@final
class WebDataset(Source):
    """Tar shards by index.

    Args:
        shards: a tar file, a folder of tar files, or a pattern, `shards/train-{000..146}.tar`, `shards/*.tar`,
            `https://server/train-{000..146}.tar`, `s3://bucket/train-{000..146}.tar`.
        cache: the folder for the indexes; by default `webdataset` in mixview's cache (see `cache_folder`).
        timeout: seconds of silence after which a connection counts as dropped.
        retries: drops in a row, without a byte between them, that are put up with.
    """

    kind = "webdataset"

    def __init__(
        self, shards: str | Path, cache: str | Path | None = None, timeout: float = 30.0, retries: int = 5
    ) -> None:
        self.shards = tuple(expand_shards(str(shards)))
        self.timeout = timeout
        self.retries = retries
        folder = cache_folder("webdataset") if cache is None else Path(cache)
        with ThreadPoolExecutor(max_workers=8) as pool:
            indexes = list(pool.map(lambda shard: self._index(shard, folder), self.shards))
        counts = np.array([len(index.names) for index in indexes], dtype=np.int64)
        if not counts.sum():
            raise SourceError(f"{shards} holds no images (members ending in .jpg, .png …): check the pattern")
        self._ends = np.cumsum(counts)
        self._names = PackedStrings.joined([index.names for index in indexes])
        self._starts = np.concatenate([index.starts for index in indexes])
        self._sizes = np.concatenate([index.sizes for index in indexes])
        labels = [index.labels[number] for index in indexes for number in range(len(index.labels))]
        self._labels: npt.NDArray[np.int64] | None = None
        if all(labels):
            self._labels, self.classes = number_labels(labels)
        self._remote: dict[str, RemoteFile] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_remote": {}}

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"WebDataset({without_secrets(self.shards[0])!r}, {len(self.shards)} shards, {len(self)} images)"

    def shard(self, index: int) -> int:
        """The shard of an image: to shuffle shards, and images within them, is to stream and shuffle at once."""
        return int(np.searchsorted(self._ends, index, side="right"))

    def name(self, index: int) -> str:
        return f"{shard_name(self.shards[self.shard(index)])}/{self._names[index]}"

    def read(self, index: int) -> bytes:
        name = self.name(index)
        shard = self.shards[self.shard(index)]
        start, size = int(self._starts[index]), int(self._sizes[index])
        if size > MAX_BYTES:
            raise BadImage(name, f"is {size / 1e9:.1f} GB, more than any image")
        if is_url(shard):
            data = self._open(shard).read_at(start, size)
        else:
            try:
                with open_regular(shard, follow=True) as file:
                    file.seek(start)
                    data = file.read(size)
            except OSError as error:
                raise SourceError(
                    f"the shard {shard} cannot be read ({error.strerror or error}): restore it"
                ) from error
        if len(data) != size:
            raise BadImage(name, f"is cut off: {len(data)} bytes of {size} are in the shard")
        return data

    def labels(self) -> npt.NDArray[np.int64] | None:
        return self._labels

    def fingerprint(self) -> str:
        names = PackedStrings(self.name(index) for index in range(len(self)))
        return fingerprint(names, self._sizes, self._labels)

    def _open(self, shard: str) -> RemoteFile:
        """The remote shard, one of a few that are kept at hand."""
        remote = self._remote.pop(shard, None) or RemoteFile(shard, self.timeout, self.retries)
        self._remote[shard] = remote  # the latest last, the oldest dropped
        while len(self._remote) > OPEN_SHARDS:
            self._remote.pop(next(iter(self._remote)), None)
        return remote

    def _index(self, shard: str, folder: Path) -> ShardIndex:
        """The index of a shard: from the cache, or made and put there."""
        try:
            file: RemoteFile | BinaryIO
            if is_url(shard):
                file = RemoteFile(shard, self.timeout, self.retries)
                state = f"{file.size}/{file.version}"
            else:
                file = open_regular(shard, follow=True)
                status = os.fstat(file.fileno())
                state, shard = f"{status.st_size}/{status.st_mtime_ns}", str(Path(shard).resolve())
        except OSError as error:
            raise SourceError(f"there is no shard {shard} ({error.strerror or error}): check the pattern") from error
        with file:
            key = hashlib.blake2b(f"{INDEX_FORMAT}/{shard}/{state}".encode(), digest_size=16).hexdigest()
            path = folder / f"{key}.npz"
            if path.is_file():
                try:
                    return ShardIndex.load(path)
                except (OSError, ValueError, KeyError):
                    pass  # a damaged cache is made again
            index = walk_shard(file, shard)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            index.save(path)
        except OSError:
            pass  # without a place for a cache it is made every time
        return index


@final
class Bounded(io.RawIOBase):
    """A file for `tarfile`, which reads as much at once as a header says, and goes where it says."""

    def __init__(self, file: RemoteFile | BinaryIO) -> None:
        super().__init__()
        self._file = file

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= MAX_BYTES:
            raise tarfile.ReadError(f"a header claims {size} bytes")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if offset < 0 or offset > 1 << 62:
            raise tarfile.ReadError(f"a header points to byte {offset}")
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


def walk_shard(file: RemoteFile | BinaryIO, shard: str) -> ShardIndex:
    """The index of a shard, from its headers."""
    names: list[str] = []
    starts: list[int] = []
    sizes: list[int] = []
    classes: dict[str, str] = {}
    keys: list[str] = []
    try:
        with tarfile.open(fileobj=Bounded(file), mode="r:") as archive:
            last = -1
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # all members so far: it grows without end
                if member.size < 0 or archive.offset <= last:  # or it would be walked forever
                    raise tarfile.ReadError("its headers lead backwards")
                last = archive.offset
                if not member.isreg() or Path(member.name).name.startswith("."):
                    continue
                stem, suffix = split_key(member.name)
                if is_image_name(member.name) and (not keys or keys[-1] != stem):  # a sample's first image
                    keys.append(stem)
                    names.append(member.name)
                    starts.append(member.offset_data)
                    sizes.append(member.size)
                elif suffix == "cls" and member.size <= 1024:
                    content = archive.extractfile(member)
                    assert content is not None
                    classes[stem] = content.read().decode("utf-8", "replace").strip()
            file.seek(archive.offset)
            if file.read(512) != bytes(512):  # the block of zeros at the end; tarfile says nothing when it is missing
                raise tarfile.ReadError("it ends early")
    except SourceError:
        raise
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise SourceError(
            f"the shard {shard} is not a whole, uncompressed tar file ({error}): unpack it, or copy it again"
        ) from error
    labels = [classes.get(key, "") for key in keys]
    return ShardIndex(
        PackedStrings(names), np.array(starts, np.int64), np.array(sizes, np.int64), PackedStrings(labels)
    )


def split_key(name: str) -> tuple[str, str]:
    """The key of a sample and the rest, cut at the file name's first dot: `a.b/1.seg.png` is `a.b/1` and `seg.png`."""
    folder, slash, base = name.rpartition("/")
    stem, _, suffix = base.partition(".")
    return folder + slash + stem, suffix.lower()


def is_url(shard: str) -> bool:
    """Return True if a shard is on a server."""
    return "://" in shard


def shard_name(shard: str) -> str:
    """The file name of a shard, without what an address may have after it."""
    return (urlsplit(shard).path if is_url(shard) and not is_cloud(shard) else shard).rpartition("/")[2]


def expand_shards(pattern: str) -> list[str]:
    """All the shards that a pattern names."""
    if pattern.count("{") > MAX_BRACES:
        raise SourceError(f"{pattern[:200]} has more than {MAX_BRACES} braces: write a pattern with fewer")
    count = 1
    for first, last, choices in BRACES.findall(pattern):
        count *= choices.count(",") + 1 if choices else int(last) - int(first) + 1
    specs = list(itertools.islice(expand_braces(pattern), MAX_SHARDS + 1)) if count <= MAX_SHARDS else []
    if not 0 < len(specs) <= MAX_SHARDS:
        raise SourceError(f"{pattern} names more than {MAX_SHARDS} shards: count fewer")
    expanded = [each for spec in specs for each in find_shards(spec)]
    if not expanded:
        raise SourceError(f"{pattern} matches no tar file: check the pattern")
    twice, times = Counter(map(shard_name, expanded)).most_common(1)[0]
    if times > 1:
        raise SourceError(f"{pattern} names two shards {twice}, whose images would bear the same names: rename one")
    return expanded


def find_shards(spec: str) -> list[str]:
    """The tar files of a path or address without braces: itself, those in a folder, those that match * and ?."""
    if is_cloud(spec):
        folder, _, name = spec.rstrip("/").rpartition("/")
        if not name.endswith(".tar"):
            folder, name = spec.rstrip("/"), "*.tar"
        if not re.search(r"[*?\[]", name):
            return [spec]
        return [f"{folder}/{each}" for each in list_folder(folder).files if fnmatch.fnmatchcase(each, name)]
    if is_url(spec):
        return [spec]
    path = Path(spec)
    if path.is_dir():
        return [str(each) for each in sorted(path.glob("*.tar"))]
    if re.search(r"[*?\[]", path.name) and not path.exists():
        return [str(each) for each in sorted(path.parent.glob(path.name))]
    return [spec]


def expand_braces(pattern: str) -> Iterator[str]:
    """Expand braces like a shell: `{000..012}` counts and keeps the zeros, `{a,b}` chooses."""
    match = BRACES.search(pattern)
    if match is None:
        yield pattern
        return
    first, last, choices = match.groups()
    parts: Iterable[str]
    if choices is not None:
        parts = choices.split(",")
    else:
        width = len(first) if first.startswith("0") or len(first) == len(last) else 0
        parts = (f"{number:0{width}d}" for number in range(int(first), int(last) + 1))
        if int(first) > int(last):
            raise SourceError(f"{match[0]} in {pattern} counts down: write the smaller number first")
    for part in parts:
        yield from expand_braces(pattern[: match.start()] + part + pattern[match.end() :])


def locate(path: Path) -> Path | None:
    """This path, if it is a folder of tar files and no images are next to them."""
    if not path.is_dir() or not any(path.glob("*.tar")):
        return None
    entries = itertools.islice(path.iterdir(), 10_000)
    return None if any(is_image_name(entry.name) for entry in entries) else path
