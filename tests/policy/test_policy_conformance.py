"""Every recorded verdict of rousseau-agent's approver is ours too."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.errors import PolicyError
from runner.policy import Policy

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "conformance" / "data" / "approvals.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]
VERDICTS = [row for row in ROWS if not row["id"].startswith("bad-regex")]
BAD_REGEX = [row for row in ROWS if row["id"].startswith("bad-regex")]


def bare(policy: dict[str, Any]) -> str:
    return yaml.safe_dump(policy, allow_unicode=True, sort_keys=False)


def nested(policy: dict[str, Any]) -> str:
    config = {
        "provider": "anthropic",
        "agent": {"system_prompt": "be brief", "approver": policy, "max_iterations": 8},
        "log": {"level": "info"},
    }
    return yaml.safe_dump(config, allow_unicode=True, sort_keys=False)


def as_json(policy: dict[str, Any]) -> str:
    return json.dumps(policy)


@pytest.mark.parametrize("form", [bare, nested, as_json])
@pytest.mark.parametrize("row", VERDICTS, ids=[row["id"] for row in VERDICTS])
def test_verdict_and_reason_are_those_of_the_reference(row: dict[str, Any], form: Any) -> None:
    policy = Policy.parse(form(row["policy"]))

    decision = policy.decide(row["tool"], json.loads(row["input"]))

    assert {"decision": decision.verdict, "reason": decision.reason} == row["expect"]


@pytest.mark.parametrize("row", BAD_REGEX, ids=[row["id"] for row in BAD_REGEX])
def test_a_bad_regex_is_an_error_at_load(row: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match=r"deny\[0\]: `match` is not a regular expression"):
        Policy.parse(bare(row["policy"]))


def test_both_kinds_of_rows_are_there() -> None:
    assert len(VERDICTS) > 40
    assert BAD_REGEX
