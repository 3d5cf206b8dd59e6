"""`runner run` in real containers: output as it comes, the right status, nothing left behind."""

import hashlib
import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

pytestmark = pytest.mark.docker


def containers(cli: Cli) -> list[str]:
    """What is left of this test's sessions in the daemon."""
    owner = hashlib.sha256(os.fsencode(cli.data_dir)).hexdigest()[:16]
    listed = subprocess.run(
        ["docker", "ps", "-aq", "--filter", f"label=rousseau-runner.owner={owner}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.split()


def running(command: str) -> list[str]:
    """Processes of the host, containers' included, whose command line is exactly this."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode()
        except (OSError, UnicodeDecodeError):
            continue
        if words == command:
            found.append(path.parent.name)
    return found


def test_output_and_status_are_the_commands_own(cli: Cli) -> None:
    done = cli("run", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout) == (7, "out\nerr\n")
    assert done.stderr == ("runner: policy default, workspace empty (--workspace DIR mounts one)\n")


def test_protected_files_that_a_command_touched_are_named(cli: Cli) -> None:
    done = cli("run", "-w", ".", "mkdir .vscode; echo x > .vscode/tasks.json; echo x > .envrc")
    assert done.returncode == 0
    said = done.stderr.splitlines()[-1]
    assert said.startswith("runner: warning: protected files were touched: ")
    assert "/workspace/.envrc created" in said
    assert "/workspace/.vscode/tasks.json created" in said


def test_quiet_leaves_standard_error_empty(cli: Cli) -> None:
    done = cli("run", "--quiet", "--", "true")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_several_words_are_a_program_and_its_arguments(cli: Cli) -> None:
    done = cli("run", "-q", "printf", "<%s>", "a b", "$HOME", "--help", "'")
    assert done.stdout == "<a b><$HOME><--help><'>"


def test_options_reach_the_session(cli: Cli) -> None:
    (cli.directory / "file").write_text("content\n")
    script = "cat file; echo $COLOUR; (echo x > new) 2>/dev/null || echo read-only; ulimit -n"
    done = cli(
        "run", "-q", "-w", ".", "--read-only", "-e", "COLOUR=red", "--carrier", "attach",
        "-m", "96m", script,
        environment={"RUNNER_LIMITS__NOFILE": "77"},
    )  # fmt: skip
    assert done.stdout == "content\nred\nread-only\n77\n"
    assert not (cli.directory / "new").exists()


def test_output_is_streamed_whole_far_beyond_what_a_result_holds(cli: Cli) -> None:
    running_ = cli.start("run", "-q", "seq 1000000")
    assert running_.stdout is not None
    digest = hashlib.sha256(running_.stdout.read()).hexdigest()
    assert running_.wait(timeout=30) == 0
    expected = "".join(f"{number}\n" for number in range(1, 1_000_001)).encode()
    assert digest == hashlib.sha256(expected).hexdigest()
    running_.communicate()


def test_output_comes_while_the_command_still_runs(cli: Cli) -> None:
    script = "echo first; while [ ! -e go ]; do sleep 0.05; done; echo second"
    started = cli.start("run", "-q", "-w", str(cli.directory), script)
    assert started.stdout is not None
    assert started.stdout.readline() == b"first\n"
    assert started.poll() is None
    (cli.directory / "go").touch()
    output, errors = started.communicate(timeout=30)
    assert (started.returncode, output) == (0, b"second\n"), errors


def test_bytes_that_are_no_text_pass_unchanged(cli: Cli) -> None:
    started = cli.start("run", "-q", r"printf '\377\376\0\033[31mok\r\n'")
    output, _ = started.communicate(timeout=30)
    assert output == b"\xff\xfe\0\x1b[31mok\r\n"


def test_a_terminal_is_not_obeyed_by_the_commands_output(cli: Cli) -> None:
    ours, theirs = pty.openpty()
    started = cli.start("run", "-q", r"printf '\033]0;title\007\033[2J'", stdout=theirs)
    os.close(theirs)
    assert started.wait(timeout=30) == 0
    shown = os.read(ours, 1000)
    os.close(ours)
    started.communicate()
    assert shown == b"\\x1b]0;title\\x07\\x1b[2J\r\n"


def test_the_whole_result_as_json(cli: Cli) -> None:
    done = cli("run", "-q", "--json", "echo hi; exit 3")
    result = json.loads(done.stdout)
    assert done.returncode == 3
    assert (result["status"], result["exit_code"], result["output"]) == ("failed", 3, "hi\n")
    assert result["decision"]["verdict"] == "allow"


def test_json_tells_a_commands_own_124_from_a_time_out(cli: Cli) -> None:
    own = cli("run", "-q", "--json", "exit 124")
    cut = cli("run", "-q", "--json", "--timeout", "300ms", "sleep 60")
    assert (own.returncode, cut.returncode) == (124, 124)
    assert json.loads(own.stdout)["status"] == "failed"
    assert json.loads(cut.stdout)["status"] == "timed_out"


def test_a_time_out_keeps_what_was_written_and_leaves_nothing_running(cli: Cli) -> None:
    done = cli("run", "-q", "-t", "1", "echo begun; setsid sleep 98761 & sleep 98762")
    assert (done.returncode, done.stdout) == (124, "begun\n")
    assert done.stderr == "runner: bash: timed out after 1s\n"
    assert running("sleep 98761") == running("sleep 98762") == []
    assert containers(cli) == []


def test_a_flood_is_cut_at_the_time_limit_too(cli: Cli) -> None:
    started = cli.start("run", "-q", "-t", "1", "yes")
    assert started.stdout is not None
    count = 0
    while piece := started.stdout.read(1024**2):
        count += len(piece)
    _, errors = started.communicate(timeout=30)
    assert started.returncode == 124
    assert errors == b"runner: bash: timed out after 1s\n"
    assert count > 1024**2


def test_a_denied_command_does_not_run_and_the_reason_is_said(cli: Cli) -> None:
    done = cli("run", "-q", "-w", ".", "--policy", "read-only", "touch made")
    assert (done.returncode, done.stdout) == (120, "")
    assert "denied by the read-only policy" in done.stderr
    assert list(cli.directory.iterdir()) == []


def test_an_input_that_is_too_large_is_invalid(cli: Cli) -> None:
    words = ["x" * 100_000] * 20  # one word may have 128 KiB on Linux
    done = cli("run", "-q", "echo", *words)
    assert done.returncode == 121
    assert "too large" in done.stderr


def test_a_command_over_its_memory_is_said_to_be(cli: Cli) -> None:
    done = cli("run", "-q", "-m", "64m", "head -c 200m /dev/zero | tail -c 200m > /dev/null")
    assert done.returncode == 137
    assert "out of memory" in done.stderr


def test_processes_left_running_are_mentioned_and_end(cli: Cli) -> None:
    done = cli("run", "sleep 98763 & echo done")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "processes left running, ended with the session: 1" in done.stderr
    assert running("sleep 98763") == []


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_the_call_and_closes_the_session(
    cli: Cli, number: signal.Signals, status: int
) -> None:
    command = f"sleep 9877{status}"
    started = cli.start("run", "-q", f"echo begun; setsid {command} & {command}")
    assert started.stdout is not None
    assert started.stdout.readline() == b"begun\n"
    give_up = time.monotonic() + 20
    while len(running(command)) < 2:  # each is a shell until it has become a sleep
        assert time.monotonic() < give_up
        time.sleep(0.01)
    started.send_signal(number)
    output, errors = started.communicate(timeout=30)
    assert (started.returncode, output, errors) == (status, b"", b"")
    assert running(command) == []
    assert containers(cli) == []
    assert list((cli.data_dir / "workspaces").iterdir()) == []
    results = [json.loads(line) for line in cli("log", "--json").stdout.splitlines()]
    assert [row["event"] for row in results][-2:] == ["tool.result", "session.closed"]
    assert results[-2]["body"]["status"] == "cancelled"


def test_a_signal_while_the_session_opens_leaves_no_container(cli: Cli) -> None:
    started = cli.start("run", "-q", "sleep 98764")
    workspaces = cli.data_dir / "workspaces"
    give_up = time.monotonic() + 20
    while not (workspaces.is_dir() and list(workspaces.iterdir())):
        assert time.monotonic() < give_up
        time.sleep(0.005)
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=30)
    assert (started.returncode, errors) == (130, b"")
    assert cli("prune").returncode == 0
    assert containers(cli) == []
    assert list(workspaces.iterdir()) == []


def test_a_signal_that_is_ignored_stays_ignored(cli: Cli) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    started = cli.start("run", "-q", "echo begun; sleep 1; echo done", preexec_fn=ignore)
    assert started.stdout is not None
    assert started.stdout.readline() == b"begun\n"
    started.send_signal(signal.SIGHUP)
    output, _ = started.communicate(timeout=30)
    assert (started.returncode, output) == (0, b"done\n")


def test_a_reader_that_goes_away_ends_the_command_quietly(cli: Cli) -> None:
    started = cli.start("run", "-q", "yes 98765")
    assert started.stdout is not None
    assert started.stdout.readline() == b"98765\n"
    started.stdout.close()
    assert started.wait(timeout=30) == 141
    assert started.stderr is not None
    assert started.stderr.read() == b""
    started.stderr.close()
    assert running("yes 98765") == []
    assert containers(cli) == []


def test_a_full_disk_under_the_output_is_explained(cli: Cli) -> None:
    with Path("/dev/full").open("wb") as full:
        started = cli.start("run", "-q", "echo hi", stdout=full)
    _, errors = started.communicate(timeout=30)
    assert started.returncode == 125
    assert errors == b"runner: can't write to standard output: No space left on device\n"


def test_an_image_that_is_nowhere_is_explained(cli: Cli) -> None:
    done = cli("run", "-q", "--image", "rousseau-runner/none:such", "true")
    assert done.returncode == 125
    assert "there is no image 'rousseau-runner/none:such'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("directory", ["/", "nowhere", "file"])
def test_a_workspace_that_cannot_be_meant_is_a_mistake(cli: Cli, directory: str) -> None:
    (cli.directory / "file").touch()
    done = cli("run", "-q", "--workspace", directory, "true")
    assert done.returncode == 2
    assert "workspace" in done.stderr


def test_a_time_limit_above_the_longest_is_a_mistake(cli: Cli) -> None:
    done = cli("run", "-q", "--timeout", "2h", "true")
    assert done.returncode == 2
    assert "3600 s" in done.stderr
