"""Servers, on the fake engine and as processes, and the SDK's own client to drive them."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters

import runner
from runner import AsyncRunner, Policy, Registry, Settings
from runner.app import DATABASE
from runner.mcp_server.asking import Asker
from runner.mcp_server.server import ToolServer
from runner.store import Store
from runner.testing import FakeEngine
from tests.conftest import make_settings
from tests.host import SOON_S

OLD, NEW = "legacy", "2026-07-28"
"""The two revisions, as the client's modes: 2025-11-25, by its handshake, and the newer one."""

Serve = Callable[..., AbstractAsyncContextManager[ToolServer]]


@pytest.fixture
def quick(tmp_path: Path) -> Settings:
    """Settings under which nobody waits long for progress."""
    return make_settings(tmp_path / "data", mcp_progress_s=0.02)


@pytest.fixture
def serve(quick: Settings) -> Serve:
    """A server with what a test wants of it, for as long as a context lasts."""

    @asynccontextmanager
    async def serving(
        policy: str = "default",
        *,
        tools: Registry | None = None,
        engine: FakeEngine | None = None,
        settings: Settings | None = None,
        options: dict[str, Any] | None = None,
        **how: Any,
    ) -> AsyncIterator[ToolServer]:
        async with AsyncRunner(
            Policy.parse(policy) if ":" in policy else policy,
            approver=Asker(),
            tools=tools,
            engine=engine or FakeEngine(),
            settings=settings or quick,
        ) as opened:
            server = ToolServer(opened, options or {}, **how)
            try:
                yield server
            finally:
                await server.close()

    return serving


@pytest.fixture(params=[OLD, NEW])
def revision(request: pytest.FixtureRequest) -> str:
    """Both revisions of the protocol."""
    return str(request.param)


def client(server: ToolServer, revision: str, **more: Any) -> Client:
    """The SDK's client, in this process."""
    return Client(server.lowlevel, mode=revision, cache=None, **more)


def text(result: types.CallToolResult) -> str:
    """What a model is shown."""
    (content,) = (item for item in result.content if isinstance(item, types.TextContent))
    return content.text


def answering(
    *answers: types.ElicitResult, asked: list[types.ElicitRequestParams] | None = None
) -> Any:
    """A person behind a client, who gives these answers, one after another."""
    waiting = list(answers)

    async def answer(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        if asked is not None:
            asked.append(params)
        return waiting.pop(0)

    return answer


def says(**content: str) -> types.ElicitResult:
    """A form that was filled in."""
    return types.ElicitResult(action="accept", content=dict(content))


class Command:
    """`runner mcp`, with records of its own and a directory to work in."""

    def __init__(self, data_dir: Path, workspace: Path):
        self.settings: Settings = make_settings(data_dir)
        self.workspace = workspace
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RUNNER_")},
            "XDG_CONFIG_HOME": str(data_dir / "config"),
            "RUNNER_DATA_DIR": str(data_dir),
            "RUNNER_RUNTIME_DIR": str(self.settings.runtime_dir),
            "RUNNER_MCP_PROGRESS_S": "0.05",
            "PYTHONPATH": str(Path(runner.__file__).parents[1]),
        }

    def words(self, *more: str) -> list[str]:
        return [sys.executable, "-m", "runner", "mcp", "-q", "-w", str(self.workspace), *more]

    def client(self, mode: str, *more: str, **how: Any) -> Client:
        program, *arguments = self.words(*more)
        server = StdioServerParameters(
            command=program, args=arguments, env=self.environment, cwd=self.workspace
        )
        return Client(server, mode=mode, cache=None, **how)

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self.words(*more), stdin=pipe, stdout=pipe, stderr=pipe, env=self.environment
        )

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Another command of the runner's."""
        return subprocess.run(
            [sys.executable, "-m", "runner", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=SOON_S,
            env=self.environment,
        )

    def store(self) -> contextlib.closing[Store]:
        return contextlib.closing(Store.open(self.settings.data_dir / DATABASE))


@pytest.fixture
def command(clean_daemon: None, tmp_path: Path, short_directory: Path) -> Iterator[Command]:
    workspace = tmp_path / "work"
    workspace.mkdir()
    made = Command(tmp_path / "data", workspace)
    yield made
    shutil.rmtree(made.settings.runtime_dir, ignore_errors=True)
