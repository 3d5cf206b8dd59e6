"""`runner connections` and `runner policy connect`: what went out, and what would be let out."""

import re
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.options import Json, terminal_of
from runner.cli.policies import PolicyArgument
from runner.cli.session import no_session
from runner.cli.terminal import one_line
from runner.cli.values import local_time
from runner.errors import ConfigurationError
from runner.model import Verdict

if TYPE_CHECKING:
    from runner.model import Connection

DEFAULT_LAST = 100


def connections(
    context: typer.Context,
    session: Annotated[
        str | None, typer.Option("--session", "-s", metavar="ID", help="Only of this session.")
    ] = None,
    last: Annotated[
        int, typer.Option("--last", "-n", min=1, metavar="N", help="Only the last N.")
    ] = DEFAULT_LAST,
    as_json: Json = False,
) -> None:
    """List connections that sessions asked for, oldest first."""
    from runner.app import open_store
    from runner.settings import Settings

    terminal = terminal_of(context)
    with open_store(Settings.read()) as store:
        if session is not None and store.session(session) is None:
            raise no_session(session)
        found = store.connections(session, last)[::-1]
    if terminal.as_json:
        terminal.print_json([asdict(connection) for connection in found])
        return
    terminal.print_table(
        ("TIME", "SESSION", "HOW", "WHERE", "VERDICT", "RULE", "SENT", "RECEIVED", "REASON"),
        [_row(connection) for connection in found],
    )
    if not found:
        terminal.say("there are no connections")


def _row(connection: "Connection") -> tuple[str, ...]:
    where = f"{connection.host}:{connection.port}{connection.path}" if connection.host else ""
    return (
        local_time(connection.started_at),
        connection.session_id,
        f"{connection.protocol} {connection.method}".strip(),
        where,
        str(connection.verdict),
        connection.rule or "",
        str(connection.sent_bytes),
        str(connection.received_bytes),
        connection.reason,
    )


def connect(
    context: typer.Context,
    file: PolicyArgument,
    where: Annotated[
        str,
        typer.Argument(
            metavar="HOST:PORT|URL",
            help="What a program would connect to; of an http:// URL the request is judged, too.",
        ),
    ],
    method: Annotated[
        str,
        typer.Option(
            metavar="METHOD",
            help="Of the request. With an https:// URL: the host is one whose HTTPS is opened.",
        ),
    ] = "",
    everything: Annotated[
        bool, typer.Option("--open", help="As in a session with the network `open`.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say what a policy makes of a connection, and why. Nothing is resolved or dialled."""
    from runner.app import as_policy
    from runner.egress.addresses import refusal
    from runner.policy.network import NotAHost, read_asked

    terminal = terminal_of(context)
    if method and (not re.fullmatch(r"[A-Za-z-]+", method) or "://" not in where):
        raise typer.BadParameter(
            "write a method of HTTP, such as POST, with a URL", param_hint="--method"
        )
    policy = as_policy(file)
    try:
        asked = read_asked(where, method)
    except NotAHost as error:
        raise ConfigurationError(str(error)) from None
    decision = policy.network.judge(asked, everything=everything)
    if decision.allowed and not isinstance(asked.host, str):
        # What would refuse to dial it, whatever rule let it through.
        why = refusal(asked.host, decision.addresses)
        if why is not None:
            reason = f"{why}, and no rule lists it"
            decision = replace(decision, verdict=Verdict.DENY, rule=None, reason=reason)
    if terminal.as_json:
        terminal.print_json(
            {
                "verdict": str(decision.verdict),
                "rule": decision.rule,
                "reason": decision.reason,
                "addresses": [str(network) for network in decision.addresses],
            }
        )
        return
    said = f"{decision.verdict} by {decision.rule or 'what may be dialled'}"
    terminal.print(one_line(f"{said}: {decision.reason}" if decision.reason else said))
    if decision.addresses:
        listed = ", ".join(map(str, decision.addresses))
        terminal.say(f"beside public addresses it may lead to {listed}")
