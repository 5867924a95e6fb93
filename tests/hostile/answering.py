"""A web server on loopback that answers whatever bytes it is told to, as slowly as it is told to."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator


class RawServer:
    """Accepts connections, reads a request, and lets `answer` say what goes back: bytes, and pauses (floats)."""

    def __init__(self, answer: Callable[[bytes], Iterator[bytes | float]]) -> None:
        self.answer = answer
        self.requests = 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.settimeout(0.2)
        self.closed = False
        self.thread = threading.Thread(target=self.accept, daemon=True)
        self.thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self.socket.getsockname()[:2]
        return host, port

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    def accept(self) -> None:
        """Take connections until the end."""
        while not self.closed:
            with contextlib.suppress(OSError):
                connection, _ = self.socket.accept()
                threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        """One request."""
        self.requests += 1
        with connection, contextlib.suppress(OSError):
            connection.settimeout(5)
            request = b""
            while b"\r\n\r\n" not in request and (piece := connection.recv(65536)):
                request += piece
            for part in self.answer(request):
                if self.closed:
                    return
                if isinstance(part, float):
                    time.sleep(part)
                else:
                    connection.sendall(part)

    def close(self) -> None:
        """Stop."""
        self.closed = True
        self.socket.close()
        self.thread.join(2)


@contextlib.contextmanager
def answering(answer: Callable[[bytes], Iterator[bytes | float]]) -> Iterator[RawServer]:
    """A server for the time of a block."""
    server = RawServer(answer)
    try:
        yield server
    finally:
        server.close()
