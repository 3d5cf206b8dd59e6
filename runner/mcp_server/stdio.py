"""The transport over standard input and output: a message a line, and nothing else.

The SDK's own reads in threads, which a signal can't interrupt, takes lines of any length, and
drops what it can't read. This one waits for its descriptors on the event loop and leaves their
flags alone, since those belong to whoever started us as well.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.lowlevel.server import Server
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCMessage

from runner.logs import log
from runner.mcp_server.messages import MAX_MESSAGE_BYTES, Refused, read

__all__ = ["Streams", "claimed", "serve", "stdio"]

READ_BYTES = 64 * 1024
WRITE_BYTES = 4096
"""At once: what a pipe that has room surely takes, so that no write ever waits (PIPE_BUF)."""
LEAVE_S = 1.0
"""How long a client has to take the last answers, in seconds."""

Streams = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception],
    MemoryObjectSendStream[SessionMessage],
]


async def serve(server: Server[Any]) -> None:
    """Serve over standard input and output until the input ends or nobody reads the output."""
    with claimed() as (source, sink):
        async with stdio(source, sink) as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())


@contextlib.contextmanager
def claimed() -> Iterator[tuple[int, int]]:
    """Take standard input and output for the protocol alone.

    Meanwhile whatever else in this process prints does so to standard error, and whatever
    reads finds the end.

    Yields:
        The descriptors to read from and to write to.
    """
    kept = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        yield kept
    finally:
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(nothing)


@contextlib.asynccontextmanager
async def stdio(source: int, sink: int) -> AsyncIterator[Streams]:
    """Messages over two descriptors, for as long as the context lasts.

    The stream that is read ends when `source` does, or nobody reads `sink` any more.

    Args:
        source: Where lines come from: a pipe, a socket, a terminal or a file.
        sink: Where lines go.
    """
    to_server, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_server = anyio.create_memory_object_stream[SessionMessage](0)
    refusals = outgoing.clone()
    reading = anyio.CancelScope()

    async def receive() -> None:
        with reading, contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with to_server, refusals:
                async for line in _lines(source):
                    try:
                        message = read(line)
                    except Refused as refused:
                        log.info("mcp.refused", code=refused.code, reason=refused.reason)
                        await refusals.send(SessionMessage(refused.answer))
                    else:
                        await to_server.send(SessionMessage(message))

    async def send() -> None:
        async with from_server:
            async for item in from_server:
                try:
                    await _write(sink, _line(item.message))
                except OSError as error:  # most of all: nobody is there to read it
                    log.info("mcp.unread", error=str(error))
                    reading.cancel()
                    return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        tasks.start_soon(send)
        try:
            yield incoming, outgoing
        finally:
            reading.cancel()
            outgoing.close()
            incoming.close()
            tasks.cancel_scope.deadline = anyio.current_time() + LEAVE_S


def _line(message: JSONRPCMessage) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"


async def _lines(source: int) -> AsyncIterator[bytes]:
    """Lines that are not blank; of one that is longer than a message may be, a bit too much."""
    buffer = bytearray()
    while data := await _read(source):
        *ends, rest = data.split(b"\n")
        for end in ends:
            if line := _whole(_add(buffer, end)):
                yield line
            buffer.clear()
        _add(buffer, rest)
    if line := _whole(buffer):
        yield line


def _add(buffer: bytearray, data: bytes) -> bytearray:
    """More of a line, up to where it is too long anyway."""
    buffer += data[: MAX_MESSAGE_BYTES + 1 - len(buffer)]
    return buffer


def _whole(buffer: bytearray) -> bytes:
    """A line, or nothing where it is blank."""
    return bytes(buffer) if buffer.strip() else b""


async def _read(source: int) -> bytes:
    loop = asyncio.get_running_loop()
    await _ready(source, loop.add_reader, loop.remove_reader)
    return os.read(source, READ_BYTES)


async def _write(sink: int, data: bytes) -> None:
    loop = asyncio.get_running_loop()
    view = memoryview(data)
    while view:
        await _ready(sink, loop.add_writer, loop.remove_writer)
        view = view[os.write(sink, view[:WRITE_BYTES]) :]


async def _ready(
    descriptor: int,
    add: Callable[..., object],
    remove: Callable[[int], bool],
) -> None:
    """Wait until a descriptor can be used without waiting."""
    ready = asyncio.Event()
    try:
        add(descriptor, ready.set)
    except PermissionError:  # a file, which always can
        await asyncio.sleep(0)
        return
    try:
        await ready.wait()
    finally:
        remove(descriptor)
