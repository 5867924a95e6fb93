"""A web server on loopback that answers Range requests and can be told to misbehave."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Serves `files`, and counts what it is asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.drop_after: int | None = None
        """Cut each connection after so many bytes of its body, once or, if `always_drop`, every time."""
        self.always_drop = False
        self.fail_with: list[int] = []
        """Answers to give before the right one."""
        self.ranges = True
        self.version = '"1"'
        self.redirect: dict[str, str] = {}
        self.content_range: str | None = None
        """What to say of what is sent, with {start}, {stop} and {size}; by default the truth."""
        self.drip: float | None = None
        """Seconds between one byte and the next."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is nothing to report."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers.get("Range", "")))
        if self.server.fail_with:
            self.send_error(self.server.fail_with.pop(0))
            return
        if self.path in self.server.redirect:
            self.send_response(302)
            self.send_header("Location", self.server.redirect[self.path])
            self.end_headers()
            return
        data = self.server.files.get(self.path.partition("?")[0])
        if data is None:
            self.send_error(404)
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked and self.server.ranges:
            start, stop = int(asked[1]), min(int(asked[2]) + 1, len(data))
            if start >= len(data):
                self.send_error(416)
                return
            self.send_response(206)
            told = self.server.content_range or "bytes {start}-{stop}/{size}"
            self.send_header("Content-Range", told.format(start=start, stop=stop - 1, size=len(data)))
            body = data[start:stop]
        else:
            self.send_response(200)
            body = data
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", self.server.version)
        self.end_headers()
        limit = self.server.drop_after
        if limit is not None and len(body) > limit:
            if not self.server.always_drop:
                self.server.drop_after = None
            body = body[:limit]
        if self.server.drip is not None:
            for byte in body:
                self.wfile.write(bytes([byte]))
                time.sleep(self.server.drip)
            return
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
