"""From names to connections: whatever answers first, and never a connection left behind."""

import asyncio
import ipaddress
from collections.abc import Sequence

import pytest

from runner.egress import dial
from runner.egress.access import NotAllowed, NotReached
from runner.egress.dial import Dialler, SystemResolver, is_own
from runner.egress.streams import Stream
from runner.policy.network import Address
from tests.egress.fakes import Names, Pipe

pytestmark = pytest.mark.anyio

ONE, OTHER, SIXTH = "93.184.216.34", "93.184.216.35", "2606:2800::1"


class Network:
    """Addresses that answer, refuse, or say nothing until they are told to."""

    def __init__(self, *answering: str):
        self.answering = set(answering)
        self.silent: dict[str, asyncio.Event] = {}
        self.tried: list[str] = []
        self.made: dict[str, Pipe] = {}

    async def connect(self, address: Address, port: int) -> Stream:
        name = str(address)
        self.tried.append(name)
        if name in self.silent:
            await self.silent[name].wait()
        elif name not in self.answering:
            raise ConnectionRefusedError(111, "connection refused")
        self.made[name] = Pipe()
        return self.made[name]


def dialler(network: Network, names: Names | None = None, own: Sequence[str] = ()) -> Dialler:
    return Dialler(
        names or Names({}), own=lambda address: str(address) in own, connect=network.connect
    )


def addresses(*texts: str) -> tuple[Address, ...]:
    return tuple(map(ipaddress.ip_address, texts))


async def test_the_first_address_that_answers_is_used() -> None:
    network = Network(OTHER)

    found = await dialler(network).dial(addresses(ONE, OTHER), 443)

    assert str(found.address) == OTHER
    assert network.tried == [ONE, OTHER]


async def test_an_address_that_says_nothing_does_not_hold_up_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dial, "HEAD_START_S", 0.01)
    network = Network(OTHER)
    network.silent[ONE] = asyncio.Event()

    found = await dialler(network).dial(addresses(ONE, OTHER), 443)

    assert str(found.address) == OTHER


async def test_a_connection_that_comes_too_late_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dial, "HEAD_START_S", 0.01)
    network = Network()
    network.silent = {ONE: asyncio.Event(), OTHER: asyncio.Event()}
    dialling = asyncio.create_task(dialler(network).dial(addresses(ONE, OTHER), 443))
    while len(network.tried) < 2:
        await asyncio.sleep(0)
    for event in network.silent.values():
        event.set()

    found = await dialling

    left = [name for name in network.made if name != str(found.address)]
    assert all(network.made[name].dropped for name in left)
    assert not network.made[str(found.address)].dropped


async def test_nobody_there_is_an_error_that_says_what_was_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dial, "CONNECT_TIMEOUT_S", 0.01)
    network = Network()
    network.silent[OTHER] = asyncio.Event()

    with pytest.raises(NotReached, match=r"connection refused, no answer in 0.01 s"):
        await dialler(network).dial(addresses(ONE, OTHER), 443)


async def test_a_name_without_an_address_and_a_name_server_that_is_silent_are_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def silent(name: str, port: int) -> Sequence[Address]:
        await asyncio.Event().wait()
        return ()

    monkeypatch.setattr(dial, "RESOLVE_TIMEOUT_S", 0.01)
    with pytest.raises(NotReached, match="not resolved in"):
        await Dialler(silent).addresses("a.example", 443)
    with pytest.raises(NotReached, match="no address"):
        await dialler(Network(), Names({"a.example": []})).addresses("a.example", 443)


async def test_both_families_take_turns() -> None:
    names = Names({"a.example": [ONE, OTHER, SIXTH]})

    found = await dialler(Network(), names).addresses("a.example", 443)

    assert [str(address) for address in found] == [ONE, SIXTH, OTHER]


async def test_this_machine_is_not_reached_by_its_public_address_unless_it_is_listed() -> None:
    names = Names({"a.example": [ONE]})
    made = dialler(Network(), names, own=[ONE])

    with pytest.raises(NotAllowed, match="the machine that the runner is on"):
        await made.addresses("a.example", 443)
    listed = [ipaddress.ip_network(f"{ONE}/32")]
    assert await made.addresses("a.example", 443, listed=listed) == addresses(ONE)


async def test_addresses_of_this_machine_are_known() -> None:
    assert is_own(ipaddress.ip_address("127.0.0.1"))
    assert not is_own(ipaddress.ip_address(ONE))


async def test_the_system_resolves_names_and_says_where_it_can_not() -> None:
    resolver = SystemResolver()
    try:
        assert ipaddress.ip_address("127.0.0.1") in await resolver("localhost", 80)
        with pytest.raises(NotReached, match="has no address"):
            await resolver("nobody.invalid", 80)
    finally:
        resolver.close()
