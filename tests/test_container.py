"""A session's real container: every lock, as the daemon sees it and as it is from inside."""

import errno
import json
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from runner import Runner, Session, Status
from runner.images import DEFAULT_IMAGE
from runner.settings import Limits
from tests.conftest import OpenSession, make_settings

pytestmark = pytest.mark.docker

KIB, MIB, GIB = 1024, 1024**2, 1024**3


def inspect(session: Session) -> dict[str, Any]:
    done = subprocess.run(
        ["docker", "inspect", str(session.info.container_id)], capture_output=True, check=True
    )
    (found,) = json.loads(done.stdout)
    return dict(found)


@pytest.fixture(scope="module")
def inspected(session: Session) -> dict[str, Any]:
    return inspect(session)


def at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value[name]
    return value


# As the daemon sees it.

SETTINGS: list[tuple[str, Any]] = [
    ("HostConfig.CapDrop", ["ALL"]),
    ("HostConfig.Privileged", False),
    ("HostConfig.SecurityOpt", ["no-new-privileges:true"]),
    ("HostConfig.ReadonlyRootfs", True),
    ("HostConfig.NetworkMode", "none"),
    ("HostConfig.Memory", 512 * MIB),
    ("HostConfig.MemorySwap", 512 * MIB),
    ("HostConfig.NanoCpus", 10**9),
    ("HostConfig.PidsLimit", 256),
    ("HostConfig.ShmSize", 64 * MIB),
    ("HostConfig.IpcMode", "private"),
    ("HostConfig.CgroupnsMode", "private"),
    ("HostConfig.PidMode", ""),
    ("HostConfig.UTSMode", ""),
    ("HostConfig.LogConfig.Type", "none"),
    ("HostConfig.RestartPolicy.Name", "no"),
    ("HostConfig.Runtime", "runc"),
    ("Config.Healthcheck.Test", ["NONE"]),
    ("Config.Tty", False),
    ("Config.Hostname", "sandbox"),
    ("Path", "/.runner/bin/supervisor"),
]
NOTHING = [
    "CapAdd",
    "Binds",
    "Devices",
    "DeviceRequests",
    "DeviceCgroupRules",
    "ExtraHosts",
    "GroupAdd",
    "Links",
    "PortBindings",
    "Sysctls",
    "VolumesFrom",
    "OomKillDisable",
]


@pytest.mark.parametrize(("path", "expected"), SETTINGS, ids=lambda value: str(value)[:40])
def test_the_daemon_keeps_it_locked(inspected: dict[str, Any], path: str, expected: Any) -> None:
    assert at(inspected, path) == expected


@pytest.mark.parametrize("name", NOTHING)
def test_the_daemon_gives_it_nothing_more(inspected: dict[str, Any], name: str) -> None:
    assert not inspected["HostConfig"].get(name)


def test_ulimits_are_set(inspected: dict[str, Any]) -> None:
    limits = {limit["Name"]: limit for limit in inspected["HostConfig"]["Ulimits"]}

    assert {name: (limit["Soft"], limit["Hard"]) for name, limit in limits.items()} == {
        "nofile": (1024, 1024),
        "core": (0, 0),
        "fsize": (GIB, GIB),
    }


def test_it_runs_as_the_owner_of_its_workspace(inspected: dict[str, Any], session: Session) -> None:
    owner = Path(session.info.workspace).stat()

    assert inspected["Config"]["User"] == f"{owner.st_uid}:{owner.st_gid}"
    assert owner.st_uid != 0
    groups = session.bash("id -u; id -g; id -G").output.split()
    assert groups == [str(owner.st_uid), str(owner.st_gid), str(owner.st_gid)]


def test_a_few_mounts_and_no_more(
    inspected: dict[str, Any], session: Session, carrier: str
) -> None:
    found = {
        mount["Destination"]: (mount["Type"], mount["RW"], mount["Propagation"])
        for mount in inspected["Mounts"]
    }
    sources = {mount["Destination"]: mount["Source"] for mount in inspected["Mounts"]}

    expected = {
        "/workspace": ("bind", True, "rprivate"),
        "/.runner": ("volume", False, ""),
    }
    if carrier == "socket":
        expected["/.runner-io"] = ("bind", False, "rprivate")
    assert found == expected
    assert sources["/workspace"] == session.info.workspace
    assert not any("docker.sock" in source for source in sources.values())


def test_labels_say_whose_it_is_and_until_when(
    docker_runner: Runner, open_session: OpenSession, carrier: str
) -> None:
    session = open_session(tenant="acme", ttl_s=1000.0)
    labels = inspect(session)["Config"]["Labels"]
    ours = {key: value for key, value in labels.items() if key.startswith("rousseau-runner.")}

    assert ours["rousseau-runner.kind"] == "session"
    assert ours["rousseau-runner.session"] == session.id
    assert ours["rousseau-runner.tenant"] == "acme"
    assert ours["rousseau-runner.carrier"] == carrier
    assert len(ours["rousseau-runner.owner"]) == 16
    assert int(ours["rousseau-runner.expires"]) == pytest.approx(time.time() + 1000, abs=60)


def test_the_marker_of_its_stream_is_nowhere_to_be_seen(
    inspected: dict[str, Any], session: Session
) -> None:
    """What a conversation starts with is known to the store and the helper alone."""
    assert len(session.info.marker) == 32
    assert session.info.marker not in json.dumps(inspected)
    everything = "cat /proc/*/environ /proc/*/cmdline; find / -xdev 2>/dev/null; env"
    assert session.info.marker not in session.bash(f"{everything} | tr '\\0' '\\n'").text


# As it is from inside.


def mounts(session: Session) -> dict[str, tuple[str, set[str], list[str]]]:
    """By mount point: type of file system, options, and ways for other mounts in or out."""
    found = {}
    for line in session.bash("cat /proc/self/mountinfo").output.splitlines():
        before, _, after = line.partition(" - ")
        _, _, _, _, point, options, *travels = before.split()
        kind, _, more = after.split(" ", 2)
        found[point] = (kind, {*options.split(","), *more.split(",")}, travels)
    return found


def test_tmp_and_home_are_small_and_in_memory(session: Session) -> None:
    found = mounts(session)

    sizes = {"/tmp": 128 * MIB, "/var/tmp": 128 * MIB, "/home/sandbox": 64 * MIB}
    for point, size in sizes.items():
        kind, options, _ = found[point]
        assert kind == "tmpfs"
        assert {"rw", "nosuid", "nodev", f"size={size // KIB}k"} <= options
        assert "noexec" not in options
    owner = session.bash("stat -c '%u %a' ~ /tmp /var/tmp").output
    uid = Path(session.info.workspace).stat().st_uid
    assert owner == f"{uid} 700\n0 1777\n0 1777\n"


def test_tmp_and_home_may_be_without_programs(
    docker_daemon: None, carrier: str, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path, tmp_noexec=True)
    with Runner("default", settings=settings) as runner, runner.session(carrier=carrier) as session:
        found = mounts(session)
        directories = ("/tmp", "/var/tmp", "/home/sandbox")
        for directory in directories:
            assert "noexec" in found[directory][1]
            result = session.bash(f"cp /bin/true {directory}/true && {directory}/true")
            assert "Permission denied" in result.output
            assert result.exit_code == 126
        assert session.bash("cp /bin/true . && ./true").status is Status.OK, "the workspace may"


def test_no_mount_travels_from_it_to_the_host(session: Session, carrier: str) -> None:
    found = {point: travels for point, (_, _, travels) in mounts(session).items()}

    assert not [way for travels in found.values() for way in travels if way.startswith("shared:")]
    assert found["/workspace"] == [], "nor in, where directories of the host are shown"
    assert carrier == "attach" or found["/.runner-io"] == []


def test_only_a_few_places_can_be_written(session: Session) -> None:
    places = session.bash(
        "find / -path /proc -prune -o -type d -writable -print 2>/dev/null | sort"
    ).output.split()

    top = {place for place in places if not place.startswith(("/workspace/", "/tmp/", "/home/"))}
    top |= {"/home/sandbox"} & set(places)
    assert top == {"/dev/mqueue", "/dev/shm", "/home/sandbox", "/tmp", "/var/tmp", "/workspace"}


@pytest.mark.parametrize("path", ["/x", "/etc/x", "/usr/x", "/var/x", "/.runner/x", "/home/x"])
def test_everything_else_is_read_only(session: Session, path: str) -> None:
    assert "Read-only file system" in session.bash(f"touch {path}").output


def test_it_has_no_network(session: Session) -> None:
    interfaces = session.bash("tail -n +3 /proc/net/dev | cut -d: -f1").output.split()
    result = session.bash("curl -sS --max-time 2 http://1.1.1.1")

    assert interfaces == ["lo"]
    assert result.is_error


def test_it_is_alone(session: Session) -> None:
    """In its pid, ipc, uts, mount, network and cgroup namespaces."""
    kinds = ("cgroup", "ipc", "mnt", "net", "pid", "uts")
    inside = session.bash(f"cd /proc/self/ns; readlink {' '.join(kinds)}").output.split()

    outside = [str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in kinds]
    assert len(inside) == len(kinds)
    assert not set(inside) & set(outside)


def test_limits_are_those_that_were_asked_for(open_session: OpenSession) -> None:
    limits = Limits(
        memory_bytes=256 * MIB,
        cpus=0.5,
        pids=64,
        nofile=128,
        file_size_bytes=MIB,
        tmp_bytes=8 * MIB,
        home_bytes=4 * MIB,
    )
    session = open_session(limits=limits)
    host = inspect(session)["HostConfig"]

    assert (host["Memory"], host["MemorySwap"]) == (256 * MIB, 256 * MIB)
    assert (host["NanoCpus"], host["PidsLimit"]) == (5 * 10**8, 64)
    assert session.bash("ulimit -n; ulimit -Hn").output == "128\n128\n"
    assert session.bash("df --output=size -B1 /tmp ~ | tail -n 2").output.split() == [
        str(8 * MIB),
        str(4 * MIB),
    ]
    too_large = session.bash("head -c 2000000 /dev/zero > large; stat -c %s large")
    assert too_large.output.splitlines()[-1] == str(MIB)
    many = session.bash("for i in $(seq 100); do sleep 30 & done")
    assert "annot fork" in many.output
    assert session.bash("echo alive").output == "alive\n"


def test_a_processor_is_shared_as_was_asked(open_session: OpenSession) -> None:
    session = open_session(limits=Limits(cpus=0.2))
    spin = "import time\nend=time.time()+1\nwhile time.time()<end: pass\nprint(time.process_time())"

    used_s = float(session.bash(f"python3 -c '{spin}'").output)

    assert used_s < 0.6, "of a whole second, and a fifth was asked for"


# What the kernel is not asked in here.

SYSTEM_CALLS = """
import ctypes, json, mmap, os, platform, signal
libc = ctypes.CDLL(None, use_errno=True)
arm = platform.machine() == "aarch64"
numbers = {
    "userfaultfd": (323, 282), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "bpf": (321, 280), "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "setns": (308, 268), "clone3": (435, 435), "unshare": (272, 97), "clone": (56, 220),
    "socket": (41, 198),
}
NEWUSER = 0x10000000
arguments = {
    "userfaultfd": (1,), "keyctl": (0, -3, 0), "add_key": (0, 0, 0, 0, 0),
    "request_key": (0, 0, 0, 0), "bpf": (99, 0, 0), "perf_event_open": (0, 0, -1, -1, 0),
    "io_uring_setup": (1, 0), "io_uring_enter": (-1, 0, 0, 0, 0, 0),
    "io_uring_register": (-1, 0, 0, 0), "setns": (-1, 0), "clone3": (0, 0),
}
def call(name, *given):
    ctypes.set_errno(0)
    result = libc.syscall(numbers[name][arm], *(ctypes.c_long(value) for value in given))
    return ctypes.get_errno() if result < 0 else result
def apart(action):
    # In a process of its own: some of these change the one that asks.
    source, sink = os.pipe()
    if (child := os.fork()) == 0:
        os.write(sink, str(action()).encode())
        os._exit(0)
    os.close(sink)
    os.waitpid(child, 0)
    return int(os.read(source, 100) or -1)
def cloned():
    result = call("clone", NEWUSER | signal.SIGCHLD, 0, 0, 0, 0)
    if result == 0:
        os._exit(0)
    return result
def as_i386():
    # getpid, asked in the way of 32-bit programs, past the numbers of a filter for 64 bits.
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("b814000000cd80c3"))
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    return -ctypes.CFUNCTYPE(ctypes.c_int)(address)()
found = {name: apart(lambda: call(name, *given)) for name, given in arguments.items()}
found["unshare user"] = apart(lambda: call("unshare", NEWUSER))
found["clone user"] = apart(cloned)
found["AF_ALG"] = apart(lambda: call("socket", 38, 5, 0))
found["AF_VSOCK"] = apart(lambda: call("socket", 40, 1, 0))
found["AF_INET"] = apart(lambda: call("socket", 2, 1, 0))
if not arm:
    found["i386"] = apart(as_i386)
print(json.dumps(found))
"""
"""By call: its errno, or what it returned. (-1: the process died of it.)"""
DENIED: dict[str, int] = {
    "userfaultfd": errno.EPERM,
    "keyctl": errno.EPERM,
    "add_key": errno.EPERM,
    "request_key": errno.EPERM,
    "bpf": errno.EPERM,
    "perf_event_open": errno.EPERM,
    "io_uring_setup": errno.EPERM,
    "io_uring_enter": errno.EPERM,
    "io_uring_register": errno.EPERM,
    "setns": errno.EPERM,
    "clone3": errno.ENOSYS,
    "unshare user": errno.EPERM,
    "clone user": errno.EPERM,
    "AF_ALG": errno.EAFNOSUPPORT,
    "AF_VSOCK": errno.EAFNOSUPPORT,
    "i386": errno.EPERM,
}


@pytest.fixture(scope="module")
def asked(session: Session) -> dict[str, int]:
    """What the kernel answers in the session's container."""
    result = session.bash(f"python3 -c {shlex.quote(SYSTEM_CALLS)}")
    assert result.status is Status.OK, result.text
    return dict(json.loads(result.output))


@pytest.fixture(scope="module")
def asked_without_filters(session: Session) -> dict[str, int]:
    """What it answers in a container without any filter, to root."""
    options = ["--security-opt", "seccomp=unconfined", "--cap-add", "SYS_ADMIN", "--user", "root"]
    done = subprocess.run(
        ["docker", "run", "--rm", *options, DEFAULT_IMAGE, "python3", "-c", SYSTEM_CALLS],
        capture_output=True,
        check=True,
    )
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("call", DENIED)
def test_a_system_call_that_widens_the_kernels_surface_is_denied(
    call: str, asked: dict[str, int], asked_without_filters: dict[str, int]
) -> None:
    if call not in asked:
        assert call == "i386", "which other processors don't have"
        return
    assert asked[call] == DENIED[call]
    # Without filters another answer, where this kernel has the thing at all.
    lacking = (errno.ENOSYS, errno.EAFNOSUPPORT, -1)
    control = asked_without_filters[call]
    assert control != DENIED[call] or control in lacking


def test_what_programs_need_is_not_denied(asked: dict[str, int]) -> None:
    assert asked["AF_INET"] > 2, "a descriptor"


def test_there_are_two_filters(session: Session) -> None:
    """The daemon's own, and the helper's on top of it."""
    status = dict(
        line.split(":\t", 1)
        for line in session.bash("cat /proc/self/status").output.splitlines()
        if ":\t" in line
    )

    assert status["Seccomp"] == "2"
    assert status.get("Seccomp_filters", "2") == "2"
    assert status["NoNewPrivs"] == "1"


def test_threads_and_processes_start_as_elsewhere(session: Session) -> None:
    """Past the denial of `clone3`, which C libraries try first."""
    program = (
        "import os, subprocess, threading\n"
        "thread = threading.Thread(target=os.write, args=(1, b'thread '))\n"
        "thread.start(); thread.join(); subprocess.run(['echo', 'process'])"
    )
    assert session.bash(f"python3 -c {shlex.quote(program)}").output == "thread process\n"


def test_what_the_container_is_called_is_not_what_the_host_is_called(session: Session) -> None:
    assert session.bash("hostname 2>/dev/null || cat /etc/hostname").output == "sandbox\n"
