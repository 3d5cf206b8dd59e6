"""Protected files under `bash`: told with the call's end, or with the next.

First what the host takes from a helper for true, then real containers over both carriers. What
a look finds is in `tests/helper/test_watch.py`.
"""

import asyncio
import json
import os
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner import AsyncRunner, Output, Runner, Session, Status, ToolResult
from runner.answers import Touched
from runner.cli.calls import _tell_protected
from runner.cli.terminal import Terminal
from runner.errors import RemoteProtocolError, SandboxLost
from runner.helper import wire
from runner.helper.wire import Kind
from runner.model import Outcome
from runner.sandbox import Sandbox
from runner.testing import FakeHelper, FakeRun, memory_carriers
from runner.tools import BashTool, Registry, ToolContext
from runner.tools.bash import BashInput
from tests.conftest import make_settings
from tests.host import wait_until
from tests.puppet import RAN, Puppet, answer_well, puppet_pair

PATTERNS = (
    r"(?s:\A(?:/[^/]+)*/\.git/config\z)",
    r"(?s:\A(?:/[^/]+)*/\.git/hooks(?:/.*)?\z)",
    r"(?s:\A(?:/[^/]+)*/\.envrc\z)",
)
"""As a policy makes them."""
MARKER = bytes(range(100, 116))


# The host's end.


async def open_sandbox(carrier: Any) -> Sandbox:
    async def nothing_known() -> SandboxLost | None:
        return None

    return await Sandbox.open(
        carrier, MARKER, diagnose=nothing_known, expires_s=None, idle_s=None, timeout_s=10.0
    )


@asynccontextmanager
async def puppet_sandbox(**ran: Any) -> AsyncIterator[tuple[Sandbox, Puppet]]:
    """A helper that says this of every run."""

    def act(puppet: Puppet, request: wire.Message) -> None:
        if request.kind == Kind.RUN:
            puppet.send(Kind.RAN, request.call, {**RAN, **ran})
        else:
            answer_well(puppet, request)

    carrier, puppet = puppet_pair(act)
    sandbox = await open_sandbox(carrier)
    try:
        yield sandbox, puppet
    finally:
        sandbox.close()


def said(*touched: Any, **changes: Any) -> dict[str, Any]:
    fields = {"touched": list(touched), "touched_count": len(touched), "touched_complete": True}
    return fields | changes


ENVRC = ["/workspace/.envrc", "created"]


@pytest.mark.anyio
async def test_a_run_tells_what_it_was_told() -> None:
    said_so = said(ENVRC, ["/workspace/a\n\ufffd", "removed"], touched_count=9)
    async with puppet_sandbox(**said_so) as (sandbox, puppet):
        result = await sandbox.run("make", deadline_s=5, watch=PATTERNS)
        assert result.touched == Touched(
            (("/workspace/.envrc", "created"), ("/workspace/a\n\ufffd", "removed")), 9
        )
        asked = (await puppet.asked(Kind.WATCH)).fields
        assert asked == {"root": "/workspace", "patterns": list(PATTERNS)}
        assert (await puppet.asked(Kind.RUN)).fields["watch"] is True


@pytest.mark.anyio
async def test_the_patterns_are_sent_once_and_again_when_they_are_others() -> None:
    async with puppet_sandbox(**said()) as (sandbox, puppet):
        await asyncio.gather(*(sandbox.run("make", deadline_s=5, watch=PATTERNS) for _ in range(3)))
        await sandbox.run("make", deadline_s=5, watch=PATTERNS[:1])
        kinds = [message.kind for message in puppet.received]
    assert (kinds.count(Kind.WATCH), kinds.count(Kind.RUN)) == (2, 4)
    assert kinds.index(Kind.WATCH) < kinds.index(Kind.RUN)


@pytest.mark.anyio
async def test_nobody_watches_who_was_not_asked() -> None:
    async with puppet_sandbox() as (sandbox, puppet):
        result = await sandbox.run("make", deadline_s=5)
        assert result.touched == Touched()
        assert [message.kind for message in puppet.received] == [Kind.HELLO, Kind.RUN]


@pytest.mark.anyio
async def test_a_helper_that_can_not_watch_runs_the_command_all_the_same() -> None:
    def act(puppet: Puppet, request: wire.Message) -> None:
        if request.kind == Kind.WATCH:
            failure = {"code": "out_of_memory", "detail": "cannot allocate memory"}
            puppet.send(Kind.FAILED, request.call, failure)
        else:
            puppet.send(Kind.RAN, request.call, {**RAN, **said(touched_complete=True)})

    carrier, theirs = memory_carriers()
    puppet = Puppet(theirs, act, watches=False)
    sandbox = await open_sandbox(carrier)
    for times in (1, 2):  # it is asked again each time
        result = await sandbox.run("make", deadline_s=5, watch=PATTERNS)
        assert (result.exit_code, result.touched) == (0, Touched(complete=False))
        await puppet.asked(Kind.WATCH, times=times)
    sandbox.close()


@pytest.mark.anyio
async def test_what_a_cancelled_run_did_is_told_with_the_next_that_asks() -> None:
    def act(puppet: Puppet, request: wire.Message) -> None:
        ran = {**RAN, **(said(ENVRC) if request.call in watched else {})}
        if request.kind == Kind.CANCEL:
            puppet.send(Kind.RAN, request.call, {**ran, "exit_code": None, "ended": "cancelled"})
        elif request.kind == Kind.RUN:
            if request.fields["watch"]:
                watched.add(request.call)
            if request.fields["shell"] != "forever":
                puppet.send(Kind.RAN, request.call, {**ran, **said(["/workspace/x", "removed"])})

    watched: set[int] = set()
    carrier, puppet = puppet_pair(act)
    sandbox = await open_sandbox(carrier)
    for _ in range(2):
        running = asyncio.ensure_future(sandbox.run("forever", deadline_s=60, watch=PATTERNS))
        await puppet.asked(Kind.RUN, times=len(watched) + 1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    result = await sandbox.run("make", deadline_s=60, watch=PATTERNS)
    assert [path.rpartition("/")[2] for path, _ in result.touched.files] == [
        ".envrc",
        ".envrc",
        "x",
    ]
    assert (result.touched.count, result.touched.complete) == (3, True)
    result = await sandbox.run("make", deadline_s=60, watch=PATTERNS)
    assert result.touched == Touched((("/workspace/x", "removed"),), 1)
    sandbox.close()


OFFENCES: dict[str, dict[str, Any]] = {
    "relative": said([".envrc", "created"]),
    "empty": said(["", "created"]),
    "outside of the workspace": said(["/etc/passwd", "created"]),
    "beside the workspace": said(["/workspaces/.envrc", "created"]),
    "the workspace": said(["/workspace", "created"]),
    "two dots": said(["/workspace/../etc/passwd", "created"]),
    "an empty name": said(["/workspace//.envrc", "created"]),
    "a NUL": said(["/workspace/\0", "created"]),
    "longer than a path": said(["/workspace/" + "x" * wire.MAX_PATH_BYTES, "created"]),
    "no text": said([5, "created"]),
    "no pair": said(["/workspace/.envrc"]),
    "three": said([*ENVRC, "created"]),
    "an object": said({"path": "created"}),
    "an unknown change": said(["/workspace/.envrc", "eaten"]),
    "an unhashable change": said(["/workspace/.envrc", []]),
    "too many": said(*[ENVRC] * (wire.MAX_TOUCHED + 1)),
    "no list": said(touched=None),
    "fewer than it names": said(ENVRC, touched_count=0),
    "no number": said(ENVRC, touched_count="1"),
    "below nothing": said(touched_count=-1),
    "does not say whether that is all": said(touched_complete=None),
    "says so in words": said(touched_complete="yes"),
}


def raw_ran(call: int, fields: dict[str, Any]) -> bytes:
    """A frame as no encoder of ours would make it."""
    body = json.dumps(fields).encode()
    head = struct.pack("!BII", Kind.RAN, call, len(body))
    return struct.pack("!I", len(head) + len(body)) + head + body


@pytest.mark.anyio
@pytest.mark.parametrize("ran", OFFENCES.values(), ids=OFFENCES.keys())
async def test_what_can_not_be_true_of_protected_files_is_an_offence(ran: dict[str, Any]) -> None:
    def act(puppet: Puppet, request: wire.Message) -> None:
        if request.kind == Kind.RUN:
            puppet.say(raw_ran(request.call, {**RAN, **ran}))
        else:
            answer_well(puppet, request)

    carrier, _ = puppet_pair(act)
    sandbox = await open_sandbox(carrier)
    with pytest.raises(RemoteProtocolError):
        await sandbox.run("make", deadline_s=5, watch=PATTERNS)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "ran",
    [said(), said(ENVRC, touched_complete=None), said(touched_count=1, touched_complete=None)],
)
async def test_an_answer_to_what_nobody_asked_is_an_offence(ran: dict[str, Any]) -> None:
    async with puppet_sandbox(**ran) as (sandbox, _):
        with pytest.raises(RemoteProtocolError, match=r"watch|protected"):
            await sandbox.run("make", deadline_s=5)


@pytest.mark.anyio
async def test_the_fake_helper_watches_the_real_directory(tmp_path: Path) -> None:
    def shell(line: str) -> FakeRun:
        (tmp_path / line).write_text("x")
        return FakeRun()

    ours, theirs = memory_carriers()
    FakeHelper(theirs, shell, tmp_path, 1000, 1000)
    sandbox = await open_sandbox(ours)
    (tmp_path / "before").mkdir()
    (tmp_path / "before/.envrc").touch()
    assert (await sandbox.run("harmless", deadline_s=5, watch=PATTERNS)).touched == Touched()
    told = (await sandbox.run(".envrc", deadline_s=5, watch=PATTERNS)).touched
    assert told == Touched((("/workspace/.envrc", "created"),), 1)
    unasked = await sandbox.run("before/.envrc", deadline_s=5)
    assert unasked.touched == Touched()
    told = (await sandbox.run("harmless", deadline_s=5, watch=PATTERNS)).touched
    assert told == Touched((("/workspace/before/.envrc", "changed"),), 1)
    sandbox.close()


# The command line.


@pytest.mark.parametrize(
    ("details", "line"),
    [
        ({}, ""),
        ({"protected_incomplete": True}, ""),
        (
            {"protected": [{"path": "/workspace/.envrc", "change": "created"}]},
            "runner: warning: protected files were touched: /workspace/.envrc created\n",
        ),
        (
            {
                "protected": [{"path": f"/workspace/{n}\n\x1b", "change": "removed"} for n in "abc"]
                * 2,
                "protected_count": 60,
            },
            "runner: warning: protected files were touched: "
            + ", ".join(f"/workspace/{n}\\n\\x1b removed" for n in "abcab")
            + ", 55 more\n",
        ),
    ],
)
def test_the_command_line_names_protected_files_in_one_line(
    details: dict[str, Any], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _tell_protected(Terminal(), ToolResult("c-1", "bash", Status.OK, details=details))
    assert capsys.readouterr().err == line


# Real containers.


class WatchingBash(BashTool):
    """`bash`, as a policy with protected files has it called."""

    async def execute(self, context: ToolContext, input: BashInput, /) -> Outcome:
        return await super().execute(replace(context, watch=PATTERNS), input)


@pytest.fixture(scope="module")
def watching_runner(docker_daemon: None, shared_data_dir: Path) -> Iterator[Runner]:
    tools = Registry()
    tools.register(WatchingBash())
    with Runner("default", tools=tools, settings=make_settings(shared_data_dir)) as runner:
        yield runner


@pytest.fixture
def here(watching_runner: Runner, carrier: str) -> Iterator[Session]:
    """A session on a repository, of which nothing is news."""
    with watching_runner.session(carrier=carrier) as session:
        made = session.bash("mkdir -p .git/hooks src && echo x > .git/config")
        assert touched(made) == {"/workspace/.git/config": "created"}
        yield session


def touched(result: ToolResult) -> dict[str, str]:
    assert "protected_incomplete" not in result.details
    return {file["path"]: file["change"] for file in result.details.get("protected", ())}


@pytest.mark.docker
def test_what_a_command_did_to_protected_files_is_told_with_its_end(here: Session) -> None:
    assert here.bash("echo hi; echo x > src/main.py").details == {}
    result = here.bash(
        "echo 'rm -rf ~' > .git/hooks/post-checkout; chmod +x .git/hooks/post-checkout;"
        " echo '[core]' >> .git/config; mkdir -p vendor/lib; echo x > vendor/lib/.ENVRC; exit 3"
    )
    assert (result.exit_code, result.output) == (3, "")
    assert touched(result) == {
        "/workspace/.git/hooks/post-checkout": "created",
        "/workspace/.git/config": "changed",
        "/workspace/vendor/lib/.ENVRC": "created",
    }
    assert here.bash("rm -r vendor; true").details == {
        "protected": [{"path": "/workspace/vendor/lib/.ENVRC", "change": "removed"}]
    }
    assert here.bash("cat .git/config").details == {}


@pytest.mark.docker
def test_a_command_that_is_killed_is_told_of_too(here: Session) -> None:
    result = here.bash("echo x > .envrc; sleep 30", timeout_s=1)
    assert result.status == "timed_out"
    assert touched(result) == {"/workspace/.envrc": "created"}
    assert touched(here.bash("echo x > src/.envrc; kill -9 $$")) == {
        "/workspace/src/.envrc": "created"
    }


@pytest.mark.docker
def test_what_a_cancelled_call_did_is_told_with_the_next(here: Session) -> None:
    events = here.stream("bash", {"command": "echo x > .envrc; echo made; sleep 30"})
    assert next(events) == Output("made\n")
    events.close()  # type: ignore[attr-defined]
    assert touched(here.bash("true")) == {"/workspace/.envrc": "created"}


@pytest.mark.docker
def test_what_a_process_in_the_background_did_is_told_with_the_next_call(here: Session) -> None:
    started = here.bash("(until [ -e go ]; do sleep 0.01; done; echo x > .envrc; mv go gone) &")
    assert started.background
    assert touched(started) == {}
    workspace = Path(here.info.workspace)
    (workspace / "go").touch()
    wait_until((workspace / "gone").exists)
    assert touched(here.bash("true")) == {"/workspace/.envrc": "created"}


@pytest.mark.docker
def test_what_can_not_be_read_is_said_to_be_missing(here: Session) -> None:
    assert here.bash("mkdir closed; chmod 300 closed").details == {"protected_incomplete": True}
    assert here.bash("echo x > closed/.envrc").details == {"protected_incomplete": True}
    assert touched(here.bash("chmod 700 closed")) == {"/workspace/closed/.envrc": "created"}


@pytest.mark.docker
@pytest.mark.skipif(os.getuid() != 0, reason="only root makes directories of somebody else's")
def test_what_calls_can_not_enter_is_not_missing(here: Session) -> None:
    (Path(here.info.workspace) / "database").mkdir(mode=0o700)
    assert here.bash("ls database").exit_code != 0
    assert here.bash("true").details == {}


@pytest.mark.docker
def test_a_session_that_is_taken_over_tells_what_happened_in_between(
    watching_runner: Runner, carrier: str
) -> None:
    session = watching_runner.session(carrier=carrier, kept=True)
    session_id = session.id
    try:
        assert touched(session.bash("mkdir src")) == {}
        session.bash("(until [ -e go ]; do sleep 0.01; done; echo x > src/.envrc; mv go gone) &")
        workspace = Path(session.info.workspace)
        session.close()
        (workspace / "go").touch()
        wait_until((workspace / "gone").exists)
        with watching_runner.attach(session_id) as again:
            assert touched(again.bash("true")) == {"/workspace/src/.envrc": "created"}
    finally:
        watching_runner.close_session(session_id)


@pytest.mark.docker
@pytest.mark.anyio
async def test_other_patterns_lose_nothing_and_a_helper_that_was_never_told_says_so(
    shared_data_dir: Path, carrier: str
) -> None:
    settings = make_settings(shared_data_dir)
    async with (
        AsyncRunner("default", settings=settings) as runner,
        runner.session(carrier=carrier) as session,
    ):
        sandbox = await session.sandbox()
        sandbox._watched = PATTERNS  # a host that has forgotten to say so
        result = await sandbox.run("echo hi", deadline_s=20, watch=PATTERNS)
        assert (result.output, result.touched) == (b"hi\n", Touched(complete=False))
        await sandbox.run("echo x > .envrc", deadline_s=20, watch=PATTERNS[:2])
        await sandbox.run("mkdir -p .git/hooks; echo x > .git/config", deadline_s=20)
        result = await sandbox.run("echo x > src", deadline_s=20, watch=PATTERNS)
        assert result.touched == Touched((("/workspace/.git/config", "created"),), 1)
        result = await sandbox.run("rm .envrc", deadline_s=20, watch=PATTERNS)
        assert result.touched == Touched((("/workspace/.envrc", "removed"),), 1)
        # Patterns that are none leave those in force that were.
        await sandbox.run("echo x > .envrc", deadline_s=20)
        result = await sandbox.run("true", deadline_s=20, watch=("(",))
        assert result.touched == Touched((("/workspace/.envrc", "created"),), 1, complete=False)
        await sandbox.run("rm .envrc", deadline_s=20)
        result = await sandbox.run("true", deadline_s=20, watch=PATTERNS)
        assert result.touched == Touched((("/workspace/.envrc", "removed"),), 1)
