"""Jobs and runs in the store: what several processes agree on, and what the audit says."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from runner.errors import ConfigurationError, StoreError
from runner.model import Job, Run, RunState
from runner.store import Store
from runner.store.jobs import MAX_WAITING
from tests.test_queries import job
from tests.test_store import NOW


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path) as store:
        yield store


def run(number: int, owner_of: Job, **changes: Any) -> Run:
    return replace(
        Run(f"r-{number}", owner_of.id, owner_of.name, NOW + number, RunState.DUE), **changes
    )


def schedule(store: Store, name: str, *runs: Run) -> bool:
    found = store.job(name)
    assert found is not None
    return store.schedule_runs(found, runs, seen_to=found.seen_to + 1)


def events(store: Store) -> list[str]:
    return [row.event for row in store.audit_rows()]


@pytest.mark.parametrize(("table", "noun"), [("jobs", Job), ("runs", Run)])
def test_every_field_has_a_column(store: Store, path: Path, table: str, noun: type) -> None:
    with closing(sqlite3.connect(path)) as db:
        columns = {row[1] for row in db.execute(f"PRAGMA table_info({table})")} - {"seq"}
    assert columns == {field.name for field in fields(noun)}


def test_a_job_is_read_back_as_it_was_added(store: Store) -> None:
    every = job(
        enabled=False,
        image="alpine",
        workspace="/srv",
        read_only=True,
        network="open",
        tools="extended",
        timeout_s=5.0,
        run_timeout_s=60.0,
        deliver="webhook:https://example.com/",
        missed="run_all",
        overlap="wait",
        lost="rerun",
    )
    store.add_job(every)
    assert store.job("nightly") == every
    assert store.jobs() == [every]
    assert store.job("none") is None
    (row,) = store.audit_rows()
    assert (row.event, row.body["job"], row.body["job_id"]) == ("cron.added", "nightly", every.id)
    assert (row.body["network"], row.body["policy"]) == ("open", "default")
    with pytest.raises(ConfigurationError, match="there is a job 'nightly' already"):
        store.add_job(job(id="j-2"))


def test_what_is_not_there_can_not_be_changed(store: Store) -> None:
    with pytest.raises(ConfigurationError, match="no job 'none'"):
        store.remove_job("none", at=NOW)
    with pytest.raises(ConfigurationError, match="no job 'none'"):
        store.enable_job("none", True, at=NOW)


def test_a_time_has_one_run_whoever_adds_it_again(store: Store) -> None:
    mine = job(overlap="wait")
    store.add_job(mine)
    assert schedule(store, "nightly", run(1, mine))
    again = replace(run(1, mine), id="r-again")
    assert schedule(store, "nightly", again, run(2, mine))
    assert not store.schedule_runs(mine, [run(3, mine)], seen_to=NOW)  # as it was read at first
    assert [each.id for each in store.runs()] == ["r-2", "r-1"]
    assert store.due_runs() == [run(1, mine)]


def test_a_run_is_taken_once_and_beside_no_other_of_its_job(store: Store) -> None:
    mine = job(overlap="wait")
    store.add_job(mine)
    schedule(store, "nightly", run(1, mine), run(2, mine))
    first = store.start_run(run(1, mine), owner="me", at=NOW)
    assert first is not None
    assert (first.state, first.owner, first.attempts) == (RunState.RUNNING, "me", 1)
    assert store.start_run(run(1, mine), owner="other", at=NOW) is None
    assert store.start_run(run(2, mine), owner="other", at=NOW) is None
    ended = store.end_run(first, RunState.OK, at=NOW + 5)
    assert ended is not None
    assert (ended.state, ended.ended_at) == (RunState.OK, NOW + 5)
    assert store.end_run(first, RunState.FAILED, at=NOW) is None
    assert store.start_run(run(2, mine), owner="other", at=NOW) is not None


def test_only_so_many_runs_of_a_job_wait(store: Store) -> None:
    mine = job(overlap="wait")
    store.add_job(mine)
    schedule(store, "nightly", *(run(number, mine) for number in range(MAX_WAITING + 3)))
    states = [each.state for each in store.runs()]
    assert states == [RunState.SKIPPED] * 3 + [RunState.DUE] * MAX_WAITING
    assert store.runs(limit=1)[0].reason == f"{MAX_WAITING} runs of its job wait already"
    assert events(store).count("cron.skipped") == 3


def test_a_run_that_was_taken_for_lost_gets_no_session_any_more(store: Store) -> None:
    mine = job()
    store.add_job(mine)
    schedule(store, "nightly", run(1, mine))
    started = store.start_run(run(1, mine), owner="me", at=NOW)
    assert started is not None
    store.set_run_session(started, "s1")
    assert store.run("r-1") == replace(started, session_id="s1")
    store.lose_runs(lambda _: False, at=NOW)
    with pytest.raises(StoreError, match="not under way"):
        store.set_run_session(started, "s2")
    assert events(store)[-2:] == ["cron.started", "cron.lost"]


def test_only_the_runs_of_dead_processes_are_lost(store: Store) -> None:
    for number, owner in enumerate(("dead", "alive", "elsewhere")):
        mine = job(f"j{number}")
        store.add_job(mine)
        schedule(store, mine.name, run(number, mine))
        store.start_run(run(number, mine), owner=owner, at=NOW)
    answers = {"dead": False, "alive": True, "elsewhere": None}
    (lost,) = store.lose_runs(answers.__getitem__, at=NOW)
    assert (lost.id, lost.state) == ("r-0", RunState.LOST)
    assert [each.state for each in store.runs()] == [
        *(RunState.RUNNING, RunState.RUNNING, RunState.LOST)
    ]


def test_only_deliveries_that_nobody_makes_are_taken(store: Store) -> None:
    for number, owner in enumerate(("dead", "alive", "elsewhere", "released")):
        mine = job(f"j{number}")
        store.add_job(mine)
        schedule(store, mine.name, run(number, mine))
        started = store.start_run(run(number, mine), owner=owner, at=NOW)
        assert started is not None
        ended = store.end_run(started, RunState.OK, at=NOW, delivery="pending")
        assert ended is not None
        if owner == "released":
            store.release_delivery(ended)
    answers = {"dead": False, "alive": True, "elsewhere": None, "me": True}
    taken = store.take_deliveries(answers.__getitem__, owner="me")
    assert [(each.id, each.owner) for each in taken] == [("r-0", "me"), ("r-3", "me")]
    assert store.take_deliveries(answers.__getitem__, owner="me") == []


def test_what_is_turned_off_has_nothing_waiting_and_is_not_made_again(store: Store) -> None:
    mine = job(overlap="wait", lost="rerun")
    store.add_job(mine)
    schedule(store, "nightly", run(1, mine), run(2, mine))
    store.start_run(run(1, mine), owner="dead", at=NOW)
    store.enable_job("nightly", False, at=NOW)
    assert store.run("r-2").reason == "its job was turned off"  # type: ignore[union-attr]
    (lost,) = store.lose_runs(lambda _: False, at=NOW)
    assert lost.state is RunState.LOST
    assert not schedule(store, "nightly", run(3, mine))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE runs SET state = 'running' WHERE id = 'r-2'",
        "UPDATE runs SET state = 'due' WHERE id = 'r-0'",
        "INSERT INTO runs SELECT NULL, 'r-9', job_id, job, scheduled_at, 'due', 0, 0, 0, '', NULL,"
        " NULL, '', '', '' FROM runs WHERE id = 'r-0'",
    ],
)
def test_the_file_itself_keeps_runs_single(store: Store, path: Path, statement: str) -> None:
    mine = job(overlap="wait")
    store.add_job(mine)
    schedule(store, "nightly", *(run(number, mine) for number in range(3)))
    first = store.start_run(run(0, mine), owner="me", at=NOW)
    assert first is not None
    store.end_run(first, RunState.OK, at=NOW)
    store.start_run(run(1, mine), owner="me", at=NOW)
    with closing(sqlite3.connect(path)) as db, pytest.raises(sqlite3.IntegrityError):
        db.execute(statement)
