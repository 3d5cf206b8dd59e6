"""Cases and recorded calls as trials of a policy."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import PolicyError
from runner.model import Record, Status, Verdict
from runner.policy import Policy
from runner.policy.document import read_cases as read_cases_text
from runner.policy.nodes import flow
from runner.policy.trial import failures, read_cases, replay, shadowed

POLICY = Policy.parse(
    "version: 1\nallow:\n  - {tool: bash, command: '^ls'}\n  - {tool: read, path: '^/workspace'}\n"
)


def a_record(**changes: Any) -> Record:
    values: dict[str, Any] = {
        "call_id": "c-1",
        "session_id": "s-1",
        "tool": "bash",
        "arguments": '{"command":"ls -l"}',
        "verdict": Verdict.ALLOW,
        "rule": "allow[0]",
        "reason": "",
        "policy": "ab" * 32,
        "status": Status.OK,
        "exit_code": 0,
        "output": "",
        "error": None,
        "started_at": 1_700_000_000.0,
        "duration_s": 0.1,
        "timeout_s": 60.0,
    }
    return Record(**{**values, **changes})


# Cases.


def test_a_case_that_is_decided_otherwise_is_a_failure(tmp_path: Path) -> None:
    file = tmp_path / "mine.cases.yaml"
    file.write_text(
        "- {tool: bash, command: ls, is: allow}\n"
        "- {tool: bash, command: rm x, is: allow}\n"
        "- {tool: read, path: /workspace/a, resolved: /etc/passwd, is: deny}\n"
    )
    (failure,) = failures(POLICY, read_cases(file))
    assert failure.case.line == 2
    assert failure.decision.verdict is Verdict.DENY


def test_json_lines_are_cases_too_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text(
        '{"tool": "bash", "input": {"command": "ls \\ud83d\\ude00\\u0001"}, "is": "deny"}\n'
        "\n"
        '{"tool": "bash", "command": "ls", "is": "deny"}\n'
    )
    first, second = read_cases(file)
    assert first.arguments == {"command": "ls \U0001f600\x01"}
    assert (first.line, second.line) == (1, 3)
    (failure,) = failures(POLICY, [first, second])
    assert failure.case is second


@pytest.mark.parametrize(
    ("name", "content", "line", "said"),
    [
        ("a.yaml", b"- {tool: bash}", 1, "needs `is`"),
        ("a.yaml", b"- {tool: bash, is: allow}\n- {tool: x, is: maybe}", 2, "must be one of"),
        ("a.yaml", b"{tool: bash}", 1, "must be a list"),
        ("a.yaml", b"\n\xff", 2, "not UTF-8"),
        ("a.jsonl", b'{"tool": "bash", "is": "deny"}\n{', 2, "not JSON"),
        ("a.jsonl", b'{"tool": "bash", "is": "deny"}\n[]', 2, "must be a mapping"),
        ("a.jsonl", b"[" * 100_000, 1, "not JSON"),
    ],
)
def test_what_are_no_cases_is_an_error_at_its_line(
    tmp_path: Path, name: str, content: bytes, line: int, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PolicyError, match=said) as caught:
        read_cases(tmp_path / name)
    assert (caught.value.source, caught.value.line) == (str(tmp_path / name), line)


def test_cases_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="can't be read: No such file"):
        read_cases(tmp_path / "nothing.yaml")
    with pytest.raises(PolicyError, match="can't be read"):
        read_cases("a\0b")


def test_no_json_line_is_no_case(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n \n")
    assert read_cases(tmp_path / "a.jsonl") == ()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**31) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=4))
def test_yaml_reads_what_is_written_for_it_as_the_same_value(value: dict[str, Any]) -> None:
    text = f"- {{tool: x, is: allow, input: {flow(value)}}}"
    (case,) = read_cases_text(text, "cases")
    assert case.arguments == value
    assert "\n" not in text


# Recorded calls.


@pytest.mark.parametrize(
    ("command", "then", "changes"),
    [
        ("ls -l", Verdict.ALLOW, False),
        ("ls -l", Verdict.DENY, True),
        ("rm x", Verdict.ALLOW, True),
        ("rm x", Verdict.DENY, False),
    ],
)
def test_a_verdict_that_would_change_is_told(command: str, then: Verdict, changes: bool) -> None:
    call = replay(POLICY, a_record(arguments=json.dumps({"command": command}), verdict=then))
    assert call is not None
    assert call.changes is changes


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": None, "status": Status.INVALID, "rule": None},
        {"verdict": None, "status": Status.FAILED, "rule": None},
    ],
)
def test_a_call_that_no_policy_has_judged_is_left_out(changes: dict[str, Any]) -> None:
    assert replay(POLICY, a_record(**changes)) is None
    assert shadowed(a_record(**changes, shadow='{"verdict":"deny","rule":"x"}')) is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"details": {"not_stored_bytes": {"arguments": 5}}}, "longer than what is kept"),
        ({"arguments": '{"command":"ls'}, "not recorded as JSON"),
        ({"arguments": "[]"}, "not recorded as JSON"),
    ],
)
def test_a_call_whose_arguments_are_not_whole_is_not_judged(
    changes: dict[str, Any], why: str
) -> None:
    call = replay(POLICY, a_record(**changes))
    assert call is not None
    assert (call.now, call.changes) == (None, False)
    assert why in call.why_not


def test_output_that_was_not_kept_whole_keeps_no_call_from_being_judged() -> None:
    call = replay(POLICY, a_record(details={"not_stored_bytes": {"output": 5}}))
    assert call is not None
    assert call.now is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": Verdict.ALLOW, "rule": "ask[0]", "approval": "a-1"},
        {"verdict": Verdict.DENY, "rule": "ask[0]", "status": Status.DENIED},
        {"verdict": Verdict.DENY, "rule": "team:ask[3]", "status": Status.DENIED},
        {"verdict": Verdict.ALLOW, "rule": "default", "approval": "a-1"},
    ],
)
def test_a_call_that_was_asked_about_was_an_ask_whatever_the_answer(
    changes: dict[str, Any],
) -> None:
    call = replay(Policy.parse("default: ask"), a_record(**changes))
    assert call is not None
    assert call.then.verdict is Verdict.ASK
    assert not call.changes


def test_a_call_that_only_a_rate_refused_was_allowed_by_the_policy() -> None:
    record = a_record(verdict=Verdict.DENY, rule="allow[0].rate", status=Status.DENIED)
    call = replay(POLICY, record)
    assert call is not None
    assert (call.then.verdict, call.then.rule) == (Verdict.ALLOW, "allow[0]")
    assert not call.changes


def test_what_a_policy_on_trial_said_is_read_from_the_record() -> None:
    call = shadowed(a_record(shadow='{"policy":"cd","verdict":"deny","rule":"deny[1]"}'))
    assert call is not None
    assert call.now is not None
    assert (call.now.verdict, call.now.rule, call.changes) == (Verdict.DENY, "deny[1]", True)
    same = shadowed(a_record(shadow='{"policy":"cd","verdict":"allow","rule":"allow[1]"}'))
    assert same is not None
    assert not same.changes


def test_without_a_policy_on_trial_there_is_nothing_to_compare() -> None:
    assert shadowed(a_record()) is None


@pytest.mark.parametrize("shadow", ["{", "[]", "{}", '{"verdict":"maybe","rule":"x"}'])
def test_a_record_of_a_trial_that_can_not_be_read_is_told(shadow: str) -> None:
    call = shadowed(a_record(shadow=shadow))
    assert call is not None
    assert call.now is None
    assert "can't be read" in call.why_not
