"""The policy reference says what is so."""

import re
from pathlib import Path

import pytest

from runner.errors import PolicyError
from runner.policy import Policy
from runner.policy.matching import Pattern
from runner.policy.shapes import FORMS

REFERENCE = (Path(__file__).parents[2] / "docs" / "policy.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", REFERENCE, re.DOTALL)
SPELLINGS = re.findall(
    r"^\| ([^|]+) \| `'([^|`]+)'` \| `'([^|`]+)'`(.*) \|$", REFERENCE, re.MULTILINE
)


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_loads_without_a_warning(text: str) -> None:
    assert Policy.parse(text).warnings == ()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5
    assert len(SPELLINGS) >= 5


@pytest.mark.parametrize("tool", list(FORMS))
def test_the_input_of_every_tool_is_shown(tool: str) -> None:
    assert f"| `{tool}` | `{FORMS[tool].example}`" in REFERENCE


@pytest.mark.parametrize(
    ("meant", "example"),
    [
        ("a command that starts with `git`", '{"command":"git status"}'),
        ("the command `ls` and nothing else", '{"command":"ls"}'),
        ("a path below `/workspace` (as written)", '{"path":"/workspace/a"}'),
        ("a quote in a command", '{"command":"echo \\"a\\""}'),
        ("a line feed in a command", '{"command":"a\\nb"}'),
    ],
)
def test_the_right_spelling_matches_and_the_wrong_one_does_not(meant: str, example: str) -> None:
    right, wrong, but = next(row[1:] for row in SPELLINGS if row[0] == meant)
    assert Pattern.compile(right).found_in(example.encode())
    assert Pattern.compile(wrong).found_in(example.encode()) is ("in every call" in but)


@pytest.mark.parametrize(
    "text",
    [
        "mode: pattern\nallow: []\n\n\ndeny:\n  - {tool: bash}\n  - {match: '['}\n",
        "mode: pattern\n\ndeny:\n  - {tool: bash, comand: rm}\n",
        "mode: pattern\ndeny:\n  - {match: no}\n",
    ],
)
def test_the_errors_shown_are_the_errors_raised(text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        Policy.parse(text, "policy.yaml")
    assert f"\n{caught.value}\n" in REFERENCE


def test_the_warning_shown_is_the_one_given() -> None:
    rules = "".join(f"  - {{tool: bash, match: '{match}'}}\n" for match in ("a", "b", "^git\\b"))
    (warning,) = Policy.parse(f"mode: pattern\nallow:\n{rules}").warnings
    assert str(warning) in REFERENCE


def test_every_shipped_policy_is_listed() -> None:
    for name in Policy.shipped():
        assert f"| `{name}` |" in REFERENCE
