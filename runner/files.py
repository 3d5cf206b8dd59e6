"""What can be asked about the files of one container, and what its answers must look like.

Each request is a method with a typed answer. An answer that is well-formed but can't be true
ends the conversation. What happens to a file is the helper's matter.
"""

import asyncio
import builtins
import json
from collections.abc import Sequence
from typing import Any

from runner.answers import (
    Edit,
    Edited,
    Entry,
    Listing,
    Page,
    Part,
    RequestFailed,
    SearchResult,
)
from runner.carrier import Carrier
from runner.conversation import Conversation, Diagnose, OnLost
from runner.helper import wire
from runner.helper.wire import Kind

TRANSFER_AT_ONCE_BYTES = 16 * 1024**2
"""Content up to this is stored by one request."""
TRANSFER_PIECE_BYTES = 4 * 1024**2
"""Larger content goes in pieces of this size: a session's memory is small."""
MAX_LISTED_PATH_BYTES = 3 * wire.MAX_PATH_BYTES
"""Each byte of a path that is not UTF-8 has become the three of U+FFFD."""


class Files(Conversation):
    """Reads, writes, edits, searches and lists files."""

    def __init__(self, carrier: Carrier, marker: bytes, diagnose: Diagnose, on_lost: OnLost):
        super().__init__(carrier, marker, diagnose, on_lost)
        self._storing = asyncio.Lock()
        """Held while content is stored: pieces of two must not come into one file."""

    async def resolve(self, path: str) -> str:
        """Where a path leads in the container, through links and all; or would lead, once made.

        It is absolute, and holds neither a link nor an empty name, `.` or `..`. To act there
        and nowhere else, whatever became of the path since, hand it on as `judged`.

        Raises:
            RequestFailed: It leads nowhere: links in a circle, a file for a directory, a name
                that is too long or no UTF-8, a directory that may not be entered.
            SandboxLost: The container or its helper is gone.
        """
        answer = await self._ask(self._open(Kind.RESOLVED), Kind.RESOLVE, {"path": path})
        return str(answer.fields["path"])

    async def read(self, path: str, *, limit_bytes: int, judged: str | None = None) -> bytes:
        """The content of a regular file.

        Args:
            path: Which file; links are followed.
            limit_bytes: A larger one is refused.
            judged: What `resolve` made of the path. Then this file is meant and no link is
                followed; so for every request that takes it.

        Raises:
            RequestFailed: It can't be read, is no regular file, or is larger than the limit.
                `moved`: a link came into the path that was judged.
            LocalProtocolError: `judged` is nothing that `resolve` returns.
            SandboxLost: The container or its helper is gone.
        """
        limit = min(limit_bytes, wire.MAX_PAYLOAD_BYTES)
        request = self._open(Kind.CONTENT)
        request.most_bytes = limit
        fields = {"path": path, "judged": judged, "limit_bytes": limit}
        return (await self._ask(request, Kind.READ, fields)).payload

    async def write(self, path: str, content: bytes, *, judged: str | None = None) -> int:
        """Make a file's content `content`; returns the bytes written.

        Raises:
            RequestFailed: It can't be written; what was there before is still there.
            LocalProtocolError: The content is over the protocol's limit (16 MiB).
            SandboxLost: The container or its helper is gone.
        """
        fields = {"path": path, "judged": judged}
        answer = await self._ask(self._open(Kind.WROTE), Kind.WRITE, fields, content)
        return int(answer.fields["bytes"])

    async def store(self, path: str, content: bytes) -> int:
        """As `write`, for content of any size; returns the bytes written.

        Up to 16 MiB at once, as `write` does it. More goes in pieces, one behind the other:
        whoever looks meanwhile sees a part, and after an error that part is what there is.
        All pieces go to the place where the path led at first.

        Raises:
            RequestFailed: It can't be written, or not to its end.
            SandboxLost: The container or its helper is gone.
        """
        async with self._storing:
            if len(content) <= TRANSFER_AT_ONCE_BYTES:
                return await self.write(path, content)
            # A last slash asks for a directory; `write` says so, but what it leads to has none.
            judged = None if path.endswith("/") else await self.resolve(path)
            await self.write(path, content[:TRANSFER_PIECE_BYTES], judged=judged)
            for start in range(TRANSFER_PIECE_BYTES, len(content), TRANSFER_PIECE_BYTES):
                piece = content[start : start + TRANSFER_PIECE_BYTES]
                await self.append(path, piece, judged=judged)
            return len(content)

    async def fetch(self, path: str, *, limit_bytes: int) -> bytes:
        """As `read`, for files of any size, in pieces.

        A file that changes meanwhile may come back as it was at no time.

        Raises:
            RequestFailed: As for `read`. `file_too_large`: it is over `limit_bytes`.
            SandboxLost: The container or its helper is gone.
        """
        judged = await self.resolve(path)
        content = bytearray()
        while True:
            asked = min(limit_bytes + 1 - len(content), TRANSFER_PIECE_BYTES)
            part = await self.read_part(path, start=len(content), limit_bytes=asked, judged=judged)
            content += part.content
            size = max(part.size, len(content))
            if size > limit_bytes:
                raise RequestFailed(
                    "file_too_large", f"file too large: {size} bytes, the limit is {limit_bytes}"
                )
            # Not by its size: files of /proc say that they are empty.
            if len(part.content) < asked:
                return bytes(content)

    async def replace(
        self, path: str, old: bytes, new: bytes, *, limit_bytes: int, judged: str | None = None
    ) -> int:
        """Replace `old` by `new` if it occurs exactly once; returns how often it occurs.

        Raises:
            RequestFailed: The file can't be read or written.
            SandboxLost: The container or its helper is gone.
        """
        fields = {
            "path": path,
            "judged": judged,
            "old_bytes": len(old),
            "limit_bytes": limit_bytes,
        }
        answer = await self._ask(self._open(Kind.REPLACED), Kind.REPLACE, fields, old + new)
        return int(answer.fields["occurrences"])

    async def search(
        self,
        path: str,
        pattern: str,
        *,
        ignore_case: bool,
        include: str,
        max_matches: int,
        max_file_bytes: int,
        judged: str | None = None,
        hidden: Sequence[str] = (),
    ) -> SearchResult:
        """Find the lines below `path` that match an RE2 pattern.

        Rows have the path as it was given, wherever that led.

        Args:
            path: A directory, or one file.
            pattern: RE2, for one line.
            ignore_case: Whether the case of letters does not matter.
            include: A glob for names of files; empty for all.
            max_matches: Stop after so many.
            max_file_bytes: Pass over larger files.
            judged: As for `read`.
            hidden: RE2, for whole paths; a file is passed over, and counted, if one of them
                matches somewhere in the path where it is when all links are followed.

        Raises:
            RequestFailed: A pattern or the glob is bad, or there is no such path.
            SandboxLost: The container or its helper is gone.
        """
        answer = await self._ask(
            self._open(Kind.FOUND),
            Kind.SEARCH,
            {
                "path": path,
                "judged": judged,
                "hidden": list(hidden),
                "pattern": pattern,
                "ignore_case": ignore_case,
                "include": include,
                "max_matches": max_matches,
                "max_file_bytes": max_file_bytes,
            },
        )
        return SearchResult(rows=answer.payload, **answer.fields)

    async def read_part(
        self, path: str, *, start: int, limit_bytes: int, judged: str | None = None
    ) -> Part:
        """Some bytes of a regular file, of any size.

        Args:
            path: Which file; links are followed.
            start: Where to start, in bytes.
            limit_bytes: The most bytes; at most 16 MiB come back. Fewer do only at the end.
            judged: As for `read`.

        Raises:
            RequestFailed: As for `read`, whatever the size.
            SandboxLost: The container or its helper is gone.
        """
        limit = min(limit_bytes, wire.MAX_PAYLOAD_BYTES)
        request = self._open(Kind.PIECE)
        request.most_bytes = limit
        request.check = lambda message: _check_part(message, start)
        fields = {"path": path, "judged": judged, "start": start, "limit_bytes": limit}
        answer = await self._ask(request, Kind.PART, fields)
        return Part(answer.payload, answer.fields["size"])

    async def read_lines(
        self, path: str, *, first: int, count: int, limit_bytes: int, judged: str | None = None
    ) -> Page:
        r"""Some lines of a regular file, of any size, and how many it has.

        A line ends behind `\n`. The page ends before the line that would take it over the
        limit; where that is its first one, it is the beginning of that line.

        Args:
            path: Which file; links are followed.
            first: The number of the first line, from 1.
            count: The most lines.
            limit_bytes: The most bytes; at most 16 MiB come back.
            judged: As for `read`.

        Raises:
            RequestFailed: As for `read`, whatever the size.
            SandboxLost: The container or its helper is gone.
        """
        limit = min(limit_bytes, wire.MAX_PAYLOAD_BYTES)
        request = self._open(Kind.PAGE)
        request.most_bytes = limit
        request.check = lambda message: _check_page(message, first, count)
        fields = {
            "path": path,
            "judged": judged,
            "first": first,
            "count": count,
            "limit_bytes": limit,
        }
        answer = await self._ask(request, Kind.LINES, fields)
        return Page(content=answer.payload, **answer.fields)

    async def append(self, path: str, content: bytes, *, judged: str | None = None) -> int:
        """Write behind what is in a file, which is made where it is missing.

        Returns:
            The bytes written.

        Raises:
            RequestFailed: It can't be written; it is as it was before.
            LocalProtocolError: The content is over the protocol's limit (16 MiB).
            SandboxLost: The container or its helper is gone.
        """
        fields = {"path": path, "judged": judged}
        answer = await self._ask(self._open(Kind.WROTE), Kind.APPEND, fields, content)
        return int(answer.fields["bytes"])

    async def edit(
        self,
        path: str,
        edits: Sequence[Edit],
        *,
        limit_bytes: int,
        judged: str | None = None,
    ) -> Edited:
        """Make several replacements in one file in turn: all of them, or none.

        Args:
            path: Which file; links are followed.
            edits: From 1 to 1,000; each is made in what those before it left.
            limit_bytes: The largest file to edit, and the largest that it may become.
            judged: As for `read`.

        Raises:
            RequestFailed: The file can't be read or written, or would become too large.
            LocalProtocolError: There are no edits, or too many, or they are over 16 MiB.
            SandboxLost: The container or its helper is gone.
        """
        request = self._open(Kind.EDITED)
        request.check = lambda message: _check_edited(message, edits)
        fields = {
            "path": path,
            "judged": judged,
            "edits": [[len(edit.old), len(edit.new), edit.all] for edit in edits],
            "limit_bytes": limit_bytes,
        }
        payload = b"".join(text for edit in edits for text in (edit.old, edit.new))
        answer = await self._ask(request, Kind.EDIT, fields, payload)
        return Edited(tuple(answer.fields["counts"]), answer.fields["written"])

    async def list(
        self,
        path: str,
        *,
        glob: str = "",
        depth: int,
        max_entries: int,
        judged: str | None = None,
        hidden: Sequence[str] = (),
    ) -> Listing:
        """What is below a directory: in order of names, a directory before what is in it.

        Links are named, not followed. Directories that `search` leaves out (`.git`,
        `node_modules` and so on) are named, and entered only where the glob says their names.

        Args:
            path: A directory; if it is a link, what it leads to.
            glob: For paths below it: `*`, `?`, `[a-z]`, `{a,b}`, and `**` for any directories;
                empty for all.
            depth: How many levels to go down. 0: the path itself alone, whatever it is.
            max_entries: Stop after so many.
            judged: As for `read`.
            hidden: As for `search`: what is passed over.

        Raises:
            RequestFailed: The glob is bad, or there is no such directory.
            SandboxLost: The container or its helper is gone.
        """
        entries: builtins.list[Entry] = []
        request = self._open(Kind.LISTED)
        request.check = lambda message: entries.extend(_entries(message, depth, max_entries))
        fields = {
            "path": path,
            "judged": judged,
            "hidden": builtins.list(hidden),
            "glob": glob,
            "depth": depth,
            "max_entries": max_entries,
        }
        answer = (await self._ask(request, Kind.LIST, fields)).fields
        return Listing(
            entries=tuple(entries),
            truncated=answer["truncated"],
            skipped_unreadable=answer["skipped_unreadable"],
            skipped_hidden=answer["skipped_hidden"],
        )


def _check_part(message: wire.Message, start: int) -> None:
    content, size = message.payload, message.fields["size"]
    if content and start + len(content) > size:
        raise wire.ProtocolError(f"call {message.call} has bytes from behind a file's end")


def _check_page(message: wire.Message, first: int, count: int) -> None:
    """See that a page is one, as far as its own content tells."""
    fields, content = message.fields, message.payload
    lines = content.count(b"\n") + (bool(content) and not content.endswith(b"\n"))
    is_cut = fields["count"] == 0 and b"\n" not in content
    if (
        fields["first"] != first
        or fields["count"] > count
        or (fields["count"] != lines and not is_cut)
        or (lines and first - 1 + lines > fields["lines"])
        or len(content) > fields["size"]
        or (fields["binary"] and content)
    ):
        raise wire.ProtocolError(f"call {message.call} has no page of what was asked for")


def _check_edited(message: wire.Message, edits: Sequence[Edit]) -> None:
    counts, is_written = message.fields["counts"], message.fields["written"]
    right = [
        count >= 1 and (edit.all or count == 1) for count, edit in zip(counts, edits, strict=False)
    ]
    if is_written:
        is_true = len(counts) == len(edits) and all(right)
    else:
        is_true = 0 < len(counts) <= len(edits) and all(right[:-1]) and not right[-1]
    if not is_true:
        raise wire.ProtocolError(f"call {message.call} made no sense of its edits")


_KINDS = frozenset({"file", "directory", "link", "other"})


def _entries(message: wire.Message, depth: int, max_entries: int) -> list[Entry]:
    """The entries of a listing.

    Raises:
        ProtocolError: They are none, or not those that were asked for.
    """
    count = message.fields["entries"]
    if count > max_entries or message.payload.count(b"\n") != count:
        raise wire.ProtocolError(f"call {message.call} lists another number of entries")
    rows = message.payload.split(b"\n")
    if rows.pop():
        raise wire.ProtocolError(f"call {message.call} lists another number of entries")
    try:
        return [_entry(json.loads(row, parse_constant=float), depth) for row in rows]
    except (ValueError, RecursionError) as error:
        raise wire.ProtocolError(f"call {message.call} lists no entry: {error}") from error


def _entry(row: Any, depth: int) -> Entry:
    if type(row) is not list or len(row) != 4:
        raise ValueError("not four values")
    path, kind, size, changed_at = row
    if type(path) is not str or "\0" in path or len(path.encode()) > MAX_LISTED_PATH_BYTES:
        raise ValueError("no path")
    names = path.split("/")
    if path != "." if depth == 0 else len(names) > depth or {"", ".", ".."} & set(names):
        raise ValueError("a path that was not asked for")
    if type(kind) is not str or kind not in _KINDS:
        raise ValueError("no kind")
    if type(size) is not int or not 0 <= size < 2**63:
        raise ValueError("no size")
    if type(changed_at) not in (int, float) or not abs(changed_at) < 2**63:
        raise ValueError("no time")
    return Entry(path, kind, size, float(changed_at))  # type: ignore[arg-type]
