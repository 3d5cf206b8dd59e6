"""Options that several commands have, each described once."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from runner.cli.terminal import Terminal
from runner.cli.values import directory, duration_s, size_bytes


class CarrierName(StrEnum):
    """How frames reach the container."""

    AUTO = "auto"
    SOCKET = "socket"
    ATTACH = "attach"


class NetworkName(StrEnum):
    """What programs of a session reach."""

    NONE = "none"
    ALLOWLIST = "allowlist"
    OPEN = "open"


class AskWhom(StrEnum):
    """Who answers where the policy asks."""

    PROMPT = "prompt"
    STORE = "store"
    DENY = "deny"


class LogFormat(StrEnum):
    """How log events are written."""

    CONSOLE = "console"
    JSON = "json"


class DefinitionFormat(StrEnum):
    """Who is to read the definitions of the tools."""

    ROUSSEAU = "rousseau"
    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    MCP = "mcp"


class ToolSetName(StrEnum):
    """Which tools calls may name."""

    ROUSSEAU = "rousseau"
    EXTENDED = "extended"


def terminal_of(context: typer.Context) -> Terminal:
    """Where this command line speaks."""
    terminal = context.find_root().obj
    assert isinstance(terminal, Terminal)
    return terminal


def _be_quiet(context: typer.Context, value: bool) -> bool:
    if value:
        terminal_of(context).quiet = True
    return value


def _print_json(context: typer.Context, value: bool) -> bool:
    if value:
        terminal_of(context).as_json = True
    return value


def _log_more(context: typer.Context, value: int) -> int:
    if value:
        terminal = terminal_of(context)
        terminal.log_level = "info" if value == 1 else "debug"
        terminal.configure_logs()
    return value


def _log_as(context: typer.Context, value: LogFormat) -> LogFormat:
    terminal = terminal_of(context)
    terminal.log_format = "json" if value is LogFormat.JSON else "console"
    terminal.configure_logs()
    return value


Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Say nothing but errors.", callback=_be_quiet),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print data as JSON.", callback=_print_json),
]
Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        show_default=False,
        help="Log what happens; -vv: more.",
        callback=_log_more,
    ),
]
LogAs = Annotated[
    LogFormat,
    typer.Option(help="How log events are written to standard error.", callback=_log_as),
]
PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy", "-p", metavar="FILE|NAME", help="What decides: a file, or a shipped policy."
    ),
]
Ask = Annotated[
    AskWhom | None,
    typer.Option(
        "--ask",
        help="Who answers where the policy asks: this terminal, `runner approvals` of another"
        " process, or nobody. Default: the terminal, where there is one.",
    ),
]
Workspace = Annotated[
    str | None,
    typer.Option(
        "--workspace",
        "-w",
        metavar="DIR",
        parser=directory,
        help="Mount this directory at /workspace. Without it: an empty one, removed afterwards.",
    ),
]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="Mount the workspace read-only.")]
Image = Annotated[
    str | None,
    typer.Option("--image", "-i", metavar="IMAGE", help="Any Linux image that has /bin/sh."),
]
Runtime = Annotated[
    str | None,
    typer.Option("--runtime", metavar="NAME", help="A runtime of the daemon, such as runsc."),
]
Carrier = Annotated[
    CarrierName | None,
    typer.Option("--carrier", help="How to talk to the container."),
]
NetworkOption = Annotated[
    NetworkName | None,
    typer.Option(
        "--network",
        help="What programs reach: nothing, what the policy's `network` rules allow, or every"
        " public address. Default: nothing.",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        "-t",
        metavar="TIME",
        parser=duration_s,
        help="Time limit of a call, such as 90, 500ms or 2m. Default: 60 s.",
    ),
]
Memory = Annotated[
    int | None,
    typer.Option(
        "--memory",
        "-m",
        metavar="SIZE",
        parser=size_bytes,
        help="Memory of the session, such as 1g. Default: 512m.",
    ),
]
Cpus = Annotated[
    float | None,
    typer.Option("--cpus", metavar="N", help="Processors of the session. Default: 1."),
]
Env = Annotated[
    list[str] | None,
    typer.Option("--env", "-e", metavar="NAME=VALUE", help="A variable for commands. Repeatable."),
]
Tools = Annotated[
    ToolSetName,
    typer.Option(
        "--tools", help="Which tools there are: the five of rousseau-agent, or the extended set."
    ),
]
Wait = Annotated[
    float | None,
    typer.Option(
        "--wait",
        metavar="TIME",
        parser=duration_s,
        help="How long to wait while somebody else uses the session. Default: not at all.",
    ),
]


def session_settings(
    *,
    image: str | None,
    runtime: str | None,
    carrier: CarrierName | None = None,
    network: NetworkName | None = None,
    timeout_s: float | None,
    memory_bytes: int | None,
    cpus: float | None,
    **more: Any,
) -> dict[str, Any]:
    """Options as arguments of `Settings.read`: what was not given is None."""
    limits = {"memory_bytes": memory_bytes, "cpus": cpus}
    given = {name: value for name, value in limits.items() if value is not None}
    return {
        "image": image,
        "runtime": runtime,
        "carrier": None if carrier is None else carrier.value,
        "network": None if network is None else network.value,
        "timeout_s": timeout_s,
        "limits": given or None,
        **more,
    }
