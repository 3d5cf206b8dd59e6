"""From a name to a connection: resolved once, every answer checked, and the checked one dialled.

Nobody resolves the name a second time, so a name that changes its mind between the check and
the connection changes nothing. A name that leads to an address which may not be dialled is
refused altogether, whatever else it leads to: such a mixture is what rebinding looks like.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from runner.egress.access import NotAllowed, NotReached
from runner.egress.addresses import is_listed, plain, refusal
from runner.egress.streams import CHUNK_BYTES, SocketStream, Stream
from runner.policy.network import Address, AddressRange, Host

RESOLVE_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 10.0
"""For all addresses of a name together."""
HEAD_START_S = 0.5
"""After which the next address of a name is tried beside the one before."""
MAX_ADDRESSES = 8
"""Of a name, those that are tried."""
RESOLVING_THREADS = 64
"""Of the whole process; each comes to be when it is needed. See `leash.MAX_RESOLVING`."""
IPV4 = 4


class Resolver(Protocol):
    """Where addresses of names come from."""

    async def __call__(self, name: str, port: int) -> Sequence[Address]:
        """The addresses of a name. May raise `NotReached`."""
        ...


class SystemResolver:
    """This host's own resolver, in threads of its own. Close it when it is not needed any more.

    A slow name server then holds up other names only if there are very many, and nothing else of
    the program.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(RESOLVING_THREADS, thread_name_prefix="resolver")

    async def __call__(self, name: str, port: int) -> Sequence[Address]:
        """See `Resolver`."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._threads, _look_up, name, port)
        except OSError as error:
            raise NotReached(f"{name} has no address: {error.strerror or error}") from error
        return [ipaddress.ip_address(text) for text in dict.fromkeys(found)]

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(name: str, port: int) -> list[str]:
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    # A zone is of this machine, and an address with one is link-local.
    return [str(address[0]).partition("%")[0] for *_, address in found]


@dataclass(frozen=True, slots=True)
class Dialled:
    """A connection, and the address that it is to."""

    stream: Stream
    address: Address


async def connect_socket(address: Address, port: int) -> Stream:
    """A TCP connection to an address. May raise OSError."""
    reader, writer = await asyncio.open_connection(str(address), port, limit=CHUNK_BYTES)
    return SocketStream(reader, writer)


def is_own(address: Address) -> bool:
    """Whether this is an address of this machine, public or not. Sends nothing."""
    family = socket.AF_INET if address.version == IPV4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))  # chooses the way there, and no more
            own: str = probe.getsockname()[0]
    except OSError:
        return False  # there is no way there at all
    return own == str(address)


class Dialler:
    """Makes connections.

    Args:
        resolver: Where addresses of names come from.
        own: Whether an address is this machine's.
        connect: Makes a connection to an address.
    """

    def __init__(
        self,
        resolver: Resolver,
        *,
        own: Callable[[Address], bool] = is_own,
        connect: Callable[[Address, int], Awaitable[Stream]] = connect_socket,
    ):
        self._resolver = resolver
        self._own = own
        self._connect = connect

    async def addresses(
        self,
        host: Host,
        port: int,
        *,
        listed: Sequence[AddressRange] = (),
        refuses: Callable[[Address, int], tuple[str, str | None] | None] = lambda *_: None,
    ) -> tuple[Address, ...]:
        """Where a host may be dialled. Call it only for a host that is allowed.

        Args:
            host: A name, which is resolved here and nowhere else, or an address.
            port: The port.
            listed: Ranges that may be dialled though they are not public.
            refuses: What else has a say: a reason and a rule, or None.

        Raises:
            NotAllowed: One of its addresses may not be dialled.
            NotReached: It has none.
        """
        found: Sequence[Address] = () if isinstance(host, str) else [host]
        if isinstance(host, str):
            try:
                async with asyncio.timeout(RESOLVE_TIMEOUT_S):
                    found = await self._resolver(host, port)
            except TimeoutError:
                raise NotReached(f"{host} was not resolved in {RESOLVE_TIMEOUT_S:g} s") from None
        for address in found:
            named = "" if address == host else f"{host}: "
            if (reason := self._refusal(address, listed)) is not None:
                raise NotAllowed(f"{named}{reason}, and no rule lists it")
            refused = refuses(address, port) or refuses(plain(address), port)
            if refused is not None:
                raise NotAllowed(f"{named}{refused[0]}", refused[1])
        if not found:
            raise NotReached(f"{host} has no address")
        return _alternating(found)[:MAX_ADDRESSES]

    def _refusal(self, address: Address, listed: Sequence[AddressRange]) -> str | None:
        reason = refusal(address, listed)
        if reason is None and not is_listed(address, listed) and self._own(address):
            # What listens there may trust whoever comes from the machine itself.
            return f"{address} is an address of the machine that the runner is on"
        return reason

    async def dial(self, addresses: Sequence[Address], port: int) -> Dialled:
        """Connect to one of these, which were checked: the first that answers.

        Raises:
            NotReached: None does.
        """
        pending: set[asyncio.Task[Dialled]] = set()
        waiting = list(addresses)
        trouble: list[str] = []
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                while waiting or pending:
                    if waiting:
                        one = asyncio.ensure_future(self._one(waiting.pop(0), port))
                        pending.add(one)
                    done, pending = await asyncio.wait(
                        pending,
                        timeout=HEAD_START_S if waiting else None,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    connected = None
                    for task in done:
                        if (error := task.exception()) is None:
                            if connected is not None:
                                task.result().stream.drop()
                            connected = connected or task.result()
                        elif isinstance(error, OSError):
                            trouble.append(error.strerror or str(error))
                        else:
                            raise error
                    if connected is not None:
                        return connected
        except TimeoutError:
            trouble.append(f"no answer in {CONNECT_TIMEOUT_S:g} s")
        finally:
            for task in pending:
                task.add_done_callback(_drop)
                task.cancel()
        raise NotReached(f"no connection: {', '.join(dict.fromkeys(trouble))}")

    async def _one(self, address: Address, port: int) -> Dialled:
        return Dialled(await self._connect(address, port), address)


def _drop(task: "asyncio.Task[Dialled]") -> None:
    """Let go of a connection that came too late."""
    if not task.cancelled() and task.exception() is None:
        task.result().stream.drop()


def _alternating(addresses: Sequence[Address]) -> tuple[Address, ...]:
    """The addresses with the two families taking turns, so that a dead one costs one try."""
    families: dict[int, list[Address]] = {}
    for address in addresses:
        families.setdefault(address.version, []).append(address)
    lists = list(families.values())
    longest = max(map(len, lists), default=0)
    return tuple(found[at] for at in range(longest) for found in lists if at < len(found))
