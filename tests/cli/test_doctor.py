"""What the doctor concludes from what it sees; what it sees in real containers is elsewhere."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from runner import Settings
from runner.answers import RunResult
from runner.app import DATABASE
from runner.doctor import State, examine
from runner.doctor.doctor import judge_carriers, judge_ownership
from runner.doctor.machine import data_disk, docker, docker_disk, records, runtimes
from runner.doctor.probes import PROBE_LIMITS, PROBES
from runner.engine import EngineVersion
from runner.errors import RunnerError, SandboxLost
from runner.store import Store
from runner.testing import FakeEngine

STATUS = """Name:\tcat
Uid:\t1001\t1001\t1001\t1001
CapPrm:\t0000000000000000
CapEff:\t0000000000000000
CapBnd:\t0000000000000000
NoNewPrivs:\t1
Seccomp:\t2
Seccomp_filters:\t2
"""

VERSION = EngineVersion(
    server_version="26.1",
    api_version="1.45",
    os="linux",
    architecture="amd64",
    kernel="6.1",
    runtimes=("runc", "runsc"),
    default_runtime="runc",
    security_options=("name=seccomp,profile=builtin",),
    cgroup_version="2",
    storage_driver="overlay2",
    root_dir="/",
    rootless=False,
    local=True,
)


def ran(text: str = "", exit_code: int | None = 0, **changes: object) -> RunResult:
    data = text.encode()
    result = RunResult(
        output=data,
        head_bytes=len(data),
        total_bytes=len(data),
        total_lines=data.count(b"\n"),
        exit_code=exit_code,
        signal=None,
        ended="exited",
        background=0,
        oom_killed=False,
        spill_path=None,
        spill_bytes=0,
        duration_s=0.0,
    )
    return replace(result, **changes)  # type: ignore[arg-type]


def holds(name: str, result: RunResult) -> bool:
    (probe,) = [probe for probe in PROBES if probe.name == name]
    return probe.judge(result, result.output.decode()).holds


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("privileges", ran(STATUS)),
        ("system calls", ran(STATUS)),
        ("network", ran("lo\n")),
        ("root file system", ran("refused\n")),
        ("limit: processes", ran("/bin/sh: 1: Cannot fork\n", 2)),
        ("limit: processes", ran("sh: can't fork: Resource temporarily unavailable\n", 2)),
        ("limit: processors", ran("50000 100000\n0m0.00s 0m0.00s\n0m0.48s 0m0.01s\n")),
        ("limit: swap", ran("0\nFilename\tType\n/swapfile file\n")),
        ("limit: swap", ran(f"{PROBE_LIMITS.memory_bytes}\nFilename\n/swapfile file\n")),
        ("limit: swap", ran("unknown\nFilename\tType\n")),
        ("limit: open files", ran("100\n100\n")),
        ("limit: file size", ran("1048576\n")),
        ("limit: /tmp", ran("4180224\n")),
        ("limit: core dumps", ran("0\n")),
        ("limit: memory", ran("Killed\n", 137)),
        ("limit: memory", ran("", None, signal=9)),
        ("limit: memory", ran("", 1, oom_killed=True)),
    ],
)
def test_what_shows_that_a_limit_holds(name: str, result: RunResult) -> None:
    assert holds(name, result)


@pytest.mark.parametrize(
    ("name", "result"),
    [
        (
            "privileges",
            ran(STATUS.replace("CapBnd:\t0000000000000000", "CapBnd:\t00000000a80425fb")),
        ),
        ("privileges", ran(STATUS.replace("NoNewPrivs:\t1", "NoNewPrivs:\t0"))),
        ("system calls", ran(STATUS.replace("Seccomp:\t2", "Seccomp:\t0"))),
        ("system calls", ran(STATUS.replace("filters:\t2", "filters:\t1"))),
        ("network", ran("eth0\nlo\n")),
        ("root file system", ran("written\n")),
        ("limit: processes", ran("made all\n")),
        ("limit: processors", ran("50000 100000\n0m0.00s 0m0.00s\n0m1.90s 0m0.01s\n")),
        ("limit: processors", ran("max 100000\n0m0.00s 0m0.00s\n0m0.48s 0m0.01s\n")),
        ("limit: processors", ran("-1\n0m0.00s 0m0.00s\n0m0.48s 0m0.01s\n")),
        ("limit: swap", ran("max\nFilename\tType\n/swapfile file\n")),
        ("limit: open files", ran("100\n1048576\n")),
        ("limit: file size", ran("2097152\n")),
        ("limit: /tmp", ran("6000000\n")),
        ("limit: core dumps", ran("unlimited\n")),
        ("limit: memory", ran("", 0)),
        ("limit: memory", ran("", None, ended="timed_out")),
    ],
)
def test_what_shows_that_a_limit_does_not_hold(name: str, result: RunResult) -> None:
    assert not holds(name, result)


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_a_shell_that_can_do_nothing_proves_nothing(probe: object) -> None:
    (probe_,) = [one for one in PROBES if one is probe]
    assert not holds(probe_.name, ran("/bin/sh: cat: not found\n", 127))
    assert not holds(probe_.name, ran("", 127))


async def _examined(settings: Settings) -> dict[str, State]:
    return {
        check.name: check.state
        async for check in examine(settings, engine=FakeEngine(), on_line=lambda line: None)
    }


@pytest.mark.anyio
async def test_an_engine_whose_containers_hold_nothing_is_failed(settings: Settings) -> None:
    found = await _examined(settings)
    assert found["carrier attach"] is State.OK
    assert found["session"] is State.OK
    for name in ("privileges", "system calls", "network", "root file system", "limit: memory"):
        assert found[name] is State.FAILED
    assert not list(settings.data_dir.glob("doctor-*"))


@pytest.mark.anyio
async def test_records_that_cannot_be_opened_fail_the_sessions_too(settings: Settings) -> None:
    settings.data_dir.mkdir()
    (settings.data_dir / DATABASE).write_text("not a database, but long enough to look like one")
    found = await _examined(settings)
    assert found["records"] is State.FAILED
    assert found["session"] is State.FAILED


def test_one_carrier_is_enough_unless_the_settings_insist(settings: Settings) -> None:
    lost = SandboxLost("no dial")
    cases: list[tuple[str, dict[str, float | RunnerError], list[str]]] = [
        ("auto", {"socket": 0.001, "attach": 0.002}, ["ok", "ok"]),
        ("auto", {"socket": lost, "attach": 0.002}, ["warning", "ok"]),
        ("auto", {"socket": 0.001, "attach": lost}, ["ok", "warning"]),
        ("auto", {"socket": lost, "attach": lost}, ["failed", "failed"]),
        ("socket", {"socket": lost, "attach": 0.002}, ["failed", "ok"]),
    ]
    for carrier, answers, expected in cases:
        chosen = settings.model_copy(update={"carrier": carrier})
        checks = judge_carriers(answers, chosen, VERSION)
        assert [check.state for check in checks] == expected
    remote = replace(VERSION, local=False)
    (socket, _) = judge_carriers({"socket": lost, "attach": 0.002}, settings, remote)
    assert socket.state is State.OK


def test_files_are_compared_with_their_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    directory, file = tmp_path.stat(), (tmp_path / "file").stat()
    fields = list(file)
    fields[4] += 1
    assert judge_ownership(directory, {"file": file}).state is State.OK
    assert judge_ownership(directory, {"file": None}).state is State.FAILED
    assert judge_ownership(directory, {"file": os.stat_result(fields)}).state is State.WARNING


def test_a_runtime_that_is_wanted_must_be_there() -> None:
    assert runtimes(VERSION, None).state is State.OK
    assert runtimes(VERSION, "runsc").state is State.OK
    missing = runtimes(VERSION, "kata")
    assert missing.state is State.FAILED
    assert "kata" in missing.advice


def test_a_daemon_that_filters_no_system_calls_is_worth_a_warning() -> None:
    assert docker(VERSION).state is State.OK
    assert docker(replace(VERSION, security_options=())).state is State.WARNING


def test_room_on_disks_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 10 * 1024**3

    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage)
    assert data_disk(tmp_path / "not" / "yet").state is State.OK
    Usage.free = 1024**3
    assert data_disk(tmp_path).state is State.WARNING
    Usage.free = 1024**2
    assert docker_disk(VERSION).state is State.FAILED
    assert docker_disk(replace(VERSION, local=False)).state is State.OK


def test_records_are_opened_and_verified(settings: Settings) -> None:
    assert records(settings).facts["rows"] == 0
    with Store.open(settings.data_dir / DATABASE) as store:
        database = store._db
        database.execute("DROP TRIGGER audit_moves_head")
        database.execute("UPDATE audit_head SET seq = 5")
    assert records(settings).state is State.FAILED
