"""The daemon on a clock that is moved by hand: what runs when, and what is recorded of it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from runner import Settings
from runner.cron import Daemon, make_job, run_now
from runner.cron.daemon import LOOK_EVERY_S
from runner.errors import ConfigurationError, StoreError
from runner.model import Run, RunState, Status
from runner.testing import FakeEngine
from tests.cron.conftest import HOUR, NOON, AddJob, Gate, HandClock

pytestmark = pytest.mark.anyio


def runs(daemon: Daemon) -> list[tuple[float, str]]:
    """Each run's hour after noon, and its state; oldest first."""
    found = daemon.store.runs()
    return [((run.scheduled_at - NOON) / HOUR, str(run.state)) for run in reversed(found)]


def last(daemon: Daemon) -> Run:
    return daemon.store.runs(limit=1)[0]


async def look(daemon: Daemon) -> Run:
    """Look once, wait for what came of it, and return the last run."""
    daemon.look()
    await daemon.drain()
    return last(daemon)


def events(daemon: Daemon) -> list[str]:
    rows = daemon.store.audit_rows()
    return [row.event for row in rows if row.event.startswith("cron.")]


# Runs.


async def test_a_job_runs_when_its_time_comes_and_not_before(
    daemon: Daemon, clock: HandClock, add_job: AddJob, gate: Gate
) -> None:
    add_job()
    clock.move(HOUR - 1)
    daemon.look()
    await daemon.drain()
    assert runs(daemon) == []
    clock.move(1)
    run = await look(daemon)
    assert (run.job, run.state, run.scheduled_at) == ("hourly", RunState.OK, NOON + HOUR)
    assert (run.started_at, run.ended_at, run.attempts) == (NOON + HOUR, NOON + HOUR, 1)
    assert gate.ran == ["echo hi"]
    daemon.look()
    await daemon.drain()
    assert runs(daemon) == [(1, "ok")]
    assert events(daemon) == ["cron.added", "cron.started", "cron.ended"]


async def test_a_run_has_a_session_of_its_own_that_is_named_after_the_job(
    daemon: Daemon, clock: HandClock, add_job: AddJob
) -> None:
    add_job(calls=[{"tool": "bash", "arguments": {"command": f"echo {n}"}} for n in (1, 2)])
    clock.move(HOUR)
    run = await look(daemon)
    (session,) = daemon.store.sessions(include_ended=True)
    assert (session.id, session.title, session.state) == (run.session_id, "cron:hourly", "closed")
    calls = [record for _, record in daemon.store.calls(session_id=run.session_id)]
    assert [(call.output, call.status) for call in calls] == [
        ("1\n", Status.OK),
        ("2\n", Status.OK),
    ]
    assert daemon.store.verify() == daemon.store.head().seq


async def test_a_run_ends_with_the_first_call_that_fails(
    daemon: Daemon, clock: HandClock, add_job: AddJob, gate: Gate
) -> None:
    add_job(
        calls=[{"tool": "bash", "arguments": {"command": each}} for each in ("exit 3", "echo no")]
    )
    clock.move(HOUR)
    run = await look(daemon)
    assert run.state is RunState.FAILED
    assert run.reason == "call 1 of 2, bash, is failed: bash: exit status 3"
    assert gate.ran == ["exit 3"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"policy": "/nowhere/policy.yaml"}, "policy: /nowhere/policy.yaml"),
        ({"workspace": "/nowhere/at/all"}, "workspace: "),
        ({"image": "nosuch"}, "image_unusable: "),
        (
            {"calls": [{"tool": "read", "arguments": {"path": "/workspace/none"}}]},
            "call 1 of 1, read, is failed: ",
        ),
        ({"policy": "reviewer", "calls": "rm -r x"}, "is denied: "),
    ],
)
async def test_what_can_not_run_is_a_failed_run_that_says_why(
    daemon: Daemon, clock: HandClock, add_job: AddJob, options: dict[str, Any], reason: str
) -> None:
    add_job(**options)
    clock.move(HOUR)
    run = await look(daemon)
    assert run.state is RunState.FAILED
    assert reason in run.reason
    clock.move(HOUR)
    assert (await look(daemon)).scheduled_at == NOON + 2 * HOUR  # the next one is tried again


async def test_the_policy_is_loaded_for_each_run(
    daemon: Daemon, clock: HandClock, add_job: AddJob, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("mode: allow_all\n")
    add_job(policy=str(policy))
    clock.move(HOUR)
    assert (await look(daemon)).state is RunState.OK
    policy.write_text("mode: deny_all\n")
    clock.move(HOUR)
    assert "is denied" in (await look(daemon)).reason
    policy.unlink()
    clock.move(HOUR)
    assert (await look(daemon)).reason.startswith("policy: ")


async def test_a_run_that_takes_too_long_is_ended(
    daemon: Daemon, clock: HandClock, add_job: AddJob
) -> None:
    add_job(calls="wait", run_timeout_s=0.2)
    clock.move(HOUR)
    run = await look(daemon)
    assert (run.state, run.reason) == (RunState.FAILED, "the run was not over after 0.2 s")
    ((_, record),) = daemon.store.calls()
    assert record.status is Status.CANCELLED


async def test_a_call_has_the_job_s_time_limit(
    daemon: Daemon, clock: HandClock, add_job: AddJob
) -> None:
    add_job(calls="wait", timeout_s=0.1)
    clock.move(HOUR)
    assert "is timed_out" in (await look(daemon)).reason


# Times.


async def test_the_daemon_looks_again_when_the_next_time_comes_and_now_and_then(
    daemon: Daemon, clock: HandClock, add_job: AddJob
) -> None:
    assert daemon.look() == LOOK_EVERY_S
    add_job()
    assert daemon.look() == LOOK_EVERY_S
    clock.move(HOUR - 1.5)
    assert daemon.look() == 1.5


async def test_a_job_that_is_off_does_not_run_and_misses_nothing(
    daemon: Daemon, clock: HandClock, add_job: AddJob
) -> None:
    add_job()
    daemon.store.enable_job("hourly", False, at=NOON)
    clock.move(5 * HOUR + 60)
    daemon.look()
    daemon.store.enable_job("hourly", True, at=clock.now())
    daemon.look()
    assert runs(daemon) == []
    clock.move(HOUR)
    await look(daemon)
    assert runs(daemon) == [(6, "ok")]


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("skip", [(3, "skipped")]),
        ("run_once", [(3, "ok")]),
        ("run_all", [(1, "ok"), (2, "ok"), (3, "ok")]),
    ],
)
async def test_times_without_a_daemon_are_made_up_for_as_the_job_says(
    daemon: Daemon,
    clock: HandClock,
    add_job: AddJob,
    missed: str,
    expected: list[tuple[float, str]],
) -> None:
    add_job(missed=missed)
    clock.move(3.5 * HOUR)
    for _ in range(4):  # runs of one job follow each other
        await look(daemon)
    assert runs(daemon) == expected
    if missed != "run_all":
        assert last(daemon).missed == 2


@pytest.mark.parametrize(
    ("overlap", "second"), [("skip", RunState.SKIPPED), ("wait", RunState.DUE)]
)
async def test_a_time_that_comes_while_the_run_before_goes_on(
    daemon: Daemon, clock: HandClock, add_job: AddJob, overlap: str, second: RunState
) -> None:
    add_job(calls="wait", overlap=overlap, run_timeout_s=1.0)
    clock.move(HOUR)
    daemon.look()
    clock.move(HOUR)
    daemon.look()
    assert last(daemon).state is second
    if second is RunState.SKIPPED:
        assert last(daemon).reason == "the run before was not over"
        return
    await daemon.drain()
    daemon.look()
    assert last(daemon).state is RunState.RUNNING


async def test_not_more_runs_at_once_than_the_limit(
    settings: Settings, engine: FakeEngine, clock: HandClock
) -> None:
    async with Daemon(settings, engine=engine, clock=clock, max_runs=2) as daemon:
        for number in range(3):
            daemon.store.add_job(
                make_job(f"j{number}", "0 * * * *", "echo", policy="default", now=NOON)
            )
        clock.move(HOUR)
        daemon.look()
        assert sorted(run.state for run in daemon.store.runs()) == ["due", "running", "running"]
        await daemon.drain()
        daemon.look()
        await daemon.drain()
        assert [run.state for run in daemon.store.runs()] == [RunState.OK] * 3


async def test_a_clock_that_was_ahead_does_not_stop_a_job_nor_run_it_twice(
    daemon: Daemon, clock: HandClock, add_job: AddJob, gate: Gate
) -> None:
    add_job()
    clock.move(HOUR)
    await look(daemon)
    clock.move(1000 * HOUR)
    await look(daemon)
    assert len(gate.ran) == 2
    clock.move(-1000 * HOUR - 300)
    daemon.look()
    for _ in range(2):
        clock.move(300)
        daemon.look()
        await daemon.drain()
    assert len(gate.ran) == 2
    clock.move(HOUR)
    await look(daemon)
    assert gate.ran == ["echo hi"] * 3


# Several daemons.


async def test_two_daemons_run_each_time_once(
    daemon: Daemon, settings: Settings, engine: FakeEngine, clock: HandClock, add_job: AddJob,
    gate: Gate,
) -> None:  # fmt: skip
    add_job(calls="echo a")
    add_job("other", calls="echo b")
    async with Daemon(settings, engine=engine, clock=clock) as second:
        for _ in range(5):
            clock.move(HOUR)
            daemon.look()
            second.look()
            await daemon.drain()
            await second.drain()
    assert sorted(gate.ran) == ["echo a"] * 5 + ["echo b"] * 5
    assert len(daemon.store.runs()) == 10


async def test_who_read_the_job_before_another_planned_it_plans_nothing(
    daemon: Daemon, clock: HandClock, add_job: AddJob
) -> None:
    job = add_job()
    clock.move(HOUR)
    run = Run(id="r-x", job_id=job.id, job=job.name, scheduled_at=NOON + HOUR, state=RunState.DUE)
    daemon.look()
    assert not daemon.store.schedule_runs(job, [run], seen_to=clock.now())
    await daemon.drain()
    assert runs(daemon) == [(1, "ok")]


# Dead processes.


def dead_run(daemon: Daemon, job_id: str, *, owner: str = "boot:1:1:1") -> Run:
    """A run that a process of an earlier boot had taken."""
    run = Run(id="r-dead", job_id=job_id, job="hourly", scheduled_at=NOON, state=RunState.DUE)
    job = daemon.store.job("hourly")
    assert job is not None
    assert daemon.store.schedule_runs(job, [run], seen_to=NOON)
    started = daemon.store.start_run(run, owner=owner, at=NOON)
    assert started is not None
    return started


async def test_a_run_of_a_dead_process_is_lost_and_not_made_again(
    daemon: Daemon, clock: HandClock, add_job: AddJob, gate: Gate
) -> None:
    dead_run(daemon, add_job().id)
    run = await look(daemon)
    assert (run.state, run.reason) == (
        RunState.LOST,
        "the process that ran it ended before it did",
    )
    assert gate.ran == []
    assert events(daemon)[-1] == "cron.lost"
    clock.move(HOUR)
    assert (await look(daemon)).state is RunState.OK


async def test_a_run_of_a_dead_process_is_made_once_more_where_the_job_says_so(
    daemon: Daemon, add_job: AddJob, gate: Gate
) -> None:
    was = dead_run(daemon, add_job(lost="rerun").id)
    run = await look(daemon)
    assert (run.id, run.state, run.attempts) == (was.id, RunState.OK, 2)
    assert gate.ran == ["echo hi"]
    # Who ran it first and was not dead after all can't end it.
    assert daemon.store.end_run(was, RunState.FAILED, at=NOON) is None


async def test_a_run_that_ends_its_process_is_not_made_again_for_ever(
    daemon: Daemon, add_job: AddJob, gate: Gate
) -> None:
    run = dead_run(daemon, add_job(lost="rerun").id)
    for attempt in (2, 3):
        (again,) = daemon.store.lose_runs(lambda _: False, at=NOON)
        assert again.state is RunState.DUE
        started = daemon.store.start_run(run, owner="boot:1:1:1", at=NOON)
        assert started is not None
        assert started.attempts == attempt
    (lost,) = daemon.store.lose_runs(lambda _: False, at=NOON)
    assert lost.state is RunState.LOST


async def test_a_run_of_a_process_that_nobody_sees_is_lost_after_its_time_limit(
    daemon: Daemon, clock: HandClock, add_job: AddJob
) -> None:
    dead_run(daemon, add_job(run_timeout_s=600.0).id, owner="elsewhere")
    clock.move(600 + HOUR - 1)
    daemon.look()
    assert daemon.store.run("r-dead").state is RunState.RUNNING  # type: ignore[union-attr]
    clock.move(2)
    daemon.look()
    assert daemon.store.run("r-dead").state is RunState.LOST  # type: ignore[union-attr]


# Delivery.


async def test_a_result_is_delivered_and_that_is_recorded(
    daemon: Daemon, clock: HandClock, add_job: AddJob, tmp_path: Path
) -> None:
    path = tmp_path / "out.jsonl"
    add_job(deliver=f"file:{path}")
    clock.move(HOUR)
    run = await look(daemon)
    assert run.delivery == "done"
    (line,) = path.read_text().splitlines()
    assert json.loads(line)["calls"][0]["output"] == "hi\n"
    assert events(daemon)[-1] == "cron.delivered"


async def test_a_delivery_that_fails_does_not_fail_the_run(
    daemon: Daemon, clock: HandClock, add_job: AddJob, tmp_path: Path
) -> None:
    add_job(deliver=f"file:{tmp_path}/missing/out")
    clock.move(HOUR)
    run = await look(daemon)
    assert run.state is RunState.OK
    assert run.delivery.startswith("failed: FileNotFoundError")


@pytest.mark.parametrize("released", [True, False])
async def test_a_delivery_that_was_interrupted_is_made_by_the_next_daemon(
    daemon: Daemon, add_job: AddJob, tmp_path: Path, released: bool
) -> None:
    path = tmp_path / "out.jsonl"
    run = dead_run(daemon, add_job(deliver=f"file:{path}").id)
    ended = daemon.store.end_run(run, RunState.OK, at=NOON, delivery="pending")
    assert ended is not None
    if released:
        daemon.store.release_delivery(ended)
    assert (await look(daemon)).delivery == "done"
    assert json.loads(path.read_text())["run"] == "r-dead"


async def test_a_delivery_under_way_is_left_to_the_next_daemon_at_the_end(
    settings: Settings, engine: FakeEngine, clock: HandClock, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    delivering = asyncio.Event()

    async def hang(*_: object) -> str:
        delivering.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with Daemon(settings, engine=engine, clock=clock) as daemon:
        job = make_job(
            "a", "0 * * * *", "echo hi", policy="default", now=NOON, deliver=f"file:{tmp_path}/out"
        )
        daemon.store.add_job(job)
        clock.move(HOUR)
        with monkeypatch.context() as patched:
            patched.setattr("runner.cron.daemon.deliver", hang)
            daemon.look()
            await delivering.wait()
    # As an HTTP service does that is opened anew in the same process, which lives on.
    async with Daemon(settings, engine=engine, clock=clock) as daemon:
        assert (await look(daemon)).delivery == "done"
    assert (tmp_path / "out").exists()


# Changes while it runs, and the end.


async def test_runs_that_wait_go_with_their_job(
    daemon: Daemon, clock: HandClock, add_job: AddJob
) -> None:
    job = add_job(missed="run_all")
    clock.move(2 * HOUR)
    daemon.look()  # takes the first of two
    daemon.store.remove_job("hourly", at=clock.now())
    await daemon.drain()
    daemon.look()
    assert runs(daemon) == [(1, "ok"), (2, "skipped")]
    assert last(daemon).reason == "its job was removed"
    assert daemon.store.runs("hourly")[0].job_id == job.id
    assert daemon.store.jobs() == []


async def test_a_job_runs_until_the_daemon_is_cancelled(
    daemon: Daemon, clock: HandClock, add_job: AddJob, gate: Gate
) -> None:
    work = asyncio.create_task(daemon.run_until_cancelled())
    await clock.waiting.wait()
    add_job()
    for hour in (1, 2):
        clock.move(HOUR)
        async with asyncio.timeout(10):
            while runs(daemon) != [(n, "ok") for n in range(1, hour + 1)]:
                await asyncio.sleep(0.01)
    assert gate.ran == ["echo hi"] * 2
    assert max(clock.waits) <= LOOK_EVERY_S
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


async def test_trouble_with_the_records_is_tried_again(
    daemon: Daemon, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    def fail() -> float:
        asked.set()
        raise StoreError("the disk is full")

    monkeypatch.setattr(daemon, "look", fail)
    work = asyncio.create_task(daemon.run_until_cancelled())
    for _ in range(2):
        await asked.wait()
        asked.clear()
        await clock.waiting.wait()
        clock.move(LOOK_EVERY_S)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


@pytest.mark.parametrize(("grace_s", "state"), [(10.0, RunState.OK), (0.0, RunState.FAILED)])
async def test_at_the_end_runs_get_their_grace_and_are_then_interrupted(
    settings: Settings,
    clock: HandClock,
    gate: Gate,
    grace_s: float,
    state: RunState,
) -> None:
    engine = FakeEngine(gate)
    async with Daemon(settings, engine=engine, clock=clock, grace_s=grace_s) as daemon:
        calls = "sleep 0.3" if grace_s else "wait"
        daemon.store.add_job(make_job("a", "0 * * * *", calls, policy="default", now=NOON))
        clock.move(HOUR)
        work = asyncio.create_task(daemon.run_until_cancelled())
        async with asyncio.timeout(10):
            while not gate.ran:
                await asyncio.sleep(0.01)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        (run,) = daemon.store.runs()
        assert run.state is state
        if state is RunState.FAILED:
            assert run.reason.startswith("it was interrupted")
        assert await engine.containers({}) == []


# By hand.


async def test_a_job_can_be_run_now_even_if_it_is_off(
    daemon: Daemon, settings: Settings, engine: FakeEngine, add_job: AddJob
) -> None:
    job = add_job()
    job = daemon.store.enable_job("hourly", False, at=NOON)
    run = await run_now(daemon.store, job, settings, engine=engine)
    assert (run.state, run.manual, run.attempts) == (RunState.OK, True, 1)
    assert events(daemon) == ["cron.added", "cron.disabled", "cron.started", "cron.ended"]


async def test_a_job_is_not_run_by_hand_beside_its_own_run(
    daemon: Daemon, settings: Settings, engine: FakeEngine, clock: HandClock, add_job: AddJob
) -> None:
    job = add_job(calls="wait")
    clock.move(HOUR)
    daemon.look()
    with pytest.raises(ConfigurationError, match="is running"):
        await run_now(daemon.store, job, settings, engine=engine)
