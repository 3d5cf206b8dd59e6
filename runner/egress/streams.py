"""Bytes both ways: what a tunnel, a dialled connection and TLS over either have in common."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Protocol, TypeVar

_T = TypeVar("_T")

CHUNK_BYTES = 64 * 1024
"""The most that is read at once."""
LINGER_S = 5.0
"""How long an end that has hung up may take for what it was sent before."""


class StreamBroken(Exception):
    """The other end is gone, or said what makes no sense; the text says which."""


class Stream(Protocol):
    """A connection. Sending waits for room, so that whoever relays needs no buffer."""

    async def receive(self) -> bytes:
        """What comes next; `b""` at its end. May raise `StreamBroken`."""
        ...

    async def send(self, data: bytes) -> None:
        """Send all of it. May raise `StreamBroken`."""
        ...

    def shut(self) -> None:
        """Say that no more will be sent; what is on its way still arrives."""

    def drop(self) -> None:
        """End it at once, both ways. Once is enough, and more does no harm."""


class SocketStream:
    """A connection of this host's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader = reader
        self._writer = writer
        self._shut = False

    async def receive(self) -> bytes:
        """See `Stream`."""
        try:
            return await self._reader.read(CHUNK_BYTES)
        except OSError as error:
            raise StreamBroken(f"the connection broke: {error}") from error

    async def send(self, data: bytes) -> None:
        """See `Stream`."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except (OSError, RuntimeError) as error:  # RuntimeError: it is closed already
            raise StreamBroken(f"the connection broke: {error}") from error

    def shut(self) -> None:
        """See `Stream`."""
        self._shut = True
        try:
            if self._writer.can_write_eof():
                self._writer.write_eof()
        except (OSError, RuntimeError):
            self.drop()  # it is gone

    def drop(self) -> None:
        """See `Stream`. What was sent before a `shut` still goes out, if it is taken soon."""
        transport = self._writer.transport
        if transport.is_closing() or not self._shut:
            transport.abort()
            return
        transport.close()
        asyncio.get_running_loop().call_later(LINGER_S, transport.abort)


class Wrapped:
    """A stream around another one: what a subclass does not change is passed on."""

    def __init__(self, stream: Stream):
        self._stream = stream

    async def receive(self) -> bytes:
        """See `Stream`."""
        return await self._stream.receive()

    async def send(self, data: bytes) -> None:
        """See `Stream`."""
        await self._stream.send(data)

    def shut(self) -> None:
        """See `Stream`."""
        self._stream.shut()

    def drop(self) -> None:
        """See `Stream`."""
        self._stream.drop()


class ClientStream(Wrapped):
    """A stream that fails as sockets do, as the tunnels of containers, made one that fails here."""

    async def receive(self) -> bytes:
        """See `Stream`."""
        try:
            return await super().receive()
        except OSError as error:
            raise StreamBroken(f"the client is gone: {error}") from error

    async def send(self, data: bytes) -> None:
        """See `Stream`."""
        try:
            await super().send(data)
        except OSError as error:
            raise StreamBroken(f"the client is gone: {error}") from error


class Prefixed(Wrapped):
    """A stream from which something was read already that belongs to it."""

    def __init__(self, stream: Stream, start: bytes):
        super().__init__(stream)
        self._start = start

    async def receive(self) -> bytes:
        """See `Stream`."""
        if self._start:
            start, self._start = self._start, b""
            return start
        return await super().receive()


def trusting() -> ssl.SSLContext:
    """What checks certificates of servers as this host does. Takes milliseconds to make."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class TlsStream:
    """TLS over another stream. `open` shakes hands."""

    def __init__(self, inner: Stream, tls: ssl.SSLObject, into: ssl.MemoryBIO, out: ssl.MemoryBIO):
        self._inner = inner
        self._tls = tls
        self._into = into
        self._out = out
        self._sending = asyncio.Lock()

    @classmethod
    async def open(
        cls, inner: Stream, context: ssl.SSLContext, *, server_name: str | None
    ) -> "TlsStream":
        """Shake hands.

        Args:
            inner: What carries it.
            context: Certificates, and what is asked of the other end's.
            server_name: The server's name or address, which its certificate has to be for;
                None: this end is the server.

        Raises:
            StreamBroken: The other end hung up, or its certificate is no good.
        """
        into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(
            into, out, server_side=server_name is None, server_hostname=server_name
        )
        stream = cls(inner, tls, into, out)
        try:
            await stream._do(tls.do_handshake)
        except ValueError as error:  # a name that no certificate can be for
            raise StreamBroken(f"TLS: {error}") from error
        return stream

    async def receive(self) -> bytes:
        """See `Stream`."""
        return await self._do(lambda: self._tls.read(CHUNK_BYTES))

    async def send(self, data: bytes) -> None:
        """See `Stream`."""
        for at in range(0, len(data), CHUNK_BYTES):
            piece = data[at : at + CHUNK_BYTES]
            try:
                self._tls.write(piece)
            except ssl.SSLError as error:
                raise StreamBroken(f"TLS: {_reason(error)}") from error
            await self._flush()

    async def finish(self) -> Stream:
        """Say that this was all, which `shut` can't: it would have to wait. What carried it."""
        with contextlib.suppress(ssl.SSLError):  # it waits for the other's word, or has it
            self._tls.unwrap()
        await self._flush()
        return self._inner

    def shut(self) -> None:
        """See `Stream`. TLS has no end of one direction that peers agree on: nothing is said."""

    def drop(self) -> None:
        """See `Stream`."""
        self._inner.drop()

    async def _do(self, step: Callable[[], _T]) -> _T | bytes:
        """Take a step, for which bytes may have to come first."""
        while True:
            try:
                done = step()
            except ssl.SSLWantReadError:
                await self._flush()
                data = await self._inner.receive()
                if data:
                    self._into.write(data)
                else:
                    self._into.write_eof()
                continue
            except ssl.SSLZeroReturnError:
                return b""
            except ssl.SSLError as error:
                with contextlib.suppress(StreamBroken):
                    await self._flush()  # the alert that tells the other end
                raise StreamBroken(f"TLS: {_reason(error)}") from error
            await self._flush()
            return done

    async def _flush(self) -> None:
        async with self._sending:  # what is taken out first goes first
            if data := self._out.read():
                await self._inner.send(data)


def _reason(error: ssl.SSLError) -> str:
    """What went wrong, without the name of OpenSSL's function."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is no good: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError):
        return "the other end hung up"
    return (error.reason or "it failed").lower().replace("_", " ")


async def relay(one: Stream, other: Stream) -> None:
    """Carry bytes both ways until both ends have said all, or one is gone.

    Raises:
        StreamBroken: One is gone. Nothing is dropped here.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(carry(one, other))
            tasks.create_task(carry(other, one))
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


async def carry(source: Stream, target: Stream) -> None:
    """Carry bytes one way until the end.

    Raises:
        StreamBroken: One of them is gone.
    """
    while data := await source.receive():
        await target.send(data)
    target.shut()


async def hang_up(stream: Stream, *, within_s: float = 2.0, most_bytes: int = 1024**2) -> None:
    """End a stream so that what was sent last arrives: wait for the other end to hang up, too."""
    with contextlib.suppress(TimeoutError, StreamBroken):
        async with asyncio.timeout(within_s):
            if isinstance(stream, TlsStream):
                stream = await stream.finish()
            stream.shut()
            while most_bytes > 0 and (data := await stream.receive()):
                most_bytes -= len(data)
    stream.drop()
