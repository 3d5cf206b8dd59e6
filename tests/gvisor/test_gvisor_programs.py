"""Programs that are written to and signalled, the shell, and users, under gVisor.

There is no subreaper here, so what loses its parent hangs off the container's first process.
"""

import signal
from collections.abc import Iterator

import pytest

from runner import Runner, Session
from runner.background import Programs
from runner.sandbox import Sandbox

pytestmark = [pytest.mark.docker, pytest.mark.gvisor, pytest.mark.slow]

SOON_S = 30.0


async def all_of(programs: Programs, id: str) -> tuple[bytes, int | None]:
    """The rest of a program's output, and the signal that ended it."""
    output = b""
    while True:
        polled = await programs.poll(id, wait_s=SOON_S)
        output += polled.output
        if not polled.state.running:
            assert polled.state.result is not None
            return output, polled.state.result.signal


def test_programs_and_the_shell_go_on_between_calls(gvisor_session: Session) -> None:
    async def go() -> None:
        sandbox: Sandbox = await gvisor_session._session.sandbox()
        programs = Programs()
        await programs.start(sandbox, "read x; echo got $x; (setsid sleep 3041 &); sleep 3042")
        await programs.write("p-1", b"it\n")
        polled = await programs.poll("p-1", wait_s=SOON_S)
        assert polled.output == b"got it\n"
        await programs.start(sandbox, "cat; sleep 3043")
        await programs.write("p-2", b"all", end=True)
        assert (await programs.poll("p-2", wait_s=SOON_S)).output == b"all"
        await programs.signal("p-2", signal.SIGTERM)
        assert await all_of(programs, "p-2") == (b"", signal.SIGTERM)
        await programs.kill("p-1")
        left = await sandbox.run(["pgrep", "-xf", "sleep 304."], deadline_s=SOON_S)
        assert left.output == b""

        async def say(command: str, deadline_s: float = SOON_S) -> tuple[bytes, str]:
            said = await programs.shell.run(
                sandbox, command, deadline_s=deadline_s, output_limit_bytes=1000
            )
            return said.output, said.ended

        assert await say("cd /tmp; x='a b'") == (b"", "done")
        assert (await say("echo 'open"))[1] == "done"
        assert await say('pwd; echo "$x"') == (b"/tmp\na b\n", "done")
        assert await say("echo part; sleep 3044", 1.0) == (b"part\n", "timed_out")

        result = await sandbox.run("echo a; echo b >&2", deadline_s=SOON_S, errors_apart=True)
        assert (result.output, result.errors) == (b"a\n", b"b\n")

    gvisor_session._portal.call(go)


@pytest.fixture
def users(gvisor_runner: Runner) -> Iterator[Session]:
    with gvisor_runner.session(users=True) as session:
        yield session


def test_a_session_may_have_users(users: Session) -> None:
    async def go() -> None:
        sandbox: Sandbox = await users._session.sandbox()

        async def says(line: str, user: str | None = None) -> str:
            result = await sandbox.run(line, deadline_s=SOON_S, user=user)
            assert result.exit_code == 0, result
            return result.output.decode()

        rights = "id -u; sed -n 's/^CapEff.//p' /proc/self/status"
        owner, none = (await says(rights)).split()
        assert (await says(rights, "root")).split() == ["0", "00000000000000eb"]
        assert int(none, 16) == 0
        await says("adduser --comment x --disabled-password me", "root")
        assert await says("whoami; echo > ~/x; grep CapEff /proc/self/status", "me") == (
            "me\nCapEff:\t0000000000000000\n"
        )
        await sandbox.write("/workspace/mine", b"x")
        look = "python3 -c 'import os; print(os.stat(\"/workspace/mine\").st_uid)'"
        assert await says(look) == f"{owner}\n"
        ended = await sandbox.run("(setsid sleep 3045 &); sleep 3046", deadline_s=1.0, user="me")
        assert ended.ended == "timed_out"
        left = await sandbox.run(["pgrep", "-xf", "sleep 304."], deadline_s=SOON_S)
        assert left.output == b""

    users._portal.call(go)
