"""`runner mcp --tools extended` as agents use it: every tool, one talk, one process, one session.

The talk is held once, by the SDK's own client; each test looks at a part of it.
"""

import asyncio
import base64
import shutil
from collections.abc import Iterator
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import mcp_types as types
import pytest

from runner.tools import named_registry
from tests.host import containers
from tests.mcp.conftest import Command, text

pytestmark = pytest.mark.docker

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
"""An image, as small as one can be."""

FILE, IMAGE = "/workspace/notes/a.txt", "/workspace/dot.png"
SCRIPT = 'pwd; echo "$GREETING"; cat; echo oops >&2; exit 4'

TALK: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("write", "write", {"path": FILE, "content": "one\ntwo\ntwo\n"}),
    (
        "write bytes",
        "write",
        {"path": IMAGE, "content": base64.b64encode(PIXEL).decode(), "encoding": "base64"},
    ),
    ("read", "read", {"path": FILE}),
    ("read a range", "read", {"path": FILE, "offset": 2, "limit": 1}),
    ("read an image", "read", {"path": IMAGE}),
    ("read bytes", "read", {"path": IMAGE, "encoding": "base64"}),
    (
        "edit",
        "edit",
        {"path": FILE, "old_string": "two", "new_string": "2", "replace_all": True},
    ),
    (
        "edit several",
        "multi_edit",
        {
            "path": FILE,
            "edits": [
                {"old_string": "one", "new_string": "1"},
                {"old_string": "1\n2\n2", "new_string": "1\n2\n3"},
            ],
        },
    ),
    ("search", "grep", {"pattern": "^[13]$", "path": "/workspace"}),
    ("find", "glob", {"pattern": "**/*.{txt,png}"}),
    ("list", "list", {"path": "/workspace", "depth": 2}),
    (
        "run",
        "bash",
        {
            "command": SCRIPT,
            "cwd": "/workspace/notes",
            "env": {"GREETING": "good day"},
            "stdin": "typed\n",
            "separate_stderr": True,
        },
    ),
    ("run too long", "bash", {"command": "echo begun; sleep 60", "timeout_s": 0.3}),
    ("go somewhere", "shell", {"command": "cd notes; seen=yes"}),
    ("still there", "shell", {"command": 'pwd; echo "$seen"'}),
    ("begin again", "shell", {"restart": True}),
    ("start", "process_start", {"command": 'read line; echo "got $line"; exec sleep 60'}),
    ("tell it", "process_write", {"id": "p-1", "text": "this\n"}),
    ("hear it", "process_poll", {"id": "p-1", "wait_s": 10}),
    ("see all", "process_list", {}),
    ("end it", "process_kill", {"id": "p-1"}),
    ("fetch", "http_get", {"url": "https://example.com/"}),
)

NO_ERROR = {label for label, _, _ in TALK} - {"run", "run too long", "fetch"}


class Heard:
    """What the client was told: the tools, the answer to each call, what was there meanwhile."""

    tools: dict[str, types.Tool]
    answers: dict[str, types.CallToolResult]
    during: list[str]
    after: list[str]

    def data(self, label: str) -> dict[str, Any]:
        content = self.answers[label].structured_content
        assert isinstance(content, dict)
        return content


async def talk(command: Command, *options: str) -> Heard:
    heard = Heard()
    heard.answers = {}
    async with command.client("auto", "--tools", "extended", *options) as agent:
        heard.tools = {tool.name: tool for tool in (await agent.list_tools()).tools}
        for label, name, arguments in TALK:
            heard.answers[label] = await agent.call_tool(name, arguments)
        heard.during = containers(command.settings)
    heard.after = containers(command.settings)
    return heard


@pytest.fixture(scope="module")
def heard(docker_daemon: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Heard]:
    directory = tmp_path_factory.mktemp("extended")
    workspace = directory / "work"
    workspace.mkdir()
    # `http_get` is let through by this policy, so that it is the network that refuses it.
    policy = directory / "policy.yaml"
    policy.write_text("{mode: pattern, default: allow}")
    command = Command(directory / "data", workspace)
    yield asyncio.run(talk(command, "--policy", str(policy)))
    shutil.rmtree(command.settings.runtime_dir, ignore_errors=True)


def test_every_tool_of_the_set_is_listed_in_its_order_and_called(heard: Heard) -> None:
    names = named_registry("extended").names()

    assert list(heard.tools) == list(names)
    assert {name for _, name, _ in TALK} == set(names)


def test_all_of_it_was_one_session_which_ends_with_the_client(heard: Heard) -> None:
    assert len(heard.during) == 1
    assert heard.after == []


@pytest.mark.parametrize(("label", "name", "arguments"), TALK, ids=[label for label, _, _ in TALK])
def test_what_is_sent_and_what_comes_back_fit_the_schemas_that_were_listed(
    heard: Heard, label: str, name: str, arguments: dict[str, Any]
) -> None:
    tool = heard.tools[name]
    for schema, value in (
        (tool.input_schema, arguments),
        (tool.output_schema, heard.data(label)),
    ):
        assert schema is not None
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(value, schema, jsonschema.Draft202012Validator)
    assert heard.answers[label].is_error == (label not in NO_ERROR)


HINTS = ("read_only_hint", "destructive_hint", "idempotent_hint", "open_world_hint")


def test_each_tool_says_what_it_may_do(heard: Heard) -> None:
    reads, writes = (True, False, True, False), (False, True, False, False)

    assert {
        name: tuple(getattr(tool.annotations, hint) for hint in HINTS)
        for name, tool in heard.tools.items()
    } == {
        "read": reads,
        "write": (False, True, True, False),
        "edit": writes,
        "multi_edit": writes,
        "grep": reads,
        "glob": reads,
        "list": reads,
        "bash": writes,
        "shell": writes,
        "process_start": writes,
        "process_poll": (False, False, False, False),
        "process_write": writes,
        "process_kill": writes,
        "process_list": reads,
        "http_get": (True, False, True, True),
    }


def test_files_are_read_whole_in_part_and_as_bytes(heard: Heard) -> None:
    assert text(heard.answers["read"]) == "one\ntwo\ntwo\n"
    assert text(heard.answers["read a range"]).startswith("two\n(lines 2-2 of 3; ")
    assert heard.data("read a range")["details"]["next_offset"] == 3
    assert base64.b64decode(text(heard.answers["read bytes"])) == PIXEL


def test_an_image_is_content_of_its_own_beside_a_text_that_names_it(heard: Heard) -> None:
    words, image = heard.answers["read an image"].content

    assert isinstance(words, types.TextContent)
    assert words.text == f"(image/png, {len(PIXEL)} bytes)"
    assert isinstance(image, types.ImageContent)
    assert (image.mime_type, base64.b64decode(image.data)) == ("image/png", PIXEL)


def test_files_are_changed_and_found(heard: Heard) -> None:
    assert text(heard.answers["edit"]) == f"edited {FILE} (2 replacements)"
    assert text(heard.answers["edit several"]) == f"edited {FILE} (2 replacements)"
    assert text(heard.answers["search"]) == f"{FILE}:1: 1\n{FILE}:3: 3\n"
    assert text(heard.answers["find"]) == f"{IMAGE}\n{FILE}\n"
    assert text(heard.answers["list"]).splitlines() == [
        f"dot.png ({len(PIXEL)} bytes)",
        "notes/",
        "notes/a.txt (6 bytes)",
    ]


def test_a_command_gets_what_was_given_and_its_errors_are_apart(heard: Heard) -> None:
    data = heard.data("run")

    assert text(heard.answers["run"]) == ("/workspace/notes\ngood day\ntyped\nbash: exit status 4")
    assert (data["status"], data["exit_code"]) == ("failed", 4)
    assert data["details"]["stderr"] == "oops\n"


def test_a_call_may_shorten_its_own_time(heard: Heard) -> None:
    assert text(heard.answers["run too long"]) == "begun\nbash: timed out after 0.3s"
    assert heard.data("run too long")["status"] == "timed_out"


def test_a_shell_keeps_its_state_from_call_to_call(heard: Heard) -> None:
    assert text(heard.answers["still there"]) == "/workspace/notes\nyes\n"


def test_a_process_goes_on_between_calls_until_it_is_ended(heard: Heard) -> None:
    assert text(heard.answers["start"]) == "started p-1"
    assert text(heard.answers["hear it"]) == "got this\n[p-1 is running]"
    assert [row["id"] for row in heard.data("see all")["details"]["processes"]] == ["p-1"]
    assert "p-1" in text(heard.answers["end it"])


def test_without_a_network_nothing_is_fetched_and_the_reason_is_said(heard: Heard) -> None:
    assert text(heard.answers["fetch"]).startswith("http_get: this session has no network")
    assert heard.data("fetch")["status"] == "denied"
