"""The `glob` tool: paths that match a pattern."""

from runner.answers import Entry, RequestFailed
from runner.model import Outcome
from runner.sandbox import WORKSPACE
from runner.tools.base import (
    AbsolutePath,
    Effects,
    SystemText,
    Tool,
    ToolContext,
    ToolInput,
    failed,
    go_quote,
)
from runner.tools.extended.list import details_of, on_one_line, rendered

NO_MATCHES = "no matches"
_ANY_DEPTH = 2**31


class GlobInput(ToolInput):
    """The input of `glob`."""

    pattern: SystemText
    """Glob for paths below the directory, e.g. '**/*.py' or 'src/*.{c,h}'."""
    path: AbsolutePath = WORKSPACE
    """Absolute directory to search under. Defaults to /workspace."""


class GlobTool(Tool):
    """Finds files and directories by their paths."""

    name = "glob"
    description = (
        "Find files and directories whose path below a directory matches a glob: '*' and '?' do"
        " not match '/', '**' stands for any directories, '{a,b}' for either. Returns absolute"
        " paths, one a line, in order; directories end with '/'. Directories such as .git and"
        " node_modules are not entered unless the pattern names them."
    )
    input = GlobInput
    effects = Effects(read_only=True, destructive=False, idempotent=True, open_world=False)

    async def execute(self, context: ToolContext, input: GlobInput, /) -> Outcome:
        """Find them. `details` are those of `list`, with paths below the directory."""
        root = input.path.rstrip("/")
        pattern = input.pattern.removeprefix(f"{root}/")
        try:
            listing = await context.sandbox.list(
                input.path,
                glob=pattern,
                depth=_ANY_DEPTH,
                max_entries=context.limits.list_max_entries,
                judged=context.judged,
                hidden=context.hidden,
            )
        except RequestFailed as failure:
            if failure.code == "bad_glob":
                return failed(
                    f"glob: bad pattern {go_quote(input.pattern)}: {failure.detail}", failure.code
                )
            return failed(f"glob: open {input.path}: {failure.detail}", failure.code)
        rows = [_row(root, entry) for entry in listing.entries]
        return Outcome(output=rendered(rows, listing, NO_MATCHES), details=details_of(listing))


def _row(root: str, entry: Entry) -> str:
    return on_one_line(f"{root}/{entry.path}") + ("/" if entry.kind == "directory" else "")
