"""`runner mcp`: the tools for an agent that speaks the Model Context Protocol."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli import interrupts
from runner.cli.calls import DEFAULT_POLICY, chosen_policy, warn_of_no_hosts
from runner.cli.interrupts import Interrupts
from runner.cli.options import (
    Carrier,
    Cpus,
    Env,
    Image,
    Memory,
    NetworkOption,
    PolicyOption,
    Quiet,
    ReadOnly,
    Runtime,
    Timeout,
    Tools,
    ToolSetName,
    Verbose,
    Workspace,
    session_settings,
    terminal_of,
)
from runner.cli.terminal import Terminal
from runner.cli.values import variables
from runner.errors import ConfigurationError

if TYPE_CHECKING:
    from runner.mcp_server.server import ToolServer
    from runner.settings import Settings


class Whom(StrEnum):
    """Who answers where the policy asks."""

    CLIENT = "client"
    STORE = "store"
    DENY = "deny"


class SessionsOf(StrEnum):
    """How calls find their session."""

    ONE = "one"
    MANY = "many"


def mcp(
    context: typer.Context,
    workspace: Workspace = None,
    read_only: ReadOnly = False,
    policy: PolicyOption = DEFAULT_POLICY,
    ask: Annotated[
        Whom,
        typer.Option(
            "--ask",
            help="Who answers where the policy asks: the person behind the client (or"
            " `runner approvals`, where the client can't ask), `runner approvals` only, or nobody.",
        ),
    ] = Whom.CLIENT,
    tools: Tools = ToolSetName.ROUSSEAU,
    sessions: Annotated[
        SessionsOf,
        typer.Option(
            "--sessions",
            help="One session for each client, or as many as calls open and name.",
        ),
    ] = SessionsOf.ONE,
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="HOST:PORT", help="Serve over HTTP, at /mcp."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="With --http: holds the bearer token that clients must show. Else"
            " RUNNER_MCP_TOKEN does.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="NAME",
            help="With --http: another name that clients may call this server by. Repeatable.",
        ),
    ] = None,
    queries: Annotated[
        bool,
        typer.Option("--queries", help="Serve searches of past sessions, and no tools."),
    ] = False,
    image: Image = None,
    runtime: Runtime = None,
    carrier: Carrier = None,
    network: NetworkOption = None,
    timeout: Timeout = None,
    memory: Memory = None,
    cpus: Cpus = None,
    env: Env = None,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Serve the tools to an agent, by the Model Context Protocol.

    Over standard input and output, until the input ends, or over HTTP. Each client's calls run
    in a container of its own, which is made for the first call and removed with the client.
    """
    from runner.client import AsyncRunner
    from runner.mcp_server import stdio
    from runner.mcp_server.asking import Asker
    from runner.mcp_server.server import ToolServer
    from runner.settings import Settings
    from runner.workspace import check_workspace

    terminal = terminal_of(context)
    if http is None and (token_file is not None or allow_host):
        raise typer.BadParameter("--token-file and --allow-host belong to --http")
    settings = Settings.read(
        **session_settings(
            image=image,
            runtime=runtime,
            carrier=carrier,
            network=network,
            timeout_s=timeout,
            memory_bytes=memory,
            cpus=cpus,
            mcp_token=_token(token_file),
        )
    )
    if queries:
        if http is not None:
            raise typer.BadParameter("--queries is served over standard input and output only")
        raise typer.Exit(interrupts.run(lambda _: _serve_queries(settings), say=terminal.say))
    if workspace is not None:
        check_workspace(Path(workspace))  # now, and not when an agent makes its first call
    chosen = chosen_policy(terminal, policy)
    warn_of_no_hosts(terminal, chosen, settings.network)
    what = "workspace " + (workspace or "empty (--workspace DIR mounts one)")
    terminal.say(f"MCP server, policy {chosen.name}, {what}")
    options = {
        "workspace": workspace,
        "read_only": read_only,
        "environment": variables(env or []),
    }

    async def work(interruption: Interrupts) -> int:
        async with AsyncRunner(
            policy,  # as it was given: what a file says may change while this serves
            approver=None if ask is Whom.DENY else Asker(),
            settings=settings,
            tools=tools.value,
        ) as runner:
            server = ToolServer(
                runner,
                options,
                named=sessions is SessionsOf.MANY,
                elicit=ask is Whom.CLIENT,
            )
            try:
                if http is None:
                    await stdio.serve(server.lowlevel)
                else:
                    await _serve_http(terminal, server, settings, http, allow_host or [])
            finally:
                interruption.finishing()
                await server.close()
        return 0

    raise typer.Exit(interrupts.run(work, say=terminal.say))


async def _serve_http(
    terminal: Terminal,
    server: "ToolServer",
    settings: "Settings",
    where: str,
    names: list[str],
) -> None:
    from runner.mcp_server import http

    place = http.Address.parse(where)
    names = [http.check_name(name) for name in names]
    secret = settings.mcp_token
    token = None if secret is None else secret.get_secret_value()
    with http.listening(place, token=token) as sock:
        host, port = sock.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        terminal.say(f"listening on http://{shown}:{port}{http.PATH}")
        await http.serve(
            server,
            sock,
            place,
            token=token,
            more=names,
            idle_timeout_s=settings.idle_timeout_s,
        )


async def _serve_queries(settings: "Settings") -> int:
    from runner.app import open_store
    from runner.mcp_server import records, stdio

    with open_store(settings) as store:
        await stdio.serve(records.server(store))
    return 0


def _token(file: Path | None) -> str | None:
    """The token that a file holds.

    Raises:
        ConfigurationError: It can't be read, or is empty.
    """
    if file is None:
        return None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"can't read the token in {file}: {why}") from error
    if not token:
        raise ConfigurationError(f"there is no token in {file}")
    return token
