"""`Store`: sessions and calls, and with its parents all that is in the file.

Owns the statements about sessions and calls. Decides nothing about a call and removes
nothing.

A change and the audit row that tells of it are in one transaction: both are there, or
neither is. Whoever appends to the chain reads its head under the same lock, so the chain is
the same for all processes.
"""

import sqlite3
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, Unpack

from runner.audit import LAST_EVENT, AuditEvent, canonical
from runner.errors import StoreError
from runner.model import Record, SessionInfo, SessionState, Status, ToolResult, Verdict
from runner.store import rows
from runner.store.approvals import ApprovalRecords
from runner.store.connections import ConnectionRecords
from runner.store.database import Database
from runner.store.jobs import JobRecords
from runner.store.ledger import (
    TOUCH_EVERY_S,
    UNKNOWN_OWNER_GRACE_S,
    checked_event,
    inserting,
    no_session,
)
from runner.store.rows import Begun, CallRow
from runner.store.search import SearchIndex

__all__ = ["SessionChanges", "Store"]

_END_EVENT: dict[SessionState, AuditEvent] = {
    SessionState.CLOSED: AuditEvent.SESSION_CLOSED,
    SessionState.EXPIRED: AuditEvent.SESSION_EXPIRED,
}


class SessionChanges(TypedDict, total=False):
    """What `Store.update_session` can change."""

    container_id: str | None
    used_at: float
    expires_at: float
    marker: str
    options: Mapping[str, Any]


_SESSION_COLUMNS = ", ".join(rows.SESSION_FIELDS)
_CALL_COLUMNS = ", ".join(CallRow._fields)
_CALL_COLUMNS_WITHOUT_OUTPUT = ", ".join(
    "''" if name == "output" else name for name in CallRow._fields
)

_INSERT_SESSION = inserting("sessions", rows.SESSION_FIELDS)
_INSERT_CALL = inserting("calls", CallRow._fields)
_COMPLETE_CALL = (
    "UPDATE calls SET verdict = ?, rule = ?, reason = ?, status = ?, exit_code = ?,"
    " duration_s = ?, details = ?, error = ?, output = ?"
    " WHERE seq = ? AND id = ? AND status IS NULL"
)


class Store(ApprovalRecords, ConnectionRecords, JobRecords, SearchIndex):
    """The database, open. A context manager; use it on the thread that opened it.

    Every method may raise `StoreError`: the file is locked for longer than the busy
    time-out, damaged, read-only, gone, or its disk is full; the message names the file and
    says what to do. Nothing of the method's change is then kept.
    """

    def __init__(
        self, database: Database, *, stored_output_limit_bytes: int, clock: Callable[[], float]
    ):
        super().__init__(database, stored_output_limit_bytes=stored_output_limit_bytes, clock=clock)
        self._begun: dict[str, Begun] = {}
        """The open calls that were begun here, by their ids: not to be read again."""

    # Sessions

    def add_session(self, info: SessionInfo) -> None:
        """Add a session, with a `session.opened` row.

        Raises:
            StoreError: The id is taken.
        """
        row = rows.session_row(info)
        body = rows.body_of_session(info)
        with self._db.writing:
            if self._db.execute("SELECT 1 FROM sessions WHERE id = ?", (info.id,)).fetchone():
                raise StoreError(f"there is a session {info.id!r} already")
            self._db.execute(_INSERT_SESSION, row)
            self._append(AuditEvent.SESSION_OPENED, info.id, "", body)

    def session(self, session_id: str) -> SessionInfo | None:
        """The session of this id, ended or not; None where there never was one."""
        with self._db.translated:
            row = self._db.execute(
                f"SELECT {_SESSION_COLUMNS} FROM sessions WHERE id = ?",  # noqa: S608
                (session_id,),
            ).fetchone()
        return None if row is None else rows.session_of(row)

    def sessions(self, *, include_ended: bool = False) -> list[SessionInfo]:
        """All open sessions, oldest first; with `include_ended` the others too."""
        where = "" if include_ended else "WHERE state = 'open'"
        with self._db.translated:
            found = self._db.execute(
                f"SELECT {_SESSION_COLUMNS} FROM sessions {where} ORDER BY created_at, rowid"  # noqa: S608
            ).fetchall()
        return [rows.session_of(row) for row in found]

    def recent_sessions(self, *, limit: int) -> list[tuple[SessionInfo, int, int]]:
        """The sessions that were used last, newest first, ended or not.

        Returns:
            Each with how many calls it has, and how many of these are complete.
        """
        with self._db.reading:
            found = self._db.execute(
                f"SELECT {_SESSION_COLUMNS} FROM sessions ORDER BY used_at DESC, rowid DESC"  # noqa: S608
                " LIMIT ?",
                (limit,),
            ).fetchall()
            infos = [rows.session_of(row) for row in found]
            return [(info, *self._count_calls_of(info.id)) for info in infos]

    def count_calls_of(self, session_id: str) -> tuple[int, int]:
        """How many calls a session has, and how many of these are complete."""
        with self._db.reading:
            return self._count_calls_of(session_id)

    def update_session(
        self,
        session_id: str,
        *,
        event: AuditEvent | None = None,
        body: Mapping[str, Any] | None = None,
        **changes: Unpack[SessionChanges],
    ) -> None:
        """Change a session; with `event`, such as `SESSION_REBUILT`, tell of it in the audit.

        Raises:
            StoreError: There is no such session.
        """
        unknown = changes.keys() - SessionChanges.__annotations__.keys()
        if unknown or not changes:
            raise TypeError(f"not a change to a session: {', '.join(sorted(unknown)) or 'nothing'}")
        values: dict[str, Any] = dict(changes)
        if "options" in changes:
            values["options"] = canonical(dict(changes["options"]))
        assignments = ", ".join(f"{name} = ?" for name in values)
        with self._db.writing:
            updated = self._db.execute(
                f"UPDATE sessions SET {assignments} WHERE id = ?",  # noqa: S608  names of ours
                (*values.values(), session_id),
            )
            if updated.rowcount == 0:
                raise no_session(session_id)
            if event is not None:
                self._append(checked_event(event), session_id, "", body or {})

    def end_session(self, session_id: str, state: SessionState, *, reason: str = "") -> bool:
        """Close an open session, or let it expire, with the audit row of that.

        Its approvals that are still pending are cancelled with it, and its connections that
        are still open have ended.

        Returns:
            Whether this call ended it: of several processes that try, one does.

        Raises:
            StoreError: There is no such session.
        """
        event = _END_EVENT[state]
        now = self._clock()
        with self._db.writing:
            updated = self._db.execute(
                "UPDATE sessions SET state = ?, ended_at = ? WHERE id = ? AND state = 'open'",
                (state, now, session_id),
            )
            if updated.rowcount:
                body = {"reason": rows.kept(reason, rows.NAME_LIMIT_BYTES)}
                self._append(event, session_id, "", body)
                self._cancel_approvals(session_id, f"its session is {state}")
                self._end_connections(session_id, f"its session is {state}")
                return True
            if not self._db.execute(
                "SELECT 1 FROM sessions WHERE id = ?", (session_id,)
            ).fetchone():
                raise no_session(session_id)
            return False

    # Calls

    def begin_call(self, record: Record, *, owner: str) -> None:
        """Record a call before it runs, and that its session is in use.

        A record without a status is an open one, for `finish_call` to complete, and gets a
        `tool.execute` row. One with a status is complete, since the call was denied or
        invalid, and gets that status's row at once.

        Args:
            record: The call. Its arguments are kept up to `STORED_ARGUMENTS_LIMIT_BYTES`,
                its output up to the store's limit; `details["not_stored_bytes"]` then says
                how much of each is missing.
            owner: The identity of the process that will finish it.

        Raises:
            StoreError: The call's id is taken, or there is no such session.
        """
        row, body, arguments_sha256 = rows.opened(
            record, owner=owner, output_limit_bytes=self._output_limit_bytes
        )
        event = AuditEvent.TOOL_EXECUTE if record.status is None else LAST_EVENT[record.status]
        with self._db.writing:
            try:
                seq = self._db.execute(_INSERT_CALL, row).lastrowid
            except sqlite3.IntegrityError as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
                    raise no_session(row.session_id) from error
                if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_UNIQUE:
                    raise StoreError(f"there is a call {row.id!r} already") from error
                raise
            self._touch(row.session_id, row.started_at)
            self._append(event, row.session_id, row.id, body)
        if record.status is None:
            assert seq is not None
            self._begun[row.id] = Begun(seq, row, arguments_sha256)

    def finish_call(self, result: ToolResult) -> None:
        """Complete an open call with what came of it, and note that its session was in use.

        `details` of the record are the result's; `truncated`, `background` and
        `not_stored_bytes` are added where there is something to say.

        Raises:
            StoreError: There is no such call, or it is complete: another process may have
                taken this one for dead.
        """
        begun = self._begun.get(result.call_id) or self._read_begun(result.call_id)
        row, body = rows.finished(begun, result, output_limit_bytes=self._output_limit_bytes)
        now = self._clock()
        with self._db.writing:
            self._complete(begun.seq, row, result.status, body)
            # Else it was touched as the call began.
            if now - row.started_at >= TOUCH_EVERY_S:
                self._touch(row.session_id, now)
        self._begun.pop(row.id, None)

    def close_lost(self, is_alive: Callable[[str], bool | None]) -> list[str]:
        """Complete the open calls of processes that have ended, as `lost`.

        Args:
            is_alive: Whether the owner of a call still runs; None where nobody here can
                tell: its calls are lost `UNKNOWN_OWNER_GRACE_S` after their deadline.

        Returns:
            The ids of the calls, oldest first.
        """
        with self._db.translated:
            owners = self._db.execute(
                "SELECT DISTINCT owner FROM calls WHERE status IS NULL"
            ).fetchall()
        # Asked outside of the transaction: it is not ours to know how long an answer takes.
        alive = {owner: is_alive(owner) for (owner,) in owners}
        latest = {
            owner: self._clock() - UNKNOWN_OWNER_GRACE_S if answer is None else float("inf")
            for owner, answer in alive.items()
            if not answer
        }
        if not latest:
            return []
        error = "lost: the process that made this call ended before the call did"
        lost = []
        with self._db.writing:
            # Read again: another process may have been here in between.
            open_rows = self._db.execute(
                f"SELECT seq, {_CALL_COLUMNS} FROM calls WHERE status IS NULL ORDER BY seq"  # noqa: S608
            ).fetchall()
            for seq, *values in open_rows:
                begun = Begun.read(seq, CallRow._make(values))
                deadline = begun.row.started_at + (begun.row.timeout_s or 0)
                if begun.row.owner in latest and deadline <= latest[begun.row.owner]:
                    row, body = rows.lost(begun, error)
                    self._complete(seq, row, Status.LOST, body)
                    lost.append(begun.row.id)
        return lost

    def call(self, call_id: str) -> Record | None:
        """The call of this id; None where there is none."""
        with self._db.translated:
            row = self._db.execute(
                f"SELECT {_CALL_COLUMNS} FROM calls WHERE id = ?",  # noqa: S608
                (call_id,),
            ).fetchone()
        return None if row is None else CallRow._make(row).record()

    def calls(
        self, *, session_id: str | None = None, after: int = 0, limit: int = 1000
    ) -> list[tuple[int, Record]]:
        """Calls in the order in which they began, each with its number.

        Args:
            session_id: Only this session's; None for all.
            after: Only calls with a higher number. A call keeps its number when it is
                completed, so whoever follows what happens reads `audit_rows` instead.
            limit: At most so many.
        """
        where, values = ("AND session_id = ?", [session_id]) if session_id is not None else ("", [])
        with self._db.translated:
            found = self._db.execute(
                f"SELECT seq, {_CALL_COLUMNS} FROM calls WHERE seq > ? {where}"  # noqa: S608
                " ORDER BY seq LIMIT ?",
                (after, *values, limit),
            ).fetchall()
        return [(seq, CallRow._make(row).record()) for seq, *row in found]

    def recent_calls(self, session_id: str, *, limit: int = 1000) -> list[Record]:
        """The session's last calls, newest first, without their outputs."""
        with self._db.translated:
            found = self._db.execute(
                f"SELECT {_CALL_COLUMNS_WITHOUT_OUTPUT} FROM calls WHERE session_id = ?"  # noqa: S608
                " ORDER BY started_at DESC, seq DESC LIMIT ?",
                (session_id, limit),
            ).fetchall()
        return [CallRow._make(row).record() for row in found]

    def count_calls(
        self,
        *,
        since: float,
        session_id: str | None = None,
        tenant: str | None = None,
        rule: str | None = None,
    ) -> int:
        """How many calls were allowed since a time, in seconds since the epoch.

        Calls that a person approved count, whatever came of them; denied ones don't.

        Args:
            since: Calls that began at this time or later.
            session_id: Only this session's; None for all.
            tenant: Only those of this tenant's sessions; None for all.
            rule: Only those that this rule allowed, such as `allow[2]`; None for any.
        """
        where = ["verdict = ?", "started_at >= ?"]
        values: list[Any] = [Verdict.ALLOW, since]
        if session_id is not None:
            where.append("session_id = ?")
            values.append(session_id)
        if tenant is not None:
            # No session that had ended before can have a call since.
            where.append(
                "session_id IN (SELECT id FROM sessions"
                " WHERE tenant = ? AND (ended_at IS NULL OR ended_at >= ?))"
            )
            values += [tenant, since]
        if rule is not None:
            where.append("rule = ?")
            values.append(rule)
        with self._db.translated:
            (count,) = self._db.execute(
                f"SELECT count(*) FROM calls WHERE {' AND '.join(where)}",  # noqa: S608
                values,
            ).fetchone()
        return int(count)

    # Inside

    def _count_calls_of(self, session_id: str) -> tuple[int, int]:
        # Both counts are of an index alone; open calls have a small one of their own.
        (calls,) = self._db.execute(
            "SELECT count(*) FROM calls WHERE session_id = ?", (session_id,)
        ).fetchone()
        (open_calls,) = self._db.execute(
            "SELECT count(*) FROM calls WHERE session_id = ? AND status IS NULL", (session_id,)
        ).fetchone()
        return calls, calls - open_calls

    def _read_begun(self, call_id: str) -> Begun:
        """An open call that was not begun here."""
        with self._db.translated:
            found = self._db.execute(
                f"SELECT seq, {_CALL_COLUMNS} FROM calls WHERE id = ? AND status IS NULL",  # noqa: S608
                (call_id,),
            ).fetchone()
            if found is None:
                raise self._not_open(call_id)
        return Begun.read(found[0], CallRow._make(found[1:]))

    def _not_open(self, call_id: str) -> StoreError:
        self._begun.pop(call_id, None)
        found = self._db.execute("SELECT status FROM calls WHERE id = ?", (call_id,)).fetchone()
        if found is None:
            return StoreError(f"there is no call {call_id!r}")
        return StoreError(f"the call {call_id!r} is complete already: {found[0]}")

    def _complete(self, seq: int, row: CallRow, status: Status, body: Mapping[str, Any]) -> None:
        """Write the end of an open call, inside the caller's transaction."""
        updated = self._db.execute(
            _COMPLETE_CALL,
            (
                row.verdict,
                row.rule,
                row.reason,
                row.status,
                row.exit_code,
                row.duration_s,
                row.details,
                row.error,
                row.output,
                seq,
                row.id,
            ),
        )
        if updated.rowcount != 1:
            raise self._not_open(row.id)
        self._append(LAST_EVENT[status], row.session_id, row.id, body)
