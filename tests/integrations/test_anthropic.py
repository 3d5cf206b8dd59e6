"""Tools for Anthropic's SDK, with its real runners on a model server on loopback."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from anthropic.lib.tools import ToolError
from anthropic.lib.tools._beta_functions import aclose_runnable_tool
from anthropic.lib.tools.agent_toolset import AgentToolContext, beta_agent_toolset_20260401

from runner import AsyncRunner, AsyncSession, Policy, Status
from runner.errors import ConfigurationError
from runner.integrations.anthropic import (
    SessionTool,
    agent_toolset,
    bash_tool,
    registry_tools,
    text_editor_tool,
    worker_tools,
)
from tests.conftest import make_settings

from .fake_managed_agents import FakeManagedAgents
from .fake_models import FakeModels, Reply, Use, results, use
from .running import run_example

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

POLICY = Policy.parse("""
version: 1
mode: pattern
default: allow
deny:
  - {tool: bash, match: 'git push', justification: "pushing is for people"}
  - {tool: [read, write, edit], glob: '/workspace/secret/**', justification: "not your business"}
""")
EDITOR = "str_replace_based_edit_tool"


@pytest.fixture
async def client(models: FakeModels) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=models.root, api_key="k", max_retries=0) as client:
        yield client


async def run(client: AsyncAnthropic, tools: list[SessionTool], *, stream: bool = False) -> str:
    """Let the SDK's own runner work until the model has nothing to use any more."""
    runner: Any = client.beta.messages.tool_runner(
        model="claude-sonnet-5-5",
        max_tokens=1000,
        tools=tools,
        messages=[{"role": "user", "content": "Go."}],
        stream=stream,
    )
    if stream:
        async for message in runner:
            last = await message.get_final_message()
    else:
        last = await runner.until_done()
    return "".join(block.text for block in last.content if block.type == "text")


def told(models: FakeModels) -> list[tuple[str, bool]]:
    """What each use of the last turn was answered, and whether as an error."""
    return [(text_of(one["content"]), bool(one.get("is_error"))) for one in results(models.last)]


def text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", f"[{part['type']}]") for part in content)


# bash_20250124.


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_bash_keeps_its_state_from_use_to_use_until_it_is_restarted(
    session: AsyncSession, models: FakeModels, client: AsyncAnthropic, stream: bool
) -> None:
    models.script(
        use("bash", {"command": "cd /tmp && word=kept"}),
        use("bash", {"command": 'echo "$PWD $word"'}, "use_2"),
        use("bash", {"restart": True}, "use_3"),
        use("bash", {"command": 'echo "$PWD $word."'}, "use_4"),
        Reply("Done."),
    )

    assert await run(client, [bash_tool(session)], stream=stream) == "Done."

    assert models.requests[0].body["tools"] == [{"type": "bash_20250124", "name": "bash"}]
    answers = [text_of(results(request.body)[0]["content"]) for request in models.requests[1:]]
    assert answers[1] == "/tmp kept\n"
    assert answers[3] == "/workspace .\n"
    assert told(models) == [("/workspace .\n", False)]


async def test_a_denial_and_a_failure_are_errors_with_their_words(
    session: AsyncSession, models: FakeModels, client: AsyncAnthropic
) -> None:
    models.script(
        Reply(
            uses=(
                Use("bash", {"command": "git push origin"}, "use_1"),
                Use("bash", {"command": "echo out; echo err >&2; (exit 3)"}, "use_2"),
                Use("bash", {"comand": "ls"}, "use_3"),
            )
        ),
        Reply("I see."),
    )

    await run(client, [bash_tool(session)])

    denied, failed, invalid = told(models)
    assert denied[1]
    assert "pushing is for people" in denied[0]
    assert failed[1]
    assert failed[0].startswith("out\nerr\n")
    assert "exit status 3" in failed[0]
    assert invalid[1]
    assert "comand" in invalid[0]


# text_editor_20250728.


async def edits(tool: SessionTool, **input: Any) -> str:
    """Use the editor; errors are marked."""
    try:
        return text_of(await tool.call(input))
    except ToolError as error:
        return f"error: {text_of(error.content)}"


async def test_the_editor_is_offered_and_answered_as_the_api_wants(
    session: AsyncSession, models: FakeModels, client: AsyncAnthropic
) -> None:
    path = "/workspace/wire.txt"
    models.script(
        use(EDITOR, {"command": "create", "path": path, "file_text": "one\ntwo\n"}),
        use(EDITOR, {"command": "view", "path": path, "view_range": [2, -1]}),
        Reply("Two."),
    )

    assert await run(client, [text_editor_tool(session, max_characters=10_000)]) == "Two."

    (tool,) = models.last["tools"]
    assert tool == {"type": "text_editor_20250728", "name": EDITOR, "max_characters": 10_000}
    assert told(models) == [("     2\ttwo", False)]


async def test_the_editor_views_replaces_and_inserts(session: AsyncSession) -> None:
    editor = text_editor_tool(session)
    path = "/workspace/edited.txt"
    await edits(editor, command="create", path=path, file_text="one\ntwo\nthree")

    assert (
        await edits(editor, command="view", path=path) == "     1\tone\n     2\ttwo\n     3\tthree"
    )
    assert await edits(editor, command="view", path=path, view_range=[2, 2]) == "     2\ttwo"
    assert "(1 replacement)" in await edits(
        editor, command="str_replace", path=path, old_str="two\n", new_str="2\n"
    )
    await edits(editor, command="insert", path=path, insert_line=0, insert_text="zero\n")
    await edits(editor, command="insert", path=path, insert_line=2, insert_text="between")
    await edits(editor, command="insert", path=path, insert_line=5, insert_text="last\n")
    assert (await session.read(path)).text == "zero\none\nbetween\n2\nthree\nlast\n"
    await edits(editor, command="str_replace", path=path, old_str="between\n")
    assert (await session.read(path)).text == "zero\none\n2\nthree\nlast\n"


async def test_the_editor_keeps_bytes_that_are_no_utf_8_when_it_inserts(
    session: AsyncSession,
) -> None:
    await session.upload("/workspace/latin.txt", b"caf\xe9\r\nend")

    await edits(
        text_editor_tool(session),
        command="insert",
        path="/workspace/latin.txt",
        insert_line=1,
        insert_text="new\n",
    )

    content = await session.download("/workspace/latin.txt", limit_bytes=100)
    assert content == b"caf\xe9\r\nnew\nend"


async def test_the_editor_lists_a_directory_two_levels_deep(session: AsyncSession) -> None:
    await session.bash("mkdir -p tree/a/b/c; touch tree/x tree/a/y")

    shown = await edits(text_editor_tool(session), command="view", path="/workspace/tree")

    assert "x (0 bytes)" in shown
    assert "a/y (0 bytes)" in shown
    assert "a/b/" in shown
    assert "a/b/c" not in shown


async def test_the_editor_leaves_out_what_is_over_its_limit_and_says_so(
    session: AsyncSession,
) -> None:
    editor = text_editor_tool(session, max_characters=20)
    await session.write("/workspace/long.txt", "x" * 100)

    shown = await edits(editor, command="view", path="/workspace/long.txt")

    assert shown.startswith("     1\t" + "x" * 13 + "\n[… 87 characters left out;")


@pytest.mark.parametrize(
    ("input", "words"),
    [
        ({"command": "undo_edit", "path": "/workspace/a"}, "undo_edit"),
        ({"command": "view"}, "path"),
        ({"command": "view", "path": "a"}, "must be absolute"),
        ({"command": "view", "path": "/workspace/edited.txt", "view_range": [3, 2]}, "view_range"),
        ({"command": "view", "path": "/workspace/missing"}, "no such file or directory"),
        ({"command": "view", "path": "/workspace/secret/key"}, "not your business"),
        ({"command": "insert", "path": "/w", "insert_line": -1, "insert_text": ""}, "insert_line"),
        (
            {
                "command": "insert",
                "path": "/workspace/edited.txt",
                "insert_line": 1000,
                "insert_text": "x",
            },
            "lines there",
        ),
        (
            {"command": "str_replace", "path": "/workspace/edited.txt", "old_str": "nowhere"},
            "old_string",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_the_editor_can_not_do_is_an_error_for_the_model(
    session: AsyncSession, input: dict[str, Any], words: str
) -> None:
    await session.write("/workspace/edited.txt", "one\ntwo\n")

    shown = await edits(text_editor_tool(session), **input)

    assert shown.startswith("error: ")
    assert words in shown


# The agent toolset.


async def test_the_toolset_has_the_names_and_the_input_of_the_sdks_own(
    session: AsyncSession, tmp_path: Path
) -> None:
    theirs = {
        tool.name: tool.to_dict()["input_schema"]
        for tool in beta_agent_toolset_20260401(AgentToolContext(workdir=tmp_path))
    }

    assert {tool.name: tool.to_dict()["input_schema"] for tool in agent_toolset(session)} == theirs


async def test_the_toolset_works_on_the_workspace(
    session: AsyncSession, models: FakeModels, client: AsyncAnthropic
) -> None:
    models.script(
        use("write", {"file_path": "src/a.py", "content": "one = 1\ntwo = 1\n"}),
        use("edit", {"file_path": "src/a.py", "old_string": "1", "new_string": "2"}),
        use(
            "edit",
            {"file_path": "src/a.py", "old_string": "1", "new_string": "2", "replace_all": True},
        ),
        Reply(
            uses=(
                Use("read", {"file_path": "/workspace/src/a.py", "view_range": [2, 2]}, "use_1"),
                Use("glob", {"pattern": "**/*.py", "path": "src"}, "use_2"),
                Use("grep", {"pattern": "two = [0-9]"}, "use_3"),
                Use("bash", {"command": "sleep 30", "timeout_ms": 300}, "use_4"),
                Use("read", {"file_path": 3}, "use_5"),
            )
        ),
        Reply("Done."),
    )

    await run(client, agent_toolset(session))

    assert "found 2 occurrences" in text_of(results(models.requests[2].body)[0]["content"])
    read, found, lines, slow, invalid = told(models)
    assert read[0].startswith("two = 2\n")
    assert found == ("/workspace/src/a.py\n", False)
    assert lines == ("/workspace/src/a.py:2: two = 2\n", False)
    assert slow[1]
    assert "timed out after 0.3s" in slow[0]
    assert invalid[1]
    assert "file_path" in invalid[0]


async def test_images_and_documents_are_shown_as_such(
    session: AsyncSession, models: FakeModels, client: AsyncAnthropic
) -> None:
    png = b"\x89PNG\r\n\x1a\n" + bytes(20)
    pdf = b"%PDF-1.4\n"
    await session.upload("/workspace/a.png", png)
    await session.upload("/workspace/a.pdf", pdf)
    models.script(
        Reply(
            uses=(
                Use("read", {"file_path": "a.png"}, "use_1"),
                Use("read", {"file_path": "a.pdf"}, "use_2"),
            )
        ),
        Reply("Seen."),
    )

    await run(client, agent_toolset(session))

    image, document = (one["content"][-1] for one in results(models.last))
    assert image["type"] == "image"
    assert image["source"]["media_type"] == "image/png"
    assert base64.b64decode(image["source"]["data"]) == png
    assert document["type"] == "document"
    assert base64.b64decode(document["source"]["data"]) == pdf


async def test_a_worker_gets_a_session_for_each_item_on_its_working_directory(
    runner: AsyncRunner, tmp_path: Path
) -> None:
    directory = tmp_path / "item"
    directory.mkdir()
    (directory / "task").write_text("from the host")
    make = worker_tools(runner, title="an item")
    before = len(runner.sessions())

    tools = {tool.name: tool for tool in make(AgentToolContext(workdir=directory))}
    assert len(runner.sessions()) == before, "nothing is opened before it is used"
    assert "from the host" in text_of(await tools["read"].call({"file_path": "task"}))
    assert (await tools["bash"].call({"command": "pwd"})) == "/workspace\n"
    (ours,) = [one for one in runner.sessions() if one.workspace == str(directory)]
    assert ours.title == "an item"
    for tool in tools.values():
        await aclose_runnable_tool(tool)

    assert len(runner.sessions()) == before


async def test_a_worker_of_a_self_hosted_environment_works_in_a_session(
    runner: AsyncRunner, tmp_path: Path
) -> None:
    uses = (
        Use("bash", {"command": "echo worked > result; cat result"}, "use_1"),
        Use("bash", {"command": "git push"}, "use_2"),
        Use("read", {"file_path": "task"}, "use_3"),
    )
    (tmp_path / "task").write_text("from the host")
    with FakeManagedAgents(*uses) as agents:
        async with AsyncAnthropic(base_url=agents.root, api_key="k", max_retries=0) as client:
            worker = client.beta.environments.work.worker(
                environment_key="key",
                workdir=tmp_path,
                tools=worker_tools(runner, title="a worker's"),
                max_idle=0.1,
            )
            await worker.handle_item(
                work_id="work_1", environment_id="env_1", session_id="session_1"
            )

    assert text_of(agents.results["use_1"]["content"]) == "worked\n"
    assert agents.results["use_2"]["is_error"] is True
    assert "pushing is for people" in text_of(agents.results["use_2"]["content"])
    assert text_of(agents.results["use_3"]["content"]) == "from the host"
    assert agents.stopped
    assert (tmp_path / "result").read_text() == "worked\n"
    ended = [one for one in runner.sessions(include_ended=True) if one.title == "a worker's"]
    assert [one.ended_at is not None for one in ended] == [True]


# All of a registry.


async def test_the_registrys_own_tools_keep_their_names_and_schemas(
    session: AsyncSession, models: FakeModels, client: AsyncAnthropic
) -> None:
    models.script(use("read", {"path": "/workspace/secret/key"}), Reply("No."))

    await run(client, registry_tools(session))

    assert models.last["tools"] == session.tools.definitions("anthropic")
    ((words, is_error),) = told(models)
    assert is_error
    assert "not your business" in words
    (record, *_) = session._controller.store.recent_calls(session.id, limit=1)
    assert (record.tool, record.status) == ("read", Status.DENIED)


async def test_a_runner_without_the_extended_tools_is_refused_at_once(
    docker_daemon: None, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path / "data")
    async with AsyncRunner(POLICY, settings=settings) as five, five.session() as session:
        with pytest.raises(ConfigurationError, match='tools="extended"'):
            bash_tool(session)
        assert [tool.name for tool in registry_tools(session, ["read"])] == ["read"]


async def test_the_example_runs_what_the_model_wants_and_denies_what_its_policy_does(
    models: FakeModels, tmp_path: Path
) -> None:
    program = {"command": "create", "path": "/workspace/p.py", "file_text": "print(2 + 3)\n"}
    models.script(
        use(EDITOR, program),
        Reply(
            uses=(
                Use("bash", {"command": "python3 p.py"}, "use_2"),
                Use("bash", {"command": "pip install numpy"}, "use_3"),
            )
        ),
        Reply("Five."),
    )

    shown = await asyncio.to_thread(
        run_example,
        "anthropic_agent.py",
        "Add.",
        data_dir=tmp_path / "data",
        ANTHROPIC_BASE_URL=models.root,
        ANTHROPIC_API_KEY="k",
    )

    assert shown.endswith("Five.\n")
    added, denied = told(models)
    assert added == ("5\n", False)
    assert "there is no network" in denied[0]
