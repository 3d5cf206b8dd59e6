"""A sandbox in memory: what tools asked of it, and the answers that a test gave it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from runner.answers import Edit, Edited, RequestFailed, RunResult, SearchResult
from runner.conversation import OnOutput
from runner.sandbox import Sandbox


def ran(output: bytes = b"", **changes: Any) -> RunResult:
    """How a command ended: well, unless something else is said."""
    fields: dict[str, Any] = {
        "output": output,
        "head_bytes": len(output),
        "total_bytes": len(output),
        "total_lines": output.count(b"\n"),
        "exit_code": 0,
        "signal": None,
        "ended": "exited",
        "background": 0,
        "oom_killed": False,
        "spill_path": None,
        "spill_bytes": 0,
        "duration_s": 0.01,
    }
    return RunResult(**(fields | changes))


def found(rows: bytes = b"", **changes: Any) -> SearchResult:
    """What a search found."""
    fields: dict[str, Any] = {
        "rows": rows,
        "matches": rows.count(b"\n"),
        "truncated": False,
        "files": 1,
        "skipped_large": 0,
        "skipped_binary": 0,
        "skipped_unreadable": 0,
        "skipped_special": 0,
        "skipped_hidden": 0,
    }
    return SearchResult(**(fields | changes))


def _said(judged: str | None) -> tuple[str, ...]:
    """What a request says of a path that was judged: nothing where none was."""
    return () if judged is None else (f"judged {judged}",)


@dataclass
class FakeSandbox:
    """Files in a dictionary; a failure or a result where a test says so."""

    files: dict[str, bytes] = field(default_factory=dict)
    failure: RequestFailed | None = None
    """What every request fails with."""
    result: RunResult = field(default_factory=ran)
    search_result: SearchResult = field(default_factory=found)
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    """The requests, with their limits."""

    def as_sandbox(self) -> Sandbox:
        """Itself, as what it stands for."""
        return cast(Sandbox, self)

    def _ask(self, *request: Any) -> None:
        self.asked.append(request)
        if self.failure is not None:
            raise self.failure

    async def read(self, path: str, *, limit_bytes: int, judged: str | None = None) -> bytes:
        self._ask("read", path, limit_bytes, *_said(judged))
        return self.files[judged or path]

    async def write(self, path: str, content: bytes, *, judged: str | None = None) -> int:
        self._ask("write", path, content, *_said(judged))
        self.files[judged or path] = content
        return len(content)

    async def replace(
        self, path: str, old: bytes, new: bytes, *, limit_bytes: int, judged: str | None = None
    ) -> int:
        self._ask("replace", path, old, new, limit_bytes, *_said(judged))
        return self.files[judged or path].count(old)

    async def edit(
        self, path: str, edits: Sequence[Edit], *, limit_bytes: int, judged: str | None = None
    ) -> Edited:
        self._ask("edit", path, tuple(edits), limit_bytes, *_said(judged))
        content = self.files[judged or path]
        return Edited(tuple(content.count(edit.old) for edit in edits), True)

    async def search(self, path: str, pattern: str, **options: Any) -> SearchResult:
        self._ask("search", path, pattern, options)
        return self.search_result

    async def run(
        self,
        command: str | Sequence[str],
        *,
        deadline_s: float,
        env: Mapping[str, str] | None = None,
        on_output: OnOutput | None = None,
        **options: Any,
    ) -> RunResult:
        self._ask("run", command, deadline_s, dict(env or {}), options)
        if on_output is not None:
            await on_output(self.result.output)
        return self.result
