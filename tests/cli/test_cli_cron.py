"""`runner cron` as users run it: jobs, and the daemon as a process that is told to end, or dies."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from runner.app import DATABASE
from runner.cli import main
from runner.cron import make_job
from runner.model import Run, RunState
from runner.store import Store
from tests.cli.conftest import START_S, Cli


class Said(NamedTuple):
    """What came of a command line."""

    status: int
    out: str
    err: str


Here = Callable[..., Said]


@pytest.fixture
def here(cli: Cli, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Here:
    """The command in this process, since a process of its own for each takes long."""
    for name in ("RUNNER_DATA_DIR", "RUNNER_RUNTIME_DIR"):
        monkeypatch.setenv(name, cli.environment[name])
    monkeypatch.chdir(cli.directory)

    def run(*words: str) -> Said:
        status = main(["cron", *words])
        return Said(status, *capfd.readouterr())

    return run


def jobs(here: Here) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(here("list", "--json").out)
    return found


def the_store(cli: Cli) -> Store:
    return Store.open(cli.data_dir / DATABASE)


# Jobs.


def test_a_job_is_added_listed_turned_off_and_on_and_removed(cli: Cli, here: Here) -> None:
    words = ["--zone", "Europe/Berlin", "--workspace", ".", "--deliver", "file:/var/x"]
    done = here("add", "nightly", "0 3 * * *", *words, "--", "make", "a b")
    assert (done.status, done.out) == (0, "")
    assert done.err.startswith("runner: nightly runs next at 20")
    (job,) = jobs(here)
    assert job["prompt"] == "make 'a b'"
    assert (job["workspace"], job["zone"]) == (str(cli.directory), "Europe/Berlin")
    assert (job["missed"], job["overlap"], job["lost"]) == ("run_once", "skip", "report")
    assert (job["enabled"], job["last_run"], job["policy"]) == (True, None, "default")
    head, row = here("list").out.splitlines()
    assert head.split() == [
        *("NAME", "ON", "SCHEDULE", "ZONE", "NEXT", "LAST", "POLICY", "DELIVER", "WHAT")
    ]
    assert row.startswith("nightly  yes  0 3 * * *  Europe/Berlin  20")
    assert row.endswith("default  file:/var/x  make 'a b'")
    assert json.loads(here("disable", "nightly", "--json").out)["next_at"] is None
    assert not jobs(here)[0]["enabled"]
    assert "nightly is on" in here("enable", "nightly").err
    assert json.loads(here("remove", "nightly", "--json").out) == {"removed": "nightly"}
    assert jobs(here) == []
    with the_store(cli) as store:
        events = [row.event for row in store.audit_rows()]
    assert events == ["cron.added", "cron.disabled", "cron.enabled", "cron.removed"]


def test_a_job_may_be_calls_of_tools(cli: Cli, here: Here) -> None:
    calls = ['read {"path": "/workspace/a"}', 'bash {"command": "ls"}']
    words = [word for call in calls for word in ("--call", call)]
    assert here("add", "calls", "* * * * *", *words).status == 0
    assert jobs(here)[0]["calls"] == [
        {"tool": "read", "arguments": {"path": "/workspace/a"}},
        {"tool": "bash", "arguments": {"command": "ls"}},
    ]


def test_a_policy_file_is_named_as_the_daemon_will_find_it(cli: Cli, here: Here) -> None:
    done = here("add", "a", "* * * * *", "--policy", "mine.yaml", "--", "ls")
    assert done.status == 0
    assert "the job will fail while this is so: " in done.err
    assert jobs(here)[0]["policy"] == str(cli.directory / "mine.yaml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workspace", "missing"], "missing': there is no such directory"),
        (["--timeout", "9h"], "time limit is 32400 s, and `max_timeout_s` is 3600"),
        (["--workspace", ".", "--policy", "mine.yaml"], "lies in the workspace"),
    ],
)
def test_what_would_make_the_job_fail_is_said_when_it_is_added(
    here: Here, words: list[str], said: str
) -> None:
    done = here("add", "a", "* * * * *", *words, "--", "ls")

    assert done.status == 0
    assert "the job will fail while this is so: " in done.err
    assert said in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add", "a", "* * * * *"], "a command after"),
        (["add", "a", "* * * * *", "--call", "bash {}", "--", "ls"], "one of the two"),
        (["add", "a", "* * * * *", "--call", "bash"], "is not TOOL INPUT"),
        (["add", "a", "* * * * *", "--call", "bash {}"], "call 1 of the job: bash: "),
        (["add", "a", "daily", "--", "ls"], "not a schedule"),
        (["add", "a b", "* * * * *", "--", "ls"], "no name for a job"),
        (["add", "a", "* * * * *", "--zone", "Mars", "--", "ls"], "no time zone"),
        (["add", "a", "* * * * *", "--deliver", "file:x", "--", "ls"], "absolute path"),
        (["add", "a", "* * * * *", "--overlap", "allow", "--", "ls"], "allow"),
        (["remove", "none"], "no job 'none'"),
        (["enable", "none"], "no job 'none'"),
        (["run", "none"], "no job 'none'"),
    ],
)
def test_a_mistake_is_explained(cli: Cli, here: Here, words: list[str], said: str) -> None:
    done = here(*words)
    assert done.status == 2
    assert said in " ".join(done.err.replace("│", " ").split())
    assert "Traceback" not in done.err


def test_a_name_is_taken_once(cli: Cli, here: Here) -> None:
    assert here("add", "a", "* * * * *", "--", "ls").status == 0
    done = here("add", "a", "* * * * *", "--", "ls")
    assert done.status == 2
    assert "there is a job 'a' already" in done.err


def test_where_there_is_nothing_that_is_said(cli: Cli, here: Here) -> None:
    assert "no jobs" in here("list").err
    assert "no runs" in here("runs").err
    assert json.loads(here("runs", "--json").out) == []


# Runs. Without Docker a run fails, which is as good as any to see what becomes of it.

NO_DOCKER = {"DOCKER_HOST": "unix:///nowhere.sock"}


def test_a_run_that_fails_exits_with_one_and_says_why(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", NO_DOCKER["DOCKER_HOST"])
    here("add", "a", "0 0 1 1 *", "--", "ls")
    done = here("run", "a", "--json")
    assert done.status == 1
    result = json.loads(done.out)
    assert (result["state"], result["calls"]) == ("failed", [])
    assert "engine_unavailable: " in done.err
    (run,) = json.loads(here("runs", "a", "--json").out)
    assert (run["id"], run["manual"], run["state"]) == (result["run"], True, "failed")
    assert "failed" in here("runs").out
    assert jobs(here)[0]["last_run"]["id"] == run["id"]


@contextlib.contextmanager
def a_daemon(
    cli: Cli, number: signal.Signals = signal.SIGTERM
) -> Iterator["subprocess.Popen[bytes]"]:
    """A daemon that has begun, since it said so; it is told to end, and must end well."""
    with cli.start("cron", "daemon") as process:
        try:
            assert process.stderr is not None
            assert b"Ctrl-C ends it" in process.stderr.readline()
            yield process
            process.send_signal(number)
            out, said = process.communicate(timeout=START_S)
        except BaseException:
            process.kill()
            raise
    assert (process.returncode, out) == (0, b"")
    assert b"Traceback" not in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_daemon_that_is_told_to_end_ends_well(cli: Cli, number: signal.Signals) -> None:
    with a_daemon(cli, number):
        pass


def due(cli: Cli, **options: str) -> Run:
    """A job whose one run is due: as a daemon leaves it that dies before it takes it."""
    job = make_job("a", "0 0 1 1 *", "ls", policy="default", now=time.time(), **options)
    run = Run("r-1", job.id, job.name, job.created_at, RunState.DUE)
    with the_store(cli) as store:
        store.add_job(job)
        assert store.schedule_runs(job, [run], seen_to=job.created_at)
    return run


def wait_for(cli: Cli, *states: RunState) -> Run:
    deadline = time.monotonic() + START_S
    with the_store(cli) as store:
        while True:
            run = store.run("r-1")
            assert run is not None
            if run.state in states:
                return run
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_run_that_was_due_when_a_daemon_died_is_made_by_the_next_once(cli: Cli) -> None:
    due(cli)
    cli.environment |= NO_DOCKER
    with a_daemon(cli), a_daemon(cli):
        run = wait_for(cli, RunState.FAILED)
    assert (run.attempts, run.reason[:18]) == (1, "engine_unavailable")
    with the_store(cli) as store:
        assert [each.id for each in store.runs()] == ["r-1"]
        assert [row.event for row in store.audit_rows()].count("cron.started") == 1


HANGING = """
import asyncio, os, sys
from runner.cron import daemon
from runner.store import Store

async def hang(*arguments, **options):
    print("mid-run", flush=True)
    await asyncio.Event().wait()

def die_between(store, run, **options):
    started = start_run(store, run, **options)
    print("claimed", flush=True)
    os.kill(os.getpid(), 9)

daemon.carry_out = hang
if sys.argv.pop(1) == "claim":
    start_run, Store.start_run = Store.start_run, die_between
from runner.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""A daemon that dies when it has taken a run, before it begins it; or that is killed in one."""


@pytest.mark.parametrize("when", ["claim", "run"])
@pytest.mark.parametrize("lost", ["report", "rerun"])
def test_a_daemon_that_is_killed_loses_no_run_and_doubles_none(
    cli: Cli, when: str, lost: str
) -> None:
    due(cli, lost=lost)
    with subprocess.Popen(
        [sys.executable, "-c", HANGING, when, "cron", "daemon"],
        env=cli.environment,
        cwd=cli.directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as killed:
        assert killed.stdout is not None
        said = killed.stdout.readline()
        killed.kill()
    assert said == (b"claimed\n" if when == "claim" else b"mid-run\n")
    with the_store(cli) as store:
        left = store.run("r-1")
        assert left is not None
        assert (left.state, left.attempts) == (RunState.RUNNING, 1)
    cli.environment |= NO_DOCKER
    with a_daemon(cli):
        run = wait_for(cli, RunState.LOST, RunState.FAILED)
    with the_store(cli) as store:
        events = [row.event for row in store.audit_rows() if row.event != "cron.added"]
        assert len(store.runs()) == 1
        assert store.verify() == store.head().seq
    if lost == "report":
        assert (run.state, run.attempts) == (RunState.LOST, 1)
        assert events == ["cron.started", "cron.lost"]
    else:
        assert (run.state, run.attempts) == (RunState.FAILED, 2)
        assert events == ["cron.started", "cron.lost", "cron.started", "cron.ended"]


@pytest.mark.docker
def test_a_job_runs_in_a_container_and_its_result_is_delivered(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    (cli.directory / "f").write_text("content\n")
    words = ["--workspace", ".", "--read-only", "--deliver", f"file:{out}", "--", "cat f; id -u"]
    assert cli("cron", "add", "a", "0 0 1 1 *", *words).returncode == 0
    with the_store(cli) as store:
        job = store.job("a")
        assert job is not None
        run = Run("r-1", job.id, job.name, job.created_at, RunState.DUE)
        assert store.schedule_runs(job, [run], seen_to=job.created_at)
    with a_daemon(cli):
        run = wait_for(cli, RunState.OK, RunState.FAILED, RunState.LOST)
    assert (run.state, run.reason) == (RunState.OK, "")
    (line,) = out.read_text().splitlines()
    assert json.loads(line)["calls"][0]["output"].startswith("content\n")
    by_hand = cli("cron", "run", "a")
    assert by_hand.returncode == 0
    assert by_hand.stdout.startswith("content\n")
    sessions = json.loads(cli("session", "list", "--all", "--json").stdout)
    assert [(each["title"], each["state"]) for each in sessions] == [("cron:a", "closed")] * 2
    assert len(out.read_text().splitlines()) == 2
