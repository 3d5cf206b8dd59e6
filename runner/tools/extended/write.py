"""The extended `write`: text, or any bytes as base64."""

import base64
import binascii
from typing import Literal, Self

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from runner.answers import RequestFailed
from runner.model import Outcome
from runner.tools.base import AbsolutePath, Effects, Tool, ToolContext, ToolInput, failed


class WriteInput(ToolInput):
    """The input of `write`."""

    path: AbsolutePath
    """Absolute filesystem path to write."""
    content: str
    """The complete file contents to write."""
    encoding: Literal["utf-8", "base64"] = "utf-8"
    """What content is: the text itself, or the bytes of any file as base64."""

    @model_validator(mode="after")
    def _is_what_it_says(self) -> Self:
        if self.encoding == "base64":
            _decoded(self.content)
        return self

    @property
    def decoded(self) -> bytes:
        """What to write."""
        return _decoded(self.content) if self.encoding == "base64" else self.content.encode()


class WriteTool(Tool):
    """Overwrites a file, or creates it with its directories."""

    name = "write"
    description = (
        "Write UTF-8 text, or bytes given as base64, to a file, replacing existing contents."
        " Creates parent directories as needed. Input: absolute path + content."
    )
    input = WriteInput
    effects = Effects(idempotent=True, open_world=False)

    async def execute(self, context: ToolContext, input: WriteInput, /) -> Outcome:
        """Write the file; after an error its old content is still there."""
        try:
            count = await context.sandbox.write(input.path, input.decoded, judged=context.judged)
        except RequestFailed as failure:
            return failed(f"write: open {input.path}: {failure.detail}", failure.code)
        return Outcome(output=f"wrote {count} bytes to {input.path}")


def _decoded(content: str) -> bytes:
    """The bytes, of the one text that is their base64: nothing is passed over or made up."""
    try:
        decoded = binascii.a2b_base64(content, strict_mode=True) if content else b""
    except ValueError:  # also of characters beyond ASCII
        decoded = None
    if decoded is None or base64.b64encode(decoded).decode() != content:
        raise PydanticCustomError(
            "tool_input", "content is not base64: A-Z, a-z, 0-9, + and /, = at the end, no spaces"
        )
    return decoded
