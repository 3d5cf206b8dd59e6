"""Programs in a real container, over both carriers: started, cut, left behind, and reported.

A test that says that nothing is left of a program first sees that it was there.
"""

import json
import re
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from anyio.from_thread import start_blocking_portal

from runner import AsyncRunner, Output, Runner, Session, Status, ToolResult
from runner.answers import RequestFailed, RunResult
from tests.conftest import OpenSession, make_settings

pytestmark = pytest.mark.docker

AT_ONCE_S = 5.0
"""What is to happen at once happens within this, however busy the machine is."""
KIB, MIB = 1024, 1024**2


@pytest.fixture
def here(session: Session) -> Iterator[Session]:
    """The module's session, with nothing of the test left in it afterwards."""
    container = session.info.container_id
    yield session
    session.bash("kill -9 -1")
    wait_until_gone(session)
    assert session.info.container_id == container, "the test has cost the session its container"


class Process(NamedTuple):
    """A line of `ps`."""

    pid: int
    parent: int
    state: str
    command: str


def processes(session: Session) -> list[Process]:
    """What runs or lingers in the container, besides the helper and the call that looks."""
    text = session.bash("echo $PPID; ps -e -o pid= -o ppid= -o stat= -o args=").output
    supervisor, *lines = text.splitlines()
    found = [
        Process(int(pid), int(parent), state, command)
        for pid, parent, state, command in (line.split(None, 3) for line in lines)
    ]
    mine = {int(supervisor)}
    for process in found:  # a child has a later line than its parent
        if process.parent in mine:
            mine.add(process.pid)
    return [process for process in found if process.pid not in mine | {1}]


def wait_until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + AT_ONCE_S
    while not condition():
        assert time.monotonic() < give_up, "it did not happen"
        time.sleep(0.01)


def wait_until_runs(session: Session, *commands: str) -> list[Process]:
    """Processes with these command lines and no others, once they are there."""
    wait_until(lambda: sorted(p.command for p in processes(session)) == sorted(commands))
    return processes(session)


def wait_until_gone(session: Session) -> None:
    wait_until(lambda: processes(session) == [])


@contextmanager
def at_once() -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < AT_ONCE_S


def shown_first(session: Session, command: str) -> str:
    """The first output of a command, which is then cancelled."""
    events = session.stream("bash", {"command": command}, timeout_s=4 * AT_ONCE_S)
    try:
        first = next(events)
    finally:
        events.close()  # type: ignore[attr-defined]
    assert isinstance(first, Output), f"it ended too soon: {first}"
    return first.text


# Cutting.

VICTIM = "sleep 3011"
SEEN = f"until pgrep -xf '{VICTIM}'; do sleep 0.01; done"
"""Waits until the victim runs, then writes its pid."""
DAEMON = f"""
import os
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.chdir("/")
os.closerange(0, 256)
os.execvp("sleep", {VICTIM.split()!r})
"""
ESCAPES = {
    "background": f"{VICTIM} &",
    "own session": f"setsid {VICTIM} &",
    "double fork": f"(sh -c '{VICTIM} &' &)",
    "double fork, own sessions": f"(setsid sh -c 'setsid {VICTIM} & exec setsid sleep 300' &)",
    "signals ignored": f"trap '' TERM INT HUP QUIT; {VICTIM} &",
    "nohup": f"nohup {VICTIM} >/dev/null 2>&1 &",
    "daemon": f"python3 -c {shlex.quote(DAEMON)}",
    "stopped": f"{VICTIM} & until pgrep -xf '{VICTIM}'; do :; done; kill -STOP $!",
    "stopped supervisor": f"{VICTIM} & kill -STOP $PPID",
    "many": f"for i in $(seq 50); do {VICTIM} & done",
    "deep": f"n=40; f() {{ n=$((n-1)); if [ $n -gt 0 ]; then (f; :); else {VICTIM}; fi; }}; f &",
}
"""Ways to start the victim so that whoever ends the shell alone, or its group, misses it."""


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES.keys())
def test_a_cancelled_call_leaves_no_process(here: Session, escape: str) -> None:
    shown = shown_first(here, f"{escape}\n{SEEN}; sleep 300")

    assert shown.split()[0].isdigit(), "the victim was there"
    assert processes(here) == []


def test_a_call_at_its_deadline_leaves_no_process(here: Session) -> None:
    """All ways of escape at once, so that they wait for one deadline together."""

    def run(escape: str) -> ToolResult:
        command = f"{escape}\n{SEEN}; sleep 300"
        return here.bash(command, timeout_s=3)

    started = time.monotonic()
    with ThreadPoolExecutor(len(ESCAPES)) as threads:
        results = list(threads.map(run, ESCAPES.values()))
    took_s = time.monotonic() - started

    for result in results:
        assert result.status is Status.TIMED_OUT
        assert result.error == "bash: timed out after 3s"
        assert result.exit_code is None
        assert result.output.split()[0].isdigit(), "the victim was there"
    assert processes(here) == []
    assert took_s < 3 + AT_ONCE_S


def test_two_sleeps_at_two_seconds(here: Session) -> None:
    seen = "until ps -o args= -p $! | grep -x 'sleep 300'; do :; done"
    result = here.bash(f"sleep 300 & {seen}; sleep 300", timeout_s=2)

    assert (result.status, result.error) == (Status.TIMED_OUT, "bash: timed out after 2s")
    assert result.output == "sleep 300\n"
    assert 2 <= result.duration_s < 2 + AT_ONCE_S
    assert processes(here) == []


def test_what_forks_as_fast_as_it_is_cut_is_cut(here: Session) -> None:
    """Each process of the chain lives just long enough to start the next."""
    chain = "import os\nprint('going', flush=True)\nwhile True:\n  if os.fork(): os._exit(0)"

    shown = shown_first(here, f'python3 -c "{chain}"; sleep 300')

    assert shown == "going\n"
    assert processes(here) == []


def test_spinning_ends_at_the_deadline(here: Session) -> None:
    result = here.bash("echo on; while :; do :; done", timeout_s=1)

    assert (result.status, result.output) == (Status.TIMED_OUT, "on\n")
    assert processes(here) == []


@pytest.mark.parametrize("streamed", [False, True], ids=["call", "stream"])
def test_an_interrupted_wait_cancels_the_call(here: Session, streamed: bool) -> None:
    """Ctrl-C in a program that waits for a call."""
    waiting = threading.main_thread().ident
    assert waiting is not None

    def interrupt() -> None:
        wait_until(lambda: any(process.command == VICTIM for process in processes(here)))
        signal.pthread_kill(waiting, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    arguments = {"command": f"echo on; {VICTIM}; true"}
    wait: Callable[[], object] = partial(here.call, "bash", arguments, timeout_s=20)
    if streamed:
        wait = partial(list, here.stream("bash", arguments, timeout_s=20))
    with pytest.raises(KeyboardInterrupt):
        wait()
    thread.join()

    wait_until_gone(here)


# Leaving behind.


def test_a_call_ends_with_its_shell_and_not_with_what_it_left(here: Session) -> None:
    started = time.monotonic()
    result = here.bash("sleep 3011 & echo done")
    took_s = time.monotonic() - started

    assert (result.status, result.output, result.background) == (Status.OK, "done\n", 1)
    assert result.details["background"] == 1
    assert took_s < AT_ONCE_S
    _, left = wait_until_runs(here, "supervisor", VICTIM)
    assert here.bash(f"kill {left.pid}").status is Status.OK
    wait_until_gone(here)


def test_what_a_call_left_goes_on_working(here: Session) -> None:
    started = here.bash("(sleep 0.3; echo late > /workspace/late) & echo started")

    assert started.output == "started\n"
    assert started.background >= 1
    wait_until(lambda: here.bash("cat /workspace/late 2>/dev/null").output == "late\n")


def test_a_process_of_an_earlier_call_may_write_on(here: Session) -> None:
    """It neither blocks on a full pipe nor dies of a closed one, and later calls don't see it."""
    left = here.bash("(sleep 0.2; head -c 5000000 /dev/zero; touch /workspace/through) & echo a")

    assert left.background >= 1
    wait_until(lambda: here.bash("test -e /workspace/through").status is Status.OK)
    assert here.bash("echo b").output == "b\n"


def test_a_flood_from_an_earlier_call_does_not_hold_up_later_ones(here: Session) -> None:
    flood = here.bash("yes & yes & echo $!")
    pid = flood.output.splitlines()[-1] if flood.truncated else flood.output.split()[-1]

    started = time.monotonic()
    outputs = [here.bash("echo b").output for _ in range(20)]
    took_s = time.monotonic() - started

    assert flood.background == 2
    assert outputs == ["b\n"] * 20
    assert took_s < 2 * AT_ONCE_S
    assert [process for process in processes(here) if process.command == "yes"], pid


def test_output_of_what_ends_right_after_the_shell_is_there(here: Session) -> None:
    for _ in range(20):
        assert here.bash("echo done &").output == "done\n"


def test_500_orphans_leave_no_zombie(here: Session) -> None:
    # The shell outlives them even where the machine is busy: what runs at its end would count.
    result = here.bash("for i in $(seq 500); do (sh -c 'exit 3' & echo $!); done; sleep 1")

    assert len(set(result.output.split())) == 500
    assert result.background == 0
    assert processes(here) == []


def test_zombies_of_a_program_that_reaps_nothing_go_with_it(here: Session) -> None:
    spawn = "import os,time\nfor i in range(20):\n  os.fork() or os._exit(0)\nos.write(1,b'made')"
    shown = shown_first(here, f'python3 -c "{spawn}\ntime.sleep(300)"')

    assert shown == "made"
    assert processes(here) == []


# Trees that take everything.

BOMB = "bomb() { bomb | bomb & }; bomb"


@pytest.mark.parametrize("command", [BOMB, f"{BOMB}; wait"], ids=["left behind", "waited for"])
def test_after_a_fork_bomb_the_next_call_works(here: Session, command: str) -> None:
    bomb = here.bash(command, timeout_s=5)

    assert "fork" in bomb.output.lower(), "it ran into the limit of processes"
    for _ in range(5):
        assert here.bash("echo alive | cat").output == "alive\n"
    wait_until_gone(here)


def test_a_thread_bomb_ends_at_the_limit_of_processes(here: Session) -> None:
    bomb = (
        "import threading, time\n"
        "try:\n"
        "  while True: threading.Thread(target=time.sleep, args=(99,)).start()\n"
        "except RuntimeError as error: print(threading.active_count(), error, flush=True)\n"
    )
    shown = shown_first(here, f"python3 -c '{bomb}'")

    assert "can't start new thread" in shown
    assert 100 < int(shown.split()[0]) < 256
    assert here.bash("echo alive").output == "alive\n"
    assert processes(here) == []


def test_a_process_that_opens_everything_hits_its_own_limit(here: Session) -> None:
    hog = "l = []\nwhile True: l.append(open('/dev/null'))"
    result = here.bash(f'python3 -c "{hog}"')

    assert "Too many open files" in result.output
    assert result.exit_code == 1
    assert here.bash("echo alive").output == "alive\n"


def test_memory_over_the_limit_costs_the_call_and_not_the_session(here: Session) -> None:
    result = here.bash("python3 -c 'x = b\"x\" * (2 << 30)'; echo status $?; exit 137")

    assert result.output == "status 137\n" or "Killed" in result.output
    assert result.status is Status.OOM_KILLED
    assert result.error is not None
    assert result.error.startswith("bash: out of memory: ")
    assert here.bash("echo alive").output == "alive\n"


# Attacks on what runs the call.


def test_killing_everything_ends_the_call_and_the_helper_lives(here: Session) -> None:
    result = here.bash("sleep 3011 & kill -9 -1; sleep 300")

    assert (result.status, result.error) == (Status.FAILED, "bash: signal: killed")
    assert result.exit_code == 137
    wait_until_gone(here)


def test_the_first_process_does_not_mind_signals(here: Session) -> None:
    result = here.bash("for s in KILL STOP TERM HUP INT USR1 SEGV; do kill -$s 1; done; echo on")

    assert (result.status, result.output) == (Status.OK, "on\n")
    assert here.bash("echo alive").output == "alive\n"


def test_a_killed_supervisor_takes_its_tree_with_it(here: Session) -> None:
    result = here.bash(f"setsid {VICTIM} & {VICTIM} & {SEEN}; kill -9 $PPID; sleep 300")

    assert (result.status, result.error) == (Status.FAILED, "bash: signal: killed")
    assert result.output.split()[0].isdigit(), "a victim was there"
    wait_until_gone(here)


def test_a_killed_supervisor_takes_along_what_forks_without_end(here: Session) -> None:
    chain = (
        "import os, sys\n"
        "print('going', flush=True)\n"
        "os.kill(int(sys.argv[1]), 9)\n"
        "while True:\n"
        "  if os.fork(): os._exit(0)\n"
    )
    for _ in range(5):
        result = here.bash(f'python3 -c "{chain}" $PPID; sleep 300')

        assert (result.output, result.error) == ("going\n", "bash: signal: killed")
        wait_until_gone(here)


def test_a_supervisor_killed_later_takes_the_background_with_it(here: Session) -> None:
    here.bash("sleep 3011 &")
    supervisor, _ = wait_until_runs(here, "supervisor", VICTIM)

    here.bash(f"kill -9 {supervisor.pid}")

    wait_until_gone(here)


def test_a_stopped_supervisor_costs_the_call_no_more_than_its_time(here: Session) -> None:
    result = here.bash("echo on; kill -STOP $PPID; exit 3", timeout_s=1)

    assert (result.status, result.output) == (Status.TIMED_OUT, "on\n")
    assert processes(here) == []


def test_what_is_killed_by_its_command_line_is_not_the_supervisor(here: Session) -> None:
    here.bash("sleep 3011 &")
    wait_until_runs(here, "supervisor", VICTIM)

    result = here.bash("pkill -9 -f '[s]leep 3011'")

    assert (result.status, result.output) == (Status.OK, ""), "it has not hit its own supervisor"
    wait_until_gone(here)


@pytest.mark.parametrize(
    "path",
    ["/proc/1/fd", "/proc/1/environ", "/proc/1/mem", "/proc/1/fd/1", "/proc/1/cwd", "/proc/1/exe"],
)
def test_the_helper_is_closed_to_its_children(here: Session, path: str) -> None:
    result = here.bash(f"head -c 1 {path}; ls {path}/; readlink {path}; echo forged > {path}")

    assert re.search("Permission denied", result.output)
    assert "forged" not in result.output


@pytest.mark.parametrize("entry", ["fd/1", "fd/3", "environ", "mem"])
def test_the_supervisor_is_closed_to_its_children(here: Session, entry: str) -> None:
    result = here.bash(f"echo forged > /proc/$PPID/{entry}; cat /proc/$PPID/{entry}")

    assert "Permission denied" in result.output
    assert result.is_error


@pytest.mark.parametrize("target", ["1", "$PPID"])
def test_the_helper_and_the_supervisor_can_not_be_traced(here: Session, target: str) -> None:
    attach = "import ctypes,sys;l=ctypes.CDLL(None,use_errno=True)"
    trace = f"{attach};print(l.ptrace(16,int(sys.argv[1]),0,0),ctypes.get_errno())"

    assert here.bash(f"python3 -c '{trace}' {target}").output == "-1 1\n"


def test_a_call_is_the_first_to_go_when_memory_runs_out(here: Session) -> None:
    scores = here.bash(
        "cat /proc/self/oom_score_adj; echo -1000 > /proc/self/oom_score_adj;"
        " echo 0 > /proc/1/oom_score_adj; cat /proc/self/oom_score_adj"
    ).output

    assert scores.splitlines()[0] == scores.splitlines()[-1] == "500"
    assert "/proc/1/oom_score_adj: Permission denied" in scores


def test_limits_can_not_be_lifted(here: Session) -> None:
    result = here.bash(
        "cd /sys/fs/cgroup; for f in $(find . -name 'pids.max' -o -name 'memory.max'"
        " -o -name 'memory.limit_in_bytes' -o -name cgroup.procs); do echo max > $f; done;"
        " ulimit -n 4096"
    )

    assert "Read-only file system" in result.output
    assert "Operation not permitted" in result.output
    assert result.is_error


def test_a_call_has_three_descriptors(here: Session) -> None:
    result = here.bash("cd /proc/self/fd; for f in 0 1 2 3 4 5 6 7 8 9; do readlink $f; done")

    stdin, stdout, stderr = result.output.splitlines()
    assert stdin == "/dev/null"
    assert stdout == stderr
    assert stdout.startswith("pipe:")


def test_the_status_of_a_shell_that_closed_its_descriptors_arrives(here: Session) -> None:
    result = here.bash("echo before; exec 0<&- 1>&- 2>&-; sleep 0.1; echo lost; exit 3")

    assert (result.output, result.exit_code, result.error) == ("before\n", 3, "bash: exit status 3")


# Input and output.


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("cat", ""),
        ('read x; echo "<$x> $?"', "<> 1\n"),
        ("python3 -c 'import sys; print(repr(sys.stdin.read()))'", "''\n"),
        ("readlink /proc/self/fd/0", "/dev/null\n"),
        ("cat <<EOF\nhere $((1 + 1))\nEOF", "here 2\n"),
        ("cat <<'EOF'\n$HOME `x` 'y \"\nEOF\n", "$HOME `x` 'y \"\n"),
        ("cat <<A; cat <<B\n1\nA\n2\nB\necho 3", "1\n2\n3\n"),
        ("echo a # c", "a\n"),
        ("echo a\n# c", "a\n"),
        ("echo a;# c\n", "a\n"),
        ("echo 'a\nb'", "a\nb\n"),
        ("echo a \\\n b", "a b\n"),
        ("\n\n  echo a\n\n", "a\n"),
        ("printf '%s' \"$0 $#\"", "/bin/sh 0"),
    ],
)
def test_a_command_is_taken_as_it_stands(here: Session, command: str, output: str) -> None:
    result = here.bash(command)

    assert (result.output, result.status) == (output, Status.OK)


@pytest.mark.parametrize("command", ["echo 'a", 'echo "a', "echo $(ls", "echo `ls", "if true", "}"])
def test_an_incomplete_command_is_the_shells_error(here: Session, command: str) -> None:
    result = here.bash(command)

    assert result.error == "bash: exit status 2"
    assert "yntax error" in result.output or "EOF in backquote" in result.output
    assert here.bash("echo alive").output == "alive\n"


def test_a_heredoc_without_its_end_ends_with_the_command(here: Session) -> None:
    assert here.bash("cat <<EOF\na").output == "a"


@pytest.mark.parametrize("size", [96 * KIB - 1, 96 * KIB, 128 * KIB, 1_572_864])
def test_a_long_command_is_a_command_like_others(here: Session, size: int) -> None:
    quoted = "x" * (size - 40)
    result = here.bash(f"v='{quoted}'; echo ${{#v}} $0 $#; exit 4 # c")

    assert result.output == f"{len(quoted)} /bin/sh 0\n"
    assert result.error == "bash: exit status 4"
    assert here.bash("ls -A /tmp/.runner 2>/dev/null | grep -c 'sh$'").output == "0\n"


def test_characters_split_between_writes_arrive_whole(here: Session) -> None:
    bytes_ = "€😀é".encode()
    pieces = " ".join(f"'\\{byte:03o}'" for byte in bytes_)

    events = list(
        here.stream("bash", {"command": f"for b in {pieces}; do printf $b; sleep 0.02; done"})
    )

    *outputs, result = events
    assert isinstance(result, ToolResult)
    assert result.output == "€😀é"
    assert "".join(output.text for output in outputs if isinstance(output, Output)) == "€😀é"
    assert len(outputs) > 1, "it came in pieces"


def test_bytes_that_are_no_text_arrive_as_replacements(here: Session) -> None:
    result = here.bash(r"printf '\377\376\000ok'")

    assert result.output == "\N{REPLACEMENT CHARACTER}" * 2 + "\0ok"
    assert result.details["undecodable_bytes"] == 2
    assert json.loads(json.dumps(result.as_dict()))["output"] == result.output


def test_a_character_cut_at_the_limit_is_left_out(here: Session) -> None:
    """The head and the tail of an output that is too long end and begin between characters."""
    result = here.bash("printf a; yes 😀 | head -n 500000 | tr -d '\\n'")

    assert result.truncated is not None
    assert "\N{REPLACEMENT CHARACTER}" not in result.output
    assert "undecodable_bytes" not in result.details
    head, _, tail = result.output.split("\n")
    assert set(head) == {"a", "😀"}
    assert set(tail) == {"😀"}
    kept = len(head.encode()) + len(tail.encode())
    assert result.truncated.omitted_bytes == 1 + 4 * 500_000 - kept


def test_a_hundred_megabytes_in_a_hundred_runs_lose_nothing(here: Session) -> None:
    megabyte = "x" * MIB
    for _ in range(100):
        result = here.bash("head -c 1048576 /dev/zero | tr '\\0' x; exit 7")

        assert (result.exit_code, result.truncated) == (7, None)
        assert result.output == megabyte


def test_output_without_end_is_cut_and_the_call_ends_in_time(here: Session) -> None:
    result = here.bash("yes", timeout_s=1)

    assert result.status is Status.TIMED_OUT
    assert result.duration_s < 1 + AT_ONCE_S
    assert result.truncated is not None
    assert result.truncated.omitted_bytes > 0
    assert len(result.output) < MIB + KIB
    assert processes(here) == []


def test_one_line_of_200_megabytes_is_cut(here: Session) -> None:
    result = here.bash("head -c 200000000 /dev/zero | tr '\\0' a")

    assert result.status is Status.OK
    assert result.truncated is not None
    head, gap, tail = result.output.split("\n")
    assert set(head) == set(tail) == {"a"}
    assert result.truncated.omitted_bytes == 200_000_000 - len(head) - len(tail)
    assert result.truncated.omitted_lines == 0
    assert f"{result.truncated.omitted_bytes} bytes" in gap
    assert str(result.truncated.full_output_path) in gap


@pytest.mark.timeout(180)
def test_gigabytes_of_output_take_no_memory_here(here: Session, carrier: str) -> None:
    """Three gigabytes over the socket; over attach, which the daemon copies, half of one."""
    count = {"socket": 3 * 1024**3, "attach": 512 * MIB}[carrier]
    before = peak_memory(reset=True)

    result = here.bash(f"head -c {count} /dev/zero", timeout_s=150)

    assert result.status is Status.OK
    assert result.truncated is not None
    assert len(result.output) < MIB + KIB
    kept = len(result.output) - len(result.output.split("\0")[-1]) - result.output.count("\n")
    assert result.truncated.omitted_bytes == pytest.approx(count - kept, abs=KIB)
    assert peak_memory() - before < 64 * MIB


def peak_memory(*, reset: bool = False) -> int:
    """The most memory this process has had since the last reset, in bytes."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    (kibibytes,) = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(kibibytes) * KIB


def test_the_whole_of_a_long_output_is_in_the_container(here: Session) -> None:
    result = here.bash("seq 300000")

    assert result.truncated is not None
    path = result.truncated.full_output_path
    assert path is not None
    expected = here.bash("seq 300000 | sha256sum").output.split()[0]
    assert here.bash(f"sha256sum < {path}").output.split()[0] == expected
    assert result.truncated.full_output_bytes == int(here.bash(f"stat -c %s {path}").output)


def test_long_outputs_do_not_fill_the_disk_that_keeps_them(here: Session) -> None:
    for _ in range(12):
        last = here.bash("head -c 20000000 /dev/zero")

    assert last.truncated is not None
    assert last.truncated.full_output_bytes == 16 * MIB
    room = here.bash("head -c 40000000 /dev/zero > /tmp/mine && rm /tmp/mine; df -h /tmp | tail -1")
    assert room.status is Status.OK, room.output


def test_calls_at_once_do_not_mix(here: Session) -> None:
    def run(n: int) -> ToolResult:
        return here.bash(f"for i in 1 2 3 4 5; do echo {n}; sleep 0.02; done; exit {n}")

    with ThreadPoolExecutor(16) as threads:
        results = list(threads.map(run, range(1, 17)))

    assert [result.output for result in results] == [f"{n}\n" * 5 for n in range(1, 17)]
    assert [result.exit_code for result in results] == list(range(1, 17))


def test_cancelling_one_of_two_calls_leaves_the_other_alone(here: Session) -> None:
    seen = threading.Event()
    other: list[ToolResult] = []

    def run() -> None:
        for event in here.stream("bash", {"command": "echo on; sleep 1; echo still"}):
            seen.set()
            if isinstance(event, ToolResult):
                other.append(event)

    thread = threading.Thread(target=run)
    thread.start()
    assert seen.wait(AT_ONCE_S)
    shown_first(here, "echo on; sleep 300")
    thread.join()

    assert [result.output for result in other] == ["on\nstill\n"]


# `Sandbox.run`, of which `bash` is one use.

Run = Callable[..., RunResult]


@pytest.fixture(scope="module")
def run(
    docker_daemon: None, carrier: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Run]:
    settings = make_settings(tmp_path_factory.mktemp("programs"))
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(AsyncRunner("default", settings=settings)) as runner,
        portal.wrap_async_context_manager(runner.session(carrier=carrier)) as session,
    ):
        sandbox = portal.call(session.sandbox)

        def run(command: str | list[str], **options: Any) -> RunResult:
            return portal.call(partial(sandbox.run, command, deadline_s=20.0, **options))

        yield run


def test_a_program_is_run_with_its_arguments_as_they_are(run: Run) -> None:
    result = run(["printf", "%s|", "a b", "$HOME", "*", "", "'", "é"])

    assert result.output == "a b|$HOME|*||'|é|".encode()
    assert (result.exit_code, result.signal, result.ended) == (0, None, "exited")


def test_a_program_gets_its_standard_input(run: Run) -> None:
    content = bytes(range(256)) * 8192

    assert run(["cat"], stdin=content, output_limit_bytes=4 * MIB).output == content
    assert run("sha256sum | cut -c1-8; cat", stdin=b"").output == b"e3b0c442\n"
    assert run(["wc", "-c"], stdin=b"x" * (8 * MIB)).output == b"8388608\n"
    assert run(["cat"]).output == b""


def test_a_program_starts_where_it_is_told(run: Run) -> None:
    assert run(["pwd"]).output == b"/workspace\n"
    assert run("pwd", cwd="/usr/lib").output == b"/usr/lib\n"


@pytest.mark.parametrize(
    ("cwd", "code"), [("/nowhere", "not_found"), ("/etc/passwd", "not_directory")]
)
def test_a_place_that_is_no_directory_is_a_failure(run: Run, cwd: str, code: str) -> None:
    with pytest.raises(RequestFailed) as caught:
        run(["true"], cwd=cwd)

    assert caught.value.code == code


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["no-such-program"], "not_found"),
        (["/etc/passwd"], "permission_denied"),
        (["/usr"], "permission_denied"),
        ([], "not_found"),
        (["echo", "x" * 140_000], "argument_list_too_long"),
    ],
)
def test_a_program_that_can_not_be_started_is_a_failure(
    run: Run, argv: list[str], code: str
) -> None:
    with pytest.raises(RequestFailed) as caught:
        run(argv)

    assert caught.value.code == code


def test_a_program_gets_its_variables_on_top_of_the_containers(run: Run) -> None:
    lines = run("env", env={"GREETING": "a b\nc=é", "PATH": "/usr/bin:/bin"}).output.decode()

    assert "GREETING=a b\nc=é\n" in lines
    assert "PATH=/usr/bin:/bin\n" in lines
    assert "HOME=/home/sandbox\n" in lines
    assert "GREETING" not in run("env").output.decode()


def test_signals_and_statuses_are_told_apart(run: Run) -> None:
    killed = run("kill -9 $$")
    failed = run("exit 137")

    assert (killed.signal, killed.exit_code) == (9, None)
    assert (failed.signal, failed.exit_code) == (None, 137)
    assert not failed.oom_killed


def test_background_processes_are_killed_with_the_call_where_that_is_asked(run: Run) -> None:
    result = run(
        f"setsid {VICTIM} & {VICTIM} & (trap '' TERM; {VICTIM}) & {SEEN}; exit 5",
        background="kill",
    )

    assert result.output.split()[0].isdigit(), "a victim was there"
    assert (result.exit_code, result.ended, result.background) == (5, "exited", 0)
    assert run(f"pgrep -xf '{VICTIM}'").output == b""


def test_a_flood_is_killed_with_the_call_where_that_is_asked(run: Run) -> None:
    result = run("yes & yes & echo on", background="kill")

    assert result.exit_code == 0
    assert run("pgrep -x yes").output == b""


def test_a_setting_says_what_becomes_of_the_background(
    docker_daemon: None, carrier: str, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path, background="kill")
    with Runner("default", settings=settings) as runner, runner.session(carrier=carrier) as session:
        result = session.bash("sleep 3011 & echo $!")

        assert result.output.strip().isdigit()
        assert result.background == 0
        assert processes(session) == []


def test_the_environment_of_a_session_is_that_of_its_calls(open_session: OpenSession) -> None:
    session = open_session(environment={"LD_LIBRARY_PATH": "/nowhere", "TOKEN": "é $x"})

    assert session.bash('echo "$LD_LIBRARY_PATH|$TOKEN|$HOME|$PWD"').output == (
        "/nowhere|é $x|/home/sandbox|/workspace\n"
    )
