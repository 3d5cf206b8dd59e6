"""A policy made of recorded calls: it loads, it is narrow, and what is doubtful is a comment."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import ConfigurationError
from runner.model import Record, Status, Verdict
from runner.policy import Policy
from runner.policy.starting import MAX_EXAMPLES, MAX_RULES, covering, starting_policy


def a_call(tool: str, verdict: Verdict = Verdict.ALLOW, **arguments: Any) -> Record:
    return Record(
        call_id="c-1",
        session_id="s-1",
        tool=tool,
        arguments=json.dumps(arguments),
        verdict=verdict,
        rule="allow[0]",
        reason="",
        policy="",
        status=Status.OK,
        exit_code=None,
        output="",
        error=None,
        started_at=0.0,
        duration_s=0.0,
        timeout_s=60.0,
    )


def of(*calls: Record) -> tuple[str, Policy]:
    """The text that these calls make, and the policy that it is."""
    text = starting_policy(calls, "session s-1")
    return text, Policy.parse(text)


def rules(text: str) -> list[dict[str, Any]]:
    """The rules that are in force, as they are written."""
    return yaml.safe_load(text)["allow"] or []


def bash(*commands: str) -> list[Record]:
    return [a_call("bash", command=command) for command in commands]


def test_a_command_gets_a_rule_for_its_program_and_for_git_its_subcommand() -> None:
    text, policy = of(*bash("git status -s", "git log --oneline | head -5", "ls -l src"))
    assert rules(text) == [
        {"tool": "bash", "command": r"^git log\b"},
        {"tool": "bash", "command": r"^git status\b"},
        {"tool": "bash", "command": r"^head\b"},
        {"tool": "bash", "command": r"^ls\b"},
    ]
    assert policy.decide("bash", {"command": "git status"}).verdict is Verdict.ALLOW
    assert policy.decide("bash", {"command": "git diff"}).verdict is Verdict.DENY
    assert policy.decide("bash", {"command": "ls; git push"}).verdict is Verdict.DENY


def test_the_rule_for_the_most_calls_comes_first() -> None:
    text, _ = of(*bash("cat a", "ls", "ls -l", "ls src"))
    assert [rule["command"] for rule in rules(text)] == [r"^ls\b", r"^cat\b"]


def test_the_calls_that_it_is_made_of_prove_it() -> None:
    text, policy = of(*bash("git status -s", "git status -s"), a_call("read", path="/workspace/a"))
    assert [(example.tool, example.verdict) for example in policy.examples] == [
        ("bash", Verdict.ALLOW),
        ("read", Verdict.ALLOW),
    ]
    assert "default: deny" in text


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        ("python3 -m pytest -q", r"'^python3 -m pytest\b'"),
        ("python3 tools/x.py a", r"'^python3 tools/x\.py\b'"),
        ("make test", r"'^make test\b'"),
        ("git push origin main", r"'^git push\b'"),
        ("sed -i s/a/b/ f", r"'^sed -i\b'"),
        ("./run.sh fast", r"'^\./run\.sh fast\b'"),
    ],
)
def test_what_does_more_than_read_is_left_to_a_person_with_the_rule_that_would_do(
    command: str, rule: str
) -> None:
    text, policy = of(*bash("ls", command))
    (line,) = [line for line in text.splitlines() if rule in line]
    assert line.lstrip().startswith("# - {tool: bash, command: ")
    assert policy.decide("bash", {"command": command}).verdict is Verdict.DENY
    taken = text.replace("  # - {", "  - {")
    assert Policy.parse(taken).decide("bash", {"command": command}).verdict is Verdict.ALLOW


def test_a_script_that_nobody_can_tell_is_only_told() -> None:
    text, policy = of(*bash("ls", "cat $(id)"))
    assert "# No rule can allow a script with '$(id)'" in text
    assert len(rules(text)) == 1
    assert policy.decide("bash", {"command": "cat x"}).verdict is Verdict.DENY


def test_a_wrapper_is_not_what_is_allowed() -> None:
    text, policy = of(*bash("timeout 5 ls -l"))
    assert [rule["command"] for rule in rules(text)] == [r"^ls\b"]
    assert policy.decide("bash", {"command": "timeout 5 ls -l"}).verdict is Verdict.ALLOW


def test_files_that_are_read_and_those_that_are_changed_get_rules_of_their_own() -> None:
    text, policy = of(
        a_call("read", path="/workspace/src/a.py"),
        a_call("grep", pattern="x", path="/workspace/src/lib"),
        a_call("edit", path="/workspace/README.md", old_string="a", new_string="b"),
        *bash("ls > build/log"),
    )
    assert rules(text) == [
        {"tool": "bash", "command": r"^ls\b"},
        {"tool": "bash", "redirect": "/workspace/build/log"},
        {"tool": ["read", "grep"], "glob": "/workspace/src/**"},
        {"tool": ["write", "edit"], "glob": "/workspace/README.md"},
    ]
    write = {"path": "/workspace/src/a.py", "content": ""}
    assert policy.decide("write", write).verdict is Verdict.DENY


def test_a_file_outside_or_one_that_runs_code_is_left_to_a_person() -> None:
    text, policy = of(
        a_call("read", path="/workspace/a"),
        a_call("read", path="/etc/passwd"),
        a_call("write", path="/workspace/.envrc", content="x"),
        *bash("ls > .git/hooks/post-commit"),
    )
    assert len(rules(text)) == 2
    assert "# - {tool: [read, grep], glob: '/etc/passwd'}  # outside of the workspace" in text
    for glob in ("/workspace/.envrc", "/workspace/.git/hooks/post-commit"):
        (line,) = [
            line for line in text.splitlines() if f"'{glob}'}}" in line and "is:" not in line
        ]
        assert "# runs code later" in line
    assert policy.decide("read", {"path": "/etc/passwd"}).verdict is Verdict.DENY


def test_what_a_file_got_is_not_written_down() -> None:
    text, _ = of(a_call("write", path="/workspace/a", content="a secret"))
    assert "secret" not in text


def test_a_tool_of_ones_own_is_left_to_a_person() -> None:
    text, _ = of(*bash("ls"), a_call("http_get", url="https://example.com"))
    assert "# - {tool: 'http_get'}  # any input" in text


def test_calls_that_did_not_run_teach_nothing() -> None:
    text, _ = of(*bash("ls"), a_call("bash", Verdict.DENY, command="curl x"))
    assert "curl" not in text


@pytest.mark.parametrize("calls", [[], [a_call("bash", Verdict.DENY, command="ls")]])
def test_without_a_call_that_ran_there_is_nothing_to_start_from(calls: list[Record]) -> None:
    with pytest.raises(ConfigurationError, match="no recorded call of session s-1 ran"):
        starting_policy(calls, "session s-1")


def test_a_long_session_makes_a_file_that_can_be_loaded() -> None:
    programs = [f"prog{number} x" for number in range(MAX_RULES + 50)]
    text, policy = of(*bash(*programs), *bash("ls " + "x" * 1000))
    assert len(policy.rules) == MAX_RULES
    assert len(policy.examples) == MAX_EXAMPLES
    assert "51 more, for rarer calls, are left out" in text


@pytest.mark.parametrize(
    ("paths", "globs"),
    [
        (["/workspace/a"], {"/workspace/a"}),
        (["/workspace/a", "/workspace/b"], {"/workspace/a", "/workspace/b"}),
        (["/workspace/s/a", "/workspace/s/b", "/workspace/c"], {"/workspace/s/**", "/workspace/c"}),
        (["/workspace/s/a", "/workspace/s/l/b"], {"/workspace/s/**"}),
        (["/workspace/s", "/workspace/s/a"], {"/workspace/s/**"}),
        (["/workspace", "/workspace/s/a"], {"/workspace", "/workspace/s/a"}),
        (
            ["/workspace/s/x/a", "/workspace/s/x/b", "/workspace/s/y/c"],
            {"/workspace/s/x/**", "/workspace/s/y/c"},
        ),
        (
            ["/workspace/s/x/a", "/workspace/s/x/b", "/workspace/s/y/c", "/workspace/s/d"],
            {"/workspace/s/**"},
        ),
        (["/etc/passwd", "/usr/x"], {"/etc/passwd", "/usr/x"}),
        (["/workspace/a[1]*?{x}\\"], {"/workspace/a\\[1]\\*\\?\\{x\\}\\\\"}),
        (["/"], {"/**"}),
    ],
)
def test_several_paths_get_the_smallest_directory_that_holds_them(
    paths: list[str], globs: set[str]
) -> None:
    assert covering(dict.fromkeys(paths, 1)).keys() == globs
    assert sum(covering(dict.fromkeys(paths, 1)).values()) == len(paths)


NAMES = st.sampled_from(
    ["a", "b", ".git", "config", "*", "[", "{x}", "é", "a b", "'", "\\", "..", ""]
)
PATHS = st.lists(NAMES, max_size=5).map(lambda names: "/workspace/" + "/".join(names))
WORDS = [
    "git", "status", "ls", "-l", "make", "é", "'a b'", "$x", ";", "|", ">", "a/b", "\n", "sed",
    "-i", "./x", "timeout 5", "sh -c 'ls'", "#", "a'b", "xargs", "[", "g++", "\\", "\t", '"',
]  # fmt: skip
SCRIPTS = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join) | st.text(max_size=10)
CALLS = st.one_of(
    SCRIPTS.map(lambda script: a_call("bash", command=script)),
    PATHS.map(lambda path: a_call("read", path=path)),
    PATHS.map(lambda path: a_call("write", path=path, content="x")),
    st.text(max_size=5).map(lambda name: a_call(name, url="x")),
)


@given(st.lists(CALLS, min_size=1, max_size=8))
def test_whatever_was_recorded_the_file_loads_and_is_proved_by_its_examples(
    calls: list[Record],
) -> None:
    text, policy = of(*calls)
    assert all(example.verdict is Verdict.ALLOW for example in policy.examples)
    assert policy.default.verdict is Verdict.DENY
    assert not [w for w in policy.warnings if "hands out" in w.message]
    assert set(text) <= {chr(code) for code in range(32, 127)} | {"\n"}


def test_a_word_of_a_script_does_not_get_out_of_its_comment() -> None:
    text, policy = of(*bash("ls", "git 'a\nallow: [{}]'", "cat $(x\nallow: [{}])"))
    assert not [line for line in text.splitlines() if line.startswith("allow: [")]
    assert policy.decide("read", {"path": "/x"}).verdict is Verdict.DENY
