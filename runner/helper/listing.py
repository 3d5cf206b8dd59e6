"""What is below a directory: names, kinds, sizes, times; never a file's content.

Owns the walk, its order and its bounds. No link is followed below the root, and nothing is
opened but directories. Everything is bytes until it is a row.
"""

import json
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any

from runner.helper import files, wire
from runner.helper.files import Failure
from runner.helper.globs import PathGlob, States
from runner.helper.search import SKIPPED_DIRECTORIES, kind_of

MAX_ROWS_BYTES = 8 * 1024**2
"""Rows together; half of what a frame carries."""
MAX_NAMES_HELD = 200_000
"""Names of entries that a walk keeps at once: those of the directories that it is in."""

_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
_ROOT = b"."
"""What the root itself is called."""
_NO_STATES: States = frozenset()


def entries(
    path: str,
    glob: str,
    depth: int,
    max_entries: int,
    cancelled: Callable[[], bool],
    *,
    judged: str | None = None,
    hides: Callable[[bytes], bool] | None = None,
) -> tuple[dict[str, Any], bytes]:
    """List what is below a directory.

    Entries come in the order of a walk that takes the names of each directory in the order of
    their bytes, and a directory before what is in it.

    Directories of `search.SKIPPED_DIRECTORIES` are named but not entered, unless they are the
    root, or the glob names them without a wildcard (`node_modules/*/package.json`).

    Args:
        path: A directory. If it is a link, what it leads to is listed.
        glob: For paths below the root; see `PathGlob`. Empty: all.
        depth: Levels below the root. 0: the root itself, as `.`, whatever it is.
        max_entries: Stop at so many; the result then says `truncated` if there are more. It
            says so too where rows or the names of directories grow too large together.
        cancelled: Asked now and then; a true answer ends the walk.
        judged: List this instead, and follow no link on the way to it.
        hides: Whether to pass over what a path, resolved, leads to. A link is passed over if
            its target is.

    Returns:
        The fields of `wire.Kind.LISTED`, and the rows: a JSON array and a line end each, of
        the path below the root, the kind (`file`, `directory`, `link` or `other`), the size
        in bytes (0 for what is no file), and the time of the last change, in seconds since
        the epoch. Bytes of names that are not UTF-8 are U+FFFD.

    Raises:
        Failure: `bad_glob`, `cancelled`; or there is no such directory, or it can't be read.
            `moved`: a link stands in the path that was judged.
    """
    walk = _Walk(max_entries, cancelled, hides)
    try:
        place = files.place(path, judged)
        if depth == 0:
            walk.root_alone(place)
        else:
            walk.run(place, PathGlob(glob) if glob else None, depth)
    except OSError as error:
        raise Failure.of(error) from error
    fields = {
        "entries": len(walk.rows),
        "truncated": walk.truncated,
        "skipped_unreadable": walk.unreadable,
        "skipped_hidden": walk.hidden,
    }
    return fields, b"".join(walk.rows)


class _Below:
    """Something that a walk found in a directory."""

    __slots__ = ("kind", "matches", "name", "row", "states")

    def __init__(self, name: bytes, kind: int, matches: bool, states: States | None):
        self.name = name
        self.kind = kind
        self.matches = matches
        self.states = states
        """What the glob has to say below it; None where it is not to be entered."""
        self.row: list[Any] | None = None
        """What to say of it."""


class _Walk:
    """One listing: what it has found so far."""

    def __init__(
        self,
        max_entries: int,
        cancelled: Callable[[], bool],
        hides: Callable[[bytes], bool] | None,
    ):
        self.rows: list[bytes] = []
        self.truncated = False
        self.unreadable = self.hidden = 0
        self._max_entries = max_entries
        self._cancelled = cancelled
        self._hides = hides
        self._glob: PathGlob | None = None
        self._depth = 0
        self._root = b""
        self._bytes = 0
        self._full = False
        self._held = 0

    def root_alone(self, place: bytes) -> None:
        """Tell of the root and of nothing in it."""
        if self._is_hidden(place, 0):
            self.hidden += 1
            return
        directory, name = files.open_parent(place)
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        finally:
            os.close(directory)
        if stat.S_ISLNK(status.st_mode):
            raise files.Moved
        self._add(_row(_ROOT, status))

    def run(self, place: bytes, glob: PathGlob | None, depth: int) -> None:
        """Walk. The root's own errors are the caller's; those below it are counted."""
        self._root = place.rstrip(b"/") + b"/"
        self._glob = glob
        self._depth = depth
        start = _NO_STATES if glob is None else glob.start
        # A stack and no recursion: trees can be deeper than Python's limit.
        stack = [(b"", iter(found := self._read(b"", start, 1)), len(found))]
        while stack and not self._full:
            above, rest, count = stack[-1]
            below = next(rest, None)
            if below is None:
                stack.pop()
                self._held -= count
                continue
            if below.row is not None:
                self._add(below.row)
            if below.states is None or self._full:
                continue
            path = above + below.name + b"/"
            try:
                found = self._read(path, below.states, len(stack) + 1)
            except OSError:
                self.unreadable += 1
            else:
                stack.append((path, iter(found), len(found)))

    def _read(self, above: bytes, states: States, level: int) -> list[_Below]:
        """What matters in a directory, in order."""
        held = files.open_directory(self._root + above)
        try:
            here = files.open_here(held, b".", _LIST)
        finally:
            os.close(held)
        try:
            found = sorted(self._relevant(here, states, level), key=lambda below: below.name)
            self._describe(here, above, found)
        finally:
            os.close(here)
        self._held += len(found)
        return found

    def _relevant(self, here: int, states: States, level: int) -> Iterator[_Below]:
        room = MAX_NAMES_HELD - self._held
        with os.scandir(here) as listed:
            for entry in listed:
                if self._cancelled():
                    raise Failure("cancelled", "cancelled")
                name = os.fsencode(entry.name)  # names are text where a descriptor is listed
                below = self._judge(name, kind_of(entry), states, level)
                if below.matches or below.states is not None:
                    if not room:
                        self.truncated = True
                        return
                    room -= 1
                    yield below

    def _judge(self, name: bytes, kind: int, states: States, level: int) -> _Below:
        may_enter = kind == stat.S_IFDIR and level < self._depth
        is_skipped = name in SKIPPED_DIRECTORIES
        if self._glob is None:
            enter = may_enter and not is_skipped
            return _Below(name, kind, True, _NO_STATES if enter else None)
        after = self._glob.step(states, name)
        on = self._glob.named(states, name) if is_skipped else after
        enter = may_enter and self._glob.leads_on(on)
        return _Below(name, kind, self._glob.accepts(after), on if enter else None)

    def _describe(self, here: int, above: bytes, found: list[_Below]) -> None:
        """Make rows of those that match, and forget what comes too late to be told."""
        room = self._max_entries - len(self.rows) + 1  # with one more, there are too many
        for number, below in enumerate(found):
            if not below.matches:
                continue
            path = above + below.name
            if len(path) > wire.MAX_PATH_BYTES:
                self.unreadable += 1
                continue
            if self._is_hidden(self._root + path, below.kind):
                self.hidden += 1
                continue
            try:
                status = os.stat(below.name, dir_fd=here, follow_symlinks=False)
            except FileNotFoundError:
                continue  # it is gone
            except OSError:
                self.unreadable += 1
                continue
            below.row = _row(path, status)
            room -= 1
            if not room:
                del found[number + 1 :]
                return

    def _is_hidden(self, path: bytes, kind: int) -> bool:
        if self._hides is None:
            return False
        if self._hides(path):
            return True
        return kind == stat.S_IFLNK and self._hides(os.path.realpath(path))

    def _add(self, row: list[Any]) -> None:
        text = json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        if len(self.rows) == self._max_entries or self._bytes + len(text) > MAX_ROWS_BYTES:
            self.truncated = self._full = True
            return
        self.rows.append(text)
        self._bytes += len(text)


def _row(path: bytes, status: os.stat_result) -> list[Any]:
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "other")
    size = status.st_size if kind == "file" else 0
    return [path.decode(errors="replace"), kind, size, round(status.st_mtime, 6)]
