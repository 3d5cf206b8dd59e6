"""Any Linux image with a /bin/sh is good for a session, and one that isn't is told apart early."""

import hashlib
import io
import json
import secrets
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from runner import Runner, Session, Status
from runner.background import Shell
from runner.docker_engine import DockerEngine
from runner.errors import ImageUnusable
from runner.images import DEFAULT_IMAGE
from tests.conftest import OpenSession

pytestmark = pytest.mark.docker

NAME = f"rousseau-runner-test/{secrets.token_hex(4)}"
"""Of the images that this run makes: another may be under way beside it."""
LABEL = "rousseau-runner-test"
FETCH = (
    "cd /tmp && apt-get update >&2 && apt-get download busybox-static >&2"
    " && dpkg-deb --fsys-tarfile busybox-static_*.deb"
)


def docker(*arguments: str, input: bytes | None = None) -> bytes:
    done = subprocess.run(
        ["docker", *arguments], input=input, capture_output=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.fixture(scope="module")
def busybox(session: Session, pytestconfig: pytest.Config) -> bytes:
    """A shell and its tools in one static file: Debian's, fetched once.

    The session has seen to it that the default image, which can fetch packages, is there.
    """
    assert pytestconfig.cache is not None
    kept = pytestconfig.cache.mkdir("busybox") / "busybox"
    if not kept.exists():
        package = docker("run", "--rm", "--user", "root", DEFAULT_IMAGE, "sh", "-c", FETCH)
        with tarfile.open(fileobj=io.BytesIO(package)) as tar:
            member = tar.extractfile("./bin/busybox")
            assert member is not None
            kept.write_bytes(member.read())
    return kept.read_bytes()


Build = Callable[..., str]


@pytest.fixture(scope="module")
def build(busybox: bytes) -> Iterator[Build]:
    """Builds images with the busybox at hand; all are removed afterwards."""
    made: list[str] = []

    def one(name: str, dockerfile: str) -> str:
        ref = f"{NAME}-{name}:{len(made)}"
        context = tar_of({"Dockerfile": dockerfile.encode(), "busybox": busybox})
        anyio.run(partial(_build, context, ref))
        made.append(ref)
        return ref

    yield one
    for ref in reversed(made):
        docker("image", "rm", ref)


async def _build(context: bytes, ref: str) -> None:
    engine = DockerEngine()
    try:
        await engine.build(
            context, ref, labels={LABEL: NAME}, arguments={}, on_line=lambda line: None
        )
    finally:
        await engine.close()


def tar_of(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o755
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


BUSYBOX = """
FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
"""


@pytest.fixture(scope="module")
def busybox_image(build: Build) -> str:
    return build("busybox", BUSYBOX)


@pytest.fixture(scope="module")
def odd_image(build: Build, busybox_image: str) -> str:
    """Everything that an image can say of how it wants to be run is something else here."""
    return build(
        "odd",
        f"""
FROM {busybox_image}
ENV LD_PRELOAD=/nowhere/preload.so LD_LIBRARY_PATH=/nowhere PYTHONHOME=/nowhere \\
    PYTHONPATH=/nowhere PYTHONSTARTUP=/nowhere PATH=/nowhere HOME=/nowhere \\
    LC_ALL=xx_YY GLIBC_TUNABLES=glibc.malloc.check=3 MALLOC_PERTURB_=7 ENV=/nowhere/rc
VOLUME ["/data", "/workspace", "/tmp", "/var/lib/odd/"]
WORKDIR /not/there
EXPOSE 80
STOPSIGNAL SIGINT
HEALTHCHECK --interval=1s CMD ["/bin/touch", "/workspace/health-check-ran"]
USER nobody-knows
ENTRYPOINT ["/bin/false", "--entry"]
CMD ["--command"]
""",
    )


def all_five_tools_work(session: Session) -> None:
    assert session.write("/workspace/a/b.txt", "one\ntwo\n").output == (
        "wrote 8 bytes to /workspace/a/b.txt"
    )
    assert session.edit("/workspace/a/b.txt", "two", "zwei").status is Status.OK
    assert session.read("/workspace/a/b.txt").output == "one\nzwei\n"
    assert session.grep("zw.i").output == "/workspace/a/b.txt:2: zwei\n"
    result = session.bash('while read -r l; do echo "<$l>"; done < a/b.txt; exit 3')
    assert (result.output, result.exit_code) == ("<one>\n<zwei>\n", 3)


def the_shell_keeps_its_state(session: Session) -> None:
    async def say(*commands: str) -> list[tuple[bytes, int | None]]:
        sandbox = await session._session.sandbox()
        shell, said = Shell(), []
        for command in commands:
            said.append(
                await shell.run(sandbox, command, deadline_s=20.0, output_limit_bytes=10_000)
            )
        return [(one.output, one.exit_code) for one in said]

    kept, *broken, shown = session._portal.call(
        say, "cd /tmp; x=1; f() { echo $x; }", "fi", "echo 'a", "{ a", "(exit 7)", "pwd; f"
    )
    assert (kept, shown) == ((b"", 0), (b"/tmp\n1\n", 0))
    assert [exit_code for _, exit_code in broken] == [2, 2, 2, 7]


def test_the_default_image_is_good(session: Session) -> None:
    all_five_tools_work(session)


def test_an_image_of_nothing_but_busybox_is_good(
    open_session: OpenSession, busybox_image: str
) -> None:
    session = open_session(image=busybox_image)

    all_five_tools_work(session)
    the_shell_keeps_its_state(session)
    assert "BusyBox" in session.bash("busybox | head -n 1").output
    assert session.bash("python3 -V").exit_code == 127, "the image has no Python"
    cut = session.bash("sleep 300 & busybox setsid sleep 300 & echo on; sleep 300", timeout_s=2)
    assert (cut.status, cut.output) == (Status.TIMED_OUT, "on\n")
    assert "sleep" not in session.bash("ps -o args").output.replace("ps -o", "")


def test_an_image_with_ideas_of_its_own_is_good(open_session: OpenSession, odd_image: str) -> None:
    session = open_session(image=odd_image)

    all_five_tools_work(session)
    workspace = Path(session.info.workspace)
    assert (workspace / "a/b.txt").read_text() == "one\nzwei\n", "and no volume of the image's"
    shown = session.bash('echo "$LD_PRELOAD $LD_LIBRARY_PATH $PYTHONHOME $PATH $HOME $LC_ALL $PWD"')
    assert shown.output == (
        "/nowhere/preload.so /nowhere /nowhere /nowhere /home/sandbox xx_YY /workspace\n"
    )
    assert session.bash("/bin/id -u").output == f"{workspace.stat().st_uid}\n"
    assert "RUNNER_SET_ASIDE" not in session.bash("/bin/env").output
    assert "health-check-ran" not in session.bash("/bin/ls /workspace").output
    volumes = {mount["Name"] for mount in mounts(session) if mount["Type"] == "volume"}
    assert len(volumes) == 1, f"the toolbox, and no room on the host for the image: {volumes}"


def test_what_an_image_declares_as_volumes_can_be_written(
    open_session: OpenSession, odd_image: str
) -> None:
    session = open_session(image=odd_image)

    result = session.bash("echo a > /data/a && echo b > /var/lib/odd/b && echo c > /tmp/c; echo $?")

    assert result.output == "0\n"
    assert "Read-only file system" in session.bash("echo d > /d").output


def mounts(session: Session) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        docker("inspect", "-f", "{{json .Mounts}}", str(session.info.container_id))
    )
    return found


def test_a_variable_of_the_image_that_python_obeys_does_not_reach_the_helper(
    build: Build, open_session: OpenSession
) -> None:
    """With the C library of the default image, which obeys them too."""
    image = build(
        "variables",
        f"""
FROM {DEFAULT_IMAGE}
RUN echo /nowhere.so > /etc/ld.so.preload
ENV LD_PRELOAD=/nowhere.so LD_LIBRARY_PATH=/nowhere PYTHONHOME=/nowhere PYTHONPATH=/nowhere
""",
    )
    session = open_session(image=image)

    all_of_it = session.bash("echo hi; unset LD_PRELOAD PYTHONHOME; exec python3 -c 'print(1)'")

    lines = all_of_it.output.splitlines()
    assert [line for line in lines if not line.startswith("ERROR: ld.so: ")] == ["hi", "1"]
    assert session.write("/workspace/a", "a").status is Status.OK
    assert session.grep("a").output == "/workspace/a:1: a\n"


def test_a_file_that_would_give_more_rights_gives_none(
    build: Build, open_session: OpenSession
) -> None:
    image = build(
        "setuid",
        f"FROM {DEFAULT_IMAGE}\nRUN cp /usr/bin/id /usr/bin/root-id && chmod 4755 /usr/bin/root-id",
    )
    session = open_session(image=image)
    uid = Path(session.info.workspace).stat().st_uid

    assert docker("run", "--rm", "--user", "1234", image, "root-id", "-u") == b"0\n", "elsewhere"
    assert session.bash("root-id -u").output == f"{uid}\n"


@pytest.mark.parametrize("target", ["/etc", "../../../../../../etc"])
def test_a_workspace_that_the_image_makes_a_link_stays_in_the_container(
    build: Build, open_session: OpenSession, busybox_image: str, target: str
) -> None:
    link = f'RUN ["/bin/busybox", "ln", "-s", "{target}", "/workspace"]'
    session = open_session(image=build("linked", f"FROM {busybox_image}\n{link}"))

    assert session.write("/workspace/written", "a").status is Status.OK

    assert (Path(session.info.workspace) / "written").read_text() == "a"
    assert not Path("/etc/written").exists()


# Images that are no good, which is said before any call.


def refused(docker_runner: Runner, image: str) -> str:
    """What is said of an image; nothing is left of the attempt."""
    sessions = len(docker_runner.sessions())
    containers = running()

    with pytest.raises(ImageUnusable) as caught:
        docker_runner.session(image=image)

    assert len(docker_runner.sessions()) == sessions
    assert running() <= containers
    assert caught.value.code == "image_unusable"
    return str(caught.value)


def running() -> set[str]:
    mine = f"label={LABEL}={NAME}"
    return set(docker("ps", "-aq", "--filter", mine).decode().split())


def test_a_missing_image_is_said_to_be_missing(docker_runner: Runner, session: Session) -> None:
    message = refused(docker_runner, f"{NAME}-not-there:latest")

    assert message.startswith(f"there is no image '{NAME}-not-there:latest'")
    assert "docker build" in message


SHELLS = {
    "none": "",
    "directory": '["/busybox", "mkdir", "-p", "/bin/sh"]',
    "dangling link": '["/busybox", "ln", "-s", "/nowhere", "/bin/sh"]',
    "not executable": '["/busybox", "chmod", "644", "/bin/sh"]',
}


@pytest.mark.parametrize("step", SHELLS.values(), ids=SHELLS.keys())
def test_an_image_without_a_shell_is_refused(
    build: Build, docker_runner: Runner, step: str
) -> None:
    lines = ["FROM scratch", "COPY busybox /busybox"]
    if "chmod" in step:
        lines.append("COPY busybox /bin/sh")
    elif step:
        lines.append('RUN ["/busybox", "mkdir", "-p", "/bin"]')
    if step:
        lines.append(f"RUN {step}")
    image = build("shell-less", "\n".join(lines))

    assert "no /bin/sh" in refused(docker_runner, image)


@pytest.fixture
def foreign_image(busybox: bytes) -> Iterator[str]:
    """An image that says it is for another architecture: nothing here could run it."""
    ref = f"{NAME}-foreign:latest"
    layer = tar_of({"bin/sh": busybox})
    config = {
        "architecture": "s390x",
        "os": "linux",
        "config": {"Labels": {LABEL: NAME}},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created_by": "test"}],
    }
    manifest: list[dict[str, Any]] = [
        {"Config": "config.json", "RepoTags": [ref], "Layers": ["layer.tar"]}
    ]
    image = tar_of(
        {
            "config.json": json.dumps(config).encode(),
            "layer.tar": layer,
            "manifest.json": json.dumps(manifest).encode(),
        }
    )
    docker("load", input=image)
    yield ref
    docker("image", "rm", ref)


def test_an_image_for_another_architecture_is_refused(
    docker_runner: Runner, foreign_image: str
) -> None:
    message = refused(docker_runner, foreign_image)

    assert "s390x" in message


def test_a_program_for_another_architecture_is_the_calls_error(
    open_session: OpenSession, busybox_image: str, tmp_path: Path
) -> None:
    """Such a file may come with any workspace."""
    session = open_session(image=busybox_image)
    header = b"\x7fELF\x02\x02\x01" + b"\0" * 9 + (2).to_bytes(2) + (22).to_bytes(2) + b"\0" * 100
    program = Path(session.info.workspace) / "program"
    program.write_bytes(header)
    shutil.copymode("/bin/sh", program)

    result = session.bash("./program")

    assert result.exit_code in (126, 127, 2)
    assert session.bash("echo alive").output == "alive\n"
