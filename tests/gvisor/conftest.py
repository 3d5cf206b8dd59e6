"""gVisor must be there in CI; elsewhere its tests are skipped without."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner import Runner, Session
from tests.conftest import make_settings

RUNTIME = "runsc"


@pytest.fixture(scope="session", autouse=True)
def gvisor(docker_daemon: None) -> None:
    """The daemon has the runtime."""
    found = subprocess.run(
        ["docker", "info", "--format", "{{json .Runtimes}}"],
        check=True,
        capture_output=True,
    )
    if RUNTIME not in json.loads(found.stdout):
        if os.environ.get("CI"):
            pytest.fail(f"the daemon must have the runtime {RUNTIME} in CI")
        pytest.skip(f"needs the runtime {RUNTIME} in the Docker daemon")


@pytest.fixture(scope="module")
def gvisor_runner(gvisor: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    settings = make_settings(Path(tmp_path_factory.mktemp("gvisor")), runtime=RUNTIME)
    with Runner("default", settings=settings) as runner:
        yield runner


@pytest.fixture(scope="module")
def gvisor_session(gvisor_runner: Runner) -> Iterator[Session]:
    with gvisor_runner.session() as session:
        yield session
