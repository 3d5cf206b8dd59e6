"""What clients are told of the tools, and what they are given of a result. Pure."""

import base64
from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError

from runner.errors import EXITS, RunnerError, ToolError
from runner.model import Block, Status, ToolResult, Verdict
from runner.settings import Network
from runner.tools import Registry, Tool
from runner.tools.base import effects

__all__ = [
    "CLOSE",
    "OPEN",
    "SESSION_ID",
    "TITLE_CHARACTERS",
    "definitions",
    "failure",
    "refusal",
    "rendered",
    "session_answer",
    "split",
]

OPEN, CLOSE = "open_session", "close_session"
"""The tools that are there where calls name their session."""
SESSION_ID = "session_id"
TITLE_CHARACTERS = 100

_TEXT, _NUMBER, _INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _object(required: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    properties = {**required, **more}
    return {"type": "object", "properties": properties, "required": list(required)}


RESULT = _object(
    {
        "call_id": {**_TEXT, "description": "Its id in the record."},
        "status": {"type": "string", "enum": [str(status) for status in Status]},
        "output": {**_TEXT, "description": "What the tool made; a command's output."},
        "error": _or_null(_TEXT),
        "exit_code": _or_null(_INTEGER),
        "duration_s": _NUMBER,
        "timeout_s": _or_null(_NUMBER),
        "truncated": _or_null(
            _object(
                {
                    "omitted_bytes": _INTEGER,
                    "omitted_lines": _INTEGER,
                    "full_output_path": _or_null(_TEXT),
                    "full_output_bytes": _INTEGER,
                }
            )
        ),
        "background": {**_INTEGER, "description": "Processes that were left running."},
        "decision": _or_null(
            _object(
                {
                    "verdict": {"type": "string", "enum": [str(verdict) for verdict in Verdict]},
                    "rule": _or_null(_TEXT),
                    "reason": _TEXT,
                }
            )
        ),
        "details": {"type": "object"},
    }
)
"""The schema of every tool's structured content: `ToolResult`, without what is in the text."""
SESSION = _object({SESSION_ID: {**_TEXT, "description": "For the argument of the same name."}})


def definitions(registry: Registry, *, network: Network, named: bool) -> list[types.Tool]:
    """All tools, in the order in which they were registered.

    Args:
        registry: The tools.
        network: What sessions reach: a tool's world is open with it.
        named: Whether calls name their session, so that there are tools to open and close one.

    Raises:
        ToolError: A tool's own argument has the name that is taken for the session's, or it
            has the name of one of those tools.
    """
    schemas = {entry["name"]: entry["inputSchema"] for entry in registry.definitions("mcp")}
    listed = [_definition(tool, schemas[tool.name], network, named=named) for tool in registry]
    if not named:
        return listed
    for name in (OPEN, CLOSE):
        if registry.get(name) is not None:
            raise ToolError(f"a tool {name!r} can't be served where calls name their session")
    return [*listed, _OPEN, _CLOSE]


def _definition(tool: Tool, schema: dict[str, Any], network: Network, *, named: bool) -> types.Tool:
    if named:
        if SESSION_ID in schema["properties"]:
            raise ToolError(f"tool {tool.name!r} has an argument {SESSION_ID!r} of its own")
        schema = {
            **schema,
            "properties": {
                SESSION_ID: {**_TEXT, "description": f"From {OPEN}."},
                **schema["properties"],
            },
            "required": [SESSION_ID, *schema.get("required", [])],
        }
    may = effects(tool)
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=schema,
        output_schema=RESULT,
        annotations=types.ToolAnnotations(
            read_only_hint=may.read_only,
            destructive_hint=may.destructive and not may.read_only,
            idempotent_hint=may.idempotent or may.read_only,
            open_world_hint=network != "none" if may.open_world is None else may.open_world,
        ),
    )


_OPEN = types.Tool(
    name=OPEN,
    description="Open a session: a container of its own, in which calls run that name it.",
    input_schema={
        "type": "object",
        "properties": {"title": {**_TEXT, "description": "What it is for, in a few words."}},
    },
    output_schema=SESSION,
    annotations=types.ToolAnnotations(
        read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False
    ),
)
_CLOSE = types.Tool(
    name=CLOSE,
    description="Close a session: what runs in it ends, and what is not in a workspace of the"
    " user's is gone.",
    input_schema={
        "type": "object",
        "properties": {SESSION_ID: {**_TEXT, "description": f"From {OPEN}."}},
        "required": [SESSION_ID],
    },
    output_schema=SESSION,
    annotations=types.ToolAnnotations(
        read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False
    ),
)


def split(arguments: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """A named session's id, and the arguments that are the tool's own."""
    found = arguments.get(SESSION_ID)
    own = {name: value for name, value in arguments.items() if name != SESSION_ID}
    return (found if isinstance(found, str) else None), own


def rendered(result: ToolResult) -> types.CallToolResult:
    """A result as the protocol has it: text, then other content, and the same as data."""
    values = result.as_dict()
    return types.CallToolResult(
        content=[
            types.TextContent(text=result.text),
            *(
                _content(block, f"runner://calls/{result.call_id}/{number}")
                for number, block in enumerate(result.blocks)
            ),
        ],
        structured_content={name: values[name] for name in RESULT["properties"]},
        is_error=result.is_error,
    )


def _content(block: Block, uri: str) -> types.ContentBlock:
    data = base64.b64encode(block.data).decode()
    if block.media_type.startswith("image/"):
        return types.ImageContent(data=data, mime_type=block.media_type)
    if block.media_type.startswith("audio/"):
        return types.AudioContent(data=data, mime_type=block.media_type)
    contents = types.BlobResourceContents(uri=uri, mime_type=block.media_type, blob=data)
    return types.EmbeddedResource(resource=contents)


def session_answer(session_id: str, text: str) -> types.CallToolResult:
    """The result of opening or closing a session."""
    return types.CallToolResult(
        content=[types.TextContent(text=text)], structured_content={SESSION_ID: session_id}
    )


def failure(text: str) -> types.CallToolResult:
    """The result of a call that no tool of the registry saw, so that there is no record."""
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


def refusal(error: RunnerError) -> MCPError:
    """The protocol's error for one of the runner's, whose code is in its data."""
    return MCPError(EXITS[error.code].mcp, str(error), data={"code": error.code})
