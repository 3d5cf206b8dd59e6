"""Carriers: bytes that are sent arrive, in order; an end is told once; nothing waits for ever."""

import asyncio
import os
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.carrier import (
    DIAGNOSTICS_BYTES,
    SEND_BUFFER_BYTES,
    WRITE_HIGH_WATER_BYTES,
    Carrier,
    DemultiplexingCarrier,
    Listener,
    OnData,
    OnEnd,
    SocketCarrier,
    ThreadedCarrier,
)
from runner.errors import EngineError
from runner.testing import memory_carriers

pytestmark = pytest.mark.anyio


class Peer:
    """The far end of a carrier, in the shape that a test wants."""

    def __init__(self, carrier: Carrier):
        self.carrier = carrier
        self.received = bytearray()
        self.ends: list[BaseException | None] = []
        self.started = False
        self._changed = asyncio.Event()

    def start(self) -> None:
        self.started = True
        self.carrier.start(self._on_data, self._on_end)

    def _on_data(self, data: bytes | memoryview) -> None:
        assert not self.ends, "data after the end"
        self.received += data
        self._changed.set()

    def _on_end(self, error: BaseException | None) -> None:
        self.ends.append(error)
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


async def threaded_pair() -> tuple[Carrier, Carrier]:
    one, other = socket.socketpair()
    return ThreadedCarrier(one), await SocketCarrier.over(other)


async def socket_pair() -> tuple[Carrier, Carrier]:
    one, other = socket.socketpair()
    return await SocketCarrier.over(one), await SocketCarrier.over(other)


async def memory_pair() -> tuple[Carrier, Carrier]:
    return memory_carriers()


class Multiplexer:
    """A daemon's end of an attach stream: what is sent through it gets the daemon's headers."""

    def __init__(self, inner: Carrier):
        self._inner = inner
        self.start = inner.start
        self.drain = inner.drain
        self.close = inner.close
        self.diagnostics = ""

    def send(self, data: bytes) -> None:
        self._inner.send(struct.pack("!BxxxI", 1, len(data)) + data)


async def attached_pair() -> tuple[Carrier, Carrier]:
    one, other = await socket_pair()
    return DemultiplexingCarrier(one), Multiplexer(other)


Pair = tuple[Peer, Peer]


@pytest.fixture(params=[socket_pair, threaded_pair, memory_pair, attached_pair])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    make: Callable[[], Awaitable[tuple[Carrier, Carrier]]] = request.param
    ours, theirs = map(Peer, await make())
    yield ours, theirs
    for peer in (ours, theirs):
        if not peer.started:
            peer.start()
        peer.carrier.close()
    await ours.until(lambda: ours.ends)
    await theirs.until(lambda: theirs.ends)


async def test_bytes_arrive_in_order_both_ways(pair: Pair) -> None:
    ours, theirs = pair
    ours.start()
    theirs.start()
    for n in range(500):
        ours.carrier.send(b"%d," % n)
        theirs.carrier.send(b"%d;" % n)
    there = b"".join(b"%d," % n for n in range(500))
    back = there.replace(b",", b";")
    await theirs.until(lambda: len(theirs.received) >= len(there))
    await ours.until(lambda: len(ours.received) >= len(back))
    assert theirs.received == there
    assert ours.received == back


async def test_many_megabytes_arrive_whole(pair: Pair) -> None:
    ours, theirs = pair
    ours.start()
    theirs.start()
    content = os.urandom(12 * 1024**2)
    for start in range(0, len(content), 2**20):
        ours.carrier.send(content[start : start + 2**20])
        await ours.carrier.drain()
    await theirs.until(lambda: len(theirs.received) >= len(content))
    assert theirs.received == content


async def test_what_arrives_before_the_start_is_not_lost(pair: Pair) -> None:
    ours, theirs = pair
    theirs.start()
    theirs.carrier.send(b"early")
    await asyncio.sleep(0.02)
    ours.start()
    await ours.until(lambda: ours.received == b"early")


async def test_a_close_ends_both_sides_once(pair: Pair) -> None:
    ours, theirs = pair
    ours.start()
    theirs.start()
    ours.carrier.close()
    ours.carrier.close()
    await ours.until(lambda: ours.ends)
    await theirs.until(lambda: theirs.ends)
    await asyncio.sleep(0.02)
    assert (len(ours.ends), len(theirs.ends)) == (1, 1)


async def test_the_other_side_s_end_is_told_once(pair: Pair) -> None:
    ours, theirs = pair
    ours.start()
    theirs.start()
    theirs.carrier.close()
    await ours.until(lambda: ours.ends)
    ours.carrier.close()
    await asyncio.sleep(0.02)
    assert len(ours.ends) == 1


async def test_an_end_before_the_start_is_told_after_it(pair: Pair) -> None:
    ours, theirs = pair
    theirs.start()
    theirs.carrier.close()
    await theirs.until(lambda: theirs.ends)
    await asyncio.sleep(0.02)
    ours.start()
    await ours.until(lambda: ours.ends)
    assert len(ours.ends) == 1


async def test_what_is_sent_after_the_end_is_dropped(pair: Pair) -> None:
    ours, theirs = pair
    ours.start()
    theirs.start()
    ours.carrier.close()
    ours.carrier.send(b"late")
    await ours.carrier.drain()
    await theirs.until(lambda: theirs.ends)
    ours.carrier.send(b"later")
    assert not theirs.received


MORE_THAN_FITS = 2 * (SEND_BUFFER_BYTES + WRITE_HIGH_WATER_BYTES)
"""Into the kernel's buffer, which may be twice what was asked for, and the queue before it."""


@pytest.mark.parametrize("make", [SocketCarrier.over, None], ids=["socket", "threaded"])
async def test_a_drain_waits_for_a_peer_that_does_not_read_and_a_close_ends_the_wait(
    make: Callable[[socket.socket], Awaitable[Carrier]] | None,
) -> None:
    one, other = socket.socketpair()
    with other:
        ours = Peer(await make(one) if make else ThreadedCarrier(one))
        ours.start()
        ours.carrier.send(bytes(MORE_THAN_FITS))
        draining = asyncio.create_task(ours.carrier.drain())
        await asyncio.wait([draining], timeout=0.05)
        assert not draining.done()
        ours.carrier.close()
        await asyncio.wait_for(draining, 10)
        await ours.until(lambda: ours.ends)


@pytest.mark.parametrize("make", [SocketCarrier.over, None], ids=["socket", "threaded"])
async def test_a_drain_ends_when_the_peer_reads_again(
    make: Callable[[socket.socket], Awaitable[Carrier]] | None,
) -> None:
    one, other = socket.socketpair()
    with other:
        ours = Peer(await make(one) if make else ThreadedCarrier(one))
        ours.start()
        ours.carrier.send(bytes(MORE_THAN_FITS))
        draining = asyncio.create_task(ours.carrier.drain())
        other.setblocking(False)
        loop = asyncio.get_running_loop()
        left = MORE_THAN_FITS
        while left:
            left -= len(await asyncio.wait_for(loop.sock_recv(other, 2**20), 10))
        await asyncio.wait_for(draining, 10)
        ours.carrier.close()
        await ours.until(lambda: ours.ends)


@pytest.mark.parametrize("threaded", [False, True])
async def test_what_somebody_has_read_already_comes_first(threaded: bool) -> None:
    one, other = socket.socketpair()
    with other:
        ours = Peer(
            ThreadedCarrier(one, b"early ")
            if threaded
            else await SocketCarrier.over(one, b"early ")
        )
        other.sendall(b"late")
        ours.start()
        await ours.until(lambda: ours.received == b"early late")
        ours.carrier.close()
        await ours.until(lambda: ours.ends)


class Blocking:
    """A connection that is no socket, such as one through SSH: it only has `send`."""

    def __init__(self, connection: socket.socket):
        self._connection = connection
        self.recv = connection.recv
        self.close = connection.close

    def send(self, data: bytes) -> int:
        return self._connection.send(data)


async def test_a_connection_that_is_no_socket_is_carried_too() -> None:
    one, other = socket.socketpair()
    ours, theirs = Peer(ThreadedCarrier(Blocking(one))), Peer(await SocketCarrier.over(other))
    ours.start()
    theirs.start()
    ours.carrier.send(b"there")
    theirs.carrier.send(b"back")
    await theirs.until(lambda: theirs.received == b"there")
    await ours.until(lambda: ours.received == b"back")
    ours.carrier.close()  # the thread that reads may sleep on; the end is told all the same
    await ours.until(lambda: ours.ends)
    theirs.carrier.close()
    await theirs.until(lambda: theirs.ends)


async def test_a_connection_that_fails_says_why() -> None:
    class Failing:
        def recv(self, count: int) -> bytes:
            raise ConnectionResetError("reset")

        def sendall(self, data: bytes) -> None:
            raise AssertionError("nothing was to be sent")

        def close(self) -> None:
            return

    ours = Peer(ThreadedCarrier(Failing()))
    ours.start()
    await ours.until(lambda: ours.ends)
    assert [str(end) for end in ours.ends] == ["reset"]


# Docker's attach stream.


class Feed:
    """A carrier that a test feeds by hand."""

    def __init__(self) -> None:
        self.on_data: OnData = lambda data: None
        self.sent = b""
        self.diagnostics = ""

    def start(self, on_data: OnData, on_end: OnEnd) -> None:
        self.on_data = on_data

    def send(self, data: bytes) -> None:
        self.sent += data

    async def drain(self) -> None:
        return

    def close(self) -> None:
        return


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=300)), max_size=10),
    st.integers(1, 100),
)
def test_standard_output_is_taken_apart_from_standard_error_however_it_is_cut(
    pieces: list[tuple[int, bytes]], step: int
) -> None:
    feed = Feed()
    carrier = DemultiplexingCarrier(feed)
    received = bytearray()
    carrier.start(received.extend, lambda error: None)
    data = b"".join(struct.pack("!BxxxI", kind, len(piece)) + piece for kind, piece in pieces)
    for start in range(0, len(data), step):
        feed.on_data(data[start : start + step])
    assert received == b"".join(piece for kind, piece in pieces if kind == 1)
    errors = b"".join(piece for kind, piece in pieces if kind == 2)
    assert carrier.diagnostics == errors[-DIAGNOSTICS_BYTES:].decode(errors="replace")


def test_of_standard_error_only_the_end_is_kept() -> None:
    feed = Feed()
    carrier = DemultiplexingCarrier(feed)
    carrier.start(lambda data: None, lambda error: None)
    for n in range(10_000):
        line = b"line %d\n" % n
        feed.on_data(struct.pack("!BxxxI", 2, len(line)) + line)
    assert len(carrier.diagnostics) == DIAGNOSTICS_BYTES
    assert carrier.diagnostics.endswith("line 9999\n")


def test_what_is_sent_to_a_container_goes_as_it_is() -> None:
    feed = Feed()
    DemultiplexingCarrier(feed).send(b"\1\2\3")
    assert feed.sent == b"\1\2\3"


# The socket that a container dials.

DIAL = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
connection.sendall(sys.argv[2].encode())
try:
    print(connection.recv(100).decode(), flush=True)
except ConnectionError:
    print("turned away", flush=True)
"""


def dial(path: Path, words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", DIAL, str(path), words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # one that comes too late has its reasons
    )


async def test_only_the_peer_with_the_right_pid_is_let_in(short_directory: Path) -> None:
    listener = Listener(short_directory)
    listener.open()
    impostors = [dial(short_directory / "stream", "impostor") for _ in range(3)]
    guest = dial(short_directory / "stream", "guest")
    try:
        carrier = await asyncio.wait_for(listener.accept(guest.pid), 20)
    finally:
        listener.close()  # impostors that still wait in its queue are turned away with it
    peer = Peer(carrier)
    peer.start()
    await peer.until(lambda: peer.received)
    assert peer.received == b"guest"
    carrier.send(b"welcome")
    said, _ = await asyncio.to_thread(guest.communicate)
    assert said == b"welcome\n"
    await peer.until(lambda: peer.ends)
    for impostor in impostors:
        said, _ = await asyncio.to_thread(impostor.communicate)
        assert b"welcome" not in said


async def test_nobody_is_let_in_while_the_right_peer_has_not_come(short_directory: Path) -> None:
    listener = Listener(short_directory)
    listener.open()
    accepting = asyncio.create_task(listener.accept(os.getppid()))
    impostor = dial(short_directory / "stream", "impostor")
    await asyncio.to_thread(impostor.communicate)
    assert not accepting.done()
    accepting.cancel()
    await asyncio.wait([accepting])
    listener.close()


async def test_a_closed_listener_leaves_no_socket_behind(short_directory: Path) -> None:
    listener = Listener(short_directory)
    listener.open()
    assert (short_directory / "stream").is_socket()
    listener.close()
    listener.close()
    assert not list(short_directory.iterdir())


async def test_a_socket_that_a_dead_process_left_is_replaced(short_directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(short_directory / "stream"))
    listener = Listener(short_directory)
    listener.open()
    listener.close()


async def test_a_path_that_is_too_long_for_a_socket_is_a_clear_error(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with pytest.raises(EngineError, match=r"can't listen at .*too long"):
        Listener(deep).open()


async def test_a_directory_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="can't listen at"):
        Listener(tmp_path / "none").open()
