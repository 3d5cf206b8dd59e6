"""The agent loop of `examples/embed_agent.py`, against a model server on loopback."""

import json
from pathlib import Path

import pytest

from runner.tools import default_registry

from .fake_models import FakeModels, Reply, Use, use
from .running import EXAMPLES, run_example

pytestmark = pytest.mark.docker


def run(models: FakeModels, data_dir: Path, *, answers: str) -> str:
    return run_example(
        "embed_agent.py",
        "Write a greeting.",
        data_dir=data_dir,
        answers=answers,
        OPENAI_BASE_URL=models.base_url,
        OPENAI_API_KEY="key-of-the-test",
    )


def test_the_example_is_shorter_than_a_hundred_lines() -> None:
    assert len((EXAMPLES / "embed_agent.py").read_text().splitlines()) < 100


def test_the_agent_offers_our_tools_asks_the_person_obeys_the_policy_and_answers(
    models: FakeModels, tmp_path: Path
) -> None:
    first = {"path": "/workspace/hello", "content": "hello\n"}
    second = {"path": "/workspace/other", "content": "x"}
    models.script(
        use("write", first),
        Reply(
            uses=(
                Use("write", second, "use_2"),
                Use("bash", {"command": "cat hello; ls"}, "use_3"),
                Use("bash", {"command": "git push origin"}, "use_4"),
                Use("bash", '{"command": ', "use_5"),
            )
        ),
        Reply("It says hello."),
    )

    shown = run(models, tmp_path / "data", answers="y\nno\n")

    assert shown.endswith("It says hello.\n")
    assert "? write " in shown
    assert models.left == 0
    request = models.requests[0]
    assert request.headers["Authorization"] == "Bearer key-of-the-test"
    assert request.body["tools"] == default_registry().definitions("openai")
    told = {
        message["tool_call_id"]: message["content"]
        for message in models.last["messages"]
        if message["role"] == "tool"
    }
    assert told["use_1"] == "wrote 6 bytes to /workspace/hello"
    assert told["use_2"] == "write: approval denied: the person at the terminal said no"
    assert told["use_3"] == "hello\nhello\n"
    assert "pushing is for people" in told["use_4"]
    assert told["use_5"].startswith("bash: ")
    assert json.dumps(second) in shown, "the person is shown the whole of it"
