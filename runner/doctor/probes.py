"""What an agent could try inside a container, and what must come of it.

Owns the scripts, the limits that they go against, and what their output shows. Opens no
session: each probe is given one's sandbox.

A judge is told what a script did by the container, which is not trusted. A probe therefore
finds limits that do not hold by mistake; it proves nothing of an image that lies.
"""

from collections.abc import Callable
from dataclasses import dataclass

from runner.answers import RequestFailed, RunResult
from runner.doctor.check import Check, State
from runner.errors import RunnerError, SandboxLost
from runner.sandbox import Sandbox
from runner.settings import Limits

__all__ = ["PROBES", "PROBE_LIMITS", "PROBE_S", "Probe", "Verdict"]

PROBE_S = 20.0
"""How long one trial may take; the slowest is a shell that retries to fork for 15 s."""
PROBE_LIMITS = Limits(
    memory_bytes=128 * 1024**2,
    cpus=0.5,
    pids=40,
    nofile=100,
    file_size_bytes=1024**2,
    tmp_bytes=4 * 1024**2,
    home_bytes=1024**2,
)
"""Small, so that going over them takes no time and harms nobody where they do not hold."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a trial shows: that it holds, or what there is instead."""

    holds: bool
    finding: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Something that an agent could try, and what must come of it."""

    name: str
    script: str
    judge: Callable[[RunResult, str], Verdict]
    """Given what the script did and its output as text."""
    severity: State
    """What it means if it does not hold."""
    advice: str
    loss_holds: str = ""
    """What it means that the container was lost under it; empty: nothing good."""

    async def examine(self, sandbox: Sandbox) -> Check:
        """Try it."""
        try:
            result = await sandbox.run(self.script, deadline_s=PROBE_S, background="kill")
        except SandboxLost as error:
            if self.loss_holds:
                return Check(self.name, State.OK, f"{self.loss_holds} ({error})")
            return Check(self.name, State.FAILED, f"could not be tried: {error}")
        except (RequestFailed, RunnerError) as error:
            return Check(self.name, State.FAILED, f"could not be tried: {error}")
        verdict = self.judge(result, result.output.decode(errors="replace"))
        if verdict.holds:
            return Check(self.name, State.OK, verdict.finding)
        return Check(self.name, self.severity, verdict.finding, self.advice)


# What a script did shows whether a limit holds.


def _status(text: str) -> dict[str, str]:
    """The lines of /proc/self/status."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _judge_privileges(result: RunResult, text: str) -> Verdict:
    status = _status(text)
    held = [name for name in ("CapEff", "CapPrm", "CapBnd") if int(status.get(name, "1"), 16)]
    uid = status.get("Uid", "?").split()[0]
    if held:
        return Verdict(False, f"calls have capabilities ({held[0]} {status.get(held[0], '?')})")
    if status.get("NoNewPrivs") not in ("1", None):
        return Verdict(False, "programs can gain privileges (no_new_privs is off)")
    return Verdict(True, f"calls run as uid {uid}, without any capability, and can gain none")


def _judge_seccomp(result: RunResult, text: str) -> Verdict:
    status = _status(text)
    filters = int(status.get("Seccomp_filters", "2"))
    if status.get("Seccomp") != "2":
        return Verdict(False, "system calls are not filtered")
    if filters < 2:
        return Verdict(False, "only Docker's filter of system calls is on, not the runner's own")
    return Verdict(True, "system calls are filtered, by Docker's profile and the runner's own")


def _judge_network(result: RunResult, text: str) -> Verdict:
    others = sorted({line.strip() for line in text.splitlines() if line.strip()} - {"lo"})
    if result.exit_code != 0:
        return Verdict(False, f"the network can't be looked at: {_last_line(text)}")
    if others:
        return Verdict(False, f"a session has network interfaces: {', '.join(others)}")
    return Verdict(True, "a session has none but loopback")


def _judge_root(result: RunResult, text: str) -> Verdict:
    match text.split():
        case [*_, "refused"]:
            return Verdict(True, "read-only")
        case ["written"]:
            return Verdict(False, "the container's root file system can be written")
    return Verdict(False, f"could not be tried: {_last_line(text)}")


def _judge_memory(result: RunResult, text: str) -> Verdict:
    limit = PROBE_LIMITS.memory_bytes // 1024**2
    if result.oom_killed or result.signal == 9 or result.exit_code == 137:
        return Verdict(True, f"holds: a process that took more than {limit} MiB was killed")
    if result.exit_code == 0:
        return Verdict(False, f"does not hold: a process took half as much again as {limit} MiB")
    if result.ended == "timed_out":
        return Verdict(False, f"could not be tried: it was not over within {PROBE_S:g} s")
    return Verdict(False, f"could not be tried: {_last_line(text)}")


def _judge_swap(result: RunResult, text: str) -> Verdict:
    limit, _, swaps = text.partition("\n")
    heading, *areas = swaps.splitlines() or [""]
    none_here = heading.startswith("Filename") and not areas
    if limit.strip() in ("0", str(PROBE_LIMITS.memory_bytes)):
        return Verdict(True, "holds: a session gets none")
    if none_here:
        return Verdict(True, "this machine has none")
    return Verdict(False, f"a session may use this machine's swap (limit {limit.strip()!r})")


def _judge_pids(result: RunResult, text: str) -> Verdict:
    if "made all" in text:
        return Verdict(False, f"does not hold: 100 processes at a limit of {PROBE_LIMITS.pids}")
    # In the words of dash, busybox and bash; the last retries for longer than it is given.
    if "fork" in text.lower():
        return Verdict(True, f"holds: no more than {PROBE_LIMITS.pids} processes could be started")
    return Verdict(False, f"could not be tried: {_last_line(text)}")


def _judge_cpu(result: RunResult, text: str) -> Verdict:
    used = _seconds_of_children(text)
    limit = PROBE_LIMITS.cpus
    if used is None:
        return Verdict(False, f"could not be tried: {_last_line(text)}")
    finding = f"two busy loops got {used:.2f} s of a second, at a limit of {limit:g}"
    # A quarter of a period more than its share is what the kernel may grant at the edges.
    if used > limit * 1.5 or "max " in text or text.startswith("-1"):
        return Verdict(False, f"does not hold: {finding}")
    return Verdict(True, f"holds: {finding}")


def _seconds_of_children(text: str) -> float | None:
    """From the second line of the shell's `times`: `0m0.25s 0m0.01s`."""
    words = text.split()[-2:]
    total = 0.0
    for word in words:
        minutes, separator, rest = word.rstrip("s").partition("m")
        if not separator:
            return None
        try:
            total += 60 * int(minutes) + float(rest)
        except ValueError:
            return None
    return total if words else None


def _judge_open_files(result: RunResult, text: str) -> Verdict:
    found = text.split()
    wanted = str(PROBE_LIMITS.nofile)
    if found == [wanted, wanted]:
        return Verdict(True, f"holds: {wanted} of {wanted} asked for, and a program can't raise it")
    return Verdict(False, f"is {' '.join(found) or 'unknown'}, not {wanted}")


def _judge_written(what: str, limit_bytes: int) -> Callable[[RunResult, str], Verdict]:
    def judge(result: RunResult, text: str) -> Verdict:
        words = text.split()
        if not words or not words[-1].isdecimal():
            return Verdict(False, f"could not be tried: {_last_line(text)}")
        written = int(words[-1])
        if written > limit_bytes:
            return Verdict(False, f"does not hold: {written} bytes {what}")
        return Verdict(True, f"holds: writing stopped at {written} bytes")

    return judge


def _judge_core(result: RunResult, text: str) -> Verdict:
    if text.strip() == "0":
        return Verdict(True, "none are written")
    return Verdict(False, f"up to {text.strip()} blocks are written into the workspace")


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2] or "the shell said nothing"


# The scripts: any `/bin/sh`, and no program that busybox lacks.

_CGROUPS = "kernel, cgroups or runtime do not enforce it (runsc: not with --ignore-cgroups)"
_TWO_LOOPS = (
    "cat /sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null;"
    " (while :; do :; done) & a=$!; (while :; do :; done) & b=$!;"
    " sleep 1; kill -9 $a $b; wait $a $b 2>/dev/null; times"
)
_SWAP = (
    "cat /sys/fs/cgroup/memory.swap.max 2>/dev/null"
    " || cat /sys/fs/cgroup/memory/memory.memsw.limit_in_bytes 2>/dev/null"
    " || echo unknown; cat /proc/swaps"
)
_SIX_FILES = (
    "for i in 1 2 3 4 5 6; do head -c 1000000 /dev/zero > /tmp/doctor$i || break; done 2>/dev/null;"
    " cat /tmp/doctor* | wc -c; rm -f /tmp/doctor*"
)
_BIG_FILE = (
    "(head -c 2097152 /dev/zero > /tmp/doctor) 2>/dev/null; wc -c < /tmp/doctor; rm -f /tmp/doctor"
)
_FORKS = "i=0; while [ $i -lt 100 ]; do sleep 9 & i=$((i+1)); done; echo made all"
_MEMORY = "head -c 201326592 /dev/zero | tail -c 201326592 > /dev/null"

PROBES: tuple[Probe, ...] = (
    Probe(
        "privileges",
        "cat /proc/self/status",
        _judge_privileges,
        State.FAILED,
        "another program changes the containers that this daemon makes: find it",
    ),
    Probe(
        "system calls",
        "cat /proc/self/status",
        _judge_seccomp,
        State.FAILED,
        "use a kernel with seccomp, and a daemon that does not run unconfined",
    ),
    Probe(
        "network",
        "ls /sys/class/net 2>/dev/null || sed -n 's/^ *\\([^:|]*\\):.*/\\1/p' /proc/net/dev",
        _judge_network,
        State.FAILED,
        "another program connects the containers that this daemon makes: find it",
    ),
    Probe(
        "root file system",
        "(: > /doctor) 2>/dev/null && echo written || echo refused",
        _judge_root,
        State.FAILED,
        "the runtime does not honour a read-only root: use another",
    ),
    Probe("limit: processes", _FORKS, _judge_pids, State.FAILED, _CGROUPS),
    Probe("limit: processors", _TWO_LOOPS, _judge_cpu, State.WARNING, _CGROUPS),
    Probe(
        "limit: swap",
        _SWAP,
        _judge_swap,
        State.WARNING,
        "turn swap accounting on: `swapaccount=1` for the kernel",
    ),
    Probe(
        "limit: open files",
        "ulimit -Sn; ulimit -Hn",
        _judge_open_files,
        State.WARNING,
        "the daemon's own limit is lower, or its runtime does not pass it on",
    ),
    Probe(
        "limit: file size",
        _BIG_FILE,
        _judge_written("in one file", PROBE_LIMITS.file_size_bytes),
        State.WARNING,
        "the runtime does not pass it on",
    ),
    Probe(
        "limit: /tmp",
        _SIX_FILES,
        _judge_written("in /tmp", PROBE_LIMITS.tmp_bytes),
        State.WARNING,
        "the runtime does not honour the size of a tmpfs",
    ),
    Probe(
        "limit: core dumps",
        "ulimit -Hc",
        _judge_core,
        State.WARNING,
        "the runtime does not pass it on",
    ),
    # The last, since a runtime may end the whole container for it.
    Probe(
        "limit: memory",
        _MEMORY,
        _judge_memory,
        State.FAILED,
        _CGROUPS,
        loss_holds="holds: the whole container was ended",
    ),
)
