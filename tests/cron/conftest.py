"""A clock that is moved by hand, and jobs for it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from runner import Settings
from runner.cron import Daemon, make_job
from runner.model import Job
from runner.testing import FakeEngine, FakeRun, fake_shell

NOON = 1_780_315_200.0
"""2026-06-01 12:00 UTC."""
HOUR = 3600.0


class HandClock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.time = NOON
        self.waits: list[float] = []
        """How long each wait was to be."""
        self.waiting = asyncio.Event()
        """Somebody waits."""
        self._moved = asyncio.Event()

    def now(self) -> float:
        return self.time

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        until = self.time + seconds
        self.waits.append(seconds)
        while self.time < until and not event.is_set():
            self._moved.clear()
            self.waiting.set()
            tasks = [asyncio.ensure_future(one.wait()) for one in (event, self._moved)]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self.waiting.clear()
                for task in tasks:
                    task.cancel()

    def move(self, seconds: float) -> None:
        self.time += seconds
        self._moved.set()


class Gate:
    """A shell whose command `wait` takes until the test says so."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def __call__(self, line: str) -> FakeRun:
        self.ran.append(line)
        return FakeRun(takes_s=60.0) if line == "wait" else fake_shell(line)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def engine(gate: Gate) -> FakeEngine:
    return FakeEngine(gate)


@pytest.fixture
async def daemon(settings: Settings, engine: FakeEngine, clock: HandClock) -> AsyncIterator[Daemon]:
    async with Daemon(settings, engine=engine, clock=clock, grace_s=0.0) as daemon:
        yield daemon


AddJob = Callable[..., Job]


@pytest.fixture
def add_job(daemon: Daemon) -> AddJob:
    """Add a job that comes every hour."""

    def add(name: str = "hourly", calls: Any = "echo hi", **options: Any) -> Job:
        values = {"schedule": "0 * * * *", "policy": "default", "now": NOON, **options}
        job = make_job(name, values.pop("schedule"), calls, **values)
        daemon.store.add_job(job)
        return job

    return add
