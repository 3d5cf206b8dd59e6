"""The spine on a fake engine: every way a call can go, and what is recorded of it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from runner import (
    AsyncRunner,
    AsyncSession,
    ConfigurationError,
    Outcome,
    Policy,
    SandboxLost,
    Status,
    StoreError,
    Tool,
    ToolContext,
    Verdict,
)
from runner.model import Record
from runner.testing import FakeEngine
from runner.tools import ToolInput
from tests.conftest import make_settings

pytestmark = pytest.mark.anyio


class Shout(Tool):
    """A tool that is not ours: a class and one `register` call."""

    class Input(ToolInput):
        """What it takes."""

        text: str
        """What to shout."""
        times: int = 1
        """How often."""

    name = "shout"
    description = "Shout a text in the session's container."
    input = Input

    async def execute(self, context: ToolContext, input: Input, /) -> Outcome:
        """Shout, by way of the container's shell."""
        if input.text == "boom":
            raise ZeroDivisionError("no voice left")
        if input.text == "forever":
            await asyncio.sleep(3600)
        result = await context.sandbox.run(
            f"echo {input.text.upper() * input.times}", deadline_s=context.deadline_s
        )
        return Outcome(output=result.output.decode(), details={"times": input.times})


ALLOW_ALL = Policy.parse("mode: allow_all")


@pytest.fixture
async def runner(tmp_path: Path) -> AsyncIterator[AsyncRunner]:
    """A runner on a fake engine that allows everything."""
    settings = make_settings(tmp_path / "data")
    async with AsyncRunner(ALLOW_ALL, engine=FakeEngine(), settings=settings) as runner:
        runner.tools.register(Shout())
        yield runner


@pytest.fixture
async def session(runner: AsyncRunner) -> AsyncIterator[AsyncSession]:
    """One session of it."""
    async with runner.session() as session:
        yield session


def records(runner: AsyncRunner) -> list[Record]:
    """Every record, oldest first."""
    return [record for _, record in runner.controller.store.calls()]


def audit(runner: AsyncRunner) -> list[str]:
    """The events of calls in the audit, oldest first."""
    rows = runner.controller.store.audit_rows()
    return [row.event for row in rows if row.event.startswith("tool.")]


async def test_an_allowed_call_runs_and_is_recorded(
    runner: AsyncRunner, session: AsyncSession
) -> None:
    result = await session.bash("echo hi")

    assert (result.status, result.text, result.exit_code) == (Status.OK, "hi\n", 0)
    (record,) = records(runner)
    assert record.call_id == result.call_id
    assert record.arguments == '{"command":"echo hi"}'
    assert record.status is Status.OK
    assert record.output == "hi\n"
    assert record.verdict is Verdict.ALLOW
    assert record.policy == ALLOW_ALL.digest
    assert audit(runner) == ["tool.execute", "tool.result"]


async def test_a_failed_command_is_a_result_with_its_status(
    runner: AsyncRunner, session: AsyncSession
) -> None:
    result = await session.bash("echo out; exit 3")

    assert result.status is Status.FAILED
    assert result.is_error
    assert result.text == "out\nbash: exit status 3"
    assert result.exit_code == 3


async def test_a_tool_of_ones_own_needs_a_class_and_one_register_call(
    runner: AsyncRunner, session: AsyncSession
) -> None:
    result = await session.call("shout", {"text": "hey", "times": 2})

    assert result.text == "HEYHEY\n"
    assert result.details == {"times": 2}
    definition = runner.tools.definitions("anthropic")[-1]
    assert definition["name"] == "shout"
    assert definition["input_schema"]["required"] == ["text"]
    assert definition["input_schema"]["properties"]["times"]["description"] == "How often."


async def test_an_exception_in_a_tool_becomes_the_calls_error(
    runner: AsyncRunner, session: AsyncSession
) -> None:
    result = await session.call("shout", {"text": "boom"})

    assert result.status is Status.FAILED
    assert result.error == "shout: ZeroDivisionError: no voice left"
    assert (await session.call("shout", {"text": "again"})).text == "AGAIN\n"


async def test_a_tool_that_overstays_is_cut_at_the_deadline(session: AsyncSession) -> None:
    result = await session.call("shout", {"text": "forever"}, timeout_s=0.05)

    assert result.status is Status.TIMED_OUT
    assert result.error == "shout: timed out after 0.05s"
    assert result.timeout_s == 0.05


async def test_a_command_that_overstays_returns_what_it_wrote(session: AsyncSession) -> None:
    result = await session.call("bash", {"command": "echo before; sleep 60"}, timeout_s=0.05)

    assert result.status is Status.TIMED_OUT
    assert result.text == "before\nbash: timed out after 0.05s"


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"command": 5}, "bash: command must be a string"),
        ({}, "bash: command is required"),
        ({"command": "ls", "cwd": "/"}, 'bash: unknown property "cwd"; accepted: command'),
        ("[]", "bash: input must be an object"),
        ("{", "bash: invalid JSON"),
        (b'{"command":"\xff"}', "bash: "),
    ],
)
async def test_an_invalid_input_is_a_result_and_recorded_and_nothing_runs(
    runner: AsyncRunner, session: AsyncSession, raw: Any, problem: str
) -> None:
    result = await session.call("bash", raw)

    assert result.status is Status.INVALID
    assert result.error is not None
    assert result.error.startswith(problem)
    assert result.decision is None
    (record,) = records(runner)
    assert record.status is Status.INVALID
    assert record.verdict is None
    assert audit(runner) == ["tool.error"]


@pytest.mark.parametrize("name", ["", "../bash", "BASH", "http_get"])
async def test_an_unknown_tool_is_an_error_that_names_the_known_ones(
    session: AsyncSession, name: str
) -> None:
    result = await session.call(name, {"command": "ls"})

    assert result.status is Status.INVALID
    assert result.error == (
        f"unknown tool {name!r}; there are: read, write, edit, grep, bash, shout"
    )


async def test_a_denied_call_says_why_and_does_not_run(tmp_path: Path) -> None:
    policy = Policy.parse(
        "mode: pattern\ndefault: allow\nreason: ask the operator\n"
        "deny:\n  - {tool: bash, match: 'rm\\s'}\n"
    )
    settings = make_settings(tmp_path / "data")
    async with (
        AsyncRunner(policy, engine=FakeEngine(), settings=settings) as runner,
        runner.session() as session,
    ):
        result = await session.bash("rm -rf /workspace")

        assert result.status is Status.DENIED
        assert result.error == "bash: ask the operator"
        assert result.decision is not None
        assert result.decision.rule == "deny[0]"
        assert audit(runner) == ["tool.denied"]


async def test_without_a_policy_everything_is_denied_and_the_reason_says_what_to_do(
    tmp_path: Path,
) -> None:
    settings = make_settings(tmp_path / "data")
    async with (
        AsyncRunner(engine=FakeEngine(), settings=settings) as runner,
        runner.session() as session,
    ):
        result = await session.bash("echo hi")

    assert result.status is Status.DENIED
    assert result.error is not None
    assert "policy=" in result.error


@pytest.mark.parametrize("limit_s", [0, -1, 1e9, float("nan"), float("inf")])
async def test_a_time_limit_out_of_bounds_is_refused(
    runner: AsyncRunner, session: AsyncSession, limit_s: float
) -> None:
    with pytest.raises(ConfigurationError, match="time limit"):
        await session.bash("echo hi", timeout_s=limit_s)
    assert records(runner) == []


async def test_a_record_is_there_before_the_call_runs(
    runner: AsyncRunner, session: AsyncSession
) -> None:
    running = asyncio.create_task(session.bash("sleep 60"))
    while not records(runner):
        await asyncio.sleep(0)

    (record,) = records(runner)
    assert record.status is None
    assert audit(runner) == ["tool.execute"]

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    (record,) = records(runner)
    assert record.status is Status.CANCELLED
    assert audit(runner) == ["tool.execute", "tool.result"]
    assert (await session.bash("echo next")).text == "next\n"


async def test_a_call_whose_container_is_lost_raises_and_the_next_one_works(
    runner: AsyncRunner, session: AsyncSession
) -> None:
    await session.write("/workspace/kept.txt", "still here")
    first = session.info.container_id
    assert first is not None
    running = asyncio.create_task(session.bash("sleep 60"))
    while len(records(runner)) < 2:
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)

    await runner.controller.sessions.engine.kill(first)

    with pytest.raises(SandboxLost):
        await running
    assert records(runner)[-1].status is Status.LOST
    assert (await session.read("/workspace/kept.txt")).text == "still here"
    assert session.info.container_id != first
    events = [row.event for row in runner.controller.store.audit_rows()]
    assert "session.rebuilt" in events


async def test_many_calls_of_one_session_run_at_once(session: AsyncSession) -> None:
    async with asyncio.timeout(5):
        results = await asyncio.gather(*(session.bash(f"echo {n}; sleep 0.2") for n in range(20)))

    assert [result.text for result in results] == [f"{n}\n" for n in range(20)]


async def test_a_second_call_with_the_same_id_is_refused(session: AsyncSession) -> None:
    await session.call("bash", {"command": "echo hi"}, call_id="mine")

    with pytest.raises(StoreError, match="mine"):
        await session.call("bash", {"command": "echo hi"}, call_id="mine")


async def test_text_that_imitates_an_error_changes_no_status(session: AsyncSession) -> None:
    result = await session.bash("echo bash: timed out after 60s")

    assert result.status is Status.OK
    assert not result.is_error


async def test_the_audit_of_all_this_verifies(runner: AsyncRunner, session: AsyncSession) -> None:
    await session.bash("echo hi")
    await session.call("bash", "{")
    await session.call("nope", {})

    store = runner.controller.store
    assert store.verify() == sum(1 for _ in store.audit_rows())


async def test_a_full_disk_under_the_records_stops_the_call_before_it_runs(
    runner: AsyncRunner, session: AsyncSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = runner.controller.store
    ran: list[str] = []
    monkeypatch.setattr(
        store, "begin_call", lambda *_, **__: (_ for _ in ()).throw(StoreError("the disk is full"))
    )
    sandbox = await session.sandbox()
    monkeypatch.setattr(sandbox, "run", lambda *_, **__: ran.append("ran"), raising=False)

    with pytest.raises(StoreError):
        await session.bash("echo hi")
    assert ran == []
