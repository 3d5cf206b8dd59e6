"""The extended `read`: a range of lines, any bytes as base64, pictures and documents."""

import base64
import hashlib
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from runner.answers import Page, RequestFailed
from runner.model import Block, Outcome
from runner.tools.base import (
    AbsolutePath,
    Effects,
    Tool,
    ToolContext,
    ToolInput,
    decode_text,
    failed,
)
from runner.tools.read import BINARY, BINARY_PREFIX_BYTES

MAX_IMAGE_BYTES = 5 * 1024**2
MAX_DOCUMENT_BYTES = 10 * 1024**2
"""What models take of one picture, and of one PDF."""
_ALL_LINES = 2**62
"""More than any file has, and what the protocol still takes."""


class ReadInput(ToolInput):
    """The input of `read`."""

    path: AbsolutePath
    """Absolute filesystem path to the file to read."""
    offset: Annotated[int, Field(ge=1)] = 1
    """Number of the first line to read, from 1. Defaults to 1."""
    limit: Annotated[int, Field(ge=0)] = 0
    """The most lines to read. Defaults to 0: to the end."""
    encoding: Literal["utf-8", "base64"] = "utf-8"
    """base64 returns the bytes of any file; offset and limit are for text only."""

    @property
    def is_ranged(self) -> bool:
        """Whether a part of the file is asked for."""
        return self.offset > 1 or self.limit > 0

    @model_validator(mode="after")
    def _counts_lines_of_text(self) -> Self:
        if self.encoding == "base64" and self.is_ranged:
            raise PydanticCustomError(
                "tool_input", "offset and limit count lines of text; leave them out with base64"
            )
        return self


class ReadTool(Tool):
    """Returns a text file or a range of its lines, an image or a PDF, or any bytes as base64."""

    name = "read"
    description = (
        "Read a file: UTF-8 text, whole or a range of lines; PNG, JPEG, GIF and WebP images and"
        " PDF documents, which are shown; or the bytes of any file as base64."
        " Input: absolute path."
    )
    input = ReadInput
    effects = Effects(read_only=True, destructive=False, idempotent=True, open_world=False)

    async def execute(self, context: ToolContext, input: ReadInput, /) -> Outcome:
        """Read the file.

        `details`, where they apply: `undecodable_bytes` as for the `read` of the five; of a
        range `first`, `count`, `lines` (of the whole file), `size` and, where there are more,
        `next_offset`; of what is shown `media_type`, `bytes` and `sha256`; `encoding`.
        """
        try:
            if input.is_ranged:
                page = await context.sandbox.read_lines(
                    input.path,
                    first=min(input.offset, _ALL_LINES),
                    count=min(input.limit or _ALL_LINES, _ALL_LINES),
                    limit_bytes=context.limits.read_limit_bytes,
                    judged=context.judged,
                )
                return _range(page, input)
            content = await context.sandbox.read(
                input.path, limit_bytes=context.limits.read_limit_bytes, judged=context.judged
            )
        except RequestFailed as failure:
            hint = ""
            if failure.code == "file_too_large" and input.encoding == "utf-8":
                hint = "; read a part of it with offset and limit"
            return failed(f"read: open {input.path}: {failure.detail}{hint}", failure.code)
        if input.encoding == "base64":
            details = {"encoding": "base64", "bytes": len(content)}
            return Outcome(output=base64.b64encode(content).decode(), details=details)
        media_type = media_type_of(content)
        if media_type:
            return _shown(content, media_type, input.path)
        if b"\0" in content[:BINARY_PREFIX_BYTES]:
            return _binary(input.path)
        text, undecodable = decode_text(content)
        return Outcome(
            output=text, details={"undecodable_bytes": undecodable} if undecodable else {}
        )


def media_type_of(content: bytes) -> str:
    """What a file is, by how it starts, if it is one of those that models can look at."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if content.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if content.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return "image/webp"
    return "application/pdf" if content.startswith(b"%PDF-") else ""


def _shown(content: bytes, media_type: str, path: str) -> Outcome:
    limit = MAX_DOCUMENT_BYTES if media_type == "application/pdf" else MAX_IMAGE_BYTES
    if len(content) > limit:
        return failed(
            f"read: {path} is {media_type} of {len(content)} bytes, the limit is {limit};"
            " make a smaller copy, or use encoding: base64",
            "file_too_large",
        )
    return Outcome(
        output=f"({media_type}, {len(content)} bytes)",
        details={
            "media_type": media_type,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        },
        blocks=(Block(media_type, content),),
    )


def _binary(path: str) -> Outcome:
    return failed(
        f"read: {path} does not look like UTF-8 text; to get its bytes use encoding: base64",
        BINARY,
    )


def _range(page: Page, input: ReadInput) -> Outcome:
    if page.binary or (page.first == 1 and media_type_of(page.content)):
        return _binary(input.path)
    if not page.content and page.first > max(page.lines, 1):
        return failed(
            f"read: offset {page.first} is behind the end of {input.path}, which has"
            f" {_lines(page.lines)}",
            "behind_end",
            lines=page.lines,
        )
    text, undecodable = decode_text(page.content)
    if text and not text.endswith("\n"):
        text += "\n"
    last = page.first + page.count - 1
    details: dict[str, Any] = {
        "first": page.first,
        "count": page.count,
        "lines": page.lines,
        "size": page.size,
    }
    if page.content and not page.count:  # one line that is too long
        last = page.first
        told = f"line {last} of {page.lines}: only its first {len(page.content)} bytes"
    elif not page.count:
        told = f"the file has {_lines(page.lines)}"
    else:
        told = f"lines {page.first}-{last} of {page.lines}"
    if last < page.lines:
        told += f"; read on with offset {last + 1}"
        details["next_offset"] = last + 1
    if undecodable:
        details["undecodable_bytes"] = undecodable
    return Outcome(output=f"{text}({told})", details=details)


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count} lines"
