"""A helper that runs, as process 1 of a PID namespace on the host, and ways to reach it.

It is the real program with the toolbox's own supervisor, asked over the real stream. Its
commands run with the rights of whoever runs the tests, on the host's own files.
"""

import asyncio
import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from runner.answers import RunResult
from runner.carrier import SocketCarrier
from runner.errors import SandboxLost
from runner.helper import wire
from runner.helper.wire import Kind, Message
from runner.sandbox import Sandbox
from tests.host import ROOT, SOON_S, wait_until

KIB, MIB = 1024, 1024**2
MARKER = bytes(range(100, 116))

# It ends every process that it sees, hence the first condition. Whatever is counted of it, its
# calls are not to count themselves. A kernel without adoption refuses the supervisor's
# prctl(PR_SET_CHILD_SUBREAPER), so that orphans go to process 1.
PROGRAM = """
import ctypes, json, os, platform, struct, sys

if os.getpid() != 1:
    sys.exit("the helper may only run in a PID namespace of its own")
for name in [name for name in os.environ if name.startswith("COVERAGE")]:
    del os.environ[name]
if "--subreaper=off" in sys.argv:
    prctl = {"x86_64": 157, "aarch64": 167}[platform.machine()]
    rules = b"".join(
        struct.pack("=HBBI", *rule)
        for rule in (
            (0x20, 0, 0, 0), (0x15, 0, 3, prctl), (0x20, 0, 0, 16), (0x15, 0, 1, 36),
            (0x06, 0, 0, 0x00050000 | 22), (0x06, 0, 0, 0x7FFF0000),
        )
    )
    kept = ctypes.create_string_buffer(rules)
    filter = struct.pack("@HP", len(rules) // 8, ctypes.addressof(kept))
    libc = ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, filter, 0, 0) == 0

from runner.helper import files, jobs, scratch, server, tunnels
from runner.helper.__main__ import main

for name, value in json.loads(sys.argv[1]).items():
    module, _, constant = name.partition(".")
    getattr(globals()[module], constant)
    setattr(globals()[module], constant, value)
main(sys.argv[2:])
"""
NAMESPACE = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"]
if os.getuid() != 0:
    NAMESPACE[1:1] = ["--user", "--map-root-user"]
CGROUP = {"memory.events": "oom 0\noom_kill 0\n", "pids.events": "max 0\n"}
"""What a container sees in /sys/fs/cgroup, as far as the helper looks."""


class Process(NamedTuple):
    """A process as the host sees it."""

    pid: int
    parent: int
    state: str
    command: str


def all_processes() -> list[Process]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, parent = (
                (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            )
            command = (entry / "cmdline").read_text(errors="replace").replace("\0", " ").strip()
            found.append(Process(int(entry.name), int(parent), state, command))
    return found


class Helper:
    """A helper that runs, and ways to reach it."""

    def __init__(self, process: subprocess.Popen[bytes], dial: Callable[[], socket.socket]):
        self.dial = dial
        """A stream to it. One that can't have another gives the same one again."""
        self._process = process
        self.pid = 0
        """The host's number for it."""

    def find(self) -> None:
        """Wait until it is there."""
        self.pid = wait_until(self._children_of_unshare)[0].pid

    def _children_of_unshare(self) -> list[Process]:
        return [process for process in all_processes() if process.parent == self._process.pid]

    @contextlib.asynccontextmanager
    async def sandbox(self, **options: Any) -> AsyncIterator[Sandbox]:
        """The host's real end of a conversation with it."""

        async def knows_nothing() -> SandboxLost | None:
            return None

        carrier = await SocketCarrier.over(await asyncio.to_thread(self.dial))
        times = {"expires_s": None, "idle_s": None, "timeout_s": SOON_S, **options}
        sandbox = await Sandbox.open(carrier, MARKER, diagnose=knows_nothing, **times)
        try:
            yield sandbox
        finally:
            sandbox.close()

    @contextlib.contextmanager
    def peer(self) -> Iterator["Peer"]:
        """A host that says what it likes."""
        with self.dial() as connection:
            yield Peer(connection)

    def processes(self) -> list[Process]:
        """All below it, zombies included."""
        seen = all_processes()
        family = {self.pid}
        while more := {process.pid for process in seen if process.parent in family} - family:
            family |= more
        return [process for process in seen if process.pid in family - {self.pid}]

    def commands(self) -> list[str]:
        """Command lines of its calls, without their supervisors'."""
        return sorted(
            process.command for process in self.processes() if process.command != "supervisor"
        )

    def runs(self, *commands: str) -> bool:
        """Whether nothing else runs in its calls."""
        return self.commands() == sorted(commands)

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def ends(self) -> int:
        """Wait for its end; its status."""
        return self._process.wait(SOON_S)


async def soon(condition: Callable[[], Any]) -> None:
    """Wait until it is true."""
    await asyncio.to_thread(wait_until, condition)


class Peer:
    """The host's end of a stream, frame by frame and byte by byte."""

    def __init__(self, connection: socket.socket):
        connection.settimeout(SOON_S)
        self.connection = connection
        self._decoder = wire.Decoder(MARKER, wire.FROM_HELPER, resync=True)

    def say(self, *data: bytes) -> None:
        self.connection.sendall(b"".join(data))

    def greet(self, **times: float) -> None:
        """Start a conversation, and hear the greeting."""
        self.say(MARKER, hello(**times))
        greeting = self.hear()
        assert (greeting.kind, greeting.fields["role"]) == (Kind.HELLO, "helper")

    def hear(self) -> Message:
        """The next frame."""
        while (message := self._decoder.next_message()) is None:
            data = self.connection.recv(MIB)
            assert data, "the helper has hung up"
            self._decoder.feed(data)
        return message

    def hear_end(self, call: int) -> Message:
        """The frame that ends a call; what comes before it is dropped."""
        while True:
            message = self.hear()
            if message.call == call and message.kind in wire.FINAL:
                return message

    def hears_output(self, call: int, count: int) -> bytes:
        """So many bytes of output, and not one more in the same frames."""
        output = b""
        while len(output) < count:
            message = self.hear()
            assert (message.kind, message.call) == (Kind.OUTPUT, call)
            output += message.payload
        assert len(output) == count
        return output

    def hears_hanging_up(self) -> bool:
        """Whether there is nothing more, once all is read."""
        with contextlib.suppress(ConnectionResetError):
            while self.connection.recv(MIB):
                pass
        return True


def hello(expires_s: float | None = None, idle_s: float | None = None) -> bytes:
    silent = dict.fromkeys(("uid", "gid", "shell", "python", "seccomp"))
    times = {"expires_s": expires_s, "idle_s": idle_s}
    return wire.encode(
        Kind.HELLO, 0, {"role": "host", "version": wire.PROTOCOL_VERSION, **times, **silent}
    )


def running(call: int, command: str | list[str], payload: bytes = b"", **changes: Any) -> bytes:
    is_line = isinstance(command, str)
    fields = {
        "shell": command if is_line else None,
        "argv": None if is_line else command,
        "cwd": "/",
        "env": {},
        "stdin": False,
        "input": False,
        "errors": False,
        "user": None,
        "deadline_s": 60.0,
        "spill_after_bytes": MIB,
        "spill_limit_bytes": MIB,
        "background": "keep",
        "watch": False,
        **changes,
    }
    return wire.encode(Kind.RUN, call, fields, payload)


def reading(call: int, path: Path | str) -> bytes:
    return wire.encode(
        Kind.READ, call, {"path": str(path), "judged": None, "limit_bytes": 16 * MIB}
    )


def launch(cgroup: Path, *arguments: str, **streams: Any) -> subprocess.Popen[bytes]:
    """A program of ours as process 1 of a namespace, in which it sees this cgroup."""
    see = 'mount --bind "$0" /sys/fs/cgroup && exec "$@"'
    return subprocess.Popen(
        [*NAMESPACE, "--", "sh", "-c", see, str(cgroup), sys.executable, *arguments],
        cwd=ROOT,
        umask=0o077,
        **streams,
    )


class Start:
    """Starts helpers, and sees to it that they end as they should."""

    def __init__(self, supervisor: Path, place: Path, cgroup: Path):
        self._constants = {
            "jobs.SUPERVISOR": str(supervisor),
            "scratch.SCRATCH": f"{place}/scratch",
        }
        self._cgroup = cgroup
        self._sockets = (f"{place}/stream{number}" for number in itertools.count())
        self.ending = contextlib.ExitStack()

    def __call__(self, how: str = "stdio", *words: str, **constants: Any) -> Helper:
        """Start one.

        Args:
            how: Its stream: "stdio" or "socket".
            words: What the kernel lacks.
            constants: Of the helper's modules, such as `jobs__SWEEP_S`.
        """
        named = {name.replace("__", "."): value for name, value in constants.items()}
        values = json.dumps({**self._constants, **named})
        return (self._over_stdio if how == "stdio" else self._over_socket)([values, *words])

    def _over_stdio(self, arguments: list[str]) -> Helper:
        ours, theirs = socket.socketpair()
        self.ending.callback(ours.close)
        with theirs:
            process = launch(
                self._cgroup, "-c", PROGRAM, *arguments, "--stdio", stdin=theirs, stdout=theirs
            )
        return self._watched(Helper(process, ours.dup), process, ours.close)

    def _over_socket(self, arguments: list[str]) -> Helper:
        path = next(self._sockets)
        process = launch(self._cgroup, "-c", PROGRAM, *arguments, "--socket", path)
        listening = self.ending.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(path)
        listening.listen()
        listening.settimeout(SOON_S)

        def dial() -> socket.socket:
            return listening.accept()[0]

        def say_goodbye() -> None:
            with dial() as connection:
                connection.sendall(MARKER + hello(expires_s=0.0))
                connection.settimeout(SOON_S)
                with contextlib.suppress(ConnectionResetError):
                    while connection.recv(MIB):
                        pass

        return self._watched(Helper(process, dial), process, say_goodbye)

    def _watched(
        self, helper: Helper, process: subprocess.Popen[bytes], part: Callable[[], None]
    ) -> Helper:
        def end() -> None:
            try:
                if not helper.has_ended():
                    part()
                assert helper.ends() == 0, "it has failed"
            finally:
                process.kill()
                process.wait()

        self.ending.callback(end)
        helper.find()
        return helper


Run = Callable[..., Coroutine[Any, Any, RunResult]]


def runs_on(sandbox: Sandbox) -> Run:
    """Programs on a sandbox that has no /workspace."""
    return partial(sandbox.run, deadline_s=SOON_S, cwd="/")
