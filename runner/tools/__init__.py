"""The tools: what an agent may ask for, decoded strictly, done in the session's container.

A tool of your own is a class with `name`, `description`, an `input` model and an
`async execute(context, input)`; `Registry.register` takes an instance of it.
"""

from runner.tools.base import (
    AbsolutePath,
    RequiredText,
    Tool,
    ToolContext,
    ToolInput,
    ToolLimits,
    keeps_time,
)
from runner.tools.bash import BashTool
from runner.tools.decoding import MAX_INPUT_BYTES, Decoded, InvalidInput, decode
from runner.tools.edit import EditTool
from runner.tools.grep import GrepTool
from runner.tools.read import ReadTool
from runner.tools.registry import Format, Registry
from runner.tools.write import WriteTool

__all__ = [
    "MAX_INPUT_BYTES",
    "AbsolutePath",
    "BashTool",
    "Decoded",
    "EditTool",
    "Format",
    "GrepTool",
    "InvalidInput",
    "ReadTool",
    "Registry",
    "RequiredText",
    "Tool",
    "ToolContext",
    "ToolInput",
    "ToolLimits",
    "WriteTool",
    "builtin_tools",
    "decode",
    "default_registry",
    "keeps_time",
]


def builtin_tools() -> tuple[Tool, ...]:
    """The five, in the reference's order."""
    return (ReadTool(), WriteTool(), EditTool(), GrepTool(), BashTool())


def default_registry() -> Registry:
    """A new registry with the five tools."""
    registry = Registry()
    for tool in builtin_tools():
        registry.register(tool)
    return registry
