"""Runs the tool calls of AI agents that nobody trusts, each in its session's own container.

    from runner import Runner

    with Runner(policy="default") as runner, runner.session(workspace=".") as session:
        print(session.bash("pytest -q").text)

Importing this imports nothing else: each name is loaded when it is first used, so that the
helper's modules and `runner --version` start without the weight of the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.approvals import (
        Answer,
        ApprovalQueue,
        ApprovalRequest,
        Approve,
        ApprovePattern,
        Deny,
    )
    from runner.client import (
        AsyncRunner,
        AsyncSession,
    )
    from runner.errors import (
        ApprovalEnded,
        ApprovalError,
        ApprovalNotFound,
        AuditBroken,
        ConfigurationError,
        EngineError,
        EngineUnavailable,
        ImageBuildError,
        ImageUnusable,
        PolicyError,
        RemoteProtocolError,
        RunnerError,
        SandboxError,
        SandboxLost,
        SandboxOutOfMemory,
        SandboxPaused,
        SandboxUnresponsive,
        SessionBusy,
        SessionEnded,
        SessionError,
        SessionNotFound,
        StoreError,
        ToolError,
        TransferError,
        WorkspaceError,
    )
    from runner.model import (
        Approval,
        ApprovalState,
        Decision,
        Outcome,
        Output,
        SessionInfo,
        Status,
        ToolResult,
        Verdict,
    )
    from runner.policy import (
        Policy,
    )
    from runner.settings import (
        Limits,
        Settings,
    )
    from runner.sync import (
        Runner,
        Session,
    )
    from runner.tools import (
        Registry,
        Tool,
        ToolContext,
    )
    from runner.version import (
        __version__,
    )

__all__ = [
    "Answer",
    "Approval",
    "ApprovalEnded",
    "ApprovalError",
    "ApprovalNotFound",
    "ApprovalQueue",
    "ApprovalRequest",
    "ApprovalState",
    "Approve",
    "ApprovePattern",
    "AsyncRunner",
    "AsyncSession",
    "AuditBroken",
    "ConfigurationError",
    "Decision",
    "Deny",
    "EngineError",
    "EngineUnavailable",
    "ImageBuildError",
    "ImageUnusable",
    "Limits",
    "Outcome",
    "Output",
    "Policy",
    "PolicyError",
    "Registry",
    "RemoteProtocolError",
    "Runner",
    "RunnerError",
    "SandboxError",
    "SandboxLost",
    "SandboxOutOfMemory",
    "SandboxPaused",
    "SandboxUnresponsive",
    "Session",
    "SessionBusy",
    "SessionEnded",
    "SessionError",
    "SessionInfo",
    "SessionNotFound",
    "Settings",
    "Status",
    "StoreError",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolResult",
    "TransferError",
    "Verdict",
    "WorkspaceError",
    "__version__",
]

_MODULES = {
    "Answer": "runner.approvals",
    "ApprovalQueue": "runner.approvals",
    "ApprovalRequest": "runner.approvals",
    "Approve": "runner.approvals",
    "ApprovePattern": "runner.approvals",
    "Deny": "runner.approvals",
    "AsyncRunner": "runner.client",
    "AsyncSession": "runner.client",
    "ApprovalEnded": "runner.errors",
    "ApprovalError": "runner.errors",
    "ApprovalNotFound": "runner.errors",
    "AuditBroken": "runner.errors",
    "ConfigurationError": "runner.errors",
    "EngineError": "runner.errors",
    "EngineUnavailable": "runner.errors",
    "ImageBuildError": "runner.errors",
    "ImageUnusable": "runner.errors",
    "PolicyError": "runner.errors",
    "RemoteProtocolError": "runner.errors",
    "RunnerError": "runner.errors",
    "SandboxError": "runner.errors",
    "SandboxLost": "runner.errors",
    "SandboxOutOfMemory": "runner.errors",
    "SandboxPaused": "runner.errors",
    "SandboxUnresponsive": "runner.errors",
    "SessionBusy": "runner.errors",
    "SessionEnded": "runner.errors",
    "SessionError": "runner.errors",
    "SessionNotFound": "runner.errors",
    "StoreError": "runner.errors",
    "ToolError": "runner.errors",
    "TransferError": "runner.errors",
    "WorkspaceError": "runner.errors",
    "Approval": "runner.model",
    "ApprovalState": "runner.model",
    "Decision": "runner.model",
    "Outcome": "runner.model",
    "Output": "runner.model",
    "SessionInfo": "runner.model",
    "Status": "runner.model",
    "ToolResult": "runner.model",
    "Verdict": "runner.model",
    "Policy": "runner.policy",
    "Limits": "runner.settings",
    "Settings": "runner.settings",
    "Runner": "runner.sync",
    "Session": "runner.sync",
    "Registry": "runner.tools",
    "Tool": "runner.tools",
    "ToolContext": "runner.tools",
    "__version__": "runner.version",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
