"""Reading a part of a file: some of its bytes, or some of its lines.

A file of any size goes through; what is held of it is the part, and a piece.
"""

import os
from collections.abc import Callable
from typing import Any

from runner.helper import files, wire
from runner.helper.files import Failure

BINARY_PREFIX_BYTES = 512
"""A NUL among these makes a file binary, as in the reference."""

_PIECE_BYTES = 256 * 1024


def part(
    path: str, start: int, limit_bytes: int, *, judged: str | None = None
) -> tuple[int, bytes]:
    """Some bytes of a regular file: its size, and those from `start`, at most `limit_bytes`.

    There are fewer only where the file ends, and none behind its end.

    Args:
        judged: As for `files.read`.

    Raises:
        Failure: As for `files.read`, whatever the size.
    """
    pieces = []
    at = start
    try:
        descriptor, status = files.open_to_read(path, judged)
        try:
            while piece := os.pread(descriptor, start + limit_bytes - at, at):
                pieces.append(piece)
                at += len(piece)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise Failure.of(error) from error
    # Files of /proc say that they are empty.
    return max(status.st_size, at if pieces else 0), b"".join(pieces)


def page(
    path: str,
    first: int,
    count: int,
    limit_bytes: int,
    cancelled: Callable[[], bool],
    *,
    judged: str | None = None,
) -> tuple[dict[str, Any], bytes]:
    r"""Some lines of a regular file, as they are, line ends included.

    A line ends behind `\n`; what comes behind the last one is a line too, if it is anything.
    The page ends before the line that would take it over `limit_bytes`. Where that is its very
    first one, the page is the beginning of that line, cut between two characters of UTF-8, and
    `count` is 0: so many lines are whole.

    Args:
        first: The number of the first line, from 1.
        count: The most lines.
        limit_bytes: The most bytes.
        cancelled: Asked now and then; a true answer ends it.
        judged: As for `files.read`.

    Returns:
        The fields of `wire.Kind.PAGE`, and the lines. Of a binary file there are none, and
        nobody counted them; it has a NUL among its first `BINARY_PREFIX_BYTES`.

    Raises:
        Failure: As for `files.read`, whatever the size; `cancelled`.
    """
    first = max(first, 1)
    try:
        descriptor, status = files.open_to_read(path, judged)
        try:
            collected = _Page(first, count, min(limit_bytes, wire.MAX_PAYLOAD_BYTES))
            size = 0
            while piece := os.read(descriptor, _PIECE_BYTES):
                if not size and b"\0" in piece[:BINARY_PREFIX_BYTES]:
                    size = max(status.st_size, len(piece))
                    return _fields(size, 0, first, 0, binary=True), b""
                if cancelled():
                    raise Failure("cancelled", "cancelled")
                size += len(piece)
                collected.add(piece)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise Failure.of(error) from error
    whole, content = collected.result()
    return _fields(size, collected.lines(), first, whole, binary=False), content


def _fields(size: int, lines: int, first: int, count: int, *, binary: bool) -> dict[str, Any]:
    return {"size": size, "lines": lines, "first": first, "count": count, "binary": binary}


class _Page:
    """Takes a file piece by piece and keeps the lines that were asked for."""

    def __init__(self, first: int, count: int, limit_bytes: int):
        self._skip = first - 1
        """Line ends before the page."""
        self._count = count
        self._limit_bytes = limit_bytes
        self._ends = 0
        self._is_open = False
        """The last line has no end yet."""
        self._kept = bytearray()
        self._kept_ends = 0

    def add(self, piece: bytes) -> None:
        ends = piece.count(b"\n")
        if self._ends + ends >= self._skip and self._kept_ends < self._count:
            start = _behind(piece, self._skip - self._ends)
            # One byte over the limit is enough to know that it is over.
            room = self._limit_bytes + 1 - len(self._kept)
            if room > 0:
                more = piece[start : start + room]
                self._kept += more
                self._kept_ends += more.count(b"\n")
        self._ends += ends
        self._is_open = not piece.endswith(b"\n")

    def lines(self) -> int:
        """How many lines the file has."""
        return self._ends + self._is_open

    def result(self) -> tuple[int, bytes]:
        """How many whole lines there are, and what is to be shown."""
        kept = self._kept
        if self._kept_ends >= self._count:
            del kept[_behind(kept, self._count) :]
        if len(kept) > self._limit_bytes:
            end = kept.rfind(b"\n", 0, self._limit_bytes) + 1
            if not end:
                return 0, _without_cut_end(bytes(kept[: self._limit_bytes]))
            del kept[end:]
        whole = kept.count(b"\n") + (bool(kept) and not kept.endswith(b"\n"))
        return whole, bytes(kept)


def _behind(data: bytes | bytearray, ends: int) -> int:
    """Where the so many lines at the start of `data` end. There are at least as many."""
    low, high = 0, len(data)
    while ends > 0:
        middle = (low + high + 1) // 2
        if middle == high:
            return high
        before = data.count(b"\n", low, middle)
        if before >= ends:
            high = middle
        else:
            low = middle
            ends -= before
    return low


def _without_cut_end(data: bytes) -> bytes:
    """Without the beginning of a character whose rest was left out."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # it starts a character
            width = 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
            return data[:-back] if width > back else data
    return data
