"""How a verdict came about: the same verdict, and every step that led to it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.model import Verdict
from runner.policy import Policy
from runner.policy.explain import Answer, Explanation, Part, explain

POLICY = Policy.parse(
    """
version: 1
mode: pattern
default: deny
allow:
  - {tool: bash, command: '^(git (status|log|diff)|ls|cat|rg)\\b'}
  - {tool: bash, command: '^python3 -m pytest\\b', justification: "the tests"}
  - {tool: bash, command: '^(sed|python3)'}
  - {tool: bash, redirect: '/workspace/build/**'}
  - {tool: [read, grep, write], path: '^/workspace(/|$)'}
ask:
  - {tool: bash, command: '^git push\\b'}
deny:
  - {tool: bash, command: 'rm\\s+-rf|sudo|curl|timeout 9', justification: "use read instead"}
  - {tool: bash, anywhere: 'AKIA[0-9A-Z]{4}'}
  - {tool: read, glob: '/workspace/secret/**'}
  - {tool: http_get, field: {url: '^https://10\\.'}}
""",
    "policy.yaml",
)


def of_script(script: str, policy: Policy = POLICY) -> Explanation:
    return explain(policy, "bash", {"command": script})


def parts(explanation: Explanation, kind: str) -> list[Part]:
    return [part for part in explanation.parts if part.kind == kind]


def deciding(part: Part) -> str | None:
    """The rule that was the last to be asked, if it fits."""
    if part.asked and part.asked[-1].answer is Answer.FITS:
        return part.asked[-1].rule
    return None


# Steps.


def test_each_command_has_its_words_and_the_rules_down_to_the_one_that_decided() -> None:
    found = of_script("git log --oneline; cat 'a b'")
    assert found.decision.verdict is Verdict.ALLOW
    git, cat = parts(found, "command")
    assert (git.words, cat.words) == (("git", "log", "--oneline"), ("cat", "a b"))
    assert (git.text, cat.text) == ("git log --oneline", "cat 'a b'")
    assert [(asked.rule, asked.answer) for asked in cat.asked] == [
        ("deny[0]", Answer.NO),
        ("ask[0]", Answer.NO),
        ("allow[0]", Answer.FITS),
    ]
    assert cat.asked[2].line == 6
    assert "rg)\\b" in cat.asked[2].what


def test_a_refusal_ends_the_asking() -> None:
    (rm,) = parts(of_script("rm -fr build"), "command")
    assert [asked.rule for asked in rm.asked] == ["deny[0]"]
    assert deciding(rm) == "deny[0]"


def test_what_nobody_can_tell_is_pointed_at() -> None:
    script = 'ls src; cat "$(id)"'
    found = of_script(script)
    assert found.decision.rule == "unknown"
    (unknown,) = parts(found, "unknown")
    (mark,) = unknown.marks
    assert "$(id)" in script[mark.start : mark.end]
    assert "substitution" in mark.why
    assert unknown.decision is not None
    assert unknown.decision.verdict is Verdict.DENY


def test_a_word_that_a_rule_has_to_name_is_pointed_at_and_said_to_be_missing() -> None:
    script = "ls; sed -i s/a/b/ file"
    found = of_script(script)
    assert found.decision.rule == "unknown"
    sed = parts(found, "command")[1]
    (mark,) = sed.marks
    assert script[mark.start : mark.end] == "-i"
    (unnamed,) = [asked for asked in sed.asked if asked.answer is Answer.UNNAMED]
    assert unnamed.rule == "allow[2]"
    assert unnamed.what.endswith("does not name '-i'")


def test_a_word_in_quotes_that_a_rule_has_to_name_points_at_its_command() -> None:
    script = "ls; sed '-i' s/a/b/ file"
    (mark,) = parts(of_script(script), "command")[1].marks
    assert script[mark.start : mark.end] == "sed '-i' s/a/b/ file"


def test_a_wrapper_has_no_decision_of_its_own_unless_a_rule_refuses_it() -> None:
    timeout, ls = parts(of_script("timeout 5 ls"), "command")
    assert timeout.decision is None
    assert ls.decision is not None
    refused, _ = parts(of_script("timeout 9 ls"), "command")
    assert refused.decision is not None
    assert refused.decision.rule == "deny[0]"


def test_a_file_that_is_written_is_a_part() -> None:
    found = of_script("ls > build/log; ls > /tmp/x")
    inside, outside = parts(found, "write")
    assert (inside.text, deciding(inside)) == ("/workspace/build/log", "allow[3]")
    assert (outside.text, deciding(outside)) == ("/tmp/x", None)
    assert found.decision.verdict is Verdict.DENY


def test_a_protected_file_that_is_written_is_refused_before_any_rule() -> None:
    (write,) = parts(of_script("ls > .git/hooks/pre-commit"), "write")
    assert write.decision is not None
    assert (write.decision.rule, write.asked) == ("protect", ())


def test_a_rule_about_the_whole_call_is_asked_first() -> None:
    found = of_script("echo AKIAABCD")
    (call,) = found.parts
    assert (call.kind, deciding(call)) == ("call", "deny[1]")
    assert "anywhere" in call.asked[-1].what


def test_a_path_that_does_not_fit_is_named_as_it_is_resolved() -> None:
    found = explain(POLICY, "read", {"path": "/workspace/a"}, resolved="/etc/passwd")
    assert found.decision.verdict is Verdict.DENY
    (call,) = found.parts
    assert call.decision is None
    assert [(asked.rule, asked.answer) for asked in call.asked] == [
        ("deny[2]", Answer.NO),
        ("allow[4]", Answer.NO),
    ]
    assert call.asked[1].what.endswith("does not fit /etc/passwd")


def test_rules_for_other_tools_are_left_out() -> None:
    (call,) = explain(POLICY, "http_get", {"url": "https://10.0.0.1/"}).parts
    assert [asked.rule for asked in call.asked] == ["deny[3]"]
    assert call.asked[0].what == "field url '^https://10\\.'"


def test_a_call_without_a_path_is_said_to_have_none() -> None:
    policy = Policy.parse("allow: [{path: '^/workspace'}]")
    (call,) = explain(policy, "http_get", {"url": "x"}).parts
    assert call.asked[0].what.endswith("the call has no path")


@pytest.mark.parametrize("mode", ["allow_all", "deny_all"])
def test_a_mode_without_rules_has_no_parts(mode: str) -> None:
    found = explain(Policy.parse(f"mode: {mode}"), "bash", {"command": "ls; $(x)"})
    assert (found.decision.rule, found.parts, found.script) == ("mode", (), "")


def test_a_protected_file_has_no_parts_as_no_rule_is_asked() -> None:
    found = explain(POLICY, "write", {"path": "/workspace/.git/config", "content": ""})
    assert (found.decision.rule, found.parts) == ("protect", ())


def test_a_call_without_json_has_no_parts() -> None:
    found = explain(POLICY, "bash", {"command": float("nan")})
    assert (found.decision.rule, found.parts) == ("input", ())


def test_all_of_it_is_json() -> None:
    found = json.loads(json.dumps(of_script("git status; $(x)").as_dict()))
    assert found["decision"]["verdict"] == "deny"
    assert [part["kind"] for part in found["parts"]] == ["call", "command", "unknown"]


# The same verdict, always.

WORDS = [
    "git", "status", "push", "ls", "cat", "rm", "-rf", "-r", "-f", "sed", "-i", "python3", "-m",
    "pytest", "sudo", "timeout", "5", "9", "env", "xargs", "find", ".", "-exec", "{}", "\\;",
    "-delete", "cd", "X=1", "if", "then", "fi", "tee", "eval", "./x.sh", "/usr/bin/git", ">", ">>",
    "2>&1", "build/log", "/tmp/x", ".git/config", "|", ";", "&&", "(", ")", "&", "#", "<<E", "E",
    "$x", "$(id)", "`id`", "a*", "sh -c 'ls; rm x'", "'a b'", '"', "'", "\n", "é", "AKIAABCD",
]  # fmt: skip
SCRIPTS = st.lists(st.sampled_from(WORDS), max_size=10).map(" ".join) | st.text(max_size=20)
PATHS = st.sampled_from(
    [
        "/workspace",
        "/workspace/a",
        "/workspace/../etc",
        "/etc/passwd",
        "/workspace/secret/x",
        "a",
        "",
    ]
)
ARGUMENTS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    SCRIPTS.map(lambda script: {"command": script}),
    PATHS.map(lambda path: {"path": path}),
    st.fixed_dictionaries(
        {"command": st.none() | SCRIPTS, "path": PATHS, "url": st.text(max_size=5)}
    ),
)
POLICIES = st.sampled_from(
    [
        POLICY,
        Policy.parse("default: allow\ndeny: [{command: 'rm'}]"),
        Policy.parse(
            "default: ask\non_unknown: ask\nallow: [{command: '^ls', path: '^/w'}, {path: x}]"
        ),
        Policy.parse(
            "version: 1\nallow: [{tool: bash}]\nask: [{command: '^sed'}]\n"
            "deny: [{redirect: '/tmp/**'}]"
        ),
        *map(Policy.named, Policy.shipped()),
    ]
)
TOOLS = st.sampled_from(["bash", "read", "write", "grep", "BASH", "http_get"])


@given(POLICIES, TOOLS, ARGUMENTS, st.none() | PATHS)
def test_the_explanation_and_the_policy_never_disagree(
    policy: Policy, tool: str, arguments: dict[str, Any], resolved: str | None
) -> None:
    judgement = policy.judge(tool, arguments, resolved=resolved)
    found = explain(policy, tool, arguments, resolved=resolved)

    assert found.decision == judgement.decision
    about_items = [part for part in found.parts if part.kind != "call"]
    decided = [part.decision for part in about_items if part.decision is not None]
    assert decided == [item.decision for item in judgement.items]
    # What the rules answered is what was decided: the one that fits is the one that decides.
    for part in found.parts:
        if rule := deciding(part):
            assert part.decision is not None
            assert part.decision.rule == rule
        elif part.decision is not None:
            assert part.decision.rule in ("default", "unknown", "protect", None) or not any(
                asked.rule == part.decision.rule for asked in part.asked
            )
        for mark in part.marks:
            assert 0 <= mark.start <= mark.end <= len(found.script)


def test_a_script_that_takes_too_long_to_judge_is_explained_as_far_as_it_was_judged() -> None:
    lines = [f"rm -a -b -c -d -e x{number}" for number in range(240)]
    policy = Policy.parse("default: allow\ndeny: [{tool: bash, command: 'rm -[abcdef]{6} y'}]\n")
    explanation = explain(policy, "bash", {"command": "\n".join(lines)})
    assert explanation.decision.rule == "unknown"
    *judged, last = explanation.parts
    assert last.kind == "unknown"
    assert "takes too long" in last.marks[0].why
    assert 2 < len(judged) < 240
    assert all(part.decision is not None for part in judged if part.kind == "command")


def test_a_refused_target_in_other_letters_is_explained_by_the_rule_that_decided() -> None:
    policy = Policy.parse(
        "default: deny\nprotect: []\n"
        "allow: [{tool: bash, command: ls}, {tool: bash, redirect: '/workspace/**'}]\n"
        "deny: [{tool: bash, redirect: '/workspace/keep/**'}]\n"
    )
    explanation = explain(policy, "bash", {"command": "ls > Keep/x"})
    (write,) = [part for part in explanation.parts if part.kind == "write"]
    assert write.decision == explanation.decision
    assert [(rule.rule, str(rule.answer)) for rule in write.asked] == [("deny[0]", "fits")]
