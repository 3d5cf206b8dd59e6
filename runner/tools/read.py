"""The `read` tool."""

from runner.answers import RequestFailed
from runner.model import Outcome
from runner.tools.base import (
    AbsolutePath,
    Effects,
    Tool,
    ToolContext,
    ToolInput,
    decode_text,
    failed,
)

BINARY_PREFIX_BYTES = 512
"""A NUL among these makes a file binary, as in the reference."""
BINARY = "binary"
"""The cause as one word, where it is one."""


class ReadInput(ToolInput):
    """The input of `read`."""

    path: AbsolutePath
    """Absolute filesystem path to the file to read."""


class ReadTool(Tool):
    """Returns a text file, whole. Bytes that are not UTF-8 become U+FFFD and are counted."""

    name = "read"
    description = (
        "Read the contents of a UTF-8 text file. Input: absolute path."
        " Returns file contents or an error."
    )
    input = ReadInput
    effects = Effects(read_only=True, destructive=False, idempotent=True, open_world=False)

    async def execute(self, context: ToolContext, input: ReadInput, /) -> Outcome:
        """Read the file.

        `details["undecodable_bytes"]`, where it is there, says how many bytes of the file
        are not UTF-8.
        """
        try:
            content = await context.sandbox.read(
                input.path,
                limit_bytes=context.limits.read_limit_bytes,
                judged=context.judged,
            )
        except RequestFailed as failure:
            return failed(f"read: open {input.path}: {failure.detail}", failure.code)
        if b"\0" in content[:BINARY_PREFIX_BYTES]:
            return failed(f"read: {input.path} does not look like UTF-8 text", BINARY)
        text, undecodable = decode_text(content)
        return Outcome(
            output=text, details={"undecodable_bytes": undecodable} if undecodable else {}
        )
