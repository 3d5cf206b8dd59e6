"""The one way out of a session: what leaves is judged, dialled, counted and recorded here.

A `Leash` belongs to one session. Tunnels from its container come to `take`, tools of the host
come to `fetch`; both get connections from `line`, which is the only caller of the dialler. It
holds the credentials, and keeps them out of everything that it writes.
"""

import asyncio
import ssl
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from runner.egress import fetching, proxy
from runner.egress.access import Fetched, NotAllowed, NotReached, Refused
from runner.egress.credentials import Added, Credentials
from runner.egress.dial import Dialler
from runner.egress.streams import ClientStream, Stream, StreamBroken, Wrapped, trusting
from runner.logs import log
from runner.model import Connection, Verdict
from runner.policy.network import Address, Asked, NetworkDecision, NetworkRules
from runner.policy.network import Protocol as AskedBy

if TYPE_CHECKING:
    from runner.egress.interception import Interception

START_BURST = 100
STARTS_PER_S = 20.0
"""Connections that may be begun: more wait. Each is a row in the records for good."""
MAX_RESOLVING = 4
"""Names that are looked up at once for one session. One that has names which nobody answers for
must not take all the threads of the others."""
REFUSAL_BURST = 50
REFUSALS_PER_S = 0.2
"""Refusals that get a row of their own; the others are counted, and share one."""
REASONS_KEPT = 4
"""Of refusals, for whoever asks why a call failed."""
FLUSH_S = 30.0
"""After which those that were counted get their row."""


class ConnectionRecords(Protocol):
    """Where connections are recorded: the store."""

    def add_connection(self, connection: Connection) -> None:
        """Record a connection that was asked for."""

    def end_connection(
        self,
        connection_id: str,
        *,
        ended_at: float,
        sent_bytes: int,
        received_bytes: int,
        reason: str = "",
    ) -> bool:
        """Record how it ended."""
        ...


@dataclass(frozen=True, slots=True)
class LeashLimits:
    """What one session may use of the network."""

    max_connections: int = 32
    """At once."""
    max_connection_s: float = 600.0
    """How long one may last."""
    max_transfer_bytes: int = 1024**3
    """Sent and received, all connections of the session in this process together."""


class Bucket:
    """So many at once, and then so many a second."""

    def __init__(self, burst: int, per_s: float, clock: Callable[[], float] = time.monotonic):
        self._burst = float(burst)
        self._per_s = per_s
        self._clock = clock
        self._left = float(burst)
        self._at = clock()

    def take(self) -> bool:
        """Take one; False where there is none."""
        self._fill()
        if self._left < 1:
            return False
        self._left -= 1
        return True

    async def wait(self) -> None:
        """Take one, when it is there: who comes first has it first."""
        self._fill()
        self._left -= 1
        if self._left < 0:
            await asyncio.sleep(-self._left / self._per_s)

    def _fill(self) -> None:
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now


class Line(Wrapped):
    """A connection that was dialled: a `Stream` that counts."""

    def __init__(self, stream: Stream, spend: Callable[[int], None]):
        super().__init__(stream)
        self._spend = spend
        self.sent_bytes = 0
        self.received_bytes = 0

    async def receive(self) -> bytes:
        """See `Stream`."""
        data = await super().receive()
        self._spend(len(data))
        self.received_bytes += len(data)
        return data

    async def send(self, data: bytes) -> None:
        """See `Stream`."""
        self._spend(len(data))
        await super().send(data)
        self.sent_bytes += len(data)


class ClientTunnel(Stream, Protocol):
    """A connection of a program's, as it comes from the container."""

    @property
    def ended(self) -> bool:
        """Whether the program has said that it sends no more; most that do are gone."""
        ...


class Leash:
    """The network of one session.

    Args:
        session_id: Whose it is.
        rules: The rules of the moment.
        everything: The session's network is `open`: what no rule is for is allowed.
        records: Where connections are recorded.
        dialler: Makes connections.
        limits: How many, how long, how much.
        credentials: What is added to requests.
        interception: Opens the HTTPS of some hosts; None: of none.
        trusted: What certificates of servers are checked by; None: as this host does.
    """

    def __init__(
        self,
        session_id: str,
        *,
        rules: Callable[[], NetworkRules],
        everything: bool,
        records: ConnectionRecords,
        dialler: Dialler,
        limits: LeashLimits = LeashLimits(),
        credentials: Credentials | None = None,
        interception: "Interception | None" = None,
        trusted: ssl.SSLContext | None = None,
    ):
        self.interception = interception
        self._session_id = session_id
        self._rules = rules
        self._everything = everything
        self._records = records
        self._dialler = dialler
        self._limits = limits
        self._credentials = credentials or Credentials({})
        self._trusted = trusted
        self._serving: dict[asyncio.Task[None], ClientTunnel] = {}
        """In the order in which they came."""
        self._leaving: set[asyncio.Task[None]] = set()
        """Those that had to make room."""
        self._left_bytes = limits.max_transfer_bytes
        self._starts = Bucket(START_BURST, STARTS_PER_S)
        self._resolving = asyncio.Semaphore(MAX_RESOLVING)
        self._refusals = Bucket(REFUSAL_BURST, REFUSALS_PER_S)
        self._unrecorded = 0
        self.refusals = 0
        """See `access.NetworkAccess`."""
        self._last_reasons: deque[tuple[int, str]] = deque(maxlen=REASONS_KEPT)
        self._flushing: asyncio.TimerHandle | None = None
        self._closed = False

    # Tunnels.

    def take(self, tunnel: ClientTunnel) -> None:
        """Serve a tunnel from the container, beside all others."""
        if self._closed:
            tunnel.drop()
            return
        if len(self._serving) >= self._limits.max_connections and not self._make_room():
            self.note_refusal("connect", f"more than {self._limits.max_connections} at once")
            tunnel.drop()
            return
        task = asyncio.get_running_loop().create_task(self._serve(tunnel))
        self._serving[task] = tunnel
        task.add_done_callback(self._forget)

    def _make_room(self) -> bool:
        """End the oldest connection whose program sends no more.

        A server that does not answer would otherwise keep the place of a program that has given
        up on it, for as long as a connection may last.
        """
        task = next((task for task, tunnel in self._serving.items() if tunnel.ended), None)
        if task is None:
            return False
        del self._serving[task]
        self._leaving.add(task)
        task.cancel()
        return True

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._serving.pop(task, None)
        self._leaving.discard(task)

    async def _serve(self, tunnel: Stream) -> None:
        try:
            await proxy.serve(ClientStream(tunnel), self)
        except Exception:  # a mistake in serving one tunnel is not the others'
            log.exception("network.failed", session=self._session_id)
        finally:
            tunnel.drop()

    async def fetch(self, url: str, *, most_bytes: int, timeout_s: float) -> Fetched:
        """See `access.NetworkAccess`."""
        return await fetching.fetch(self, url, most_bytes=most_bytes, timeout_s=timeout_s)

    def refused_since(self, refusals: int) -> tuple[str, ...]:
        """See `access.NetworkAccess`."""
        found = (reason for number, reason in self._last_reasons if number > refusals)
        return tuple(dict.fromkeys(found))

    async def close(self) -> None:
        """End every connection, and record what is not recorded yet."""
        self._closed = True
        tasks = [*self._serving, *self._leaving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._record_refused_together()

    # Lines.

    @property
    def trusted(self) -> ssl.SSLContext:
        """What certificates of servers are checked by."""
        if self._trusted is None:
            self._trusted = trusting()
        return self._trusted

    def judge(self, asked: Asked) -> NetworkDecision:
        """What the rules of the moment say."""
        return self._rules().judge(asked, everything=self._everything)

    def credential(self, asked: Asked, *, secure: bool) -> Added | None:
        """What is to be added to a request.

        Args:
            asked: The request.
            secure: It goes out in TLS.
        """
        return self._credentials.for_request(asked, secure=secure)

    @asynccontextmanager
    async def line(self, asked: Asked, *, credential: str = "") -> AsyncIterator[Line]:
        """A connection to where it is asked for, judged before and recorded until its end.

        Args:
            asked: What is asked for.
            credential: The name of what will be added to the request, for the record.

        Raises:
            Refused: The rules say no, or the session has used up what it may transfer.
            NotReached: There is no connection.
            StreamBroken: It lasted too long, or more went over it than may.
        """
        decision = self.judge(asked)
        if not decision.allowed:
            raise self.refused(asked, decision.reason, rule=decision.rule)
        if self._closed:
            raise self.refused(asked, "the session is over")
        if self._left_bytes <= 0:
            raise self.refused(asked, self._used_up())
        await self._starts.wait()
        started = time.time()
        try:
            async with self._resolving:
                addresses = await self._dialler.addresses(
                    asked.host, asked.port, listed=decision.addresses, refuses=self._refuses_address
                )
            dialled = await self._dialler.dial(addresses, asked.port)
        except NotAllowed as error:
            raise self.refused(asked, str(error), rule=error.rule or decision.rule) from None
        except NotReached as error:
            self._record(asked, decision, started, credential=credential, failed=str(error))
            raise
        except asyncio.CancelledError:  # the name may have been looked up
            failed = "ended before it was made"
            self._record(asked, decision, started, credential=credential, failed=failed)
            raise
        try:
            connection_id = self._record(
                asked, decision, started, credential=credential, address=str(dialled.address)
            )
        except BaseException:
            dialled.stream.drop()  # what can't be recorded does not happen
            raise
        line = Line(dialled.stream, self._spend)
        reason = ""
        try:
            async with asyncio.timeout(self._limits.max_connection_s) as limit:
                yield line
        except TimeoutError:
            if not limit.expired():
                raise
            reason = f"it lasted longer than {self._limits.max_connection_s:g} s"
            raise StreamBroken(reason) from None
        except asyncio.CancelledError:
            reason = "ended by the runner"
            raise
        except StreamBroken as error:
            reason = str(error)
            raise
        finally:
            line.drop()
            self._records.end_connection(
                connection_id,
                ended_at=time.time(),
                sent_bytes=line.sent_bytes,
                received_bytes=line.received_bytes,
                reason=reason,
            )

    def refused(self, asked: Asked, reason: str, *, rule: str | None = None) -> Refused:
        """Record a refusal; the error to raise for it."""
        self.note_refusal(asked.protocol, reason, asked=asked, rule=rule)
        return Refused(reason)

    def note_refusal(
        self,
        protocol: AskedBy,
        reason: str,
        *,
        asked: Asked | None = None,
        rule: str | None = None,
    ) -> None:
        """Record a refusal, of something that could not even be read where `asked` is None."""
        if protocol != "tool":  # a tool says so itself
            self.refusals += 1
            self._last_reasons.append((self.refusals, reason))
        if not self._refusals.take():
            self._unrecorded += 1
            if self._flushing is None:
                loop = asyncio.get_running_loop()
                self._flushing = loop.call_later(FLUSH_S, self._record_refused_together)
            return
        self._record_refused_together()
        now = time.time()
        self._add(protocol, asked, Verdict.DENY, rule, reason, started_at=now, ended_at=now)

    def _record_refused_together(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if not self._unrecorded:
            return
        count, self._unrecorded = self._unrecorded, 0
        now = time.time()
        reason = f"{count} more connections were refused, too fast to be recorded one by one"
        self._add("connect", None, Verdict.DENY, None, reason, started_at=now, ended_at=now)

    def _refuses_address(self, address: Address, port: int) -> tuple[str, str | None] | None:
        decision = self._rules().refuses_address(address, port)
        return None if decision is None else (decision.reason, decision.rule)

    def _spend(self, count: int) -> None:
        self._left_bytes -= count
        if self._left_bytes < 0:
            raise StreamBroken(self._used_up())

    def _used_up(self) -> str:
        return f"the session has transferred the {self._limits.max_transfer_bytes} bytes it may"

    def _record(
        self,
        asked: Asked,
        decision: NetworkDecision,
        started: float,
        *,
        credential: str,
        address: str = "",
        failed: str = "",
    ) -> str:
        return self._add(
            asked.protocol,
            asked,
            decision.verdict,
            decision.rule,
            failed,
            started_at=started,
            ended_at=time.time() if failed else None,
            address=address,
            credential=credential,
        )

    def _add(
        self,
        protocol: AskedBy,
        asked: Asked | None,
        verdict: Verdict,
        rule: str | None,
        reason: str,
        *,
        started_at: float,
        ended_at: float | None,
        address: str = "",
        credential: str = "",
    ) -> str:
        connection = Connection(
            id=f"n-{uuid.uuid4().hex}",
            session_id=self._session_id,
            protocol=protocol,
            host="" if asked is None else str(asked.host),
            port=0 if asked is None else asked.port,
            method="" if asked is None else asked.method,
            path="" if asked is None else asked.path,
            address=address,
            verdict=verdict,
            rule=rule,
            reason=reason,
            credential=credential,
            started_at=started_at,
            ended_at=ended_at,
        )
        self._records.add_connection(connection)
        log.info(
            "network.denied" if verdict is Verdict.DENY else "network.allowed",
            session=self._session_id,
            host=connection.host,
            port=connection.port,
            rule=rule,
            reason=reason,
        )
        return connection.id
