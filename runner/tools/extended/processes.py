"""Programs that run on while other calls are made: start, poll, write, kill, list."""

import signal
from typing import Annotated, Any, Literal

from pydantic import Field

from runner.answers import RequestFailed, Touched
from runner.background import NoProgram, Polled, State
from runner.model import Outcome, Status
from runner.sandbox import WORKSPACE
from runner.tools.base import (
    AbsolutePath,
    Effects,
    RequiredText,
    SystemText,
    Tool,
    ToolContext,
    ToolInput,
    decode_text,
    failed,
    seconds,
)
from runner.tools.extended.bash import Variables, not_started
from runner.tools.outcomes import ending, protected, without_cut_start

Signal = Literal["KILL", "TERM", "INT", "HUP", "QUIT", "USR1", "USR2"]
SHOWN_COMMAND = 200
"""Characters of a command that a list shows."""


async def looked(context: ToolContext) -> dict[str, Any]:
    """What became of protected files, as facts for the outcome of a call that ran no program."""
    if not context.watch:
        return {}
    try:
        return protected(await context.sandbox.look(context.watch))
    except RequestFailed:  # no process could be started; the next call tells
        return protected(Touched(complete=False))


def _facts(state: State) -> dict[str, Any]:
    """How a program is, for the details of an outcome."""
    facts: dict[str, Any] = {"id": state.id, "running": state.running}
    if state.result is not None:
        _, facts["exit_code"] = ending(state.result.exit_code, state.result.signal)
        if state.result.ended != "exited":
            facts["exit_code"] = None
    return facts


def _condition(state: State) -> str:
    """How a program is, in words."""
    if state.running:
        return "is running"
    if state.lost is not None:
        return f"was lost: {state.lost}"
    if state.failure is not None:
        return f"could not be started: {state.failure.detail}"
    result = state.result
    if result is None or result.ended not in ("exited", "killed"):
        return "was killed"
    words, _ = ending(result.exit_code, result.signal or (9 if result.ended == "killed" else None))
    if result.oom_killed:
        words = f"out of memory ({words})"
    return f"has ended: {words}"


class ProcessStartInput(ToolInput):
    """The input of `process_start`."""

    command: SystemText
    """The shell command to start."""
    cwd: AbsolutePath = WORKSPACE
    """Absolute path of the directory to start in. Defaults to /workspace."""
    env: Variables = Field(default_factory=dict)
    """Environment variables on top of the session's."""


class ProcessStartTool(Tool):
    """Starts a program and leaves it running."""

    name = "process_start"
    description = (
        "Start a shell command via `/bin/sh -c` that keeps running while other tools are used, such"
        " as a server or a watcher. Returns its id for process_poll, process_write and"
        " process_kill. It ends with the session at the latest."
    )
    input = ProcessStartInput
    effects = Effects(open_world=None)

    async def execute(self, context: ToolContext, input: ProcessStartInput, /) -> Outcome:
        """Start it. `details`: `id`, `running` and, where it has ended already, `exit_code`."""
        try:
            state = await context.programs.start(
                context.sandbox,
                input.command,
                cwd=input.cwd,
                env={**context.environment, **input.env},
                watch=context.watch,
            )
        except NoProgram as refusal:
            return failed(f"process_start: {refusal}")
        if state.failure is not None:
            await context.programs.poll(state.id)  # there is nothing else to know of it
            return not_started("process_start", state.failure, input.cwd)
        text = f"started {state.id}"
        if not state.running:
            text += f"; it {_condition(state)}; poll it for its output"
        return Outcome(output=text, details=_facts(state) | await looked(context))


class ProcessPollInput(ToolInput):
    """The input of `process_poll`."""

    id: RequiredText
    """The id that process_start returned."""
    wait_s: Annotated[float, Field(ge=0)] = 0.0
    """Seconds to wait for new output or the end, if there is none yet. Defaults to 0."""


class ProcessPollTool(Tool):
    """Tells what a program wrote since it was last asked, and how it is."""

    name = "process_poll"
    description = (
        "Return the output that a process started with process_start has written since the last"
        " poll, and whether it is still running."
    )
    input = ProcessPollInput
    effects = Effects(destructive=False, open_world=False)
    keeps_time = True

    async def execute(self, context: ToolContext, input: ProcessPollInput, /) -> Outcome:
        """Ask. An error only where there is no such process, or it was lost with its container.

        `details`: `id`, `running`, and where they apply `exit_code` once it has ended,
        `dropped_bytes` of output that nobody polled in time, and `undecodable_bytes`.
        """
        try:
            polled = await context.programs.poll(
                input.id, wait_s=min(input.wait_s, context.deadline_s)
            )
        except NoProgram as unknown:
            return failed(f"process_poll: {unknown}")
        text, details = _told(polled)
        details |= await looked(context)
        state = polled.state
        if state.lost is not None or state.failure is not None:
            error = f"process_poll: {state.id} {_condition(state)}"
            status = Status.FAILED if state.lost is None else Status.LOST
            return Outcome(output=text, error=error, status=status, details=details)
        return Outcome(output=f"{text}[{state.id} {_condition(state)}]", details=details)


def _told(polled: Polled) -> tuple[str, dict[str, Any]]:
    """The output of a poll as text with a line end, and facts about it."""
    details = _facts(polled.state)
    output = polled.output
    head = ""
    if polled.dropped_bytes:
        details["dropped_bytes"] = polled.dropped_bytes
        output = without_cut_start(output)
        dropped = polled.dropped_bytes + len(polled.output) - len(output)
        head = f"[… {dropped} bytes left out, which nobody polled in time …]\n"
    text, undecodable = decode_text(output)
    if undecodable:
        details["undecodable_bytes"] = undecodable
    if text and not text.endswith("\n"):
        text += "\n"
    return head + text, details


class ProcessWriteInput(ToolInput):
    """The input of `process_write`."""

    id: RequiredText
    """The id that process_start returned."""
    text: str
    """What to write to its standard input; a line end is not added."""
    end: bool = False
    """Close its standard input afterwards."""


class ProcessWriteTool(Tool):
    """Writes to a program's standard input."""

    name = "process_write"
    description = "Write text to the standard input of a process started with process_start."
    input = ProcessWriteInput
    effects = Effects(open_world=None)

    async def execute(self, context: ToolContext, input: ProcessWriteInput, /) -> Outcome:
        """Write; it waits while the program does not read. `details`: `id` and `running`."""
        data = input.text.encode()
        try:
            state = await context.programs.write(input.id, data, end=input.end)
        except NoProgram as unknown:
            return failed(f"process_write: {unknown}")
        end = " and the end" if input.end else ""
        return Outcome(
            output=f"wrote {len(data)} bytes{end} to {state.id}",
            details=_facts(state) | await looked(context),
        )


class ProcessKillInput(ToolInput):
    """The input of `process_kill`."""

    id: RequiredText
    """The id that process_start returned."""
    signal: Signal = "KILL"
    """KILL, the default, ends it with everything it started; others are sent to it."""


class ProcessKillTool(Tool):
    """Ends a program, or sends it a signal."""

    name = "process_kill"
    description = (
        "End a process started with process_start, or send it a signal. Poll it for the rest of its"
        " output."
    )
    input = ProcessKillInput
    effects = Effects(open_world=False)
    keeps_time = True

    async def execute(self, context: ToolContext, input: ProcessKillInput, /) -> Outcome:
        """End it, or send the signal. `details` as for `process_start`."""
        try:
            if input.signal == "KILL":
                state = await context.programs.kill(input.id)
            else:
                number = signal.Signals[f"SIG{input.signal}"]
                state = await context.programs.signal(input.id, number)
        except NoProgram as unknown:
            return failed(f"process_kill: {unknown}")
        except RequestFailed as failure:
            return failed(
                f"process_kill: {input.id} could not be started: {failure.detail}", failure.code
            )
        sent = "" if input.signal == "KILL" else f"SIG{input.signal} was sent; "
        return Outcome(
            output=f"{sent}{state.id} {_condition(state)}",
            details=_facts(state) | await looked(context),
        )


class ProcessListInput(ToolInput):
    """The input of `process_list`: nothing."""


class ProcessListTool(Tool):
    """Lists programs."""

    name = "process_list"
    description = (
        "List the processes that process_start has started: those that run, and those that have"
        " ended and were not polled since."
    )
    input = ProcessListInput
    effects = Effects(read_only=True, destructive=False, idempotent=True, open_world=False)

    async def execute(self, context: ToolContext, input: ProcessListInput, /) -> Outcome:
        """List them, a line each. `details`: `processes`, with `id`, `command` and the like."""
        states = context.programs.list()
        lines = [
            f"{state.id} {_condition(state)} ({seconds(round(state.age_s))}):"
            f" {_shown(state.command)}\n"
            for state in states
        ]
        processes = [{**_facts(state), "command": _shown(state.command)} for state in states]
        return Outcome(
            output="".join(lines) or "there are no processes",
            details={"processes": processes},
        )


def _shown(command: str) -> str:
    line = " ".join(command.split())
    return line if len(line) <= SHOWN_COMMAND else f"{line[:SHOWN_COMMAND]}…"
