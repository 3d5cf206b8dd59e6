"""Calling a tool as the controller does, without one."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from runner.model import Call, Outcome, Status
from runner.sandbox import Sandbox
from runner.tools import InvalidInput, Tool, ToolContext, ToolLimits, decode


def call(
    tool: Tool,
    raw: str | bytes | Mapping[str, Any],
    sandbox: Sandbox,
    *,
    limits: ToolLimits | None = None,
    timeout_s: float = 60.0,
    on_output: Callable[[bytes], Awaitable[None]] | None = None,
    environment: Mapping[str, str] | None = None,
    judged: str | None = None,
    hidden: tuple[str, ...] = (),
    watch: tuple[str, ...] = (),
) -> Outcome:
    """Decode and execute; an invalid input is an outcome, too."""
    try:
        decoded = decode(tool, raw)
    except InvalidInput as error:
        return Outcome(error=str(error), status=Status.INVALID)
    context = ToolContext(
        sandbox=sandbox,
        call=Call(
            id="c-1",
            session_id="s-1",
            tool=tool.name,
            arguments=decoded.arguments,
            canonical=decoded.canonical,
            timeout_s=timeout_s,
        ),
        deadline_s=timeout_s,
        on_output=on_output,
        limits=limits or ToolLimits(),
        environment=environment or {},
        judged=judged,
        hidden=hidden,
        watch=watch,
    )
    return asyncio.run(_execute(tool, context, decoded.input))


async def _execute(tool: Tool, context: ToolContext, input: Any) -> Outcome:
    return await tool.execute(context, input)
