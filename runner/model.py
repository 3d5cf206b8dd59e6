"""The nouns: frozen values that the layers hand to each other. No I/O, only rendering."""

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal


class Verdict(StrEnum):
    """What a policy says about a call."""

    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"


class Status(StrEnum):
    """How a call ended."""

    OK = "ok"
    FAILED = "failed"
    """The tool ran and said no: a missing file, an exit status other than 0."""
    TIMED_OUT = "timed_out"
    OOM_KILLED = "oom_killed"
    """The kernel ended a process of the call at the session's memory limit."""
    DENIED = "denied"
    INVALID = "invalid"
    """The input does not fit the tool's schema; nothing ran."""
    CANCELLED = "cancelled"
    LOST = "lost"
    """The container went away, or the process that made the call did; nobody knows the rest."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A policy's answer."""

    verdict: Verdict
    rule: str | None = None
    """The rule that decided, such as `deny[2]` or `default`; None where there is no policy."""
    reason: str = ""
    """Why, as the model is told. Empty for an allowed call."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """What is missing from an output that was longer than its limit."""

    omitted_bytes: int
    omitted_lines: int
    full_output_path: str | None = None
    """Where in the container the output is kept, or None where it could not be."""
    full_output_bytes: int = 0
    """How much of it is there: the whole, unless it was longer than what is kept."""


@dataclass(frozen=True, slots=True)
class Block:
    """Content that is no text, such as an image, for a model that can look at it."""

    media_type: str
    """As in MIME: `image/png`, `application/pdf`."""
    data: bytes

    def as_dict(self) -> dict[str, Any]:
        """It as JSON values."""
        return {"media_type": self.media_type, "data": base64.b64encode(self.data).decode()}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tool made of a call: the part of a result that the tool itself decides."""

    output: str = ""
    error: str | None = None
    status: Status = Status.OK
    exit_code: int | None = None
    """The command's own, where there was one: 128 + n when signal n ended it."""
    truncated: Truncation | None = None
    background: int = 0
    """Processes that the call left running."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Facts for programs, such as grep's count of skipped files. JSON values only."""
    blocks: tuple[Block, ...] = ()
    """Content beside the text. It goes into no record; tools say in `details` what it was."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was found valid."""

    id: str
    session_id: str
    tool: str
    arguments: Mapping[str, Any]
    """The decoded input, in the order of the schema."""
    canonical: str
    """The same as compact JSON: what the policy and the audit see."""
    timeout_s: float


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came of a call."""

    call_id: str
    tool: str
    status: Status
    output: str = ""
    error: str | None = None
    exit_code: int | None = None
    duration_s: float = 0.0
    timeout_s: float | None = None
    truncated: Truncation | None = None
    background: int = 0
    decision: Decision | None = None
    """None where the input was invalid, so that nothing was decided."""
    details: Mapping[str, Any] = field(default_factory=dict)
    blocks: tuple[Block, ...] = ()
    """Content that is no text."""

    @property
    def text(self) -> str:
        """What the model is shown: the output, then the error on a line of its own."""
        return shown(self.output, self.error)

    @property
    def is_error(self) -> bool:
        """Whether the call did not do what it was asked."""
        return self.status is not Status.OK

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON values, `text` and `is_error` included."""
        blocks = [block.as_dict() for block in self.blocks]
        values = asdict(replace(self, blocks=()))
        return {**values, "blocks": blocks, "text": self.text, "is_error": self.is_error}


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of a running call's output, as it comes. Undecodable bytes are U+FFFD."""

    text: str


class SessionState(StrEnum):
    """Where a session is in its life."""

    OPEN = "open"
    CLOSED = "closed"
    EXPIRED = "expired"


def shown(output: str, error: str | None) -> str:
    """What a model is shown of a call: the output, then the error on a line of its own."""
    if error is None:
        return output
    if not output or output.endswith("\n"):
        return output + error
    return f"{output}\n{error}"


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as the store knows it. Times are seconds since the epoch."""

    id: str
    state: SessionState
    image: str
    runtime: str | None
    workspace: str
    """The directory on the host that is mounted at /workspace."""
    managed: bool
    """The runner made the workspace and removes it with the session."""
    read_only: bool
    kept: bool
    """It outlives the process that opened it, until it is closed or its time runs out."""
    container_id: str | None
    created_at: float
    used_at: float
    idle_timeout_s: float
    expires_at: float
    tenant: str = ""
    title: str = ""
    """What its opener calls it, for people; empty without one."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What else a new container for it needs: limits, carrier, and so on."""
    marker: str = ""
    """Hex; what the session's stream starts with."""
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """A call as the store keeps it. Times are seconds since the epoch."""

    call_id: str
    session_id: str
    tool: str
    arguments: str
    """Canonical JSON, or the raw input where that was invalid."""
    verdict: Verdict | None
    rule: str | None
    reason: str
    policy: str
    """SHA-256 of the policy that decided, or empty without one."""
    status: Status | None
    """None while the call is under way."""
    exit_code: int | None
    output: str
    error: str | None
    started_at: float
    duration_s: float | None
    timeout_s: float | None
    details: Mapping[str, Any] = field(default_factory=dict)
    shadow: str = ""
    """What a second policy, which is not enforced, says of the call: JSON; empty without one."""
    approval: str = ""
    """The id of the approval that it ran under, or that refused it; empty without one."""


class ApprovalState(StrEnum):
    """Where a question to a person is in its life."""

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    """Nobody answered before its deadline. The call is denied."""
    CANCELLED = "cancelled"
    """Its session is gone, so that there is nothing to approve any more."""


APPROVAL_TRANSITIONS: Mapping[ApprovalState, frozenset[ApprovalState]] = {
    ApprovalState.PENDING: frozenset(ApprovalState) - {ApprovalState.PENDING},
    ApprovalState.APPROVED: frozenset(),
    ApprovalState.DENIED: frozenset(),
    ApprovalState.EXPIRED: frozenset(),
    ApprovalState.CANCELLED: frozenset(),
}
"""What may become of an approval in each state: it ends once, and stays as it ended."""


@dataclass(frozen=True, slots=True)
class Approval:
    """A question to a person, and its answer, as the store keeps them.

    Times are seconds since the epoch.
    """

    id: str
    session_id: str
    state: ApprovalState
    tool: str
    arguments: str
    """Canonical JSON, all of it: who answers must be able to see what it is about."""
    resolved: str | None
    """The path that the container resolved the call's to; None where the policy did not ask."""
    hash: str
    """SHA-256 of tool, arguments and resolved path: the one call that it is good for."""
    policy: str
    """SHA-256 of the policy that asked. Under another policy it is good for nothing."""
    rule: str | None
    """The rule that asked."""
    reason: str
    """The policy's words for it, or empty."""
    asked_at: float
    expires_at: float
    """The deadline: nobody's answer until then is a no."""
    ended_at: float | None = None
    answered_by: str = ""
    """Who answered; empty where nobody did."""
    answered_how: str = ""
    """`terminal`, `cli`, `callback`, `queue`, or another interface's name."""
    answer: str = ""
    """The reason that was given with a denial, or why it was cancelled."""
    pattern: str = ""
    """The rule, as JSON, that was approved for the rest of the session; empty for one call."""
    used_by: str = ""
    """The id of the call that used it. Without a pattern it can be used once."""

    @property
    def is_pending(self) -> bool:
        """Whether it still waits for an answer."""
        return self.state is ApprovalState.PENDING


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection that a session's container asked for. Times are seconds since the epoch."""

    id: str
    session_id: str
    protocol: Literal["connect", "socks5", "http", "tool"]
    """How it was asked for: a CONNECT, SOCKS 5, a plain HTTP request, or a tool's own."""
    host: str
    """The name or address that was asked for, in lower case; empty where none could be read."""
    port: int
    method: str
    """Of an HTTP request that could be read; else empty."""
    path: str
    """Of such a request, without its query, which may hold secrets; else empty."""
    address: str
    """The IP address that was dialled; empty where none was."""
    verdict: Verdict
    rule: str | None
    """The rule that decided, such as `network.allow[2]`."""
    reason: str
    """Why it was refused or failed, as the container is told; empty otherwise."""
    credential: str
    """The name of the credential that was added; empty without one."""
    started_at: float
    ended_at: float | None = None
    """None while it is open."""
    sent_bytes: int = 0
    """From the container to the host that was dialled."""
    received_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """Calls that are made at times of a schedule. Times are seconds since the epoch."""

    id: str
    name: str
    schedule: str
    """A cron expression of five fields."""
    zone: str
    """The time zone that it is in, by its IANA name."""
    calls: tuple[Mapping[str, Any], ...]
    """What a run calls, one after another: `tool` and `arguments` of each."""
    policy: str
    """What decides: a shipped policy's name, or a file, loaded anew for each run."""
    created_at: float
    seen_to: float
    """Up to here the schedule's times have been dealt with."""
    enabled: bool = True
    image: str = ""
    """Empty: that of the settings."""
    workspace: str = ""
    """Empty: a directory of each run's own."""
    read_only: bool = False
    network: Literal["", "none", "allowlist", "open"] = ""
    """Empty: that of the settings."""
    tools: Literal["rousseau", "extended"] = "rousseau"
    """The set of tools that its calls may name."""
    timeout_s: float | None = None
    """Of each call; None: that of the settings."""
    run_timeout_s: float = 3600.0
    """Of a run, all of its calls together."""
    deliver: str = "record"
    """Where a run's result goes besides the record: `file:PATH` or `webhook:URL`."""
    missed: Literal["skip", "run_once", "run_all"] = "run_once"
    """What becomes of times at which nobody was there."""
    overlap: Literal["skip", "wait"] = "skip"
    """What becomes of a time at which the run before is not over."""
    lost: Literal["report", "rerun"] = "report"
    """What becomes of a run whose process ended: it is told of, or made once more."""

    @property
    def prompt(self) -> str:
        """What it runs, in a line: the command, or the calls."""
        words = []
        for call in self.calls:
            arguments = call["arguments"]
            if call["tool"] == "bash" and set(arguments) == {"command"}:
                words.append(str(arguments["command"]))
            else:
                words.append(f"{call['tool']} {json.dumps(arguments, ensure_ascii=False)}")
        return "; ".join(" ".join(word.split()) for word in words)


class RunState(StrEnum):
    """Where a run of a job is in its life."""

    DUE = "due"
    """Its time has come; nobody runs it yet."""
    RUNNING = "running"
    OK = "ok"
    FAILED = "failed"
    LOST = "lost"
    """The process that ran it ended before it did; nobody knows how far it came."""
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a job, as the store keeps it. Times are seconds since the epoch."""

    id: str
    job_id: str
    job: str
    """The job's name."""
    scheduled_at: float
    """The time of the schedule; a job has one run for each."""
    state: RunState
    manual: bool = False
    """A person asked for it, not the schedule."""
    missed: int = 0
    """How many earlier times it stands for, at which nobody was there."""
    attempts: int = 0
    """How often it was begun."""
    owner: str = ""
    """The identity of the process that runs it, or did last."""
    started_at: float | None = None
    ended_at: float | None = None
    session_id: str = ""
    """Its session, whose records hold what was called and what came of it."""
    reason: str = ""
    """Why it failed, was skipped or is lost; empty otherwise."""
    delivery: str = ""
    """Of its result: `pending`, `done`, or `failed: ` and why; empty where only recorded."""
