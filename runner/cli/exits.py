"""What an exit status means: the one table that help, documentation and code share.

Errors of the runner itself are mapped by `runner.errors.EXITS`; what became of a call, here.
"""

from typing import NamedTuple

from runner.errors import CANCELLED, COULD_NOT_RUN, DENIED, INVALID, LOST, TIMED_OUT
from runner.model import Status, ToolResult

OK, NO, USAGE = 0, 1, 2
OUT_OF_MEMORY = 128 + 9
"""What a shell makes of SIGKILL, which is how the kernel ends a process that is over its limit."""

_OF_STATUS: dict[Status, int] = {
    Status.OK: OK,
    Status.FAILED: NO,
    Status.TIMED_OUT: TIMED_OUT,
    Status.OOM_KILLED: OUT_OF_MEMORY,
    Status.DENIED: DENIED,
    Status.INVALID: INVALID,
    Status.CANCELLED: CANCELLED,
    Status.LOST: LOST,
}
_HAS_ITS_OWN = frozenset({Status.OK, Status.FAILED, Status.OOM_KILLED})
"""Where the command came to an end of its own, so that its status is the answer."""


def exit_status(result: ToolResult) -> int:
    """The status to exit with for a call: the command's own where it has one to pass on."""
    if result.status in _HAS_ITS_OWN and result.exit_code:
        return result.exit_code
    return _OF_STATUS[result.status]


class Meaning(NamedTuple):
    """A row of the table."""

    status: str
    meaning: str


MEANINGS: tuple[Meaning, ...] = (
    Meaning(f"{OK}", "It did what was asked."),
    Meaning(f"{NO}", "It did not: a tool, a check or a case failed, or the audit is broken."),
    Meaning(f"{USAGE}", "Arguments, settings, policy or workspace can't be used."),
    Meaning(f"{DENIED}", "The policy denied the call; nothing ran."),
    Meaning(f"{INVALID}", "The input does not fit the tool; nothing ran."),
    Meaning(f"{LOST}", "The container was lost under the call; nobody knows how far it came."),
    Meaning(f"{CANCELLED}", "The call was cancelled, but not by a signal to this command."),
    Meaning(f"{TIMED_OUT}", "The time limit ended the call, and all of its processes."),
    Meaning(f"{COULD_NOT_RUN}", "It could not be run: no Docker, no image, session busy or over."),
    Meaning("126, 127", "The shell's own: a program may not be executed, or was not found."),
    Meaning(f"{OUT_OF_MEMORY}", "The memory limit ended the command (or something sent SIGKILL)."),
    Meaning("129, 130, 143", "Hang-up, Ctrl-C or SIGTERM ended this command; the call was ended."),
    Meaning("141", "Whoever read standard output closed it; the call was ended."),
    Meaning("other", "The command's own, passed on by `run` and by `call bash`."),
)

NOTE = (
    "A command may itself exit with any of these. Where that matters, --json tells them apart:"
    " `status` is ok or failed where the command ended by itself, and `exit_code` is its own."
)
