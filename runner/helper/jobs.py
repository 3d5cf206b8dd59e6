"""One running program: started under its supervisor, watched, drained, ended as a tree.

A `Job` owns the descriptors of one RUN request. It is driven by the server's loop through
`on_output`, `on_status`, `on_supervisor_gone` and `tick`, and never waits. It makes frames
but does not send them: `Replies` does.

The supervisor (see images/toolbox/supervisor.c) writes records of eight bytes to the status
descriptor: a type, then a value.
"""

import errno
import fcntl
import os
import struct
import termios
import time
from collections.abc import Callable
from typing import Any, Protocol

from runner.helper import processes, watch, wire
from runner.helper.processes import OOM_KILLS, REFUSED_FORKS

SUPERVISOR = "/.runner/bin/supervisor"
ENVIRONMENT = dict(os.environb)
"""The container's own variables, for every call; `os.environ` is slow to copy."""
STATUS_DESCRIPTOR = 3
RECORD = struct.Struct("=Ii")

CHDIR_FAILED = 1
EXEC_FAILED = 2
EXITED = 3
REMAIN = 4

SCRATCH = "/tmp/.runner"  # noqa: S108  the container's own
"""Where scripts too long for an argument and outputs too long for a result are kept."""
SCRATCH_BYTES = 48 * 1024**2
"""How much is kept of outputs; the oldest make room. It is memory, and /tmp is the calls' too."""
LONG_COMMAND_BYTES = 96 * 1024
"""Linux takes no argument over 128 KiB; a longer command is sourced from a file instead."""
OUTPUT_DELAY_S = 0.003
"""How long a program's output waits in its pipe at first.

Most commands are over by then; their output and their end make one reply, not two, and wake
each side once.
"""
PIPE_BYTES = 1024**2
"""What the output pipe holds: the most an unprivileged process may ask for by default."""

SETTLE_STEP_S = 0.004
SETTLE_S = 0.25
"""How long a call waits, after its shell ended, for descendants that have not yet come to rest.

`echo done &` ends its shell before the echo has run; `sleep 30 &` is asleep a moment later.
Hence: as long as any descendant is running rather than sleeping, but no longer than this.
"""
SWEEP_STEP_S = 0.002
SWEEP_S = 0.5
"""A tree that has grown as fast as it was cut for this long costs everything in the container
its life, except the helper."""


class Replies(Protocol):
    """Where a job's frames go."""

    def send(
        self, kind: int, call: int, fields: dict[str, Any] | None = None, payload: bytes = b""
    ) -> None:
        """Send a frame, or queue it."""
        ...


class _Nobody:
    """Takes the frames that nobody waits for."""

    def send(
        self, kind: int, call: int, fields: dict[str, Any] | None = None, payload: bytes = b""
    ) -> None:
        """Drop it."""


class StartFailed(Exception):
    """The program could not be started: `code` is one of `wire.FAILURES`."""

    def __init__(self, code: str, detail: str):
        super().__init__(detail)
        self.code = code
        self.detail = detail


class Job:
    """A program that runs, from its start until its supervisor is gone."""

    def __init__(
        self,
        call: int,
        request: wire.Message,
        replies: Replies,
        family: processes.Family,
        look: Callable[[], watch.Report],
    ):
        fields = request.fields
        self.call = call
        self.finished = False
        """The final frame is sent; what remains are processes in the background."""
        self.due: float | None = None
        """When `tick` wants to be called next, on the monotonic clock."""
        self.scheduled: float | None = None
        """The time that the loop has noted for it."""
        self.credit = wire.OUTPUT_WINDOW_BYTES
        """Bytes of output that the host still takes."""
        self.reading = False
        """Whether the loop shall say when there is output."""
        self._replies = replies
        self._family = family
        self._look = look if fields["watch"] else None
        """Tells what happened to protected files; None where nobody wants to know."""
        self._strangers = family.strangers()
        self._deadline = time.monotonic() + fields["deadline_s"]
        self._kill_background = fields["background"] == "kill"
        self._refused_before = REFUSED_FORKS.count()
        self._oom_kills_before = OOM_KILLS.count()
        self._ended: str | None = None
        self._wait_status: int | None = None
        self._failure: StartFailed | None = None
        self._remain = False
        self._supervised = True
        self._background = 0
        self._settle_until = 0.0
        self._sweep_until: float | None = None
        self._to_drain: int | None = None
        self._output_bytes = 0
        self._spill = Spill(call, fields["spill_after_bytes"], fields["spill_limit_bytes"])
        self._script: str | None = None
        self.output: int | None = None
        """Descriptor to read output from; None once it is closed."""
        self.status: int | None = None
        self.pid = 0
        """The supervisor's."""
        self._start(fields, request.payload)
        self.due = time.monotonic() + OUTPUT_DELAY_S

    def _start(self, fields: dict[str, Any], stdin: bytes) -> None:
        argv = self._command(fields)
        environment = ENVIRONMENT.copy()
        for name, value in fields["env"].items():
            environment[name.encode()] = value.encode()
        opened: list[int] = []
        try:
            source = _standard_input(stdin if fields["stdin"] else None)
            opened.append(source)
            output, sink = os.pipe2(os.O_CLOEXEC)
            opened += (output, sink)
            status, report = os.pipe2(os.O_CLOEXEC)
            opened += (status, report)
            os.set_blocking(output, False)
            os.set_blocking(status, False)
            _widen(sink)
            self.pid = os.posix_spawn(
                SUPERVISOR,
                ["supervisor", "call", str(STATUS_DESCRIPTOR), fields["cwd"], *argv],
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, source, 0),
                    (os.POSIX_SPAWN_DUP2, sink, 1),
                    (os.POSIX_SPAWN_DUP2, sink, 2),
                    (os.POSIX_SPAWN_DUP2, report, STATUS_DESCRIPTOR),
                ],
            )
        except (OSError, ValueError) as error:
            for descriptor in opened:
                os.close(descriptor)
            if self._script is not None:
                _remove(self._script)
            if isinstance(error, OSError):
                raise _start_failed(error.errno) from error
            raise StartFailed("io", str(error)) from error  # a NUL byte in an argument
        os.close(source)
        os.close(sink)
        os.close(report)
        self.output, self.status = output, status

    def _command(self, fields: dict[str, Any]) -> list[str]:
        argv: list[str] | None = fields["argv"]
        if argv is not None:
            if not argv:
                raise StartFailed("not_found", "no program given")
            return argv
        line: str = fields["shell"] or ""
        encoded = line.encode()
        if len(encoded) < LONG_COMMAND_BYTES:
            return ["/bin/sh", "-c", line]
        try:
            self._script = _script(self.call, encoded)
        except OSError as error:
            raise _start_failed(error.errno) from error
        return ["/bin/sh", "-c", f". {self._script}"]

    def mute(self) -> None:
        """Send nothing more: the conversation that asked is over."""
        self._replies = _Nobody()
        self._look = None  # the next call tells
        self.credit = 2**62

    # What the loop tells the job.

    def on_output(self) -> None:
        """There is output to read, or its end."""
        if self.finished:
            self._discard()
            return
        while self.output is not None and self.credit > 0 and self._to_drain != 0:
            most = min(wire.OUTPUT_CHUNK_BYTES, self.credit)
            if self._to_drain is not None:
                most = min(most, self._to_drain)
            try:
                data = os.read(self.output, most)
            except BlockingIOError:
                break
            if not data:
                self._close_output()
                break
            self.credit -= len(data)
            self._output_bytes += len(data)
            if self._to_drain is not None:
                self._to_drain -= len(data)
            self._spill.add(data)
            self._replies.send(wire.Kind.OUTPUT, self.call, payload=data)
            if self._to_drain is None and len(data) < wire.OUTPUT_CHUNK_BYTES:
                break  # let other calls have their turn; the loop comes back
        self._finish_if_done()

    def on_status(self) -> None:
        """The supervisor reports, or closed its end."""
        if self.status is None:
            return
        try:
            data = os.read(self.status, 64 * RECORD.size)
        except BlockingIOError:
            return
        if not data:
            self._close_status()
            return
        for kind, value in RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]):
            if kind in (CHDIR_FAILED, EXEC_FAILED):
                self._failure = _start_failed(value)
                self._ended = "exited"
                self._begin_drain()
            elif kind == EXITED:
                self._wait_status = value
            elif kind == REMAIN:
                self._remain = bool(value)
                self._shell_ended()

    def on_supervisor_gone(self) -> None:
        """The supervisor was reaped: all of its tree is gone, or it was killed from inside."""
        self.on_status()
        self._close_status()
        self._supervised = False
        if self._ended is None:
            self._ended = "killed"  # by its children, who hang off this process now
        if self._ended != "exited":
            if self._to_drain is None:
                self._sweep()
        elif self._family.subreaper:
            self._background = 0
            self._begin_drain()

    def cancel(self, why: str = "cancelled") -> None:
        """End the call's whole tree."""
        if self._ended is None:
            self._ended = why
            self._sweep()

    def tick(self) -> None:
        """A time that `due` named has come."""
        now = time.monotonic()
        self.due = None
        if self.finished:
            return
        if self._ended == "exited":
            self._settle(now)
        elif self._ended is not None:
            if self._to_drain is None:
                self._sweep()
        elif now >= self._deadline:
            self.cancel("deadline")
        else:
            self.due = self._deadline
            if not self.reading:
                self.reading = True
                self.on_output()

    # What follows from it.

    def _shell_ended(self) -> None:
        if self._ended is not None:
            return
        self._ended = "exited"
        # A supervisor that adopts no orphans can't know of any.
        if self._remain or not self._family.subreaper:
            self.reading = True
            self.on_output()
            now = time.monotonic()
            self._settle_until = now + SETTLE_S
            self._settle(now)
        else:
            self._begin_drain()

    def _settle(self, now: float) -> None:
        """Wait until what the shell left behind has come to rest, then finish."""
        if self._to_drain is not None:
            return
        # A call that took all processes there are leaves none behind, or none could follow it.
        if self._kill_background or REFUSED_FORKS.count() > self._refused_before:
            self._sweep()
            return
        left = self._family.of(self.pid, self._strangers)
        self._background = len(left)
        restless = any(process.state in "RD" for process in left)
        if self.output is not None and (restless or self._pending()) and now < self._settle_until:
            self.due = now + SETTLE_STEP_S
            return
        self._begin_drain()

    def _sweep(self) -> None:
        """End every process of the tree that can be seen; come back until there is none.

        What forks as fast as it is cut can hide from a look at /proc. The supervisor tells
        for sure: it ends by itself, when nothing is left below it and not before.
        """
        now = time.monotonic()
        if self._sweep_until is None:
            self._sweep_until = now + SWEEP_S
        if now >= self._sweep_until:
            processes.end(-1)
        left = self._family.of(self.pid, self._strangers)
        for process in left:
            processes.end(process.pid)
        if self._supervised:
            processes.resume(self.pid)  # its children may have stopped it
        elif not left:
            self._begin_drain()
            return
        self.due = now + SWEEP_STEP_S

    def _pending(self) -> int:
        """Bytes that wait in the output pipe."""
        if self.output is None:
            return 0
        answer = fcntl.ioctl(self.output, termios.FIONREAD, b"\0\0\0\0")
        return int(struct.unpack("=i", answer)[0])

    def _begin_drain(self) -> None:
        """Everything is said that will be: read what waits in the pipe, and no more."""
        if self._to_drain is None:
            self._to_drain = self._pending()
            self.on_output()

    def _finish_if_done(self) -> None:
        if self.finished or self._to_drain is None:
            return
        if self._to_drain and self.output is not None:
            return
        self.finished = True
        self.due = None
        self._spill.close()
        if self._ended == "exited" and not self._remain and self._family.subreaper:
            # Nobody is left to write; the loop need not be woken for the ends of these.
            self.close()
        if self._script is not None:
            _remove(self._script)
        if self._failure is not None:
            failure = {"code": self._failure.code, "detail": self._failure.detail}
            self._replies.send(wire.Kind.FAILED, self.call, failure)
            return
        exit_code = signal = None
        if self._wait_status is not None and self._ended == "exited":
            if os.WIFSIGNALED(self._wait_status):
                signal = os.WTERMSIG(self._wait_status)
            else:
                exit_code = os.WEXITSTATUS(self._wait_status)
        touched = watch.UNASKED if self._look is None else self._look()
        self._replies.send(
            wire.Kind.RAN,
            self.call,
            {
                "exit_code": exit_code,
                "signal": signal,
                "ended": self._ended,
                "background": self._background,
                "oom_killed": (signal == 9 or exit_code == 137 or self._ended == "killed")
                and OOM_KILLS.count() > self._oom_kills_before,
                "output_bytes": self._output_bytes,
                "spill_path": self._spill.path,
                "spill_bytes": self._spill.written,
                "touched": touched.touched,
                "touched_count": touched.total,
                "touched_complete": touched.complete,
            },
        )

    def _discard(self) -> None:
        """Read on for the sake of processes in the background, which would die of a closed pipe."""
        if self.output is None:
            return
        try:
            data = os.read(self.output, wire.OUTPUT_CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._close_output()
        # No more for now, however much there is: other calls have their turn.

    def _close_output(self) -> None:
        if self.output is not None:
            os.close(self.output)
            self.output = None

    def _close_status(self) -> None:
        if self.status is not None:
            os.close(self.status)
            self.status = None

    def close(self) -> None:
        """Give up the descriptors; the processes are somebody else's matter."""
        self._close_output()
        self._close_status()
        self._spill.close()


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
            _remove(self._files.pop(0)[0])
        return True

    def release(self, wanted: int) -> None:
        """Give back what was reserved."""
        self._reserved -= wanted

    def add(self, path: str, size: int) -> None:
        """Note one that is complete."""
        self._files.append((path, size))


KEPT = _Kept()


def _standard_input(content: bytes | None) -> int:
    """A descriptor to read the content from; None reads as empty."""
    if content is None:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    descriptor = os.memfd_create("stdin", os.MFD_CLOEXEC)
    while content:
        content = content[os.write(descriptor, content) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


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


def _script(call: int, content: bytes) -> str:
    descriptor, path = _scratch_file(call, ".sh")
    try:
        while content:
            content = content[os.write(descriptor, content) :]
    except OSError:
        _remove(path)
        raise
    finally:
        os.close(descriptor)
    return path


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return  # the call itself may have removed it, or its directory


def _widen(pipe: int) -> None:
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        return  # the user's share of pipe memory is used up; the ordinary 64 KiB will do


_START_FAILURES = {
    "E2BIG": ("argument_list_too_long", "argument list too long"),
    "ENOENT": ("not_found", "no such file or directory"),
    "EACCES": ("permission_denied", "permission denied"),
    "EPERM": ("permission_denied", "operation not permitted"),
    "ENOTDIR": ("not_directory", "not a directory"),
    "ENOMEM": ("out_of_memory", "cannot allocate memory"),
    "EAGAIN": ("too_many_processes", "too many processes"),
    "EMFILE": ("busy", "too many open files"),
    "ENOSPC": ("no_space", "no space left on device"),
    "ENAMETOOLONG": ("name_too_long", "file name too long"),
    "ELOOP": ("link_loop", "too many levels of symbolic links"),
}


def _start_failed(number: int | None) -> StartFailed:
    name = errno.errorcode.get(number or 0, "")
    code, detail = _START_FAILURES.get(name, ("io", os.strerror(number or 0).lower()))
    return StartFailed(code, detail)
