"""What most integrations' tests use: one model server and one session a module, in Docker."""

from collections.abc import AsyncIterator, Iterator

import pytest

from runner import AsyncRunner, AsyncSession
from tests.conftest import make_settings

from .fake_models import FakeModels


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The library runs on asyncio; of a module's scope, as what is shared in one needs it."""
    return "asyncio"


@pytest.fixture(scope="module")
def models() -> Iterator[FakeModels]:
    """A model server; each test gives it a script."""
    with FakeModels() as server:
        yield server


@pytest.fixture(scope="module")
async def runner(
    request: pytest.FixtureRequest, docker_daemon: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[AsyncRunner]:
    """A runner with the extended tools, under the module's own `POLICY`."""
    settings = make_settings(tmp_path_factory.mktemp("data"))
    async with AsyncRunner(request.module.POLICY, settings=settings, tools="extended") as runner:
        yield runner


@pytest.fixture(scope="module")
async def session(runner: AsyncRunner) -> AsyncIterator[AsyncSession]:
    """One session of it, for tests that leave nothing behind that others mind."""
    async with runner.session() as session:
        yield session
