"""A real S3 server on loopback, moto's, and a proxy before it that cuts connections in the middle of an answer."""

import contextlib
import os
import socket
import socketserver
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mixview.data.sources import cloud

KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "a-secret-that-nobody-sees"}


class Proxy(socketserver.ThreadingTCPServer):
    """Passes bytes on, and cuts connections while `cuts` is more than 0."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), Relay)
        self.target = ("127.0.0.1", port)
        self.cuts = 0
        """Answers that are still to be cut."""
        self.cut_after = 0
        """Bytes of an answer that arrive; shorter ones arrive whole."""
        self.silent = False
        """Whether answers are held back."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Relay(socketserver.BaseRequestHandler):
    server: Proxy

    def handle(self) -> None:
        with socket.create_connection(self.server.target) as target:
            threading.Thread(target=self.pass_on, args=(target,), daemon=True).start()
            with contextlib.suppress(OSError):
                while piece := target.recv(1 << 16):
                    if self.server.silent:
                        continue
                    if self.server.cuts > 0 and len(piece) > self.server.cut_after:
                        self.server.cuts -= 1
                        self.request.sendall(piece[: self.server.cut_after])
                        break
                    self.request.sendall(piece)
            close(self.request)

    def pass_on(self, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := self.request.recv(1 << 16):
                target.sendall(piece)
        close(target)


def close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class Bucket:
    """A bucket called photos, and what is before it."""

    def __init__(self, port: int, proxy: Proxy) -> None:
        import boto3

        self.url = f"http://127.0.0.1:{port}"
        self.proxy = proxy
        self.client: Any = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1")
        self.iam: Any = boto3.client("iam", endpoint_url=self.url, region_name="us-east-1")

    def upload(self, folder: Path, prefix: str) -> str:
        """The address of what is in a folder on the disk."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())
        return f"s3://photos/{prefix}"

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket="photos", Key=key, Body=data)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Only who may read is answered."""
        self.reset_auth("0")
        try:
            yield
        finally:
            self.reset_auth("inf")

    def reset_auth(self, unchecked: str) -> None:
        """Check who asks, after so many requests."""
        address, kind = f"{self.url}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        with urllib.request.urlopen(urllib.request.Request(address, unchecked.encode(), kind, method="POST")):
            pass


@contextmanager
def serving_bucket() -> Iterator[Bucket]:
    """A server of its own, with an empty bucket."""
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with pytest.MonkeyPatch.context() as patch:
        alone(patch)
        server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
        server.start()
        port = server.get_host_and_port()[1]
        proxy = Proxy(port)
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            bucket = Bucket(port, proxy)
            bucket.client.create_bucket(Bucket="photos")
            yield bucket
        finally:
            proxy.shutdown()
            thread.join()
            proxy.server_close()
            server.stop()


def alone(patch: pytest.MonkeyPatch) -> None:
    """No account of this machine is used, and no server but that of the tests is asked."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "FSSPEC_", "GOOGLE_", "HF_TOKEN")):
            patch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        patch.setenv(name, os.devnull)
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    patch.setenv("no_proxy", "127.0.0.1,localhost")
    for name, value in KEYS.items():
        patch.setenv(name, value)
    cloud.FILESYSTEMS.clear()
