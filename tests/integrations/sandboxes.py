"""Sandboxes as Inspect opens and closes them, for tests."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from runner.integrations.inspect import RousseauConfig, RousseauSandboxEnvironment
from tests.conftest import make_settings


@contextlib.contextmanager
def records_in(data_dir: Path) -> Iterator[None]:
    """Whoever reads settings meanwhile gets these directories."""
    settings = make_settings(data_dir)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNNER_DATA_DIR", str(settings.data_dir))
        patch.setenv("RUNNER_RUNTIME_DIR", str(settings.runtime_dir))
        yield


@contextlib.asynccontextmanager
async def opened(
    config: RousseauConfig, data_dir: Path
) -> AsyncIterator[RousseauSandboxEnvironment]:
    """The sandbox of one sample, in a task of its own."""
    kind = RousseauSandboxEnvironment
    with records_in(data_dir):
        await kind.task_init("task", config)
        sandboxes = await kind.sample_init("task", config, {"__sample_id__": "1"})
    try:
        yield sandboxes["default"].as_type(kind)
    finally:
        await kind.sample_cleanup("task", config, sandboxes, False)
        await kind.task_cleanup("task", config, True)
