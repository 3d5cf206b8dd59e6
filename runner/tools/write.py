"""The `write` tool."""

from runner.answers import RequestFailed
from runner.model import Outcome
from runner.tools.base import AbsolutePath, Effects, Tool, ToolContext, ToolInput, failed


class WriteInput(ToolInput):
    """The input of `write`."""

    path: AbsolutePath
    """Absolute filesystem path to write."""
    content: str
    """The complete file contents to write."""


class WriteTool(Tool):
    """Overwrites a file, or creates it with its directories."""

    name = "write"
    description = (
        "Write UTF-8 text to a file, replacing existing contents."
        " Creates parent directories as needed. Input: absolute path + content."
    )
    input = WriteInput
    effects = Effects(idempotent=True, open_world=False)

    async def execute(self, context: ToolContext, input: WriteInput, /) -> Outcome:
        """Write the file; after an error its old content is still there."""
        try:
            count = await context.sandbox.write(
                input.path, input.content.encode(), judged=context.judged
            )
        except RequestFailed as failure:
            return failed(f"write: open {input.path}: {failure.detail}", failure.code)
        return Outcome(output=f"wrote {count} bytes to {input.path}")
