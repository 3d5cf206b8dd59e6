"""Looking at the container's processes through /proc, and ending trees of them.

It knows pids and signals, nothing of calls or frames.
"""

import os
import signal
from typing import NamedTuple


class Process(NamedTuple):
    """One line of /proc, as far as it matters here."""

    pid: int
    parent: int
    state: str
    """One letter as in /proc/PID/stat: R running, S sleeping, D disk, T stopped, Z zombie."""


def snapshot() -> dict[int, Process]:
    """Every process of the container, by pid. One that ends meanwhile is left out."""
    found: dict[int, Process] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            descriptor = os.open(f"/proc/{name}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue  # it ended between the listing and here
        try:
            line = os.read(descriptor, 1024)
        except OSError:
            continue
        finally:
            os.close(descriptor)
        # The program's name stands in parentheses and may hold anything, parentheses included.
        state, parent = line[line.rfind(b")") + 2 :].split(None, 2)[:2]
        pid = int(name)
        found[pid] = Process(pid, int(parent), state.decode())
    return found


def below(root: int, processes: dict[int, Process]) -> list[Process]:
    """The living descendants of `root`, itself left out."""
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            waiting.append(child.pid)
            if child.state not in "ZX":
                found.append(child)
    return found


class Family:
    """Which processes belong to which call.

    A call's processes hang below its supervisor, which adopts those that lose their parent.
    Where the kernel knows no such adoption (gVisor before 2023) they go to the container's
    first process instead; then whatever came to it since a call began counts as the call's,
    so that nothing outlives the call that it may belong to.
    """

    def __init__(self, *, subreaper: bool):
        self.subreaper = subreaper
        self.supervisors: set[int] = set()

    def orphans(self, seen: dict[int, Process]) -> list[Process]:
        """Children of this process that are no supervisors."""
        me = os.getpid()
        return [
            process
            for process in seen.values()
            if process.parent == me
            and process.pid not in self.supervisors
            and process.state not in "ZX"
        ]

    def strangers(self) -> frozenset[int]:
        """Orphans there are before a call begins, which are not its own."""
        if self.subreaper:
            return frozenset()
        return frozenset(process.pid for process in self.orphans(snapshot()))

    def of(self, supervisor: int, strangers: frozenset[int]) -> list[Process]:
        """The living processes of a call.

        Once its supervisor is gone, all orphans count among them: they are of this call, or
        of another whose supervisor was killed.
        """
        seen = snapshot()
        found = below(supervisor, seen)
        if not self.subreaper or supervisor not in self.supervisors:
            for orphan in self.orphans(seen):
                if orphan.pid not in strangers:
                    found += (orphan, *below(orphan.pid, seen))
        return found

    def signal(self, supervisor: int, number: int) -> None:
        """Send a signal to a call's program and what it runs in the foreground.

        The supervisor gives its program a process group of its own, so that is the group. What
        else hangs off the supervisor are orphans it adopted, which are younger.
        """
        seen = snapshot().values()
        children = [process.pid for process in seen if process.parent == supervisor]
        started = [(age, pid) for pid in children if (age := _started(pid)) is not None]
        if supervisor in self.supervisors and started:
            _send(-min(started)[1], number)

    def end_orphans(self) -> bool:
        """End what supervisors that were killed from inside have left; whether there was any."""
        if not self.supervisors:
            end(-1)  # at one stroke, so that nothing gets away by forking
        seen = snapshot()
        orphans = self.orphans(seen)
        for orphan in orphans:
            for process in below(orphan.pid, seen):
                end(process.pid)
            end(orphan.pid)
        return bool(orphans)


def end(pid: int) -> None:
    """Send SIGKILL; a process that is gone already is what was wanted. -1: all but this one."""
    _send(pid, signal.SIGKILL)


def resume(pid: int) -> None:
    """Let a process go on that was stopped."""
    _send(pid, signal.SIGCONT)


def _started(pid: int) -> int | None:
    """When a process started, in ticks since the machine did; None where it has ended."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        line = os.read(descriptor, 1024)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return int(line[line.rfind(b")") + 2 :].split()[19])


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


class KernelCount:
    """How often the kernel did something to this container, from a file of its cgroup.

    Asked at every call, so the file stays open. Always 0 where the cgroup isn't shown.

    Args:
        wanted: The line's name, in a file of lines `NAME NUMBER`.
        paths: Where the file may be; the first that can be opened and has the line is it.
    """

    def __init__(self, wanted: bytes, *paths: str):
        self._wanted = wanted
        self._paths = paths
        self._descriptor: int | None = None

    def start(self) -> None:
        """Find the file."""
        for path in self._paths:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            if _counted(os.pread(descriptor, 4096, 0), self._wanted) is not None:
                self._descriptor = descriptor
                return
            os.close(descriptor)

    def count(self) -> int:
        """The number so far."""
        if self._descriptor is None:
            return 0
        return _counted(os.pread(self._descriptor, 4096, 0), self._wanted) or 0


OOM_KILLS = KernelCount(
    b"oom_kill", "/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"
)
"""Processes that were ended for memory; cgroup version 2, then 1."""
REFUSED_FORKS = KernelCount(b"max", "/sys/fs/cgroup/pids.events", "/sys/fs/cgroup/pids/pids.events")
"""Processes that were refused, since the container had all it may have."""


def _counted(content: bytes, wanted: bytes) -> int | None:
    """The number in a file of lines `NAME NUMBER`."""
    for line in content.splitlines():
        name, _, number = line.partition(b" ")
        if name == wanted:
            return int(number)
    return None
