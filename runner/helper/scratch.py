"""What the helper keeps in files for its calls: long commands, and outputs too long for a result.

It is a directory of the container that calls can read, and remove, as any other.
"""

import os
import time

SCRATCH = "/tmp/.runner"  # noqa: S108  the container's own
"""Where scripts too long for an argument and outputs too long for a result are kept."""
SCRATCH_BYTES = 48 * 1024**2
"""How much is kept of outputs; the oldest make room. It is memory, and /tmp is the calls' too."""


class Spill:
    """Keeps an output that outgrows its result, whole, in a file of the container.

    The first bytes are held back until it is clear that there will be more than the result
    takes; most calls never make a file.
    """

    def __init__(self, call: int, after: int, limit: int):
        self.path: str | None = None
        self.written = 0
        self._call = call
        self._after = after
        self._limit = limit
        self._held: bytearray | None = bytearray()
        self._file: int | None = None

    def add(self, data: bytes) -> None:
        """Take the next piece of output."""
        if self._held is not None:
            self._held += data
            if len(self._held) <= self._after:
                return
            data = bytes(self._held)
            self._held = None
            self._open()
        if self._file is not None:
            self._write(data[: self._limit - self.written])

    def _open(self) -> None:
        if self._limit == 0:
            return
        if not KEPT.reserve(self._limit):
            return
        try:
            self._file, self.path = _scratch_file(self._call, ".out")
        except OSError:
            KEPT.release(self._limit)  # no room or no /tmp: the result says that nothing was kept

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        try:
            while data:
                count = os.write(self._file, data)
                self.written += count
                data = data[count:]
        except OSError:
            self.close()  # the disk is full: `written` says how much there is
            return
        if self.written >= self._limit:
            self.close()

    def close(self) -> None:
        """Stop keeping; what is kept stays until newer ones need its room."""
        self._held = None
        if self._file is not None:
            os.close(self._file)
            self._file = None
            assert self.path is not None
            KEPT.release(self._limit)
            KEPT.add(self.path, self.written)


class _Kept:
    """The outputs that are kept, oldest first."""

    def __init__(self) -> None:
        self._files: list[tuple[str, int]] = []
        self._reserved = 0
        """For outputs that are still coming."""

    def reserve(self, wanted: int) -> bool:
        """Make room for an output, of the oldest ones; whether there is any."""
        if self._reserved + wanted > SCRATCH_BYTES:
            return False
        self._reserved += wanted
        while self._reserved + sum(size for _, size in self._files) > SCRATCH_BYTES:
            remove(self._files.pop(0)[0])
        return True

    def release(self, wanted: int) -> None:
        """Give back what was reserved."""
        self._reserved -= wanted

    def add(self, path: str, size: int) -> None:
        """Note one that is complete."""
        self._files.append((path, size))


KEPT = _Kept()


def _scratch_file(call: int, suffix: str) -> tuple[int, str]:
    """Make an empty file for a call: its descriptor and its path.

    Calls are counted anew by each process that uses the session, so the name may be taken.
    """
    if not os.path.isdir(SCRATCH):
        os.mkdir(SCRATCH, 0o700)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    path = f"{SCRATCH}/{call}{suffix}"
    try:
        return os.open(path, flags, 0o600), path
    except FileExistsError:
        path = f"{SCRATCH}/{call}-{time.monotonic_ns():x}{suffix}"
        return os.open(path, flags, 0o600), path


def script(call: int, content: bytes) -> str:
    """Keep a command; the path of the file."""
    descriptor, path = _scratch_file(call, ".sh")
    try:
        while content:
            content = content[os.write(descriptor, content) :]
    except OSError:
        remove(path)
        raise
    finally:
        os.close(descriptor)
    return path


def remove(path: str) -> None:
    """Remove a file, if it is still there."""
    try:
        os.unlink(path)
    except OSError:
        return  # the call itself may have removed it, or its directory
