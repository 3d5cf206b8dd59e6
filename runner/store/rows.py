"""Records as rows, and what the audit says of them. Pure: no SQL, no file, no clock.

Owns what is kept of a text that is too long, how a call's row is digested, and the bodies
of the audit's rows about calls, approvals, connections and a session's start.

Somebody waits for each call while its two rows of the audit are made. So every text is
encoded and hashed once, and the end of a call is made of its beginning as it is remembered,
`Begun`. That also keeps whoever changes an open record from having it signed at the end.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from math import isfinite
from typing import Any, NamedTuple, Self

from runner.audit import canonical, digest, sha256
from runner.model import (
    Approval,
    ApprovalState,
    Connection,
    Record,
    SessionInfo,
    SessionState,
    Status,
    ToolResult,
    Verdict,
)

__all__ = [
    "APPROVAL_FIELDS",
    "CONNECTION_FIELDS",
    "NAME_LIMIT_BYTES",
    "SESSION_FIELDS",
    "Begun",
    "CallRow",
    "approval_of",
    "approval_row",
    "body_of_approval",
    "body_of_connection",
    "body_of_connections_end",
    "body_of_session",
    "connection_of",
    "connection_row",
    "finished",
    "kept",
    "lost",
    "opened",
    "session_of",
    "session_row",
]

STORED_ARGUMENTS_LIMIT_BYTES = 64 * 1024
"""How much of a call's arguments is kept: the start. The hash is of the whole."""
NAME_LIMIT_BYTES = 1024
"""For names (tool, rule) and reasons: a model chooses the first, and they stand in audit rows."""
_DETAILS_LIMIT_BYTES = 64 * 1024
_PREVIEW_LIMIT_BYTES = 256
"""How much of arguments and errors an audit row shows. It is there for a line of a log."""


# Texts.


class _Text(NamedTuple):
    """A text as it is kept, and what the whole of it was."""

    kept: str
    omitted_bytes: int
    total_bytes: int
    sha256: str
    """Of the whole, as `kept_sha256` is of what is kept: hexadecimal."""
    kept_sha256: str


_EMPTY = _Text("", 0, 0, sha256(b""), sha256(b""))


def _text(text: str, limit_bytes: int) -> _Text:
    if not text:
        return _EMPTY
    try:
        data = text.encode()
    except UnicodeEncodeError:
        data = _writable(text)
        text = data.decode()
    size = len(data)
    whole = sha256(data)
    if size <= limit_bytes:
        return _Text(text, 0, size, whole, whole)
    # Cut between characters.
    text = data[:limit_bytes].decode("utf-8", "ignore")
    data = text.encode()
    return _Text(text, size - len(data), size, whole, sha256(data))


def _writable(text: str) -> bytes:
    """UTF-8. A lone surrogate, which raw input can hold, becomes the text of its escape."""
    return text.encode("utf-8", "backslashreplace")


def kept(text: str, limit_bytes: int) -> str:
    """What is kept of a text that is there to be read: its start, and a sign if more was."""
    if len(text) <= limit_bytes and text.isascii():
        return text
    # No character is less than a byte.
    data = _writable(text[: limit_bytes + 1])
    if len(data) <= limit_bytes:
        return data.decode()
    return data[:limit_bytes].decode("utf-8", "ignore") + "…"


# Calls.


class CallRow(NamedTuple):
    """A row of `calls`, without its number.

    What can be long is at the end, for SQLite; but for the columns that older files got later.
    """

    id: str
    session_id: str
    tool: str
    verdict: str | None
    rule: str | None
    reason: str
    policy: str
    status: str | None
    exit_code: int | None
    started_at: float
    duration_s: float | None
    timeout_s: float | None
    owner: str
    details: str
    error: str | None
    arguments: str
    output: str
    shadow: str | None
    approval: str | None

    @property
    def is_open(self) -> bool:
        """Whether the call awaits its completion."""
        return self.status is None

    def digest(self) -> str:
        """The SHA-256 of its columns, in which arguments and output are replaced by theirs."""
        return self.digest_with(_sha256_of(self.arguments), _sha256_of(self.output))

    def digest_with(self, arguments_sha256: str, output_sha256: str) -> str:
        """`digest`, for who knows the hashes of these two texts as they are kept."""
        later = self[_FIRST_VERSION:]
        # Rows of files that had no such columns keep the digest that they were signed with.
        if later == (None, None):
            later = ()
        return digest((*self[: _FIRST_VERSION - 2], arguments_sha256, output_sha256, *later))

    def record(self) -> Record:
        """The record that this row is of."""
        return Record(
            call_id=self.id,
            session_id=self.session_id,
            tool=self.tool,
            arguments=self.arguments,
            verdict=None if self.verdict is None else Verdict(self.verdict),
            rule=self.rule,
            reason=self.reason,
            policy=self.policy,
            status=None if self.status is None else Status(self.status),
            exit_code=self.exit_code,
            output=self.output,
            error=self.error,
            started_at=self.started_at,
            duration_s=self.duration_s,
            timeout_s=self.timeout_s,
            details=json.loads(self.details),
            shadow=self.shadow or "",
            approval=self.approval or "",
        )


_FIRST_VERSION = CallRow._fields.index("output") + 1
"""How many columns the first version had."""


def _sha256_of(text: Any) -> Any:
    """A text's hash. Anything else, which we did not write, stands for itself."""
    if type(text) is not str:
        return text
    return sha256(text.encode("utf-8", "surrogatepass"))


class Begun(NamedTuple):
    """An open call, as its completion needs it."""

    seq: int
    row: CallRow
    arguments_sha256: str
    """Of the arguments as they are kept."""

    @classmethod
    def read(cls, seq: int, row: CallRow) -> Self:
        """The call of a row that was read."""
        return cls(seq, row, _sha256_of(row.arguments))


def opened(
    record: Record, *, owner: str, output_limit_bytes: int
) -> tuple[CallRow, dict[str, Any], str]:
    """A new call's row, the body of the audit's, and `Begun.arguments_sha256`."""
    arguments = _text(record.arguments, STORED_ARGUMENTS_LIMIT_BYTES)
    output = _text(record.output, output_limit_bytes)
    error = None if record.error is None else _text(record.error, output_limit_bytes)
    row = CallRow(
        record.call_id,
        record.session_id,
        kept(record.tool, NAME_LIMIT_BYTES),
        *_decided(record.verdict, record.rule, record.reason),
        record.policy,
        None if record.status is None else str(record.status),
        record.exit_code,
        float(record.started_at),
        None if record.duration_s is None else float(record.duration_s),
        None if record.timeout_s is None else float(record.timeout_s),
        owner,
        _details(record.details, {"arguments": arguments, "output": output, "error": error}),
        None if error is None else error.kept,
        arguments.kept,
        output.kept,
        kept(record.shadow, _DETAILS_LIMIT_BYTES) or None,
        record.approval or None,
    )
    body = _body_of_call(row)
    body["policy"] = row.policy
    body["timeout_s"] = row.timeout_s
    body["arguments_bytes"] = arguments.total_bytes
    body["arguments_sha256"] = arguments.sha256
    body["owner"] = owner
    if row.status is not None:
        _add_end(body, row, output)
    body["record"] = row.digest_with(arguments.kept_sha256, output.kept_sha256)
    return row, body, arguments.kept_sha256


def finished(
    begun: Begun, result: ToolResult, *, output_limit_bytes: int
) -> tuple[CallRow, dict[str, Any]]:
    """The row of a call that ended, and the body of the audit's."""
    output = _text(result.output, output_limit_bytes)
    error = None if result.error is None else _text(result.error, output_limit_bytes)
    details = result.details
    if result.truncated is not None or result.background:
        details = dict(details)
        if result.truncated is not None:
            details["truncated"] = asdict(result.truncated)
        if result.background:
            details["background"] = result.background
    was = begun.row
    decision = result.decision
    row = CallRow(
        was.id,
        was.session_id,
        was.tool,
        *(
            (was.verdict, was.rule, was.reason)
            if decision is None
            else _decided(decision.verdict, decision.rule, decision.reason)
        ),
        was.policy,
        str(result.status),
        result.exit_code,
        was.started_at,
        float(result.duration_s),
        was.timeout_s,
        was.owner,
        _details(details, {"output": output, "error": error}, before=was.details),
        None if error is None else error.kept,
        was.arguments,
        output.kept,
        was.shadow,
        was.approval,
    )
    body = _body_of_call(row)
    _add_end(body, row, output)
    if result.background:
        body["background"] = result.background
    body["record"] = row.digest_with(begun.arguments_sha256, output.kept_sha256)
    return row, body


def lost(begun: Begun, error: str) -> tuple[CallRow, dict[str, Any]]:
    """The row of a call whose end nobody saw, and the body of the audit's."""
    row = begun.row._replace(status=str(Status.LOST), error=error)
    body = _body_of_call(row)
    _add_end(body, row, _EMPTY)
    body["record"] = row.digest_with(begun.arguments_sha256, _EMPTY.kept_sha256)
    return row, body


def _body_of_call(row: CallRow) -> dict[str, Any]:
    body: dict[str, Any] = {
        "tool": row.tool,
        "verdict": row.verdict,
        "rule": row.rule,
        "reason": row.reason,
        "arguments": kept(row.arguments, _PREVIEW_LIMIT_BYTES),
    }
    if row.approval is not None:
        body["approval"] = row.approval
    return body


def _add_end(body: dict[str, Any], row: CallRow, output: _Text) -> None:
    body["status"] = row.status
    body["exit_code"] = row.exit_code
    body["duration_s"] = row.duration_s
    body["error"] = None if row.error is None else kept(row.error, _PREVIEW_LIMIT_BYTES)
    body["output_bytes"] = output.total_bytes
    body["output_sha256"] = output.sha256


def _decided(
    verdict: Verdict | None, rule: str | None, reason: str
) -> tuple[str | None, str | None, str]:
    return (
        None if verdict is None else str(verdict),
        None if rule is None else kept(rule, NAME_LIMIT_BYTES),
        kept(reason, NAME_LIMIT_BYTES),
    )


def _details(
    details: Mapping[str, Any], texts: Mapping[str, _Text | None], *, before: str = "{}"
) -> str:
    """The column `details`: a tool's facts, and how much of the texts beside them is missing.

    A tool may be anybody's. Facts that are no JSON are not worth losing the call's record.
    """
    omitted = {
        name: text.omitted_bytes
        for name, text in texts.items()
        if text is not None and text.omitted_bytes
    }
    if before != "{}":
        omitted = json.loads(before).get("not_stored_bytes", {}) | omitted
    if not details and not omitted:
        return "{}"
    try:
        encoded = canonical(dict(details))
    except (TypeError, ValueError, RecursionError) as error:
        details = {"not_json": f"{type(error).__name__}: {error}"}
        encoded = canonical(details)
    if len(encoded) > _DETAILS_LIMIT_BYTES:
        omitted["details"] = len(encoded)
        details = {}
    if not omitted:
        return encoded
    return canonical({**details, "not_stored_bytes": omitted})


# Approvals.


APPROVAL_FIELDS = tuple(field.name for field in fields(Approval))
_APPROVAL_NAMES = ("tool", "rule", "reason", "answered_by", "answered_how", "answer")
"""Of these the start is kept. Arguments and pattern are what was approved, and kept whole."""


def approval_row(approval: Approval) -> tuple[Any, ...]:
    """A row of `approvals`, without its number: its columns are `APPROVAL_FIELDS`."""
    values = {name: getattr(approval, name) for name in APPROVAL_FIELDS}
    for name in _APPROVAL_NAMES:
        if values[name] is not None:
            values[name] = kept(values[name], NAME_LIMIT_BYTES)
    values["arguments"] = _writable(approval.arguments).decode()
    return tuple(values.values())


def approval_of(row: Sequence[Any]) -> Approval:
    """The approval that a row is of."""
    values = dict(zip(APPROVAL_FIELDS, row, strict=True))
    values["state"] = ApprovalState(values["state"])
    return Approval(**values)


def body_of_approval(approval: Approval) -> dict[str, Any]:
    """What the audit says of an approval that has come into its state."""
    body: dict[str, Any] = {
        "approval": approval.id,
        "tool": approval.tool,
        "rule": approval.rule,
        "policy": approval.policy,
        "hash": approval.hash,
    }
    if approval.is_pending:
        body["reason"] = approval.reason
        body["arguments"] = kept(approval.arguments, _PREVIEW_LIMIT_BYTES)
        body["resolved"] = (
            None if approval.resolved is None else kept(approval.resolved, NAME_LIMIT_BYTES)
        )
        body["expires_at"] = approval.expires_at
        return body
    body["by"] = approval.answered_by
    body["how"] = approval.answered_how
    body["answer"] = approval.answer
    if approval.pattern:
        body["pattern"] = kept(approval.pattern, NAME_LIMIT_BYTES)
        body["pattern_sha256"] = sha256(approval.pattern.encode())
    return body


# Connections.


CONNECTION_FIELDS = tuple(field.name for field in fields(Connection))
_CONNECTION_NAMES = ("host", "method", "path", "address", "rule", "reason", "credential")
"""Of these the start is kept: what asks for a connection is not trusted."""
_CONNECTION_FACTS = (
    ("protocol", "host", "port", "method", "path", "address", "verdict", "rule", "credential")
)  # fmt: skip


def connection_row(connection: Connection) -> tuple[Any, ...]:
    """A row of `connections`, without its number: its columns are `CONNECTION_FIELDS`."""
    values = {name: getattr(connection, name) for name in CONNECTION_FIELDS}
    for name in _CONNECTION_NAMES:
        if values[name] is not None:
            values[name] = kept(values[name], NAME_LIMIT_BYTES)
    return tuple(values.values())


def connection_of(row: Sequence[Any]) -> Connection:
    """The connection that a row is of."""
    values = dict(zip(CONNECTION_FIELDS, row, strict=True))
    values["verdict"] = Verdict(values["verdict"])
    return Connection(**values)


def body_of_connection(connection: Connection) -> dict[str, Any]:
    """What the audit says of a connection that was asked for."""
    body: dict[str, Any] = {"connection": connection.id}
    body |= {name: getattr(connection, name) for name in _CONNECTION_FACTS}
    if connection.reason:
        body["reason"] = connection.reason
    return body


def body_of_connections_end(connection: Connection) -> dict[str, Any]:
    """What the audit says of a connection that has ended."""
    ended_at = connection.started_at if connection.ended_at is None else connection.ended_at
    return {
        "connection": connection.id,
        "host": connection.host,
        "port": connection.port,
        "duration_s": max(0.0, ended_at - connection.started_at),
        "sent_bytes": connection.sent_bytes,
        "received_bytes": connection.received_bytes,
        "reason": connection.reason,
    }


# Sessions.


SESSION_FIELDS = tuple(field.name for field in fields(SessionInfo))
_SESSION_FACTS = ("image", "runtime", "workspace", "managed", "read_only", "kept", "tenant")
"""What its first audit row says of a session, besides its times."""


def session_row(info: SessionInfo) -> tuple[Any, ...]:
    """A row of `sessions`: its columns are `SESSION_FIELDS`."""
    values = {name: getattr(info, name) for name in SESSION_FIELDS}
    values["options"] = canonical(dict(info.options))
    values["title"] = kept(info.title, NAME_LIMIT_BYTES)
    return tuple(values.values())


def body_of_session(info: SessionInfo) -> dict[str, Any]:
    """What the audit says of a session that is opened."""
    body = {name: getattr(info, name) for name in _SESSION_FACTS}
    if info.title:
        body["title"] = kept(info.title, NAME_LIMIT_BYTES)
    # What its calls can do beyond those of other sessions.
    for name in ("network", "users"):
        if info.options.get(name) not in (None, "none", False):
            body[name] = info.options[name]
    return body | {name: _finite(getattr(info, name)) for name in ("expires_at", "idle_timeout_s")}


def session_of(row: Sequence[Any]) -> SessionInfo:
    """The session that a row is of."""
    values = dict(zip(SESSION_FIELDS, row, strict=True))
    for name in ("managed", "read_only", "kept"):
        values[name] = bool(values[name])
    values["state"] = SessionState(values["state"])
    values["options"] = json.loads(values["options"])
    return SessionInfo(**values)


def _finite(number: float) -> float | None:
    """None for a time that never comes: JSON has no infinity."""
    return number if isfinite(number) else None
