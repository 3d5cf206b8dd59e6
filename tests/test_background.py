"""Programs and the shell that go on between calls, in a real container.

Where a test waits for something it polls, as an agent would; nothing here sleeps for it.
"""

import asyncio
import shutil
import signal
import subprocess
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runner import AsyncRunner, SandboxLost
from runner.background import (
    MAX_ENDED,
    MAX_PROGRAMS,
    Backlog,
    NoProgram,
    Polled,
    Programs,
    Said,
    Shell,
    _script,
)
from runner.sandbox import Sandbox
from tests.conftest import make_settings
from tests.host import docker as docker_cli

pytestmark = pytest.mark.anyio

SOON_S = 20.0
LIMIT = 1024**2


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def sandbox(
    docker_daemon: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Sandbox]:
    """The module's container."""
    settings = make_settings(tmp_path_factory.mktemp("data"))
    async with AsyncRunner("default", settings=settings) as runner, runner.session() as session:
        yield await session._lease.sandbox()


@pytest.fixture
async def programs(sandbox: Sandbox) -> AsyncIterator[Programs]:
    """Of this test alone; nothing of them is left."""
    made = Programs()
    yield made
    assert sandbox.lost is None
    await sandbox.run("kill -9 -1", deadline_s=SOON_S)


async def until_ended(programs: Programs, id: str) -> tuple[bytes, Polled]:
    """All that a program writes from now on, and the last poll."""
    output = b""
    async with asyncio.timeout(SOON_S):
        while True:
            polled = await programs.poll(id, wait_s=SOON_S)
            output += polled.output
            if not polled.state.running:
                return output, polled


async def until_said(programs: Programs, id: str, expected: bytes) -> None:
    """Wait until that is what a program has written."""
    output = b""
    async with asyncio.timeout(SOON_S):
        while output != expected:
            output += (await programs.poll(id, wait_s=SOON_S)).output
            assert expected.startswith(output)


# What is kept.


def test_a_backlog_keeps_the_newest_and_counts_the_rest() -> None:
    backlog = Backlog(5)
    assert not backlog
    for piece in (b"abc", b"de", b"fgh"):
        backlog.add(piece)
    assert backlog
    assert backlog.take() == (b"defgh", 3)
    assert backlog.take() == (b"", 0)

    backlog.add(b"0123456789")
    assert backlog.take() == (b"56789", 5)


def test_a_backlog_costs_no_more_for_a_program_that_writes_byte_by_byte() -> None:
    backlog = Backlog(50_000)
    tracemalloc.start()
    try:
        for number in range(60_000):
            backlog.add(b"%02d" % (number % 100))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 200_000
    assert backlog.take()[1] == 70_000


# Programs.

docker = pytest.mark.docker


@docker
async def test_a_program_tells_what_is_new_and_never_twice(
    sandbox: Sandbox, programs: Programs
) -> None:
    state = await programs.start(sandbox, "while read -r x; do echo got $x; done; exit 3")
    assert (state.id, state.running, state.result) == ("p-1", True, None)

    assert (await programs.poll("p-1")).output == b""
    await programs.write("p-1", b"a\n")
    await until_said(programs, "p-1", b"got a\n")
    await programs.write("p-1", b"b\n", end=True)
    output, last = await until_ended(programs, "p-1")

    assert output == b"got b\n"
    assert last.state.result is not None
    assert (last.state.result.exit_code, last.dropped_bytes) == (3, 0)
    with pytest.raises(NoProgram, match="no program 'p-1'; there are: none"):
        await programs.poll("p-1")


@docker
async def test_a_poll_waits_no_longer_than_it_may(sandbox: Sandbox, programs: Programs) -> None:
    await programs.start(sandbox, "sleep 300")

    polled = await programs.poll("p-1", wait_s=0.05)

    assert (polled.output, polled.state.running) == (b"", True)


@docker
async def test_a_program_starts_where_and_with_what_it_is_told(
    sandbox: Sandbox, programs: Programs
) -> None:
    await programs.start(sandbox, 'pwd; echo "$X"', cwd="/tmp", env={"X": "y z"})

    assert (await until_ended(programs, "p-1"))[0] == b"/tmp\ny z\n"


@docker
async def test_output_that_nobody_takes_does_not_hold_a_program_up(sandbox: Sandbox) -> None:
    programs = Programs(kept_bytes=1000)
    await programs.start(sandbox, "head -c 5000000 /dev/zero; printf end")
    async with asyncio.timeout(SOON_S):
        while programs.list()[0].running:
            await asyncio.sleep(0)

    output, last = await until_ended(programs, "p-1")

    assert output == bytes(997) + b"end"
    assert last.dropped_bytes == 5_000_003 - 1000


@docker
async def test_a_signal_by_number_and_a_kill_of_the_whole_tree(
    sandbox: Sandbox, programs: Programs
) -> None:
    trap = "trap 'echo caught' USR1; echo on; while :; do sleep 0.01; done"
    await programs.start(sandbox, trap)
    await programs.start(sandbox, "trap '' TERM INT; (setsid sleep 3021 &); echo on; sleep 3022")
    for id in ("p-1", "p-2"):
        await until_said(programs, id, b"on\n")

    assert (await programs.signal("p-1", signal.SIGUSR1)).running
    heard = b""  # the shell may say first what became of its child
    async with asyncio.timeout(SOON_S):
        while not heard.endswith(b"caught\n"):
            heard += (await programs.poll("p-1", wait_s=SOON_S)).output
    await programs.signal("p-1", signal.SIGTERM)
    _, first = await until_ended(programs, "p-1")
    second = await programs.kill("p-2")

    assert first.state.result is not None
    assert first.state.result.signal == signal.SIGTERM
    assert second.result is not None
    assert second.result.ended == "cancelled"
    found = await sandbox.run(["pgrep", "-xf", "sleep 302."], deadline_s=SOON_S)
    assert found.output == b""
    with pytest.raises(NoProgram, match="p-2 has ended; poll it"):
        await programs.write("p-2", b"x")
    assert [state.id for state in programs.list()] == ["p-2"]


@docker
async def test_what_can_not_be_started_says_so(sandbox: Sandbox, programs: Programs) -> None:
    state = await programs.start(sandbox, "true", cwd="/none")
    _, last = await until_ended(programs, state.id)

    assert last.state.failure is not None
    assert last.state.failure.code == "not_found"


@docker
async def test_there_are_only_so_many_at_once(sandbox: Sandbox, programs: Programs) -> None:
    await asyncio.gather(*(programs.start(sandbox, "sleep 300") for _ in range(MAX_PROGRAMS)))

    with pytest.raises(NoProgram, match=r"16 programs are running.*end one of p-1, p-2"):
        await programs.start(sandbox, "true")

    await programs.kill("p-3")
    assert (await programs.start(sandbox, "echo")).id == f"p-{MAX_PROGRAMS + 1}"


@docker
async def test_of_those_that_ended_unpolled_the_oldest_are_forgotten(
    sandbox: Sandbox, programs: Programs
) -> None:
    for number in range(MAX_ENDED + 2):
        state = await programs.start(sandbox, "true")
        async with asyncio.timeout(SOON_S):
            while programs.list()[-1].running:
                await asyncio.sleep(0)
        assert state.id == f"p-{number + 1}"

    assert [state.id for state in programs.list()] == [f"p-{n}" for n in range(3, MAX_ENDED + 3)]


@docker
async def test_programs_are_lost_with_their_container(tmp_path: Path) -> None:
    programs = Programs()
    settings = make_settings(tmp_path / "data")
    async with AsyncRunner("default", settings=settings) as runner, runner.session() as session:
        sandbox = await session._lease.sandbox()
        assert (await say(programs.shell, sandbox, "x=1")).exit_code == 0
        await programs.start(sandbox, "echo before; sleep 300")
        await until_said(programs, "p-1", b"before\n")
        container = session.info.container_id
        assert container is not None
        await asyncio.to_thread(docker_cli, "kill", container)

        polled = await programs.poll("p-1", wait_s=SOON_S)
        assert isinstance(polled.state.lost, SandboxLost)
        assert not polled.state.running

        fresh = await session._lease.sandbox()
        said = await say(programs.shell, fresh, 'echo "[$x]"')
        assert (said.output, said.state_lost) == (b"[]\n", True)


# The shell.


async def say(shell: Shell, sandbox: Sandbox, command: str, deadline_s: float = SOON_S) -> Said:
    return await shell.run(
        sandbox, command, deadline_s=deadline_s, output_limit_bytes=LIMIT, env={"SESSION": "1"}
    )


@docker
async def test_directory_variables_and_functions_stay(sandbox: Sandbox, programs: Programs) -> None:
    shell = programs.shell
    first = await say(shell, sandbox, "cd /tmp; x=1; export y=2; f() { echo f $x $y $1; }")
    second = await say(shell, sandbox, 'pwd; f 3; echo "$SESSION"; (exit 7)')

    assert (first.output, first.exit_code, first.ended) == (b"", 0, "done")
    assert (second.output, second.exit_code) == (b"/tmp\nf 1 2 3\n1\n", 7)


AWKWARD = {
    "nothing": ("", b"", 0),
    "no line end": ("printf abc", b"abc", 0),
    "both outputs in order": ("echo a; echo b >&2; echo c", b"a\nb\nc\n", 0),
    "standard input": ("cat; read x; echo $?", b"1\n", 0),
    "quotes": ("""echo "it's" 'a "b"' \\'""", b"it's a \"b\" '\n", 0),
    "comment": ("echo a # 'b", b"a\n", 0),
    "lines": ("if true\nthen\n echo a\nfi\n\n", b"a\n", 0),
    "here-document": ("cat <<'E'\n$x 'a\nE\n", b"$x 'a\n", 0),
    "here-document without its end": ("cat <<E\na", None, 0),
    "unbalanced quote": ("echo 'a", None, 2),
    "unbalanced brace": ("{ echo a", None, 2),
    "unexpected word": ("fi; echo a", None, 2),
    "bad substitution": ("echo a; echo ${x!}; echo b", None, 2),
    "no such command": ("surely-not-there", None, 127),
    "binary": ("printf '\\036\\037\\377\\001'", b"\x1e\x1f\xff\x01", 0),
    "start of a mark": ("printf 'a\\036'", b"a\x1e", 0),
    "long": (": " + "x" * 200_000 + "; echo end", b"end\n", 0),
    "not ASCII": ("echo é", "é\n".encode(), 0),
    "background": ("sleep 300 & echo a", b"a\n", 0),
    "closed descriptors": ("exec 2>&- 9>&-; echo a", b"a\n", 0),
    "function named printf": ("printf() { echo mine; }; printf", b"mine\n", 0),
    "no PATH": ("PATH=/none; echo a", b"a\n", 0),
    "unset variables": ("set -u; echo a", b"a\n", 0),
}


@docker
@pytest.mark.parametrize(("command", "output", "exit_code"), AWKWARD.values(), ids=AWKWARD.keys())
async def test_a_command_neither_eats_the_mark_nor_ends_the_shell(
    sandbox: Sandbox, programs: Programs, command: str, output: bytes | None, exit_code: int
) -> None:
    said = await say(programs.shell, sandbox, f"kept=1\n{command}")
    after = await say(programs.shell, sandbox, "echo $kept")

    assert (said.ended, said.exit_code) == ("done", exit_code), said
    assert output is None or said.output == output
    assert (after.output, after.state_lost) == (b"1\n", False)


OPEN = [
    "echo 'a",
    'echo "a',
    "echo `a",
    "echo $(a",
    "echo ${a",
    "{ a",
    "if a",
    "fi",
    "cat <<E",
    "a() {",
]


@pytest.mark.parametrize("program", ["/bin/sh", "bash"])
@pytest.mark.parametrize("command", OPEN)
def test_a_mark_is_made_by_whatever_is_the_shell(
    tmp_path: Path, program: str, command: str
) -> None:
    """The default image's shell is dash; others have bash under that name."""
    shell = tmp_path / "sh"
    shell.symlink_to(str(shutil.which(program)))
    lines = [b"exec 9>&1\n", _script("kept=1", "t1"), _script(command, "t2")]
    ended = subprocess.run(
        [shell], input=b"".join([*lines, _script("echo $kept", "t3")]), capture_output=True
    )
    assert ended.returncode == 0
    status = b"0" if command.startswith("cat") else b"2"
    assert b"\x1et2\x1f" + status + b"\x1e1\n\x1et3\x1f0\x1e" in ended.stdout


@docker
async def test_tracing_shows_no_mark(sandbox: Sandbox, programs: Programs) -> None:
    said = await say(programs.shell, sandbox, "set -xv; echo a")
    assert said.ended == "done"
    assert b"a\n" in said.output
    after = await say(programs.shell, sandbox, "set +xv; echo b")
    assert after.output.endswith(b"b\n")
    assert (await say(programs.shell, sandbox, "echo c")).output == b"c\n"


@docker
@pytest.mark.parametrize(
    ("command", "exit_code", "number"),
    [
        ("echo a; exit 3", 3, None),
        ("echo a; exec true", 0, None),
        ("echo a; kill -9 $$", None, 9),
        ("echo a; set -e; false", 1, None),
    ],
)
async def test_a_command_may_end_the_shell(
    sandbox: Sandbox, programs: Programs, command: str, exit_code: int | None, number: int | None
) -> None:
    await say(programs.shell, sandbox, "x=1")

    said = await say(programs.shell, sandbox, command)

    assert (said.ended, said.exit_code, said.signal) == ("shell_ended", exit_code, number)
    assert said.output.startswith(b"a\n")
    after = await say(programs.shell, sandbox, 'echo "[$x]"')
    assert (after.output, after.state_lost) == (b"[]\n", False)


@docker
async def test_at_the_deadline_all_of_the_shell_goes(sandbox: Sandbox, programs: Programs) -> None:
    await say(programs.shell, sandbox, "x=1; setsid sleep 3023 & :")

    said = await say(programs.shell, sandbox, "echo part; sleep 3023", 0.5)

    assert (said.ended, said.output, said.exit_code) == ("timed_out", b"part\n", None)
    found = await sandbox.run(["pgrep", "-xf", "sleep 302."], deadline_s=SOON_S)
    assert found.output == b""
    assert (await say(programs.shell, sandbox, 'echo "[$x]"')).output == b"[]\n"


@docker
async def test_a_cancelled_command_costs_the_shell(sandbox: Sandbox, programs: Programs) -> None:
    saying = asyncio.create_task(say(programs.shell, sandbox, "sleep 3024"))
    async with asyncio.timeout(SOON_S):
        while not (await sandbox.run("pgrep -xf 'sleep 3024'", deadline_s=SOON_S)).output:
            pass

    saying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saying

    assert (await sandbox.run("pgrep -xf 'sleep 3024'", deadline_s=SOON_S)).output == b""
    assert (await say(programs.shell, sandbox, "echo on")).output == b"on\n"


@docker
async def test_commands_at_once_take_turns_and_waiting_counts(
    sandbox: Sandbox, programs: Programs
) -> None:
    first = asyncio.create_task(say(programs.shell, sandbox, "sleep 0.3; x=$x,1; echo $x"))
    await asyncio.sleep(0)
    second = asyncio.create_task(say(programs.shell, sandbox, "x=$x,2; echo $x"))
    late = asyncio.create_task(say(programs.shell, sandbox, "x=$x,3", 0.01))

    assert (await first).output == b",1\n"
    assert (await second).output == b",1,2\n"
    assert (await late).ended == "not_begun"
    assert (await say(programs.shell, sandbox, "echo $x")).output == b",1,2\n"


@docker
async def test_a_restart_ends_what_hangs(sandbox: Sandbox, programs: Programs) -> None:
    assert not await programs.shell.restart()
    await say(programs.shell, sandbox, "x=1")
    hanging = asyncio.create_task(say(programs.shell, sandbox, "sleep 3025"))
    async with asyncio.timeout(SOON_S):
        while not (await sandbox.run("pgrep -xf 'sleep 3025'", deadline_s=SOON_S)).output:
            pass

    assert await programs.shell.restart()

    assert (await hanging).ended == "shell_ended"
    assert (await say(programs.shell, sandbox, 'echo "[$x]"')).output == b"[]\n"


@docker
async def test_a_long_output_comes_with_its_beginning_and_its_end(
    sandbox: Sandbox, programs: Programs
) -> None:
    heard = 0

    async def hear(data: bytes) -> None:
        nonlocal heard
        heard += len(data)

    said = await programs.shell.run(
        sandbox,
        "echo start; head -c 3000000 /dev/zero; echo end",
        deadline_s=SOON_S,
        output_limit_bytes=100,
        on_output=hear,
    )

    assert (len(said.output), said.total_bytes, heard) == (100, 3_000_010, 3_000_010)
    assert (said.output[:6], said.output[-4:]) == (b"start\n", b"end\n")


@docker
async def test_output_of_the_background_comes_before_that_of_the_next_command(
    sandbox: Sandbox, programs: Programs
) -> None:
    line = "(until [ -e /tmp/go ]; do sleep 0.01; done; echo late; rm /tmp/go) & echo now"
    assert (await say(programs.shell, sandbox, line)).output == b"now\n"
    await sandbox.run("touch /tmp/go; while [ -e /tmp/go ]; do sleep 0.01; done", deadline_s=SOON_S)

    assert (await say(programs.shell, sandbox, "echo next")).output == b"late\nnext\n"
