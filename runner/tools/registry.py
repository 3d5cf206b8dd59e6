"""The tools that there are, and how each API wants them described.

Owns names and schemas. A tool's schema is its model, rendered the way the reference
implementation publishes its own: types, descriptions and what is required, nothing else.
"""

import copy
import inspect
import re
from collections.abc import Iterator
from typing import Any, Literal, get_args

from pydantic import BaseModel
from pydantic.errors import PydanticUserError

from runner.errors import ConfigurationError, ToolError
from runner.tools.base import Tool
from runner.tools.decoding import properties

Format = Literal["rousseau", "anthropic", "openai", "mcp"]
"""rousseau-agent, Anthropic's messages, OpenAI's chat completions, the Model Context Protocol."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What all of these APIs take for a name."""


class Registry:
    """Tools by name, in the order in which they were registered."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}
        self._schemas: dict[str, dict[str, Any]] = {}

    def register(self, tool: Tool) -> None:
        """Add a tool.

        Args:
            tool: An instance, which serves all calls.

        Raises:
            ToolError: It is no tool; its name is taken (policies compare names without case)
                or is not fit for one; or its input is not a model of an object that can be
                described without references to itself.
        """
        name = _check(tool)
        taken = {existing.lower() for existing in self._tools}
        if name.lower() in taken:
            raise ToolError(f"there is a tool {name!r} already")
        self._schemas[name] = input_schema(tool.input)
        self._tools[name] = tool

    def get(self, name: str) -> Tool | None:
        """The tool of exactly this name."""
        return self._tools.get(name)

    def names(self) -> tuple[str, ...]:
        """The names of all tools."""
        return tuple(self._tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(tuple(self._tools.values()))

    def __len__(self) -> int:
        return len(self._tools)

    def definitions(self, format: Format = "rousseau") -> list[dict[str, Any]]:
        """All tools, described for an API. The values are the caller's own.

        Raises:
            ConfigurationError: There is no such format.
        """
        return [
            _describe(format, tool.name, tool.description, copy.deepcopy(self._schemas[name]))
            for name, tool in self._tools.items()
        ]


def _describe(
    format: Format, name: str, description: str, schema: dict[str, Any]
) -> dict[str, Any]:
    about = {"name": name, "description": description}
    match format:
        case "rousseau" | "anthropic":
            return {**about, "input_schema": schema}
        case "openai":
            return {"type": "function", "function": {**about, "parameters": schema}}
        case "mcp":
            return {**about, "inputSchema": schema}
    formats = ", ".join(get_args(Format))
    raise ConfigurationError(f"there is no format {format!r}; there are: {formats}")


def _check(tool: Any) -> str:
    """The name of what is a tool."""
    if isinstance(tool, type):
        raise ToolError(f"register an instance of {tool.__name__}, not the class")
    for attribute in ("name", "description", "input", "execute"):
        if not hasattr(tool, attribute):
            raise ToolError(f"{type(tool).__name__} is no tool: it has no {attribute!r}")
    name = tool.name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ToolError(f"{name!r} is no name for a tool: up to 64 letters, digits, _ and -")
    if not isinstance(tool.description, str) or not tool.description:
        raise ToolError(f"tool {name!r} has no description")
    if not inspect.iscoroutinefunction(tool.execute):
        raise ToolError(f"tool {name!r}: execute is not an `async def`")
    if not (isinstance(tool.input, type) and issubclass(tool.input, BaseModel)):
        raise ToolError(f"tool {name!r}: its input is not a pydantic model")
    return name


def input_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a model, without titles, defaults and references.

    Raises:
        ToolError: It is not the schema of an object, it can't be made, or it refers to itself.
    """
    try:
        whole = model.model_json_schema()
    except PydanticUserError as error:
        raise ToolError(f"{model.__name__} has no JSON schema: {error}") from error
    schema: dict[str, Any] = _render(whole, whole.get("$defs", {}), ())
    aliases = [field.validation_alias for field in model.model_fields.values()]
    is_plain = all(alias is None or isinstance(alias, str) for alias in aliases)
    names = list(schema.get("properties", {}))
    if schema.get("type") != "object" or not is_plain or names != list(properties(model)):
        raise ToolError(f"{model.__name__} is not the model of an object with plain names")
    schema.pop("description", None)  # the tool's own says what it is for
    schema.setdefault("properties", {})
    return schema


_LEFT_OUT = frozenset({"title", "default", "$defs", "discriminator"})


def _render(schema: Any, definitions: dict[str, Any], inside: tuple[str, ...]) -> Any:
    if isinstance(schema, list):
        return [_render(item, definitions, inside) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if (reference := schema.get("$ref")) is not None:
        name = reference.rpartition("/")[2]
        if name in inside:
            raise ToolError(f"{name} refers to itself; a tool's schema is written out in full")
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return _render({**definitions[name], **beside}, definitions, (*inside, name))
    rendered = {}
    for key, value in schema.items():
        if key in _LEFT_OUT or (key == "additionalProperties" and value is False):
            continue
        if key == "properties":
            rendered[key] = {
                name: _render(item, definitions, inside) for name, item in value.items()
            }
        elif key in ("enum", "const", "examples"):
            rendered[key] = value
        else:
            rendered[key] = _render(value, definitions, inside)
    return rendered
