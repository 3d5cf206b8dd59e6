"""A lock on a file, which the kernel releases when its holder dies. It knows not what for."""

import fcntl
import os
from pathlib import Path


class Lock:
    """An exclusive lock on a file, held until `release` or the end of the process."""

    def __init__(self, path: Path):
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Take it; False where somebody else has it."""
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            if self._is_still(descriptor):
                self._descriptor = descriptor
                return True
            os.close(descriptor)  # its holder removed the file while we opened it: once more

    def _is_still(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._path))
        except FileNotFoundError:
            return False

    def release(self, *, remove: bool = False) -> None:
        """Let go; with `remove`, of the file too, for a session that is over."""
        if self._descriptor is not None:
            if remove:
                self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def lock_is_held(path: Path) -> bool:
    """Whether somebody has the lock, found out without taking it even for a moment.

    For people to look at: by the kernel's list of locks, which does not name the file system
    as `stat` does everywhere, and leaves out holders in containers that can't be seen from
    here.
    """
    try:
        inode = str(path.stat().st_ino)
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return False
    # `1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF`
    fields = (line.split() for line in locks.splitlines())
    return any(
        len(row) > 5 and row[1] == "FLOCK" and row[5].rpartition(":")[2] == inode for row in fields
    )
