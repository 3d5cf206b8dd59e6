"""Byte streams to a container: what carries the frames. It knows bytes, not frames.

Two carriers: a Unix socket that the container dials (`Listener`), and Docker's attach stream
(`DemultiplexingCarrier` over a plain connection). Both deliver what arrives to a callback in
the event loop, which saves a task and a queue per session.
"""

import asyncio
import contextlib
import os
import queue
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, Self

from runner.errors import EngineError

OnData = Callable[[bytes | memoryview], None]
"""Takes what arrived. A memoryview is good for the time of the call only."""
OnEnd = Callable[[BaseException | None], None]

READ_BYTES = 256 * 1024
SEND_BUFFER_BYTES = 1024**2
"""What we ask the kernel to hold of a write; it gives what it allows."""
WRITE_HIGH_WATER_BYTES = 256 * 1024
"""`drain` waits while more than this is on its way to the container. Little, because the request
of a call waits behind it, too."""
DIAGNOSTICS_BYTES = 4 * 1024
"""How much of the container's standard error is remembered, from its end."""


class Carrier(Protocol):
    """A duplex byte stream.

    `start` once, from the event loop; then `on_data` is called with each piece that arrives
    and, exactly once, `on_end` when the stream is over, with the reason if there was one.
    """

    def start(self, on_data: OnData, on_end: OnEnd) -> None:
        """Begin to deliver."""
        ...

    def send(self, data: bytes) -> None:
        """Queue bytes; never blocks. What is sent after the end is dropped."""
        ...

    async def drain(self) -> None:
        """Wait until the queue has room."""
        ...

    def close(self) -> None:
        """End the stream at once; `on_end` follows. Closing twice does nothing."""
        ...

    @property
    def diagnostics(self) -> str:
        """The end of what the container wrote to standard error, where the carrier shows it."""
        ...


class SocketCarrier(asyncio.BufferedProtocol):
    """A connected stream socket, driven by the event loop itself.

    It reads into one buffer of its own: a new one for each piece would take as long as reading.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._on_data: OnData | None = None
        self._on_end: OnEnd | None = None
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._early: list[bytes] = []
        self._ended: tuple[BaseException | None] | None = None
        self._room = asyncio.Event()
        self._room.set()

    @classmethod
    async def over(cls, connection: socket.socket, early: bytes = b"") -> Self:
        """Take over a connected socket; `early` is what somebody has read from it already."""
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        loop = asyncio.get_running_loop()
        _, carrier = await loop.connect_accepted_socket(cls, connection)
        if early:
            carrier._early.insert(0, early)
        return carrier

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        data = self._buffer[:nbytes]
        if self._on_data is None:
            self._early.append(bytes(data))
        else:
            self._on_data(data)

    def eof_received(self) -> bool:
        """See `asyncio.Protocol`. A container that stops talking has nothing more to hear."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._room.set()
        if self._on_end is None:
            self._ended = (error,)
        else:
            self._on_end(error)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._room.clear()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._room.set()

    def start(self, on_data: OnData, on_end: OnEnd) -> None:
        """See `Carrier`."""
        self._on_data, self._on_end = on_data, on_end
        for data in self._early:
            on_data(data)
        self._early.clear()
        if self._ended is not None:
            on_end(self._ended[0])

    def send(self, data: bytes) -> None:
        """See `Carrier`."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def drain(self) -> None:
        """See `Carrier`."""
        await self._room.wait()

    def close(self) -> None:
        """See `Carrier`."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def diagnostics(self) -> str:
        """See `Carrier`. A socket carries frames only."""
        return ""


class ThreadedCarrier:
    """A connection that the event loop can't drive, such as TLS or SSH to a remote daemon.

    `connection` needs `recv`, `send` or `sendall`, and `close`, all blocking; `early` is what
    somebody has read from it already.
    """

    def __init__(self, connection: Any, early: bytes = b""):
        self._connection = connection
        self._early = early
        self._loop = asyncio.get_running_loop()
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._closed = False
        self._on_data: OnData | None = None
        self._on_end: OnEnd | None = None

    def start(self, on_data: OnData, on_end: OnEnd) -> None:
        """See `Carrier`."""
        self._on_data, self._on_end = on_data, on_end
        if self._early:
            on_data(self._early)
        threading.Thread(target=self._receive, daemon=True).start()
        threading.Thread(target=self._transmit, daemon=True).start()

    def _receive(self) -> None:
        error: BaseException | None = None
        try:
            while data := self._connection.recv(READ_BYTES):
                self._call(self._deliver, data)
        except (OSError, ValueError, EOFError) as caught:  # ValueError: closed under the read
            error = caught
        self._call(self._end, error)

    def _transmit(self) -> None:
        send = getattr(self._connection, "sendall", None) or self._connection.send
        try:
            while (data := self._outgoing.get()) is not None:
                send(data)
                self._call(self._sent, len(data))
        except (OSError, ValueError) as error:
            self._call(self._end, error)

    def _call(self, function: Callable[[Any], None], argument: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(function, argument)

    def _deliver(self, data: bytes) -> None:
        if self._on_data is not None and not self._closed:
            self._on_data(data)

    def _end(self, error: BaseException | None) -> None:
        self.close()
        self._room.set()
        if self._on_end is not None:
            on_end, self._on_end = self._on_end, None
            on_end(error)

    def _sent(self, count: int) -> None:
        self._waiting_bytes -= count
        if self._waiting_bytes <= WRITE_HIGH_WATER_BYTES:
            self._room.set()

    def send(self, data: bytes) -> None:
        """See `Carrier`."""
        if self._closed:
            return
        self._waiting_bytes += len(data)
        if self._waiting_bytes > WRITE_HIGH_WATER_BYTES:
            self._room.clear()
        self._outgoing.put(data)

    async def drain(self) -> None:
        """See `Carrier`."""
        await self._room.wait()

    def close(self) -> None:
        """See `Carrier`."""
        if self._closed:
            return
        self._closed = True
        self._outgoing.put(None)
        shutdown = getattr(self._connection, "shutdown", None)
        if shutdown is not None:
            with contextlib.suppress(OSError):  # it may be closed from the other end already
                shutdown(socket.SHUT_RDWR)  # closing alone does not wake the thread that reads
        with contextlib.suppress(OSError):
            self._connection.close()
        self._loop.call_soon(self._end, None)

    @property
    def diagnostics(self) -> str:
        """See `Carrier`."""
        return ""


class DemultiplexingCarrier:
    """Docker's attach stream of a container without a terminal, as one plain stream.

    The daemon puts eight bytes before each piece of output: 1 for standard output or 2 for
    standard error, three zeros, and the length. What we send it takes as it is.
    """

    _HEADER = struct.Struct("!BxxxI")

    def __init__(self, inner: Carrier):
        self._inner = inner
        self._buffer = bytearray()
        self._left = 0
        self._stream = 0
        self._errors = b""
        self._on_data: OnData | None = None

    def start(self, on_data: OnData, on_end: OnEnd) -> None:
        """See `Carrier`."""
        self._on_data = on_data
        self._inner.start(self._demultiplex, on_end)

    def _demultiplex(self, data: bytes | memoryview) -> None:
        assert self._on_data is not None
        buffer = self._buffer
        buffer += data
        while True:
            if not self._left:
                if len(buffer) < self._HEADER.size:
                    return
                self._stream, self._left = self._HEADER.unpack_from(buffer)
                del buffer[: self._HEADER.size]
            if not buffer:
                return
            piece = bytes(buffer[: self._left])
            del buffer[: self._left]
            self._left -= len(piece)
            if self._stream == 1:
                self._on_data(piece)
            else:
                self._errors = (self._errors + piece)[-DIAGNOSTICS_BYTES:]

    def send(self, data: bytes) -> None:
        """See `Carrier`."""
        self._inner.send(data)

    async def drain(self) -> None:
        """See `Carrier`."""
        await self._inner.drain()

    def close(self) -> None:
        """See `Carrier`."""
        self._inner.close()

    @property
    def diagnostics(self) -> str:
        """See `Carrier`."""
        return self._errors.decode(errors="replace")


class Listener:
    """A Unix socket in a directory of its own, for exactly one peer: a container's first process.

    The directory is mounted into the container, so that the socket appears there; the peer is
    known by the pid that the kernel reports for it.
    """

    NAME = "stream"

    def __init__(self, directory: Path):
        self._path = directory / self.NAME
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Start to listen.

        Raises:
            EngineError: The directory's path is too long for a socket, or not ours to write.
        """
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._path.unlink(missing_ok=True)
            listening.bind(str(self._path))
            # The container's user is another one; who may connect is decided by its pid.
            os.chmod(self._path, 0o666)  # noqa: S103
            listening.listen(8)
        except OSError as error:
            listening.close()
            raise EngineError(f"can't listen at {self._path}: {error}") from error
        listening.setblocking(False)
        self._socket = listening

    async def accept(self, pid: int) -> SocketCarrier:
        """Wait for the peer whose pid is `pid`; turn every other one away."""
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._socket)
            if _peer_pid(connection) == pid:
                return await SocketCarrier.over(connection)
            connection.close()

    def close(self) -> None:
        """Stop listening, and remove the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._path.unlink(missing_ok=True)


def _peer_pid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    (pid, _, _) = struct.unpack("iii", credentials)
    return int(pid)
