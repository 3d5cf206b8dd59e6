"""Rules about the call as a whole: what they look at, which one wins, what goes with them."""

from pathlib import Path
from typing import Any

import pytest

from runner.errors import PolicyError
from runner.model import Verdict
from runner.policy import Policy, Rate


def decide(text: str, tool: str, **arguments: Any) -> str:
    decision = Policy.parse(text).decide(tool, arguments)
    return f"{decision.verdict} {decision.rule}"


@pytest.mark.parametrize(
    ("tool", "said"),
    [("read", "allow allow[0]"), ("GREP", "allow allow[0]"), ("bash", "deny default")],
)
def test_a_rule_is_for_the_tools_it_lists(tool: str, said: str) -> None:
    assert decide("default: deny\nallow: [{tool: [read, Grep]}]", tool) == said


@pytest.mark.parametrize("tool", ["'*'", "''"])
def test_a_star_is_any_tool(tool: str) -> None:
    assert decide(f"default: allow\ndeny: [{{tool: {tool}}}]", "x") == "deny deny[0]"


def test_the_strictest_verdict_wins_whatever_the_order() -> None:
    text = "default: allow\nallow: [{}]\nask: [{match: b|c}]\ndeny: [{match: c}]"
    assert decide(text, "x", v="a") == "allow allow[0]"
    assert decide(text, "x", v="b") == "ask ask[0]"
    assert decide(text, "x", v="c") == "deny deny[0]"


def test_the_default_may_be_to_ask() -> None:
    assert decide("default: ask", "x") == "ask default"


def test_all_conditions_of_a_rule_must_hold() -> None:
    text = "default: allow\ndeny: [{match: a, anywhere: b, field: {v: c}}]"
    assert decide(text, "x", v="abc") == "deny deny[0]"
    for value in ("ab", "ac", "bc"):
        assert decide(text, "x", v=value) == "allow default"


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"a": "say AKIA12"}, True),
        ({"a": ["x", {"b": "AKIA12"}]}, True),
        ({"AKIA12": 1}, True),
        ({"a": 'quote " and\nline AKIA12'}, True),
        ({"a": "akia12"}, False),
        ({"a": 12, "b": None, "c": True}, False),
    ],
)
def test_anywhere_is_any_text_decoded(arguments: dict[str, Any], found: bool) -> None:
    policy = Policy.parse("default: allow\ndeny: [{anywhere: 'AKIA[0-9]+'}]")
    assert (policy.decide("x", arguments).verdict is Verdict.DENY) is found


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"url": "https://10.0.0.1"}, True),
        ({"url": "see https://10.0.0.1"}, False),
        ({"other": "https://10.0.0.1"}, False),
        ({}, False),
        ({"url": None}, False),
    ],
)
def test_a_field_is_one_argument(arguments: dict[str, Any], found: bool) -> None:
    policy = Policy.parse("default: allow\ndeny: [{field: {url: '^https://10\\.'}}]")
    assert (policy.decide("http_get", arguments).verdict is Verdict.DENY) is found


def test_a_field_may_be_deep_and_need_not_be_text() -> None:
    text = "default: allow\ndeny: [{field: {headers.count: '^7$'}}]"
    assert decide(text, "x", headers={"count": 7}) == "deny deny[0]"
    assert decide(text, "x", headers={"count": 77}) == "allow default"
    assert decide(text, "x", headers="count") == "allow default"


def test_a_justification_is_told_to_the_model() -> None:
    text = "default: allow\nreason: never\ndeny: [{tool: bash, justification: use read instead}]"
    assert Policy.parse(text).decide("bash", {}).reason == "never: use read instead"
    text = "default: allow\nask: [{tool: bash, justification: it costs money}]"
    assert Policy.parse(text).decide("bash", {}).reason.endswith("it costs money")


def test_rates_go_with_the_calls_that_they_limit() -> None:
    policy = Policy.parse(
        "default: deny\nrate: {calls: 60, per_s: 60, per: tenant}\n"
        "allow:\n"
        "  - {tool: read}\n"
        "  - {tool: bash, rate: {calls: 5, per_s: 0.5}}\n"
    )
    everybody = Rate(60, 60.0, "tenant", None)
    assert policy.judge("read", {}).rates == (everybody,)
    assert policy.judge("bash", {}).rates == (everybody, Rate(5, 0.5, "session", "allow[1]"))
    assert policy.judge("edit", {}).rates == ()


def test_a_script_counts_for_the_rule_that_has_a_rate_wherever_it_stands() -> None:
    policy = Policy.parse(
        "default: deny\nallow:\n"
        "  - {tool: bash, command: '^ls'}\n"
        "  - {tool: bash, command: '^git push', rate: {calls: 1, per_s: 60}}\n"
    )
    for script in ("ls; git push", "git push; ls"):
        judgement = policy.judge("bash", {"command": script})
        assert judgement.decision.rule == "allow[1]"
        assert [rate.rule for rate in judgement.rates] == ["allow[1]"]


def test_a_refused_target_is_meant_in_any_letter_case() -> None:
    text = (
        "default: deny\nprotect: []\nallow: [{tool: bash, command: ls},"
        " {tool: bash, redirect: '/workspace/**'}]\n"
        "deny: [{tool: bash, redirect: '/workspace/keep/**'}]\n"
    )
    assert decide(text, "bash", command="ls > x").startswith("allow")
    assert decide(text, "bash", command="ls > Keep/x") == "deny deny[0]"


# --- several files


def test_included_rules_count_as_if_they_were_written_here(tmp_path: Path) -> None:
    (tmp_path / "team.yaml").write_text(
        "default: allow\nreason: the team's\ndeny: [{match: x}]\nallow: [{tool: grep}]\n"
        "protect: ['/workspace/deploy/**', -git]\n"
    )
    main = tmp_path / "main.yaml"
    main.write_text(
        "version: 1\ndefault: deny\ninclude: [team.yaml]\nallow: [{tool: [read, write]}]\n"
    )
    policy = Policy.load(main)
    denied = policy.decide("read", {"path": "x"})
    assert (denied.rule, denied.reason) == ("team:deny[0]", "the team's")
    assert policy.decide("grep", {}).rule == "team:allow[0]"
    assert policy.decide("edit", {}).rule == "default"
    assert policy.decide("write", {"path": "/workspace/deploy/a"}).rule == "protect"
    assert policy.decide("write", {"path": "/workspace/.git/config"}).rule == "protect"


def test_files_that_include_each_other_count_once(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        text = f"default: deny\ninclude: [{other}.yaml]\ndeny: [{{tool: {name}}}]\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    rules = [rule.decision.rule for rule in Policy.load(tmp_path / "a.yaml").rules]
    assert rules == ["b:deny[0]", "deny[0]"]


def test_a_missing_or_broken_included_file_is_an_error_of_the_line_that_names_it(
    tmp_path: Path,
) -> None:
    main = tmp_path / "main.yaml"
    main.write_text("default: deny\ninclude:\n  - team.yaml\n")
    with pytest.raises(PolicyError, match=r"main\.yaml:3: `include`: .*no such file"):
        Policy.load(main)
    (tmp_path / "team.yaml").write_text("\ndefault: x\n")
    with pytest.raises(PolicyError, match=r"team\.yaml:2: "):
        Policy.load(main)


def test_the_hash_is_of_all_that_decides(tmp_path: Path) -> None:
    team, main = tmp_path / "team.yaml", tmp_path / "main.yaml"
    team.write_text("default: deny\n")
    main.write_text("default: deny\ninclude: [team.yaml]\n")
    before = Policy.load(main).digest
    team.write_text("default: deny\n# other\n")
    assert Policy.load(main).digest != before


def test_a_shadow_has_none_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("default: deny\nshadow: default\n")
    (tmp_path / "a.yaml").write_text("default: deny\nshadow: b.yaml\n")
    with pytest.raises(PolicyError, match=r"a\.yaml:2: `shadow` names b\.yaml, which has a shadow"):
        Policy.load(tmp_path / "a.yaml")


def test_a_policy_is_proved_by_its_examples() -> None:
    policy = Policy.parse(
        "version: 1\ndefault: deny\nallow: [{tool: [read, write], path: ^/workspace/}]\n"
        "examples:\n"
        "  - {tool: read, path: /workspace/a, is: allow}\n"
        "  - {tool: read, path: /workspace/a, resolved: /etc/passwd, is: deny}\n"
        "  - {tool: write, input: {path: /workspace/a, content: ''}, is: allow}\n"
        "  - {tool: write, path: /workspace/.git/config, is: deny}\n"
    )
    assert len(policy.examples) == 4
