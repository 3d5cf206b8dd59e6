"""`runner session`: sessions that are kept between commands."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli import interrupts
from runner.cli.calls import IMAGES_ONCE
from runner.cli.interrupts import Interrupts
from runner.cli.options import (
    Carrier,
    Cpus,
    Env,
    Image,
    Json,
    Memory,
    NetworkOption,
    Quiet,
    ReadOnly,
    Runtime,
    Timeout,
    Verbose,
    Wait,
    Workspace,
    session_settings,
    terminal_of,
)
from runner.cli.terminal import Progress, described
from runner.cli.values import ago, duration_s, local_time, variables
from runner.errors import SessionNotFound
from runner.model import SessionInfo, SessionState

if TYPE_CHECKING:
    from runner.settings import Settings

Id = Annotated[str, typer.Argument(metavar="ID", help="The session's id.")]


def create(
    context: typer.Context,
    workspace: Workspace = None,
    read_only: ReadOnly = False,
    image: Image = None,
    runtime: Runtime = None,
    carrier: Carrier = None,
    network: NetworkOption = None,
    timeout: Timeout = None,
    idle_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="TIME",
            parser=duration_s,
            help="Close it when it was not used for so long. Default: 30m.",
        ),
    ] = None,
    ttl: Annotated[
        float | None,
        typer.Option(
            metavar="TIME",
            parser=duration_s,
            help="Close it after so long, used or not. Default: 8h.",
        ),
    ] = None,
    memory: Memory = None,
    cpus: Cpus = None,
    env: Env = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Open a session that stays, and print its id.

    Its container runs until `runner session close`, or until its time is up.
    """
    from runner.settings import Settings

    terminal = terminal_of(context)
    settings = Settings.read(
        **session_settings(
            image=image,
            runtime=runtime,
            carrier=carrier,
            network=network,
            timeout_s=timeout,
            memory_bytes=memory,
            cpus=cpus,
            idle_timeout_s=idle_timeout,
            ttl_s=ttl,
        )
    )
    environment = variables(env or [])

    async def work(interruption: Interrupts) -> int:
        from runner.client import AsyncRunner

        with Progress(terminal, opening=IMAGES_ONCE) as progress:
            async with AsyncRunner(settings=settings, on_line=progress.show) as runner:
                session = await runner.open_session(
                    workspace=workspace, read_only=read_only, environment=environment, kept=True
                )
                interruption.finishing()
        if terminal.as_json:
            terminal.print_json(_facts(session.info, held=False))
        else:
            terminal.print(session.id)
        return 0

    raise typer.Exit(interrupts.run(work, say=terminal.say))


def list_(
    context: typer.Context,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Ended ones too.")] = False,
    as_json: Json = False,
) -> None:
    """List sessions, oldest first."""
    from runner.app import open_store
    from runner.settings import Settings

    terminal = terminal_of(context)
    settings = Settings.read()
    with open_store(settings) as store:
        sessions = store.sessions(include_ended=all_)
    facts = [_facts(info, held=_is_held(settings, info)) for info in sessions]
    if terminal.as_json:
        terminal.print_json(facts)
        return
    now = time.time()
    terminal.print_table(
        ("ID", "STATE", "HELD", "AGE", "IDLE", "LEFT", "IMAGE", "WORKSPACE"),
        [
            (
                info.id,
                fact["state"],
                "yes" if fact["held"] else "no",
                ago(now - info.created_at),
                ago(now - info.used_at),
                _left(info, now),
                info.image.removeprefix("sha256:")[:12],
                "(managed)" if info.managed else info.workspace,
            )
            for info, fact in zip(sessions, facts, strict=True)
        ],
    )
    if not sessions:
        terminal.say("there are no sessions" if all_ else "there are no open sessions")


def show(context: typer.Context, id_: Id, as_json: Json = False) -> None:
    """Show all that is known of a session."""
    from runner.app import open_store
    from runner.settings import Settings

    terminal = terminal_of(context)
    settings = Settings.read()
    with open_store(settings) as store:
        info = store.session(id_)
        if info is None:
            raise no_session(id_)
    facts = _facts(info, held=_is_held(settings, info))
    if terminal.as_json:
        terminal.print_json(facts)
        return
    now = time.time()
    options = facts.pop("options")
    limits = options.pop("limits", {})
    for name in ("created_at", "used_at", "expires_at", "ended_at"):
        if facts[name] is not None:
            facts[name] = local_time(facts[name], now)
    terminal.print("\n".join(described(_flat({**facts, **options, **limits}))))


def close(
    context: typer.Context,
    id_: Id,
    wait: Wait = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Close a session.

    Its processes end; its container and the workspace that was made for it are removed.
    """
    from runner.settings import Settings

    terminal = terminal_of(context)
    settings = Settings.read()

    async def work(interruption: Interrupts) -> int:
        from runner.client import AsyncRunner

        async with AsyncRunner(settings=settings) as runner:
            await runner.close_session(id_, wait_s=wait or 0.0)
            interruption.finishing()
        if terminal.as_json:
            terminal.print_json({"closed": id_})
        return 0

    raise typer.Exit(interrupts.run(work, say=terminal.say))


def no_session(session_id: str) -> SessionNotFound:
    """The error of a mistyped id."""
    return SessionNotFound(
        f"there is no session {session_id!r}; `runner session list --all` shows those there are"
    )


def _facts(info: SessionInfo, *, held: bool) -> dict[str, Any]:
    """A session as JSON values, without what only its own stream may know."""
    facts = {**asdict(info), "options": dict(info.options), "held": held}
    del facts["marker"]
    if info.state is SessionState.OPEN and time.time() >= _end(info):
        facts["state"] = SessionState.EXPIRED  # nobody has swept it yet
    return facts


def _is_held(settings: "Settings", info: SessionInfo) -> bool:
    from runner.sessions import is_held

    return info.state is SessionState.OPEN and is_held(settings, info.id)


def _end(info: SessionInfo) -> float:
    return min(info.expires_at, info.used_at + info.idle_timeout_s)


def _left(info: SessionInfo, now: float) -> str:
    return ago(_end(info) - now) if info.state is SessionState.OPEN else "-"


def _flat(facts: dict[str, Any]) -> dict[str, str]:
    """Facts as words; those that say nothing are left out."""
    words = {True: "yes", False: "no"}
    return {
        name: words[value] if isinstance(value, bool) else str(value)
        for name, value in facts.items()
        if value not in (None, "", {})
    }
