"""`runner cron`: jobs, their runs, and the daemon that runs them."""

import asyncio
import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from zoneinfo import ZoneInfo

import typer

from runner.cli import interrupts
from runner.cli.calls import DEFAULT_POLICY, IMAGES_ONCE
from runner.cli.exits import NO, OK
from runner.cli.interrupts import Interrupts
from runner.cli.options import (
    Image,
    Json,
    NetworkOption,
    PolicyOption,
    Quiet,
    ReadOnly,
    Timeout,
    Tools,
    ToolSetName,
    Verbose,
    Workspace,
    terminal_of,
)
from runner.cli.terminal import Progress, Terminal
from runner.cli.values import ago, duration_s, local_time
from runner.model import Job, Run, RunState

if TYPE_CHECKING:
    from runner.store import Store

WHAT_CHARACTERS = 60
"""Of what a job runs, in a list; `--json` has all of it."""


class Missed(StrEnum):
    """What becomes of times at which no daemon was there."""

    SKIP = "skip"
    RUN_ONCE = "run_once"
    RUN_ALL = "run_all"


class Overlap(StrEnum):
    """What becomes of a time at which the run before is not over."""

    SKIP = "skip"
    WAIT = "wait"


class Lost(StrEnum):
    """What becomes of a run whose process ended."""

    REPORT = "report"
    RERUN = "rerun"


Name = Annotated[str, typer.Argument(metavar="NAME", help="The job's name.")]


def add(
    context: typer.Context,
    name: Name,
    schedule: Annotated[
        str,
        typer.Argument(
            metavar="SCHEDULE", help="Minute, hour, day of month, month, day of week: '0 3 * * *'."
        ),
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND",
            help="One word is a shell line; several are a program and its arguments.",
        ),
    ] = None,
    call: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOOL INPUT",
            help='A call instead of a command, such as \'read {"path": "a"}\'. Repeatable.',
        ),
    ] = None,
    zone: Annotated[
        str, typer.Option(metavar="ZONE", help="Time zone of the schedule: Europe/Berlin.")
    ] = "UTC",
    policy: PolicyOption = DEFAULT_POLICY,
    workspace: Workspace = None,
    read_only: ReadOnly = False,
    image: Image = None,
    network: NetworkOption = None,
    tools: Tools = ToolSetName.ROUSSEAU,
    timeout: Timeout = None,
    run_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="TIME",
            parser=duration_s,
            help="Time limit of a run, all of its calls together. Default: 1h.",
        ),
    ] = None,
    deliver: Annotated[
        str,
        typer.Option(metavar="TARGET", help="Where results go: record, file:PATH or webhook:URL."),
    ] = "record",
    missed: Annotated[
        Missed, typer.Option(help="What becomes of times at which no daemon was there.")
    ] = Missed.RUN_ONCE,
    overlap: Annotated[
        Overlap, typer.Option(help="What becomes of a time when the run before is not over.")
    ] = Overlap.SKIP,
    lost: Annotated[
        Lost, typer.Option(help="What becomes of a run whose process ended: rerun may do it twice.")
    ] = Lost.REPORT,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Add a job: a command, or calls of tools, at times of a schedule.

    It runs while `runner cron daemon` does, each time in a session of its own. Names of files
    are taken from here; the policy is loaded when the job runs.
    """
    from runner.cron import make_job

    terminal = terminal_of(context)
    job = make_job(
        name,
        schedule,
        _calls(command or [], call or []),
        policy=_policy(terminal, policy),
        now=time.time(),
        zone=zone,
        image=image or "",
        workspace="" if workspace is None else str(Path(workspace).expanduser().absolute()),
        read_only=read_only,
        network="" if network is None else network.value,
        tools=tools.value,
        timeout_s=timeout,
        **({} if run_timeout is None else {"run_timeout_s": run_timeout}),
        deliver=deliver,
        missed=missed.value,
        overlap=overlap.value,
        lost=lost.value,
    )
    _warn_of_failures(terminal, job)
    with _store() as store:
        store.add_job(job)
    if terminal.as_json:
        terminal.print_json(_facts(job, None))
    terminal.say(f"{job.name} runs next at {_next(job)}, if `runner cron daemon` runs then")


def list_(context: typer.Context, as_json: Json = False) -> None:
    """List jobs by name, with their next and last run."""
    terminal = terminal_of(context)
    with _store() as store:
        found = [(job, next(iter(_runs_of(store, job)), None)) for job in store.jobs()]
    if terminal.as_json:
        terminal.print_json([_facts(job, last) for job, last in found])
        return
    terminal.print_table(
        ("NAME", "ON", "SCHEDULE", "ZONE", "NEXT", "LAST", "POLICY", "DELIVER", "WHAT"),
        [
            (
                job.name,
                "yes" if job.enabled else "no",
                job.schedule,
                job.zone,
                _next(job) if job.enabled else "-",
                "-" if last is None else f"{last.state} {ago(time.time() - last.scheduled_at)} ago",
                job.policy,
                job.deliver,
                _short(job.prompt),
            )
            for job, last in found
        ],
    )
    if not found:
        terminal.say("there are no jobs; `runner cron add` makes one")


def runs(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Only of this job. Default: of all.")
    ] = None,
    last: Annotated[int, typer.Option("--last", "-n", metavar="N", min=1, help="So many.")] = 20,
    as_json: Json = False,
) -> None:
    """List runs, newest first, those of removed jobs too."""
    terminal = terminal_of(context)
    with _store() as store:
        found = store.runs(name, limit=last)
    if terminal.as_json:
        terminal.print_json([asdict(run) for run in found])
        return
    terminal.print_table(
        ("ID", "JOB", "STATE", "TIME", "TOOK", "SESSION", "DELIVERY", "REASON"),
        [
            (
                run.id,
                run.job,
                str(run.state),
                local_time(run.scheduled_at),
                _took(run),
                run.session_id or "-",
                run.delivery or "-",
                _short(run.reason),
            )
            for run in found
        ],
    )
    if not found:
        terminal.say("there are no runs")


def remove(context: typer.Context, name: Name, as_json: Json = False, quiet: Quiet = False) -> None:
    """Remove a job. A run under way goes on; the records of its runs stay."""
    terminal = terminal_of(context)
    with _store() as store:
        job = store.remove_job(name, at=time.time())
    if terminal.as_json:
        terminal.print_json({"removed": job.name})
    terminal.say(f"{job.name} is removed")


def enable(context: typer.Context, name: Name, as_json: Json = False, quiet: Quiet = False) -> None:
    """Turn a job on. Times that passed while it was off are not missed."""
    _turn(context, name, on=True)


def disable(
    context: typer.Context, name: Name, as_json: Json = False, quiet: Quiet = False
) -> None:
    """Turn a job off. A run under way goes on; those that wait are skipped."""
    _turn(context, name, on=False)


def _turn(context: typer.Context, name: str, *, on: bool) -> None:
    terminal = terminal_of(context)
    with _store() as store:
        job = store.enable_job(name, on, at=time.time())
    if terminal.as_json:
        terminal.print_json(_facts(job, None))
    terminal.say(f"{job.name} is on; next at {_next(job)}" if on else f"{job.name} is off")


def run(
    context: typer.Context,
    name: Name,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Run a job now, in this command, whether it is on or off.

    Prints the output of its calls, and delivers the result. Exits with 1 if the run failed.
    """
    from runner.settings import Settings

    terminal = terminal_of(context)
    settings = Settings.read()

    async def work(interruption: Interrupts) -> int:
        from runner.cron import document, run_now
        from runner.store.jobs import no_job

        with Progress(terminal, opening=IMAGES_ONCE) as progress, _store() as store:
            job = store.job(name)
            if job is None:
                raise no_job(name)
            ended = await run_now(store, job, settings, on_line=progress.show)
            interruption.finishing()
            result = document(store, job, ended)
        if terminal.as_json:
            terminal.print_json({**result, "delivery": ended.delivery})
        else:
            for each in result["calls"]:
                terminal.print_text(each["output"])
        if ended.reason:
            terminal.error(ended.reason)
        if ended.delivery.startswith("failed"):
            terminal.error(f"the result could not be delivered: {ended.delivery}")
        return OK if ended.state is RunState.OK else NO

    raise typer.Exit(interrupts.run(work, say=terminal.say))


def daemon(
    context: typer.Context,
    max_runs: Annotated[
        int, typer.Option(metavar="N", min=1, max=64, help="Runs at once, of different jobs.")
    ] = 4,
    grace: Annotated[
        float | None,
        typer.Option(
            metavar="TIME",
            parser=duration_s,
            help="How long runs may go on once the daemon is told to end. Default: 1m.",
        ),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Run jobs when their times come, until SIGTERM or Ctrl-C.

    Several daemons on the same data directory share the work. A job that is added, removed
    or turned off is noticed within seconds.
    """
    from runner.settings import Settings

    terminal = terminal_of(context)
    settings = Settings.read()

    async def work(interruption: Interrupts) -> int:
        from runner.cron import Daemon

        given: dict[str, Any] = {} if grace is None else {"grace_s": grace}
        async with Daemon(settings, max_runs=max_runs, **given) as daemon:
            count = len(daemon.store.jobs())
            terminal.say(f"running {count} {'job' if count == 1 else 'jobs'}; Ctrl-C ends it")
            try:
                await daemon.run_until_cancelled()
            except asyncio.CancelledError:
                # To be ended is how a daemon ends well; nothing of its work is cut off.
                if interruption.status is None:
                    raise
                interruption.status = OK
        return OK

    raise typer.Exit(interrupts.run(work, say=terminal.say))


def _store() -> "Store":
    from runner.app import open_store
    from runner.settings import Settings

    return open_store(Settings.read())


def _calls(command: Sequence[str], calls: Sequence[str]) -> str | list[dict[str, Any]]:
    if bool(command) == bool(calls):
        raise typer.BadParameter(
            "give a command after `--`, or calls with --call, one of the two",
            param_hint="COMMAND",
        )
    if command:
        return command[0] if len(command) == 1 else shlex.join(command)
    return [_call(words) for words in calls]


def _call(words: str) -> dict[str, Any]:
    tool, _, text = words.strip().partition(" ")
    try:
        return {"tool": tool, "arguments": json.loads(text)}
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(
            f"{words!r} is not TOOL INPUT, with JSON: {error}", param_hint="--call"
        ) from error


def _policy(terminal: Terminal, given: str) -> str:
    """The policy as the daemon will find it, wherever that is started."""
    from runner.app import as_policy
    from runner.errors import PolicyError
    from runner.policy import Policy

    try:
        for warning in as_policy(given).warnings:
            terminal.warn(f"{given}: {warning}")
    except PolicyError as error:
        terminal.warn(f"the job will fail while this is so: {error}")
    return given if given in Policy.shipped() else str(Path(given).expanduser().absolute())


def _warn_of_failures(terminal: Terminal, job: Job) -> None:
    """Say what would make the job fail today. It may be put right until its time comes."""
    from runner.errors import WorkspaceError
    from runner.policy import Policy
    from runner.settings import Settings
    from runner.workspace import check_workspace

    most_s = Settings.read().max_timeout_s
    if job.timeout_s is not None and job.timeout_s > most_s:
        terminal.warn(
            f"the job will fail while this is so: its calls' time limit is {job.timeout_s:g} s,"
            f" and `max_timeout_s` is {most_s:g}"
        )
    if not job.workspace:
        return
    try:
        workspace = check_workspace(Path(job.workspace))
    except WorkspaceError as error:
        terminal.warn(f"the job will fail while this is so: {error}")
        return
    is_file = job.policy not in Policy.shipped()
    if is_file and not job.read_only and Path(job.policy).resolve().is_relative_to(workspace):
        terminal.warn(
            f"the job will fail while this is so: the policy {job.policy} lies in the workspace,"
            " where its calls could change it"
        )


def _runs_of(store: "Store", job: Job) -> list[Run]:
    # A job that was removed may have had this one's name.
    return [run for run in store.runs(job.name, limit=5) if run.job_id == job.id]


def _facts(job: Job, last: Run | None) -> dict[str, Any]:
    from runner.cron import next_time

    following = next_time(job.schedule, job.zone, after=time.time()) if job.enabled else None
    return {
        **asdict(job),
        "prompt": job.prompt,
        "next_at": following,
        "last_run": None if last is None else asdict(last),
    }


def _next(job: Job) -> str:
    """When it comes next, by the clock of its own time zone."""
    from runner.cron import next_time

    following = next_time(job.schedule, job.zone, after=time.time())
    if following is None:
        return "never"
    return datetime.fromtimestamp(following, ZoneInfo(job.zone)).strftime("%Y-%m-%d %H:%M %Z")


def _took(run: Run) -> str:
    if run.started_at is None or run.ended_at is None or run.state is RunState.SKIPPED:
        return "-"
    return f"{run.ended_at - run.started_at:.1f}s"


def _short(text: str) -> str:
    return text if len(text) <= WHAT_CHARACTERS else f"{text[:WHAT_CHARACTERS]}…"
