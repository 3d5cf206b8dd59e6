"""Asking whoever sits at the terminal whether a call may run: `--ask`.

Owns what such a person is shown of a call, and the questions. What an answer means is
`runner.approvals`'. Everything is said on standard error, and what the call holds is set in
behind a bar, so that no line of it can pass for one of ours.
"""

import asyncio
import difflib
import json
import re
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from runner.answers import RequestFailed
from runner.cli.options import AskWhom
from runner.cli.terminal import Terminal
from runner.errors import PolicyError, SandboxError
from runner.logs import visible

if TYPE_CHECKING:
    from runner.approvals import Answer, ApprovalRequest, Preview
    from runner.client import AsyncSession

BAR = "  | "
HEAD_ROWS, TAIL_ROWS = 150, 50
"""Of a long text the beginning and the end are shown, and how much is left out between."""
LINE_CHARACTERS = 20_000
"""Of each end of a long line, for the same."""
MIN_COLUMNS = 20
READ_LIMIT_BYTES = 256 * 1024
"""Of a larger file no difference is shown."""
DIFF_LINES = 4000
"""Nor between texts of more lines than this together: it would take too long."""
CONTEXT_LINES = 3
SHOWN_CALLS = 5
"""How many of the calls that a pattern covers are listed."""
SHOWN_CHARACTERS = 100
"""Of each."""

CHOICES = "approve once [a], approve a pattern for the session [p], deny [d]? "


class Prompt:
    """An approver: the person at this terminal."""

    how = "terminal"

    def __init__(self, terminal: Terminal):
        self.session: AsyncSession | None = None
        """Where the calls run, once it is open: files are read there, to show what changes."""
        self._terminal = terminal
        self._one = asyncio.Lock()

    async def __call__(self, request: "ApprovalRequest") -> "Answer":
        """Show the call and ask. One question at a time."""
        async with self._one:
            await self._describe(request)
            self._terminal.forget_typed()
            while True:
                if (answer := await self._answer(request)) is not None:
                    return answer

    async def _answer(self, request: "ApprovalRequest") -> "Answer | None":
        """An answer; None where the question has to be put once more."""
        from runner.approvals import Approve, Deny

        match await self._line(CHOICES):
            case None:
                return Deny("nobody answered at the terminal")
            case "a" | "approve":
                return Approve()
            case "d" | "deny":
                return Deny(await self._line("reason, for the model (may be empty): ") or "")
            case "p" | "pattern":
                return await self._pattern(request)
        return None

    async def _pattern(self, request: "ApprovalRequest") -> "Answer | None":
        from runner.approvals import ApprovePattern

        exact = request.suggestion
        self._tell("a rule for this call alone is", json.dumps(exact))
        typed = await self._line("rule (empty: that one; or {tool: bash, command: '^git push'}): ")
        if typed is None:
            return None
        rule = typed or exact
        try:
            preview = request.preview(rule)
        except PolicyError as error:
            self._terminal.tell(str(error))
            return None
        self._terminal.tell("\n".join(preview_lines(preview, self._width)))
        if not preview.covers or await self._line("approve this pattern [y/n]? ") != "y":
            return None
        return ApprovePattern(rule)

    @property
    def _width(self) -> int:
        return self._terminal.errors.width

    def _tell(self, ours: str, *theirs: str) -> None:
        self._terminal.tell("\n".join([ours, *barred(theirs, self._width)]))

    async def _line(self, question: str) -> str | None:
        line = await self._terminal.ask(question)
        return None if line is None else line.strip()

    async def _describe(self, request: "ApprovalRequest") -> None:
        until = time.strftime("%H:%M:%S", time.localtime(request.deadline))
        reason = f" ({request.reason})" if request.reason else ""
        lines = await self._changes(request) or argument_lines(request.arguments)
        if request.resolved is not None and request.resolved != request.arguments.get("path"):
            lines.append(f"the path leads to {json.dumps(request.resolved)}")
        self._tell(f"the rule {request.rule} asks about a call of {request.tool}{reason}", *lines)
        self._tell(f"{request.id}, in session {request.session}; denied at {until}")

    async def _changes(self, request: "ApprovalRequest") -> list[str] | None:
        """What an `edit` or `write` changes; None for other tools, and where nobody can tell."""
        if request.tool not in ("edit", "write") or self.session is None:
            return None
        path = str(request.arguments["path"])
        try:
            sandbox = await self.session.sandbox()
            content = await sandbox.read(
                path, limit_bytes=READ_LIMIT_BYTES, judged=request.resolved
            )
            before = content.decode()
        except RequestFailed as failure:
            if failure.code != "not_found" or request.tool == "edit":
                return None  # the arguments as they are say what can be said
            before = ""
        except (SandboxError, UnicodeDecodeError):
            return None
        if request.tool == "write":
            after = str(request.arguments["content"])
        else:
            old, new = str(request.arguments["old_string"]), str(request.arguments["new_string"])
            if before.count(old) != 1:
                return None
            after = before.replace(old, new)
        return difference(before, after, path)


class Waiting:
    """An approver that answers nothing: it says that somebody else has to, and how."""

    how = "store"

    def __init__(self, terminal: Terminal):
        self._terminal = terminal

    async def __call__(self, request: "ApprovalRequest") -> "Answer":
        """Wait until another process has answered, which cancels this."""
        self._terminal.say(
            f"{request.tool} waits for an answer: runner approvals show {request.id}"
        )
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        return await waiting


def approver_for(terminal: Terminal, whom: AskWhom | None) -> Prompt | Waiting | None:
    """Who is asked, as `--ask` says; None: nobody.

    Raises:
        typer.BadParameter: The terminal is to be asked, and there is none.
    """
    if whom is None:
        whom = AskWhom.PROMPT if terminal.can_ask else AskWhom.DENY
    match whom:
        case AskWhom.STORE:
            return Waiting(terminal)
        case AskWhom.DENY:
            return None
    if not terminal.can_ask:
        raise typer.BadParameter(
            "nobody can be asked here: standard input and standard error must be a terminal;"
            " `--ask store` waits for `runner approvals approve` instead",
            param_hint="--ask",
        )
    return Prompt(terminal)


# What is shown.


def argument_lines(arguments: Any) -> list[str]:
    """The arguments of a call, each text in lines of its own."""
    lines: list[str] = []
    for name, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value)
        if "\n" in text:
            lines += [f"{name}:", *(f"  {line}" for line in text.split("\n"))]
        else:
            lines.append(f"{name}: {text}")
    return lines


def barred(lines: Sequence[str], width: int, *, bounded: bool = True) -> list[str]:
    """Somebody's text as rows behind a bar, so that none of it can pass for ours.

    Args:
        lines: The text, of any length.
        width: How many columns there are. A row that the terminal would break itself goes on
            at its edge, where there is no bar.
        bounded: Show `HEAD_ROWS` and `TAIL_ROWS` at most, and a sign between them where some
            are left out.
    """
    room = max(MIN_COLUMNS, width - len(BAR))
    rows = [row for line in lines for row in _rows(line, room, bounded=bounded)]
    if bounded and (left_out := len(rows) - HEAD_ROWS - TAIL_ROWS) > 0:
        note = f"NOT SHOWN: {left_out} rows; `runner approvals show ID` elsewhere shows them"
        head = [f"{BAR}{row}" for row in rows[:HEAD_ROWS]]
        return [*head, note, *(f"{BAR}{row}" for row in rows[-TAIL_ROWS:])]
    return [f"{BAR}{row}" for row in rows]


def _rows(line: str, width: int, *, bounded: bool) -> list[str]:
    from rich.cells import chop_cells

    more = len(line) - 2 * LINE_CHARACTERS
    if bounded and more > 0:
        head, tail = line[:LINE_CHARACTERS], line[-LINE_CHARACTERS:]
        return [
            *_rows(head, width, bounded=bounded),
            f"… NOT SHOWN: {more} characters …",
            *_rows(tail, width, bounded=bounded),
        ]
    return chop_cells(visible(line).expandtabs(), width) or [""]


def difference(before: str, after: str, path: str) -> list[str] | None:
    """A unified diff; None where there is too much to compare.

    An empty `before` may be a file that is not there yet.
    """
    old, new = before.split("\n"), after.split("\n")
    same = _common(old, new)
    same_end = _common(old[same:][::-1], new[same:][::-1])
    changed = len(old) + len(new) - 2 * (same + same_end)
    if changed > DIFF_LINES:
        return None
    # Only what differs is compared, with a little around it: most of a file stays.
    start, end = max(0, same - CONTEXT_LINES), max(0, same_end - CONTEXT_LINES)
    hunks = difflib.unified_diff(
        old[start : len(old) - end], new[start : len(new) - end], lineterm="", n=CONTEXT_LINES
    )
    name = json.dumps(path)
    lines = [f"--- {name}", f"+++ {name}"]
    lines += [_HUNK.sub(partial(_moved, start), line) for line in list(hunks)[2:]]
    return lines if changed else [f"--- {name}", "nothing changes"]


_HUNK = re.compile(r"\A@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@\Z")


def _moved(start: int, hunk: re.Match[str]) -> str:
    old, old_count, new, new_count = hunk.groups("")
    return f"@@ -{int(old) + start}{old_count} +{int(new) + start}{new_count} @@"


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def preview_lines(preview: "Preview", width: int) -> list[str]:
    """What a pattern would cover, for a person."""
    lines = ["the pattern", *barred([preview.rule], width)]
    if not preview.covers:
        return [*lines, "does not cover this call, so it can't answer it"]
    unknown = f" ({preview.unreadable} are too long to tell)" if preview.unreadable else ""
    lines.append(
        f"covers {len(preview.past)} of the session's last {preview.looked_at} calls{unknown}"
    )
    past = [f"{record.tool} {_short(record.arguments)}" for record in preview.past[:SHOWN_CALLS]]
    lines += barred(past, width)
    lines.append(f"and would approve {len(preview.pending)} other calls that wait")
    pending = [
        f"{approval.id} {approval.tool} {_short(approval.arguments)}"
        for approval in preview.pending[:SHOWN_CALLS]
    ]
    return lines + barred(pending, width)


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
