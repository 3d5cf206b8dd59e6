"""`runner mcp` as clients run it: another process, real containers, the SDK's client."""

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from runner.cli import main
from tests.host import SOON_S, containers, wait_until
from tests.mcp.conftest import NEW, OLD, Command, answering, says, text

pytestmark = pytest.mark.anyio

AUTO = "auto"
"""The client asks what the server can do, and takes the newest."""
TOKEN = "a-token-that-nobody-guesses"


def line(method: str, id_: int | None = None, **params: Any) -> bytes:
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(message if id_ is None else {**message, "id": id_}).encode() + b"\n"


HELLO = line(
    "initialize",
    1,
    protocolVersion="2025-11-25",
    capabilities={},
    clientInfo={"name": "test", "version": "1"},
) + line("notifications/initialized")


def a_call(id_: int, name: str, **arguments: Any) -> bytes:
    return line("tools/call", id_, name=name, arguments=arguments)


async def drive(agent: Client, session: dict[str, Any]) -> None:
    """Use each of the five tools, on a workspace that is empty."""

    async def call(name: str, **arguments: Any) -> Any:
        return await agent.call_tool(name, {**session, **arguments})

    path = "/workspace/a.txt"
    written = await call("write", path=path, content="one\ntwo\n")
    read = await call("read", path=path)
    edited = await call("edit", path=path, old_string="two", new_string="three")
    found = await call("grep", pattern="^t", path="/workspace")
    ran = await call("bash", command="cat a.txt; pwd; exit 3")

    assert text(written) == f"wrote 8 bytes to {path}"
    assert text(read) == "one\ntwo\n"
    assert text(edited) == f"edited {path} (1 replacement)"
    assert text(found).strip() == f"{path}:2: three"
    assert text(ran) == "one\nthree\n/workspace\nbash: exit status 3"
    results = (written, read, edited, found, ran)
    assert [result.is_error for result in results] == [False, False, False, False, True]
    assert {result.structured_content["decision"]["verdict"] for result in results} == {"allow"}


@pytest.mark.docker
@pytest.mark.parametrize("mode", [OLD, AUTO])
async def test_every_tool_works_over_standard_input_and_output(command: Command, mode: str) -> None:
    async with command.client(mode) as agent:
        await drive(agent, {})
        during = containers(command.settings)

    assert len(during) == 1
    assert (command.workspace / "a.txt").read_text() == "one\nthree\n"
    assert not containers(command.settings)


@contextlib.asynccontextmanager
async def over_http(url: str, mode: str) -> AsyncIterator[Client]:
    shown = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx2.AsyncClient(headers=shown, timeout=30) as agent:
        transport = streamable_http_client(url, http_client=agent)
        async with Client(transport, mode=mode, cache=None) as client:
            yield client


@pytest.mark.docker
async def test_every_tool_works_over_http_and_it_ends_by_a_signal(
    command: Command, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    words = command.words("--http", "127.0.0.1:0", "--token-file", str(token))
    words.remove("-q")
    serving = subprocess.Popen(words, stderr=subprocess.PIPE, env=command.environment, text=True)
    try:
        assert serving.stderr is not None
        while "listening on" not in (said := await asyncio.to_thread(serving.stderr.readline)):
            assert said
        url = said.split()[-1]
        async with over_http(url, OLD) as agent:
            await drive(agent, {})
        (command.workspace / "a.txt").unlink()
        async with over_http(url, NEW) as agent:
            opened = await agent.call_tool("open_session", {})
            await drive(agent, opened.structured_content)
            assert len(containers(command.settings)) == 1
            serving.send_signal(signal.SIGTERM)
            status = await asyncio.to_thread(serving.wait, SOON_S)
    finally:
        serving.kill()
        serving.communicate()

    assert status == 128 + signal.SIGTERM
    assert not containers(command.settings)


async def processes(agent: Client, named: str) -> str:
    """Command lines in the container that have a word."""
    look = f"for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f; echo; done | grep '{named}' || :"
    return text(await agent.call_tool("bash", {"command": look}))


@pytest.mark.docker
@pytest.mark.parametrize("mode", [OLD, NEW])
async def test_a_cancelled_call_leaves_no_process_and_its_progress_was_heard_of(
    command: Command, mode: str
) -> None:
    started = asyncio.Event()

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        if message == "asleep":
            started.set()

    async with command.client(mode) as agent:

        async def sleep() -> None:
            await agent.call_tool(
                "bash",
                {"command": "echo asleep; setsid sleep 4321 & sleep 4321"},
                progress_callback=progress,
            )

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sleep)
            await started.wait()
            during = await processes(agent, "[s]leep 4321")
            tasks.cancel_scope.cancel()
        while await processes(agent, "[s]leep 4321"):
            await asyncio.sleep(0.02)

    assert during.count("sleep 4321") >= 2


@pytest.mark.docker
@pytest.mark.parametrize("how", ["end of input", "SIGTERM", "nobody reads"])
def test_however_it_ends_no_container_is_left(command: Command, how: str) -> None:
    running = command.start()
    assert running.stdin is not None
    assert running.stdout is not None
    running.stdin.write(HELLO + a_call(2, "bash", command="sleep 4321"))
    running.stdin.flush()
    wait_until(lambda: containers(command.settings))
    match how:
        case "end of input":
            running.stdin.close()
        case "nobody reads":
            running.stdout.close()
            for id_ in range(3, 6):  # a refused write is noticed by the one after
                running.stdin.write(line("ping", id_))
                running.stdin.flush()
        case name:
            running.send_signal(getattr(signal, name))
    status = running.wait(SOON_S)
    for pipe in (running.stdin, running.stdout, running.stderr):
        with contextlib.suppress(BrokenPipeError):
            pipe.close()  # type: ignore[union-attr]

    expected = {"SIGTERM": 128 + signal.SIGTERM}
    assert status == expected.get(how, 0)
    assert not containers(command.settings)


@pytest.mark.docker
def test_standard_output_carries_nothing_but_messages(command: Command) -> None:
    """Whatever happens: a request, what is none, a call, logs of it, and the end."""
    sent = HELLO + b"nonsense\n" + a_call(2, "bash", command="echo hi") + a_call(3, "read", path=1)
    words = [word for word in command.words("-vv") if word != "-q"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, stdin=pipe, stdout=pipe, stderr=pipe, env=command.environment
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write(sent)
        running.stdin.flush()
        answers = [json.loads(running.stdout.readline()) for _ in range(4)]
        rest, logged = running.communicate(timeout=SOON_S)

    assert {answer["id"] for answer in answers} == {None, 1, 2, 3}
    assert {answer["jsonrpc"] for answer in answers} == {"2.0"}
    assert not rest
    assert b"tool.execute" in logged


RULES = "default: deny\nask: [{tool: bash}]\n"


@pytest.mark.docker
async def test_what_waits_in_the_store_is_answered_by_another_command(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "policy.yaml").write_text(RULES)
    notes: list[str] = []
    waits = asyncio.Event()

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        if message is not None and "runner approvals show" in message:
            notes.append(message)
            waits.set()

    async with command.client(OLD, "--policy", str(tmp_path / "policy.yaml")) as agent:
        calling = asyncio.create_task(
            agent.call_tool("bash", {"command": "echo hi"}, progress_callback=progress)
        )
        await waits.wait()
        approval = notes[0].split()[-1]
        done = await asyncio.to_thread(command.run, "approvals", "approve", approval)
        result = await calling

    assert done.returncode == 0, done.stderr
    assert text(result) == "hi\n"
    with command.store() as store:
        assert store.approval(approval).answered_how == "cli"  # type: ignore[union-attr]


@pytest.mark.docker
@pytest.mark.parametrize("mode", [OLD, NEW])
async def test_the_person_behind_the_client_is_asked(
    command: Command, tmp_path: Path, mode: str
) -> None:
    (tmp_path / "policy.yaml").write_text(RULES)
    person = answering(says(answer="allow once"), says(answer="deny", reason="not again"))
    policy = ("--policy", str(tmp_path / "policy.yaml"))
    async with command.client(mode, *policy, elicitation_callback=person) as agent:
        allowed = await agent.call_tool("bash", {"command": "echo hi"})
        denied = await agent.call_tool("bash", {"command": "echo hi"})

    assert text(allowed) == "hi\n"
    assert text(denied) == "bash: approval denied: not again"


@pytest.mark.docker
async def test_nobody_is_asked_where_the_command_line_says_so(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "policy.yaml").write_text(RULES)
    policy = ("--policy", str(tmp_path / "policy.yaml"), "--ask", "deny")
    async with command.client(AUTO, *policy, elicitation_callback=answering()) as agent:
        result = await agent.call_tool("bash", {"command": "echo hi"})

    assert "nobody is there to answer" in text(result)


@pytest.mark.docker
async def test_a_policy_that_lies_in_the_workspace_is_refused_where_calls_could_change_it(
    command: Command,
) -> None:
    (command.workspace / "policy.yaml").write_text("default: allow\n")

    async with command.client(OLD, "--policy", str(command.workspace / "policy.yaml")) as agent:
        with pytest.raises(Exception, match="lies in the workspace"):
            await agent.call_tool("bash", {"command": "true"})


# What needs no containers.

SHORT = "short-token"


@pytest.fixture
def plain(clean_environment: None, tmp_path: Path) -> Iterator[Command]:
    """The command, where nothing is run."""
    (tmp_path / "work").mkdir()
    made = Command(tmp_path / "data", tmp_path / "work")
    yield made
    shutil.rmtree(made.settings.runtime_dir, ignore_errors=True)


async def test_questions_about_past_sessions_are_served_alone(plain: Command) -> None:
    async with plain.client(AUTO, "--queries") as agent:
        names = [tool.name for tool in (await agent.list_tools()).tools]
        nothing = await agent.call_tool("rousseau_list_sessions", {})
        blank = await agent.call_tool("rousseau_search_sessions", {"query": " "})
        with pytest.raises(Exception, match="there is no query"):
            await agent.call_tool("bash", {"command": "true"})

    assert names == [
        "rousseau_search_sessions",
        "rousseau_list_sessions",
        "rousseau_read_session",
        "rousseau_cron_list",
    ]
    assert (text(nothing), nothing.is_error) == ("(no sessions)", False)
    assert blank.is_error


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--http", "0.0.0.0:0"], 2, "set a token"),
        (["--http", "nowhere"], 2, "HOST:PORT"),
        (["--http", "127.0.0.1:0", "--token-file", "/missing"], 2, "can't read the token"),
        (["--http", "127.0.0.1:0", "--token-file", "/dev/null"], 2, "no token in"),
        (["--http", "127.0.0.1:0", "--token-file", SHORT], 2, "5 characters are too few: 16 at"),
        (["--http", "127.0.0.1:0", "--allow-host", "https://a.example"], 2, "without scheme"),
        (["--allow-host", "x"], 2, "belong to --http"),
        (["--queries", "--http", "127.0.0.1:0"], 2, "standard input and output only"),
        (["--policy", "/missing"], 2, "/missing"),
        (["--workspace", "/"], 2, "/"),
        (["--workspace", "/missing"], 2, "there is no such directory"),
    ],
)
def test_what_can_not_be_served_is_an_error_at_the_start(
    plain: Command,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    words: list[str],
    status: int,
    said: str,
) -> None:
    monkeypatch.setenv("RUNNER_DATA_DIR", str(plain.settings.data_dir))
    monkeypatch.chdir(plain.workspace)
    (plain.workspace / SHORT).write_text("short")
    found = main(["mcp", *words])
    out, err = capfd.readouterr()

    assert (found, out) == (status, "")
    assert said in err


def test_the_policy_and_the_workspace_are_named_at_the_start(plain: Command) -> None:
    done = plain.run("mcp", "-w", str(plain.workspace))

    assert done.returncode == 0
    assert done.stderr == f"runner: MCP server, policy default, workspace {plain.workspace}\n"


def test_no_other_command_waits_for_the_protocol() -> None:
    code = (
        "import sys\nfrom runner.cli import main\n"
        "main(['mcp', '--help'])\n"
        "print(sorted({'mcp', 'mcp_types', 'uvicorn', 'starlette'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"
