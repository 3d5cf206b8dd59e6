"""The `grep` tool."""

from runner.answers import RequestFailed
from runner.model import Outcome
from runner.tools.base import (
    AbsolutePath,
    Effects,
    RequiredText,
    Tool,
    ToolContext,
    ToolInput,
    decode_text,
    failed,
    go_quote,
)

NO_MATCHES = "no matches"
_NOTHING_THERE = frozenset({"not_found", "not_directory"})


class GrepInput(ToolInput):
    """The input of `grep`."""

    pattern: RequiredText
    """Go RE2 regular expression to match."""
    path: AbsolutePath
    """Absolute directory to search under."""
    include: str = ""
    """Optional filename glob (e.g. '*.go'). Applied to the base name."""
    ignore_case: bool = False
    """Case-insensitive match. Defaults to false."""


class GrepTool(Tool):
    """Searches files line by line for an RE2 pattern."""

    name = "grep"
    description = (
        "Search files under a directory for a Go regular expression. Skips binary files and"
        " files larger than the configured limit. Returns 'path:line: matched_line' rows."
    )
    input = GrepInput
    effects = Effects(read_only=True, destructive=False, idempotent=True, open_world=False)

    async def execute(self, context: ToolContext, input: GrepInput, /) -> Outcome:
        """Search the files.

        `details` counts: `matches`, `files` that were searched, and those passed over:
        `skipped_large`, `skipped_binary` (left at a NUL), `skipped_unreadable`,
        `skipped_special` (FIFOs, devices, links that lead out of the directory),
        `skipped_hidden` (where a rule of the policy denies the path). Where there is nothing
        at `path`, nothing matches, as in the reference; `details["missing"]` is then true.
        """
        try:
            found = await context.sandbox.search(
                input.path,
                input.pattern,
                ignore_case=input.ignore_case,
                include=input.include,
                max_matches=context.limits.grep_max_matches,
                max_file_bytes=context.limits.grep_max_file_bytes,
                judged=context.judged,
                hidden=context.hidden,
            )
        except RequestFailed as failure:
            if failure.code in _NOTHING_THERE:
                return Outcome(output=NO_MATCHES, details={"missing": True})
            return failed(f"grep: {_words(failure, input)}", failure.code)
        rows, undecodable = decode_text(found.rows)
        if found.truncated:
            if not rows.endswith("\n"):
                rows += "\n"
            rows += f"(truncated at {found.matches} matches)\n"
        details = {
            "matches": found.matches,
            "files": found.files,
            "skipped_large": found.skipped_large,
            "skipped_binary": found.skipped_binary,
            "skipped_unreadable": found.skipped_unreadable,
            "skipped_special": found.skipped_special,
            "skipped_hidden": found.skipped_hidden,
        }
        if undecodable:
            details["undecodable_bytes"] = undecodable
        return Outcome(output=rows or NO_MATCHES, details=details)


def _words(failure: RequestFailed, input: GrepInput) -> str:
    match failure.code:
        case "bad_pattern":
            return f"compile pattern: {failure.detail}"
        case "bad_glob":
            return f"bad include glob {go_quote(input.include)}: {failure.detail}"
        case _:
            return f"open {input.path}: {failure.detail}"
