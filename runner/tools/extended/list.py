"""The `list` tool: what is in a directory, some levels deep."""

from typing import Annotated, Any

from pydantic import Field

from runner.answers import Entry, Listing, RequestFailed
from runner.model import Outcome
from runner.sandbox import WORKSPACE
from runner.tools.base import AbsolutePath, Effects, Tool, ToolContext, ToolInput, failed

EMPTY = "(empty)"
_MARKS = {"directory": "/", "link": "@", "other": "?"}


class ListInput(ToolInput):
    """The input of `list`."""

    path: AbsolutePath = WORKSPACE
    """Absolute directory to list. Defaults to /workspace."""
    depth: Annotated[int, Field(ge=1, le=100)] = 1
    """How many levels to go down. Defaults to 1: what is in the directory itself."""


class ListTool(Tool):
    """Lists what is in a directory."""

    name = "list"
    description = (
        "List what is in a directory: one path a line, below that directory, in order. Directories"
        " end with '/', links with '@'; files have their size. Directories such as .git and"
        " node_modules are listed, but what is in them is not."
    )
    input = ListInput
    effects = Effects(read_only=True, destructive=False, idempotent=True, open_world=False)

    async def execute(self, context: ToolContext, input: ListInput, /) -> Outcome:
        """List the directory.

        `details`: `entries`, each with its `path` below the directory, its `kind` (`file`,
        `directory`, `link`, `other`), its `size` in bytes and `changed_at`, in seconds since
        the epoch; and counts of what was passed over: `skipped_unreadable`, and
        `skipped_hidden`, where a rule of the policy denies the path.
        """
        try:
            listing = await context.sandbox.list(
                input.path,
                depth=input.depth,
                max_entries=context.limits.list_max_entries,
                judged=context.judged,
                hidden=context.hidden,
            )
        except RequestFailed as failure:
            return failed(f"list: open {input.path}: {failure.detail}", failure.code)
        rows = [_row(entry) for entry in listing.entries]
        return Outcome(output=rendered(rows, listing, EMPTY), details=details_of(listing))


def _row(entry: Entry) -> str:
    if entry.kind == "file":
        size = "1 byte" if entry.size == 1 else f"{entry.size} bytes"
        return f"{on_one_line(entry.path)} ({size})"
    return on_one_line(entry.path) + _MARKS[entry.kind]


def rendered(rows: list[str], listing: Listing, nothing: str) -> str:
    """Rows as the model sees them."""
    if listing.truncated:
        rows = [*rows, f"(truncated at {len(listing.entries)} entries)"]
    return "".join(f"{row}\n" for row in rows) or nothing


def details_of(listing: Listing) -> dict[str, Any]:
    """A listing as facts for programs."""
    return {
        "entries": [
            {
                "path": entry.path,
                "kind": entry.kind,
                "size": entry.size,
                "changed_at": entry.changed_at,
            }
            for entry in listing.entries
        ],
        "truncated": listing.truncated,
        "skipped_unreadable": listing.skipped_unreadable,
        "skipped_hidden": listing.skipped_hidden,
    }


def on_one_line(path: str) -> str:
    """A path with what would break its row, such as a line end, written as an escape."""
    if path.isprintable():
        return path
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in path
    )
