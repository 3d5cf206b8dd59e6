"""The runners behind sandboxes: one for all samples of one configuration.

Owns when a runner is opened and closed. Inspect has no place of its own for what its classes of
sandboxes share, so this is kept here, by event loop and configuration.
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass

from inspect_ai._util.error import PrerequisiteError

from runner.client import AsyncRunner, AsyncSession
from runner.errors import RunnerError
from runner.integrations.inspect.config import DAY_S, RousseauConfig
from runner.logs import log

TENANT = "inspect_ai"
"""Marks the sessions that are Inspect's."""

OUTPUT_LIMIT_BYTES = 10 * 1024**2
"""Of each of a command's streams, this much comes back by itself: Inspect's limit, unless somebody
has raised that."""


@dataclass
class _Shared:
    runner: AsyncRunner
    users: int = 0


class Runners:
    """The runners of one event loop."""

    def __init__(self) -> None:
        self._open: dict[RousseauConfig, _Shared] = {}
        self._changing = asyncio.Lock()

    async def acquire(self, config: RousseauConfig) -> AsyncRunner:
        """The runner for a configuration, opened where it is not; `release` it once.

        Raises:
            PrerequisiteError: Settings or the policy can't be used, or the records not be opened.
        """
        async with self._changing:
            shared = self._open.get(config)
            if shared is None:
                try:
                    runner = AsyncRunner(
                        config.policy,
                        tools="extended",
                        timeout_s=DAY_S,
                        max_timeout_s=DAY_S,
                        output_limit_bytes=OUTPUT_LIMIT_BYTES,
                    )
                    await runner.__aenter__()
                except RunnerError as error:
                    raise PrerequisiteError(f"no sandbox can be opened: {error}") from error
                shared = self._open[config] = _Shared(runner)
            shared.users += 1
            return shared.runner

    async def release(self, config: RousseauConfig, *, at_once: bool = False) -> None:
        """Let go of a runner. The last one to do so closes it, or any one `at_once`.

        What it still has of sessions ends with it, but for those that are kept.
        """
        async with self._changing:
            shared = self._open.get(config)
            if shared is None:
                return
            shared.users -= 1
            if at_once or not shared.users:
                del self._open[config]
                if at_once:
                    _tell_kept(shared.runner)
                await shared.runner.__aexit__(None, None, None)


_runners: defaultdict[asyncio.AbstractEventLoop, Runners] = defaultdict(Runners)


def runners() -> Runners:
    """Those of the running event loop.

    Raises:
        PrerequisiteError: Inspect runs on trio.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError as error:
        raise PrerequisiteError(
            "the sandbox `rousseau` needs asyncio: do not set INSPECT_ASYNC_BACKEND to trio"
        ) from error
    for other in [other for other in _runners if other.is_closed()]:
        del _runners[other]
    return _runners[loop]


def _tell_kept(runner: AsyncRunner) -> None:
    kept = [one.id for one in runner.sessions() if one.kept and one.tenant == TENANT]
    if kept:
        note = "`inspect sandbox cleanup rousseau` closes them"
        log.warning("inspect.kept", sessions=kept, note=note)


async def open_session(runner: AsyncRunner, config: RousseauConfig, title: str) -> AsyncSession:
    """A session as the configuration says.

    Raises:
        RunnerError: It can't be had; see `AsyncRunner.session`.
    """
    return await runner.open_session(
        image=config.image,
        network=config.network,
        users=config.users,
        runtime=config.runtime,
        limits=config.limits,
        environment=config.environment,
        ttl_s=config.ttl_s,
        # A sample may wait long, for a model or for a person.
        idle_timeout_s=config.ttl_s,
        kept=config.kept,
        tenant=TENANT,
        title=title,
    )
