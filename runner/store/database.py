"""An SQLite file of our own: who may touch it, how it is shared, what its errors mean.

Owns the file and its permissions, the connection, transactions, and the translation of
SQLite's errors. Knows no table.

Several processes use the file at once. It is in WAL mode, so readers wait for nobody, and
who writes takes the one lock first, with `BEGIN IMMEDIATE`.
"""

import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from runner.errors import StoreError

__all__ = ["Database"]

_WAL_LIMIT_BYTES = 16 * 1024**2
"""What is left of the write-ahead log after it was copied back: outputs can make it large."""


class Database:
    """The file, open. Use it on the thread that opened it."""

    def __init__(self, path: Path, connection: sqlite3.Connection, busy_timeout_s: float):
        self.path = path
        self._connection = connection
        self._busy_timeout_s = busy_timeout_s
        self.execute: Callable[..., sqlite3.Cursor] = connection.execute
        """Run one statement. Use it where errors are translated: in one of the three below."""
        self.writing = _Transaction(path, connection, "BEGIN IMMEDIATE")
        """As a context: one change, kept whole or not at all, and nobody else's meanwhile."""
        self.reading = _Transaction(path, connection, "BEGIN DEFERRED")
        """As a context: several questions to one state of the file."""
        self.translated = _Translated(path)
        """As a context: SQLite's errors become `StoreError`. For a single question."""

    @classmethod
    def open(cls, path: Path, *, busy_timeout_s: float) -> Self:
        """Open the file; make it, and the directories above, where there is none.

        Directories are made with mode 0o700, the file with 0o600; a file that others may
        read is closed to them. What it holds is neither looked at nor changed.

        Raises:
            StoreError: The path is not a regular file of ours in a directory that only we
                can write, or can't be opened.
        """
        _prepare(path)
        with _Translated(path):
            connection = sqlite3.connect(
                # `rw`: if the file has gone since, don't make another with another mode.
                f"{path.as_uri()}?mode=rw",
                uri=True,
                timeout=busy_timeout_s,
                isolation_level=None,
            )
        return cls(path, connection, busy_timeout_s)

    def share(self) -> None:
        """Put the file in the mode in which several processes use it.

        Raises:
            StoreError: It lies on a file system that can't hold such a file.
        """
        with self.translated:
            self._use_wal()
            for pragma in (
                "synchronous = NORMAL",
                "foreign_keys = ON",
                "trusted_schema = OFF",
                f"journal_size_limit = {_WAL_LIMIT_BYTES}",
                f"wal_autocheckpoint = {_WAL_LIMIT_BYTES // 4096}",
            ):
                self.execute(f"PRAGMA {pragma}").close()

    def _use_wal(self) -> None:
        deadline = time.monotonic() + self._busy_timeout_s
        while True:
            try:
                (mode,) = self.execute("PRAGMA journal_mode = WAL").fetchone()
                break
            except sqlite3.OperationalError as error:
                # SQLite does not wait here by itself, lest two wait for each other.
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
        if mode != "wal":
            raise StoreError(
                f"the file system of {self.path} can't hold a database that several processes"
                " use (a network share?): choose a path on a local disk"
            )

    @contextmanager
    def reading_anything(self) -> Iterator[None]:
        """`reading` in which text that is not UTF-8 spoils its value, not the reading."""
        with self.reading:
            self._connection.text_factory = _decode_anything
            try:
                yield
            finally:
                self._connection.text_factory = str

    def close(self) -> None:
        """Close the file."""
        with self.translated:
            self._connection.close()


def _decode_anything(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


# Contexts. Classes, made once: each of the two transactions of a call enters one.


class _Transaction:
    __slots__ = ("_begin", "_connection", "_path")

    def __init__(self, path: Path, connection: sqlite3.Connection, begin: str):
        self._path = path
        self._connection = connection
        self._begin = begin

    def __enter__(self) -> None:
        try:
            self._connection.execute(self._begin)
        except BaseException as error:
            self._undo(error)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._undo(error)
            return
        try:
            self._connection.execute("COMMIT")
        except BaseException as failure:
            self._undo(failure)
            raise

    def _undo(self, error: BaseException) -> None:
        """Leave the transaction, and raise what the error means if it is SQLite's."""
        with _Translated(self._path):
            # Not open where it could not begin, or where SQLite has ended it itself.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise error


class _Translated:
    """The one place where SQLite's errors become ours."""

    __slots__ = ("_path",)

    def __init__(self, path: Path):
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, sqlite3.Error):
            # Python's own, such as the use of a closed connection, have no code.
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            advice = _ADVICE.get(code, "can't be used")
            raise StoreError(f"the store {self._path} {advice} ({error})") from error


_ADVICE: dict[int, str] = {
    sqlite3.SQLITE_PERM: "may not be used: check who owns it",
    sqlite3.SQLITE_BUSY: "is locked by another process: try again, or end what holds it",
    sqlite3.SQLITE_LOCKED: "is locked by another process: try again, or end what holds it",
    sqlite3.SQLITE_READONLY: "can't be written: check its owner and mode, and its directory's",
    sqlite3.SQLITE_IOERR: "can't be read or written: check its disk",
    sqlite3.SQLITE_CORRUPT: "is damaged: move it away, with its -wal and -shm, and look into it",
    sqlite3.SQLITE_FULL: "can't grow, its disk is full: make room",
    sqlite3.SQLITE_CANTOPEN: "can't be opened: check that it and its directory are there and yours",
    sqlite3.SQLITE_NOTADB: "is not a database: choose another path, or move it away",
}


# The file.


def _prepare(path: Path) -> None:
    """Make the file where there is none, and see that it is ours alone.

    An existing file is looked at by name, never opened: closing a second descriptor of it
    would drop the locks that this process holds on it through SQLite. That no name changes
    meanwhile follows from the directory, which only we can write.
    """
    try:
        _make_directories(path.parent)
        _check_directory(path)
        try:
            # Makes a regular file, without a descriptor, and never through a link.
            os.mknod(path, stat.S_IFREG | 0o600)
        except FileExistsError:
            _check_file(path)
        for suffix in ("", "-wal", "-shm"):
            _make_private(Path(f"{path}{suffix}"))
    except OSError as error:
        raise StoreError(
            f"the store {path} can't be opened: {error}; check who owns its directory, or choose"
            " another path"
        ) from error


def _make_directories(directory: Path) -> None:
    missing = []
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for each in reversed(missing):
        # mkdir's own `parents` gives those above the default mode.
        each.mkdir(mode=0o700, exist_ok=True)


def _check_directory(path: Path) -> None:
    found = path.parent.stat()
    if found.st_uid not in (os.geteuid(), 0) and os.geteuid() != 0:
        problem = f"belongs to uid {found.st_uid}, who"
    elif found.st_mode & 0o022:
        problem = f"is open to others (mode {stat.S_IMODE(found.st_mode):o}), who"
    else:
        return
    raise StoreError(
        f"the directory {path.parent} {problem} could replace the store: choose a path in a"
        f" directory of your own, such as {path.parent / 'runner' / path.name} (it is made)"
    )


def _check_file(path: Path) -> None:
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise StoreError(f"{path} is a symbolic link: use the path that it leads to")
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(f"{path} is not a file: choose another path")
    if found.st_uid != os.geteuid() and os.geteuid() != 0:
        raise StoreError(f"{path} belongs to uid {found.st_uid}: choose another path")
    # SQLite would open it all the same, and fail with the first call.
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
        raise StoreError(f"{path} can't be written: check its mode, and how its disk is mounted")


def _make_private(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(0o600)
