"""The `edit` tool."""

from typing import Self

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from runner.answers import RequestFailed
from runner.model import Outcome
from runner.tools.base import (
    AbsolutePath,
    Effects,
    RequiredText,
    Tool,
    ToolContext,
    ToolInput,
    failed,
)

_WHILE_WRITING = frozenset({"no_space", "read_only"})
"""What only the second half of an edit meets."""


class EditInput(ToolInput):
    """The input of `edit`."""

    path: AbsolutePath
    """Absolute filesystem path to the file to edit."""
    old_string: RequiredText
    """Exact text to find. Must be unique in the file."""
    new_string: str
    """Text to replace old_string with."""

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if self.old_string == self.new_string:
            raise PydanticCustomError("tool_input", "old_string and new_string are identical")
        return self


class EditTool(Tool):
    """Replaces a text that is unique in its file; every other byte stays."""

    name = "edit"
    description = (
        "Replace exactly one occurrence of old_string with new_string in a file."
        " old_string must be unique in the file; if it appears zero or multiple times the edit"
        " fails. Preserve indentation exactly."
    )
    input = EditInput
    effects = Effects(open_world=False)

    async def execute(self, context: ToolContext, input: EditInput, /) -> Outcome:
        """Edit the file; after an error it is as it was."""
        try:
            count = await context.sandbox.replace(
                input.path,
                input.old_string.encode(),
                input.new_string.encode(),
                limit_bytes=context.limits.read_limit_bytes,
                judged=context.judged,
            )
        except RequestFailed as failure:
            return failed(failure_words(self.name, input.path, failure), failure.code)
        if count != 1:
            return failed(
                f"edit: {miss_words(count, input.path)}", missed(count), occurrences=count
            )
        return Outcome(output=f"edited {input.path} (1 replacement)")


def missed(count: int) -> str:
    """The cause as one word, where the old text occurs so often."""
    return "several_matches" if count else "no_match"


def failure_words(tool: str, path: str, failure: RequestFailed) -> str:
    """Why a file could not be edited, as the tool says it."""
    half = "write" if failure.code in _WHILE_WRITING else "read"
    return f"{tool}: {half}: open {path}: {failure.detail}"


def miss_words(count: int, path: str) -> str:
    """Why a text that occurs so often, which is not once, can't be replaced."""
    if count == 0:
        return f"old_string not found in {path}"
    return (
        f"old_string is not unique in {path} (found {count} occurrences);"
        " provide more surrounding context"
    )
