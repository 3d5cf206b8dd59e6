"""What a job's values may be."""

from pathlib import Path
from typing import Any

import pytest

from runner.cron.job import MAX_CALLS, FileTarget, WebhookTarget, make_job, target_of
from runner.errors import ConfigurationError
from runner.model import Job


def job(**changes: Any) -> Job:
    values: dict[str, Any] = {
        "name": "nightly",
        "schedule": "0 3 * * *",
        "calls": "make test",
        "policy": "default",
        "now": 5.0,
        **changes,
    }
    return make_job(**values)


def test_a_command_is_a_call_of_bash() -> None:
    made = job(schedule=" 0  3 * * * ")
    assert made.calls == ({"tool": "bash", "arguments": {"command": "make test"}},)
    assert (made.prompt, made.schedule, made.zone) == ("make test", "0 3 * * *", "UTC")
    assert (made.created_at, made.seen_to, made.enabled) == (5.0, 5.0, True)
    assert made.id != job().id


def test_without_more_words_a_job_runs_once_for_missed_times_and_never_twice() -> None:
    made = job()
    assert (made.missed, made.overlap, made.lost) == ("run_once", "skip", "report")
    assert (made.deliver, made.network, made.tools) == ("record", "", "rousseau")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "no name"),
        ({"name": "-x"}, "no name"),
        ({"name": "a b"}, "no name"),
        ({"name": "a\n"}, "no name"),
        ({"name": "a" * 65}, "no name"),
        ({"schedule": "daily"}, "not a schedule"),
        ({"zone": "Nowhere"}, "no time zone"),
        ({"policy": ""}, "needs a policy"),
        ({"calls": []}, "between 1 and"),
        ({"calls": [{"tool": "bash", "arguments": {}}] * (MAX_CALLS + 1)}, "between 1 and"),
        ({"calls": [{"tool": "bash"}]}, "call 1 of the job"),
        ({"calls": [{"tool": "bash", "arguments": "ls"}]}, "call 1 of the job"),
        ({"calls": [{"tool": "bash", "arguments": {}, "x": 1}]}, "call 1 of the job"),
        ({"calls": [{"tool": "bash", "arguments": {"a": float("nan")}}]}, "not JSON"),
        ({"calls": "x" * 2**20}, "longer than"),
        ({"calls": [{"tool": "glob", "arguments": {"pattern": "*"}}]}, "no tool 'glob'"),
        ({"calls": [{"tool": "bash", "arguments": {"cmd": "ls"}}]}, "call 1 of the job: bash: "),
        ({"missed": "sometimes"}, "missed of a job is one of"),
        ({"overlap": "allow"}, "overlap of a job is one of"),
        ({"lost": "again"}, "lost of a job is one of"),
        ({"network": "all"}, "network of a job is one of"),
        ({"tools": "mine"}, "tools of a job is one of"),
        ({"timeout_s": 0}, "timeout_s of a job"),
        ({"run_timeout_s": float("nan")}, "run_timeout_s of a job"),
        ({"run_timeout_s": 1e9}, "run_timeout_s of a job"),
    ],
)
def test_a_value_that_can_not_be_used_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        job(**changes)


@pytest.mark.parametrize(
    ("deliver", "target"),
    [
        ("record", None),
        ("file:/var/log/runs.jsonl", FileTarget(Path("/var/log/runs.jsonl"))),
        ("webhook:https://example.com/a?b", WebhookTarget("https://example.com/a?b", False)),
        ("webhook:http://127.0.0.1:8080/", WebhookTarget("http://127.0.0.1:8080/", True)),
        ("webhook:http://[::1]:8080/", WebhookTarget("http://[::1]:8080/", True)),
        ("webhook:http://localhost/x", WebhookTarget("http://localhost/x", True)),
    ],
)
def test_results_go_to_the_record_a_file_or_a_webhook(deliver: str, target: object) -> None:
    assert target_of(job(deliver=deliver)) == target


@pytest.mark.parametrize(
    ("deliver", "message"),
    [
        ("", "results go to"),
        ("mail:me", "results go to"),
        ("file:", "results go to"),
        ("webhook:", "results go to"),
        ("file:runs.jsonl", "absolute path"),
        ("file:/srv/work/out/../x", "lies in the job's workspace"),
        ("webhook:http://example.com/", "https only"),
        ("webhook:http://127.0.0.1.example.com/", "https only"),
        ("webhook:ftp://localhost/", "https only"),
        ("webhook:https:///x", "write https://HOST/PATH"),
        ("webhook:https://user:word@example.com/", "without a user"),
        ("webhook:https://example.com/#x", "fragment"),
        ("webhook:https://example.com:99999/", "can't be used"),
        ("webhook:https://example.com/a b", "odd characters"),
        ("webhook:https://example.com/\r\nX: y", "odd characters"),
        ("webhook:https://example.com/" + "x" * 3000, "longer"),
        ("webhook:https://[::1/", "can't be used"),
    ],
)
def test_a_target_that_is_not_safe_is_refused(deliver: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        job(deliver=deliver, workspace="/srv/work")


def test_a_file_that_a_link_leads_into_the_workspace_is_refused(tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    (tmp_path / "logs").symlink_to(workspace)
    with pytest.raises(ConfigurationError, match="lies in the job's workspace"):
        job(deliver=f"file:{tmp_path}/logs/runs.jsonl", workspace=str(workspace))


def test_calls_may_be_of_the_extended_set() -> None:
    calls = [{"tool": "glob", "arguments": {"pattern": "*"}}]
    assert job(calls=calls, tools="extended").calls == tuple(calls)
