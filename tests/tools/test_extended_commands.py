"""The extended tools that run programs: their inputs, and the words and facts of what came of it.

`bash` on a sandbox in memory; the others in sessions of a fake engine, whose programs know
`echo`, `cat` and `sleep`. What only a real container does, at the end.
"""

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from runner import Runner, Session, Settings
from runner.answers import RequestFailed
from runner.background import MAX_PROGRAMS
from runner.model import Outcome, Status, ToolResult
from runner.testing import FakeEngine, FakeRun, fake_shell
from runner.tools import effects
from runner.tools.extended.bash import BashTool
from runner.tools.extended.processes import ProcessListTool, ProcessStartTool
from runner.tools.extended.shell import ShellTool
from tests.conftest import make_settings
from tests.tools.calling import call
from tests.tools.fake_sandbox import FakeSandbox, ran

# bash.


def bash(sandbox: FakeSandbox, **input: Any) -> Outcome:
    return call(
        BashTool(),
        {"command": "x", **input},
        sandbox.as_sandbox(),
        environment={"CI": "1", "A": "session"},
    )


def asked(sandbox: FakeSandbox) -> dict[str, Any]:
    """What the one command was run with."""
    ((_, command, deadline_s, env, options),) = sandbox.asked
    return {"command": command, "deadline_s": deadline_s, "env": env, **options}


def test_without_more_it_runs_as_the_five_s_bash_does() -> None:
    sandbox = FakeSandbox(result=ran(b"out\n", exit_code=3))

    outcome = bash(sandbox)

    assert (outcome.output, outcome.error, outcome.exit_code) == ("out\n", "bash: exit status 3", 3)
    request = asked(sandbox)
    assert (request["cwd"], request["deadline_s"]) == ("/workspace", 60.0)
    assert (request["stdin"], request["user"], request["errors_apart"]) == (None, None, False)


def test_what_is_given_reaches_the_command() -> None:
    sandbox = FakeSandbox()

    bash(sandbox, cwd="/tmp", env={"A": "call", "B": ""}, stdin="é", user="me")

    request = asked(sandbox)
    assert (request["cwd"], request["user"]) == ("/tmp", "me")
    assert (request["stdin"], request["env"]) == ("é".encode(), {"CI": "1", "A": "call", "B": ""})


def test_input_may_be_any_bytes() -> None:
    sandbox = FakeSandbox()

    bash(sandbox, stdin=base64.b64encode(b"\0\xff").decode(), stdin_encoding="base64")

    assert asked(sandbox)["stdin"] == b"\0\xff"


@pytest.mark.parametrize(
    ("given_s", "limit_s", "words"),
    [(0, 60.0, "60s"), (2, 2.0, "2s"), (0.5, 0.5, "0.5s"), (90, 60.0, "60s")],
)
def test_a_time_limit_can_only_shorten_the_call_s(
    given_s: float, limit_s: float, words: str
) -> None:
    sandbox = FakeSandbox(result=ran(b"part", ended="timed_out", exit_code=None))

    outcome = bash(sandbox, timeout_s=given_s)

    assert asked(sandbox)["deadline_s"] == limit_s
    assert (outcome.error, outcome.status) == (f"bash: timed out after {words}", Status.TIMED_OUT)


def test_standard_error_apart_is_a_fact_and_no_output() -> None:
    errors = {"errors": b"oh\xff", "errors_head_bytes": 3, "errors_total_bytes": 3}
    sandbox = FakeSandbox(result=ran(b"out", **errors))

    outcome = bash(sandbox, separate_stderr=True)

    assert asked(sandbox)["errors_apart"] is True
    assert (outcome.output, outcome.error) == ("out", None)
    assert outcome.details == {"stderr": "oh�", "undecodable_stderr_bytes": 1}


def test_of_a_long_standard_error_the_rest_is_counted() -> None:
    errors = {
        "errors": b"a\nz\n",
        "errors_head_bytes": 2,
        "errors_total_bytes": 10,
        "errors_total_lines": 5,
    }
    outcome = bash(FakeSandbox(result=ran(b"", **errors)), separate_stderr=True)

    assert outcome.details["stderr"] == "a\n[… 6 bytes (3 lines) left out …]\nz\n"
    assert outcome.details["stderr_omitted_bytes"] == 6


@pytest.mark.parametrize(
    ("input", "code", "detail", "error"),
    [
        ({}, "too_many_processes", "too many processes", "fork/exec /bin/sh: too many processes"),
        ({"cwd": "/no"}, "not_found", "no such file", "chdir /no: no such file"),
        ({"cwd": "/no"}, "out_of_memory", "no memory", "fork/exec /bin/sh: no memory"),
        ({"user": "x"}, "no_user", "there is no user 'x'", "user \"x\": there is no user 'x'"),
        ({"user": "root"}, "permission_denied", "can't", 'user "root": can\'t'),
    ],
)
def test_what_keeps_a_command_from_starting_is_said(
    input: dict[str, Any], code: str, detail: str, error: str
) -> None:
    outcome = bash(FakeSandbox(failure=RequestFailed(code, detail)), **input)

    assert (outcome.error, outcome.status) == (f"bash: {error}", Status.FAILED)


@pytest.mark.parametrize(
    ("input", "error"),
    [
        ({"cwd": "src"}, 'bash: cwd must be absolute, got "src"'),
        ({"env": {"A=B": ""}}, 'bash: env holds "A=B", which can\'t be a variable'),
        ({"env": {"": "x"}}, 'bash: env holds "", which can\'t be a variable'),
        ({"env": {"A": "\0"}}, 'bash: env holds "A", which can\'t be a variable'),
        ({"stdin": "a", "stdin_encoding": "base64"}, "bash: stdin is not base64: "),
        ({"stdin": "é", "stdin_encoding": "base64"}, "bash: stdin is not base64"),
        ({"user": "a\0"}, "bash: user contains a NUL byte"),
        ({"command": ""}, "bash: command is required"),
        ({"timeout_s": -1}, "bash: timeout_s"),
    ],
)
def test_bad_input_is_refused_with_what_is_wrong(input: dict[str, Any], error: str) -> None:
    sandbox = FakeSandbox()
    outcome = bash(sandbox, **input)

    assert outcome.status is Status.INVALID
    assert str(outcome.error).startswith(error)
    assert sandbox.asked == []


def test_what_they_may_do_is_said() -> None:
    for tool in (BashTool(), ShellTool(), ProcessStartTool()):
        assert (effects(tool).destructive, effects(tool).open_world) == (True, None)
    assert effects(ProcessListTool()).read_only


# Programs and the shell, on a fake engine.


def slow_shell(line: str) -> FakeRun:
    """As `fake_shell`, and `bytes` writes some that are no text."""
    return FakeRun(b"a\xc3") if line == "bytes" else fake_shell(line)


Ask = Callable[..., ToolResult]


@pytest.fixture
def fakes(settings: Settings) -> Iterator[Runner]:
    engine = FakeEngine(slow_shell)
    with Runner("default", settings=settings, engine=engine, tools="extended") as runner:
        yield runner


@pytest.fixture
def fake(fakes: Runner) -> Iterator[Session]:
    with fakes.session() as session:
        yield session


@pytest.fixture
def ask(fake: Session) -> Ask:
    def ask(tool: str, timeout_s: float | None = None, **input: Any) -> ToolResult:
        return fake.call(tool, input, timeout_s=timeout_s)

    return ask


def test_a_program_is_started_polled_written_to_and_ends(ask: Ask) -> None:
    started = ask("process_start", command="echo hi; cat")
    assert (started.text, started.details) == ("started p-1", {"id": "p-1", "running": True})

    assert ask("process_poll", id="p-1", wait_s=5).text == "hi\n[p-1 is running]"
    assert ask("process_poll", id="p-1").text == "[p-1 is running]"
    assert ask("process_write", id="p-1", text="é\n").text == "wrote 3 bytes to p-1"
    assert ask("process_poll", id="p-1", wait_s=5).text == "é\n[p-1 is running]"
    ended = ask("process_write", id="p-1", text="", end=True)
    assert ended.text == "wrote 0 bytes and the end to p-1"
    last = ask("process_poll", id="p-1", wait_s=5)
    assert (last.text, last.status) == ("[p-1 has ended: exit status 0]", Status.OK)
    assert last.details == {"id": "p-1", "running": False, "exit_code": 0}


def test_a_program_that_ends_at_once_says_so(ask: Ask) -> None:
    text = ask("process_start", command="exit 3").text
    assert text == "started p-1; it has ended: exit status 3; poll it for its output"

    polled = ask("process_poll", id="p-1")
    assert (polled.text, polled.status) == ("[p-1 has ended: exit status 3]", Status.OK)


def test_a_character_cut_at_the_end_waits_for_its_rest_or_the_end(ask: Ask) -> None:
    ask("process_start", command="bytes")

    polled = ask("process_poll", id="p-1", wait_s=5)

    assert (polled.output, polled.details["undecodable_bytes"]) == (
        "a�\n[p-1 has ended: exit status 0]",
        1,
    )


@pytest.mark.parametrize(
    ("input", "text"),
    [
        ({}, "p-1 was killed"),
        ({"signal": "KILL"}, "p-1 was killed"),
        ({"signal": "TERM"}, "SIGTERM was sent; p-1 has ended: signal: terminated"),
        ({"signal": "USR1"}, "SIGUSR1 was sent; p-1 has ended: signal: user defined signal 1"),
    ],
)
def test_a_program_is_ended_by_a_signal_or_for_good(
    ask: Ask, input: dict[str, Any], text: str
) -> None:
    ask("process_start", command="sleep 300")

    assert ask("process_kill", id="p-1", **input).text == text
    assert ask("process_kill", id="p-1").text == (
        "process_kill: p-1 has ended; poll it for the rest of its output"
    )


def test_programs_are_listed(ask: Ask) -> None:
    assert ask("process_list").text == "there are no processes"
    ask("process_start", command="sleep\n 300")
    ask("process_start", command="exit 1")

    listed = ask("process_list")

    assert listed.text == (
        "p-1 is running (0s): sleep 300\np-2 has ended: exit status 1 (0s): exit 1\n"
    )
    assert [row["id"] for row in listed.details["processes"]] == ["p-1", "p-2"]


@pytest.mark.parametrize(
    ("tool", "input"),
    [("process_poll", {}), ("process_write", {"text": "x"}), ("process_kill", {})],
)
def test_a_program_that_is_not_there_is_an_error(
    ask: Ask, tool: str, input: dict[str, Any]
) -> None:
    result = ask(tool, id="p-9", **input)
    assert result.text == f"{tool}: there is no program 'p-9'; there are: none"
    assert result.status is Status.FAILED


def test_one_too_many_is_an_error(ask: Ask) -> None:
    for _ in range(MAX_PROGRAMS):
        ask("process_start", command="sleep 300")

    result = ask("process_start", command="sleep 300")

    assert result.status is Status.FAILED
    assert result.text.startswith("process_start: 16 programs are running")


def test_programs_of_one_session_are_not_those_of_another(ask: Ask, fakes: Runner) -> None:
    ask("process_start", command="sleep 300")
    with fakes.session() as other:
        assert other.call("process_list", {}).text == "there are no processes"


def test_a_shell_tells_how_commands_end(ask: Ask) -> None:
    assert ask("shell", command="echo hi").text == "hi\n"
    failed = ask("shell", command="echo oh; exit 4")
    assert (failed.text, failed.exit_code) == ("oh\nshell: exit status 4", 4)
    assert ask("shell", command="it's").status is Status.FAILED


def test_a_shell_that_is_out_of_time_says_that_its_state_is_lost(ask: Ask) -> None:
    result = ask("shell", 0.3, command="echo part; sleep 300")

    assert result.text == "part\nshell: timed out after 0.3s; its state is lost"
    assert (result.status, result.details) == (Status.TIMED_OUT, {"shell_ended": True})
    assert ask("shell", command="echo on").text == "on\n"


def test_a_shell_is_restarted(ask: Ask) -> None:
    assert ask("shell", restart=True).text == "there was no shell; the next command starts one"
    ask("shell", command="echo")
    assert ask("shell", restart=True).text == (
        "the shell was ended; the next command starts a new one"
    )
    assert ask("shell", command="echo hi", restart=True).text == "hi\n"


@pytest.mark.parametrize("input", [{}, {"command": ""}, {"restart": False}])
def test_a_shell_is_asked_for_something(ask: Ask, input: dict[str, Any]) -> None:
    result = ask("shell", **input)
    assert result.status is Status.INVALID
    assert result.text.endswith("command is required, unless restart is true")


def test_a_session_with_users_has_root(fakes: Runner) -> None:
    with fakes.session(users=True) as session:
        assert session.call("bash", {"command": "echo hi", "user": "root"}).text == "hi\n"
        refused = session.call("bash", {"command": "echo hi", "user": "no"})
    assert refused.text == "bash: user \"no\": can't run as user 'no'"


# In a real container.


PROTECTING = """
mode: pattern
allow: [{match: ".*"}]
protect: ["/workspace/kept"]
"""


@pytest.fixture(scope="module")
def real(docker_daemon: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    data = tmp_path_factory.mktemp("data")
    policy = data / "policy.yaml"
    policy.write_text(PROTECTING)
    with (
        Runner(policy, settings=make_settings(data), tools="extended") as runner,
        runner.session() as session,
    ):
        yield session


@pytest.mark.docker
def test_all_inputs_of_bash_at_once(real: Session) -> None:
    result = real.call(
        "bash",
        {
            "command": 'pwd; echo "$A"; cat; echo oh >&2; exit 5',
            "cwd": "/tmp",
            "env": {"A": "b c"},
            "stdin": "in\n",
            "separate_stderr": True,
        },
    )
    assert (result.output, result.exit_code) == ("/tmp\nb c\nin\n", 5)
    assert result.details["stderr"] == "oh\n"


@pytest.mark.docker
def test_another_user_takes_a_session_for_that(real: Session) -> None:
    result = real.call("bash", {"command": "id", "user": "root"})
    assert (result.status, result.error) == (
        Status.FAILED,
        "bash: user \"root\": can't run as user 'root': the session was not opened with `users`",
    )


@pytest.mark.docker
def test_the_end_of_a_shell_is_told_with_its_status(real: Session) -> None:
    real.call("shell", {"command": "x=1"})
    ended = real.call("shell", {"command": "printf a; exit 3"})
    assert (ended.exit_code, ended.text) == (
        3,
        "a\n[the shell has ended; the next command starts a new one]\nshell: exit status 3",
    )
    assert real.call("shell", {"command": "echo [$x]"}).text == "[]\n"


@pytest.mark.docker
def test_what_becomes_of_protected_files_is_told_by_every_tool_and_once(real: Session) -> None:
    command = "read x; echo > kept; echo done; sleep 300"
    told = [
        real.call("process_start", {"command": command}),
        real.call("process_write", {"id": "p-1", "text": "go\n"}),
        real.call("process_poll", {"id": "p-1", "wait_s": 10}),
        real.call("shell", {"command": "rm kept"}),
        real.call("process_kill", {"id": "p-1"}),
    ]

    assert told[2].output.startswith("done\n")
    assert told[3].details["protected"] == [{"path": "/workspace/kept", "change": "removed"}]
    assert [row for result in told for row in result.details.get("protected", ())] == [
        {"path": "/workspace/kept", "change": "created"},
        {"path": "/workspace/kept", "change": "removed"},
    ]


@pytest.mark.docker
def test_the_set_finds_files_shows_images_keeps_a_shell_and_programs(real: Session) -> None:
    image = b"\x89PNG\r\n\x1a\n" + bytes(8)
    content = base64.b64encode(image).decode()
    path = "/workspace/shown/dot.png"
    real.call("write", {"path": path, "content": content, "encoding": "base64"})
    shown = real.call("read", {"path": path})
    real.call("shell", {"command": "cd shown"})
    started = real.call("process_start", {"command": "read line; echo got $line"})
    real.call("process_write", {"id": started.details["id"], "text": "it\n"})

    assert real.call("glob", {"pattern": "**/*.png"}).text == f"{path}\n"
    assert [(block.media_type, block.data) for block in shown.blocks] == [("image/png", image)]
    assert real.call("shell", {"command": "pwd"}).text == "/workspace/shown\n"
    heard = real.call("process_poll", {"id": started.details["id"], "wait_s": 10})
    assert heard.output.startswith("got it\n")
