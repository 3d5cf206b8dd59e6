"""A sandbox of Inspect: one session of the runner for each sample.

Owns the translation of Inspect's contract for sandboxes into calls and transfers of a session.
What is executed goes through the tool `bash`, so that policy and record hold for it. Files go
the host's own way, whole and of any size, recorded and not judged: Inspect puts and fetches them
for samples and scorers.
"""

import base64
import errno
import os
import shlex
import uuid
from collections.abc import Callable
from typing import Any, Literal, NoReturn, overload

from inspect_ai._util.error import PrerequisiteError
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel

from runner.answers import RequestFailed
from runner.client import AsyncRunner, AsyncSession
from runner.errors import RunnerError, SessionBusy, TransferError
from runner.integrations.common import in_workspace
from runner.integrations.inspect.config import CONFIG_FILE, DAY_S, RousseauConfig
from runner.integrations.inspect.runners import OUTPUT_LIMIT_BYTES, TENANT, open_session, runners
from runner.logs import log
from runner.model import Status, ToolResult, Verdict
from runner.sandbox import WORKSPACE

COMMAND_LIMIT_BYTES = 100_000
"""Linux takes no argument of more than 128 KiB. A longer command is put into a file."""
INPUT_LIMIT_BYTES = 1024**2
"""Of a command's input, this much goes with the call; more is put into a file."""
CLEANING_S = 10.0
"""How long the removal of such a file may take."""
CANNOT_EXECUTE = 126
"""A shell's exit status for a program that is there and can't be started."""


@sandboxenv(name="rousseau")
class RousseauSandboxEnvironment(SandboxEnvironment):
    """One session. Inspect makes and closes it by `sample_init` and `sample_cleanup`."""

    def __init__(self, runner: AsyncRunner, session: AsyncSession, config: RousseauConfig):
        super().__init__()
        self._runner = runner
        self._session = session
        self._config = config

    @property
    def session(self) -> AsyncSession:
        """The session itself, for solvers and scorers that want more of it."""
        return self._session

    # What a sandbox does.

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a program, as the policy allows.

        Args:
            cmd: The program, looked up in the container's `PATH`, and its arguments. The policy
                and the record see `exec` and these, as a shell takes them.
            input: What it reads from its standard input; None: nothing.
            cwd: Where it runs; None, or relative to: the workspace.
            env: Variables for it.
            user: Who it runs as; None: the session's user.
            timeout: Its time limit in seconds; None, or more than a day: a day. Nothing of the
                program and what it started is left then.
            timeout_retry: Not used: a time limit means what it says.
            concurrency: Not used: nothing runs on the host.

        Returns:
            Its exit status and output, where bytes that are no UTF-8 are U+FFFD. A program that
            is not there, or a directory, is a failed result, as a shell would have it.

        Raises:
            TimeoutError: The time limit was reached; `truncated_output` is what it wrote.
            PermissionError: It may not be executed, or the policy denies it.
            OutputLimitExceededError: It wrote more to one of its streams than Inspect's limit.
            SandboxUserUnsupportedError: The configuration does not say `users=True`.
            SandboxUnavailableError: The container was lost, or could not be reached.
            ValueError: What was given can't be executed: no program, a NUL in it.
        """
        if not cmd:
            raise ValueError("there is nothing to execute: `cmd` is empty")
        if user is not None and not self._config.users:
            raise SandboxUserUnsupportedError(
                f"this sandbox runs nothing as another user, such as {user!r}:"
                " configure it with `users=True`"
            )
        command = "exec " + shlex.join(cmd)
        stdin = input.encode() if isinstance(input, str) else input
        arguments: dict[str, Any] = {
            "cwd": in_workspace(cwd or ""),
            "env": dict(env or {}),
            "separate_stderr": True,
        }
        if user is not None:
            arguments["user"] = user
        # What is too large for a call goes by files, whose owners are to remove them.
        files: dict[str, str | None] = {}
        output: str | None = None
        is_long = len(os.fsencode(command)) > COMMAND_LIMIT_BYTES
        is_fed = stdin is not None and len(stdin) > INPUT_LIMIT_BYTES
        if is_long or is_fed:
            self._judge(command, arguments, stdin or b"", cmd[0])
        try:
            if is_long:
                files[script := _some_file()] = None
                await self.write_file(script, command)
                command = f"exec /bin/sh {script}"
            if stdin is not None and is_fed:
                files[source := _some_file()] = None
                await self.write_file(source, stdin)
                command += f" < {source}"
            elif stdin is not None:
                arguments["stdin"] = base64.b64encode(stdin).decode()
                arguments["stdin_encoding"] = "base64"
            if SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE > OUTPUT_LIMIT_BYTES:
                files[output := _some_file()] = user
                command += f" > {output}"
            try:
                result = await self._session.call(
                    "bash",
                    {"command": command, **arguments},
                    timeout_s=min(timeout, DAY_S) if timeout else None,
                )
            except RunnerError as error:
                raise SandboxUnavailableError(str(error)) from error
            executed = _executed(result, cmd[0], timeout)
            if output is not None:
                executed.stdout = await self._output(output)
            return executed
        finally:
            for file, owner in files.items():
                await self._remove(file, owner)

    def _judge(self, command: str, arguments: dict[str, Any], stdin: bytes, program: str) -> None:
        """Ask the policy about all that is to run, since the call will only name files with it.

        Raises:
            PermissionError: It does not allow it, or wants a person asked: of what does not fit
                into a call, nobody can be.
        """
        whole = {"command": command, **arguments, "stdin": stdin.decode(errors="replace")}
        decision = self._runner.policy.decide("bash", whole)
        if decision.verdict is not Verdict.ALLOW:
            reason = decision.reason or "the policy has a person asked, and this is too long for it"
            raise PermissionError(errno.EACCES, f"bash: {reason}", program)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Make a file's content `contents`; directories on the way are made.

        Args:
            file: Its path; a relative one is looked up in the workspace.
            contents: Text, which is stored as UTF-8, or bytes.

        Raises:
            PermissionError: The session's user may not write it, or the place is read-only.
            IsADirectoryError: It is a directory.
            FileNotFoundError: The path leads through something that is no directory.
            OSError: There is no room, or it is no regular file.
            SandboxUnavailableError: The container was lost, or could not be reached.
        """
        content = contents.encode() if isinstance(contents, str) else contents
        try:
            await self._session.upload(in_workspace(file), content)
        except TransferError as error:
            _raise(error, file)
        except RunnerError as error:
            raise SandboxUnavailableError(str(error)) from error

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """The content of a file.

        Args:
            file: Its path; a relative one is looked up in the workspace.
            text: As text, whose line ends are as they are in the file; else as bytes.

        Raises:
            FileNotFoundError: There is none.
            PermissionError: The session's user may not read it.
            IsADirectoryError: It is a directory.
            UnicodeDecodeError: It is wanted as text and is not UTF-8.
            OutputLimitExceededError: It is larger than Inspect's limit, 100 MiB by default.
            OSError: It is no regular file, or can't be read for another reason.
            SandboxUnavailableError: The container was lost, or could not be reached.
        """
        limit_bytes = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            content = await self._session.download(in_workspace(file), limit_bytes=limit_bytes)
        except TransferError as error:
            if error.failure == "file_too_large":
                raise OutputLimitExceededError(
                    limit_str=SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR,
                    truncated_output=None,
                ) from error
            _raise(error, file)
        except RunnerError as error:
            raise SandboxUnavailableError(str(error)) from error
        return content.decode() if text else content

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """How a person gets a shell in the container; neither policy nor record hold there.

        Raises:
            ConnectionError: The container can't be reached.
        """
        try:
            await self._session.sandbox()
        except RunnerError as error:
            raise ConnectionError(str(error)) from error
        name = f"rousseau-runner-{self._session.id}"
        as_user = ["--user", user] if user else []
        words = ["docker", "exec", "-it", *as_user, "--workdir", WORKSPACE, name, "/bin/sh"]
        return SandboxConnection(type="rousseau", command=shlex.join(words), container=name)

    async def _output(self, file: str) -> str:
        """The output that a command has put into a file, since Inspect wants much of it."""
        limit_bytes = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        try:
            content = await self._session.download(file, limit_bytes=limit_bytes)
        except TransferError as error:
            if error.failure == "not_found":  # the shell did not get so far
                return ""
            raise _over_limit("") from error
        except RunnerError as error:
            raise SandboxUnavailableError(str(error)) from error
        return content.decode(errors="replace")

    async def _remove(self, file: str, owner: str | None) -> None:
        """Remove a file, as the host: it was no call's doing that it is there."""
        try:
            sandbox = await self._session.sandbox()
            await sandbox.run(["/bin/rm", "-f", file], deadline_s=CLEANING_S, user=owner)
        except (RunnerError, RequestFailed):
            # The container is gone, and the file with it; or it stays until the session ends.
            pass

    # The life of sandboxes.

    @classmethod
    def default_concurrency(cls) -> int | None:
        """As many sandboxes at once as are useful: two for each processor that is ours."""
        return 2 * len(os.sched_getaffinity(0))

    @classmethod
    def config_files(cls) -> list[str]:
        """What is looked for in a task's directory."""
        return [CONFIG_FILE]

    @classmethod
    def is_docker_compatible(cls) -> bool:
        """Not: images for Docker's sandboxes count on root, and on a root filesystem to write."""
        return False

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """A configuration from a log."""
        return RousseauConfig.model_validate(config)

    @classmethod
    async def task_init(cls, task_name: str, config: BaseModel | str | None) -> None:
        """See that sandboxes of this configuration can be opened, by opening one.

        This builds the images where that is due, before samples wait for them.

        Raises:
            PrerequisiteError: Docker, the policy, the image or the configuration can't be used.
        """
        chosen = RousseauConfig.resolve(config)
        runner = await runners().acquire(chosen)
        try:
            await _end(runner, await open_session(runner, chosen, title="trial"))
        except BaseException as error:
            await runners().release(chosen)
            if isinstance(error, RunnerError):
                raise PrerequisiteError(f"no sandbox can be opened: {error}") from error
            raise

    @classmethod
    async def sample_init(
        cls, task_name: str, config: BaseModel | str | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Open a sandbox, the only one of its sample: `default`.

        Raises:
            PrerequisiteError: The configuration or the policy can't be used.
            SandboxUnavailableError: No container could be had.
        """
        chosen = RousseauConfig.resolve(config)
        runner = await runners().acquire(chosen)
        title = f"{task_name} {metadata.get('__sample_id__', '')}".strip()
        try:
            session = await open_session(runner, chosen, title)
        except BaseException as error:
            await runners().release(chosen)
            if isinstance(error, RunnerError):
                raise SandboxUnavailableError(str(error)) from error
            raise
        return {"default": cls(runner, session, chosen)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: BaseModel | str | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Close a sample's sandbox."""
        for environment in environments.values():
            mine = environment.as_type(cls)
            try:
                await _end(mine._runner, mine._session)
            finally:
                await runners().release(mine._config)

    @classmethod
    async def task_cleanup(
        cls, task_name: str, config: BaseModel | str | None, cleanup: bool
    ) -> None:
        """Let go of what `task_init` took; without `cleanup`, kept sandboxes go on."""
        await runners().release(RousseauConfig.resolve(config), at_once=not cleanup)

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Close the sandbox with this id, or all that evaluations have left.

        Those that a running evaluation holds are left to it.

        Raises:
            PrerequisiteError: Docker can't be reached; or the one that is asked for is held.
        """
        try:
            async with AsyncRunner() as runner:
                await runner.prune()
                for session in runner.sessions():
                    if session.tenant == TENANT and id in (None, session.id):
                        await _finish(runner, session.id, is_asked_for=id is not None)
        except RunnerError as error:
            raise PrerequisiteError(f"no sandbox can be closed: {error}") from error


async def _finish(runner: AsyncRunner, session_id: str, *, is_asked_for: bool) -> None:
    try:
        await runner.close_session(session_id)
    except SessionBusy as error:
        if is_asked_for:
            raise
        log.info("inspect.cleanup.left", session=session_id, why=str(error))


async def _end(runner: AsyncRunner, session: AsyncSession) -> None:
    await session.close()
    if session.info.kept:  # to close it was to let go of it
        await runner.close_session(session.id)


def _executed(result: ToolResult, program: str, timeout: int | None) -> ExecResult[str]:
    """What Inspect is told of a call of `bash`."""
    errors = str(result.details.get("stderr", ""))
    match result.status:
        case Status.OK | Status.FAILED | Status.OOM_KILLED:
            pass
        case Status.TIMED_OUT:
            late = TimeoutError(f"Command timed out after {timeout or result.timeout_s} seconds")
            late.truncated_output = result.output + errors  # type: ignore[attr-defined]
            raise late
        case Status.DENIED:
            raise PermissionError(errno.EACCES, result.error or "denied", program)
        case Status.INVALID:
            raise ValueError(result.error)
        case Status.CANCELLED | Status.LOST:
            raise SandboxUnavailableError(result.error or str(result.status))
    limit_bytes = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
    is_cut = result.truncated is not None or "stderr_omitted_bytes" in result.details
    if is_cut or max(map(_size, (result.output, errors))) > limit_bytes:
        raise _over_limit(_tail(result.output, limit_bytes) + _tail(errors, limit_bytes))
    if result.exit_code is None:
        # The shell itself was not started: no such directory, or no such user.
        return ExecResult(False, CANNOT_EXECUTE, result.output, result.error or "")
    if result.exit_code == CANNOT_EXECUTE and _says_denied(errors, program):
        raise PermissionError(errno.EACCES, errors.strip(), program)
    if result.status is Status.OOM_KILLED:
        errors = f"{errors.rstrip()}\n{result.error}".lstrip()
    return ExecResult(result.exit_code == 0, result.exit_code, result.output, errors)


def _some_file() -> str:
    """A name in the container that nobody there can know."""
    return f"/tmp/.inspect-{uuid.uuid4().hex}"  # noqa: S108


def _over_limit(end: str) -> OutputLimitExceededError:
    return OutputLimitExceededError(
        limit_str=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, truncated_output=end
    )


def _says_denied(errors: str, program: str) -> bool:
    """Whether it is the shell that says so, of the program itself, and nobody says more.

    A program that was started and then fails in such a way has usually another shell to say it.
    """
    lines = errors.splitlines()
    return bool(lines) and all(
        line.startswith("/bin/sh: ") and program in line and line.endswith("Permission denied")
        for line in lines
    )


def _size(text: str) -> int:
    return len(text.encode())


def _tail(text: str, limit_bytes: int) -> str:
    return text.encode()[-limit_bytes:].decode(errors="ignore")


def _raise(error: TransferError, file: str) -> NoReturn:
    """Raise what Inspect expects where a file can't be put or had."""
    kind, number = _ERRORS.get(error.failure, (OSError, errno.EIO))
    raise kind(number, os.strerror(number).lower(), file) from error


_ERRORS: dict[str, tuple[Callable[..., OSError], int]] = {
    "not_found": (FileNotFoundError, errno.ENOENT),
    # No file could be there either, and only some errors are for the model to see.
    "not_directory": (FileNotFoundError, errno.ENOENT),
    "name_too_long": (FileNotFoundError, errno.ENOENT),
    "link_loop": (FileNotFoundError, errno.ENOENT),
    "is_directory": (IsADirectoryError, errno.EISDIR),
    "permission_denied": (PermissionError, errno.EACCES),
    "read_only": (PermissionError, errno.EROFS),
    "not_regular": (OSError, errno.EINVAL),
    "no_space": (OSError, errno.ENOSPC),
    "file_too_large": (OSError, errno.EFBIG),
}
