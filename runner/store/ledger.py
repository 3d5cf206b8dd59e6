"""`Ledger`: the file while it is open, its clock, and the one way to append to the chain.

Owns the statements about the audit's rows. Each table that changes together with the chain
has a class above this one; together they are `store.Store`.
"""

import os
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from runner.audit import (
    APPROVAL_EVENT,
    LAST_EVENT,
    NETWORK_EVENT,
    AuditEvent,
    AuditRow,
    Head,
    Link,
    Verifier,
    link,
)
from runner.errors import AuditBroken, StoreError
from runner.store import schema
from runner.store.database import Database
from runner.store.rows import CallRow

__all__ = [
    "TOUCH_EVERY_S",
    "UNKNOWN_OWNER_GRACE_S",
    "Ledger",
    "checked_event",
    "inserting",
    "no_session",
]

STORED_OUTPUT_LIMIT_BYTES = 64 * 1024
"""How much of an output, and of an error, is kept: the start. The hash is of the whole."""
BUSY_TIMEOUT_S = 5.0
"""How long a transaction waits for another process's."""

UNKNOWN_OWNER_GRACE_S = 3600.0
"""How long after its deadline something stays open whose owner nobody here can see."""

TOUCH_EVERY_S = 0.05
"""A session that is in full use is written now and then, not twice a call: `used_at` may be
behind by this after a call has begun, and by twice this after it has ended."""
_BATCH_ROWS = 256
"""Rows per read transaction: one that stays open keeps the log from being copied back."""

_OWN_EVENTS = frozenset(
    {
        AuditEvent.TOOL_EXECUTE,
        *LAST_EVENT.values(),
        *APPROVAL_EVENT.values(),
        *NETWORK_EVENT.values(),
        AuditEvent.NETWORK_ENDED,
        *(event for event in AuditEvent if event.startswith("cron.")),
    }
)
"""Rows that come with the change that they tell of, and in no other way."""


def inserting(table: str, columns: Sequence[str]) -> str:
    """The statement that adds a row."""
    marks = ", ".join("?" * len(columns))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608


_AUDIT_COLUMNS = ", ".join(Link._fields)
_INSERT_AUDIT = inserting("audit", Link._fields)


class Ledger:
    """The database, open. A context manager; use it on the thread that opened it.

    Every method may raise `StoreError`: the file is locked for longer than the busy
    time-out, damaged, read-only, gone, or its disk is full; the message names the file and
    says what to do. Nothing of the method's change is then kept.
    """

    def __init__(
        self, database: Database, *, stored_output_limit_bytes: int, clock: Callable[[], float]
    ):
        self.path = database.path
        self._db = database
        self._output_limit_bytes = stored_output_limit_bytes
        self._clock = clock
        self._last_head: Head | None = None
        """The last row that was added here; the chain's end unless somebody else added one."""
        self._closed = False

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        stored_output_limit_bytes: int = STORED_OUTPUT_LIMIT_BYTES,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """Open the store at `path`; make it, and the directories above, where there is none.

        Directories are made with mode 0o700, the file with 0o600; a file that others may
        read is closed to them.

        Args:
            path: The database. SQLite puts `PATH-wal` and `PATH-shm` beside it.
            stored_output_limit_bytes: How much of an output, and of an error, is kept.
            busy_timeout_s: How long to wait for another process's transaction.
            clock: Seconds since the epoch, for the rows' times.

        Raises:
            StoreError: As for every method; and where the path is not a regular file of
                ours in a directory that only we can write, is not a store, was made by a
                newer version, or lies on a file system that can't hold one.
        """
        database = Database.open(Path(path).absolute(), busy_timeout_s=busy_timeout_s)
        try:
            # Before anything is changed: it may be somebody else's file.
            current = schema.check(database)
            database.share()
            if not current:
                schema.migrate(database)
        except BaseException:
            database.close()
            raise
        return cls(database, stored_output_limit_bytes=stored_output_limit_bytes, clock=clock)

    def close(self) -> None:
        """Close the file. A second time does nothing."""
        if not self._closed:
            self._closed = True
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        return f"<Store {str(self.path)!r}>"

    def now(self) -> float:
        """The store's clock: seconds since the epoch."""
        return self._clock()

    def audit(
        self, event: AuditEvent, *, session_id: str = "", body: Mapping[str, Any] | None = None
    ) -> None:
        """Append a row that is not about a call: those come with `begin_call` and the like.

        Args:
            event: What happened.
            session_id: To which session; empty where to none.
            body: The facts: JSON values.
        """
        with self._db.writing:
            self._append(checked_event(event), session_id, "", body or {})

    def audit_rows(self, *, after: int = 0, session_id: str | None = None) -> Iterator[AuditRow]:
        """The rows up to the last there is, in order. Nothing is verified; that is `verify`.

        No transaction is open between two rows, so take your time.

        Args:
            after: Only rows with a higher number: the last one seen, to follow.
            session_id: Only this session's; None for all.

        Raises:
            AuditBroken: A row can't even be read.
        """
        where, values = ("AND session_id = ?", [session_id]) if session_id is not None else ("", [])
        while True:
            with self._db.translated:
                found = self._db.execute(
                    f"SELECT {_AUDIT_COLUMNS} FROM audit WHERE seq > ? {where}"  # noqa: S608
                    " ORDER BY seq LIMIT ?",
                    (after, *values, _BATCH_ROWS),
                ).fetchall()
            for row in found:
                yield Link._make(row).read()
            if len(found) < _BATCH_ROWS:
                return
            after = found[-1][0]

    def head(self) -> Head:
        """The end of the chain, to be kept where who can write this file can't."""
        with self._db.translated:
            return self._head()

    def verify(self, expected_head: Head | None = None) -> int:
        """Read the whole chain and check it, and `calls` against it.

        Args:
            expected_head: What `head` returned some time ago: the chain must still lead
                through it.

        Returns:
            The number of rows.

        Raises:
            AuditBroken: With the number of the first bad row. One that is missing at the
                end, or that a call in `calls` ought to have, counts as the one after the last.
        """
        # One snapshot: others may append meanwhile, which is not to be seen here.
        with self._db.reading_anything():
            head = self._read_head()
            columns = [f"audit.{name}" for name in Link._fields]
            columns += [f"calls.{name}" for name in CallRow._fields]
            found = self._db.execute(
                f"SELECT {', '.join(columns)} FROM audit"  # noqa: S608
                " LEFT JOIN calls ON audit.call_id != '' AND calls.id = audit.call_id"
                " ORDER BY audit.seq"
            )
            verifier = Verifier(expected_head)
            width = len(Link._fields)
            for row in found:
                call = row[width:]
                known = None if call[0] is None else CallRow._make(call)
                verifier.feed(Link._make(row[:width]), known)
            (calls,) = self._db.execute("SELECT count(*) FROM calls").fetchone()
            return verifier.close(head, calls=calls)

    # Inside

    def _touch(self, session_id: str, used_at: float) -> None:
        self._db.execute(
            "UPDATE sessions SET used_at = ? WHERE id = ? AND used_at < ?",
            (used_at, session_id, used_at - TOUCH_EVERY_S),
        )

    def _head(self) -> Head:
        head = self._read_head()
        if head is None:
            raise AuditBroken("the record of the audit's last row is gone", row=0)
        return head

    def _read_head(self) -> Head | None:
        row = self._db.execute("SELECT seq, hash FROM audit_head").fetchone()
        return None if row is None else Head._make(row)

    def _append(
        self, event: AuditEvent, session_id: str, call_id: str, body: Mapping[str, Any]
    ) -> None:
        """Add a row to the chain, inside the caller's transaction.

        It is linked to the last row that was added here. A trigger refuses what does not
        follow the chain's end: then another process has moved it, or that row of ours was
        rolled back, and the end is read.
        """
        at_us = round(self._clock() * 1_000_000)

        def following(head: Head) -> Link:
            return link(
                head, at_us=at_us, event=event, session_id=session_id, call_id=call_id, body=body
            )

        assumed = self._last_head or self._head()
        row = following(assumed)
        try:
            self._db.execute(_INSERT_AUDIT, row)
        except sqlite3.IntegrityError:
            head = self._head()
            if head == assumed:
                raise
            row = following(head)
            self._db.execute(_INSERT_AUDIT, row)
        self._last_head = Head(row.seq, row.hash)


def no_session(session_id: str) -> StoreError:
    """The error of an id that is no session's."""
    return StoreError(f"there is no session {session_id!r}")


def checked_event(event: AuditEvent) -> AuditEvent:
    """An event that may be told of by itself.

    Raises:
        ValueError: Its rows come with a call, an approval or a connection.
    """
    if event in _OWN_EVENTS:
        raise ValueError(f"{event} rows come with the change that they tell of")
    return event
