"""The helper's loop: one stream to the host, many requests at once.

One thread runs programs and moves frames; requests about files go to a few worker threads,
since a disk can make them wait. The loop itself never blocks but in its selector, and for the
bounded look at protected files that the end of a call waits for: a worker would be slower than
most looks are.
"""

import collections
import heapq
import os
import queue
import selectors
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from runner.helper import files, processes, tunnels, watch, wire
from runner.helper.jobs import SWEEP_STEP_S, Job, StartFailed
from runner.helper.pipes import Output
from runner.helper.processes import OOM_KILLS, REFUSED_FORKS
from runner.helper.requests import REQUESTS
from runner.helper.users import Users

WORKERS = 4
"""Requests about files that run at once; more wait for their turn."""
READ_BYTES = 1024**2
LONGEST_WAIT_S = 86400.0
"""A selector takes no time over 24 days; after this one the loop just looks again."""
OUTSTANDING = 256
"""Requests that may be under way at once; one more is answered with `busy`."""
WAITING_BYTES = 64 * 1024**2
"""Content of files that may wait here, in each direction: a session's memory is small."""
DETAIL_CHARACTERS = 8192
"""Of the reason of a failure; it may quote a pattern of megabytes."""


class Stream:
    """Two descriptors to the host, or one twice. Neither may block."""

    def __init__(self, source: int, sink: int):
        self.source = source
        self.sink = sink
        os.set_blocking(source, False)
        os.set_blocking(sink, False)

    def close(self) -> None:
        """Close both."""
        os.close(self.source)
        if self.sink != self.source:
            os.close(self.sink)


class Server:
    """Answers the host until its time is up.

    `connect` makes a new stream to the host, or returns None where there is none yet and the
    loop shall ask again. A stream that can be connected again (`reconnect`) is a new
    conversation each time; the one that can't is watched for the marker that starts one.
    """

    def __init__(
        self,
        connect: Callable[[], Stream | None],
        *,
        reconnect: bool,
        family: processes.Family,
        users: Users,
        facts: dict[str, Any],
    ):
        self._connect = connect
        self._reconnect = reconnect
        self._facts = facts
        self._family = family
        self._users = users
        self._watch: watch.Watch | None = None
        """Of the protected files. It outlives conversations: what happens between two is told."""
        self._requests = {**REQUESTS, wire.Kind.WATCH: self._start_watch}
        self._selector = selectors.DefaultSelector()
        self._stream: Stream | None = None
        self._decoder: wire.Decoder | None = None
        self._marker = b""
        self._conversation = 0
        self.queued_bytes = 0
        """Bytes that were ever queued for the host."""
        self.sent_bytes = 0
        """Of these, the bytes that have left, or were given up."""
        self._tunnels = tunnels.Tunnels(self._selector, self)
        self._outgoing: collections.deque[memoryview] = collections.deque()
        self._writing = False
        self._jobs: dict[int, Job] = {}
        self._supervisors: dict[int, Job] = {}
        self._timers: list[tuple[float, int, Job]] = []
        self._timer_count = 0
        self._cancelled: dict[int, threading.Event] = {}
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._workers = 0
        self._incoming_bytes = 0
        self._room = threading.Event()
        """Workers may make more to send."""
        self._room.set()
        self._untaken = threading.Semaphore(WORKERS)
        """Results that may wait for the loop: what it has not taken, it has not counted."""
        self._done: collections.deque[
            tuple[threading.Event, wire.Message, int, dict[str, Any], bytes]
        ] = collections.deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._orphans_due: float | None = None
        self._expires: float | None = None
        self._idle_s: float | None = None
        self._used = time.monotonic()

    def serve(self) -> NoReturn:
        """Run until the session's time is up; ends the process, and with it the container."""
        OOM_KILLS.start()
        REFUSED_FORKS.start()
        child_wake, notify = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        # Python's own handler would make it the one signal by which a call can end this process.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(notify, warn_on_full_buffer=False)
        register = self._selector.register
        register(child_wake, selectors.EVENT_READ, lambda: self._on_children(child_wake))
        register(self._wake, selectors.EVENT_READ, self._on_results)
        retry_s = 0.005
        while True:
            if self._stream is None:
                retry_s = 0.005 if self._open_stream() else min(retry_s * 1.5, 0.25)
            for key, _ in self._selector.select(self._patience(retry_s)):
                key.data()
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                due, _, job = heapq.heappop(self._timers)
                if job.due == due:
                    job.scheduled = None
                    self._drive(job, job.tick)
            if self._orphans_due is not None and self._orphans_due <= now:
                self._orphans_due = now + SWEEP_STEP_S if self._family.end_orphans() else None
            if self._stream is not None and self._outgoing and not self._writing:
                self._flush()
            self._tunnels.resume()
            self._end_if_expired(now)

    def _patience(self, retry_s: float) -> float | None:
        waits = []
        now = time.monotonic()
        if self._stream is None:
            waits.append(retry_s)
        if self._timers:
            waits.append(self._timers[0][0] - now)
        if self._orphans_due is not None:
            waits.append(self._orphans_due - now)
        if self._tunnels.due is not None:
            waits.append(self._tunnels.due - now)
        if self._expires is not None:
            waits.append(self._expires - now)
        if self._idle_s is not None and not self._busy():
            waits.append(self._used + self._idle_s - now)
        return max(0.0, min(*waits, LONGEST_WAIT_S)) if waits else None

    def _end_if_expired(self, now: float) -> None:
        idle = self._idle_s is not None and now - self._used > self._idle_s
        if (self._expires is not None and now > self._expires) or (idle and not self._busy()):
            os._exit(0)

    def _busy(self) -> bool:
        return bool(self._cancelled) or any(not job.finished for job in self._jobs.values())

    # The stream.

    def _open_stream(self) -> bool:
        stream = self._connect()
        if stream is None:
            return False
        self._stream = stream
        self._decoder = None
        self._marker = b""
        self._selector.register(stream.source, selectors.EVENT_READ, self._on_incoming)
        return True

    def _on_incoming(self) -> None:
        assert self._stream is not None
        try:
            data = os.read(self._stream.source, READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._lose_stream()
            return
        if self._decoder is None:
            # The first bytes of a stream are its marker, whatever they are.
            data = self._marker + data
            self._marker = data[: wire.MARKER_BYTES]
            if len(self._marker) < wire.MARKER_BYTES:
                return
            self._decoder = wire.Decoder(self._marker, wire.FROM_HOST, resync=not self._reconnect)
            self._conversation = 0
        decoder = self._decoder
        decoder.feed(data)
        if decoder.conversations != self._conversation:
            self._conversation = decoder.conversations
            self._start_over()
        try:
            while (message := decoder.next_message()) is not None:
                self._handle(message)
        except wire.ProtocolError:
            # Only a broken host sends what its own copy of this module would not. Without a
            # common language there is nothing to answer; a new conversation may do better.
            self._lose_stream()

    def _lose_stream(self) -> None:
        stream = self._stream
        if stream is None:
            return
        self._selector.unregister(stream.source)
        if self._writing and stream.sink != stream.source:
            self._selector.unregister(stream.sink)
        self._writing = False
        stream.close()
        self._stream = None
        self._abandon()
        if not self._reconnect:
            os._exit(0)

    def _abandon(self) -> None:
        """Nobody waits for the answers any more: end what runs, drop what was to be sent."""
        self._tunnels.end()
        self._outgoing.clear()
        self.sent_bytes = self.queued_bytes
        self._room.set()
        for event in self._cancelled.values():
            event.set()
        self._cancelled.clear()
        for job in list(self._jobs.values()):
            job.mute()
            self._drive(job, job.cancel)
        self._jobs.clear()

    def _start_over(self) -> None:
        self._abandon()
        self._queue(self._marker)

    def send(
        self, kind: int, call: int, fields: dict[str, Any] | None = None, payload: bytes = b""
    ) -> None:
        """Queue a frame for the host."""
        self._queue(wire.encode_head(kind, call, fields, len(payload)))
        if payload:  # as it is: a copy of each piece would cost as much as reading it
            self._queue(payload)
        if kind in wire.FINAL:
            # The time that a request took does not count as idle.
            self._used = time.monotonic()

    def _queue(self, data: bytes) -> None:
        self._outgoing.append(memoryview(data))
        self.queued_bytes += len(data)
        if self.queued_bytes - self.sent_bytes >= WAITING_BYTES:
            self._room.clear()

    def _flush(self) -> None:
        stream = self._stream
        assert stream is not None
        try:
            while self._outgoing:
                batch = [self._outgoing[i] for i in range(min(64, len(self._outgoing)))]
                count = os.writev(stream.sink, batch)
                self.sent_bytes += count
                if self.queued_bytes - self.sent_bytes < WAITING_BYTES:
                    self._room.set()
                while count:
                    first = self._outgoing[0]
                    if count < len(first):
                        self._outgoing[0] = first[count:]
                        break
                    count -= len(first)
                    self._outgoing.popleft()
        except BlockingIOError:
            self._watch_sink(True)
            return
        except (ConnectionError, BrokenPipeError):
            self._lose_stream()
            return
        self._watch_sink(False)

    def _watch_sink(self, wanted: bool) -> None:
        stream = self._stream
        assert stream is not None
        if wanted == self._writing:
            return
        self._writing = wanted
        if stream.sink == stream.source:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
            action = self._on_both if wanted else self._on_incoming
            self._selector.modify(stream.source, events, action)
        elif wanted:
            self._selector.register(stream.sink, selectors.EVENT_WRITE, self._flush)
        else:
            self._selector.unregister(stream.sink)

    def _on_both(self) -> None:
        self._flush()
        if self._stream is not None:
            self._on_incoming()

    # What the host asks.

    def _handle(self, message: wire.Message) -> None:
        kind, call = message.kind, message.call
        self._used = time.monotonic()
        if kind == wire.Kind.PING:
            self.send(wire.Kind.PONG, call)
        elif kind == wire.Kind.HELLO:
            self._greet(message.fields)
        elif kind == wire.Kind.CREDIT:
            job = self._jobs.get(call)
            if job is not None:
                job.credit += message.fields["bytes"]
                self._drive(job, job.on_output)
        elif kind == wire.Kind.CANCEL:
            self._cancel(call)
        elif kind == wire.Kind.INPUT:
            self._take_input(message)
        elif kind == wire.Kind.SIGNAL:
            job = self._jobs.get(call)
            if job is not None:
                job.signal(message.fields["signal"])
        elif kind in wire.TUNNELLED:
            self._tunnels.take(message)
        elif call in self._jobs or call in self._cancelled:
            raise wire.ProtocolError(f"call {call} is under way already")
        elif (
            len(self._jobs) + len(self._cancelled) >= OUTSTANDING
            or self._incoming_bytes + len(message.payload) > WAITING_BYTES
        ):
            self.send(wire.Kind.FAILED, call, {"code": "busy", "detail": "too many requests"})
        elif kind == wire.Kind.RUN:
            self._run(message)
        elif kind == wire.Kind.LISTEN:
            self._listen(message)
        else:
            self._in_worker(message)

    def _greet(self, fields: dict[str, Any]) -> None:
        now = time.monotonic()
        if fields["expires_s"] is not None:
            self._expires = now + fields["expires_s"]
        self._idle_s = fields["idle_s"]
        self.send(
            wire.Kind.HELLO,
            0,
            {
                "role": "helper",
                "version": wire.PROTOCOL_VERSION,
                "expires_s": None,
                "idle_s": None,
                **self._facts,
            },
        )

    def _cancel(self, call: int) -> None:
        job = self._jobs.get(call)
        if job is not None:
            self._drive(job, job.cancel)
        event = self._cancelled.get(call)
        if event is not None:
            event.set()

    def _listen(self, message: wire.Message) -> None:
        try:
            self._tunnels.listen(message.fields["port"])
        except OSError as error:
            failure = {"code": tunnels.failure_of(error), "detail": os.strerror(error.errno or 0)}
            self.send(wire.Kind.FAILED, message.call, failure)
        else:
            self.send(wire.Kind.LISTENING, message.call)

    def _take_input(self, message: wire.Message) -> None:
        job = self._jobs.get(message.call)
        if job is not None:  # else it has ended, and the host does not know yet
            self._drive(job, lambda: job.take_input(message.payload, end=message.fields["end"]))

    def _run(self, message: wire.Message) -> None:
        try:
            job = Job(message.call, message, self, self._family, self._users, self._look)
        except StartFailed as failure:
            self.send(
                wire.Kind.FAILED,
                message.call,
                {"code": failure.code, "detail": failure.detail},
            )
            return
        self._jobs[message.call] = job
        self._supervisors[job.pid] = job
        self._family.supervisors.add(job.pid)
        if job.status is not None:
            self._selector.register(
                job.status, selectors.EVENT_READ, lambda: self._on_job_status(job)
            )
        self._watch_input(job)
        self._schedule(job)

    def _on_job_output(self, job: Job, output: Output) -> None:
        self._drive(job, lambda: job.on_output(output))

    def _on_job_room(self, job: Job) -> None:
        self._drive(job, job.on_room)

    def _on_job_status(self, job: Job) -> None:
        self._drive(job, job.on_status)

    def _drive(self, job: Job, action: Callable[[], None]) -> None:
        """Let the job act; stop watching the descriptors that it closed or can't use now."""
        before = job.descriptors()
        action()
        for was, now in zip(before, job.descriptors(), strict=True):
            if was is not None and now is None:
                self._unwatch(was)
        self._settle(job)

    def _settle(self, job: Job) -> None:
        if job.finished:
            self._jobs.pop(job.call, None)
        self._watch_outputs(job)
        self._watch_input(job)
        self._schedule(job)

    def _watch_outputs(self, job: Job) -> None:
        """Watch outputs while they may be read: else they would wake the loop again and again."""
        wanted = job.finished or (job.reading and job.credit > 0)
        for output in job.outputs:
            if output.descriptor is None:
                continue
            watched = output.descriptor in self._selector.get_map()
            if wanted and not watched:
                self._selector.register(
                    output.descriptor,
                    selectors.EVENT_READ,
                    partial(self._on_job_output, job, output),
                )
            elif watched and not wanted:
                self._selector.unregister(output.descriptor)

    def _watch_input(self, job: Job) -> None:
        """Watch the input pipe while something waits for room in it."""
        if job.input is None or job.input.descriptor is None:
            return
        watched = job.input.descriptor in self._selector.get_map()
        if job.input.waits and not watched:
            self._selector.register(
                job.input.descriptor, selectors.EVENT_WRITE, lambda: self._on_job_room(job)
            )
        elif watched and not job.input.waits:
            self._selector.unregister(job.input.descriptor)

    def _unwatch(self, descriptor: int) -> None:
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def _schedule(self, job: Job) -> None:
        if job.due is not None and job.due != job.scheduled:
            job.scheduled = job.due
            self._timer_count += 1
            heapq.heappush(self._timers, (job.due, self._timer_count, job))

    # Children.

    def _on_children(self, wake: int) -> None:
        while True:
            try:
                if not os.read(wake, 4096):
                    break
            except BlockingIOError:
                break
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            job = self._supervisors.pop(pid, None)
            if job is None:
                continue
            self._family.supervisors.discard(pid)
            self._drive(job, job.on_supervisor_gone)
            if os.WIFSIGNALED(status) and self._family.subreaper:
                # Killed from inside: what it held has come to this process.
                self._orphans_due = time.monotonic()

    # Requests about files.

    def _in_worker(self, message: wire.Message) -> None:
        if self._workers < WORKERS and self._workers <= len(self._cancelled):
            try:
                threading.Thread(target=self._worker, daemon=True).start()
                self._workers += 1
            except RuntimeError:  # calls have taken all processes or memory that there are
                if not self._workers:
                    failure = {"code": "too_many_processes", "detail": "too many processes"}
                    self.send(wire.Kind.FAILED, message.call, failure)
                    return
        event = threading.Event()
        self._cancelled[message.call] = event
        self._incoming_bytes += len(message.payload)
        self._work.put(lambda: self._work_on(message, event))

    def _worker(self) -> None:
        while True:
            work = self._work.get()
            self._untaken.acquire()
            self._room.wait()
            work()
            del work  # and with it the content that came

    def _work_on(self, message: wire.Message, event: threading.Event) -> None:
        payload = b""
        try:
            if event.is_set():
                raise files.Failure("cancelled", "cancelled")
            kind, fields, payload = self._requests[message.kind](message, event)
        except files.Failure as failure:
            kind = wire.Kind.FAILED
            fields = {"code": failure.code, "detail": _sendable(failure.detail)}
        except MemoryError:
            kind = wire.Kind.FAILED
            fields = {"code": "out_of_memory", "detail": "cannot allocate memory"}
        except Exception as error:  # the outermost edge of a request: it must be answered
            kind = wire.Kind.FAILED
            detail = f"{type(error).__name__}: {error}"
            fields = {"code": "internal", "detail": _sendable(detail)}
        self._done.append((event, message, kind, fields, payload))
        os.eventfd_write(self._wake, 1)

    def _on_results(self) -> None:
        os.eventfd_read(self._wake)
        while self._done:
            event, request, kind, fields, payload = self._done.popleft()
            self._incoming_bytes -= len(request.payload)
            if self._cancelled.get(request.call) is event:  # else of a conversation that is over
                del self._cancelled[request.call]
                self.send(kind, request.call, fields, payload)
            self._untaken.release()

    # Protected files.

    def _start_watch(
        self, message: wire.Message, event: threading.Event
    ) -> tuple[int, dict[str, Any], bytes]:
        root, patterns = message.fields["root"], message.fields["patterns"]
        now = self._watch
        if now is None or (now.root, now.patterns) != (root, patterns):
            now = self._watch = watch.Watch(root, patterns, before=now)
        fields = {"directories": now.directories, "complete": now.complete}
        return wire.Kind.WATCHED, fields, b""

    def _look(self) -> watch.Report:
        if self._watch is None:
            return watch.UNSEEN
        try:
            return self._watch.look()
        except Exception:  # an edge: a call that is over must be answered, whatever a look met
            return watch.UNSEEN


def _sendable(detail: str) -> str:
    """A reason as a frame can carry it: of bounded length, and UTF-8 whatever it quotes."""
    return detail[:DETAIL_CHARACTERS].encode(errors="backslashreplace").decode()
