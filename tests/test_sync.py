"""The synchronous face: the same, in threads, and without a loop to think of."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from runner import (
    ConfigurationError,
    Output,
    RemoteProtocolError,
    Runner,
    Session,
    SessionBusy,
    SessionNotFound,
    Settings,
    Status,
    ToolResult,
    WorkspaceError,
)
from runner.helper import wire
from runner.helper.wire import Kind
from runner.testing import FakeEngine
from tests.host import leftovers, process
from tests.puppet import Puppet, PuppetEngine

T = TypeVar("T")


@pytest.fixture
def runner(settings: Settings) -> Iterator[Runner]:
    with Runner("default", settings=settings, engine=FakeEngine()) as runner:
        yield runner


@pytest.fixture
def session(runner: Runner) -> Iterator[Session]:
    with runner.session() as session:
        yield session


def test_each_tool_has_a_method(session: Session) -> None:
    assert session.bash("echo hi").output == "hi\n"
    assert session.write("/workspace/f", "one\ntwo\n").text == "wrote 8 bytes to /workspace/f"
    assert session.edit("/workspace/f", "two", "2").status is Status.OK
    assert session.read("/workspace/f").output == "one\n2\n"
    assert session.grep("^2").output.splitlines() == ["/workspace/f:2: 2"]
    assert session.grep("ONE", include="f", ignore_case=True).output.startswith("/workspace/f:1")
    assert session.call("bash", '{"command": "exit 4"}', call_id="c-1").exit_code == 4
    assert session.bash("echo begun; sleep 60", timeout_s=0.05).status is Status.TIMED_OUT


def test_sessions_are_listed_closed_and_taken_over_by_id(runner: Runner) -> None:
    session = runner.session(kept=True)
    assert session.info.kept
    assert [info.id for info in runner.sessions()] == [session.id]
    with pytest.raises(SessionBusy):
        runner.attach(session.id)
    session.close()
    with runner.attach(session.id, wait_s=1) as again:
        assert again.bash("echo hi").output == "hi\n"
    runner.close_session(session.id)
    assert runner.sessions() == []
    assert len(runner.sessions(include_ended=True)) == 1
    assert runner.prune().sessions == ()
    with pytest.raises(SessionNotFound):
        runner.close_session("none", wait_s=0.1)


def test_a_session_serves_several_threads_at_once(session: Session) -> None:
    with ThreadPoolExecutor(20) as threads:
        started = time.monotonic()
        outputs = list(
            threads.map(lambda n: session.bash(f"sleep 0.5; echo {n}").output, range(20))
        )
        took_s = time.monotonic() - started
    assert outputs == [f"{n}\n" for n in range(20)]
    assert took_s < 20 * 0.5 / 2


def test_a_stream_is_output_and_then_the_result(session: Session) -> None:
    *pieces, result = session.stream("bash", {"command": "echo one; echo two"})
    assert all(isinstance(piece, Output) for piece in pieces)
    assert isinstance(result, ToolResult)
    assert result.output == "one\ntwo\n"


def test_a_stream_comes_while_the_command_runs(session: Session) -> None:
    events = session.stream("bash", {"command": "echo begun; sleep 60"}, timeout_s=1)
    assert next(events) == Output("begun\n")
    (result,) = events
    assert isinstance(result, ToolResult)
    assert result.status is Status.TIMED_OUT


def test_leaving_a_stream_early_cancels_the_call(session: Session, runner: Runner) -> None:
    for event in session.stream("bash", {"command": "echo begun; sleep 60"}):
        assert event == Output("begun\n")
        break
    (_, record), *_ = in_loop(runner, runner._runner.controller.store.calls)
    assert record.status is Status.CANCELLED


def test_an_error_in_the_body_of_a_stream_cancels_the_call(
    session: Session, runner: Runner
) -> None:
    class OwnError(Exception):
        pass

    def read() -> None:
        for _ in session.stream("bash", {"command": "echo begun; sleep 60"}):
            raise OwnError

    with pytest.raises(OwnError):
        read()
    (_, record), *_ = in_loop(runner, runner._runner.controller.store.calls)
    assert record.status is Status.CANCELLED


def in_loop(runner: Runner, function: Callable[[], T]) -> T:
    """Call something in the thread that owns it."""
    portal = runner._portal
    assert portal is not None
    return portal.call(function)


def test_errors_keep_their_type(runner: Runner, session: Session, settings: Settings) -> None:
    with pytest.raises(WorkspaceError):
        runner.session(workspace="/no/such/directory")
    with pytest.raises(ConfigurationError):
        session.bash("echo hi", timeout_s=-1)

    def act(puppet: Puppet, request: wire.Message) -> None:
        if request.kind == Kind.RUN:
            puppet.say(b"\0\0\0\0")

    other = settings.model_copy(update={"data_dir": settings.data_dir / "other"})
    hostile = Runner("default", settings=other, engine=PuppetEngine(act))
    with hostile, hostile.session() as victim:
        with pytest.raises(RemoteProtocolError):
            victim.bash("x")
        assert victim.bash("echo again").output == "again\n"


def test_a_runner_that_is_not_open_says_so(settings: Settings) -> None:
    runner = Runner("default", settings=settings, engine=FakeEngine())
    uses: list[Callable[[], object]] = [
        runner.session,
        runner.sessions,
        runner.prune,
        lambda: runner.attach("x"),
        lambda: runner.close_session("x"),
    ]
    for use in uses:
        with pytest.raises(RuntimeError, match="not open: use it in a `with` statement"):
            use()
    with runner:
        assert runner.sessions() == []
    with pytest.raises(RuntimeError, match="not open"):
        runner.sessions()


def test_tools_and_settings_are_there_before_it_is_open(settings: Settings) -> None:
    runner = Runner("default", settings=settings, engine=FakeEngine())
    assert runner.tools.names() == ("read", "write", "edit", "grep", "bash")
    assert runner.settings == settings


def test_a_runner_that_can_not_open_leaves_no_thread(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data/runner.sqlite3").write_text("not a database, but long enough to be read" * 9)
    before = threading.active_count()
    with pytest.raises(Exception, match="database"):
        Runner("default", data_dir=tmp_path / "data", engine=FakeEngine()).__enter__()
    assert threading.active_count() <= before


def test_a_runner_closes_the_sessions_that_were_left_open(settings: Settings) -> None:
    engine = FakeEngine()
    with Runner("default", settings=settings, engine=engine) as runner:
        runner.session()
        runner.session()
    with Runner("default", settings=settings, engine=engine) as runner:
        assert runner.sessions() == []
    assert not list((settings.data_dir / "workspaces").iterdir())


def test_two_runners_share_a_data_directory(settings: Settings) -> None:
    engine = FakeEngine()
    with (
        Runner("default", settings=settings, engine=engine) as one,
        Runner("default", settings=settings, engine=engine) as two,
        one.session() as session,
    ):
        assert [info.id for info in two.sessions()] == [session.id]
        with pytest.raises(SessionBusy):
            two.attach(session.id)
        assert two.prune().sessions == ()
        assert session.bash("echo hi").output == "hi\n"


@pytest.mark.docker
@pytest.mark.usefixtures("clean_daemon")
def test_an_interrupt_in_a_call_ends_the_program_and_leaves_nothing(settings: Settings) -> None:
    code = """
with Runner("default", settings=settings) as runner, runner.session() as session:
    say(session.bash("echo ready").output.strip())
    session.bash("sleep 60")
"""
    with process(settings, code) as program:
        assert program.hears() == "ready"
        time.sleep(0.2)  # most likely in the second call; it is well at any moment
        os.kill(program.pid, signal.SIGINT)
        assert program.ends() in (-signal.SIGINT, 130, 1)
    assert leftovers(settings) == {}
