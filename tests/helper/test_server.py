"""The helper as a whole, as process 1 of a PID namespace on the host.

It is the real program with the toolbox's own supervisor, asked over the real stream. What a
container adds is tested in `test_processes` and `test_container`; here lines are counted, and
the helper can be given a full disk, a stingy kernel, or a host that talks nonsense.

Its commands run with the rights of whoever runs the tests, on the host's own files.
"""

import asyncio
import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from runner import sandbox as sandbox_module
from runner.answers import RequestFailed
from runner.errors import SandboxLost
from runner.helper import jobs, server, wire
from runner.helper.wire import Kind
from runner.sandbox import Sandbox
from tests.helper.running import (
    CGROUP,
    KIB,
    MARKER,
    MIB,
    Helper,
    Peer,
    Run,
    Start,
    all_processes,
    hello,
    launch,
    reading,
    running,
    runs_on,
    soon,
)
from tests.host import SOON_S, wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

VICTIM = "sleep 3011"
BYSTANDER = "sleep 3012"

LITTLE_MEMORY = (
    "set -- $(grep VmData /proc/1/status); prlimit --pid 1 --data=$(($2 * 1024 + 6000000)):"
)
"""Leaves the helper a little more than it has: too little for a thread, or a large file."""


# Programs.


@pytest.mark.parametrize(
    ("command", "output", "exit_code", "signal"),
    [
        ("echo a; echo b >&2; echo c; exit 3", b"a\nb\nc\n", 3, None),
        ("", b"", 0, None),
        ("exit 137", b"", 137, None),
        ("kill -TERM $$", b"", None, 15),
        ("kill -KILL $$", b"", None, 9),
        ('echo "$0 $#"; umask', b"/bin/sh 0\n0022\n", 0, None),
        (["printf", "%s|", "a b", "$HOME", "", "é"], "a b|$HOME||é|".encode(), 0, None),
        ("ls -l /proc/self/fd | wc -l; readlink /proc/self/fd/0", b"5\n/dev/null\n", 0, None),
    ],
)
async def test_a_program_s_output_and_its_end_come_back(
    run: Run, command: str | list[str], output: bytes, exit_code: int | None, signal: int | None
) -> None:
    result = await run(command)

    assert (result.output, result.exit_code, result.signal) == (output, exit_code, signal)
    assert (result.ended, result.background, result.oom_killed) == ("exited", 0, False)
    assert result.spill_path is None


@pytest.mark.parametrize(
    ("command", "options", "code"),
    [
        (["true"], {"cwd": "/nowhere"}, "not_found"),
        ("true", {"cwd": "/etc/passwd"}, "not_directory"),
        (["no-such-program"], {}, "not_found"),
        (["/etc/passwd"], {}, "permission_denied"),
        ([], {}, "not_found"),
        (["echo", "x" * 140_000], {}, "argument_list_too_long"),
        (["echo", "a\0b"], {}, "io"),
        ("true", {"env": {"A=B": "c"}}, "io"),
    ],
)
async def test_what_can_not_be_started_is_a_failure_and_leaves_nothing(
    helper: Helper, run: Run, command: str | list[str], options: dict[str, Any], code: str
) -> None:
    descriptors = len(os.listdir(f"/proc/{helper.pid}/fd")) if os.getuid() == 0 else None

    with pytest.raises(RequestFailed) as caught:
        await run(command, **options)

    assert caught.value.code == code
    assert (await run("echo alive")).output == b"alive\n"
    await soon(lambda: helper.processes() == [])
    if descriptors is not None:
        assert len(os.listdir(f"/proc/{helper.pid}/fd")) == descriptors


async def test_a_program_gets_its_variables_for_one_call(run: Run) -> None:
    shown = 'echo "$GREETING|$HOME"'

    assert (await run(shown, env={"GREETING": "a b=é", "HOME": "/h"})).output == (
        "a b=é|/h\n".encode()
    )
    assert (await run(shown)).output == f"|{os.environ.get('HOME', '')}\n".encode()


async def test_a_program_gets_its_standard_input(run: Run) -> None:
    content = os.urandom(3 * MIB)

    assert (await run(["cat"], stdin=content, output_limit_bytes=4 * MIB)).output == content
    assert (await run(["wc", "-c"], stdin=b"")).output == b"0\n"
    assert (await run(["wc", "-c"])).output == b"0\n"


@pytest.mark.parametrize(
    ("size", "files"),
    [
        (jobs.LONG_COMMAND_BYTES - 1, b""),
        (jobs.LONG_COMMAND_BYTES, b"-rw------- 1.sh\n"),
        (MIB, b"-rw------- 1.sh\n"),
    ],
)
async def test_a_long_command_comes_from_a_file_that_goes_with_it(
    run: Run, scratch: Path, size: int, files: bytes
) -> None:
    listing = (
        f"ls -l {scratch} 2>/dev/null | sed -n 's/^\\(-[^ ]*\\).* /\\1 /p'; echo $0 $#; exit 4 #"
    )

    result = await run(listing + "x" * (size - len(listing)))

    assert (result.output, result.exit_code) == (files + b"/bin/sh 0\n", 4)
    assert not scratch.exists() or list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "code"),
    [({"env": {"LONG": "x" * 140_000}}, "argument_list_too_long"), ({"cwd": "/no"}, "not_found")],
)
async def test_a_long_command_that_does_not_start_leaves_no_file(
    run: Run, scratch: Path, options: dict[str, Any], code: str
) -> None:
    with pytest.raises(RequestFailed) as caught:
        await run("# " + "x" * jobs.LONG_COMMAND_BYTES, **options)

    assert caught.value.code == code
    assert list(scratch.iterdir()) == []


async def test_without_a_place_for_files_a_long_command_fails_and_a_long_output_is_cut(
    start: Start, place: Path
) -> None:
    (place / "file").touch()
    async with start(scratch__SCRATCH=f"{place}/file/scratch").sandbox() as sandbox:
        run = runs_on(sandbox)
        with pytest.raises(RequestFailed) as caught:
            await run("# " + "x" * jobs.LONG_COMMAND_BYTES)
        result = await run("seq 1000", output_limit_bytes=10)

    assert caught.value.code == "not_directory"
    assert (result.output, result.exit_code) == (b"1\n2\n3\n000\n"[:5] + b"1000\n", 0)
    assert (result.spill_path, result.spill_bytes) == (None, 0)


async def test_on_a_full_disk_a_long_command_fails_and_an_output_is_kept_in_part(
    run: Run, sandbox: Sandbox, scratch: Path
) -> None:
    await run(f"mkdir {scratch} && mount -t tmpfs -o size=64k none {scratch}")

    with pytest.raises(RequestFailed) as caught:
        await run("# " + "x" * jobs.LONG_COMMAND_BYTES)
    left = (await run(["ls", "-A", str(scratch)])).output
    result = await run("seq 100000", output_limit_bytes=10)

    assert caught.value.code == "no_space"
    assert left == b""
    assert result.exit_code == 0
    assert result.total_bytes > 500_000
    assert result.spill_bytes == 64 * KIB
    kept = await sandbox.read(str(result.spill_path), limit_bytes=MIB)
    assert kept == "".join(f"{n}\n" for n in range(1, 20_000)).encode()[: 64 * KIB]


# Errors apart, input in pieces, signals.


class Heard:
    """Takes the output of a program, and waits for parts of it."""

    def __init__(self) -> None:
        self.output = b""
        self._more = asyncio.Event()

    async def __call__(self, data: bytes) -> None:
        self.output += data
        self._more.set()

    async def until(self, expected: bytes) -> None:
        """Wait until that is all there is."""
        async with asyncio.timeout(SOON_S):
            while self.output != expected:
                assert expected.startswith(self.output)
                self._more.clear()
                await self._more.wait()


@pytest.fixture
def heard() -> Heard:
    return Heard()


async def test_standard_error_comes_apart_where_that_is_asked(run: Run, heard: Heard) -> None:
    result = await run("echo a; echo b >&2; exit 3", errors_apart=True, on_output=heard)

    assert (result.output, result.errors, result.exit_code) == (b"a\n", b"b\n", 3)
    assert (result.total_bytes, result.errors_total_bytes) == (2, 2)
    assert sorted(heard.output.split()) == [b"a", b"b"]


async def test_each_output_has_its_limit_and_only_the_first_is_kept(run: Run) -> None:
    line = "head -c 3000 /dev/zero; head -c 2000 /dev/zero >&2"

    result = await run(line, errors_apart=True, output_limit_bytes=100)

    assert (len(result.output), result.total_bytes, result.spill_bytes) == (100, 3000, 3000)
    assert (len(result.errors or b""), result.errors_total_bytes) == (100, 2000)
    assert result.errors_head_bytes == 50


def test_both_outputs_have_one_window(either: Helper) -> None:
    with either.peer() as peer:
        peer.greet()
        flood = "head -c 3000000 /dev/zero & head -c 3000000 /dev/zero >&2; wait"
        peer.say(running(1, flood, errors=True))
        room = wire.OUTPUT_WINDOW_BYTES
        kinds = set()
        while room:
            message = peer.hear()
            kinds.add(message.kind)
            room -= len(message.payload)
        assert kinds <= {Kind.OUTPUT, Kind.ERRORS}
        assert room == 0

        peer.say(wire.encode(Kind.PING, 2))
        assert peer.hear().kind == Kind.PONG, "more was sent than there was credit for"
        peer.say(wire.encode(Kind.CREDIT, 1, {"bytes": 2**40}))
        end = peer.hear_end(1).fields
        assert (end["output_bytes"], end["errors_bytes"]) == (3_000_000, 3_000_000)


async def test_a_program_reads_what_is_written_to_it_and_then_the_end(
    sandbox: Sandbox, heard: Heard
) -> None:
    program = await sandbox.start(
        "while read -r line; do echo got $line; done; echo end",
        deadline_s=SOON_S,
        cwd="/",
        on_output=heard,
    )
    await program.write(b"one\n")
    await heard.until(b"got one\n")
    await program.write(b"two\nthr")
    await program.write(b"ee\n")
    await program.end_input()

    result = await program.wait()
    assert (result.exit_code, result.ended, result.output) == (0, "exited", b"")
    assert heard.output == b"got one\ngot two\ngot three\nend\n"


async def test_input_beyond_the_window_waits_for_its_reader(
    sandbox: Sandbox, heard: Heard, place: Path
) -> None:
    content = os.urandom(2 * MIB)
    go = place / "go"
    line = f"until [ -e {go} ]; do sleep 0.01; done; sha256sum"
    program = await sandbox.start(line, deadline_s=SOON_S, cwd="/", on_output=heard)
    writing = asyncio.create_task(program.write(content))
    done, _ = await asyncio.wait([writing], timeout=0.1)
    assert not done

    go.touch()
    await writing
    await program.end_input()
    assert (await program.wait()).exit_code == 0
    assert heard.output.split()[0] == hashlib.sha256(content).hexdigest().encode()


async def test_a_program_need_not_read_its_input(sandbox: Sandbox, heard: Heard) -> None:
    line = "exec <&-; echo closed; sleep 0.2; echo end"
    program = await sandbox.start(line, deadline_s=SOON_S, cwd="/", on_output=heard)
    await heard.until(b"closed\n")

    await program.write(bytes(2 * MIB))

    assert (await program.wait()).exit_code == 0
    await program.write(b"too late")
    await program.end_input()


def test_more_input_than_there_is_room_for_is_an_offence(helper: Helper) -> None:
    with helper.peer() as peer:
        peer.greet()
        # The pipe takes some of it; what is behind that in the same piece is too much.
        piece = wire.encode(Kind.INPUT, 1, {"end": False}, bytes(wire.INPUT_CHUNK_BYTES))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            peer.say(running(1, VICTIM, input=True), piece * 10)
        assert peer.hears_hanging_up()
    wait_until(lambda: helper.processes() == [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
async def test_a_signal_reaches_the_program_and_what_it_waits_for(
    helper: Helper, sandbox: Sandbox, heard: Heard, number: signal.Signals
) -> None:
    program = await sandbox.start(
        f"echo on; {VICTIM}; echo not reached", deadline_s=SOON_S, cwd="/", on_output=heard
    )
    await soon(lambda: VICTIM in helper.commands())

    await program.signal(number)

    result = await program.wait()
    assert (result.signal, result.exit_code, result.ended) == (number, None, "exited")
    assert heard.output == b"on\n"
    await soon(helper.runs)  # what the signal reached may still be ending


async def test_a_signal_reaches_nothing_else(
    helper: Helper, sandbox: Sandbox, run: Run, heard: Heard
) -> None:
    assert (await run(f"{BYSTANDER} &")).background == 1
    other = asyncio.create_task(run(f"setsid {BYSTANDER}"))
    line = f"(setsid {BYSTANDER} &); trap 'echo caught; exit 5' TERM; {VICTIM} & wait"
    program = await sandbox.start(line, deadline_s=SOON_S, cwd="/", on_output=heard)
    await soon(lambda: helper.commands().count(BYSTANDER) >= 3 and VICTIM in helper.commands())

    await program.signal(signal.SIGTERM)

    result = await program.wait()
    assert (result.exit_code, heard.output) == (5, b"caught\n")
    assert helper.commands().count(BYSTANDER) >= 3
    await program.signal(signal.SIGKILL)  # it has ended: there is nobody to send it to
    await sandbox.ping()
    assert helper.commands().count(BYSTANDER) >= 3
    other.cancel()


async def test_a_killed_program_leaves_nothing_and_says_so(
    helper: Helper, sandbox: Sandbox, heard: Heard
) -> None:
    line = f"(setsid {VICTIM} &); trap '' TERM INT; echo on; {VICTIM}"
    program = await sandbox.start(line, deadline_s=None, cwd="/", on_output=heard)
    await soon(lambda: helper.commands().count(VICTIM) == 2)

    result = await program.kill()

    assert (result.ended, heard.output, program.ended) == ("cancelled", b"on\n", True)
    assert helper.processes() == []


async def test_a_program_has_its_deadline(sandbox: Sandbox, heard: Heard) -> None:
    program = await sandbox.start("sleep 300", deadline_s=0.2, cwd="/", on_output=heard)

    assert (await program.wait()).ended == "timed_out"


async def test_a_program_that_can_not_be_started_says_so_when_it_is_waited_for(
    sandbox: Sandbox, heard: Heard
) -> None:
    program = await sandbox.start("true", deadline_s=1, cwd="/none", on_output=heard)

    with pytest.raises(RequestFailed) as caught:
        await program.wait()
    assert caught.value.code == "not_found"


async def test_a_program_is_lost_with_its_helper(helper: Helper, heard: Heard) -> None:
    async with helper.sandbox() as sandbox:
        program = await sandbox.start("sleep 300", deadline_s=None, cwd="/", on_output=heard)
    with pytest.raises(SandboxLost):
        await program.wait()
    with pytest.raises(SandboxLost):
        await program.write(b"x")


async def test_another_user_takes_a_session_that_can_switch(run: Run) -> None:
    with pytest.raises(RequestFailed) as other:
        await run("id -u", user="daemon")
    with pytest.raises(RequestFailed) as unknown:
        await run("id -u", user="nobody-at-all")

    assert (await run("id -u", user="0")).output == b"0\n"
    assert (await run("id -u", user="root")).output == b"0\n"
    assert other.value.code == "permission_denied"
    assert "opened with `users`" in other.value.detail
    assert (unknown.value.code, "nobody-at-all" in unknown.value.detail) == ("no_user", True)


# Outputs that are kept.


@pytest.mark.parametrize(
    ("limit", "kept"),
    [(sandbox_module.SPILL_LIMIT_BYTES, b"0123456789\n"), (11, b"0123456789\n"), (4, b"0123")],
)
async def test_an_output_that_outgrows_its_result_is_kept_up_to_a_limit(
    run: Run, scratch: Path, monkeypatch: pytest.MonkeyPatch, limit: int, kept: bytes
) -> None:
    monkeypatch.setattr(sandbox_module, "SPILL_LIMIT_BYTES", limit)

    result = await run("printf 0123; sleep 0.05; echo 456789", output_limit_bytes=10)

    assert (result.spill_path, result.spill_bytes) == (f"{scratch}/1.out", len(kept))
    assert (scratch / "1.out").read_bytes() == kept
    assert (scratch / "1.out").stat().st_mode & 0o777 == 0o600
    assert result.total_bytes == 11


async def test_an_output_that_fits_or_that_nobody_wants_is_not_kept(
    run: Run, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = await run("echo 456789", output_limit_bytes=7)
    monkeypatch.setattr(sandbox_module, "SPILL_LIMIT_BYTES", 0)
    unwanted = await run("echo 456789", output_limit_bytes=6)

    assert [fits.spill_path, unwanted.spill_path] == [None, None]
    assert not scratch.exists()


async def test_the_oldest_outputs_make_room_for_a_new_one(
    start: Start, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_module, "SPILL_LIMIT_BYTES", 1000)
    async with start(scratch__SCRATCH_BYTES=3000).sandbox() as sandbox:
        run = runs_on(sandbox)
        for _ in range(3):
            await run("head -c 1000 /dev/zero", output_limit_bytes=10)
        assert sorted(os.listdir(scratch)) == ["1.out", "2.out", "3.out"]
        (scratch / "1.out").unlink()  # a call may do so as well
        for _ in range(2):
            await run("head -c 500 /dev/zero", output_limit_bytes=10)
        assert sorted(os.listdir(scratch)) == ["3.out", "4.out", "5.out"]
        await run("head -c 500 /dev/zero", output_limit_bytes=10)

    assert sorted(os.listdir(scratch)) == ["3.out", "4.out", "5.out", "6.out"]


async def test_another_conversation_s_output_of_the_same_number_is_not_touched(
    either: Helper, scratch: Path
) -> None:
    kept = []
    for word in ("first", "second", "third"):
        async with either.sandbox() as sandbox:
            result = await runs_on(sandbox)(["echo", word], output_limit_bytes=1)
            kept.append(Path(str(result.spill_path)))

    assert [path.read_text() for path in kept] == ["first\n", "second\n", "third\n"]
    assert kept[0] == scratch / "1.out"
    assert {path.parent for path in kept} == {scratch}


async def test_a_call_may_remove_what_is_kept(run: Run, scratch: Path) -> None:
    remove = f"rm -r {scratch}; echo gone # "

    result = await run(remove + "x" * jobs.LONG_COMMAND_BYTES)
    again = await run("echo again", output_limit_bytes=1)

    assert (result.output, result.exit_code) == (b"gone\n", 0)
    assert (scratch / "2.out").read_text() == "again\n"
    assert again.spill_path == f"{scratch}/2.out"


# Ends.

ESCAPES = {
    "background": f"{VICTIM} &",
    "daemon": f"(setsid sh -c 'setsid {VICTIM} & exec setsid sleep 300' &)",
    "stopped": f"{VICTIM} & until grep -q sleep /proc/$!/comm; do :; done; kill -STOP $!",
    "stopped supervisor": f"{VICTIM} & kill -STOP $PPID",
    "signals ignored": f"trap '' TERM INT HUP; {VICTIM} &",
}


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES.keys())
async def test_a_cancelled_call_leaves_nothing(
    helper: Helper, sandbox: Sandbox, run: Run, escape: str
) -> None:
    call = asyncio.create_task(run(f"{escape}\n sleep 300"))
    await soon(lambda: VICTIM in helper.commands() and "sleep 300" in helper.commands())

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert helper.processes() == []
    assert sandbox.lost is None


async def test_at_the_deadline_a_call_ends_and_its_output_comes_back(
    helper: Helper, run: Run
) -> None:
    result = await run(f"{VICTIM} & echo before; {VICTIM}", deadline_s=0.5)

    assert (result.output, result.ended) == (b"before\n", "timed_out")
    assert (result.exit_code, result.signal, result.background) == (None, None, 0)
    assert helper.processes() == []


def test_the_helper_s_own_clock_ends_a_call_that_nobody_cancels(helper: Helper) -> None:
    with helper.peer() as peer:
        peer.greet()
        peer.say(running(1, f"{VICTIM} & echo before; {VICTIM}", deadline_s=0.5))

        assert peer.hears_output(1, 7) == b"before\n"
        assert peer.hear_end(1).fields["ended"] == "deadline"
        assert helper.processes() == []


async def test_what_forks_as_fast_as_it_is_cut_is_cut(helper: Helper, run: Run) -> None:
    chain = """export next='sh -c "$next" &'; sh -c "$next" """

    result = await run(f"echo on; {chain}; sleep 300", deadline_s=0.5)

    assert (result.output, result.ended) == (b"on\n", "timed_out")
    assert helper.processes() == []


async def test_a_tree_that_can_not_be_cut_in_time_costs_all_calls_their_lives(
    start: Start,
) -> None:
    helper = start(jobs__SWEEP_S=0.0)
    async with helper.sandbox() as sandbox:
        run = runs_on(sandbox)
        assert (await run(f"{BYSTANDER} &")).background == 1
        other = asyncio.create_task(run(f"echo on; {BYSTANDER}"))
        call = asyncio.create_task(run(VICTIM))
        await soon(lambda: helper.commands().count(BYSTANDER) == 2 and VICTIM in helper.commands())

        call.cancel()
        result = await other

        assert (result.output, result.ended) == (b"on\n", "killed")
        await soon(lambda: helper.processes() == [])
        assert (await run("echo alive")).output == b"alive\n"


async def test_a_call_that_kills_its_supervisor_is_over_and_so_is_its_tree(
    helper: Helper, run: Run
) -> None:
    result = await run(f"setsid {VICTIM} & echo before; kill -9 $PPID; {VICTIM}; echo after")

    assert {process.state for process in helper.processes()} <= {"Z", "X"}
    assert (result.output, result.ended) == (b"before\n", "killed")
    assert (result.exit_code, result.signal, result.background) == (None, None, 0)
    await soon(lambda: helper.processes() == [])
    assert (await run("echo alive")).output == b"alive\n"


@pytest.mark.parametrize("others", [0, 1])
async def test_what_an_ended_call_left_dies_with_its_supervisor_and_other_calls_live(
    helper: Helper, run: Run, place: Path, others: int
) -> None:
    assert (await run(f"({VICTIM}; :) & echo")).background >= 1
    await soon(lambda: VICTIM in helper.commands())
    (left,) = (process for process in helper.processes() if process.command == "supervisor")
    wait = f"{BYSTANDER} & until [ -e {place}/go ]; do sleep 0.01; done; echo on"
    waiting = [asyncio.create_task(run(wait)) for _ in range(others)]
    await soon(lambda: helper.commands().count(BYSTANDER) == others)

    os.kill(left.pid, 9)

    await soon(lambda: VICTIM not in helper.commands())
    await soon(lambda: "Z" not in {process.state for process in helper.processes()})
    assert helper.commands().count(BYSTANDER) == others
    (place / "go").touch()
    assert [(await call).output for call in waiting] == [b"on\n"] * others


async def test_orphans_leave_no_zombie(helper: Helper, run: Run) -> None:
    result = await run("for i in $(seq 50); do (sh -c 'exit 3' & echo $!); done")

    assert len(set(result.output.split())) == 50
    assert result.background == 0
    await soon(lambda: helper.processes() == [])


async def test_signals_to_the_helper_from_its_calls_do_nothing(
    helper: Helper, sandbox: Sandbox, run: Run
) -> None:
    result = await run(
        "for s in INT HUP QUIT USR1 PIPE CHLD KILL STOP; do kill -$s 1; done; echo on"
    )

    assert result.output == b"on\n"
    assert await sandbox.ping() < SOON_S


# The background.


async def test_a_call_ends_with_its_shell_and_leaves_what_it_started(
    helper: Helper, run: Run
) -> None:
    started = time.monotonic()
    result = await run(f"{VICTIM} & echo done")

    assert time.monotonic() - started < SOON_S / 2
    assert (result.output, result.exit_code, result.background) == (b"done\n", 0, 1)
    assert helper.runs(VICTIM)


async def test_the_output_of_what_outlives_its_shell_by_a_moment_is_kept(run: Run) -> None:
    busy = "n=0; while [ $n -lt 2000 ]; do n=$((n+1)); done; echo done"
    for late in ("echo done", busy):
        for _ in range(5):
            assert (await run(f"({late}) &")).output == b"done\n"


async def test_the_background_goes_with_the_call_where_that_is_asked(
    helper: Helper, run: Run
) -> None:
    result = await run(f"setsid {VICTIM} & {VICTIM} & echo $!; exit 5", background="kill")

    assert result.output.strip().isdigit()
    assert (result.exit_code, result.ended, result.background) == (5, "exited", 0)
    assert helper.processes() == []


async def test_the_background_of_a_call_that_was_refused_processes_goes_with_it(
    helper: Helper, run: Run
) -> None:
    events = "/sys/fs/cgroup/pids.events"

    refused = await run(f"{VICTIM} & echo max 1 > {events}")
    assert helper.processes() == []
    later = await run(f"{VICTIM} & echo")

    assert (refused.exit_code, refused.background) == (0, 0)
    assert later.background == 1
    assert helper.runs(VICTIM)


def test_what_a_call_left_may_write_on_without_credit_and_nobody_sees_it(
    helper: Helper, place: Path
) -> None:
    late = (
        f"until [ -e {place}/go ]; do sleep 0.01; done; head -c 3000000 /dev/zero; : > {place}/done"
    )
    with helper.peer() as peer:
        peer.greet()
        peer.say(running(1, f"head -c {wire.OUTPUT_WINDOW_BYTES} /dev/zero; ({late}) &"))
        peer.hears_output(1, wire.OUTPUT_WINDOW_BYTES)
        ran = peer.hear()
        (place / "go").touch()
        wait_until((place / "done").exists)
        wait_until(lambda: helper.processes() == [])
        peer.say(running(2, "echo b"))

        assert (ran.kind, ran.fields["exit_code"]) == (Kind.RAN, 0)
        assert ran.fields["background"] >= 1
        assert ran.fields["output_bytes"] == wire.OUTPUT_WINDOW_BYTES
        assert peer.hears_output(2, 2) == b"b\n"
        assert peer.hear().kind == Kind.RAN


async def test_a_flood_in_the_background_does_not_hold_up_other_calls(
    helper: Helper, run: Run
) -> None:
    flood = await run("yes & echo on")
    outputs = [(await run("echo b")).output for _ in range(10)]

    assert flood.background == 1
    assert outputs == [b"b\n"] * 10
    await soon(lambda: helper.runs("yes"))  # the last call's own may still be ending


# Memory.

LAYOUTS = {
    "version 2": "memory.events",
    "version 1": "memory/memory.oom_control",
}


@pytest.mark.parametrize("file", LAYOUTS.values(), ids=LAYOUTS.keys())
async def test_a_call_that_the_kernel_killed_for_memory_says_so_once(
    start: Start, cgroup: Path, file: str
) -> None:
    (cgroup / "memory.events").unlink()
    (cgroup / file).parent.mkdir(exist_ok=True)
    (cgroup / file).write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n")
    kill = f"echo oom_kill 8 > /sys/fs/cgroup/{file}"
    async with start().sandbox() as sandbox:
        run = runs_on(sandbox)
        results = [
            await run("kill -9 $$"),
            await run(f"{kill}; kill -9 $$"),
            await run("kill -9 $$"),
            await run("exit 137"),
            await run(f"{kill.replace('8', '9')}; exit 137"),
        ]

    assert [result.oom_killed for result in results] == [False, True, False, False, True]


async def test_without_a_cgroup_nobody_was_killed_for_memory(start: Start, cgroup: Path) -> None:
    for name in CGROUP:
        (cgroup / name).unlink()
    async with start().sandbox() as sandbox:
        run = runs_on(sandbox)
        killed = await run("kill -9 $$")
        left = await run(f"{VICTIM} &")

    assert (killed.signal, killed.oom_killed, left.background) == (9, False, 1)


# Output on its way.


async def test_output_beyond_the_window_arrives_byte_for_byte(either: Helper, place: Path) -> None:
    whole = os.urandom(5 * MIB + 12_345)
    (place / "whole").write_bytes(whole)
    taken = bytearray()

    async def take(piece: bytes) -> None:
        if not taken:
            await asyncio.sleep(0.2)
        taken.extend(piece)

    async with either.sandbox() as sandbox:
        result = await runs_on(sandbox)(
            ["cat", f"{place}/whole"], output_limit_bytes=10 * MIB, on_output=take
        )

    assert result.output == whole == bytes(taken)
    assert result.spill_path is None


def test_no_more_output_is_sent_than_there_is_credit_for(either: Helper, place: Path) -> None:
    whole = os.urandom(3 * MIB)
    (place / "whole").write_bytes(whole)
    with either.peer() as peer:
        peer.greet()
        peer.say(running(1, ["cat", f"{place}/whole"]))

        output = peer.hears_output(1, wire.OUTPUT_WINDOW_BYTES)
        peer.say(wire.encode(Kind.PING, 7))
        assert peer.hear().kind == Kind.PONG
        peer.say(wire.encode(Kind.CREDIT, 1, {"bytes": 100}))
        output += peer.hears_output(1, 100)
        peer.say(wire.encode(Kind.PING, 8))
        assert peer.hear().kind == Kind.PONG
        peer.say(wire.encode(Kind.CREDIT, 1, {"bytes": 2 * MIB}))
        output += peer.hears_output(1, 2 * MIB - 100)
        ran = peer.hear()

    assert output == whole
    assert (ran.kind, ran.fields["output_bytes"], ran.fields["exit_code"]) == (Kind.RAN, 3 * MIB, 0)


@pytest.mark.parametrize("left", ["", "sleep 0.05 &"], ids=["nothing", "something"])
def test_what_waits_in_the_pipe_of_an_ended_program_waits_for_credit(
    helper: Helper, place: Path, left: str
) -> None:
    """The pipe holds as much as the window, so that a program can end before its output went."""
    count = 2 * MIB - 64 * KIB
    whole = os.urandom(count)
    (place / "whole").write_bytes(whole)
    with helper.peer() as peer:
        peer.greet()
        peer.say(running(1, f"cat {place}/whole; {left}"))
        output = peer.hears_output(1, MIB)
        wait_until(lambda: helper.processes() == [])
        peer.say(wire.encode(Kind.CREDIT, 1, {"bytes": MIB // 2}))
        output += peer.hears_output(1, MIB // 2)
        peer.say(wire.encode(Kind.CREDIT, 1, {"bytes": MIB}))
        output += peer.hears_output(1, count - len(output))
        ran = peer.hear()

    assert output == whole
    assert (ran.kind, ran.fields["exit_code"], ran.fields["background"]) == (Kind.RAN, 0, 0)


async def test_calls_at_once_do_not_mix(either: Helper) -> None:
    async with either.sandbox() as sandbox:
        run = runs_on(sandbox)
        results = await asyncio.gather(
            *(run(f"for i in 1 2 3; do echo {n}; sleep 0.02; done; exit {n}") for n in range(16))
        )

    assert [result.output for result in results] == [f"{n}\n".encode() * 3 for n in range(16)]
    assert [result.exit_code for result in results] == list(range(16))


def test_a_host_that_reads_late_gets_everything(either: Helper, place: Path) -> None:
    contents = [os.urandom(12 * MIB) for _ in range(3)]
    for call, content in enumerate(contents):
        (place / str(call)).write_bytes(content)
    with either.peer() as peer:
        peer.greet()
        for call in range(3):
            peer.say(reading(call + 1, place / str(call)))
        wait_until(lambda: peer.connection.recv(1, socket.MSG_PEEK))
        peer.say(wire.encode(Kind.PING, 9))
        time.sleep(0.2)
        answers = [peer.hear() for _ in range(4)]

    assert {answer.call: answer.payload for answer in answers if answer.call != 9} == {
        call + 1: content for call, content in enumerate(contents)
    }
    assert [answer.kind for answer in answers if answer.call == 9] == [Kind.PONG]


# Files.


async def test_files_are_written_edited_read_and_searched(either: Helper, place: Path) -> None:
    path = f"{place}/d/€ 😀"
    async with either.sandbox() as sandbox:
        assert await sandbox.write(path, b"one\ntwo\n") == 8
        assert await sandbox.replace(path, b"two", b"2", limit_bytes=100) == 1
        assert await sandbox.read(path, limit_bytes=100) == b"one\n2\n"
        found = await sandbox.search(
            f"{place}/d", "^2", ignore_case=False, include="", max_matches=5, max_file_bytes=100
        )

    assert (found.rows, found.matches) == (f"{path}:2: 2\n".encode(), 1)


def test_a_search_that_is_cancelled_stops(helper: Helper, place: Path) -> None:
    """Without being cancelled it would take half a minute: one file under many names is long."""
    (place / "d").mkdir()
    (place / "d/0").write_bytes((b"a" * 63 + b"\n") * (8 * MIB // 64))
    for name in range(1, 600):
        (place / f"d/{name}").hardlink_to(place / "d/0")
    fields: dict[str, Any] = {
        "path": f"{place}/d",
        "judged": None,
        "hidden": [],
        "pattern": "(a|b)*c" + "[ab]?" * 300 + "d",
        "ignore_case": True,
        "include": "",
        "max_matches": 1,
        "max_file_bytes": 2**30,
    }
    with helper.peer() as peer:
        peer.greet()
        # Four of them take all the threads there are, so that the last one has to wait.
        peer.say(*(wire.encode(Kind.SEARCH, call, fields) for call in range(1, 6)))
        peer.say(wire.encode(Kind.PING, 9))
        assert peer.hear().call == 9
        peer.say(*(wire.encode(Kind.CANCEL, call) for call in range(1, 6)))
        answers = sorted((peer.hear() for _ in range(5)), key=lambda answer: answer.call)

    assert [(answer.call, answer.fields["code"]) for answer in answers] == [
        (call, "cancelled") for call in range(1, 6)
    ]


def test_answers_that_nobody_takes_wait_as_files_and_not_in_memory(
    start: Start, place: Path
) -> None:
    helper = start(server__WAITING_BYTES=4 * MIB)
    content = os.urandom(2 * MIB)
    (place / "f").write_bytes(content)
    with helper.peer() as peer:
        peer.greet()
        before = peak_memory(helper)
        peer.say(*(reading(call, place / "f") for call in range(1, 101)))
        wait_until(lambda: peer.connection.recv(1, socket.MSG_PEEK))
        time.sleep(0.3)  # as many as it will read in this time
        assert peak_memory(helper) - before < 50 * MIB
        answers = {answer.call: answer.payload for answer in (peer.hear() for _ in range(100))}

    assert answers == dict.fromkeys(range(1, 101), content)


def peak_memory(helper: Helper) -> int:
    """The most that it has had, in bytes."""
    lines = Path(f"/proc/{helper.pid}/status").read_text().splitlines()
    (kibibytes,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(kibibytes) * KIB


async def test_content_of_more_than_may_wait_is_refused(start: Start, place: Path) -> None:
    async with start(server__WAITING_BYTES=MIB).sandbox() as sandbox:
        with pytest.raises(RequestFailed) as caught:
            await sandbox.write(f"{place}/f", bytes(MIB + 1))
        assert caught.value.code == "busy"
        assert not (place / "f").exists()
        for _ in range(2):
            assert await sandbox.write(f"{place}/f", bytes(MIB)) == MIB


def test_what_happens_to_protected_files_is_told_once_and_across_conversations(
    either: Helper, place: Path
) -> None:
    workspace = place / "workspace"
    workspace.mkdir()
    (workspace / ".envrc").touch()
    watch = wire.encode(Kind.WATCH, 1, {"root": str(workspace), "patterns": [r"\A.*/\.envrc\z"]})
    with either.peer() as peer:
        peer.greet()
        peer.say(running(2, f"echo 1 > {workspace}/.envrc", watch=True))
        unseen = peer.hear_end(2).fields
        peer.say(watch)
        assert peer.hear_end(1).kind == Kind.WATCHED
        peer.say(running(3, f"echo 2 > {workspace}/.envrc; touch {workspace}/other", watch=True))
        seen = peer.hear_end(3).fields
    (workspace / ".envrc").unlink()
    with either.peer() as peer:
        peer.greet()
        peer.say(watch)
        assert peer.hear_end(1).kind == Kind.WATCHED
        peer.say(running(2, "true"), running(3, "sleep 0.1", watch=True))
        unasked, later = peer.hear_end(2).fields, peer.hear_end(3).fields
        peer.say(running(4, "true", watch=True))
        again = peer.hear_end(4).fields

    told = [
        (answer["touched"], answer["touched_count"], answer["touched_complete"])
        for answer in (unseen, seen, unasked, later, again)
    ]
    assert told == [
        ([], 0, False),
        ([[f"{workspace}/.envrc", "changed"]], 1, True),
        ([], 0, None),
        ([[f"{workspace}/.envrc", "removed"]], 1, True),
        ([], 0, True),
    ]


async def test_where_a_path_leads_is_told(sandbox: Sandbox, place: Path) -> None:
    (place / "d").mkdir()
    (place / "link").symlink_to("d")

    assert await sandbox.resolve(f"{place}/link/../link/./new") == f"{place}/d/new"


# Streams.


def test_a_helper_dials_until_somebody_listens(start: Start, place: Path) -> None:
    helper = start("socket")
    (path,) = place.glob("stream*")
    with helper.peer() as peer:
        peer.greet()
        path.rename(place / "elsewhere")
    asleep = times_asleep(helper)
    wait_until(lambda: times_asleep(helper) > asleep + 5)
    (place / "elsewhere").rename(path)

    with helper.peer() as peer:
        peer.greet()


def times_asleep(helper: Helper) -> int:
    """How often it has gone to sleep; one that waits for nothing but its stream sleeps once."""
    lines = Path(f"/proc/{helper.pid}/status").read_text().splitlines()
    (count,) = (line.split()[1] for line in lines if line.startswith("voluntary_ctxt"))
    return int(count)


async def test_a_new_conversation_ends_the_calls_of_the_one_before(
    either: Helper, place: Path
) -> None:
    (place / "big").write_bytes(bytes(16 * MIB))
    with either.peer() as first:
        first.greet()
        first.say(running(1, "yes"), running(2, f"setsid {VICTIM} & {VICTIM}"))
        first.say(*(reading(call, place / "big") for call in range(3, 20)))
        wait_until(lambda: {"yes", VICTIM} <= set(either.commands()))
        first.hears_output(1, wire.OUTPUT_WINDOW_BYTES)

    async with either.sandbox() as sandbox:
        assert (await runs_on(sandbox)("echo new")).output == b"new\n"
        await soon(lambda: either.processes() == [])
        assert await sandbox.read(f"{place}/big", limit_bytes=16 * MIB) == bytes(16 * MIB)
        assert sandbox.lost is None


async def test_what_an_ended_call_left_outlives_its_conversation(either: Helper) -> None:
    async with either.sandbox() as sandbox:
        await runs_on(sandbox)(f"{VICTIM} & echo")
    async with either.sandbox() as sandbox:
        assert (await runs_on(sandbox)("echo new")).output == b"new\n"

        assert either.runs(VICTIM)


@pytest.mark.parametrize("unread", [False, True], ids=["read", "unread"])
def test_a_stream_that_ends_takes_its_calls_with_it(start: Start, how: str, unread: bool) -> None:
    helper = start(how)
    with helper.dial() as connection:
        peer = Peer(connection)
        peer.greet()
        peer.say(running(1, f"{VICTIM} & echo on; {VICTIM}"))
        wait_until(lambda: helper.commands().count(VICTIM) == 2)
        if not unread:
            peer.hears_output(1, 3)
        connection.shutdown(socket.SHUT_RDWR)

    if how == "stdio":
        assert helper.ends() == 0
    else:
        wait_until(lambda: helper.processes() == [])
        with helper.peer() as peer:
            peer.greet()


def test_a_host_that_only_stops_reading_is_hung_up_on(either: Helper, how: str) -> None:
    with either.peer() as peer:
        peer.greet()
        peer.connection.shutdown(socket.SHUT_RD)
        peer.say(wire.encode(Kind.PING, 1))
        if how == "stdio":
            assert either.ends() == 0
            return
        with either.peer() as another:
            another.greet()


def test_a_host_that_stops_talking_while_answers_wait_is_hung_up_on(
    either: Helper, how: str, place: Path
) -> None:
    (place / "big").write_bytes(bytes(16 * MIB))
    with either.peer() as peer:
        peer.greet()
        peer.say(reading(1, place / "big"))
        wait_until(lambda: peer.connection.recv(1, socket.MSG_PEEK))
        time.sleep(0.1)
        peer.connection.shutdown(socket.SHUT_WR)
        if how == "stdio":
            assert either.ends() == 0
            return
        with either.peer() as another:
            another.greet()


def test_a_greeting_in_single_bytes_is_a_greeting(either: Helper) -> None:
    with either.peer() as peer:
        for byte in MARKER + hello():
            peer.say(bytes([byte]))
            time.sleep(0.001)

        assert peer.hear().kind == Kind.HELLO


GARBAGE: dict[str, bytes] = {
    "an empty frame": b"\0\0\0\0",
    "a frame without end": b"\xff" * 64,
    "an unknown kind": b"\0\0\0\x09" + bytes([99]) + bytes(8),
    "an answer": wire.encode(Kind.PONG, 1),
    "fields that are none": b"\0\0\0\x0b" + bytes([Kind.PING, 0, 0, 0, 1, 0, 0, 0, 2]) + b"[]",
    "fields that are missing": b"\0\0\0\x09" + bytes([Kind.RUN]) + bytes(8),
    "the number of a program that runs": running(1, "echo no"),
    "the number of a file that is read": reading(5, "/etc/passwd") + reading(5, "/etc/passwd"),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_a_host_that_talks_nonsense_is_hung_up_on_and_its_calls_end(
    start: Start, how: str, garbage: bytes
) -> None:
    helper = start(how)
    with helper.peer() as peer:
        peer.greet()
        peer.say(running(1, VICTIM.split()))
        wait_until(lambda: helper.runs(VICTIM))
        peer.say(garbage)
        if how == "stdio":
            assert helper.ends() == 0
            return
        assert peer.hears_hanging_up()

    wait_until(lambda: helper.processes() == [])
    with helper.peer() as peer:
        peer.greet()


def test_words_about_calls_that_are_over_or_never_were_do_nothing(helper: Helper) -> None:
    with helper.peer() as peer:
        peer.greet()
        for kind, fields in ((Kind.CANCEL, {}), (Kind.CREDIT, {"bytes": 1})):
            peer.say(wire.encode(kind, 77, fields))
        peer.say(running(1, "echo on"))
        assert peer.hears_output(1, 3) == b"on\n"
        assert peer.hear_end(1).kind == Kind.RAN
        peer.say(wire.encode(Kind.CANCEL, 1), running(1, "exit 3"))

        assert peer.hear_end(1).fields["exit_code"] == 3


def test_more_calls_at_once_than_there_may_be_are_refused(helper: Helper) -> None:
    with helper.peer() as peer:
        peer.greet()
        for call in range(1, server.OUTSTANDING + 1):
            peer.say(running(call, VICTIM.split()))
        peer.say(running(257, "echo no"), reading(258, "/etc/passwd"), wire.encode(Kind.PING, 259))
        answers = [peer.hear() for _ in range(3)]
        peer.say(wire.encode(Kind.CANCEL, 100))
        cancelled = peer.hear()
        peer.say(running(257, "echo yes"))
        output = peer.hears_output(257, 4)

    assert server.OUTSTANDING == 256
    assert [(answer.call, answer.fields.get("code")) for answer in answers] == [
        (257, "busy"),
        (258, "busy"),
        (259, None),
    ]
    assert (cancelled.call, cancelled.fields["ended"]) == (100, "cancelled")
    assert output == b"yes\n"


# Time.


@pytest.mark.parametrize("clock", ["expires_s", "idle_s"])
async def test_the_helper_ends_by_its_own_clock_and_all_with_it(either: Helper, clock: str) -> None:
    async with either.sandbox(**{clock: 1.0}) as sandbox:
        await runs_on(sandbox)(f"{VICTIM} & echo")
        (victim,) = (process for process in either.processes() if process.command == VICTIM)

        assert await asyncio.to_thread(either.ends) == 0
        assert victim not in all_processes()


async def test_a_call_is_no_idleness(either: Helper) -> None:
    async with either.sandbox(idle_s=0.3) as sandbox:
        result = await runs_on(sandbox)("sleep 1; echo on")

        assert result.output == b"on\n"
        assert not either.has_ended()
        assert await asyncio.to_thread(either.ends) == 0


async def test_a_call_does_not_put_off_the_end_of_the_session(helper: Helper) -> None:
    async with helper.sandbox(expires_s=0.5) as sandbox:
        with pytest.raises(SandboxLost):
            await runs_on(sandbox)(VICTIM)

        assert await asyncio.to_thread(helper.ends) == 0


async def test_a_helper_that_nobody_reaches_ends_in_time(start: Start) -> None:
    helper = start("socket")
    async with helper.sandbox(expires_s=1.0):
        pass

    assert await asyncio.to_thread(helper.ends) == 0


# What the helper is told, and what happens to it.


@pytest.mark.parametrize(
    ("words", "seccomp"),
    [((), True), (("--seccomp=off",), False), (("--seccomp=off", "--subreaper=off"), False)],
)
async def test_a_helper_says_what_it_has_found(
    start: Start, how: str, words: tuple[str, ...], seccomp: bool
) -> None:
    async with start(how, *words).sandbox() as sandbox:
        facts = sandbox.facts

    assert facts is not None
    assert (facts.uid, facts.gid, facts.shell, facts.seccomp) == (0, 0, True, seccomp)
    assert facts.python == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.parametrize(
    "arguments", [[], ["--socket"], ["--stdio", "x"], ["--other"], ["--seccomp=off"], ["--users=x"]]
)
def test_other_arguments_are_a_usage_error(
    namespace: None, cgroup: Path, arguments: list[str]
) -> None:
    helper = launch(cgroup, "-m", "runner.helper", *arguments, stderr=subprocess.PIPE)
    _, said = helper.communicate(timeout=SOON_S)

    assert (helper.returncode, said) == (1, b"usage: [--users=UID:GID] --socket PATH | --stdio\n")


async def test_a_helper_without_its_supervisor_says_so(start: Start, place: Path) -> None:
    async with start(jobs__SUPERVISOR=f"{place}/none").sandbox() as sandbox:
        with pytest.raises(RequestFailed) as caught:
            await runs_on(sandbox)("echo hi")

        assert caught.value.code == "not_found"
        assert await sandbox.read("/etc/passwd", limit_bytes=MIB)


async def test_a_mistake_in_a_request_about_a_file_is_answered(start: Start) -> None:
    async with start(files__read=None).sandbox() as sandbox:
        with pytest.raises(RequestFailed) as caught:
            await sandbox.read("/etc/passwd", limit_bytes=MIB)

        assert caught.value.code == "internal"
        assert caught.value.detail.startswith("TypeError: ")
        assert await sandbox.ping() < SOON_S


def test_a_file_for_which_there_is_no_memory_is_refused(helper: Helper, place: Path) -> None:
    with (place / "large").open("wb") as file:
        file.truncate(15 * MIB)
    with helper.peer() as peer:
        peer.greet()
        peer.say(reading(1, "/etc/passwd"))  # starts a worker, which needs memory of its own
        assert peer.hear_end(1).kind == Kind.CONTENT
        peer.say(running(2, LITTLE_MEMORY))
        assert peer.hear_end(2).fields["exit_code"] == 0
        peer.say(reading(3, f"{place}/large"), reading(4, "/etc/passwd"))
        answers = {answer.call: answer for answer in (peer.hear(), peer.hear())}

    assert answers[3].fields["code"] == "out_of_memory"
    assert answers[4].payload == Path("/etc/passwd").read_bytes()


# A kernel without adoption.


@pytest.fixture
def childless(start: Start) -> Helper:
    """A helper to which the orphans of its calls come."""
    return start("stdio", "--subreaper=off")


@pytest.fixture
async def alone(childless: Helper) -> AsyncIterator[Run]:
    async with childless.sandbox() as sandbox:
        yield runs_on(sandbox)


async def test_without_adoption_an_orphan_is_kept_and_is_the_helper_s(
    childless: Helper, alone: Run
) -> None:
    result = await alone(f"{VICTIM} & echo done")

    assert (result.output, result.exit_code, result.background) == (b"done\n", 0, 1)
    (orphan,) = childless.processes()
    assert (orphan.command, orphan.parent) == (VICTIM, childless.pid)


async def test_without_adoption_the_background_of_an_earlier_call_is_left_alone(
    childless: Helper, alone: Run
) -> None:
    await alone(f"{BYSTANDER} & echo")
    call = asyncio.create_task(alone(f"(setsid sh -c '{VICTIM} & {VICTIM}' &); sleep 300"))
    await soon(lambda: childless.commands().count(VICTIM) == 2)

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert childless.runs(BYSTANDER)


async def test_without_adoption_the_background_goes_with_the_call_where_that_is_asked(
    childless: Helper, alone: Run
) -> None:
    result = await alone(f"setsid {VICTIM} & echo done", background="kill")

    assert (result.output, result.background) == (b"done\n", 0)
    await soon(lambda: childless.processes() == [])


async def test_without_adoption_the_end_of_a_supervisor_ends_its_call(
    childless: Helper, alone: Run
) -> None:
    result = await alone(f"{VICTIM} & echo before; kill -9 $PPID; {VICTIM}")

    assert (result.output, result.ended) == (b"before\n", "killed")
    await soon(lambda: childless.processes() == [])


async def test_a_kill_for_memory_that_a_call_survived_is_not_the_next_call_s(
    start: Start,
) -> None:
    async with start().sandbox() as sandbox:
        run = runs_on(sandbox)
        survived = await run("echo oom_kill 1 > /sys/fs/cgroup/memory.events; exit 0")
        killed = await run("kill -9 $$")
    assert not survived.oom_killed
    assert not killed.oom_killed


def test_a_limit_beyond_what_a_frame_holds_is_no_end_of_the_helper(
    helper: Helper, place: Path
) -> None:
    (place / "f").write_bytes(bytes(20 * MIB))
    fields = {"path": f"{place}/f", "judged": None, "limit_bytes": 2**40}
    with helper.peer() as peer:
        peer.greet()
        peer.say(wire.encode(Kind.READ, 1, fields))
        assert peer.hear_end(1).fields["code"] == "file_too_large"


@pytest.mark.parametrize("clock", ["expires_s", "idle_s"])
async def test_a_session_may_be_longer_than_a_selector_waits(either: Helper, clock: str) -> None:
    async with either.sandbox(**{clock: 30 * 86400.0}) as sandbox:
        await sandbox.ping()
        await asyncio.sleep(0.1)
        await sandbox.ping()


async def test_a_call_may_be_longer_than_a_selector_waits(either: Helper) -> None:
    async with either.sandbox() as sandbox:
        result = await sandbox.run("sleep 0.3; echo hi", cwd="/", deadline_s=30 * 86400.0)
    assert result.output == b"hi\n"


def test_where_no_thread_can_be_started_the_request_fails_and_the_helper_stays(
    helper: Helper,
) -> None:
    with helper.peer() as peer:
        peer.greet()
        peer.say(running(1, LITTLE_MEMORY))
        assert peer.hear_end(1).fields["exit_code"] == 0
        peer.say(reading(2, "/etc/passwd"))
        assert peer.hear_end(2).fields["code"] == "too_many_processes"
        peer.say(running(3, "prlimit --pid 1 --data=unlimited:"))
        assert peer.hear_end(3).fields["exit_code"] == 0
        peer.say(reading(4, "/etc/passwd"))
        assert peer.hear_end(4).kind == Kind.CONTENT


async def test_outputs_that_come_at_once_keep_within_the_room(
    start: Start, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_module, "SPILL_LIMIT_BYTES", 1000)
    async with start(scratch__SCRATCH_BYTES=3000).sandbox() as sandbox:
        run = runs_on(sandbox)
        line = "head -c 900 /dev/zero; sleep 0.3"
        results = await asyncio.gather(*(run(line, output_limit_bytes=10) for _ in range(8)))
        assert sum(path.stat().st_size for path in scratch.iterdir()) <= 3000
    assert sum(result.spill_path is not None for result in results) == 3
