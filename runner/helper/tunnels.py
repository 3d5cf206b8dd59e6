"""Connections of the container's programs, carried to the host as tunnels of the stream.

Owns the one socket that listens, on the container's own loopback, and the sockets of those who
connect to it. What flows through a tunnel is the host's matter: nothing here looks at a byte
of it.

The stream has to stay free for the answers to calls, whatever the programs do. So at most
`MAX_TUNNELS` are connected at once, connections are taken at a bounded rate, and of what all of
them send only `QUEUED_BYTES` wait for the stream at any moment; the rest stays in the kernel's
buffers, where it slows down whoever sends it.
"""

import collections
import errno
import selectors
import socket
import struct
import time
from collections.abc import Callable
from typing import Any, Protocol

from runner.helper import wire
from runner.helper.wire import Kind

LOOPBACK = "127.0.0.1"
BACKLOG = 64
"""Connections that wait to be taken; the kernel holds them off, or turns them away, beyond."""
QUEUED_BYTES = 256 * 1024
"""What all tunnels together may have waiting for the stream. An answer waits behind it."""
NEW_PER_S = 256.0
"""New connections a second; `MAX_TUNNELS` may come at once. Each costs the host some work,
which it does for all its sessions."""
TROUBLE_S = 0.1
"""How long no connection is taken after the kernel had no descriptor or no memory for one."""

_NO_TIME = struct.pack("ii", 1, 0)
"""SO_LINGER: closing resets the connection, so that its peer takes it for no proper end."""


class Sink(Protocol):
    """Where the frames go, in order."""

    queued_bytes: int
    """Bytes that were ever queued."""
    sent_bytes: int
    """Of these, the bytes that have left."""

    def send(
        self, kind: int, call: int, fields: dict[str, Any] | None = None, payload: bytes = b""
    ) -> None:
        """Queue a frame."""
        ...


class _Tunnel:
    """One connection. It is forgotten when DROP has been said and heard."""

    __slots__ = (
        "credit",
        "dropped",
        "heard_end",
        "held",
        "number",
        "owed",
        "said_end",
        "socket",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self, number: int, connection: socket.socket):
        self.number = number
        self.socket = connection
        self.credit = wire.TUNNEL_WINDOW_BYTES
        """What may be sent to the host before it has said that it took some."""
        self.waiting: collections.deque[memoryview] = collections.deque()
        """What came from the host, and the connection has no room for yet."""
        self.waiting_bytes = 0
        self.owed = 0
        """Bytes from the host that the connection took, and it was not told of."""
        self.said_end = False
        """The program will send no more, and the host knows."""
        self.heard_end = False
        """The host will send no more."""
        self.held = False
        """It waits for its turn to be read."""
        self.dropped = False
        """DROP was said; the socket is closed."""


class Tunnels:
    """All connections of the container, for one conversation after the other.

    The loop calls `resume` after what it queued was sent as far as possible, and not later than
    at `due`, and `end` with the end of a conversation.
    """

    def __init__(self, selector: selectors.BaseSelector, sink: Sink):
        self.due: float | None = None
        """When `resume` wants to be called, on the monotonic clock."""
        self._selector = selector
        self._sink = sink
        self._listening: socket.socket | None = None
        self._port = 0
        self._open = False
        """The host takes connections."""
        self._tunnels: dict[int, _Tunnel] = {}
        self._next = wire.TUNNEL_BASE
        self._tokens = float(wire.MAX_TUNNELS)
        """Connections that may be taken now; a bucket that fills by `NEW_PER_S`."""
        self._filled = time.monotonic()
        self._held: collections.deque[_Tunnel] = collections.deque()
        self._queued: collections.deque[tuple[int, int]] = collections.deque()
        """Frames of tunnels that may not have left: where they end in all that was ever queued,
        and their length."""
        self._queued_bytes = 0

    def listen(self, port: int) -> None:
        """Take connections on this port from now on.

        The port is kept when a conversation ends, for the next one to listen at again; whoever
        connects meanwhile is turned away at once.

        Raises:
            OSError: It can't be had: a program has it, or there is no loopback.
        """
        if self._listening is None or self._port != port:
            listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                listening.setblocking(False)
                listening.bind((LOOPBACK, port))
                listening.listen(BACKLOG)
            except BaseException:
                listening.close()
                raise
            if self._listening is not None:
                self._watch(self._listening, 0)
                self._listening.close()
            self._listening, self._port = listening, port
        self._open = True
        self._watch_listening()

    def take(self, message: wire.Message) -> None:
        """Do what the host says of a tunnel.

        Raises:
            ProtocolError: There is no such tunnel, or it may not say this of it.
        """
        tunnel = self._tunnels.get(message.call)
        if tunnel is None:
            raise wire.ProtocolError(f"there is no tunnel {message.call}")
        if message.kind == Kind.DROP:
            self._drop(tunnel)
            self._forget(tunnel)
        elif tunnel.dropped:
            return  # said before the host heard of it
        elif message.kind == Kind.TOOK:
            tunnel.credit += message.fields["bytes"]
            if tunnel.credit > wire.TUNNEL_WINDOW_BYTES:
                raise wire.ProtocolError(f"more was taken of tunnel {tunnel.number} than was sent")
            self._watch_tunnel(tunnel)
        elif tunnel.heard_end:
            raise wire.ProtocolError(f"tunnel {tunnel.number} goes on after its end")
        elif message.kind == Kind.SHUT:
            tunnel.heard_end = True
            self._write(tunnel)
        else:
            self._take_data(tunnel, message.payload)

    def resume(self) -> None:
        """Let go on what had to wait for room in the stream, or for its time."""
        if self._queued:
            self._note_sent()
        room = QUEUED_BYTES - self._queued_bytes
        while self._held and room > 0:
            tunnel = self._held.popleft()
            tunnel.held = False
            self._watch_tunnel(tunnel)
            room -= wire.TUNNEL_CHUNK_BYTES
        if self.due is not None and self.due <= time.monotonic():
            self.due = None
            self._watch_listening()

    def end(self) -> None:
        """The conversation is over, and every tunnel with it."""
        for tunnel in self._tunnels.values():
            self._close(tunnel)
        self._tunnels.clear()
        self._held.clear()
        self._queued.clear()
        self._queued_bytes = 0
        self._next = wire.TUNNEL_BASE
        self._open = False
        self._watch_listening()

    # Connections.

    def _watch_listening(self) -> None:
        """Look at who connects, unless there are enough of them or it is too soon."""
        if self._listening is None:
            return
        is_full = len(self._tunnels) >= wire.MAX_TUNNELS or self._next >= 2**32
        wanted = self.due is None and not (self._open and is_full)
        self._watch(self._listening, selectors.EVENT_READ if wanted else 0, self._accept)

    def _accept(self) -> None:
        now = time.monotonic()
        grown = self._tokens + (now - self._filled) * NEW_PER_S
        self._tokens = min(grown, float(wire.MAX_TUNNELS))
        self._filled = now
        if self._tokens < 1:
            self._pause(now + (1 - self._tokens) / NEW_PER_S)
            return
        assert self._listening is not None
        try:
            connection, _ = self._listening.accept()
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (BlockingIOError, ConnectionAbortedError):
            return  # it thought better of it
        except OSError:  # calls have taken all descriptors or memory that there are
            self._pause(now + TROUBLE_S)
            return
        self._tokens -= 1
        if not self._open:
            _reset(connection)
            return
        tunnel = _Tunnel(self._next, connection)
        self._next += 1
        self._tunnels[tunnel.number] = tunnel
        self._sink.send(Kind.OPENED, tunnel.number)
        self._watch_tunnel(tunnel)
        self._watch_listening()

    def _pause(self, due: float) -> None:
        self.due = due
        self._watch_listening()

    # What programs send.

    def _watch_tunnel(self, tunnel: _Tunnel) -> None:
        events = 0
        if not tunnel.said_end and tunnel.credit and not tunnel.held:
            events |= selectors.EVENT_READ
        if tunnel.waiting:
            events |= selectors.EVENT_WRITE
        self._watch(tunnel.socket, events, lambda: self._on_ready(tunnel))

    def _watch(
        self, watched: socket.socket, events: int, action: Callable[[], None] | None = None
    ) -> None:
        key = self._selector.get_map().get(watched)
        if not events:
            if key is not None:
                self._selector.unregister(watched)
        elif key is None:
            self._selector.register(watched, events, action)
        elif key.events != events:
            self._selector.modify(watched, events, action)

    def _on_ready(self, tunnel: _Tunnel) -> None:
        # Which of the two it is the loop does not say; trying the other costs little.
        if tunnel.waiting:
            self._write(tunnel)
        if not tunnel.dropped and not tunnel.said_end and tunnel.credit and not tunnel.held:
            self._read(tunnel)

    def _read(self, tunnel: _Tunnel) -> None:
        if self._queued_bytes >= QUEUED_BYTES:
            tunnel.held = True
            self._held.append(tunnel)
            self._watch_tunnel(tunnel)
            return
        try:
            data = tunnel.socket.recv(min(tunnel.credit, wire.TUNNEL_CHUNK_BYTES))
        except BlockingIOError:
            return
        except OSError:  # reset, by whoever has connected
            self._drop(tunnel)
            return
        if data:
            before = self._sink.queued_bytes
            self._sink.send(Kind.DATA, tunnel.number, None, data)
            length = self._sink.queued_bytes - before
            self._queued.append((self._sink.queued_bytes, length))
            self._queued_bytes += length
            tunnel.credit -= len(data)
            if not tunnel.credit:
                self._watch_tunnel(tunnel)
        else:
            tunnel.said_end = True
            self._sink.send(Kind.SHUT, tunnel.number)
            self._watch_tunnel(tunnel)
            self._end_if_both_have(tunnel)

    def _note_sent(self) -> None:
        while self._queued and self._queued[0][0] <= self._sink.sent_bytes:
            self._queued_bytes -= self._queued.popleft()[1]

    # What the host sends.

    def _take_data(self, tunnel: _Tunnel, data: bytes) -> None:
        if not data:
            raise wire.ProtocolError(f"nothing was sent in tunnel {tunnel.number}")
        if tunnel.waiting_bytes + tunnel.owed + len(data) > wire.TUNNEL_WINDOW_BYTES:
            raise wire.ProtocolError(f"more was sent in tunnel {tunnel.number} than was allowed")
        tunnel.waiting.append(memoryview(data))
        tunnel.waiting_bytes += len(data)
        if len(tunnel.waiting) == 1:
            self._write(tunnel)

    def _write(self, tunnel: _Tunnel) -> None:
        """Give the connection what it takes, and then the end, if that has come."""
        try:
            while tunnel.waiting:
                data = tunnel.waiting[0]
                count = tunnel.socket.send(data)
                tunnel.waiting_bytes -= count
                tunnel.owed += count
                if count < len(data):
                    tunnel.waiting[0] = data[count:]
                else:
                    tunnel.waiting.popleft()
            if tunnel.heard_end:
                tunnel.socket.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:  # whoever has connected is gone
            self._drop(tunnel)
            return
        if tunnel.owed >= wire.TUNNEL_WINDOW_BYTES // 4:
            self._sink.send(Kind.TOOK, tunnel.number, {"bytes": tunnel.owed})
            tunnel.owed = 0
        self._watch_tunnel(tunnel)
        self._end_if_both_have(tunnel)

    # Ends.

    def _end_if_both_have(self, tunnel: _Tunnel) -> None:
        if tunnel.said_end and tunnel.heard_end and not tunnel.waiting:
            self._drop(tunnel)

    def _drop(self, tunnel: _Tunnel) -> None:
        if not tunnel.dropped:
            self._sink.send(Kind.DROP, tunnel.number)
            self._close(tunnel)

    def _close(self, tunnel: _Tunnel) -> None:
        if tunnel.dropped:
            return
        tunnel.dropped = True
        self._watch(tunnel.socket, 0)
        if tunnel.held:
            self._held.remove(tunnel)
            tunnel.held = False
        tunnel.waiting.clear()
        if tunnel.said_end and tunnel.heard_end and not tunnel.waiting_bytes:
            tunnel.socket.close()
        else:
            _reset(tunnel.socket)

    def _forget(self, tunnel: _Tunnel) -> None:
        del self._tunnels[tunnel.number]
        self._watch_listening()


def failure_of(error: OSError) -> str:
    """Why `listen` failed, as one of `wire.FAILURES`."""
    if error.errno == errno.EADDRINUSE:
        return "address_in_use"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "permission_denied"
    return "io"


def _reset(connection: socket.socket) -> None:
    """Close a connection so that its peer takes it for no proper end."""
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_TIME)
    except OSError:
        pass  # it may have no peer any more
    finally:
        connection.close()
