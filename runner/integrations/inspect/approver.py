"""An approver for Inspect that asks one of the runner's policies.

Inspect's own tools have other names and arguments than the runner's; where they do the same,
the policy sees the runner's, so that one policy serves both. It judges what is written: links
in the sandbox are not followed, as they are when the runner itself executes a call.
"""

import posixpath
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from inspect_ai.approval import Approval, Approver, approver
from inspect_ai.model import ChatMessage
from inspect_ai.tool import ToolCall, ToolCallView

from runner.app import as_source
from runner.model import Verdict
from runner.sandbox import WORKSPACE

Arguments = Mapping[str, Any]


class Judged(NamedTuple):
    """A call as the policy is shown it."""

    tool: str
    arguments: Arguments


@approver(name="rousseau")
def rousseau(policy: str | Path = "default") -> Approver:
    """Approve what a policy allows, reject what it denies, escalate what it wants asked.

    Args:
        policy: The name of a shipped policy, or a file, which is read anew when it changes.

    Returns:
        An approver. To escalate is to leave the decision to the next approver that is listed
        for the tool, such as `human`; where there is none, Inspect rejects.

    Raises:
        PolicyError: There is no such policy, or it can't be loaded.
    """
    source = as_source(policy)

    async def approve(
        message: str, call: ToolCall, view: ToolCallView, history: list[ChatMessage]
    ) -> Approval:
        judged = translate(call.function, call.arguments)
        decision = source.current.decide(judged.tool, judged.arguments)
        return Approval(
            decision=_DECISIONS[decision.verdict],
            explanation=decision.reason or f"{decision.verdict} by {decision.rule}",
            metadata={"tool": judged.tool, "rule": decision.rule},
        )

    return approve


_DECISIONS: Mapping[Verdict, Any] = {
    Verdict.ALLOW: "approve",
    Verdict.DENY: "reject",
    Verdict.ASK: "escalate",
}


def translate(function: str, arguments: Arguments) -> Judged:
    """The runner's call that does what a call of one of Inspect's tools does.

    Args:
        function: The tool's name.
        arguments: What the model gave it.

    Returns:
        The same, with the runner's names; or as it came, where no tool of the runner does that:
        then the policy's rules for that name hold, or else its default.
    """
    translated = _TRANSLATIONS.get(function, _unknown)(arguments)
    return translated or Judged(function, arguments)


def _unknown(arguments: Arguments) -> Judged | None:
    return None


def _bash(arguments: Arguments) -> Judged | None:
    command = arguments.get("command", arguments.get("cmd"))
    return None if command is None else Judged("bash", {"command": command})


def _python(arguments: Arguments) -> Judged | None:
    if "code" not in arguments:
        return None
    # This is how Inspect runs it.
    return Judged("bash", {"command": "python3 -", "stdin": arguments["code"]})


def _text_editor(arguments: Arguments) -> Judged | None:
    path = _absolute(arguments.get("path"))
    if path is None:
        return None
    match arguments.get("command"):
        case "view":
            return Judged("read", {"path": path})
        case "create":
            return Judged("write", {"path": path, "content": arguments.get("file_text") or ""})
        case "str_replace":
            old, new = arguments.get("old_str") or "", arguments.get("new_str") or ""
            return Judged("edit", {"path": path, "old_string": old, "new_string": new})
        case "insert":
            new = arguments.get("new_str") or arguments.get("insert_text") or ""
            return Judged("edit", {"path": path, "old_string": "", "new_string": new})
        case "undo_edit":
            return Judged("edit", {"path": path, "old_string": "", "new_string": ""})
        case _:
            return None


def _read_file(arguments: Arguments) -> Judged | None:
    path = _absolute(arguments.get("file_path"))
    return None if path is None else Judged("read", {"path": path})


def _list_files(arguments: Arguments) -> Judged | None:
    path = _absolute(arguments.get("path", "."))
    return None if path is None else Judged("list", {"path": path})


def _grep(arguments: Arguments) -> Judged | None:
    path = _absolute(arguments.get("path", "."))
    if path is None or "pattern" not in arguments:
        return None
    include = arguments.get("glob") or ""
    return Judged("grep", {"pattern": arguments["pattern"], "path": path, "include": include})


def _absolute(path: object) -> str | None:
    """Where Inspect's tools look for it: in the workspace, unless it says otherwise."""
    if not isinstance(path, str):
        return None
    return posixpath.normpath(posixpath.join(WORKSPACE, path))


_TRANSLATIONS: Mapping[str, Callable[[Arguments], Judged | None]] = {
    "bash": _bash,
    "python": _python,
    "text_editor": _text_editor,
    "read_file": _read_file,
    "list_files": _list_files,
    "grep": _grep,
}
