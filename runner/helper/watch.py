"""Which protected files were created, changed or removed since somebody last looked.

Owns what a look is compared with: the inode and the ctime of every directory, and of every
protected file. A look asks the kernel for each directory's again, and reads only those that
are not as they were; so where nothing happened it costs a `stat` for each directory. No file
is opened and no link is followed: a link counts as the file that it is. It stands in for no
permission, since what it reports has happened.

A ctime can't be set by a program, so a file that has another is another, or was written. What
this sees and what it can't:

- A file that is replaced by a rename, written through a hard link, or given another mode has
  changed. What a protected link leads to is not looked at.
- What was made and removed between two looks was not seen. Nor is a second change told from a
  first in the same tick of the kernel's clock, a few milliseconds, once the first was reported.
- It says what happened since the last look, not who did it. Of calls at the same time, the
  one that ends first reports; a process in the background, or a person on the host, is
  reported with the next call. What happened while no helper ran is nobody's news, nor is what
  a call did that took its container down: the next container's baseline has it.
- `git clone` and `git init` make `.git/config`, and may make hooks: reported, for it is true.

All of it is bounded: in time for each look, in directories and files for all. Directories are
looked at breadth first, and a look that ends early has the next one go on where it stopped,
after the topmost ones. As long as anything is left out, or can't be read, a report says that it
is not complete.
"""

import itertools
import json
import os
import re
import stat
import threading
import time
from typing import Any, NamedTuple

from runner.helper import wire
from runner.helper.files import Failure

LOOK_S = 0.05
"""How long a look may take, for which all else of the session waits."""
BASELINE_S = 0.2
"""How long the first may take, which reads everything."""
AT_LEAST = 64
"""Directories that a look sees however long it takes: a small workspace is always seen whole,
although the machine may be too busy to let this process run for as long as a look may take."""
KNOWN = 20_000
"""Directories and protected files together that are kept in mind, some 300 bytes each."""
TOPMOST = 256
"""Directories that every look starts with, where the last one got through them."""
ENTRIES_AT_ONCE = 1_000
"""What is read of a directory before others have their turn."""
UNFINISHED = 16
"""Directories that may be read in turns: each is a descriptor."""
SETTLED_NS = 50_000_000
"""A directory that changed within this before it was read may change again and look the same:
the kernel's clock is as coarse as 10 ms. It is read once more by the next look."""
PROGRAM_BYTES = 8 * 1024**2
"""What RE2 may use for the patterns; its own default."""

_MERGED = {("created", "changed"): "created", ("removed", "created"): "changed"}
"""What two things that happened to a file come to; of others the second counts."""
_ODD = re.compile(r":|[. ](?:/|\Z)")
"""What some file systems drop from a name."""


class Report(NamedTuple):
    """What happened since the last report."""

    touched: list[list[str]]
    """Pairs of a path and what became of it, as `wire.Kind.RAN` carries them: the first ones."""
    total: int
    """How many there are altogether."""
    complete: bool | None
    """Whether everything was looked at; None where nobody asked."""


UNSEEN = Report([], 0, complete=False)
"""Of a look that could not be taken."""
UNASKED = Report([], 0, complete=None)


class _Directory:
    """What is known of a directory."""

    __slots__ = ("ctime", "files", "gone", "inode", "left_out", "parent", "since")

    def __init__(self, parent: "_Directory | None", since: int):
        self.parent = parent
        self.inode = self.ctime = 0
        """As they were when it was read; 0: it is yet to be."""
        self.files: dict[str, tuple[int, int]] | None = None
        """Inode and ctime of its protected files, by name. None where there never was one."""
        self.since = since
        """A file that is found and was not known is news if its ctime is not before this."""
        self.left_out = False
        """Something in it was one too many."""
        self.gone = False


class _Reading(NamedTuple):
    """A directory that is being read."""

    entries: Any
    """What `os.scandir` returned."""
    folded: str
    """Its path as patterns see it, with a slash."""
    seen: set[str]
    """Names of the protected files in it so far."""
    inode: int
    ctime: int
    """From before it was opened."""


class Watch:
    """The protected files below a directory. Any thread may look."""

    def __init__(
        self,
        root: str,
        patterns: list[str],
        *,
        before: "Watch | None" = None,
        called: str | None = None,
    ):
        """Take the baseline: what is there now is no news.

        Args:
            root: The directory.
            patterns: RE2, each for a whole path as `fold` makes it. What fits and is no
                directory is protected.
            before: A watch that this one replaces: what it has not yet reported, this one will.
            called: What patterns and reports have for `root`; None: the same.

        Raises:
            Failure: `bad_pattern`: one is not RE2, or together they are too large.
        """
        self.root = root
        self.patterns = patterns
        self._called = root if called is None else called
        self._protected = _compiled(patterns)
        self._lock = threading.Lock()
        self._since = time.time_ns()
        self._directories = {root: _Directory(None, self._since)}
        self._files = 0
        """How many protected ones are known."""
        self._readings: dict[str, _Reading] = {}
        self._round: list[tuple[str, _Directory]] = []
        """What the look under way goes through."""
        self._goes_on_at = root
        """The directory at which a look stopped, unless it saw everything."""
        self._topmost = 0
        """How many the look under way starts with, before it goes on there."""
        self._was_rushed = False
        """The last look saw nothing but topmost ones."""
        self._complete = True
        self._touched = {} if before is None else before._hand_over()
        self._go_round(BASELINE_S)

    @property
    def complete(self) -> bool:
        """Whether the last look saw everything."""
        return self._complete

    @property
    def directories(self) -> int:
        """How many are known."""
        return len(self._directories)

    def look(self) -> Report:
        """What happened since the last report; never fails."""
        with self._lock:
            self._go_round(LOOK_S)
            touched, self._touched = self._touched, {}
        return Report(_first(touched), len(touched), self._complete)

    def close(self) -> None:
        """Give up directories that are half read. To look again is allowed."""
        for path in list(self._readings):
            self._stop_reading(path)

    def _hand_over(self) -> dict[str, str]:
        with self._lock:
            self._go_round(LOOK_S)
            self.close()
            return dict(self._touched)  # this one may be asked until the other is in its place

    def _go_round(self, limit_s: float) -> None:
        until = time.monotonic() + limit_s
        self._complete = True
        self._round = self._in_order()
        at = visits = 0
        while at < len(self._round) or self._readings:  # both grow by what is found
            if at < len(self._round):
                self._visit(*self._round[at])
                at += 1
            else:
                path = next(iter(self._readings))
                self._visit(path, self._directories[path])
            visits += 1
            if visits >= AT_LEAST and time.monotonic() >= until:
                break
        left = self._round[at : at + 1]
        self._was_rushed = bool(left) and at <= self._topmost != 0
        if not self._was_rushed:
            self._goes_on_at = left[0][0] if left else self.root
        if left or self._readings:
            self._complete = False
        self._round = []

    def _in_order(self) -> list[tuple[str, _Directory]]:
        """All directories, breadth first: some topmost ones, then from where a look stopped."""
        known = list(self._directories.items())
        at = 0
        if self._goes_on_at != self.root:
            at = next((n for n, (path, _) in enumerate(known) if path == self._goes_on_at), 0)
        # If there is time for no more than these, it is the others' turn.
        top = self._topmost = 0 if self._was_rushed else min(TOPMOST, at)
        return known[:top] + known[at:] + known[top:at]

    # One directory.

    def _visit(self, path: str, directory: _Directory) -> None:
        """See whether it is as it was; read it, or some of it, if not."""
        if directory.gone:
            return
        if directory.parent is not None and directory.parent.gone:
            self._forget(path, directory)
            return
        try:
            if path not in self._readings:
                status = os.lstat(path)
                if status.st_ctime_ns == directory.ctime and status.st_ino == directory.inode:
                    if directory.files or directory.left_out:
                        self._visit_files(path, directory)
                    return
                if not stat.S_ISDIR(status.st_mode):
                    self._forget(path, directory)
                    return
                if _is_closed(path, status):
                    return
                directory.left_out = False
                self._start_reading(path, status)
            self._read(path, directory)
        except (FileNotFoundError, NotADirectoryError):
            self._forget(path, directory)
        except OSError:
            self._stop_reading(path)
            self._complete = False

    def _visit_files(self, path: str, directory: _Directory) -> None:
        """The protected files of a directory in which no name has changed."""
        for name in directory.files or ():
            file = f"{path}/{name}"
            status = _status(file)
            if status is not None:
                self._compare(directory, name, file, status)
        if directory.left_out:
            self._complete = False
            if self._has_room():
                directory.ctime = 0

    def _start_reading(self, path: str, status: os.stat_result) -> None:
        ctime = status.st_ctime_ns
        if ctime > time.time_ns() - SETTLED_NS:
            ctime = 0
        entries = os.scandir(path)
        folded = f"{fold(self._shown(path))}/"
        self._readings[path] = _Reading(entries, folded, set(), status.st_ino, ctime)

    def _read(self, path: str, directory: _Directory) -> None:
        reading = self._readings[path]
        count = 0
        for entry in itertools.islice(reading.entries, ENTRIES_AT_ONCE):
            count += 1
            name = entry.name
            if entry.is_dir(follow_symlinks=False):
                self._meet(f"{path}/{name}", directory)
            elif self._protected((reading.folded + fold(name)).encode(errors="replace")):
                status = _status(f"{path}/{name}")
                if status is not None:
                    reading.seen.add(name)
                    self._compare(directory, name, f"{path}/{name}", status)
        if count == ENTRIES_AT_ONCE:
            if len(self._readings) > UNFINISHED:
                self._stop_reading(path)
                self._complete = False
            return
        self._stop_reading(path)
        for name in [name for name in directory.files or () if name not in reading.seen]:
            self._lose(directory, name, f"{path}/{name}")
        directory.inode, directory.ctime = reading.inode, reading.ctime
        # What is left out now will be no news when there is room for it, unless it is newer.
        directory.since = self._since if directory.left_out else 0

    def _stop_reading(self, path: str) -> None:
        reading = self._readings.pop(path, None)
        if reading is not None:
            reading.entries.close()

    def _meet(self, path: str, parent: _Directory) -> None:
        """A directory that was found in its parent."""
        known = self._directories.get(path)
        if known is not None:
            if known.parent is parent:
                return
            self._forget(path, known)
        if not self._has_room():
            parent.left_out = True
            self._complete = False
            return
        directory = self._directories[path] = _Directory(parent, parent.since)
        self._round.append((path, directory))

    def _forget(self, path: str, directory: _Directory) -> None:
        """It is no longer there."""
        self._stop_reading(path)
        for name in list(directory.files or ()):
            self._lose(directory, name, f"{path}/{name}")
        if directory.parent is None:
            directory.inode = directory.ctime = 0
            self._complete = False
            return
        directory.gone = True
        del self._directories[path]

    # One file.

    def _compare(self, directory: _Directory, name: str, path: str, status: os.stat_result) -> None:
        now = status.st_ino, status.st_ctime_ns
        files = directory.files
        if files is None or name not in files:
            if now[1] >= directory.since:
                self._note(path, "created")
            if not self._has_room():
                directory.left_out = True
                self._complete = False
                return
            if files is None:
                files = directory.files = {}
            self._files += 1
        elif files[name] != now:
            self._note(path, "changed")
        files[name] = now

    def _lose(self, directory: _Directory, name: str, path: str) -> None:
        assert directory.files is not None
        del directory.files[name]
        self._files -= 1
        self._note(path, "removed")

    def _shown(self, path: str) -> str:
        return self._called + path[len(self.root) :]

    def _note(self, path: str, change: str) -> None:
        path = self._shown(path)
        before = self._touched.get(path, "")
        self._touched[path] = _MERGED.get((before, change), change)

    def _has_room(self) -> bool:
        return len(self._directories) + self._files < KNOWN


def fold(path: str) -> str:
    """A path, or a name, as file systems compare it that care little about spelling.

    Letter case does not matter on macOS and Windows, nor do characters without a width on
    the one, dots and blanks at the end of a name and what follows a colon on the other.
    """
    if path.isascii():
        folded = path.lower()
    else:
        import unicodedata  # here, because an idle helper must stay small

        folded = unicodedata.normalize("NFC", path).casefold()
        folded = "".join(c for c in folded if unicodedata.category(c) != "Cf")
    if not _ODD.search(folded):
        return folded
    return "/".join(
        name if name in (".", "..") else name.split(":", 1)[0].rstrip(". ") or name
        for name in folded.split("/")
    )


def _compiled(patterns: list[str]) -> Any:
    import re2  # here, because an idle helper must stay small

    options = re2.Options()
    options.max_mem = PROGRAM_BYTES
    options.never_capture = True
    options.log_errors = False
    whole = "|".join(f"(?:{pattern})" for pattern in patterns)
    try:
        return re2.compile(whole.encode(), options).fullmatch
    except re2.error as error:
        raise Failure("bad_pattern", f"protected files: {_words(error)}") from error
    finally:
        re2.purge()  # it would keep compiled patterns, and the memory they grow into


def _words(error: Exception) -> str:
    """What RE2 says is wrong."""
    what = error.args[0] if error.args else error
    return what.decode(errors="replace") if isinstance(what, bytes) else str(what)


def _status(file: str) -> os.stat_result | None:
    """A file's own, or None where it has gone since its directory was looked at."""
    try:
        return os.lstat(file)
    except FileNotFoundError:
        return None


def _is_closed(path: str, status: os.stat_result) -> bool:
    """Whether calls can neither enter a directory nor let themselves in.

    They have the rights of this process. What such a directory holds they can't have touched,
    so a database's files, say, leave a look complete.
    """
    return status.st_uid != os.geteuid() and not os.access(path, os.X_OK)


def _first(touched: dict[str, str]) -> list[list[str]]:
    """As many as a frame has room for, as a frame can carry them."""
    room = wire.MAX_TOUCHED_BYTES
    first: list[list[str]] = []
    for path, change in itertools.islice(touched.items(), wire.MAX_TOUCHED):
        pair = [os.fsencode(path).decode(errors="replace"), change]
        room -= len(json.dumps(pair))
        if room < 0:
            break
        first.append(pair)
    return first
