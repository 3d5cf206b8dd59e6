"""`Store`: the changes and the questions, a transaction each.

Owns every statement about rows. Decides nothing about a call and removes nothing.

A change and the audit row that tells of it are in one transaction: both are there, or
neither is. Whoever appends to the chain reads its head under the same lock, so the chain is
the same for all processes.
"""

import os
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from runner.audit import (
    APPROVAL_EVENT,
    LAST_EVENT,
    AuditEvent,
    AuditRow,
    Head,
    Link,
    Verifier,
    canonical,
    link,
)
from runner.errors import (
    ApprovalEnded,
    ApprovalNotFound,
    AuditBroken,
    SessionEnded,
    StoreError,
)
from runner.model import (
    APPROVAL_TRANSITIONS,
    Approval,
    ApprovalState,
    Record,
    SessionInfo,
    SessionState,
    Status,
    ToolResult,
    Verdict,
)
from runner.store import rows, schema
from runner.store.database import Database
from runner.store.rows import Begun, CallRow

__all__ = ["UNKNOWN_OWNER_GRACE_S", "SessionChanges", "Store"]

STORED_OUTPUT_LIMIT_BYTES = 64 * 1024
"""How much of an output, and of an error, is kept: the start. The hash is of the whole."""
BUSY_TIMEOUT_S = 5.0
"""How long a transaction waits for another process's."""
UNKNOWN_OWNER_GRACE_S = 3600.0
"""How long after its deadline a call stays open whose owner nobody here can see."""

_TOUCH_EVERY_S = 0.05
"""A session that is in full use is written now and then, not twice a call: `used_at` may be
behind by this after a call has begun, and by twice this after it has ended."""
_BATCH_ROWS = 256
"""Rows per read transaction: one that stays open keeps the log from being copied back."""

_CALL_EVENTS = frozenset({AuditEvent.TOOL_EXECUTE, *LAST_EVENT.values()})
_OWN_EVENTS = _CALL_EVENTS | frozenset(APPROVAL_EVENT.values())
"""Rows that come with the change that they tell of, and in no other way."""

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


def _insert(table: str, columns: Sequence[str]) -> str:
    marks = ", ".join("?" * len(columns))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608


_SESSION_COLUMNS = ", ".join(rows.SESSION_FIELDS)
_AUDIT_COLUMNS = ", ".join(Link._fields)
_CALL_COLUMNS = ", ".join(CallRow._fields)
_CALL_COLUMNS_WITHOUT_OUTPUT = ", ".join(
    "''" if name == "output" else name for name in CallRow._fields
)
_APPROVAL_COLUMNS = ", ".join(rows.APPROVAL_FIELDS)

_INSERT_SESSION = _insert("sessions", rows.SESSION_FIELDS)
_INSERT_CALL = _insert("calls", CallRow._fields)
_INSERT_AUDIT = _insert("audit", Link._fields)
_INSERT_APPROVAL = _insert("approvals", rows.APPROVAL_FIELDS)
_COMPLETE_CALL = (
    "UPDATE calls SET verdict = ?, rule = ?, reason = ?, status = ?, exit_code = ?,"
    " duration_s = ?, details = ?, error = ?, output = ?"
    " WHERE seq = ? AND id = ? AND status IS NULL"
)


class Store:
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
        self._begun: dict[str, Begun] = {}
        """The open calls that were begun here, by their ids: not to be read again."""
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
                raise _no_session(session_id)
            if event is not None:
                self._append(_not_of_a_call(event), session_id, "", body or {})

    def end_session(self, session_id: str, state: SessionState, *, reason: str = "") -> bool:
        """Close an open session, or let it expire, with the audit row of that.

        Its approvals that are still pending are cancelled with it.

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
                return True
            if not self._db.execute(
                "SELECT 1 FROM sessions WHERE id = ?", (session_id,)
            ).fetchone():
                raise _no_session(session_id)
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
                    raise _no_session(row.session_id) from error
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
            if now - row.started_at >= _TOUCH_EVERY_S:
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

    # Approvals

    def ask_approval(self, approval: Approval) -> Approval:
        """Add a pending approval with its `approval.asked` row, or join the one there is.

        Its session counts as used now.

        Args:
            approval: The question. One of the same session, hash and policy that is still
                pending is the same question.

        Returns:
            The one that waits: the one that was there, or the new one as it is kept.

        Raises:
            SessionEnded: The session was closed, or its time ran out.
            StoreError: The id is taken, or there is no such session.
        """
        now = self._clock()
        with self._db.writing:
            session = self._db.execute(
                "SELECT state FROM sessions WHERE id = ?", (approval.session_id,)
            ).fetchone()
            if session is None:
                raise _no_session(approval.session_id)
            if session[0] != SessionState.OPEN:
                raise SessionEnded(f"session {approval.session_id} is {session[0]}")
            for found in self._read_approvals(
                "session_id = ? AND hash = ? AND policy = ? AND state = 'pending'",
                (approval.session_id, approval.hash, approval.policy),
            ):
                if now < found.expires_at:
                    return found
                self._end_approval(found, ApprovalState.EXPIRED)
            row = rows.approval_row(approval)
            try:
                self._db.execute(_INSERT_APPROVAL, row)
            except sqlite3.IntegrityError as error:
                raise StoreError(f"there is an approval {approval.id!r} already") from error
            asked = rows.approval_of(row)
            self._touch(asked.session_id, now)
            self._append(
                AuditEvent.APPROVAL_ASKED, asked.session_id, "", rows.body_of_approval(asked)
            )
            return asked

    def end_approval(
        self,
        approval_id: str,
        state: ApprovalState,
        *,
        by: str = "",
        how: str = "",
        answer: str = "",
        pattern: str = "",
        also: Iterable[str] = (),
    ) -> Approval:
        """Bring a pending approval to its end, with the audit row of that.

        Of several processes that try, one does; the others are told by `ApprovalEnded`. A
        yes or no that comes after the deadline is none: the approval is expired instead.

        Args:
            approval_id: Which.
            state: How it ends.
            by: Who answered.
            how: By which way.
            answer: The reason.
            pattern: The rule that is approved for the rest of the session, as JSON.
            also: Other approvals of the same session and policy, for one use each: those
                that the pattern covers. One that is not pending any more stays as it is.

        Raises:
            ApprovalNotFound: There is no such approval.
            ApprovalEnded: It has ended already, or just now, since its time had run out.
        """
        now = self._clock()
        with self._db.writing:
            approval = self._read_approval(approval_id)
            if state not in APPROVAL_TRANSITIONS[approval.state]:
                raise _has_ended(approval)
            late = now >= approval.expires_at and state is not ApprovalState.EXPIRED
            if late:
                ended = self._end_approval(approval, ApprovalState.EXPIRED)
            else:
                ended = self._end_approval(
                    approval, state, by=by, how=how, answer=answer, pattern=pattern
                )
                for other_id in also:
                    other = self._read_approval(other_id)
                    same = (other.session_id, other.policy) == (ended.session_id, ended.policy)
                    if same and other.is_pending and now < other.expires_at:
                        self._end_approval(
                            other, state, by=by, how=how, answer=f"by the pattern of {ended.id}"
                        )
        if late:
            raise _has_ended(ended)
        return ended

    def use_approval(self, approval_id: str, call_id: str) -> bool:
        """Let a call use an approval that is for one call.

        Returns:
            Whether this call may: of several that try, one does.
        """
        with self._db.writing:
            updated = self._db.execute(
                "UPDATE approvals SET used_by = ?"
                " WHERE id = ? AND state = 'approved' AND pattern = '' AND used_by = ''",
                (call_id, approval_id),
            )
            return updated.rowcount == 1

    def expire_approvals(self) -> list[str]:
        """Expire the pending approvals whose deadline has passed.

        Returns:
            Their ids, oldest first.
        """
        due = "state = 'pending' AND expires_at <= ?"
        now = self._clock()
        with self._db.translated:
            if not self._read_approvals(due, (now,)):
                return []
        with self._db.writing:
            # Read again: another process may have been here in between.
            found = self._read_approvals(due, (now,))
            for approval in found:
                self._end_approval(approval, ApprovalState.EXPIRED)
        return [approval.id for approval in found]

    def approval(self, approval_id: str) -> Approval | None:
        """The approval of this id; None where there is none."""
        with self._db.translated:
            found = self._read_approvals("id = ?", (approval_id,))
        return found[0] if found else None

    def approvals(
        self, *, session_id: str | None = None, include_ended: bool = False
    ) -> list[Approval]:
        """Pending approvals, oldest first; with `include_ended` the others too.

        Args:
            session_id: Only this session's; None for all.
            include_ended: Those that were answered, have expired or were cancelled, too.
        """
        where, values = "1 = 1" if include_ended else "state = 'pending'", []
        if session_id is not None:
            where, values = f"{where} AND session_id = ?", [session_id]
        with self._db.translated:
            return self._read_approvals(where, values)

    def pending_approvals(self) -> set[str]:
        """The ids of all pending approvals, for whoever waits for some of them."""
        with self._db.translated:
            found = self._db.execute("SELECT id FROM approvals WHERE state = 'pending'").fetchall()
        return {approval_id for (approval_id,) in found}

    def unused_approval(self, session_id: str, hash_: str, policy: str) -> Approval | None:
        """An approval that one call of this hash may still use; None where there is none.

        It is good for as long after the answer as the question could wait for it.
        """
        with self._db.translated:
            found = self._read_approvals(
                "session_id = ? AND hash = ? AND policy = ? AND state = 'approved'"
                " AND pattern = '' AND used_by = '' AND ended_at + (expires_at - asked_at) > ?",
                (session_id, hash_, policy, self._clock()),
            )
        return found[0] if found else None

    def granted(self, session_id: str, policy: str) -> list[Approval]:
        """The approvals of a pattern for the session, given under this policy, oldest first."""
        with self._db.translated:
            return self._read_approvals(
                "session_id = ? AND policy = ? AND state = 'approved' AND pattern != ''",
                (session_id, policy),
            )

    # Audit

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
            self._append(_not_of_a_call(event), session_id, "", body or {})

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

    def _read_approvals(self, where: str, values: Sequence[Any]) -> list[Approval]:
        found = self._db.execute(
            f"SELECT {_APPROVAL_COLUMNS} FROM approvals WHERE {where} ORDER BY seq",  # noqa: S608
            values,
        ).fetchall()
        return [rows.approval_of(row) for row in found]

    def _read_approval(self, approval_id: str) -> Approval:
        found = self._read_approvals("id = ?", (approval_id,))
        if not found:
            raise ApprovalNotFound(f"there is no approval {approval_id!r}")
        return found[0]

    def _end_approval(
        self,
        approval: Approval,
        state: ApprovalState,
        *,
        by: str = "",
        how: str = "",
        answer: str = "",
        pattern: str = "",
    ) -> Approval:
        """End a pending approval, inside the caller's transaction."""
        row = rows.approval_row(
            replace(
                approval,
                state=state,
                ended_at=self._clock(),
                answered_by=by,
                answered_how=how,
                answer=answer,
                pattern=pattern,
            )
        )
        ended = rows.approval_of(row)
        self._db.execute(
            "UPDATE approvals SET state = ?, ended_at = ?, answered_by = ?, answered_how = ?,"
            " answer = ?, pattern = ? WHERE id = ? AND state = 'pending'",
            (
                ended.state,
                ended.ended_at,
                ended.answered_by,
                ended.answered_how,
                ended.answer,
                ended.pattern,
                ended.id,
            ),
        )
        self._append(APPROVAL_EVENT[state], ended.session_id, "", rows.body_of_approval(ended))
        return ended

    def _cancel_approvals(self, session_id: str, why: str) -> None:
        for approval in self._read_approvals("session_id = ? AND state = 'pending'", (session_id,)):
            self._end_approval(approval, ApprovalState.CANCELLED, answer=why)

    def _touch(self, session_id: str, used_at: float) -> None:
        self._db.execute(
            "UPDATE sessions SET used_at = ? WHERE id = ? AND used_at < ?",
            (used_at, session_id, used_at - _TOUCH_EVERY_S),
        )

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


def _no_session(session_id: str) -> StoreError:
    return StoreError(f"there is no session {session_id!r}")


def _has_ended(approval: Approval) -> ApprovalEnded:
    if approval.answered_by:
        what = f"{approval.state} by {approval.answered_by} ({approval.answered_how})"
    else:
        what = f"{approval.state}: {approval.answer or 'nobody answered in time'}"
    return ApprovalEnded(f"the approval {approval.id} is {what}; it can't be answered any more")


def _not_of_a_call(event: AuditEvent) -> AuditEvent:
    if event in _OWN_EVENTS:
        raise ValueError(f"{event} rows come with the call or approval that they tell of")
    return event
