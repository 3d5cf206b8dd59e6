"""Searching the store: what is found, in which order, and what it does not cost."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from runner.errors import ConfigurationError, StoreError
from runner.model import Status
from runner.store import Store
from runner.store.search import QUERY_LIMIT_BYTES, SNIPPET_CHARACTERS
from tests.test_store import OWNER, denied, record, result, session


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path) as store:
        store.add_session(session("s1", title="nightly report"))
        store.add_session(session("s2"))
        yield store


def a_call(
    store: Store, call_id: str, output: str, *, session_id: str = "s1", command: str = "echo hi"
) -> None:
    arguments = f'{{"command":"{command}"}}'
    store.begin_call(record(call_id, session_id=session_id, arguments=arguments), owner=OWNER)
    store.finish_call(result(call_id, output=output))


def found(store: Store, query: str, **options: int) -> list[tuple[str, str]]:
    return [(hit.session_id, hit.call_id) for hit in store.search(query, **options)]


def test_words_are_found_in_arguments_outputs_errors_tools_and_titles(store: Store) -> None:
    a_call(store, "c1", "twelve passed", command="pytest")
    store.begin_call(denied("c2", session_id="s2"), owner=OWNER)
    assert found(store, "pytest") == found(store, "twelve") == [("s1", "c1")]
    assert found(store, "denied") == [("s2", "c2")]
    assert found(store, "tool:bash AND no") == [("s2", "c2")]
    assert found(store, "nightly") == [("s1", "c1")]
    assert found(store, "absent") == []


def test_the_syntax_is_fts5s(store: Store) -> None:
    a_call(store, "c1", "the quick brown fox")
    a_call(store, "c2", "the brown quick dog", session_id="s2")
    assert found(store, '"quick brown"') == [("s1", "c1")]
    assert sorted(found(store, "fox OR dog")) == [("s1", "c1"), ("s2", "c2")]
    assert found(store, "quick NOT fox") == [("s2", "c2")]
    assert sorted(found(store, "qui*")) == [("s1", "c1"), ("s2", "c2")]
    assert found(store, "FOXES") == [("s1", "c1")]


def test_the_best_call_of_a_session_stands_for_it_and_the_best_session_is_first(
    store: Store,
) -> None:
    a_call(store, "c1", "needle " + "hay " * 200)
    a_call(store, "c2", "needle needle needle", session_id="s2")
    a_call(store, "c3", "needle in " + "hay " * 20)
    hits = store.search("needle")
    assert [(hit.session_id, hit.call_id) for hit in hits] == [("s2", "c2"), ("s1", "c3")]
    assert hits[0].rank <= hits[1].rank
    assert found(store, "needle", limit=1) == [("s2", "c2")]


def test_a_snippet_is_one_short_line_around_the_place(store: Store) -> None:
    a_call(store, "c1", "before\n" * 100 + "the needle\tis here\n" + "after\n" * 100)
    (hit,) = store.search("needle")
    assert "the needle is here" in hit.snippet
    assert hit.snippet.startswith("…")
    assert hit.snippet.endswith("…")
    assert len(hit.snippet) <= SNIPPET_CHARACTERS
    a_call(store, "c2", "x" * 5000 + " haystack", session_id="s2")
    (hit,) = store.search("haystack")
    assert len(hit.snippet) <= SNIPPET_CHARACTERS


def test_a_call_is_found_once_it_is_complete(store: Store) -> None:
    store.begin_call(record("c1", arguments='{"command":"make slow"}'), owner=OWNER)
    a_call(store, "c2", "fast", session_id="s2")
    assert found(store, "slow") == []
    assert found(store, "fast") == [("s2", "c2")]
    store.finish_call(result("c1", output="late words", status=Status.FAILED, error="exit 3"))
    assert found(store, "slow") == found(store, "late") == [("s1", "c1")]
    assert found(store, "slow") == [("s1", "c1")]  # once, not twice


def test_more_calls_than_a_batch_are_indexed_and_found(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.store.search._BATCH_ROWS", 3)
    for number in range(10):
        a_call(store, f"c{number}", f"word{number}")
    store.begin_call(record("open"), owner=OWNER)
    rounds = 0
    while store.index_some():
        rounds += 1
    assert rounds == 4
    assert found(store, "word0") == [("s1", "c0")]
    assert found(store, "word9") == [("s1", "c9")]


def test_two_processes_index_each_call_once(store: Store, path: Path) -> None:
    with Store.open(path) as other:
        assert other.search("needle") == []
        a_call(store, "c1", "needle")
        assert found(other, "needle") == found(store, "needle") == [("s1", "c1")]
    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO calls_text (calls_text, rank) VALUES ('integrity-check', 1)")
        assert db.execute("SELECT seq FROM calls_searched_to").fetchall() == [(1,)]


def test_nothing_is_indexed_before_somebody_searches(store: Store, path: Path) -> None:
    a_call(store, "c1", "needle")
    with closing(sqlite3.connect(path)) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    assert not any("search" in name or "calls_text" in name for name in tables)
    assert found(store, "needle") == [("s1", "c1")]
    assert store.verify() == 4


@pytest.mark.parametrize("query", ['"open', "AND", "a AND", "nosuch:word", "(", "*", "", "a^^"])
def test_what_is_no_query_is_an_error_that_says_so(store: Store, query: str) -> None:
    a_call(store, "c1", "needle")
    with pytest.raises(ConfigurationError, match="FTS5"):
        store.search(query)
    assert found(store, "needle") == [("s1", "c1")]


def test_odd_characters_in_a_query_are_an_error(store: Store) -> None:
    for query in ("a\0b", "\ud800", "'; DROP TABLE calls; --"):
        with pytest.raises(ConfigurationError, match="FTS5"):
            store.search(query)
    with pytest.raises(ConfigurationError, match="longer than"):
        store.search("x" * (QUERY_LIMIT_BYTES + 1))


def test_without_fts5_the_error_says_what_is_missing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runner.store import search

    replaced = [statement.replace("fts5", "fts99") for statement in search._SCHEMA]
    monkeypatch.setattr(search, "_SCHEMA", replaced)
    with pytest.raises(StoreError, match="built without FTS5"):
        store.search("needle")
    a_call(store, "c1", "needle")  # the rest works
    monkeypatch.undo()
    assert found(store, "needle") == [("s1", "c1")]
