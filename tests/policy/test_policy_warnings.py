"""What a policy that loads is warned about, and what it is not."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
        ('"command":7', "in the order of the tool's schema"),
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


# --- conditions that never hold


def of_rule(verdict: str = "deny", **rule: Any) -> list[str]:
    """The messages for a policy of one rule."""
    found = warnings(json.dumps({"mode": "pattern", verdict: [rule]}))
    return [warning.message for warning in found]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"tool": "read", "command": "git"}, "read calls have `path` and"),
        ({"tool": "grep", "redirect": "/a/**"}, "grep calls have `pattern` and `path` and"),
        ({"tool": "bash", "path": "^/etc"}, "`path` looks at the argument `path`, and bash calls"),
        ({"tool": "BASH", "glob": "/etc/**"}, "bash calls have `command` and"),
        ({"tool": "read", "field": {"content": "x"}}, "looks at the argument `content`"),
        ({"tool": "bash", "field": {"command.x": "x"}}, "is a string, with nothing in it"),
        ({"tool": "read", "path": r"^\./a"}, "an absolute path that has no . and .."),
        ({"tool": "read", "path": "^a"}, "an absolute path"),
        ({"tool": "read", "path": r"/\.\./"}, "an absolute path"),
        ({"tool": "read", "path": "//"}, "an absolute path"),
        ({"tool": "read", "path": "a/$"}, "no slash at its end"),
        ({"tool": "read", "field": {"path": "^a"}}, "the path of a call starts with /"),
        ({"tool": "bash", "command": "\brm"}, "there is a backspace in it"),
        ({"tool": "bash", "command": "a\tb"}, "there is a tab in it"),
        ({"command": "^/usr/bin/git "}, "known by its name alone; write '^git'"),
        ({"command": r"^/bin/rm\b"}, "write '^rm'"),
    ],
)
def test_a_condition_that_never_holds_is_told(rule: dict[str, Any], said: str) -> None:
    (message,) = of_rule(**rule)
    assert message.startswith("never matches: ")
    assert said in message


@pytest.mark.parametrize("command", ["^ git", "^$", "^git $", r"^\sgit", "x  y"])
def test_an_allow_that_can_not_end_where_a_word_does_is_told(command: str) -> None:
    (message,) = of_rule("allow", tool="bash", command=command)
    assert message.startswith("never matches: ")
    assert "and has to end where a word does" in message


@pytest.mark.parametrize(
    "rule",
    [
        {"command": "^git$"},
        {"command": "git"},
        {"command": "/opt/bin/x"},
        {"command": "^/usr/bin/[a-z]+/x"},
        {"command": "^/usr/bin"},
        {"command": r"^/usr/bin/git\b.*"},
        {"command": r"^/usr/bin/git\s*.*"},
        {"command": "''"},
        {"command": "ls; rm"},
        {"path": "^a"},
        {"tool": "http_get", "path": r"^\./a"},
        {"tool": "http_get", "command": "ls"},
        {"tool": "read", "path": "^/$"},
        {"tool": "read", "path": r"\.\./"},
        {"tool": "read", "path": r"/\.\.\./"},
        {"tool": "read", "path": r"/\.git(/|$)"},
        {"tool": "read", "path": "(?m)^a"},
        {"tool": "read", "field": {"path": r"\.\./"}},
        {"tool": "grep", "field": {"ignore_case": "true"}},
        {"tool": "grep", "field": {"include": "x"}},
        {"field": {"command.x": "y"}},
        {"tool": "bash", "anywhere": "^a"},
        {"tool": "bash", "redirect": "**/.env"},
    ],
)
def test_a_condition_that_can_hold_draws_no_warning(rule: dict[str, Any]) -> None:
    assert not [message for message in of_rule(**rule) if "never" in message]


@pytest.mark.parametrize(
    "command", ["git", "^git$", r"^git\b", "^git( |$)", "^git .*", "^'a b'", "^git ", r"^git\s+\s"]
)
def test_an_allow_that_can_match_draws_no_warning(command: str) -> None:
    assert of_rule("allow", tool="bash", command=command) == []


def test_of_a_rule_for_several_tools_it_is_told_for_which_it_never_matches() -> None:
    (message,) = of_rule(tool=["read", "bash"], glob="/etc/**")
    assert message.startswith("never matches a bash call: ")


def test_one_alternative_of_a_path_that_never_matches_is_told() -> None:
    (message,) = of_rule(tool="read", path="^/etc|^home")
    assert message.startswith("its alternative ^home never matches: ")


# --- rules that others decide for


def never_decides(*rules: tuple[str, dict[str, Any]]) -> list[str]:
    """The rules of a policy that are said never to decide."""
    policy: dict[str, Any] = {"mode": "pattern"}
    for verdict, rule in rules:
        policy.setdefault(verdict, []).append({"justification": "why", **rule})
    found = warnings(json.dumps(policy))
    return [warning.rule for warning in found if warning.message.startswith("never decides: ")]


GIT, STATUS = {"tool": "bash", "command": "git"}, {"tool": "bash", "command": "^git status"}
ALL_SRC, SRC = {"tool": "read", "glob": "/w/src/**"}, {"tool": "read", "glob": "/w/src/lib/*.py"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("allow", STATUS), ("allow", STATUS)),
        (("ask", STATUS), ("allow", STATUS)),
        (("deny", STATUS), ("ask", STATUS)),
        (("deny", {"match": "x"}), ("deny", {"match": "x", "tool": "bash"})),
        (
            ("deny", {"tool": ["Bash", "read"], "match": "x"}),
            ("allow", {"match": "x", "tool": "bash"}),
        ),
        (("deny", {"anywhere": "x"}), ("allow", {"anywhere": "x", "command": "ls"})),
        (("deny", GIT), ("allow", STATUS)),
        (("deny", {"command": r"^git\b"}), ("allow", STATUS)),
        (("deny", {"command": "rm|git"}), ("allow", {"command": "git status|rm -r"})),
        (("deny", {"command": "git pu"}), ("allow", {"command": "^git push"})),
        (("deny", {"command": "rm|git"}), ("deny", {"command": r"^rm\b"})),
        (("ask", {"command": r"g\+\+"}), ("allow", {"command": r"^g\+\+ -c"})),
        (("deny", {"command": "git"}), ("allow", {"command": r"^git\s+push"})),
        (("deny", ALL_SRC), ("allow", SRC)),
        (("allow", ALL_SRC), ("allow", SRC)),
        (("deny", {"redirect": "/**"}), ("allow", {"redirect": "/tmp/x"})),
        (("allow", {"glob": "/w/**"}), ("allow", {"glob": "/w"})),
        (("allow", {"tool": "read"}), ("allow", {"tool": "read", "path": "^/w"})),
        (("allow", {"field": {"a": "x"}}), ("allow", {"field": {"a": "x", "b": "y"}})),
    ],
)
def test_a_rule_that_another_decides_for_is_told(
    before: tuple[str, dict[str, Any]], after: tuple[str, dict[str, Any]]
) -> None:
    index = 1 if before[0] == after[0] else 0
    assert never_decides(before, after) == [f"{after[0]}[{index}]"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("allow", GIT), ("allow", {"command": "^git push"})),
        (("deny", STATUS), ("allow", GIT)),
        (("deny", {"command": "git"}), ("allow", {"command": "^gitk"})),
        (("deny", {"command": "git"}), ("allow", {"command": "^git-lfs"})),
        (("deny", {"command": "git"}), ("allow", {"command": "^git.*"})),
        (("deny", {"command": "git"}), ("allow", {"command": r"^git\b.*"})),
        (("deny", {"command": "git"}), ("allow", {"command": r"^git\s*x"})),
        (("deny", {"command": "git"}), ("allow", {"command": "^git?"})),
        (("deny", {"command": "git"}), ("allow", {"command": "(?i)git|GIT"})),
        (("deny", {"command": "(a|git|b) x"}), ("allow", {"command": "^git x"})),
        (("deny", {"command": "git$"}), ("allow", {"command": "^git x"})),
        (("deny", {"command": "npm run"}), ("deny", {"command": "npm run -s x"})),
        (("deny", {"command": "rm"}), ("deny", {"command": "rm -rf"})),  # a program 'rm -rf'
        (("deny", {"command": "git -C x"}), ("allow", {"command": "^git -C x push"})),
        (("deny", {"command": r"git push\b"}), ("allow", {"command": "^git push.*"})),
        (("deny", {"command": "^'a"}), ("allow", {"command": "^'a"})),
        (("deny", {"tool": "x", "command": "git"}), ("allow", STATUS)),
        (("deny", GIT), ("allow", {"command": "^git status"})),
        (("deny", {"command": "git", "match": "x"}), ("allow", STATUS)),
        (("deny", SRC), ("allow", ALL_SRC)),
        (("deny", {"glob": "/w/*/**"}), ("allow", {"glob": "/w/a/b"})),
        (("deny", {"glob": "/w/**"}), ("allow", {"glob": "/www/**"})),
        (("ask", {"anywhere": "x"}), ("allow", {"anywhere": "x", "command": "ls"})),
        (("allow", {"tool": "bash"}), ("allow", {"tool": "bash", "command": "^ls"})),
        (("allow", {"tool": "read", "path": "^/w"}), ("allow", {"tool": "read"})),
        (("allow", {"field": {"a": "x"}}), ("allow", {"field": {"b": "x"}})),
    ],
)
def test_a_rule_that_may_decide_is_not_told(
    before: tuple[str, dict[str, Any]], after: tuple[str, dict[str, Any]]
) -> None:
    assert never_decides(before, after) == []


def test_which_rule_decides_and_how_is_said() -> None:
    text = "allow:\n  - {tool: bash, command: ^git status}\ndeny:\n  - {tool: bash, command: git}\n"
    (warning,) = warnings(text)
    assert (warning.line, warning.rule) == (2, "allow[0]")
    assert warning.message == (
        "never decides: deny[0] in line 4 is asked before it, and refuses all that this would allow"
    )


PATTERNS = [
    "git", "^git", r"git\b", "^git status", "git status|rm", "git push", r"^git\s+push", "^git$",
    "git pu", "^git-lfs", "git?", "git.*", "rm", "rm -rf", "rm -r", r"^rm\b", "npm run", "''", "^'",
    "(git|rm) x", "git -P", "^git -P log", "(?i)GIT", ".*", "env", "timeout 5", "git ", "^git ?",
    "^/usr/bin/git", r"^/usr/bin/git\b.*", r"/usr/bin/git\s*.*", "/usr/bin/git .*", "^git  ",
]  # fmt: skip
WORDS = [
    "git", "status", "push", "rm", "-rf", "-r", "-f", "--force", "npm", "run", "-s", "x", "-P",
    "''", "-C", "git-lfs", "'git status'", "'a b'", "timeout 5", "env", "/usr/bin/git", "gi", "GIT",
    "/usr/bin/git/x/y", "/usr/bin/git-x", ";",
]  # fmt: skip
LISTS = st.lists(
    st.tuples(st.sampled_from(["allow", "ask", "deny"]), st.sampled_from(PATTERNS)),
    min_size=2,
    max_size=5,
)


@given(LISTS, st.lists(st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join), min_size=20))
def test_no_rule_that_is_said_never_to_match_or_decide_ever_does(
    rules: list[tuple[str, str]], scripts: list[str]
) -> None:
    policy: dict[str, Any] = {"mode": "pattern", "default": "ask", "on_unknown": "ask"}
    for verdict, pattern in rules:
        policy.setdefault(verdict, []).append({"tool": "bash", "command": pattern})
    made = Policy.parse(json.dumps(policy))
    told = {w.rule for w in made.warnings if w.message.startswith(("never ", "never decides"))}
    for script in scripts:
        for item in made.judge("bash", {"command": script}).items:
            assert item.decision.rule not in told


PIECES = st.lists(
    st.sampled_from([r"\.", r"\.\.", "/", "a", "^", "$", ".", "[^/]", "a*", "/+", "|", "(a|/)?"]),
    max_size=6,
).map("".join)
GIVEN = st.lists(st.sampled_from(["/", ".", "..", "a", "//", "\n", "b"]), max_size=8).map("".join)


@given(PIECES, st.lists(GIVEN, min_size=20))
def test_no_path_pattern_that_is_said_never_to_match_ever_does(
    pattern: str, paths: list[str]
) -> None:
    policy = {"mode": "pattern", "deny": [{"tool": "read", "path": pattern}], "default": "allow"}
    made = Policy.parse(json.dumps(policy))
    if [w for w in made.warnings if w.message.startswith("never matches")]:
        for path in paths:
            assert made.decide("read", {"path": f"/{path}"}).rule == "default"


# --- programs that run others


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (r"^python3?\b", "hands out `python`: an interpreter runs any code"),
        (r"^python3 -m pytest\b", "hands out `python3 -m pytest`: an interpreter"),
        ("^bash", "hands out `bash`: an interpreter"),
        (r"^(ls|node)\b", "hands out `node`: an interpreter"),
        (r"^make test\b", "hands out `make test`: it runs what files of the workspace say"),
        ("^npx", "hands out `npx`: it runs what files"),
        (r"^(git (status|push))\b", "hands out `git push`: git runs programs that the hooks"),
        (r"^docker\b", "hands out `docker`: `docker` runs code"),
        (r"^\./run\.sh$", "hands out `./run.sh`: "),
    ],
)
def test_an_allow_that_hands_out_a_program_is_told(command: str, said: str) -> None:
    (message,) = of_rule("allow", tool="bash", command=command)
    assert message.startswith(said)
    assert "say why in the rule's `justification`" in message


@pytest.mark.parametrize(
    "command",
    [
        r"^(git (status|diff|log)|ls|cat|rg)\b",
        r"^git\b",
        ".*",
        r"^[a-z]+\b",
        r"^sed\b",
        r"^sed -n\b",
        "^echo python3",
        r"^find\b",
    ],
)
def test_an_allow_of_what_only_reads_or_names_nothing_hands_nothing_out(command: str) -> None:
    assert of_rule("allow", tool="bash", command=command) == []


def test_whoever_says_why_is_not_told() -> None:
    assert of_rule("allow", tool="bash", command=r"^make\b", justification="builds it") == []


@pytest.mark.parametrize("verdict", ["deny", "ask"])
def test_a_rule_that_does_not_allow_hands_nothing_out(verdict: str) -> None:
    assert of_rule(verdict, tool="bash", command=r"^make\b") == []


def test_each_reason_for_which_a_rule_hands_much_out_is_told_once() -> None:
    messages = of_rule("allow", tool="bash", command=r"^(git (push|commit)|make( test)?|npx)\b")
    assert [message.split(":")[0] for message in messages] == [
        "hands out `git push`",
        "hands out `make`",
    ]


@given(st.sampled_from([*PATTERNS, "^make", r"^(python3|ls)\b", r"^(sh|node|\./x)", r"^n\w*x$"]))
def test_what_is_handed_out_is_allowed(pattern: str) -> None:
    made = Policy.parse(json.dumps({"allow": [{"tool": "bash", "command": pattern}]}))
    for warning in made.warnings:
        if warning.message.startswith("hands out `"):
            sample = warning.message.split("`")[1]
            assert made.decide("bash", {"command": sample}).rule == "allow[0]"
