"""The checks that Inspect has for sandboxes, all of them, on a real session."""

from collections.abc import AsyncIterator
from types import SimpleNamespace

import anyio
import pytest
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from runner.integrations.inspect import RousseauConfig

from .sandboxes import opened

pytestmark = [
    pytest.mark.docker,
    # The checks have no mark of their own.
    pytest.mark.anyio,
]


@pytest.fixture(scope="module")
async def shared(
    docker_daemon: None, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[SandboxEnvironment]:
    # One of the checks runs as root; see test_inspect.py for what becomes of it without.
    async with opened(RousseauConfig(users=True), tmp_path_factory.mktemp("data")) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox_env(shared: SandboxEnvironment, monkeypatch: pytest.MonkeyPatch) -> SandboxEnvironment:
    # They give what is over its time some seconds to end. Here nothing is left at once.
    monkeypatch.setattr(self_check, "anyio", SimpleNamespace(sleep=lambda _: anyio.sleep(0)))
    return shared
