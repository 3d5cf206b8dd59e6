"""What tests see from the host: containers, leftovers, and other processes of the runner."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from runner import Session, Settings

ROOT = Path(__file__).parents[1]
SOON_S = 20.0
"""What takes longer than this will not happen; a machine in heavy use needs some of it."""


def docker(*arguments: str) -> str:
    """The output of Docker's own command."""
    return subprocess.run(
        ["docker", *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def inspect(container: str) -> dict[str, Any]:
    """All that the daemon knows of a container."""
    (found,) = json.loads(docker("inspect", container))
    assert isinstance(found, dict)
    return found


def owner_of(settings: Settings) -> str:
    """What marks the containers of a data directory."""
    return hashlib.sha256(os.fsencode(settings.data_dir)).hexdigest()[:16]


def containers(settings: Settings) -> list[str]:
    """Names of all containers of a data directory, running or not."""
    label = f"label=rousseau-runner.owner={owner_of(settings)}"
    return sorted(docker("ps", "--all", "--filter", label, "--format", "{{.Names}}").split())


def leftovers(settings: Settings) -> dict[str, list[str]]:
    """What is there of sessions of a data directory, by kind; kinds without any are left out."""
    found = {
        "containers": containers(settings),
        "workspaces": _names(settings.data_dir / "workspaces"),
        "leases": _names(settings.data_dir / "leases"),
        "sockets": _names(settings.runtime_dir),
    }
    return {kind: names for kind, names in found.items() if names}


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


def wait_until(condition: Callable[[], Any], timeout_s: float = SOON_S) -> Any:
    """Wait until something is true, and return it."""
    give_up = time.monotonic() + timeout_s
    while True:
        if found := condition():
            return found
        if time.monotonic() > give_up:
            raise AssertionError("it did not come true in time")
        time.sleep(0.02)


def programs(session: Session) -> list[str]:
    """Command lines of the processes in a session's container, the looking ones left out."""
    script = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $f; echo; done 2>/dev/null"
    result = session.bash(script)
    return [line.strip() for line in result.output.splitlines() if "/proc/" not in line]


def runs(session: Session, program: str) -> bool:
    """Whether a program with exactly this command line runs in the session's container."""
    return program in programs(session)


PRELUDE = """
import os, sys, threading, time
from pathlib import Path
from runner import Runner, Settings
settings = Settings.read(data_dir=Path({data!r}), runtime_dir=Path({runtime!r}))

def say(*words):
    print(*words, flush=True)

def hold():
    sys.stdin.read()

"""


class Process:
    """Another process that uses the runner."""

    def __init__(self, settings: Settings, code: str):
        prelude = PRELUDE.format(data=str(settings.data_dir), runtime=str(settings.runtime_dir))
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", prelude + code],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def hears(self) -> str:
        """The next line that it says."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the process ended with status {self._process.wait()}"
        return line.strip()

    def hears_all(self) -> str:
        """The rest of what it says, until its end."""
        assert self._process.stdout is not None
        rest = self._process.stdout.read()
        assert self._process.wait() == 0
        return rest

    def let_go(self) -> None:
        """End what it waits for in `hold`."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def ends(self) -> int:
        """Wait for its end; its status."""
        return self._process.wait(SOON_S * 2)

    def kill(self) -> None:
        """End it as nothing else could."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Kill it unless it has ended."""
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


@contextlib.contextmanager
def process(settings: Settings, code: str) -> Iterator[Process]:
    """A process that runs `code`, in which `settings`, `say` and `hold` are defined."""
    made = Process(settings, code)
    try:
        yield made
    finally:
        made.close()
