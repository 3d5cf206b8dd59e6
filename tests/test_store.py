"""The store: what is kept, what is refused, and what the audit finds."""

import hashlib
import itertools
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import runner
from runner.audit import LAST_EVENT, START, AuditEvent, Head, link
from runner.errors import AuditBroken, StoreError
from runner.model import (
    Decision,
    Record,
    SessionInfo,
    SessionState,
    Status,
    ToolResult,
    Truncation,
    Verdict,
)
from runner.process import process_alive, process_identity
from runner.store import UNKNOWN_OWNER_GRACE_S, Store, schema
from runner.store.ledger import inserting
from runner.store.rows import SESSION_FIELDS, session_row

NOW = 1_700_000_000.0
OWNER = "an owner"
NOBODY = 65534


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "store.db"


@pytest.fixture
def store(path: Path, clock: Clock) -> Iterator[Store]:
    with Store.open(path, clock=clock) as store:
        yield store


def session(session_id: str = "s1", **changes: Any) -> SessionInfo:
    info = SessionInfo(
        id=session_id,
        state=SessionState.OPEN,
        image="sandbox:1",
        runtime=None,
        workspace="/home/user/project",
        managed=False,
        read_only=True,
        kept=False,
        container_id=None,
        created_at=NOW,
        used_at=NOW,
        idle_timeout_s=900.0,
        expires_at=NOW + 3600,
        tenant="acme",
        options={"memory_bytes": 512},
        marker="00ff",
    )
    return replace(info, **changes)


def record(call_id: str = "c1", **changes: Any) -> Record:
    value = Record(
        call_id=call_id,
        session_id="s1",
        tool="bash",
        arguments='{"command":"echo hi"}',
        verdict=Verdict.ALLOW,
        rule="allow[0]",
        reason="",
        policy="ab" * 32,
        status=None,
        exit_code=None,
        output="",
        error=None,
        started_at=NOW,
        duration_s=None,
        timeout_s=60.0,
    )
    return replace(value, **changes)


def denied(call_id: str = "c1", **changes: Any) -> Record:
    return record(
        call_id,
        **{
            "verdict": Verdict.DENY,
            "rule": "deny[2]",
            "reason": "no",
            "status": Status.DENIED,
            "error": "bash: denied: no",
            "duration_s": 0.001,
            **changes,
        },
    )


def result(call_id: str = "c1", **changes: Any) -> ToolResult:
    value = ToolResult(
        call_id=call_id,
        tool="bash",
        status=Status.OK,
        output="hi\n",
        exit_code=0,
        duration_s=0.25,
        timeout_s=60.0,
    )
    return replace(value, **changes)


def events(store: Store) -> list[str]:
    return [row.event for row in store.audit_rows()]


# Sessions.


def test_an_added_session_is_read_back_as_it_was(store: Store) -> None:
    info = session(container_id="abc", managed=True, kept=True, runtime="runsc", ended_at=1.5)
    store.add_session(info)
    assert store.session("s1") == info


def test_the_audit_tells_of_a_session_s_title_and_of_what_it_may_do_more(store: Store) -> None:
    plain = {"network": "none", "users": False}
    store.add_session(session("s1", options=plain))
    more = {"network": "open", "users": True}
    store.add_session(session("s2", title="x" * 5000 + "\ud800", options=more))
    first, second = (row.body for row in store.audit_rows())
    assert first.keys() & {"title", "network", "users"} == set()
    assert (second["network"], second["users"]) == ("open", True)
    kept = store.session("s2")
    assert kept is not None
    assert second["title"] == kept.title == "x" * 1024 + "…"


def test_every_field_of_a_session_has_a_column(store: Store, path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        columns = [row[1] for row in db.execute("PRAGMA table_info(sessions)")]
    assert sorted(columns) == sorted(field.name for field in fields(SessionInfo))


def test_a_session_that_never_was_is_none(store: Store) -> None:
    assert store.session("nobody") is None


def test_an_opened_session_is_told_of_in_the_audit(store: Store) -> None:
    store.add_session(session(expires_at=float("inf")))
    (row,) = store.audit_rows()
    assert (row.event, row.session_id, row.call_id) == (AuditEvent.SESSION_OPENED, "s1", "")
    assert row.body["workspace"] == "/home/user/project"
    assert row.body["read_only"] is True
    assert row.body["expires_at"] is None


def test_a_second_session_of_an_id_is_refused_and_leaves_no_row(store: Store) -> None:
    store.add_session(session())
    with pytest.raises(StoreError, match="already"):
        store.add_session(session(image="other"))
    assert events(store) == ["session.opened"]


def test_ended_sessions_are_listed_on_request_only(store: Store) -> None:
    store.add_session(session("old", created_at=NOW - 5))
    store.add_session(session("gone"))
    store.add_session(session("new", created_at=NOW + 5))
    store.end_session("gone", SessionState.CLOSED)
    assert [info.id for info in store.sessions()] == ["old", "new"]
    assert [info.id for info in store.sessions(include_ended=True)] == ["old", "gone", "new"]


def test_a_session_ends_once(store: Store, clock: Clock) -> None:
    store.add_session(session())
    clock.now += 7
    assert store.end_session("s1", SessionState.EXPIRED, reason="idle for 900 s")
    assert not store.end_session("s1", SessionState.CLOSED)
    info = store.session("s1")
    assert info is not None
    assert (info.state, info.ended_at) == (SessionState.EXPIRED, NOW + 7)
    *_, row = store.audit_rows()
    assert (row.event, row.body) == (AuditEvent.SESSION_EXPIRED, {"reason": "idle for 900 s"})
    assert store.verify() == 2


def test_changes_to_a_session_are_kept_and_told_of_where_asked(store: Store) -> None:
    store.add_session(session())
    store.update_session("s1", container_id="abc", options={"memory_bytes": 1})
    store.update_session(
        "s1", container_id="def", event=AuditEvent.SESSION_REBUILT, body={"why": "lost"}
    )
    info = store.session("s1")
    assert info == session(container_id="def", options={"memory_bytes": 1})
    assert events(store) == ["session.opened", "session.rebuilt"]


@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.update_session("nobody", used_at=1.0),
        lambda store: store.end_session("nobody", SessionState.CLOSED),
        lambda store: store.begin_call(record(), owner=OWNER),
    ],
    ids=["update", "end", "call"],
)
def test_a_change_to_a_session_that_never_was_is_refused(
    store: Store, change: Callable[[Store], None]
) -> None:
    with pytest.raises(StoreError, match="there is no session"):
        change(store)
    assert store.head() == START


def test_a_change_that_is_none_is_a_mistake_of_the_caller(store: Store) -> None:
    store.add_session(session())
    with pytest.raises(TypeError, match="nothing"):
        store.update_session("s1")
    with pytest.raises(TypeError, match="image"):
        store.update_session("s1", image="other")  # type: ignore[call-arg]


# Calls.


def test_an_allowed_call_is_open_until_it_is_finished(store: Store) -> None:
    store.add_session(session())
    store.begin_call(record(), owner=OWNER)
    assert store.call("c1") == record()
    store.finish_call(result())
    assert store.call("c1") == record(status=Status.OK, exit_code=0, output="hi\n", duration_s=0.25)


def test_the_audit_says_what_a_line_of_a_log_needs(store: Store) -> None:
    store.add_session(session())
    store.begin_call(record(), owner=OWNER)
    store.finish_call(result(status=Status.FAILED, exit_code=3, error="bash: exit status 3"))
    _, begun, ended = store.audit_rows()
    assert (begun.event, begun.session_id, begun.call_id) == ("tool.execute", "s1", "c1")
    assert begun.at == NOW
    said = ("tool", "verdict", "rule", "arguments", "timeout_s", "policy", "owner")
    assert {name: begun.body[name] for name in said} == {
        "tool": "bash",
        "verdict": "allow",
        "rule": "allow[0]",
        "arguments": '{"command":"echo hi"}',
        "timeout_s": 60.0,
        "policy": "ab" * 32,
        "owner": OWNER,
    }
    assert ended.event == "tool.result"
    said = ("tool", "verdict", "arguments", "status", "exit_code", "duration_s", "error")
    assert {name: ended.body[name] for name in said} == {
        "tool": "bash",
        "verdict": "allow",
        "arguments": '{"command":"echo hi"}',
        "status": "failed",
        "exit_code": 3,
        "duration_s": 0.25,
        "error": "bash: exit status 3",
    }


def test_hashes_are_of_the_whole_text(path: Path) -> None:
    with Store.open(path, stored_output_limit_bytes=1) as store:
        store.add_session(session())
        arguments = "é" * 100_000
        store.begin_call(record(arguments=arguments), owner=OWNER)
        store.finish_call(result(output="whole"))
        _, begun, ended = store.audit_rows()
    assert begun.body["arguments_bytes"] == 200_000
    assert begun.body["arguments_sha256"] == hashlib.sha256(arguments.encode()).hexdigest()
    assert ended.body["output_bytes"] == 5
    assert ended.body["output_sha256"] == hashlib.sha256(b"whole").hexdigest()


@pytest.mark.parametrize(
    ("status", "event"), [(Status.DENIED, "tool.denied"), (Status.INVALID, "tool.error")]
)
def test_a_call_that_does_not_run_is_complete_at_once(
    store: Store, status: Status, event: str
) -> None:
    store.add_session(session())
    refused = denied(status=status)
    store.begin_call(refused, owner=OWNER)
    assert store.call("c1") == refused
    *_, row = store.audit_rows()
    assert (row.event, row.body["status"], row.body["reason"]) == (event, status, "no")
    assert "arguments_sha256" in row.body
    with pytest.raises(StoreError, match="complete already"):
        store.finish_call(result())


@pytest.mark.parametrize(
    ("status", "event"),
    [
        (Status.OK, "tool.result"),
        (Status.FAILED, "tool.result"),
        (Status.TIMED_OUT, "tool.result"),
        (Status.OOM_KILLED, "tool.result"),
        (Status.CANCELLED, "tool.result"),
        (Status.DENIED, "tool.denied"),
        (Status.INVALID, "tool.error"),
        (Status.LOST, "tool.error"),
    ],
)
def test_how_a_call_ended_decides_its_last_event(store: Store, status: Status, event: str) -> None:
    store.add_session(session())
    store.begin_call(record(), owner=OWNER)
    store.finish_call(result(status=status))
    assert events(store)[-1] == event
    assert store.verify() == 3


def test_every_status_has_a_last_event() -> None:
    assert set(LAST_EVENT) == set(Status)


def test_a_call_is_finished_exactly_once(store: Store) -> None:
    store.add_session(session())
    store.begin_call(record(), owner=OWNER)
    store.finish_call(result())
    with pytest.raises(StoreError, match="'c1' is complete already: ok"):
        store.finish_call(result(output="other"))
    with pytest.raises(StoreError, match="there is no call 'c2'"):
        store.finish_call(result("c2"))
    assert store.verify() == 3


def test_a_second_call_of_an_id_is_refused(store: Store) -> None:
    store.add_session(session())
    store.begin_call(record(), owner=OWNER)
    with pytest.raises(StoreError, match="a call 'c1' already"):
        store.begin_call(denied(), owner=OWNER)
    assert store.verify() == 2


def test_a_call_can_be_finished_by_a_store_that_did_not_begin_it(path: Path, clock: Clock) -> None:
    with Store.open(path, clock=clock, stored_output_limit_bytes=10) as store:
        store.add_session(session())
        store.begin_call(record("c1", error="x" * 12), owner=OWNER)
        store.begin_call(record("c2", error="x" * 12), owner=OWNER)
        store.finish_call(result("c1", output="x" * 11, details={"a": 1}))
    with Store.open(path, clock=clock, stored_output_limit_bytes=10) as store:
        store.finish_call(result("c2", output="x" * 11, details={"a": 1}))
        first, second = store.call("c1"), store.call("c2")
        assert first is not None
        assert second == replace(first, call_id="c2")
        assert first.details == {"a": 1, "not_stored_bytes": {"error": 2, "output": 1}}
        *_, one, other = store.audit_rows()
        assert {**one.body, "record": ""} == {**other.body, "record": ""}
        assert store.verify() == 5


def test_a_call_that_another_process_took_for_dead_is_not_finished(store: Store) -> None:
    store.add_session(session())
    store.begin_call(record(), owner=OWNER)
    with Store.open(store.path) as other:
        assert other.close_lost(lambda _: False) == ["c1"]
    head = store.head()
    for _ in range(2):
        with pytest.raises(StoreError, match="'c1' is complete already: lost"):
            store.finish_call(result())
    done = store.call("c1")
    assert done is not None
    assert (done.status, done.output) == (Status.LOST, "")
    assert store.head() == head
    assert store.verify() == 3


def test_a_call_whose_record_is_gone_is_not_finished(store: Store) -> None:
    store.add_session(session())
    store.begin_call(record(), owner=OWNER)
    tamper(store.path, "DELETE FROM calls")
    with pytest.raises(StoreError, match="there is no call 'c1'"):
        store.finish_call(result())


def test_a_decision_that_came_later_replaces_the_first(store: Store) -> None:
    store.add_session(session())
    store.begin_call(record(verdict=Verdict.ASK, rule="ask[0]"), owner=OWNER)
    answer = Decision(Verdict.DENY, "ask[0]", "the operator said no")
    store.finish_call(result(status=Status.DENIED, exit_code=None, decision=answer))
    done = store.call("c1")
    assert done is not None
    assert (done.verdict, done.rule, done.reason) == (Verdict.DENY, "ask[0]", answer.reason)
    assert store.verify() == 3


def test_facts_of_a_result_are_in_the_details(store: Store) -> None:
    store.add_session(session())
    store.begin_call(record(), owner=OWNER)
    cut = Truncation(omitted_bytes=5, omitted_lines=1, full_output_path="/tmp/o")
    store.finish_call(result(truncated=cut, background=2, details={"skipped": 4}))
    done = store.call("c1")
    assert done is not None
    assert done.details == {
        "skipped": 4,
        "background": 2,
        "truncated": {
            "omitted_bytes": 5,
            "omitted_lines": 1,
            "full_output_path": "/tmp/o",
            "full_output_bytes": 0,
        },
    }
    *_, row = store.audit_rows()
    assert row.body["background"] == 2


ENDLESS: dict[str, Any] = {}
ENDLESS["x"] = ENDLESS


@pytest.mark.parametrize(
    "details", [{"x": object()}, {"x": float("nan")}, {("a", "b"): 1}, {"x": b"bytes"}, ENDLESS]
)
def test_details_that_are_not_json_do_not_cost_the_record(
    store: Store, details: dict[str, Any]
) -> None:
    store.add_session(session())
    store.begin_call(record(), owner=OWNER)
    store.finish_call(result(details=details))
    done = store.call("c1")
    assert done is not None
    assert done.status is Status.OK
    assert "not_json" in done.details


def test_a_call_marks_its_session_as_used(store: Store, clock: Clock) -> None:
    store.add_session(session())
    store.begin_call(record(started_at=NOW + 10), owner=OWNER)
    assert used_at(store) == NOW + 10
    clock.now = NOW + 30
    store.finish_call(result())
    assert used_at(store) == NOW + 30


def test_a_late_record_does_not_make_a_session_older(store: Store) -> None:
    store.add_session(session())
    store.begin_call(record(started_at=NOW - 10), owner=OWNER)
    assert used_at(store) == NOW


def used_at(store: Store) -> float:
    info = store.session("s1")
    assert info is not None
    return info.used_at


def test_calls_are_listed_in_order_and_by_session(store: Store) -> None:
    store.add_session(session("s1"))
    store.add_session(session("s2"))
    for number in range(4):
        store.begin_call(record(f"c{number}", session_id=f"s{number % 2 + 1}"), owner=OWNER)
    listed = store.calls()
    assert [call.call_id for _, call in listed] == ["c0", "c1", "c2", "c3"]
    assert [call.call_id for _, call in store.calls(session_id="s2")] == ["c1", "c3"]
    assert store.calls(after=listed[1][0], limit=1) == [listed[2]]


def test_the_last_calls_of_a_session_come_newest_first(store: Store) -> None:
    store.add_session(session())
    store.add_session(session("s2"))
    for number in range(4):
        store.begin_call(denied(f"c{number}", started_at=NOW + number), owner=OWNER)
    store.begin_call(denied("other", session_id="s2"), owner=OWNER)
    store.begin_call(record("c4", started_at=NOW + 9), owner=OWNER)
    store.finish_call(result("c4"))
    found = store.recent_calls("s1", limit=3)
    assert [call.call_id for call in found] == ["c4", "c3", "c2"]
    assert found[0].arguments == record().arguments
    assert found[0].output == ""


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ({"since": 0}, 6),
        ({"since": NOW + 1}, 5),
        ({"since": NOW + 1.001}, 4),
        ({"since": 0, "session_id": "s1"}, 3),
        ({"since": NOW + 2, "session_id": "s1"}, 1),
        ({"since": 0, "tenant": "acme"}, 5),
        ({"since": NOW + 20, "tenant": "acme"}, 1),
        ({"since": 0, "tenant": "other"}, 1),
        ({"since": 0, "tenant": "nobody"}, 0),
        ({"since": 0, "session_id": "s1", "rule": "allow[1]"}, 1),
        ({"since": 0, "tenant": "acme", "rule": "allow[0]"}, 3),
        ({"since": 0, "tenant": "acme", "session_id": "s3"}, 0),
    ],
)
def test_calls_that_were_allowed_are_counted(
    store: Store, clock: Clock, asked: dict[str, Any], count: int
) -> None:
    for name, tenant in (("s1", "acme"), ("s2", "acme"), ("s3", "other")):
        store.add_session(session(name, tenant=tenant))
    for number, (name, rule, after_s) in enumerate(
        [("s1", "allow[0]", 0), ("s1", "allow[1]", 1), ("s1", "allow[0]", 2),
         ("s2", "allow[0]", 3), ("s3", "allow[0]", 4), ("s2", "allow[1]", 30)]
    ):  # fmt: skip
        call = record(f"c{number}", session_id=name, rule=rule, started_at=NOW + after_s)
        store.begin_call(call, owner=OWNER)
    store.begin_call(denied("no", started_at=NOW + 2), owner=OWNER)
    clock.now += 10
    store.end_session("s1", SessionState.CLOSED)
    assert store.count_calls(**asked) == count


def test_counting_looks_at_the_last_calls_only(store: Store, path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        for where in (
            "session_id = 's1'",
            "session_id IN (SELECT id FROM sessions WHERE tenant = 'a' AND"
            " (ended_at IS NULL OR ended_at >= 1))",
        ):
            plan = db.execute(
                "EXPLAIN QUERY PLAN SELECT count(*) FROM calls WHERE verdict = 'allow'"
                f" AND started_at >= 1 AND {where}"
            ).fetchall()
            steps = " ".join(step[-1] for step in plan)
            assert "calls_started (session_id=? AND started_at>?)" in steps
            assert "SCAN" not in steps


def test_what_is_too_long_is_cut_between_characters_and_counted(path: Path) -> None:
    with Store.open(path, stored_output_limit_bytes=10) as store:
        store.add_session(session())
        arguments = "€" * 30_000
        store.begin_call(record(arguments=arguments), owner=OWNER)
        store.finish_call(result(output="€€€€", error="x" * 11))
        done = store.call("c1")
        assert done is not None
        assert done.output == "€€€"
        assert done.error == "x" * 10
        assert done.arguments == "€" * 21_845
        assert done.details["not_stored_bytes"] == {
            "arguments": 90_000 - 65_535,
            "output": 3,
            "error": 1,
        }
        *_, ended = store.audit_rows()
        assert ended.body["output_bytes"] == 12
        assert store.verify() == 3


def test_an_output_at_the_limit_is_kept_whole(path: Path) -> None:
    with Store.open(path, stored_output_limit_bytes=12) as store:
        store.add_session(session())
        store.begin_call(record(), owner=OWNER)
        store.finish_call(result(output="€€€€"))
        done = store.call("c1")
        assert done is not None
        assert (done.output, done.details) == ("€€€€", {})


def test_long_names_and_details_are_bounded(store: Store, path: Path) -> None:
    store.add_session(session())
    long = "t" * 1_000_000
    store.begin_call(denied(tool=long, rule=long, reason=long, details={"long": long}), owner=OWNER)
    done = store.call("c1")
    assert done is not None
    assert len(done.tool) == len(done.rule or "") == len(done.reason) == 1025
    assert done.details == {"not_stored_bytes": {"details": 1_000_011}}
    *_, row = store.audit_rows()
    assert len(row.line) < 8192


_counter = itertools.count()


@pytest.fixture(scope="module")
def lasting_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("lasting") / "store.db") as store:
        store.add_session(session())
        yield store


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@settings(max_examples=60, deadline=None)
@given(
    tool=TEXT,
    arguments=TEXT,
    output=TEXT,
    error=st.none() | TEXT,
    duration=st.floats(0, 1e6),
    exit_code=st.none() | st.integers(0, 255),
    details=st.dictionaries(TEXT, TEXT | st.integers() | st.booleans(), max_size=3),
)
def test_any_text_is_read_back_as_it_was_and_verifies(
    lasting_store: Store,
    tool: str,
    arguments: str,
    output: str,
    error: str | None,
    duration: float,
    exit_code: int | None,
    details: dict[str, Any],
) -> None:
    call_id = f"h{next(_counter)}"
    begun = record(call_id, tool=tool, arguments=arguments)
    lasting_store.begin_call(begun, owner=OWNER)
    lasting_store.finish_call(
        result(
            call_id,
            output=output,
            error=error,
            duration_s=duration,
            exit_code=exit_code,
            details=details,
        )
    )
    assert lasting_store.call(call_id) == replace(
        begun,
        status=Status.OK,
        output=output,
        error=error,
        duration_s=duration,
        exit_code=exit_code,
        details=details,
    )
    assert lasting_store.verify() == lasting_store.head().seq


def test_raw_input_with_lone_surrogates_is_kept_as_escapes(store: Store) -> None:
    store.add_session(session())
    store.begin_call(denied(arguments="a\ud800b", tool="\udfff", error="\udc80"), owner=OWNER)
    done = store.call("c1")
    assert done is not None
    assert (done.arguments, done.tool, done.error) == ("a\\ud800b", "\\udfff", "\\udc80")
    assert store.verify() == 2


def test_no_text_forges_a_line_of_the_audit(store: Store) -> None:
    evil = '"}\n{"seq":9,"event":"tool.execute"}\r\x1b[2J\x7f\u2028\u202e\x85'
    store.add_session(session(workspace=evil))
    store.begin_call(denied(tool=evil, arguments=evil, reason=evil, error=evil), owner=evil)
    for row in store.audit_rows():
        assert row.line.isascii()
        assert row.line.isprintable()
        exported = json.loads(row.line)
        assert (exported["seq"], exported["event"]) == (row.seq, row.event)
        assert exported["body"] == row.body


# Calls of dead processes.


def test_open_calls_of_dead_owners_are_lost(store: Store) -> None:
    store.add_session(session())
    store.begin_call(record("c1"), owner="dead")
    store.begin_call(record("c2"), owner="alive")
    store.begin_call(record("c3"), owner="dead")
    store.finish_call(result("c3"))
    assert store.close_lost(lambda owner: owner == "alive") == ["c1"]
    lost, running, done = (call for _, call in store.calls())
    assert lost.status is Status.LOST
    assert lost.error is not None
    assert lost.error.startswith("lost: ")
    assert (running.status, done.status) == (None, Status.OK)
    *_, row = store.audit_rows()
    assert (row.event, row.call_id, row.body["status"]) == ("tool.error", "c1", "lost")
    assert store.close_lost(lambda owner: owner == "alive") == []
    with pytest.raises(StoreError, match="complete already: lost"):
        store.finish_call(result("c1"))
    assert store.verify() == store.head().seq


def test_calls_of_an_owner_whom_nobody_sees_are_lost_after_a_while(
    store: Store, clock: Clock
) -> None:
    store.add_session(session())
    store.begin_call(record(), owner="elsewhere")
    clock.now = NOW + 60 + UNKNOWN_OWNER_GRACE_S - 1
    assert store.close_lost(lambda _: None) == []
    clock.now += 1
    assert store.close_lost(lambda _: None) == ["c1"]


def test_owners_are_asked_once_each(store: Store) -> None:
    store.add_session(session())
    for number in range(3):
        store.begin_call(record(f"c{number}"), owner=OWNER)
    asked: list[str] = []

    def is_alive(owner: str) -> bool:
        asked.append(owner)
        return True

    assert store.close_lost(is_alive) == []
    assert asked == [OWNER]


# The audit.


def fill(store: Store) -> None:
    """Ten rows: 1 session.opened, 2-9 four calls, 10 session.closed."""
    store.add_session(session())
    for number in range(4):
        store.begin_call(record(f"c{number}"), owner=OWNER)
        store.finish_call(result(f"c{number}"))
    store.end_session("s1", SessionState.CLOSED)


def tamper(path: Path, *statements: str) -> None:
    """Do what somebody does who can write the file: drop the triggers first."""
    with closing(sqlite3.connect(path)) as db:
        triggers = db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            db.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            db.execute(statement)
        db.commit()


def broken(path: Path, expected_head: Head | None = None) -> AuditBroken:
    with Store.open(path) as store, pytest.raises(AuditBroken) as caught:
        store.verify(expected_head)
    assert not str(caught.value).startswith("the store")
    return caught.value


def test_an_untouched_chain_verifies(store: Store) -> None:
    assert store.verify() == 0
    fill(store)
    assert store.verify() == 10
    assert store.verify(store.head()) == 10


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("at_us", "at_us + 1"),
        ("at_us", "CAST(at_us AS TEXT) || 'x'"),
        ("event", "'tool.denied'"),
        ("session_id", "'s2'"),
        ("call_id", "'c3'"),
        ("call_id", "''"),
        ("body", """replace(body, '"tool":"bash"', '"tool":"read"')"""),
        ("body", "'{}'"),
        ("body", "body || ' '"),
        ("body", "CAST(x'ff7b7d' AS TEXT)"),
        ("body", "CAST(body AS BLOB)"),
        ("previous", "lower(hex(zeroblob(32)))"),
        ("hash", "lower(hex(zeroblob(32)))"),
        ("hash", "upper(hash)"),
    ],
)
def test_a_changed_column_is_found_at_its_row(path: Path, column: str, value: str) -> None:
    with Store.open(path) as store:
        fill(store)
    tamper(path, f"UPDATE audit SET {column} = {value} WHERE seq = 4")
    error = broken(path)
    assert error.row == 4
    assert "row 4" in str(error)


def test_a_changed_number_is_found_as_a_gap(path: Path) -> None:
    with Store.open(path) as store:
        fill(store)
    tamper(path, "UPDATE audit SET seq = 100 WHERE seq = 4")
    error = broken(path)
    assert (error.row, str(error)) == (4, "audit row 4 is missing")


@pytest.mark.parametrize(
    ("statement", "row"),
    [
        ("DELETE FROM audit WHERE seq = 1", 1),
        ("DELETE FROM audit WHERE seq = 4", 4),
        ("DELETE FROM audit WHERE seq BETWEEN 4 AND 6", 4),
        ("DELETE FROM audit WHERE seq = 10", 10),
        ("DELETE FROM audit WHERE seq >= 8", 8),
        ("DELETE FROM audit", 1),
        ("INSERT INTO audit SELECT -1, at_us, event, session_id, call_id, body, previous, hash"
         " FROM audit WHERE seq = 1", -1),
        ("INSERT INTO audit SELECT 11, at_us, event, session_id, call_id, body, previous, hash"
         " FROM audit WHERE seq = 10", 11),
        ("UPDATE audit_head SET seq = 9", 10),
        ("UPDATE audit_head SET seq = 12", 11),
        ("UPDATE audit_head SET hash = 'x'", 10),
        ("DELETE FROM audit_head", 11),
    ],
)  # fmt: skip
def test_rows_that_are_missing_or_too_many_are_found(path: Path, statement: str, row: int) -> None:
    with Store.open(path) as store:
        fill(store)
    tamper(path, statement)
    assert broken(path).row == row


def test_a_row_that_was_rewritten_with_its_hash_breaks_the_next(path: Path) -> None:
    with Store.open(path) as store:
        fill(store)
        previous = list(store.audit_rows())[2]
    forged = link(
        Head(previous.seq, previous.hash),
        at_us=0,
        event=AuditEvent.SESSION_SWEPT,
        session_id="s1",
        call_id="",
        body={},
    )
    tamper(
        path,
        f"UPDATE audit SET at_us = 0, event = '{forged.event}', call_id = '', body = '{{}}',"
        f" hash = '{forged.hash}' WHERE seq = 4",
    )
    assert broken(path).row == 5


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("session_id", "'s2'"),
        ("tool", "'read'"),
        ("arguments", """'{"command":"ls"}'"""),
        ("verdict", "'ask'"),
        ("rule", "NULL"),
        ("reason", "'because'"),
        ("policy", "''"),
        ("status", "'failed'"),
        ("status", "NULL"),
        ("exit_code", "1"),
        ("output", "'other'"),
        ("output", "CAST(x'ff' AS TEXT)"),
        ("output", "CAST(output AS BLOB)"),
        ("error", "'an error'"),
        ("started_at", "started_at + 1"),
        ("duration_s", "9e999"),
        ("timeout_s", "NULL"),
        ("details", """'{"a":1}'"""),
        ("owner", "'another'"),
        ("shadow", "'{}'"),
        ("approval", "'a-1'"),
    ],
)
def test_a_changed_record_of_a_call_is_found_at_the_row_of_its_end(
    path: Path, column: str, value: str
) -> None:
    with Store.open(path) as store:
        fill(store)
    tamper(path, f"UPDATE calls SET {column} = {value} WHERE id = 'c1'")
    error = broken(path)
    # A completed call that pretends to be open already disagrees with the row of its start.
    assert error.row == (4 if (column, value) == ("status", "NULL") else 5)
    assert "c1" in str(error)


def test_every_column_of_a_record_is_tried_above(path: Path) -> None:
    (mark,) = test_a_changed_record_of_a_call_is_found_at_the_row_of_its_end.pytestmark  # type: ignore[attr-defined]
    tried = {column for column, _ in mark.args[1]}
    with Store.open(path), closing(sqlite3.connect(path)) as db:
        columns = {row[1] for row in db.execute("PRAGMA table_info(calls)")}
    # `seq` is only the order of a listing; `id` is in the test below.
    assert columns - tried == {"seq", "id"}


def test_a_changed_record_of_an_open_call_is_found_at_the_row_of_its_start(path: Path) -> None:
    with Store.open(path) as store:
        fill(store)
        store.add_session(session("s2"))
        store.begin_call(record("open", session_id="s2"), owner=OWNER)
    tamper(path, "UPDATE calls SET arguments = 'other' WHERE id = 'open'")
    assert broken(path).row == 12


@pytest.mark.parametrize(
    ("column", "value"),
    [("arguments", "'other'"), ("policy", "''"), ("started_at", "0"), ("owner", "'another'")],
)
def test_a_record_that_was_changed_while_its_call_ran_is_not_signed_at_its_end(
    path: Path, column: str, value: str
) -> None:
    with Store.open(path) as store:
        store.add_session(session())
        store.begin_call(record(), owner=OWNER)
        tamper(path, f"UPDATE calls SET {column} = {value} WHERE id = 'c1'")
        store.finish_call(result())
        done = store.call("c1")
        assert done is not None
        assert done.status is Status.OK
    tamper(path, "UPDATE audit_head SET (seq, hash) = (SELECT seq, hash FROM audit WHERE seq = 3)")
    assert broken(path).row == 3


def test_the_digest_of_a_record_is_what_the_documentation_says(path: Path) -> None:
    with Store.open(path, stored_output_limit_bytes=10) as store:
        store.add_session(session())
        store.begin_call(denied("c1", arguments="é" * 50_000, output="n\x7fo"), owner=OWNER)
        store.begin_call(record("c2"), owner=OWNER)
        store.finish_call(result("c2", output="x" * 50, error="é", details={"a": 1}))
        store.begin_call(record("c3", approval="a-1"), owner=OWNER)
        store.finish_call(result("c3"))
        store.begin_call(denied("c4", shadow='{"verdict":"ask"}'), owner=OWNER)
        signed = {row.call_id: row.body["record"] for row in store.audit_rows() if row.call_id}
    with closing(sqlite3.connect(path)) as db:
        cursor = db.execute("SELECT * FROM calls ORDER BY seq")
        names = [column for column, *_ in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor]
    assert [row["id"] for row in rows] == list(signed)
    for row in rows:
        del row["seq"]
        for name in ("arguments", "output"):
            row[name] = hashlib.sha256(row[name].encode()).hexdigest()
        if row["shadow"] is row["approval"] is None:
            del row["shadow"], row["approval"]
        array = json.dumps(list(row.values()), separators=(",", ":"))
        assert hashlib.sha256(array.encode()).hexdigest() == signed[row["id"]]


@pytest.mark.parametrize(
    ("statement", "row"),
    [
        ("DELETE FROM calls WHERE id = 'c1'", 4),
        ("UPDATE calls SET id = 'c9' WHERE id = 'c1'", 4),
        ("INSERT INTO calls SELECT 99, 'c9', session_id, tool, verdict, rule, reason, policy,"
         " status, exit_code, started_at, duration_s, timeout_s, owner, details, error,"
         " arguments, output, shadow, approval FROM calls WHERE id = 'c1'", 11),
    ],
)  # fmt: skip
def test_records_that_are_missing_or_too_many_are_found(
    path: Path, statement: str, row: int
) -> None:
    with Store.open(path) as store:
        fill(store)
    tamper(path, statement)
    assert broken(path).row == row


def test_a_head_that_was_kept_finds_a_chain_that_was_made_anew(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "store.db"
    with Store.open(path) as store:
        fill(store)
        kept = store.head()
        store.audit(AuditEvent.SESSION_SWEPT, session_id="s1")
        assert store.verify(kept) == 11
    with Store.open(other) as store:
        fill(store)
        store.audit(AuditEvent.SESSION_SWEPT, session_id="s1")
        assert store.verify() == 11
    assert broken(other, kept).row == 10


def test_a_head_that_was_kept_finds_a_tail_that_was_cut_off_with_the_head(path: Path) -> None:
    with Store.open(path) as store:
        fill(store)
        kept = store.head()
        rows = list(store.audit_rows())
    tamper(
        path,
        "DELETE FROM audit WHERE seq = 10",
        f"UPDATE audit_head SET seq = 9, hash = '{rows[8].hash}'",
    )
    with Store.open(path) as store:
        assert store.verify() == 9
    assert broken(path, kept).row == 10


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit SET event = 'x' WHERE seq = 2",
        "UPDATE audit SET seq = 99 WHERE seq = 2",
        "DELETE FROM audit WHERE seq = 10",
        "DELETE FROM audit",
        "INSERT INTO audit VALUES (12, 0, 'e', '', '', '{}', '', '')",
        "INSERT INTO audit VALUES (11, 0, 'e', '', '', '{}', 'not the last hash', '')",
        "INSERT OR REPLACE INTO audit VALUES (2, 0, 'e', '', '', '{}', '', '')",
        "UPDATE calls SET output = 'x' WHERE id = 'c1'",
    ],
)
def test_triggers_keep_the_audit_append_only(path: Path, statement: str) -> None:
    with Store.open(path) as store:
        fill(store)
        with (
            closing(sqlite3.connect(path)) as db,
            pytest.raises(sqlite3.IntegrityError, match=r"append-only|follows|does not change"),
        ):
            db.execute(statement)
        assert store.verify() == 10


def test_rows_can_be_followed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.store.ledger._BATCH_ROWS", 3)
    fill(store)
    rows = list(store.audit_rows())
    assert [row.seq for row in rows] == list(range(1, 11))
    assert list(store.audit_rows(after=10)) == []
    store.add_session(session("s2"))
    assert [row.event for row in store.audit_rows(after=10)] == ["session.opened"]
    assert [row.seq for row in store.audit_rows(session_id="s2")] == [11]
    assert list(store.audit_rows(after=4, session_id="s1")) == rows[4:]


def test_reading_rows_holds_no_transaction_open(store: Store, path: Path) -> None:
    fill(store)
    rows = store.audit_rows()
    next(rows)
    store.audit(AuditEvent.SESSION_SWEPT)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        # Waits for readers, and says 1 where one did not let go.
        assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    rows.close()  # type: ignore[attr-defined]


def test_a_row_that_can_not_be_read_is_named(path: Path) -> None:
    with Store.open(path) as store:
        fill(store)
    tamper(path, "UPDATE audit SET body = 'no json' WHERE seq = 4")
    with Store.open(path) as store, pytest.raises(AuditBroken, match="row 4") as caught:
        list(store.audit_rows())
    assert caught.value.row == 4


@pytest.mark.parametrize(
    "event",
    [
        *("TOOL_EXECUTE", "TOOL_DENIED", "TOOL_ERROR", "TOOL_RESULT", "APPROVAL_ASKED"),
        *("NETWORK_ALLOWED", "NETWORK_DENIED", "NETWORK_ENDED"),
    ],
)
def test_rows_that_come_with_a_change_are_not_written_by_hand(store: Store, event: str) -> None:
    with pytest.raises(ValueError, match="come with the change"):
        store.audit(AuditEvent[event])
    assert store.head() == START


def test_a_change_that_fails_leaves_neither_itself_nor_its_row(store: Store) -> None:
    store.add_session(session())
    rebuilt = AuditEvent.SESSION_REBUILT
    with pytest.raises(TypeError, match="not JSON"):
        store.update_session("s1", container_id="abc", event=rebuilt, body={"why": object()})
    info = store.session("s1")
    assert info is not None
    assert info.container_id is None
    assert store.verify() == 1


def test_a_row_that_was_rolled_back_is_not_linked_to(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add_session(session())
    store.begin_call(record(), owner=OWNER)

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    # The last that is done in the transaction of a call's end.
    clock.now += 1
    with monkeypatch.context() as patch:
        patch.setattr(store, "_touch", fail)
        with pytest.raises(KeyboardInterrupt):
            store.finish_call(result())
    assert store.verify() == 2
    store.finish_call(result())
    assert events(store) == ["session.opened", "tool.execute", "tool.result"]
    assert store.verify() == 3


def test_stores_that_write_in_turn_make_one_chain(store: Store) -> None:
    store.add_session(session())
    with Store.open(store.path) as other:
        for number in range(3):
            other.begin_call(record(f"c{number}"), owner=OWNER)
            store.audit(AuditEvent.SESSION_SWEPT)
            store.finish_call(result(f"c{number}"))
        assert store.verify() == other.verify() == 10


# Several processes.


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Run code that has the names of this project, `path` being the first argument."""
    prelude = (
        "import sys, time; from pathlib import Path; from runner.store import *;"
        " from runner.model import *; from runner.process import *; path = Path(sys.argv[1]);"
        " sys.path.insert(0, sys.argv[2]);"
        " from test_store import session, record, result, denied\n"
    )
    root = Path(runner.__file__).parents[1]
    return subprocess.Popen(
        [sys.executable, "-c", prelude + code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )


HERE = str(Path(__file__).parent)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_processes_that_make_and_fill_one_store_at_once_make_one_chain(path: Path) -> None:
    code = """
print("ready", flush=True); sys.stdin.readline()
name = sys.argv[3]
with Store.open(path, busy_timeout_s=30) as store:
    store.add_session(session(name))
    for number in range(100):
        store.begin_call(record(f"{name}-{number}", session_id=name), owner=process_identity())
        store.finish_call(result(f"{name}-{number}"))
"""
    writers = [python(code, str(path), HERE, f"w{number}") for number in range(3)]
    for writer in writers:
        assert line(writer) == "ready"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    with Store.open(path) as store:
        assert store.verify() == 3 * 201


@pytest.mark.parametrize("lines", [1, 40, 97])
def test_a_process_that_is_killed_while_it_writes_leaves_a_whole_chain(
    path: Path, lines: int
) -> None:
    code = """
with Store.open(path) as store:
    store.add_session(session())
    for number in range(10**9):
        store.begin_call(record(f"c{number}"), owner=process_identity())
        print(number, flush=True)
        store.finish_call(result(f"c{number}", output="x" * (number * 997 % 20000)))
"""
    writer = python(code, str(path), HERE)
    for _ in range(lines):
        begun = int(line(writer))
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    assert writer.returncode == -signal.SIGKILL
    with Store.open(path) as store:
        rows = store.verify()
        # What was begun before the line was printed is there.
        assert rows >= 2 * begun + 2
        lost = store.close_lost(process_alive)
        assert len(lost) <= 1
        assert all(call.status is not None for _, call in store.calls(limit=10**6))
        assert store.verify() == rows + len(lost)


def test_a_process_that_is_killed_in_a_call_leaves_it_to_be_closed_as_lost(path: Path) -> None:
    code = """
store = Store.open(path)
store.add_session(session())
store.begin_call(record(), owner=process_identity())
print("begun", flush=True); time.sleep(60)
"""
    writer = python(code, str(path), HERE)
    assert line(writer) == "begun"
    with Store.open(path) as store:
        store.begin_call(record("mine"), owner=process_identity())
        assert store.close_lost(process_alive) == []
        writer.kill()
        writer.communicate()
        assert store.close_lost(process_alive) == ["c1"]
        assert store.verify() == 4


def test_a_second_store_of_the_process_does_not_drop_the_locks_of_the_first(path: Path) -> None:
    with Store.open(path) as store:
        store.add_session(session())
        Store.open(path).close()
        # The last one to close the file removes the log: this one must see that it is not.
        other = python("Store.open(path).close()", str(path), HERE)
        other.communicate()
        assert other.returncode == 0
        assert Path(f"{path}-wal").stat().st_size > 0
        store.end_session("s1", SessionState.CLOSED)
    with Store.open(path) as store:
        assert store.verify() == 2


# The file.


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_and_directories_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = tmp_path / "a" / "b" / "store.db"
        with Store.open(path) as store:
            store.add_session(session())
            assert [mode(tmp_path / "a"), mode(tmp_path / "a" / "b")] == [0o700, 0o700]
            for suffix in ("", "-wal", "-shm"):
                assert mode(Path(f"{path}{suffix}")) == 0o600
    finally:
        os.umask(before)


def test_files_that_others_can_read_are_closed_to_them(path: Path) -> None:
    with Store.open(path) as first:
        first.add_session(session())
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").chmod(0o644)
        with Store.open(path):
            for suffix in ("", "-wal", "-shm"):
                assert mode(Path(f"{path}{suffix}")) == 0o600


@pytest.mark.parametrize("exists", [True, False])
def test_a_symbolic_link_is_refused_and_not_followed(tmp_path: Path, exists: bool) -> None:
    target = tmp_path / "target"
    if exists:
        target.write_bytes(b"")
        target.chmod(0o644)
    link = tmp_path / "store.db"
    link.symlink_to(target)
    with pytest.raises(StoreError, match="symbolic link"):
        Store.open(link)
    assert target.exists() == exists
    if exists:
        assert (mode(target), target.read_bytes()) == (0o644, b"")


def test_a_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    with pytest.raises(StoreError, match=r"mode 1777.*directory of your own"):
        Store.open(shared / "store.db")
    assert list(shared.iterdir()) == []
    with Store.open(shared / "own" / "store.db") as store:
        assert store.verify() == 0


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_not_a_file_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "store.db")
    with pytest.raises(StoreError, match="is not a file"):
        Store.open(tmp_path / "store.db")


def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="can't be opened"):
        Store.open(tmp_path / "file" / "store.db")


def test_odd_names_are_only_names(tmp_path: Path) -> None:
    for name in ("a?mode=memory", "b%41#c", ":memory:", "d e\n€"):
        with Store.open(tmp_path / name) as store:
            store.add_session(session())
        assert (tmp_path / name).stat().st_size > 0


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A directory of a user whom modes stop; root gives itself up for it."""
    with tempfile.TemporaryDirectory() as name:
        if os.geteuid() != 0:
            yield Path(name)
            return
        os.chown(name, NOBODY, NOBODY)
        os.seteuid(NOBODY)
        try:
            yield Path(name)
        finally:
            os.seteuid(0)


def test_a_file_that_can_not_be_written_is_named_with_advice(unprivileged: Path) -> None:
    path = unprivileged / "store.db"
    with Store.open(path) as store:
        store.add_session(session())
    path.chmod(0o400)
    with pytest.raises(StoreError, match=r"store.db can't be written: check its mode"):
        Store.open(path)


def test_a_directory_that_can_not_be_written_is_named_with_advice(unprivileged: Path) -> None:
    unprivileged.chmod(0o500)
    with pytest.raises(StoreError, match=r"store.db can't be opened.*check who owns"):
        Store.open(unprivileged / "store.db")
    unprivileged.chmod(0o700)
    Store.open(unprivileged / "store.db").close()
    unprivileged.chmod(0o500)
    with pytest.raises(StoreError, match=r"store.db can't be \w+: check"):
        Store.open(unprivileged / "store.db")
    unprivileged.chmod(0o700)


def test_a_directory_or_file_of_another_user_is_refused(unprivileged: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give files away")
    path = unprivileged / "store.db"
    Store.open(path).close()
    os.seteuid(0)
    os.chown(path, 12345, 12345)
    os.seteuid(NOBODY)
    with pytest.raises(StoreError, match="belongs to uid 12345"):
        Store.open(path)
    os.seteuid(0)
    os.chown(unprivileged, 12345, 12345)
    unprivileged.chmod(0o755)
    os.seteuid(NOBODY)
    with pytest.raises(StoreError, match="belongs to uid 12345, who could replace"):
        Store.open(path)


# Errors.


def test_a_locked_file_is_an_error_after_the_busy_time_out(path: Path) -> None:
    with Store.open(path, busy_timeout_s=0.05) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match=r"store.db is locked by another process"):
                store.add_session(session())
            db.execute("ROLLBACK")
        store.add_session(session())
        assert store.verify() == 1


def test_a_full_disk_is_an_error_that_leaves_the_store_whole(store: Store) -> None:
    store.add_session(session())
    # As the disk would: no more pages than there are.
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    store.begin_call(record(), owner=OWNER)
    with pytest.raises(StoreError, match=r"store.db can't grow, its disk is full: make room"):
        store.finish_call(result(output="x" * 60_000))
    assert store.verify() == 2
    store._db.execute("PRAGMA max_page_count = 1000000")
    store.finish_call(result(output="x" * 60_000))
    assert store.verify() == 3


def test_a_file_that_is_no_database_is_refused_unchanged(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_bytes(b"a diary, page one\n" * 100)
    with pytest.raises(StoreError, match="is not a database"):
        Store.open(path)
    assert path.read_bytes() == b"a diary, page one\n" * 100


def test_a_damaged_file_is_an_error_that_says_so(path: Path) -> None:
    with Store.open(path) as store:
        fill(store)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096 * 4)
    with pytest.raises(StoreError, match="is damaged"), Store.open(path) as store:
        store.verify()


def test_another_programs_database_is_refused_unchanged(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE diary (page TEXT)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program's database"):
        Store.open(path)
    assert path.read_bytes() == before


def test_a_store_of_a_newer_version_is_refused_unchanged(path: Path) -> None:
    with Store.open(path) as store:
        fill(store)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match=r"schema is 99, .*: update rousseau-runner"):
        Store.open(path)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM audit").fetchone() == (10,)


def test_a_migration_that_fails_leaves_the_store_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(path) as store:
        fill(store)
    known = schema._MIGRATIONS
    bad = ("CREATE TABLE extra (a)", "CREATE TABLE calls (a)")
    monkeypatch.setattr(schema, "_MIGRATIONS", (*known, bad))
    with pytest.raises(StoreError):
        Store.open(path)
    monkeypatch.setattr(schema, "_MIGRATIONS", (*known, bad[:1]))
    with Store.open(path) as store:
        assert store.verify() == 10
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (len(known) + 1,)
        assert db.execute("SELECT count(*) FROM extra").fetchone() == (0,)


def test_a_file_of_the_first_version_is_brought_to_this_one(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = schema._MIGRATIONS
    monkeypatch.setattr(schema, "_MIGRATIONS", known[:1])
    with Store.open(path, clock=clock) as store:
        with closing(sqlite3.connect(path)) as db:
            columns = [row[1] for row in db.execute("PRAGMA table_info(calls)")][1:]
            assert columns[-2:] == ["arguments", "output"]
            of_sessions = [row[1] for row in db.execute("PRAGMA table_info(sessions)")]
            assert "title" not in of_sessions
        as_now = dict(zip(SESSION_FIELDS, session_row(session()), strict=True))
        with store._db.writing:
            store._db.execute(
                inserting("sessions", of_sessions), [as_now[name] for name in of_sessions]
            )
            store._append(AuditEvent.SESSION_OPENED, "s1", "", {})
        # As the first version wrote and signed it.
        values = [
            "c1", "s1", "bash", "deny", "deny[2]", "no", "ab" * 32, "denied", None, NOW, 0.001,
            60.0, OWNER, "{}", "bash: denied: no", '{"command":"echo hi"}', "",
        ]  # fmt: skip
        signed = [*values[:-2], *(hashlib.sha256(str(text).encode()).hexdigest()
                                  for text in values[-2:])]  # fmt: skip
        array = json.dumps(signed, separators=(",", ":"))
        body = {"arguments_sha256": "", "record": hashlib.sha256(array.encode()).hexdigest()}
        with store._db.writing:
            marks = ", ".join("?" * len(columns))
            store._db.execute(f"INSERT INTO calls ({', '.join(columns)}) VALUES ({marks})", values)
            store._append(AuditEvent.TOOL_DENIED, "s1", "c1", body)
    monkeypatch.setattr(schema, "_MIGRATIONS", known)
    with Store.open(path, clock=clock) as store:
        assert store.verify() == 2
        assert store.session("s1") == session()
        assert store.call("c1") == denied()
        assert store.approvals(include_ended=True) == []
        store.begin_call(record("c2", approval="a-1", shadow="{}"), owner=OWNER)
        store.finish_call(result("c2"))
        done = store.call("c2")
        assert done is not None
        assert (done.approval, done.shadow) == ("a-1", "{}")
        assert store.end_session("s1", SessionState.CLOSED)
        assert store.verify() == 5
    tamper(path, "UPDATE calls SET approval = 'a-2' WHERE id = 'c1'")
    assert broken(path).row == 2


def test_the_file_is_in_wal_mode_with_foreign_keys(store: Store) -> None:
    pragmas = {
        name: store._db.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
    }
    assert pragmas == {
        "journal_mode": "wal",
        "synchronous": 1,
        "foreign_keys": 1,
        "busy_timeout": 5000,
    }


def test_a_closed_store_says_so_and_closes_twice(path: Path) -> None:
    store = Store.open(path)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.sessions()
    with pytest.raises(StoreError, match="closed"):
        store.add_session(session())


def test_a_store_that_nobody_closes_warns(path: Path) -> None:
    store = Store.open(path)
    with pytest.warns(ResourceWarning, match="was not closed"):
        store.__del__()
    store.close()
