"""A server that only answers questions about past sessions: `runner mcp --queries`.

What the questions are, and their answers, is `runner.queries`'.
"""

from typing import Any

import mcp_types as types
from mcp.server.lowlevel.server import Server

from runner.errors import RunnerError
from runner.mcp_server.asking import Context
from runner.mcp_server.tools import refusal
from runner.queries import QUERIES, answer
from runner.store import Store
from runner.version import __version__

__all__ = ["server"]

NAME = "rousseau-runner-records"
_TOOLS = types.ListToolsResult(
    tools=[
        types.Tool(
            name=query.name,
            description=query.description,
            input_schema=dict(query.schema),
            annotations=types.ToolAnnotations(
                read_only_hint=True,
                destructive_hint=False,
                idempotent_hint=True,
                open_world_hint=False,
            ),
        )
        for query in QUERIES
    ]
)


def server(store: Store) -> Server[Any]:
    """The SDK's server over the records of a data directory."""

    async def list_tools(
        context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return _TOOLS

    async def call(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            text, is_error = answer(store, params.name, params.arguments or {})
        except RunnerError as error:
            raise refusal(error) from error
        return types.CallToolResult(content=[types.TextContent(text=text)], is_error=is_error)

    return Server(NAME, version=__version__, on_list_tools=list_tools, on_call_tool=call)
