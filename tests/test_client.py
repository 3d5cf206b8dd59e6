"""The asynchronous face, on the fake engine: what it adds to the controller and the sessions."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from runner import (
    AsyncRunner,
    AsyncSession,
    ConfigurationError,
    Limits,
    Outcome,
    Output,
    Policy,
    PolicyError,
    Registry,
    RemoteProtocolError,
    SessionBusy,
    SessionEnded,
    SessionNotFound,
    Settings,
    Status,
    ToolContext,
    ToolResult,
    Verdict,
)
from runner.helper import wire
from runner.helper.wire import Kind
from runner.model import SessionState
from runner.testing import FakeEngine, FakeRun
from runner.tools import default_registry
from runner.tools.base import ToolInput
from tests.puppet import RAN, Puppet, PuppetEngine

pytestmark = pytest.mark.anyio


@pytest.fixture
async def runner(settings: Settings) -> AsyncIterator[AsyncRunner]:
    async with AsyncRunner("default", settings=settings, engine=FakeEngine()) as runner:
        yield runner


@pytest.fixture
async def session(runner: AsyncRunner) -> AsyncIterator[AsyncSession]:
    async with runner.session() as session:
        yield session


# Calls.


async def test_each_tool_has_a_method(session: AsyncSession) -> None:
    assert (await session.bash("echo hi")).output == "hi\n"
    assert (await session.write("/workspace/f", "one\ntwo\n")).text == (
        "wrote 8 bytes to /workspace/f"
    )
    assert (await session.edit("/workspace/f", "two", "2")).status is Status.OK
    assert (await session.read("/workspace/f")).output == "one\n2\n"
    assert (await session.grep("^2")).output.splitlines() == ["/workspace/f:2: 2"]


async def test_a_search_takes_its_options(session: AsyncSession) -> None:
    await session.write("/workspace/a.txt", "Word\n")
    await session.write("/workspace/d/b.md", "word\n")
    found = await session.grep("word", "/workspace/d")
    assert found.output.splitlines() == ["/workspace/d/b.md:1: word"]
    found = await session.grep("word", include="*.txt", ignore_case=True)
    assert found.output.splitlines() == ["/workspace/a.txt:1: Word"]


@pytest.mark.parametrize(
    "arguments", [{"command": "echo hi"}, '{"command": "echo hi"}', b'{"command":"echo hi"}']
)
async def test_arguments_are_a_mapping_or_the_model_s_json(
    session: AsyncSession, arguments: Any
) -> None:
    assert (await session.call("bash", arguments)).output == "hi\n"


async def test_a_call_has_the_id_it_is_given(session: AsyncSession, runner: AsyncRunner) -> None:
    result = await session.call("bash", {"command": "exit 3"}, call_id="call-7", timeout_s=5)
    assert (result.call_id, result.timeout_s, result.exit_code) == ("call-7", 5, 3)
    record = runner.controller.store.call("call-7")
    assert record is not None
    assert (record.exit_code, record.status) == (3, Status.FAILED)


@pytest.mark.parametrize("timeout_s", [0, -1, 3601, float("nan"), float("inf")])
async def test_a_time_limit_out_of_bounds_is_the_caller_s_error(
    session: AsyncSession, timeout_s: float
) -> None:
    with pytest.raises(ConfigurationError, match="time limit"):
        await session.bash("echo hi", timeout_s=timeout_s)


async def test_output_is_told_as_it_comes(session: AsyncSession) -> None:
    pieces: list[bytes] = []

    async def take(piece: bytes) -> None:
        pieces.append(piece)

    result = await session.call("bash", {"command": "echo hi"}, on_output=take)
    assert b"".join(pieces).decode() == result.output == "hi\n"


async def test_a_session_knows_itself(session: AsyncSession, runner: AsyncRunner) -> None:
    assert session.info.id == session.id
    assert session.info.state is SessionState.OPEN
    assert [info.id for info in runner.sessions()] == [session.id]
    sandbox = await session.sandbox()
    assert (await sandbox.run("echo direct", deadline_s=5)).output == b"direct\n"


# Streaming.


async def collect(session: AsyncSession, *call: Any, **options: Any) -> list[Any]:
    return [event async for event in session.stream(*call, **options)]


async def test_a_stream_is_output_and_then_the_result(session: AsyncSession) -> None:
    *pieces, result = await collect(session, "bash", {"command": "echo one; echo two"})
    assert all(isinstance(piece, Output) for piece in pieces)
    assert "".join(piece.text for piece in pieces) == result.output == "one\ntwo\n"
    assert isinstance(result, ToolResult)


@pytest.mark.parametrize(
    ("call", "status"),
    [
        (("read", {"path": "/workspace/none"}), Status.FAILED),
        (("bash", {"command": 5}), Status.INVALID),
        (("none", {}), Status.INVALID),
        (("write", {"path": "/workspace/f", "content": "x"}), Status.OK),
    ],
)
async def test_a_stream_of_a_call_without_output_is_its_result(
    session: AsyncSession, call: tuple[Any, ...], status: Status
) -> None:
    (result,) = await collect(session, *call)
    assert result.status is status


async def test_a_stream_ends_at_the_call_s_deadline(session: AsyncSession) -> None:
    piece, result = await collect(
        session, "bash", {"command": "echo begun; sleep 60"}, timeout_s=0.1
    )
    assert piece == Output("begun\n")
    assert (result.status, result.output) == (Status.TIMED_OUT, "begun\n")


def talkative(*pieces: bytes) -> PuppetEngine:
    """A helper that sends output in just these pieces."""

    def act(puppet: Puppet, request: wire.Message) -> None:
        if request.kind == Kind.RUN:
            for piece in pieces:
                puppet.send(Kind.OUTPUT, request.call, payload=piece)
            total = sum(map(len, pieces))
            puppet.send(Kind.RAN, request.call, {**RAN, "output_bytes": total})

    return PuppetEngine(act)


@pytest.mark.parametrize(
    ("pieces", "texts"),
    [
        ([b"\xe2", b"\x82", b"\xac!"], ["€!"]),
        ([b"a\xf0\x9f", b"\x98\x80b"], ["a", "😀b"]),
        ([b"a\xff", b"b"], ["a\N{REPLACEMENT CHARACTER}", "b"]),
        ([b"end \xe2\x82"], ["end ", "\N{REPLACEMENT CHARACTER}"]),
    ],
)
async def test_characters_that_arrive_in_parts_are_put_together(
    settings: Settings, pieces: list[bytes], texts: list[str]
) -> None:
    async with (
        AsyncRunner("default", settings=settings, engine=talkative(*pieces)) as runner,
        runner.session() as session,
    ):
        *outputs, result = await collect(session, "bash", {"command": "x"})
    assert [output.text for output in outputs] == texts
    assert result.output == "".join(texts)


async def test_a_stream_keeps_no_more_than_a_few_pieces_for_a_slow_reader(
    settings: Settings,
) -> None:
    many = [b"%06d\n" % n for n in range(1000)]
    async with (
        AsyncRunner("default", settings=settings, engine=talkative(*many)) as runner,
        runner.session() as session,
    ):
        texts = []
        async for event in session.stream("bash", {"command": "x"}):
            await asyncio.sleep(0)
            texts.append(event.text)
        assert "".join(texts[:-1]) == b"".join(many).decode()


async def test_leaving_a_stream_early_cancels_the_call(
    session: AsyncSession, runner: AsyncRunner
) -> None:
    async with contextlib.aclosing(
        session.stream("bash", {"command": "echo begun; sleep 60"})
    ) as events:
        async for event in events:
            assert event == Output("begun\n")
            break
    (_, record), *_ = runner.controller.store.calls()
    assert record.status is Status.CANCELLED
    assert not (await session.sandbox())._pending


async def test_cancelling_who_reads_a_stream_cancels_the_call(
    session: AsyncSession, runner: AsyncRunner
) -> None:
    begun = asyncio.Event()

    async def read() -> None:
        async for _ in session.stream("bash", {"command": "echo begun; sleep 60"}):
            begun.set()

    reading = asyncio.create_task(read())
    await begun.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    gc.collect()  # an abandoned generator is closed by the loop
    async with asyncio.timeout(10):
        while (await session.sandbox())._pending:
            await asyncio.sleep(0.01)
    (_, record), *_ = runner.controller.store.calls()
    assert record.status is Status.CANCELLED


async def test_a_stream_tells_of_the_loss_of_its_container(settings: Settings) -> None:
    def act(puppet: Puppet, request: wire.Message) -> None:
        if request.kind == Kind.RUN:
            puppet.send(Kind.OUTPUT, request.call, payload=b"begun")
            puppet.say(b"\0\0\0\0")

    async with (
        AsyncRunner("default", settings=settings, engine=PuppetEngine(act)) as runner,
        runner.session() as session,
    ):
        events = session.stream("bash", {"command": "x"})
        assert await anext(events) == Output("begun")
        with pytest.raises(RemoteProtocolError):
            await anext(events)


# The runner.


async def test_without_a_policy_every_call_is_denied_and_the_reason_says_what_to_do(
    settings: Settings,
) -> None:
    async with (
        AsyncRunner(settings=settings, engine=FakeEngine()) as runner,
        runner.session() as session,
    ):
        result = await session.bash("echo hi")
    assert result.status is Status.DENIED
    assert "policy" in result.text
    assert result.decision is not None
    assert result.decision.verdict is Verdict.DENY


async def test_a_policy_is_a_name_a_file_or_itself(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("mode: allow_all\n")
    for policy in (
        "default",
        tmp_path / "p.yaml",
        str(tmp_path / "p.yaml"),
        Policy.named("default"),
    ):
        async with (
            AsyncRunner(policy, settings=settings, engine=FakeEngine()) as runner,
            runner.session() as session,
        ):
            assert (await session.bash("echo hi")).status is Status.OK


def test_a_policy_that_is_not_there_is_an_error_before_anything_starts(settings: Settings) -> None:
    with pytest.raises(PolicyError, match="no-such-policy"):
        AsyncRunner("no-such-policy", settings=settings)


def test_a_setting_that_is_not_there_or_not_usable_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="no_such_setting"):
        AsyncRunner("default", no_such_setting=1)
    with pytest.raises(ConfigurationError, match="timeout_s"):
        AsyncRunner("default", timeout_s=-1)


async def test_a_runner_that_is_not_open_says_so(settings: Settings) -> None:
    runner = AsyncRunner("default", settings=settings, engine=FakeEngine())
    uses: list[Callable[[], Any]] = [
        runner.sessions,
        lambda: runner.controller,
    ]
    for use in uses:
        with pytest.raises(RuntimeError, match="not open: use it in a `with` statement"):
            use()
    with pytest.raises(RuntimeError, match="not open"):
        await runner.open_session()
    async with runner:
        assert runner.sessions() == []
    with pytest.raises(RuntimeError, match="not open"):
        await runner.prune()


async def test_a_runner_can_be_opened_again(settings: Settings) -> None:
    runner = AsyncRunner("default", settings=settings, engine=FakeEngine())
    for _ in range(2):
        async with runner, runner.session() as session:
            assert (await session.bash("echo hi")).output == "hi\n"


OPTIONS: list[tuple[str, Any]] = [
    ("image", "other:image"),
    ("workspace", Path("/somewhere")),
    ("read_only", True),
    ("runtime", "runsc"),
    ("carrier", "attach"),
    ("timeout_s", 7.0),
    ("idle_timeout_s", 8.0),
    ("ttl_s", 9.0),
    ("kept", True),
    ("tenant", "acme"),
    ("limits", Limits(pids=17)),
    ("environment", {"A": "1"}),
]


@pytest.mark.parametrize(("name", "value"), OPTIONS, ids=[name for name, _ in OPTIONS])
def test_what_a_session_is_not_told_comes_from_the_settings(
    settings: Settings, name: str, value: Any
) -> None:
    runner = AsyncRunner("default", settings=settings, engine=FakeEngine())
    usual, special = runner.options(), runner.options(**{name: value})
    assert getattr(special, name) == value != getattr(usual, name)
    changed = {
        field for field in usual.__slots__ if getattr(usual, field) != getattr(special, field)
    }
    assert changed == {name}


def test_settings_reach_the_options() -> None:
    given = {
        "image": "i",
        "runtime": "r",
        "carrier": "attach",
        "timeout_s": 7.0,
        "idle_timeout_s": 8.0,
        "ttl_s": 9.0,
        "tmp_noexec": True,
        "selinux": "z",
    }
    options = AsyncRunner("default", settings=Settings.read(**given)).options()
    assert {name: getattr(options, name) for name in given} == given


async def test_variables_of_the_session_reach_its_commands(settings: Settings) -> None:
    seen: dict[str, Any] = {}

    def act(puppet: Puppet, request: wire.Message) -> None:
        if request.kind == Kind.RUN:
            seen.update(request.fields["env"])
            puppet.send(Kind.RAN, request.call, RAN)

    async with (
        AsyncRunner("default", settings=settings, engine=PuppetEngine(act)) as runner,
        runner.session(environment={"A": "1"}) as session,
    ):
        await session.bash("x")
    assert seen["A"] == "1"


class ShoutInput(ToolInput):
    """The input of `shout`."""

    words: str
    """What to shout."""


class ShoutTool:
    """A tool that is not ours."""

    name = "shout"
    description = "Shouts."
    input = ShoutInput

    async def execute(self, context: ToolContext, input: ShoutInput, /) -> Outcome:
        """Run it in the container."""
        result = await context.sandbox.run(f"echo {input.words.upper()}", deadline_s=5)
        return Outcome(output=result.output.decode())


ALLOW_ALL = Policy.parse("mode: allow_all\n")


async def test_a_tool_of_somebody_else_s_is_called_like_ours(settings: Settings) -> None:
    runner = AsyncRunner(ALLOW_ALL, settings=settings, engine=FakeEngine())
    runner.tools.register(ShoutTool())
    async with runner, runner.session() as session:
        assert (await session.call("shout", {"words": "hey"})).output == "HEY\n"
        assert (await session.call("shout", {"word": "hey"})).status is Status.INVALID
    assert "shout" not in default_registry().names()


async def test_a_runner_has_the_tools_it_is_given_and_no_others(settings: Settings) -> None:
    registry = Registry()
    registry.register(ShoutTool())
    async with (
        AsyncRunner(ALLOW_ALL, settings=settings, engine=FakeEngine(), tools=registry) as runner,
        runner.session() as session,
    ):
        assert (await session.bash("echo hi")).status is Status.INVALID
        assert (await session.call("shout", {"words": "hey"})).status is Status.OK


# Sessions by id.


async def test_a_kept_session_goes_on_without_its_runner(settings: Settings) -> None:
    engine = FakeEngine()
    async with AsyncRunner("default", settings=settings, engine=engine) as runner:
        session = await runner.open_session(kept=True)
        await session.write("/workspace/f", "kept")
    async with AsyncRunner("default", settings=settings, engine=engine) as runner:
        again = await runner.attach(session.id)
        assert (await again.read("/workspace/f")).output == "kept"
        with pytest.raises(SessionBusy):
            await runner.attach(session.id)
        await again.close()
        with pytest.raises(SessionEnded):
            await again.bash("echo hi")  # let go is let go, though the session lives on
        await runner.close_session(session.id)
        with pytest.raises(SessionEnded):
            await runner.attach(session.id)
        assert runner.sessions() == []
        assert [info.state for info in runner.sessions(include_ended=True)] == [SessionState.CLOSED]
    assert await engine.containers({}) == []


async def test_a_session_of_this_runner_can_be_closed_by_its_id(
    runner: AsyncRunner, session: AsyncSession
) -> None:
    await runner.close_session(session.id)
    with pytest.raises(SessionEnded):
        await session.bash("echo hi")
    with pytest.raises(SessionNotFound):
        await runner.close_session("none")


async def test_pruning_leaves_what_is_in_use(runner: AsyncRunner, session: AsyncSession) -> None:
    swept = await runner.prune()
    assert (swept.sessions, swept.containers, swept.workspaces) == ((), 0, 0)
    assert (await session.bash("echo hi")).output == "hi\n"


async def test_a_sessions_error_is_not_hidden_by_the_end_of_its_context(
    runner: AsyncRunner,
) -> None:
    class OwnError(Exception):
        pass

    with pytest.raises(OwnError):
        async with runner.session():
            raise OwnError
    assert runner.sessions() == []


async def test_output_of_megabytes_is_cut_in_the_middle_and_says_so(settings: Settings) -> None:
    engine = FakeEngine(lambda line: FakeRun(b"x" * 3_000_000))
    async with (
        AsyncRunner("default", settings=settings, engine=engine) as runner,
        runner.session() as session,
    ):
        result = await session.bash("x")
    assert result.truncated is not None
    assert len(result.output) < 1_100_000
    assert str(result.truncated.omitted_bytes) in result.output
