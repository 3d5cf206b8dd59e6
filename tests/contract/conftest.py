"""The engines that one suite holds for: the fake that tests use, and the real daemon."""

import secrets
from collections.abc import AsyncIterator

import pytest

from runner.docker_engine import DockerEngine
from runner.engine import Engine
from runner.images import ensure_image
from runner.testing import FakeEngine


@pytest.fixture(params=["fake", pytest.param("docker", marks=pytest.mark.docker)])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    """An engine with the default image in it."""
    made: Engine = FakeEngine() if request.param == "fake" else DockerEngine()
    await ensure_image(made, "sandbox", lambda line: None)
    yield made
    await made.close()


@pytest.fixture
async def mark(engine: Engine) -> AsyncIterator[str]:
    """A label's value of this test alone; whatever bears it is removed afterwards."""
    mark = secrets.token_hex(8)
    yield mark
    for container in await engine.containers({LABEL: mark}):
        await engine.remove(container.id)
    for volume in await engine.volumes(f"{LABEL}={mark}"):
        await engine.remove_volume(volume.name)
    for image in await engine.images(f"{LABEL}={mark}"):
        for ref in image.tags or (image.id,):
            await engine.remove_image(ref)


LABEL = "rousseau-runner.test"
