"""What a policy that loads is warned about, and what it is not."""

import json

import pytest

from runner.policy import Policy, PolicyWarning, lint
from runner.policy.matching import Pattern


def warnings(text: str) -> tuple[PolicyWarning, ...]:
    return Policy.parse(text).warnings


def about(match: str, tool: str = "bash", verdict: str = "deny") -> list[str]:
    """The messages for a policy of one rule."""
    policy = {"mode": "pattern", verdict: [{"tool": tool, "match": match}]}
    found = warnings(json.dumps(policy))
    assert all(warning.rule == f"{verdict}[0]" for warning in found)
    return [warning.message for warning in found]


@pytest.mark.parametrize(
    ("match", "tool", "instead"),
    [
        ("^git", "bash", r'^\{"command":"git'),
        (r"^git\b", "bash", r'^\{"command":"git\b'),
        (r"\Arm", "bash", r'^\{"command":"rm'),
        ("(?i)^rm", "bash", r'(?i)^\{"command":"rm'),
        ("^ls", "BASH", r'^\{"command":"ls'),
        ("^(ls|cat)", "bash", r'^\{"command":"(ls|cat)'),
        ("^/etc", "read", r'^\{"path":"/etc'),
        ("^/etc", "edit", r'^\{"path":"/etc'),
        ("^TODO", "grep", r'^\{"pattern":"TODO'),
        ("^https", "http_get", r'^\{"[^"]*":"https'),
        ("^git", "", r'^\{"[^"]*":"git'),
        ("ls$", "bash", r'ls"\}$'),
        (r"/etc\z", "write", r'/etc"\}$'),
        ("^ls$", "bash", r'^\{"command":"ls"\}$'),
        ("^$", "bash", r'^\{"command":""\}$'),
        # what rousseau-agent's own guide recommends
        (r'^\s*"command":\s*"(ls|cat)\b', "bash", r'^\{\s*"command":\s*"(ls|cat)\b'),
    ],
)
def test_an_end_of_the_json_taken_for_that_of_a_field_is_told_how_to_be_written(
    match: str, tool: str, instead: str
) -> None:
    *_, message = about(match, tool)
    assert message.startswith("never matches: ")
    assert message.endswith(f"; write '{instead}'")
    Pattern.compile(instead)


def test_the_advice_is_written_as_yaml_takes_it() -> None:
    (message,) = about("^echo 'a'")
    instead = message.partition("; write ")[2]
    text = f"mode: pattern\ndeny:\n  - {{tool: bash, match: {instead}}}"
    assert warnings(text) == ()
    assert Policy.parse(text).decide("bash", {"command": "echo 'a'"}).rule == "deny[0]"


def test_the_advice_matches_what_was_meant() -> None:
    (message,) = about("^git (status|diff)$", verdict="allow")
    instead = Pattern.compile(message.partition("; write ")[2].strip("'"))
    assert instead.found_in(b'{"command":"git diff"}')
    assert not instead.found_in(b'{"command":"git push"}')
    assert not instead.found_in(b'{"command":"git diff; curl x"}')


@pytest.mark.parametrize(
    ("match", "cause"),
    [
        ("^git", 'starts {"command":"'),
        ("^[^a-z]*git", 'starts {"command":"'),
        ("ls$", "$ is the end"),
        ("^ls$", "^ and $ are the ends"),
        ('"command": "ls"', "no space after :"),
        ('"path":"/etc"', "in the order of the tool's schema"),
        ("rm\n", "there is a line feed in it"),
        ("\brm", "there is a backspace in it"),
        ("a\x01", "control character U+0001"),
        (r"rm\n", r"a pattern matches with \\n"),
        (r"a[\x00-\x1f]b", r"a pattern matches with \\n"),
    ],
)
def test_the_cause_is_named(match: str, cause: str) -> None:
    (message,) = about(match)
    assert message.startswith("never matches: ")
    assert cause in message


@pytest.mark.parametrize(
    ("text", "character"),
    [
        ('mode: pattern\ndeny:\n  - {tool: bash, match: "\\brm\\b"}', "backspace"),
        ("mode: pattern\ndeny:\n  - tool: bash\n    match: |\n      rm\n", "line feed"),
        ('mode: pattern\ndeny:\n  - {tool: bash, match: "a\\tb"}', "tab"),
    ],
)
def test_what_yaml_made_a_control_character_of_is_told(text: str, character: str) -> None:
    (warning,) = warnings(text)
    assert f"there is a {character} in it" in warning.message
    assert "use single quotes" in warning.message
    assert (warning.line, warning.rule) == (3, "deny[0]")


FINE = [
    "", ".*", "git", r"\bgit\b", r"rm\s+-rf|sudo|curl|wget", r'^\{"command":"(ls|cat)\b', "^{",
    r'"command":"ls"\}$', r"\}$", r":\(\)\{ :\|:& \};:", r'"command":\s*"', "(?i)SUDO", "é", r"\pL",
    r"a\\nb", r'\\"', "^.*git", r"^[^x]*git", r"(^|;)\s*rm", "(^git|curl)", "x{0}",
]  # fmt: skip


@pytest.mark.parametrize("match", FINE)
def test_a_rule_that_can_match_draws_no_warning(match: str) -> None:
    assert about(match) == []


@pytest.mark.parametrize(
    "match",
    ["^((a{16}){16}b){3}((c{16}){16}){3}a{16}b{16}" * 4, "^x" + "(" * 45 + ")" * 45, "^a{01}"],
)
def test_a_rule_that_can_not_be_judged_draws_no_warning(match: str) -> None:
    assert about(match) == []


def test_one_alternative_that_never_matches_is_told() -> None:
    (message,) = about("curl|^wget|sudo")
    assert message.startswith("its alternative ^wget never matches: ")


def test_a_part_of_a_group_is_not_told_as_the_rest_can_match() -> None:
    assert about("(^rm|sudo)") == []


# --- names, order, modes


def test_a_tool_of_another_name_is_told() -> None:
    (message,) = about("", "bahs")
    assert "no built-in tool is called 'bahs'" in message
    assert "right for a tool of your own" in message


@pytest.mark.parametrize("tool", ["read", "Write", "EDIT", "grep", "bash", ""])
def test_a_built_in_tool_is_known_in_any_case(tool: str) -> None:
    assert about("", tool) == []


@pytest.mark.parametrize("match", ["", ".*", ".+", "^", "^.*", "{", "command|x", r"(?s:.)", "[^x]"])
def test_what_an_unconditional_deny_refuses_is_never_asked(match: str) -> None:
    policy = {
        "mode": "pattern",
        "allow": [{"tool": "bash", "match": "ls"}, {"tool": "read"}],
        "deny": [
            {"tool": "bash", "match": "rm"},
            {"tool": "Bash", "match": match},
            {"tool": "bash", "match": "mv"},
        ],
    }
    text = "\n".join(json.dumps(policy).replace('"deny"', '\n"deny"').splitlines())
    told = {warning.rule: warning.message for warning in warnings(text)}
    assert told.keys() == {"allow[0]", "deny[2]"}
    assert told["allow[0]"].startswith("never asked: deny[1] in line 2 refuses every bash call")


def test_a_deny_for_every_tool_leaves_nothing_to_ask() -> None:
    found = warnings("deny:\n  - {}\n  - {tool: bash}\nallow:\n  - {tool: read}\n  - {}\n")
    assert [(warning.line, warning.rule) for warning in found] == [
        (3, "deny[1]"),
        (5, "allow[0]"),
        (6, "allow[1]"),
    ]
    assert all("refuses every call" in warning.message for warning in found)


@pytest.mark.parametrize("match", ["rm", ".*$", r"\b", '"}$', "command\\b", "^{$", ".{30}", "x?$"])
def test_a_deny_with_a_condition_hides_nothing(match: str) -> None:
    policy = {
        "allow": [{"tool": "bash", "match": "ls"}],
        "deny": [{"tool": "bash", "match": match}],
    }
    assert not [w for w in warnings(json.dumps(policy)) if w.message.startswith("never asked")]


def test_a_deny_for_one_tool_hides_no_rule_for_all() -> None:
    assert warnings("deny: [{tool: bash}]\nallow: [{match: ls}]") == ()


def test_allow_rules_that_change_nothing_are_told() -> None:
    (warning,) = warnings("mode: pattern\ndefault: allow\nallow: [{tool: read}]")
    assert (warning.line, warning.rule) == (2, "default")
    assert "the allow rules change nothing" in warning.message


@pytest.mark.parametrize("mode", ["allow_all", "deny_all"])
def test_rules_that_the_mode_does_not_read_are_told(mode: str) -> None:
    (warning,) = warnings(f"default: deny\nmode: {mode}\ndeny: [{{tool: bash, match: '^x'}}]")
    assert (warning.line, warning.rule) == (2, "mode")
    assert f"in mode {mode} nothing reads `default` and the rules" in warning.message
    assert warnings(f"mode: {mode}") == ()


def test_warnings_come_in_the_order_of_the_lines() -> None:
    found = warnings("allow:\n  - {tool: bash, match: ^a}\n  - {tool: x}\ndeny:\n  - {match: b$}\n")
    assert [warning.line for warning in found] == [2, 3, 5]


def test_a_warning_prints_as_its_place_and_message() -> None:
    assert str(PolicyWarning(3, "deny[0]", "never matches")) == "line 3: deny[0]: never matches"


def test_a_policy_that_can_not_be_judged_in_time_still_loads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lint, "MAX_STEPS", 3_000)
    rules = [{"match": f"^never{number}"} for number in range(200)]
    policy = Policy.parse(json.dumps({"mode": "pattern", "deny": rules}))
    assert len(policy.rules) == 200
    assert 0 < len(policy.warnings) < 200
