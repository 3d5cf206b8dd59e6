"""The library's face, synchronous: `Runner` and `Session`.

No second implementation: each method hands its asynchronous twin to an event loop in a
thread of its own and waits.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from runner.approvals import Approver
from runner.client import DOWNLOAD_LIMIT_BYTES, AsyncRunner, AsyncSession
from runner.controller import RawInput
from runner.engine import Engine
from runner.model import Output, SessionInfo, ToolResult
from runner.policy import Policy
from runner.sessions import Swept
from runner.settings import Settings
from runner.tools import Registry, ToolSet

T = TypeVar("T")


class Session:
    """One session; see `AsyncSession`. A context manager, usable from several threads at once."""

    def __init__(self, portal: BlockingPortal, session: AsyncSession):
        self._portal = portal
        self._session = session

    @property
    def id(self) -> str:
        """The session's id; another process can `attach` to a kept session by it."""
        return self._session.id

    @property
    def info(self) -> SessionInfo:
        """What the store knows of it."""
        return self._session.info

    def call(
        self,
        tool: str,
        arguments: RawInput,
        *,
        timeout_s: float | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        """Run a tool; see `AsyncSession.call`."""
        call = self._session.call
        return _wait(
            self._portal, lambda: call(tool, arguments, timeout_s=timeout_s, call_id=call_id)
        )

    def bash(self, command: str, *, timeout_s: float | None = None) -> ToolResult:
        """`call("bash", …)`: run a shell command."""
        return _wait(self._portal, lambda: self._session.bash(command, timeout_s=timeout_s))

    def read(self, path: str) -> ToolResult:
        """`call("read", …)`: the content of a file."""
        return _wait(self._portal, lambda: self._session.read(path))

    def write(self, path: str, content: str) -> ToolResult:
        """`call("write", …)`: make a file's content `content`."""
        return _wait(self._portal, lambda: self._session.write(path, content))

    def edit(self, path: str, old_string: str, new_string: str) -> ToolResult:
        """`call("edit", …)`: replace the one occurrence of a string."""
        return _wait(self._portal, lambda: self._session.edit(path, old_string, new_string))

    def grep(
        self,
        pattern: str,
        path: str = "/workspace",
        *,
        include: str | None = None,
        ignore_case: bool | None = None,
    ) -> ToolResult:
        """`call("grep", …)`: find matching lines below a directory."""
        grep = self._session.grep
        return _wait(
            self._portal, lambda: grep(pattern, path, include=include, ignore_case=ignore_case)
        )

    def stream(
        self, tool: str, arguments: RawInput, *, timeout_s: float | None = None
    ) -> Iterator[Output | ToolResult]:
        """Run a tool; yield its output as it comes, then the result, last.

        Leaving the iteration early cancels the call.
        """
        events = self._session.stream(tool, arguments, timeout_s=timeout_s)
        # A wait may be interrupted at any point, and leave its step under way: then closing
        # ends that first.
        stepping = asyncio.Lock()
        under_way: asyncio.Task[Any] | None = None

        async def step() -> Output | ToolResult:
            nonlocal under_way
            async with stepping:
                under_way = asyncio.current_task()
                try:
                    return await anext(events)
                finally:
                    under_way = None

        async def close() -> None:
            if under_way is not None:
                under_way.cancel()
            async with stepping:
                await events.aclose()

        try:
            while True:
                try:
                    event = _wait(self._portal, step)
                except StopAsyncIteration:
                    return
                yield event
        finally:
            self._portal.call(close)

    def upload(self, path: str, content: bytes) -> int:
        """Put a file into the session; see `AsyncSession.upload`."""
        return _wait(self._portal, lambda: self._session.upload(path, content))

    def download(self, path: str, *, limit_bytes: int = DOWNLOAD_LIMIT_BYTES) -> bytes:
        """Take a file out of the session; see `AsyncSession.download`."""
        download = self._session.download
        return _wait(self._portal, lambda: download(path, limit_bytes=limit_bytes))

    def close(self) -> None:
        """Let go: a kept session goes on without us, any other is closed."""
        self._portal.call(self._session.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Runner:
    """Opens sessions and keeps their records; see `AsyncRunner` for the arguments.

    A context manager. Its event loop runs in a thread of its own.
    """

    def __init__(
        self,
        policy: Policy | str | Path | None = None,
        *,
        approver: Approver = None,
        tools: Registry | ToolSet | None = None,
        engine: Engine | None = None,
        settings: Settings | None = None,
        **overrides: Any,
    ):
        self._runner = AsyncRunner(
            policy, approver=approver, tools=tools, engine=engine, settings=settings, **overrides
        )
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None

    @property
    def tools(self) -> Registry:
        """The registry: `runner.tools.register(MyTool())`."""
        return self._runner.tools

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._runner.settings

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal("asyncio"))
            stack.enter_context(self._portal.wrap_async_context_manager(self._runner))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)
        self._portal = None

    def _open(self) -> BlockingPortal:
        if self._portal is None:
            raise RuntimeError("the runner is not open: use it in a `with` statement")
        return self._portal

    def session(self, **options: Any) -> Session:
        """Open a session: a context manager, or `close` it. See `AsyncRunner.session`."""
        portal = self._open()
        return Session(portal, portal.call(lambda: self._runner.open_session(**options)))

    def attach(self, session_id: str, *, wait_s: float = 0.0) -> Session:
        """Take over a kept session that another process opened; see `AsyncRunner.attach`."""
        portal = self._open()
        attach = self._runner.attach
        return Session(portal, portal.call(lambda: attach(session_id, wait_s=wait_s)))

    def close_session(self, session_id: str, *, wait_s: float = 0.0) -> None:
        """Close a session by its id; see `AsyncRunner.close_session`."""
        close = self._runner.close_session
        self._open().call(lambda: close(session_id, wait_s=wait_s))

    def sessions(self, *, include_ended: bool = False) -> list[SessionInfo]:
        """Sessions of this data directory, whoever holds them, oldest first."""
        runner = self._runner
        return self._open().call(lambda: _ready(runner.sessions(include_ended=include_ended)))

    def prune(self) -> Swept:
        """End expired sessions and what dead processes left."""
        return self._open().call(self._runner.prune)


def _wait(portal: BlockingPortal, function: Callable[[], Awaitable[T]]) -> T:
    """Run it in the loop and wait for it. What ends the wait, such as Ctrl-C, cancels it."""
    future = portal.start_task_soon(function)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def _ready(value: list[SessionInfo]) -> list[SessionInfo]:
    return value
