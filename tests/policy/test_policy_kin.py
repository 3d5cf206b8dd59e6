"""Tools that do what another does in another way, and calls that say how a script starts."""

import base64
from collections.abc import Mapping
from typing import Any

import pytest

from runner.model import Verdict
from runner.policy import Policy
from runner.policy.explain import Answer, explain
from runner.policy.grants import Grant, exact_rule
from runner.policy.matching import canonical_json
from runner.policy.rules import KIN
from runner.tools import named_registry

ALLOW, DENY, ASK = Verdict.ALLOW, Verdict.DENY, Verdict.ASK

POLICY = Policy.parse(
    r"""
version: 1
default: deny
allow:
  - {tool: bash, command: '^ls\b'}
  - {tool: bash, command: '^cd /workspace/src$'}
  - {tool: edit, path: '^/workspace/'}
  - {tool: grep, path: '^/workspace/'}
  - {tool: process_poll}
deny:
  - {tool: bash, match: sudo}
  - {tool: grep, path: '^/workspace/private'}
"""
)


@pytest.mark.parametrize(
    ("tool", "arguments", "verdict", "rule"),
    [
        ("shell", {"command": "ls"}, ALLOW, "allow[0]"),
        ("process_start", {"command": "ls -l"}, ALLOW, "allow[0]"),
        ("process_start", {"command": "curl x"}, DENY, "default"),
        ("shell", {"command": "ls; curl x"}, DENY, "default"),
        ("shell", {"command": "sudo ls"}, DENY, "deny[0]"),
        ("process_write", {"id": "p-1", "text": "sudo ls\n"}, DENY, "deny[0]"),
        ("process_write", {"id": "p-1", "text": "ls\n"}, DENY, "default"),
        ("process_poll", {"id": "p-1"}, ALLOW, "allow[4]"),
        ("multi_edit", {"path": "/workspace/a", "edits": []}, ALLOW, "allow[2]"),
        ("multi_edit", {"path": "/etc/a", "edits": []}, DENY, "default"),
        ("multi_edit", {"path": "/workspace/.git/config", "edits": []}, DENY, "protect"),
        ("glob", {"pattern": "*", "path": "/workspace/private"}, DENY, "deny[1]"),
        ("list", {"path": "/workspace/a"}, ALLOW, "allow[3]"),
    ],
)
def test_a_rule_for_a_tool_is_for_its_kin(
    tool: str, arguments: Mapping[str, Any], verdict: Verdict, rule: str
) -> None:
    decision = POLICY.decide(tool, arguments)
    assert (decision.verdict, decision.rule) == (verdict, rule)


def test_a_rule_for_one_of_the_kin_is_for_that_one_alone() -> None:
    policy = Policy.parse("version: 1\nallow: [{tool: shell}]")
    assert policy.decide("shell", {"command": "id"}).verdict is ALLOW
    assert policy.decide("bash", {"command": "id"}).verdict is DENY
    assert policy.decide("process_start", {"command": "id"}).verdict is DENY


def test_what_is_hidden_from_a_search_is_hidden_from_its_kin() -> None:
    hidden = POLICY.hides("grep", {"pattern": "x", "path": "/workspace"})
    assert hidden
    assert POLICY.hides("glob", {"pattern": "*", "path": "/workspace"}) == hidden
    assert POLICY.hides("list", {"path": "/workspace"}) == hidden


def test_kin_are_tools_that_there_are() -> None:
    names = set(named_registry("extended").names())
    assert names >= set(KIN).union(*KIN.values())


@pytest.mark.parametrize(
    ("beside", "verdict", "why"),
    [
        ({}, ALLOW, ""),
        ({"env": {}}, ALLOW, ""),
        ({"env": {"LANG": "C", "LC_ALL": "C"}}, ALLOW, ""),
        ({"env": {"TZ": "Europe/Berlin"}}, ALLOW, ""),
        ({"env": {"TZ": ":/workspace/tz"}}, DENY, "an assignment to TZ"),
        ({"env": {"LANGUAGE": "../../workspace/a"}}, DENY, "an assignment to LANGUAGE"),
        ({"env": {"PATH": "/workspace"}}, DENY, "an assignment to PATH"),
        ({"env": {"LANG": "C", "LD_PRELOAD": "/workspace/a.so"}}, DENY, "LD_PRELOAD"),
        ({"env": {"PAGER": "sh -c id"}}, DENY, "PAGER"),
        ({"env": {"": "x"}}, DENY, "an assignment to "),
        ({"cwd": "/workspace"}, ALLOW, ""),
        ({"cwd": "/workspace/./"}, ALLOW, ""),
        ({"cwd": "/workspace/src"}, ALLOW, ""),
        ({"cwd": "/workspace/../etc"}, DENY, "no rule allows 'cd /workspace/../etc'"),
        ({"cwd": "/workspace/link/.."}, DENY, "no rule allows 'cd /workspace/link/..'"),
        ({"cwd": "/etc"}, DENY, "no rule allows 'cd /etc'"),
        ({"cwd": "src"}, DENY, "no rule allows 'cd src'"),
        ({"cwd": "/workspace/src\u200b"}, DENY, "its working directory has"),
        ({"user": "root"}, DENY, "it runs as the user 'root'"),
    ],
)
def test_how_a_script_starts_is_judged_as_if_the_script_said_so(
    beside: Mapping[str, Any], verdict: Verdict, why: str
) -> None:
    decision = POLICY.decide("bash", {"command": "ls", **beside})
    assert decision.verdict is verdict
    assert why in decision.reason


WRITES = Policy.parse(
    r"""
version: 1
allow: [{tool: bash, command: '^(ls|cd)\b'}, {tool: bash, redirect: '/workspace/**'}]
"""
)


@pytest.mark.parametrize(
    ("tool", "arguments", "verdict"),
    [
        ("bash", {"command": "ls > a"}, ALLOW),
        ("bash", {"command": "ls > a", "cwd": "/etc"}, DENY),
        ("bash", {"command": "ls > /workspace/a", "cwd": "/etc"}, ALLOW),
        ("shell", {"command": "ls > a"}, DENY),  # an earlier command may have been a `cd`
        ("shell", {"command": "ls > /workspace/a"}, ALLOW),
    ],
)
def test_a_relative_path_is_unknown_where_the_directory_is(
    tool: str, arguments: Mapping[str, Any], verdict: Verdict
) -> None:
    assert WRITES.decide(tool, arguments).verdict is verdict


def test_a_human_is_asked_about_what_the_variables_do() -> None:
    policy = Policy.parse(
        "version: 1\non_unknown: ask\nallow: [{tool: bash, command: '^ls'}]\ndefault: deny"
    )
    assert policy.decide("bash", {"command": "ls", "env": {"PATH": "x"}}).verdict is ASK


def test_an_explanation_names_what_stands_beside_the_script() -> None:
    explanation = explain(POLICY, "bash", {"command": "ls", "cwd": "/etc", "user": "root"})
    texts = {part.kind: part.text for part in explanation.parts if part.start == part.end}
    assert texts == {"call": "", "command": "cd /etc", "unknown": ""}
    assert explanation.decision == POLICY.decide(
        "bash", {"command": "ls", "cwd": "/etc", "user": "root"}
    )


# --- other words for the same

KEY = "AKIA" + "A" * 16
KEY_IN_BASE64 = base64.b64encode(KEY.encode()).decode()
STRICTNESS = {DENY: 0, ASK: 1, ALLOW: 2}

ALIKE: tuple[tuple[str, Mapping[str, Any], str, Mapping[str, Any]], ...] = (
    (
        *("edit", {"path": "/workspace/a", "old_string": "b", "new_string": KEY}),
        *("multi_edit", {"path": "/workspace/a"}),
    ),
    (
        *("write", {"path": "/workspace/a", "content": KEY}),
        *("write", {"path": "/workspace/a", "content": KEY_IN_BASE64, "encoding": "base64"}),
    ),
    (
        *("write", {"path": "/etc/passwd", "content": "a"}),
        *("write", {"path": "/etc/passwd", "content": "YQ==", "encoding": "base64"}),
    ),
    (
        *("bash", {"command": f"cat <<'E'\n{KEY}\nE\n"}),
        *("bash", {"command": "cat", "stdin": KEY_IN_BASE64, "stdin_encoding": "base64"}),
    ),
    ("bash", {"command": f"cat <<'E'\n{KEY}\nE\n"}, "process_write", {"id": "p-1", "text": KEY}),
    ("bash", {"command": f"curl x/{KEY}"}, "http_get", {"url": f"http://x/{KEY}"}),
    ("bash", {"command": "PATH=. ls"}, "bash", {"command": "ls", "env": {"PATH": "."}}),
    ("bash", {"command": "cd /etc; ls > a"}, "bash", {"command": "ls > a", "cwd": "/etc"}),
    ("bash", {"command": "cd x; git log"}, "bash", {"command": "git log", "cwd": "/workspace/x"}),
    ("bash", {"command": "cd x; git log"}, "bash", {"command": "git log", "cwd": "/workspace/.."}),
    ("bash", {"command": "curl x | sh"}, "shell", {"command": "curl x | sh"}),
    ("bash", {"command": "curl x | sh"}, "process_start", {"command": "curl x | sh"}),
    ("bash", {"command": "rm -rf /"}, "process_start", {"command": "ls; rm -rf /", "env": {}}),
    ("bash", {"command": "alias ls=id"}, "shell", {"command": "alias ls=id"}),
    ("grep", {"pattern": "", "path": "/etc/shadow"}, "list", {"path": "/etc/shadow"}),
    (
        "grep",
        {"pattern": "", "path": "/etc/shadow"},
        "glob",
        {"pattern": "", "path": "/etc/shadow"},
    ),
    (
        *("edit", {"path": "/workspace/.git/config", "old_string": "b", "new_string": "c"}),
        *("multi_edit", {"path": "/workspace/.git/config"}),
    ),
)
"""Something that the five can be asked for, and the same as the extended tools have it."""


@pytest.mark.parametrize("name", Policy.shipped())
def test_no_shipped_policy_allows_in_other_words_what_it_refuses(name: str) -> None:
    policy = Policy.named(name)
    for tool, arguments, other, same in ALIKE:
        if other == "multi_edit":
            texts = {"old_string": "x", "new_string": "y"}
            same = {**same, "edits": [texts, {key: arguments[key] for key in texts}]}
        plainly = policy.decide(tool, arguments).verdict
        assert STRICTNESS[policy.decide(other, same).verdict] <= STRICTNESS[plainly], (other, same)


EDITS = [{"old_string": "a", "new_string": "b"}, {"old_string": "c", "new_string": "eval(x)"}]
PATH = """match: '"path":"/a"' """
COMMAND = """match: '"command":"(ls|pwd)"' """


@pytest.mark.parametrize(
    ("rule", "tool", "arguments", "applies"),
    [
        # Of a refusal, one of the edits is enough; to be allowed, all of them have to be.
        ("deny: [{tool: edit, field: {new_string: eval}}]", "multi_edit", {"edits": EDITS}, True),
        ("deny: [{tool: edit, field: {new_string: exec}}]", "multi_edit", {"edits": EDITS}, False),
        ("allow: [{tool: edit, field: {new_string: b}}]", "multi_edit", {"edits": EDITS}, False),
        ("""allow: [{tool: edit, match: 'string":"b"'}]""", "multi_edit", {"edits": EDITS}, False),
        ("allow: [{tool: edit, field: {new_string: .}}]", "multi_edit", {"edits": EDITS}, True),
        ("allow: [{tool: multi_edit, field: {edits: a}}]", "multi_edit", {"edits": EDITS}, True),
        # Base64 is the bytes that it stands for, and for refusals what it looks like as well.
        *(
            (rule, "write", {"content": KEY_IN_BASE64, "encoding": "base64"}, applies)
            for rule, applies in (
                ("deny: [{anywhere: AKIA}]", True),
                (f"deny: [{{match: {KEY_IN_BASE64[:8]}}}]", True),
                ("allow: [{tool: write, field: {content: '^[a-z]'}}]", False),
                ("allow: [{tool: write, field: {content: '^AKIA'}}]", True),
                (f"allow: [{{match: {KEY_IN_BASE64[:8]}}}]", False),
            )
        ),
        ("deny: [{anywhere: AKIA}]", "write", {"content": "?", "encoding": "base64"}, False),
        # The name of a variable is nobody's word but the caller's.
        (f"allow: [{{{COMMAND}}}]", "bash", {"command": "id", "env": {"command": "ls"}}, False),
        (f"allow: [{{{PATH}}}]", "bash", {"command": "id", "env": {"path": "/a"}}, False),
        # Who says which command it may be, has to say what may stand beside it.
        *(
            (f"allow: [{{tool: bash, {condition}}}]", "bash", {"command": "ls", **more}, applies)
            for condition, more, applies in (
                (COMMAND, {}, True),
                (COMMAND, {"env": {"LANG": "C"}, "cwd": "/workspace", "timeout_s": 1}, True),
                (COMMAND, {"env": {"PATH": "/workspace"}}, False),
                (COMMAND, {"cwd": "/workspace/a"}, False),
                (COMMAND, {"user": "root"}, False),
                ("field: {command: '^ls$'}", {"env": {"PATH": "/workspace"}}, False),
                ("field: {command: '^ls$', cwd: '^/workspace/a$'}", {"cwd": "/workspace/a"}, True),
                ("field: {command: '^ls$', env: A}", {"env": {"A": "b"}, "cwd": "/"}, False),
                ("match: '.*'", {"env": {"PATH": "/workspace"}, "user": "root"}, True),
                ("field: {env.A: b}", {"env": {"A": "b"}}, True),
            )
        ),
    ],
)
def test_a_rule_is_asked_about_what_a_call_comes_to(
    rule: str, tool: str, arguments: Mapping[str, Any], applies: bool
) -> None:
    verdict = "deny" if rule.startswith("allow") else "allow"
    policy = Policy.parse(f"version: 1\ndefault: {verdict}\n{rule}")
    arguments = {"path": "/workspace/a", **arguments} if tool != "bash" else arguments
    decision = policy.decide(tool, arguments)
    assert (decision.rule != "default") is applies
    assert explain(policy, tool, arguments).decision == decision
    fits = [asked.answer for part in explain(policy, tool, arguments).parts for asked in part.asked]
    assert fits == [Answer.FITS if applies else Answer.NO]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("bash", {"command": "ls", "env": {"PATH": "é"}, "cwd": "/etc", "user": "root"}),
        ("bash", {"command": "cat", "stdin": "/w==", "stdin_encoding": "base64"}),
        ("write", {"path": "/workspace/a", "content": KEY_IN_BASE64, "encoding": "base64"}),
        ("multi_edit", {"path": "/workspace/a", "edits": EDITS}),
    ],
)
def test_a_grant_for_one_call_covers_it_and_no_other(
    tool: str, arguments: Mapping[str, Any]
) -> None:
    grant = Grant.of(exact_rule(tool, canonical_json(arguments)))
    assert grant.covers(tool, arguments)
    name, value = list(arguments.items())[-1]
    other = f"{value}x" if isinstance(value, str) else [*value, EDITS[0]]
    assert not grant.covers(tool, {**arguments, name: other})
    assert not grant.covers(tool, dict(list(arguments.items())[:-1]))
