"""`runner run` and `runner call`: one tool call, from words to an exit status."""

import asyncio
import shlex
import signal
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli import interrupts
from runner.cli.exits import exit_status
from runner.cli.interrupts import Interrupts
from runner.cli.options import (
    Ask,
    Carrier,
    Cpus,
    Env,
    Image,
    Json,
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
    Wait,
    Workspace,
    session_settings,
    terminal_of,
)
from runner.cli.prompt import Prompt, Waiting, approver_for
from runner.cli.terminal import Progress, Stream, Terminal, one_line
from runner.cli.values import tool_input, variables
from runner.errors import COULD_NOT_RUN
from runner.model import Status, ToolResult

if TYPE_CHECKING:
    from runner.policy import Policy
    from runner.settings import Settings

DEFAULT_POLICY = "default"
"""The container is what holds a command that a person types; it needs no permission besides."""
PROTECTED_SHOWN = 5
"""Protected files that one line names; `--json` has them all."""
IMAGES_ONCE = "getting the images of sessions ready; this happens once and can take some minutes"


def run(
    context: typer.Context,
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND",
            help="One word is a shell line; several are a program and its arguments.",
        ),
    ],
    workspace: Workspace = None,
    read_only: ReadOnly = False,
    policy: PolicyOption = DEFAULT_POLICY,
    ask: Ask = None,
    image: Image = None,
    runtime: Runtime = None,
    carrier: Carrier = None,
    network: NetworkOption = None,
    timeout: Timeout = None,
    memory: Memory = None,
    cpus: Cpus = None,
    env: Env = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Run one command in a container of its own.

    Its output comes as it is written, standard output and error as one; its exit status is
    this command's. Nothing of yours is visible to it but the directory that --workspace
    names. Its standard input is empty. The container is removed afterwards.
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
        )
    )
    options = {
        "workspace": workspace,
        "read_only": read_only,
        "environment": variables(env or []),
    }
    chosen = chosen_policy(terminal, policy)
    warn_of_no_hosts(terminal, chosen, settings.network)
    what = "workspace " + (workspace or "empty (--workspace DIR mounts one)")
    terminal.say(f"policy {chosen.name}, {what}")
    line = command[0] if len(command) == 1 else shlex.join(command)
    approver = approver_for(terminal, ask)

    async def work(interruption: Interrupts) -> int:
        return await _run(terminal, interruption, settings, chosen, approver, line, options)

    raise typer.Exit(interrupts.run(work, say=terminal.say))


async def _run(
    terminal: Terminal,
    interruption: Interrupts,
    settings: "Settings",
    policy: "Policy",
    approver: Prompt | Waiting | None,
    line: str,
    options: dict[str, Any],
) -> int:
    from runner.client import AsyncRunner

    stream = Stream(terminal)

    async def written(writing: Awaitable[None]) -> None:
        try:
            await writing
        except BrokenPipeError:
            interruption.end(128 + signal.SIGPIPE)
        except OSError as error:
            terminal.error(f"can't write to standard output: {error.strerror}")
            interruption.end(COULD_NOT_RUN)
        else:
            return
        await asyncio.sleep(0)  # be cancelled here, not when there is more to write

    async def forward(data: bytes) -> None:
        await written(stream.write(data))

    with Progress(terminal, opening=IMAGES_ONCE) as progress:
        async with (
            AsyncRunner(
                policy, approver=approver, settings=settings, on_line=progress.show
            ) as runner,
            runner.session(**options) as session,
        ):
            progress.stop()
            result = await session.call(
                "bash", {"command": line}, on_output=None if terminal.as_json else forward
            )
            if terminal.as_json:
                terminal.print_json(result.as_dict())
            else:
                await written(stream.finish(_unseen(result, stream)))
            interruption.finishing()
    _comment(terminal, result)
    return exit_status(result)


def _unseen(result: ToolResult, stream: Stream) -> str:
    """What was still on its way when the time limit ended the call.

    Nothing where output was left out of the result: then nobody can tell where to go on.
    """
    if result.status is not Status.TIMED_OUT or result.truncated is not None:
        return ""
    return result.output[stream.characters :]


def _comment(terminal: Terminal, result: ToolResult) -> None:
    """Say what the exit status alone does not tell."""
    if result.error is not None and (result.status is not Status.FAILED or not result.exit_code):
        terminal.error(result.error)
    if terminal.as_json and result.truncated is not None:
        terminal.warn(f"{result.truncated.omitted_bytes} bytes of the output are left out")
    if result.background:
        terminal.say(f"processes left running, ended with the session: {result.background}")
    for reason in result.details.get("network_refused", ()):
        terminal.warn(one_line(f"network: {reason}"))
    _tell_protected(terminal, result)


def _tell_protected(terminal: Terminal, result: ToolResult) -> None:
    """Name the first protected files that were touched: they run code later, on the host."""
    touched = result.details.get("protected")
    if not touched:
        return
    named = [f"{file['path']} {file['change']}" for file in touched[:PROTECTED_SHOWN]]
    more = result.details.get("protected_count", len(touched)) - len(named)
    if more:
        named.append(f"{more} more")
    terminal.warn(one_line(f"protected files were touched: {', '.join(named)}"))


def call(
    context: typer.Context,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="Such as bash; see `runner tools`.")],
    input_: Annotated[
        str,
        typer.Argument(
            metavar="INPUT", help="Its input: JSON, @FILE with JSON, or - for standard input."
        ),
    ],
    session: Annotated[
        str, typer.Option("--session", "-s", metavar="ID", help="From `runner session create`.")
    ],
    policy: PolicyOption = DEFAULT_POLICY,
    ask: Ask = None,
    tools: Tools = ToolSetName.ROUSSEAU,
    timeout: Timeout = None,
    wait: Wait = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Call a tool in a session that stays.

    Prints what a model would be shown. A command's exit status is this command's; any other
    tool that fails makes it 1.
    """
    from runner.settings import Settings

    terminal = terminal_of(context)
    settings = Settings.read()
    chosen = chosen_policy(terminal, policy)
    terminal.say(f"policy {chosen.name}")
    raw = tool_input(input_)
    approver = approver_for(terminal, ask)

    async def work(interruption: Interrupts) -> int:
        from runner.client import AsyncRunner

        async with (
            AsyncRunner(chosen, approver=approver, settings=settings, tools=tools.value) as runner,
            await runner.attach(session, wait_s=wait or 0.0) as attached,
        ):
            if isinstance(approver, Prompt):
                approver.session = attached
            result = await attached.call(tool, raw, timeout_s=timeout)
            interruption.finishing()
        if terminal.as_json:
            terminal.print_json(result.as_dict())
        else:
            # An error is for people; a file's content must come as it is.
            terminal.print_text(result.text, whole_lines=result.is_error)
        _tell_protected(terminal, result)
        return exit_status(result)

    raise typer.Exit(interrupts.run(work, say=terminal.say))


def chosen_policy(terminal: Terminal, given: str) -> "Policy":
    """The policy that was named, its warnings said.

    Raises:
        PolicyError: There is no such file, or it can't be loaded.
    """
    from runner.app import as_policy

    policy = as_policy(given)
    for warning in policy.warnings:
        terminal.warn(f"{policy.name}: {warning}")
    return policy


def warn_of_no_hosts(terminal: Terminal, policy: "Policy", network: str) -> None:
    """Say that an allowlist is empty: whoever asked for one expects to reach something."""
    if network == "allowlist" and not policy.network.allow:
        terminal.warn(f"policy {policy.name} has no `network` rules: nothing can be reached")
