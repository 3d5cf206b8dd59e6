"""The pydantic-ai toolset, with its real agents on model servers on loopback."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ToolDenied
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from runner import ApprovalQueue, AsyncRunner, AsyncSession, Policy, Status
from runner.errors import ConfigurationError
from runner.integrations.pydantic_ai import SessionToolset
from tests.conftest import make_settings

from .fake_models import FakeModels, Reply, Use, results, use
from .running import run_example

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

POLICY = Policy.parse("""
version: 1
mode: pattern
default: allow
deny:
  - {tool: bash, command: '^git push', justification: "pushing is for people"}
ask:
  - {tool: bash, command: '^make deploy', justification: "somebody has to look first"}
""")


@pytest.fixture(scope="module")
def queue() -> ApprovalQueue:
    return ApprovalQueue()


@pytest.fixture(scope="module")
async def runner(
    docker_daemon: None, tmp_path_factory: pytest.TempPathFactory, queue: ApprovalQueue
) -> AsyncIterator[AsyncRunner]:
    settings = make_settings(tmp_path_factory.mktemp("data"))
    async with AsyncRunner(POLICY, approver=queue, settings=settings, tools="extended") as runner:
        yield runner


@pytest.fixture
async def openai(models: FakeModels) -> AsyncIterator[Model]:
    async with AsyncOpenAI(base_url=models.base_url, api_key="k", max_retries=0) as client:
        yield OpenAIChatModel("fake", provider=OpenAIProvider(openai_client=client))


@pytest.fixture
async def anthropic(models: FakeModels) -> AsyncIterator[Model]:
    async with AsyncAnthropic(base_url=models.root, api_key="k", max_retries=0) as client:
        yield AnthropicModel(
            "claude-sonnet-5-5", provider=AnthropicProvider(anthropic_client=client)
        )


def told(models: FakeModels) -> dict[str, Any]:
    """What the last request to chat completions says of each call."""
    return {
        message["tool_call_id"]: message["content"]
        for message in models.last["messages"]
        if message["role"] == "tool"
    }


async def test_an_agent_on_chat_completions_is_offered_our_schemas_and_shown_our_results(
    session: AsyncSession, models: FakeModels, openai: Model
) -> None:
    models.script(
        use("write", {"path": "/workspace/a.txt", "content": "one\ntwo\n"}),
        Reply(uses=(Use("bash", {"command": "wc -l < a.txt; exit 3"}, "use_2"),)),
        Reply("Two lines."),
    )
    agent = Agent(openai, toolsets=[SessionToolset(session)])

    answer = await agent.run("Count.")

    assert answer.output == "Two lines."
    offered = {
        tool["function"]["name"]: tool["function"] for tool in models.requests[0].body["tools"]
    }
    for definition in session.tools.definitions("openai"):
        ours, theirs = definition["function"], offered.pop(definition["function"]["name"])
        assert theirs["description"] == ours["description"]
        for schema in ours["parameters"]["properties"].values():
            if schema.get("type") == "object":
                schema["properties"] = {}  # which pydantic-ai adds for OpenAI
        assert theirs["parameters"] == ours["parameters"]
    assert offered == {}
    assert told(models)["use_1"] == "wrote 8 bytes to /workspace/a.txt"
    assert json.loads(told(models)["use_2"]) == {"error": "2\nbash: exit status 3"}


async def test_a_denial_is_an_error_with_the_policys_words_and_the_run_goes_on(
    session: AsyncSession, models: FakeModels, anthropic: Model
) -> None:
    models.script(use("bash", {"command": "git push origin"}), Reply("I may not."))
    agent = Agent(anthropic, toolsets=[SessionToolset(session)])

    answer = await agent.run("Push.")

    assert answer.output == "I may not."
    (result,) = results(models.last)
    assert result["is_error"] is True
    assert "pushing is for people" in json.dumps(result["content"])


async def test_input_that_does_not_fit_is_an_error_for_the_model_however_often_it_comes(
    session: AsyncSession, models: FakeModels, anthropic: Model
) -> None:
    models.script(
        use("read", {"file": "/workspace/a.txt"}, "use_1"),
        use("read", {"path": "a.txt"}, "use_2"),
        use("read", {}, "use_3"),
        Reply("I give up."),
    )
    agent = Agent(anthropic, toolsets=[SessionToolset(session)])

    answer = await agent.run("Read.")

    assert answer.output == "I give up."
    (result,) = results(models.last)
    assert result["is_error"] is True
    assert "path is required" in json.dumps(result["content"])


async def test_what_the_policy_asks_goes_to_the_runners_approver_while_the_call_waits(
    session: AsyncSession, models: FakeModels, openai: Model, queue: ApprovalQueue
) -> None:
    command = {"command": "make deploy || echo deployed"}
    models.script(use("bash", command, "use_1"), use("bash", command, "use_2"), Reply("Done."))
    agent = Agent(openai, toolsets=[SessionToolset(session)])

    running = asyncio.create_task(agent.run("Deploy."))
    request = await anext(queue)
    assert request.arguments == command
    request.approve()
    request = await anext(queue)
    request.deny("not on a Friday")
    answer = await running

    assert answer.output == "Done."
    assert "deployed" in told(models)["use_1"]
    assert "not on a Friday" in told(models)["use_2"]


async def test_pydantic_ais_own_approvals_can_be_laid_over_it(
    session: AsyncSession, models: FakeModels, openai: Model
) -> None:
    models.script(
        Reply(
            uses=(
                Use("bash", {"command": "echo ran"}, "use_1"),
                Use("bash", {"command": "echo never"}, "use_2"),
            )
        ),
        Reply("One of two."),
    )
    toolset = SessionToolset[None](session).approval_required(
        lambda context, tool, arguments: not (tool.metadata or {})["read_only"]
    )
    agent = Agent(openai, toolsets=[toolset], output_type=[str, DeferredToolRequests])

    first = await agent.run("Do.")
    assert isinstance(first.output, DeferredToolRequests)
    answers = DeferredToolResults(approvals={"use_1": True, "use_2": ToolDenied("no")})
    second = await agent.run(message_history=first.all_messages(), deferred_tool_results=answers)

    assert second.output == "One of two."
    assert told(models) == {"use_1": "ran\n", "use_2": "no"}


async def test_an_image_goes_to_the_model_as_one(
    session: AsyncSession, models: FakeModels, anthropic: Model
) -> None:
    png = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    await session.upload("/workspace/dot.png", png)
    models.script(use("read", {"path": "/workspace/dot.png"}), Reply("A dot."))
    agent = Agent(anthropic, toolsets=[SessionToolset(session)])

    await agent.run("Look.")

    content = json.dumps(models.last["messages"][-1])
    assert base64.b64encode(png).decode() in content
    assert '"image/png"' in content


async def test_a_streamed_run_calls_tools_as_any_other(
    session: AsyncSession, models: FakeModels, openai: Model
) -> None:
    models.script(use("bash", {"command": "echo streamed"}), Reply("Seen."))
    agent = Agent(openai, toolsets=[SessionToolset(session)])

    async with agent.run_stream("Go.") as run:
        assert await run.get_output() == "Seen."

    assert models.last["stream"] is True
    assert told(models) == {"use_1": "streamed\n"}


async def test_only_the_tools_that_are_named_are_offered(
    session: AsyncSession, models: FakeModels, openai: Model
) -> None:
    models.script(Reply("Nothing to do."))
    agent = Agent(openai, toolsets=[SessionToolset(session, names=["read", "grep"])])

    await agent.run("Go.")

    assert [tool["function"]["name"] for tool in models.last["tools"]] == ["read", "grep"]


async def test_a_tool_that_the_runner_does_not_have_is_refused_at_once(
    session: AsyncSession,
) -> None:
    with pytest.raises(ConfigurationError, match="no tool 'teleport'"):
        SessionToolset(session, names=["teleport"])


async def test_every_call_is_in_the_record(
    session: AsyncSession, models: FakeModels, openai: Model
) -> None:
    models.script(use("bash", {"command": "echo recorded"}), Reply("Done."))
    await Agent(openai, toolsets=[SessionToolset(session)]).run("Go.")

    (record, *_) = session._controller.store.recent_calls(session.id, limit=1)

    assert (record.tool, record.arguments) == ("bash", '{"command":"echo recorded"}')
    assert record.status is Status.OK


async def test_the_example_asks_the_person_at_the_terminal(
    models: FakeModels, tmp_path: Path
) -> None:
    haiku = {"path": "/workspace/haiku.txt", "content": "old pond\n"}
    models.script(
        use("write", haiku, "use_1"),
        use("write", haiku, "use_2"),
        use("bash", {"command": "cat haiku.txt"}, "use_3"),
        Reply("Written."),
    )

    shown = await asyncio.to_thread(
        run_example,
        "pydantic_ai_agent.py",
        "Write.",
        data_dir=tmp_path / "data",
        answers="y\nn\n",
        OPENAI_BASE_URL=models.base_url,
        OPENAI_API_KEY="k",
    )

    assert shown.count("run it? [y/N]") == 2
    assert shown.endswith("Written.\n")
    assert told(models)["use_1"] == "wrote 9 bytes to /workspace/haiku.txt"
    assert "the person said no" in told(models)["use_2"]
    assert told(models)["use_3"] == "old pond\n"
