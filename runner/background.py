"""Programs that go on between calls: those that were started, and a shell that keeps its state.

They belong to one holder of a session, and end with it or with the container. What they write
is kept here, with a bound: nobody has to take it for them to go on. What a call may start is
decided above, how a program is started and spoken to is `sandbox`'s matter.
"""

import asyncio
import codecs
import contextlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from runner.answers import Collector, RequestFailed, RunResult
from runner.conversation import OnOutput
from runner.errors import SandboxLost
from runner.sandbox import WORKSPACE, Program, Sandbox

MAX_PROGRAMS = 16
"""Programs that run at once."""
MAX_ENDED = 16
"""Programs that have ended and still have something to tell; of more the oldest are forgotten."""
KEPT_BYTES = 1024**2
"""Of a program's output between two polls; the oldest makes room."""
FIRST_LOOK_S = 0.05
"""How long a start waits for a program that ends at once, as one does that can't be started."""
_MARK_START, _MARK_MIDDLE = b"\x1e", b"\x1f"
_LONGEST_STATUS = 3


class NoProgram(Exception):
    """There is no such program, or it can't do what was asked; the message says which."""


class Backlog:
    """Output that nobody has taken yet, at most `limit_bytes` of it: the newest."""

    def __init__(self, limit_bytes: int):
        self._limit = limit_bytes
        # In one piece: a program that writes byte by byte must not cost more than its bytes.
        self._kept = bytearray()
        self._dropped = 0
        self._held = b""
        """The beginning of a character whose rest has not come yet."""

    def __bool__(self) -> bool:
        return bool(self._kept or self._dropped)

    def add(self, data: bytes) -> None:
        """Take the next piece."""
        self._kept += self._held + data
        self._held = b""
        excess = max(0, len(self._kept) - self._limit)
        del self._kept[:excess]
        self._dropped += excess

    def take(self, *, more: bool = False) -> tuple[bytes, int]:
        """What came since the last time, and how many bytes before it were dropped.

        Args:
            more: There may be more; a character that is cut at the end waits for its rest.
        """
        output, dropped = bytes(self._kept), self._dropped
        self._kept.clear()
        self._dropped = 0
        output, self._held = self._held + output, b""
        if more:
            whole = len(output) - unfinished(output)
            output, self._held = output[:whole], output[whole:]
        return output, dropped


def unfinished(data: bytes) -> int:
    """How many bytes at the end begin a character of UTF-8 whose rest is missing."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-4:])
    pending, _ = decoder.getstate()
    return len(pending)


@dataclass(frozen=True, slots=True)
class State:
    """How a program is."""

    id: str
    command: str
    running: bool
    result: RunResult | None = None
    """How it ended, without its output."""
    failure: RequestFailed | None = None
    """Why it could not be started."""
    lost: SandboxLost | None = None
    """What became of its container, which it ended with."""
    age_s: float = 0.0
    """Since its start."""


@dataclass(frozen=True, slots=True)
class Polled:
    """What a program wrote since the last poll, and how it is."""

    output: bytes
    dropped_bytes: int
    """Of output before this that nobody took in time."""
    state: State


class _Entry:
    """A program and what is kept of it."""

    def __init__(self, id: str, command: str, kept_bytes: int):
        self.id = id
        self.command = command
        self.backlog = Backlog(kept_bytes)
        self.program: Program | None = None
        self.result: RunResult | None = None
        self.failure: RequestFailed | None = None
        self.lost: SandboxLost | None = None
        self.ended = asyncio.Event()
        self.news = asyncio.Event()
        """There is output, or the end."""
        self._started = time.monotonic()

    async def follow(self, program: Program) -> None:
        """Note how it ends."""
        try:
            self.result = await program.wait()
        except RequestFailed as failure:
            self.failure = failure
        except SandboxLost as lost:
            self.lost = lost
        finally:
            self.ended.set()
            self.news.set()

    def state(self) -> State:
        """How it is now."""
        return State(
            id=self.id,
            command=self.command,
            running=not self.ended.is_set(),
            result=self.result,
            failure=self.failure,
            lost=self.lost,
            age_s=time.monotonic() - self._started,
        )


class _Tap(Collector):
    """Puts the output of a program where it is polled from; it never waits for anybody."""

    def __init__(self, entry: _Entry):
        super().__init__(0)
        self._entry = entry

    def add(self, data: bytes) -> None:
        """Take the next piece."""
        super().add(data)
        self._entry.backlog.add(data)
        self._entry.news.set()


class Programs:
    """The programs of one holder of a session, and its shell."""

    def __init__(self, *, kept_bytes: int = KEPT_BYTES):
        self.shell = Shell()
        self._kept_bytes = kept_bytes
        self._entries: dict[str, _Entry] = {}
        self._count = 0
        self._followers: set[asyncio.Task[None]] = set()

    async def start(
        self,
        sandbox: Sandbox,
        command: str,
        *,
        cwd: str = WORKSPACE,
        env: Mapping[str, str] | None = None,
        watch: tuple[str, ...] = (),
    ) -> State:
        """Start a line of `/bin/sh -c` and leave it running.

        Args:
            watch: As for `Sandbox.run`. What is there now is what changes are told against, by
                `Sandbox.look`.

        Returns:
            How it is a moment later.

        Raises:
            NoProgram: As many run as may.
            SandboxLost: The container is gone.
            LocalProtocolError: The command is over the protocol's limits.
        """
        running = [entry.id for entry in self._entries.values() if not entry.ended.is_set()]
        if len(running) >= MAX_PROGRAMS:
            raise NoProgram(
                f"{MAX_PROGRAMS} programs are running, which is the most there may be at once;"
                f" end one of {', '.join(running)}"
            )
        self._forget_oldest()
        self._count += 1
        entry = _Entry(f"p-{self._count}", command, self._kept_bytes)
        self._entries[entry.id] = entry  # it counts while it is being started
        try:
            if watch:
                await sandbox.start_watch(watch)
            entry.program = await sandbox.start(
                command, deadline_s=None, cwd=cwd, env=env, collector=_Tap(entry)
            )
        except BaseException:
            del self._entries[entry.id]
            raise
        follower = asyncio.get_running_loop().create_task(entry.follow(entry.program))
        self._followers.add(follower)
        follower.add_done_callback(self._followers.discard)
        await _wait_for(entry.ended, FIRST_LOOK_S)
        return entry.state()

    def _forget_oldest(self) -> None:
        ended = [entry.id for entry in self._entries.values() if entry.ended.is_set()]
        for id in ended[: max(0, len(ended) - MAX_ENDED + 1)]:
            del self._entries[id]

    async def poll(self, id: str, *, wait_s: float = 0.0) -> Polled:
        """What a program wrote since the last poll. One that ended is forgotten after it.

        Args:
            wait_s: How long to wait for output, or its end, where there is none now.

        Raises:
            NoProgram: There is no such program.
        """
        entry = self._find(id)
        if not entry.ended.is_set() and not entry.backlog:
            entry.news.clear()
            await _wait_for(entry.news, wait_s)
        state = entry.state()
        output, dropped = entry.backlog.take(more=state.running)
        if not state.running:
            self._entries.pop(id, None)
        return Polled(output, dropped, state)

    async def write(self, id: str, data: bytes, *, end: bool = False) -> State:
        """Give a program standard input; `end`: and let it read the end behind that.

        Raises:
            NoProgram: There is no such program, or it has ended.
            SandboxLost: The container is gone.
        """
        entry, program = self._running(id)
        await program.write(data)
        if end:
            await program.end_input()
        return entry.state()

    async def signal(self, id: str, number: int) -> State:
        """Send a signal to a program and what it runs in the foreground.

        Raises:
            NoProgram, SandboxLost: As for `write`.
        """
        entry, program = self._running(id)
        await program.signal(number)
        await _wait_for(entry.ended, FIRST_LOOK_S)
        return entry.state()

    async def kill(self, id: str) -> State:
        """End a program and everything below it. What it wrote is there to be polled.

        Raises:
            NoProgram, SandboxLost: As for `write`.
        """
        entry, program = self._running(id)
        await program.kill()
        await entry.ended.wait()
        return entry.state()

    def list(self) -> tuple[State, ...]:
        """All that run, and all that have ended and were not polled since."""
        return tuple(entry.state() for entry in self._entries.values())

    def _find(self, id: str) -> _Entry:
        entry = self._entries.get(id)
        if entry is None:
            there = ", ".join(self._entries) or "none"
            raise NoProgram(f"there is no program {id[:64]!r}; there are: {there}")
        return entry

    def _running(self, id: str) -> tuple[_Entry, Program]:
        entry = self._find(id)
        if entry.ended.is_set() or entry.program is None:
            raise NoProgram(f"{id} has ended; poll it for the rest of its output")
        return entry, entry.program


async def _wait_for(event: asyncio.Event, timeout_s: float) -> None:
    """Wait until it happens, but no longer than that."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


# The shell.


@dataclass(frozen=True, slots=True)
class Said:
    """What came of a command in the shell."""

    ended: Literal["done", "shell_ended", "timed_out", "not_begun"]
    """`done`: the shell goes on. `shell_ended`: the command, or something else, has ended it.
    `not_begun`: the time was over before the commands ahead of it were."""
    output: bytes
    head_bytes: int
    """As in `RunResult`, with the two that follow."""
    total_bytes: int
    total_lines: int
    exit_code: int | None = None
    """Of the command; of the shell where that has ended."""
    signal: int | None = None
    """Which ended the shell."""
    oom_killed: bool = False
    state_lost: bool = False
    """It ran in a new shell, because the one before was gone, or its container was."""


class _Listening:
    """Takes the output of one command, up to the mark behind it."""

    def __init__(self, limit_bytes: int, on_output: OnOutput | None):
        token = secrets.token_hex(16)
        self.token = token
        self.collector = Collector(limit_bytes)
        self.status: int | None = None
        self.done = asyncio.Event()
        self._on_output = on_output
        self._mark = _MARK_START + token.encode() + _MARK_MIDDLE
        self._held = b""

    async def hear(self, data: bytes) -> bytes:
        """Take more output; what came behind the mark is given back."""
        data = self._held + data
        self._held = b""
        at = data.find(self._mark)
        if at < 0:
            keep = _beginning_at_end(data, self._mark)
            self._held = data[len(data) - keep :]
            await self._hand_on(data[: len(data) - keep])
            return b""
        status, end, rest = data[at + len(self._mark) :].partition(_MARK_START)
        if not end and len(status) <= _LONGEST_STATUS:
            self._held = data[at:]
            await self._hand_on(data[:at])
            return b""
        await self._hand_on(data[:at])
        self.status = int(status) if status.isdigit() else None
        self.done.set()
        return rest

    async def end(self) -> None:
        """There is no more: what looked like the start of a mark was output."""
        held, self._held = self._held, b""
        await self._hand_on(held)

    async def _hand_on(self, data: bytes) -> None:
        if data:
            self.collector.add(data)
            if self._on_output is not None:
                await self._on_output(data)


def _beginning_at_end(data: bytes, mark: bytes) -> int:
    """How many bytes at the end of the data are the beginning of the mark."""
    at = data.rfind(_MARK_START, max(0, len(data) - len(mark) + 1))
    return len(data) - at if at >= 0 and mark.startswith(data[at:]) else 0


class Shell:
    """One `/bin/sh` that goes on from command to command; started when it is first needed."""

    _BETWEEN_BYTES = 64 * 1024
    """What is kept of output that comes while no command runs; it goes before the next one's."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._sandbox: Sandbox | None = None
        self._program: Program | None = None
        self._listening: _Listening | None = None
        self._between = Backlog(self._BETWEEN_BYTES)

    async def run(
        self,
        sandbox: Sandbox,
        command: str,
        *,
        deadline_s: float,
        output_limit_bytes: int,
        env: Mapping[str, str] | None = None,
        on_output: OnOutput | None = None,
    ) -> Said:
        """Run a command in the shell, behind those that came before.

        At the deadline, and when the awaiting task is cancelled, the shell is killed with
        everything below it, and its state is lost.

        Args:
            deadline_s: Seconds, those in which it waits for its turn included.
            output_limit_bytes: Over this the beginning and the end come back.
            env: Variables of the session, for a shell that is started.

        Raises:
            RequestFailed: The shell could not be started.
            SandboxLost: The container or its helper is gone.
        """
        listening = _Listening(output_limit_bytes, on_output)
        try:
            async with asyncio.timeout(deadline_s) as limit:
                await self._turn.acquire()
        except TimeoutError:
            return _said("not_begun", listening)
        try:
            state_lost = self._program is not None and not self._is_there(sandbox)
            left_s = max(0.0, (limit.when() or 0.0) - asyncio.get_running_loop().time())
            program = await self._at_hand(sandbox, env)
            said = await self._ask(program, listening, command, left_s)
        finally:
            self._turn.release()
        return replace(said, state_lost=state_lost)

    async def restart(self) -> bool:
        """End the shell and everything below it; whether there was one. The next is a new one.

        Raises:
            SandboxLost: The container or its helper is gone.
        """
        # Not in turn: this is how to get rid of a command that hangs.
        program, self._program = self._program, None
        self._between.take()
        if program is None or program.ended:
            return False
        await program.kill()
        return True

    def _is_there(self, sandbox: Sandbox) -> bool:
        program = self._program
        return program is not None and self._sandbox is sandbox and not program.ended

    async def _at_hand(self, sandbox: Sandbox, env: Mapping[str, str] | None) -> Program:
        if self._program is not None and self._is_there(sandbox):
            return self._program
        self._between.take()
        self._sandbox = sandbox
        self._program = program = await sandbox.start(
            ["/bin/sh"], deadline_s=None, env=env, on_output=self._hear
        )
        # Marks go to the pipe itself, wherever a command sends the shell's output later.
        await program.write(b"exec 9>&1\n")
        return program

    async def _hear(self, data: bytes) -> None:
        if self._listening is not None and not self._listening.done.is_set():
            data = await self._listening.hear(data)
        if data:
            self._between.add(data)

    async def _ask(
        self, program: Program, listening: _Listening, command: str, limit_s: float
    ) -> Said:
        self._listening = listening
        over = asyncio.ensure_future(program.wait())
        marked = asyncio.ensure_future(listening.done.wait())
        try:
            async with asyncio.timeout(limit_s):
                before, _ = self._between.take()
                if before:
                    await listening.hear(before)
                await program.write(_script(command, listening.token))
                await asyncio.wait((over, marked), return_when=asyncio.FIRST_COMPLETED)
            if listening.done.is_set():
                return _said("done", listening, exit_code=listening.status)
            result = over.result()
            await listening.end()
        except TimeoutError:
            await self._kill(program)
            return _said("timed_out", listening)
        except BaseException:
            # Cancelled, or the taker of the output failed: nothing of it may go on running.
            await asyncio.shield(self._kill(program))
            raise
        finally:
            self._listening = None
            over.cancel()
            marked.cancel()
        self._program = None
        if result.ended != "exited" and result.ended != "killed":
            return _said("timed_out" if result.ended == "timed_out" else "shell_ended", listening)
        return _said(
            "shell_ended",
            listening,
            exit_code=result.exit_code,
            signal=result.signal,
            oom_killed=result.oom_killed,
        )

    async def _kill(self, program: Program) -> None:
        if self._program is program:
            self._program = None
        await program.kill()


def _script(command: str, token: str) -> bytes:
    """What the shell reads: the command in one word, then a mark with its exit status.

    `command` before `eval` keeps a syntax error from ending the shell. After an open quote bash
    misreads the rest of the line, hence the empty one. The token stands apart from what makes a
    mark of it, so that `set -x` can't show one.
    """
    quoted = "'" + command.replace("'", "'\\''") + "'"
    return (
        f"command eval {quoted} </dev/null 9>&-\n\n"
        f'{{ command printf "\\036%s\\037%d\\036" {token} "$?" >&9; }} 2>/dev/null\n'
    ).encode()


def _said(
    ended: Literal["done", "shell_ended", "timed_out", "not_begun"],
    listening: _Listening,
    *,
    exit_code: int | None = None,
    signal: int | None = None,
    oom_killed: bool = False,
) -> Said:
    output, head_bytes = listening.collector.result()
    return Said(
        ended=ended,
        output=output,
        head_bytes=head_bytes,
        total_bytes=listening.collector.total_bytes,
        total_lines=listening.collector.total_lines,
        exit_code=exit_code,
        signal=signal,
        oom_killed=oom_killed,
    )
