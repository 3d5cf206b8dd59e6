"""The extended `edit`: one replacement, or every one of a text."""

from runner.answers import Edit, RequestFailed
from runner.model import Outcome
from runner.tools import edit
from runner.tools.base import Effects, Tool, ToolContext, failed


class EditInput(edit.EditInput):
    """The input of `edit`."""

    replace_all: bool = False
    """Replace every occurrence; old_string need not be unique then. Defaults to false."""


class EditTool(Tool):
    """Replaces a text that is unique in its file, or all of them; every other byte stays."""

    name = "edit"
    description = (
        "Replace exactly one occurrence of old_string with new_string in a file."
        " old_string must be unique in the file; if it appears zero or multiple times the edit"
        " fails. With replace_all every occurrence is replaced. Preserve indentation exactly."
    )
    input = EditInput
    effects = Effects(open_world=False)

    async def execute(self, context: ToolContext, input: EditInput, /) -> Outcome:
        """Edit the file; after an error it is as it was."""
        if not input.replace_all:
            return await edit.EditTool().execute(context, input)
        replacement = Edit(input.old_string.encode(), input.new_string.encode(), all=True)
        try:
            edited = await context.sandbox.edit(
                input.path,
                [replacement],
                limit_bytes=context.limits.read_limit_bytes,
                judged=context.judged,
            )
        except RequestFailed as failure:
            return failed(edit.failure_words("edit", input.path, failure), failure.code)
        if not edited.written:
            count = edited.counts[-1]
            words = f"edit: {edit.miss_words(count, input.path)}"
            return failed(words, edit.missed(count), occurrences=count)
        count = edited.counts[0]
        details = {"replacements": [count]}
        return Outcome(output=f"edited {input.path} ({replacements(count)})", details=details)


def replacements(count: int) -> str:
    """How many were made, in words."""
    return "1 replacement" if count == 1 else f"{count} replacements"
