"""The policies that come with the runner do what their cases say."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from runner.assets import asset_dir
from runner.errors import PolicyError
from runner.model import Verdict
from runner.policy import Policy

NAMES = Policy.shipped()


def cases(name: str) -> list[dict[str, Any]]:
    text = (asset_dir("policies") / f"{name}.cases.yaml").read_text(encoding="utf-8")
    loaded = yaml.safe_load(text)
    assert isinstance(loaded, list)
    return loaded


def every_case() -> Iterator[Any]:
    for name in NAMES:
        for case in cases(name):
            yield pytest.param(name, case, id=f"{name}: {case['tool']} {case['input']}")


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
def test_a_shipped_policy_decides_as_its_cases_say(name: str, case: dict[str, Any]) -> None:
    decision = Policy.named(name).decide(case["tool"], case["input"])
    assert decision.verdict == case["is"]
    if decision.verdict is Verdict.DENY:
        assert name in decision.reason


@pytest.mark.parametrize("name", [name for name in NAMES if name != "deny-all"])
def test_the_cases_prove_both_sides(name: str) -> None:
    assert {case["is"] for case in cases(name)} == {"allow", "deny"}


def test_every_built_in_tool_is_in_every_policys_cases() -> None:
    for name in NAMES:
        assert {"read", "write", "edit", "grep", "bash"} <= {case["tool"] for case in cases(name)}


@pytest.mark.parametrize(
    "name", ["nope", "", "default.cases", "../policies/default", "default.yaml"]
)
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(PolicyError, match="default"):
        Policy.named(name)
