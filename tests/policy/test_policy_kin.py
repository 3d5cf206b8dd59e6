"""Tools that do what another does in another way, and calls that say how a script starts."""

from collections.abc import Mapping
from typing import Any

import pytest

from runner.model import Verdict
from runner.policy import Policy
from runner.policy.explain import explain
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
        ({"env": {"PATH": "/workspace"}}, DENY, "an assignment to PATH"),
        ({"env": {"LANG": "C", "LD_PRELOAD": "/workspace/a.so"}}, DENY, "LD_PRELOAD"),
        ({"env": {"PAGER": "sh -c id"}}, DENY, "PAGER"),
        ({"env": {"": "x"}}, DENY, "an assignment to "),
        ({"cwd": "/workspace"}, ALLOW, ""),
        ({"cwd": "/workspace/./"}, ALLOW, ""),
        ({"cwd": "/workspace/src"}, ALLOW, ""),
        ({"cwd": "/workspace/../etc"}, DENY, "no rule allows 'cd /workspace/../etc'"),
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
