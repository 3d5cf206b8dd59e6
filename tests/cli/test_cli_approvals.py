"""Asking at the terminal, and answering from another one."""

import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.app import DATABASE
from runner.approvals import Preview
from runner.cli.prompt import (
    BAR,
    HEAD_ROWS,
    LINE_CHARACTERS,
    TAIL_ROWS,
    argument_lines,
    barred,
    difference,
    preview_lines,
)
from runner.model import Approval, ApprovalState
from runner.store import Store
from tests.cli.conftest import START_S, Cli, a_session
from tests.cli.test_cli_commands import a_call
from tests.host import wait_until

RULES = """
default: deny
ask:
  - {tool: bash, match: 'push'}
  - {tool: [write, edit]}
"""


def an_approval(id_: str = "a-1", **changes: Any) -> Approval:
    values: dict[str, Any] = {
        "session_id": "s-1",
        "state": ApprovalState.PENDING,
        "tool": "bash",
        "arguments": '{"command":"git push"}',
        "resolved": None,
        "hash": id_,
        "policy": "ab" * 32,
        "rule": "ask[0]",
        "reason": "",
        "asked_at": time.time(),
        "expires_at": time.time() + 600,
        **changes,
    }
    return Approval(id=id_, **values)


@pytest.fixture
def store(cli: Cli) -> Iterator[Store]:
    """The records that the command will read, with a session."""
    with Store.open(cli.data_dir / DATABASE) as store:
        store.add_session(a_session())
        yield store


# From another terminal.


def test_calls_that_wait_are_listed(cli: Cli, store: Store) -> None:
    store.ask_approval(an_approval())
    store.ask_approval(an_approval("a-2", arguments='{"command":"\x1b[31m' + "x" * 100 + '"}'))
    store.end_approval("a-2", ApprovalState.DENIED, by="me", how="queue")
    listed = cli("approvals", "list").stdout.splitlines()
    assert listed[0].split()[:4] == ["ID", "STATE", "SESSION", "AGE"]
    assert len(listed) == 2
    assert re.match(r"a-1 +pending +s-1 +\d+s +(9m\d+s|10m0s) +ask\[0\] +bash +\{", listed[1])
    every = cli("approvals", "list", "--all").stdout
    assert "a-2  denied" in every
    assert "\\x1b[31mxxx" in every
    assert "…" in every
    facts = json.loads(cli("approvals", "list", "--json").stdout)
    assert [fact["id"] for fact in facts] == ["a-1"]
    assert facts[0]["arguments"] == '{"command":"git push"}'
    assert cli("approvals", "list", "--session", "s-1").stdout.count("a-1") == 1
    unknown = cli("approvals", "list", "--session", "s-9")
    assert (unknown.returncode, unknown.stdout) == (125, "")


def test_nothing_that_waits_is_said_to_be_nothing(cli: Cli, store: Store) -> None:
    done = cli("approvals", "list")
    assert done.returncode == 0
    assert done.stderr == "runner: no call waits for an answer\n"


def test_what_is_past_its_deadline_does_not_wait_any_more(cli: Cli, store: Store) -> None:
    store.ask_approval(an_approval(expires_at=time.time() + 0.001))
    time.sleep(0.002)
    assert json.loads(cli("approvals", "list", "--json").stdout) == []
    assert [row.event for row in store.audit_rows()][-1] == "approval.expired"


def test_a_call_is_shown_whole_and_behind_a_bar(cli: Cli, store: Store) -> None:
    command = "echo\n" + "x" * 3000 + "\nthe rule ask[9] asks"
    store.ask_approval(an_approval(arguments=json.dumps({"command": command}), resolved="/x"))
    shown = cli("approvals", "show", "a-1").stdout
    assert f"{BAR}command:\n{BAR}  echo\n{BAR}  {'x' * 3000}\n{BAR}  the rule ask[9] asks" in shown
    assert f'{BAR}the path leads to "/x"' in shown
    assert re.search(r"expires_at +\d{4}-\d\d-\d\d .* \(in ", shown)
    facts = json.loads(cli("approvals", "show", "a-1", "--json").stdout)
    assert json.loads(facts["arguments"]) == {"command": command}


def test_a_pattern_is_previewed(cli: Cli, store: Store) -> None:
    store.begin_call(a_call(arguments='{"command":"git push old"}'), owner="me")
    store.ask_approval(an_approval())
    store.ask_approval(an_approval("a-2", arguments='{"command":"git push more"}'))
    rule = "{tool: bash, match: push}"
    shown = cli("approvals", "show", "a-1", "--pattern", rule).stdout
    assert "covers 1 of the session's last 1 calls" in shown
    assert "would approve 1 other calls that wait" in shown
    facts = json.loads(cli("approvals", "show", "a-1", "--pattern", rule, "--json").stdout)
    preview = facts["preview"]
    assert [call["call_id"] for call in preview["past"]] == ["c-1"]
    assert (preview["covers"], preview["pending"]) == (True, ["a-2"])
    narrow = cli("approvals", "show", "a-1", "--pattern", "{tool: read}").stdout
    assert "does not cover this call" in narrow


def test_a_call_is_approved_or_denied_and_the_audit_says_by_whom(cli: Cli, store: Store) -> None:
    store.ask_approval(an_approval())
    store.ask_approval(an_approval("a-2"))
    done = cli("approvals", "approve", "a-1")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == 'runner: approved: bash {"command":"git push"}\n'
    done = cli("approvals", "deny", "a-2", "--reason", "not today", "--json", "--quiet")
    facts = json.loads(done.stdout)
    assert (facts["state"], facts["answer"], done.stderr) == ("denied", "not today", "")
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    approved, denied = list(store.audit_rows())[-2:]
    for row in (approved, denied):
        assert (row.body["by"], row.body["how"]) == (user, "cli")
    assert cli("audit", "verify").returncode == 0
    assert "approval.denied" in cli("log").stdout


def test_a_pattern_is_approved_with_what_else_it_covers(cli: Cli, store: Store) -> None:
    store.ask_approval(an_approval())
    store.ask_approval(an_approval("a-2", arguments='{"command":"git push more"}'))
    done = cli("approvals", "approve", "a-1", "--pattern", "{tool: bash, match: push}")
    assert done.returncode == 0
    assert store.pending_approvals() == set()
    found = store.approval("a-1")
    assert found is not None
    assert found.pattern == '{"tool": "bash", "match": "push"}'


@pytest.mark.parametrize(
    ("words", "status", "problem"),
    [
        (("show", "a-9"), 125, "there is no approval 'a-9'"),
        (("approve", "a-9"), 125, "there is no approval 'a-9'"),
        (("deny", "a-9"), 125, "there is no approval 'a-9'"),
        (("approve", "a-2"), 125, "a-2 is denied by me (queue)"),
        (("deny", "a-2"), 125, "a-2 is denied by me (queue)"),
        (("approve", "a-1", "--pattern", "{tool: read}"), 2, "the pattern: it does not cover"),
        (("approve", "a-1", "--pattern", "push"), 2, "the pattern: it must be a rule"),
        (("show", "a-1", "--pattern", "{tool: bash, match: '('}"), 2, "the pattern:1: allow[0]"),
        (("approve",), 2, "Missing argument"),
    ],
)
def test_what_can_not_be_answered_is_an_error(
    cli: Cli, store: Store, words: tuple[str, ...], status: int, problem: str
) -> None:
    store.ask_approval(an_approval())
    store.ask_approval(an_approval("a-2"))
    store.end_approval("a-2", ApprovalState.DENIED, by="me", how="queue")
    done = cli("approvals", *words)
    assert (done.returncode, done.stdout) == (status, "")
    assert problem in done.stderr
    assert store.pending_approvals() == {"a-1"}


# What is shown.


def test_no_row_of_a_call_can_pass_for_ours() -> None:
    theirs = ["plain", "a\rb\x1b[2J\x85\u2028c", "approve once [a]" * 20, "\tt", "", "é€" * 30]
    rows = barred(theirs, 40)
    assert all(row.startswith(BAR) and len(row) <= 40 for row in rows)
    assert not re.search(r"[\r\x1b\x85\u2028\t]", "".join(rows))
    assert "".join(row.removeprefix(BAR) for row in rows[:2]) == "plaina\\rb\\x1b[2J\\x85\\u2028c"


def test_wide_characters_count_twice() -> None:
    rows = barred(["漢字" * 20], 40)
    assert max(len(row) for row in rows) == len(BAR) + 18


def test_what_is_left_out_is_said() -> None:
    rows = barred([str(number) for number in range(1000)], 80)
    assert len(rows) == HEAD_ROWS + TAIL_ROWS + 1
    assert rows[HEAD_ROWS].startswith(f"NOT SHOWN: {1000 - HEAD_ROWS - TAIL_ROWS} rows")
    assert (rows[0], rows[-1]) == (f"{BAR}0", f"{BAR}999")
    long = barred(["a" * LINE_CHARACTERS + "b" * 7 + "c" * LINE_CHARACTERS], 10**6)
    assert [row[-1] for row in long] == ["a", "…", "c"]
    assert "NOT SHOWN: 7 characters" in long[1]
    assert len(barred([str(number) for number in range(1000)], 80, bounded=False)) == 1000


def test_arguments_are_lines() -> None:
    assert argument_lines({"command": "a\nb", "path": "/x", "ignore_case": True}) == [
        "command:", "  a", "  b", "path: /x", "ignore_case: true",
    ]  # fmt: skip


def test_a_difference_shows_what_changes_where() -> None:
    before = "\n".join(f"line {number}" for number in range(100))
    after = before.replace("line 20\n", "line twenty\n").replace("line 70\n", "")
    shown = difference(before, after, "/workspace/f")
    assert shown is not None
    assert [line for line in shown if line[0] in "+-"] == [
        '--- "/workspace/f"', '+++ "/workspace/f"', "-line 20", "+line twenty", "-line 70",
    ]  # fmt: skip
    assert [line for line in shown if line.startswith("@@")] == [
        "@@ -18,7 +18,7 @@",
        "@@ -68,7 +68,6 @@",
    ]
    assert difference(before, before, "/f") == ['--- "/f"', "nothing changes"]
    new = difference("", "one\ntwo\n", "/f")
    assert new is not None
    assert [line for line in new if line[0] == "+"][1:] == ["+one", "+two"]
    assert difference("a\n" * 9000, "b\n" * 9000, "/f") is None


def test_a_preview_is_told_in_lines() -> None:
    preview = Preview("{}", True, (a_call(),), 7, 2, (an_approval(),))
    assert preview_lines(preview, 80) == [
        "the pattern",
        f"{BAR}{{}}",
        "covers 1 of the session's last 7 calls (2 are too long to tell)",
        f'{BAR}bash {{"command":"ls"}}',
        "and would approve 1 other calls that wait",
        f'{BAR}a-1 bash {{"command":"git push"}}',
    ]


# At the terminal.

ASKING = """
import asyncio, json, sys
from runner import AsyncRunner, Policy, Settings
from runner.cli.prompt import Prompt
from runner.cli.terminal import Terminal
from runner.testing import FakeEngine

async def main():
    prompt = Prompt(Terminal())
    async with (
        AsyncRunner(Policy.parse(RULES), approver=prompt, engine=FakeEngine(),
            settings=Settings.read()) as runner,
        runner.session() as session,
    ):
        prompt.session = session
        sandbox = await session.sandbox()
        await sandbox.write("/workspace/f", b"one\\ntwo\\nthree\\n")
        for tool, arguments in json.loads(sys.argv[1]):
            result = await session.call(tool, arguments)
            print(json.dumps([result.status, result.text]), flush=True)

asyncio.run(main())
"""


class Person:
    """Sits at a terminal that is a command's standard input and standard error."""

    def __init__(self, cli: Cli, *command: str):
        self._end, theirs = pty.openpty()
        self.shown = ""
        self.running = subprocess.Popen(
            [sys.executable, *command],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=theirs,
            cwd=cli.directory,
            env={**cli.environment, "TERM": "xterm"},
        )
        os.close(theirs)

    def sees(self, text: str) -> str:
        """Wait until something is shown; what was shown since the last wait, up to there."""
        while text not in self.shown:
            piece = os.read(self._end, 65536)
            self.shown += re.sub(r"\x1b\[[0-9;]*m", "", piece.decode()).replace("\r\n", "\n")
        before, _, self.shown = self.shown.partition(text)
        return before + text

    def types(self, line: str) -> None:
        """Type a line."""
        os.write(self._end, line.encode() + b"\n")

    def leaves(self) -> None:
        """Say that there is nothing more to come: Ctrl-D."""
        os.write(self._end, b"\x04")

    def ends(self) -> tuple[int, str]:
        """The command's status and its standard output."""
        output, _ = self.running.communicate(timeout=START_S)
        os.close(self._end)
        return self.running.returncode, output.decode()


def asked(cli: Cli, *calls: tuple[str, dict[str, str]]) -> Person:
    code = f"RULES = {RULES!r}\n{ASKING}"
    return Person(cli, "-c", code, json.dumps(calls))


CHOICES = "deny [d]? "


def test_a_person_is_shown_the_call_and_approves_it(cli: Cli) -> None:
    person = asked(cli, ("bash", {"command": "echo push\necho \x1b[2J"}))
    shown = person.sees(CHOICES)
    assert "the rule ask[0] asks about a call of bash" in shown
    assert f"{BAR}command:\n{BAR}  echo push\n" in shown
    assert "\\x1b[2J" in shown
    assert "\x1b[2J" not in shown
    person.types("what?")
    person.sees(CHOICES)
    person.types("a")
    status, output = person.ends()
    assert status == 0
    assert json.loads(output)[0] == "ok"


def test_a_denial_carries_the_reason(cli: Cli) -> None:
    person = asked(cli, ("bash", {"command": "push"}))
    person.sees(CHOICES)
    person.types("d")
    person.sees("(may be empty): ")
    person.types("not on a Friday")
    assert person.ends() == (0, '["denied", "bash: approval denied: not on a Friday"]\n')


def test_a_pattern_is_previewed_and_holds(cli: Cli) -> None:
    calls = [("bash", {"command": f"echo push {number}"}) for number in range(3)]
    person = asked(cli, *calls)
    person.sees(CHOICES)
    for wrong, problem in (
        ("push", "must be a rule"),
        ("{tool: read}", "does not cover this call"),
    ):
        person.types("p")
        person.sees("push'}): ")
        person.types(wrong)
        assert problem in person.sees(CHOICES)
    person.types("p")
    person.sees("push'}): ")
    person.types("{tool: bash, match: 'push'}")
    assert "covers 0 of the session's last 0 calls" in person.sees("[y/n]? ")
    person.types("n")
    person.sees(CHOICES)
    person.types("p")
    person.sees("push'}): ")
    person.types("{tool: bash, match: 'push [02]'}")
    person.sees("[y/n]? ")
    person.types("y")
    assert "echo push 1" in person.sees(CHOICES)
    person.types("p")
    assert '"match"' in person.sees("push'}): ")
    person.types("")
    assert "covers 0 of the session's last 1 calls" in person.sees("[y/n]? ")
    person.types("y")
    status, output = person.ends()
    assert status == 0
    assert [json.loads(line)[1] for line in output.splitlines()] == [
        f"push {number}\n" for number in range(3)
    ]


def test_an_edit_and_a_write_are_shown_as_differences(cli: Cli) -> None:
    person = asked(
        cli,
        ("edit", {"path": "/workspace/f", "old_string": "two", "new_string": "2"}),
        ("write", {"path": "/workspace/f", "content": "one\n2\nthree\nfour\n"}),
        ("write", {"path": "/workspace/new", "content": "first\n"}),
        ("edit", {"path": "/workspace/f", "old_string": "absent", "new_string": "x"}),
    )
    shown = person.sees(CHOICES)
    assert f"{BAR} one\n{BAR}-two\n{BAR}+2\n{BAR} three\n" in shown
    person.types("a")
    shown = person.sees(CHOICES)
    assert f"{BAR} three\n{BAR}+four\n" in shown
    assert "-two" not in shown
    person.types("a")
    assert f"{BAR}+first\n" in person.sees(CHOICES)
    person.types("a")
    assert f"{BAR}old_string: absent\n" in person.sees(CHOICES)
    person.types("a")
    status, output = person.ends()
    assert status == 0
    assert [json.loads(line)[0] for line in output.splitlines()] == ["ok", "ok", "ok", "failed"]


def test_what_was_typed_before_the_question_is_no_answer(cli: Cli) -> None:
    person = asked(cli, ("bash", {"command": "push"}))
    person.types("a")
    person.sees(CHOICES)
    person.types("d")
    person.sees("(may be empty): ")
    person.types("")
    assert person.ends() == (0, '["denied", "bash: approval denied"]\n')


def test_somebody_who_leaves_denies(cli: Cli) -> None:
    person = asked(cli, ("bash", {"command": "push"}))
    person.sees(CHOICES)
    person.leaves()
    reason = "approval denied: nobody answered at the terminal"
    assert person.ends() == (0, f'["denied", "bash: {reason}"]\n')


# The whole command.


@pytest.fixture
def policy(cli: Cli) -> Path:
    path = cli.directory / "policy.yaml"
    path.write_text(RULES)
    return path


def test_a_prompt_needs_a_terminal(cli: Cli, policy: Path) -> None:
    done = cli("run", "-p", str(policy), "--ask", "prompt", "push")
    assert (done.returncode, done.stdout) == (2, "")
    assert "must be a terminal" in done.stderr


@pytest.mark.docker
def test_without_a_terminal_to_ask_is_to_deny(cli: Cli, policy: Path) -> None:
    done = cli("run", "-q", "-p", str(policy), "echo push")
    assert (done.returncode, done.stdout) == (120, "")
    assert "--ask prompt" in done.stderr


@pytest.mark.docker
def test_run_asks_on_the_terminal_and_standard_output_stays_data(cli: Cli, policy: Path) -> None:
    person = Person(cli, "-m", "runner", "run", "-p", str(policy), "echo push")
    person.sees(CHOICES)
    person.types("a")
    assert person.ends() == (0, "push\n")


@pytest.mark.docker
def test_ctrl_c_at_the_question_ends_the_command(cli: Cli, policy: Path) -> None:
    person = Person(cli, "-m", "runner", "run", "-p", str(policy), "echo push")
    person.sees(CHOICES)
    person.running.send_signal(2)
    assert person.ends() == (130, "")
    with Store.open(cli.data_dir / DATABASE) as store:
        (found,) = store.approvals(include_ended=True)
    assert found.state is ApprovalState.CANCELLED


@pytest.mark.docker
def test_call_waits_for_an_answer_from_elsewhere(cli: Cli, policy: Path) -> None:
    session = cli("session", "create", "-q").stdout.strip()
    content = json.dumps({"path": "/workspace/f", "content": "x"})
    words = ("call", "write", content, "-s", session, "-p", str(policy), "--ask", "store")
    waiting = cli.start(*words)
    with Store.open(cli.data_dir / DATABASE) as store:
        (approval_id,) = wait_until(store.pending_approvals)
    assert cli("approvals", "approve", approval_id).returncode == 0
    output, errors = waiting.communicate(timeout=START_S)
    assert (waiting.returncode, output) == (0, b"wrote 1 bytes to /workspace/f"), errors
    assert f"runner approvals show {approval_id}".encode() in errors
    assert cli("session", "close", session).returncode == 0
