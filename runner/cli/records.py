"""`runner log`, `runner audit` and `runner prune`: what happened, and tidying up after it."""

import json
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli import interrupts
from runner.cli.exits import NO
from runner.cli.interrupts import Interrupts
from runner.cli.options import Json, Quiet, Verbose, terminal_of
from runner.cli.session import no_session
from runner.cli.terminal import Terminal, one_line
from runner.cli.values import local_time
from runner.errors import AuditBroken

if TYPE_CHECKING:
    from runner.audit import AuditRow
    from runner.store import Store

POLL_S = 0.2
"""How often `--follow` looks for new rows."""
SHOWN_CHARACTERS = 300
"""Of one fact, such as a call's arguments; `--json` shows all that there is."""

_SHOWN: dict[str, tuple[str, ...]] = {
    "tool.execute": ("tool", "arguments"),
    "tool.result": ("tool", "status", "exit_code", "duration_s", "output_bytes", "error"),
    "tool.denied": ("tool", "rule", "reason", "arguments"),
    "tool.error": ("tool", "status", "error", "arguments"),
    "approval.asked": ("tool", "approval", "rule", "arguments"),
    "approval.approved": ("tool", "approval", "by", "how", "pattern"),
    "approval.denied": ("tool", "approval", "by", "how", "answer"),
    "approval.expired": ("tool", "approval"),
    "approval.cancelled": ("tool", "approval", "answer"),
    "network.allowed": ("protocol", "host", "port", "method", "path", "rule", "credential"),
    "network.denied": ("protocol", "host", "port", "method", "path", "rule", "reason"),
    "network.ended": ("host", "port", "sent_bytes", "received_bytes", "reason"),
    "session.opened": ("workspace", "read_only", "runtime", "kept"),
}
"""Of which facts an event's line tells. Of an event that is not here: all."""
_BARE = frozenset({"tool", "status"})
_STYLES = {
    "tool.denied": "red",
    "tool.error": "red",
    "approval.denied": "red",
    "network.denied": "red",
    "tool.protected": "yellow",
}


def log(
    context: typer.Context,
    session: Annotated[
        str | None, typer.Option("--session", "-s", metavar="ID", help="Only of this session.")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--last", "-n", min=0, metavar="N", help="Only the last N.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what happens, until Ctrl-C.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what happened, one line an event, oldest first.

    With --json the lines are the audit chain's own, whose hashes anybody can check.
    """
    from runner.app import open_store
    from runner.settings import Settings

    terminal = terminal_of(context)
    with open_store(Settings.read()) as store:
        if session is not None and store.session(session) is None:
            raise no_session(session)
        for row in _rows(store, session, follow=follow, last=last):
            _print(terminal, row)


def _rows(
    store: "Store", session: str | None, *, follow: bool, last: int | None
) -> "Iterator[AuditRow]":
    seen = 0
    # What is added while we read comes again, as new, if it comes at all.
    until = store.head().seq
    old = (row for row in store.audit_rows(session_id=session) if row.seq <= until)
    yield from old if last is None else deque(old, maxlen=last)
    seen = until
    while follow:
        for row in store.audit_rows(after=seen, session_id=session):
            yield row
            seen = row.seq
        time.sleep(POLL_S)


def _print(terminal: Terminal, row: "AuditRow") -> None:
    if terminal.as_json:
        terminal.print(row.line)
    else:
        terminal.print_event(event_line(row), row.event, style=_STYLES.get(row.event, "bold"))


def event_line(row: "AuditRow") -> str:
    """An event as one line that is safe to look at, wherever it is looked at."""
    moment = local_time(row.at)
    shown = _SHOWN.get(row.event, tuple(row.body))
    facts = [
        _fact(name, row.body[name]) for name in shown if row.body.get(name) not in (None, "", False)
    ]
    # Ids are told apart by their first characters; --json has them whole.
    ids = [row.session_id, row.call_id[:10]]
    parts = [moment, f"{row.event:15}", *ids, " ".join(facts)]
    return one_line("  ".join(part for part in parts if part))


def _fact(name: str, value: Any) -> str:
    if isinstance(value, float):
        value = round(value, 3)
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) > SHOWN_CHARACTERS:
        text = f"{text[:SHOWN_CHARACTERS]}…"
    return text if name in _BARE else f"{name}={text}"


def verify(
    context: typer.Context,
    head: Annotated[
        str | None,
        typer.Option(
            metavar="SEQ:HASH",
            help="An earlier end of the chain, as this command printed it: it must still be there.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check the audit chain, and print its end.

    Names the first bad row. Whoever can write the file can write a whole new chain. Keep the
    printed end elsewhere, and pass it as --head another time, to notice that.
    """
    from runner.app import open_store
    from runner.audit import Head
    from runner.settings import Settings

    terminal = terminal_of(context)
    expected = None if head is None else Head.parse(head)
    with open_store(Settings.read()) as store:
        try:
            rows = store.verify(expected)
        except AuditBroken as error:
            if terminal.as_json:
                terminal.print_json({"ok": False, "row": error.row, "problem": str(error)})
            terminal.error(str(error))
            raise typer.Exit(NO) from error
        end = store.head()
    if terminal.as_json:
        terminal.print_json({"ok": True, "rows": rows, "head": str(end)})
        return
    terminal.print(str(end))
    terminal.say(f"{rows} {'row' if rows == 1 else 'rows'}, and the chain is whole")


def prune(
    context: typer.Context, as_json: Json = False, quiet: Quiet = False, verbose: Verbose = 0
) -> None:
    """Remove what dead sessions and processes left, and old images.

    Every command that uses sessions does so at its start; this one says what it was, and
    prints the ids of the sessions that it ended.
    """
    from runner.settings import Settings

    terminal = terminal_of(context)
    settings = Settings.read()

    async def work(interruption: Interrupts) -> int:
        from runner.app import sweep

        swept = await sweep(settings)
        interruption.finishing()
        if terminal.as_json:
            terminal.print_json(
                {
                    "sessions": list(swept.sessions),
                    "containers": swept.containers,
                    "workspaces": swept.workspaces,
                    "lost_calls": list(swept.lost_calls),
                    "outdated": list(swept.outdated),
                }
            )
            return 0
        for session in swept.sessions:
            terminal.print(session)
        terminal.say(
            f"ended {len(swept.sessions)} sessions; removed {swept.containers} containers and"
            f" {swept.workspaces} workspaces; {len(swept.lost_calls)} calls were lost;"
            f" {len(swept.outdated)} outdated images and toolboxes went"
        )
        return 0

    raise typer.Exit(interrupts.run(work, say=terminal.say))
