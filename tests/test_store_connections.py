"""Connections in the store: what is kept of them, and what the audit says."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.errors import StoreError
from runner.model import Connection, SessionState, Verdict
from runner.store import AuditEvent, Store
from tests.test_store import NOW, Clock, session


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    with Store.open(tmp_path / "data" / "store.db", clock=clock) as store:
        store.add_session(session())
        yield store


def connection(connection_id: str = "n1", **changes: Any) -> Connection:
    value = Connection(
        id=connection_id,
        session_id="s1",
        protocol="connect",
        host="pypi.org",
        port=443,
        method="",
        path="",
        address="151.101.0.223",
        verdict=Verdict.ALLOW,
        rule="network.allow[0]",
        reason="",
        credential="",
        started_at=NOW,
    )
    return replace(value, **changes)


def bodies(store: Store) -> list[tuple[str, Any]]:
    return [(row.event, row.body) for row in store.audit_rows()][1:]


def test_an_allowed_connection_is_open_until_it_is_ended(store: Store) -> None:
    store.add_connection(connection())
    assert store.connections("s1") == [connection()]
    assert store.connections("s1", only_open=True) == [connection()]
    assert store.end_connection(
        "n1", ended_at=NOW + 2, sent_bytes=10, received_bytes=2000, reason=""
    )
    ended = connection(ended_at=NOW + 2, sent_bytes=10, received_bytes=2000)
    assert store.connections() == [ended]
    assert store.connections(only_open=True) == []
    facts = {
        "connection": "n1",
        "protocol": "connect",
        "host": "pypi.org",
        "port": 443,
        "method": "",
        "path": "",
        "address": "151.101.0.223",
        "verdict": "allow",
        "rule": "network.allow[0]",
        "credential": "",
    }
    end = {
        "connection": "n1",
        "host": "pypi.org",
        "port": 443,
        "duration_s": 2.0,
        "sent_bytes": 10,
        "received_bytes": 2000,
        "reason": "",
    }
    assert bodies(store) == [(AuditEvent.NETWORK_ALLOWED, facts), (AuditEvent.NETWORK_ENDED, end)]
    assert store.verify() == 3


def test_a_denied_connection_has_one_row_and_has_ended(store: Store) -> None:
    denied = connection(verdict=Verdict.DENY, rule=None, reason="not on the list", address="")
    store.add_connection(denied)
    assert store.connections() == [replace(denied, ended_at=NOW)]
    ((event, body),) = bodies(store)
    assert (event, body["verdict"], body["rule"]) == (AuditEvent.NETWORK_DENIED, "deny", None)
    assert body["reason"] == "not on the list"
    assert not store.end_connection("n1", ended_at=NOW, sent_bytes=0, received_bytes=0)


def test_a_connection_ends_once(store: Store) -> None:
    store.add_connection(connection())
    assert store.end_connection("n1", ended_at=NOW, sent_bytes=1, received_bytes=1, reason="reset")
    assert not store.end_connection("n1", ended_at=NOW + 9, sent_bytes=2, received_bytes=2)
    (kept,) = store.connections()
    assert (kept.ended_at, kept.sent_bytes, kept.reason) == (NOW, 1, "reset")
    assert len(bodies(store)) == 2


def test_connections_come_newest_first_and_by_session(store: Store) -> None:
    store.add_session(session("s2"))
    for number in range(4):
        session_id = "s2" if number == 1 else "s1"
        store.add_connection(connection(f"n{number}", session_id=session_id))
    assert [each.id for each in store.connections()] == ["n3", "n2", "n1", "n0"]
    assert [each.id for each in store.connections("s1", 2)] == ["n3", "n2"]
    assert [each.id for each in store.connections("s2")] == ["n1"]
    assert store.connections("s3") == []


def test_the_end_of_a_session_ends_its_connections(store: Store, clock: Clock) -> None:
    store.add_session(session("s2"))
    store.add_connection(connection("n1"))
    store.add_connection(connection("n2", session_id="s2"))
    clock.now = NOW + 5
    store.end_session("s1", SessionState.CLOSED)
    other, ended = store.connections()
    assert other.ended_at is None
    assert (ended.ended_at, ended.reason) == (NOW + 5, "its session is closed")
    assert [row.event for row in store.audit_rows(session_id="s1")][-2:] == [
        AuditEvent.SESSION_CLOSED,
        AuditEvent.NETWORK_ENDED,
    ]


def test_what_a_container_names_is_bounded(store: Store) -> None:
    store.add_connection(connection(host="ä" * 5000, path="/" * 5000, method="X" * 5000))
    (kept,) = store.connections()
    for text in (kept.host, kept.path, kept.method):
        assert len(text.encode()) <= 1024 + len("…".encode())
        assert text.endswith("…")
    ((_, body),) = bodies(store)
    assert (body["host"], body["path"]) == (kept.host, kept.path)


def test_what_can_not_be_recorded_is_an_error_that_leaves_nothing(store: Store) -> None:
    store.add_connection(connection())
    with pytest.raises(StoreError, match="there is a connection 'n1' already"):
        store.add_connection(connection())
    with pytest.raises(StoreError, match="no session 's9'"):
        store.add_connection(connection("n2", session_id="s9"))
    with pytest.raises(ValueError, match="allowed or denied"):
        store.add_connection(connection("n2", verdict=Verdict.ASK))
    with pytest.raises(StoreError, match="there is no connection 'n2'"):
        store.end_connection("n2", ended_at=NOW, sent_bytes=0, received_bytes=0)
    assert len(store.connections()) == len(bodies(store)) == 1
    assert store.verify() == 2
