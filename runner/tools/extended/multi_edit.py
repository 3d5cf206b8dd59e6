"""The `multi_edit` tool: several replacements in one file, all of them or none."""

from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from runner.answers import Edit, RequestFailed
from runner.helper.wire import MAX_EDITS
from runner.model import Outcome
from runner.tools import edit
from runner.tools.base import (
    AbsolutePath,
    Effects,
    RequiredText,
    Tool,
    ToolContext,
    ToolInput,
    failed,
)
from runner.tools.extended.edit import replacements


class Replacement(ToolInput):
    """One replacement."""

    old_string: RequiredText
    """Exact text to find. Must be unique in the file, unless replace_all is true."""
    new_string: str
    """Text to replace old_string with."""
    replace_all: bool = False
    """Replace every occurrence. Defaults to false."""

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if self.old_string == self.new_string:
            raise PydanticCustomError(
                "tool_input", "has an old_string and a new_string that are identical"
            )
        return self


class MultiEditInput(ToolInput):
    """The input of `multi_edit`."""

    path: AbsolutePath
    """Absolute filesystem path to the file to edit."""
    edits: Annotated[list[Replacement], Field(min_length=1, max_length=MAX_EDITS)]
    """The replacements. Each one is made in what those before it left."""


class MultiEditTool(Tool):
    """Makes several replacements in one file, or none of them."""

    name = "multi_edit"
    description = (
        "Make several replacements in one file, one after the other, as edit makes one."
        " If one of them fails, none is made. Preserve indentation exactly."
    )
    input = MultiEditInput
    effects = Effects(open_world=False)

    async def execute(self, context: ToolContext, input: MultiEditInput, /) -> Outcome:
        """Edit the file; after an error it is as it was."""
        edits = [
            Edit(one.old_string.encode(), one.new_string.encode(), one.replace_all)
            for one in input.edits
        ]
        try:
            edited = await context.sandbox.edit(
                input.path,
                edits,
                limit_bytes=context.limits.read_limit_bytes,
                judged=context.judged,
            )
        except RequestFailed as failure:
            return failed(edit.failure_words("multi_edit", input.path, failure), failure.code)
        counts = edited.counts
        if not edited.written:
            return failed(
                f"multi_edit: edit {len(counts)} of {len(edits)}:"
                f" {edit.miss_words(counts[-1], input.path)}; nothing was written",
                edit.missed(counts[-1]),
                occurrences=counts[-1],
            )
        details = {"replacements": list(counts)}
        return Outcome(output=f"edited {input.path} ({replacements(sum(counts))})", details=details)
