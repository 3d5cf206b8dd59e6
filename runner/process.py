"""Names of processes that stay theirs after they have ended. Linux only.

Ends no process and waits for none.

A pid alone is soon somebody else's. An identity is the pid together with what makes it
unique: the boot, the pid namespace in which it counts, and the process's start time.
"""

import os
from pathlib import Path

from runner.errors import ConfigurationError

_PROC = Path("/proc")


def process_identity() -> str:
    """The identity of this process: `BOOT:NAMESPACE:PID:START`, printable ASCII without spaces.

    Ask again after a fork: the child is another process.

    Raises:
        ConfigurationError: `/proc` can't be read; there is none outside Linux.
    """
    try:
        boot, namespace = _here()
        pid = os.getpid()
        _, start = _stat(pid)
    except OSError as error:
        raise ConfigurationError(
            f"this process can't be told from others, which needs Linux's /proc: {error}"
        ) from error
    return f"{boot}:{namespace}:{pid}:{start}"


def process_alive(identity: str) -> bool | None:
    """Whether the process of `process_identity` still runs; None where nobody here can tell.

    A zombie has ended, though its parent does not know yet. A process of an earlier boot
    has ended. One of another pid namespace (another container) can't be seen from here,
    nor one that `/proc` hides from this user; and a text that is not an identity says
    nothing about any process.
    """
    boot, separator, rest = identity.partition(":")
    namespace, _, rest = rest.partition(":")
    pid, _, start = rest.partition(":")
    if not (separator and pid.isdecimal() and pid.isascii() and start):
        return None
    try:
        boot_here, namespace_here = _here()
    except OSError:
        return None
    if boot != boot_here:
        return False
    if namespace != namespace_here:
        return None
    try:
        state, start_here = _stat(int(pid))
    except (FileNotFoundError, ProcessLookupError):
        return None if _exists(int(pid)) else False
    except OSError:
        return None
    return start == start_here and state not in "ZX"


def _here() -> tuple[str, str]:
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    # `pid:[4026531836]`
    namespace = (_PROC / "self/ns/pid").readlink().name.strip("pid:[]")
    return boot, namespace


def _stat(pid: int) -> tuple[str, str]:
    """State and start time (clock ticks since the boot): the fields 3 and 22 of `stat`."""
    stat = (_PROC / str(pid) / "stat").read_bytes()
    # The second field is the program's name in parentheses, which may itself hold anything.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return fields[0].decode("ascii"), fields[19].decode("ascii")


def _exists(pid: int) -> bool:
    """Whether the pid is taken, by the one answer that `hidepid` does not falsify."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
