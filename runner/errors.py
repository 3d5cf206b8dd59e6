"""What the runner raises, and what each error means at every exit.

    RunnerError
    ├── ConfigurationError      settings or arguments that can't be used
    │   └── PolicyError         a policy that can't be loaded: file, line, rule
    ├── ToolError               a tool that can't be registered
    ├── EngineError             Docker said no, or something unexpected
    │   ├── EngineUnavailable   the daemon can't be reached
    │   ├── NotFound            no such container, image or volume
    │   ├── Conflict            a name is taken, or what it names is in use
    │   ├── ImageUnusable       missing, another architecture, no /bin/sh
    │   └── ImageBuildError
    ├── SessionError
    │   ├── SessionNotFound
    │   ├── SessionBusy         somebody else holds it
    │   ├── SessionEnded        closed or expired
    │   └── WorkspaceError      the directory can't be mounted
    ├── ApprovalError           an approval can't be answered as asked
    │   ├── ApprovalNotFound
    │   └── ApprovalEnded       somebody else answered, or its time ran out
    ├── SandboxError            the call could not be carried out in the container
    │   ├── TransferError       a file could not be uploaded or downloaded
    │   ├── SandboxLost         the container or its helper is gone
    │   │   ├── SandboxPaused
    │   │   ├── SandboxOutOfMemory
    │   │   └── SandboxUnresponsive
    │   ├── LocalProtocolError  we misused the stream
    │   └── RemoteProtocolError the container sent something illegal
    └── StoreError
        └── AuditBroken         the chain does not verify

A command that fails, times out or is denied is not here: that is a `ToolResult`. These
errors mean that the runner could not do what it was asked.
"""

from typing import ClassVar, NamedTuple


class RunnerError(Exception):
    """The root. `str(error)` says what was wrong and, where there is something, what to do."""

    code: ClassVar[str] = "runner_error"
    """A stable name for programs; `EXITS` maps it."""


class ConfigurationError(RunnerError):
    """Settings or arguments that can't be used."""

    code = "configuration"


class PolicyError(ConfigurationError):
    """A policy that can't be loaded.

    Attributes:
        source: The file's name, or `<policy>` for a text.
        line: 1-based, or None where no line is to blame.
        problem: What is wrong, without the place.
    """

    code = "policy"

    def __init__(self, problem: str, *, source: str = "<policy>", line: int | None = None):
        self.problem = problem
        self.source = source
        self.line = line
        place = source if line is None else f"{source}:{line}"
        super().__init__(f"{place}: {problem}")


class ToolError(RunnerError):
    """A tool that can't be registered: its name is taken, or its input is not a model."""

    code = "tool"


class EngineError(RunnerError):
    """Docker refused, or answered something unexpected."""

    code = "engine"
    transient = False
    """The same request may succeed a moment later."""


class EngineUnavailable(EngineError):
    """The Docker daemon can't be reached: not installed, not running, or not ours to use."""

    code = "engine_unavailable"
    transient = True


class NotFound(EngineError):
    """No such container, image or volume."""

    code = "not_found"


class Conflict(EngineError):
    """A name is taken already, or what it names is in use or in another state."""

    code = "conflict"


class ImageUnusable(EngineError):
    """The image can't hold a session: missing, for another architecture, or without /bin/sh."""

    code = "image_unusable"


class ImageBuildError(EngineError):
    """An image could not be built; notes on the error hold the end of the build's output."""

    code = "image_build"


class SessionError(RunnerError):
    """A session can't be used as asked."""

    code = "session"


class SessionNotFound(SessionError):
    """No session has this id."""

    code = "session_not_found"


class SessionBusy(SessionError):
    """Another process, or another part of this one, holds the session."""

    code = "session_busy"


class SessionEnded(SessionError):
    """The session was closed, or its time ran out."""

    code = "session_ended"


class WorkspaceError(SessionError):
    """The workspace can't be mounted: missing, not a directory, or refused as too broad."""

    code = "workspace"


class ApprovalError(RunnerError):
    """An approval can't be answered as asked."""

    code = "approval"


class ApprovalNotFound(ApprovalError):
    """No approval has this id."""

    code = "approval_not_found"


class ApprovalEnded(ApprovalError):
    """It was answered already, its time ran out, or its session is gone."""

    code = "approval_ended"


class SandboxError(RunnerError):
    """The call could not be carried out in the container."""

    code = "sandbox"


class TransferError(SandboxError):
    """A file could not be uploaded or downloaded: not there, no permission, too large, no room.

    Attributes:
        path: Which file, as an absolute path in the container.
        failure: Why, as one of `runner.helper.wire.FAILURES`: `not_found`, `is_directory`,
            `not_directory`, `permission_denied`, `file_too_large`, `no_space`, and so on.
    """

    code = "transfer"

    def __init__(self, message: str, *, path: str, failure: str):
        self.path = path
        self.failure = failure
        super().__init__(message)


class SandboxLost(SandboxError):
    """The container or its helper is gone; the next call gets a new one."""

    code = "sandbox_lost"


class SandboxPaused(SandboxLost):
    """Somebody paused the container."""

    code = "sandbox_paused"


class SandboxOutOfMemory(SandboxLost):
    """The kernel killed the container's first process for want of memory."""

    code = "sandbox_out_of_memory"


class SandboxUnresponsive(SandboxLost):
    """The helper did not answer in time, so its container was killed."""

    code = "sandbox_unresponsive"


class LocalProtocolError(SandboxError):
    """We tried to send what the protocol does not allow, such as a payload over its limit."""

    code = "local_protocol"


class RemoteProtocolError(SandboxLost):
    """The container sent what the protocol does not allow; it was killed."""

    code = "remote_protocol"


class StoreError(RunnerError):
    """The database can't be opened, read or written."""

    code = "store"


class AuditBroken(StoreError):
    """The audit chain does not verify. `row` is the first bad row's number."""

    code = "audit_broken"

    def __init__(self, message: str, *, row: int):
        self.row = row
        super().__init__(message)


class Exit(NamedTuple):
    """How an error leaves the program."""

    status: int
    """Exit status of the command line."""
    http: int
    """HTTP status."""
    mcp: int
    """JSON-RPC error code of the MCP server."""


DENIED, INVALID, TIMED_OUT, CANCELLED, LOST = 120, 121, 124, 123, 122
"""Exit statuses of a call whose command has none of its own to pass on."""

COULD_NOT_RUN = 125

EXITS: dict[str, Exit] = {
    "runner_error": Exit(COULD_NOT_RUN, 500, -32603),
    "configuration": Exit(2, 400, -32602),
    "policy": Exit(2, 400, -32602),
    "tool": Exit(2, 400, -32602),
    "engine": Exit(COULD_NOT_RUN, 502, -32603),
    "engine_unavailable": Exit(COULD_NOT_RUN, 503, -32603),
    "not_found": Exit(COULD_NOT_RUN, 404, -32602),
    "conflict": Exit(COULD_NOT_RUN, 409, -32603),
    "image_unusable": Exit(COULD_NOT_RUN, 422, -32602),
    "image_build": Exit(COULD_NOT_RUN, 500, -32603),
    "session": Exit(COULD_NOT_RUN, 409, -32602),
    "session_not_found": Exit(COULD_NOT_RUN, 404, -32602),
    "session_busy": Exit(COULD_NOT_RUN, 409, -32602),
    "session_ended": Exit(COULD_NOT_RUN, 410, -32602),
    "workspace": Exit(2, 422, -32602),
    "approval": Exit(COULD_NOT_RUN, 409, -32602),
    "approval_not_found": Exit(COULD_NOT_RUN, 404, -32602),
    "approval_ended": Exit(COULD_NOT_RUN, 410, -32602),
    "sandbox": Exit(COULD_NOT_RUN, 502, -32603),
    "transfer": Exit(COULD_NOT_RUN, 422, -32602),
    "sandbox_lost": Exit(LOST, 502, -32603),
    "sandbox_paused": Exit(LOST, 502, -32603),
    "sandbox_out_of_memory": Exit(LOST, 502, -32603),
    "sandbox_unresponsive": Exit(LOST, 504, -32603),
    "local_protocol": Exit(COULD_NOT_RUN, 413, -32602),
    "remote_protocol": Exit(LOST, 502, -32603),
    "store": Exit(COULD_NOT_RUN, 500, -32603),
    "audit_broken": Exit(1, 500, -32603),
}
