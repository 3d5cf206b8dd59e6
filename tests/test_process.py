"""Identities: a process has one of its own, and nobody else gets it later."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import runner
from runner import process
from runner.errors import ConfigurationError
from runner.process import process_alive, process_identity


def child(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", f"from runner.process import *\n{code}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(runner.__file__).parents[1])},
    )


def replaced(identity: str, index: int, value: str) -> str:
    parts = identity.split(":")
    parts[index] = value
    return ":".join(parts)


def test_this_process_is_alive_and_its_identity_stays() -> None:
    identity = process_identity()
    assert identity == process_identity()
    assert identity.isascii()
    assert identity.isprintable()
    assert " " not in identity
    assert process_alive(identity) is True


def test_a_process_is_alive_until_it_ends_and_a_zombie_is_not() -> None:
    running = child("print(process_identity(), flush=True); input()")
    assert running.stdout is not None
    identity = running.stdout.readline().strip()
    assert process_alive(identity) is True
    running.kill()
    # Ended, and not yet waited for.
    os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{running.pid}").exists()
    assert process_alive(identity) is False
    running.communicate()
    assert process_alive(identity) is False


def test_a_fork_is_another_process() -> None:
    code = """
import os
print(process_identity(), flush=True)
if os.fork() == 0:
    print(process_identity(), flush=True)
else:
    os.wait()
"""
    forked = child(code)
    first, second = forked.communicate()[0].split()
    assert first != second


def test_a_pid_that_is_somebody_elses_now_is_not_alive() -> None:
    assert process_alive(replaced(process_identity(), 3, "1")) is False


def test_a_process_of_an_earlier_boot_is_not_alive() -> None:
    earlier = replaced(process_identity(), 0, "00000000-0000-0000-0000-000000000000")
    assert process_alive(earlier) is False


def test_nobody_can_tell_of_a_process_in_another_namespace() -> None:
    assert process_alive(replaced(process_identity(), 1, "1")) is None


@pytest.mark.parametrize(
    "text", ["", "an owner", "a:b", "a:b:c:d", "a:b:-1:5", "a:b:²:5", "a:b:1:"]
)
def test_nobody_can_tell_of_what_is_not_an_identity(text: str) -> None:
    assert process_alive(text) is None


def test_a_pid_that_can_not_be_is_not_a_crash() -> None:
    assert process_alive(replaced(process_identity(), 2, "9" * 30)) in (None, False)


def test_a_name_that_looks_like_a_status_does_not_mislead(tmp_path: Path) -> None:
    program = tmp_path / ") Z 1 (x"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"]) as sleeper:
        try:
            state, start = process._stat(sleeper.pid)
            own = process_identity().split(":")
            identity = ":".join((*own[:2], str(sleeper.pid), start))
            assert state in "SRD"
            assert process_alive(identity) is True
        finally:
            sleeper.kill()


def test_a_process_that_proc_hides_may_be_alive(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    identity = process_identity()
    hiding = tmp_path / "proc"
    (hiding / "sys/kernel/random").mkdir(parents=True)
    (hiding / "sys/kernel/random/boot_id").write_text(identity.split(":")[0] + "\n")
    (hiding / "self/ns").mkdir(parents=True)
    (hiding / "self/ns/pid").symlink_to(f"pid:[{identity.split(':')[1]}]")
    monkeypatch.setattr(process, "_PROC", hiding)
    assert process_alive(identity) is None


def test_without_proc_the_error_says_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    identity = process_identity()
    monkeypatch.setattr(process, "_PROC", tmp_path)
    with pytest.raises(ConfigurationError, match="needs Linux's /proc"):
        process_identity()
    assert process_alive(identity) is None
