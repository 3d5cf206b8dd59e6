"""The `bash` tool."""

import codecs
from typing import Any

from runner.answers import RequestFailed, RunResult, Touched
from runner.model import Outcome, Status, Truncation
from runner.tools.base import (
    SystemText,
    Tool,
    ToolContext,
    ToolInput,
    decode_text,
    failed,
    seconds,
)

SIGNALS = {
    1: "hangup",
    2: "interrupt",
    3: "quit",
    4: "illegal instruction",
    5: "trace/breakpoint trap",
    6: "aborted",
    7: "bus error",
    8: "floating point exception",
    9: "killed",
    10: "user defined signal 1",
    11: "segmentation fault",
    12: "user defined signal 2",
    13: "broken pipe",
    14: "alarm clock",
    15: "terminated",
}
"""Go's names for Linux's signals; it has none for others."""
SIGNAL_BASE = 128
"""A shell's exit status for signal n is this plus n."""
_SIGKILL = 9


class BashInput(ToolInput):
    """The input of `bash`."""

    command: SystemText
    """The shell command to execute."""


class BashTool(Tool):
    """Runs a shell command in the workspace."""

    name = "bash"
    description = (
        "Execute a shell command via `/bin/sh -c`. Returns combined stdout+stderr with exit status."
    )
    input = BashInput
    keeps_time = True
    """At its deadline it returns what the command wrote so far."""

    async def execute(self, context: ToolContext, input: BashInput, /) -> Outcome:
        """Run the command.

        `details`, where they apply: `background` processes that the command left running,
        `oom_killed`, and `undecodable_bytes` of the output that are U+FFFD now; and what became
        of protected files, see `protected`.
        """
        try:
            result = await context.sandbox.run(
                input.command,
                deadline_s=context.deadline_s,
                env=context.environment,
                output_limit_bytes=context.limits.output_limit_bytes,
                on_output=context.on_output,
                background=context.limits.background,
                watch=context.watch,
            )
        except RequestFailed as failure:
            return failed(f"bash: fork/exec /bin/sh: {failure.detail}")
        output, truncated, undecodable = _render(result)
        status, error, exit_code = _verdict(result, context.call.timeout_s)
        details: dict[str, Any] = {}
        if result.background:
            details["background"] = result.background
        if result.oom_killed:
            details["oom_killed"] = True
        if undecodable:
            details["undecodable_bytes"] = undecodable
        details |= protected(result.touched)
        return Outcome(
            output=output,
            error=error,
            status=status,
            exit_code=exit_code,
            truncated=truncated,
            background=result.background,
            details=details,
        )


def protected(touched: Touched) -> dict[str, Any]:
    """What became of protected files, as facts for `Outcome.details`; none where nothing did.

    `protected`: a `path` and a `change` each, which is `created`, `changed` or `removed`.
    `protected_count`: how many there are altogether, where these are not all.
    `protected_incomplete`: there may be more, that nobody has looked at yet.
    """
    details: dict[str, Any] = {}
    if touched.files:
        details["protected"] = [{"path": path, "change": change} for path, change in touched.files]
    if touched.count > len(touched.files):
        details["protected_count"] = touched.count
    if not touched.complete:
        details["protected_incomplete"] = True
    return details


def _verdict(result: RunResult, timeout_s: float) -> tuple[Status, str | None, int | None]:
    """How the command ended, the words for it, and its exit status.

    What the output says counts for nothing here.
    """
    if result.ended == "timed_out":
        return Status.TIMED_OUT, f"bash: timed out after {seconds(timeout_s)}", None
    if result.ended == "cancelled":
        return Status.CANCELLED, "bash: cancelled", None
    signal = result.signal or (_SIGKILL if result.ended == "killed" else None)
    if signal is not None:
        exit_code: int | None = SIGNAL_BASE + signal
        ending = f"signal: {SIGNALS.get(signal, f'signal {signal}')}"
    else:
        exit_code = result.exit_code
        ending = f"exit status {exit_code}"
    if result.oom_killed:
        error = "bash: out of memory: a process was killed at the session's memory limit"
        return Status.OOM_KILLED, f"{error} ({ending})", exit_code
    if exit_code == 0:
        return Status.OK, None, exit_code
    return Status.FAILED, f"bash: {ending}", exit_code


def _render(result: RunResult) -> tuple[str, Truncation | None, int]:
    """The output as text, what is missing from it, and how many bytes are no UTF-8."""
    if result.head_bytes >= len(result.output) >= result.total_bytes:
        text, undecodable = decode_text(result.output)
        return text, None, undecodable
    head = _without_cut_end(result.output[: result.head_bytes])
    tail = _without_cut_start(result.output[result.head_bytes :])
    truncation = Truncation(
        omitted_bytes=result.total_bytes - len(head) - len(tail),
        omitted_lines=result.total_lines - head.count(b"\n") - tail.count(b"\n"),
        full_output_path=result.spill_path,
        full_output_bytes=result.spill_bytes,
    )
    before, undecodable_before = decode_text(head)
    after, undecodable_after = decode_text(tail)
    if before and not before.endswith("\n"):
        before += "\n"
    text = f"{before}{_gap(truncation, result.total_bytes)}\n{after}"
    return text, truncation, undecodable_before + undecodable_after


def _gap(truncation: Truncation, total_bytes: int) -> str:
    missing = f"{truncation.omitted_bytes} bytes ({truncation.omitted_lines} lines) left out"
    if truncation.full_output_path is None:
        return f"[… {missing} …]"
    kept = truncation.full_output_bytes
    part = "the whole output is" if kept >= total_bytes else f"its first {kept} bytes are"
    return f"[… {missing}; {part} in {truncation.full_output_path} …]"


def _without_cut_end(data: bytes) -> bytes:
    """Without the beginning of a character whose rest was left out."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    pending, _ = decoder.getstate()
    return data[: len(data) - len(pending)]


def _without_cut_start(data: bytes) -> bytes:
    """Without the rest of a character whose beginning was left out."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]
