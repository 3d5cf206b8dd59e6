"""The policies that come with the runner do what their cases say."""

import functools
from collections.abc import Iterator
from typing import Any

import pytest

from runner.assets import asset_dir
from runner.errors import PolicyError
from runner.model import Decision, Verdict
from runner.policy import Policy
from runner.policy.document import ExampleText, read, read_cases

NAMES = Policy.shipped()
ASK = ("developer", "on-call", "production", "staging")
INCLUDE = tuple(name for name in NAMES if name not in ("default", "deny-all", "read-only"))
"""Those that refuse what `universal` refuses."""


def cases(name: str) -> tuple[ExampleText, ...]:
    path = asset_dir("policies") / f"{name}.cases.yaml"
    return read_cases(path.read_text(encoding="utf-8"), str(path))


@functools.cache
def shipped(name: str) -> Policy:
    """Loading one compiles a hundred patterns."""
    return Policy.named(name)


def decide(name: str, case: ExampleText) -> Decision:
    return shipped(name).decide(case.tool, case.arguments, resolved=case.resolved)


def every_case() -> Iterator[Any]:
    for name in NAMES:
        for case in cases(name):
            yield pytest.param(name, case, id=f"{name}: {case}")


def test_the_default_policy_is_shipped_and_no_cases_file_passes_for_one() -> None:
    assert "default" in NAMES
    assert not [name for name in NAMES if "cases" in name]
    assert list(NAMES) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_policy_loads_by_name_without_a_warning(name: str) -> None:
    policy = Policy.named(name)
    assert policy.name == name
    assert policy.warnings == ()
    assert policy.digest == Policy.load(asset_dir("policies") / f"{name}.yaml").digest


@pytest.mark.parametrize(("name", "case"), list(every_case()))
def test_a_shipped_policy_decides_as_its_cases_say(name: str, case: ExampleText) -> None:
    decision = decide(name, case)
    assert decision.verdict == case.verdict, decision
    if decision.verdict is Verdict.DENY:
        # A rule that was included speaks for the policy that it is from.
        part, is_included, _ = (decision.rule or "").partition(":")
        assert f"the {part if is_included else name} policy" in decision.reason


@pytest.mark.parametrize("name", [name for name in NAMES if name != "deny-all"])
def test_the_cases_prove_every_side(name: str) -> None:
    sides = {Verdict.ALLOW, Verdict.DENY} | ({Verdict.ASK} if name in ASK else set())
    assert {case.verdict for case in cases(name)} == sides
    assert len(cases(name)) >= 15


def test_every_built_in_tool_is_in_every_policys_cases() -> None:
    for name in NAMES:
        assert {"read", "write", "edit", "grep", "bash"} <= {
            case.tool.lower() for case in cases(name)
        }


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_policy_that_protects_nothing_says_why_not(name: str) -> None:
    """`deny-all` has nothing to protect; in all others the usual files are."""
    decision = shipped(name).decide("write", {"path": "/workspace/.git/hooks/x", "content": ""})
    assert decision.verdict is Verdict.DENY
    assert decision.rule == ("mode" if name == "deny-all" else "protect")


@pytest.mark.parametrize("name", INCLUDE)
def test_what_a_rule_of_universal_refuses_every_policy_for_a_role_refuses(name: str) -> None:
    refused = [case for case in cases("universal") if _refused_by_a_rule(case)]
    assert len(refused) > 30
    for case in refused:
        assert decide(name, case).verdict is Verdict.DENY, case


def _refused_by_a_rule(case: ExampleText) -> bool:
    """Not since nobody can tell what it does: that is for each policy to decide."""
    return (decide("universal", case).rule or "").startswith(("deny[", "protect"))


def test_each_file_says_at_its_head_for_whom_it_is() -> None:
    for name in NAMES:
        text = (asset_dir("policies") / f"{name}.yaml").read_text(encoding="utf-8")
        assert text.startswith("# "), name
        assert read(text, name).version == 1, name


@pytest.mark.parametrize(
    "name", ["nope", "", "default.cases", "../policies/default", "default.yaml"]
)
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(PolicyError, match="default"):
        Policy.named(name)
