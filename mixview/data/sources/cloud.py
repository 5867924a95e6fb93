"""Objects in buckets (s3://, gs://) and in repositories of the Hugging Face Hub (hf://), listed and read by fsspec.

Which endpoint and whose credentials are used is for the environment to say, in the ways of each provider and of fsspec
(`AWS_PROFILE`, `AWS_ENDPOINT_URL`, `GOOGLE_APPLICATION_CREDENTIALS`, `HF_TOKEN`, `FSSPEC_S3_ANON` …), and never for an
option of the data, which may come from somebody else's file.

fsspec's filesystems do not survive a fork, and some wait forever: each process opens its own, every call has a limit of
time, and a connection that drops is retried a bounded number of times.
"""

import importlib
import os
import queue
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar, final

import numpy as np
import numpy.typing as npt

from mixview.data.sources.base import BadImage, SourceError

T = TypeVar("T")

TIMEOUT = 30.0
"""Seconds of silence after which a connection counts as dropped."""
MIN_RATE = 16 * 1024
"""Bytes per second below which a connection counts as dropped, once its time of silence has passed."""
LIST_SECONDS = 3600.0
"""The longest time to list a folder: S3 lists a thousand objects per request."""
RETRIES = 5
MAX_OBJECT = 1 << 29
"""Bytes that are read in one piece: no image is larger."""
MAX_SHOWN = 200
"""Characters of a provider's words that an error repeats."""
MAX_ASKED = 100
"""Objects of one folder whose sizes are asked for one by one; of more, the folder is listed."""


class Provider(NamedTuple):
    """The requirements of an address of a scheme."""

    package: str
    access: str
    """Instructions for getting access where there is none."""


PROVIDERS = {
    "s3": Provider(
        "s3fs",
        "let AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name an account that may list and read it, "
        "or set FSSPEC_S3_ANON=true if it is public",
    ),
    "gs": Provider(
        "gcsfs",
        "log in with gcloud auth application-default login, or let GOOGLE_APPLICATION_CREDENTIALS name the key of an "
        "account that may list and read it",
    ),
    "hf": Provider("huggingface_hub", "log in with hf auth login, or set HF_TOKEN to a token that may read it"),
}

QUICK = {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
"""gcsfs asks for the type of each bucket by gRPC, which does not survive a fork and may wait for a minute, unless the
user says so."""

CREDENTIAL_ERRORS = frozenset(
    (
        *("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "TokenRetrievalError"),
        *("ProfileNotFound", "SSOError", "DefaultCredentialsError", "RefreshError", "GatedRepoError"),
        *("LocalTokenNotFoundError",),
    )
)
"""Errors that the libraries raise where there are no credentials, or none that are valid; not all are imported."""


class MissingObject(SourceError):
    """There is nothing at an address."""


@final
class Listing(NamedTuple):
    """The content of a folder, without that of its folders."""

    folders: list[str]
    files: dict[str, int]
    """The size of each in bytes."""


def is_cloud(address: object) -> bool:
    """Return True if this is an address of an object or a folder in a bucket."""
    return isinstance(address, str) and address.partition("://")[0] in PROVIDERS and "://" in address


def bucket_of(url: str) -> str:
    """The part of an address that access is granted to."""
    scheme, _, path = url.partition("://")
    parts = path.split("/")
    return f"{scheme}://{'/'.join(parts[: 3 if scheme == 'hf' else 1])}"


FILESYSTEMS: dict[tuple[int, str], Any] = {}
"""The filesystems of this process, by its id and the scheme; those of a parent stay here, unused and open."""


def open_filesystem(scheme: str) -> Any:
    """The filesystem of a scheme, one per process."""
    key = (os.getpid(), scheme)
    if key in FILESYSTEMS:
        return FILESYSTEMS[key]
    package = PROVIDERS[scheme].package
    for name, value in QUICK.items():
        os.environ.setdefault(name, value)
    try:
        importlib.import_module(package)
        fsspec = importlib.import_module("fsspec")
    except ImportError as error:
        raise SourceError(f"{scheme}:// needs the package {package}: pip install 'mixview[cloud]'") from error
    options: dict[str, Any] = {"skip_instance_cache": True}
    if scheme != "hf":  # which cannot do without, and asks for the state of a repository each time
        options["use_listings_cache"] = False
    if scheme == "s3":  # retried here, and not three times over
        own = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
        limits = {"connect_timeout": TIMEOUT, "read_timeout": TIMEOUT, "retries": {"total_max_attempts": 1}}
        options["config_kwargs"] = {**own, **limits}
    filesystem = fsspec.filesystem(scheme, **options)
    if scheme == "s3":
        filesystem.retries = 1
    return FILESYSTEMS.setdefault(key, filesystem)


def within(seconds: float, function: Callable[[], T]) -> T:
    """Return the result of a function; TimeoutError if that takes longer."""
    outcome: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            outcome.put((function(), None))
        except BaseException as error:
            outcome.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    try:
        value, error = outcome.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer in {seconds:.0f} seconds") from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


def ask(url: str, question: Callable[[Any, str], T], seconds: float = 2 * TIMEOUT) -> T:
    """Ask a filesystem one question about an address, once.

    Raises `SourceError` where asking again would not help, and `ConnectionError` where it may.
    """
    scheme, _, path = url.partition("://")
    if not path.strip("/"):
        raise SourceError(f"{url} names no bucket: pass an address such as {scheme}://bucket/folder")

    def call() -> T:
        filesystem = open_filesystem(scheme)
        return question(filesystem, filesystem._strip_protocol(url))

    try:
        return within(seconds, call)
    except SourceError:
        raise
    except Exception as error:  # each library has its own
        raise explain(url, error) from error


def explain(url: str, error: Exception) -> SourceError | ConnectionError:
    """An error of a provider's library: one sentence, or a ConnectionError if it may pass."""
    reason = textwrap.shorten(str(error) or type(error).__name__, MAX_SHOWN)
    bucket, provider = bucket_of(url), PROVIDERS[url.partition("://")[0]]
    code = getattr(error, "code", None) or getattr(getattr(error, "response", None), "status_code", None)
    names = {each.__name__ for each in type(error).__mro__}
    if names & CREDENTIAL_ERRORS or isinstance(error, PermissionError) or code in (401, 403) or "Forbidden" in reason:
        return SourceError(f"the bucket {bucket} cannot be read ({reason}): {provider.access}")
    if isinstance(error, FileNotFoundError):
        if "bucket does not exist" in reason or "repository not found" in reason:
            return MissingObject(f"there is no bucket {bucket}: check the name, and the endpoint if you set one")
        return MissingObject(f"there is nothing at {url}: check the bucket and the path")
    if "FileExpired" in names:
        return SourceError(f"{url} changed while it was read: open the source again")
    if "ParamValidationError" in names or isinstance(error, ValueError):
        return SourceError(f"{url} is not an address of {provider.package} ({reason}): check it")
    return ConnectionError(reason)


def persist(url: str, question: Callable[[Any, str], T], seconds: float = 2 * TIMEOUT) -> T:
    """`ask`, again after each failure that may pass, a bounded number of times."""
    failures = 0
    while True:
        try:
            return ask(url, question, seconds)
        except ConnectionError as error:
            failures += 1
            if failures > RETRIES:
                raise give_up(url, failures, error) from error
            pause(failures)


def pause(failures: int) -> None:
    """Wait before a question is asked again."""
    time.sleep(min(0.1 * 2**failures, 10.0))


def give_up(url: str, failures: int, error: Exception) -> SourceError:
    """The error for an address that did not answer."""
    why = textwrap.shorten(str(error), MAX_SHOWN)
    return SourceError(f"{url} failed {failures} times in a row ({why}): check the connection, then resume")


def list_folder(url: str) -> Listing:
    """The folders and files in a folder, sorted."""
    entries = persist(url, lambda filesystem, path: entries_of(filesystem.ls(path, detail=True), path), LIST_SECONDS)
    if not entries:
        raise MissingObject(f"there is nothing at {url}: check the bucket and the path")
    if "" in entries:
        raise SourceError(f"{url} is a file, and a folder was expected: check the address")
    folders = [name for name, entry in entries.items() if entry.get("type") == "directory"]
    files = {name: int(entry.get("size") or 0) for name, entry in entries.items() if entry.get("type") == "file"}
    return Listing(folders, files)


def list_objects(url: str) -> dict[str, int]:
    """The name, relative to a folder, and the size in bytes of every file in it, at any depth."""

    def find(filesystem: Any, path: str) -> dict[str, dict[str, Any]]:
        return entries_of(filesystem.find(path, detail=True).values(), path)

    return {name: int(entry.get("size") or 0) for name, entry in persist(url, find, LIST_SECONDS).items() if name}


def entries_of(entries: Iterable[Mapping[str, Any]], folder: str) -> dict[str, dict[str, Any]]:
    """The entries of a folder, by their name relative to it, as a filesystem lists them; "" is the folder as a file."""
    start, named = folder.rstrip("/") + "/", {}
    for entry in entries:
        name = str(entry["name"])
        if name == folder and entry.get("type") == "file":
            named[""] = dict(entry)
        elif name.startswith(start) and name != start:  # which marks the folder in the browsers of buckets
            named[name[len(start) :].rstrip("/")] = dict(entry)
    return dict(sorted(named.items(), key=lambda item: os.fsencode(item[0])))


def object_sizes(urls: Iterable[str]) -> npt.NDArray[np.int64]:
    """[N] the bytes of each object, -1 where there is none."""
    urls = list(urls)
    folders: dict[str, list[str]] = {}
    for url in urls:
        folders.setdefault(url.rpartition("/")[0], []).append(url)
    sizes: dict[str, int] = {}

    def measure(item: tuple[str, list[str]]) -> None:
        folder, members = item
        try:
            if len(members) > MAX_ASKED:
                files = list_folder(folder).files
                sizes.update((url, files.get(url.rpartition("/")[2], -1)) for url in members)
                return
        except MissingObject:
            return
        for url in members:
            try:
                sizes[url] = object_size(url)
            except MissingObject as error:
                if "there is no bucket" in str(error):
                    raise

    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(measure, folders.items()))
    return np.fromiter((sizes.get(url, -1) for url in urls), dtype=np.int64, count=len(urls))


def object_size(url: str) -> int:
    """The bytes of an object."""
    info = persist(url, lambda filesystem, path: filesystem.info(path))
    if info.get("type") != "file":
        raise MissingObject(f"{url} is a folder, and a file was expected: check the address")
    return int(info.get("size") or 0)


def read_object(url: str, size: int, name: str) -> bytes:
    """The bytes of an image of which it is known how many they are.

    Args:
        url: its address.
        size: the number of bytes; -1 if there was no such object.
        name: the name of the image, for errors.
    """
    if size > MAX_OBJECT:
        raise BadImage(name, f"is {size / 1e9:.1f} GB, more than any image: remove it from the data")
    if size == 0:
        return b""
    try:
        if size < 0:
            raise MissingObject(f"there is no object {url}")
        data = persist(
            url, lambda filesystem, path: filesystem.cat_file(path, start=0, end=size), TIMEOUT + size / MIN_RATE
        )
    except MissingObject as error:
        raise BadImage(name, f"cannot be read (there is no object {url})") from error
    if len(data) != size:
        raise BadImage(name, f"has {len(data)} bytes, and {size} when the bucket was listed: open the source again")
    return bytes(data)


def read_text(url: str) -> bytes:
    """The bytes of a list."""
    size = object_size(url)
    if size > MAX_OBJECT:
        raise SourceError(f"{url} is {size / 1e9:.1f} GB, more than any list: check the address")
    return read_object(url, size, url)


@final
class ObjectReader:
    """Bytes of one object at any position; an object that changes meanwhile is an error where the provider says so."""

    def __init__(self, url: str, timeout: float = TIMEOUT) -> None:
        self.url = url
        self.timeout = timeout
        info = persist(url, lambda filesystem, path: filesystem.info(path))
        self.size = int(info.get("size") or 0)
        marks = (info.get(key) for key in ("ETag", "etag", "generation", "blob_id", "LastModified", "created", "mtime"))
        self.version = str(next((mark for mark in marks if mark), ""))
        if info.get("type") != "file" or not self.size:
            raise SourceError(f"{url} is empty or a folder: check the address")
        self._file: tuple[int, Any] | None = None

    def read(self, start: int, stop: int) -> bytes:
        """These bytes, fewer at the end of the object; ConnectionError if the connection drops."""

        def fetch(filesystem: Any, path: str) -> bytes:
            if self._file is None or self._file[0] != os.getpid():
                self._file = (os.getpid(), filesystem.open(path, "rb", cache_type="none"))
            file = self._file[1]
            file.seek(start)
            return bytes(file.read(min(stop, self.size) - start))

        return ask(self.url, fetch, self.timeout + (stop - start) / MIN_RATE)
