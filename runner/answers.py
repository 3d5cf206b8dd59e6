"""What comes back from a container: typed answers, and what is kept of an output. No I/O."""

from collections import deque
from dataclasses import dataclass
from typing import Literal


class RequestFailed(Exception):
    """The helper could not do what was asked: no such file, a bad pattern, no room.

    An answer, not a failure of the runner; tools make an error result of it.

    Attributes:
        code: One of `runner.helper.wire.FAILURES`.
        detail: The helper's words, such as `no such file or directory`.
    """

    def __init__(self, code: str, detail: str):
        self.code = code
        self.detail = detail
        super().__init__(f"{code}: {detail}")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the helper says of its container."""

    uid: int
    gid: int
    shell: bool
    """There is a /bin/sh."""
    python: str
    seccomp: bool
    """The extra filter is on."""


@dataclass(frozen=True, slots=True)
class Touched:
    """What happened to protected files since the last run that asked, whoever did it."""

    files: tuple[tuple[str, Literal["created", "changed", "removed"]], ...] = ()
    """Paths, and what became of them: the first ones."""
    count: int = 0
    """How many there are altogether."""
    complete: bool = True
    """False: there may be more, in directories that could not be looked at, or not in time."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a program ended, and what it wrote."""

    output: bytes
    """All of it, or its beginning and its end where it was over the limit."""
    head_bytes: int
    """Where the beginning ends; the length of `output` when nothing is missing."""
    total_bytes: int
    """What the program wrote altogether."""
    total_lines: int
    """Line ends among that."""
    exit_code: int | None
    """None when a signal ended it."""
    signal: int | None
    ended: Literal["exited", "timed_out", "cancelled", "killed"]
    """`killed`: its supervisor was killed from inside the container."""
    background: int
    """Processes that it left running."""
    oom_killed: bool
    spill_path: str | None
    """Where in the container the whole output is, if it was over the limit."""
    spill_bytes: int
    """How much of it is there."""
    duration_s: float
    touched: Touched = Touched()
    """Of the protected files, where the run was to watch any."""
    errors: bytes | None = None
    """Standard error, where it was asked for apart: all of it, or its beginning and its end.
    Then `output` is standard output alone."""
    errors_head_bytes: int = 0
    """As `head_bytes`, of `errors`."""
    errors_total_bytes: int = 0
    errors_total_lines: int = 0


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The rows that a search found, and what it passed over."""

    rows: bytes
    """`path:line: text` and a line end, each."""
    matches: int
    truncated: bool
    files: int
    """Files that were searched."""
    skipped_large: int
    skipped_binary: int
    skipped_unreadable: int
    skipped_special: int
    skipped_hidden: int
    """Files that a rule for paths keeps from being searched."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some bytes of a file."""

    content: bytes
    size: int
    """Of the whole file."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some lines of a file, line ends included."""

    content: bytes
    """The lines; where `count` is 0, the beginning of one that is too long, cut between two
    characters. Empty behind the last line, and for a binary file."""
    size: int
    """Bytes of the whole file."""
    lines: int
    """Lines of the whole file; 0 for a binary one."""
    first: int
    """The number of the first line here, from 1."""
    count: int
    """How many whole lines there are here."""
    binary: bool
    """There is a NUL among the first 512 bytes."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement."""

    old: bytes
    """Not empty."""
    new: bytes
    all: bool = False
    """Every occurrence, of which there must be at least one; else there must be exactly one."""


@dataclass(frozen=True, slots=True)
class Edited:
    """What became of several replacements in one file."""

    counts: tuple[int, ...]
    """How often each old text occurred, up to the first that did so as it must not."""
    written: bool
    """All were made; otherwise none was, and the last count says why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Something in a directory."""

    path: str
    """Below the directory that was listed; `.` for that itself. What is no UTF-8 is U+FFFD."""
    kind: Literal["file", "directory", "link", "other"]
    size: int
    """Bytes of a file; 0 for anything else."""
    changed_at: float
    """When its content was last changed, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What is below a directory."""

    entries: tuple[Entry, ...]
    truncated: bool
    """There are more."""
    skipped_unreadable: int
    """Directories that could not be read, and entries that could not be looked at."""
    skipped_hidden: int
    """Entries that a rule for paths keeps from being shown."""


class Collector:
    """Keeps the beginning and the end of an output, at most `limit_bytes` of it."""

    _GATHER_BYTES = 64 * 1024

    def __init__(self, limit_bytes: int):
        self._head_limit = (limit_bytes + 1) // 2
        self._tail_limit = limit_bytes - self._head_limit
        self._head = bytearray()
        self._tail: deque[bytearray] = deque()
        self._tail_bytes = 0
        self.total_bytes = 0
        self.total_lines = 0

    def add(self, data: bytes) -> None:
        """Take the next piece."""
        self.total_bytes += len(data)
        self.total_lines += data.count(b"\n")
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        # Small pieces are gathered: a thousand objects would cost more than their bytes.
        if self._tail and len(self._tail[-1]) < self._GATHER_BYTES:
            self._tail[-1] += data
        else:
            self._tail.append(bytearray(data))
        self._tail_bytes += len(data)
        while self._tail and self._tail_bytes - len(self._tail[0]) >= self._tail_limit:
            self._tail_bytes -= len(self._tail.popleft())

    def result(self) -> tuple[bytes, int]:
        """What is kept, and where its beginning ends."""
        tail = b"".join(self._tail)[-self._tail_limit :] if self._tail_limit else b""
        output = bytes(self._head) + tail
        whole = len(output) == self.total_bytes
        return output, len(output) if whole else len(self._head)
