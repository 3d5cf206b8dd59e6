"""OpenAI's Agents SDK: its real agents on model servers on loopback, its sandboxes on sessions."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents import (
    Agent,
    ApplyPatchTool,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    ShellTool,
    Tool,
)
from agents import Runner as Agents
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Filesystem, Shell
from agents.sandbox.entries import Dir, File
from agents.sandbox.errors import (
    ExecTimeoutError,
    PtySessionNotFoundError,
    WorkspaceIOError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.session import SandboxSession
from agents.sandbox.snapshot import LocalSnapshotSpec
from openai import AsyncOpenAI

from runner import AsyncRunner, AsyncSession, Policy, Status
from runner.errors import ConfigurationError, SessionBusy
from runner.integrations.openai_agents import (
    DeniedByPolicy,
    RousseauSandboxClient,
    RousseauSandboxClientOptions,
    SessionEditor,
    ShellExecutor,
    function_tools,
)
from tests.conftest import make_settings

from .fake_models import FakeModels, Reply, Use, use
from .running import run_example

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

POLICY = Policy.parse("""
version: 1
mode: pattern
default: allow
deny:
  - {tool: bash, match: 'git push', justification: "not for you"}
  - {tool: [read, write], glob: '/workspace/secret/**', justification: "not your business"}
""")
QUIET = RunConfig(tracing_disabled=True)


@pytest.fixture
async def client(models: FakeModels) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=models.base_url, api_key="k", max_retries=0) as client:
        yield client


@pytest.fixture
def chat(client: AsyncOpenAI) -> Model:
    return OpenAIChatCompletionsModel("fake", client)


@pytest.fixture
def responses(client: AsyncOpenAI) -> Model:
    return OpenAIResponsesModel("fake", client)


async def run(model: Model, *tools: Tool) -> str:
    agent = Agent("worker", model=model, tools=list(tools))
    return str((await Agents.run(agent, "Go.", run_config=QUIET)).final_output)


def outputs(models: FakeModels) -> dict[str, Any]:
    """What the last request to the responses API says of each call."""
    return {
        item["call_id"]: item
        for item in models.last["input"]
        if item.get("type", "").endswith("_output")
    }


# Function tools.


async def test_function_tools_have_our_schemas_and_results_on_chat_completions(
    session: AsyncSession, models: FakeModels, chat: Model
) -> None:
    models.script(
        use("write", {"path": "/workspace/a.txt", "content": "one\n"}),
        Reply(
            uses=(
                Use("read", {"path": "/workspace/a.txt"}, "use_2"),
                Use("bash", {"command": "git push"}, "use_3"),
                Use("bash", '{"command": ', "use_4"),
            )
        ),
        Reply("Done."),
    )

    assert await run(chat, *function_tools(session)) == "Done."

    offered = {tool["function"]["name"]: tool["function"] for tool in models.last["tools"]}
    for definition in session.tools.definitions("openai"):
        ours, theirs = definition["function"], offered.pop(definition["function"]["name"])
        assert theirs["parameters"] == ours["parameters"]
        assert theirs["description"] == ours["description"]
    assert offered == {}
    told = {
        message["tool_call_id"]: message["content"]
        for message in models.last["messages"]
        if message["role"] == "tool"
    }
    assert told["use_1"] == "wrote 4 bytes to /workspace/a.txt"
    assert told["use_2"] == "one\n"
    assert "not for you" in told["use_3"]
    assert told["use_4"].startswith("bash: ")


async def test_an_image_goes_to_the_model_as_one(
    session: AsyncSession, models: FakeModels, responses: Model
) -> None:
    await session.upload("/workspace/a.png", b"\x89PNG\r\n\x1a\n" + bytes(20))
    models.script(use("read", {"path": "/workspace/a.png"}), Reply("Seen."))

    await run(responses, *function_tools(session, ["read"]))

    _, image = outputs(models)["use_1"]["output"]
    assert image["type"] == "input_image"
    assert image["image_url"].startswith("data:image/png;base64,iVBORw0KGgo")


# The shell tool.


def shell_call(*commands: str, **action: Any) -> Reply:
    call = {
        "type": "shell_call",
        "id": "sh_1",
        "call_id": "call_1",
        "status": "completed",
        "environment": {"type": "local"},
        "action": {"commands": list(commands), **action},
    }
    return Reply(items=(call,))


async def test_the_shell_tool_answers_each_command_with_its_streams_and_its_end(
    session: AsyncSession, models: FakeModels, responses: Model
) -> None:
    models.script(
        shell_call("echo out; echo err >&2; exit 3", "git push origin", "echo last"),
        Reply("Done."),
    )

    assert await run(responses, ShellTool(executor=ShellExecutor(session))) == "Done."

    (tool,) = models.last["tools"]
    assert tool["type"] == "shell"
    failed, denied, last = outputs(models)["call_1"]["output"]
    assert failed == {
        "stdout": "out\n",
        "stderr": "err\n",
        "outcome": {"type": "exit", "exit_code": 3},
    }
    assert denied["outcome"] == {"type": "exit", "exit_code": 126}
    assert "not for you" in denied["stderr"]
    assert last["stdout"] == "last\n"
    assert last["outcome"] == {"type": "exit", "exit_code": 0}


async def test_a_shell_command_that_runs_out_of_time_says_so_and_the_next_is_not_run(
    session: AsyncSession, models: FakeModels, responses: Model
) -> None:
    models.script(
        shell_call("echo begun; sleep 30", "touch /workspace/never", timeout_ms=300),
        Reply("Slow."),
    )

    await run(responses, ShellTool(executor=ShellExecutor(session)))

    (slow,) = outputs(models)["call_1"]["output"]
    assert slow["stdout"] == "begun\n"
    assert slow["outcome"] == {"type": "timeout"}
    assert (await session.bash("test -e /workspace/never")).status is Status.FAILED


async def test_output_is_cut_where_the_model_wants_it(
    session: AsyncSession, models: FakeModels, responses: Model
) -> None:
    models.script(shell_call("echo 1234567890", max_output_length=5), Reply("Short."))

    await run(responses, ShellTool(executor=ShellExecutor(session)))

    (cut,) = outputs(models)["call_1"]["output"]
    assert cut["stdout"] == "12345"


async def test_a_streamed_run_uses_the_shell_as_any_other(
    session: AsyncSession, models: FakeModels, responses: Model
) -> None:
    models.script(shell_call("echo streamed"), Reply("Seen."))
    agent = Agent("worker", model=responses, tools=[ShellTool(executor=ShellExecutor(session))])

    running = Agents.run_streamed(agent, "Go.", run_config=QUIET)
    async for _ in running.stream_events():
        pass

    assert running.final_output == "Seen."
    assert models.last["stream"] is True
    (said,) = outputs(models)["call_1"]["output"]
    assert said["stdout"] == "streamed\n"


# The patch tool.


def patch(call_id: str, type: str, path: str, diff: str | None = None) -> dict[str, Any]:
    operation = {"type": type, "path": path} | ({} if diff is None else {"diff": diff})
    return {
        "type": "apply_patch_call",
        "id": f"ap_{call_id}",
        "call_id": call_id,
        "status": "completed",
        "operation": operation,
    }


async def test_patches_create_change_and_remove_files(
    session: AsyncSession, models: FakeModels, responses: Model
) -> None:
    await session.write("/workspace/old.txt", "one\ntwo\nthree\n")
    await session.write("/workspace/gone.txt", "x")
    models.script(
        Reply(
            items=(
                patch("c1", "create_file", "sub/new.txt", "+hello\n+there\n"),
                patch("c2", "update_file", "old.txt", "@@\n one\n-two\n+2\n three\n"),
                patch("c3", "delete_file", "gone.txt"),
                patch("c4", "update_file", "old.txt", "@@\n-nowhere\n+x\n"),
                patch("c5", "create_file", "secret/key", "+x\n"),
                patch("c6", "update_file", "missing.txt", "@@\n-a\n+b\n"),
            )
        ),
        Reply("Patched."),
    )

    assert await run(responses, ApplyPatchTool(editor=SessionEditor(session))) == "Patched."

    told = outputs(models)
    assert {call: told[call]["status"] for call in sorted(told)} == {
        "c1": "completed",
        "c2": "completed",
        "c3": "completed",
        "c4": "failed",
        "c5": "failed",
        "c6": "failed",
    }
    assert "not your business" in told["c5"]["output"]
    assert "no such file or directory" in told["c6"]["output"]
    assert (await session.read("/workspace/sub/new.txt")).text == "hello\nthere"
    assert (await session.read("/workspace/old.txt")).text == "one\n2\nthree\n"
    assert (await session.read("/workspace/gone.txt")).status is Status.FAILED


# Sandboxes.


@pytest.fixture(scope="module")
async def sandbox(runner: AsyncRunner) -> AsyncIterator[SandboxSession]:
    """A sandbox for those tests that do not end it."""
    client = RousseauSandboxClient(runner)
    manifest = Manifest(
        entries={"docs": Dir(children={"a.txt": File(content=b"from the manifest\n")})},
        environment={"value": {"WORD": "given"}},  # type: ignore[arg-type]
    )
    sandbox = await client.create(manifest=manifest)
    await sandbox.start()
    yield sandbox
    await client.delete(sandbox)


async def test_a_sandbox_agent_works_in_a_session_which_ends_with_its_run(
    runner: AsyncRunner, models: FakeModels, responses: Model, tmp_path: Path
) -> None:
    added = "*** Begin Patch\n*** Add File: new.txt\n+hello\n*** End Patch\n"
    call = {
        "type": "custom_tool_call",
        "id": "ctc_1",
        "call_id": "c1",
        "name": "apply_patch",
        "input": added,
    }
    models.script(
        use("exec_command", {"cmd": "cat a.txt; pwd; git push"}),
        Reply(items=(call,)),
        use("exec_command", {"cmd": "cat new.txt"}, "use_3"),
        Reply("Done."),
    )
    agent = SandboxAgent(
        "worker",
        model=responses,
        instructions="Work.",
        default_manifest=Manifest(entries={"a.txt": File(content=b"from the manifest\n")}),
        capabilities=[Shell(), Filesystem()],
    )
    config = SandboxRunConfig(
        client=RousseauSandboxClient(runner),
        options=RousseauSandboxClientOptions(title="an agent's"),
        snapshot=LocalSnapshotSpec(base_path=tmp_path),
    )

    answer = await Agents.run(
        agent, "Go.", run_config=RunConfig(tracing_disabled=True, sandbox=config)
    )

    assert answer.final_output == "Done."
    told = outputs(models)
    assert "Process exited with code 126" in told["use_1"]["output"]
    assert "not for you" in told["use_1"]["output"]
    assert "Created new.txt" in told["c1"]["output"]
    assert told["use_3"]["output"].endswith("\nhello\n")
    (ended,) = [one for one in runner.sessions(include_ended=True) if one.title == "an agent's"]
    assert ended.ended_at is not None
    assert list(tmp_path.glob("*.tar")), "its workspace was saved"


async def test_the_manifest_is_in_the_workspace_and_in_the_environment(
    sandbox: SandboxSession,
) -> None:
    result = await sandbox.exec("cat docs/a.txt; echo $WORD; echo err >&2; exit 3")

    assert (result.stdout, result.stderr) == (b"from the manifest\ngiven\n", b"err\n")
    assert result.exit_code == 3


async def test_a_command_may_be_a_list_of_words(sandbox: SandboxSession) -> None:
    result = await sandbox.exec("printf", "%s.", "a b", "$WORD", shell=False)

    assert result.stdout == b"a b.$WORD."


async def test_what_the_policy_denies_of_commands_and_files_is_told_in_its_words(
    sandbox: SandboxSession,
) -> None:
    result = await sandbox.exec("git push origin")
    assert result.exit_code == 126
    assert b"not for you" in result.stderr
    with pytest.raises(DeniedByPolicy, match="not your business"):
        await sandbox.write(Path("secret/key"), io.BytesIO(b"x"))
    with pytest.raises(DeniedByPolicy, match="not your business"):
        await sandbox.read(Path("secret/key"))


async def test_a_command_that_runs_out_of_time_is_an_error_of_the_sdks(
    sandbox: SandboxSession,
) -> None:
    with pytest.raises(ExecTimeoutError) as caught:
        await sandbox.exec("echo begun; sleep 30", timeout=0.3)

    assert caught.value.context["stdout"] == "begun\n"


async def test_a_command_goes_on_when_its_time_to_answer_is_over_and_can_be_written_to(
    sandbox: SandboxSession,
) -> None:
    assert sandbox.supports_pty()
    started = await sandbox.pty_exec_start(
        "echo ready; while read line; do echo got $line; done; exit 3", tty=True, yield_time_s=0.3
    )
    assert started.output == b"ready\n"
    assert started.exit_code is None
    number = started.process_id
    assert number is not None

    told = await sandbox.pty_write_stdin(session_id=number, chars="one\n", yield_time_s=0.3)
    assert (told.output, told.exit_code, told.process_id) == (b"got one\n", None, number)
    ended = await sandbox.pty_write_stdin(session_id=number, chars="two\n\x04", yield_time_s=5)

    assert (ended.output, ended.exit_code, ended.process_id) == (b"got two\n", 3, None)
    with pytest.raises(PtySessionNotFoundError):
        await sandbox.pty_write_stdin(session_id=number, chars="")


async def test_ctrl_c_interrupts_a_command(sandbox: SandboxSession) -> None:
    started = await sandbox.pty_exec_start("echo on; sleep 30", tty=True, yield_time_s=0.3)
    assert started.process_id is not None

    ended = await sandbox.pty_write_stdin(
        session_id=started.process_id, chars="\x03", yield_time_s=5
    )

    assert ended.exit_code == 130


async def test_a_command_without_an_input_reads_its_end_and_can_not_be_written_to(
    sandbox: SandboxSession,
) -> None:
    read = await sandbox.pty_exec_start("cat; echo done", yield_time_s=5)
    assert (read.output, read.exit_code) == (b"done\n", 0)
    started = await sandbox.pty_exec_start("sleep 30", yield_time_s=0.3)
    assert started.process_id is not None

    with pytest.raises(RuntimeError, match="stdin is not available"):
        await sandbox.pty_write_stdin(session_id=started.process_id, chars="x")

    await sandbox.pty_terminate_all()
    assert b"sleep" not in (await sandbox.exec("ps -o args")).stdout


async def test_commands_outlive_their_call_only_where_the_policy_lets_them_be_looked_after(
    docker_daemon: None, tmp_path: Path
) -> None:
    narrow = Policy.parse("version: 1\nallow: [{tool: bash, command: '^ls'}]")
    settings = make_settings(tmp_path / "data")
    async with AsyncRunner(narrow, settings=settings, tools="extended") as runner:
        client = RousseauSandboxClient(runner)
        sandbox = await client.create()
        try:
            assert not sandbox.supports_pty()
            assert (await sandbox.exec("ls /")).exit_code == 0
        finally:
            await client.delete(sandbox)


async def test_files_are_bytes_and_a_missing_one_is_an_error_of_the_sdks(
    sandbox: SandboxSession,
) -> None:
    await sandbox.write(Path("deep/er/bytes"), io.BytesIO(b"\xff\0\n"))

    assert (await sandbox.read(Path("/workspace/deep/er/bytes"))).read() == b"\xff\0\n"
    assert await sandbox.read_bounded(Path("deep/er/bytes"), max_bytes=2) == b"\xff\0"
    large = bytes(range(256)) * 10_000
    await sandbox.write(Path("large"), io.BytesIO(large))
    assert (await sandbox.read(Path("large"))).read() == large
    assert [entry.path for entry in await sandbox.ls("deep")] == ["/workspace/deep/er"]
    with pytest.raises(WorkspaceReadNotFoundError):
        await sandbox.read(Path("missing"))
    with pytest.raises(WorkspaceIOError, match="is a directory"):
        await sandbox.read(Path("deep"))


async def test_a_workspace_is_packed_and_unpacked_without_its_ephemeral_part(
    sandbox: SandboxSession, runner: AsyncRunner
) -> None:
    await sandbox.exec("mkdir -p kept; echo x > kept/file; ln -s file kept/link; echo y > left_out")
    sandbox.register_persist_workspace_skip_path("left_out")
    packed = (await sandbox.persist_workspace()).read()

    client = RousseauSandboxClient(runner)
    other = await client.create()
    try:
        await other.hydrate_workspace(io.BytesIO(packed))
        found = await other.exec("ls -A . kept; cat kept/link")
    finally:
        await client.delete(other)

    assert b"file\nlink\nx\n" in found.stdout
    assert b"left_out" not in found.stdout
    assert b".tar" not in found.stdout


async def test_a_sandbox_that_was_shut_down_is_resumed_by_its_state_and_then_deleted(
    runner: AsyncRunner,
) -> None:
    client = RousseauSandboxClient(runner)
    async with await client.create() as sandbox:
        await sandbox.exec("echo kept > file")
        payload = client.serialize_session_state(sandbox.state)
        with pytest.raises(SessionBusy):
            await client.resume(client.deserialize_session_state(dict(payload)))
    assert not await sandbox.running()

    payload = json.loads(json.dumps(payload))
    resumed = await client.resume(client.deserialize_session_state(payload))
    await resumed.start()
    try:
        assert (await resumed.exec("cat file")).stdout == b"kept\n"
        assert await resumed.running()
    finally:
        await client.delete(resumed)

    assert not await resumed.running()
    ids = [one.id for one in runner.sessions()]
    assert payload["runner_session_id"] not in ids


async def test_a_sandbox_that_is_gone_is_replaced_and_filled_from_its_snapshot(
    runner: AsyncRunner, tmp_path: Path
) -> None:
    client = RousseauSandboxClient(runner)
    sandbox = await client.create(snapshot=LocalSnapshotSpec(base_path=tmp_path))
    async with sandbox:
        await sandbox.exec("echo saved > file")
    await client.delete(sandbox)

    resumed = await client.resume(sandbox.state)
    try:
        await resumed.start()
        assert (await resumed.exec("cat file")).stdout == b"saved\n"
    finally:
        await client.delete(resumed)


@pytest.mark.parametrize(
    "manifest",
    [Manifest(root="/srv"), Manifest(extra_path_grants=({"path": "/a", "host_path": "/etc"},))],  # type: ignore[arg-type]
    ids=["another root", "a path of the host"],
)
async def test_a_manifest_that_can_not_be_met_is_refused_before_a_session_is_opened(
    runner: AsyncRunner, manifest: Manifest
) -> None:
    before = len(runner.sessions())

    with pytest.raises(ConfigurationError):
        await RousseauSandboxClient(runner).create(manifest=manifest)

    assert len(runner.sessions()) == before


async def test_a_set_up_is_the_hosts_own_and_not_judged(
    docker_daemon: None, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path / "data")
    async with AsyncRunner(None, settings=settings, tools="extended") as denying:
        client = RousseauSandboxClient(denying)
        manifest = Manifest(entries={"a.txt": File(content=b"x" * 3 * 1024**2)})
        sandbox = await client.create(manifest=manifest)
        try:
            await sandbox.start()
            with pytest.raises(DeniedByPolicy):
                await sandbox.read(Path("a.txt"))
            assert (await sandbox.exec("wc -c a.txt")).exit_code == 126
            packed = await sandbox.persist_workspace()
            assert len(packed.read()) > 3 * 1024**2
        finally:
            await client.delete(sandbox)


async def test_a_runner_without_the_extended_tools_is_refused_at_once(
    docker_daemon: None, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path / "data")
    async with AsyncRunner(POLICY, settings=settings) as five, five.session() as session:
        with pytest.raises(ConfigurationError, match='tools="extended"'):
            function_tools(session, ["shell"])


async def test_the_example_runs_a_sandboxed_agent(models: FakeModels, tmp_path: Path) -> None:
    models.script(
        use("exec_command", {"cmd": "sed -i 's/return /return f/' greet.py; python3 greet.py"}),
        use("exec_command", {"cmd": "git push"}, "use_2"),
        Reply("Fixed."),
    )

    shown = await asyncio.to_thread(
        run_example,
        "openai_agents_agent.py",
        "Fix it.",
        data_dir=tmp_path / "data",
        OPENAI_BASE_URL=models.base_url,
        OPENAI_API_KEY="k",
    )

    assert shown == "Fixed.\n"
    assert "hello, world" in outputs(models)["use_1"]["output"]
    assert "pushing is for people" in outputs(models)["use_2"]["output"]
