"""Both ends of a leash without a container and without a network: tunnels, names, records."""

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from runner.egress.access import NotReached
from runner.egress.dial import Dialler
from runner.egress.leash import Leash, LeashLimits
from runner.egress.streams import Stream
from runner.model import Connection
from runner.policy import Policy
from runner.policy.network import Address, NetworkRules

LOOPBACK = "127.0.0.1"


class Pipe:
    """One end of a connection in memory; `pair` makes two."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.other: Pipe = self
        self.dropped = False
        self.shut_down = False

    @classmethod
    def pair(cls) -> "tuple[Pipe, Pipe]":
        one, other = cls(), cls()
        one.other, other.other = other, one
        return one, other

    @property
    def ended(self) -> bool:
        return self.other.shut_down

    async def receive(self) -> bytes:
        data = await self.arrived.get()
        if data is None:
            self.arrived.put_nowait(None)  # it stays at its end
            return b""
        return data

    async def send(self, data: bytes) -> None:
        if self.dropped or self.other.dropped:
            raise ConnectionResetError("the other end is gone")
        self.other.arrived.put_nowait(data)

    def shut(self) -> None:
        if not self.shut_down:
            self.shut_down = True
            self.other.arrived.put_nowait(None)

    def drop(self) -> None:
        self.shut()
        self.dropped = True

    async def rest(self) -> bytes:
        """All that comes until the end."""
        found = b""
        while data := await self.receive():
            found += data
        return found

    async def until(self, end: bytes) -> bytes:
        """What comes up to this, included."""
        found = b""
        while end not in found:
            data = await self.receive()
            assert data, f"ended after {found!r}"
            found += data
        return found


class Names:
    """A resolver that knows a few names, and remembers what it was asked."""

    def __init__(self, known: Mapping[str, Sequence[str]]):
        self.known = {name: list(addresses) for name, addresses in known.items()}
        self.asked: list[str] = []

    async def __call__(self, name: str, port: int) -> Sequence[Address]:
        self.asked.append(name)
        if name not in self.known:
            raise NotReached(f"{name} has no address")
        return [ipaddress.ip_address(address) for address in self.known[name]]


class Records:
    """Connections, in memory."""

    def __init__(self) -> None:
        self.all: dict[str, Connection] = {}
        self._ended = asyncio.Event()

    def add_connection(self, connection: Connection) -> None:
        assert connection.id not in self.all
        self.all[connection.id] = connection

    def end_connection(
        self,
        connection_id: str,
        *,
        ended_at: float,
        sent_bytes: int,
        received_bytes: int,
        reason: str = "",
    ) -> bool:
        self.all[connection_id] = replace(
            self.all[connection_id],
            ended_at=ended_at,
            sent_bytes=sent_bytes,
            received_bytes=received_bytes,
            reason=reason,
        )
        self._ended.set()
        return True

    async def ended(self) -> None:
        """All that was begun has ended."""
        while any(row.ended_at is None for row in self.rows):
            self._ended.clear()
            await self._ended.wait()

    @property
    def rows(self) -> list[Connection]:
        return list(self.all.values())

    @property
    def last(self) -> Connection:
        return self.rows[-1]


def network(rules: str) -> NetworkRules:
    """The rules of a policy whose section `network` this is, indented as it likes."""
    return Policy.parse(f"version: 1\ndefault: deny\nnetwork: {rules}").network


class World:
    """A leash, and all around it."""

    def __init__(self, rules: str, names: Mapping[str, Sequence[str]], **more: Any):
        self.rules = network(rules)
        self.names = Names(names)
        self.records = Records()
        self.own: set[Address] = set()
        """Addresses of this machine."""
        self.dialled: list[tuple[str, int]] = []
        self.servers: dict[tuple[str, int], int] = {}
        """Where a connection to an address and a port goes instead: a port of this host."""
        options: dict[str, Any] = {"everything": False, "limits": LeashLimits(), **more}
        self.leash = Leash(
            "s-1",
            rules=lambda: self.rules,
            records=self.records,
            dialler=Dialler(self.names, own=self.own.__contains__, connect=self._connect),
            **options,
        )

    async def _connect(self, address: Address, port: int) -> Stream:
        from runner.egress.dial import connect_socket

        self.dialled.append((str(address), port))
        port_here = self.servers.get((str(address), port))
        if port_here is None:
            raise ConnectionRefusedError(111, "connection refused")
        return await connect_socket(ipaddress.ip_address(LOOPBACK), port_here)

    def tunnel(self) -> Pipe:
        """The container's end of a new tunnel."""
        ours, theirs = Pipe.pair()
        self.leash.take(theirs)
        return ours

    async def ask(self, data: bytes) -> bytes:
        """What comes back for this, to the end."""
        client = self.tunnel()
        await client.send(data)
        client.shut()
        return await client.rest()


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(world: World, address: str, port: int, handler: Handler) -> AsyncIterator[None]:
    """A server that answers at this address and port of the world."""

    handling: set[asyncio.Future[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        over = asyncio.get_running_loop().create_future()
        handling.add(over)
        try:
            await handler(reader, writer)
        finally:
            writer.close()
            over.set_result(None)

    server = await asyncio.start_server(handle, LOOPBACK, 0)
    world.servers[address, port] = server.sockets[0].getsockname()[1]
    try:
        yield
    finally:
        server.close()
        await world.leash.close()
        if handling:  # each ends with its connection, and would outlive the loop if it did not
            await asyncio.wait(handling, timeout=5)


class Web:
    """An HTTP server that answers everything with what it was asked."""

    def __init__(self, answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"):
        self.answer = answer
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        lower = head.lower()
        if b"content-length: " in lower:
            count = int(lower.split(b"content-length: ")[1].split(b"\r\n")[0])
            self.bodies.append(await reader.readexactly(count))
        elif b"transfer-encoding: chunked" in lower:
            self.bodies.append(await reader.readuntil(b"0\r\n\r\n"))
        writer.write(self.answer)
        await writer.drain()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends back what it gets."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
