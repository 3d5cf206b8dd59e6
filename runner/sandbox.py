"""The host's end of one container's stream: requests out, typed answers back.

A `Sandbox` knows frames, not containers: somebody above makes the carrier, and says by
`diagnose` what became of the container when the stream goes silent or ends. Everything that
arrives is hostile: a frame that is not the answer to something asked ends the sandbox.

The clock of a request is here and nowhere else. At its deadline the request is cancelled;
a helper that has not answered `GRACE_S` later has lost the sandbox.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from runner.answers import Collector, Facts, RequestFailed, RunResult, SearchResult, Touched
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
DEFAULT_OUTPUT_LIMIT_BYTES = 1024**2
SPILL_LIMIT_BYTES = 16 * 1024**2
"""How much of an output that outgrows its result is kept in the container."""
WORKSPACE = "/workspace"

OnOutput = Callable[[bytes], Awaitable[None]]
Diagnose = Callable[[], Awaitable[SandboxLost | None]]
"""What the daemon knows of the container's end: None where it runs. May raise EngineError."""
OnLost = Callable[[SandboxLost], None]


class _Request:
    """One that awaits its answer."""

    __slots__ = (
        "answer",
        "answer_kind",
        "call",
        "cancelled",
        "collector",
        "credit",
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


class Sandbox:
    """Runs programs and touches files in one container. Make it with `open`."""

    def __init__(self, carrier: Carrier, marker: bytes, diagnose: Diagnose, on_lost: OnLost):
        self.facts: Facts | None = None
        self.lost: SandboxLost | None = None
        """Why this sandbox can't be used any more, or None as long as it can."""
        self._carrier = carrier
        self._marker = marker
        self._diagnose = diagnose
        self._on_lost = on_lost
        self._decoder = wire.Decoder(marker, wire.FROM_HELPER)
        self._loop = asyncio.get_running_loop()
        self._calls = itertools.count(1)
        self._pending: dict[int, _Request] = {}
        self._greeting: asyncio.Future[wire.Message] = self._loop.create_future()
        self._heard = self._loop.time()
        self._pinged: float | None = None
        self._pings = 0
        self._watch: asyncio.TimerHandle | None = None
        self._inquiries: set[asyncio.Task[None]] = set()
        self._watched: tuple[str, ...] | None = None
        """What the helper was last told to watch, in this conversation."""
        self._watching = asyncio.Lock()
        self._touched = Touched()
        """What the helper told of protected files, and no run has returned yet."""

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
    ) -> "Sandbox":
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
        sandbox = cls(carrier, marker, diagnose, on_lost)
        carrier.start(sandbox._on_data, sandbox._on_end)
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
                hello = await sandbox._greeting
        except (TimeoutError, SandboxLost) as caught:
            error = caught if isinstance(caught, SandboxLost) else None
            error = error or await sandbox._explain(
                SandboxUnresponsive(f"the helper did not greet within {timeout_s:g} s")
            )
            sandbox._fail(error)
            if carrier.diagnostics:
                error.add_note(f"the container's last words: {carrier.diagnostics.strip()}")
            raise error from None
        except BaseException:
            sandbox.close()
            raise
        fields = hello.fields
        if fields["role"] != "helper" or fields["version"] != wire.PROTOCOL_VERSION:
            error = RemoteProtocolError(
                f"the container's helper speaks version {fields['version']} of the protocol,"
                f" this runner version {wire.PROTOCOL_VERSION}"
            )
            sandbox._fail(error)
            raise error
        sandbox.facts = Facts(
            uid=fields["uid"] or 0,
            gid=fields["gid"] or 0,
            shell=bool(fields["shell"]),
            python=fields["python"] or "",
            seccomp=bool(fields["seccomp"]),
        )
        return sandbox

    def close(self) -> None:
        """Hang up. The container goes on until somebody ends it."""
        self._end(SandboxLost("the sandbox was closed"))

    # Requests.

    async def run(
        self,
        command: str | Sequence[str],
        *,
        deadline_s: float,
        cwd: str = WORKSPACE,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
        on_output: OnOutput | None = None,
        background: Literal["keep", "kill"] = "keep",
        watch: tuple[str, ...] = (),
    ) -> RunResult:
        """Run a shell line, or a program with its arguments.

        Standard output and error come back as one stream, in order. The run ends when the
        program does, not when the last holder of its output does. At the deadline, and when
        the awaiting task is cancelled, everything below it is killed.

        Args:
            command: A line for `/bin/sh -c`, or a program (looked up in PATH) and arguments.
            deadline_s: Seconds until it is killed.
            cwd: Where it starts.
            env: Variables on top of the container's own.
            stdin: Its standard input; None is /dev/null.
            output_limit_bytes: Over this the beginning and the end come back, and the whole
                is kept in the container up to `SPILL_LIMIT_BYTES`.
            on_output: Awaited with each piece of output; the program waits while it is slow.
            background: Whether processes it leaves behind live on or are killed with its end.
            watch: Which files of the workspace are protected: RE2, each for whole paths in
                lower case. The result tells what became of them since the last run that
                asked; what is there when the first one asks is taken as it is. What is told
                with the end of a cancelled run comes with the next.

        Raises:
            RequestFailed: It could not be started.
            LocalProtocolError: Command or input are over the protocol's limits.
            SandboxLost: The container or its helper is gone; what it did is not known.
        """
        is_watched = await self._start_watch(watch) if watch else True
        started = time.monotonic()
        request = self._open(Kind.RAN)
        request.watches = bool(watch)
        request.collector = Collector(output_limit_bytes)
        if on_output is not None:
            request.pieces = asyncio.Queue()
        is_line = isinstance(command, str)
        fields = {
            "shell": command if is_line else None,
            "argv": None if is_line else list(command),
            "cwd": cwd,
            "env": dict(env or {}),
            "stdin": stdin is not None,
            # The helper's own clock only matters when this process is gone.
            "deadline_s": deadline_s + GRACE_S,
            "spill_after_bytes": output_limit_bytes,
            "spill_limit_bytes": SPILL_LIMIT_BYTES,
            "background": background,
            "watch": bool(watch),
        }
        answer = await self._ask(request, Kind.RUN, fields, stdin or b"", deadline_s, on_output)
        output, head_bytes = request.collector.result()
        ended = answer.fields["ended"]
        if ended == "deadline" or (request.timed_out and ended == "cancelled"):
            ended = "timed_out"
        touched = Touched()
        if watch:
            touched, self._touched = self._touched, touched
        return RunResult(
            output=output,
            head_bytes=head_bytes,
            total_bytes=request.collector.total_bytes,
            total_lines=request.collector.total_lines,
            exit_code=answer.fields["exit_code"],
            signal=answer.fields["signal"],
            ended=ended,
            background=answer.fields["background"],
            oom_killed=answer.fields["oom_killed"],
            spill_path=answer.fields["spill_path"],
            spill_bytes=answer.fields["spill_bytes"],
            duration_s=time.monotonic() - started,
            touched=replace(touched, complete=touched.complete and is_watched),
        )

    async def _start_watch(self, patterns: tuple[str, ...]) -> bool:
        """Have the helper take note of what is there now, once; whether it did.

        It may lack memory for it. That is no reason not to run anything.
        """
        async with self._watching:
            if self._watched != patterns:
                fields = {"root": WORKSPACE, "patterns": list(patterns)}
                try:
                    await self._ask(self._open(Kind.WATCHED), Kind.WATCH, fields)
                except RequestFailed:
                    return False
                self._watched = patterns
        return True

    async def resolve(self, path: str) -> str:
        """Where a path leads in the container, through links and all; or would lead, once made.

        It is absolute, and holds neither a link nor an empty name, `.` or `..`. To act there
        and nowhere else, whatever became of the path since, hand it on as `judged`.

        Raises:
            RequestFailed: It leads nowhere: links in a circle, a file for a directory, a name
                that is too long or no UTF-8, a directory that may not be entered.
            SandboxLost: The container or its helper is gone.
        """
        answer = await self._ask(self._open(Kind.RESOLVED), Kind.RESOLVE, {"path": path})
        return str(answer.fields["path"])

    async def read(self, path: str, *, limit_bytes: int, judged: str | None = None) -> bytes:
        """The content of a regular file.

        Args:
            path: Which file; links are followed.
            limit_bytes: A larger one is refused.
            judged: What `resolve` made of the path. Then this file is meant and no link is
                followed; so for every request that takes it.

        Raises:
            RequestFailed: It can't be read, is no regular file, or is larger than the limit.
                `moved`: a link came into the path that was judged.
            LocalProtocolError: `judged` is nothing that `resolve` returns.
            SandboxLost: The container or its helper is gone.
        """
        limit = min(limit_bytes, wire.MAX_PAYLOAD_BYTES)
        request = self._open(Kind.CONTENT)
        request.most_bytes = limit
        fields = {"path": path, "judged": judged, "limit_bytes": limit}
        return (await self._ask(request, Kind.READ, fields)).payload

    async def write(self, path: str, content: bytes, *, judged: str | None = None) -> int:
        """Make a file's content `content`; returns the bytes written.

        Raises:
            RequestFailed: It can't be written; what was there before is still there.
            LocalProtocolError: The content is over the protocol's limit (16 MiB).
            SandboxLost: The container or its helper is gone.
        """
        fields = {"path": path, "judged": judged}
        answer = await self._ask(self._open(Kind.WROTE), Kind.WRITE, fields, content)
        return int(answer.fields["bytes"])

    async def replace(
        self, path: str, old: bytes, new: bytes, *, limit_bytes: int, judged: str | None = None
    ) -> int:
        """Replace `old` by `new` if it occurs exactly once; returns how often it occurs.

        Raises:
            RequestFailed: The file can't be read or written.
            SandboxLost: The container or its helper is gone.
        """
        fields = {
            "path": path,
            "judged": judged,
            "old_bytes": len(old),
            "limit_bytes": limit_bytes,
        }
        answer = await self._ask(self._open(Kind.REPLACED), Kind.REPLACE, fields, old + new)
        return int(answer.fields["occurrences"])

    async def search(
        self,
        path: str,
        pattern: str,
        *,
        ignore_case: bool,
        include: str,
        max_matches: int,
        max_file_bytes: int,
        judged: str | None = None,
        hidden: Sequence[str] = (),
    ) -> SearchResult:
        """Find the lines below `path` that match an RE2 pattern.

        Rows have the path as it was given, wherever that led.

        Args:
            path: A directory, or one file.
            pattern: RE2, for one line.
            ignore_case: Whether the case of letters does not matter.
            include: A glob for names of files; empty for all.
            max_matches: Stop after so many.
            max_file_bytes: Pass over larger files.
            judged: As for `read`.
            hidden: RE2, for whole paths; a file is passed over, and counted, if one of them
                matches somewhere in the path where it is when all links are followed.

        Raises:
            RequestFailed: A pattern or the glob is bad, or there is no such path.
            SandboxLost: The container or its helper is gone.
        """
        answer = await self._ask(
            self._open(Kind.FOUND),
            Kind.SEARCH,
            {
                "path": path,
                "judged": judged,
                "hidden": list(hidden),
                "pattern": pattern,
                "ignore_case": ignore_case,
                "include": include,
                "max_matches": max_matches,
                "max_file_bytes": max_file_bytes,
            },
        )
        return SearchResult(rows=answer.payload, **answer.fields)

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

    def _open(self, answer_kind: int) -> _Request:
        if self.lost is not None:
            raise self.lost
        return _Request(next(self._calls), answer_kind, self._loop.create_future())

    async def _ask(
        self,
        request: _Request,
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
        request: _Request,
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

    async def _withdraw(self, request: _Request) -> None:
        """Cancel a request, and wait until the helper says that it is over."""
        # The future that was awaited has been cancelled with the task.
        request.answer = self._loop.create_future()
        self._cancel(request)
        waiting = asyncio.wait([request.answer], timeout=2 * GRACE_S)
        await asyncio.shield(asyncio.ensure_future(waiting))

    def _cancel(self, request: _Request) -> None:
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

    def _time_out(self, request: _Request) -> None:
        request.timed_out = True
        self._cancel(request)

    def _give_up(self, request: _Request) -> None:
        if not request.answer.done():
            what = "timed out, and" if request.timed_out else "was cancelled, but"
            self._begin_inquiry(
                SandboxUnresponsive(
                    f"a call {what} the helper did not end it within {GRACE_S:g} s;"
                    " its container is killed"
                )
            )

    def _acknowledge(self, request: _Request, count: int) -> None:
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
            return
        if message.kind == Kind.PONG and message.call == 0 and self._pings:
            self._pings -= 1
            return
        request = self._pending.get(message.call)
        if request is None:
            raise wire.ProtocolError(f"an answer to call {message.call}, which is not open")
        if message.kind == Kind.OUTPUT:
            self._take_output(request, message.payload)
            return
        if message.kind not in (request.answer_kind, Kind.FAILED):
            raise wire.ProtocolError(f"kind {message.kind} does not answer call {message.call}")
        _check_answer(request, message)
        del self._pending[message.call]
        if message.kind == Kind.RAN and request.watches:
            self._note_touched(message.fields)
        if not request.answer.done():
            request.answer.set_result(message)
        if request.pieces is not None:
            request.pieces.put_nowait(None)

    def _note_touched(self, fields: dict[str, Any]) -> None:
        files = [*self._touched.files, *((path, change) for path, change in fields["touched"])]
        self._touched = Touched(
            files=tuple(files[: wire.MAX_TOUCHED]),
            count=self._touched.count + fields["touched_count"],
            complete=fields["touched_complete"],
        )

    def _take_output(self, request: _Request, data: bytes) -> None:
        if request.collector is None:
            raise wire.ProtocolError(f"output for call {request.call}, which has none")
        if not data:
            raise wire.ProtocolError(f"output for call {request.call} without any bytes")
        request.credit -= len(data)
        if request.credit < 0:
            raise wire.ProtocolError(f"more output for call {request.call} than was allowed")
        request.collector.add(data)
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
            if request.pieces is not None:
                request.pieces.put_nowait(None)
        self._pending.clear()


def _check_answer(request: _Request, message: wire.Message) -> None:
    """Find an answer that is well-formed but can't be true.

    Raises:
        ProtocolError: It is one.
    """
    if len(message.payload) > request.most_bytes:
        raise wire.ProtocolError(f"a longer answer to call {request.call} than was asked for")
    if message.kind == Kind.RAN:
        assert request.collector is not None
        fields = message.fields
        said, sent = fields["output_bytes"], request.collector.total_bytes
        if said != sent:
            raise wire.ProtocolError(
                f"call {request.call} wrote {said} bytes, of which {sent} arrived"
            )
        endings = [fields["exit_code"], fields["signal"]].count(None)
        if endings != (1 if fields["ended"] == "exited" else 2):
            raise wire.ProtocolError(f"call {request.call} ended in no way that there is")
        _check_touched(request, fields)


def _check_touched(request: _Request, fields: dict[str, Any]) -> None:
    touched, count = fields["touched"], fields["touched_count"]
    if (fields["touched_complete"] is None) == request.watches:
        raise wire.ProtocolError(f"call {request.call} does not watch as it was asked to")
    if count < len(touched) or (count and not request.watches):
        raise wire.ProtocolError(
            f"call {request.call} names {len(touched)} of {count} protected files"
        )
    if not all(path.startswith(f"{WORKSPACE}/") for path, _ in touched):
        raise wire.ProtocolError(f"call {request.call} tells of files outside of the workspace")
