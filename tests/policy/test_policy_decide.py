"""Which call gets which decision, by which rule, and for what reason."""

import json
import math
import threading
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pytest
import re2
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.model import Decision, Verdict
from runner.policy import DENY_EVERYTHING, Policy
from runner.policy.matching import canonical_json

ALLOW, DENY = Verdict.ALLOW, Verdict.DENY


def pattern(
    allow: list[dict[str, str]] | None = None,
    deny: list[dict[str, str]] | None = None,
    default: str = "deny",
) -> Policy:
    policy = {"mode": "pattern", "default": default, "allow": allow or [], "deny": deny or []}
    return Policy.parse(json.dumps(policy))


def test_the_decision_names_the_rule_that_made_it() -> None:
    policy = pattern(
        allow=[{"tool": "read"}, {"tool": "bash", "match": "ls"}],
        deny=[{"tool": "write"}, {"tool": "bash", "match": "rm"}],
    )
    assert policy.decide("read", {"path": "/a"}) == Decision(ALLOW, "allow[0]", "")
    assert policy.decide("bash", {"command": "ls"}) == Decision(ALLOW, "allow[1]", "")
    assert policy.decide("bash", {"command": "rm; ls"}) == Decision(
        DENY, "deny[1]", "denied by pattern policy"
    )
    assert policy.decide("grep", {"pattern": "a", "path": "/"}) == Decision(
        DENY, "default", "denied by pattern policy"
    )


def test_the_modes_are_named_as_the_rule() -> None:
    assert Policy.parse("mode: allow").decide("bash", {}) == Decision(ALLOW, "mode", "")
    assert Policy.parse("mode: deny").decide("bash", {}) == Decision(
        DENY, "mode", "denied by policy"
    )


def test_the_first_rule_of_a_list_decides() -> None:
    policy = pattern(allow=[{"match": "a"}, {"match": "a"}], deny=[{"match": "b"}, {"match": "b"}])
    assert policy.decide("bash", {"command": "a"}).rule == "allow[0]"
    assert policy.decide("bash", {"command": "b"}).rule == "deny[0]"


def test_an_allowed_call_has_no_reason() -> None:
    policy = Policy.parse("mode: pattern\nreason: ask me\ndefault: allow\nallow: [{tool: read}]")
    assert policy.decide("read", {"path": "/a"}).reason == ""
    assert policy.decide("write", {"path": "/a", "content": ""}).reason == ""


def test_an_empty_reason_is_the_modes_own() -> None:
    assert Policy.parse("mode: deny\nreason: ''").default.reason == "denied by policy"


def test_the_allow_all_mode_reads_no_rules() -> None:
    policy = Policy.parse("mode: allow_all\ndefault: deny\ndeny: [{tool: bash}]")
    assert policy.decide("bash", {"command": "ls"}).verdict is ALLOW


# --- what a pattern sees


@pytest.mark.parametrize(
    ("match", "arguments", "found"),
    [
        (r'^\{"command":"git\b', {"command": "git status"}, True),
        (r'^\{"command":"git\b', {"command": "gitk"}, False),
        (r'"command": "', {"command": "a"}, False),
        (r'"command":"a"\}$', {"command": "a"}, True),
        (r"\\n", {"command": "a\nb"}, True),
        (r"\n", {"command": "a\nb"}, False),
        (r'a\\"b', {"command": 'a"b'}, True),
        (r"a\\\\b", {"command": "a\\b"}, True),
        (r"\\u001b", {"command": "\x1b[0m"}, True),
        ("é", {"command": "é"}, True),
        ("^.{14}$", {"command": "€"}, False),
        ("^.{15}$", {"command": "€"}, True),
        ("(?i)SUDO", {"command": "sudo"}, True),
        ("SUDO", {"command": "sudo"}, False),
        (r'^\{"a":1,"b":\[true,null,1\.5\]\}$', {"a": 1, "b": [True, None, 1.5]}, True),
        (r'^\{"b":1,"a":2\}$', {"b": 1, "a": 2}, True),
        (r'^\{"a":2,"b":1\}$', {"b": 1, "a": 2}, False),
        (r"^\{\}$", {}, True),
        (r"(?P<name>ls)", {"command": "ls"}, True),
    ],
)
def test_a_pattern_searches_the_compact_json(
    match: str, arguments: dict[str, Any], found: bool
) -> None:
    policy = pattern(deny=[{"match": match}], default="allow")
    assert (policy.decide("t", arguments).verdict is DENY) is found


@pytest.mark.parametrize("kind", [OrderedDict, MappingProxyType, dict])
def test_any_mapping_is_seen_in_its_own_order(kind: Any) -> None:
    policy = pattern(allow=[{"match": r'^\{"b":1,"a":2\}$'}])
    assert policy.decide("t", kind({"b": 1, "a": 2})).verdict is ALLOW


@pytest.mark.parametrize(
    ("written", "called"),
    [("bash", "BASH"), ("BaSh", "bash"), ("straße", "STRASSE"), ("", "anything"), ("", "")],
)
def test_tool_names_compare_without_case(written: str, called: str) -> None:
    assert pattern(deny=[{"tool": written}], default="allow").decide(called, {}).verdict is DENY


@pytest.mark.parametrize("called", ["bash2", "bas", " bash", "bash ", ""])
def test_tool_names_compare_whole(called: str) -> None:
    assert pattern(allow=[{"tool": "bash"}]).decide(called, {}).verdict is DENY


def looped() -> dict[str, Any]:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    return loop


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "arguments",
    [
        {"a": math.nan},
        {"a": math.inf},
        {"a": "\ud800"},
        {"a": object()},
        {"a": b"bytes"},
        {("a",): 1},
        looped(),
        nested(100_000),
    ],
    ids=["nan", "inf", "surrogate", "object", "bytes", "key", "loop", "deep"],
)
def test_what_has_no_json_form_is_denied(arguments: dict[Any, Any]) -> None:
    policy = pattern(allow=[{"match": ""}], default="allow")
    decision = policy.decide("bash", arguments)
    assert (decision.verdict, decision.rule) == (DENY, "input")
    assert "no JSON form" in decision.reason


def test_allow_all_does_not_look_at_the_input() -> None:
    assert Policy.parse("mode: allow").decide("bash", {"a": math.nan}).verdict is ALLOW


# --- properties

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
ARGUMENTS = st.dictionaries(st.text(), JSON)
TOOLS = st.sampled_from(["read", "bash", "BASH", "", "x"]) | st.text()
MATCHES = st.sampled_from(["", ".*", "a", "[0-9]", '"', r"\\", "^$", "é", r"^\{", r"\}$", "zz"])


@st.composite
def policies(draw: st.DrawFn) -> dict[str, Any]:
    rule = st.fixed_dictionaries(
        {"tool": st.sampled_from(["read", "bash", "Bash", ""]), "match": MATCHES}
    )
    return {
        "mode": draw(st.sampled_from(["pattern", "allow_all", "deny_all"])),
        "default": draw(st.sampled_from(["allow", "deny"])),
        "allow": draw(st.lists(rule, max_size=4)),
        "deny": draw(st.lists(rule, max_size=4)),
    }


@settings(deadline=None)
@given(policies(), TOOLS, ARGUMENTS)
def test_any_call_gets_a_decision(policy: dict[str, Any], tool: str, arguments: Any) -> None:
    decision = Policy.parse(json.dumps(policy)).decide(tool, arguments)
    assert decision.verdict in (ALLOW, DENY)
    assert (decision.reason == "") is (decision.verdict is ALLOW)


def reference(policy: dict[str, Any], tool: str, text: str) -> Verdict:
    """The same written the slow, plain way."""

    def matches(rule: dict[str, str]) -> bool:
        return rule["tool"].lower() in ("", tool.lower()) and bool(re2.search(rule["match"], text))

    if policy["mode"] != "pattern":
        return ALLOW if policy["mode"] == "allow_all" else DENY
    if any(matches(rule) for rule in policy["deny"]):
        return DENY
    if any(matches(rule) for rule in policy["allow"]):
        return ALLOW
    return Verdict(policy["default"])


PLAIN = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.text(st.characters(exclude_categories=["Cs"])) | st.integers() | st.booleans(),
)


@settings(deadline=None)
@given(policies(), st.sampled_from(["read", "bash", "BASH", "x"]), PLAIN)
def test_decisions_are_those_of_a_plain_reading_of_the_rules(
    policy: dict[str, Any], tool: str, arguments: dict[str, Any]
) -> None:
    decision = Policy.parse(json.dumps(policy)).decide(tool, arguments)
    assert decision.verdict is reference(policy, tool, canonical_json(arguments))


@settings(deadline=None)
@given(policies(), st.sampled_from(["read", "bash"]), PLAIN, MATCHES)
def test_one_more_deny_rule_never_allows_more(
    policy: dict[str, Any], tool: str, arguments: dict[str, Any], match: str
) -> None:
    stricter = {**policy, "deny": [*policy["deny"], {"tool": tool, "match": match}]}
    before = Policy.parse(json.dumps(policy)).decide(tool, arguments).verdict
    after = Policy.parse(json.dumps(stricter)).decide(tool, arguments).verdict
    assert after is before or after is DENY


@settings(deadline=None)
@given(PLAIN)
def test_canonical_json_reads_back_the_same(arguments: dict[str, Any]) -> None:
    text = canonical_json(arguments)
    assert list(json.loads(text).items()) == list(arguments.items())
    assert not any(ord(character) < 32 for character in text)


# --- the value itself


def test_a_policy_can_not_be_changed() -> None:
    policy = Policy.parse("mode: allow")
    with pytest.raises(AttributeError):
        policy.mode = "deny_all"  # type: ignore[misc, assignment]


def test_the_same_text_makes_equal_policies() -> None:
    text = "mode: pattern\ndeny: [{tool: bash, match: rm}]"
    assert Policy.parse(text) == Policy.parse(text)
    assert hash(Policy.parse(text)) == hash(Policy.parse(text))
    assert Policy.parse(text) != Policy.parse(text.replace("rm", "mv"))


def test_the_digest_is_that_of_the_text() -> None:
    assert Policy.parse("mode: deny\n").digest == (
        "dc703cdc286469dbf48d6c6268fcc9ee7166d5ff4c8691339310b7e1718c065c"
    )


def test_many_threads_may_decide_at_once() -> None:
    policy = pattern(allow=[{"match": "[0-9]+(a|b)*c"}], deny=[{"match": "x(y|z)+x"}])
    wrong: list[Decision] = []

    def work(number: int) -> None:
        for turn in range(300):
            allowed = policy.decide("bash", {"command": f"{number}{'ab' * turn}c"})
            denied = policy.decide("bash", {"command": f"{number}c x{'yz' * (turn + 1)}x"})
            wrong.extend([allowed] if allowed.rule != "allow[0]" else [])
            wrong.extend([denied] if denied.rule != "deny[0]" else [])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_pattern_that_defeats_backtracking_is_decided_for_two_mebibytes() -> None:
    """The test's own time limit is the assertion: backtracking would take longer than ages."""
    policy = pattern(deny=[{"match": "(a*)*b(a+)+c(x+x+)+y$"}], default="allow")
    assert policy.decide("bash", {"command": "a" * 2 * 1024**2}).verdict is ALLOW


def test_no_policy_denies_and_says_how_to_pass_one() -> None:
    decision = DENY_EVERYTHING.decide("read", {"path": "/a"})
    assert (decision.verdict, decision.rule) == (DENY, None)
    assert 'Runner(policy="default")' in decision.reason
    assert "--policy" in decision.reason
    assert DENY_EVERYTHING.digest == ""
