"""A sandbox client for OpenAI's Agents SDK: each of its sandboxes is a session.

What the SDK's tools ask for while an agent runs (commands, files) becomes calls of the session:
judged, limited and recorded. What the application itself asked for, which is the manifest's
entries at the start and the snapshot at the end, is the host's own doing: no policy is asked, and
it runs in the same container under the same limits.

It owns the translation of the SDK's sandbox interface. It decides nothing, and knows no Docker.
"""

import base64
import io
import posixpath
import secrets
import shlex
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, NoReturn

from runner.client import AsyncRunner, AsyncSession
from runner.errors import (
    ConfigurationError,
    RunnerError,
    SessionEnded,
    SessionNotFound,
)
from runner.integrations.common import failure_of, missing, require, write_whole
from runner.integrations.openai_agents import processes
from runner.integrations.openai_agents.processes import Processes
from runner.integrations.openai_agents.tools import exit_code, standard_error
from runner.model import SessionState, Status, ToolResult
from runner.sandbox import WORKSPACE
from runner.settings import Network

try:
    from agents.sandbox import Manifest
    from agents.sandbox.errors import (
        ErrorCode,
        ExecTimeoutError,
        ExecTransportError,
        WorkspaceArchiveReadError,
        WorkspaceArchiveWriteError,
        WorkspaceIOError,
        WorkspaceReadNotFoundError,
    )
    from agents.sandbox.materialization import MaterializationResult
    from agents.sandbox.session import (
        BaseSandboxClient,
        BaseSandboxClientOptions,
        BaseSandboxSession,
        Instrumentation,
        SandboxSession,
        SandboxSessionState,
    )
    from agents.sandbox.session.pty_types import PtyExecUpdate
    from agents.sandbox.session.tar_workspace import shell_tar_exclude_args
    from agents.sandbox.session.workspace_payloads import coerce_write_payload
    from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
    from agents.sandbox.types import ExecResult, User
except ImportError as error:
    raise missing("openai-agents", error) from error

TOOLS = ("bash", "read", "write", *processes.TOOLS)
"""Ours, that its sandboxes use."""
SNAPSHOT_LIMIT_BYTES = 1024**3
"""The largest snapshot of a workspace that is taken: it passes through the host's memory."""
SET_UP_S = 600.0
"""How long one command of the set-up or of a snapshot may take, unless the SDK says otherwise."""


class DeniedByPolicy(WorkspaceIOError):
    """The policy denied a file to the agent. The message is its words, for the model."""


class RousseauSandboxClientOptions(BaseSandboxClientOptions):
    """What a sandbox is opened with. None: as the runner's settings say."""

    type: Literal["rousseau"] = "rousseau"
    image: str | None = None
    """Any Linux image that has a /bin/sh."""
    workspace: str | None = None
    """The directory of the host that is mounted at /workspace; None: an empty one of its own."""
    read_only: bool = False
    """Mount the workspace read-only."""
    network: Network | None = None
    """What the sandbox may reach."""
    timeout_s: float | None = None
    """Time limit in seconds of a command that has none of its own."""
    idle_timeout_s: float | None = None
    """After so many seconds without a call the session ends."""
    ttl_s: float | None = None
    """After so many seconds it ends in any case."""
    users: bool = False
    """Commands may run as any user of the image, as `run_as` says."""
    tenant: str = ""
    """Whom the session belongs to, for the record."""
    title: str = ""
    """What the session is called, for people."""


class RousseauSandboxSessionState(SandboxSessionState):
    """What it takes to come back to a sandbox. It holds no path of the host."""

    type: Literal["rousseau"] = "rousseau"
    runner_session_id: str
    """The session."""


_set_up: ContextVar[bool] = ContextVar("set_up", default=False)
"""Whether the application's own set-up is under way, in this task and those it started."""


@contextmanager
def _setting_up() -> Iterator[None]:
    before = _set_up.set(True)
    try:
        yield
    finally:
        _set_up.reset(before)


class RousseauSandboxSession(BaseSandboxSession):
    """One sandbox. Made by `RousseauSandboxClient`.

    There is no terminal in it, and no port of it can be reached.
    """

    state: RousseauSandboxSessionState

    def __init__(
        self,
        state: RousseauSandboxSessionState,
        session: AsyncSession,
        runner: AsyncRunner,
        attach: Callable[[RousseauSandboxSessionState], Awaitable[AsyncSession]],
    ):
        self.state = state
        self._open: AsyncSession | None = session
        self._runner = runner
        self._attach = attach
        self._processes = Processes(self._call)

    @property
    def session(self) -> AsyncSession:
        """The session that it is.

        Raises:
            ConfigurationError: It was shut down.
        """
        if self._open is None:
            raise ConfigurationError("the sandbox was shut down: resume it by its state")
        return self._open

    # Life.

    async def _ensure_backend_started(self) -> None:
        if self._open is None:
            self._open = await self._attach(self.state)
            self._set_start_state_preserved(True)

    async def start(self) -> None:
        """Put the manifest or the snapshot into the workspace. The policy is not asked."""
        with _setting_up():
            await super().start()

    async def stop(self) -> None:
        """Take a snapshot, where one is wanted. The policy is not asked."""
        with _setting_up():
            await super().stop()

    async def apply_manifest(self, *, only_ephemeral: bool = False) -> MaterializationResult:
        """Put the manifest into the workspace. The policy is not asked."""
        with _setting_up():
            return await super().apply_manifest(only_ephemeral=only_ephemeral)

    async def running(self) -> bool:
        """Whether the session is open, and held here."""
        if self._open is None:
            return False
        found = self._runner.controller.store.session(self._open.id)
        return found is not None and found.state is SessionState.OPEN

    async def _shutdown_backend(self) -> None:
        # The session is a kept one: it goes on without us, until it is resumed, deleted, or
        # its time is over.
        session, self._open = self._open, None
        if session is not None:
            await session.close()

    # Commands.

    async def exec(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
    ) -> ExecResult:
        """Run a command.

        `shell=True` means `/bin/sh -c`, without a login shell's profile, so that the policy sees
        the script itself. A denied command has the exit status 126, and the policy's words on
        standard error.

        Raises:
            ExecTimeoutError: It ran out of time, and was killed with all that it started.
            ExecTransportError: The container was lost under it.
        """
        script, words = self._script(command, shell)
        name = user.name if isinstance(user, User) else user
        if _set_up.get():
            return await self._run_own(words, timeout, name)
        return await self._call_bash(script, timeout, name)

    def _script(
        self, command: Sequence[str | Path], shell: bool | list[str]
    ) -> tuple[str, list[str]]:
        """A command as a line for /bin/sh, and as a list of words."""
        words = [str(word) for word in command]
        if shell is True or shell == ["sh", "-c"]:
            script = words[0] if len(words) == 1 else shlex.join(words)
            return script, ["/bin/sh", "-c", script]
        words = self._prepare_exec_command(*words, shell=shell, user=None)
        return shlex.join(words), words

    async def _exec_internal(
        self, *command: str | Path, timeout: float | None = None
    ) -> ExecResult:
        return await self.exec(*command, timeout=timeout, shell=False)

    async def _call(
        self, tool: str, arguments: Mapping[str, Any], timeout_s: float | None = None
    ) -> ToolResult:
        try:
            return await self.session.call(tool, arguments, timeout_s=timeout_s)
        except RunnerError as error:
            raise ExecTransportError(command=(tool,), message=str(error), cause=error) from error

    async def _call_bash(self, script: str, timeout: float | None, user: str | None) -> ExecResult:
        arguments: dict[str, Any] = {"command": script, "separate_stderr": True}
        if user is not None:
            arguments["user"] = user
        limit_s = None if timeout is None else min(timeout, self._runner.settings.max_timeout_s)
        result = await self._call("bash", arguments, limit_s)
        if result.status is Status.TIMED_OUT:
            raise ExecTimeoutError(
                command=(script,),
                timeout_s=result.timeout_s,
                context={"stdout": result.output, "stderr": standard_error(result)},
            )
        return ExecResult(
            stdout=result.output.encode(),
            stderr=standard_error(result).encode(),
            exit_code=exit_code(result),
        )

    async def _run_own(
        self, words: Sequence[str], timeout: float | None, user: str | None
    ) -> ExecResult:
        try:
            sandbox = await self.session.sandbox()
            result = await sandbox.run(
                words, deadline_s=timeout or SET_UP_S, errors_apart=True, user=user
            )
        except RunnerError as error:
            raise ExecTransportError(command=words, message=str(error), cause=error) from error
        if result.ended == "timed_out":
            raise ExecTimeoutError(command=words, timeout_s=timeout or SET_UP_S)
        code = 128 + result.signal if result.signal else result.exit_code
        return ExecResult(
            stdout=result.output,
            stderr=result.errors or b"",
            exit_code=137 if code is None else code,
        )

    # Commands that outlive their call.

    def supports_pty(self) -> bool:
        """Whether commands may outlive their call: where the policy lets them be looked after.

        Where it does not, a command is killed when its `yield_time_ms` are over.
        """
        return processes.allowed(self._runner.policy)

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Start a command. There is no terminal: `tty` gives it an input that can be written to.

        Raises:
            ExecTransportError: It is to run as another user, which takes `exec`; or the container
                was lost.
        """
        if user is not None:
            raise ExecTransportError(
                command=command,
                message="a command that outlives its call can't run as another user",
                context={"retry_safe": True},  # which has the SDK take `exec`
            )
        script, _ = self._script(command, shell)
        return await self._processes.start(
            script, has_input=tty, wait_s=yield_time_s, max_tokens=max_output_tokens
        )

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Write to a command, or with an empty text only ask; see `Processes.write`.

        Raises:
            PtySessionNotFoundError: There is no such command, or its end was told already.
            RuntimeError: It was started without `tty`.
            ExecTransportError: The container was lost.
        """
        return await self._processes.write(
            session_id, chars, wait_s=yield_time_s, max_tokens=max_output_tokens
        )

    async def pty_terminate_all(self) -> None:
        """Kill what still runs."""
        with suppress(ExecTransportError):  # then the container is lost, and they are with it
            await self._processes.end_all()

    # Files.

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """Read a file.

        Raises:
            WorkspaceReadNotFoundError: There is none.
            DeniedByPolicy: The policy said no.
            WorkspaceIOError: It can't be read.
        """
        if user is not None:
            await self._check_read_with_exec(path, user=user)
        target = (await self._validate_path_access(path)).as_posix()
        if _set_up.get():
            content = await self.session.download(target, limit_bytes=SNAPSHOT_LIMIT_BYTES)
            return io.BytesIO(content)
        result = await self.session.call("read", {"path": target, "encoding": "base64"})
        if result.is_error:
            if failure_of(result) == "not_found":
                raise WorkspaceReadNotFoundError(path=path)
            _refuse(result, path, ErrorCode.WORKSPACE_ARCHIVE_READ_ERROR, "read")
        return io.BytesIO(base64.b64decode(result.output))

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Write a file, with the directories above it.

        Raises:
            DeniedByPolicy: The policy said no.
            WorkspaceIOError: It can't be written.
        """
        if user is not None:
            await self._check_write_with_exec(path, user=user)
        target = (await self._validate_path_access(path, for_write=True)).as_posix()
        content = coerce_write_payload(path=path, data=data).stream.read()
        if _set_up.get():
            await self.session.upload(target, content)
            return
        result = await write_whole(self._call, target, content)
        if result.is_error:
            _refuse(result, path, ErrorCode.WORKSPACE_ARCHIVE_WRITE_ERROR, "write")

    async def persist_workspace(self) -> io.IOBase:
        """The workspace as a tar archive.

        Raises:
            WorkspaceArchiveReadError: It could not be made, or is larger than
                `SNAPSHOT_LIMIT_BYTES`.
        """
        root = self._workspace_root_path().as_posix()
        name = f".rousseau-{secrets.token_hex(8)}.tar"
        archive = posixpath.join(root, name)
        skipped = shell_tar_exclude_args([Path(name), *self._persist_workspace_skip_relpaths()])
        pack = f"tar -c -f {shlex.quote(archive)} -C {shlex.quote(root)} {' '.join(skipped)} ."
        with _setting_up():
            try:
                packed = await self.exec(pack)
                if packed.exit_code != 0:
                    context = {"stderr": packed.stderr.decode(errors="replace")}
                    raise WorkspaceArchiveReadError(path=Path(root), context=context)
                content = await self.session.download(archive, limit_bytes=SNAPSHOT_LIMIT_BYTES)
            except RunnerError as error:
                raise WorkspaceArchiveReadError(path=Path(root), cause=error) from error
            finally:
                await self._remove_own(archive)
        return io.BytesIO(content)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Put a tar archive's content into the workspace. It is unpacked in the container.

        Raises:
            WorkspaceArchiveWriteError: It could not be.
        """
        root = self._workspace_root_path().as_posix()
        archive = posixpath.join(root, f".rousseau-{secrets.token_hex(8)}.tar")
        content = coerce_write_payload(path=Path(root), data=data).stream.read()
        with _setting_up():
            try:
                await self.session.upload(archive, content)
                unpack = f"tar -x -f {shlex.quote(archive)} -C {shlex.quote(root)}"
                unpacked = await self.exec(unpack)
                if unpacked.exit_code != 0:
                    context = {"stderr": unpacked.stderr.decode(errors="replace")}
                    raise WorkspaceArchiveWriteError(path=Path(root), context=context)
            except RunnerError as error:
                raise WorkspaceArchiveWriteError(path=Path(root), cause=error) from error
            finally:
                await self._remove_own(archive)

    async def _remove_own(self, path: str) -> None:
        """Remove a file of ours. Where that fails, the workspace's trouble has its own error."""
        with suppress(ExecTransportError, ExecTimeoutError):
            await self.exec("rm", "-f", "--", path)


def _refuse(
    result: ToolResult, path: Path, code: ErrorCode, operation: Literal["read", "write"]
) -> NoReturn:
    kind = DeniedByPolicy if result.status is Status.DENIED else WorkspaceIOError
    raise kind(result.text, code, operation, {"path": str(path), "call_id": result.call_id})


class RousseauSandboxClient(BaseSandboxClient[RousseauSandboxClientOptions | None]):
    """Makes sandboxes: `SandboxRunConfig(client=RousseauSandboxClient(runner))`.

    A sandbox is a kept session: `shutdown` lets go of it, `resume` comes back to it, in another
    process too, and `delete` closes it. One that nobody comes back to ends with its idle time.

    Args:
        runner: An open runner with the extended tools. It stays the caller's.
        options: For sandboxes that are made without, and for those that replace a lost one.
        instrumentation: The SDK's own.
    """

    backend_id = "rousseau"
    supports_default_options = True

    def __init__(
        self,
        runner: AsyncRunner,
        options: RousseauSandboxClientOptions | None = None,
        *,
        instrumentation: Instrumentation | None = None,
    ):
        self._runner = runner
        self._options = options or RousseauSandboxClientOptions()
        self._instrumentation = instrumentation

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: RousseauSandboxClientOptions | None = None,
    ) -> SandboxSession:
        """Open a session.

        Raises:
            ConfigurationError: The runner lacks the extended tools, or the manifest has a root
                outside of /workspace, or grants paths of the host.
            RunnerError: The session could not be opened.
        """
        manifest = self._validate_manifest_for_create(manifest or Manifest())
        session = await self._new(manifest, options or self._options)
        state = RousseauSandboxSessionState(
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, session.id),
            runner_session_id=session.id,
        )
        return self._wrapped(state, session)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Come back to a session; where it is gone, open another, to be filled by its snapshot.

        Raises:
            TypeError: It is another client's state.
            SessionBusy: Somebody else holds the session.
            RunnerError: The session could not be opened.
        """
        if not isinstance(state, RousseauSandboxSessionState):
            raise TypeError(f"not a state of a rousseau sandbox: {type(state).__name__}")
        state.assert_path_grants_rebound()
        try:
            session = await self._attach(state)
        except (SessionNotFound, SessionEnded):
            session = await self._new(state.manifest, self._options)
            state.runner_session_id = session.id
            state.workspace_root_ready = False
            return self._wrapped(state, session)
        return self._wrapped(state, session, preserved=True)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Close the session, and remove its workspace unless that is a directory of the host.

        Raises:
            TypeError: It is another client's session.
        """
        inner = session._inner
        if not isinstance(inner, RousseauSandboxSession):
            raise TypeError(f"not a rousseau sandbox: {type(inner).__name__}")
        await inner.shutdown()
        with suppress(SessionNotFound, SessionEnded):
            await self._runner.close_session(inner.state.runner_session_id)
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """The state that `serialize_session_state` made this of."""
        return self._deserialize_session_state_payload(payload, RousseauSandboxSessionState)

    async def _attach(self, state: RousseauSandboxSessionState) -> AsyncSession:
        return await self._runner.attach(state.runner_session_id)

    async def _new(self, manifest: Manifest, options: RousseauSandboxClientOptions) -> AsyncSession:
        root = posixpath.normpath(manifest.root)
        if root != WORKSPACE and not root.startswith(f"{WORKSPACE}/"):
            raise ConfigurationError(f"the manifest's root is {root}, not in {WORKSPACE}")
        if any(grant.host_path is not None for grant in manifest.extra_path_grants):
            raise ConfigurationError("path grants of the host's are not supported: use `workspace`")
        chosen = options.model_dump()
        del chosen["type"]  # the SDK's base class puts it there whatever is excluded
        session = await self._runner.open_session(
            kept=True, environment=await manifest.environment.resolve(), **chosen
        )
        try:
            require(session, TOOLS)
        except BaseException:
            await session.close()
            await self._runner.close_session(session.id)
            raise
        return session

    def _wrapped(
        self,
        state: RousseauSandboxSessionState,
        session: AsyncSession,
        *,
        preserved: bool = False,
    ) -> SandboxSession:
        inner = RousseauSandboxSession(state, session, self._runner, self._attach)
        inner._set_start_state_preserved(preserved)
        return self._wrap_session(inner, instrumentation=self._instrumentation)
