"""A program's standard streams, as the helper holds them: written and read without waiting.

What passes through them, and when, is the job's matter.
"""

import fcntl
import os
import struct
import termios

from runner.helper import wire

PIPE_BYTES = 1024**2
"""What the output pipe holds: the most an unprivileged process may ask for by default."""


class Output:
    """One of a program's outputs."""

    __slots__ = ("descriptor", "kind", "sent_bytes", "to_drain")

    def __init__(self, descriptor: int, kind: int):
        self.descriptor: int | None = descriptor
        """Where to read; None once it is closed."""
        self.kind = kind
        """Of the frames that carry it."""
        self.sent_bytes = 0
        self.to_drain: int | None = None
        """How much is still to be read, once everything is said that will be."""

    def pending(self) -> int:
        """Bytes that wait in the pipe."""
        if self.descriptor is None:
            return 0
        answer = fcntl.ioctl(self.descriptor, termios.FIONREAD, b"\0\0\0\0")
        return int(struct.unpack("=i", answer)[0])

    def read(self, most: int) -> bytes:
        """What there is, at most so much; nothing where it has ended or there is nothing now.

        The end closes it.
        """
        if self.descriptor is None:
            return b""
        try:
            data = os.read(self.descriptor, most)
        except BlockingIOError:
            return b""
        if not data:
            self.close()
        return data

    def close(self) -> None:
        """Give up the descriptor."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class Input:
    """What a program is still to read, on its way into its pipe."""

    def __init__(self, descriptor: int, content: bytes):
        self.descriptor: int | None = descriptor
        """Where to write; None once it is closed."""
        self.taken_bytes = 0
        """Taken since that was last told."""
        self._waiting = bytearray(content)
        self._ends = False

    @property
    def waits(self) -> bool:
        """There is more than the pipe took."""
        return self.descriptor is not None and bool(self._waiting)

    def add(self, data: bytes, *, end: bool) -> None:
        """Take more; `end`: and then no more.

        Raises:
            ProtocolError: The host sent more than it may.
        """
        if len(self._waiting) + len(data) > wire.INPUT_WINDOW_BYTES:
            raise wire.ProtocolError("more input than the program has taken room for")
        self._waiting += data
        self._ends = self._ends or end

    def write(self) -> None:
        """Give the program as much as it takes now."""
        while self._waiting and self.descriptor is not None:
            try:
                count = os.write(self.descriptor, self._waiting[:PIPE_BYTES])
            except BlockingIOError:
                return
            except BrokenPipeError:
                self.close()  # it reads no more, as programs may
                break
            del self._waiting[:count]
            self.taken_bytes += count
        if self.descriptor is None:
            # What nobody reads counts as taken, or its writer would wait for ever.
            self.taken_bytes += len(self._waiting)
            self._waiting.clear()
        elif self._ends:
            self.close()

    def close(self) -> None:
        """Give up the descriptor: the program reads the end."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def to_read(content: bytes | None) -> int:
    """A descriptor to read the content from; None reads as empty."""
    if content is None:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    descriptor = os.memfd_create("stdin", os.MFD_CLOEXEC)
    while content:
        content = content[os.write(descriptor, content) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def output_pipe(opened: list[int]) -> tuple[int, int]:
    """A wide pipe, noted among what is open: where to read without waiting, and where to write."""
    source, sink = os.pipe2(os.O_CLOEXEC)
    opened += (source, sink)
    os.set_blocking(source, False)
    _widen(sink)
    return source, sink


def _widen(pipe: int) -> None:
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        return  # the user's share of pipe memory is used up; the ordinary 64 KiB will do
