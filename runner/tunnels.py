"""The host's ends of a container's tunnels: connections that its programs made, as byte streams.

Owns the numbers, the windows and the ends of tunnels. Everything that arrives is hostile: what a
helper in its right mind would not say of a tunnel ends the conversation. What the bytes mean is
known to whoever takes the tunnels, and to nobody here.

A tunnel is open from OPENED until DROP was said and heard. SHUT closes one direction of it; when
both are closed and all has arrived, the helper says DROP.
"""

import asyncio
import collections
from collections.abc import Awaitable, Callable

from runner.helper import wire
from runner.helper.wire import Kind

LINGER_S = 5.0
"""How long a program may take to hear what it was sent before its tunnel was shut and dropped."""


class Tunnel:
    """One connection of a program in the container. It is given to whoever listens.

    One task may receive and one may send, at the same time. What nobody receives is held up to
    the window of `wire.TUNNEL_WINDOW_BYTES`; then the program has to wait.
    """

    def __init__(self, number: int, stream: "_Stream"):
        self.id = number
        """Its number, never used twice in a conversation with a container."""
        self._stream = stream
        self._arrived: collections.deque[bytes] = collections.deque()
        self._room = wire.TUNNEL_WINDOW_BYTES
        """What the helper may still send."""
        self._owed = 0
        """Bytes that were received but not yet acknowledged."""
        self._credit = wire.TUNNEL_WINDOW_BYTES
        """What the helper still takes."""
        self._heard_end = False
        self._said_end = False
        self._said_drop = False
        self._discards = False
        """Nobody receives any more."""
        self._lingering: asyncio.TimerHandle | None = None
        """Will say DROP, unless the helper does."""
        self._over: str | None = None
        """Why nothing passes any more."""
        self._something = asyncio.Event()
        """There may be something to receive."""
        self._credited = asyncio.Event()
        """It may be that more can be sent."""

    @property
    def closed(self) -> bool:
        """Nothing passes any more: both directions ended, it was dropped, or the sandbox is lost.

        What had arrived by then can still be received, unless it was dropped here or lost.
        """
        return self._over is not None

    @property
    def ended(self) -> bool:
        """The program will send no more, though it may still listen."""
        return self._heard_end

    async def receive(self) -> bytes:
        """The next bytes of the program; b"" when it sends no more.

        Raises:
            ConnectionResetError: There is no proper end: the program or its container is gone,
                or the tunnel was dropped.
        """
        while not self._arrived:
            if self._heard_end:
                return b""
            if self._over is not None:
                raise ConnectionResetError(self._over)
            self._something.clear()
            await self._something.wait()
        data = self._arrived.popleft()
        self._owed += len(data)
        if self._owed >= wire.TUNNEL_WINDOW_BYTES // 4 and self._over is None:
            self._acknowledge(self._owed)
        return data

    async def send(self, data: bytes) -> None:
        """Send bytes to the program; waits while it takes none and the window is full.

        Cancelling it leaves open how much was sent.

        Raises:
            ConnectionResetError: The program or its container is gone, or the tunnel was dropped.
            BrokenPipeError: This end was shut.
        """
        left = memoryview(data)
        while left:
            if self._over is not None:
                raise ConnectionResetError(self._over)
            if self._said_end:
                raise BrokenPipeError("this end of the tunnel was shut")
            if not self._credit:
                self._credited.clear()
                await self._credited.wait()
                continue
            async with self._stream.turn:
                await self._stream.drain()
                if self._over is None and not self._said_end:
                    piece = left[: min(self._credit, wire.TUNNEL_CHUNK_BYTES)]
                    left = left[len(piece) :]
                    self._credit -= len(piece)
                    head = wire.encode_head(Kind.DATA, self.id, None, len(piece))
                    self._stream.send(head + piece)

    def shut(self) -> None:
        """Send no more. The program gets what was sent, and then the end; it may go on itself."""
        if not self._said_end and self._over is None:
            self._said_end = True
            self._say(Kind.SHUT)

    def drop(self) -> None:
        """End both directions; dropping again does nothing.

        Was it shut before, the program still gets what was sent, and then a proper end, if it
        takes them within `LINGER_S`. Else its connection is reset, and what was on the way lost.
        """
        if self._over is not None:
            return
        self._arrived.clear()
        self._end("the tunnel was dropped")
        self._discards = True
        if self._said_end:
            self._lingering = asyncio.get_running_loop().call_later(LINGER_S, self._say_drop)
            self._acknowledge(wire.TUNNEL_WINDOW_BYTES - self._room)
        else:
            self._say_drop()

    # What the helper says.

    def _take(self, message: wire.Message) -> None:
        """Take a frame that is not DROP.

        Raises:
            ProtocolError: It can't be.
        """
        if message.kind == Kind.TOOK:
            self._take_credit(message.fields["bytes"])
        elif self._heard_end:
            raise wire.ProtocolError(f"tunnel {self.id} goes on after its end")
        elif message.kind == Kind.SHUT:
            self._heard_end = True
            self._something.set()
        else:
            self._take_data(message.payload)

    def _take_credit(self, count: int) -> None:
        self._credit += count
        if not count or self._credit > wire.TUNNEL_WINDOW_BYTES:
            raise wire.ProtocolError(f"tunnel {self.id} took more than was sent, or nothing")
        self._credited.set()

    def _take_data(self, data: bytes) -> None:
        self._room -= len(data)
        if not data or self._room < 0:
            raise wire.ProtocolError(f"tunnel {self.id} sent more than was allowed, or nothing")
        if not self._discards:
            self._arrived.append(data)
            self._something.set()
        elif not self._said_drop:
            self._acknowledge(len(data))  # a program that only ever sends would not hear us out

    def _take_drop(self) -> None:
        self._say_drop()
        self._end("the program has closed the connection")

    def _lose(self, why: str) -> None:
        self._said_drop = True  # nobody would hear it
        self._arrived.clear()
        self._end(why)
        if self._lingering is not None:
            self._lingering.cancel()

    def _end(self, why: str) -> None:
        if self._over is None:
            self._over = why
        self._something.set()
        self._credited.set()

    def _say_drop(self) -> None:
        if not self._said_drop:
            self._said_drop = True
            self._say(Kind.DROP)
        if self._lingering is not None:
            self._lingering.cancel()

    def _acknowledge(self, count: int) -> None:
        if count:
            self._room += count
            self._owed = 0
            self._say(Kind.TOOK, {"bytes": count})

    def _say(self, kind: int, fields: dict[str, int] | None = None) -> None:
        self._stream.send(wire.encode(kind, self.id, fields))


class _Stream:
    """The way to the helper, which all tunnels share with the requests of calls.

    Tunnels send bytes in turn, each when there is room: then there is never more of all of them
    together in the queue than of one.
    """

    def __init__(self, send: Callable[[bytes], None], drain: Callable[[], Awaitable[None]]):
        self.send = send
        self.drain = drain
        self.turn = asyncio.Lock()


OnTunnel = Callable[[Tunnel], None]
"""Takes a tunnel that has come to be, at once."""


class Tunnels:
    """The tunnels of one conversation.

    Args:
        send: Queues bytes for the helper.
        drain: Waits until that queue has room.
    """

    def __init__(self, send: Callable[[bytes], None], drain: Callable[[], Awaitable[None]]):
        self.on_tunnel: OnTunnel | None = None
        """Gets the tunnels; None: the helper was not asked to make any."""
        self._stream = _Stream(send, drain)
        self._open: dict[int, Tunnel] = {}
        self._next = wire.TUNNEL_BASE

    def take(self, message: wire.Message) -> None:
        """Take a frame of a tunnel.

        Raises:
            ProtocolError: There is no such tunnel, there are too many, or it can't be.
        """
        if message.kind == Kind.OPENED:
            self._add(message.call)
            return
        tunnel = self._open.get(message.call)
        if tunnel is None:
            raise wire.ProtocolError(f"word of tunnel {message.call}, which is not open")
        if message.kind == Kind.DROP:
            del self._open[message.call]
            tunnel._take_drop()
        else:
            tunnel._take(message)

    def _add(self, number: int) -> None:
        if self.on_tunnel is None:
            raise wire.ProtocolError("a tunnel that nobody asked for")
        if number != self._next:
            raise wire.ProtocolError(f"tunnel {number} is not the next one")
        if len(self._open) >= wire.MAX_TUNNELS:
            raise wire.ProtocolError(f"more than {wire.MAX_TUNNELS} tunnels")
        self._next += 1
        tunnel = self._open[number] = Tunnel(number, self._stream)
        self.on_tunnel(tunnel)

    def end(self, why: str) -> None:
        """Nothing more will come: whoever receives or sends is told why."""
        for tunnel in self._open.values():
            tunnel._lose(why)
        self._open.clear()
        self.on_tunnel = None
