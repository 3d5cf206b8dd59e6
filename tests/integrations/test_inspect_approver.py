"""The approver for Inspect: what a policy of the runner says about calls of Inspect's tools."""

from pathlib import Path
from typing import Any

import pytest
from inspect_ai.approval import Approval, ApprovalPolicy
from inspect_ai.approval._policy import approval_policies_from_config, policy_approver
from inspect_ai.tool import ToolCall, ToolCallView

from runner import PolicyError
from runner.integrations.inspect import rousseau
from runner.integrations.inspect.approver import translate

pytestmark = pytest.mark.anyio

POLICY = """
mode: pattern
default: deny
reason: "not in this evaluation"
allow:
  - {tool: bash, command: '^(ls|cat|python3)\\b'}
  - {tool: [read, list, grep]}
  - {tool: [write, edit], glob: '/workspace/src/**'}
  - {tool: submit}
ask:
  - {tool: bash, command: '^git push\\b'}
deny:
  - {tool: bash, match: 'os\\.system'}
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    return file


async def asked(policy: Path, function: str, **arguments: Any) -> Approval:
    call = ToolCall(id="1", function=function, arguments=arguments)
    return await rousseau(policy)("", call, ToolCallView(), [])


@pytest.mark.parametrize(
    ("function", "arguments", "decision"),
    [
        ("bash", {"command": "ls -la"}, "approve"),
        ("bash", {"cmd": "ls -la"}, "approve"),
        ("bash", {"command": "ls; rm -rf /"}, "reject"),
        ("bash", {"command": "git push origin main"}, "escalate"),
        ("python", {"code": "print(1)"}, "approve"),
        ("python", {"code": "import os; os.system('id')"}, "reject"),
        ("text_editor", {"command": "view", "path": "/etc/hosts"}, "approve"),
        ("text_editor", {"command": "create", "path": "src/a", "file_text": ""}, "approve"),
        ("text_editor", {"command": "create", "path": "/workspace/b"}, "reject"),
        ("text_editor", {"command": "str_replace", "path": "src/a", "old_str": "a"}, "approve"),
        ("text_editor", {"command": "str_replace", "path": "src/../b"}, "reject"),
        ("text_editor", {"command": "insert", "path": "src/a", "insert_line": 1}, "approve"),
        ("text_editor", {"command": "undo_edit", "path": "b"}, "reject"),
        ("text_editor", {"command": "format", "path": "src/a"}, "reject"),
        ("read_file", {"file_path": "a"}, "approve"),
        ("list_files", {}, "approve"),
        ("grep", {"pattern": "a"}, "approve"),
        ("submit", {"answer": "42"}, "approve"),
        ("web_browser_go", {"url": "https://example.org"}, "reject"),
        ("bash", {}, "reject"),
        ("text_editor", {"command": "view"}, "reject"),
    ],
)
async def test_a_call_is_decided_as_the_policy_says_of_the_runners_own(
    policy: Path, function: str, arguments: dict[str, Any], decision: str
) -> None:
    assert (await asked(policy, function, **arguments)).decision == decision


async def test_the_answer_has_the_reason_and_the_rule(policy: Path) -> None:
    approval = await asked(policy, "python", code="os.system('id')")

    assert approval.explanation == "not in this evaluation"
    assert approval.metadata == {"tool": "bash", "rule": "deny[0]"}


def test_python_is_shown_to_the_policy_as_inspect_runs_it() -> None:
    tool, arguments = translate("python", {"code": "print(1)"})

    assert (tool, arguments) == ("bash", {"command": "python3 -", "stdin": "print(1)"})


async def test_a_policy_that_is_changed_holds_for_the_next_call(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.policy.source.LOOK_EVERY_S", 0.0)
    approve = rousseau(policy)
    call = ToolCall(id="1", function="bash", arguments={"command": "ls"})
    assert (await approve("", call, ToolCallView(), [])).decision == "approve"

    policy.write_text("mode: deny_all")

    assert (await approve("", call, ToolCallView(), [])).decision == "reject"


def test_a_policy_that_is_not_there_is_an_error_at_once() -> None:
    with pytest.raises(PolicyError):
        rousseau("no-such-policy")


async def test_inspect_finds_it_by_name_and_asks_the_next_one_where_it_escalates(
    policy: Path, tmp_path: Path
) -> None:
    config = tmp_path / "approval.yaml"
    config.write_text(
        f"""
approvers:
  - {{name: rousseau, tools: "*", policy: {policy}}}
  - {{name: auto, tools: "bash*", decision: approve}}
"""
    )
    policies = approval_policies_from_config(str(config))
    assert all(isinstance(one, ApprovalPolicy) for one in policies)
    approve = policy_approver(policies)
    push = ToolCall(id="1", function="bash", arguments={"command": "git push"})
    remove = ToolCall(id="2", function="bash", arguments={"command": "rm -rf /"})

    assert (await approve("", push, ToolCallView(), [])).decision == "approve"
    assert (await approve("", remove, ToolCallView(), [])).decision == "reject"
