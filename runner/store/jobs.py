"""Jobs and their runs, as rows.

Owns the statements about `jobs` and `runs`, and with them what several processes must agree
on: which times of a schedule have been dealt with, and who runs what. When a time has come,
and what a run does, is `runner.cron`'s.

A run's row is there before anything of it happens. Whoever makes it `running` runs it; of
several processes that try, one does.
"""

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

from runner.audit import AuditEvent, canonical
from runner.errors import ConfigurationError, StoreError
from runner.model import Job, Run, RunState
from runner.store.ledger import UNKNOWN_OWNER_GRACE_S, Ledger, inserting
from runner.store.rows import NAME_LIMIT_BYTES, kept

__all__ = ["JobRecords", "no_job"]

MAX_WAITING = 32
"""Runs of one job that wait; a time that comes while so many do is skipped."""
MAX_ATTEMPTS = 3
"""How often a run that is lost is begun, where its job says so: it may be what ends processes."""

_JOB_FIELDS = tuple(field.name for field in fields(Job))
_RUN_FIELDS = tuple(field.name for field in fields(Run))
_JOB_COLUMNS = ", ".join(_JOB_FIELDS)
_RUN_COLUMNS = ", ".join(_RUN_FIELDS)
_INSERT_JOB = inserting("jobs", _JOB_FIELDS)
_INSERT_RUN = f"{inserting('runs', _RUN_FIELDS)} ON CONFLICT (job_id, scheduled_at) DO NOTHING"
_NOT_IN_THE_AUDIT = frozenset({"id", "name", "calls", "created_at", "seen_to", "enabled"})


class JobRecords(Ledger):
    """What the store knows of jobs and their runs."""

    # Jobs

    def add_job(self, job: Job) -> None:
        """Add a job, with a `cron.added` row.

        Raises:
            ConfigurationError: The name is taken.
        """
        row = _job_row(job)
        with self._db.writing:
            try:
                self._db.execute(_INSERT_JOB, row)
            except sqlite3.IntegrityError as error:
                raise ConfigurationError(
                    f"there is a job {job.name!r} already: remove it first, or choose another name"
                ) from error
            facts = {
                name: value
                for name, value in zip(_JOB_FIELDS, row, strict=True)
                if name not in _NOT_IN_THE_AUDIT
            }
            body = {**_named(job), **facts, "prompt": kept(job.prompt, NAME_LIMIT_BYTES)}
            self._append(AuditEvent.CRON_ADDED, "", "", body)

    def job(self, name: str) -> Job | None:
        """The job of this name; None where there is none."""
        with self._db.translated:
            found = self._read_jobs("name = ?", (name,))
        return found[0] if found else None

    def jobs(self) -> list[Job]:
        """All jobs, by name."""
        with self._db.translated:
            return self._read_jobs("1 = 1", ())

    def remove_job(self, name: str, *, at: float) -> Job:
        """Remove a job, with a `cron.removed` row. Its runs that wait are skipped; records stay.

        Raises:
            ConfigurationError: There is no such job.
        """
        with self._db.writing:
            job = self._read_job(name)
            for run in self._read_runs("job_id = ? AND state = 'due'", (job.id,)):
                self._end(run, RunState.SKIPPED, at=at, reason="its job was removed")
            self._db.execute("DELETE FROM jobs WHERE id = ?", (job.id,))
            self._append(AuditEvent.CRON_REMOVED, "", "", _named(job))
        return job

    def enable_job(self, name: str, enabled: bool, *, at: float) -> Job:
        """Turn a job on or off, with a row that says so; as it is already: nothing happens.

        Times that pass while it is off are not missed. What waits when it is turned off is
        skipped.

        Raises:
            ConfigurationError: There is no such job.
        """
        with self._db.writing:
            job = self._read_job(name)
            if job.enabled == enabled:
                return job
            if enabled:
                job = replace(job, enabled=True, seen_to=at)
                event = AuditEvent.CRON_ENABLED
            else:
                job = replace(job, enabled=False)
                event = AuditEvent.CRON_DISABLED
                for run in self._read_runs("job_id = ? AND state = 'due'", (job.id,)):
                    self._end(run, RunState.SKIPPED, at=at, reason="its job was turned off")
            self._db.execute(
                "UPDATE jobs SET enabled = ?, seen_to = ? WHERE id = ?",
                (job.enabled, job.seen_to, job.id),
            )
            self._append(event, "", "", _named(job))
        return job

    # Runs

    def schedule_runs(self, job: Job, runs: Iterable[Run], *, seen_to: float) -> bool:
        """Add the runs of times that have come, and remember up to where that was done.

        A run that is due while another of its job is not over is skipped, if the job says
        so. Those that are added together count as one: they run one after another.

        Args:
            job: As it was read. Who moved its `seen_to` in between did this work already.
            runs: New ones, due or skipped, oldest first.
            seen_to: The job's new one.

        Returns:
            Whether they were added: of several processes that try, one does it.
        """
        with self._db.writing:
            updated = self._db.execute(
                "UPDATE jobs SET seen_to = ? WHERE id = ? AND seen_to = ? AND enabled",
                (seen_to, job.id, job.seen_to),
            )
            if updated.rowcount != 1:
                return False
            (active,) = self._db.execute(
                "SELECT count(*) FROM runs WHERE job_id = ? AND state IN ('due', 'running')",
                (job.id,),
            ).fetchone()
            busy = active > 0 and job.overlap == "skip"
            for run in runs:
                if run.state is not RunState.DUE:
                    self._add(run)
                elif busy:
                    self._add(_skipped(run, "the run before was not over"))
                elif active >= MAX_WAITING:
                    self._add(_skipped(run, f"{active} runs of its job wait already"))
                else:
                    self._add(run)
                    active += 1
            return True

    def begin_run(self, run: Run) -> Run:
        """Add a run that a person asked for, as one that its `owner` runs already.

        Returns:
            The run as it is now.

        Raises:
            ConfigurationError: A run of this job is under way, or waits.
        """
        begun = replace(run, state=RunState.RUNNING, attempts=1, started_at=run.scheduled_at)
        with self._db.writing:
            active = self._read_runs(
                "job_id = ? AND state IN ('due', 'running')", (run.job_id,), limit=1
            )
            if active:
                raise ConfigurationError(
                    f"a run of the job {run.job!r} is {active[0].state} ({active[0].id}):"
                    " wait until it is over"
                )
            self._add(begun)
            self._tell_of_start(begun)
        return begun

    def due_runs(self) -> list[Run]:
        """The runs that wait, oldest first; of each job only the first."""
        with self._db.translated:
            found = self._read_runs("state = 'due'", ())
        first: dict[str, Run] = {}
        for run in sorted(found, key=lambda run: run.scheduled_at):
            first.setdefault(run.job_id, run)
        return list(first.values())

    def start_run(self, run: Run, *, owner: str, at: float) -> Run | None:
        """Take a run that is due, with a `cron.started` row.

        Args:
            run: Which.
            owner: The identity of the process that will run it.
            at: Now.

        Returns:
            The run as it is now; None where it is not to be had: somebody else took it, it
            is over, or its job has another one under way.
        """
        with self._db.writing:
            updated = self._db.execute(
                "UPDATE runs SET state = 'running', owner = ?, started_at = ?,"
                " attempts = attempts + 1 WHERE id = ? AND state = 'due' AND NOT EXISTS"
                " (SELECT 1 FROM runs WHERE job_id = ? AND state = 'running')",
                (owner, at, run.id, run.job_id),
            )
            if updated.rowcount != 1:
                return None
            (started,) = self._read_runs("id = ?", (run.id,))
            self._tell_of_start(started)
            return started

    def set_run_session(self, run: Run, session_id: str) -> None:
        """Note the session that a run uses.

        Raises:
            StoreError: The run is not under way: it was taken for lost.
        """
        with self._db.writing:
            updated = self._db.execute(
                "UPDATE runs SET session_id = ? WHERE id = ? AND state = 'running' AND owner = ?",
                (session_id, run.id, run.owner),
            )
            if updated.rowcount != 1:
                raise StoreError(f"the run {run.id} is not under way any more")

    def end_run(
        self, run: Run, state: RunState, *, at: float, reason: str = "", delivery: str = ""
    ) -> Run | None:
        """Bring a run that is under way to its end, with a `cron.ended` row.

        Args:
            run: As it was started.
            state: How it ended: `OK` or `FAILED`.
            at: Now.
            reason: Why it failed.
            delivery: `pending` where its result is to be delivered.

        Returns:
            The run as it is now; None where it was taken for lost before.
        """
        with self._db.writing:
            found = self._read_runs(
                "id = ? AND state = 'running' AND owner = ? AND attempts = ?",
                (run.id, run.owner, run.attempts),
            )
            if not found:
                return None
            return self._end(found[0], state, at=at, reason=reason, delivery=delivery)

    def set_delivery(self, run: Run, delivery: str) -> None:
        """Note what became of the delivery of a run's result, with a `cron.delivered` row."""
        delivery = kept(delivery, NAME_LIMIT_BYTES)
        with self._db.writing:
            self._db.execute("UPDATE runs SET delivery = ? WHERE id = ?", (delivery, run.id))
            body = {**_facts(run), "delivery": delivery}
            self._append(AuditEvent.CRON_DELIVERED, run.session_id, "", body)

    def lose_runs(self, is_alive: Callable[[str], bool | None], *, at: float) -> list[Run]:
        """Find the runs whose process has ended: they are lost, or due again.

        They are due again where their job says so and is still there, `MAX_ATTEMPTS` times.

        Args:
            is_alive: Whether the owner of a run still runs; None where nobody here can
                tell: then a run is lost `UNKNOWN_OWNER_GRACE_S` after its time limit.
            at: Now.

        Returns:
            The runs, as they are now.
        """
        with self._db.translated:
            running = self._read_runs("state = 'running'", ())
        alive = {run.owner: is_alive(run.owner) for run in running}
        if all(alive.values()):
            return []
        lost = []
        with self._db.writing:
            # Read again: another process may have been here in between.
            for run in self._read_runs("state = 'running'", ()):
                if run.owner not in alive or alive[run.owner]:
                    continue
                job = next(iter(self._read_jobs("id = ?", (run.job_id,))), None)
                if alive[run.owner] is None:
                    limit_s = 0.0 if job is None else job.run_timeout_s
                    if at < (run.started_at or 0.0) + limit_s + UNKNOWN_OWNER_GRACE_S:
                        continue
                reason = "the process that ran it ended before it did"
                again = job is not None and job.enabled and job.lost == "rerun"
                if again and run.attempts < MAX_ATTEMPTS:
                    self._db.execute(
                        "UPDATE runs SET state = 'due', session_id = '' WHERE id = ?", (run.id,)
                    )
                    body = {**_facts(run), "reason": reason, "again": True}
                    self._append(AuditEvent.CRON_LOST, run.session_id, "", body)
                    lost.append(replace(run, state=RunState.DUE, session_id=""))
                else:
                    lost.append(self._end(run, RunState.LOST, at=at, reason=reason))
        return lost

    def run(self, run_id: str) -> Run | None:
        """The run of this id; None where there is none."""
        with self._db.translated:
            found = self._read_runs("id = ?", (run_id,))
        return found[0] if found else None

    def runs(self, job: str | None = None, *, limit: int = 100) -> list[Run]:
        """The last runs, newest first.

        Args:
            job: Only of the job, or former jobs, of this name; None for all.
            limit: At most so many.
        """
        where, values = ("job = ?", [job]) if job is not None else ("1 = 1", [])
        with self._db.translated:
            return self._read_runs(where, values, limit=limit)

    def release_delivery(self, run: Run) -> None:
        """Leave the delivery of a run's result, which was interrupted, to whoever takes it."""
        with self._db.writing:
            self._db.execute(
                "UPDATE runs SET owner = '' WHERE id = ? AND delivery = 'pending'", (run.id,)
            )

    def take_deliveries(self, is_alive: Callable[[str], bool | None], *, owner: str) -> list[Run]:
        """Take over the runs whose results nobody delivers: released, or of an ended process.

        Args:
            is_alive: Whether the owner of a run still runs; None where nobody here can tell:
                then it is left alone.
            owner: The identity of the process that will deliver them.

        Returns:
            The runs, as they are now, oldest first.
        """
        with self._db.translated:
            pending = self._read_runs("delivery = 'pending'", ())
        owners = {run.owner for run in pending}
        dead = {each for each in owners if each == "" or is_alive(each) is False}
        if not dead:
            return []
        with self._db.writing:
            taken = [r for r in self._read_runs("delivery = 'pending'", ()) if r.owner in dead]
            for run in taken:
                self._db.execute("UPDATE runs SET owner = ? WHERE id = ?", (owner, run.id))
        return [replace(run, owner=owner) for run in reversed(taken)]

    # Inside

    def _read_jobs(self, where: str, values: Sequence[Any]) -> list[Job]:
        found = self._db.execute(
            f"SELECT {_JOB_COLUMNS} FROM jobs WHERE {where} ORDER BY name",  # noqa: S608
            values,
        ).fetchall()
        return [_job_of(row) for row in found]

    def _read_job(self, name: str) -> Job:
        found = self._read_jobs("name = ?", (name,))
        if not found:
            raise no_job(name)
        return found[0]

    def _read_runs(self, where: str, values: Sequence[Any], *, limit: int = -1) -> list[Run]:
        found = self._db.execute(
            f"SELECT {_RUN_COLUMNS} FROM runs WHERE {where} ORDER BY seq DESC LIMIT ?",  # noqa: S608
            (*values, limit),
        ).fetchall()
        return [_run_of(row) for row in found]

    def _add(self, run: Run) -> None:
        """Add a run, inside the caller's transaction. A time that has one gets no other.

        That happens where the clock was set back.
        """
        values = tuple(getattr(run, name) for name in _RUN_FIELDS)
        added = self._db.execute(_INSERT_RUN, values).rowcount
        if added and run.state is RunState.SKIPPED:
            body = {**_facts(run), "reason": run.reason, "missed": run.missed}
            self._append(AuditEvent.CRON_SKIPPED, "", "", body)

    def _tell_of_start(self, run: Run) -> None:
        body = {**_facts(run), "attempt": run.attempts, "owner": run.owner}
        self._append(AuditEvent.CRON_STARTED, "", "", body)

    def _end(
        self, run: Run, state: RunState, *, at: float, reason: str = "", delivery: str = ""
    ) -> Run:
        """End a run, inside the caller's transaction."""
        reason = kept(reason, NAME_LIMIT_BYTES)
        ended = replace(run, state=state, ended_at=at, reason=reason, delivery=delivery)
        self._db.execute(
            "UPDATE runs SET state = ?, ended_at = ?, reason = ?, delivery = ? WHERE id = ?",
            (ended.state, ended.ended_at, ended.reason, ended.delivery, ended.id),
        )
        body = {**_facts(ended), "reason": reason}
        self._append(_END_EVENT[state], ended.session_id, "", body)
        return ended


def no_job(name: str) -> ConfigurationError:
    """The error of a name that is no job's."""
    return ConfigurationError(f"there is no job {name!r}; `runner cron list` shows those there are")


_END_EVENT = {
    RunState.OK: AuditEvent.CRON_ENDED,
    RunState.FAILED: AuditEvent.CRON_ENDED,
    RunState.LOST: AuditEvent.CRON_LOST,
    RunState.SKIPPED: AuditEvent.CRON_SKIPPED,
}


def _skipped(run: Run, reason: str) -> Run:
    return replace(run, state=RunState.SKIPPED, ended_at=run.scheduled_at, reason=reason)


def _named(job: Job) -> dict[str, Any]:
    return {"job": job.name, "job_id": job.id}


def _facts(run: Run) -> dict[str, Any]:
    """What each row of the audit says of a run."""
    return {
        "job": run.job,
        "run": run.id,
        "scheduled_at": run.scheduled_at,
        "manual": run.manual,
        "state": run.state,
    }


def _job_row(job: Job) -> tuple[Any, ...]:
    return tuple(
        canonical([dict(call) for call in job.calls]) if name == "calls" else getattr(job, name)
        for name in _JOB_FIELDS
    )


def _job_of(row: Sequence[Any]) -> Job:
    values = dict(zip(_JOB_FIELDS, row, strict=True))
    values["calls"] = tuple(json.loads(values["calls"]))
    for name in ("enabled", "read_only"):
        values[name] = bool(values[name])
    return Job(**values)


def _run_of(row: Sequence[Any]) -> Run:
    values = dict(zip(_RUN_FIELDS, row, strict=True))
    values["state"] = RunState(values["state"])
    values["manual"] = bool(values["manual"])
    return Run(**values)
