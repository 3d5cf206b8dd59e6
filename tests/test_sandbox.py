"""The host's end of a stream, against helpers that are fakes, puppets, and the real one.

The real helper runs as a process of the host here, without a container: it answers what
concerns files. Programs need its supervisor; they are run in `test_sessions` and elsewhere.
"""

import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from runner import AsyncRunner, RemoteProtocolError, SandboxLost, SandboxUnresponsive, Settings
from runner import conversation as conversation_module
from runner.answers import Collector, RequestFailed
from runner.carrier import Carrier, SocketCarrier
from runner.errors import EngineUnavailable, LocalProtocolError, SandboxPaused
from runner.helper import wire
from runner.helper.wire import Kind
from runner.model import Status
from runner.sandbox import WORKSPACE, Sandbox
from runner.testing import FakeHelper, FakeRun, fake_shell, memory_carriers
from tests.puppet import (
    FOUND,
    HELLO,
    RAN,
    Act,
    Puppet,
    PuppetEngine,
    answer_well,
    puppet_pair,
    stay_silent,
)
from tests.wire_messages import messages

pytestmark = pytest.mark.anyio

MARKER = bytes(range(100, 116))

helper_frames = st.builds(
    lambda message, call: wire.encode(
        message.kind,
        call + wire.TUNNEL_BASE * (message.kind in wire.TUNNELLED),
        message.fields,
        message.payload,
    ),
    messages(wire.FROM_HELPER),
    st.integers(0, 5),
)
"""Legal frames of a helper, in no legal order."""


async def nothing_known() -> SandboxLost | None:
    """A daemon for which the container runs."""
    return None


async def open_sandbox(carrier: Carrier, **options: Any) -> Sandbox:
    defaults: dict[str, Any] = {
        "diagnose": nothing_known,
        "expires_s": None,
        "idle_s": None,
        "timeout_s": 10.0,
    }
    return await Sandbox.open(carrier, MARKER, **{**defaults, **options})


@asynccontextmanager
async def puppet_sandbox(
    act: Act = stay_silent, **options: Any
) -> AsyncIterator[tuple[Sandbox, Puppet]]:
    carrier, puppet = puppet_pair(act)
    sandbox = await open_sandbox(carrier, **options)
    try:
        yield sandbox, puppet
    finally:
        sandbox.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience of a tenth of a second where it is usually one or two."""
    monkeypatch.setattr(conversation_module, "GRACE_S", 0.1)
    monkeypatch.setattr(conversation_module, "SILENCE_S", 0.1)


# The fake helper: both ends of the project's own making.


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[Sandbox]:
    ours, theirs = memory_carriers()
    FakeHelper(theirs, fake_shell, tmp_path, 1000, 1001)
    sandbox = await open_sandbox(ours)
    yield sandbox
    sandbox.close()


async def test_a_helper_says_who_it_is(fake: Sandbox) -> None:
    assert fake.facts is not None
    assert (fake.facts.uid, fake.facts.gid, fake.facts.shell) == (1000, 1001, True)


async def test_a_command_runs_and_its_output_comes_back(fake: Sandbox) -> None:
    result = await fake.run("echo one; echo two; exit 3", deadline_s=5)
    assert (result.output, result.exit_code, result.ended) == (b"one\ntwo\n", 3, "exited")
    assert (result.total_bytes, result.total_lines, result.head_bytes) == (8, 2, 8)


async def test_a_list_runs_as_a_program_with_arguments(fake: Sandbox) -> None:
    assert (await fake.run(["echo", "a", "b"], deadline_s=5)).output == b"a b\n"


async def test_files_are_written_read_replaced_and_searched(fake: Sandbox, tmp_path: Path) -> None:
    assert await fake.write(f"{WORKSPACE}/d/f", b"one\ntwo\n") == 8
    assert (tmp_path / "d/f").read_bytes() == b"one\ntwo\n"
    assert await fake.replace(f"{WORKSPACE}/d/f", b"two", b"2", limit_bytes=100) == 1
    assert await fake.read(f"{WORKSPACE}/d/f", limit_bytes=100) == b"one\n2\n"
    found = await fake.search(
        WORKSPACE, "^2", ignore_case=False, include="", max_matches=5, max_file_bytes=100
    )
    assert found.rows == f"{WORKSPACE}/d/f:2: 2\n".encode()


async def test_a_refusal_is_told_with_its_code_and_the_sandbox_stays_usable(fake: Sandbox) -> None:
    with pytest.raises(RequestFailed) as caught:
        await fake.read(f"{WORKSPACE}/none", limit_bytes=1)
    assert (caught.value.code, caught.value.detail) == ("not_found", "no such file or directory")
    assert await fake.ping() >= 0


async def test_twenty_requests_at_once_get_their_own_answers(fake: Sandbox) -> None:
    results = await asyncio.gather(
        *(fake.run(f"sleep {0.01 * (20 - n)}; echo {n}", deadline_s=5) for n in range(20))
    )
    assert [result.output for result in results] == [f"{n}\n".encode() for n in range(20)]


async def test_a_command_is_ended_at_its_deadline_and_keeps_its_output(fake: Sandbox) -> None:
    result = await fake.run("echo before; sleep 60", deadline_s=0.05)
    assert (result.output, result.ended, result.exit_code) == (b"before\n", "timed_out", None)


@pytest.mark.parametrize(
    ("size", "limit", "kept"),
    [
        (0, 10, b""),
        (10, 10, b"0123456789"),
        (11, 10, b"01234" + b"67890"),
        (25, 5, b"012" + b"34"),
        (25, 1, b"0"),
        (25, 0, b""),
    ],
)
def test_of_a_long_output_the_beginning_and_the_end_are_kept(
    size: int, limit: int, kept: bytes
) -> None:
    data = (b"0123456789" * 3)[:size]
    for step in (1, 3, 100):
        collector = Collector(limit)
        for at in range(0, size, step):
            collector.add(data[at : at + step])
        output, head = collector.result()
        assert output == kept
        assert collector.total_bytes == size
        assert head == (len(kept) if size <= limit else (limit + 1) // 2)


async def test_output_beyond_the_window_flows_as_it_is_acknowledged(tmp_path: Path) -> None:
    whole = os.urandom(5 * 1024**2)
    ours, theirs = memory_carriers()
    FakeHelper(theirs, lambda line: FakeRun(whole), tmp_path, 0, 0)
    sandbox = await open_sandbox(ours)
    taken = bytearray()

    async def take(piece: bytes) -> None:
        assert len(piece) <= wire.OUTPUT_CHUNK_BYTES
        taken.extend(piece)

    result = await sandbox.run("x", deadline_s=10, output_limit_bytes=10 * 1024**2, on_output=take)
    sandbox.close()
    assert result.output == whole == bytes(taken)


async def test_a_command_waits_while_nobody_takes_its_output(tmp_path: Path) -> None:
    ours, theirs = memory_carriers()
    FakeHelper(theirs, lambda line: FakeRun(bytes(5 * 1024**2)), tmp_path, 0, 0)
    sandbox = await open_sandbox(ours)
    go_on = asyncio.Event()
    held = 0

    async def take(piece: bytes) -> None:
        nonlocal held
        await go_on.wait()
        held += len(piece)

    running = asyncio.create_task(sandbox.run("x", deadline_s=10, on_output=take))
    for _ in range(200):
        await asyncio.sleep(0)
    (request,) = sandbox._pending.values()
    assert request.collector is not None
    assert request.collector.total_bytes == wire.OUTPUT_WINDOW_BYTES
    go_on.set()
    assert (await running).total_bytes == held == 5 * 1024**2
    sandbox.close()


async def test_a_deadline_passes_while_the_taker_of_the_output_is_busy(hasty: None) -> None:
    def act(puppet: Puppet, request: wire.Message) -> None:
        if request.kind == Kind.RUN:
            puppet.send(Kind.OUTPUT, request.call, payload=b"first")
            puppet.send(Kind.OUTPUT, request.call, payload=b"second")
        elif request.kind == Kind.CANCEL:
            fields = {**RAN, "exit_code": None, "ended": "cancelled", "output_bytes": 11}
            puppet.send(Kind.RAN, request.call, fields)

    taken = []
    async with puppet_sandbox(act) as (sandbox, puppet):

        async def take(piece: bytes) -> None:
            taken.append(piece)
            await puppet.asked(Kind.CANCEL)

        result = await sandbox.run("x", deadline_s=0.05, on_output=take)
    assert (result.ended, result.output, taken) == ("timed_out", b"firstsecond", [b"first"])


async def test_an_error_of_the_taker_ends_the_command(fake: Sandbox) -> None:
    class TakerError(Exception):
        pass

    async def take(piece: bytes) -> None:
        raise TakerError

    with pytest.raises(TakerError):
        await fake.run("echo x; sleep 60", deadline_s=60, on_output=take)
    assert not fake._pending
    assert fake.lost is None


async def test_cancelling_a_task_cancels_its_request_and_waits_for_its_end() -> None:
    ended: list[int] = []

    def act(puppet: Puppet, request: wire.Message) -> None:
        if request.kind == Kind.CANCEL:
            ended.append(request.call)
            fields = {**RAN, "exit_code": None, "ended": "cancelled"}
            puppet.send(Kind.RAN, request.call, fields)

    async with puppet_sandbox(act) as (sandbox, puppet):
        running = asyncio.create_task(sandbox.run("sleep 60", deadline_s=60))
        call = (await puppet.asked(Kind.RUN)).call
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert ended == [call]
        assert sandbox.lost is None


@pytest.mark.parametrize(
    "request_",
    [
        lambda sandbox: sandbox.run("x" * wire.MAX_FIELDS_BYTES, deadline_s=1),
        lambda sandbox: sandbox.run("\udcff", deadline_s=1),
        lambda sandbox: sandbox.run("x", deadline_s=2**31),
        lambda sandbox: sandbox.run("x", deadline_s=1, stdin=bytes(wire.MAX_PAYLOAD_BYTES + 1)),
        lambda sandbox: sandbox.write("/a", bytes(wire.MAX_PAYLOAD_BYTES + 1)),
        lambda sandbox: sandbox.read("/\ud800", limit_bytes=1),
    ],
    ids=["command", "surrogate", "deadline", "stdin", "content", "path"],
)
async def test_what_the_protocol_can_not_say_is_our_own_error_and_costs_nothing(
    fake: Sandbox, request_: Callable[[Sandbox], Awaitable[Any]]
) -> None:
    with pytest.raises(LocalProtocolError):
        await request_(fake)
    assert fake.lost is None
    assert await fake.ping() >= 0


async def test_standard_error_comes_apart_where_that_is_asked(tmp_path: Path) -> None:
    ours, theirs = memory_carriers()
    FakeHelper(theirs, lambda line: FakeRun(b"out", errors=b"err"), tmp_path, 1000, 1000)
    sandbox = await open_sandbox(ours)
    heard: list[bytes] = []

    async def hear(data: bytes) -> None:
        heard.append(data)

    apart = await sandbox.run("x", deadline_s=5, errors_apart=True, on_output=hear)
    together = await sandbox.run("x", deadline_s=5)

    assert (apart.output, apart.errors, apart.errors_total_bytes) == (b"out", b"err", 3)
    assert (together.output, together.errors) == (b"outerr", None)
    assert heard == [b"out", b"err"]
    sandbox.close()


async def test_a_program_is_written_to_and_ends_with_its_input(fake: Sandbox) -> None:
    collector = Collector(100)
    program = await fake.start("echo on; cat", deadline_s=None, collector=collector)
    await program.write(b"x" * (wire.INPUT_WINDOW_BYTES + 1))
    assert not program.ended
    await program.end_input()

    result = await program.wait()
    assert (result.exit_code, result.total_bytes) == (0, wire.INPUT_WINDOW_BYTES + 4)
    assert result.output.startswith(b"on\nxxx")
    await program.write(b"too late")


async def test_a_program_is_signalled_and_killed(fake: Sandbox) -> None:
    one = await fake.start("sleep 60", deadline_s=None)
    other = await fake.start("sleep 60", deadline_s=None)

    await one.signal(15)

    assert (await one.wait()).signal == 15
    assert (await other.kill()).ended == "cancelled"
    assert (await other.kill()).ended == "cancelled"
    with pytest.raises(LocalProtocolError):
        await (await fake.start("sleep 60", deadline_s=1)).signal(0)


async def test_input_is_sent_no_faster_than_it_is_taken() -> None:
    async with puppet_sandbox(stay_silent) as (sandbox, puppet):
        program = await sandbox.start("cat", deadline_s=None)
        writing = asyncio.create_task(program.write(bytes(2 * wire.INPUT_WINDOW_BYTES)))
        await puppet.asked(Kind.INPUT, times=wire.INPUT_WINDOW_BYTES // wire.INPUT_CHUNK_BYTES)
        sent = [m for m in puppet.received if m.kind == Kind.INPUT]
        assert sum(len(m.payload) for m in sent) == wire.INPUT_WINDOW_BYTES
        assert not writing.done()

        puppet.send(Kind.TAKEN, program.id, {"bytes": wire.INPUT_WINDOW_BYTES})
        await writing
        puppet.send(Kind.TAKEN, program.id, {"bytes": wire.INPUT_WINDOW_BYTES + 1})
        await puppet.ended.wait()
        assert isinstance(sandbox.lost, RemoteProtocolError)
        with pytest.raises(SandboxLost):
            await program.wait()


async def test_who_waits_to_write_is_told_of_the_loss() -> None:
    async with puppet_sandbox(stay_silent) as (sandbox, puppet):
        program = await sandbox.start("cat", deadline_s=None)
        writing = asyncio.create_task(program.write(bytes(2 * wire.INPUT_WINDOW_BYTES)))
        await puppet.asked(Kind.INPUT)
        puppet.hang_up()
        with pytest.raises(SandboxLost):
            await writing


async def test_a_fake_has_root_where_it_has_users(tmp_path: Path) -> None:
    for users, code in ((False, "permission_denied"), (True, "no_user")):
        ours, theirs = memory_carriers()
        FakeHelper(theirs, fake_shell, tmp_path, 1000, 1000, users=users)
        sandbox = await open_sandbox(ours)
        with pytest.raises(RequestFailed) as caught:
            await sandbox.run("echo", deadline_s=5, user="somebody")
        assert caught.value.code == code
        assert (await sandbox.run("echo", deadline_s=5, user="1000")).exit_code == 0
        if users:
            assert (await sandbox.run("echo", deadline_s=5, user="root")).exit_code == 0
        sandbox.close()


async def test_a_closed_sandbox_fails_what_waits_and_what_comes(fake: Sandbox) -> None:
    running = asyncio.create_task(fake.run("sleep 60", deadline_s=60))
    await asyncio.sleep(0.01)
    fake.close()
    with pytest.raises(SandboxLost, match="closed"):
        await running
    with pytest.raises(SandboxLost, match="closed"):
        await fake.read("/a", limit_bytes=1)


# The greeting.


def greeting(**changes: Any) -> Callable[[Puppet], None]:
    return lambda puppet: puppet.send(Kind.HELLO, 0, {**HELLO, **changes})


@pytest.mark.parametrize(
    ("greet", "error", "words"),
    [
        (greeting(version=4), RemoteProtocolError, "version 4 of the protocol"),
        (greeting(version=1), RemoteProtocolError, "version 1 of the protocol"),
        (greeting(version=0), RemoteProtocolError, "version 0"),
        (greeting(role="host"), RemoteProtocolError, "protocol"),
        (lambda puppet: puppet.send(Kind.PONG, 1), RemoteProtocolError, "call 1"),
        (lambda puppet: puppet.send(Kind.RAN, 1, RAN), RemoteProtocolError, "call 1"),
        (lambda puppet: puppet.say(b"\0\0\0\0"), RemoteProtocolError, "empty frame"),
        (lambda puppet: puppet.say(b"\xff" * 64), RemoteProtocolError, "over the limit"),
        (lambda puppet: puppet.hang_up(), SandboxLost, "stream ended"),
        (lambda puppet: None, SandboxUnresponsive, r"did not greet within 0\.2 s"),
        (lambda puppet: puppet.say(b"\0"), SandboxUnresponsive, "did not greet"),
    ],
    ids=[
        "newer",
        "old",
        "oldest",
        "a host",
        "pong",
        "an answer",
        "empty",
        "garbage",
        "hangs up",
        "says nothing",
        "one byte",
    ],
)
async def test_a_bad_greeting_is_an_error_and_never_a_sandbox(
    greet: Callable[[Puppet], None], error: type[SandboxLost], words: str
) -> None:
    ours, theirs = memory_carriers()
    puppet = Puppet(theirs, greet=greet)
    lost: list[SandboxLost] = []
    patience_s = 0.2 if error is SandboxUnresponsive else 10
    with pytest.raises(error, match=words) as caught:
        await open_sandbox(ours, timeout_s=patience_s, on_lost=lost.append)
    assert lost == [caught.value]
    await puppet.ended.wait()


async def test_cancelling_the_greeting_hangs_up() -> None:
    ours, theirs = memory_carriers()
    puppet = Puppet(theirs, greet=lambda puppet: None)
    opening = asyncio.create_task(open_sandbox(ours))
    await puppet.asked(Kind.HELLO)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await puppet.ended.wait()


async def test_the_host_says_how_long_the_helper_may_live() -> None:
    async with puppet_sandbox(expires_s=60.5, idle_s=7.0) as (_, puppet):
        hello = await puppet.asked(Kind.HELLO)
    assert (hello.fields["expires_s"], hello.fields["idle_s"]) == (60.5, 7.0)
    assert hello.fields["role"] == "host"


# A hostile helper. Each of these ends the sandbox, whatever the host was waiting for.


def frame(kind: int, call: int, body: bytes, payload: bytes = b"") -> bytes:
    head = struct.pack("!BII", kind, call, len(body))
    return struct.pack("!I", len(head) + len(body) + len(payload)) + head + body + payload


def on_request(do: Callable[[Puppet, wire.Message], None]) -> Act:
    """Do it when the host asks for something, and nothing when it cancels or pings."""

    def act(puppet: Puppet, request: wire.Message) -> None:
        if request.kind not in (Kind.CANCEL, Kind.CREDIT, Kind.PING):
            do(puppet, request)

    return act


def fields(kind: int, **values: Any) -> Act:
    """Answer with a frame whose fields are these, legal or not."""
    return on_request(
        lambda puppet, request: puppet.say(frame(kind, request.call, json.dumps(values).encode()))
    )


def twice(puppet: Puppet, request: wire.Message) -> None:
    answer_well(puppet, request)
    answer_well(puppet, request)


def output_after_the_end(puppet: Puppet, request: wire.Message) -> None:
    answer_well(puppet, request)
    puppet.send(Kind.OUTPUT, request.call, payload=b"late")


def say_and_hang_up(puppet: Puppet, data: bytes) -> None:
    puppet.say(data)
    puppet.hang_up()


OFFENCES: dict[str, Act] = {
    "second answer": on_request(twice),
    "answer to an unknown call": on_request(
        lambda puppet, request: puppet.send(Kind.RAN, request.call + 1, RAN)
    ),
    "answer to call 0": on_request(lambda puppet, request: puppet.send(Kind.RAN, 0, RAN)),
    "answer to another's call": on_request(
        lambda puppet, request: puppet.send(Kind.RAN, wire.TUNNEL_BASE - 1, RAN)
    ),
    "output after the end": on_request(output_after_the_end),
    "output for an unknown call": on_request(
        lambda puppet, request: puppet.send(Kind.OUTPUT, request.call + 7, payload=b"x")
    ),
    "output without bytes": on_request(
        lambda puppet, request: puppet.send(Kind.OUTPUT, request.call)
    ),
    "wrong kind of answer": on_request(
        lambda puppet, request: puppet.send(Kind.CONTENT, request.call, payload=b"secret")
    ),
    "pong for an answer": on_request(lambda puppet, request: puppet.send(Kind.PONG, request.call)),
    "second greeting": on_request(lambda puppet, request: puppet.send(Kind.HELLO, 0, HELLO)),
    "greeting as a host": on_request(
        lambda puppet, request: puppet.send(Kind.HELLO, 0, {**HELLO, "role": "host"})
    ),
    "pongs that nobody asked for": on_request(
        lambda puppet, request: puppet.say(frame(Kind.PONG, 0, b"") * 1000)
    ),
    "request to the host": on_request(
        lambda puppet, request: puppet.send(
            Kind.READ, 1, {"path": "/etc/shadow", "judged": None, "limit_bytes": 9}
        )
    ),
    "command for the host": on_request(
        lambda puppet, request: puppet.say(frame(Kind.RUN, 1, b'{"shell":"id"}'))
    ),
    "credit for the host": on_request(
        lambda puppet, request: puppet.send(Kind.CREDIT, request.call, {"bytes": 1})
    ),
    "unknown kind": on_request(lambda puppet, request: puppet.say(frame(99, request.call, b""))),
    "unknown failure": fields(Kind.FAILED, code="root_granted", detail="x"),
    "unknown field": fields(Kind.RAN, **RAN, session_id="OTHER-TENANT"),
    "a decision": fields(Kind.RAN, **RAN, decision="allow"),
    "exit status as text": fields(Kind.RAN, **{**RAN, "exit_code": "0"}),
    "exit status as a flag": fields(Kind.RAN, **{**RAN, "exit_code": False}),
    "exit status that wraps to 0": fields(Kind.RAN, **{**RAN, "exit_code": 256}),
    "no ending": fields(Kind.RAN, **{**RAN, "exit_code": None}),
    "two endings": fields(Kind.RAN, **{**RAN, "signal": 9}),
    "cancelled, with status 0": fields(Kind.RAN, **{**RAN, "ended": "cancelled"}),
    "output that never came": fields(Kind.RAN, **{**RAN, "output_bytes": 5}),
    "errors that nobody wanted apart": on_request(
        lambda puppet, request: puppet.send(Kind.ERRORS, request.call, payload=b"x")
    ),
    "errors that never came": fields(Kind.RAN, **{**RAN, "errors_bytes": 5}),
    "input taken that was never given": on_request(
        lambda puppet, request: puppet.send(Kind.TAKEN, request.call, {"bytes": 1})
    ),
    "missing field": fields(Kind.RAN, exit_code=0),
    "lone surrogate": on_request(
        lambda puppet, request: puppet.say(
            frame(Kind.FAILED, request.call, rb'{"code":"io","detail":"\ud800"}')
        )
    ),
    "duplicate field": on_request(
        lambda puppet, request: puppet.say(
            frame(Kind.FAILED, request.call, b'{"code":"io","detail":"a","detail":"b"}')
        )
    ),
    "not a number": on_request(
        lambda puppet, request: puppet.say(frame(Kind.WROTE, request.call, b'{"bytes":NaN}'))
    ),
    "an integer of 5000 digits": on_request(
        lambda puppet, request: puppet.say(
            frame(Kind.WROTE, request.call, b'{"bytes":' + b"9" * 5000 + b"}")
        )
    ),
    "deep nesting": on_request(
        lambda puppet, request: puppet.say(
            frame(Kind.RAN, request.call, b"[" * 30_000 + b"]" * 30_000)
        )
    ),
    "not UTF-8": on_request(
        lambda puppet, request: puppet.say(frame(Kind.FAILED, request.call, b"\xff\xfeABC"))
    ),
    "empty frame": on_request(lambda puppet, request: puppet.say(b"\0\0\0\0")),
    "frame of 4 GiB": on_request(lambda puppet, request: puppet.say(b"\xff\xff\xff\xff")),
    "fields longer than their frame": on_request(
        lambda puppet, request: puppet.say(struct.pack("!IBII", 9, Kind.RAN, request.call, 4096))
    ),
    "payload where none belongs": on_request(
        lambda puppet, request: puppet.say(
            frame(Kind.RAN, request.call, json.dumps(RAN).encode(), b"x")
        )
    ),
    "text instead of frames": on_request(
        lambda puppet, request: puppet.say(b'{"id":"1","ok":true}\n')
    ),
    "truncated frame, then the end": on_request(
        lambda puppet, request: say_and_hang_up(puppet, b"\0\0\0\x0a{}")
    ),
}


AFTER_A_GOOD_ANSWER = {"second answer", "output after the end"}


@pytest.mark.parametrize("offence", OFFENCES)
async def test_an_offence_kills_the_container_and_the_next_call_works(
    settings: Settings, offence: str
) -> None:
    engine = PuppetEngine(OFFENCES[offence])
    async with (
        AsyncRunner("default", settings=settings, engine=engine) as runner,
        runner.session() as session,
    ):
        container = session.info.container_id
        assert container is not None
        if offence in AFTER_A_GOOD_ANSWER:
            assert (await session.bash("echo hi")).status is Status.OK
        else:
            with pytest.raises(RemoteProtocolError, match=r"broke the protocol|truncated frame"):
                await session.bash("echo hi")
        await until(lambda: killed(engine, container))
        again = await session.bash("echo again")
        assert (again.status, again.output) == (Status.OK, "again\n")
        assert session.info.container_id != container
        assert await engine.container(container) is None


async def killed(engine: PuppetEngine, container: str) -> bool:
    state = await engine.container(container)
    return state is None or state.state == "exited"


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():
            await asyncio.sleep(0.005)


@examples(deadline=None)
@given(st.lists(st.binary(max_size=60) | helper_frames, max_size=8))
def test_whatever_a_helper_says_each_call_has_an_answer_or_a_loss(said: list[bytes]) -> None:
    async def known() -> SandboxLost | None:
        return SandboxLost("gone")

    async def scenario() -> tuple[Any, ...]:
        async with puppet_sandbox(diagnose=known) as (sandbox, puppet):
            calls = asyncio.gather(
                sandbox.run("x", deadline_s=60),
                sandbox.read("/a", limit_bytes=10),
                sandbox.write("/a", b"x"),
                sandbox.ping(),
                return_exceptions=True,
            )
            await puppet.asked(Kind.PING)
            for data in said:
                puppet.say(data)
            puppet.hang_up()
            return await calls

    run, read, *rest = asyncio.run(scenario())
    refusals = (SandboxLost, RequestFailed)
    assert isinstance(run, refusals) or len(run.output) == run.total_bytes
    assert isinstance(read, refusals) or len(read) <= 10
    assert all(isinstance(answer, (*refusals, int, float)) for answer in rest)


async def test_an_offence_in_one_call_fails_all_that_are_under_way() -> None:
    async with puppet_sandbox() as (sandbox, puppet):
        calls = asyncio.gather(
            *(sandbox.run("x", deadline_s=60) for _ in range(3)),
            sandbox.read("/a", limit_bytes=1),
            return_exceptions=True,
        )
        await puppet.asked(Kind.READ)
        puppet.say(b"\0\0\0\0")
        results = await calls
    assert [type(result) for result in results] == [RemoteProtocolError] * 4


async def test_more_output_than_was_allowed_is_an_offence_while_nobody_takes_it() -> None:
    async def take(piece: bytes) -> None:
        await asyncio.Event().wait()

    async with puppet_sandbox() as (sandbox, puppet):
        running = asyncio.create_task(sandbox.run("x", deadline_s=60, on_output=take))
        call = (await puppet.asked(Kind.RUN)).call
        for _ in range(wire.OUTPUT_WINDOW_BYTES // wire.OUTPUT_CHUNK_BYTES):
            puppet.send(Kind.OUTPUT, call, payload=bytes(wire.OUTPUT_CHUNK_BYTES))
        await asyncio.sleep(0.01)
        assert sandbox.lost is None
        puppet.send(Kind.OUTPUT, call, payload=b"x")
        await puppet.ended.wait()
        assert isinstance(sandbox.lost, RemoteProtocolError)
        assert "more output" in str(sandbox.lost)
        running.cancel()
        await asyncio.wait([running])


async def test_a_longer_file_than_was_asked_for_is_an_offence() -> None:
    act = on_request(
        lambda puppet, request: puppet.send(Kind.CONTENT, request.call, payload=bytes(11))
    )
    async with puppet_sandbox(act) as (sandbox, _):
        with pytest.raises(RemoteProtocolError, match="longer answer"):
            await sandbox.read("/a", limit_bytes=10)


async def test_output_for_a_request_that_has_none_is_an_offence() -> None:
    act = on_request(lambda puppet, request: puppet.send(Kind.OUTPUT, request.call, payload=b"x"))
    async with puppet_sandbox(act) as (sandbox, _):
        with pytest.raises(RemoteProtocolError, match="which has none"):
            await sandbox.search(
                "/", "x", ignore_case=False, include="", max_matches=1, max_file_bytes=1
            )


async def test_rows_and_counts_of_a_search_are_taken_as_they_are_said() -> None:
    act = on_request(
        lambda puppet, request: puppet.send(
            Kind.FOUND, request.call, {**FOUND, "matches": 2**62}, b"rows"
        )
    )
    async with puppet_sandbox(act) as (sandbox, _):
        found = await sandbox.search(
            "/", "x", ignore_case=False, include="", max_matches=1, max_file_bytes=1
        )
    assert (found.matches, found.rows) == (2**62, b"rows")


RESOLVED_TO_NOTHING = {
    "relative": "workspace/a",
    "empty": "",
    "two names in one": "/workspace/../etc/shadow",
    "a dot": "/workspace/./a",
    "an empty name": "/workspace//a",
    "two slashes": "//workspace",
    "a slash at the end": "/workspace/",
    "a NUL": "/workspace/a\0",
    "longer than any": "/" + "x" * wire.MAX_PATH_BYTES,
    "no text": 5,
}


@pytest.mark.parametrize("path", RESOLVED_TO_NOTHING.values(), ids=RESOLVED_TO_NOTHING.keys())
async def test_a_path_that_nothing_resolves_to_is_an_offence(path: object) -> None:
    async with puppet_sandbox(fields(Kind.RESOLVED, path=path)) as (sandbox, _):
        with pytest.raises(RemoteProtocolError, match="path"):
            await sandbox.resolve("/workspace/a")


async def test_an_answer_to_another_request_does_not_resolve() -> None:
    act = on_request(lambda puppet, request: puppet.send(Kind.WROTE, request.call, {"bytes": 1}))
    async with puppet_sandbox(act) as (sandbox, _):
        with pytest.raises(RemoteProtocolError, match="does not answer"):
            await sandbox.resolve("/workspace/a")


async def test_nothing_is_judged_that_was_not_resolved(fake: Sandbox) -> None:
    for judged in ("a", "/a/../b", "/a/", "/a\0", ""):
        with pytest.raises(LocalProtocolError):
            await fake.read("/a", limit_bytes=1, judged=judged)
    assert fake.lost is None


async def test_a_fake_resolves_and_keeps_to_what_was_judged(fake: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_text("x\n")
    (tmp_path / "link").symlink_to("d")
    (tmp_path / "out").symlink_to("/etc/passwd")
    assert await fake.resolve("/workspace/link/../d/./f") == "/workspace/d/f"
    assert await fake.resolve("/workspace") == "/workspace"
    assert await fake.resolve("/etc/passwd") == "/etc/passwd"
    assert await fake.resolve("/workspace/out") == "/etc/passwd"
    assert await fake.resolve("/") == "/"
    assert await fake.read("/workspace/f", limit_bytes=9, judged="/workspace/d/f") == b"x\n"
    for judged in ("/workspace/link/f", "/workspace/link"):
        with pytest.raises(RequestFailed) as caught:
            await fake.write("/workspace/link/f", b"", judged=judged)
        assert caught.value.code == "moved"
    options: dict[str, Any] = {
        "ignore_case": False,
        "include": "",
        "max_matches": 5,
        "max_file_bytes": 9,
    }
    found = await fake.search("/workspace/link/", "x", judged="/workspace/d", **options)
    assert found.rows == b"/workspace/link/f:1: x\n"
    hidden = await fake.search("/workspace", "x", hidden=[r"\A/workspace/d/"], **options)
    assert (hidden.rows, hidden.skipped_hidden) == (b"", 1)


# The corpus: its frames are of another protocol, so each is sent as it stands, and as the
# fields of an answer in ours.

CORPUS = Path(__file__).parent / "attacks/data/corpus.jsonl"


def corpus_rows() -> list[Any]:
    rows = [json.loads(line) for line in CORPUS.read_text().splitlines()]
    return [
        pytest.param(row["input"], row["expected"], id=row["id"])
        for row in rows
        if row["area"] == "protocol" and row["tool"] == "helper"
    ]


def raw_frame(data: bytes) -> Act:
    def do(puppet: Puppet, request: wire.Message) -> None:
        puppet.say(data)
        if len(data) < 4 + int.from_bytes(data[:4]):
            puppet.hang_up()

    return on_request(do)


def as_fields(text: str) -> Act:
    def do(puppet: Puppet, request: wire.Message) -> None:
        for line in text.replace("$CURRENT", str(request.call)).split("\n"):
            puppet.say(frame(Kind.RAN, request.call, line.encode()))

    return on_request(do)


def drip(puppet: Puppet, request: wire.Message) -> None:
    """A byte now and then of a frame that never ends."""

    async def go_on() -> None:
        while not puppet.ended.is_set():
            puppet.say(b"\0")
            await asyncio.sleep(0.02)

    puppet.say(struct.pack("!IBII", 4009, Kind.RAN, request.call, 4000))
    drips.append(asyncio.get_running_loop().create_task(go_on()))


drips: list[asyncio.Task[None]] = []


@pytest.mark.parametrize(("hostile", "expected"), corpus_rows())
async def test_the_corpus_of_hostile_helpers(
    hostile: dict[str, Any], expected: str, hasty: None, settings: Settings
) -> None:
    acts: list[Act] = []
    if "frame_hex" in hostile:
        acts.append(raw_frame(bytes.fromhex(hostile["frame_hex"])))
    if "frame_drip_bytes_per_s" in hostile:
        acts.append(on_request(drip))
    if "delay_s" in hostile:
        acts.append(stay_silent)
    elif "frame_text" in hostile:
        acts.append(as_fields(hostile["frame_text"]))
        acts.append(raw_frame(hostile["frame_text"].encode()))
    assert acts
    assert expected.startswith("error")
    waits = "timed out" in expected
    for number, act in enumerate(acts):
        engine = PuppetEngine(act)
        own = settings.model_copy(update={"data_dir": settings.data_dir / str(number)})
        async with (
            AsyncRunner("default", settings=own, engine=engine) as runner,
            runner.session() as session,
        ):
            container = session.info.container_id
            assert container is not None
            with pytest.raises(SandboxUnresponsive if waits else RemoteProtocolError):
                await session.bash("echo hi", timeout_s=0.2 if waits else None)
            await until(lambda: killed(engine, container))  # noqa: B023
            assert (await session.bash("echo again")).output == "again\n"


# Silence.


async def test_a_helper_that_does_not_end_a_call_in_time_loses_the_sandbox(hasty: None) -> None:
    lost: list[SandboxLost] = []
    async with puppet_sandbox(on_lost=lost.append) as (sandbox, puppet):
        with pytest.raises(SandboxUnresponsive, match="did not end it within"):
            await sandbox.run("x", deadline_s=0.05)
        assert lost == [sandbox.lost]
        await puppet.ended.wait()


async def test_the_real_patience_is_two_seconds_and_the_daemon_s_second() -> None:
    clock = asyncio.get_running_loop().time
    async with puppet_sandbox() as (sandbox, _):
        started = clock()
        with pytest.raises(SandboxUnresponsive):
            await sandbox.run("x", deadline_s=0.1)
        assert 2.0 < clock() - started < 4.0


@pytest.mark.parametrize("tool", ["read", "bash"])
async def test_a_silent_helper_is_an_error_of_the_call_and_its_container_is_killed(
    tool: str, hasty: None, settings: Settings
) -> None:
    engine = PuppetEngine(stay_silent)
    arguments = {"read": {"path": "/workspace/a"}, "bash": {"command": "x"}}[tool]
    async with (
        AsyncRunner("default", settings=settings, engine=engine) as runner,
        runner.session() as session,
    ):
        container = session.info.container_id
        assert container is not None
        with pytest.raises(SandboxUnresponsive):
            await session.call(tool, arguments, timeout_s=0.05, call_id="c-1")
        await until(lambda: killed(engine, container))
        record = runner.controller.store.call("c-1")
        assert record is not None
        assert record.status is Status.LOST
        assert (await session.bash("echo again")).output == "again\n"


async def test_silence_is_looked_into_and_trouble_that_the_daemon_knows_ends_the_wait(
    hasty: None,
) -> None:
    async def paused() -> SandboxLost | None:
        return SandboxPaused("paused")

    async with puppet_sandbox(diagnose=paused) as (sandbox, puppet):
        with pytest.raises(SandboxPaused):
            await sandbox.run("x", deadline_s=60)
        assert (await puppet.asked(Kind.PING)).call == 0


async def test_silence_of_a_container_that_runs_is_waited_out(hasty: None) -> None:
    asked = 0

    async def runs() -> SandboxLost | None:
        nonlocal asked
        asked += 1
        return None

    async with puppet_sandbox(diagnose=runs) as (sandbox, puppet):
        running = asyncio.create_task(sandbox.run("x", deadline_s=60))
        request = await puppet.asked(Kind.RUN)
        while asked < 3:
            await asyncio.sleep(0.01)
        puppet.send(Kind.RAN, request.call, RAN)
        assert (await running).exit_code == 0


async def test_silence_while_the_daemon_is_away_is_waited_out(hasty: None) -> None:
    asked = 0

    async def away() -> SandboxLost | None:
        nonlocal asked
        asked += 1
        raise EngineUnavailable("gone")

    async with puppet_sandbox(diagnose=away) as (sandbox, puppet):
        running = asyncio.create_task(sandbox.run("x", deadline_s=60))
        request = await puppet.asked(Kind.RUN)
        while asked < 2:
            await asyncio.sleep(0.01)
        puppet.send(Kind.RAN, request.call, RAN)
        assert (await running).exit_code == 0


async def test_a_helper_that_answers_pings_is_not_asked_about(hasty: None) -> None:
    async def never() -> SandboxLost | None:
        raise AssertionError("the daemon was asked")

    def act(puppet: Puppet, request: wire.Message) -> None:
        if request.kind == Kind.PING:
            puppet.send(Kind.PONG, request.call)

    async with puppet_sandbox(act, diagnose=never) as (sandbox, puppet):
        running = asyncio.create_task(sandbox.run("x", deadline_s=60))
        request = await puppet.asked(Kind.RUN)
        await puppet.asked(Kind.PING, times=3)
        puppet.send(Kind.RAN, request.call, RAN)
        assert (await running).exit_code == 0


async def test_a_request_without_a_deadline_does_not_wait_for_ever(
    hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation_module, "UNRESPONSIVE_S", 0.3)
    async with puppet_sandbox() as (sandbox, _):
        with pytest.raises(SandboxUnresponsive, match="said nothing for"):
            await sandbox.read("/a", limit_bytes=1)


async def test_an_end_of_the_stream_is_explained_by_the_daemon_even_if_it_hears_of_it_late() -> (
    None
):
    answers: list[SandboxLost | None] = [None, None, SandboxLost("ended (exited, 137)")]

    async def late() -> SandboxLost | None:
        return answers.pop(0)

    async with puppet_sandbox(diagnose=late) as (sandbox, puppet):
        running = asyncio.create_task(sandbox.run("x", deadline_s=60))
        await puppet.asked(Kind.RUN)
        puppet.hang_up()
        with pytest.raises(SandboxLost, match="137"):
            await running


async def test_an_end_that_the_daemon_can_not_explain_says_so() -> None:
    async def away() -> SandboxLost | None:
        raise EngineUnavailable("start it")

    async with puppet_sandbox(diagnose=away) as (sandbox, puppet):
        running = asyncio.create_task(sandbox.run("x", deadline_s=60))
        await puppet.asked(Kind.RUN)
        puppet.hang_up()
        with pytest.raises(SandboxLost, match="stream ended") as caught:
            await running
    assert caught.value.__notes__ == ["the daemon does not say why: start it"]


# The real helper, as a process of the host.

HELPER = """
import os, socket, sys
from runner.helper.processes import Family
from runner.helper.server import Server, Stream
from runner.helper.users import Users

facts = {"uid": os.getuid(), "gid": os.getgid(), "shell": True, "python": "host", "seccomp": True}
number = int(sys.argv[1])
if sys.argv[2] == "stdio":
    stream = Stream(number, number)
    connect = lambda: stream
else:
    listening = socket.socket(fileno=number)
    listening.setblocking(False)
    def connect():
        try:
            descriptor = listening.accept()[0].detach()
        except BlockingIOError:
            return None
        return Stream(descriptor, descriptor)
Server(
    connect,
    reconnect=sys.argv[2] != "stdio",
    family=Family(subreaper=True),
    users=Users(),
    facts=facts,
).serve()
"""


@contextmanager
def helper_process(descriptor: int, how: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HELPER, str(descriptor), how],
        pass_fds=[descriptor],
        cwd=Path(__file__).parents[1],
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class RealHelper:
    """A helper that can be talked to again and again, as by one process after the other."""

    def __init__(
        self, process: subprocess.Popen[bytes], how: str, dial: Callable[[], socket.socket]
    ):
        self.process = process
        self.how = how
        self.dial = dial

    @asynccontextmanager
    async def sandbox(self, **options: Any) -> AsyncIterator[Sandbox]:
        sandbox = await open_sandbox(await SocketCarrier.over(self.dial()), **options)
        try:
            yield sandbox
        finally:
            sandbox.close()


@pytest.fixture(params=["socket", "stdio"])
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RealHelper]:
    """The real server, over a socket that is dialled anew and over one stream for good.

    Which end dials does not matter to the protocol, so here the host does.
    """
    if request.param == "stdio":
        ours, theirs = socket.socketpair()
        with ours, theirs, helper_process(theirs.fileno(), "stdio") as process:
            theirs.close()
            yield RealHelper(process, "stdio", ours.dup)
        return
    path = f"/tmp/rr-{os.getpid()}-{tmp_path.name[-20:]}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()

        def dial() -> socket.socket:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(path)
            return connection

        try:
            with helper_process(listening.fileno(), "socket") as process:
                yield RealHelper(process, "socket", dial)
        finally:
            os.unlink(path)


def talk(real: RealHelper) -> AbstractAsyncContextManager[Sandbox]:
    return real.sandbox()


async def test_the_real_helper_reads_writes_replaces_and_searches(
    real: RealHelper, tmp_path: Path
) -> None:
    path = f"{tmp_path}/d/€ 😀"
    async with talk(real) as sandbox:
        assert sandbox.facts is not None
        assert sandbox.facts.uid == os.getuid()
        assert await sandbox.write(path, b"one\ntwo\n") == 8
        assert await sandbox.replace(path, b"two", b"2", limit_bytes=100) == 1
        assert await sandbox.read(path, limit_bytes=100) == b"one\n2\n"
        found = await sandbox.search(
            str(tmp_path), "^2", ignore_case=False, include="", max_matches=5, max_file_bytes=100
        )
        assert found.rows == f"{path}:2: 2\n".encode()
        assert await sandbox.ping() < 5


async def test_the_real_helper_resolves_and_keeps_to_what_was_judged(
    real: RealHelper, tmp_path: Path
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/€").write_text("one\n")
    (tmp_path / "link").symlink_to("d")
    (tmp_path / "loop").symlink_to("loop")
    os.symlink(b"\xff", os.fsencode(tmp_path) + b"/latin")
    async with talk(real) as sandbox:
        path = f"{tmp_path}/link/€"
        judged = await sandbox.resolve(path)
        assert judged == f"{tmp_path}/d/€"
        assert await sandbox.resolve(f"{tmp_path}/link/new/f") == f"{tmp_path}/d/new/f"
        for name, code in (("loop", "link_loop"), ("latin", "io"), ("x" * 256, "name_too_long")):
            with pytest.raises(RequestFailed) as caught:
                await sandbox.resolve(f"{tmp_path}/{name}")
            assert caught.value.code == code
        assert await sandbox.read(path, limit_bytes=9, judged=judged) == b"one\n"
        assert await sandbox.replace(path, b"one", b"two", limit_bytes=9, judged=judged) == 1
        assert await sandbox.write(path, b"two\n", judged=f"{tmp_path}/d/new") == 4
        options: dict[str, Any] = {
            "ignore_case": False,
            "include": "",
            "max_matches": 5,
            "max_file_bytes": 9,
        }
        found = await sandbox.search(
            f"{tmp_path}/link/", "^two", judged=f"{tmp_path}/d", hidden=["/d/new$"], **options
        )
        assert found.rows == f"{path}:1: two\n".encode()
        assert (found.files, found.skipped_hidden) == (1, 1)

        (tmp_path / "d").rename(tmp_path / "was-d")
        (tmp_path / "d").symlink_to("was-d")
        requests = [
            sandbox.read(path, limit_bytes=9, judged=judged),
            sandbox.write(path, b"", judged=judged),
            sandbox.replace(path, b"two", b"2", limit_bytes=9, judged=judged),
            sandbox.search(path, "two", judged=judged, **options),
        ]
        for request in requests:
            with pytest.raises(RequestFailed, match="moved: a link took the place"):
                await request
    assert (tmp_path / "was-d/€").read_text() == "two\n"


async def test_the_largest_file_goes_there_and_back(real: RealHelper, tmp_path: Path) -> None:
    content = os.urandom(16 * 1024**2)
    async with talk(real) as sandbox:
        assert await sandbox.write(f"{tmp_path}/f", content) == len(content)
        assert await sandbox.read(f"{tmp_path}/f", limit_bytes=len(content)) == content


async def test_many_requests_at_once_are_all_answered(real: RealHelper, tmp_path: Path) -> None:
    async with talk(real) as sandbox:
        await asyncio.gather(*(sandbox.write(f"{tmp_path}/{n}", b"%d" % n) for n in range(200)))
        contents = await asyncio.gather(
            *(sandbox.read(f"{tmp_path}/{n}", limit_bytes=10) for n in range(200))
        )
    assert contents == [b"%d" % n for n in range(200)]


async def test_too_many_requests_at_once_are_refused_and_not_forgotten(
    real: RealHelper, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(b"x")
    async with talk(real) as sandbox:
        results = await asyncio.gather(
            *(sandbox.read(f"{tmp_path}/f", limit_bytes=1) for _ in range(1000)),
            return_exceptions=True,
        )
        refused = [result for result in results if isinstance(result, RequestFailed)]
        assert {failure.code for failure in refused} <= {"busy"}
        assert results.count(b"x") == 1000 - len(refused) >= 256
        assert await sandbox.read(f"{tmp_path}/f", limit_bytes=1) == b"x"


async def test_content_of_more_than_the_helper_holds_is_refused_and_not_kept(
    real: RealHelper, tmp_path: Path
) -> None:
    content = bytes(8 * 1024**2)
    async with talk(real) as sandbox:
        results = await asyncio.gather(
            *(sandbox.write(f"{tmp_path}/{n}", content) for n in range(24)), return_exceptions=True
        )
        refused = [result for result in results if isinstance(result, RequestFailed)]
        assert {failure.code for failure in refused} <= {"busy"}
        assert results.count(len(content)) == 24 - len(refused) >= 8
        assert await sandbox.write(f"{tmp_path}/again", content) == len(content)


async def test_a_host_that_does_not_read_does_not_fill_the_helper_s_memory(
    real: RealHelper, tmp_path: Path
) -> None:
    size = 16 * 1024**2
    (tmp_path / "big").write_bytes(bytes(size))
    fields = {"path": f"{tmp_path}/big", "judged": None, "limit_bytes": size}
    with real.dial() as lazy:
        lazy.sendall(MARKER + host_hello())
        await asyncio.to_thread(lazy.recv, 1000)
        for call in range(1, 41):
            lazy.sendall(wire.encode(Kind.READ, call, fields))
        await asyncio.sleep(0.5)  # as much as it will do in this time
        status = Path(f"/proc/{real.process.pid}/status").read_text()
        (peak_kb,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
        assert int(peak_kb) * 1024 < 14 * size
    async with talk(real) as sandbox:
        assert len(await sandbox.read(f"{tmp_path}/big", limit_bytes=size)) == size


async def test_a_program_that_can_not_be_started_is_a_refusal(real: RealHelper) -> None:
    async with talk(real) as sandbox:  # there is no supervisor outside of a container
        with pytest.raises(RequestFailed) as caught:
            await sandbox.run("echo hi", deadline_s=5)
        assert caught.value.code == "not_found"
        assert await sandbox.ping() < 5


@pytest.mark.parametrize(
    "pattern", ["(" * 10 + "x" * 100_000, "(" + "€" * 100_000], ids=["narrow", "wide"]
)
async def test_a_refusal_that_quotes_a_long_pattern_comes_in_part(
    real: RealHelper, tmp_path: Path, pattern: str
) -> None:
    async with talk(real) as sandbox:
        with pytest.raises(RequestFailed, match="error parsing regexp") as caught:
            await sandbox.search(
                str(tmp_path),
                pattern,
                ignore_case=False,
                include="",
                max_matches=1,
                max_file_bytes=1,
            )
        assert len(caught.value.detail) <= 8192
        assert await sandbox.ping() < 5


async def test_a_cancelled_search_stops_at_once(real: RealHelper, tmp_path: Path) -> None:
    for n in range(40):
        (tmp_path / f"f{n}").write_bytes(b"a" * 63 + b"\n" * 2**16)
    async with talk(real) as sandbox:
        searching = asyncio.create_task(
            sandbox.search(
                str(tmp_path),
                "(a|b)*c" + "[ab]?" * 300 + "d",
                ignore_case=True,
                include="",
                max_matches=10**6,
                max_file_bytes=2**30,
            )
        )
        while not sandbox._pending:
            await asyncio.sleep(0)
        started = asyncio.get_running_loop().time()
        searching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await searching
        assert asyncio.get_running_loop().time() - started < 2
        assert sandbox.lost is None
        assert not sandbox._pending


async def test_a_cancelled_request_that_still_waits_for_its_turn_does_nothing(
    real: RealHelper, tmp_path: Path
) -> None:
    async with talk(real) as sandbox:
        writes = [
            asyncio.create_task(sandbox.write(f"{tmp_path}/{n}", bytes(2**20))) for n in range(40)
        ]
        while len(sandbox._pending) < len(writes):
            await asyncio.sleep(0)
        for write in writes:
            write.cancel()
        await asyncio.gather(*writes, return_exceptions=True)
        assert not sandbox._pending
        # Whatever was written is whole.
        assert {path.stat().st_size for path in tmp_path.iterdir()} <= {2**20}
        assert await sandbox.ping() < 5


async def test_one_conversation_follows_another(real: RealHelper, tmp_path: Path) -> None:
    async with talk(real) as first:
        await first.write(f"{tmp_path}/f", b"first")
    for _ in range(3):
        async with talk(real) as sandbox:
            assert await sandbox.read(f"{tmp_path}/f", limit_bytes=10) == b"first"
    assert real.process.poll() is None


def host_hello() -> bytes:
    silent = dict.fromkeys(("uid", "gid", "shell", "python", "seccomp"))
    return wire.encode(
        Kind.HELLO,
        0,
        {
            "role": "host",
            "version": wire.PROTOCOL_VERSION,
            "expires_s": None,
            "idle_s": None,
            **silent,
        },
    )


async def test_a_host_that_dies_in_the_middle_of_a_frame_is_followed_by_another(
    real: RealHelper, tmp_path: Path
) -> None:
    (tmp_path / "big").write_bytes(bytes(2**20))
    big = {"path": f"{tmp_path}/big", "judged": None, "limit_bytes": 2**20}
    reads = wire.encode(Kind.READ, 1, big) + wire.encode(Kind.READ, 2, big)
    write = wire.encode(Kind.WRITE, 3, {"path": f"{tmp_path}/torn", "judged": None}, bytes(2**17))
    torn = write[:-1]
    with real.dial() as dying:
        await asyncio.to_thread(dying.sendall, MARKER + host_hello() + reads + torn)
        await asyncio.to_thread(dying.recv, 1000)  # and leaves the rest of the answers behind
    async with talk(real) as sandbox:
        assert await sandbox.read(f"{tmp_path}/big", limit_bytes=2**20) == bytes(2**20)
        assert not (tmp_path / "torn").exists()
    assert real.process.poll() is None


async def test_a_host_that_talks_nonsense_is_hung_up_on(real: RealHelper) -> None:
    with real.dial() as broken:
        broken.sendall(MARKER + host_hello() + b"\0\0\0\0")
        broken.settimeout(10)
        while await asyncio.to_thread(broken.recv, 4096):
            pass
    if real.how == "stdio":  # it has no other stream to hope for
        assert await asyncio.to_thread(real.process.wait, 10) == 0
    else:
        async with talk(real) as sandbox:
            assert await sandbox.ping() < 5


@pytest.mark.parametrize("clock", ["expires_s", "idle_s"])
async def test_the_helper_ends_by_its_own_clock(real: RealHelper, clock: str) -> None:
    async with real.sandbox(**{clock: 0.3}):
        assert await asyncio.to_thread(real.process.wait, 10) == 0


async def test_a_helper_that_is_spoken_to_does_not_count_as_idle(real: RealHelper) -> None:
    async with real.sandbox(idle_s=0.5) as sandbox:
        for _ in range(10):
            await asyncio.sleep(0.1)
            await sandbox.ping()
        assert real.process.poll() is None


async def test_a_new_greeting_gives_the_helper_more_time(real: RealHelper, tmp_path: Path) -> None:
    async with real.sandbox(expires_s=1.0):
        pass
    async with real.sandbox(expires_s=60.0) as sandbox:
        await asyncio.sleep(1.2)
        assert await sandbox.ping() < 5
