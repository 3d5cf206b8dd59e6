"""What the helper makes of /proc and of a cgroup's files. What it does then: see `test_server`."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.helper import processes
from runner.helper.processes import Family, KernelCount, Process, below, snapshot
from tests.host import wait_until

SLEEP = str(shutil.which("sleep"))
NOBODY = 2**22 + 1
"""No process has this number: Linux goes up to 2**22."""


@contextlib.contextmanager
def asleep(program: str = SLEEP) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([program, "3013"]) as process:
        try:
            wait_until(lambda: snapshot()[process.pid].state == "S")
            yield process
        finally:
            process.kill()


def test_a_process_is_found_with_its_parent_and_its_state() -> None:
    with asleep() as process:
        assert snapshot()[process.pid] == Process(process.pid, os.getpid(), "S")
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: snapshot()[process.pid].state == "T")
        process.kill()
        wait_until(lambda: snapshot()[process.pid].state == "Z")

    assert process.pid not in snapshot()


@pytest.mark.parametrize("name", [") Z 1 (", "a) b", "(", "a b\nc", ")"])
def test_a_program_s_name_does_not_pass_for_its_state(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to(SLEEP)

    with asleep(str(tmp_path / name)) as process:
        assert snapshot()[process.pid] == Process(process.pid, os.getpid(), "S")


@pytest.mark.parametrize("moment", ["listed", "opened"])
def test_a_process_that_ends_under_the_look_is_left_out(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    with asleep() as process:
        look = os.open

        def end_and_look(path: str, flags: int) -> int:
            if path != f"/proc/{process.pid}/stat":
                return look(path, flags)
            if moment == "listed":
                process.kill()
                process.wait()
            descriptor = look(path, flags)
            process.kill()
            process.wait()
            return descriptor

        monkeypatch.setattr(os, "open", end_and_look)
        seen = snapshot()

    assert process.pid not in seen
    assert os.getpid() in seen


def tree(*rows: tuple[int, int, str]) -> dict[int, Process]:
    return {pid: Process(pid, parent, state) for pid, parent, state in rows}


FAMILY = tree(
    (1, 0, "S"),
    (2, 1, "S"),  # a supervisor
    (3, 2, "S"),
    (4, 3, "R"),
    (5, 3, "Z"),
    (6, 5, "D"),
    (7, 1, "T"),  # an orphan
    (8, 7, "X"),
    (9, 8, "S"),
    (10, 1, "Z"),
)


@pytest.mark.parametrize(
    ("root", "found"),
    [
        (1, {2, 3, 4, 6, 7, 9}),
        (2, {3, 4, 6}),
        (5, {6}),
        (7, {9}),
        (4, set()),
        (NOBODY, set()),
    ],
)
def test_descendants_are_found_at_any_depth_and_the_dead_are_no_more_than_links(
    root: int, found: set[int]
) -> None:
    assert {process.pid for process in below(root, FAMILY)} == found


def test_orphans_are_living_children_of_the_first_process_that_supervise_nothing() -> None:
    me = os.getpid()
    family = Family(subreaper=True)
    family.supervisors.add(2)
    seen = tree((me, 1, "R"), (2, me, "S"), (3, 2, "S"), (7, me, "T"), (8, me, "X"), (9, me, "Z"))

    assert family.orphans(seen) == [Process(7, me, "T")]


def test_a_process_that_is_gone_need_not_be_ended() -> None:
    processes.end(NOBODY)
    processes.resume(NOBODY)


def test_a_process_is_ended_and_resumed() -> None:
    with asleep() as process:
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: snapshot()[process.pid].state == "T")
        processes.resume(process.pid)
        wait_until(lambda: snapshot()[process.pid].state == "S")
        processes.end(process.pid)

        assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("v2", "v1", "count"),
    [
        ("low 0\noom 5\noom_kill 3\noom_group_kill 4\n", None, 3),
        (None, "oom_kill_disable 0\nunder_oom 0\noom_kill 12\n", 12),
        ("oom_kill 2\n", "oom_kill 1\n", 2),
        ("low 0\n", "oom_kill 1\n", 1),
        (None, "oom_kill_disable 0\nunder_oom 0\n", 0),  # before Linux 4.13
        ("", None, 0),
        (None, None, 0),
    ],
)
def test_a_count_of_the_kernel_s_is_taken_where_the_cgroup_is_shown(
    tmp_path: Path, v2: str | None, v1: str | None, count: int
) -> None:
    files = {tmp_path / "v2": v2, tmp_path / "v1": v1}
    for path, content in files.items():
        if content is not None:
            path.write_text(content)
    kills = KernelCount(b"oom_kill", *map(str, files))

    assert kills.count() == 0, "it is not asked before it has started"
    kills.start()
    assert kills.count() == count


def test_a_count_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "pids.events"
    file.write_text("max 2\n")
    forks = KernelCount(b"max", str(tmp_path / "none"), str(file))
    forks.start()
    assert forks.count() == 2
    file.write_text("max 3\nmax.imposed 9\n")
    assert forks.count() == 3
