"""A sandbox backend for LangChain's Deep Agents (`deepagents`): one session of the runner.

    with Runner("policy.yaml", tools="extended") as runner, runner.session() as session:
        agent = create_deep_agent(model=..., backend=RousseauSandbox(session))

Owns the translation of the backend's operations into calls of a session, so that policy and
record hold for each. None of them needs a program in the image, but `execute` a shell. Only
`upload_files` and `download_files`, which the host calls, are transfers of the host's own:
recorded and not judged.
"""

import asyncio
import json
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from runner.integrations.common import failure_of, missing, require

try:
    from deepagents.backends.protocol import (
        ASYNC_GLOB_TIMEOUT,
        FILE_NOT_FOUND,
        INVALID_PATH,
        IS_DIRECTORY,
        PERMISSION_DENIED,
        EditResult,
        ExecuteResponse,
        FileData,
        FileDownloadResponse,
        FileInfo,
        FileUploadResponse,
        GlobResult,
        GlobTruncationReason,
        GrepMatch,
        GrepResult,
        LsResult,
        ReadResult,
        WriteResult,
    )
    from deepagents.backends.sandbox import BaseSandbox
    from deepagents.backends.utils import (
        EMPTY_CONTENT_WARNING,
        EMPTY_OLD_STRING_ERROR,
        InvalidGlobPatternError,
        compile_grep_include_glob,
        normalize_read_bounds,
    )
except ImportError as error:
    raise missing("deepagents", error) from error

from runner.client import AsyncSession
from runner.errors import ConfigurationError, SandboxError, TransferError
from runner.model import Status, ToolResult
from runner.sandbox import WORKSPACE
from runner.sync import Session
from runner.tools.decoding import MAX_INPUT_BYTES

T = TypeVar("T")

Dialect = Literal["deepagents", "langchain-tests"]
PREVIEW_LIMIT_BYTES = 500 * 1024
"""Of a file, a read returns this much: text up to here, and nothing of a larger binary file."""
DOWNLOAD_LIMIT_BYTES = 256 * 1024**2
"""The largest file that is downloaded: it is held in the host's memory."""
PIECE_BYTES = MAX_INPUT_BYTES - 10_000
"""Of a text that is written, this much goes into one call, as JSON, beside the path."""
TIMED_OUT, DENIED = 124, 126
"""Exit codes of commands that have none of their own, as shells and `timeout` have them."""


class RousseauSandbox(BaseSandbox):
    """A backend whose files and commands are those of a session.

    Usable from several threads and event loops at once. A call that is cancelled ends in the
    container too.

    Args:
        session: An open session of a runner with the extended tools. It stays its opener's to
            close.
        dialect: How the operations answer where deepagents and the tests of langchain-tests
            1.1.9 want different things. `deepagents`: as its own backends do, and its
            permissions need: `write` replaces a file that exists, and `glob` returns absolute
            paths, of files alone. `langchain-tests`: `write` refuses to replace, and `glob`
            returns paths below its root, directories included.

    Raises:
        ConfigurationError: The runner does not have the extended tools.
    """

    def __init__(self, session: Session, *, dialect: Dialect = "deepagents"):
        # The synchronous face's own parts: what it does one way, is done here both ways.
        self._portal = session._portal
        self._does = _Operations(session._session, dialect)

    @property
    def id(self) -> str:
        """The session's id."""
        return self._does.session.id

    def _wait(self, operation: Callable[[], Awaitable[T]]) -> T:
        future = self._portal.start_task_soon(operation)
        try:
            return future.result()
        except BaseException:  # such as Ctrl-C: it ends there as well
            future.cancel()
            raise

    async def _await(self, operation: Callable[[], Awaitable[T]]) -> T:
        return await asyncio.wrap_future(self._portal.start_task_soon(operation))

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a shell command.

        Args:
            command: For `/bin/sh`.
            timeout: Its time limit in seconds; None, or 0: the session's.

        Returns:
            Its output, stdout and stderr in one, then what the runner has to say of its end.
            `exit_code` is 124 at the time limit, 126 where the policy denies it, and None where
            the container was lost under it; the next command gets a new one.

        Raises:
            RunnerError: The runner could not run it for another reason.
        """
        return self._wait(lambda: self._does.execute(command, timeout))

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """As `execute`."""
        return await self._await(lambda: self._does.execute(command, timeout))

    def ls(self, path: str) -> LsResult:
        """What is in a directory."""
        return self._wait(lambda: self._does.ls(path))

    async def als(self, path: str) -> LsResult:
        """As `ls`."""
        return await self._await(lambda: self._does.ls(path))

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Some lines of a text file, or all of a binary file of at most 500 KiB, as base64.

        Args:
            file_path: An absolute path.
            offset: How many lines to leave out.
            limit: The most lines. There are fewer where they are more than 500 KiB together;
                `next_offset` then says where to go on.
        """
        return self._wait(lambda: self._does.read(file_path, offset, limit))

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """As `read`."""
        return await self._await(lambda: self._does.read(file_path, offset, limit))

    def write(self, file_path: str, content: str) -> WriteResult:
        """Make a file's content `content`; directories on the way are made.

        A text that is too long for one call, of 2 MB, is written by one of `write` and then some
        of `edit`, so that the policy sees all of it. Where one of these fails, the file is left
        incomplete.
        """
        return self._wait(lambda: self._does.write(file_path, content))

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """As `write`."""
        return await self._await(lambda: self._does.write(file_path, content))

    def edit(
        self, file_path: str, old_string: str, new_string: str, replace_all: bool = False
    ) -> EditResult:
        """Replace a string that occurs once, or all that there are of it.

        Where it is not found as it is, it is looked for with the line ends of Windows, since
        `read` shows those as plain ones.
        """
        return self._wait(lambda: self._does.edit(file_path, old_string, new_string, replace_all))

    async def aedit(
        self, file_path: str, old_string: str, new_string: str, replace_all: bool = False
    ) -> EditResult:
        """As `edit`."""
        return await self._await(
            lambda: self._does.edit(file_path, old_string, new_string, replace_all)
        )

    def grep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        *,
        max_count: int | None = None,
    ) -> GrepResult:
        """Lines that contain a text, as it is.

        Args:
            pattern: The text; with line ends in it, each of its lines.
            path: Where to look; None: the workspace.
            glob: Which files.
            max_count: The most matches; the runner's setting `grep_max_matches` holds besides,
                and the result says `truncated` in either case.
        """
        return self._wait(lambda: self._does.grep(pattern, path, glob, max_count))

    async def agrep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        *,
        max_count: int | None = None,
    ) -> GrepResult:
        """As `grep`."""
        return await self._await(lambda: self._does.grep(pattern, path, glob, max_count))

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Files whose path matches, below a directory; None: the workspace."""
        return self._wait(lambda: self._does.glob(pattern, path))

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """As `glob`."""
        return await self._await(lambda: self._does.glob(pattern, path))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Put files into the sandbox; directories on the way are made. Not judged."""
        return self._wait(lambda: self._does.upload(files))

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """As `upload_files`."""
        return await self._await(lambda: self._does.upload(files))

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Fetch files of at most 256 MiB each from the sandbox. Not judged."""
        return self._wait(lambda: self._does.download(paths))

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """As `download_files`."""
        return await self._await(lambda: self._does.download(paths))


class _Operations:
    """What the operations do, in the runner's own event loop."""

    def __init__(self, session: AsyncSession, dialect: Dialect):
        require(session, ("read", "write", "edit", "grep", "glob", "list", "bash"))
        self.session = session
        self._classic = dialect == "langchain-tests"

    async def execute(self, command: str, timeout: int | None) -> ExecuteResponse:
        result = await self._call("bash", {"command": command}, timeout or None)
        exit_code = {Status.TIMED_OUT: TIMED_OUT, Status.DENIED: DENIED}.get(
            result.status, result.exit_code
        )
        return ExecuteResponse(
            output=result.text, exit_code=exit_code, truncated=result.truncated is not None
        )

    async def ls(self, path: str) -> LsResult:
        result = await self._call("list", {"path": path, "depth": 1})
        if result.is_error:
            return LsResult(error=f"Path '{path}': {_reason(result)}")
        entries = result.details["entries"]
        if result.details["truncated"]:
            return LsResult(
                error=f"Path '{path}': more than {len(entries)} entries; use a glob instead"
            )
        return LsResult(entries=[_info(entry, path) for entry in entries])

    async def read(self, path: str, offset: int, limit: int) -> ReadResult:
        offset, limit = normalize_read_bounds(offset, limit)
        if path.lower().endswith(_SHOWN):
            return await self._read_binary(path)
        arguments = {"path": path, "offset": offset + 1, "limit": max(limit, 1)}
        result = await self._call("read", arguments)
        if result.details.get("undecodable_bytes") or failure_of(result) == "binary":
            return await self._read_binary(path)
        behind = failure_of(result) == "behind_end"
        if behind and (lines := result.details["lines"]):
            return ReadResult(
                error=f"File '{path}': Line offset {offset} exceeds file length ({lines} lines)"
            )
        if result.is_error and not behind:
            return ReadResult(error=f"File '{path}': {_reason(result)}")
        if behind or not result.details["size"]:
            return ReadResult(file_data=FileData(content=EMPTY_CONTENT_WARNING, encoding="utf-8"))
        if not limit:
            nothing = FileData(content="", encoding="utf-8")
            return ReadResult(file_data=nothing, no_lines_requested=True)
        return _page(result, offset)

    async def _read_binary(self, path: str) -> ReadResult:
        result = await self._call("read", {"path": path, "encoding": "base64"})
        if result.details.get("bytes", 0) > PREVIEW_LIMIT_BYTES:
            return ReadResult(
                error=f"File '{path}': Binary file exceeds maximum preview size of"
                f" {PREVIEW_LIMIT_BYTES} bytes"
            )
        if result.is_error:
            return ReadResult(error=f"File '{path}': {_reason(result)}")
        return ReadResult(file_data=FileData(content=result.output, encoding="base64"))

    async def write(self, path: str, content: str) -> WriteResult:
        if self._classic and await self._exists(path):
            return WriteResult(
                error=f"Cannot write to {path} because it already exists. Read and then make"
                " an edit, or write to a new path."
            )
        pieces = _pieces(content)
        mark = f"<{uuid.uuid4().hex}>" if len(pieces) > 1 else ""
        result = await self._call("write", {"path": path, "content": pieces[0] + mark})
        for number, piece in enumerate(pieces[1:], 2):
            if result.is_error:
                break
            end = mark if number < len(pieces) else ""
            arguments = {"path": path, "old_string": mark, "new_string": piece + end}
            result = await self._call("edit", arguments)
        if result.is_error:
            return WriteResult(error=f"Failed to write file '{path}': {_reason(result)}")
        return WriteResult(path=path)

    async def _exists(self, path: str) -> bool:
        result = await self._call("read", {"path": path, "limit": 1})
        return not result.is_error or _reason(result) != FILE_NOT_FOUND

    async def edit(self, path: str, old: str, new: str, replace_all: bool) -> EditResult:
        if not old:
            return EditResult(error=EMPTY_OLD_STRING_ERROR)
        # `read` shows the line ends of Windows as plain ones: so the text may have come here.
        texts = [(old, new)]
        if "\n" in old and "\r" not in old:
            texts.append((old.replace("\n", "\r\n"), _windows(new)))
        for old_string, new_string in texts:
            arguments: dict[str, Any] = {
                "path": path,
                "old_string": old_string,
                "new_string": new_string,
            }
            if replace_all:
                arguments["replace_all"] = True
            result = await self._call("edit", arguments)
            if not result.is_error:
                (made,) = result.details.get("replacements", (1,))
                return EditResult(path=path, occurrences=made)
            if failure_of(result) != "no_match":
                break
        return EditResult(error=_edit_error(result, path, old))

    async def grep(
        self, pattern: str, path: str | None, glob: str | None, max_count: int | None
    ) -> GrepResult:
        root = path or WORKSPACE
        try:
            included = compile_grep_include_glob(glob) if glob else None
        except InvalidGlobPatternError as error:
            return GrepResult(error=str(error))
        arguments = {"pattern": "|".join(map(_literal, pattern.split("\n"))), "path": root}
        if glob and _SIMPLE_GLOB.fullmatch(glob):
            arguments["include"] = glob
        result = await self._call("grep", arguments)
        if result.is_error:
            return GrepResult(error=f"Path '{root}': {_reason(result)}")
        matches = [
            match
            for match in _matches(result.output)
            if included is None or included(_below(match["path"], root))
        ]
        truncated = _TRUNCATED.search(result.output) is not None
        if max_count is not None and len(matches) > max_count:
            return GrepResult(matches=matches[:max_count], truncated=True)
        return GrepResult(matches=matches, truncated=truncated)

    async def glob(self, pattern: str, path: str | None) -> GlobResult:
        root = path or WORKSPACE
        root = root if root.startswith("/") else f"/{root}"
        try:
            matches = compile_grep_include_glob(pattern)
        except InvalidGlobPatternError as error:
            return GlobResult(error=str(error))
        below = pattern.lstrip("/") if "/" in pattern else f"**/{pattern}"
        try:
            async with asyncio.timeout(ASYNC_GLOB_TIMEOUT):
                result = await self._call("glob", {"pattern": below, "path": root})
        except TimeoutError:
            return GlobResult(
                error=f"Error: glob timed out after {ASYNC_GLOB_TIMEOUT}s."
                " Try a more specific pattern or a narrower path."
            )
        if result.is_error:
            return GlobResult(error=f"Path '{root}': {_reason(result)}")
        details = result.details
        found = [
            _info(entry, "" if self._classic else root)
            for entry in details["entries"]
            if (self._classic or entry["kind"] in ("file", "link")) and matches(entry["path"])
        ]
        reason: GlobTruncationReason | None = None
        if details["truncated"]:
            reason = "budget"
        elif details["skipped_unreadable"]:
            reason = "unreadable"
        return GlobResult(matches=found, truncated=reason is not None, truncation_reason=reason)

    async def upload(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [
            FileUploadResponse(path=path, error=await self._upload(path, content))
            for path, content in files
        ]

    async def _upload(self, path: str, content: bytes) -> str | None:
        if not _is_usable(path):
            return INVALID_PATH
        try:
            await self.session.upload(path, content)
        except TransferError as error:
            return _CODES.get(error.failure, str(error))
        except SandboxError as error:
            return str(error)
        return None

    async def download(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [await self._download(path) for path in paths]

    async def _download(self, path: str) -> FileDownloadResponse:
        if not _is_usable(path):
            return FileDownloadResponse(path=path, error=INVALID_PATH)
        try:
            content = await self.session.download(path, limit_bytes=DOWNLOAD_LIMIT_BYTES)
        except TransferError as error:
            return FileDownloadResponse(path=path, error=_CODES.get(error.failure, str(error)))
        except SandboxError as error:
            return FileDownloadResponse(path=path, error=str(error))
        return FileDownloadResponse(path=path, content=content)

    async def _call(
        self, tool: str, arguments: dict[str, Any], timeout_s: float | None = None
    ) -> ToolResult:
        try:
            return await self.session.call(tool, arguments, timeout_s=timeout_s)
        except (SandboxError, ConfigurationError) as error:
            # For the agent to know, not to end by: the next call gets a new container, or has
            # a time limit that may be.
            return ToolResult("", tool, Status.LOST, error=f"{tool}: {error}")


# What tools say, as the words and values of deepagents.

_CODES = {
    "not_found": FILE_NOT_FOUND,
    "permission_denied": PERMISSION_DENIED,
    "read_only": PERMISSION_DENIED,
    "is_directory": IS_DIRECTORY,
    "not_directory": INVALID_PATH,
    "name_too_long": INVALID_PATH,
    "link_loop": INVALID_PATH,
}
"""Why it failed; what is not here keeps the words it has."""
_SHOWN = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".heic", ".heif", ".pdf", ".ppt", ".pptx")
"""Files that deepagents shows to models as what they are, whatever is in them."""
_ROW = re.compile(r"(/[^\n]*?):(\d+): ([^\n]*)\n?")
_TRUNCATED = re.compile(r"^\(truncated at \d+ matches\)$", re.MULTILINE)
_SIMPLE_GLOB = re.compile(r"[\w.*?-]+")
"""Globs that mean the same to Go and to deepagents, but for names with a dot before them."""


def _reason(result: ToolResult) -> str:
    """Why a tool did not do it: a word of deepagents', or what the tool says."""
    error = result.error or str(result.status)
    if result.status is Status.INVALID and "must be absolute" in error:
        return INVALID_PATH
    return _CODES.get(failure_of(result), error)


def _edit_error(result: ToolResult, path: str, old: str) -> str:
    failure = failure_of(result)
    if failure == "no_match":
        return f"Error: String not found in file: '{old}'"
    if failure == "several_matches":
        return (
            f"Error: String '{old}' appears multiple times."
            " Use replace_all=True to replace all occurrences."
        )
    reason = _reason(result)
    if reason == FILE_NOT_FOUND:
        return f"Error: File '{path}' not found"
    return f"Error editing file '{path}': {reason}"


def _page(result: ToolResult, offset: int) -> ReadResult:
    """A range of lines: as many whole ones as a read may return."""
    # The tool's last line is its own.
    text = result.output[: result.output.rindex("(")].removesuffix("\n")
    lines = text.split("\n")
    total = result.details["lines"]
    kept: list[str] = []
    size = 0
    for line in lines:
        size += len(line.encode()) + 1
        if kept and size > PREVIEW_LIMIT_BYTES:
            break
        kept.append(line.removesuffix("\r"))
    if size > PREVIEW_LIMIT_BYTES and len(kept) == 1:
        start = kept[0].encode()[:PREVIEW_LIMIT_BYTES].decode(errors="ignore")
        kept = [f"{start}\n\n[The rest of this line is left out: it is too long.]"]
    end = offset + len(kept)
    return ReadResult(
        file_data=FileData(content="\n".join(kept), encoding="utf-8"),
        total_lines=total,
        start_line=offset + 1,
        end_line=end,
        next_offset=end if end < total else None,
    )


def _info(entry: dict[str, Any], root: str) -> FileInfo:
    path = f"{root.rstrip('/')}/{entry['path']}" if root else entry["path"]
    changed_at = datetime.fromtimestamp(entry["changed_at"], UTC).isoformat()
    return FileInfo(
        path=path,
        is_dir=entry["kind"] == "directory",
        size=entry["size"],
        modified_at=changed_at,
    )


def _matches(rows: str) -> Iterator[GrepMatch]:
    for row in rows.split("\n"):
        if found := _ROW.fullmatch(row):
            yield GrepMatch(path=found[1], line=int(found[2]), text=found[3])


def _below(path: str, root: str) -> str:
    """A path that a search found, as it is below the root of the search."""
    below = path.removeprefix(f"{root.rstrip('/')}/")
    return below if below != path else path.rsplit("/", 1)[-1]


def _literal(text: str) -> str:
    """A regular expression of RE2's that matches the text, and nothing else."""
    return re.sub(r"[^\w\s]", lambda found: _escaped(found[0]), text)


def _escaped(character: str) -> str:
    return "\\" + character if character.isascii() else character


def _windows(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _pieces(text: str) -> list[str]:
    """A text in pieces that each fit into a call, however much JSON makes of them."""
    pieces: list[str] = []
    start = 0
    while not pieces or start < len(text):
        count = PIECE_BYTES
        while (
            len(
                json.dumps(text[start : start + count], ensure_ascii=False).encode(
                    errors="surrogatepass"
                )
            )
            > PIECE_BYTES
        ):
            count //= 2
        pieces.append(text[start : start + count])
        start += count
    return pieces


def _is_usable(path: str) -> bool:
    return path.startswith("/") and "\0" not in path
