"""The host's end of tunnels, against a helper that says what a test wants.

What the real helper makes of connections is in `helper/test_tunnels`, both together in
`test_network`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from runner import RemoteProtocolError, SandboxLost
from runner import tunnels as tunnels_module
from runner.answers import RequestFailed
from runner.carrier import Carrier
from runner.helper import wire
from runner.helper.wire import Kind
from runner.sandbox import Sandbox
from runner.tunnels import Tunnel, Tunnels
from tests.puppet import Act, Puppet, puppet_pair

pytestmark = pytest.mark.anyio

MARKER = bytes(range(100, 116))
FIRST = wire.TUNNEL_BASE
WINDOW = wire.TUNNEL_WINDOW_BYTES
CHUNK = wire.TUNNEL_CHUNK_BYTES


async def nothing_known() -> SandboxLost | None:
    """A daemon for which the container runs."""
    return None


async def open_sandbox(carrier: Carrier) -> Sandbox:
    return await Sandbox.open(
        carrier, MARKER, diagnose=nothing_known, expires_s=None, idle_s=None, timeout_s=10.0
    )


def listen(puppet: Puppet, request: wire.Message) -> None:
    """Listen, and do nothing else."""
    if request.kind == Kind.LISTEN:
        puppet.send(Kind.LISTENING, request.call)


class Listening:
    """A sandbox, the puppet at its other end, and the tunnels that came."""

    def __init__(self, sandbox: Sandbox, puppet: Puppet):
        self.sandbox = sandbox
        self.puppet = puppet
        self.tunnels: asyncio.Queue[Tunnel] = asyncio.Queue()

    async def opens(self, number: int = FIRST) -> Tunnel:
        """The puppet opens a tunnel; the host's end of it."""
        self.puppet.send(Kind.OPENED, number)
        tunnel = await self.tunnels.get()
        assert tunnel.id == number
        return tunnel

    async def settles(self) -> None:
        """Wait until both ends have heard all that was said."""
        ping = asyncio.ensure_future(self.sandbox.ping())
        asked = await self.puppet.asked(Kind.PING)
        self.puppet.received.remove(asked)
        self.puppet.send(Kind.PONG, asked.call)
        await ping

    def said(self, number: int = FIRST) -> list[tuple[int, int]]:
        """What the host said of a tunnel: kinds, and how many bytes each is about."""
        return [
            (message.kind, message.fields.get("bytes", len(message.payload)))
            for message in self.puppet.received
            if message.call == number
        ]


@asynccontextmanager
async def listening(act: Act = listen) -> AsyncIterator[Listening]:
    carrier, puppet = puppet_pair(act)
    sandbox = await open_sandbox(carrier)
    made = Listening(sandbox, puppet)
    try:
        await sandbox.listen(3128, made.tunnels.put_nowait)
        yield made
    finally:
        sandbox.close()


@pytest.fixture
async def host() -> AsyncIterator[Listening]:
    async with listening() as made:
        yield made


def data(host: Listening, payload: bytes, number: int = FIRST) -> None:
    """The puppet sends bytes through a tunnel."""
    for at in range(0, len(payload), CHUNK):
        host.puppet.send(Kind.DATA, number, {}, payload[at : at + CHUNK])


async def test_the_helper_is_told_the_port(host: Listening) -> None:
    assert (await host.puppet.asked(Kind.LISTEN)).fields == {"port": 3128}


async def test_a_port_that_can_not_be_had_is_a_failure_and_brings_no_tunnels() -> None:
    def refuse(puppet: Puppet, request: wire.Message) -> None:
        failure = {"code": "address_in_use", "detail": "in use"}
        puppet.send(Kind.FAILED, request.call, failure)
        puppet.send(Kind.OPENED, FIRST)

    with pytest.raises(RequestFailed, match="in use"):
        async with listening(refuse):
            pass


async def test_bytes_go_both_ways_and_each_end_ends_by_itself(host: Listening) -> None:
    tunnel = await host.opens()
    data(host, b"question")
    assert await tunnel.receive() == b"question"
    await tunnel.send(b"answer")
    assert (await host.puppet.asked(Kind.DATA)).payload == b"answer"
    host.puppet.send(Kind.SHUT, FIRST)
    assert await tunnel.receive() == b""
    await tunnel.send(b"more")
    tunnel.shut()
    tunnel.shut()
    await host.settles()
    assert not tunnel.closed
    host.puppet.send(Kind.DROP, FIRST)
    await host.settles()

    assert tunnel.closed
    assert await tunnel.receive() == b""
    assert host.said() == [(Kind.DATA, 6), (Kind.DATA, 4), (Kind.SHUT, 0), (Kind.DROP, 0)]


async def test_what_came_before_the_end_is_there_after_it(host: Listening) -> None:
    tunnel = await host.opens()
    data(host, bytes(3 * CHUNK))
    host.puppet.send(Kind.SHUT, FIRST)
    tunnel.shut()
    host.puppet.send(Kind.DROP, FIRST)
    await host.settles()

    assert [len(await tunnel.receive()) for _ in range(4)] == [CHUNK, CHUNK, CHUNK, 0]


async def test_the_helper_hears_what_was_received_and_not_what_waits(host: Listening) -> None:
    tunnel = await host.opens()
    data(host, bytes(WINDOW))
    await host.settles()
    assert host.said() == []
    received = 0
    for _ in range(4):
        received += len(await tunnel.receive())
    await host.settles()
    assert received == WINDOW
    assert host.said() == [(Kind.TOOK, WINDOW // 4)] * 4


async def test_no_more_is_sent_than_the_helper_has_room_for(host: Listening) -> None:
    tunnel = await host.opens()
    sending = asyncio.ensure_future(tunnel.send(bytes(WINDOW + 1000)))
    await host.settles()
    assert host.said() == [(Kind.DATA, CHUNK)] * 4
    assert not sending.done()

    host.puppet.send(Kind.TOOK, FIRST, {"bytes": 400})
    await host.settles()
    assert host.said()[4:] == [(Kind.DATA, 400)]
    host.puppet.send(Kind.TOOK, FIRST, {"bytes": 600})
    await sending
    await host.settles()
    assert host.said()[5:] == [(Kind.DATA, 600)]


class Queue:
    """The way to a helper that takes what is there, all at once, when it is told to."""

    def __init__(self) -> None:
        self.waiting_bytes = 0
        self.most_bytes = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def send(self, data: bytes) -> None:
        self.waiting_bytes += len(data)
        self.most_bytes = max(self.most_bytes, self.waiting_bytes)
        self._empty.clear()

    async def drain(self) -> None:
        await self._empty.wait()

    async def is_taken(self) -> None:
        while not self.waiting_bytes:
            await asyncio.sleep(0)
        self.waiting_bytes = 0
        self._empty.set()


async def test_all_tunnels_together_put_no_more_before_a_call_than_one_would() -> None:
    queue = Queue()
    tunnels = Tunnels(queue.send, queue.drain)
    opened: list[Tunnel] = []
    tunnels.on_tunnel = opened.append
    for number in range(FIRST, FIRST + 8):
        tunnels.take(wire.Message(Kind.OPENED, number, {}, b""))
    sending = asyncio.gather(*(tunnel.send(bytes(2 * CHUNK)) for tunnel in opened))
    for _ in range(16):
        await queue.is_taken()
    await sending

    assert CHUNK < queue.most_bytes < CHUNK + 100


async def test_a_tunnel_that_was_shut_takes_nothing(host: Listening) -> None:
    tunnel = await host.opens()
    tunnel.shut()
    with pytest.raises(BrokenPipeError):
        await tunnel.send(b"x")


async def test_a_program_that_is_gone_ends_what_waits_for_it(host: Listening) -> None:
    tunnel = await host.opens()
    receiving = asyncio.ensure_future(tunnel.receive())
    sending = asyncio.ensure_future(tunnel.send(bytes(WINDOW + 1)))
    await host.settles()
    host.puppet.send(Kind.DROP, FIRST)
    for waiting in (receiving, sending):
        with pytest.raises(ConnectionResetError, match="program"):
            await waiting
    assert tunnel.closed
    await host.settles()
    assert host.said()[-1] == (Kind.DROP, 0)


async def test_a_tunnel_that_is_dropped_is_over_at_once(host: Listening) -> None:
    tunnel = await host.opens()
    receiving = asyncio.ensure_future(tunnel.receive())
    await host.settles()
    tunnel.drop()
    tunnel.drop()
    with pytest.raises(ConnectionResetError):
        await receiving
    with pytest.raises(ConnectionResetError):
        await tunnel.send(b"x")
    # The helper may not have heard of it yet.
    data(host, bytes(WINDOW))
    host.puppet.send(Kind.SHUT, FIRST)
    host.puppet.send(Kind.DROP, FIRST)
    await host.settles()
    assert host.said() == [(Kind.DROP, 0)]
    assert host.sandbox.lost is None


async def test_a_tunnel_that_is_shut_and_dropped_lingers_until_the_program_has_all(
    host: Listening,
) -> None:
    tunnel = await host.opens()
    await tunnel.send(b"no")
    tunnel.shut()
    data(host, bytes(WINDOW))
    await host.settles()
    tunnel.drop()
    assert tunnel.closed
    data(host, b"and on")
    host.puppet.send(Kind.SHUT, FIRST)
    await host.settles()
    assert host.said() == [
        (Kind.DATA, 2),
        (Kind.SHUT, 0),
        (Kind.TOOK, WINDOW),
        (Kind.TOOK, 6),
    ]

    host.puppet.send(Kind.DROP, FIRST)
    await host.settles()
    assert host.said()[-1] == (Kind.DROP, 0)


async def test_a_tunnel_lingers_for_a_while_only(
    host: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnels_module, "LINGER_S", 0.01)
    tunnel = await host.opens()
    tunnel.shut()
    tunnel.drop()
    await host.puppet.asked(Kind.DROP)


async def test_the_number_of_a_tunnel_is_free_when_both_have_dropped_it(host: Listening) -> None:
    tunnels = [await host.opens(FIRST + n) for n in range(wire.MAX_TUNNELS)]
    tunnels[3].drop()
    host.puppet.send(Kind.DROP, FIRST + 3)
    await host.opens(FIRST + wire.MAX_TUNNELS)
    assert host.sandbox.lost is None


async def test_a_lost_sandbox_ends_its_tunnels(host: Listening) -> None:
    tunnel, shut = await host.opens(), await host.opens(FIRST + 1)
    shut.shut()
    shut.drop()  # and lingers
    data(host, b"unread")
    await host.settles()
    sending = asyncio.ensure_future(tunnel.send(bytes(WINDOW + 1)))
    await host.settles()
    host.sandbox.close()

    with pytest.raises(ConnectionResetError, match="closed"):
        await sending
    with pytest.raises(ConnectionResetError, match="closed"):
        await tunnel.receive()
    assert tunnel.closed
    tunnel.shut()
    tunnel.drop()


def said(kind: int, number: int = FIRST, **fields: int) -> bytes:
    return wire.encode(kind, number, fields)


BYTE = wire.encode(Kind.DATA, FIRST, {}, b"x")
OFFENCES = {
    "a number twice": said(Kind.OPENED),
    "a number left out": said(Kind.OPENED, FIRST + 2),
    "word of no tunnel": said(Kind.SHUT, FIRST + 1),
    "more than the window": wire.encode(Kind.DATA, FIRST, {}, bytes(CHUNK)) * 4 + BYTE,
    "no bytes": wire.encode(Kind.DATA, FIRST),
    "taken and never sent": said(Kind.TOOK, bytes=1),
    "nothing taken": said(Kind.TOOK, bytes=0),
    "bytes behind the end": said(Kind.SHUT) + BYTE,
    "a second end": said(Kind.SHUT) + said(Kind.SHUT),
    "bytes behind the drop": said(Kind.DROP) + BYTE,
    "a second drop": said(Kind.DROP) + said(Kind.DROP),
    "too many": b"".join(said(Kind.OPENED, FIRST + n + 1) for n in range(wire.MAX_TUNNELS)),
}


@pytest.mark.parametrize("offence", OFFENCES.values(), ids=OFFENCES.keys())
async def test_what_no_helper_in_its_right_mind_would_say_loses_the_sandbox(
    host: Listening, offence: bytes
) -> None:
    tunnel = await host.opens()
    host.puppet.say(offence)
    await host.puppet.ended.wait()

    assert isinstance(host.sandbox.lost, RemoteProtocolError)
    assert tunnel.closed


async def test_more_than_the_window_is_an_offence_though_the_tunnel_was_dropped(
    host: Listening,
) -> None:
    tunnel = await host.opens()
    tunnel.drop()
    data(host, bytes(WINDOW + 1))
    await host.puppet.ended.wait()
    assert isinstance(host.sandbox.lost, RemoteProtocolError)


async def test_a_tunnel_that_nobody_asked_for_loses_the_sandbox() -> None:
    carrier, puppet = puppet_pair()
    sandbox = await open_sandbox(carrier)
    puppet.send(Kind.OPENED, FIRST)
    await puppet.ended.wait()
    assert isinstance(sandbox.lost, RemoteProtocolError)
