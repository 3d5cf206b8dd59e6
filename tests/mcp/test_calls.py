"""Calls of tools by the SDK's client, on the fake engine, under both revisions."""

import asyncio
import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from runner import AsyncRunner, Outcome, Registry, ToolContext, logs
from runner.model import Block, SessionState
from runner.testing import FakeEngine
from runner.tools import default_registry
from runner.tools.base import ToolInput
from tests.conftest import make_settings
from tests.mcp.conftest import OLD, Serve, client, text

pytestmark = pytest.mark.anyio

NO_CURL = "default: allow\ndeny: [{tool: bash, command: curl, justification: use the mirror}]\n"


def runner_of(server: Any) -> AsyncRunner:
    found = server._runner
    assert isinstance(found, AsyncRunner)
    return found


async def containers(engine: FakeEngine) -> list[Any]:
    return list(await engine.containers({}))


async def test_a_command_that_works_gives_its_output_as_text_and_as_data(
    serve: Serve, revision: str
) -> None:
    async with serve() as server, client(server, revision) as agent:
        result = await agent.call_tool("bash", {"command": "echo hi"})

    assert not result.is_error
    assert text(result) == "hi\n"
    assert result.structured_content["status"] == "ok"
    assert result.structured_content["output"] == "hi\n"
    assert result.structured_content["exit_code"] == 0


@pytest.mark.parametrize(
    ("name", "arguments", "status", "said"),
    [
        ("bash", {"command": "exit 3"}, "failed", "bash: exit status 3"),
        ("bash", {"command": "curl x"}, "denied", "bash: denied by pattern policy: use the mirror"),
        ("bash", {"command": 1}, "invalid", "bash: command must be a string"),
        ("bash", {}, "invalid", "bash: command is required"),
        ("bash", None, "invalid", "bash: command is required"),
        ("read", {"path": "a"}, "invalid", 'read: path must be absolute, got "a"'),
        ("bash", {"command": "ls", "approved": True}, "invalid", "unknown property"),
    ],
)
async def test_a_call_that_does_not_do_what_it_should_is_a_result_that_is_an_error(
    serve: Serve, revision: str, name: str, arguments: Any, status: str, said: str
) -> None:
    async with serve(NO_CURL) as server, client(server, revision) as agent:
        result = await agent.call_tool(name, arguments)

    assert result.is_error
    assert result.structured_content["status"] == status
    assert said in text(result)


async def test_a_call_that_takes_too_long_is_a_result(serve: Serve, revision: str) -> None:
    async with (
        serve(options={"timeout_s": 0.1}) as server,
        client(server, revision) as agent,
    ):
        result = await agent.call_tool("bash", {"command": "echo hi; sleep 60"})

    assert result.structured_content["status"] == "timed_out"
    assert text(result) == "hi\nbash: timed out after 0.1s"


async def test_every_call_is_recorded_like_any_other(serve: Serve, revision: str) -> None:
    async with serve(NO_CURL) as server:
        async with client(server, revision) as agent:
            for command in ("echo hi", "curl x"):
                await agent.call_tool("bash", {"command": command})
        records = [record for _, record in runner_of(server).controller.store.calls()]

    assert [(record.arguments, str(record.status)) for record in records] == [
        ('{"command":"echo hi"}', "ok"),
        ('{"command":"curl x"}', "denied"),
    ]


async def test_a_tool_that_there_is_not_is_an_error_of_the_protocol(
    serve: Serve, revision: str
) -> None:
    engine = FakeEngine()
    async with serve(engine=engine) as server, client(server, revision) as agent:
        with pytest.raises(MCPError, match=r"there are: read, write, edit, grep, bash") as caught:
            await agent.call_tool("rm", {})

    assert caught.value.code == types.INVALID_PARAMS
    assert not await containers(engine)


async def test_what_the_runner_can_not_do_is_an_error_of_the_protocol_with_its_code(
    serve: Serve, revision: str, tmp_path: Path
) -> None:
    async with (
        serve(options={"workspace": tmp_path / "missing"}) as server,
        client(server, revision) as agent,
    ):
        with pytest.raises(MCPError, match="missing") as caught:
            await agent.call_tool("bash", {"command": "ls"})

    assert (caught.value.code, caught.value.data) == (-32602, {"code": "workspace"})


# Sessions.


async def test_a_client_has_one_session_made_by_its_first_call_and_ended_with_the_server(
    serve: Serve, revision: str
) -> None:
    engine = FakeEngine()
    async with serve(engine=engine) as server, client(server, revision) as agent:
        await agent.list_tools()
        before = len(await containers(engine))
        await asyncio.gather(*(agent.call_tool("bash", {"command": f"echo {n}"}) for n in range(5)))
        sessions = runner_of(server).sessions()
        during = len(await containers(engine))

    assert (before, during, len(await containers(engine))) == (0, 1, 0)
    assert len(sessions) == 1
    assert sessions[0].title == "MCP: mcp"


async def test_a_session_whose_time_ran_out_is_replaced_after_its_client_was_told(
    serve: Serve, revision: str, tmp_path: Path
) -> None:
    options = {"workspace": tmp_path, "idle_timeout_s": 0.05}
    async with serve(options=options) as server, client(server, revision) as agent:
        await agent.call_tool("bash", {"command": "echo hi"})
        store = runner_of(server).controller.store
        (session,) = store.sessions()
        while store.session(session.id).state is SessionState.OPEN:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
        with pytest.raises(MCPError, match=r"its workspace is still there\. Call again"):
            await agent.call_tool("bash", {"command": "echo hi"})

        assert text(await agent.call_tool("bash", {"command": "echo hi"})) == "hi\n"


async def test_calls_may_open_name_and_close_sessions(serve: Serve, revision: str) -> None:
    engine = FakeEngine()
    async with serve(engine=engine, named=True) as server, client(server, revision) as agent:
        one, other = [
            (await agent.call_tool("open_session", {"title": title})).structured_content[
                "session_id"
            ]
            for title in ("one", "other")
        ]
        write = {"path": "/workspace/f", "content": "x"}
        await agent.call_tool("write", {"session_id": one, **write})
        there = await agent.call_tool("read", {"session_id": one, "path": "/workspace/f"})
        elsewhere = await agent.call_tool("read", {"session_id": other, "path": "/workspace/f"})
        titles = [session.title for session in runner_of(server).sessions()]
        closed = await agent.call_tool("close_session", {"session_id": one})
        with pytest.raises(MCPError, match="there is no open session") as caught:
            await agent.call_tool("bash", {"session_id": one, "command": "ls"})
        left = len(await containers(engine))

    assert (text(there), elsewhere.is_error) == ("x", True)
    assert titles == ["one", "other"]
    assert not closed.is_error
    assert caught.value.data == {"code": "session_not_found"}
    assert left == 1


async def test_the_policy_and_the_record_do_not_see_the_name_of_the_session(
    serve: Serve, revision: str
) -> None:
    async with serve(named=True) as server, client(server, revision) as agent:
        opened = await agent.call_tool("open_session", {})
        session_id = opened.structured_content["session_id"]
        await agent.call_tool("bash", {"session_id": session_id, "command": "echo hi"})
        ((_, record),) = runner_of(server).controller.store.calls()

    assert record.arguments == '{"command":"echo hi"}'


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("bash", {"command": "ls"}),
        ("bash", {"command": "ls", "session_id": 1}),
        ("open_session", {"title": 1}),
        ("open_session", {"image": "evil"}),
        ("open_session", {"workspace": "/etc"}),
        ("close_session", {}),
        ("close_session", {"session_id": None}),
    ],
)
async def test_a_call_that_names_no_session_or_asks_for_more_is_a_result_that_says_so(
    serve: Serve, revision: str, name: str, arguments: dict[str, Any]
) -> None:
    async with serve(named=True) as server, client(server, revision) as agent:
        result = await agent.call_tool(name, arguments)
        sessions = runner_of(server).sessions()

    assert result.is_error
    assert not sessions


async def test_there_are_only_so_many_sessions(serve: Serve, tmp_path: Path) -> None:
    settings = make_settings(tmp_path / "data", mcp_max_sessions=2)
    async with serve(settings=settings, named=True) as server, client(server, OLD) as agent:
        first = await agent.call_tool("open_session", {})
        await agent.call_tool("open_session", {})
        with pytest.raises(MCPError, match="2 sessions are open, and there may be no more"):
            await agent.call_tool("open_session", {})
        await agent.call_tool("close_session", first.structured_content)
        again = await agent.call_tool("open_session", {})

    assert not again.is_error


# While a call runs.


async def test_a_call_that_takes_long_is_heard_of(serve: Serve, revision: str) -> None:
    heard: list[tuple[float, str | None]] = []
    enough = asyncio.Event()

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, message))
        if message == "building" and len(heard) > 2:
            enough.set()

    async with serve() as server, client(server, revision) as agent:
        calling = asyncio.create_task(
            agent.call_tool(
                "bash", {"command": "echo building; sleep 60"}, progress_callback=progress
            )
        )
        await enough.wait()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)

    assert [done for done, _ in heard] == sorted({done for done, _ in heard})
    assert heard[-1][1] == "building"


async def test_a_call_that_is_cancelled_ends_and_the_session_goes_on(
    serve: Serve, revision: str
) -> None:
    async with serve() as server, client(server, revision) as agent:
        started = asyncio.Event()

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            started.set()

        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(
                    lambda: agent.call_tool(
                        "bash", {"command": "sleep 60"}, progress_callback=progress
                    )
                )
                await started.wait()
                scope.cancel()
        store = runner_of(server).controller.store
        while [str(record.status) for _, record in store.calls()] != ["cancelled"]:
            await asyncio.sleep(0.01)

        assert text(await agent.call_tool("bash", {"command": "echo hi"})) == "hi\n"


async def test_closing_the_server_ends_what_runs(serve: Serve, revision: str) -> None:
    engine = FakeEngine()
    async with serve(engine=engine) as server, client(server, revision) as agent:
        calling = asyncio.create_task(agent.call_tool("bash", {"command": "sleep 60"}))
        while not await containers(engine):
            await asyncio.sleep(0.01)
        await server.close()
        with pytest.raises(MCPError, match="the server is going away"):
            await calling

        assert not await containers(engine)


# Content that is no text.


class Picture:
    """Gives content of a kind."""

    name = "picture"
    description = "Shows a picture."
    input = ToolInput

    def __init__(self, media_type: str):
        self._block = Block(media_type, b"\x89bytes")

    async def execute(self, context: ToolContext, input: ToolInput) -> Outcome:
        return replace(Outcome(output="a picture"), blocks=(self._block,))


@pytest.mark.parametrize(
    ("media_type", "kind"),
    [
        ("image/png", types.ImageContent),
        ("audio/wav", types.AudioContent),
        ("application/pdf", types.EmbeddedResource),
    ],
)
async def test_content_that_is_no_text_comes_beside_the_text(
    serve: Serve, revision: str, media_type: str, kind: type
) -> None:
    registry = Registry()
    registry.register(Picture(media_type))
    async with (
        serve("default: allow", tools=registry) as server,
        client(server, revision) as agent,
    ):
        result = await agent.call_tool("picture", {})

    assert text(result) == "a picture"
    content = result.content[1]
    assert isinstance(content, kind)
    values = content.model_dump(by_alias=True)
    data = values.get("data") or values["resource"]["blob"]
    assert base64.b64decode(data) == b"\x89bytes"
    assert (values.get("mimeType") or values["resource"]["mimeType"]) == media_type


# The list.


async def test_the_tools_are_listed_with_our_schemas_and_in_our_order(
    serve: Serve, revision: str
) -> None:
    async with serve() as server, client(server, revision) as agent:
        listed = (await agent.list_tools()).tools
        again = (await agent.list_tools()).tools

    ours = default_registry().definitions("mcp")
    assert [(tool.name, tool.description, tool.input_schema) for tool in listed] == [
        (one["name"], one["description"], one["inputSchema"]) for one in ours
    ]
    assert listed == again


HINTS = ("read_only_hint", "destructive_hint", "idempotent_hint", "open_world_hint")


async def test_the_tools_say_what_they_may_do(serve: Serve, revision: str) -> None:
    async with serve() as server, client(server, revision) as agent:
        listed = (await agent.list_tools()).tools

    hints = {tool.name: tuple(getattr(tool.annotations, hint) for hint in HINTS) for tool in listed}
    assert hints == {
        "read": (True, False, True, False),
        "write": (False, True, True, False),
        "edit": (False, True, False, False),
        "grep": (True, False, True, False),
        "bash": (False, True, False, False),
    }


async def test_a_shell_reaches_an_open_world_where_it_has_a_network(
    serve: Serve, revision: str
) -> None:
    async with serve(options={"network": "open"}) as server, client(server, revision) as agent:
        listed = (await agent.list_tools()).tools

    assert {tool.name: tool.annotations.open_world_hint for tool in listed}["bash"]  # type: ignore[union-attr]


async def test_tools_that_name_a_session_say_so_and_two_more_are_there(
    serve: Serve, revision: str
) -> None:
    async with serve(named=True) as server, client(server, revision) as agent:
        listed = (await agent.list_tools()).tools

    names = [tool.name for tool in listed]
    assert names == ["read", "write", "edit", "grep", "bash", "open_session", "close_session"]
    for tool in listed[:5]:
        assert next(iter(tool.input_schema["properties"])) == "session_id"
        assert tool.input_schema["required"][0] == "session_id"


async def test_the_trace_of_a_caller_is_in_our_log(
    serve: Serve, revision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def meta(traceparent: str) -> Any:
        return {"traceparent": traceparent}

    logs.configure("json")
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    async with serve() as server, client(server, revision) as agent:
        await agent.call_tool("bash", {"command": "echo hi"}, meta=meta(trace))
        await agent.call_tool("bash", {"command": "echo hi"}, meta=meta("\n"))

    lines = [line for line in capsys.readouterr().err.splitlines() if "tool.execute" in line]
    assert [trace in line for line in lines] == [True, False]


async def test_nothing_is_asked_of_a_client_while_it_says_hello(serve: Serve) -> None:
    async with serve() as server, client(server, OLD) as agent:
        assert agent.server_info is not None
        assert agent.server_info.name == "rousseau-runner"
        assert "/workspace" in (agent.instructions or "")
