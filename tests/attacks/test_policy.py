"""What a policy decides about scripts: attacks are refused, their harmless look-alikes run.

Each row goes the way of a call: the tool is looked up, its input decoded, the policy asked.
"""

import pytest

from runner.model import Verdict
from runner.policy import Policy
from runner.tools import InvalidInput, decode, default_registry
from tests.attacks.corpus import Row, rows

REFUSED = [row for row in rows(["policy-bypass"]) if row.verdict == "deny"]
ALLOWED = [row for row in rows(["policy-bypass"]) if row.verdict == "allow"]
INVALID = [row for row in rows(["policy-bypass"]) if row.verdict == "error"]
ROWS = {row.id for row in (*REFUSED, *ALLOWED, *INVALID)}


def verdict(row: Row, *, without_rules: bool = False) -> Verdict:
    """What the row's policy says, or one without rules.

    Raises:
        InvalidInput: The call is refused before any policy is asked.
    """
    assert row.policy is not None
    tool = default_registry().get(row.tool)
    if tool is None:
        raise InvalidInput(f"unknown tool: {row.tool}")
    decoded = decode(tool, row.raw)
    policy = Policy.parse("mode: allow_all" if without_rules else row.policy)
    return policy.decide(tool.name, decoded.arguments, decoded.canonical).verdict


def name(row: Row) -> str:
    return row.id


@pytest.mark.parametrize("row", REFUSED, ids=name)
def test_an_attack_is_refused(row: Row) -> None:
    assert verdict(row) is Verdict.DENY


@pytest.mark.parametrize("row", ALLOWED, ids=name)
def test_what_only_looks_like_one_runs(row: Row) -> None:
    assert verdict(row) is Verdict.ALLOW


@pytest.mark.parametrize("row", INVALID, ids=name)
def test_what_is_no_call_is_an_error_whatever_the_policy(row: Row) -> None:
    with pytest.raises(InvalidInput):
        verdict(row)


@pytest.mark.parametrize("row", REFUSED, ids=name)
def test_without_rules_everything_runs(row: Row) -> None:
    assert verdict(row, without_rules=True) is Verdict.ALLOW
