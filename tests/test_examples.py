"""Every example runs as its first lines say, and shows what it is there to show."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]


def run(name: str, data_dir: Path) -> str:
    """Run an example with records of its own; what it printed."""
    environment = {**os.environ, "RUNNER_DATA_DIR": str(data_dir)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_is_tried_here_or_with_its_integration() -> None:
    here = {"demo.py", "library.py", "custom_tool.py"}
    modules = (Path(__file__).parent / "integrations").glob("test_*.py")
    elsewhere = "".join(module.read_text(encoding="utf-8") for module in modules)

    untried = {
        path.name
        for path in EXAMPLES.glob("*.py")
        if path.name not in here and f'"{path.name}"' not in elsewhere
    }

    assert untried == set()


def test_the_demo_shows_all_tools_a_denial_a_time_limit_and_the_record(tmp_path: Path) -> None:
    version = EXAMPLES.parent / "runner" / "version.py"
    before = version.read_bytes()

    shown = run("demo.py", tmp_path / "data")

    work, _, record = shown.partition("The record of all that:")
    for tool in ("read", "write", "edit", "grep", "bash"):
        assert f"> {tool} {{" in work
    assert "bash: nothing is fetched from the network in this session" in work
    assert "Network is unreachable" in work
    assert "part 1 of 9" in work
    assert "part 9 of 9\n" not in work
    assert "bash: timed out after 1.5s" in work
    assert "no sleep is running" in work
    assert record.count("tool.execute") == 8
    assert record.count("tool.denied") == 1
    assert "runner audit verify" in record
    assert version.read_bytes() == before, "it works on a copy"


def test_the_library_example_shows_a_failure_a_denial_and_a_stream(tmp_path: Path) -> None:
    lines = run("library.py", tmp_path / "data").splitlines()

    assert lines[:4] == [
        "hello from /workspace/greet.py",
        "bash: exit status 3",
        "failed 3",
        "bash: pushing is for people; leave the branch as it is",
    ]
    streamed, result = lines[4:-1], lines[-1]
    assert streamed
    assert all(line.startswith("Output(text=") for line in streamed)
    assert result.startswith("ToolResult(")


def test_the_custom_tool_is_described_run_checked_and_decided_like_any_other(
    tmp_path: Path,
) -> None:
    shown = run("custom_tool.py", tmp_path / "data")

    assert '"name": "outline"' in shown
    assert "1 ClassDef Greeter\n2 FunctionDef greet\n" in shown
    assert "outline: no such file or directory" in shown
    assert 'outline: path must be absolute, got "greeter.py"' in shown
    assert "bash: denied by pattern policy" in shown
