"""Approvals: questions to people and their answers, as rows.

Owns the statements about `approvals`. What an answer means for a call is `runner.approvals`'.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from runner.audit import APPROVAL_EVENT, AuditEvent
from runner.errors import ApprovalEnded, ApprovalNotFound, SessionEnded, StoreError
from runner.model import APPROVAL_TRANSITIONS, Approval, ApprovalState, SessionState
from runner.store import rows
from runner.store.ledger import Ledger, inserting, no_session

__all__ = ["ApprovalRecords"]

_COLUMNS = ", ".join(rows.APPROVAL_FIELDS)
_INSERT = inserting("approvals", rows.APPROVAL_FIELDS)


class ApprovalRecords(Ledger):
    """What the store knows of approvals."""

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
                raise no_session(approval.session_id)
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
                self._db.execute(_INSERT, row)
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

    # Inside

    def _read_approvals(self, where: str, values: Sequence[Any]) -> list[Approval]:
        found = self._db.execute(
            f"SELECT {_COLUMNS} FROM approvals WHERE {where} ORDER BY seq",  # noqa: S608
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


def _has_ended(approval: Approval) -> ApprovalEnded:
    if approval.answered_by:
        what = f"{approval.state} by {approval.answered_by} ({approval.answered_how})"
    else:
        what = f"{approval.state}: {approval.answer or 'nobody answered in time'}"
    return ApprovalEnded(f"the approval {approval.id} is {what}; it can't be answered any more")
