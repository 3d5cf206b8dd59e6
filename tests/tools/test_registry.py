"""The registry: names, schemas, and the words of four APIs."""

import copy
import json
from typing import Any

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, RootModel

from runner.errors import ConfigurationError, ToolError
from runner.model import Outcome
from runner.tools import (
    Registry,
    Tool,
    ToolContext,
    ToolInput,
    builtin_tools,
    default_registry,
    keeps_time,
)
from tests.conformance.reference import DATA
from tests.tools.calling import call
from tests.tools.fake_sandbox import FakeSandbox


class CountInput(BaseModel):
    """A model that does not derive from ours."""

    path: str = Field(description="Which file.")
    title: str = Field("lines", description="What to count.", max_length=10)


class CountTool:
    """A tool that does not derive from ours."""

    name = "count"
    description = "Count the lines of a file."
    input = CountInput

    async def execute(self, context: ToolContext, input: CountInput, /) -> Outcome:
        content = await context.sandbox.read(input.path, limit_bytes=100)
        return Outcome(output=f"{len(content.splitlines())} {input.title}")


def with_input(model: Any) -> Any:
    tool = CountTool()
    tool.input = model
    return tool


def test_the_definitions_are_the_references() -> None:
    published = json.loads((DATA / "definitions.json").read_text())
    assert default_registry().definitions("rousseau") == published
    assert default_registry().definitions() == published


def test_each_api_gets_its_own_shape() -> None:
    registry = default_registry()
    for reference, anthropic, openai, mcp in zip(
        registry.definitions("rousseau"),
        registry.definitions("anthropic"),
        registry.definitions("openai"),
        registry.definitions("mcp"),
        strict=True,
    ):
        name, description = reference["name"], reference["description"]
        schema = reference["input_schema"]
        assert anthropic == {"name": name, "description": description, "input_schema": schema}
        assert openai == {
            "type": "function",
            "function": {"name": name, "description": description, "parameters": schema},
        }
        assert mcp == {"name": name, "description": description, "inputSchema": schema}
    with pytest.raises(ConfigurationError, match="no format 'xml'; there are: rousseau, "):
        registry.definitions("xml")  # type: ignore[arg-type]


def test_the_order_is_that_of_registration() -> None:
    registry = default_registry()
    registry.register(CountTool())
    order = ("read", "write", "edit", "grep", "bash", "count")
    assert registry.names() == order
    assert tuple(tool.name for tool in registry) == order
    assert tuple(one["name"] for one in registry.definitions("mcp")) == order
    assert len(registry) == 6


def test_definitions_belong_to_whoever_asked() -> None:
    registry = default_registry()
    before = copy.deepcopy(registry.definitions())
    registry.definitions()[0]["input_schema"]["properties"].clear()
    assert registry.definitions() == before


def test_registries_share_nothing() -> None:
    default_registry().register(CountTool())
    assert default_registry().get("count") is None


def test_a_tool_that_is_not_ours_works() -> None:
    registry = Registry()
    registry.register(CountTool())
    tool = registry.get("count")
    assert tool is not None
    sandbox = FakeSandbox({"/f": b"a\nb\n"}).as_sandbox()
    assert call(tool, {"path": "/f"}, sandbox) == Outcome(output="2 lines")
    assert call(tool, {"path": "/f", "x": 1}, sandbox).error == (
        'count: unknown property "x"; accepted: path, title'
    )
    assert registry.definitions("anthropic")[0]["input_schema"] == {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Which file."},
            "title": {"type": "string", "description": "What to count.", "maxLength": 10},
        },
        "required": ["path"],
    }


def test_a_schema_is_written_out_in_full() -> None:
    class Part(ToolInput):
        """One of them."""

        title: str
        """Its title."""

    class Whole(ToolInput):
        """Dropped: the tool has a description."""

        parts: list[Part]
        """All of them."""
        first: Part | None = None

    registry = Registry()
    registry.register(with_input(Whole))
    part = {
        "type": "object",
        "description": "One of them.",
        "properties": {"title": {"type": "string", "description": "Its title."}},
        "required": ["title"],
    }
    assert registry.definitions()[0]["input_schema"] == {
        "type": "object",
        "properties": {
            "parts": {"type": "array", "items": part, "description": "All of them."},
            "first": {"anyOf": [part, {"type": "null"}]},
        },
        "required": ["parts"],
    }


def test_a_tool_without_input_has_an_empty_object() -> None:
    class Nothing(ToolInput):
        pass

    registry = Registry()
    registry.register(with_input(Nothing))
    schema = registry.definitions()[0]["input_schema"]
    assert schema == {"type": "object", "properties": {}}


def test_names_are_looked_up_exactly() -> None:
    registry = default_registry()
    assert registry.get("bash") is not None
    assert [registry.get(name) for name in ("", "Bash", "../bash", "bash ")] == [None] * 4


def test_a_name_is_taken_in_any_case() -> None:
    registry = default_registry()
    tool = CountTool()
    for name in ("bash", "BASH"):
        tool.name = name
        with pytest.raises(ToolError, match="there is a tool"):
            registry.register(tool)
    assert registry.names() == ("read", "write", "edit", "grep", "bash")


@pytest.mark.parametrize("name", ["", "a b", "../bash", "é", "a" * 65, "a\n", 5, None])
def test_a_name_must_suit_every_api(name: Any) -> None:
    tool = CountTool()
    tool.name = name
    with pytest.raises(ToolError, match="is no name for a tool"):
        Registry().register(tool)


class Node(ToolInput):
    """A model that refers to itself."""

    children: list["Node"] = Field(default_factory=list)


class Choices(ToolInput):
    a: str = Field(validation_alias=AliasChoices("a", "b"))


class Callback(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    tool: CountTool


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (dict, "is not a pydantic model"),
        (CountInput(path="/f", title="x"), "is not a pydantic model"),
        (RootModel[list[int]], "not the model of an object"),
        (Node, "refers to itself"),
        (Choices, "plain names"),
        (Callback, "has no JSON schema"),
    ],
)
def test_an_input_must_be_a_model_that_can_be_described(model: Any, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        Registry().register(with_input(model))


def test_what_is_no_tool_is_refused() -> None:
    class Blocking(CountTool):
        def execute(self, context: Any, input: Any, /) -> Any: ...

    class Silent(CountTool):
        description = ""

    registry = Registry()
    for tool, words in [
        (CountTool, "register an instance of CountTool"),
        (object(), "object is no tool: it has no 'name'"),
        (Blocking(), "not an `async def`"),
        (Silent(), "has no description"),
    ]:
        with pytest.raises(ToolError, match=words):
            registry.register(tool)  # type: ignore[arg-type]
    assert len(registry) == 0


def test_only_bash_of_the_five_keeps_the_time() -> None:
    tools: list[Tool] = [*builtin_tools(), CountTool()]
    assert [tool.name for tool in tools if keeps_time(tool)] == ["bash"]
