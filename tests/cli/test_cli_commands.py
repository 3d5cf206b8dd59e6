"""Commands that need no Docker, and what becomes of mistakes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from runner import Settings, __version__
from runner.app import DATABASE, open_store
from runner.cli import COMMANDS, GROUPS, application
from runner.cli.records import event_line
from runner.cli.terminal import Terminal
from runner.model import Record, SessionState
from runner.store import Store
from tests.cli.conftest import Cli, a_record, a_session

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"
HEAVY = ("docker", "pydantic", "structlog", "rich", "yaml", "asyncio")


def a_call(call_id: str = "c-1", arguments: str = '{"command":"ls"}') -> Record:
    return a_record(call_id, arguments=arguments)


@pytest.fixture
def store(cli: Cli) -> Store:
    """The records that the command will read."""
    return Store.open(cli.data_dir / DATABASE)


# Help and version.


def test_the_version_is_printed_alone(cli: Cli) -> None:
    for words in (["--version"], ["-v", "--version"]):
        done = cli(*words)
        assert (done.returncode, done.stdout, done.stderr) == (
            0,
            f"rousseau-runner {__version__}\n",
            "",
        )


def test_the_version_waits_for_no_import() -> None:
    code = (
        "import sys; sys.argv = ['runner', '--version']\n"
        "from runner.__main__ import main; main()\n"
        f"print(sorted({ {'typer', *HEAVY}!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"rousseau-runner {__version__}", "[]"]


def test_help_waits_for_nothing_that_only_sessions_need() -> None:
    code = (
        "import sys\nfrom runner.cli import main\n"
        "status = main(['run', '--help'])\n"
        "print(status, sorted({'docker', 'structlog', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_without_a_word_the_help_is_printed(cli: Cli) -> None:
    done = cli()
    assert done.returncode == 0
    assert "Usage: runner" in done.stdout
    assert "runner help exit-codes" in done.stdout


def help_of(*words: str) -> str:
    done = CliRunner().invoke(application(), [*words, "--help"], "runner", obj=Terminal())
    assert done.exit_code == 0
    return done.stdout


def _all_commands() -> list[tuple[str, ...]]:
    grouped = [(group, name) for group, _, members in GROUPS for name, _ in members]
    return [*((name,) for name, _ in COMMANDS), *grouped]


@pytest.mark.parametrize("command", _all_commands(), ids=" ".join)
def test_every_command_and_option_is_documented(command: tuple[str, ...]) -> None:
    text = help_of(*command)
    assert f"Usage: runner {' '.join(command)}" in text
    document = DOCUMENT.read_text()
    assert f"`runner {' '.join(command)}" in document
    options = set(re.findall(r"--[a-z][a-z-]*", text)) - {"--help"}
    assert [option for option in options if f"`{option}" not in document] == []


def test_the_overviews_cut_no_sentence_short() -> None:
    for words in ((), *((group,) for group, _, _ in GROUPS)):
        assert "..." not in help_of(*words).partition("Commands:")[2]


def test_help_about_exit_codes_is_a_table_for_people_and_for_programs(cli: Cli) -> None:
    assert "\n124 " in cli("help", "exit-codes").stdout
    rows = json.loads(cli("help", "exit-codes", "--json").stdout)
    assert {"status": "120", "meaning": "The policy denied the call; nothing ran."} in rows


def test_help_about_settings_names_every_setting(cli: Cli) -> None:
    shown = cli("help", "settings").stdout
    for name in Settings.model_fields.keys() - {"limits"}:
        assert f"RUNNER_{name.upper()} " in shown
    assert "RUNNER_LIMITS__MEMORY_BYTES " in shown
    assert cli("help").stdout == cli().stdout


# Mistakes.


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], "nonsense"),
        (["run"], "COMMAND"),
        (["run", "--timeout", "soon", "ls"], "is not a time"),
        (["run", "--memory", "much", "ls"], "is not a size"),
        (["run", "--env", "HOME", "ls"], "NAME=VALUE"),
        (["run", "--workspace", "", "ls"], "names no directory"),
        (["run", "--carrier", "pigeon", "ls"], "pigeon"),
        (["run", "--cpus", "0", "ls"], "limits.cpus"),
        (["run", "--memory", "0", "ls"], "limits.memory_bytes"),
        (["run", "--timeout", "0", "ls"], "timeout_s"),
        (["run", "--policy", "nowhere.yaml", "ls"], "nowhere.yaml"),
        (["call", "bash", "{}"], "--session"),
        (["call", "bash", "@nowhere.json", "-s", "s-1"], "nowhere.json"),
        (["tools", "--format", "yaml"], "yaml"),
        (["policy", "check", "nowhere.yaml"], "no such file"),
        (["policy", "show", "nowhere"], "no shipped policy"),
        (["audit", "verify", "--head", "x"], "SEQ:HASH"),
        (["help", "nothing"], "nothing"),
    ],
)
def test_a_mistake_is_explained_without_a_traceback(cli: Cli, words: list[str], said: str) -> None:
    done = cli(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_setting_that_cannot_be_used_is_named(cli: Cli) -> None:
    done = cli("session", "list", environment={"RUNNER_TIMEOUT_S": "soon"})
    assert done.returncode == 2
    assert done.stderr.startswith("runner: settings: timeout_s:")


def test_a_daemon_that_is_not_there_is_explained(cli: Cli) -> None:
    done = cli("run", "-q", "ls", environment={"DOCKER_HOST": "unix:///nowhere.sock"})
    assert done.returncode == 125
    assert "there is no Docker daemon at unix:///nowhere.sock: install" in done.stderr
    assert "Traceback" not in done.stderr


def test_with_json_an_error_is_a_value_too(cli: Cli) -> None:
    done = cli("session", "show", "s-none", "--json")
    assert done.returncode == 125
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "session_not_found"
    assert error["message"] in done.stderr


def test_our_own_mistake_is_called_one_and_its_traceback_is_there_on_request(cli: Cli) -> None:
    code = (
        "import runner.app, sys\n"
        "def broken(*arguments): raise ZeroDivisionError('oops')\n"
        "runner.app.open_store = broken\n"
        "from runner.cli import main\n"
        "sys.exit(main(['session', 'list']))"
    )
    for debug, shown in (("", False), ("1", True)):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=False,
            env={**cli.environment, "RUNNER_DEBUG": debug},
        )
        assert done.returncode == 125
        assert "bug in rousseau-runner" in done.stderr
        assert "ZeroDivisionError: oops" in done.stderr
        assert ("Traceback" in done.stderr) is shown


# Policies and tools.


def test_a_sound_policy_is_described(cli: Cli) -> None:
    rules = "mode: pattern\nallow:\n  - {tool: read}\nnetwork:\n  allow: [{host: a.example}]\n"
    (cli.directory / "mine.yaml").write_text(rules)
    done = cli("policy", "check", "mine.yaml", "--json")
    assert done.returncode == 0
    about = json.loads(done.stdout)
    assert (about["rules"], about["network_rules"]) == (1, 1)
    assert about["default"] == "deny"
    assert about["warnings"] == []


def test_a_policy_that_does_not_load_is_an_error_at_a_line(cli: Cli) -> None:
    (cli.directory / "mine.yaml").write_text(
        "mode: pattern\nallow:\n  - {tool: bash, match: '('}\n"
    )
    done = cli("policy", "check", "mine.yaml")
    assert done.returncode == 2
    assert "mine.yaml:3: allow[0]" in done.stderr


def test_a_rule_without_effect_is_a_warning_and_with_strict_a_failure(cli: Cli) -> None:
    (cli.directory / "mine.yaml").write_text(
        "mode: pattern\ndeny:\n  - {tool: bash, match: ^git}\n"
    )
    done = cli("policy", "check", "mine.yaml")
    assert done.returncode == 0
    assert "mine.yaml: warning: line 3: deny[0]:" in done.stdout
    assert cli("policy", "check", "mine.yaml", "--strict").returncode == 1
    (warning,) = json.loads(cli("policy", "check", "mine.yaml", "--json").stdout)["warnings"]
    assert (warning["line"], warning["rule"]) == (3, "deny[0]")


def test_a_shipped_policy_can_be_listed_checked_and_copied(cli: Cli) -> None:
    assert "default" in cli("policy", "list").stdout.splitlines()
    assert cli("policy", "check", "default").returncode == 0
    (cli.directory / "copy.yaml").write_text(cli("policy", "show", "default").stdout)
    original = json.loads(cli("policy", "check", "default", "--json").stdout)
    copy = json.loads(cli("policy", "check", "copy.yaml", "--json").stdout)
    assert copy["digest"] == original["digest"]
    assert original["policy"] in [
        row["policy"] for row in json.loads(cli("policy", "list", "--json").stdout)
    ]


@pytest.mark.parametrize(
    ("format", "key"),
    [
        ("rousseau", "input_schema"),
        ("anthropic", "input_schema"),
        ("mcp", "inputSchema"),
        ("openai", "function"),
    ],
)
def test_tools_are_defined_as_each_api_wants_them(cli: Cli, format: str, key: str) -> None:
    done = cli("tools", "--format", format)
    definitions = json.loads(done.stdout)
    assert len(definitions) == 5
    assert all(key in definition for definition in definitions)
    assert done.stderr == ""


def test_tools_are_listed_for_people(cli: Cli) -> None:
    lines = cli("tools").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["TOOL", "read", "write", "edit", "grep", "bash"]
    assert json.loads(cli("tools", "--json").stdout)[0]["input_schema"]


def test_the_extended_tools_are_listed_where_they_are_asked_for(cli: Cli) -> None:
    lines = cli("tools", "--tools", "extended").stdout.splitlines()
    assert {"read", "multi_edit", "glob", "list"} <= {line.split()[0] for line in lines}
    definitions = json.loads(cli("tools", "--tools", "extended", "--format", "mcp").stdout)
    (read,) = [one for one in definitions if one["name"] == "read"]
    assert "offset" in read["inputSchema"]["properties"]


# Records.


def test_a_fresh_machine_has_no_sessions_and_an_empty_chain(cli: Cli) -> None:
    assert json.loads(cli("session", "list", "--json").stdout) == []
    assert cli("session", "list").stdout.splitlines()[1:] == []
    assert cli("log").stdout == ""
    assert cli("audit", "verify").stdout == f"0:{'0' * 64}\n"


def test_a_session_is_listed_and_shown_without_its_secret(cli: Cli, store: Store) -> None:
    with store:
        store.add_session(a_session())
    (listed,) = json.loads(cli("session", "list", "--json").stdout)
    shown = json.loads(cli("session", "show", "s-1", "--json").stdout)
    assert listed == shown
    assert (shown["state"], shown["held"]) == ("open", False)
    everything = cli("session", "list").stdout + cli("session", "show", "s-1").stdout
    assert "5ec2e7" not in everything + json.dumps(shown)
    assert "/some/where" in everything


def test_a_session_whose_time_is_up_is_not_called_open(cli: Cli, store: Store) -> None:
    with store:
        store.add_session(a_session())
        store.update_session("s-1", used_at=time.time() - 61)
    (row,) = cli("session", "list").stdout.splitlines()[1:]
    assert row.split()[1] == "expired"
    assert json.loads(cli("session", "show", "s-1", "--json").stdout)["state"] == "expired"


def test_ended_sessions_are_listed_on_request(cli: Cli, store: Store) -> None:
    with store:
        store.add_session(a_session())
        store.end_session("s-1", SessionState.CLOSED)
    assert json.loads(cli("session", "list", "--json").stdout) == []
    assert len(json.loads(cli("session", "list", "--all", "--json").stdout)) == 1


def test_the_log_is_a_line_an_event_and_safe_to_look_at(cli: Cli, store: Store) -> None:
    with store:
        store.add_session(a_session())
        store.begin_call(a_call(arguments='{"command":"\x1b[2J\nforged"}'), owner="me")
    opened, denied = cli("log").stdout.splitlines()
    assert "session.opened" in opened
    assert "tool.denied" in denied
    assert "reason=not here" in denied
    assert "\\x1b[2J\\nforged" in denied
    assert "\x1b" not in opened + denied


def test_the_log_as_json_is_the_chain_itself(cli: Cli, store: Store) -> None:
    with store:
        store.add_session(a_session())
        store.begin_call(a_call(), owner="me")
        lines = [row.line for row in store.audit_rows()]
    assert cli("log", "--json").stdout.splitlines() == lines
    assert cli("log", "--json", "--last", "1").stdout.splitlines() == lines[1:]
    assert cli("log", "--json", "-n", "0").stdout == ""


def test_the_log_of_one_session_has_no_other(cli: Cli, store: Store) -> None:
    with store:
        store.add_session(a_session("s-1"))
        store.add_session(a_session("s-2"))
    assert len(cli("log").stdout.splitlines()) == 2
    (line,) = cli("log", "--session", "s-2").stdout.splitlines()
    assert "s-2" in line
    unknown = cli("log", "--session", "s-3")
    assert unknown.returncode == 125
    assert "'s-3'" in unknown.stderr


def test_an_event_of_a_newer_version_is_shown_with_all_that_it_says(store: Store) -> None:
    with store:
        store.add_session(a_session())
        (row,) = store.audit_rows()
    newer = type(row)(
        seq=1,
        at=0.0,
        event="session.frozen",
        session_id="s-1",
        call_id="",
        body={"why": "cold", "degrees": -3, "really": True},
        previous="",
        hash="",
        line="",
    )
    assert event_line(newer).endswith("session.frozen   s-1  why=cold degrees=-3 really=true")


def test_following_shows_what_happens_later_until_it_is_interrupted(cli: Cli, store: Store) -> None:
    with store:
        store.add_session(a_session())
        following = cli.start("log", "--follow", "--json")
        assert following.stdout is not None
        first = json.loads(following.stdout.readline())
        store.begin_call(a_call(), owner="me")
        second = json.loads(following.stdout.readline())
    assert (first["event"], second["event"]) == ("session.opened", "tool.denied")
    following.send_signal(signal.SIGINT)
    output, errors = following.communicate(timeout=10)
    assert (following.returncode, output, errors) == (130, b"", b"")


def test_following_ends_quietly_when_nobody_reads_any_more(cli: Cli, store: Store) -> None:
    with store:
        store.add_session(a_session())
        following = cli.start("log", "--follow")
        assert following.stdout is not None
        following.stdout.readline()
        following.stdout.close()
        store.begin_call(a_call(), owner="me")
        assert following.wait(timeout=10) == 141
    assert following.stderr is not None
    assert following.stderr.read() == b""
    following.stderr.close()


def test_a_whole_chain_verifies_and_its_end_can_be_pinned(cli: Cli, store: Store) -> None:
    with store:
        store.add_session(a_session())
    done = cli("audit", "verify")
    assert done.returncode == 0
    head = done.stdout.strip()
    assert head.startswith("1:")
    with open_store(Settings.read(data_dir=cli.data_dir)) as again:
        again.begin_call(a_call(), owner="me")
    assert cli("audit", "verify", "--head", head).returncode == 0
    report = json.loads(cli("audit", "verify", "--json").stdout)
    assert (report["ok"], report["rows"]) == (True, 2)
    assert cli("audit", "verify", "--head", f"1:{'0' * 64}").returncode == 1


def test_a_broken_chain_is_said_to_be_broken_and_where(cli: Cli, store: Store) -> None:
    with store:
        store.add_session(a_session("s-1"))
        store.add_session(a_session("s-2"))
        database = store._db
        database.execute("DROP TRIGGER audit_no_update")
        database.execute("UPDATE audit SET at_us = at_us + 1 WHERE seq = 2")
    done = cli("audit", "verify")
    assert done.returncode == 1
    assert "row 2" in done.stderr
    report = json.loads(cli("audit", "verify", "--json").stdout)
    assert (report["ok"], report["row"]) == (False, 2)


def test_a_closed_standard_output_is_no_mistake(cli: Cli) -> None:
    script = f"{sys.executable} -m runner tools >&-; echo $?; {sys.executable} -m runner tools 2>&-"
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=True, env=cli.environment
    )
    assert done.stdout.startswith("0\nTOOL")
    assert done.stderr == ""


def test_nobody_who_listens_is_no_mistake(cli: Cli) -> None:
    source, sink = os.pipe()
    os.close(source)
    running = cli.start("session", "list", stderr=sink)
    os.close(sink)
    output, _ = running.communicate(timeout=10)
    assert (running.returncode, output[:2]) == (0, b"ID")


def test_a_pipe_that_is_closed_early_is_no_mistake(cli: Cli) -> None:
    source, sink = os.pipe()
    os.close(source)
    for words in (["tools", "--json"], ["session", "show", "s-none", "--json"]):
        running = cli.start(*words, stdout=sink)
        _, errors = running.communicate(timeout=10)
        assert running.returncode == 141
        assert b"Traceback" not in errors
    os.close(sink)
