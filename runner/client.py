"""The library's face, asynchronous: `AsyncRunner` and `AsyncSession`.

Thin: what a call means is the controller's matter, what a session is the sessions'. The
synchronous face (`runner.sync`) drives these same classes.
"""

import asyncio
import codecs
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from runner.app import as_source, build
from runner.approvals import Approver, checked
from runner.assets import asset_dir
from runner.controller import Controller, OnOutput, RawInput
from runner.engine import Engine
from runner.errors import ConfigurationError, RunnerError
from runner.model import Output, SessionInfo, ToolResult
from runner.policy import Policy
from runner.sandbox import Sandbox
from runner.sessions import Lease, SessionOptions, Swept
from runner.settings import Limits, Network, Settings
from runner.tools import Registry, ToolSet, named_registry

DOWNLOAD_LIMIT_BYTES = 100 * 1024**2
"""The largest file that comes out of a session where nobody says otherwise."""
STREAM_PIECES = 64
"""Pieces of output that wait for whoever iterates; then the command waits."""


class AsyncSession:
    """One session: calls run in its container, on its workspace. An async context manager."""

    def __init__(self, controller: Controller, lease: Lease):
        self._controller = controller
        self._lease = lease

    @property
    def id(self) -> str:
        """The session's id; another process can `attach` to a kept session by it."""
        return self._lease.info.id

    @property
    def info(self) -> SessionInfo:
        """What the store knows of it."""
        return self._lease.info

    @property
    def tools(self) -> Registry:
        """The tools that its calls may name."""
        return self._controller.tools

    async def call(
        self,
        tool: str,
        arguments: RawInput,
        *,
        timeout_s: float | None = None,
        call_id: str | None = None,
        on_output: OnOutput | None = None,
    ) -> ToolResult:
        """Run a tool.

        Args:
            tool: Its name.
            arguments: Its input: a mapping, or the model's raw JSON.
            timeout_s: The call's time limit in seconds; None: the session's (60 by default).
            call_id: Its id in the record; None: a new one.
            on_output: Awaited with each piece of output as it comes.

        Returns:
            What came of it. A command that fails, times out or is denied is a result.

        Raises:
            RunnerError: The runner could not run it; see `runner.errors`.
        """
        return await self._controller.call(
            self._lease, tool, arguments, timeout_s=timeout_s, call_id=call_id, on_output=on_output
        )

    async def bash(self, command: str, *, timeout_s: float | None = None) -> ToolResult:
        """`call("bash", …)`: run a shell command."""
        return await self.call("bash", {"command": command}, timeout_s=timeout_s)

    async def read(self, path: str) -> ToolResult:
        """`call("read", …)`: the content of a file."""
        return await self.call("read", {"path": path})

    async def write(self, path: str, content: str) -> ToolResult:
        """`call("write", …)`: make a file's content `content`."""
        return await self.call("write", {"path": path, "content": content})

    async def edit(self, path: str, old_string: str, new_string: str) -> ToolResult:
        """`call("edit", …)`: replace the one occurrence of a string."""
        arguments = {"path": path, "old_string": old_string, "new_string": new_string}
        return await self.call("edit", arguments)

    async def grep(
        self,
        pattern: str,
        path: str = "/workspace",
        *,
        include: str | None = None,
        ignore_case: bool | None = None,
    ) -> ToolResult:
        """`call("grep", …)`: find matching lines below a directory."""
        arguments: dict[str, Any] = {"pattern": pattern, "path": path}
        if include is not None:
            arguments["include"] = include
        if ignore_case is not None:
            arguments["ignore_case"] = ignore_case
        return await self.call("grep", arguments)

    async def stream(
        self, tool: str, arguments: RawInput, *, timeout_s: float | None = None
    ) -> AsyncGenerator[Output | ToolResult, None]:
        """Run a tool; yield its output as it comes, then the result, last.

        The command waits while nobody iterates. Leaving the iteration early cancels the call;
        use `contextlib.aclosing` to have that happen at once.

        Raises:
            RunnerError: As for `call`.
        """
        pieces: asyncio.Queue[bytes | None] = asyncio.Queue(STREAM_PIECES)

        async def run() -> ToolResult:
            try:
                return await self.call(tool, arguments, timeout_s=timeout_s, on_output=pieces.put)
            finally:
                # Whoever iterates must learn of the end even if the queue is full of output.
                ending = asyncio.get_running_loop().create_task(pieces.put(None))
                enders.add(ending)

        enders: set[asyncio.Task[None]] = set()
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        running = asyncio.create_task(run())
        try:
            while (piece := await pieces.get()) is not None:
                if text := decoder.decode(piece):
                    yield Output(text)
            if text := decoder.decode(b"", final=True):
                yield Output(text)
            yield await running
        finally:
            running.cancel()
            for ending in enders:
                ending.cancel()
            with contextlib.suppress(asyncio.CancelledError, RunnerError):
                await running

    async def upload(self, path: str, content: bytes) -> int:
        """Put a file into the session. The host's own: no policy is asked; it is recorded.

        Args:
            path: Where to; what is not absolute is below /workspace. Directories that are
                missing are made.
            content: Of any size. Up to 16 MiB it takes the place of an old file in one step;
                more is written piece by piece, and after an error a part of it is there.

        Returns:
            The bytes written.

        Raises:
            TransferError: It can't be written; its `failure` says why.
            RunnerError: Another trouble; see `runner.errors`.
        """
        return await self._controller.upload(self._lease, path, content)

    async def download(self, path: str, *, limit_bytes: int = DOWNLOAD_LIMIT_BYTES) -> bytes:
        """Take a file out of the session. The host's own: no policy is asked; it is recorded.

        Args:
            path: Which file; what is not absolute is below /workspace.
            limit_bytes: The largest that is taken; it is held in memory. 100 MiB by default.

        Raises:
            TransferError: It can't be read, or is larger; its `failure` says why.
            RunnerError: Another trouble; see `runner.errors`.
        """
        return await self._controller.download(self._lease, path, limit_bytes=limit_bytes)

    async def sandbox(self) -> Sandbox:
        """The session's sandbox, for hosts that need more than tools: no policy, no record."""
        return await self._lease.sandbox()

    async def close(self) -> None:
        """Let go: a kept session goes on without us, any other is closed."""
        await self._lease.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


class AsyncRunner:
    """Opens sessions and keeps their records. An async context manager.

    Args:
        policy: A `Policy`, the name of a shipped one (`"default"`), a file, or None, which
            denies every call.
        approver: Who answers where the policy asks: a callback that takes an `ApprovalRequest`
            and returns an `Answer`, an `ApprovalQueue`, `"store"` for an answer from another
            process (`runner approvals`), or None, for which to ask is to deny.
        tools: The tools that calls may name: a set by its name (`"rousseau"`, the five, or
            `"extended"`), or a registry of your own; None: the five.
        engine: The container engine; None: Docker.
        settings: All settings; None: read from environment and file.
        on_line: Gets the progress of image builds, from any thread; None: the log.
        **overrides: Single settings, by their names in `Settings`.

    Raises:
        ConfigurationError, PolicyError: Settings, policy, approver or tools can't be used.
    """

    def __init__(
        self,
        policy: Policy | str | Path | None = None,
        *,
        approver: Approver = None,
        tools: Registry | ToolSet | None = None,
        engine: Engine | None = None,
        settings: Settings | None = None,
        on_line: Callable[[str], None] | None = None,
        **overrides: Any,
    ):
        self._source = as_source(policy)
        self.settings = settings or Settings.read(**overrides)
        self.tools = tools if isinstance(tools, Registry) else named_registry(tools or "rousseau")
        """The registry: `runner.tools.register(MyTool())`."""
        self._approver = checked(approver)
        self._engine = engine
        self._on_line = on_line
        self._stack = contextlib.AsyncExitStack()
        self._controller: Controller | None = None

    async def __aenter__(self) -> Self:
        self._controller = await self._stack.enter_async_context(
            build(
                self.settings,
                policy=self._source,
                approver=self._approver,
                tools=self.tools,
                engine=self._engine,
                on_line=self._on_line,
            )
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._controller = None
        await self._stack.__aexit__(kind, error, trace)

    @property
    def policy(self) -> Policy:
        """What decides the next call: a file's policy changes with the file."""
        return self._source.current

    @property
    def controller(self) -> Controller:
        """The spine, for interfaces that are built on the library.

        Raises:
            RuntimeError: The runner is not open.
        """
        if self._controller is None:
            raise RuntimeError("the runner is not open: use it in a `with` statement")
        return self._controller

    def options(
        self,
        *,
        workspace: str | Path | None = None,
        image: str | None = None,
        read_only: bool = False,
        runtime: str | None = None,
        carrier: str | None = None,
        timeout_s: float | None = None,
        idle_timeout_s: float | None = None,
        ttl_s: float | None = None,
        kept: bool = False,
        tenant: str = "",
        title: str = "",
        network: Network | None = None,
        users: bool = False,
        limits: Limits | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> SessionOptions:
        """What a session is opened with: what is given, and the settings for the rest."""
        settings = self.settings
        return SessionOptions(
            image=image or settings.image,
            workspace=None if workspace is None else Path(workspace),
            read_only=read_only,
            runtime=runtime or settings.runtime,
            carrier=carrier or settings.carrier,
            timeout_s=settings.timeout_s if timeout_s is None else timeout_s,
            idle_timeout_s=settings.idle_timeout_s if idle_timeout_s is None else idle_timeout_s,
            ttl_s=settings.ttl_s if ttl_s is None else ttl_s,
            kept=kept,
            tenant=tenant,
            title=title,
            network=network or settings.network,
            users=users,
            limits=limits or settings.limits,
            tmp_noexec=settings.tmp_noexec,
            selinux=settings.selinux,
            environment=dict(environment or {}),
        )

    async def open_session(self, **options: Any) -> AsyncSession:
        """Open a session; see `session` for the options."""
        chosen = self.options(**options)
        if chosen.workspace is not None and not chosen.read_only:
            self._keep_policy_out_of(chosen.workspace)
        lease = await self.controller.sessions.open(chosen)
        return AsyncSession(self.controller, lease)

    @contextlib.asynccontextmanager
    async def session(self, **options: Any) -> AsyncIterator[AsyncSession]:
        """A session for as long as the context lasts.

        Args:
            **options: As for `options`: `workspace` (a directory that is mounted at
                /workspace; None: an empty one, removed with the session), `image`,
                `read_only`, `runtime`, `carrier`, `timeout_s`, `idle_timeout_s`, `ttl_s`,
                `kept` (it outlives this process), `tenant`, `title`, `network`, `users` (calls
                may run as any user of the image, root included), `limits`, `environment`.

        Raises:
            WorkspaceError: The directory can't be mounted.
            ConfigurationError: The policy's file lies in the workspace, where calls can write.
            ImageUnusable: The image is missing, for another architecture, or has no /bin/sh.
            EngineUnavailable: Docker can't be reached.
            RunnerError: Another trouble; see `runner.errors`.
        """
        async with await self.open_session(**options) as session:
            yield session

    async def attach(self, session_id: str, *, wait_s: float = 0.0) -> AsyncSession:
        """Take over a kept session that another process opened.

        Args:
            session_id: Its id.
            wait_s: How long to wait, in seconds, while somebody else holds it.

        Raises:
            SessionNotFound, SessionEnded, SessionBusy: It can't be had.
        """
        found = self.controller.store.session(session_id)
        if found is not None and not found.read_only:
            self._keep_policy_out_of(Path(found.workspace))
        lease = await self.controller.sessions.adopt(session_id, wait_s=wait_s)
        return AsyncSession(self.controller, lease)

    def _keep_policy_out_of(self, workspace: Path) -> None:
        """See that no call can write the rules for the next one."""
        directory = workspace.expanduser().resolve()
        shipped = asset_dir("policies").resolve()
        for name in self._source.files:
            path = Path(name).resolve()
            if path.is_relative_to(directory) and not path.is_relative_to(shipped):
                raise ConfigurationError(
                    f"the policy {name} lies in the workspace {directory}, where calls could change"
                    " it: keep it elsewhere, or mount the workspace read-only"
                )

    async def close_session(self, session_id: str, *, wait_s: float = 0.0) -> None:
        """Close a session by its id.

        Raises:
            SessionNotFound, SessionEnded, SessionBusy: It can't be had.
        """
        await self.controller.sessions.finish(session_id, wait_s=wait_s)

    def sessions(self, *, include_ended: bool = False) -> list[SessionInfo]:
        """Sessions of this data directory, whoever holds them, oldest first."""
        return self.controller.store.sessions(include_ended=include_ended)

    async def prune(self) -> Swept:
        """End expired sessions and what dead processes left; see also `runner.app.sweep`."""
        return await self.controller.sessions.sweep()
