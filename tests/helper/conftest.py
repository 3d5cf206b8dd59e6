"""Helpers of a test's own, and what they need."""

import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from runner.docker_engine import DockerEngine
from runner.images import ensure_toolbox
from runner.sandbox import Sandbox
from tests.helper.running import CGROUP, NAMESPACE, Helper, Run, Start, runs_on
from tests.host import docker


@pytest.fixture(scope="session")
def supervisor(docker_daemon: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toolbox's own, from the container that has filled its volume."""

    async def ensure() -> str:
        engine = DockerEngine()
        try:
            return await ensure_toolbox(engine, lambda line: None)
        finally:
            await engine.close()

    copy = tmp_path_factory.mktemp("toolbox") / "supervisor"
    docker("cp", f"{anyio.run(ensure)}:/.runner/bin/supervisor", str(copy))
    return copy


@pytest.fixture(scope="session")
def namespace() -> None:
    """A PID namespace may be made here. Elsewhere than in CI, tests are skipped without."""
    made = subprocess.run(
        [*NAMESPACE, "--", "sh", "-c", "mount --bind /proc /sys/fs/cgroup && echo $$"],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.stdout != "1\n":
        pytest.skip(f"no namespaces may be made here: {made.stderr}")


@pytest.fixture
def place(short_directory: Path) -> Path:
    """Where the helper of a test has its files; its socket, too, so that its name is short."""
    return short_directory


@pytest.fixture
def cgroup(place: Path) -> Path:
    """What the helper takes for its container's cgroup."""
    directory = place / "cgroup"
    directory.mkdir()
    for name, content in CGROUP.items():
        (directory / name).write_text(content)
    return directory


@pytest.fixture
def scratch(place: Path) -> Path:
    """What stands for /tmp/.runner."""
    return place / "scratch"


@pytest.fixture
def start(supervisor: Path, namespace: None, place: Path, cgroup: Path) -> Iterator[Start]:
    """Start helpers of this test's own."""
    made = Start(supervisor, place, cgroup)
    with made.ending:
        yield made


@pytest.fixture
def helper(start: Start) -> Helper:
    return start()


@pytest.fixture(params=["socket", "stdio"])
def how(request: pytest.FixtureRequest) -> str:
    """The two streams that a helper can have."""
    return str(request.param)


@pytest.fixture
def either(start: Start, how: str) -> Helper:
    """A helper with the one stream, and one with the other."""
    return start(how)


@pytest.fixture
async def sandbox(helper: Helper) -> AsyncIterator[Sandbox]:
    async with helper.sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def run(sandbox: Sandbox) -> Run:
    return runs_on(sandbox)
