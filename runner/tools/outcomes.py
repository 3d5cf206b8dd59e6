"""What came of a program, as outcomes say it: the words and facts of every tool that runs one."""

from typing import Any

from runner.answers import RunResult, Touched
from runner.background import unfinished
from runner.model import Outcome, Status, Truncation
from runner.tools.base import decode_text, seconds

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


def ran(name: str, result: RunResult, timeout_s: float) -> Outcome:
    """The outcome of a tool that ran a program to its end.

    Args:
        name: The tool's.
        timeout_s: The time limit as whoever asked knows it.
    """
    output, truncated, undecodable = render(
        result.output,
        result.head_bytes,
        result.total_bytes,
        result.total_lines,
        (result.spill_path, result.spill_bytes),
    )
    status, error, exit_code = _verdict(name, result, timeout_s)
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


def _verdict(
    name: str, result: RunResult, timeout_s: float
) -> tuple[Status, str | None, int | None]:
    """How the command ended, the words for it, and its exit status.

    What the output says counts for nothing here.
    """
    if result.ended == "timed_out":
        return Status.TIMED_OUT, f"{name}: timed out after {seconds(timeout_s)}", None
    if result.ended == "cancelled":
        return Status.CANCELLED, f"{name}: cancelled", None
    signal = result.signal or (_SIGKILL if result.ended == "killed" else None)
    words, exit_code = ending(result.exit_code, signal)
    if result.oom_killed:
        error = f"{name}: out of memory: a process was killed at the session's memory limit"
        return Status.OOM_KILLED, f"{error} ({words})", exit_code
    if exit_code == 0:
        return Status.OK, None, exit_code
    return Status.FAILED, f"{name}: {words}", exit_code


def ending(exit_code: int | None, signal: int | None) -> tuple[str, int | None]:
    """How a program ended, in words and as the exit status that a shell makes of it."""
    if signal is None:
        return f"exit status {exit_code}", exit_code
    return f"signal: {SIGNALS.get(signal, f'signal {signal}')}", SIGNAL_BASE + signal


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


def render(
    output: bytes,
    head_bytes: int,
    total_bytes: int,
    total_lines: int,
    kept: tuple[str | None, int] = (None, 0),
) -> tuple[str, Truncation | None, int]:
    """An output as text, what is missing from it, and how many bytes are no UTF-8.

    Args:
        kept: Where in the container it is, and how much of it.
    """
    if head_bytes >= len(output) >= total_bytes:
        text, undecodable = decode_text(output)
        return text, None, undecodable
    head = without_cut_end(output[:head_bytes])
    tail = without_cut_start(output[head_bytes:])
    truncation = Truncation(
        omitted_bytes=total_bytes - len(head) - len(tail),
        omitted_lines=total_lines - head.count(b"\n") - tail.count(b"\n"),
        full_output_path=kept[0],
        full_output_bytes=kept[1],
    )
    before, undecodable_before = decode_text(head)
    after, undecodable_after = decode_text(tail)
    if before and not before.endswith("\n"):
        before += "\n"
    text = f"{before}{_gap(truncation, total_bytes)}\n{after}"
    return text, truncation, undecodable_before + undecodable_after


def _gap(truncation: Truncation, total_bytes: int) -> str:
    missing = f"{truncation.omitted_bytes} bytes ({truncation.omitted_lines} lines) left out"
    if truncation.full_output_path is None:
        return f"[… {missing} …]"
    kept = truncation.full_output_bytes
    part = "the whole output is" if kept >= total_bytes else f"its first {kept} bytes are"
    return f"[… {missing}; {part} in {truncation.full_output_path} …]"


def without_cut_end(data: bytes) -> bytes:
    """Without the beginning of a character whose rest was left out."""
    return data[: len(data) - unfinished(data)]


def without_cut_start(data: bytes) -> bytes:
    """Without the rest of a character whose beginning was left out."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]
