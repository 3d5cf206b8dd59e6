"""What can be asked of one container: run programs, touch and search its files.

Each request is a method, with typed answers. How a request goes out and its answer comes back,
and what happens where it does not, is `conversation`'s matter.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from runner.answers import Collector, RequestFailed, RunResult, Touched
from runner.carrier import Carrier
from runner.conversation import GRACE_S, Diagnose, InputRoom, OnLost, OnOutput, Request
from runner.errors import LocalProtocolError
from runner.files import Files
from runner.helper import wire
from runner.helper.wire import Kind
from runner.tunnels import OnTunnel

DEFAULT_OUTPUT_LIMIT_BYTES = 1024**2
SPILL_LIMIT_BYTES = 16 * 1024**2
"""How much of an output that outgrows its result is kept in the container."""
LOOK_S = 10.0
"""How long a look at protected files may take, which waits for nothing else."""
WORKSPACE = "/workspace"


class Sandbox(Files):
    """Runs programs and touches files in one container. Make it with `open`."""

    def __init__(self, carrier: Carrier, marker: bytes, diagnose: Diagnose, on_lost: OnLost):
        super().__init__(carrier, marker, diagnose, on_lost)
        self._watched: tuple[str, ...] | None = None
        """What the helper was last told to watch, in this conversation."""
        self._watching = asyncio.Lock()
        self._touched = Touched()
        """What the helper told of protected files, and no run has returned yet."""

    async def run(
        self,
        command: str | Sequence[str],
        *,
        deadline_s: float,
        cwd: str = WORKSPACE,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
        on_output: OnOutput | None = None,
        background: Literal["keep", "kill"] = "keep",
        watch: tuple[str, ...] = (),
        errors_apart: bool = False,
        user: str | None = None,
    ) -> RunResult:
        """Run a shell line, or a program with its arguments.

        Standard output and error come back as one stream, in order. The run ends when the
        program does, not when the last holder of its output does. At the deadline, and when
        the awaiting task is cancelled, everything below it is killed.

        Args:
            command: A line for `/bin/sh -c`, or a program (looked up in PATH) and arguments.
            deadline_s: Seconds until it is killed.
            cwd: Where it starts.
            env: Variables on top of the container's own.
            stdin: Its standard input; None is /dev/null.
            output_limit_bytes: Over this the beginning and the end come back, and the whole
                is kept in the container up to `SPILL_LIMIT_BYTES`.
            on_output: Awaited with each piece of output; the program waits while it is slow. It
                gets standard error, too, kept apart or not.
            background: Whether processes it leaves behind live on or are killed with its end.
            watch: Which files of the workspace are protected: RE2, each for whole paths in
                lower case. The result tells what became of them since the last run that
                asked; what is there when the first one asks is taken as it is. What is told
                with the end of a cancelled run comes with the next.
            errors_apart: Standard error comes back in `errors`, and `output` is standard output
                alone. `output_limit_bytes` holds for each; what outgrows it of standard error
                is kept nowhere.
            user: A name or number of the container's /etc/passwd to run as; None: the one that
                calls have. Others take a session that was opened with `users`.

        Raises:
            RequestFailed: It could not be started. `no_user`: there is no such user.
                `permission_denied`: the session can't switch users.
            LocalProtocolError: Command or input are over the protocol's limits.
            SandboxLost: The container or its helper is gone; what it did is not known.
        """
        request, fields = await self._prepare(command, cwd, env, watch, user)
        request.collector = Collector(output_limit_bytes)
        if errors_apart:
            request.errors = Collector(output_limit_bytes)
        if on_output is not None:
            request.pieces = asyncio.Queue()
        fields |= {
            "stdin": stdin is not None,
            "errors": errors_apart,
            # The helper's own clock only matters when this process is gone.
            "deadline_s": deadline_s + GRACE_S,
            "spill_after_bytes": output_limit_bytes,
            "spill_limit_bytes": SPILL_LIMIT_BYTES,
            "background": background,
        }
        return await self._run(request, fields, stdin or b"", deadline_s, on_output)

    async def start(
        self,
        command: str | Sequence[str],
        *,
        deadline_s: float | None,
        cwd: str = WORKSPACE,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        on_output: OnOutput | None = None,
        collector: Collector | None = None,
        watch: tuple[str, ...] = (),
    ) -> "Program":
        """Start a program and do not wait for it; its input can be written while it runs.

        Args:
            deadline_s: Seconds until it is killed; None: it may run as long as the container.
            on_output: As for `run`, but that it gets nothing any more once the program is killed.
            collector: Gets all of the output, as it arrives; None: nobody keeps it.

        The others are as for `run`.

        Raises:
            LocalProtocolError, SandboxLost: As for `run`. That it could not be started is told
                by `Program.wait`.
        """
        request, fields = await self._prepare(command, cwd, env, watch, user)
        request.collector = collector or Collector(0)
        request.input = InputRoom()
        if on_output is not None:
            request.pieces = asyncio.Queue()
        fields |= {
            "input": True,
            "deadline_s": None if deadline_s is None else deadline_s + GRACE_S,
        }
        running = asyncio.get_running_loop().create_task(
            self._run(request, fields, b"", deadline_s, on_output)
        )
        await asyncio.sleep(0)  # the request is on its way before anything that refers to it
        if running.done():
            running.result()
        return Program(self, request, running)

    async def _prepare(
        self,
        command: str | Sequence[str],
        cwd: str,
        env: Mapping[str, str] | None,
        watch: tuple[str, ...],
        user: str | None,
    ) -> tuple[Request, dict[str, Any]]:
        """A request to run something, and what it says unless told otherwise."""
        request = self._open(Kind.RAN)
        request.check = self._check_end
        request.is_watched = await self.start_watch(watch) if watch else True
        request.watches = bool(watch)
        is_line = isinstance(command, str)
        return request, {
            "shell": command if is_line else None,
            "argv": None if is_line else list(command),
            "cwd": cwd,
            "env": dict(env or {}),
            "stdin": False,
            "input": False,
            "errors": False,
            "user": user,
            "deadline_s": None,
            "spill_after_bytes": 0,
            "spill_limit_bytes": 0,
            "background": "keep",
            "watch": bool(watch),
        }

    async def _run(
        self,
        request: Request,
        fields: dict[str, Any],
        stdin: bytes,
        deadline_s: float | None,
        on_output: OnOutput | None,
    ) -> RunResult:
        started = time.monotonic()
        assert request.collector is not None
        answer = await self._ask(request, Kind.RUN, fields, stdin, deadline_s, on_output)
        output, head_bytes = request.collector.result()
        ended = answer.fields["ended"]
        if ended == "deadline" or (request.timed_out and ended == "cancelled"):
            ended = "timed_out"
        touched = Touched()
        if request.watches:
            touched, self._touched = self._touched, touched
        result = RunResult(
            output=output,
            head_bytes=head_bytes,
            total_bytes=request.collector.total_bytes,
            total_lines=request.collector.total_lines,
            exit_code=answer.fields["exit_code"],
            signal=answer.fields["signal"],
            ended=ended,
            background=answer.fields["background"],
            oom_killed=answer.fields["oom_killed"],
            spill_path=answer.fields["spill_path"],
            spill_bytes=answer.fields["spill_bytes"],
            duration_s=time.monotonic() - started,
            touched=replace(touched, complete=touched.complete and request.is_watched),
        )
        if request.errors is None:
            return result
        errors, errors_head_bytes = request.errors.result()
        return replace(
            result,
            errors=errors,
            errors_head_bytes=errors_head_bytes,
            errors_total_bytes=request.errors.total_bytes,
            errors_total_lines=request.errors.total_lines,
        )

    def _tell(
        self, request: Request, kind: int, fields: dict[str, Any], payload: bytes = b""
    ) -> None:
        """Say something about a program that runs; one that has ended need not hear of it.

        Raises:
            LocalProtocolError: It can't be said.
            SandboxLost: The container or its helper is gone.
        """
        if self.lost is not None:
            raise self.lost
        if not request.answer.done():
            try:
                self._carrier.send(wire.encode(kind, request.call, fields, payload))
            except wire.ProtocolError as error:
                raise LocalProtocolError(str(error)) from error

    async def look(self, watch: tuple[str, ...]) -> Touched:
        """What became of protected files since that was last told; as `run` tells of its own.

        It takes a process of the container.

        Raises:
            RequestFailed, SandboxLost: As for `run`.
        """
        result = await self.run(":", deadline_s=LOOK_S, cwd="/", output_limit_bytes=0, watch=watch)
        return result.touched

    async def start_watch(self, patterns: tuple[str, ...]) -> bool:
        """Have the helper take note of what is there now, once; whether it did.

        It may lack memory for it. That is no reason not to run anything.

        Raises:
            SandboxLost: The container or its helper is gone.
        """
        async with self._watching:
            if self._watched != patterns:
                fields = {"root": WORKSPACE, "patterns": list(patterns)}
                try:
                    await self._ask(self._open(Kind.WATCHED), Kind.WATCH, fields)
                except RequestFailed:
                    return False
                self._watched = patterns
        return True

    async def listen(self, port: int, on_tunnel: OnTunnel) -> None:
        """Take connections that programs make to a port of the container's own loopback.

        It holds as long as this conversation with the container; who talks to it next listens
        anew. What the connections carry is up to whoever takes them.

        Args:
            port: Which one. No program can have it from then on.
            on_tunnel: Gets each connection, in the event loop; it may not wait. At most
                `wire.MAX_TUNNELS` are there at once; more have to wait for one of them to end.

        Raises:
            RequestFailed: The port can't be had: `address_in_use` by a program.
            SandboxLost: The container or its helper is gone.
        """
        request = self._open(Kind.LISTENING)
        self._tunnels.on_tunnel = on_tunnel
        await self._ask(request, Kind.LISTEN, {"port": port})

    def _note_touched(self, fields: dict[str, Any]) -> None:
        files = [*self._touched.files, *((path, change) for path, change in fields["touched"])]
        self._touched = Touched(
            files=tuple(files[: wire.MAX_TOUCHED]),
            count=self._touched.count + fields["touched_count"],
            complete=fields["touched_complete"],
        )

    def _check_end(self, message: wire.Message) -> None:
        request = self._pending[message.call]
        _check_run(request, message.fields)
        if request.watches:
            self._note_touched(message.fields)


class Program:
    """One that runs, as `Sandbox.start` returns it. It ends with its container at the latest."""

    def __init__(self, sandbox: Sandbox, request: Request, running: "asyncio.Task[RunResult]"):
        self.id = request.call
        """Its number among the sandbox's requests."""
        self._sandbox = sandbox
        self._request = request
        self._running = running
        self._writing = asyncio.Lock()
        running.add_done_callback(_retrieve)

    async def write(self, data: bytes) -> None:
        """Give it more standard input; returns once all of it is on its way.

        A program that reads slowly makes this wait. One that has closed its input, or has
        ended, reads nothing, which is no error.

        Raises:
            SandboxLost: The container or its helper is gone.
        """
        room = self._request.input
        assert room is not None
        async with self._writing:
            while data and (count := await room.reserve(len(data))):
                piece, data = data[:count], data[count:]
                self._sandbox._tell(self._request, Kind.INPUT, {"end": False}, piece)
        if self._sandbox.lost is not None:
            raise self._sandbox.lost

    async def end_input(self) -> None:
        """Let it read the end of its input, behind what was written.

        Raises:
            SandboxLost: As for `write`.
        """
        async with self._writing:
            self._sandbox._tell(self._request, Kind.INPUT, {"end": True})

    async def signal(self, number: int) -> None:
        """Send a signal to it and what it runs in the foreground: its process group.

        Raises:
            LocalProtocolError: It is no signal.
            SandboxLost: As for `write`.
        """
        self._sandbox._tell(self._request, Kind.SIGNAL, {"signal": int(number)})

    async def kill(self) -> RunResult:
        """End it and everything below it; returns how it ended, which may have been before.

        Raises:
            RequestFailed, SandboxLost: As for `wait`.
        """
        self._sandbox._cancel(self._request)
        return await self.wait()

    async def wait(self) -> RunResult:
        """Wait for its end. The result has the output that its collector kept.

        Raises:
            RequestFailed: It could not be started.
            SandboxLost: The container or its helper is gone; what it did is not known.
        """
        return await asyncio.shield(self._running)

    @property
    def ended(self) -> bool:
        """Whether `wait` would return at once."""
        return self._running.done()


def _retrieve(running: "asyncio.Task[RunResult]") -> None:
    """Whether somebody waits for it or not: its error is no accident of the event loop's."""
    if not running.cancelled():
        running.exception()


def _check_run(request: Request, fields: dict[str, Any]) -> None:
    """Find the end of a run that is well-formed but can't be true.

    Raises:
        ProtocolError: It is one.
    """
    assert request.collector is not None
    sent_errors = 0 if request.errors is None else request.errors.total_bytes
    for said, sent in (
        (fields["output_bytes"], request.collector.total_bytes),
        (fields["errors_bytes"], sent_errors),
    ):
        if said != sent:
            raise wire.ProtocolError(
                f"call {request.call} wrote {said} bytes, of which {sent} arrived"
            )
    endings = [fields["exit_code"], fields["signal"]].count(None)
    if endings != (1 if fields["ended"] == "exited" else 2):
        raise wire.ProtocolError(f"call {request.call} ended in no way that there is")
    _check_touched(request, fields)


def _check_touched(request: Request, fields: dict[str, Any]) -> None:
    touched, count = fields["touched"], fields["touched_count"]
    if (fields["touched_complete"] is None) == request.watches:
        raise wire.ProtocolError(f"call {request.call} does not watch as it was asked to")
    if count < len(touched) or (count and not request.watches):
        raise wire.ProtocolError(
            f"call {request.call} names {len(touched)} of {count} protected files"
        )
    if not all(path.startswith(f"{WORKSPACE}/") for path, _ in touched):
        raise wire.ProtocolError(f"call {request.call} tells of files outside of the workspace")
