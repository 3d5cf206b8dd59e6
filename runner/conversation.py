"""The conversation with one helper: requests out, answers back, clocks, trouble.

Everything that arrives is hostile: a frame that is not the answer to something asked ends the
conversation. It knows frames, not containers: somebody above makes the carrier, and says by
`diagnose` what became of the container when the stream goes silent or ends. What can be asked
is `sandbox`'s matter.

The clock of a request is here and nowhere else. At its deadline the request is cancelled;
a helper that has not answered `GRACE_S` later has lost the conversation.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self

from runner.answers import Collector, Facts, RequestFailed
from runner.carrier import Carrier
from runner.errors import (
    EngineError,
    LocalProtocolError,
    RemoteProtocolError,
    SandboxLost,
    SandboxUnresponsive,
)
from runner.helper import wire
from runner.helper.wire import Kind
from runner.tunnels import Tunnels

GRACE_S = 2.0
"""From a cancellation to the moment the helper must have answered it."""
SILENCE_S = 0.6
"""A stream with open requests that is silent for this long is pinged, and when it stays
silent for as long again, the daemon is asked: trouble it knows of shows within two seconds."""
UNRESPONSIVE_S = 60.0
"""A helper that answers no ping for this long has lost the sandbox, although its container
runs. Long, because a busy container on a busy machine may keep it waiting."""
LOOKS_S = (0.05, 0.1, 0.2, 0.4)
"""Pauses between questions to the daemon, which hears of an end a moment after the stream."""

OnOutput = Callable[[bytes], Awaitable[None]]
Diagnose = Callable[[], Awaitable[SandboxLost | None]]
"""What the daemon knows of the container's end: None where it runs. May raise EngineError."""
OnLost = Callable[[SandboxLost], None]


class InputRoom:
    """How much standard input of a program may still be sent."""

    def __init__(self) -> None:
        self._room = wire.INPUT_WINDOW_BYTES
        self._over = False
        self._changed = asyncio.Event()

    async def reserve(self, wanted: int) -> int:
        """Wait for room, and take at most so much of it; 0: the program has ended."""
        while self._room == 0 and not self._over:
            self._changed.clear()
            await self._changed.wait()
        if self._over:
            return 0
        count = min(wanted, self._room, wire.INPUT_CHUNK_BYTES)
        self._room -= count
        return count

    def widen(self, count: int) -> None:
        """The program took so much.

        Raises:
            ProtocolError: That is more than was sent.
        """
        self._room += count
        if self._room > wire.INPUT_WINDOW_BYTES:
            raise wire.ProtocolError("more input was taken than there was")
        self._changed.set()

    def end(self) -> None:
        """There is nobody any more to take anything."""
        self._over = True
        self._changed.set()


class Request:
    """One that awaits its answer."""

    __slots__ = (
        "answer",
        "answer_kind",
        "call",
        "cancelled",
        "check",
        "collector",
        "credit",
        "errors",
        "input",
        "is_watched",
        "most_bytes",
        "over",
        "owed",
        "pieces",
        "timed_out",
        "timer",
        "watches",
    )

    def __init__(self, call: int, answer_kind: int, answer: asyncio.Future[wire.Message]):
        self.call = call
        self.answer_kind = answer_kind
        self.answer = answer
        self.cancelled = False
        self.timed_out = False
        self.timer: asyncio.TimerHandle | None = None
        self.collector: Collector | None = None
        self.errors: Collector | None = None
        """Of standard error, where that comes apart."""
        self.input: InputRoom | None = None
        """Of a program whose input comes in pieces."""
        self.pieces: asyncio.Queue[bytes | None] | None = None
        """Output on its way to somebody who takes it piece by piece."""
        self.over: asyncio.Future[None] | None = None
        """Done when nobody is to wait any longer for somebody who takes output."""
        self.credit = wire.OUTPUT_WINDOW_BYTES
        """What the helper may still send; more is an offence."""
        self.most_bytes = wire.MAX_PAYLOAD_BYTES
        """The longest answer."""
        self.owed = 0
        """Output that was taken but not yet acknowledged."""
        self.watches = False
        """It is to tell what happened to protected files."""
        self.is_watched = True
        """The helper knew which ones before it began."""
        self.check: Callable[[wire.Message], object] | None = None
        """Looks at the answer before anybody gets it; raises ProtocolError for one that is
        well-formed but can't be true."""


class Conversation:
    """Asks one helper, as long as it is there. Make it with `open`."""

    def __init__(self, carrier: Carrier, marker: bytes, diagnose: Diagnose, on_lost: OnLost):
        self.facts: Facts | None = None
        self.lost: SandboxLost | None = None
        """Why nothing can be asked any more, or None as long as it can."""
        self._carrier = carrier
        self._marker = marker
        self._diagnose = diagnose
        self._on_lost = on_lost
        self._decoder = wire.Decoder(marker, wire.FROM_HELPER)
        self._loop = asyncio.get_running_loop()
        self._calls = itertools.count(1)
        self._pending: dict[int, Request] = {}
        self._tunnels = Tunnels(carrier.send, carrier.drain)
        self._greeting: asyncio.Future[wire.Message] = self._loop.create_future()
        self._heard = self._loop.time()
        self._pinged: float | None = None
        self._pings = 0
        self._watch: asyncio.TimerHandle | None = None
        self._inquiries: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(
        cls,
        carrier: Carrier,
        marker: bytes,
        *,
        diagnose: Diagnose,
        expires_s: float | None,
        idle_s: float | None,
        timeout_s: float,
        on_lost: OnLost = lambda error: None,
    ) -> Self:
        """Start a conversation with a helper.

        Args:
            marker: What both directions of the stream start with; 16 bytes that nothing in
                the container knows.
            diagnose: Asks the daemon what became of the container.
            expires_s: The helper ends itself and the container after this, whatever happens.
            idle_s: It does so too when nobody asked anything for this long.
            timeout_s: How long its greeting may take.
            on_lost: Called when the sandbox is lost, but not when it is closed.

        Raises:
            SandboxLost: It did not greet in time, or its container ended.
            RemoteProtocolError: It greeted in another version of the protocol.
        """
        conversation = cls(carrier, marker, diagnose, on_lost)
        carrier.start(conversation._on_data, conversation._on_end)
        carrier.send(
            marker
            + wire.encode(
                Kind.HELLO,
                0,
                {
                    "role": "host",
                    "version": wire.PROTOCOL_VERSION,
                    "expires_s": expires_s,
                    "idle_s": idle_s,
                    "uid": None,
                    "gid": None,
                    "shell": None,
                    "python": None,
                    "seccomp": None,
                },
            )
        )
        try:
            async with asyncio.timeout(timeout_s):
                hello = await conversation._greeting
        except (TimeoutError, SandboxLost) as caught:
            error = caught if isinstance(caught, SandboxLost) else None
            error = error or await conversation._explain(
                SandboxUnresponsive(f"the helper did not greet within {timeout_s:g} s")
            )
            conversation._fail(error)
            if carrier.diagnostics:
                error.add_note(f"the container's last words: {carrier.diagnostics.strip()}")
            raise error from None
        except BaseException:
            conversation.close()
            raise
        fields = hello.fields
        if fields["role"] != "helper" or fields["version"] != wire.PROTOCOL_VERSION:
            error = RemoteProtocolError(
                f"the container's helper speaks version {fields['version']} of the protocol,"
                f" this runner version {wire.PROTOCOL_VERSION}"
            )
            conversation._fail(error)
            raise error
        conversation.facts = Facts(
            uid=fields["uid"] or 0,
            gid=fields["gid"] or 0,
            shell=bool(fields["shell"]),
            python=fields["python"] or "",
            seccomp=bool(fields["seccomp"]),
        )
        return conversation

    def close(self) -> None:
        """Hang up. The container goes on until somebody ends it."""
        self._end(SandboxLost("the sandbox was closed"))

    async def ping(self) -> float:
        """Seconds for a frame to the helper and back."""
        started = time.monotonic()
        await self._ask(self._open(Kind.PONG), Kind.PING, {})
        return time.monotonic() - started

    def keep_alive(self) -> None:
        """Send a ping and do not wait for its answer."""
        if self.lost is None:
            self._pings += 1
            self._carrier.send(wire.encode(Kind.PING, 0))

    # The way there.

    def _open(self, answer_kind: int) -> Request:
        if self.lost is not None:
            raise self.lost
        return Request(next(self._calls), answer_kind, self._loop.create_future())

    async def _ask(
        self,
        request: Request,
        kind: int,
        fields: dict[str, Any],
        payload: bytes = b"",
        deadline_s: float | None = None,
        on_output: OnOutput | None = None,
    ) -> wire.Message:
        try:
            frame = wire.encode_head(kind, request.call, fields, len(payload))
        except wire.ProtocolError as error:
            raise LocalProtocolError(str(error)) from error
        self._pending[request.call] = request
        if deadline_s is not None:
            request.timer = self._loop.call_later(deadline_s, self._time_out, request)
        if self._watch is None:
            self._heard = self._loop.time()
            self._watch = self._loop.call_later(SILENCE_S, self._look)
        try:
            if len(payload) < 64 * 1024:
                self._carrier.send(frame + payload)
            else:
                self._carrier.send(frame)
                self._carrier.send(payload)
                await self._carrier.drain()
            # The queue itself: a time-out takes it from the request, and ends it.
            pieces = request.pieces
            if pieces is not None and on_output is not None:
                await self._hand_on(request, pieces, on_output)
            answer = await request.answer
        except BaseException:
            # Cancelled, or the taker of the output failed: nothing of it may go on running.
            if request.call in self._pending:
                await self._withdraw(request)
            raise
        finally:
            # One that is still pending keeps its timer: the helper has yet to end it.
            if request.timer is not None and request.call not in self._pending:
                request.timer.cancel()
        if answer.kind == Kind.FAILED:
            raise RequestFailed(answer.fields["code"], answer.fields["detail"])
        return answer

    async def _hand_on(
        self,
        request: Request,
        pieces: asyncio.Queue[bytes | None],
        on_output: OnOutput,
    ) -> None:
        """Give the pieces of an output to whoever takes them, until its end or the deadline."""
        over = request.over = self._loop.create_future()
        while (piece := await pieces.get()) is not None:
            taking = asyncio.ensure_future(on_output(piece))
            try:
                await asyncio.wait((taking, over), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not taking.done():  # a taker that is stuck must not outlast the deadline
                    taking.cancel()
            if over.done():
                return
            taking.result()
            self._acknowledge(request, len(piece))

    async def _withdraw(self, request: Request) -> None:
        """Cancel a request, and wait until the helper says that it is over."""
        # The future that was awaited has been cancelled with the task.
        request.answer = self._loop.create_future()
        self._cancel(request)
        waiting = asyncio.wait([request.answer], timeout=2 * GRACE_S)
        await asyncio.shield(asyncio.ensure_future(waiting))

    def _cancel(self, request: Request) -> None:
        if request.cancelled or request.answer.done():
            return
        request.cancelled = True
        self._carrier.send(wire.encode(Kind.CANCEL, request.call))
        if request.timer is not None:
            request.timer.cancel()
        request.timer = self._loop.call_later(GRACE_S, self._give_up, request)
        # Whoever took the output no longer does; the rest of it must not wait for them.
        if request.over is not None and not request.over.done():
            request.over.set_result(None)
        pieces, request.pieces = request.pieces, None
        if pieces is not None:
            while not pieces.empty():
                piece = pieces.get_nowait()
                self._acknowledge(request, len(piece or b""))
            pieces.put_nowait(None)

    def _time_out(self, request: Request) -> None:
        request.timed_out = True
        self._cancel(request)

    def _give_up(self, request: Request) -> None:
        if not request.answer.done():
            what = "timed out, and" if request.timed_out else "was cancelled, but"
            self._begin_inquiry(
                SandboxUnresponsive(
                    f"a call {what} the helper did not end it within {GRACE_S:g} s;"
                    " its container is killed"
                )
            )

    def _acknowledge(self, request: Request, count: int) -> None:
        request.owed += count
        if request.owed >= wire.OUTPUT_WINDOW_BYTES // 4 and not request.answer.done():
            request.credit += request.owed
            self._carrier.send(wire.encode(Kind.CREDIT, request.call, {"bytes": request.owed}))
            request.owed = 0

    # The way back.

    def _on_data(self, data: bytes | memoryview) -> None:
        self._heard = self._loop.time()
        self._pinged = None
        try:
            self._decoder.feed(data)
            while (message := self._decoder.next_message()) is not None:
                self._take(message)
        except wire.ProtocolError as error:
            self._fail(RemoteProtocolError(f"the container broke the protocol: {error}"))

    def _take(self, message: wire.Message) -> None:
        if message.kind == Kind.HELLO:
            if self._greeting.done():
                raise wire.ProtocolError("a second greeting")
            self._greeting.set_result(message)
        elif message.kind in wire.TUNNELLED:
            self._tunnels.take(message)
        elif message.kind == Kind.PONG and message.call == 0 and self._pings:
            self._pings -= 1
        else:
            request = self._pending.get(message.call)
            if request is None:
                raise wire.ProtocolError(f"an answer to call {message.call}, which is not open")
            self._take_for(request, message)

    def _take_for(self, request: Request, message: wire.Message) -> None:
        if message.kind == Kind.OUTPUT:
            self._take_output(request, request.collector, message.payload)
        elif message.kind == Kind.ERRORS:
            self._take_output(request, request.errors, message.payload)
        elif message.kind == Kind.TAKEN:
            if request.input is None:
                raise wire.ProtocolError(f"call {message.call} takes no input")
            request.input.widen(message.fields["bytes"])
        else:
            self._take_answer(request, message)

    def _take_answer(self, request: Request, message: wire.Message) -> None:
        if message.kind not in (request.answer_kind, Kind.FAILED):
            raise wire.ProtocolError(f"kind {message.kind} does not answer call {message.call}")
        if len(message.payload) > request.most_bytes:
            raise wire.ProtocolError(f"a longer answer to call {request.call} than was asked for")
        if request.check is not None and message.kind == request.answer_kind:
            request.check(message)
        del self._pending[message.call]
        if not request.answer.done():
            request.answer.set_result(message)
        _nobody_waits(request)

    def _take_output(self, request: Request, collector: Collector | None, data: bytes) -> None:
        if collector is None:
            raise wire.ProtocolError(f"output for call {request.call}, which has none")
        if not data:
            raise wire.ProtocolError(f"output for call {request.call} without any bytes")
        request.credit -= len(data)
        if request.credit < 0:
            raise wire.ProtocolError(f"more output for call {request.call} than was allowed")
        collector.add(data)
        if request.pieces is not None:
            request.pieces.put_nowait(data)
        else:
            self._acknowledge(request, len(data))

    # Trouble.

    def _look(self) -> None:
        """Every so often while requests are open: is anybody there?"""
        self._watch = None
        if not self._pending or self.lost is not None:
            self._pinged = None
            return
        now = self._loop.time()
        if self._pinged is not None and now - self._pinged >= SILENCE_S:
            self._pinged = now
            silent_s = now - self._heard
            self._begin_inquiry(
                SandboxUnresponsive(f"the helper has said nothing for {silent_s:.0f} s")
                if silent_s >= UNRESPONSIVE_S
                else None
            )
        elif self._pinged is None and now - self._heard >= SILENCE_S:
            self._pinged = now
            self.keep_alive()
        self._watch = self._loop.call_later(SILENCE_S / 2, self._look)

    def _on_end(self, error: BaseException | None) -> None:
        if self.lost is not None:
            return
        if self._decoder.at_frame_start():
            self._begin_inquiry(SandboxLost("the container's stream ended"), LOOKS_S)
        else:
            torn = RemoteProtocolError("the container's stream ended in a truncated frame")
            self._begin_inquiry(torn, LOOKS_S)

    def _begin_inquiry(self, fallback: SandboxLost | None, looks_s: Sequence[float] = ()) -> None:
        """Find out from the daemon what happened.

        Args:
            fallback: The error where it knows of nothing; None: then there is none.
            looks_s: Pauses after which it is asked again.
        """
        if self._inquiries and fallback is None:
            return
        inquiry = self._loop.create_task(self._inquire(fallback, looks_s))
        self._inquiries.add(inquiry)
        inquiry.add_done_callback(self._inquiries.discard)

    async def _inquire(self, fallback: SandboxLost | None, looks_s: Sequence[float]) -> None:
        if fallback is not None:
            self._fail(await self._explain(fallback, looks_s))
            return
        try:
            error = await self._diagnose()
        except EngineError:
            return  # it can't be asked; the container may be well all the same
        if error is not None:
            self._fail(error)

    async def _explain(self, fallback: SandboxLost, looks_s: Sequence[float] = ()) -> SandboxLost:
        """The daemon's reason for a loss, or `fallback` where it has none."""
        try:
            error = await self._diagnose()
            for pause_s in looks_s:
                if error is not None:
                    break
                await asyncio.sleep(pause_s)
                error = await self._diagnose()
        except EngineError as trouble:
            fallback.add_note(f"the daemon does not say why: {trouble}")
            return fallback
        return error or fallback

    def _fail(self, error: SandboxLost) -> None:
        """The sandbox is lost: the container is to go, and whoever waits is told why."""
        if self.lost is None:
            self._on_lost(error)
            self._end(error)

    def _end(self, error: SandboxLost) -> None:
        """Nothing can be asked any more."""
        if self.lost is not None:
            return
        self.lost = error
        self._carrier.close()
        if self._watch is not None:
            self._watch.cancel()
        for inquiry in self._inquiries:
            if inquiry is not asyncio.current_task():
                inquiry.cancel()
        if not self._greeting.done():
            self._greeting.set_exception(error)
            self._greeting.exception()  # it may be that nobody waits for it any more
        for request in list(self._pending.values()):
            if not request.answer.done():
                request.answer.set_exception(error)
                request.answer.exception()
            _nobody_waits(request)
        self._pending.clear()
        self._tunnels.end(str(error))


def _nobody_waits(request: Request) -> None:
    """A request is over: wake whoever takes its output or gives it input."""
    if request.pieces is not None:
        request.pieces.put_nowait(None)
    if request.input is not None:
        request.input.end()
