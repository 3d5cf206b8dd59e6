"""pydantic-ai: a session's tools as a toolset, and a session as the workspace of a run.

It owns how our definitions and results look to pydantic-ai. It decides nothing: what the policy
asks a person about goes to the runner's own approver while the call waits. pydantic-ai's
approvals can be laid over the toolset (`toolset.approval_required(…)`); then both have to say yes.
"""

import base64
import contextlib
import posixpath
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from pydantic_core import SchemaValidator, core_schema

from runner.client import AsyncSession
from runner.errors import RunnerError, SandboxLost, SessionEnded, SessionNotFound
from runner.integrations.common import definitions, failure_of, missing, require, write_whole
from runner.model import Status, ToolResult
from runner.sandbox import WORKSPACE
from runner.tools.base import effects

try:
    from pydantic_ai import RunContext, ToolDefinition
    from pydantic_ai.exceptions import ToolFailed
    from pydantic_ai.messages import BinaryContent
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
    from pydantic_ai.workspaces import (
        CommandResult,
        FileEntry,
        WorkspaceCommand,
        WorkspaceError,
        WorkspaceOutputLimitError,
        WorkspaceRef,
        WorkspaceTimeoutError,
        WorkspaceUnavailableError,
    )
except ImportError as error:
    raise missing("pydantic-ai", error) from error

__all__ = ["DeniedByPolicy", "SessionToolset", "SessionWorkspace"]

Deps = TypeVar("Deps")

_ANY_OBJECT = SchemaValidator(core_schema.dict_schema(keys_schema=core_schema.str_schema()))
"""Our own decoding is the strict one; its words are better for the model, too."""


class SessionToolset(AbstractToolset[Deps]):
    """The tools of a session, for `Agent(toolsets=[…])`.

    The session stays the caller's: opening and closing it is no part of an agent's run.

    Args:
        session: Where the calls run.
        names: Which of its tools; None: all that its runner has.
        id: The toolset's own, where an agent has several of them.

    Raises:
        ConfigurationError: The runner lacks one of the tools named.
    """

    def __init__(
        self,
        session: AsyncSession,
        *,
        names: Collection[str] | None = None,
        id: str | None = "rousseau_runner",
    ):
        require(session, names or ())
        self._session = session
        self._names = None if names is None else frozenset(names)
        self._id = id

    @property
    def id(self) -> str | None:
        """The toolset's id."""
        return self._id

    async def get_tools(self, ctx: RunContext[Deps]) -> dict[str, ToolsetTool[Deps]]:
        """Its tools, by name."""
        return {
            definition["name"]: ToolsetTool(
                toolset=self,
                tool_def=self._definition(definition),
                max_retries=ctx.max_retries,
                args_validator=_ANY_OBJECT,
            )
            for definition in definitions(self._session, self._names)
        }

    def _definition(self, definition: dict[str, Any]) -> ToolDefinition:
        tool = self._session.tools.get(definition["name"])
        assert tool is not None, "it is from this registry"
        return ToolDefinition(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=definition["input_schema"],
            # Our schemas have optional properties, which OpenAI's strict mode does not know.
            strict=False,
            metadata={"read_only": effects(tool).read_only},
        )

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[Deps],
        tool: ToolsetTool[Deps],
    ) -> Any:
        """Call one.

        Raises:
            ToolFailed: It did not do what it was asked: the words are for the model, and the
                agent's run goes on.
        """
        try:
            result = await self._session.call(name, tool_args)
        except RunnerError as error:
            raise ToolFailed(f"{name}: {error}") from error
        if result.is_error:
            raise ToolFailed(result.text)
        return shown(result)


def shown(result: ToolResult) -> Any:
    """What the model is shown of a result: text, and with it what is no text."""
    if not result.blocks:
        return result.text
    files = [BinaryContent(block.data, media_type=block.media_type) for block in result.blocks]
    return [result.text, *files] if result.text else files


class DeniedByPolicy(WorkspaceError, PermissionError):
    """The policy denied it. The text is the policy's, for the model."""


class SessionWorkspace:
    """A session as a backend for workspaces: `agent.run(…, workspace=SessionWorkspace(session))`.

    Commands are calls of `bash`; files are read, written and listed by `read`, `write` and
    `list`, and the rest is done by one plain command each (`stat`, `mkdir`, `rm`), so that a
    policy with rules for commands can tell what they do. The session stays the caller's, and
    lives on after a run.

    Args:
        session: Where all that happens.

    Raises:
        ConfigurationError: The runner lacks the extended tools.
    """

    def __init__(self, session: AsyncSession):
        require(session, ("bash", "read", "write", "list"))
        self._session = session

    @property
    def ref(self) -> WorkspaceRef | None:
        """The session, by its id."""
        return WorkspaceRef(provider="rousseau-runner", id=self._session.id)

    async def working_dir(self) -> str:
        """Where commands start."""
        return WORKSPACE

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Run a command.

        Args:
            command: A program and its arguments, or a line for /bin/sh with `shell=True`.
            shell: Which of the two it is.
            env: Variables, on top of the session's.
            timeout: Seconds until it is killed, with all that it started; None: the session's.

        Raises:
            TypeError: The command is not what `shell` says.
            ValueError: The time limit is none.
            DeniedByPolicy: The policy said no.
            WorkspaceTimeoutError: Its time was over.
            WorkspaceOutputLimitError: It wrote more than comes back of a call.
            WorkspaceUnavailableError: The session is over, or its container was lost.
            WorkspaceError: It could not be run.
        """
        if isinstance(command, str) is not shell:
            raise TypeError("a command is a text with shell=True, and a list of words without")
        if timeout is not None and not 0 < timeout < float("inf"):
            raise ValueError("timeout must be a positive finite number or None")
        line = command if isinstance(command, str) else shlex.join(command)
        arguments: dict[str, Any] = {"command": line, "separate_stderr": True}
        if env:
            arguments["env"] = dict(env)
        return _completed(await self._call("bash", arguments, timeout))

    async def read_bytes(self, path: str) -> bytes:
        """A file's content.

        Raises:
            OSError: As Python's own, by what is wrong.
            DeniedByPolicy, WorkspaceUnavailableError: As for `run`.
        """
        result = await self._call("read", {"path": path, "encoding": "base64"})
        if result.is_error:
            raise _os_error(result.text, path)
        return base64.b64decode(result.output)

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Make it a file's content; directories above it are made.

        What is too large for one call is written by several, and for a while the file has a
        part of it.

        Raises:
            OSError, DeniedByPolicy, WorkspaceUnavailableError: As for `read_bytes`.
        """
        _check(await write_whole(self._call, path, data), path)

    async def stat(self, path: str) -> FileEntry:
        """What is there; links are followed.

        Raises:
            OSError, DeniedByPolicy, WorkspaceUnavailableError: As for `read_bytes`.
        """
        result = await self.run(["stat", "-L", "-c", "%s %F", "--", path])
        if result.exit_code != 0:
            raise _os_error(result.stderr, path)
        size, _, kind = result.stdout.strip().partition(" ")
        is_file = kind.startswith("regular")
        return FileEntry(
            name=posixpath.basename(path) or "/",
            path=path,
            is_dir=kind == "directory",
            size=int(size) if is_file else None,
        )

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        """What is in a directory.

        Raises:
            OSError, DeniedByPolicy, WorkspaceUnavailableError: As for `read_bytes`.
            WorkspaceError: It is more than a call returns.
        """
        result = await self._call("list", {"path": path, "depth": 1})
        if result.is_error:
            raise _os_error(result.text, path)
        if result.details["truncated"]:
            raise WorkspaceError(f"{path} has more entries than a call returns")
        entries = []
        for entry in result.details["entries"]:
            name, kind = entry["path"], entry["kind"]
            place = posixpath.join(path, name)
            is_dir, size = kind == "directory", entry["size"] if kind == "file" else None
            if kind == "link":
                with contextlib.suppress(OSError):  # it leads nowhere
                    target = await self.stat(place)
                    is_dir, size = target.is_dir, target.size
            entries.append(FileEntry(name=name, path=place, is_dir=is_dir, size=size))
        return entries

    async def make_dir(self, path: str) -> None:
        """Make a directory, and those above it.

        Raises:
            OSError, DeniedByPolicy, WorkspaceUnavailableError: As for `read_bytes`.
        """
        await self._done("bash", {"command": f"mkdir -p -- {shlex.quote(path)}"}, path)

    async def remove(self, path: str) -> None:
        """Remove a file, a link, or a directory with all that is in it.

        Raises:
            ValueError: It is the workspace itself, or above it.
            OSError, DeniedByPolicy, WorkspaceUnavailableError: As for `read_bytes`.
        """
        whole = posixpath.normpath(path)
        if f"{WORKSPACE}/".startswith(f"{whole.rstrip('/')}/"):
            raise ValueError(f"{path} is the workspace, or above it")
        await self._done("bash", {"command": f"rm -r -- {shlex.quote(whole)}"}, path)

    async def exists(self, path: str) -> bool:
        """Whether something is there.

        Raises:
            DeniedByPolicy, WorkspaceUnavailableError: As for `run`.
        """
        return (await self.run(["test", "-e", path])).exit_code == 0

    async def _done(self, tool: str, arguments: Mapping[str, Any], path: str) -> None:
        _check(await self._call(tool, arguments), path)

    async def _call(
        self, tool: str, arguments: Mapping[str, Any], timeout: float | None = None
    ) -> ToolResult:
        try:
            result = await self._session.call(tool, arguments, timeout_s=timeout)
        except (SandboxLost, SessionEnded, SessionNotFound) as error:
            raise WorkspaceUnavailableError(str(error)) from error
        except RunnerError as error:
            raise WorkspaceError(str(error)) from error
        if result.status is Status.DENIED:
            raise DeniedByPolicy(result.error)
        return result


_ERRORS: tuple[tuple[str, type[OSError]], ...] = (
    ("no such file", FileNotFoundError),
    ("is a directory", IsADirectoryError),
    ("not a directory", NotADirectoryError),
    ("file exists", FileExistsError),
    ("permission denied", PermissionError),
)
"""What the operating system's words, which programs repeat, mean in Python."""
_CODES: dict[str, type[OSError]] = {
    "not_found": FileNotFoundError,
    "is_directory": IsADirectoryError,
    "not_directory": NotADirectoryError,
    "exists": FileExistsError,
    "permission_denied": PermissionError,
}
"""What our tools say, in Python's words."""


def _check(result: ToolResult, path: str) -> None:
    if result.is_error:
        if (kind := _CODES.get(failure_of(result))) is not None:
            raise kind(result.text)
        # A command's own words, without ours about its exit status behind them.
        raise _os_error(result.output or result.text, path)


def _os_error(words: str, path: str) -> OSError:
    # The words stand at the end, behind a path that may hold anything.
    said = words.strip().rpartition(":")[2].lower()
    kind = next((kind for phrase, kind in _ERRORS if phrase in said), OSError)
    return kind(words.strip() or f"{path}: failed")


def _completed(result: ToolResult) -> CommandResult:
    errors = str(result.details.get("stderr", ""))
    if result.status is Status.TIMED_OUT:
        raise WorkspaceTimeoutError(result.error or "", stdout=result.output, stderr=errors)
    if result.exit_code is None:
        raise WorkspaceError(result.error)
    if result.truncated is not None or "stderr_omitted_bytes" in result.details:
        raise WorkspaceOutputLimitError(
            "the command wrote more than a call returns",
            limit=len(result.output.encode()),
            stdout=result.output,
            stderr=errors,
        )
    return CommandResult(exit_code=result.exit_code, stdout=result.output, stderr=errors)
