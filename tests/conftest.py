"""What every test may use: settings and runners of its own, on a daemon that CI must have."""

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from runner import Runner, Session, Settings, logs

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


# A shell that starts the tests in the background has them ignore these; what they start must not.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        handler = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
        signal.signal(number, handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI everything is there that a test may ask for: one that is skipped has failed."""
    report = yield
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but CI must run every test: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of the person who runs the tests reaches them."""
    for name in list(os.environ):
        if name.startswith("RUNNER_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    # The command line, tested in this process, says where events go: for itself only.
    monkeypatch.setattr(logs, "_write", logs._standard)


@pytest.fixture(scope="session")
def docker_daemon() -> None:
    """Docker answers. Elsewhere a test that needs it is skipped without; in CI it fails."""
    found = subprocess.run(
        ["docker", "version", "--format", "{{.Server.Version}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode != 0:
        if os.environ.get("CI"):
            pytest.fail(f"Docker must be there in CI: {found.stderr}")
        pytest.skip("needs a Docker daemon")


@pytest.fixture(autouse=True)
def need_docker(request: pytest.FixtureRequest) -> None:
    """`@pytest.mark.docker` is enough to say that a test needs it."""
    if request.node.get_closest_marker("docker"):
        request.getfixturevalue("docker_daemon")


@pytest.fixture
def anyio_backend() -> str:
    """The library runs on asyncio."""
    return "asyncio"


@pytest.fixture(scope="session")
def shared_data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory for tests that do not look at records of others."""
    return tmp_path_factory.mktemp("data")


def make_settings(data_dir: Path, **overrides: Any) -> Settings:
    """Settings whose records and sockets are the test's own."""
    return Settings.read(data_dir=data_dir, runtime_dir=_short_dir(data_dir), **overrides)


def _short_dir(data_dir: Path) -> Path:
    """A socket's path may have 107 bytes; pytest's own directories are too deep for some."""
    # The same in every process that is given this data directory.
    return Path("/tmp") / f"rr-{hashlib.sha256(str(data_dir).encode()).hexdigest()[:10]}"


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """A directory for sockets of the test's own."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """Settings of this test alone."""
    made = make_settings(tmp_path / "data")
    yield made
    shutil.rmtree(made.runtime_dir, ignore_errors=True)


@pytest.fixture
def clean_daemon(docker_daemon: None, settings: Settings) -> Iterator[None]:
    """A test that fails leaves no container of its own settings behind."""
    yield
    owner = hashlib.sha256(os.fsencode(settings.data_dir)).hexdigest()[:16]
    label = f"label=rousseau-runner.owner={owner}"
    listing = ["docker", "ps", "--all", "--quiet", "--filter", label]
    found = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split()
    if found:
        subprocess.run(["docker", "rm", "--force", *found], check=True, capture_output=True)


@pytest.fixture(params=["socket", "attach"], scope="module")
def carrier(request: pytest.FixtureRequest) -> str:
    """Both ways for frames to reach a container."""
    return str(request.param)


@pytest.fixture(scope="module")
def docker_runner(docker_daemon: None, shared_data_dir: Path) -> Iterator[Runner]:
    """A runner that allows everything, on the real daemon."""
    with Runner("default", settings=make_settings(shared_data_dir)) as runner:
        yield runner


@pytest.fixture(scope="module")
def session(docker_runner: Runner, carrier: str) -> Iterator[Session]:
    """A session for a whole module, once over each carrier, on a workspace of its own."""
    with docker_runner.session(carrier=carrier) as session:
        yield session


OpenSession = Callable[..., Session]


@pytest.fixture
def open_session(docker_runner: Runner, carrier: str) -> Iterator[OpenSession]:
    """Open sessions for one test alone; they are closed after it."""
    opened: list[Session] = []

    def open_one(**options: Any) -> Session:
        opened.append(docker_runner.session(**{"carrier": carrier, **options}))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()
