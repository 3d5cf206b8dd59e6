"""One running program: started under its supervisor, watched, drained, ended as a tree.

A `Job` owns the descriptors of one RUN request. It is driven by the server's loop through
`on_output`, `on_room`, `on_status`, `on_supervisor_gone` and `tick`, and never waits. It makes
frames but does not send them: `Replies` does.

The supervisor (see images/toolbox/supervisor.c) writes records of eight bytes to the status
descriptor: a type, then a value.
"""

import errno
import os
import struct
import time
from collections.abc import Callable
from typing import Any, Protocol

from runner.helper import processes, scratch, watch, wire
from runner.helper.pipes import Input, Output, output_pipe, to_read
from runner.helper.processes import OOM_KILLS, REFUSED_FORKS
from runner.helper.users import NoUser, Switch, Users

SUPERVISOR = "/.runner/bin/supervisor"
ENVIRONMENT = dict(os.environb)
"""The container's own variables, for every call; `os.environ` is slow to copy."""
STATUS_DESCRIPTOR = 3
RECORD = struct.Struct("=Ii")

CHDIR_FAILED = 1
EXEC_FAILED = 2
EXITED = 3
REMAIN = 4

LONG_COMMAND_BYTES = 96 * 1024
"""Linux takes no argument over 128 KiB; a longer command is sourced from a file instead."""
OUTPUT_DELAY_S = 0.003
"""How long a program's output waits in its pipe at first.

Most commands are over by then; their output and their end make one reply, not two, and wake
each side once.
"""

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
        users: Users,
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
        limit_s = fields["deadline_s"]
        self._deadline = float("inf") if limit_s is None else time.monotonic() + limit_s
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
        self._draining = False
        self._spill = scratch.Spill(call, fields["spill_after_bytes"], fields["spill_limit_bytes"])
        self._script: str | None = None
        self.outputs: tuple[Output, ...] = ()
        """Standard output, which is standard error's too unless that follows."""
        self.input: Input | None = None
        """Where input comes in pieces."""
        self.status: int | None = None
        self.pid = 0
        """The supervisor's."""
        try:
            switch = users.switch(fields["user"])
        except NoUser as unknown:
            raise StartFailed(unknown.code, unknown.detail) from unknown
        self._start(fields, request.payload, switch)
        self.due = time.monotonic() + OUTPUT_DELAY_S

    def _start(self, fields: dict[str, Any], stdin: bytes, switch: Switch) -> None:
        argv = self._command(fields, switch)
        environment = ENVIRONMENT | switch.environment
        for name, value in fields["env"].items():
            environment[name.encode()] = value.encode()
        opened: list[int] = []
        feed = errors = None
        try:
            if fields["input"]:
                source, feed = os.pipe2(os.O_CLOEXEC)
                opened += (source, feed)
                os.set_blocking(feed, False)
            else:
                source = to_read(stdin if fields["stdin"] else None)
                opened.append(source)
            output, sink = output_pipe(opened)
            complaints = sink
            if fields["errors"]:
                errors, complaints = output_pipe(opened)
            status, report = os.pipe2(os.O_CLOEXEC)
            opened += (status, report)
            os.set_blocking(status, False)
            self.pid = os.posix_spawn(
                SUPERVISOR,
                [
                    *("supervisor", "call", str(STATUS_DESCRIPTOR)),
                    *(switch.who, fields["cwd"], *argv),
                ],
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, source, 0),
                    (os.POSIX_SPAWN_DUP2, sink, 1),
                    (os.POSIX_SPAWN_DUP2, complaints, 2),
                    (os.POSIX_SPAWN_DUP2, report, STATUS_DESCRIPTOR),
                ],
            )
        except (OSError, ValueError) as error:
            for descriptor in opened:
                os.close(descriptor)
            if self._script is not None:
                scratch.remove(self._script)
            if isinstance(error, OSError):
                raise _start_failed(error.errno) from error
            raise StartFailed("io", str(error)) from error  # a NUL byte in an argument
        for descriptor in {source, sink, complaints, report}:
            os.close(descriptor)
        self.status = status
        self.outputs = (Output(output, wire.Kind.OUTPUT),)
        if errors is not None:
            self.outputs += (Output(errors, wire.Kind.ERRORS),)
        if feed is not None:
            self.input = Input(feed, stdin)

    def _command(self, fields: dict[str, Any], switch: Switch) -> list[str]:
        argv: list[str] | None = fields["argv"]
        if argv is not None:
            if not argv:
                raise StartFailed("not_found", "no program given")
            return argv
        line: str = fields["shell"] or ""
        encoded = line.encode()
        if len(encoded) < LONG_COMMAND_BYTES:
            return ["/bin/sh", "-c", line]
        if not switch.reads_scratch:
            raise _start_failed(errno.E2BIG)
        try:
            self._script = scratch.script(self.call, encoded)
        except OSError as error:
            raise _start_failed(error.errno) from error
        return ["/bin/sh", "-c", f". {self._script}"]

    def descriptors(self) -> tuple[int | None, ...]:
        """All that the loop may watch, in an order that stays."""
        feed = None if self.input is None else self.input.descriptor
        return (self.status, feed, *(output.descriptor for output in self.outputs))

    def mute(self) -> None:
        """Send nothing more: the conversation that asked is over."""
        self._replies = _Nobody()
        self._look = None  # the next call tells
        self.credit = 2**62

    # What the loop tells the job.

    def on_output(self, output: Output | None = None) -> None:
        """There is output to read, or its end; None: look at all."""
        for one in self.outputs if output is None else (output,):
            if self.finished:
                # For the sake of processes in the background, which would die of a closed pipe.
                # No more for now, however much there is: other calls have their turn.
                one.read(wire.OUTPUT_CHUNK_BYTES)
            else:
                self._hand_on(one)
        if not self.finished:
            self._finish_if_done()

    def _hand_on(self, output: Output) -> None:
        while output.descriptor is not None and self.credit > 0 and output.to_drain != 0:
            most = min(wire.OUTPUT_CHUNK_BYTES, self.credit)
            if output.to_drain is not None:
                most = min(most, output.to_drain)
            data = output.read(most)
            if not data:
                return
            self.credit -= len(data)
            output.sent_bytes += len(data)
            if output.to_drain is not None:
                output.to_drain -= len(data)
            if output.kind == wire.Kind.OUTPUT:
                self._spill.add(data)
            self._replies.send(output.kind, self.call, payload=data)
            if output.to_drain is None and len(data) < wire.OUTPUT_CHUNK_BYTES:
                return  # let other calls have their turn; the loop comes back

    def take_input(self, data: bytes, *, end: bool) -> None:
        """More standard input; without effect on a program that was given all of it at once.

        Raises:
            ProtocolError: The host sent more than it may.
        """
        if self.input is not None and not self.finished:
            self.input.add(data, end=end)
            self.on_room()

    def on_room(self) -> None:
        """There is room in the input pipe, or nobody to read it."""
        if self.input is None:
            return
        self.input.write()
        count, self.input.taken_bytes = self.input.taken_bytes, 0
        if count and not self.finished:
            self._replies.send(wire.Kind.TAKEN, self.call, {"bytes": count})

    def signal(self, number: int) -> None:
        """Send a signal to the program and what it runs in the foreground."""
        if self._ended is None and self._wait_status is None:
            self._family.signal(self.pid, number)

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
            if not self._draining:
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
            if not self._draining:
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
        if self._draining:
            return
        # A call that took all processes there are leaves none behind, or none could follow it.
        if self._kill_background or REFUSED_FORKS.count() > self._refused_before:
            self._sweep()
            return
        left = self._family.of(self.pid, self._strangers)
        self._background = len(left)
        restless = any(process.state in "RD" for process in left)
        is_open = any(output.descriptor is not None for output in self.outputs)
        pending = restless or any(output.pending() for output in self.outputs)
        if is_open and pending and now < self._settle_until:
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

    def _begin_drain(self) -> None:
        """Everything is said that will be: read what waits in the pipes, and no more."""
        if not self._draining:
            self._draining = True
            for output in self.outputs:
                output.to_drain = output.pending()
            self.on_output()

    def _finish_if_done(self) -> None:
        if self.finished or not self._draining:
            return
        if any(output.to_drain and output.descriptor is not None for output in self.outputs):
            return
        self.finished = True
        self.due = None
        self._spill.close()
        if self._ended == "exited" and not self._remain and self._family.subreaper:
            # Nobody is left to write; the loop need not be woken for the ends of these.
            self.close()
        if self.input is not None:
            self.input.close()
        if self._script is not None:
            scratch.remove(self._script)
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
                "output_bytes": self.outputs[0].sent_bytes,
                "errors_bytes": sum(output.sent_bytes for output in self.outputs[1:]),
                "spill_path": self._spill.path,
                "spill_bytes": self._spill.written,
                "touched": touched.touched,
                "touched_count": touched.total,
                "touched_complete": touched.complete,
            },
        )

    def _close_status(self) -> None:
        if self.status is not None:
            os.close(self.status)
            self.status = None

    def close(self) -> None:
        """Give up the descriptors; the processes are somebody else's matter."""
        for output in self.outputs:
            output.close()
        if self.input is not None:
            self.input.close()
        self._close_status()
        self._spill.close()


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
