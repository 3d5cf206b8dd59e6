"""Tools for Anthropic's SDK: `bash`, the text editor, the agent toolset, and a registry's own.

All of them are asynchronous runnable tools, for `AsyncAnthropic().beta.messages.tool_runner` and
for the runners of managed agents. What the model asks for becomes a call of a session; what
comes of it goes back as text, images and documents, or as an error with our words.

It owns the names that Anthropic's tools and their parameters have, and how a file is shown with
its lines. It decides nothing.
"""

import asyncio
import base64
import posixpath
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import Field, TypeAdapter, ValidationError

from runner.client import AsyncRunner, AsyncSession
from runner.errors import RunnerError
from runner.integrations.common import definitions, failure_of, in_workspace, missing, require
from runner.model import ToolResult
from runner.sandbox import WORKSPACE
from runner.tools import AbsolutePath, ToolInput

try:
    from anthropic.lib.tools import BetaAsyncBuiltinFunctionTool, ToolError
    from anthropic.lib.tools.agent_toolset import AgentToolContext
    from anthropic.types.beta import (
        BetaManagedAgentsAgentToolset20260401BashInput,
        BetaManagedAgentsAgentToolset20260401EditInput,
        BetaManagedAgentsAgentToolset20260401GlobInput,
        BetaManagedAgentsAgentToolset20260401GrepInput,
        BetaManagedAgentsAgentToolset20260401ReadInput,
        BetaManagedAgentsAgentToolset20260401WriteInput,
    )
except ImportError as error:
    raise missing("anthropic", error) from error

__all__ = [
    "SessionTool",
    "agent_toolset",
    "bash_tool",
    "registry_tools",
    "text_editor_tool",
    "worker_tools",
]

Content = str | list[dict[str, Any]]
"""What a tool returns: text, or blocks of the messages API."""
Open = Callable[[], Awaitable[AsyncSession]]
"""Gives the session that a tool's calls run in."""
Handler = Callable[[AsyncSession, Mapping[str, Any]], Awaitable[Content]]
"""Carries out one use of a tool."""

IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""What the messages API takes for images."""


class SessionTool(BetaAsyncBuiltinFunctionTool):
    """A tool for Anthropic's runners whose calls run in a session.

    Args:
        definition: What the API is told of it.
        open: Gives the session.
        handler: Carries out one use.
        close: Awaited by those runners that clean up after their tools.
    """

    def __init__(
        self,
        definition: Mapping[str, Any],
        open: Open,
        handler: Handler,
        close: Callable[[], Awaitable[None]] | None = None,
    ):
        self._definition = dict(definition)
        self._open = open
        self._handler = handler
        self.close = close

    def to_dict(self) -> Any:
        """Its definition, as the API wants it."""
        return dict(self._definition)

    async def call(self, input: object) -> Any:
        """Use it.

        Raises:
            ToolError: It did not do what it was asked. The words are for the model.
        """
        if not isinstance(input, Mapping):
            raise ToolError(f"{self.name}: the input is not an object")
        try:
            return await self._handler(await self._open(), input)
        except RunnerError as error:
            raise ToolError(f"{self.name}: {error}") from error


def bash_tool(session: AsyncSession) -> SessionTool:
    """`bash_20250124`: a shell that keeps its state. Uses the tool `shell`.

    Raises:
        ConfigurationError: The runner has no such tool.
    """
    require(session, ("shell",))

    async def use(session: AsyncSession, input: Mapping[str, Any]) -> Content:
        return shown(await session.call("shell", input))

    return SessionTool({"type": "bash_20250124", "name": "bash"}, _always(session), use)


def text_editor_tool(session: AsyncSession, *, max_characters: int | None = None) -> SessionTool:
    """`text_editor_20250728`. Uses the tools `read`, `list`, `write` and `edit`.

    Args:
        session: Where the files are.
        max_characters: The longest view in characters; the rest is left out, and it says so.
            None: views are whole, up to what `read` returns.

    Raises:
        ConfigurationError: The runner lacks one of these tools.
    """
    require(session, ("read", "list", "write", "edit"))
    definition: dict[str, Any] = {"type": "text_editor_20250728", "name": EDITOR}
    if max_characters is not None:
        definition["max_characters"] = max_characters

    async def use(session: AsyncSession, input: Mapping[str, Any]) -> Content:
        try:
            command = _EDITS.validate_python(input)
        except ValidationError as error:
            raise ToolError(f"{EDITOR}: {_words(error)}") from error
        match command:
            case View():
                return await _view(session, command, max_characters)
            case Create():
                arguments = {"path": command.path, "content": command.file_text}
                return shown(await session.call("write", arguments))
            case StrReplace():
                arguments = {
                    "path": command.path,
                    "old_string": command.old_str,
                    "new_string": command.new_str or "",
                }
                return shown(await session.call("edit", arguments))
            case Insert():
                return await _insert(session, command)

    return SessionTool(definition, _always(session), use)


def agent_toolset(session: AsyncSession) -> list[SessionTool]:
    """The tools of `agent_toolset_20260401`: bash, read, write, edit, glob and grep.

    Relative paths are taken from the workspace.

    Raises:
        ConfigurationError: The runner lacks one of the tools that they use.
    """
    require(session, AGENT_TOOLS)
    return _agent_toolset(_always(session), None)


def worker_tools(
    runner: AsyncRunner, **options: Any
) -> Callable[[AgentToolContext], list[SessionTool]]:
    """The agent toolset for an `EnvironmentWorker`: a session of its own for each work item.

    Its workspace is the item's working directory, unless the options name another. The session
    is opened by the first call, and closed when the item ends.

    Args:
        runner: An open runner with the extended tools.
        **options: As for `AsyncRunner.session`.
    """

    def tools(context: AgentToolContext) -> list[SessionTool]:
        item = _Item(runner, {"workspace": context.workdir, **options})
        return _agent_toolset(item.session, item.close)

    return tools


def registry_tools(
    session: AsyncSession, names: Collection[str] | None = None
) -> list[SessionTool]:
    """A session's own tools, under their own names and schemas.

    Args:
        session: Where they run.
        names: Which; None: all that the runner has.

    Raises:
        ConfigurationError: The runner lacks one of these.
    """

    def tool(definition: dict[str, Any]) -> SessionTool:
        async def use(session: AsyncSession, input: Mapping[str, Any]) -> Content:
            return shown(await session.call(definition["name"], input))

        return SessionTool(definition, _always(session), use)

    return [tool(definition) for definition in definitions(session, names, "anthropic")]


def shown(result: ToolResult) -> Content:
    """What the model is shown of a result.

    Raises:
        ToolError: The call did not do what it was asked; with the same content.
    """
    content: Content = result.text
    if result.blocks:
        content = [{"type": "text", "text": result.text}] if result.text else []
        for block in result.blocks:
            source = {
                "type": "base64",
                "media_type": block.media_type,
                "data": base64.b64encode(block.data).decode(),
            }
            kind = "image" if block.media_type in IMAGES else "document"
            content.append({"type": kind, "source": source})
    if result.is_error:
        raise ToolError(cast(Any, content))
    return content


def _always(session: AsyncSession) -> Open:
    async def open() -> AsyncSession:
        return session

    return open


class _Item:
    """The session of one work item."""

    def __init__(self, runner: AsyncRunner, options: Mapping[str, Any]):
        self._runner = runner
        self._options = options
        self._lock = asyncio.Lock()
        self._session: AsyncSession | None = None

    async def session(self) -> AsyncSession:
        async with self._lock:
            if self._session is None:
                opened = await self._runner.open_session(**self._options)
                try:
                    require(opened, AGENT_TOOLS)
                except BaseException:
                    await opened.close()
                    raise
                self._session = opened
            return self._session

    async def close(self) -> None:
        async with self._lock:
            session, self._session = self._session, None
            if session is not None:
                await session.close()


# The text editor.

EDITOR = "str_replace_based_edit_tool"


class View(ToolInput):
    """Show a file with its line numbers, or list a directory."""

    command: Literal["view"]
    path: AbsolutePath
    view_range: tuple[int, int] | None = Field(default=None, strict=False)
    """First and last line, from 1; -1 for the last: to the end."""


class Create(ToolInput):
    """Write a file."""

    command: Literal["create"]
    path: AbsolutePath
    file_text: str


class StrReplace(ToolInput):
    """Replace the one occurrence of a text."""

    command: Literal["str_replace"]
    path: AbsolutePath
    old_str: str
    new_str: str | None = None
    """None, as the empty text, deletes."""


class Insert(ToolInput):
    """Insert a text after a line."""

    command: Literal["insert"]
    path: AbsolutePath
    insert_line: int = Field(ge=0)
    """0: before the first."""
    insert_text: str


_EDITS: TypeAdapter[View | Create | StrReplace | Insert] = TypeAdapter(
    Annotated[View | Create | StrReplace | Insert, Field(discriminator="command")]
)


def _words(error: ValidationError) -> str:
    """What is wrong with an input, for the model."""
    wrong = error.errors(include_url=False, include_input=False)
    return "; ".join(
        ": ".join(filter(None, (".".join(map(str, one["loc"])), one["msg"]))) for one in wrong
    )


async def _view(session: AsyncSession, view: View, max_characters: int | None) -> Content:
    first, last = view.view_range or (1, -1)
    if first < 1 or (last != -1 and last < first):
        raise ToolError(f"{EDITOR}: view_range is [first, last] with 1 <= first <= last, or -1")
    arguments: dict[str, Any] = {"path": view.path}
    if view.view_range is not None:
        arguments["offset"] = first
        if last != -1:
            arguments["limit"] = last - first + 1
    result = await session.call("read", arguments)
    if failure_of(result) == "is_directory":
        return shown(await session.call("list", {"path": view.path, "depth": DIRECTORY_DEPTH}))
    content = shown(result)
    if isinstance(content, str):
        if "count" in result.details:  # a range ends with a line about itself, which is no line
            content = content[: content.rfind("\n(") + 1]
        content = _numbered(content, first)
        if max_characters is not None and len(content) > max_characters:
            left_out = len(content) - max_characters
            note = f"\n[… {left_out} characters left out; use view_range to see other lines …]"
            content = content[:max_characters] + note
    return content


DIRECTORY_DEPTH = 2
"""How deep a view of a directory looks."""


def _numbered(text: str, first: int) -> str:
    """A text with the numbers of its lines."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines, first))


async def _insert(session: AsyncSession, insert: Insert) -> Content:
    """Two calls, both judged: read the file, write it with the new lines.

    In base64, so that bytes which are no UTF-8 survive.
    """
    result = await session.call("read", {"path": insert.path, "encoding": "base64"})
    if result.is_error:
        return shown(result)
    *whole, rest = base64.b64decode(result.output).split(b"\n")
    lines = [line + b"\n" for line in whole] + ([rest] if rest else [])
    if insert.insert_line > len(lines):
        raise ToolError(f"{EDITOR}: insert_line is {insert.insert_line}: {len(lines)} lines there")
    added = insert.insert_text.encode()
    if insert.insert_line < len(lines) and not added.endswith(b"\n"):
        added += b"\n"
    if insert.insert_line and not lines[insert.insert_line - 1].endswith(b"\n"):
        added = b"\n" + added
    lines.insert(insert.insert_line, added)
    content = base64.b64encode(b"".join(lines)).decode()
    arguments = {"path": insert.path, "content": content, "encoding": "base64"}
    return shown(await session.call("write", arguments))


# The agent toolset.

AGENT_TOOLS = ("shell", "read", "write", "edit", "glob", "grep")
"""Ours, that it uses."""


async def _agent_bash(session: AsyncSession, input: Mapping[str, Any]) -> Content:
    arguments = {key: value for key, value in input.items() if value is not None}
    timeout_ms = arguments.pop("timeout_ms", None)
    # 0 stands for the default, as in the toolset's own description.
    timeout_s = timeout_ms / 1000 if timeout_ms else None
    return shown(await session.call("shell", arguments, timeout_s=timeout_s))


async def _agent_read(session: AsyncSession, input: Mapping[str, Any]) -> Content:
    arguments: dict[str, Any] = {"path": in_workspace(input["file_path"])}
    if view_range := input.get("view_range"):
        if len(view_range) != 2:
            raise ToolError("read: view_range is [first line, last line]")
        first, last = max(1, view_range[0]), view_range[1]
        arguments["offset"] = first
        if last > 0:
            arguments["limit"] = last - first + 1
    return shown(await session.call("read", arguments))


async def _agent_write(session: AsyncSession, input: Mapping[str, Any]) -> Content:
    arguments = {"path": in_workspace(input["file_path"]), "content": input["content"]}
    return shown(await session.call("write", arguments))


async def _agent_edit(session: AsyncSession, input: Mapping[str, Any]) -> Content:
    arguments = {
        "path": in_workspace(input["file_path"]),
        "old_string": input["old_string"],
        "new_string": input["new_string"],
    }
    if input.get("replace_all") is not None:
        arguments["replace_all"] = input["replace_all"]
    return shown(await session.call("edit", arguments))


async def _agent_glob(session: AsyncSession, input: Mapping[str, Any]) -> Content:
    arguments = {"pattern": input["pattern"], "path": in_workspace(input.get("path") or "")}
    arguments["path"] = posixpath.normpath(arguments["path"])
    return shown(await session.call("glob", arguments))


async def _agent_grep(session: AsyncSession, input: Mapping[str, Any]) -> Content:
    path = posixpath.normpath(in_workspace(input.get("path") or WORKSPACE))
    return shown(await session.call("grep", {"pattern": input["pattern"], "path": path}))


_TOOLSET: tuple[tuple[str, str, type[Any], Handler], ...] = (
    (
        "bash",
        "Run a command in a shell that keeps its state.",
        BetaManagedAgentsAgentToolset20260401BashInput,
        _agent_bash,
    ),
    (
        "read",
        "Read a file. Images and PDF documents are shown as such.",
        BetaManagedAgentsAgentToolset20260401ReadInput,
        _agent_read,
    ),
    (
        "write",
        "Write a file, with the directories above it.",
        BetaManagedAgentsAgentToolset20260401WriteInput,
        _agent_write,
    ),
    (
        "edit",
        "Replace a text in a file.",
        BetaManagedAgentsAgentToolset20260401EditInput,
        _agent_edit,
    ),
    (
        "glob",
        "Find files by a pattern.",
        BetaManagedAgentsAgentToolset20260401GlobInput,
        _agent_glob,
    ),
    (
        "grep",
        "Find lines by a regular expression.",
        BetaManagedAgentsAgentToolset20260401GrepInput,
        _agent_grep,
    ),
)


def _agent_toolset(open: Open, close: Callable[[], Awaitable[None]] | None) -> list[SessionTool]:
    return [
        SessionTool(
            {"name": name, "description": description, "input_schema": model.model_json_schema()},
            open,
            _checked(name, model, handler),
            close,
        )
        for name, description, model, handler in _TOOLSET
    ]


def _checked(name: str, model: type[Any], handler: Handler) -> Handler:
    """A handler that gets what fits the SDK's model of the input."""

    async def use(session: AsyncSession, input: Mapping[str, Any]) -> Content:
        try:
            checked = model.model_validate(input)
        except ValidationError as error:
            raise ToolError(f"{name}: {_words(error)}") from error
        return await handler(session, checked.model_dump())

    return use
