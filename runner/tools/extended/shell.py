"""The `shell` tool: commands in one shell that keeps its state."""

from typing import Annotated, Any, Self

from pydantic import AfterValidator, model_validator
from pydantic_core import PydanticCustomError

from runner.answers import RequestFailed
from runner.background import Said
from runner.model import Outcome, Status
from runner.sandbox import WORKSPACE
from runner.tools.base import (
    Effects,
    Tool,
    ToolContext,
    ToolInput,
    seconds,
)
from runner.tools.extended.bash import not_started, without_nul
from runner.tools.extended.processes import looked
from runner.tools.outcomes import ending, render

_STATE_LOST = "[a new shell: the one before is gone, and its state with it]\n"


class ShellInput(ToolInput):
    """The input of `shell`."""

    command: Annotated[str, AfterValidator(without_nul)] = ""
    """The command to execute in the shell."""
    restart: bool = False
    """End the shell with all that runs in it, and start a new one, before the command if any."""

    @model_validator(mode="after")
    def _asks_for_something(self) -> Self:
        if not self.command and not self.restart:
            raise PydanticCustomError("tool_input", "command is required, unless restart is true")
        return self


class ShellTool(Tool):
    """Runs commands in a shell that keeps its state."""

    name = "shell"
    description = (
        "Execute a command in a persistent `/bin/sh`: its directory, variables and functions stay"
        " for the next command. Standard input is empty. Returns combined stdout+stderr with exit"
        " status. At the time limit the shell is killed and its state is lost."
    )
    input = ShellInput
    effects = Effects(open_world=None)
    keeps_time = True
    """At its deadline it returns what the command wrote so far."""

    async def execute(self, context: ToolContext, input: ShellInput, /) -> Outcome:
        """Run the command.

        `details`, where they apply: `shell_ended`, `state_lost`, `oom_killed`,
        `undecodable_bytes`, and what became of protected files as for `bash`.
        """
        shell = context.programs.shell
        if context.watch:
            await context.sandbox.start_watch(context.watch)
        if input.restart:
            there_was = await shell.restart()
            if not input.command:
                text = "the shell was ended; the next command starts a new one"
                return Outcome(
                    output=text if there_was else "there was no shell; the next command starts one",
                    details=await looked(context),
                )
        try:
            said = await shell.run(
                context.sandbox,
                input.command,
                deadline_s=context.deadline_s,
                output_limit_bytes=context.limits.output_limit_bytes,
                env=context.environment,
                on_output=context.on_output,
            )
        except RequestFailed as failure:
            return not_started("shell", failure, WORKSPACE)
        return _outcome(said, context.call.timeout_s, await looked(context))


def _outcome(said: Said, timeout_s: float, details: dict[str, Any]) -> Outcome:
    output, truncated, undecodable = render(
        said.output, said.head_bytes, said.total_bytes, said.total_lines
    )
    if said.state_lost:
        output = f"{_STATE_LOST}{output}"
        details["state_lost"] = True
    if undecodable:
        details["undecodable_bytes"] = undecodable
    if said.oom_killed:
        details["oom_killed"] = True
    error: str | None
    limit = seconds(timeout_s)
    words, exit_code = ending(said.exit_code, said.signal)
    match said.ended:
        case "not_begun":
            error = f"shell: timed out after {limit}, while the command before it was running"
            status = Status.TIMED_OUT
        case "timed_out":
            error, status = f"shell: timed out after {limit}; its state is lost", Status.TIMED_OUT
            details["shell_ended"] = True
        case "shell_ended":
            details["shell_ended"] = True
            if exit_code is None:
                error, status = "shell: it was ended by another call", Status.CANCELLED
            else:
                end = "" if not output or output.endswith("\n") else "\n"
                output += f"{end}[the shell has ended; the next command starts a new one]"
                error, status = _verdict(words, exit_code, oom_killed=said.oom_killed)
        case "done":
            error, status = _verdict(words, exit_code, oom_killed=False)
    return Outcome(
        output=output,
        error=error,
        status=status,
        exit_code=exit_code,
        truncated=truncated,
        details=details,
    )


def _verdict(words: str, exit_code: int | None, *, oom_killed: bool) -> tuple[str | None, Status]:
    if oom_killed:
        error = "shell: out of memory: a process was killed at the session's memory limit"
        return f"{error} ({words})", Status.OOM_KILLED
    return (None, Status.OK) if exit_code == 0 else (f"shell: {words}", Status.FAILED)
