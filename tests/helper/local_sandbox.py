"""A sandbox without a container: a directory of the test stands for `/workspace`.

It runs the helper's own functions, so that what a tool makes of them can be tested without
Docker. It isolates nothing.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar, cast

from runner.answers import (
    Collector,
    Edit,
    Edited,
    Entry,
    Listing,
    Page,
    Part,
    RequestFailed,
    RunResult,
    SearchResult,
)
from runner.conversation import OnOutput
from runner.helper import files, listing, paging, search
from runner.sandbox import DEFAULT_OUTPUT_LIMIT_BYTES, WORKSPACE, Sandbox

T = TypeVar("T")


def local_sandbox(workspace: Path) -> Sandbox:
    """A sandbox whose `/workspace` is a directory here."""
    return cast(Sandbox, LocalSandbox(workspace))


class LocalSandbox:
    """What tools use of `runner.sandbox.Sandbox`."""

    def __init__(self, workspace: Path):
        self._workspace = str(workspace.resolve())  # no link stands in what is judged

    async def resolve(self, path: str) -> str:
        return self._back(_asked(lambda: files.resolve(self._there(path))).encode()).decode()

    async def read(self, path: str, *, limit_bytes: int, judged: str | None = None) -> bytes:
        return _asked(
            lambda: files.read(self._there(path), limit_bytes, judged=self._judged(judged))
        )

    async def write(self, path: str, content: bytes, *, judged: str | None = None) -> int:
        return _asked(lambda: files.write(self._there(path), content, judged=self._judged(judged)))

    async def replace(
        self, path: str, old: bytes, new: bytes, *, limit_bytes: int, judged: str | None = None
    ) -> int:
        return _asked(
            lambda: files.replace(
                self._there(path), old, new, limit_bytes, judged=self._judged(judged)
            )
        )

    async def read_part(
        self, path: str, *, start: int, limit_bytes: int, judged: str | None = None
    ) -> Part:
        size, content = _asked(
            lambda: paging.part(self._there(path), start, limit_bytes, judged=self._judged(judged))
        )
        return Part(content, size)

    async def read_lines(
        self, path: str, *, first: int, count: int, limit_bytes: int, judged: str | None = None
    ) -> Page:
        fields, content = _asked(
            lambda: paging.page(
                self._there(path),
                first,
                count,
                limit_bytes,
                lambda: False,
                judged=self._judged(judged),
            )
        )
        return Page(content=content, **fields)

    async def append(self, path: str, content: bytes, *, judged: str | None = None) -> int:
        return _asked(lambda: files.append(self._there(path), content, judged=self._judged(judged)))

    async def edit(
        self,
        path: str,
        edits: Sequence[Edit],
        *,
        limit_bytes: int,
        judged: str | None = None,
    ) -> Edited:
        texts = [(edit.old, edit.new, edit.all) for edit in edits]
        counts, is_written = _asked(
            lambda: files.edit(
                self._there(path), texts, limit_bytes, lambda: False, judged=self._judged(judged)
            )
        )
        return Edited(tuple(counts), is_written)

    async def list(
        self,
        path: str,
        *,
        glob: str = "",
        depth: int,
        max_entries: int,
        judged: str | None = None,
        hidden: Sequence[str] = (),
    ) -> Listing:
        hides = search.hider(hidden) or (lambda path: False)
        fields, rows = _asked(
            lambda: listing.entries(
                self._there(path),
                glob,
                depth,
                max_entries,
                lambda: False,
                judged=self._judged(judged),
                hides=lambda path: hides(self._back(path)),
            )
        )
        del fields["entries"]
        return Listing(tuple(Entry(*json.loads(row)) for row in rows.splitlines()), **fields)

    async def search(
        self,
        path: str,
        pattern: str,
        *,
        ignore_case: bool,
        include: str,
        max_matches: int,
        max_file_bytes: int,
        judged: str | None = None,
        hidden: Sequence[str] = (),
    ) -> SearchResult:
        hides = search.hider(hidden) or (lambda path: False)
        fields, rows = _asked(
            lambda: search.search(
                self._there(path),
                pattern,
                ignore_case,
                include,
                max_matches,
                max_file_bytes,
                lambda: False,
                judged=self._judged(judged),
                hides=lambda path: hides(self._back(path)),
            )
        )
        return SearchResult(rows=self._back(rows), **fields)

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
            cwd=self._there(cwd),
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

    def _there(self, path: str) -> str:
        if path == WORKSPACE or path.startswith(f"{WORKSPACE}/"):
            return self._workspace + path.removeprefix(WORKSPACE)
        return path

    def _judged(self, path: str | None) -> str | None:
        return None if path is None else self._there(path)

    def _back(self, data: bytes) -> bytes:
        return data.replace(self._workspace.encode(), WORKSPACE.encode())


def _asked(request: Callable[[], T]) -> T:
    try:
        return request()
    except files.Failure as failure:
        raise RequestFailed(failure.code, failure.detail) from failure
