"""The backend for Deep Agents: what policy, record and a real container make of its operations."""

import asyncio
import os
import subprocess
import sys
from asyncio import to_thread
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import pytest
from deepagents import create_deep_agent
from deepagents.backends import CompositeBackend
from deepagents.backends.protocol import FileDownloadResponse, FileUploadResponse
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolCall

from runner import ConfigurationError, Policy, Runner, Session
from runner.app import open_store
from runner.integrations import deepagents
from runner.integrations.deepagents import RousseauSandbox
from tests.conftest import make_settings
from tests.host import ROOT, docker

pytestmark = pytest.mark.docker

POLICY = Policy.parse("""
mode: pattern
default: allow
deny:
  - {tool: bash, match: forbidden}
  - {tool: write, match: forbidden}
  - {tool: edit, match: forbidden}
  - {tool: list, match: secret}
  - {tool: glob, match: secret}
  - {tool: grep, match: secret}
  - {tool: read, match: secret}
reason: "not here"
""")


@pytest.fixture(scope="module")
def runner(docker_daemon: None, shared_data_dir: Path) -> Iterator[Runner]:
    settings = make_settings(shared_data_dir, grep_max_matches=20)
    with Runner(POLICY, tools="extended", settings=settings) as runner:
        yield runner


@pytest.fixture(scope="module")
def session(runner: Runner) -> Iterator[Session]:
    with runner.session(timeout_s=20) as session:
        yield session


@pytest.fixture
def sandbox(session: Session) -> RousseauSandbox:
    session.bash("find /workspace -mindepth 1 -delete")
    return RousseauSandbox(session)


def test_a_runner_without_the_extended_tools_is_refused(shared_data_dir: Path) -> None:
    with (
        Runner(POLICY, settings=make_settings(shared_data_dir)) as runner,
        runner.session() as session,
        pytest.raises(ConfigurationError, match='tools="extended"'),
    ):
        RousseauSandbox(session)


# Answers.


def test_write_replaces_a_file_as_deepagents_tells_its_models(sandbox: RousseauSandbox) -> None:
    sandbox.write("/workspace/a.txt", "one")

    assert sandbox.write("/workspace/a.txt", "two").error is None

    assert sandbox.execute("cat a.txt").output == "two"


def test_glob_finds_files_alone_and_by_absolute_paths(sandbox: RousseauSandbox) -> None:
    sandbox.execute("mkdir -p src/deep .hidden && touch top.py src/deep/a.py .hidden/b.py .c.py")

    def found(pattern: str, path: str | None = None) -> list[str]:
        return [match["path"] for match in sandbox.glob(pattern, path).matches or []]

    assert found("*.py") == [
        "/workspace/.hidden/b.py",
        "/workspace/src/deep/a.py",
        "/workspace/top.py",
    ]
    assert found("/*.py") == ["/workspace/top.py"]
    assert found("src/**/*.py") == ["/workspace/src/deep/a.py"]
    assert found("*", "/workspace/src") == ["/workspace/src/deep/a.py"]
    assert sandbox.glob("../*").matches is None
    assert "Path traversal" in (sandbox.glob("../*").error or "")


def test_glob_says_why_it_is_incomplete(sandbox: RousseauSandbox) -> None:
    sandbox.execute("mkdir closed && touch a && chmod 000 closed")

    result = sandbox.glob("*")
    sandbox.execute("chmod 700 closed")

    assert (result.truncated, result.truncation_reason) == (True, "unreadable")


def test_ls_tells_kinds_sizes_and_times(sandbox: RousseauSandbox) -> None:
    sandbox.execute("mkdir d; printf 12345 > f; touch -d @0 f")

    entries = sandbox.ls("/workspace").entries

    assert entries is not None
    directory, file = entries
    assert (directory["path"], directory["is_dir"]) == ("/workspace/d", True)
    assert file == {
        "path": "/workspace/f",
        "is_dir": False,
        "size": 5,
        "modified_at": "1970-01-01T00:00:00+00:00",
    }
    assert sandbox.ls("/workspace/f").error == "Path '/workspace/f': invalid_path"
    assert sandbox.ls("/nowhere").error == "Path '/nowhere': file_not_found"


def test_read_tells_which_lines_these_are_and_where_to_go_on(sandbox: RousseauSandbox) -> None:
    sandbox.write("/workspace/f", "a\nb\nc\n")

    first, last = sandbox.read("/workspace/f", 0, 2), sandbox.read("/workspace/f", 2, 2)

    assert first.file_data is not None
    assert last.file_data is not None
    assert first.file_data["content"] == "a\nb"
    assert (first.start_line, first.end_line, first.total_lines, first.next_offset) == (1, 2, 3, 2)
    assert last.file_data["content"] == "c"
    assert (last.start_line, last.end_line, last.next_offset) == (3, 3, None)
    assert sandbox.read("/workspace/f", 3).error == (
        "File '/workspace/f': Line offset 3 exceeds file length (3 lines)"
    )
    assert sandbox.read("/workspace/f", 0, 0).no_lines_requested


def test_read_returns_as_many_whole_lines_as_it_may(sandbox: RousseauSandbox) -> None:
    line = "x" * 999
    sandbox.write("/workspace/f", f"{line}\n" * 600 + "y" * 600_000)

    result, long = sandbox.read("/workspace/f"), sandbox.read("/workspace/f", 600)

    assert result.file_data is not None
    assert result.file_data["content"] == "\n".join([line] * 512)
    assert (result.end_line, result.next_offset, result.total_lines) == (512, 512, 601)
    assert long.file_data is not None
    assert long.file_data["content"].startswith("y" * deepagents.PREVIEW_LIMIT_BYTES)
    assert long.file_data["content"].endswith("left out: it is too long.]")
    assert long.next_offset is None


def test_an_empty_file_is_said_to_be_empty_wherever_one_reads(sandbox: RousseauSandbox) -> None:
    sandbox.write("/workspace/f", "")

    for offset in (0, 5):
        data = sandbox.read("/workspace/f", offset).file_data
        assert data is not None
        assert "empty contents" in data["content"]


def test_text_with_windows_line_ends_is_read_as_text_and_edited_as_it_is(
    sandbox: RousseauSandbox,
) -> None:
    sandbox.upload_files([("/workspace/f", b"a\r\nb\r\nc\r\n")])

    data = sandbox.read("/workspace/f").file_data
    assert data is not None
    assert data["content"] == "a\nb\nc"
    assert sandbox.edit("/workspace/f", "a\nb", "x\ny").occurrences == 1

    assert sandbox.download_files(["/workspace/f"])[0].content == b"x\r\ny\r\nc\r\n"


def test_edit_says_what_is_wrong_as_deepagents_does(sandbox: RousseauSandbox) -> None:
    sandbox.write("/workspace/f", "a a\nb")

    assert "appears multiple times" in (sandbox.edit("/workspace/f", "a", "x").error or "")
    assert "String not found" in (sandbox.edit("/workspace/f", "b\nc", "x").error or "")
    assert "cannot be empty" in (sandbox.edit("/workspace/f", "", "x").error or "")
    assert "'/workspace/g' not found" in (sandbox.edit("/workspace/g", "a", "x").error or "")
    assert sandbox.edit("/workspace/f", "a", "x", replace_all=True).occurrences == 2


def test_grep_takes_each_line_of_its_pattern_as_it_is(sandbox: RousseauSandbox) -> None:
    sandbox.write("/workspace/src/a.py", "x = [1]\ny\nz.*\n")
    sandbox.write("/workspace/b.txt", "z.*\n")

    found = sandbox.grep("[1]\nz.*", glob="src/**/*.py").matches or []

    assert [(match["path"], match["line"], match["text"]) for match in found] == [
        ("/workspace/src/a.py", 1, "x = [1]"),
        ("/workspace/src/a.py", 3, "z.*"),
    ]
    assert sandbox.grep("z.*", path="/workspace/b.txt", glob="*.txt").matches == [
        {"path": "/workspace/b.txt", "line": 1, "text": "z.*"}
    ]
    assert "Path traversal" in (sandbox.grep("z", glob="../*").error or "")


def test_grep_says_when_there_is_more_than_it_returns(sandbox: RousseauSandbox) -> None:
    sandbox.write("/workspace/f", "a\n" * 30)

    capped, limited = sandbox.grep("a", max_count=3), sandbox.grep("a")

    assert (len(capped.matches or []), capped.truncated) == (3, True)
    assert (len(limited.matches or []), limited.truncated) == (20, True)
    assert not sandbox.grep("b", max_count=3).truncated


# Policy and record.


def test_what_the_policy_denies_is_refused_in_its_words(sandbox: RousseauSandbox) -> None:
    executed = sandbox.execute("echo forbidden")

    assert (executed.output, executed.exit_code) == ("bash: not here", deepagents.DENIED)
    for error in (
        sandbox.write("/workspace/f", "forbidden").error,
        sandbox.edit("/workspace/f", "a", "forbidden").error,
        sandbox.read("/workspace/secret").error,
        sandbox.read("/workspace/secret.png").error,
        sandbox.ls("/workspace/secret").error,
        sandbox.glob("secret*").error,
        sandbox.grep("secret").error,
    ):
        assert "not here" in (error or "")


def test_a_long_text_is_judged_to_its_end(sandbox: RousseauSandbox) -> None:
    long = 'é"\n' * 1_000_000

    assert sandbox.write("/workspace/f", long).error is None
    assert sandbox.download_files(["/workspace/f"])[0].content == long.encode()

    assert "not here" in (sandbox.write("/workspace/f", f"{long}forbidden").error or "")


def test_each_operation_is_a_call_in_the_record(runner: Runner) -> None:
    with runner.session() as session:
        sandbox = RousseauSandbox(session)
        sandbox.write("/workspace/f", "a")
        sandbox.ls("/workspace")
        sandbox.grep("a")
        sandbox.delete("/workspace/f")

    with open_store(runner.settings) as store:
        calls = [call.tool for _, call in store.calls(session_id=session.id)]
    assert calls == ["write", "list", "grep", "bash", "bash"]


# Transfers.


def test_transfers_answer_for_each_file_in_the_protocols_words(sandbox: RousseauSandbox) -> None:
    sandbox.execute("mkdir d; echo secret > closed; chmod 000 closed; echo > file")
    sent = sandbox.upload_files(
        [
            ("/workspace/new/a", b"\0\xff"),
            ("/workspace/d", b"x"),
            ("/etc/passwd", b"x"),
            ("relative", b"x"),
            ("/workspace/file/below", b"x"),
        ]
    )

    got = sandbox.download_files(
        ["/workspace/new/a", "/workspace/d", "/workspace/closed", "/workspace/none", "relative"]
    )

    assert sent == [
        FileUploadResponse("/workspace/new/a"),
        FileUploadResponse("/workspace/d", error="is_directory"),
        FileUploadResponse("/etc/passwd", error="permission_denied"),
        FileUploadResponse("relative", error="invalid_path"),
        FileUploadResponse("/workspace/file/below", error="invalid_path"),
    ]
    assert got == [
        FileDownloadResponse("/workspace/new/a", content=b"\0\xff"),
        FileDownloadResponse("/workspace/d", error="is_directory"),
        FileDownloadResponse("/workspace/closed", error="permission_denied"),
        FileDownloadResponse("/workspace/none", error="file_not_found"),
        FileDownloadResponse("relative", error="invalid_path"),
    ]


# Commands.


def test_a_command_over_its_time_returns_what_it_wrote(sandbox: RousseauSandbox) -> None:
    result = sandbox.execute("echo started; sleep 60", timeout=1)

    assert result.output == "started\nbash: timed out after 1s"
    assert result.exit_code == deepagents.TIMED_OUT


def test_a_time_limit_that_may_not_be_is_told_and_nothing_runs(sandbox: RousseauSandbox) -> None:
    result = sandbox.execute("touch ran", timeout=100_000)

    assert result.exit_code is None
    assert "a time limit of 100000 s" in result.output
    assert sandbox.ls("/workspace").entries == []


def test_a_failed_command_returns_its_own_status(sandbox: RousseauSandbox) -> None:
    result = sandbox.execute("echo out; echo err >&2; exit 3")

    assert (result.output, result.exit_code) == ("out\nerr\nbash: exit status 3", 3)


def test_output_over_the_limit_is_said_to_be_truncated(sandbox: RousseauSandbox) -> None:
    result = sandbox.execute("head -c 3000000 /dev/zero | tr '\\0' x")

    assert result.truncated
    assert "left out" in result.output


@pytest.mark.anyio
async def test_a_cancelled_command_ends_in_the_container(sandbox: RousseauSandbox) -> None:
    running = asyncio.create_task(sandbox.aexecute("touch started; exec sleep 987"))
    while not (await sandbox.als("/workspace")).entries:
        await asyncio.sleep(0.01)

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    # The runner ends it before it lets go of the call: so what follows sees nothing of it.
    assert (await sandbox.aexecute("pgrep -f '^sleep 987' | wc -l")).output == "0\n"


@pytest.mark.anyio
async def test_commands_of_several_tasks_and_threads_run_at_once(sandbox: RousseauSandbox) -> None:
    # Each waits for the other: one after the other they would never end.
    meet = "touch {0}; until test -e {1}; do sleep 0.01; done"
    one, other = await asyncio.gather(
        to_thread(sandbox.execute, meet.format("a", "b")),
        sandbox.aexecute(meet.format("b", "a")),
    )

    assert (one.exit_code, other.exit_code) == (0, 0)


def test_a_lost_container_is_told_and_the_next_command_gets_a_new_one(runner: Runner) -> None:
    with runner.session() as session, ThreadPoolExecutor(1) as executor:
        sandbox = RousseauSandbox(session)
        running = executor.submit(sandbox.execute, "echo kept > f; exec sleep 60")
        while not sandbox.ls("/workspace").entries:
            pass
        docker("kill", f"rousseau-runner-{session.id}")

        lost, again = running.result(), sandbox.execute("cat f")

    assert lost.exit_code is None
    assert lost.output.startswith("bash: the session's container ended")
    assert again.output == "kept\n"


# Whole agents.


class ScriptedModel(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **options: Any) -> Self:
        return self


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.anyio
async def test_what_is_too_large_for_a_conversation_is_kept_where_the_agent_can_read_it(
    sandbox: RousseauSandbox, asynchronous: bool
) -> None:
    call = ToolCall(name="execute", args={"command": "seq 50000"}, id="call_1")
    script = [AIMessage(content="", tool_calls=[call]), AIMessage(content="Done.")]
    agent = create_deep_agent(
        model=ScriptedModel(messages=iter(script)),
        backend=CompositeBackend(
            default=sandbox, routes={}, artifacts_root="/workspace/.deepagents"
        ),
    )
    messages: Any = {"messages": [{"role": "user", "content": "Count."}]}

    state = await (agent.ainvoke(messages) if asynchronous else to_thread(agent.invoke, messages))

    kept = "/workspace/.deepagents/large_tool_results/call_1"
    assert kept in state["messages"][2].text
    assert len(state["messages"][2].text) < 10_000
    assert "49999\n50000" in (sandbox.download_files([kept])[0].content or b"").decode()


def test_the_example_runs_an_agent_from_end_to_end(tmp_path: Path) -> None:
    environment = {**os.environ, "RUNNER_DATA_DIR": str(tmp_path / "data")}
    shown = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "deepagents_agent.py")],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert "hello from the sandbox\n" in shown
    assert "Successfully replaced 1 instance(s)" in shown
    assert '1: print("goodbye from the sandbox")' in shown
    assert "['/workspace/greet.py']" in shown
    assert "bash: pushing is for people; leave the branch as it is" in shown
    assert shown.endswith("It greets; pushing is left to you.\n")
