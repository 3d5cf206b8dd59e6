"""`runner policy`: why, whether, what if, and a first one. None of it needs Docker."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runner.app import DATABASE
from runner.cli.policies import pointed
from runner.model import Record, Status, Verdict
from runner.policy import Policy
from runner.store import Store
from tests.cli.conftest import Cli, a_record, a_session

POLICY = """\
version: 1
mode: pattern
default: deny
allow:
  - {tool: bash, command: '^(git (status|log)|ls|cat)\\b'}
  - {tool: [read, grep], path: '^/workspace(/|$)'}
deny:
  - {tool: bash, command: 'curl', justification: "use the read tool instead"}
"""


@pytest.fixture
def policy(cli: Cli) -> str:
    """A policy's file."""
    (cli.directory / "mine.yaml").write_text(POLICY)
    return "mine.yaml"


Recorder = Callable[..., None]


@pytest.fixture
def record(cli: Cli) -> Recorder:
    """Puts calls into the records that the command reads."""
    with Store.open(cli.data_dir / DATABASE) as store:
        for session_id in ("s-1", "s-2"):
            store.add_session(a_session(session_id))

    def recording(*calls: Record) -> None:
        with Store.open(cli.data_dir / DATABASE) as store:
            for call in calls:
                store.begin_call(call, owner="a test")

    return recording


def a_call(call_id: str, tool: str = "bash", **arguments: Any) -> Record:
    return a_record(
        call_id,
        tool=tool,
        arguments=json.dumps(arguments, separators=(",", ":")),
        verdict=Verdict.ALLOW,
        rule="allow[0]",
        reason="",
        status=Status.OK,
        error=None,
    )


def script(text: str) -> str:
    return json.dumps({"command": text})


# explain


def test_a_verdict_is_explained_command_by_command_and_rule_by_rule(cli: Cli, policy: str) -> None:
    done = cli("policy", "explain", policy, "bash", script("ls src; curl x"))
    assert done.returncode == 0
    first, *lines = done.stdout.splitlines()
    assert first == "deny by deny[0]: denied by pattern policy: use the read tool instead"
    assert "command ls src: allow by allow[0]" in lines
    assert "command curl x: deny by deny[0]" in lines
    assert "  deny[0]  line 8    fits  command 'curl'  <- decides" in lines


def test_what_nobody_can_tell_is_pointed_at(cli: Cli, policy: str) -> None:
    done = cli("policy", "explain", policy, "bash", script("ls\ncat `id`"))
    lines = done.stdout.splitlines()
    at = lines.index("  cat `id`")
    assert lines[at + 1].startswith("      ^^^^ a backtick: ")
    assert lines[0].startswith("deny by unknown: ")


@pytest.mark.parametrize(
    ("text", "part", "shown", "carets"),
    [
        ("ls $x", "$x", "ls $x", "   ^^"),
        ("a\nls $x\nb", "$x", "ls $x", "   ^^"),
        ("\x1b[1m $x", "$x", "\\x1b[1m $x", "        ^^"),
        ("a\t$x", "$x", "a\\t$x", "   ^^"),
        ("日本 $x", "$x", "日本 $x", "     ^^"),
        ("ls \x07", "\x07", "ls \\x07", "   ^^^^"),
        ("ls 'a\nb'", "'a\nb'", "ls 'a", "   ^^"),
        ("", "", "", "^"),
    ],
)
def test_the_line_below_points_at_what_is_seen(
    text: str, part: str, shown: str, carets: str
) -> None:
    start = text.index(part)
    assert pointed(text, start, start + len(part), "why") == [f"  {shown}", f"  {carets} why"]


def test_of_a_long_line_what_is_around_is_shown() -> None:
    line, carets = pointed("a" * 5000 + "$x" + "b" * 5000, 5000, 5002, "why")
    assert len(line) < 150
    assert line[carets.index("^") :].startswith("$x")


def test_where_a_path_leads_can_be_said(cli: Cli, policy: str) -> None:
    words = ("policy", "explain", policy, "read", '{"path": "/workspace/a"}')
    assert cli(*words).stdout.startswith("allow by allow[1]\n")
    done = cli(*words, "--resolved", "/etc/passwd")
    assert done.stdout.startswith("deny by default")
    assert "does not fit /etc/passwd" in done.stdout


def test_an_input_of_the_extended_tools_is_explained_where_it_is_said_to_be_one(
    cli: Cli, policy: str
) -> None:
    words = ("policy", "explain", policy, "read", '{"path": "/workspace/a", "offset": 2}')
    assert 'unknown property "offset"' in cli(*words).stderr
    assert cli(*words, "--tools", "extended").stdout.startswith("allow by allow[1]\n")


def test_an_explanation_is_a_value_too(cli: Cli, policy: str) -> None:
    done = cli("policy", "explain", policy, "bash", "-", "--json", input=script("ls; cat $x"))
    found = json.loads(done.stdout)
    assert found["decision"]["rule"] == "unknown"
    assert [part["kind"] for part in found["parts"]] == ["call", "command", "command", "unknown"]
    (mark,) = found["parts"][-1]["marks"]
    assert found["script"][mark["start"] : mark["end"]].startswith("$x")


@pytest.mark.parametrize(
    ("tool", "given", "said"),
    [
        ("read", '{"pat": "/a"}', 'unknown property "pat"'),
        ("read", '{"path": "a"}', "must be absolute"),
        ("bash", "{", "bash: "),
        ("http_get", "[]", "http_get: the input must be an object"),
        ("http_get", "{", "http_get: not JSON"),
    ],
)
def test_an_input_that_does_not_fit_is_no_policys_affair(
    cli: Cli, policy: str, tool: str, given: str, said: str
) -> None:
    done = cli("policy", "explain", policy, tool, given)
    assert (done.returncode, done.stdout) == (121, "")
    assert said in done.stderr
    assert "no policy is asked" in done.stderr
    as_json = json.loads(cli("policy", "explain", policy, tool, given, "--json").stdout)
    assert as_json["status"] == "invalid"


def test_a_tool_of_ones_own_is_explained_for_any_object(cli: Cli, policy: str) -> None:
    done = cli("policy", "explain", policy, "http_get", '{"url": "x"}')
    assert done.returncode == 0
    assert done.stdout.startswith("deny by default")


def test_on_a_terminal_control_characters_are_visible(cli: Cli, policy: str) -> None:
    words = ("policy", "explain", policy, "bash", script("ls \x1b[31mred"))
    assert "\x1b" not in cli(*words).stdout
    status, shown = cli.on_terminal(*words)
    assert status == 0
    assert "\\x1b[31m" in shown


# test


def test_the_cases_beside_a_policy_are_those_that_are_meant(cli: Cli, policy: str) -> None:
    (cli.directory / "mine.cases.yaml").write_text("- {tool: bash, command: ls, is: allow}\n")
    done = cli("policy", "test", policy)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "runner: 1 case: 0 failed\n"


def test_a_case_that_fails_is_a_row_and_a_status(cli: Cli, policy: str) -> None:
    (cli.directory / "cases.jsonl").write_text(
        '{"tool": "bash", "command": "ls", "is": "allow"}\n'
        '{"tool": "bash", "command": "curl x", "is": "ask"}\n'
    )
    done = cli("policy", "test", policy, "cases.jsonl")
    assert done.returncode == 1
    heading, row = done.stdout.splitlines()
    assert heading.split() == ["LINE", "CALL", "IS", "TO", "BE", "IS", "BY", "REASON"]
    assert row.split()[0] == "2"
    assert "curl x" in row
    assert row.endswith("use the read tool instead")
    assert "2 cases: 1 failed" in done.stderr
    found = json.loads(cli("policy", "test", policy, "cases.jsonl", "--json").stdout)
    assert found["cases"] == 2
    (failure,) = found["failures"]
    assert (failure["line"], failure["expected"]) == (2, "ask")
    assert failure["decision"]["verdict"] == "deny"


def test_a_shipped_policy_is_held_to_the_cases_that_come_with_it(cli: Cli) -> None:
    done = cli("policy", "test", "default")
    assert (done.returncode, done.stdout) == (0, "")
    assert "cases: 0 failed" in done.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [("- {tool: x}", "mine.cases.yaml:1: cases[0] needs `is`"), ("[]", "no case in it")],
)
def test_cases_that_prove_nothing_are_an_error(
    cli: Cli, policy: str, content: str, said: str
) -> None:
    (cli.directory / "mine.cases.yaml").write_text(content)
    done = cli("policy", "test", policy)
    assert done.returncode == 2
    assert said in done.stderr


def test_cases_that_are_not_there_are_an_error(cli: Cli, policy: str) -> None:
    done = cli("policy", "test", policy)
    assert done.returncode == 2
    assert "mine.cases.yaml: the cases can't be read" in done.stderr


# replay


def test_a_verdict_that_would_change_is_shown(cli: Cli, policy: str, record: Recorder) -> None:
    record(
        a_call("c-1", command="ls"),
        a_call("c-2", command="curl x"),
        replace(a_call("c-3", command="ls -l"), verdict=Verdict.DENY, status=Status.DENIED),
        replace(a_call("c-4", command="rm x"), verdict=None, status=Status.INVALID, rule=None),
    )
    done = cli("policy", "replay", policy)
    assert done.returncode == 0
    _, curl, ls = done.stdout.splitlines()
    assert "curl x" in curl
    facts = re.split("  +", curl)
    assert facts[3:5] == ["allow by allow[0]", "deny by deny[0]"]
    assert facts[5].endswith("use the read tool instead")
    assert re.split("  +", ls)[3:] == ["deny by allow[0]", "allow by allow[0]"]
    assert "3 calls judged: 2 would change (1 allow -> deny, 1 deny -> allow)" in done.stderr
    assert cli("policy", "replay", policy, "--strict").returncode == 1
    found = json.loads(cli("policy", "replay", policy, "--json").stdout)
    assert found["judged"] == 3
    assert [row["call"] for row in found["changed"]] == ["c-2", "c-3"]
    assert found["changed"][0]["now"]["rule"] == "deny[0]"


def test_a_call_that_was_not_kept_whole_is_said_not_to_be_judged(
    cli: Cli, policy: str, record: Recorder
) -> None:
    record(a_call("c-1", command="ls " + "x" * 100_000))
    done = cli("policy", "replay", policy, "--strict")
    assert (done.returncode, done.stdout) == (0, "")
    assert "1 call not judged: its arguments were longer than what is kept" in done.stderr
    (row,) = json.loads(cli("policy", "replay", policy, "--json").stdout)["not_judged"]
    assert row["call"] == "c-1"


def test_calls_are_chosen_by_session_and_time(cli: Cli, policy: str, record: Recorder) -> None:
    old = replace(a_call("c-1", command="curl x"), started_at=time.time() - 7200)
    record(old, replace(a_call("c-2", command="curl y"), session_id="s-2"))

    def changed(*options: str) -> list[str]:
        done = cli("policy", "replay", policy, "--json", *options)
        return [row["call"] for row in json.loads(done.stdout)["changed"]]

    assert changed() == ["c-1", "c-2"]
    assert changed("--session", "s-1") == ["c-1"]
    assert changed("--since", "1h") == ["c-2"]
    assert changed("--since", "2020-01-01") == ["c-1", "c-2"]
    assert cli("policy", "replay", policy, "--session", "s-3").returncode == 125
    assert cli("policy", "replay", policy, "--since", "soon").returncode == 2


def test_more_calls_than_are_read_at_once_are_judged(
    cli: Cli, policy: str, record: Recorder
) -> None:
    record(*(a_call(f"c-{number}", command="ls") for number in range(1100)))
    assert json.loads(cli("policy", "replay", policy, "--json").stdout)["judged"] == 1100


def test_that_links_are_not_followed_is_said_where_it_matters(
    cli: Cli, policy: str, record: Recorder
) -> None:
    record(a_call("c-1", command="ls"))
    assert "as they were written" not in cli("policy", "replay", policy).stderr
    record(a_call("c-2", "read", path="/workspace/a"))
    assert "as they were written" in cli("policy", "replay", policy).stderr


def test_what_a_policy_on_trial_said_is_shown_without_asking_any(
    cli: Cli, record: Recorder
) -> None:
    record(
        replace(a_call("c-1", command="a"), shadow='{"verdict":"deny","rule":"deny[2]"}'),
        replace(a_call("c-2", command="b"), shadow='{"verdict":"allow","rule":"allow[1]"}'),
        a_call("c-3", command="c"),
    )
    done = cli("policy", "replay", "--shadow")
    _, row = done.stdout.splitlines()
    assert "deny by deny[2]" in row
    assert "2 calls judged: 1 differed (1 allow -> deny)" in done.stderr


@pytest.mark.parametrize("words", [[], ["mine.yaml", "--shadow"]])
def test_to_replay_takes_a_policy_or_the_one_on_trial(
    cli: Cli, policy: str, words: list[str]
) -> None:
    done = cli("policy", "replay", *words)
    assert done.returncode == 2
    assert "one of the two" in done.stderr


# init


def test_a_first_policy_is_made_of_a_sessions_calls(cli: Cli, record: Recorder) -> None:
    record(
        a_call("c-1", command="git status -s"),
        a_call("c-2", command="make test"),
        a_call("c-3", "read", path="/workspace/src/a.py"),
        replace(a_call("c-4", command="cat x"), session_id="s-2"),
    )
    done = cli("policy", "init", "--session", "s-1", "-o", "first.yaml")
    assert (done.returncode, done.stdout) == (0, "")
    assert "wrote first.yaml" in done.stderr
    text = (cli.directory / "first.yaml").read_text()
    assert "# - {tool: bash, command: '^make test\\b'}" in text
    assert "cat" not in yaml_of(text)
    assert cli("policy", "check", "first.yaml", "--strict").returncode == 0
    replayed = json.loads(
        cli("policy", "replay", "first.yaml", "--json", "--session", "s-1").stdout
    )
    assert [row["call"] for row in replayed["changed"]] == ["c-2"]
    again = cli("policy", "init", "--session", "s-1", "-o", "first.yaml")
    assert again.returncode == 2
    assert "is there already" in again.stderr
    assert (cli.directory / "first.yaml").read_text() == text


def yaml_of(text: str) -> str:
    """A file without its comments."""
    return "".join(line for line in text.splitlines(True) if not line.lstrip().startswith("#"))


def test_without_a_session_the_one_that_was_used_last_is_meant(cli: Cli, record: Recorder) -> None:
    older = replace(a_call("c-1", command="cat x"), session_id="s-2", started_at=1_700_000_000.0)
    record(a_call("c-2", command="ls"), older)
    done = cli("policy", "init")
    assert "of session s-1." in done.stdout
    Policy.parse(done.stdout)


def test_without_records_there_is_nothing_to_start_from(cli: Cli) -> None:
    done = cli("policy", "init")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no recorded call of any session ran" in done.stderr
    assert cli("policy", "init", "--session", "s-9").returncode == 125


def test_a_file_that_can_not_be_written_is_explained(cli: Cli, record: Recorder) -> None:
    record(a_call("c-1", command="ls"))
    done = cli("policy", "init", "-o", "nowhere/first.yaml")
    assert done.returncode == 2
    assert "nowhere/first.yaml" in done.stderr
    assert "Traceback" not in done.stderr
