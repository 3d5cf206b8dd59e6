"""The file format: what loads, what is refused, and which line is blamed."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.errors import PolicyError
from runner.model import Verdict
from runner.policy import Policy
from runner.policy.document import MAX_RULES, Mode, read
from runner.policy.nodes import MAX_DOCUMENT_BYTES


def refusal(text: str) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        Policy.parse(text, "p.yaml")
    assert caught.value.source == "p.yaml"
    return caught.value


# --- what loads


@pytest.mark.parametrize(
    ("written", "mode"),
    [
        ("allow_all", Mode.ALLOW_ALL),
        ("allow", Mode.ALLOW_ALL),
        ("deny_all", Mode.DENY_ALL),
        ("deny", Mode.DENY_ALL),
        ("pattern", Mode.PATTERN),
        ("Allow_All", Mode.ALLOW_ALL),
        ("' DENY '", Mode.DENY_ALL),
    ],
)
def test_mode_is_read_in_any_case_and_by_its_alias(written: str, mode: Mode) -> None:
    assert Policy.parse(f"mode: {written}").mode is mode


@pytest.mark.parametrize(
    "text", ["allow: [{tool: read}]", "deny: [{tool: read}]", "default: deny", "allow:"]
)
def test_rules_without_a_mode_make_a_pattern_policy(text: str) -> None:
    assert Policy.parse(text).mode is Mode.PATTERN


def test_unset_default_denies() -> None:
    policy = Policy.parse("mode: pattern")
    assert policy.decide("read", {"path": "/a"}).verdict is Verdict.DENY


def test_default_is_read_in_any_case() -> None:
    policy = Policy.parse("mode: pattern\ndefault: ALLOW")
    assert policy.decide("read", {"path": "/a"}).verdict is Verdict.ALLOW


def test_empty_lists_and_unset_values_load() -> None:
    policy = Policy.parse("mode: pattern\ndefault:\nreason: ~\nallow:\ndeny: []")
    assert policy.rules == ()
    assert policy.default.reason == "denied by pattern policy"


def test_anchors_and_aliases_are_followed() -> None:
    policy = Policy.parse(
        "mode: pattern\n"
        "allow:\n"
        "  - &look {tool: read, match: &any '.*'}\n"
        "  - {tool: grep, match: *any}\n"
        "deny: [*look]\n"
    )
    assert policy.decide("read", {"path": "/a"}).rule == "deny[0]"
    assert policy.decide("grep", {"pattern": "a", "path": "/a"}).rule == "allow[1]"


def test_rules_may_be_written_in_either_order() -> None:
    first = Policy.parse("deny: [{tool: bash}]\nallow: [{match: ''}]")
    second = Policy.parse("allow: [{match: ''}]\ndeny: [{tool: bash}]")
    for policy in first, second:
        assert policy.decide("bash", {"command": "ls"}).rule == "deny[0]"
        assert policy.decide("read", {"path": "/a"}).rule == "allow[0]"


def test_the_agents_own_keys_are_ignored_around_the_approver() -> None:
    policy = Policy.parse(
        "provider: anthropic\n"
        "router: {default: sonnet, rules: [{use: haiku}]}\n"
        "mode: anything\n"
        "agent:\n"
        "  system_prompt: be brief\n"
        "  max_iterations: 8\n"
        "  approver: {mode: deny_all, reason: no}\n".replace("no}", "'no'}")
    )
    assert policy.default.reason == "no"


def test_utf8_with_a_byte_order_mark_loads(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_bytes(b"\xef\xbb\xbfmode: deny\nreason: \xe2\x80\x94\n")
    assert Policy.load(file).default.reason == "—"


def test_windows_line_ends_load() -> None:
    policy = Policy.parse("mode: pattern\r\ndeny:\r\n  - {tool: bash,\r\n     match: 'rm'}\r\n")
    assert policy.decide("bash", {"command": "rm"}).rule == "deny[0]"


# --- what is refused: text that YAML would turn into something else


@pytest.mark.parametrize(
    ("value", "read_as"),
    [
        ("yes", "true or false"),
        ("no", "true or false"),
        ("On", "true or false"),
        ("OFF", "true or false"),
        ("true", "true or false"),
        ("12", "a number"),
        ("1_000", "a number"),
        ("0x1F", "a number"),
        ("1:30", "a number"),
        ("1.10", "a number"),
        (".inf", "a number"),
        ("2024-01-01", "a date"),
        ("=", "a special value"),
        ("!!binary aGk=", "binary data"),
        ("!mine x", "a value tagged !mine"),
        ("{a: b}", "a mapping"),
    ],
)
@pytest.mark.parametrize("key", ["match", "tool", "reason", "mode", "default"])
def test_what_yaml_does_not_read_as_text_is_an_error(key: str, value: str, read_as: str) -> None:
    if key in ("match", "tool"):
        error = refusal(f"mode: pattern\ndeny:\n  - tool: bash\n  - {key}: {value}\n")
        assert error.line == 4
        assert error.problem.startswith("deny[1]: ")
    else:
        error = refusal(f"allow: []\n{key}: {value}\n")
        assert error.line == 2
    assert read_as in error.problem
    assert "quotes" in error.problem or read_as == "a mapping"


@pytest.mark.parametrize("key", ["match", "command", "path", "reason", "mode", "default"])
def test_a_list_is_no_text(key: str) -> None:
    of_a_rule = key in ("match", "command", "path")
    where = f"deny:\n  - {key}: [a]\n" if of_a_rule else f"allow: []\n{key}: [a]"
    assert "must be text, not a list" in refusal(where).problem


@pytest.mark.parametrize("value", ["yes", "12", "1.10", "2024-01-01"])
def test_quotes_make_text_of_anything(value: str) -> None:
    policy = Policy.parse(f"mode: pattern\ndeny: [{{tool: bash, match: '{value}'}}]")
    assert policy.decide("bash", {"command": f"echo {value}"}).verdict is Verdict.DENY


def test_a_tag_makes_text_of_anything() -> None:
    policy = Policy.parse("mode: pattern\nreason: !!str no\n")
    assert policy.default.reason == "no"


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        # not YAML
        ("mode: pattern\nallow:\n\t- {tool: read}", 3, "indent with spaces"),
        ("reason: a: b", 1, "needs quotes"),
        ('deny:\n  - {match: "rm\\s"}', 2, "use single quotes"),
        ("deny:\n  - {match: *}", 2, "needs quotes"),
        ("deny:\n  - {match: *a}", 2, "needs quotes"),
        ("mode: deny\nreason: '", 2, "not YAML"),
        ("mode: deny\n}", 2, "not YAML"),
        ("mode: deny\n\nreason: \x07", 3, "U+0007"),
        ("mode: deny\nreason: \ud800", 2, "U+D800"),
        ('mode: deny\nreason: "\\ud800"', 2, "surrogate"),
        ('mode: deny\nreason: "\\UFFFFFFFF"', 2, "names no character"),
        ("mode: deny\n---\nmode: allow\n", 2, "more than one YAML document"),
        ("[" * 1000, 1, "more than 50 levels"),
        ("a: [" + "1," * 60_000 + "]", 1, "more than 50000 values"),
        # not a policy
        ("- a", 1, "must be a mapping"),
        ("mode", 1, "must be a mapping"),
        ("{}", 1, "neither a `mode` nor rules"),
        ("reason: x", 1, "neither a `mode` nor rules"),
        ("mode:", 1, "neither a `mode` nor rules"),
        ("\nmode: x", 2, "must be one of allow_all, allow, deny_all, deny, pattern, not 'x'"),
        ("mode: ask", 1, "`mode` must be one of"),
        ("default: allow\non_unknown: allow", 2, "`on_unknown` must be one of deny, ask"),
        ("mode: pattern\ndefault: maybe", 2, "must be one of allow, deny"),
        ("mode: deny\nmode: allow", 2, "twice, first in line 1"),
        ("version: 2\nmode: deny", 1, "version 1 only"),
        ("version: '1'\nmode: deny", 1, "must be the number 1"),
        ("version: 1.0\nmode: deny", 1, "must be the number 1"),
        ("mode: pattern\ndenny: []", 2, "did you mean `deny`?"),
        ("Mode: pattern", 1, "did you mean `mode`?"),
        ("mode: pattern\nzzz: 1", 2, "known are version, mode"),
        ("mode: pattern\n? [a]\n: b", 2, "single word"),
        ("<<: {mode: deny}", 1, "write the keys out"),
        ("approver: {mode: deny}", 1, "belongs under `agent:`"),
        # not a list of rules
        ("mode: pattern\ndeny: x", 2, "must be a list of rules, not text"),
        ("mode: pattern\ndeny: {tool: bash}", 2, "must be a list of rules, not a mapping"),
        ("deny:\n  - sudo", 2, "deny[0] must be a mapping such as"),
        ("deny:\n  - {tool: bash}\n  -\n", 3, "deny[1] is empty"),
        ("deny:\n  - tool:", 2, 'deny[0]: `tool` has no value; leave it out, or write ""'),
        ("allow:\n  - tool: bash\n    match: ~", 3, "allow[0]: `match` has no value"),
        ("deny:\n  - {tool: bash, tool: read}", 2, "deny[0]: `tool` is here twice"),
        ("deny:\n  - {tool: bash, mtach: x}", 2, "deny[0]: unknown key `mtach` (did you mean"),
        ("deny:\n  - {tool: [bash, '*']}", 2, "'*' stands alone"),
        ("deny:\n  - {tool: []}", 2, "names no tool"),
        ("deny:\n  - {tool: [bash, [a]]}", 2, "must be text, not a list"),
        # what a rule looks at
        ("deny:\n  - {tool: bash, command: '('}", 2, "`command` is not a regular expression"),
        ("deny:\n  - {path: '('}", 2, "`path` is not a regular expression"),
        ("deny:\n  - {anywhere: '('}", 2, "`anywhere` is not a regular expression"),
        ("deny:\n  - field: {url: '('}", 2, "`field.url` is not a regular expression"),
        ("deny:\n  - {field: x}", 2, "`field` must be a mapping"),
        ("deny:\n  - {field: {}}", 2, "`field` is empty"),
        ("deny:\n  - {field: {url: 1}}", 2, "must be text"),
        ("deny:\n  - {glob: docs/**}", 2, "write /docs/** or **/docs/**"),
        ("deny:\n  - {glob: '/a**'}", 2, "** stands alone"),
        ("deny:\n  - {glob: '/a/../b'}", 2, "normalised"),
        ("deny:\n  - {glob: '/a/'}", 2, "normalised"),
        ("deny:\n  - {glob: '/{a,b}'}", 2, "a rule for each"),
        ("deny:\n  - {glob: '/[a'}", 2, "not closed"),
        ("deny:\n  - {glob: '/[+-9]'}", 2, "would match a slash"),
        ("deny:\n  - {glob: '/a\\'}", 2, "backslash at the end"),
        ("deny:\n  - {tool: bash, redirect: build}", 2, "`redirect` is no glob"),
        ("deny:\n  - {tool: bash, command: a, redirect: /b}", 2, "write a rule for each"),
        ("deny:\n  - {command:}", 2, "`command` has no value; leave it out"),
        ("deny:\n  - {justification: 1}", 2, "must be text"),
        # rates
        ("deny:\n  - {rate: 3}", 2, "`rate` must be a mapping"),
        ("deny:\n  - {rate: {calls: 3}}", 2, "needs `per_s`"),
        ("deny:\n  - {rate: {calls: 3, per_s: 0}}", 2, "above 0"),
        ("deny:\n  - {rate: {calls: 2.5, per_s: 1}}", 2, "whole number"),
        ("deny:\n  - {rate: {calls: x, per_s: 1}}", 2, "must be a number"),
        ("deny:\n  - {rate: {calls: 0x10, per_s: 1}}", 2, "decimal digits"),
        ("deny:\n  - {rate: {calls: .nan, per_s: 1}}", 2, "must be a number in decimal"),
        ("deny:\n  - {rate: {calls: 1, per_s: 1, per: user}}", 2, "one of session, tenant"),
        ("deny:\n  - {rate: {calls: 1, per_s: 1, each: 2}}", 2, "unknown key `each`"),
        # the rest of the policy
        ("default: deny\nprotect: default", 2, "`protect` must be a list"),
        ("default: deny\nprotect: [nothing]", 2, "there is no group 'nothing'"),
        ("default: deny\nprotect: ['/a**b']", 2, "** stands alone"),
        ("default: deny\ninclude: universal", 2, "`include` must be a list"),
        ("default: deny\ninclude: [nobody]", 2, "no shipped policy is called 'nobody'"),
        ("default: deny\ninclude: [team.yaml]", 2, "no shipped policy is called"),
        ("default: deny\ninclude: [deny-all]", 2, "has no rules to share"),
        ("default: deny\nshadow: nobody", 2, "no shipped policy is called 'nobody'"),
        ("default: deny\nshadow: [default]", 2, "must be text"),
        # examples
        ("default: deny\nexamples: {}", 2, "`examples` must be a list"),
        ("default: deny\nexamples: [{tool: bash}]", 2, "needs `is`"),
        ("default: deny\nexamples: [{is: deny}]", 2, "needs `tool`"),
        ("default: deny\nexamples: [{tool: bash, is: no}]", 2, "must be text"),
        ("default: deny\nexamples: [{tool: bash, is: nope}]", 2, "one of allow, deny, ask"),
        ("default: deny\nexamples: [{tool: bash, input: ls, is: deny}]", 2, "must be a mapping"),
        ("default: deny\nexamples: [{tool: bash, cmd: ls, is: deny}]", 2, "did you mean `command`"),
        ("default: deny\nexamples:\n- &a {tool: b, input: {x: [*a]}, is: deny}", 3, "themselves"),
        (
            "default: deny\nexamples:\n  - {tool: bash, command: ls, is: allow}",
            3,
            'examples[0]: bash {"command": "ls"} is to be allowed, but default says deny',
        ),
        ("deny:\n  - {<<: {tool: bash}}", 2, "deny[0]: merging"),
        # regular expressions
        ("allow: []\ndeny:\n  - {}\n  - tool: bash\n    match: '['", 5, "deny[1]: `match` is not"),
        ("deny: [{match: '(?=a)'}]", 1, "no look-ahead"),
        ("deny: [{match: '(?!a)'}]", 1, "is a deny rule"),
        ("deny: [{match: '(?<!a)'}]", 1, "no look-behind"),
        ("deny: [{match: '(a)\\1'}]", 1, "no references back"),
        ("deny: [{match: 'a\\Z'}]", 1, "\\z"),
        ("deny: [{match: '*'}]", 1, "anything at all is .*"),
        ("deny: [{match: 'a\\Cb'}]", 1, "\\C is not supported"),
        ("deny: [{match: '\\Qa\\E\\C'}]", 1, "\\C is not supported"),
        ("deny: [{match: '((\\pL{100}){100}){2}'}]", 1, "deny[0]"),
        # rousseau-agent's nesting
        ("agent:\n  max_iterations: 3", 1, "`agent` has no `approver`"),
        ("agent: x", 1, "`agent` must be a mapping"),
        ("agent:\n  approver:\n", 2, "`approver` is empty"),
        ("agent:\n  approver: []\n", 2, "`approver` must be a mapping"),
        ("agent:\n  approver: {mode: allow, rbac: {}}\n", 2, "by rousseau-agent only"),
        ("deny: []\nagent:\n  approver: {mode: allow}\n", 1, "`deny` at the top would be ignored"),
        ("agent:\n  deny: []\n  approver: {mode: allow}\n", 2, "at `agent` would be ignored"),
    ],
)
def test_refusal_names_the_line_and_the_cause(text: str, line: int, problem: str) -> None:
    error = refusal(text)
    assert problem in error.problem
    assert error.line == line
    assert str(error) == f"p.yaml:{line}: {error.problem}"


def test_rules_are_checked_also_where_the_mode_reads_none() -> None:
    assert "deny[0]" in refusal("mode: allow_all\ndeny: [{match: '['}]").problem


@pytest.mark.parametrize("text", ["", "   \n", "# nothing\n", "---\n", "---\n...\n"])
def test_an_empty_policy_says_what_to_write(text: str) -> None:
    if "---" in text:
        assert "must be a mapping" in refusal(text).problem
    else:
        assert "the policy is empty" in refusal(text).problem


def test_too_many_rules_are_refused() -> None:
    text = "deny:\n" + "  - {tool: bash}\n" * (MAX_RULES + 1)
    assert f"more than {MAX_RULES} rules" in refusal(text).problem
    assert len(read(text.removesuffix("  - {tool: bash}\n"), "p").rules) == MAX_RULES


def test_aliases_of_aliases_stay_small() -> None:
    layers = "".join(
        f"l{n}: &l{n} [{', '.join(f'*l{n - 1}' for _ in range(9))}]\n" for n in range(1, 20)
    )
    text = f"l0: &l0 [lol]\n{layers}agent: {{approver: {{mode: pattern, deny: *l19}}}}\n"
    assert "deny[0] must be a mapping" in refusal(text).problem


def test_a_rule_list_that_holds_itself_is_refused() -> None:
    assert "deny[0] must be a mapping" in refusal("deny: &d [*d]").problem


# --- files


def test_a_file_is_named_in_its_errors(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("mode: pattern\nallow:\n  - {tool: bash, match: '('}\n")
    with pytest.raises(PolicyError, match=r"mine\.yaml:3: allow\[0\]: ") as caught:
        Policy.load(file)
    assert caught.value.source == str(file)


def test_a_missing_file_names_the_shipped_policies(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"no such file .*default"):
        Policy.load(tmp_path / "none.yaml")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="name a policy file in it"):
        Policy.load(tmp_path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.touch()
    with pytest.raises(PolicyError, match="the policy is empty"):
        Policy.load(file)


@pytest.mark.parametrize("content", [b"mode: deny\nreason: \xff\n", "mode: deny".encode("utf-16")])
def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "p.yaml"
    file.write_bytes(content)
    with pytest.raises(PolicyError, match="not UTF-8") as caught:
        Policy.load(file)
    assert caught.value.line == (2 if content.startswith(b"mode") else 1)


def test_a_huge_file_is_refused_without_being_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    with file.open("wb") as sparse:
        sparse.truncate(3 * 1024**3)
    with pytest.raises(PolicyError, match="larger than 1 MiB"):
        Policy.load(file)


def test_a_large_text_is_refused() -> None:
    assert "larger than 1 MiB" in refusal("#" * (MAX_DOCUMENT_BYTES + 1)).problem
    assert "larger than 1 MiB" in refusal("€" * (MAX_DOCUMENT_BYTES // 2)).problem


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.touch(mode=0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may read every file
    try:
        with pytest.raises(PolicyError, match="check its permissions"):
            Policy.load(file)
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000])
def test_an_impossible_path_is_refused(path: str) -> None:
    with pytest.raises(PolicyError, match="can't be read"):
        Policy.load(path)


PIECES = [
    "mode", ":", " ", "\n", "- ", "{", "}", "[", "]", ",", "'", '"', "&a", "*a", "!!", "|", ">",
    "\t", "pattern", "deny", "allow", "tool", "match", "agent", "approver", "~", "no", "1", "\\",
    "%", "#", "---", "...", "?", "<<", "\ud800", "\0", "é", "\\U0011FFFF", "\\x", ".*",
]  # fmt: skip


@settings(deadline=None)
@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join)))
def test_any_text_is_a_policy_or_a_policy_error(text: str) -> None:
    try:
        policy = Policy.parse(text)
    except PolicyError as error:
        assert error.problem  # noqa: PT017 - either outcome is right
    else:
        assert policy.mode in Mode
