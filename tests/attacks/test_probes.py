"""Probes for ways out of the container, each with a control that shows that it could fail.

The control is a deliberately weak container: root with capabilities, no filter, the host's
network, cgroups and Docker socket, a device, a secret. A probe counts if what holds in a
session's container does not hold there. It is not `--privileged`, which a daemon that lacks a
capability itself can't start; where the daemon's own locks would hide something, the control
first opens them, as it has the rights to.
"""

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer, ExecConfig

from runner import Runner, Session
from runner.images import DEFAULT_IMAGE
from tests.attacks.corpus import Row, rows
from tests.conftest import make_settings

pytestmark = pytest.mark.docker

AF_VSOCK = 40
DEVICES = {"null", "zero", "full", "random", "urandom", "tty"}
NO_LIMIT = 2**60
"""Version 1 of cgroups says a number of this size where version 2 says `max`."""


@dataclass(frozen=True)
class Probe:
    """What a row's command may show, and how the control differs."""

    holds: Callable[[str], bool]
    """Whether this output shows that the container holds. The control's must not."""
    command: str | None = None
    """Instead of the row's, where this kernel keeps things elsewhere."""
    control: str | None = None
    """In the control instead, where the row's command would do harm there, or has to find
    something first."""
    can_fail: Callable[[], bool] = lambda: True
    """Whether this kernel has what the row is about."""


def _no_root(output: str) -> bool:
    uid, groups = output.splitlines()
    return uid != "0" and "0" not in groups.split()


def _only_harmless_devices(output: str) -> bool:
    found = re.findall(r"^[cb]\S+ .* (\S+)$", output, re.MULTILINE)
    return bool(found) and set(found) <= DEVICES


def _few_processes_of_ours(output: str) -> bool:
    count, _, first = output.partition("\n")
    return int(count) < 20 and "/.runner/" in first


def _limits(output: str) -> bool:
    if not re.fullmatch(r"(\d+\s+)+", output) or len(output.split()) < 4:
        return False
    memory, swap, *others = map(int, output.split())
    # Version 2 counts swap alone, version 1 memory and swap together.
    return swap in (0, memory) and all(0 < value < NO_LIMIT for value in (memory, *others))


def _read_only_cgroups(output: str) -> bool:
    paths = re.findall(r"^\d+:[^:]*:(.*)$", output, re.MULTILINE)
    return output.count("Read-only file system") >= 1 and set(paths) == {"/"}


def _has_limits(output: str) -> bool:
    files, core, size, *_ = output.splitlines()
    return (files, core) == ("1024", "0") and size.isdigit()


def _no_descriptor_leads_out(output: str) -> bool:
    return "/proc/1/fd': Permission denied" in output and "can't cd" in output


def _nothing_shared(output: str) -> bool:
    segments = re.findall(r"^0x", output, re.MULTILINE)
    files = output.partition("/dev/mqueue:")[2].partition("/dev/shm:")
    return not segments and not files[0].strip() and not files[2].strip()


def has_vsock() -> bool:
    try:
        socket.socket(AF_VSOCK, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True


CGROUP = "cd /sys/fs/cgroup; [ ! -d pids ] || cd pids; "
"""Where version 2 has everything, and version 1 what is about processes."""
LIMITS = (
    "cd /sys/fs/cgroup; cat memory.max memory.swap.max pids.max cpu.max 2>/dev/null"
    " || cat memory/memory.limit_in_bytes memory/memory.memsw.limit_in_bytes"
    " pids/pids.max cpu/cpu.cfs_quota_us"
)
OPEN_ONLY = (
    "for f in /proc/sys/kernel/core_pattern /proc/sysrq-trigger; do"
    " { true >> $f; } 2>&1 && echo open; done"
)
"""Opens for writing and writes nothing: what the row writes would hit the host."""
NAME = "secret.evil.example"
SECRET_NAMES = re.compile(r"key|token|secret", re.IGNORECASE)

PROBES: dict[str, Probe] = {
    "CE-001": Probe(_no_root),
    "CE-002": Probe(lambda output: re.findall(r"\t(\w+)", output) == ["0" * 16] * 5),
    "CE-003": Probe(lambda output: output.strip() == "NoNewPrivs:\t1"),
    "CE-004": Probe(lambda output: "Seccomp:\t2\n" in output),
    "CE-006": Probe(lambda output: output.count("Read-only file system") == 3),
    "CE-008": Probe(lambda output: output.count("No such file or directory") == 3),
    "CE-009": Probe(lambda output: output.count("Operation not permitted") == 2),
    "CE-011": Probe(
        lambda output: "open" not in output.split("\n"),
        control=f"mount -o remount,bind,rw /proc/sys; {OPEN_ONLY}",
    ),
    "CE-012": Probe(lambda output: all("cat: /proc/" in line for line in output.splitlines())),
    "CE-013": Probe(_only_harmless_devices),
    "CE-014": Probe(_few_processes_of_ours),
    "CE-016": Probe(lambda output: output.count("Network is unreachable") >= 2),
    "CE-017": Probe(lambda output: not re.search(rf"\s{re.escape(NAME)}", output)),
    "CE-019": Probe(lambda output: "Address family not supported" in output, can_fail=has_vsock),
    "CE-022": Probe(_limits, command=LIMITS),
    "CE-023": Probe(
        _read_only_cgroups,
        command=f"{CGROUP} mkdir x 2>&1; echo 0 > pids.max 2>&1; cat /proc/self/cgroup",
        control=f"{CGROUP} mount -o remount,bind,rw .; mkdir x; rmdir x; cat /proc/self/cgroup",
    ),
    "CE-024": Probe(_has_limits),
    "CE-026": Probe(lambda output: not SECRET_NAMES.search(output)),
    "CE-028": Probe(
        lambda output: "/tmp/s: Permission denied" in output and "ran\n" not in output,
    ),
    "CE-029": Probe(
        _no_descriptor_leads_out,
        # `cd` alone shortens the path by its letters and looks at no descriptor.
        command="ls -la /proc/self/fd; ls -la /proc/1/fd 2>&1;"
        " cd -P /proc/self/fd/8/../../.. 2>&1 && ls",
    ),
    "CE-031": Probe(_nothing_shared),
    "CE-032": Probe(lambda output: output == "-1 1\n"),
}
ROWS = set(PROBES)


@contextmanager
def weak_container(**options: Any) -> Iterator[Callable[[str], str]]:
    """A container without any lock; yields what runs a command in it."""
    testcontainers_config.ryuk_disabled = True  # no registry has its image
    container = DockerContainer(DEFAULT_IMAGE, command="sleep infinity")
    container.with_env("API_TOKEN", "a-secret").with_kwargs(
        user="root",
        cap_add=["SYS_ADMIN", "SYS_PTRACE", "MKNOD", "NET_ADMIN"],
        devices=["/dev/kmsg"],
        security_opt=["seccomp=unconfined", "apparmor=unconfined"],
        network_mode="host",
        cgroupns="host",
        extra_hosts={NAME: "127.0.0.1"},
        **options,
    ).with_volume_mapping("/var/run/docker.sock", "/var/run/docker.sock", "rw")

    def run(command: str) -> str:
        config = ExecConfig(["sh", "-c", command], user="root", workdir="/tmp")
        return container.exec(config).output.decode(errors="replace")

    try:
        with container:
            yield run
    finally:
        container.get_docker_client().client.close()


@pytest.fixture(scope="module")
def weak(docker_runner: Runner, session: Session) -> Iterator[Callable[[str], str]]:
    """The control; the session has seen to it that the image is there."""
    with weak_container() as run:
        yield run


@pytest.fixture(scope="module")
def weak_among_others(docker_runner: Runner, session: Session) -> Iterator[Callable[[str], str]]:
    """A control that sees the processes of the host."""
    with weak_container(pid_mode="host") as run:
        yield run


@pytest.fixture(scope="module")
def session_without_programs_in_tmp(
    docker_daemon: None, carrier: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    settings = make_settings(tmp_path_factory.mktemp("noexec"), tmp_noexec=True)
    with Runner("default", settings=settings) as runner, runner.session(carrier=carrier) as one:
        yield one


@pytest.fixture
def listening() -> Iterator[int]:
    """A port of the host's loopback where somebody answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def in_control(row: Row, port: int) -> str:
    """The command for the control."""
    probe = PROBES[row.id]
    command = probe.control or probe.command or row.command
    match row.id:
        case "CE-016":  # nobody has those addresses here; this one has a listener
            return re.sub(r"/dev/tcp/[\d.]+/\d+", f"/dev/tcp/127.0.0.1/{port}", command)
        case "CE-012":  # masked there, too, but the mask can be taken off
            masks = "/proc/kcore /proc/keys /proc/timer_list /sys/firmware"
            return f"umount {masks} 2>/dev/null; {command}"
        case "CE-029":  # what a runtime that leaks a descriptor would leave
            return f"exec 8</usr/share; {command}"
        case "CE-031":
            return f"ipcmk -M 4096 >/dev/null; touch /dev/shm/x; {command}"
        case "CE-032":  # a process of its own: its first one is needed
            return "sleep 9 >/dev/null 2>&1 & " + command.replace("ptrace(16,1,", "ptrace(16,$!,")
    return command


@pytest.mark.parametrize("row", [row for row in rows() if row.id in PROBES], ids=lambda row: row.id)
def test_the_container_holds_and_the_probe_could_fail(
    row: Row,
    session: Session,
    session_without_programs_in_tmp: Session,
    weak: Callable[[str], str],
    weak_among_others: Callable[[str], str],
    listening: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOST_API_TOKEN", "a-secret")
    probe = PROBES[row.id]
    tested = session_without_programs_in_tmp if row.id == "CE-028" else session
    against = weak_among_others if row.id == "CE-014" else weak

    if probe.control is not None:
        assert probe.holds(tested.bash(probe.control).output), "it would do harm: not tried"
    result = tested.bash(probe.command or row.command)
    control = against(in_control(row, listening))

    assert probe.holds(result.output), result.output
    assert not probe.can_fail() or not probe.holds(control), control


def test_what_the_host_sets_is_as_it_was(session: Session) -> None:
    """After the row that writes to it."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    (row,) = (row for row in rows() if row.id == "CE-011")

    result = session.bash(row.command)

    assert result.is_error
    assert Path("/proc/sys/kernel/core_pattern").read_text() == pattern != "x\n"
