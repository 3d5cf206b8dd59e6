"""The audit chain as values: what a row says, how it is hashed, whether rows are a chain.

Pure: no file, no clock. The store keeps the rows and calls `link` to make the next and
`Verifier` to check them. A row is one line of JSON, ASCII only,

    {"seq":7,"at_us":1700000000000000,"event":"tool.execute","session_id":"…",
     "call_id":"…","body":{…},"previous":"…","hash":"…"}

(without the line break) where `previous` is the hash of the row before, and `hash` the
SHA-256 of the line without `,"hash":"…"`. Anybody can check it who has the lines.

Rows of calls hold a digest of the call's own record too, so a record that was changed
disagrees with the chain. What all this proves, and what it can't, is in `docs/audit.md`.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from json import encoder
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple, Protocol, Self

from runner.errors import AuditBroken, ConfigurationError
from runner.model import ApprovalState, Status, Verdict

__all__ = [
    "APPROVAL_EVENT",
    "LAST_EVENT",
    "NETWORK_EVENT",
    "START",
    "AuditEvent",
    "AuditRow",
    "Head",
    "KnownCall",
    "Link",
    "Verifier",
    "canonical",
    "digest",
    "link",
    "sha256",
]


class AuditEvent(StrEnum):
    """What a row tells of. A closed set; names are never reused."""

    TOOL_EXECUTE = "tool.execute"
    """A call was allowed and starts."""
    TOOL_DENIED = "tool.denied"
    """A call was refused; nothing ran."""
    TOOL_ERROR = "tool.error"
    """A call could not be carried out: its input is invalid, or it was lost on the way."""
    TOOL_RESULT = "tool.result"
    """A call ended, well or badly."""
    TOOL_PROTECTED = "tool.protected"
    """Protected files were found to be created, changed or removed when a call ended."""
    FILE_UPLOADED = "file.uploaded"
    """The host put a file into a session, or tried to."""
    FILE_DOWNLOADED = "file.downloaded"
    """The host took a file out of a session."""
    SESSION_OPENED = "session.opened"
    SESSION_CLOSED = "session.closed"
    SESSION_EXPIRED = "session.expired"
    SESSION_ADOPTED = "session.adopted"
    """A process took over a session that another had left."""
    SESSION_REBUILT = "session.rebuilt"
    """A session got a new container on the same workspace."""
    SESSION_SWEPT = "session.swept"
    """What a dead process had left of a session, such as its container, was removed."""
    APPROVAL_ASKED = "approval.asked"
    """A rule asks a person about a call, which waits."""
    APPROVAL_APPROVED = "approval.approved"
    APPROVAL_DENIED = "approval.denied"
    APPROVAL_EXPIRED = "approval.expired"
    """Nobody answered in time."""
    APPROVAL_CANCELLED = "approval.cancelled"
    """The session ended before anybody answered."""
    NETWORK_ALLOWED = "network.allowed"
    """A connection that a session asked for was allowed, and is made."""
    NETWORK_DENIED = "network.denied"
    """A connection that a session asked for was refused; nothing was dialled."""
    NETWORK_ENDED = "network.ended"
    """A connection ended, or could not be made."""
    CRON_ADDED = "cron.added"
    """A job was added to the schedule."""
    CRON_REMOVED = "cron.removed"
    CRON_ENABLED = "cron.enabled"
    CRON_DISABLED = "cron.disabled"
    CRON_STARTED = "cron.started"
    """A process took a run of a job, and begins it."""
    CRON_ENDED = "cron.ended"
    """A run ended, well or badly."""
    CRON_SKIPPED = "cron.skipped"
    """A time of the schedule passed without a run."""
    CRON_LOST = "cron.lost"
    """The process that ran a run ended before it did."""
    CRON_DELIVERED = "cron.delivered"
    """A run's result was delivered, or could not be."""


LAST_EVENT: dict[Status, AuditEvent] = {
    Status.OK: AuditEvent.TOOL_RESULT,
    Status.FAILED: AuditEvent.TOOL_RESULT,
    Status.TIMED_OUT: AuditEvent.TOOL_RESULT,
    Status.OOM_KILLED: AuditEvent.TOOL_RESULT,
    Status.CANCELLED: AuditEvent.TOOL_RESULT,
    Status.DENIED: AuditEvent.TOOL_DENIED,
    Status.INVALID: AuditEvent.TOOL_ERROR,
    Status.LOST: AuditEvent.TOOL_ERROR,
}
"""The row that completes a call, by how it ended."""

APPROVAL_EVENT: dict[ApprovalState, AuditEvent] = {
    ApprovalState.PENDING: AuditEvent.APPROVAL_ASKED,
    ApprovalState.APPROVED: AuditEvent.APPROVAL_APPROVED,
    ApprovalState.DENIED: AuditEvent.APPROVAL_DENIED,
    ApprovalState.EXPIRED: AuditEvent.APPROVAL_EXPIRED,
    ApprovalState.CANCELLED: AuditEvent.APPROVAL_CANCELLED,
}
"""The row that tells of an approval's way into a state."""

NETWORK_EVENT: dict[Verdict, AuditEvent] = {
    Verdict.ALLOW: AuditEvent.NETWORK_ALLOWED,
    Verdict.DENY: AuditEvent.NETWORK_DENIED,
}
"""The row that tells of a connection that was asked for. Nobody is asked about one."""


class Head(NamedTuple):
    """The end of the chain at some moment. Kept elsewhere, it pins every row up to it.

    As text, and for `parse`: `SEQ:HASH`.
    """

    seq: int
    """The last row's number, and so the number of rows; 0 before the first."""
    hash: str
    """The last row's hash, 64 hexadecimal digits; zeros before the first."""

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `SEQ:HASH`.

        Raises:
            ConfigurationError: The text is something else.
        """
        seq, _, hash_ = text.strip().partition(":")
        hash_ = hash_.lower()
        if not (
            seq.isascii()
            and seq.isdecimal()
            and len(seq) <= 18
            and len(hash_) == 64
            and set(hash_) <= set("0123456789abcdef")
        ):
            raise ConfigurationError(f"not the head of an audit chain, SEQ:HASH: {text!r}")
        return cls(int(seq), hash_)


START = Head(0, "0" * 64)
"""The head of an empty chain."""


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A row, read."""

    seq: int
    """1 for the first; no number is left out."""
    at: float
    """When it was written, in seconds since the epoch, by the clock of the host."""
    event: str
    """An `AuditEvent`, unless a newer version wrote it."""
    session_id: str
    call_id: str
    """Empty where the event is not about a call."""
    body: Mapping[str, Any]
    """What a line of a log needs: for calls `tool`, `verdict`, `status`, and so on."""
    previous: str
    hash: str
    line: str
    """The row as it is exported: one line of ASCII JSON, without a newline at its end."""


class Link(NamedTuple):
    """A row as it is stored."""

    seq: int
    at_us: int
    event: str
    session_id: str
    call_id: str
    body: str
    """Canonical JSON."""
    previous: str
    hash: str

    def read(self) -> AuditRow:
        """The row's meaning.

        Raises:
            AuditBroken: It has none; somebody else wrote it.
        """
        try:
            return AuditRow(
                seq=self.seq,
                at=self.at_us / 1_000_000,
                event=self.event,
                session_id=self.session_id,
                call_id=self.call_id,
                body=json.loads(self.body),
                previous=self.previous,
                hash=self.hash,
                line=f'{_content(*self[:-1])[:-1]},"hash":{canonical(self.hash)}}}',
            )
        except (TypeError, ValueError) as error:
            raise AuditBroken(
                f"audit row {self.seq} can't be read: {error}", row=self.seq
            ) from error


def link(
    head: Head,
    *,
    at_us: int,
    event: AuditEvent,
    session_id: str,
    call_id: str,
    body: Mapping[str, Any],
) -> Link:
    """The row that follows `head`. `body` holds JSON values."""
    seq, name, encoded, previous = head.seq + 1, event.value, canonical(body), head.hash
    content = _content(seq, at_us, name, session_id, call_id, encoded, previous)
    return Link(seq, at_us, name, session_id, call_id, encoded, previous, _sha256(content))


class KnownCall(Protocol):
    """What the verifier asks of a call's record."""

    @property
    def is_open(self) -> bool:
        """Whether it awaits its completion."""

    def digest(self) -> str:
        """The digest of the record as it is now."""


class Verifier:
    """Checks a chain row by row, and the records of calls against it.

    Feed it every row in order, then `close` it. It keeps nothing of the rows but the last
    hash, so chains of any length can be checked.
    """

    def __init__(self, expected: Head | None = None):
        self._expected = expected
        self._last = START
        self._calls = 0
        if expected is not None and expected.seq == 0 and expected != START:
            raise AuditBroken("no chain starts from the head that was expected", row=1)

    def feed(self, row: Link, call: KnownCall | None) -> None:
        """Check the next row. `call` is the record of the call that it names, if there is one.

        Raises:
            AuditBroken: The row is bad, or there should have been another before it.
        """
        due = self._last.seq + 1
        if row.seq > due:
            raise AuditBroken(f"audit row {due} is missing", row=due)
        if row.seq < due:
            raise AuditBroken(f"audit row {row.seq} has no place in the chain", row=row.seq)
        problem = self._problem(row) or (self._problem_of_call(row, call) if row.call_id else None)
        if problem is not None:
            raise AuditBroken(f"audit row {row.seq} {problem}", row=row.seq)
        self._last = Head(row.seq, row.hash)

    def _problem(self, row: Link) -> str | None:
        # The content reads in one way only if these types are right, and a database may keep
        # whatever it is given.
        if type(row.at_us) is not int or not all(type(text) is str for text in row[2:]):
            return "holds a value of another type than was written"
        if _sha256(_content(*row[:-1])) != row.hash:
            return "was changed: its hash is not that of its content"
        if row.previous != self._last.hash:
            return "does not follow the row before: one of the two was replaced"
        if self._expected is not None and row.seq == self._expected.seq:
            return None if row.hash == self._expected.hash else "is not the one that was expected"
        return None

    def _problem_of_call(self, row: Link, call: KnownCall | None) -> str | None:
        try:
            body = json.loads(row.body)
            record, begins = body["record"], "arguments_sha256" in body
        except (TypeError, ValueError, KeyError):
            return "is not what the runner writes"
        self._calls += begins
        if call is None:
            return f"tells of the call {row.call_id!r}, whose record is missing"
        # The row of a call's start describes the record for as long as the call is open.
        if row.event == AuditEvent.TOOL_EXECUTE and not call.is_open:
            return None
        if call.digest() != record:
            return f"disagrees with the record of the call {row.call_id!r}, which was changed"
        return None

    def close(self, head: Head | None, *, calls: int) -> int:
        """Check the end.

        Args:
            head: Where the store says that the chain ends; None where it no longer says.
            calls: How many records of calls there are.

        Returns:
            The number of rows.

        Raises:
            AuditBroken: A row is missing at the end, or a call has no row; such a row
                counts as the one after the last.
        """
        seq = self._last.seq
        due = seq + 1
        if head is None:
            raise AuditBroken("the record of the audit's last row is gone", row=due)
        ends = [head] if self._expected is None else [head, self._expected]
        for end in ends:
            if end.seq > seq:
                raise AuditBroken(f"audit row {due} is missing: there were {end.seq}", row=due)
        if head.seq < seq:
            raise AuditBroken(
                f"audit row {head.seq + 1} has no place in the chain, which ends before it",
                row=head.seq + 1,
            )
        if head.hash != self._last.hash:
            raise AuditBroken(f"audit row {seq} is not the one that was the last", row=seq)
        if calls != self._calls:
            raise AuditBroken(
                f"there are records of {calls} calls, of which the audit knows {self._calls}",
                row=due,
            )
        return seq


# What is hashed is made below, and may never change: rows that an older version wrote must
# still verify.


def _encoder(*, allow_nan: bool, default: Callable[[Any], Any]) -> Callable[[Any], str]:
    """`json.JSONEncoder(...).encode`, without making the encoder inside it anew each time.

    That takes longer than a small value does, and each call of a tool waits for four. A
    value with cycles is a RecursionError.
    """
    try:
        # What `JSONEncoder.iterencode` does; the arguments are its own.
        encode = encoder.c_make_encoder(  # type: ignore[attr-defined]
            None, default, encode_basestring_ascii, None, ":", ",", False, False, allow_nan
        )
    except (AttributeError, TypeError):  # Not in every Python, nor promised for the next.
        return json.JSONEncoder(
            separators=(",", ":"), allow_nan=allow_nan, default=default, check_circular=False
        ).encode
    return lambda value: "".join(encode(value, 0))


def _refuse(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} is not JSON")


_encode = _encoder(allow_nan=False, default=_refuse)


def canonical(value: Any) -> str:
    """Compact JSON in which every character that is not printable ASCII is escaped.

    So it is one line, whatever a stranger put into it.
    """
    # DEL is the one control character that JSON lets through. It stands in strings only.
    return _encode(value).replace("\x7f", "\\u007f")


def _quoted(text: str) -> str:
    """`canonical` of a text, by the function that it ends in: three of each row are texts."""
    return encode_basestring_ascii(text).replace("\x7f", "\\u007f")


_encode_anything = _encoder(allow_nan=True, default=repr)


def digest(values: Iterable[Any]) -> str:
    """A record's digest: the SHA-256 of its values as a JSON array.

    Takes what no record of ours holds, bytes or an infinity, so that one that was tampered
    with has a digest too.
    """
    return _sha256(_encode_anything(list(values)))


def _content(
    seq: int, at_us: int, event: str, session_id: str, call_id: str, body: str, previous: str
) -> str:
    """The line without its hash. `body` is JSON already, and all that is not quoted here.

    No two rows share one: what stands before the body reads in one way only, and what
    stands behind it, `previous`, is known from the row before.
    """
    return (
        f'{{"seq":{seq},"at_us":{at_us},"event":{_quoted(event)}'
        f',"session_id":{_quoted(session_id)},"call_id":{_quoted(call_id)}'
        f',"body":{body},"previous":"{previous}"}}'
    )


def sha256(data: bytes) -> str:
    """The SHA-256 of bytes, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def _sha256(text: str) -> str:
    # What was tampered with may hold surrogates; what we write is ASCII.
    return sha256(text.encode("utf-8", "surrogatepass"))
