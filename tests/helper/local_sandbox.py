"""A sandbox without a container: a directory of the test stands for `/workspace`.

What is asked about files goes over a stream in memory to the helper's own functions, so that
what a tool makes of them can be tested without Docker. Commands run here. It isolates nothing.
"""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from runner.answers import Collector, RunResult
from runner.conversation import OnOutput
from runner.errors import SandboxLost
from runner.helper import wire
from runner.sandbox import DEFAULT_OUTPUT_LIMIT_BYTES, WORKSPACE, Sandbox
from runner.testing import FakeHelper, fake_shell, memory_carriers


def local_sandbox(workspace: Path) -> Sandbox:
    """A sandbox whose `/workspace` is a directory here."""
    return cast(Sandbox, LocalSandbox(workspace))


class LocalSandbox:
    """What tools use of `runner.sandbox.Sandbox`."""

    def __init__(self, workspace: Path):
        self._workspace = str(workspace.resolve())

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        """A request about files: each has a conversation of its own, in whichever event loop."""

        async def ask(*arguments: Any, **options: Any) -> Any:
            ours, theirs = memory_carriers()
            FakeHelper(theirs, fake_shell, Path(self._workspace), os.getuid(), os.getgid())
            sandbox = await Sandbox.open(
                ours,
                os.urandom(wire.MARKER_BYTES),
                diagnose=_nothing_is_wrong,
                expires_s=None,
                idle_s=None,
                timeout_s=5.0,
            )
            try:
                return await getattr(sandbox, name)(*arguments, **options)
            finally:
                sandbox.close()

        return ask

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
    ) -> RunResult:
        assert not watch, "a local sandbox watches no files"
        started = time.monotonic()
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        process = await asyncio.create_subprocess_exec(
            *(argument.replace(WORKSPACE, self._workspace) for argument in argv),
            cwd=cwd.replace(WORKSPACE, self._workspace),
            env={**os.environ, **(env or {})},
            stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        collector = Collector(output_limit_bytes)
        ended: Literal["exited", "timed_out"] = "exited"
        try:
            async with asyncio.timeout(deadline_s):
                if process.stdin is not None:
                    process.stdin.write(stdin or b"")
                    process.stdin.close()
                assert process.stdout is not None
                while data := await process.stdout.read(64 * 1024):
                    collector.add(self._back(data))
                    if on_output is not None:
                        await on_output(self._back(data))
                await process.wait()
        except TimeoutError:
            ended = "timed_out"
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        output, head_bytes = collector.result()
        status = process.returncode or 0
        return RunResult(
            output=output,
            head_bytes=head_bytes,
            total_bytes=collector.total_bytes,
            total_lines=collector.total_lines,
            exit_code=None if status < 0 else status,
            signal=-status if status < 0 else None,
            ended=ended,
            background=0,
            oom_killed=False,
            spill_path=None,
            spill_bytes=0,
            duration_s=time.monotonic() - started,
        )

    def _back(self, data: bytes) -> bytes:
        return data.replace(self._workspace.encode(), WORKSPACE.encode())


async def _nothing_is_wrong() -> SandboxLost | None:
    return None
