"""A file on a web server or in a bucket, read by position, whatever happens to the connection."""

import http.client
import io
import re
import socket
import textwrap
import time
import urllib.error
import urllib.request
from threading import Lock
from typing import Any, final

from mixview.data.sources.base import SourceError
from mixview.data.sources.cloud import ObjectReader, is_cloud

MIN_FETCH = 16 * 1024
MAX_FETCH = 16 * 1024 * 1024
NEAR = 1024 * 1024
"""A read that begins within this much behind the last one goes on reading; anything else jumps."""

MAX_READ = 1 << 29
"""Bytes that are requested at once, no image is larger, and what a shard says of itself may be wrong."""
MIN_RATE = 1024
"""Bytes per second below which a connection counts as dropped, once its time of silence has passed."""
MAX_SHOWN = 200
"""Characters of a server's words that an error repeats."""
MIN_PROGRESS = 1024
"""Bytes that one request has to bring (or all that is left) to count as progress."""

PASSING = frozenset({408, 429, 500, 502, 503, 504})
"""Answers after which the same question may be answered."""


@final
class Paced(io.RawIOBase):
    """The bytes that arrive on a connection, as long as they arrive: the headers and the body of an answer."""

    def __init__(self, raw: Any, grace: float) -> None:
        super().__init__()
        self._raw = raw
        self._grace = grace
        self._start = time.monotonic()
        self._received = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        elapsed = time.monotonic() - self._start
        if elapsed > self._grace and self._received < MIN_RATE * elapsed:
            raise TimeoutError(f"{self._received} bytes in {elapsed:.0f} seconds")
        count: int | None = self._raw.readinto(buffer)
        self._received += count or 0
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class PacedResponse(http.client.HTTPResponse):
    """An answer that has to keep coming: a timeout of the socket's own starts again with every byte."""

    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp.close()
        self.fp = io.BufferedReader(Paced(sock.makefile("rb", buffering=0), sock.gettimeout() or 30.0))


class Connection(http.client.HTTPConnection):
    response_class = PacedResponse


class SecureConnection(http.client.HTTPSConnection):
    response_class = PacedResponse


class Handler(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(Connection, request)


class SecureHandler(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(SecureConnection, request)


def make_opener() -> urllib.request.OpenerDirector:
    """An opener that asks servers by http and https only, whatever a server redirects to."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        Handler,
        SecureHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


OPENER = make_opener()


@final
class RemoteFile(io.RawIOBase):
    """A file behind an http(s) URL, or in a bucket, that can be read at any position.

    Bytes are requested by HTTP Range, in buckets by `ObjectReader`. Reading on from where the last read ended fetches
    ever larger pieces (up to 16 MiB), reading here and there only what is requested: one object serves both a shard
    that is streamed and an image that is picked. When the connection drops, the next request begins at the byte where
    it dropped; `retries` such interruptions without a kilobyte between them are given up on. A file that changes while
    it is read is an error, and so is an answer that is not what was requested.

    Args:
        url: http://, https://, s3://, gs:// or hf://.
        timeout: seconds of silence after which a connection counts as dropped, and after which it has to be faster than
            a kilobyte per second.
        retries: interruptions in a row that are put up with.
    """

    def __init__(self, url: str, timeout: float = 30.0, retries: int = 5) -> None:
        super().__init__()
        if not url.startswith(("http://", "https://")) and not is_cloud(url):
            raise SourceError(
                f"{url} is not an http://, https://, s3://, gs:// or hf:// address: download the file and pass its path"
            )
        self.url = url
        self.timeout = timeout
        self.retries = retries
        self.version = ""
        """The server's mark that tells one content from another: its ETag, or the date of change."""
        self._lock = Lock()
        self._position = 0
        self._start = 0
        self._buffer = b""
        self._ahead = MIN_FETCH
        self._size = 0
        self._object: ObjectReader | None = None
        if is_cloud(url):
            self._object = ObjectReader(url, timeout)
            self._size, self.version = self._object.size, self._object.version
        self._buffer = self._fetch(0, MIN_FETCH)

    @property
    def size(self) -> int:
        """Bytes in the whole file."""
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        count = self._size - self._position if size is None or size < 0 else size
        data = self.read_at(self._position, count)
        self._position += len(data)
        return data

    def read_at(self, start: int, count: int) -> bytes:
        """These bytes, fewer at the end of the file."""
        stop = min(start + count, self._size)
        if stop - start > MAX_READ:
            raise SourceError(
                f"{self.url} claims to hold {stop - start} bytes in one piece, more than any image: check the file"
            )
        with self._lock:
            if start < self._start or stop > self._start + len(self._buffer):
                self._fill(start, stop)
            return self._buffer[start - self._start : max(stop - self._start, 0)]

    def _fill(self, start: int, stop: int) -> None:
        """The buffer with these bytes in it."""
        end = self._start + len(self._buffer)
        if self._start <= start <= end:  # keep what is there already of the bytes that are wanted
            buffered, first = self._buffer[start - self._start :], end
        else:
            buffered, first = b"", start
        self._ahead = min(self._ahead * 2, MAX_FETCH) if self._start <= start <= end + NEAR else MIN_FETCH
        fetched = self._fetch(first, max(stop, first + self._ahead))
        self._buffer, self._start = buffered + fetched, start

    def _fetch(self, start: int, stop: int) -> bytes:
        """Bytes from the server, in as many requests as it takes."""
        data = bytearray()
        failures = 0
        while not self._size or start + len(data) < min(stop, self._size):
            before = len(data)
            try:
                self._request(start + before, stop, data)
                if start + len(data) < min(stop, self._size) and len(data) - before < MIN_PROGRESS:
                    raise ConnectionError(f"it sent {len(data) - before} bytes of {stop - start - before}")
            except http.client.InvalidURL:  # whose message repeats the query
                shown = self.url.split()[0]
                raise SourceError(f"{shown} is not a web address: check it, and write spaces as %20") from None
            except (urllib.error.HTTPError, http.client.HTTPException, OSError) as error:
                if isinstance(error, urllib.error.HTTPError):
                    error.close()  # with the connection, whose answer nobody reads
                if isinstance(error, urllib.error.HTTPError) and error.code not in PASSING:
                    why = textwrap.shorten(f"{error.code} {error.reason}", MAX_SHOWN)
                    raise SourceError(f"{self.url} answers {why}: check the address") from error
                failures = 1 if len(data) - before >= MIN_PROGRESS else failures + 1
                if failures > self.retries:
                    why = textwrap.shorten(str(error), MAX_SHOWN)
                    raise SourceError(
                        f"{self.url} failed {failures} times in a row ({why}): check the server, then resume"
                    ) from error
                time.sleep(min(0.1 * 2**failures, 10.0))
        return bytes(data)

    def _request(self, start: int, stop: int, data: bytearray) -> None:
        """One request; what arrives is in `data` even if the connection drops before the end."""
        if self._object is not None:
            data += self._object.read(start, stop)
            return
        # A proxy that packs or changes what it passes on would shift every position.
        headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity", "User-Agent": "mixview"}
        request = urllib.request.Request(self.url, headers=headers)
        with OPENER.open(request, timeout=self.timeout) as response:
            sent = response.headers.get("Content-Range", "")
            match = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", sent, re.ASCII)
            if response.status != 206 or not match or int(match[1]) != start:
                raise SourceError(
                    f"the server of {self.url} does not answer Range requests, without which no image can be picked: "
                    "use another server (nginx, S3 …), or download the file"
                )
            if not start <= int(match[2]) < min(stop, int(match[3])):
                raise SourceError(
                    f"the server of {self.url} answers with {sent!r} to a request for bytes {start}-{stop - 1}: use "
                    "another server (nginx, S3 …), or download the file"
                )
            version = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
            size = int(match[3])
            if self._size and (size, version) != (self._size, self.version):
                raise SourceError(f"{self.url} changed while it was read: open the source again")
            self._size, self.version = size, version
            missing = int(match[2]) + 1 - start
            while missing > 0 and (piece := response.read1(min(missing, 64 * 1024))):
                data += piece
                missing -= len(piece)
            if missing:  # http.client says nothing when a connection ends early
                raise ConnectionError(f"the connection dropped {missing} bytes before the end")
