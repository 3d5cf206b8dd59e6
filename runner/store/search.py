"""Full-text search over what was called and what came of it.

Owns the index: an FTS5 table over `calls`, which holds no text of its own. It is made and
brought up to date by whoever searches, so that calls do not wait for it. Calls that are open
are noted, and indexed once they are complete; a complete one does not change.
"""

import sqlite3
from typing import NamedTuple

from runner.errors import ConfigurationError, StoreError
from runner.store.ledger import Ledger

__all__ = ["Hit", "SearchIndex"]

QUERY_LIMIT_BYTES = 4096
"""A query's length. It is a person's or a model's words, not a document."""
SNIPPET_CHARACTERS = 200
_SNIPPET_TOKENS = 28
"""About as many as these characters; FTS5 counts in tokens."""
_BATCH_ROWS = 64
"""Calls per transaction that indexes: up to 8 MiB of text, for which other writers wait."""

_SCHEMA = (
    # The words of a session's title count with those of each of its calls.
    """
    CREATE VIEW IF NOT EXISTS calls_searched (seq, title, tool, arguments, output, error) AS
    SELECT calls.seq, sessions.title, calls.tool, calls.arguments, calls.output, calls.error
    FROM calls JOIN sessions ON sessions.id = calls.session_id
    """,
    """
    CREATE VIRTUAL TABLE IF NOT EXISTS calls_text USING fts5 (
        title, tool, arguments, output, error,
        content = 'calls_searched', content_rowid = 'seq', tokenize = 'porter unicode61'
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS calls_unsearched (seq INTEGER NOT NULL PRIMARY KEY)
    """,
    """
    CREATE TABLE IF NOT EXISTS calls_searched_to (
        id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1), seq INTEGER NOT NULL
    )
    """,
    "INSERT OR IGNORE INTO calls_searched_to VALUES (1, 0)",
)

_INDEX = (
    "INSERT INTO calls_text (rowid, title, tool, arguments, output, error)"
    " SELECT * FROM calls_searched WHERE seq IN"
)


class Hit(NamedTuple):
    """A session in which something was found."""

    session_id: str
    call_id: str
    """The session's best call."""
    rank: float
    """BM25: the lower, the better."""
    snippet: str
    """The place, as about 200 characters on one line."""


class SearchIndex(Ledger):
    """Searching what the store knows of calls."""

    _can_search = False

    def search(self, query: str, *, limit: int = 20) -> list[Hit]:
        """Sessions with a call that fits, best first.

        What was called since the last search is indexed first, in transactions of bounded
        size: the first search in an old file takes long.

        Args:
            query: In the syntax of SQLite's FTS5: words, "phrases", AND, OR, NOT, prefix*.
            limit: At most so many sessions.

        Raises:
            ConfigurationError: The query is not in that syntax, or too long.
            StoreError: This Python's SQLite has no FTS5.
        """
        _check(query)
        self._make_searchable()
        while self.index_some():
            pass
        with self._db.reading:
            try:
                return self._search(query, limit)
            except sqlite3.OperationalError as error:
                # What a query can be to blame for, FTS5 reports as a generic error.
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_ERROR:
                    raise
                raise ConfigurationError(f"not a query that FTS5 understands: {error}") from error

    def index_some(self) -> bool:
        """Index the next calls that are not yet; `search` does so until there are none.

        For who must not be held up: one transaction of bounded size at a time.

        Returns:
            Whether there may be more.

        Raises:
            StoreError: This Python's SQLite has no FTS5.
        """
        self._make_searchable()
        with self._db.translated:
            if not self._complete_now() and not self._new():
                return False
        with self._db.writing:
            # Read again: another process may have been here in between.
            complete, new = self._complete_now(), self._new()
            ready = [*complete, *(seq for seq, is_open in new if not is_open)]
            self._db.execute(f"{_INDEX} ({', '.join('?' * len(ready))})", ready)
            for seq in complete:
                self._db.execute("DELETE FROM calls_unsearched WHERE seq = ?", (seq,))
            for seq, is_open in new:
                if is_open:
                    self._db.execute("INSERT INTO calls_unsearched VALUES (?)", (seq,))
            if new:
                self._db.execute("UPDATE calls_searched_to SET seq = ?", (new[-1][0],))
        return True

    # Inside

    def _make_searchable(self) -> None:
        if self._can_search:
            return
        with self._db.reading:
            there = self._db.execute(
                "SELECT 1 FROM sqlite_master WHERE name = 'calls_searched_to'"
            ).fetchone()
        if there is None:
            with self._db.writing:
                for statement in _SCHEMA:
                    self._run_schema(statement)
        self._can_search = True

    def _run_schema(self, statement: str) -> None:
        try:
            self._db.execute(statement)
        except sqlite3.OperationalError as error:
            if "no such module" not in str(error):
                raise
            raise StoreError(
                "can't search: the SQLite of this Python was built without FTS5; use a Python"
                f" whose SQLite has it ({error})"
            ) from error

    def _complete_now(self) -> list[int]:
        """Calls that were open when the index came by, and are not any more."""
        found = self._db.execute(
            "SELECT calls_unsearched.seq FROM calls_unsearched"
            " JOIN calls ON calls.seq = calls_unsearched.seq"
            " WHERE calls.status IS NOT NULL ORDER BY calls_unsearched.seq LIMIT ?",
            (_BATCH_ROWS,),
        )
        return [seq for (seq,) in found]

    def _new(self) -> list[tuple[int, bool]]:
        """Calls that the index has not come by, each with whether it is open."""
        found = self._db.execute(
            "SELECT seq, status IS NULL FROM calls"
            " WHERE seq > (SELECT seq FROM calls_searched_to) ORDER BY seq LIMIT ?",
            (_BATCH_ROWS,),
        )
        return [(seq, bool(is_open)) for seq, is_open in found]

    def _search(self, query: str, limit: int) -> list[Hit]:
        best: dict[str, tuple[int, str, float]] = {}
        found = self._db.execute(
            "SELECT calls.session_id, calls.seq, calls.id, calls_text.rank FROM calls_text"
            " JOIN calls ON calls.seq = calls_text.rowid"
            " WHERE calls_text MATCH ? ORDER BY calls_text.rank, calls.seq",
            (query,),
        )
        for session_id, seq, call_id, rank in found:
            if session_id not in best:
                best[session_id] = (seq, call_id, rank)
                if len(best) == limit:
                    break
        return [
            Hit(session_id, call_id, rank, self._snippet(query, seq))
            for session_id, (seq, call_id, rank) in best.items()
        ]

    def _snippet(self, query: str, seq: int) -> str:
        (text,) = self._db.execute(
            "SELECT snippet(calls_text, -1, '', '', '…', ?) FROM calls_text"
            " WHERE calls_text MATCH ? AND rowid = ?",
            (_SNIPPET_TOKENS, query, seq),
        ).fetchone()
        line = " ".join(text.split())
        if len(line) <= SNIPPET_CHARACTERS:
            return line
        return f"{line[: SNIPPET_CHARACTERS - 1].rstrip('…')}…"


def _check(query: str) -> None:
    try:
        size = len(query.encode())
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"the query is not text that FTS5 understands: {error}") from error
    if size > QUERY_LIMIT_BYTES:
        raise ConfigurationError(f"the query is longer than {QUERY_LIMIT_BYTES} bytes")
    if "\0" in query:  # where it would end, unnoticed
        raise ConfigurationError("the query is not text that FTS5 understands: it holds a NUL")
