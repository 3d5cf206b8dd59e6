"""The Docker engine beyond the contract: what a container is made of, and trouble below.

What all engines do alike is in `contract`.
"""

import asyncio
import json
import logging
import re
import secrets
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.docker_engine import DockerEngine, _unreachable, container_config
from runner.engine import ContainerSpec, Mount
from runner.errors import EngineError, EngineUnavailable, ImageBuildError
from runner.images import DEFAULT_IMAGE, archive, ensure_image
from tests.contract.conftest import LABEL
from tests.contract.test_engine_contract import Reader
from tests.relay import Relay, refusal, relay

pytestmark = pytest.mark.anyio

PLAIN = ContainerSpec(image="image", command=("/program", "--flag", "argument"))


# What a container is made of.

LOCKED: list[tuple[str, Any]] = [
    ("Image", "image"),
    ("Entrypoint", ["/program"]),
    ("Cmd", ["--flag", "argument"]),
    ("User", "65532:65532"),
    ("Env", []),
    ("Labels", {}),
    ("WorkingDir", "/"),
    ("Hostname", "sandbox"),
    ("Healthcheck", {"Test": ["NONE"]}),
    ("OpenStdin", True),
    ("StdinOnce", False),
    ("Tty", False),
    ("AttachStdin", False),
    ("AttachStdout", False),
    ("AttachStderr", False),
    ("HostConfig.Binds", []),
    ("HostConfig.CapDrop", ["ALL"]),
    ("HostConfig.CgroupnsMode", "private"),
    ("HostConfig.Init", False),
    ("HostConfig.IpcMode", "private"),
    ("HostConfig.LogConfig", {"Type": "none", "Config": {}}),
    ("HostConfig.Memory", 512 * 1024**2),
    ("HostConfig.MemorySwap", 512 * 1024**2),
    ("HostConfig.Mounts", []),
    ("HostConfig.NanoCpus", 10**9),
    ("HostConfig.NetworkMode", "none"),
    ("HostConfig.PidsLimit", 256),
    ("HostConfig.Privileged", False),
    ("HostConfig.ReadonlyRootfs", True),
    ("HostConfig.RestartPolicy", {"Name": "no"}),
    ("HostConfig.SecurityOpt", ["no-new-privileges:true"]),
    ("HostConfig.ShmSize", 64 * 1024**2),
    ("HostConfig.Tmpfs", {}),
    (
        "HostConfig.Ulimits",
        [
            {"Name": "nofile", "Soft": 1024, "Hard": 1024},
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "fsize", "Soft": 1024**3, "Hard": 1024**3},
        ],
    ),
]


def flat(config: dict[str, Any]) -> dict[str, Any]:
    host = {f"HostConfig.{name}": value for name, value in config["HostConfig"].items()}
    return {**{name: value for name, value in config.items() if name != "HostConfig"}, **host}


@pytest.mark.parametrize(("name", "value"), LOCKED, ids=[name for name, _ in LOCKED])
def test_what_a_spec_does_not_name_is_locked(name: str, value: Any) -> None:
    assert flat(container_config(PLAIN))[name] == value


def test_nothing_is_set_that_is_not_in_the_table() -> None:
    """No capability, device, port, namespace of the host or other way out can slip in."""
    assert set(flat(container_config(PLAIN))) == {name for name, _ in LOCKED}


@pytest.mark.parametrize(
    ("changes", "name", "value"),
    [
        ({"user": "1000:1001"}, "User", "1000:1001"),
        ({"environment": {"A": "1", "B": "x=y"}}, "Env", ["A=1", "B=x=y"]),
        ({"labels": {"a": "b"}}, "Labels", {"a": "b"}),
        ({"command": ("/program",)}, "Cmd", []),
        ({"tmpfs": {"/tmp": "rw,size=1"}}, "HostConfig.Tmpfs", {"/tmp": "rw,size=1"}),
        ({"runtime": "runsc"}, "HostConfig.Runtime", "runsc"),
        ({"memory_bytes": 7}, "HostConfig.Memory", 7),
        ({"memory_bytes": 7}, "HostConfig.MemorySwap", 7),
        ({"cpus": 0.25}, "HostConfig.NanoCpus", 250_000_000),
        ({"pids": 32}, "HostConfig.PidsLimit", 32),
        ({"shm_bytes": 5}, "HostConfig.ShmSize", 5),
        ({"capabilities": ("KILL", "CHOWN")}, "HostConfig.CapAdd", ["KILL", "CHOWN"]),
        ({"writable": True}, "HostConfig.ReadonlyRootfs", False),
        (
            {"mounts": (Mount("bind", "/host", "/inside"),)},
            "HostConfig.Mounts",
            [
                {
                    "Type": "bind",
                    "Source": "/host",
                    "Target": "/inside",
                    "ReadOnly": True,
                    "BindOptions": {"Propagation": "rprivate"},
                }
            ],
        ),
        (
            {"mounts": (Mount("volume", "name", "/inside", read_only=False, copy=True),)},
            "HostConfig.Mounts",
            [
                {
                    "Type": "volume",
                    "Source": "name",
                    "Target": "/inside",
                    "ReadOnly": False,
                    "VolumeOptions": {"NoCopy": False},
                }
            ],
        ),
        (
            {"mounts": (Mount("volume", "name", "/inside"),)},
            "HostConfig.Mounts",
            [
                {
                    "Type": "volume",
                    "Source": "name",
                    "Target": "/inside",
                    "ReadOnly": True,
                    "VolumeOptions": {"NoCopy": True},
                }
            ],
        ),
        (
            {"mounts": (Mount("bind", "/a b,c", "/inside", read_only=False, selinux="Z"),)},
            "HostConfig.Binds",
            ["/a b,c:/inside:rw,Z,rprivate"],
        ),
        (
            {"mounts": (Mount("bind", "/host", "/inside", selinux="z"),)},
            "HostConfig.Binds",
            ["/host:/inside:ro,z,rprivate"],
        ),
    ],
)
def test_what_a_spec_names_is_set(changes: dict[str, Any], name: str, value: Any) -> None:
    config = flat(container_config(replace(PLAIN, **changes)))
    assert config[name] == value
    changed = {key for key in config if key not in dict(LOCKED) or config[key] != dict(LOCKED)[key]}
    with_it = (
        {"HostConfig.Memory", "HostConfig.MemorySwap"} if "memory_bytes" in changes else {name}
    )
    assert changed == with_it  # and nothing else


def test_a_relabelled_mount_is_in_one_list_only() -> None:
    mounts = (Mount("bind", "/a", "/x", selinux="z"), Mount("bind", "/b", "/y"))
    config = flat(container_config(replace(PLAIN, mounts=mounts)))
    assert [mount["Source"] for mount in config["HostConfig.Mounts"]] == ["/b"]
    assert len(config["HostConfig.Binds"]) == 1


def test_a_path_that_a_relabelled_mount_can_not_say_is_refused() -> None:
    mounts = (Mount("bind", "/a:/etc", "/x", selinux="z"),)
    with pytest.raises(EngineError, match="colon"):
        container_config(replace(PLAIN, mounts=mounts))


def test_a_configuration_is_made_anew_each_time() -> None:
    first = container_config(PLAIN)
    first["HostConfig"]["CapDrop"].clear()
    assert container_config(PLAIN)["HostConfig"]["CapDrop"] == ["ALL"]


# On the real daemon.


@pytest.fixture
async def engine() -> AsyncIterator[DockerEngine]:
    made = DockerEngine()
    await ensure_image(made, "sandbox", lambda line: None)
    yield made
    await made.close()


@pytest.fixture
async def container(engine: DockerEngine) -> AsyncIterator[Callable[..., Awaitable[str]]]:
    """Makes containers, and removes them after the test."""
    mark = secrets.token_hex(8)

    async def make(*command: str, **changes: Any) -> str:
        spec = ContainerSpec(image=DEFAULT_IMAGE, command=command, labels={LABEL: mark})
        return await engine.create(replace(spec, **changes))

    yield make
    for found in await engine.containers({LABEL: mark}):
        await engine.remove(found.id)


@pytest.mark.docker
async def test_the_daemon_takes_every_locked_setting(
    container: Callable[..., Awaitable[str]],
) -> None:
    made = await container("/bin/true")
    output = subprocess.run(["docker", "inspect", made], capture_output=True, check=True).stdout
    (state,) = json.loads(output)
    host = state["HostConfig"]
    for name, value in LOCKED:
        if name.startswith("HostConfig."):
            said = host.get(name.removeprefix("HostConfig."))
            if isinstance(value, dict) and value:
                assert said == {**said, **value}, name
            else:
                assert said == value or (not said and not value), name
    assert host["CapAdd"] in (None, [])
    assert not host["Devices"]
    assert not host["PortBindings"]
    assert (host["PidMode"], host["UTSMode"], host["UsernsMode"]) == ("", "", "")
    assert state["Config"]["User"] == "65532:65532"


@pytest.mark.docker
async def test_standard_error_stays_out_of_the_stream_and_is_remembered(
    engine: DockerEngine, container: Callable[..., Awaitable[str]]
) -> None:
    made = await container("/bin/sh", "-c", "echo out; echo err >&2; read x; echo $x; echo e2 >&2")
    carrier = await engine.attach(made)
    await engine.start(made)
    reader = Reader(carrier)
    carrier.send(b"said\n")
    await reader.until(lambda: reader.ends)
    assert reader.received == b"out\nsaid\n"
    assert carrier.diagnostics == "err\ne2\n"


@pytest.mark.docker
async def test_a_stream_to_a_container_that_talks_already_starts_at_a_whole_piece(
    engine: DockerEngine, container: Callable[..., Awaitable[str]]
) -> None:
    made = await container("/bin/sh", "-c", "while :; do echo 0123456789abcdef; done")
    await engine.start(made)
    for _ in range(15):
        carrier = await engine.attach(made)
        reader = Reader(carrier)
        await reader.until(lambda: len(reader.received) > 20_000)  # noqa: B023
        carrier.close()
        assert re.fullmatch(
            rb"[0-9a-f]*\n?(0123456789abcdef\n)*[0-9a-f]*", bytes(reader.received[:20_000])
        )


@pytest.mark.docker
async def test_the_user_the_limits_and_the_locks_hold_inside(
    engine: DockerEngine, container: Callable[..., Awaitable[str]]
) -> None:
    script = (
        "id -u; ulimit -n; ulimit -c; grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' "
        "/proc/self/status; hostname; ls /sys/class/net; touch /x 2>&1"
    )
    made = await container("/bin/sh", "-c", script)
    carrier = await engine.attach(made)
    await engine.start(made)
    reader = Reader(carrier)
    await reader.until(lambda: reader.ends)
    said = reader.received.decode().split()
    assert said[:3] == ["65532", "1024", "0"]
    assert "CapEff: 0000000000000000 CapBnd: 0000000000000000 NoNewPrivs: 1" in " ".join(said)
    assert said[said.index("Seccomp:") + 1] == "2"
    assert said[said.index("sandbox") + 1] == "lo"
    assert "Read-only file system" in reader.received.decode()


@pytest.mark.docker
async def test_a_build_that_fails_says_which_and_shows_the_end_of_its_output(
    engine: DockerEngine,
) -> None:
    lines: list[str] = []
    ref = f"runner-test/{secrets.token_hex(8)}:x"
    dockerfile = f"FROM {DEFAULT_IMAGE}\nRUN echo about to fail && exit 7\n"
    with pytest.raises(ImageBuildError, match=f"building {ref} failed.*7") as caught:
        await engine.build(
            archive({"Dockerfile": dockerfile.encode()}),
            ref,
            labels={},
            arguments={},
            on_line=lines.append,
        )
    assert "about to fail" in caught.value.__notes__[0]
    assert await engine.image(ref) is None


@pytest.mark.docker
@pytest.mark.parametrize("mistake", [{"name": "not a name!"}, {"image": "NOT AN IMAGE"}])
async def test_what_the_daemon_refuses_is_an_error_of_ours(
    container: Callable[..., Awaitable[str]], mistake: dict[str, Any]
) -> None:
    with pytest.raises(EngineError, match="Docker refused"):
        await container("/bin/true", **mistake)


@pytest.mark.docker
async def test_a_program_that_can_not_be_started_is_an_error_of_the_start(
    engine: DockerEngine, container: Callable[..., Awaitable[str]]
) -> None:
    made = await container("/no/such/program")
    with pytest.raises(EngineError, match="/no/such/program"):
        await engine.start(made)


# A daemon that comes and goes, by way of a relay.


@pytest.fixture
def daemon(docker_daemon: None, short_directory: Path) -> Iterator[Relay]:
    with relay(short_directory) as made:
        yield made


@pytest.fixture
async def far(daemon: Relay) -> AsyncIterator[DockerEngine]:
    """An engine behind the relay, connected."""
    made = DockerEngine(daemon.url)
    await made.version()
    daemon.requests.clear()
    yield made
    await made.close()


@pytest.mark.docker
@pytest.mark.parametrize("fate", ["drop", "refuse"])
@pytest.mark.parametrize(
    ("ask", "request_"),
    [
        (lambda engine: engine.container("none"), "GET"),
        (lambda engine: engine.containers({"none": ""}), "GET"),
        (lambda engine: engine.image("none:none"), "GET"),
        (lambda engine: engine.images("none"), "GET"),
        (lambda engine: engine.volume("none"), "GET"),
        (lambda engine: engine.volumes("none"), "GET"),
        (lambda engine: engine.kill("none"), "POST"),
        (lambda engine: engine.remove("none"), "DELETE"),
        (lambda engine: engine.remove_image("none:none"), "DELETE"),
        (lambda engine: engine.remove_volume("none"), "DELETE"),
    ],
)
async def test_what_may_be_repeated_survives_transient_trouble_and_the_log_tells(
    far: DockerEngine,
    daemon: Relay,
    fate: Any,
    ask: Callable[[DockerEngine], Awaitable[Any]],
    request_: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    daemon.next(fate, fate)
    with caplog.at_level(logging.WARNING):
        assert not await ask(far)
    assert daemon.count(request_) == 3
    assert caplog.text.count("engine.retry") == 2


@pytest.mark.docker
@pytest.mark.parametrize("fate", ["drop", "refuse"])
@pytest.mark.parametrize(
    ("ask", "request_"),
    [
        (lambda engine: engine.create(PLAIN), "POST"),
        (lambda engine: engine.start("none"), "POST"),
        (lambda engine: engine.attach("none"), "POST"),
    ],
    ids=["create", "start", "attach"],
)
async def test_what_may_not_be_repeated_is_asked_once(
    far: DockerEngine,
    daemon: Relay,
    fate: Any,
    ask: Callable[[DockerEngine], Awaitable[Any]],
    request_: str,
) -> None:
    daemon.next(fate)
    with pytest.raises(EngineError) as caught:
        await ask(far)
    assert daemon.count(request_) == 1
    assert isinstance(caught.value, EngineUnavailable) == (fate == "drop")


@pytest.mark.docker
async def test_output_right_behind_the_daemon_s_answer_is_not_lost(
    far: DockerEngine, daemon: Relay
) -> None:
    """The HTTP reader takes it in with the answer's head; without it all that follows is skewed."""
    head = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
    daemon.answer = head + b"\1\0\0\0\0\0\0\x05early" + b"\1\0\0\0\0\0\0\x05 late"
    daemon.next("refuse")
    reader = Reader(await far.attach("any"))
    await reader.until(lambda: reader.ends)
    assert reader.received == b"early late"


@pytest.mark.docker
async def test_a_refusal_that_is_not_transient_is_not_repeated(
    far: DockerEngine, daemon: Relay
) -> None:
    daemon.answer = refusal(500, b'{"message":"out of order"}')
    daemon.next("refuse")
    with pytest.raises(EngineError, match="Docker refused: out of order"):
        await far.container("none")
    assert daemon.count("GET") == 1


@pytest.mark.docker
@pytest.mark.parametrize("body", [b"{}", b'{"error":"a proxy\'s"}', b"<html>", b""])
async def test_a_refusal_in_words_that_are_not_docker_s_is_an_error_of_ours(
    far: DockerEngine, daemon: Relay, body: bytes
) -> None:
    daemon.answer = refusal(503, body)
    daemon.next("refuse", "refuse", "refuse")
    with pytest.raises(EngineError, match="Docker refused: "):
        await far.container("none")
    assert daemon.count("GET") == 3  # transient all the same


@pytest.mark.docker
async def test_retries_end_and_the_error_says_what_to_do(far: DockerEngine, daemon: Relay) -> None:
    daemon.stop()
    started = time.monotonic()
    with pytest.raises(
        EngineUnavailable, match=r"there is no Docker daemon at .*install"
    ) as caught:
        await far.containers({})
    assert str(daemon.path) in str(caught.value)
    assert time.monotonic() - started < 5


@pytest.mark.docker
async def test_an_engine_works_again_when_its_daemon_does(far: DockerEngine, daemon: Relay) -> None:
    daemon.stop()
    with pytest.raises(EngineUnavailable):
        await far.container("none")
    daemon.listen()
    assert await far.container("none") is None


@pytest.mark.docker
async def test_requests_from_many_tasks_at_once_share_one_engine(daemon: Relay) -> None:
    engine = DockerEngine(daemon.url)
    answers = await asyncio.gather(*(engine.container("none") for _ in range(30)))
    assert answers == [None] * 30
    assert daemon.count("GET /version") <= 1
    await engine.close()


async def test_a_daemon_that_is_too_old_is_refused_with_its_version(short_directory: Path) -> None:
    with relay(short_directory) as old:
        old.answer = refusal(200, b'{"ApiVersion":"1.40","Version":"19.03"}')
        old.next("refuse", "refuse")
        engine = DockerEngine(old.url)
        with pytest.raises(EngineError, match=r"API 1\.40.*20\.10"):
            await engine.version()
        await engine.close()


async def test_nothing_connects_before_the_first_request() -> None:
    engine = DockerEngine("unix:///nowhere/docker.sock")
    await engine.close()
    with pytest.raises(EngineUnavailable, match=r"/nowhere/docker\.sock: install"):
        await engine.version()
    await engine.close()


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (PermissionError(13, "Permission denied"), "group `docker`"),
        (FileNotFoundError(2, "No such file or directory"), "apt-get install docker.io"),
        (ConnectionRefusedError(111, "Connection refused"), "systemctl start docker"),
        (OSError("odd"), "can't be reached: odd"),
    ],
)
def test_each_way_to_miss_the_daemon_has_its_advice(error: OSError, advice: str) -> None:
    text = str(_unreachable("unix:///x.sock", error))
    assert advice in text
    assert "unix:///x.sock" in text


def test_docker_s_own_variables_are_docker_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///elsewhere.sock")
    assert DockerEngine()._where() == "unix:///elsewhere.sock"
    assert DockerEngine("unix:///given.sock")._where() == "unix:///given.sock"
    monkeypatch.delenv("DOCKER_HOST")
    assert DockerEngine()._where() == "unix:///var/run/docker.sock"
