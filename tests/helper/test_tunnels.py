"""Connections of programs, as the helper carries them: over the real stream, frame by frame.

The helper has the loopback of whoever runs the tests; each test listens at a port of its own.
"""

import contextlib
import os
import resource
import select
import socket
import struct
from collections.abc import Iterator
from itertools import count

import pytest

from runner.helper import tunnels, wire
from runner.helper.wire import Kind, Message
from tests.helper.running import KIB, MIB, Helper, Peer, Start, runs_on
from tests.host import SOON_S, wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

FIRST = wire.TUNNEL_BASE
WINDOW = wire.TUNNEL_WINDOW_BYTES


@pytest.fixture
def port() -> int:
    """One that is free."""
    with socket.socket() as taken:
        taken.bind((tunnels.LOOPBACK, 0))
        found = taken.getsockname()[1]
    assert isinstance(found, int)
    return found


class Client:
    """A program that connects."""

    def __init__(self, port: int):
        self.socket = socket.create_connection((tunnels.LOOPBACK, port), timeout=SOON_S)

    def reads(self, length: int) -> bytes:
        """So many bytes."""
        data = b""
        while len(data) < length:
            piece = self.socket.recv(length - len(data))
            assert piece, "an end"
            data += piece
        return data

    def fills(self) -> int:
        """Send until nobody takes any more; how much that was."""
        self.socket.setblocking(False)
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += self.socket.send(bytes(64 * KIB))
        return sent

    def is_full(self) -> bool:
        """Whether what it sends is taken by nobody."""
        return not select.select([], [self.socket], [], 0)[1]

    def was_reset(self) -> bool:
        """Whether its connection has no proper end."""
        self.socket.settimeout(SOON_S)
        try:
            while self.socket.recv(MIB):
                pass
        except ConnectionResetError:
            return True
        return False

    def reset(self) -> None:
        """Go without a proper end."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


@pytest.fixture
def connect(port: int) -> Iterator["Connect"]:
    """Connect to the port of this test."""
    made = Connect(port)
    yield made
    for client in made.clients:
        client.socket.close()


class Connect:
    """Makes clients, which are closed after the test."""

    def __init__(self, port: int):
        self.port = port
        self.clients: list[Client] = []

    def __call__(self) -> Client:
        self.clients.append(Client(self.port))
        return self.clients[-1]


def listens(peer: Peer, port: int, call: int = 1) -> None:
    """Have the helper listen."""
    peer.say(wire.encode(Kind.LISTEN, call, {"port": port}))
    assert peer.hear() == Message(Kind.LISTENING, call, {}, b"")


def hears(peer: Peer, kind: int, number: int = FIRST) -> Message:
    """The next frame, which is this one."""
    message = peer.hear()
    assert (message.kind, message.call) == (kind, number)
    return message


def hears_data(peer: Peer, length: int, number: int = FIRST) -> bytes:
    """The next frames, which carry so many bytes of one tunnel."""
    data = b""
    while len(data) < length:
        data += hears(peer, Kind.DATA, number).payload
    assert len(data) == length
    return data


def hears_nothing_more(peer: Peer, calls: Iterator[int] = count(1000)) -> bool:  # noqa: B008
    """Whether the helper has nothing to say but that it is there."""
    call = next(calls)
    peer.say(wire.encode(Kind.PING, call))
    return peer.hear() == Message(Kind.PONG, call, {}, b"")


def data(payload: bytes, number: int = FIRST) -> bytes:
    return b"".join(
        wire.encode(Kind.DATA, number, {}, payload[at : at + wire.TUNNEL_CHUNK_BYTES])
        for at in range(0, len(payload), wire.TUNNEL_CHUNK_BYTES)
    )


def took(length: int, number: int = FIRST) -> bytes:
    return wire.encode(Kind.TOOK, number, {"bytes": length})


def shut(number: int = FIRST) -> bytes:
    return wire.encode(Kind.SHUT, number)


def drop(number: int = FIRST) -> bytes:
    return wire.encode(Kind.DROP, number)


@pytest.fixture
def peer(helper: Helper, port: int) -> Iterator[Peer]:
    """A host for which the helper listens."""
    with helper.peer() as made:
        made.greet()
        listens(made, port)
        yield made


# A connection, from its beginning to its end.


def test_what_a_program_sends_arrives_and_so_does_the_answer(peer: Peer, connect: Connect) -> None:
    client = connect()
    hears(peer, Kind.OPENED)
    client.socket.sendall(b"question")
    assert hears(peer, Kind.DATA).payload == b"question"
    peer.say(data(b"answer"))
    assert client.reads(6) == b"answer"
    assert hears_nothing_more(peer)


def test_each_end_goes_on_when_the_other_has_sent_all(peer: Peer, connect: Connect) -> None:
    first, second = connect(), connect()
    hears(peer, Kind.OPENED)
    hears(peer, Kind.OPENED, FIRST + 1)
    first.socket.shutdown(socket.SHUT_WR)
    hears(peer, Kind.SHUT)
    peer.say(data(b"late answer"), shut())
    assert first.reads(11) == b"late answer"
    assert first.socket.recv(1) == b""
    hears(peer, Kind.DROP)

    peer.say(shut(FIRST + 1))
    assert second.socket.recv(1) == b""
    second.socket.sendall(b"late question")
    assert hears(peer, Kind.DATA, FIRST + 1).payload == b"late question"
    second.socket.close()
    hears(peer, Kind.SHUT, FIRST + 1)
    hears(peer, Kind.DROP, FIRST + 1)
    assert hears_nothing_more(peer)


def test_numbers_are_not_used_again(peer: Peer, connect: Connect) -> None:
    for number in range(FIRST, FIRST + 5):
        client = connect()
        hears(peer, Kind.OPENED, number)
        peer.say(drop(number))
        hears(peer, Kind.DROP, number)
        assert client.was_reset()


def test_a_program_that_is_gone_is_told_and_what_was_said_to_it_meanwhile_is_dropped(
    peer: Peer, connect: Connect
) -> None:
    client = connect()
    hears(peer, Kind.OPENED)
    client.reset()
    hears(peer, Kind.DROP)
    peer.say(data(b"too late"), took(0), shut(), drop())
    assert hears_nothing_more(peer)


def test_a_connection_that_the_host_drops_is_reset_though_bytes_wait(
    peer: Peer, connect: Connect
) -> None:
    client = connect()
    hears(peer, Kind.OPENED)
    client.fills()
    hears_data(peer, WINDOW)
    peer.say(data(bytes(WINDOW)), drop())
    hears_drop_behind_credit(peer)
    assert client.was_reset()
    assert hears_nothing_more(peer)


def hears_drop_behind_credit(peer: Peer) -> None:
    while (message := peer.hear()).kind == Kind.TOOK:
        continue
    assert message.kind == Kind.DROP


# Windows.


def test_no_more_of_a_program_is_sent_than_there_is_credit_for(
    peer: Peer, connect: Connect
) -> None:
    client = connect()
    hears(peer, Kind.OPENED)
    sent = client.fills()
    assert sent > WINDOW
    hears_data(peer, WINDOW)
    assert hears_nothing_more(peer)

    peer.say(took(1000))
    hears_data(peer, 1000)
    assert hears_nothing_more(peer)
    client.socket.close()
    peer.say(took(WINDOW))
    hears_data(peer, min(WINDOW, sent - WINDOW - 1000))


def test_a_program_that_takes_nothing_is_sent_the_window_and_no_more(
    peer: Peer, connect: Connect
) -> None:
    client = connect()
    hears(peer, Kind.OPENED)
    acknowledged = sent = 0
    while True:
        peer.say(data(bytes(WINDOW - (sent - acknowledged))), wire.encode(Kind.PING, 2))
        sent = acknowledged + WINDOW
        before = acknowledged
        while (message := peer.hear()).kind == Kind.TOOK:
            acknowledged += message.fields["bytes"]
        assert message.kind == Kind.PONG
        if acknowledged == before:
            break
    client.reads(sent)
    while acknowledged < sent - WINDOW // 4:
        acknowledged += hears(peer, Kind.TOOK).fields["bytes"]
    assert acknowledged <= sent


def test_a_program_gets_all_that_was_sent_before_the_end(peer: Peer, connect: Connect) -> None:
    client = connect()
    hears(peer, Kind.OPENED)
    client.socket.shutdown(socket.SHUT_WR)
    hears(peer, Kind.SHUT)
    payload = os.urandom(WINDOW)
    peer.say(data(payload), shut())
    assert client.reads(WINDOW) == payload
    assert client.socket.recv(1) == b""
    hears_drop_behind_credit(peer)


TOO_MUCH = {
    "an unknown tunnel": shut(FIRST + 1),
    "a tunnel that is over": drop() + drop(),
    "an end behind the end": shut() + shut(),
    "bytes behind the end": shut() + data(b"x"),
    "no bytes": wire.encode(Kind.DATA, FIRST, {}, b""),
    "credit for what was not sent": took(1),
}


@pytest.mark.parametrize("words", TOO_MUCH.values(), ids=TOO_MUCH.keys())
def test_a_host_that_talks_nonsense_of_a_tunnel_is_hung_up_on(
    start: Start, port: int, connect: Connect, words: bytes
) -> None:
    helper = start("socket")
    with helper.peer() as peer:
        peer.greet()
        listens(peer, port)
        connect()
        hears(peer, Kind.OPENED)
        peer.say(words)
        assert peer.hears_hanging_up()


def test_a_host_that_sends_more_than_the_window_is_hung_up_on(
    start: Start, port: int, connect: Connect
) -> None:
    helper = start("socket")
    with helper.peer() as peer:
        peer.greet()
        listens(peer, port)
        connect()
        hears(peer, Kind.OPENED)
        with contextlib.suppress(ConnectionError):  # it hangs up while it is talked to
            for _ in range(1000):
                peer.say(data(bytes(WINDOW)))
        assert peer.hears_hanging_up()


# Many of them.


def test_no_more_than_there_may_be_are_connected_at_once(peer: Peer, connect: Connect) -> None:
    clients = [connect() for _ in range(wire.MAX_TUNNELS + 3)]
    for number in range(FIRST, FIRST + wire.MAX_TUNNELS):
        hears(peer, Kind.OPENED, number)
    assert hears_nothing_more(peer)

    clients[0].reset()
    hears(peer, Kind.DROP)
    assert hears_nothing_more(peer)
    peer.say(drop())
    hears(peer, Kind.OPENED, FIRST + wire.MAX_TUNNELS)
    assert hears_nothing_more(peer)


def test_connections_are_taken_at_a_bounded_rate(start: Start, port: int, connect: Connect) -> None:
    helper = start(tunnels__NEW_PER_S=0.001)
    with helper.peer() as peer:
        peer.greet()
        listens(peer, port)
        for number in range(FIRST, FIRST + wire.MAX_TUNNELS):
            connect()
            hears(peer, Kind.OPENED, number)
            peer.say(drop(number))
            hears(peer, Kind.DROP, number)
        connect()

        assert hears_nothing_more(peer)


def test_what_came_too_soon_has_its_turn(start: Start, port: int, connect: Connect) -> None:
    helper = start(tunnels__NEW_PER_S=50.0)
    with helper.peer() as peer:
        peer.greet()
        listens(peer, port)
        for number in range(FIRST, FIRST + wire.MAX_TUNNELS + 5):
            connect()
            hears(peer, Kind.OPENED, number)
            peer.say(drop(number))
            hears(peer, Kind.DROP, number)


def test_answers_wait_behind_little_however_much_programs_send(
    peer: Peer, connect: Connect
) -> None:
    clients = [connect() for _ in range(wire.MAX_TUNNELS)]
    for number in range(FIRST, FIRST + wire.MAX_TUNNELS):
        hears(peer, Kind.OPENED, number)
    for client in clients:
        client.fills()
    wait_until(lambda: all(client.is_full() for client in clients))
    peer.say(wire.encode(Kind.PING, 2))
    before = 0
    while (message := peer.hear()).kind == Kind.DATA:
        before += len(message.payload)
    assert message.kind == Kind.PONG

    # A quarter of a MiB, and what the kernel holds of a stream. Without a bound it were 16 MiB.
    assert before < 1.5 * MIB


def test_all_who_send_have_their_turn(peer: Peer, connect: Connect) -> None:
    clients = [connect() for _ in range(wire.MAX_TUNNELS)]
    for number in range(FIRST, FIRST + wire.MAX_TUNNELS):
        hears(peer, Kind.OPENED, number)
    for client in clients:
        client.fills()
    heard = dict.fromkeys(range(FIRST, FIRST + wire.MAX_TUNNELS), 0)
    while min(heard.values()) < 2 * WINDOW:
        message = peer.hear()
        if message.kind != Kind.DATA:
            break
        heard[message.call] += len(message.payload)
        peer.say(took(len(message.payload), message.call))
        for client in clients:
            if not client.is_full():
                client.fills()

    assert min(heard.values()) >= 2 * WINDOW
    assert max(heard.values()) < 8 * min(heard.values())


# The port.


def test_a_port_that_a_program_has_is_refused(helper: Helper, port: int) -> None:
    with socket.create_server((tunnels.LOOPBACK, port)), helper.peer() as peer:
        peer.greet()
        peer.say(wire.encode(Kind.LISTEN, 1, {"port": port}))
        assert peer.hear().fields == {
            "code": "address_in_use",
            "detail": "Address already in use",
        }


def test_another_port_takes_the_place_of_the_first(peer: Peer, port: int, connect: Connect) -> None:
    with socket.socket() as free:
        free.bind((tunnels.LOOPBACK, 0))
        other = free.getsockname()[1]
    listens(peer, other, call=2)
    with pytest.raises(ConnectionRefusedError):
        connect()
    connect.port = other
    connect()
    hears(peer, Kind.OPENED)


def test_connections_end_with_the_conversation_and_the_next_one_listens_again(
    either: Helper, port: int, connect: Connect
) -> None:
    with either.peer() as first:
        first.greet()
        listens(first, port)
        old = connect()
        hears(first, Kind.OPENED)
        old.socket.sendall(b"unread")
    with either.peer() as second:
        second.greet()
        assert old.was_reset()
        with contextlib.suppress(ConnectionResetError):  # it may not even be connected
            assert connect().was_reset()
        with socket.socket() as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                thief.bind((tunnels.LOOPBACK, port))
        assert hears_nothing_more(second)

        listens(second, port)
        new = connect()
        hears(second, Kind.OPENED)
        new.socket.sendall(b"new")
        assert hears_data(second, 3) == b"new"


async def test_programs_inherit_no_connection(helper: Helper, port: int, connect: Connect) -> None:
    async with helper.sandbox() as sandbox:
        await sandbox.listen(port, lambda tunnel: None)
        connect()
        result = await runs_on(sandbox)("readlink /proc/self/fd/*")
    assert b"socket" not in result.output


def test_without_descriptors_connections_wait_for_some(
    helper: Helper, peer: Peer, connect: Connect
) -> None:
    least, most = resource.prlimit(helper.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(helper.pid, resource.RLIMIT_NOFILE, (3, most))
    connect().socket.sendall(b"patience")
    assert hears_nothing_more(peer)

    resource.prlimit(helper.pid, resource.RLIMIT_NOFILE, (least, most))
    hears(peer, Kind.OPENED)
    assert hears_data(peer, 8) == b"patience"
