"""Searching files for a pattern, line by line, as the reference's grep does.

Owns the walk, the glob, the rules for what is passed over, and the engine: RE2, so that no
pattern takes more than linear time. Everything is bytes. What a search finds is rows, ready
to be shown; it is bounded in matches and in bytes.

The pattern is not tried on each line by itself. It is compiled so that `^` and `$` stand at
line ends and nothing in it can match a line end. Then a search over many lines finds the next
one that matches, and files without any, by far the most, cost one call.
"""

import codecs
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from runner.helper import files
from runner.helper.files import Failure
from runner.helper.globs import NameGlob

SKIPPED_DIRECTORIES = frozenset(
    {b".git", b"node_modules", b"vendor", b".venv", b"__pycache__", b"dist", b"build"}
)
MAX_ROWS_BYTES = 8 * 1024**2
"""Rows together; half of what a frame carries. More is truncated, as too many matches are."""
MAX_PROGRAM_BYTES = 8 * 1024**2
"""What RE2 may use for a pattern; its own default. A pattern that needs more is refused."""

_STRETCH_BYTES = 64 * 1024
"""How much is searched before asking whether the call was cancelled: with the worst of
patterns RE2 takes some microseconds a byte."""
_LINES_BETWEEN_LOOKS = 2000
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | os.O_NOFOLLOW
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def search(
    path: str,
    pattern: str,
    ignore_case: bool,
    include: str,
    max_matches: int,
    max_file_bytes: int,
    cancelled: Callable[[], bool],
    *,
    judged: str | None = None,
    hides: Callable[[bytes], bool] | None = None,
) -> tuple[dict[str, Any], bytes]:
    r"""Find the lines of the files below `path` that match an RE2 pattern.

    Directories are walked in the byte order of names; those of `SKIPPED_DIRECTORIES` are
    not entered, not even as the root. A line ends with `\n`, and a `\r` before that is not
    part of it. Bytes that are not UTF-8 match as U+FFFD, each of them. A file is left at its
    first line with a NUL.

    Links to directories are not followed, the root included unless it ends with a slash;
    links to files are where their target is below the root. Nothing but regular files is
    ever opened.

    Args:
        path: A directory, or one file.
        include: A glob for base names, in the syntax of Go's `filepath.Match`; empty: all.
        max_matches: Stop at so many; the result then says `truncated`, as it does when
            there were exactly that many.
        max_file_bytes: Larger files are passed over.
        cancelled: Asked now and then; a true answer ends the search.
        judged: Search here instead, reporting what is found as if it were at `path`. No link
            is followed on the way to anything, whatever happens meanwhile.
        hides: Whether to pass over the file that a path, resolved, leads to.

    Returns:
        The fields of `wire.Kind.FOUND`, and the rows: `path:line: text` and `\n`, each.
        `skipped_binary` counts files that were left at a NUL, `skipped_special` also links
        to files outside of the root.

    Raises:
        Failure: `bad_pattern`, `bad_glob`, `cancelled`; or the root can't be searched: it is
            missing, can't be listed, or is neither a directory nor a file.
    """
    matcher = _Matcher(pattern, ignore_case)
    glob = NameGlob(include) if include else None
    found = _Search(matcher, glob, max_matches, max_file_bytes, cancelled, hides)
    try:
        found.run(files.encode(path), None if judged is None else files.encode(judged))
    except OSError as error:
        raise Failure.of(error) from error
    finally:
        found.close()
    fields = {
        "matches": found.matches,
        "truncated": found.full,
        "files": found.files,
        "skipped_large": found.large,
        "skipped_binary": found.binary,
        "skipped_unreadable": found.unreadable,
        "skipped_special": found.special,
        "skipped_hidden": found.hidden,
    }
    return fields, b"".join(found.rows)


def hider(patterns: Sequence[str]) -> Callable[[bytes], bool] | None:
    """What tells whether any of these RE2 patterns matches somewhere in a path.

    Bytes of a path that are not UTF-8 count as U+FFFD, so that they hide from nothing. None
    where there are no patterns.

    Raises:
        Failure: `bad_pattern`; also where they are too large together.
    """
    if not patterns:
        return None
    import re2

    any_of_them = "|".join(f"(?:{pattern})" for pattern in patterns)
    try:
        compiled = re2.compile(any_of_them, _options(re2))
    except re2.error as error:
        raise _bad_pattern(error) from error
    finally:
        re2.purge()

    def hides(path: bytes) -> bool:
        text = path if path.isascii() else _with_replacements(path)
        return compiled.search(text) is not None

    return hides


class _Search:
    """One search: what it looks for, and what it has found so far."""

    def __init__(
        self,
        matcher: "_Matcher",
        glob: NameGlob | None,
        max_matches: int,
        max_file_bytes: int,
        cancelled: Callable[[], bool],
        hides: Callable[[bytes], bool] | None,
    ):
        self.matches = self.files = 0
        self.large = self.binary = self.unreadable = self.special = self.hidden = 0
        self.rows: list[bytes] = []
        self.full = False
        self._matcher = matcher
        self._glob = glob
        self._max_matches = max_matches
        self._max_file_bytes = max_file_bytes
        self._cancelled = cancelled
        self._hides = hides
        self._rows_bytes = 0
        self._root = b""
        self._real_root = b""
        self._is_judged = False
        self._held: tuple[bytes, int] | None = None
        """Where a judged search is: the directory and its path, resolved."""

    def close(self) -> None:
        """Let go of what is held."""
        if self._held is not None:
            os.close(self._held[1])
            self._held = None

    def run(self, path: bytes, judged: bytes | None) -> None:
        """Search the root. Its own errors are the caller's; those below it are counted."""
        self._is_judged = judged is not None
        # As the reference's walk: a last slash follows a link, and what is reported is clean.
        name = path.rstrip(b"/").rpartition(b"/")[2]
        mode = (os.stat if path.endswith(b"/") else os.lstat)(path).st_mode
        if stat.S_ISLNK(mode):
            mode = os.stat(path).st_mode
            if stat.S_ISDIR(mode):
                self.special += 1
                return
        real = os.path.realpath(path) if judged is None else judged
        if stat.S_ISDIR(mode):
            if name not in SKIPPED_DIRECTORIES:
                root = os.path.normpath(path)
                self._walk(root[1:] if root.startswith(b"//") else root, real)
        elif not stat.S_ISREG(mode):
            raise Failure("not_regular", "not a regular file")
        elif self._is_included(name):
            self._search_file(path, real)

    def _walk(self, root: bytes, real_root: bytes) -> None:
        self._root = root.rstrip(b"/") + b"/"
        self._real_root = real_root.rstrip(b"/") + b"/"
        # A stack of listings and no recursion: trees can be deeper than Python's limit.
        listings = [self._list(self._root)]
        while listings:
            directory, entries = listings[-1]
            for name, kind in entries:
                self._look()
                path = directory + name
                try:
                    if kind == stat.S_IFDIR:
                        if name in SKIPPED_DIRECTORIES:
                            continue
                        listings.append(self._list(path + b"/"))
                        break
                    if self._is_included(name):
                        self._search_entry(path, kind)
                except OSError:
                    self.unreadable += 1
                if self.full:
                    return
            else:
                listings.pop()

    def _list(self, directory: bytes) -> tuple[bytes, Iterator[tuple[bytes, int]]]:
        """A directory, which ends with a slash, and what is in there, with its kind."""
        if not self._is_judged:
            with os.scandir(directory) as entries:
                return directory, iter(sorted((entry.name, kind_of(entry)) for entry in entries))
        here = files.open_here(self._hold(self._real(directory)), b".", _LIST)
        try:
            with os.scandir(here) as found:  # names are text where a descriptor is listed
                return directory, iter(
                    sorted((os.fsencode(entry.name), kind_of(entry)) for entry in found)
                )
        finally:
            os.close(here)

    def _real(self, path: bytes) -> bytes:
        """Where something below the root is."""
        return self._real_root + path[len(self._root) :]

    def _hold(self, directory: bytes) -> int:
        """A directory of a judged search, by its resolved path."""
        directory = directory.rstrip(b"/")
        if self._held is None or self._held[0] != directory:
            parent, _, name = directory.rpartition(b"/")
            if self._held is not None and self._held[0] == parent:
                below = files.open_here(self._held[1], name)
            else:
                below = files.open_directory(directory)
            self.close()
            self._held = directory, below
        return self._held[1]

    def _look(self) -> None:
        if self._cancelled():
            raise Failure("cancelled", "cancelled")

    def _is_included(self, name: bytes) -> bool:
        return self._glob is None or self._glob.matches(name)

    def _search_entry(self, path: bytes, kind: int) -> None:
        if kind == stat.S_IFREG:
            self._search_file(path, self._real(path))
        elif kind != stat.S_IFLNK:
            self.special += 1
        else:
            try:
                target = os.path.realpath(self._real(path), strict=True)
            except OSError:
                return  # it points at nothing, or at itself
            mode = os.stat(target).st_mode
            if stat.S_ISREG(mode) and target.startswith(self._real_root):
                self._search_file(path, target)
            elif not stat.S_ISDIR(mode):
                self.special += 1

    def _search_file(self, path: bytes, target: bytes) -> None:
        """Search a regular file, which is reported as `path`."""
        if self._hides is not None and self._hides(target):
            self.hidden += 1
            return
        content = self._read(target)
        if content is None:
            return
        self.files += 1
        nul = content.find(b"\0")
        if nul >= 0:
            self.binary += 1
            content = content[: content.rfind(b"\n", 0, nul) + 1]
        for number, line in self._matcher.lines(content, self._look):
            self._add(b"%b:%d: %b\n" % (path, number, line))
            if self.full:
                return

    def _read(self, target: bytes) -> bytes | None:
        if self._is_judged:
            directory, _, name = target.rpartition(b"/")
            descriptor = files.open_here(self._hold(directory), name, _OPEN)
        else:
            descriptor = os.open(target, _OPEN)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                self.special += 1  # it became something else since it was listed
                return None
            content = files.read_bounded(descriptor, status.st_size, self._max_file_bytes)
        finally:
            os.close(descriptor)
        if content is None:
            self.large += 1
        return content

    def _add(self, row: bytes) -> None:
        room = MAX_ROWS_BYTES - self._rows_bytes
        self.rows.append(row[:room])
        self._rows_bytes += len(row)
        self.matches += 1
        self.full = self.matches >= self._max_matches or len(row) >= room


class _Matcher:
    """A pattern, and how to find the lines that match it."""

    def __init__(self, pattern: str, ignore_case: bool):
        import re2  # here, because an idle helper must stay small

        for_text = _for_text_of_lines(pattern)
        flags = "(?i)" if ignore_case else ""
        self._line: Any = None
        self._text: Any = None
        try:
            # As it was given first: what is wrong is then said in its own words.
            self._line = re2.compile(flags + pattern, _options(re2))
            if not all(name.isascii() for name in self._line.groupindex):
                raise Failure("bad_pattern", "error parsing regexp: invalid named capture")
            if for_text is not None:
                self._text = re2.compile(f"(?m){flags}{for_text}", _options(re2, in_lines=True))
        except re2.error as error:
            raise _bad_pattern(error) from error
        finally:
            re2.purge()  # it would keep compiled patterns, and the memory they grow into

    def lines(self, content: bytes, look: Callable[[], None]) -> Iterator[tuple[int, bytes]]:
        """The lines that match, with their numbers; without line ends."""
        if b"\r" in content:
            content = content.replace(b"\r\n", b"\n")
            if content.endswith(b"\r"):  # a last line without `\n` loses it, too
                content = content[:-1] + b"\n"
        text = content
        if not content.isascii():
            text = _with_replacements(content)
        find = self._one_by_one if self._text is None else self._through
        lines: list[bytes] = []
        for number, start, end in find(text, look):
            if text is content:
                yield number, content[start:end]
            else:
                lines = lines or content.split(b"\n")
                yield number, lines[number - 1]

    def _through(self, text: bytes, look: Callable[[], None]) -> Iterator[tuple[int, int, int]]:
        """Number, start and end of each matching line, found by searches over many lines."""
        if not text:
            return
        # Stretches start and end where lines do, without the last line end: so `$` is true at
        # the end of a stretch, and there is no empty line behind a last line end.
        last = len(text) - text.endswith(b"\n")
        number = 1
        counted = at = 0
        while at <= last:
            stop = text.find(b"\n", at + _STRETCH_BYTES, last)
            if stop < 0:
                stop = last
            match = self._text.search(text, at, stop)
            if match is None:
                look()
                at = stop + 1
                continue
            hit = match.start()
            start = max(text.rfind(b"\n", at, hit) + 1, at)
            end = text.find(b"\n", hit, last)
            if end < 0:
                end = last
            number += text.count(b"\n", counted, start)
            counted = start
            yield number, start, end
            at = end + 1

    def _one_by_one(self, text: bytes, look: Callable[[], None]) -> Iterator[tuple[int, int, int]]:
        """The same, slowly, for patterns that can't be made ready for a text of many lines."""
        start = 0
        lines = text.split(b"\n")
        if not lines[-1]:
            lines.pop()
        for number, line in enumerate(lines, start=1):
            if number % _LINES_BETWEEN_LOOKS == 0:
                look()
            if self._line.search(line) is not None:
                yield number, start, start + len(line)
            start += len(line) + 1


def _bad_pattern(error: Exception) -> Failure:
    (message,) = error.args
    text = message.decode(errors="replace") if isinstance(message, bytes) else message
    return Failure("bad_pattern", f"error parsing regexp: {text}")


def _options(re2: Any, *, in_lines: bool = False) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_PROGRAM_BYTES
    options.never_capture = in_lines
    options.never_nl = in_lines
    return options


def _for_text_of_lines(pattern: str) -> str | None:
    r"""A pattern for lines as it must be for a text of many, under `(?m)`.

    `\A` and `\z` become `^` and `$`. None where `(?m)` may be switched off inside: telling
    that for sure would take a parser.

    Raises:
        Failure: It holds `\C`, which RE2 has and Go has not: it matches parts of characters.
    """
    groups = pattern.split("(?")[1:]
    flags = [group[: len(group) - len(group.lstrip("imsU-"))] for group in groups]
    parts = []
    at = 0
    while (escape := pattern.find("\\", at)) >= 0:
        end = escape + 2
        escaped = pattern[escape:end]
        if escaped == "\\C":
            raise Failure("bad_pattern", "error parsing regexp: invalid escape sequence: \\C")
        if escaped == "\\Q":  # a literal, to the next \E
            end = pattern.find("\\E", end) % (len(pattern) + 1)
            escaped = pattern[escape:end]
        parts += [pattern[at:escape], {"\\A": "^", "\\z": "$"}.get(escaped, escaped)]
        at = end
    return None if "-" in "".join(flags) else "".join(parts) + pattern[at:]


def _with_replacements(content: bytes) -> bytes:
    """The same with U+FFFD for each byte that is not part of valid UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return content.decode(errors=_EACH_BYTE).encode()
    return content


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\N{REPLACEMENT CHARACTER}" * (error.end - error.start), error.end


_EACH_BYTE = "runner.replace_each_byte"  # Python's own "replace" makes one of several bytes
codecs.register_error(_EACH_BYTE, _replace_each_byte)


def kind_of(entry: "os.DirEntry[Any]") -> int:
    """What an entry is, as in the mode of its status; 0 for what is none of these."""
    if entry.is_file(follow_symlinks=False):
        return stat.S_IFREG
    if entry.is_dir(follow_symlinks=False):
        return stat.S_IFDIR
    return stat.S_IFLNK if entry.is_symlink() else 0
