"""`runner approvals`: answering calls that wait for a person, from any terminal."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.options import Json, Quiet, terminal_of
from runner.cli.prompt import argument_lines, barred, preview_lines
from runner.cli.session import no_session
from runner.cli.terminal import Terminal, described
from runner.cli.values import ago, local_time
from runner.errors import ApprovalNotFound

if TYPE_CHECKING:
    from runner.approvals import Answer, Preview
    from runner.model import Approval
    from runner.store import Store

CALL_CHARACTERS = 60
"""Of a call's arguments in a list; `show` and `--json` have all of them."""
FOLDED = 10_000
"""Columns of what is no terminal: nothing has to be broken there."""

Id = Annotated[str, typer.Argument(metavar="ID", help="The approval's id.")]
Pattern = Annotated[
    str | None,
    typer.Option(
        "--pattern",
        metavar="RULE",
        help="A rule for the rest of the session, such as {tool: bash, command: '^git push'}.",
    ),
]


def list_(
    context: typer.Context,
    session: Annotated[
        str | None, typer.Option("--session", "-s", metavar="ID", help="Only of this session.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Ended ones too.")] = False,
    as_json: Json = False,
) -> None:
    """List the calls that wait for an answer, oldest first."""
    terminal = terminal_of(context)
    with _store() as store:
        if session is not None and store.session(session) is None:
            raise no_session(session)
        approvals = store.approvals(session_id=session, include_ended=all_)
        now = store.now()
    if terminal.as_json:
        terminal.print_json([asdict(approval) for approval in approvals])
        return
    terminal.print_table(
        ("ID", "STATE", "SESSION", "AGE", "LEFT", "RULE", "TOOL", "CALL"),
        [
            (
                approval.id,
                str(approval.state),
                approval.session_id,
                ago(now - approval.asked_at),
                ago(approval.expires_at - now) if approval.is_pending else "-",
                approval.rule or "-",
                approval.tool,
                _short(approval.arguments),
            )
            for approval in approvals
        ],
    )
    if not approvals:
        terminal.say("there are no approvals" if all_ else "no call waits for an answer")


def show(context: typer.Context, id_: Id, pattern: Pattern = None, as_json: Json = False) -> None:
    """Show a call that waits, or waited, for an answer: all of it.

    With --pattern: which past and waiting calls of the session the rule would cover.
    """
    from runner.approvals import preview_pattern

    terminal = terminal_of(context)
    with _store() as store:
        approval = store.approval(id_)
        if approval is None:
            raise _not_found(id_)
        preview = None if pattern is None else preview_pattern(store, approval, pattern)
        now = store.now()
    if terminal.as_json:
        facts = asdict(approval)
        terminal.print_json(facts if preview is None else {**facts, "preview": _json(preview)})
        return
    terminal.print("\n".join(_lines(terminal, approval, now)))
    if preview is not None:
        terminal.print("\n".join(preview_lines(preview, _width(terminal))))


def approve(
    context: typer.Context,
    id_: Id,
    pattern: Pattern = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Approve a call that waits; with --pattern also what else fits.

    A pattern holds until the session ends, where the policy asks; it allows nothing that the
    policy denies. `runner approvals show ID --pattern RULE` says what it would cover.
    """
    from runner.approvals import Approve, ApprovePattern

    _answer(context, id_, Approve() if pattern is None else ApprovePattern(pattern))


def deny(
    context: typer.Context,
    id_: Id,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="What the model is told.")
    ] = "",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Deny a call that waits."""
    from runner.approvals import Deny

    _answer(context, id_, Deny(reason))


def _answer(context: typer.Context, id_: str, answer: "Answer") -> None:
    from runner.approvals import answer_approval

    terminal = terminal_of(context)
    with _store() as store:
        approval = answer_approval(store, id_, answer, how="cli")
    if terminal.as_json:
        terminal.print_json(asdict(approval))
    terminal.say(f"{approval.state}: {approval.tool} {_short(approval.arguments)}")


def _store() -> "Store":
    """The records, in which nothing is pending any more that is past its deadline."""
    from runner.app import open_store
    from runner.settings import Settings

    store = open_store(Settings.read())
    try:
        store.expire_approvals()
    except BaseException:
        store.close()
        raise
    return store


def _not_found(approval_id: str) -> ApprovalNotFound:
    return ApprovalNotFound(
        f"there is no approval {approval_id!r}; `runner approvals list --all` shows those there are"
    )


def _lines(terminal: Terminal, approval: "Approval", now: float) -> list[str]:
    facts: dict[str, object] = {
        name: value
        for name, value in asdict(approval).items()
        if name not in ("arguments", "resolved", "pattern") and value not in (None, "")
    }
    for name in ("asked_at", "expires_at", "ended_at"):
        if name in facts:
            facts[name] = local_time(float(str(facts[name])), now)
    call = argument_lines(json.loads(approval.arguments))
    if approval.resolved is not None:
        call.append(f"the path leads to {json.dumps(approval.resolved)}")
    lines = [*described(facts), "the call", *barred(call, _width(terminal), bounded=False)]
    if approval.pattern:
        lines += ["approved pattern", *barred([approval.pattern], _width(terminal), bounded=False)]
    return lines


def _width(terminal: Terminal) -> int:
    if not terminal.is_terminal:
        return FOLDED
    from rich.console import Console

    return Console().width


def _json(preview: "Preview") -> dict[str, Any]:
    return {
        "rule": preview.rule,
        "covers": preview.covers,
        "past": [
            {"call_id": record.call_id, "tool": record.tool, "arguments": record.arguments}
            for record in preview.past
        ],
        "looked_at": preview.looked_at,
        "unreadable": preview.unreadable,
        "pending": [approval.id for approval in preview.pending],
    }


def _short(text: str) -> str:
    return text if len(text) <= CALL_CHARACTERS else f"{text[:CALL_CHARACTERS]}…"
