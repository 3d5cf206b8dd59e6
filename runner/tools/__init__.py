"""The tools: what an agent may ask for, decoded strictly, done in the session's container.

There are two sets: the five, which are those of rousseau-agent, and the extended one.

A tool of your own is a class with `name`, `description`, an `input` model and an
`async execute(context, input)`; `Registry.register` takes an instance of it.
"""

from typing import Literal, get_args

from runner.errors import ConfigurationError
from runner.tools.base import (
    AbsolutePath,
    Effects,
    RequiredText,
    Tool,
    ToolContext,
    ToolInput,
    ToolLimits,
    effects,
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
    "Effects",
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
    "ToolSet",
    "WriteTool",
    "builtin_tools",
    "decode",
    "default_registry",
    "effects",
    "keeps_time",
    "named_registry",
]

ToolSet = Literal["rousseau", "extended"]
"""The names of the sets."""


def builtin_tools() -> tuple[Tool, ...]:
    """The five, in the reference's order."""
    return (ReadTool(), WriteTool(), EditTool(), GrepTool(), BashTool())


def default_registry() -> Registry:
    """A new registry with the five tools."""
    return named_registry("rousseau")


def named_registry(name: ToolSet) -> Registry:
    """A new registry with the tools of a set.

    Args:
        name: `rousseau`, the five; or `extended`, those with more inputs and others beside them.

    Raises:
        ConfigurationError: There is no such set.
    """
    match name:
        case "rousseau":
            tools = builtin_tools()
        case "extended":
            # Its models take a tenth of the time in which everything else is loaded.
            from runner.tools.extended import extended_tools

            tools = extended_tools()
        case _:
            names = ", ".join(get_args(ToolSet))
            raise ConfigurationError(f"there is no set of tools {name!r}; there are: {names}")
    registry = Registry()
    for tool in tools:
        registry.register(tool)
    return registry
