"""Sessions whose containers run under gVisor: a kernel of its own, over the attach stream.

A part of what `test_sessions` asks, since everything takes longer there. The distribution's
gVisor sets no limits on memory, processors or processes, and knows no subreaper.
"""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from runner import Runner, SandboxLost, Session, Settings, Status
from runner.answers import RequestFailed
from tests.gvisor.conftest import RUNTIME
from tests.host import docker, inspect, leftovers, process, programs, runs, wait_until

pytestmark = [
    pytest.mark.docker,
    pytest.mark.gvisor,
    pytest.mark.slow,
    pytest.mark.usefixtures("clean_daemon"),
]


def container_of(session: Session) -> str:
    found = session.info.container_id
    assert found is not None
    return found


def test_the_kernel_is_gvisor_s_and_the_stream_is_attached(gvisor_session: Session) -> None:
    state = inspect(container_of(gvisor_session))
    assert state["HostConfig"]["Runtime"] == RUNTIME
    assert state["Config"]["Labels"]["rousseau-runner.carrier"] == "attach"
    assert "gVisor" in gvisor_session.bash("dmesg 2>/dev/null || cat /proc/version").output


def test_the_five_tools_work(gvisor_session: Session) -> None:
    session = gvisor_session
    assert session.bash("echo hi; exit 3").exit_code == 3
    assert session.write("/workspace/d/f", "one\ntwo\n").status is Status.OK
    assert session.edit("/workspace/d/f", "two", "2").status is Status.OK
    assert session.read("/workspace/d/f").output == "one\n2\n"
    assert session.grep("^2").output == "/workspace/d/f:2: 2\n"
    assert session.read("/workspace/none").status is Status.FAILED


def test_a_path_is_judged_and_held_to(gvisor_session: Session) -> None:
    """By means that this kernel has, too: directories opened one after the other."""
    session = gvisor_session
    session.bash("mkdir -p j/d; echo one > j/d/f; ln -s d j/link; ln -s /tmp j/out")

    async def judge() -> None:
        sandbox = await session._session.sandbox()
        assert await sandbox.resolve("/workspace/j/link/../d/f") == "/workspace/j/d/f"
        assert await sandbox.resolve("/workspace/j/out/new/f") == "/tmp/new/f"
        held = "/workspace/j/d/f"
        assert await sandbox.read("/x", limit_bytes=9, judged=held) == b"one\n"
        assert await sandbox.write("/x", b"two", judged=held) == 3
        assert await sandbox.replace("/x", b"two", b"one", limit_bytes=9, judged=held) == 1
        assert await sandbox.write("/x", b"", judged="/workspace/j/d/new/f") == 0
        found = await sandbox.search(
            "/workspace/j/link/",
            "one",
            judged="/workspace/j/d",
            ignore_case=False,
            include="",
            max_matches=9,
            max_file_bytes=99,
        )
        assert found.rows == b"/workspace/j/link/f:1: one\n"
        for path in ("link/f", "out/f", "link"):
            held = f"/workspace/j/{path}"
            with pytest.raises(RequestFailed, match="moved"):
                await sandbox.read("/x", limit_bytes=9, judged=held)
            with pytest.raises(RequestFailed, match="moved"):
                await sandbox.write("/x", b"", judged=held)

    session._portal.call(judge)


def test_the_largest_write_and_a_long_output_come_through(gvisor_session: Session) -> None:
    content = "0123456789abcde\n" * 100_000
    assert gvisor_session.write("/workspace/big", content).status is Status.OK
    assert gvisor_session.read("/workspace/big").output == content
    result = gvisor_session.bash("head -c 3000000 /dev/zero | tr '\\0' x")
    assert result.truncated is not None
    assert result.exit_code == 0


def test_calls_of_one_session_run_at_once(gvisor_session: Session) -> None:
    with ThreadPoolExecutor(8) as threads:
        started = time.monotonic()
        results = list(threads.map(lambda n: gvisor_session.bash(f"sleep 2; echo {n}"), range(8)))
        took_s = time.monotonic() - started
    assert [result.output for result in results] == [f"{n}\n" for n in range(8)]
    assert took_s < 12


@pytest.mark.parametrize(
    "line",
    [
        "sleep 601 & sleep 601",
        "setsid sleep 601 & sleep 601",
        "(setsid sh -c 'sleep 601 & sleep 601' &); sleep 601",
        "trap '' TERM HUP INT; sleep 601; sleep 601",
    ],
)
def test_nothing_is_left_of_a_call_at_its_deadline(gvisor_session: Session, line: str) -> None:
    with ThreadPoolExecutor() as threads:
        calling = threads.submit(gvisor_session.bash, f"echo begun; {line}", timeout_s=2)
        wait_until(lambda: runs(gvisor_session, "sleep 601"))
        result = calling.result()
    assert (result.status, result.output) == (Status.TIMED_OUT, "begun\n")
    assert result.duration_s < 2 + 2
    assert not [line for line in programs(gvisor_session) if "601" in line]


def test_a_process_in_the_background_lives_on_and_is_counted(gvisor_session: Session) -> None:
    result = gvisor_session.bash("sleep 602 & echo done")
    assert (result.output, result.background) == ("done\n", 1)
    assert runs(gvisor_session, "sleep 602")
    gvisor_session.bash("kill -9 $(pidof sleep) 2>/dev/null || pkill -9 sleep")


@pytest.mark.parametrize(
    "line",
    [
        "kill -9 1",
        "kill -9 -1",
        "kill -9 $PPID",
        "for n in 0 1 2 3 4 5 6 7 8; do printf '\\0\\0\\0\\0' > /proc/1/fd/$n; done",
    ],
)
def test_a_call_that_meddles_with_the_helper_costs_at_most_its_own_container(
    gvisor_session: Session, line: str
) -> None:
    """This gVisor neither protects the first process of a container nor hides its descriptors."""
    gvisor_session.write("/workspace/f", "kept")
    with contextlib.suppress(SandboxLost):
        gvisor_session.bash(f"{line}; sleep 0.2")
    with contextlib.suppress(SandboxLost):  # it may be the next call that finds it out
        gvisor_session.read("/workspace/f")
    assert gvisor_session.read("/workspace/f").output == "kept"
    assert gvisor_session.bash("echo well").output == "well\n"


def test_a_container_that_is_lost_is_replaced_on_the_same_workspace(gvisor_runner: Runner) -> None:
    with gvisor_runner.session() as session, ThreadPoolExecutor() as threads:
        session.write("/workspace/f", "kept")
        lost = container_of(session)
        calling = threads.submit(session.bash, "sleep 603")
        wait_until(lambda: runs(session, "sleep 603"))
        docker("kill", lost)
        with pytest.raises(SandboxLost):
            calling.result(20)
        assert session.read("/workspace/f").output == "kept"
        assert container_of(session) != lost


def test_a_holder_that_is_killed_in_a_call_leaves_the_session_fit_for_the_next(
    settings: Settings,
) -> None:
    code = f"""
from tests.host import runs, wait_until
with Runner("default", settings=settings) as runner:
    session = runner.session(kept=True, runtime={RUNTIME!r})
    session.write("/workspace/f", "kept")
    threading.Thread(target=session.bash, args=("sleep 604",), daemon=True).start()
    wait_until(lambda: runs(session, "sleep 604"))
    say(session.id)
    while True:
        session.write("/workspace/big", "a" * 1_500_000)
"""
    with process(settings, code) as holder:
        session_id = holder.hears()
        holder.kill()
    with Runner("default", settings=settings) as runner, runner.attach(session_id) as session:
        assert session.read("/workspace/f").output == "kept"
        wait_until(lambda: not runs(session, "sleep 604"))
        runner.close_session(session_id)
    assert leftovers(settings) == {}
