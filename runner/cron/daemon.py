"""`Daemon`: waits until times of jobs come, runs what is due, and ends well.

Several daemons may work on one data directory; the store decides which of them does what.
A run is recorded before it begins, and taken by one process. If that process dies, the next
look of any daemon finds the run lost, and tells of it, or has it made once more, as its job
says. Unless a job asks for that, nothing runs twice.
"""

import asyncio
import contextlib
import math
import secrets
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Protocol, Self

from runner.app import open_store
from runner.cron.delivery import deliver
from runner.cron.running import Ending, carry_out
from runner.cron.schedule import next_time, plan
from runner.engine import Engine
from runner.errors import ConfigurationError, StoreError
from runner.logs import log
from runner.model import Job, Run, RunState
from runner.process import process_alive, process_identity
from runner.settings import Settings
from runner.store import Store

__all__ = ["Clock", "Daemon", "SystemClock", "run_now"]

LOOK_EVERY_S = 3.0
"""How long a change to the jobs, a clock that was set, or a dead process may go unnoticed."""
MAX_RUNS = 4
"""Runs at once, of different jobs; each has a container."""
GRACE_S = 60.0
"""How long runs may go on when the daemon is to end."""
_CLOCK_SET_BACK_S = 60.0


class Clock(Protocol):
    """What the daemon knows of time."""

    def now(self) -> float:
        """Seconds since the epoch."""

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Return when the event is set, or after so many seconds."""


class SystemClock:
    """The clock of the machine."""

    def now(self) -> float:
        """See `Clock`."""
        return time.time()

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """See `Clock`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()


class Daemon:
    """Runs the jobs of a data directory. An async context manager, for one event loop.

        async with Daemon(settings) as daemon:
            await daemon.run_until_cancelled()

    Args:
        settings: The settings.
        engine: The container engine; None: Docker. It stays open.
        clock: What time it is; None: the machine's.
        max_runs: How many runs at once, of different jobs.
        grace_s: How long runs may go on, in seconds, when the daemon is to end.

    Raises:
        ConfigurationError: This process can't be told from others: there is no `/proc`.
        StoreError: The records can't be opened.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        engine: Engine | None = None,
        clock: Clock | None = None,
        max_runs: int = MAX_RUNS,
        grace_s: float = GRACE_S,
    ):
        self._settings = settings
        self._engine = engine
        self._clock = clock or SystemClock()
        self._max_runs = max_runs
        self._grace_s = grace_s
        self._owner = process_identity()
        self._store: Store | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = 0
        self._woken = asyncio.Event()
        self._broken: set[str] = set()
        """Jobs whose schedule can't be used any more, by their ids: said once."""

    async def __aenter__(self) -> Self:
        self._store = open_store(self._settings)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._end(0.0)
        finally:
            self.store.close()

    @property
    def store(self) -> Store:
        """The records.

        Raises:
            RuntimeError: The daemon is not open.
        """
        if self._store is None:
            raise RuntimeError("the daemon is not open: use it in an `async with` statement")
        return self._store

    async def run_until_cancelled(self) -> None:
        """Run jobs until this is cancelled; then let what runs go on for `grace_s`, and end.

        Trouble with the records (a full disk, a lock) is logged, and tried again. A second
        cancellation ends the grace.
        """
        try:
            while True:
                self._woken.clear()
                try:
                    wait_s = self.look()
                except StoreError as error:
                    log.error("cron.look.failed", error=str(error))
                    wait_s = LOOK_EVERY_S
                await self._clock.wait(self._woken, wait_s)
        finally:
            await self._end(self._grace_s)

    def look(self) -> float:
        """Do what is to be done now: one turn of `run_until_cancelled`, which does not wait.

        Returns:
            After how many seconds to look again, at the latest.

        Raises:
            StoreError: The records can't be read or written.
        """
        now = self._clock.now()
        for run in self.store.lose_runs(process_alive, at=now):
            log.warning("cron.lost", job=run.job, run=run.id, again=run.state is RunState.DUE)
        jobs = {job.id: job for job in self.store.jobs()}
        soonest = now + LOOK_EVERY_S
        for job in jobs.values():
            if job.enabled:
                soonest = min(soonest, self._plan(job, now))
        for run in self.store.due_runs():
            if self._running >= self._max_runs:
                break
            # A job that was removed a moment ago has taken its runs that wait with it.
            if run.job_id in jobs:
                self._take(jobs[run.job_id], run, now)
        for run in self.store.take_deliveries(process_alive, owner=self._owner):
            if run.job_id in jobs:
                self._begin(_deliver(self.store, jobs[run.job_id], run))
            else:
                self.store.set_delivery(run, "failed: its job was removed")
        return max(0.0, soonest - now)

    async def drain(self) -> None:
        """Wait until nothing runs that was begun here."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    # Inside.

    def _plan(self, job: Job, now: float) -> float:
        """Record the runs whose time has come, and say when the next one comes."""
        try:
            if job.seen_to > now + _CLOCK_SET_BACK_S:
                # The clock was ahead. Times that had their run in it get no other.
                self.store.schedule_runs(job, [], seen_to=now)
                return now
            planned = plan(job.schedule, job.zone, seen_to=job.seen_to, now=now, missed=job.missed)
            following = next_time(job.schedule, job.zone, after=now)
        except ConfigurationError as error:
            # It was checked when it was added: this machine's time zones are others now.
            if job.id not in self._broken:
                self._broken.add(job.id)
                log.error("cron.schedule.broken", job=job.name, error=str(error))
            return math.inf
        if planned:
            runs = [
                Run(
                    id=_run_id(),
                    job_id=job.id,
                    job=job.name,
                    scheduled_at=each.at,
                    state=RunState.DUE if each.run else RunState.SKIPPED,
                    missed=each.missed,
                    ended_at=None if each.run else now,
                    reason="" if each.run else "no daemon was there at its time",
                )
                for each in planned
            ]
            if self.store.schedule_runs(job, runs, seen_to=now):
                log.info("cron.due", job=job.name, times=len(runs))
        return math.inf if following is None else following

    def _take(self, job: Job, run: Run, now: float) -> None:
        started = self.store.start_run(run, owner=self._owner, at=now)
        if started is not None:
            log.info("cron.started", job=job.name, run=started.id)
            self._running += 1
            self._begin(self._run(job, started))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._woken.set()
        # The outermost edge of a run: there is nobody else whom it could be told.
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("cron.run.failed", error=f"{type(error).__name__}: {error}", exc_info=error)

    async def _run(self, job: Job, run: Run) -> None:
        try:
            ended = await _carry_out(
                self.store, job, run, self._clock.now, settings=self._settings, engine=self._engine
            )
        finally:
            self._running -= 1
        if ended is not None and ended.delivery:
            await _deliver(self.store, job, ended)

    async def _end(self, grace_s: float) -> None:
        """Let what runs go on for a while, then cancel it and wait for it to tidy up."""
        try:
            if self._tasks and grace_s:
                log.info("cron.ending", runs=len(self._tasks), grace_s=grace_s)
                await asyncio.wait(self._tasks, timeout=grace_s)
        finally:
            for task in self._tasks:
                task.cancel()
            while self._tasks:
                await asyncio.wait(self._tasks)


async def run_now(
    store: Store,
    job: Job,
    settings: Settings,
    *,
    engine: Engine | None = None,
    on_line: Callable[[str], None] | None = None,
) -> Run:
    """Run a job now, whatever its schedule says and whether it is on or off.

    Args:
        store: The records.
        job: Which.
        settings: The settings.
        engine: The container engine; None: Docker.
        on_line: Gets the progress of image builds, from any thread; None: the log.

    Returns:
        The run, which has ended; its result was delivered, if the job says so.

    Raises:
        ConfigurationError: A run of this job is under way, or waits.
    """
    run = store.begin_run(
        Run(
            id=_run_id(),
            job_id=job.id,
            job=job.name,
            scheduled_at=time.time(),
            state=RunState.DUE,
            manual=True,
            owner=process_identity(),
        )
    )
    ended = await _carry_out(
        store, job, run, time.time, settings=settings, engine=engine, on_line=on_line
    )
    if ended is None:
        raise StoreError(f"the run {run.id} was taken for lost while it was under way")
    if ended.delivery:
        await _deliver(store, job, ended)
    found = store.run(run.id)
    assert found is not None  # the store removes none
    return found


async def _carry_out(
    store: Store,
    job: Job,
    run: Run,
    now: Callable[[], float],
    *,
    settings: Settings,
    engine: Engine | None,
    on_line: Callable[[str], None] | None = None,
) -> Run | None:
    """Carry out a run that was taken, and record its end, however it comes."""

    def end(ending: Ending) -> Run | None:
        delivery = "" if job.deliver == "record" else "pending"
        ended = store.end_run(run, ending.state, at=now(), reason=ending.reason, delivery=delivery)
        tell = log.info if ending.state is RunState.OK else log.warning
        tell("cron.ended", job=job.name, run=run.id, state=ending.state, reason=ending.reason)
        return ended

    try:
        ending = await carry_out(
            job,
            settings=settings,
            engine=engine,
            on_session=lambda session_id: store.set_run_session(run, session_id),
            on_line=on_line,
        )
    except asyncio.CancelledError:
        end(Ending(RunState.FAILED, "it was interrupted: who ran it was told to end"))
        raise
    except Exception as error:
        # A mistake of ours ends the run, too; it goes on to whoever is outermost.
        end(Ending(RunState.FAILED, f"{type(error).__name__}: {error}"))
        raise
    return end(ending)


async def _deliver(store: Store, job: Job, run: Run) -> None:
    """Deliver a run's result, and record what became of it."""
    try:
        delivery = await deliver(store, job, run)
    except BaseException:
        store.release_delivery(run)
        raise
    store.set_delivery(run, delivery)
    if delivery != "done":
        log.error("cron.deliver.failed", job=job.name, run=run.id, error=delivery)


def _run_id() -> str:
    return f"r-{secrets.token_hex(6)}"
