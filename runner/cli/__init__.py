"""The command line: words in, values of the library called, words and an exit status out.

    calls      run, call             session   session create, list, show, close
    mcp        mcp
    approvals  approvals list, show, approve, deny     prompt   what `--ask` asks
    policies   policy check, explain, test, replay, init, list, show
    network    connections, policy connect
    cron       cron add, list, runs, remove, enable, disable, run, daemon
    records    log, audit, prune     setup     image, tools, doctor
    help       exit codes, settings
    options    what commands share   values    words made into values
    terminal   the only place that prints      interrupts   signals, and readers that go away
    exits      what an exit status means

It decides nothing about a call and knows nothing of Docker: that is the library's. Modules
here import the library's heavy parts (pydantic, docker, structlog) inside the functions that
need them, so that `--help`, `log` and `tools` do not wait for what only a session needs.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from runner.cli import approvals, calls, cron, mcp, network, policies, records, session, setup
from runner.cli import help as topics
from runner.cli.exits import USAGE
from runner.cli.options import LogAs, LogFormat, Quiet, Verbose
from runner.cli.terminal import ReaderGone, Terminal
from runner.errors import COULD_NOT_RUN, EXITS, RunnerError
from runner.version import __version__

__all__ = ["application", "main"]

DEBUG = "RUNNER_DEBUG"
"""Set to anything, it shows the traceback of what is the runner's own mistake.

The one variable that is not read by `runner.settings`: it must work where that does not.
"""

EPILOG = "Exit codes: `runner help exit-codes`. Settings: `runner help settings`."

Command = Callable[..., None]
COMMANDS: tuple[tuple[str, Command], ...] = (
    ("run", calls.run),
    ("call", calls.call),
    ("mcp", mcp.mcp),
    ("tools", setup.tools),
    ("log", records.log),
    ("connections", network.connections),
    ("prune", records.prune),
    ("doctor", setup.doctor),
    ("help", topics.help_),
)
GROUPS: tuple[tuple[str, str, tuple[tuple[str, Command], ...]], ...] = (
    (
        "session",
        "Open, list and close sessions that stay.",
        (
            ("create", session.create),
            ("list", session.list_),
            ("show", session.show),
            ("close", session.close),
        ),
    ),
    (
        "approvals",
        "Answer calls that wait for a person.",
        (
            ("list", approvals.list_),
            ("show", approvals.show),
            ("approve", approvals.approve),
            ("deny", approvals.deny),
        ),
    ),
    (
        "cron",
        "Run calls at times of a schedule.",
        (
            ("add", cron.add),
            ("list", cron.list_),
            ("runs", cron.runs),
            ("run", cron.run),
            ("enable", cron.enable),
            ("disable", cron.disable),
            ("remove", cron.remove),
            ("daemon", cron.daemon),
        ),
    ),
    (
        "policy",
        "Check, explain and try policies, and make a first one.",
        (
            ("check", policies.check),
            ("explain", policies.explain),
            ("test", policies.try_cases),
            ("connect", network.connect),
            ("replay", policies.replay),
            ("init", policies.init),
            ("list", policies.list_),
            ("show", policies.show),
        ),
    ),
    (
        "image",
        "Build and list the runner's own images.",
        (("build", setup.build_image), ("list", setup.list_images)),
    ),
    ("audit", "Check the record of what happened.", (("verify", records.verify),)),
)


def application() -> typer.Typer:
    """The command line with all of its commands."""
    app = typer.Typer(
        name="runner",
        help="Run the tool calls of agents that nobody trusts, each in its session's container.",
        epilog=EPILOG,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # a fifth of a second less, and texts come as they are written
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, function in COMMANDS:
        # After the first word of COMMAND every option is the command's, not ours.
        settings = {"allow_interspersed_args": name != "run"}
        app.command(name, context_settings=settings)(function)
    for group, text, functions in GROUPS:
        sub = typer.Typer(help=text, no_args_is_help=True)
        for name, function in functions:
            sub.command(name)(function)
        app.add_typer(sub, name=group)
    return app


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"rousseau-runner {__version__}")
        raise typer.Exit


def _root(
    log_format: LogAs = LogFormat.CONSOLE,
    verbose: Verbose = 0,
    quiet: Quiet = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command; their callbacks do what they ask for."""


def main(arguments: Sequence[str]) -> int:
    """Run a command line.

    Args:
        arguments: Its words, without the program's name.

    Returns:
        The exit status. Whatever goes wrong is said on standard error, once, here.
    """
    _open_streams()
    terminal = Terminal()
    try:
        try:
            application()(list(arguments) or ["--help"], prog_name="runner", obj=terminal)
        except RunnerError as error:
            return _explain(terminal, error)
    except SystemExit as leaving:
        return _status(leaving)
    except ReaderGone:
        return 128 + signal.SIGPIPE
    except Exception as error:  # the outermost edge: what comes here is our own mistake
        if os.environ.get(DEBUG):
            traceback.print_exc()
        terminal.error(
            f"this is a bug in rousseau-runner {__version__}: {type(error).__name__}: {error}"
        )
        terminal.error(f"please report it, with the traceback that {DEBUG}=1 shows")
        return COULD_NOT_RUN
    return 0


def _explain(terminal: Terminal, error: RunnerError) -> int:
    notes: list[str] = getattr(error, "__notes__", [])
    for note in notes:
        terminal.error(note)
    terminal.error(str(error))
    if terminal.as_json:
        terminal.print_json({"error": {"code": error.code, "message": str(error)}})
    if os.environ.get(DEBUG):
        traceback.print_exc()
    return EXITS[error.code].status


def _status(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    return leaving.code if isinstance(leaving.code, int) else USAGE


def _open_streams() -> None:
    """Open on nothing what we were started without (`>&-`); else our own files take its place."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            mode = "r" if number == 0 else "w"
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  until the end
