"""What the server answers: the list of tools, and calls of them.

Translates and nothing else: a request becomes a call of the library, its result an answer. A
call runs in a task of its own, so that the protocol's cancellation ends it in an orderly way,
and so that it can go on while a person is asked in another request.
"""

import asyncio
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from runner.client import AsyncRunner, AsyncSession
from runner.errors import RunnerError, SessionEnded
from runner.logs import bind, log, visible
from runner.mcp_server.asking import (
    AskAtOnce,
    AskByReturn,
    AskElsewhere,
    Channel,
    Context,
    asked_by,
    can_elicit,
    form,
    meaning,
)
from runner.mcp_server.held import Held, over
from runner.mcp_server.tools import (
    CLOSE,
    OPEN,
    SESSION_ID,
    TITLE_CHARACTERS,
    definitions,
    failure,
    refusal,
    rendered,
    session_answer,
    split,
)
from runner.settings import Network
from runner.version import __version__

__all__ = ["NAME", "SESSION_HEADER", "ToolServer"]

NAME = "rousseau-runner"
SESSION_HEADER = "mcp-session-id"
GOING_AWAY = "the server is going away"
QUESTION = "approval"
"""The name of the one question that an answer may hold."""
KEPT_S = 300.0
"""How long a call that ended between two requests waits for the second one."""
MAX_ASKED = 100
"""Calls that may wait for a second request at once."""
NOTE_CHARACTERS = 200
"""Of a command's last line of output, in a notice of progress."""
NOTE_BYTES = 4 * NOTE_CHARACTERS

INSTRUCTIONS = """\
Every call runs in a locked Linux container. Files are below /workspace, and paths are absolute.
A call may be denied by a policy, or wait until a person has allowed it: the result says so. Do
not repeat a denied call in other words.
"""
OPENING = "opening a session; if its images have to be made first, that takes minutes"
NAMED = f"Open a session with {OPEN} first, and name it in every call.\n"

Result = types.CallToolResult | types.InputRequiredResult


@dataclass(slots=True)
class Running:
    """A call under way. It outlives a request that is answered with a question."""

    name: str
    arguments: Mapping[str, Any]
    """As they came."""
    started: float = field(default_factory=time.monotonic)
    note: str = ""
    """What there is to say of it, for whoever waits."""
    channel: Channel | None = None
    task: "asyncio.Task[types.CallToolResult]" = field(init=False)

    async def show(self, output: bytes) -> None:
        """Note the last line of a command's output."""
        lines = output[-NOTE_BYTES:].decode(errors="replace").strip().splitlines()
        if lines:
            self.note = visible(lines[-1])[-NOTE_CHARACTERS:]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question that a client was handed, and the call that waits for it."""

    running: Running
    channel: AskByReturn
    approval: str


class ToolServer:
    """Serves the tools of a runner.

    Args:
        runner: Makes the calls. Its approver is an `Asker`, where anybody may be asked.
        options: What sessions are opened with.
        named: Calls name their session, whatever the transport. Otherwise a client has one
            session, wherever the protocol tells clients apart.
        elicit: Ask people through their clients, where these can.
    """

    def __init__(
        self,
        runner: AsyncRunner,
        options: Mapping[str, Any],
        *,
        named: bool = False,
        elicit: bool = True,
    ):
        settings = runner.settings
        self._runner = runner
        self._named = named
        self._elicit = elicit
        self._progress_s = settings.mcp_progress_s
        self._held = Held(runner, options, limit=settings.mcp_max_sessions)
        self._asked: dict[str, _Asked] = {}
        self._closed = False
        self._tasks: set[asyncio.Task[types.CallToolResult]] = set()
        network: Network = options.get("network") or settings.network
        # Made once, so that a tool that can't be served is found at the start.
        self._lists = {
            named: types.ListToolsResult(
                tools=definitions(runner.tools, network=network, named=named)
            )
            for named in (False, True)
            if named or not self._named
        }
        self.lowlevel: Server[Any] = Server(
            NAME,
            version=__version__,
            instructions=INSTRUCTIONS + NAMED if named else INSTRUCTIONS,
            on_list_tools=self._list,
            on_call_tool=self._call,
        )
        """The SDK's server, for a transport."""

    async def end(self, client: str) -> None:
        """A client has said that it is done: close its session, if it has one."""
        await self._held.end(client)

    async def close(self) -> None:
        """End what runs, and close all sessions. Nothing is begun after that."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._held.close()

    # Requests.

    async def _list(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        if params is not None and params.cursor is not None:
            raise MCPError(types.INVALID_PARAMS, "there are no pages: the first has all tools")
        return self._lists[self._is_named(context)]

    async def _call(self, context: Context, params: types.CallToolRequestParams) -> Result:
        if self._closed:
            raise MCPError(types.INTERNAL_ERROR, GOING_AWAY)
        if params.request_state is not None:
            return await self._go_on(context, params)
        running = Running(params.name, params.arguments or {})
        running.channel = self._channel(context, running)
        running.task = asyncio.create_task(self._work(context, running))
        self._tasks.add(running.task)
        running.task.add_done_callback(self._done)
        return await self._attend(context, running)

    async def _go_on(self, context: Context, params: types.CallToolRequestParams) -> Result:
        """A call that waited for an answer: take it, and see what becomes of the call."""
        asked = self._asked.get(params.request_state or "")
        if asked is None:
            raise MCPError(
                types.INVALID_PARAMS,
                "this requestState is not, or no longer, one of ours: call anew",
            )
        running = asked.running
        if (params.name, params.arguments or {}) != (running.name, running.arguments):
            raise MCPError(types.INVALID_PARAMS, "the answer is to another call than this one")
        del self._asked[params.request_state or ""]
        pending = asked.channel.pending
        if pending is not None and pending.id == asked.approval:
            response = (params.input_responses or {}).get(QUESTION)
            if response is None:
                return self._ask(asked.channel, running)
            asked.channel.answer(meaning(response))
        return await self._attend(context, running)

    async def _attend(self, context: Context, running: Running) -> Result:
        """Wait for a call, and tell the client now and then that it goes on."""
        channel = running.channel
        try:
            while not running.task.done():
                waiting: set[asyncio.Future[Any]] = {running.task}
                if isinstance(channel, AskByReturn):
                    if channel.pending is not None:
                        return self._ask(channel, running)
                    waiting.add(channel.news)
                done, _ = await asyncio.wait(
                    waiting, timeout=self._progress_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    await context.session.report_progress(
                        round(time.monotonic() - running.started, 3), message=running.note or None
                    )
        except asyncio.CancelledError:
            running.task.cancel()
            # The protocol's scope cancels again and again; the call has to end in peace.
            with anyio.CancelScope(shield=True):
                await asyncio.wait({running.task})
            raise
        try:
            return running.task.result()
        except asyncio.CancelledError:
            raise MCPError(types.INTERNAL_ERROR, GOING_AWAY) from None
        except RunnerError as error:
            raise refusal(error) from error

    def _ask(self, channel: AskByReturn, running: Running) -> types.InputRequiredResult:
        """Answer with the question that is pending."""
        assert channel.pending is not None
        if len(self._asked) >= MAX_ASKED:
            running.task.cancel()
            raise MCPError(types.INTERNAL_ERROR, f"{MAX_ASKED} calls wait for an answer already")
        # Nobody can guess it, and it is good once: it needs no seal.
        state = secrets.token_urlsafe(24)
        self._asked[state] = _Asked(running, channel, channel.pending.id)
        loop = asyncio.get_running_loop()
        running.task.add_done_callback(
            lambda _: loop.call_later(KEPT_S, self._asked.pop, state, None)
        )
        return types.InputRequiredResult(
            input_requests={QUESTION: form(channel.pending)}, request_state=state
        )

    # The call.

    async def _work(self, context: Context, running: Running) -> types.CallToolResult:
        asked_by.set(running.channel)
        if (traceparent := _traceparent(context)) is not None:
            bind(traceparent=traceparent)
        named = self._is_named(context)
        if named and running.name == OPEN:
            return await self._open(running.arguments)
        if named and running.name == CLOSE:
            return await self._close(running.arguments)
        if self._runner.tools.get(running.name) is None:
            known = ", ".join(tool.name for tool in self._lists[named].tools)
            raise MCPError(
                types.INVALID_PARAMS, f"unknown tool {running.name!r:.200}; there are: {known}"
            )
        arguments = dict(running.arguments)
        if named:
            session_id, arguments = split(arguments)
            if session_id is None:
                return failure(f"{SESSION_ID} is required, a string: {OPEN} gives one")
            session = self._held.named(session_id)
        else:
            running.note = OPENING
            session = await self._held.of(_client(context), title=_title(context))
            running.note = ""
        return await self._run(session, running, arguments, named=named)

    async def _run(
        self, session: AsyncSession, running: Running, arguments: dict[str, Any], *, named: bool
    ) -> types.CallToolResult:
        try:
            result = await session.call(running.name, arguments, on_output=running.show)
        except SessionEnded:
            self._held.forget(session)
            if named:
                raise
            raise over(session) from None
        return rendered(result)

    async def _open(self, arguments: Mapping[str, Any]) -> types.CallToolResult:
        title = arguments.get("title", "")
        if arguments.keys() - {"title"} or not isinstance(title, str):
            return failure(f"{OPEN} takes a title, which is a string, and nothing else")
        session = await self._held.open(title=title[:TITLE_CHARACTERS])
        return session_answer(session.id, f"opened session {session.id}")

    async def _close(self, arguments: Mapping[str, Any]) -> types.CallToolResult:
        session_id, more = split(arguments)
        if session_id is None or more:
            return failure(f"{CLOSE} takes {SESSION_ID}, which is a string, and nothing else")
        self._held.named(session_id)
        await self._held.end(session_id)
        return session_answer(session_id, f"closed session {session_id}")

    def _done(self, task: "asyncio.Task[types.CallToolResult]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Whoever waits for it is told; nobody may be.
            log.info("mcp.error", error=str(error))

    def _is_named(self, context: Context) -> bool:
        """Over HTTP, clients of 2026-07-28 can't be told apart: their calls name sessions."""
        modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        return self._named or (context.request is not None and modern)

    def _channel(self, context: Context, running: Running) -> Channel:
        def note(text: str) -> None:
            running.note = text

        if not self._elicit or not can_elicit(context):
            return AskElsewhere(note)
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return AskByReturn()
        return AskAtOnce(context) if context.session.can_send_request else AskElsewhere(note)


def _client(context: Context) -> str:
    """What tells this client from others: over standard input and output there are none."""
    if context.request is None:
        return ""
    return str(context.request.headers[SESSION_HEADER])


def _title(context: Context) -> str:
    known = context.session.client_params
    name = known.client_info.name if known is not None else ""
    return f"MCP: {name}"[:TITLE_CHARACTERS] if name else "MCP"


_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def _traceparent(context: Context) -> str | None:
    """The caller's trace, as W3C writes it, if it is one."""
    meta = (context.params or {}).get("_meta")
    found = meta.get("traceparent") if isinstance(meta, Mapping) else None
    is_one = isinstance(found, str) and _TRACEPARENT.fullmatch(found) is not None
    return found if is_one else None
