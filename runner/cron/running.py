"""One run: a session of its own, the job's calls in it one after another, and how it ended."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from runner.client import AsyncRunner
from runner.engine import Engine
from runner.errors import RunnerError
from runner.model import Job, RunState
from runner.settings import Settings

__all__ = ["Ending", "carry_out"]

TITLE = "cron:"
"""What the title of a run's session begins with; the job's name follows."""


class Ending(NamedTuple):
    """How a run ended."""

    state: RunState
    reason: str = ""


async def carry_out(
    job: Job,
    *,
    settings: Settings,
    engine: Engine | None,
    on_session: Callable[[str], None],
    on_line: Callable[[str], None] | None = None,
) -> Ending:
    """Make a job's calls, up to the first that does not do what it was asked.

    The policy is loaded now. Where it asks a person, nobody is there, and the call is denied.

    Args:
        job: Which.
        settings: The settings.
        engine: The container engine; None: Docker.
        on_session: Gets the session's id before the first call.
        on_line: Gets the progress of image builds, from any thread; None: the log.

    Returns:
        How it ended: whatever goes wrong is an ending, too.
    """
    try:
        async with asyncio.timeout(job.run_timeout_s):
            return await _make_calls(job, settings, engine, on_session, on_line)
    except TimeoutError:
        return Ending(RunState.FAILED, f"the run was not over after {job.run_timeout_s:g} s")
    except RunnerError as error:
        return Ending(RunState.FAILED, f"{error.code}: {error}")


async def _make_calls(
    job: Job,
    settings: Settings,
    engine: Engine | None,
    on_session: Callable[[str], None],
    on_line: Callable[[str], None] | None,
) -> Ending:
    async with (
        AsyncRunner(
            job.policy, settings=settings, engine=engine, tools=job.tools, on_line=on_line
        ) as runner,
        runner.session(
            workspace=job.workspace or None,
            read_only=job.read_only,
            image=job.image or None,
            network=job.network or None,
            title=f"{TITLE}{job.name}",
        ) as session,
    ):
        on_session(session.id)
        for number, call in enumerate(job.calls, 1):
            result = await session.call(call["tool"], call["arguments"], timeout_s=job.timeout_s)
            if result.is_error:
                which = f"call {number} of {len(job.calls)}, {call['tool']}, "
                said = result.error or f"ended as {result.status}"
                return Ending(RunState.FAILED, f"{which}is {result.status}: {said}")
    return Ending(RunState.OK)
