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
    from runner.client import (
        AsyncRunner,
        AsyncSession,
    )
    from runner.errors import (
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
        WorkspaceError,
    )
    from runner.model import (
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
    "AsyncRunner",
    "AsyncSession",
    "AuditBroken",
    "ConfigurationError",
    "Decision",
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
    "Verdict",
    "WorkspaceError",
    "__version__",
]

_MODULES = {
    "AsyncRunner": "runner.client",
    "AsyncSession": "runner.client",
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
    "WorkspaceError": "runner.errors",
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
