"""A Unix socket in front of the Docker daemon's, to cut what the daemon itself must not suffer."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

DAEMON = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")

Fate = Literal["pass", "drop", "refuse"]


def refusal(status: int, body: bytes) -> bytes:
    """An answer to any request."""
    head = f"HTTP/1.1 {status} Said\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


class Relay:
    """Passes connections on to the daemon, until told otherwise.

    It runs in threads, so that synchronous and asynchronous tests can use it alike.
    """

    def __init__(self, path: Path, *, daemon: str = DAEMON):
        self.path = path
        self.url = f"unix://{path}"
        self.requests: list[str] = []
        """First lines of the requests that came, such as `POST /v1.41/containers/create`."""
        self.answer = refusal(503, b'{"message":"not now"}')
        """What a refused request is told."""
        self._daemon = daemon
        self._lock = threading.Lock()
        self._fates: list[Fate] = []
        self._open: set[socket.socket] = set()
        self._listening: socket.socket | None = None
        self.listen()

    def listen(self) -> None:
        """Start, or start again."""
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self.path))
        self._listening.listen(64)
        threading.Thread(target=self._accept, args=(self._listening,), daemon=True).start()

    def next(self, *fates: Fate) -> None:
        """What becomes of the next requests, each on a connection of its own.

        `drop`: the connection ends when the request has come; `refuse`: the request gets
        `answer` instead of the daemon's.
        """
        self.cut()
        with self._lock:
            self._fates += fates

    def cut(self) -> None:
        """End every connection there is."""
        with self._lock:
            connections, self._open = self._open, set()
        for connection in connections:
            with contextlib.suppress(OSError):  # the other end was faster
                connection.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """End every connection and let no new one in: the daemon is gone."""
        listening, self._listening = self._listening, None
        if listening is not None:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            listening.close()
            self.path.unlink(missing_ok=True)
        self.cut()

    def count(self, words: str) -> int:
        """How many requests there were whose first line has these words."""
        return sum(words in request for request in self.requests)

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            first = client.recv(65536)
            if not first:
                return
            self._note(first)
            with self._lock:
                fate = self._fates.pop(0) if self._fates else "pass"
            if fate == "drop":
                return
            if fate == "refuse":
                client.sendall(self.answer)
                return
            with socket.socket(socket.AF_UNIX) as daemon:
                daemon.connect(self._daemon)
                with self._lock:
                    self._open |= {client, daemon}
                daemon.sendall(first)
                back = threading.Thread(target=self._pump, args=(daemon, client), daemon=True)
                back.start()
                self._pump(client, daemon)
                back.join()
                with self._lock:
                    self._open -= {client, daemon}

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._note(data)
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _note(self, data: bytes) -> None:
        line, _, _ = data[:500].partition(b" HTTP/1.1\r\n")
        if line.startswith((b"GET /", b"POST /", b"DELETE /")):
            self.requests.append(line.decode())


@contextlib.contextmanager
def relay(directory: Path, **options: str) -> Iterator[Relay]:
    """A relay in a directory, for as long as the context lasts."""
    made = Relay(directory / "docker.sock", **options)
    try:
        yield made
    finally:
        made.stop()
