"""The command as users run it: another process, with a data directory of this test's own."""

import contextlib
import os
import pty
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import runner
from runner.model import Record, SessionInfo, SessionState, Status, Verdict

START_S = 30.0


def a_session(session_id: str = "s-1") -> SessionInfo:
    """A session that is open."""
    return SessionInfo(
        id=session_id,
        state=SessionState.OPEN,
        image="sha256:" + "ab" * 32,
        runtime=None,
        workspace="/some/where\x1b[31m",
        managed=False,
        read_only=False,
        kept=True,
        container_id=None,
        created_at=time.time(),
        used_at=time.time(),
        idle_timeout_s=60.0,
        expires_at=time.time() + 3600,
        options={"carrier": "auto", "limits": {"pids": 256}},
        marker="5ec2e7",
    )


_DENIED = Record(
    call_id="",
    session_id="s-1",
    tool="bash",
    arguments='{"command":"ls"}',
    verdict=Verdict.DENY,
    rule="deny[0]",
    reason="not here",
    policy="",
    status=Status.DENIED,
    exit_code=None,
    output="",
    error="bash: not here",
    started_at=0.0,
    duration_s=0.0,
    timeout_s=60.0,
)


def a_record(call_id: str, **changes: Any) -> Record:
    """A call that was denied just now, but for what is said of it."""
    return replace(_DENIED, call_id=call_id, started_at=time.time(), **changes)


class Cli:
    """Runs `python -m runner`. Call it with the words of a command line."""

    def __init__(self, data_dir: Path, runtime_dir: Path, directory: Path):
        self.data_dir = data_dir
        self.directory = directory
        self.environment = {
            **os.environ,
            "RUNNER_DATA_DIR": str(data_dir),
            "RUNNER_RUNTIME_DIR": str(runtime_dir),
            "PYTHONPATH": str(Path(runner.__file__).parents[1]),
            "COLUMNS": "100",
        }

    def __call__(
        self, *words: str, environment: dict[str, str] | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        options = {"stdin": subprocess.DEVNULL, **options} if "input" not in options else options
        return subprocess.run(
            [sys.executable, "-m", "runner", *words],
            text=True,
            capture_output=True,
            timeout=START_S,
            check=False,
            cwd=self.directory,
            env={**self.environment, **(environment or {})},
            **options,
        )

    def on_terminal(self, *words: str, code: str = "") -> tuple[int, str]:
        """Run it, or a piece of Python, on a terminal of 60 columns: status and all it shows."""
        ours, theirs = pty.openpty()
        command = ["-c", code] if code else ["-m", "runner", *words]
        running = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            cwd=self.directory,
            env={**self.environment, "COLUMNS": "60", "TERM": "xterm"},
        )
        os.close(theirs)
        shown = b""
        # A terminal whose other end is closed is an error to read, not an end of file.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 65536):
                shown += piece
        os.close(ours)
        return running.wait(timeout=START_S), shown.decode().replace("\r\n", "\n")

    def start(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start it, its output in pipes."""
        return subprocess.Popen(
            [sys.executable, "-m", "runner", *words],
            **{
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "cwd": self.directory,
                "env": self.environment,
                **options,
            },
        )


@pytest.fixture(scope="session")
def images(docker_daemon: None, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The images are there, so that no test sees them being built."""
    directory = tmp_path_factory.mktemp("images")
    done = subprocess.run(
        [sys.executable, "-m", "runner", "run", "-q", "true"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "RUNNER_DATA_DIR": str(directory)},
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(autouse=True)
def need_images(request: pytest.FixtureRequest) -> None:
    """Docker tests need the images besides."""
    if request.node.get_closest_marker("docker"):
        request.getfixturevalue("images")


@pytest.fixture
def cli(clean_environment: None, tmp_path: Path) -> Iterator[Cli]:
    """The command, with no records yet."""
    directory = tmp_path / "here"
    directory.mkdir()
    runtime_dir = Path(tempfile.mkdtemp(prefix="rr-", dir="/tmp"))  # a socket's path must be short
    yield Cli(tmp_path / "data", runtime_dir, directory)
    shutil.rmtree(runtime_dir)
