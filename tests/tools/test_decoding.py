"""Inputs: what is valid is decoded once and for all, and nothing else gets through."""

import datetime
import enum
import json
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator

from runner.model import Outcome
from runner.tools import (
    MAX_INPUT_BYTES,
    Decoded,
    InvalidInput,
    Tool,
    ToolContext,
    ToolInput,
    decode,
    decoding,
    default_registry,
)
from runner.tools.decoding import MAX_DEPTH, MAX_NUMBER_CHARACTERS


def tool(name: str) -> Tool:
    found = default_registry().get(name)
    assert found is not None
    return found


def problem(raw: Any, of: Tool | str = "bash") -> str:
    with pytest.raises(InvalidInput) as caught:
        decode(tool(of) if isinstance(of, str) else of, raw)
    message = str(caught.value)
    assert "\n" not in message
    return message


def nested(levels: int) -> str:
    """A command inside so many arrays."""
    return '{"command":' + "[" * levels + "]" * levels + "}"


class TestText:
    @pytest.mark.parametrize(
        "raw",
        ['{"command": "ls"}', b'{"command": "ls"}', {"command": "ls"}, ' \n{"command":"ls"}\t\r\n'],
        ids=repr,
    )
    def test_bytes_and_mappings_mean_the_same(self, raw: Any) -> None:
        decoded = decode(tool("bash"), raw)
        assert decoded.arguments == {"command": "ls"}
        assert decoded.canonical == '{"command":"ls"}'

    @pytest.mark.parametrize(
        ("raw", "words"),
        [
            ('{"command":"ls"', "invalid JSON: "),
            ('{"command":"ls"} x', "invalid JSON: "),
            ("{'command':'ls'}", "invalid JSON: "),
            ('{/*x*/"command":"ls"}', "invalid JSON: "),
            ('{"command":"ls",}', "invalid JSON: "),
            ('\ufeff{"command":"ls"}', "invalid JSON: "),
            (b'\xef\xbb\xbf{"command":"ls"}', "invalid JSON: "),
            ('{"command":NaN}', "invalid JSON: NaN is no JSON"),
            ('{"command":-Infinity}', "invalid JSON: -Infinity is no JSON"),
            ('{"command":1e999}', "invalid JSON: a number beyond"),
            ('{"command":"ls","n":' + "9" * 5000 + "}", "invalid JSON: a number of 5000"),
            ('{"command":"\\ud800"}', "invalid JSON: half of a surrogate pair"),
            ('{"command":"\\udc00\\ud800"}', "invalid JSON: half of a surrogate pair"),
            ('{"\\ud800":1}', "invalid JSON: half of a surrogate pair"),
            ('{"command":"\ud800"}', "invalid JSON: half of a surrogate pair"),
            ('{"command":"\\x41"}', "invalid JSON: "),
            ('{"command":"a\nb"}', "invalid JSON: "),
            (b'{"command":"\xff"}', "invalid JSON: not UTF-8"),
            (b'{"command":"\xed\xa0\x80"}', "invalid JSON: not UTF-8"),
            ('{"command":"a","command":"b"}', 'invalid JSON: duplicate property "command"'),
            ('{"command":{"x":1,"x":2}}', 'invalid JSON: duplicate property "x"'),
            ('{"command":"a","\\u0063ommand":"b"}', 'duplicate property "command"'),
            ("[]", "input must be an object"),
            ('"ls"', "input must be an object"),
            ("ls", "input must be an object"),
            ("42", "input must be an object"),
            ("null", "input must be an object"),
            ("", "input must be an object"),
            ([], "input must be an object"),
            (None, "input must be an object"),
            (nested(MAX_DEPTH), "invalid JSON: more than 64 levels"),
            (nested(100_000), "invalid JSON: more than 64 levels"),
        ],
        ids=lambda value: repr(value)[:40],
    )
    def test_that_is_no_plain_json_object_is_refused(self, raw: Any, words: str) -> None:
        message = problem(raw)
        assert message.startswith("bash: ")
        assert words in message

    def test_may_be_nested_up_to_the_limit(self) -> None:
        assert problem(nested(MAX_DEPTH - 1)) == "bash: command must be a string"

    def test_may_hold_long_numbers_up_to_the_limit(self) -> None:
        number = "1" * MAX_NUMBER_CHARACTERS
        assert problem(f'{{"command":{number}}}') == "bash: command must be a string"

    def test_may_hold_a_command_of_a_megabyte_and_a_half(self) -> None:
        command = "echo 'x'\n" * (1536 * 1024 // 9)
        raw = json.dumps({"command": command})
        assert decode(tool("bash"), raw).arguments["command"] == command

    @pytest.mark.parametrize("kind", [str, bytes, dict])
    def test_that_is_too_large_is_refused(self, kind: type) -> None:
        room = MAX_INPUT_BYTES - len('{"command":""}')
        for size, fits in ((room, True), (room + 1, False)):
            raw: Any = {"command": "a" * size}
            if kind is not dict:
                raw = json.dumps(raw, separators=(",", ":"))
            if kind is bytes:
                raw = raw.encode()
            if fits:
                decode(tool("bash"), raw)
            else:
                assert problem(raw).startswith("bash: input too large: ")

    def test_is_measured_in_bytes(self) -> None:
        assert "too large" in problem({"command": "€" * (MAX_INPUT_BYTES // 3)})

    @pytest.mark.parametrize(
        "raw",
        [
            {"command": b"ls"},
            {"command": {1, 2}},
            {"command": float("nan")},
            {"command": "\ud800"},
            {("a", "b"): 1},
        ],
        ids=repr,
    )
    def test_cannot_be_made_of_every_mapping(self, raw: Mapping[Any, Any]) -> None:
        assert problem(raw).startswith("bash: invalid JSON: ")

    def test_cannot_be_made_of_a_mapping_that_holds_itself(self) -> None:
        raw: dict[str, Any] = {}
        raw["command"] = raw
        assert problem(raw).startswith("bash: invalid JSON: ")


class TestProperties:
    @pytest.mark.parametrize(
        ("of", "raw", "message"),
        [
            ("bash", {}, "command is required"),
            ("bash", {"command": ""}, "command is required"),
            ("bash", {"command": None}, "command must be a string"),
            ("bash", {"command": 5}, "command must be a string"),
            ("bash", {"command": True}, "command must be a string"),
            ("bash", {"command": ["ls"]}, "command must be a string"),
            ("bash", {"command": {"x": 1}}, "command must be a string"),
            (
                "bash",
                {"command": "ls", "timeout": 99},
                'unknown property "timeout"; accepted: command',
            ),
            ("bash", {"comand": "ls"}, 'unknown property "comand"; accepted: command'),
            ("bash", {"Command": "ls"}, 'unknown property "Command"; accepted: command'),
            (
                "bash",
                {"command": "ls", "a\nb\u202e": 1},
                'unknown property "a\\nb\\u202e"; accepted: command',
            ),
            ("write", {"path": "/a"}, "content is required"),
            ("write", {"path": "/a", "content": {"x": 1}}, "content must be a string"),
            ("write", {"content": "x"}, "path is required"),
            (
                "write",
                {"path": "/a", "content": "x", "mode": "0777"},
                'unknown property "mode"; accepted: path, content',
            ),
            ("edit", {"path": "/a", "old_string": "", "new_string": "x"}, "old_string is required"),
            ("edit", {"path": "/a", "old_string": "x"}, "new_string is required"),
            (
                "edit",
                {"path": "/a", "old_string": "x", "new_string": "x"},
                "old_string and new_string are identical",
            ),
            ("grep", {"path": "/a"}, "pattern is required"),
            ("grep", {"pattern": "", "path": "/a"}, "pattern is required"),
            (
                "grep",
                {"pattern": "x", "path": "/a", "ignore_case": "yes"},
                "ignore_case must be a boolean",
            ),
            (
                "grep",
                {"pattern": "x", "path": "/a", "ignore_case": 1},
                "ignore_case must be a boolean",
            ),
            ("grep", {"pattern": "x", "path": "/a", "include": None}, "include must be a string"),
        ],
    )
    def test_that_do_not_fit_are_named(self, of: str, raw: dict[str, Any], message: str) -> None:
        assert problem(raw, of) == f"{of}: {message}"

    def test_come_in_the_schemas_order_and_nothing_is_added(self) -> None:
        raw = '{"ignore_case": true, "path": "/é", "pattern": "\\u00e9</a>"}'
        decoded = decode(tool("grep"), raw)
        assert list(decoded.arguments) == ["pattern", "path", "ignore_case"]
        assert decoded.canonical == '{"pattern":"é</a>","path":"/é","ignore_case":true}'
        assert decoded.input.model_dump() == {
            "pattern": "é</a>",
            "path": "/é",
            "include": "",
            "ignore_case": True,
        }


class Colour(enum.StrEnum):
    RED = "red"


class Point(BaseModel):
    """Not closed by its own configuration."""

    x: int
    y: float = 0.0


class Drawing(ToolInput):
    """A model with a bit of everything."""

    points: list[Point]
    title: str | None = None
    colour: Colour = Colour.RED
    when: datetime.date | None = None
    kind: Literal["line", "area"] = "line"
    size: int | str = 1
    labels: dict[str, Point] = Field(default_factory=dict)
    from_: str = Field(default="", alias="from")

    @field_validator("title")
    @classmethod
    def _not_shouting(cls, value: str | None) -> str | None:
        if value is not None and value.isupper():
            raise ValueError("must not\n be shouted")
        return value


class Draw:
    """A tool that knows nothing of ours but the shape."""

    name = "draw"
    description = "Draw something."
    input = Drawing

    async def execute(self, context: ToolContext, input: Drawing, /) -> Outcome:
        return Outcome(output=str(len(input.points)))


class TestAnyTool:
    def decode(self, raw: Any) -> Decoded:
        return decode(Draw(), raw)

    def test_gets_its_own_model(self) -> None:
        decoded = self.decode(
            {
                "when": "2026-01-02",
                "from": "a",
                "points": [{"y": 1, "x": 2}],
                "labels": {"b": {"x": 1}, "a": {"y": 2.5, "x": 1}},
                "colour": "red",
            }
        )
        drawing = decoded.input
        assert isinstance(drawing, Drawing)
        assert drawing.when == datetime.date(2026, 1, 2)
        assert drawing.points[0].y == 1.0
        assert drawing.from_ == "a"
        assert decoded.canonical == (
            '{"points":[{"x":2,"y":1}],"colour":"red","when":"2026-01-02",'
            '"labels":{"b":{"x":1},"a":{"x":1,"y":2.5}},"from":"a"}'
        )

    @pytest.mark.parametrize(
        ("raw", "message"),
        [
            ({}, "points is required"),
            ({"points": {}}, "points must be an array"),
            ({"points": [1]}, "points[0] must be an object"),
            ({"points": [{"x": 1}, {}]}, "points[1].x is required"),
            ({"points": [{"x": 1.5}]}, "points[0].x must be an integer"),
            ({"points": [{"x": "1"}]}, "points[0].x must be an integer"),
            ({"points": [{"x": 1, "y": "2"}]}, "points[0].y must be a number"),
            (
                {"points": [{"x": 1, "z": 2}]},
                'unknown property "points[0].z"; accepted: x, y',
            ),
            (
                {"points": [], "labels": {"a": {"x": 1, "z": 2}}},
                'unknown property "labels.a.z"; accepted: x, y',
            ),
            ({"points": [], "title": 1}, "title must be a string"),
            ({"points": [], "title": "LOUD"}, "title: must not be shouted"),
            ({"points": [], "size": []}, "size must be an integer or a string"),
            ({"points": [], "kind": "dot"}, "kind: input should be 'line' or 'area'"),
            ({"points": [], "colour": "blue"}, "colour: input should be 'red'"),
            ({"points": [], "from_": "x"}, 'unknown property "from_"; accepted: points, title, '),
        ],
    )
    def test_is_told_what_does_not_fit(self, raw: dict[str, Any], message: str) -> None:
        assert problem(raw, Draw()).startswith(f"draw: {message}")

    def test_may_be_open_if_it_says_so(self) -> None:
        class Open(ToolInput):
            model_config = ConfigDict(extra="allow")

            a: int = 0

        class OpenTool(Draw):
            input = Open  # type: ignore[assignment]

        decoded = decode(OpenTool(), {"z": 1, "a": 2})
        assert decoded.canonical == '{"a":2,"z":1}'


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
ANY_TOOL = st.sampled_from([*default_registry(), Draw()])
TEXT = st.text(st.characters(codec="utf-8"))


def decode_or_refuse(tool: Tool, raw: Any) -> None:
    try:
        decode(tool, raw)
    except InvalidInput as error:
        message = str(error)
    else:
        message = f"{tool.name}: "
    assert message.startswith(f"{tool.name}: ")
    assert "\n" not in message


@settings(max_examples=150, deadline=None)
@given(ANY_TOOL, st.binary() | st.text() | JSON.map(json.dumps) | JSON)
def test_nothing_but_a_refusal_comes_of_any_input(tool: Tool, raw: Any) -> None:
    decode_or_refuse(tool, raw)


@settings(max_examples=150, deadline=None)
@given(
    ANY_TOOL,
    st.dictionaries(
        st.sampled_from(["path", "content", "command", "pattern", "ignore_case", "points", "x"]),
        JSON | st.just("/f"),
    ),
)
def test_nothing_but_a_refusal_comes_of_any_properties(tool: Tool, raw: Any) -> None:
    decode_or_refuse(tool, raw)
    decode_or_refuse(tool, json.dumps(raw))


@settings(max_examples=150, deadline=None)
@given(
    pattern=TEXT.filter(bool),
    path=TEXT.filter(lambda text: "\0" not in text).map("/{}".format),
    optional=st.fixed_dictionaries({}, optional={"include": TEXT, "ignore_case": st.booleans()}),
    ascii_only=st.booleans(),
)
def test_what_is_valid_comes_back_whole(
    pattern: str, path: str, optional: dict[str, Any], ascii_only: bool
) -> None:
    given_ = {**optional, "path": path, "pattern": pattern}
    decoded = decode(tool("grep"), json.dumps(given_, ensure_ascii=ascii_only))
    assert decoded.arguments == given_
    assert json.loads(decoded.canonical) == given_
    again = decode(tool("grep"), decoded.canonical)
    assert again == decode(tool("grep"), given_) == decoded


@given(
    st.dictionaries(
        st.text(), st.one_of(st.text(), st.booleans(), st.integers(), st.none()), max_size=5
    )
)
def test_a_plain_mapping_is_written_as_the_canonical_json_is(value: dict[str, Any]) -> None:
    assert decoding._write(value) == decoding._canonical(value)
