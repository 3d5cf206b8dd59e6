"""Connections that sessions asked for, as rows.

Owns the statements about `connections`. Who may connect whereto is the policy's matter, how
it is done the proxy's.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from runner.audit import NETWORK_EVENT, AuditEvent
from runner.errors import StoreError
from runner.model import Connection, Verdict
from runner.store import rows
from runner.store.ledger import Ledger, inserting, no_session

__all__ = ["ConnectionRecords"]

_COLUMNS = ", ".join(rows.CONNECTION_FIELDS)
_INSERT = inserting("connections", rows.CONNECTION_FIELDS)


class ConnectionRecords(Ledger):
    """What the store knows of connections."""

    def add_connection(self, connection: Connection) -> None:
        """Record a connection that was asked for, with its `network.allowed` or `.denied` row.

        An allowed one is open until `end_connection`, or until its session ends. A denied one
        has ended as it began.

        Raises:
            ValueError: Its verdict is to ask; nobody is asked about a connection.
            StoreError: The id is taken, or there is no such session.
        """
        if connection.verdict not in NETWORK_EVENT:
            raise ValueError(f"a connection is allowed or denied, not {connection.verdict}")
        if connection.verdict is Verdict.DENY and connection.ended_at is None:
            connection = replace(connection, ended_at=connection.started_at)
        row = rows.connection_row(connection)
        kept = rows.connection_of(row)
        with self._db.writing:
            try:
                self._db.execute(_INSERT, row)
            except sqlite3.IntegrityError as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
                    raise no_session(kept.session_id) from error
                if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_UNIQUE:
                    raise StoreError(f"there is a connection {kept.id!r} already") from error
                raise
            event = NETWORK_EVENT[kept.verdict]
            self._append(event, kept.session_id, "", rows.body_of_connection(kept))

    def end_connection(
        self,
        connection_id: str,
        *,
        ended_at: float,
        sent_bytes: int,
        received_bytes: int,
        reason: str = "",
    ) -> bool:
        """Record the end of a connection, with a `network.ended` row.

        Args:
            connection_id: Which.
            ended_at: When, in seconds since the epoch.
            sent_bytes: How much went from the container to the host that was dialled.
            received_bytes: How much came back.
            reason: What went wrong, or which limit ended it; empty where an end hung up.

        Returns:
            Whether it was open: its session's end may have ended it before.

        Raises:
            StoreError: There is no such connection.
        """
        with self._db.writing:
            found = self._read_connections("id = ?", (connection_id,))
            if not found:
                raise StoreError(f"there is no connection {connection_id!r}")
            (connection,) = found
            if connection.ended_at is not None:
                return False
            self._end_connection(
                replace(
                    connection,
                    ended_at=ended_at,
                    sent_bytes=sent_bytes,
                    received_bytes=received_bytes,
                    reason=rows.kept(reason, rows.NAME_LIMIT_BYTES),
                )
            )
            return True

    def connections(
        self, session_id: str | None = None, limit: int = 1000, *, only_open: bool = False
    ) -> list[Connection]:
        """The last connections that were asked for, newest first.

        Args:
            session_id: Only this session's; None for all.
            limit: At most so many.
            only_open: Only those that have not ended.
        """
        where, values = (
            ("session_id = ?", [session_id]) if session_id is not None else ("1 = 1", [])
        )
        if only_open:
            where = f"{where} AND ended_at IS NULL"
        with self._db.translated:
            return self._read_connections(where, values, limit=limit)

    # Inside

    def _read_connections(
        self, where: str, values: Sequence[Any], *, limit: int = -1
    ) -> list[Connection]:
        found = self._db.execute(
            f"SELECT {_COLUMNS} FROM connections WHERE {where} ORDER BY seq DESC LIMIT ?",  # noqa: S608
            (*values, limit),
        ).fetchall()
        return [rows.connection_of(row) for row in found]

    def _end_connection(self, ended: Connection) -> None:
        """Write the end of an open connection, inside the caller's transaction."""
        self._db.execute(
            "UPDATE connections SET ended_at = ?, sent_bytes = ?, received_bytes = ?, reason = ?"
            " WHERE id = ? AND ended_at IS NULL",
            (ended.ended_at, ended.sent_bytes, ended.received_bytes, ended.reason, ended.id),
        )
        body = rows.body_of_connections_end(ended)
        self._append(AuditEvent.NETWORK_ENDED, ended.session_id, "", body)

    def _end_connections(self, session_id: str, why: str) -> None:
        """End what a session still has open; how much went over it nobody knows any more."""
        open_ones = self._read_connections("session_id = ? AND ended_at IS NULL", (session_id,))
        for connection in reversed(open_ones):
            self._end_connection(replace(connection, ended_at=self._clock(), reason=why))
