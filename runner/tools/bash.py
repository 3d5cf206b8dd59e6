"""The `bash` tool."""

from runner.answers import RequestFailed
from runner.model import Outcome
from runner.tools.base import Effects, SystemText, Tool, ToolContext, ToolInput, failed
from runner.tools.outcomes import ran


class BashInput(ToolInput):
    """The input of `bash`."""

    command: SystemText
    """The shell command to execute."""


class BashTool(Tool):
    """Runs a shell command in the workspace."""

    name = "bash"
    description = (
        "Execute a shell command via `/bin/sh -c`. Returns combined stdout+stderr with exit status."
    )
    input = BashInput
    effects = Effects(open_world=None)
    keeps_time = True
    """At its deadline it returns what the command wrote so far."""

    async def execute(self, context: ToolContext, input: BashInput, /) -> Outcome:
        """Run the command.

        `details`, where they apply: `background` processes that the command left running,
        `oom_killed`, and `undecodable_bytes` of the output that are U+FFFD now; and what became
        of protected files, see `protected`.
        """
        try:
            result = await context.sandbox.run(
                input.command,
                deadline_s=context.deadline_s,
                env=context.environment,
                output_limit_bytes=context.limits.output_limit_bytes,
                on_output=context.on_output,
                background=context.limits.background,
                watch=context.watch,
            )
        except RequestFailed as failure:
            return failed(f"bash: fork/exec /bin/sh: {failure.detail}", failure.code)
        return ran("bash", result, context.call.timeout_s)
