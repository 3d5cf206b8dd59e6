"""Sessions that outlive the command that opened them, and calls in them."""

import json
import signal
import time
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Cli
from tests.cli.test_cli_run import containers, running

pytestmark = pytest.mark.docker


@pytest.fixture
def session(cli: Cli) -> Iterator[str]:
    """A session that is kept."""
    done = cli("session", "create", "-q")
    assert done.returncode == 0, done.stderr
    yield done.stdout.strip()
    cli("session", "close", done.stdout.strip())
    assert containers(cli) == []


def test_create_prints_the_id_alone(cli: Cli) -> None:
    done = cli("session", "create", "--ttl", "1h", "--idle-timeout", "5m", "--timeout", "7")
    (line,) = done.stdout.splitlines()
    facts = json.loads(cli("session", "show", line, "--json").stdout)
    assert facts["kept"] is True
    assert facts["idle_timeout_s"] == 300.0
    assert facts["options"]["timeout_s"] == 7.0
    assert 3500 < facts["expires_at"] - facts["created_at"] <= 3600
    closed = cli("session", "close", line, "--json")
    assert json.loads(closed.stdout) == {"closed": line}
    assert containers(cli) == []
    assert list((cli.data_dir / "workspaces").iterdir()) == []


def test_create_as_json_is_what_show_prints(cli: Cli) -> None:
    created = json.loads(cli("session", "create", "--json", "-w", ".").stdout)
    assert created == json.loads(cli("session", "show", created["id"], "--json").stdout)
    assert created["workspace"] == str(cli.directory)
    assert cli("session", "close", created["id"]).returncode == 0
    assert cli.directory.is_dir()


def test_calls_of_different_commands_share_the_workspace(cli: Cli, session: str) -> None:
    write = cli(
        "call", "write", '{"path":"/workspace/é.txt","content":"no line end"}', "-s", session
    )
    assert write.returncode == 0
    assert write.stdout == "wrote 11 bytes to /workspace/é.txt"
    assert "policy default" in write.stderr
    (cli.directory / "input.json").write_text('{"path":"/workspace/é.txt"}')
    read = cli("call", "read", "@input.json", "--session", session, "-q")
    assert (read.returncode, read.stdout, read.stderr) == (0, "no line end", "")
    extended = ("read", '{"path":"/workspace/é.txt","limit":1}', "--tools", "extended")
    assert cli("call", *extended, "-s", session).stdout == "no line end\n(lines 1-1 of 1)"
    piped = cli("call", "bash", "-", "-s", session, "-q", input='{"command":"cat é.txt; exit 5"}')
    assert (piped.returncode, piped.stdout) == (5, "no line end\nbash: exit status 5\n")


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["read", '{"path":"/nowhere"}'], 1, "read: open /nowhere: no such file or directory\n"),
        (["bash", '{"command":"sleep 9"}', "-t", "300ms"], 124, "bash: timed out after 0.3s\n"),
        (["bash", '{"cmd":"ls"}'], 121, 'bash: unknown property "cmd"'),
        (["nothing", "{}"], 121, "unknown tool"),
        (["write", '{"path":"/workspace/a","content":""}', "-p", "read-only"], 120, "denied by"),
    ],
)
def test_how_a_call_ended_is_its_status(
    cli: Cli, session: str, words: list[str], status: int, text: str
) -> None:
    done = cli("call", *words, "-s", session, "-q")
    assert done.returncode == status
    assert text in done.stdout
    assert done.stdout.endswith("\n")
    result = json.loads(cli("call", *words, "-s", session, "-q", "--json").stdout)
    assert result["text"] == done.stdout.removesuffix("\n")


def test_a_session_has_one_user_at_a_time_and_a_second_may_wait(cli: Cli, session: str) -> None:
    script = '{"command":"touch begun; while [ ! -e go ]; do sleep 0.05; done"}'
    first = cli.start("call", "bash", script, "-s", session)
    give_up = time.monotonic() + 20
    while not json.loads(cli("session", "show", session, "--json").stdout)["held"]:
        assert time.monotonic() < give_up
    busy = cli("call", "bash", '{"command":"true"}', "-s", session, "-q")
    assert busy.returncode == 125
    assert "held by another process" in busy.stderr
    (row,) = cli("session", "list").stdout.splitlines()[1:]
    assert row.split()[1:3] == ["open", "yes"]
    waiting = cli.start("call", "bash", '{"command":"echo mine"}', "-s", session, "--wait", "30s")
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=30) == 143
    output, errors = waiting.communicate(timeout=30)
    assert (waiting.returncode, output) == (0, b"mine\n"), errors
    first.communicate()


def test_interrupting_a_call_ends_it_and_leaves_the_session(cli: Cli, session: str) -> None:
    started = cli.start("call", "bash", '{"command":"sleep 98766"}', "-s", session, "-q")
    give_up = time.monotonic() + 20
    while not running("sleep 98766"):
        assert time.monotonic() < give_up
        time.sleep(0.01)
    started.send_signal(signal.SIGINT)
    output, errors = started.communicate(timeout=30)
    assert (started.returncode, output, errors) == (130, b"", b"")
    assert running("sleep 98766") == []
    again = cli("call", "bash", '{"command":"echo still here"}', "-s", session, "-q")
    assert (again.returncode, again.stdout) == (0, "still here\n")


def test_a_session_that_is_over_says_so(cli: Cli) -> None:
    session = cli("session", "create", "-q").stdout.strip()
    assert cli("session", "close", session).returncode == 0
    for words in (["call", "bash", "{}", "-s", session], ["session", "close", session]):
        done = cli(*words)
        assert done.returncode == 125
        assert f"session {session} is closed" in done.stderr


def test_prune_ends_what_is_over_and_says_what(cli: Cli) -> None:
    session = cli("session", "create", "-q", "--idle-timeout", "1").stdout.strip()
    time.sleep(1.1)
    (cli.data_dir / "workspaces" / "s-left").mkdir()
    done = cli("prune", "--json")
    swept = json.loads(done.stdout)
    assert swept["sessions"] == [session]
    assert swept["workspaces"] == 1
    assert containers(cli) == []
    assert cli("prune").stdout == ""
    assert "session.expired" in cli("log").stdout


def test_own_images_are_listed_and_building_what_is_current_changes_nothing(cli: Cli) -> None:
    built = json.loads(cli("image", "build", "--json").stdout)
    assert [image["name"] for image in built] == ["sandbox", "toolbox"]
    again = cli("image", "build")
    assert again.stdout.splitlines() == [image["ref"] for image in built]
    assert "is current" in again.stderr
    listed = json.loads(cli("image", "list", "--json").stdout)
    current = {image["ref"] for image in listed if image["current"]}
    assert {image["ref"] for image in built} <= current
    assert built[0]["ref"] in cli("image", "list").stdout
    unknown = cli("image", "build", "nothing")
    assert unknown.returncode == 2
    assert "there is no image 'nothing'" in unknown.stderr


def test_the_doctor_finds_this_machine_fit(cli: Cli) -> None:
    done = cli("doctor", "--json", "-q")
    report = json.loads(done.stdout)
    states = {check["name"]: check["state"] for check in report["checks"]}
    for name in ("carrier socket", "carrier attach", "files", "privileges", "network"):
        assert states[name] == "ok", report
    assert done.returncode == (0 if report["ok"] else 1)
    assert containers(cli) == []
    assert not list(cli.data_dir.glob("doctor-*"))


def test_the_doctor_tells_people_what_to_do(cli: Cli) -> None:
    done = cli("doctor", environment={"DOCKER_HOST": "unix:///nowhere.sock"})
    assert done.returncode == 1
    assert "failed   docker" in done.stdout
    assert "install Docker Engine" in done.stdout
