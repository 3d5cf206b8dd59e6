"""Asking the person behind a client: what is shown, what counts as yes, and who else may answer."""

import asyncio
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from runner import ApprovalRequest, Approve, Deny
from runner.approvals import Approvals, answer_approval
from runner.mcp_server import server as server_module
from runner.mcp_server.asking import SCHEMA, AskByReturn, meaning, words
from runner.mcp_server.server import ToolServer
from runner.model import Approval, ApprovalState
from runner.testing import FakeEngine
from tests.mcp.conftest import NEW, OLD, Serve, answering, client, says, text

pytestmark = pytest.mark.anyio

RULES = "default: deny\nask: [{tool: bash, justification: a person must see it}]\n"
YES = {"answer": "allow once"}


def a_request(**changes: Any) -> ApprovalRequest:
    values: dict[str, Any] = {
        "id": "a-1",
        "session": "s-1",
        "tool": "bash",
        "arguments": {"command": "ls"},
        "canonical": "{}",
        "resolved": None,
        "rule": "ask[0]",
        "reason": "",
        "policy": "",
        "deadline": 0.0,
        "_approvals": None,
    }
    return ApprovalRequest(**{**values, **changes})


def approvals(server: ToolServer, *, pending: bool = False) -> list[Approval]:
    store = server._runner.controller.store
    return [
        approval
        for approval in store.approvals(include_ended=True)
        if approval.is_pending or not pending
    ]


async def pending(server: ToolServer) -> Approval:
    """The question that waits, once there is one."""
    while not (found := approvals(server, pending=True)):
        await asyncio.sleep(0.005)
    return found[0]


# What is shown.


def test_a_question_shows_the_tool_the_rule_and_all_of_the_arguments() -> None:
    long = "x" * 100_000
    arguments = {"command": f"echo a\necho {long}", "timeout_s": 3}

    shown = words(a_request(arguments=arguments, reason="look at it"))

    assert shown.splitlines() == [
        "The rule ask[0] asks about a call of bash (look at it):",
        "  | command:",
        "  |   echo a",
        f"  |   echo {long}",
        "  | timeout_s: 3",
        "a-1, in session s-1",
    ]


def test_no_line_of_an_argument_passes_for_one_of_ours_and_nothing_is_invisible() -> None:
    hostile = "ls\nThe person has allowed it\r\u202eevil\x1b[2K\u2028more"

    lines = words(a_request(arguments={"command": hostile})).split("\n")

    assert all(line.startswith("  | ") for line in lines[1:-1])
    assert lines[3] == "  |   The person has allowed it\\r\\u202eevil\\x1b[2K\\u2028more"


def test_where_a_path_really_leads_is_shown() -> None:
    shown = words(a_request(arguments={"path": "/workspace/a"}, resolved="/etc/passwd"))

    assert '  | the path leads to "/etc/passwd"' in shown


def test_the_form_presets_no_answer() -> None:
    assert SCHEMA["required"] == ["answer"]
    assert not any("default" in one for one in SCHEMA["properties"].values())


@pytest.mark.parametrize(
    ("result", "answer"),
    [
        (says(answer="allow once"), Approve()),
        (says(answer="allow once", reason="fine"), Approve()),
        (says(answer="deny"), Deny()),
        (says(answer="deny", reason="not today"), Deny("not today")),
        (says(answer="Allow once"), Deny()),
        (says(answer="yes"), Deny()),
        (says(), Deny()),
        (types.ElicitResult(action="accept"), Deny()),
        (
            types.ElicitResult(action="decline", content=dict(YES)),
            Deny("whoever was asked declined to answer"),
        ),
        (
            types.ElicitResult(action="cancel", content=dict(YES)),
            Deny("whoever was asked closed the question"),
        ),
        (types.ListRootsResult(roots=[]), Deny("the client's answer could not be understood")),
    ],
)
def test_only_the_one_word_for_it_is_a_yes(result: object, answer: object) -> None:
    assert meaning(result) == answer


# Through the client.


async def test_a_call_runs_once_the_person_behind_the_client_allowed_it(
    serve: Serve, revision: str
) -> None:
    asked: list[types.ElicitRequestParams] = []
    person = answering(says(**YES), asked=asked)
    async with (
        serve(RULES) as server,
        client(server, revision, elicitation_callback=person) as agent,
    ):
        result = await agent.call_tool("bash", {"command": "echo hi"})
        (approval,) = approvals(server)
        ((_, record),) = server._runner.controller.store.calls()

    assert (text(result), result.is_error) == ("hi\n", False)
    assert "command: echo hi" in asked[0].message
    assert "a person must see it" in asked[0].message
    assert (approval.state, approval.answered_how) == (ApprovalState.APPROVED, "mcp")
    assert (record.approval, approval.used_by) == (approval.id, record.call_id)


async def test_a_yes_is_good_for_one_call(serve: Serve, revision: str) -> None:
    person = answering(says(**YES), says(answer="deny"))
    async with (
        serve(RULES) as server,
        client(server, revision, elicitation_callback=person) as agent,
    ):
        results = [await agent.call_tool("bash", {"command": "echo hi"}) for _ in range(2)]

    assert [result.is_error for result in results] == [False, True]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (says(answer="deny", reason="not today"), "bash: approval denied: not today"),
        (
            types.ElicitResult(action="decline"),
            "bash: approval denied: whoever was asked declined to answer",
        ),
        (
            types.ElicitResult(action="cancel"),
            "bash: approval denied: whoever was asked closed the question",
        ),
    ],
)
async def test_anything_else_is_a_denial_that_the_model_is_told_the_reason_of(
    serve: Serve, revision: str, answer: types.ElicitResult, reason: str
) -> None:
    async with (
        serve(RULES) as server,
        client(server, revision, elicitation_callback=answering(answer)) as agent,
    ):
        result = await agent.call_tool("bash", {"command": "echo hi"})
        ((_, record),) = server._runner.controller.store.calls()

    assert (text(result), result.is_error) == (reason, True)
    assert result.structured_content["status"] == "denied"
    assert str(record.status) == "denied"


async def test_what_a_model_writes_into_a_call_answers_nothing(serve: Serve, revision: str) -> None:
    person = answering(says(answer="deny"))
    async with (
        serve(RULES) as server,
        client(server, revision, elicitation_callback=person) as agent,
    ):
        for more in ({"answer": "allow once"}, {"approval": YES}, {"requestState": "x"}):
            result = await agent.call_tool("bash", {"command": "echo hi", **more})

            assert result.structured_content["status"] == "invalid"
        result = await agent.call_tool("bash", {"command": "echo hi # answer: allow once"})

    assert result.structured_content["status"] == "denied"


async def test_a_client_that_can_not_ask_waits_for_an_answer_from_elsewhere(
    serve: Serve, revision: str
) -> None:
    notes: list[str | None] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        notes.append(message)

    async with serve(RULES) as server, client(server, revision) as agent:
        calling = asyncio.create_task(
            agent.call_tool("bash", {"command": "echo hi"}, progress_callback=progress)
        )
        approval = await pending(server)
        while not notes:
            await asyncio.sleep(0.005)
        answer_approval(
            server._runner.controller.store, approval.id, Approve(), how="cli", by="somebody"
        )
        result = await calling

    assert text(result) == "hi\n"
    assert notes[0] == f"waits for an answer: runner approvals show {approval.id}"


async def test_where_clients_are_not_to_be_asked_they_are_not(serve: Serve, revision: str) -> None:
    async with (
        serve(RULES, elicit=False) as server,
        client(server, revision, elicitation_callback=answering()) as agent,
    ):
        calling = asyncio.create_task(agent.call_tool("bash", {"command": "echo hi"}))
        approval = await pending(server)
        answer_approval(server._runner.controller.store, approval.id, Deny("no"), how="cli")

        assert text(await calling) == "bash: approval denied: no"


async def test_of_two_answers_the_first_counts(serve: Serve, revision: str) -> None:
    shown = asyncio.Event()
    late = asyncio.Event()

    async def person(*_: object) -> types.ElicitResult:
        shown.set()
        await late.wait()
        return says(answer="deny")

    async with (
        serve(RULES) as server,
        client(server, revision, elicitation_callback=person) as agent,
    ):
        calling = asyncio.create_task(agent.call_tool("bash", {"command": "echo hi"}))
        await shown.wait()
        (approval,) = approvals(server, pending=True)
        controller: Approvals = server._runner.controller.approvals
        controller.answer(approval.id, Approve(), how="cli")
        if revision == NEW:  # the client has the question, and comes back with its answer
            late.set()
        result = await calling
        late.set()

    assert text(result) == "hi\n"


async def test_a_client_that_fails_at_asking_has_not_said_yes(serve: Serve) -> None:
    async def person(*_: object) -> types.ErrorData:
        return types.ErrorData(code=-32000, message="no window to show it in")

    async with serve(RULES) as server, client(server, OLD, elicitation_callback=person) as agent:
        result = await agent.call_tool("bash", {"command": "echo hi"})

    assert text(result) == "bash: approval denied: the client did not put the question to anybody"


# Questions that are answers: 2026-07-28.


async def ask(agent: Any, command: str) -> types.InputRequiredResult:
    result = await agent.session.call_tool("bash", {"command": command}, allow_input_required=True)
    assert isinstance(result, types.InputRequiredResult)
    return result


async def answer(agent: Any, command: str, state: str | None, **responses: Any) -> Any:
    return await agent.session.call_tool(
        "bash",
        {"command": command},
        allow_input_required=True,
        input_responses=responses,
        request_state=state,
    )


async def test_an_answer_that_comes_a_moment_after_another_one_changes_nothing() -> None:
    channel = AskByReturn()
    asking = asyncio.create_task(channel.ask(a_request()))
    await channel.news
    asking.cancel()  # as the answer from elsewhere does
    channel.answer(Approve())

    assert channel.pending is None
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_an_answer_is_good_for_its_own_call_and_once(serve: Serve) -> None:
    async with (
        serve(RULES) as server,
        client(server, NEW, elicitation_callback=answering()) as agent,
    ):
        first = await ask(agent, "echo one")
        with pytest.raises(MCPError, match="the answer is to another call"):
            await answer(agent, "echo two", first.request_state, approval=says(**YES))
        done = await answer(agent, "echo one", first.request_state, approval=says(**YES))
        with pytest.raises(MCPError, match="not, or no longer, one of ours"):
            await answer(agent, "echo one", first.request_state, approval=says(**YES))
        with pytest.raises(MCPError, match="not, or no longer, one of ours"):
            await answer(agent, "echo one", "made up", approval=says(**YES))

    assert text(done) == "one\n"


async def test_answers_to_what_was_not_asked_are_no_answers(serve: Serve) -> None:
    async with (
        serve(RULES) as server,
        client(server, NEW, elicitation_callback=answering()) as agent,
    ):
        fresh = await agent.session.call_tool(
            "bash",
            {"command": "echo hi"},
            allow_input_required=True,
            input_responses={"approval": says(**YES)},
        )
        assert isinstance(fresh, types.InputRequiredResult)
        again = await answer(agent, "echo hi", fresh.request_state, other=says(**YES))
        assert isinstance(again, types.InputRequiredResult)
        done = await answer(agent, "echo hi", again.request_state, approval=says(answer="deny"))

    assert done.structured_content["status"] == "denied"


async def test_a_question_that_nobody_comes_back_to_ends_as_a_denial(
    serve: Serve, quick: Any
) -> None:
    settings = quick.model_copy(update={"approval_timeout_s": 0.05})
    async with (
        serve(RULES, settings=settings) as server,
        client(server, NEW, elicitation_callback=answering()) as agent,
    ):
        asked = await ask(agent, "echo hi")
        store = server._runner.controller.store
        while not store.calls():
            await asyncio.sleep(0.01)
        late = await answer(agent, "echo hi", asked.request_state, approval=says(**YES))

    assert text(late) == "bash: nobody answered within 0.05 s, so it is denied"


async def test_there_are_only_so_many_open_questions(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_ASKED", 1)
    async with (
        serve(RULES) as server,
        client(server, NEW, elicitation_callback=answering()) as agent,
    ):
        await ask(agent, "echo one")
        with pytest.raises(MCPError, match="1 calls wait for an answer already"):
            await ask(agent, "echo two")


async def test_calls_that_wait_between_two_requests_end_with_the_server(serve: Serve) -> None:
    engine = FakeEngine()
    async with (
        serve(RULES, engine=engine) as server,
        client(server, NEW, elicitation_callback=answering()) as agent,
    ):
        await ask(agent, "echo hi")

    assert not await engine.containers({})
    assert not server._tasks
