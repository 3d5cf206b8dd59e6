"""Asking a person: who may answer, once, until when, and what an answer is good for."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner import (
    Answer,
    Approval,
    ApprovalEnded,
    ApprovalNotFound,
    ApprovalQueue,
    ApprovalRequest,
    ApprovalState,
    Approve,
    ApprovePattern,
    AsyncRunner,
    AsyncSession,
    ConfigurationError,
    Deny,
    Outcome,
    Policy,
    PolicyError,
    Runner,
    SessionEnded,
    Settings,
    Status,
    StoreError,
    Tool,
    ToolContext,
    ToolResult,
    Verdict,
)
from runner.app import build, open_store
from runner.approvals import (
    Approvals,
    Approver,
    Question,
    answer_approval,
    preview_pattern,
    this_user,
)
from runner.audit import APPROVAL_EVENT
from runner.controller import Controller
from runner.model import APPROVAL_TRANSITIONS, SessionState
from runner.policy.grants import Grant, exact_rule
from runner.sessions import Lease, SessionOptions
from runner.store import AuditEvent, Store
from runner.testing import FakeEngine
from runner.tools import ToolInput
from tests.conftest import make_settings
from tests.host import leftovers, process, wait_until
from tests.test_store import NOW, Clock, denied, record, session

pytestmark = pytest.mark.anyio

RULES = """
default: deny
allow:
  - {tool: bash, match: 'echo'}
ask:
  - {tool: bash, match: 'push'}
  - {tool: write}
deny:
  - {tool: bash, match: 'force'}
"""
POLICY = Policy.parse(RULES)
LAST_S = 600.0


def approval(id_: str = "a-1", **changes: Any) -> Approval:
    arguments = changes.get("arguments", '{"command":"echo push"}')
    value = Approval(
        id=id_,
        session_id="s1",
        state=ApprovalState.PENDING,
        tool="bash",
        arguments=arguments,
        resolved=None,
        hash=f"hash of {arguments}",
        policy=POLICY.digest,
        rule="ask[0]",
        reason="",
        asked_at=NOW,
        expires_at=NOW + LAST_S,
    )
    return replace(value, **changes)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    with Store.open(tmp_path / "data" / "store.db", clock=clock) as store:
        store.add_session(session())
        yield store
        assert store.verify() > 0


def events(store: Store) -> list[str]:
    """The events of approvals in the audit, without what they have in common."""
    rows = (row.event for row in store.audit_rows())
    return [event.removeprefix("approval.") for event in rows if event.startswith("approval.")]


# States.


def ended_as(store: Store, state: ApprovalState) -> Approval:
    asked = store.ask_approval(approval(f"a-{state}"))
    if state is ApprovalState.PENDING:
        return asked
    return store.end_approval(asked.id, state, by="me", how="cli")


TRANSITIONS = [
    (before, after, before is ApprovalState.PENDING and after is not ApprovalState.PENDING)
    for before in ApprovalState
    for after in ApprovalState
]


@pytest.mark.parametrize(("before", "after", "allowed"), TRANSITIONS)
def test_an_approval_ends_once_and_stays_as_it_ended(
    store: Store, before: ApprovalState, after: ApprovalState, allowed: bool
) -> None:
    id_ = ended_as(store, before).id
    told = events(store)
    if allowed:
        assert store.end_approval(id_, after, by="you", how="queue").state is after
        assert events(store) == [*told, after]
    else:
        with pytest.raises(ApprovalEnded, match=id_):
            store.end_approval(id_, after, by="you", how="queue")
        found = store.approval(id_)
        assert found is not None
        assert found.state is before
        assert events(store) == told


def test_every_state_has_its_transitions_and_its_event() -> None:
    assert set(APPROVAL_TRANSITIONS) == set(APPROVAL_EVENT) == set(ApprovalState)
    assert len(set(APPROVAL_EVENT.values())) == len(ApprovalState)


def test_triggers_keep_an_ended_approval_as_it_is(store: Store) -> None:
    id_ = ended_as(store, ApprovalState.APPROVED).id
    assert store.use_approval(id_, "c-1")
    for change in ("state = 'pending'", "used_by = ''"):
        with pytest.raises(StoreError, match="ends once"), store._db.writing:
            store._db.execute(f"UPDATE approvals SET {change}")


def test_a_question_and_its_answer_are_read_back(store: Store, clock: Clock) -> None:
    asked = approval(arguments="é" * 100_000, resolved="/x", reason="look twice")
    assert store.ask_approval(asked) == asked
    assert store.approvals() == [asked]
    assert store.pending_approvals() == {"a-1"}
    clock.now += 5
    ended = store.end_approval(
        "a-1", ApprovalState.DENIED, by="me", how="cli", answer="not on a Friday"
    )
    assert ended == replace(
        asked,
        state=ApprovalState.DENIED,
        ended_at=NOW + 5,
        answered_by="me",
        answered_how="cli",
        answer="not on a Friday",
    )
    assert store.approval("a-1") == ended
    assert store.approvals() == []
    assert store.approvals(include_ended=True) == [ended]
    assert store.approvals(session_id="s2", include_ended=True) == []


def test_the_audit_says_what_asked_who_answered_how_and_when(store: Store, clock: Clock) -> None:
    store.ask_approval(approval(arguments="x" * 5000, hash="ab" * 32))
    clock.now += 5
    store.end_approval("a-1", ApprovalState.APPROVED, by="me", how="cli", pattern='{"tool": "b"}')
    _, asked, approved = store.audit_rows()
    assert (asked.event, asked.session_id, asked.call_id) == ("approval.asked", "s1", "")
    assert asked.body["rule"] == "ask[0]"
    assert asked.body["hash"] == approved.body["hash"] == "ab" * 32
    assert len(asked.line) < 2000
    assert approved.at == NOW + 5
    facts = ("approval", "by", "how", "rule", "policy", "pattern")
    assert [approved.body[name] for name in facts] == [
        "a-1", "me", "cli", "ask[0]", POLICY.digest, '{"tool": "b"}',
    ]  # fmt: skip


def test_the_same_question_is_joined_and_any_other_is_not(store: Store) -> None:
    store.add_session(session("s2"))
    first = store.ask_approval(approval())
    assert store.ask_approval(approval("a-2")) == first
    for number, change in enumerate(
        ({"session_id": "s2"}, {"hash": "another"}, {"policy": "another"}), 3
    ):
        id_ = f"a-{number}"
        assert store.ask_approval(approval(id_, **change)).id == id_
    assert events(store) == ["asked"] * 4


def test_a_question_is_not_joined_after_its_deadline(store: Store, clock: Clock) -> None:
    store.ask_approval(approval())
    clock.now += LAST_S
    assert store.ask_approval(approval("a-2", expires_at=clock.now + 1)).id == "a-2"
    assert events(store) == ["asked", "expired", "asked"]


@pytest.mark.parametrize("state", [ApprovalState.APPROVED, ApprovalState.DENIED])
def test_an_answer_after_the_deadline_is_none(
    store: Store, clock: Clock, state: ApprovalState
) -> None:
    store.ask_approval(approval())
    clock.now += LAST_S
    with pytest.raises(ApprovalEnded, match="expired: nobody answered in time"):
        store.end_approval("a-1", state, by="me", how="cli")
    assert events(store) == ["asked", "expired"]
    assert store.expire_approvals() == []


def test_approvals_expire_at_their_deadline_and_not_before(store: Store, clock: Clock) -> None:
    store.ask_approval(approval())
    store.ask_approval(approval("a-2", hash="other", expires_at=NOW + LAST_S + 1))
    clock.now += LAST_S - 0.001
    assert store.expire_approvals() == []
    clock.now += 0.001
    assert store.expire_approvals() == ["a-1"]
    assert store.pending_approvals() == {"a-2"}


def test_a_session_takes_its_questions_with_it(store: Store) -> None:
    store.add_session(session("s2"))
    store.ask_approval(approval())
    store.ask_approval(approval("a-2", session_id="s2"))
    store.end_session("s1", SessionState.CLOSED)
    found = store.approval("a-1")
    assert found is not None
    assert (found.state, found.answer) == (ApprovalState.CANCELLED, "its session is closed")
    assert store.pending_approvals() == {"a-2"}
    with pytest.raises(SessionEnded):
        store.ask_approval(approval("a-3"))


def test_what_is_not_there_is_an_error(store: Store) -> None:
    with pytest.raises(ApprovalNotFound, match="'a-9'"):
        store.end_approval("a-9", ApprovalState.DENIED)
    with pytest.raises(ApprovalNotFound, match="runner approvals list"):
        answer_approval(store, "a-9", Approve(), how="cli")
    with pytest.raises(StoreError, match="no session"):
        store.ask_approval(approval(session_id="s9"))
    store.ask_approval(approval())
    with pytest.raises(StoreError, match="already"):
        store.ask_approval(approval(hash="other"))


def test_events_of_approvals_are_not_written_by_hand(store: Store) -> None:
    with pytest.raises(ValueError, match="come with"):
        store.audit(AuditEvent.APPROVAL_APPROVED)


def test_an_approval_is_used_once(store: Store) -> None:
    id_ = ended_as(store, ApprovalState.APPROVED).id
    assert [store.use_approval(id_, call) for call in ("c-1", "c-2")] == [True, False]
    found = store.approval(id_)
    assert found is not None
    assert found.used_by == "c-1"


@pytest.mark.parametrize("state", sorted(set(ApprovalState) - {ApprovalState.APPROVED}))
def test_only_what_was_approved_can_be_used(store: Store, state: ApprovalState) -> None:
    asked = ended_as(store, state)
    assert store.unused_approval("s1", asked.hash, asked.policy) is None
    assert not store.use_approval(asked.id, "c-1")


def test_an_unused_approval_fits_one_call_under_one_policy_for_a_while(
    store: Store, clock: Clock
) -> None:
    store.add_session(session("s2"))
    store.ask_approval(approval())
    clock.now += 100
    given = store.end_approval("a-1", ApprovalState.APPROVED, by="me", how="cli")

    def usable(session_id: str = "s1", hash_: str = given.hash, policy: str = given.policy) -> bool:
        return store.unused_approval(session_id, hash_, policy) is not None

    assert usable()
    assert not usable(session_id="s2")
    assert not usable(hash_="other")
    assert not usable(policy="other")
    clock.now += LAST_S - 0.001
    assert usable()
    clock.now += 0.001
    assert not usable()


ANSWERING = """
from runner import ApprovalEnded, Approve, Deny
from runner.app import open_store
from runner.approvals import answer_approval

with open_store(settings) as store:
    say("ready")
    hold()
    won = []
    for number in range({count}):
        try:
            answer_approval(store, f"a-{{number}}", {answer}, how="cli", by="{by}")
        except ApprovalEnded as error:
            assert "by " in str(error), error
        else:
            won.append(number)
    say(*won)
"""


def test_of_two_processes_that_answer_at_once_one_wins_and_the_other_is_told(
    settings: Settings,
) -> None:
    count = 40
    with open_store(settings) as store:
        store.add_session(session(expires_at=1e12))
        for number in range(count):
            store.ask_approval(approval(f"a-{number}", hash=str(number), expires_at=1e12))
    one = ANSWERING.format(count=count, answer="Approve()", by="one")
    other = ANSWERING.format(count=count, answer="Deny()", by="other")
    with process(settings, one) as first, process(settings, other) as second:
        assert [first.hears(), second.hears()] == ["ready", "ready"]
        for each in (first, second):
            each.let_go()
        won = [list(map(int, each.hears_all().split())) for each in (first, second)]
    assert sorted(won[0] + won[1]) == list(range(count))
    with open_store(settings) as store:
        for number in range(count):
            found = store.approval(f"a-{number}")
            assert found is not None
            assert found.answered_by == ("one" if number in won[0] else "other")
            assert (found.state is ApprovalState.APPROVED) == (number in won[0])
        assert len(events(store)) == 2 * count
        assert store.verify() == 1 + 2 * count


# Patterns.


def test_a_pattern_that_answers_one_question_answers_others_that_it_covers(store: Store) -> None:
    store.add_session(session("s2"))
    store.ask_approval(approval())
    also = {
        "a-2": {"arguments": '{"command":"push two"}'},
        "a-3": {"arguments": '{"command":"pull"}'},
        "a-4": {"arguments": '{"command":"push four"}', "policy": "another"},
        "a-5": {"session_id": "s2"},
    }
    for id_, changes in also.items():
        store.ask_approval(approval(id_, **changes))
    rule = {"tool": "bash", "match": "push"}
    seen = preview_pattern(store, approval(), rule)
    assert [other.id for other in seen.pending] == ["a-2"]
    ended = answer_approval(store, "a-1", ApprovePattern(rule), how="cli", by="me")
    assert json.loads(ended.pattern) == rule
    assert store.pending_approvals() == {"a-3", "a-4", "a-5"}
    other = store.approval("a-2")
    assert other is not None
    assert (other.state, other.pattern) == (ApprovalState.APPROVED, "")
    assert (other.answered_by, other.answer) == ("me", "by the pattern of a-1")
    assert [grant.id for grant in store.granted("s1", POLICY.digest)] == ["a-1"]
    assert store.granted("s2", POLICY.digest) == store.granted("s1", "another") == []


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"tool": "bash", "match": "pull"}, "does not cover"),
        ({"tool": "read"}, "does not cover"),
        ({"tool": "bash", "match": "("}, "regular expression"),
        ({"tool": "bash", "wrong": "x"}, "unknown key"),
        ({"tool": "bash", "rate": {"calls": 1, "per_s": 1}}, "no `rate`"),
        ({"tool": b"bash"}, "no text, list or mapping"),
        ("push", "must be a rule"),
        ("{tool: bash", "not YAML"),
        ("[{}]", "must be a rule"),
        ("", "must be a rule"),
        ("x" * 200_000, "longer than"),
    ],
)
def test_a_pattern_that_is_no_answer_is_refused_and_the_question_stays(
    store: Store, rule: Any, problem: str
) -> None:
    store.ask_approval(approval())
    with pytest.raises(PolicyError, match=f"the pattern.*{problem}"):
        answer_approval(store, "a-1", ApprovePattern(rule), how="cli")
    assert store.pending_approvals() == {"a-1"}


@pytest.mark.parametrize(
    "command",
    ["git push", "a.b*c\\d$^(x)|[y]{2}", 'say "hi"\n\t\x7f\x85', "é€😀\u2028", "{a: 1} # 'x'"],
)
def test_the_suggested_pattern_is_the_call_and_no_other(command: str) -> None:
    def canonical(text: str) -> str:
        return json.dumps({"command": text}, ensure_ascii=False, separators=(",", ":"))

    grant = Grant.of(exact_rule("bash", canonical(command)))
    assert grant.covers("bash", {"command": command}, canonical(command))
    assert not grant.covers("read", {"command": command}, canonical(command))
    for other in (command + "x", "x" + command, command[:-1], command.upper() + "."):
        assert not grant.covers("bash", {"command": other}, canonical(other))
    assert Grant.parse(grant.text) == grant
    assert grant.text.isascii()
    assert grant.text.isprintable()


def test_a_preview_says_which_past_calls_it_covers(store: Store) -> None:
    commands = ["push one", "pull", "push two"]
    for number, command in enumerate(commands):
        arguments = json.dumps({"command": command}, separators=(",", ":"))
        at = NOW + number
        store.begin_call(denied(f"c{number}", arguments=arguments, started_at=at), owner="me")
    store.begin_call(denied("raw", arguments="push", verdict=None, rule=None), owner="me")
    long = json.dumps({"command": "push" + "x" * 100_000})
    store.begin_call(record("long", arguments=long), owner="me")
    preview = preview_pattern(store, approval(), "{tool: bash, match: push}")
    assert preview.covers
    assert [call.call_id for call in preview.past] == ["c2", "c0"]
    assert (preview.looked_at, preview.unreadable) == (4, 1)
    assert preview.pending == ()
    assert not preview_pattern(store, approval(), {"tool": "grep"}).covers


# In a runner.


@asynccontextmanager
async def running(
    tmp_path: Path, approver: Approver, policy: Policy = POLICY, **overrides: Any
) -> AsyncIterator[AsyncRunner]:
    settings = make_settings(tmp_path / "data", **overrides)
    async with AsyncRunner(
        policy, approver=approver, engine=FakeEngine(), settings=settings
    ) as runner:
        yield runner


def records_of(runner: AsyncRunner) -> Store:
    return runner.controller.store


async def until(condition: Callable[[], Any]) -> Any:
    """Wait until something is true, and return it."""
    async with asyncio.timeout(20):
        while not (found := condition()):
            await asyncio.sleep(0.01)
    return found


async def parked(runner: AsyncRunner) -> str:
    """The id of the one question that waits."""
    (id_,) = await until(records_of(runner).pending_approvals)
    return str(id_)


async def test_an_approved_call_runs_and_its_record_names_the_approval(tmp_path: Path) -> None:
    seen: list[ApprovalRequest] = []

    async def approver(request: ApprovalRequest) -> Answer:
        seen.append(request)
        return Approve(by="alice")

    async with running(tmp_path, approver) as runner, runner.session() as session:
        result = await session.bash("echo push")
        store = records_of(runner)
        (request,) = seen
        assert (request.tool, request.arguments) == ("bash", {"command": "echo push"})
        assert (request.session, request.rule) == (session.id, "ask[0]")
        assert (result.status, result.text) == (Status.OK, "push\n")
        assert result.decision is not None
        assert (result.decision.verdict, result.decision.rule) == (Verdict.ALLOW, "ask[0]")
        call = store.call(result.call_id)
        assert call is not None
        assert call.approval == request.id
        found = store.approval(request.id)
        assert found is not None
        assert (found.answered_by, found.answered_how) == ("alice", "callback")
        assert found.used_by == result.call_id
        assert store.count_calls(since=0, session_id=session.id, rule="ask[0]") == 1
        assert store.verify() == 5


async def test_a_denied_call_is_told_the_reason(tmp_path: Path) -> None:
    async def approver(request: ApprovalRequest) -> Answer:
        return Deny("open a pull request instead")

    async with running(tmp_path, approver) as runner, runner.session() as session:
        result = await session.bash("echo push")
        assert result.status is Status.DENIED
        assert result.error == "bash: approval denied: open a pull request instead"
        call = records_of(runner).call(result.call_id)
        assert call is not None
        assert (call.verdict, call.rule) == (Verdict.DENY, "ask[0]")
        assert call.approval.startswith("a-")


async def test_nobody_is_asked_where_nobody_is_there(tmp_path: Path) -> None:
    async with running(tmp_path, None) as runner, runner.session() as session:
        result = await session.bash("echo push")
        assert result.status is Status.DENIED
        assert result.error is not None
        assert "ask[0]" in result.error
        assert "nobody is there" in result.error
        assert "approver=" in result.error
        assert "--ask" in result.error
        assert records_of(runner).approvals(include_ended=True) == []


async def test_what_the_policy_allows_or_denies_is_not_asked(tmp_path: Path) -> None:
    async def approver(request: ApprovalRequest) -> Answer:
        raise AssertionError(request)

    async with running(tmp_path, approver) as runner, runner.session() as session:
        assert (await session.bash("echo hi")).status is Status.OK
        assert (await session.bash("echo push --force")).status is Status.DENIED
        assert records_of(runner).approvals(include_ended=True) == []


def raising(request: ApprovalRequest) -> Answer:
    raise ZeroDivisionError("a secret")


async def raising_later(request: ApprovalRequest) -> Answer:
    raise ZeroDivisionError("a secret")


@pytest.mark.parametrize(
    ("approver", "reason"),
    [
        (raising, "the approver failed with ZeroDivisionError"),
        (raising_later, "the approver failed with ZeroDivisionError"),
        (lambda _: True, "the approver returned bool, which is no answer"),
        (lambda _: None, "the approver returned NoneType, which is no answer"),
        (lambda _: Deny(None), "the approver returned Deny, which is no answer"),  # type: ignore[arg-type]
        (lambda _: Approve, "the approver returned type, which is no answer"),
        (lambda _: ApprovePattern("("), "the approver's pattern can't be used: "),
        (lambda _: ApprovePattern({"tool": "read"}), "the approver's pattern can't be used: "),
    ],
)
async def test_an_approver_that_fails_denies_and_is_told_of(
    tmp_path: Path, approver: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, approver) as runner, runner.session() as session:
        result = await session.bash("echo push")
        assert result.status is Status.DENIED
        assert result.error is not None
        assert result.error.startswith(f"bash: approval denied: {reason}")
        assert "secret" not in result.error
        assert "approval.approver" in caplog.text
        assert events(records_of(runner)) == ["asked", "denied"]


@pytest.mark.parametrize("approver", [True, "prompt", 5])
def test_what_is_no_approver_is_refused_before_anything_starts(approver: Any) -> None:
    with pytest.raises(ConfigurationError, match="approver must be"):
        AsyncRunner(POLICY, approver=approver)


async def test_a_callback_that_waits_holds_up_nobody_else(tmp_path: Path) -> None:
    answered = threading.Event()
    asked = threading.Event()

    def approver(request: ApprovalRequest) -> Answer:
        asked.set()
        # A callback may look at what a pattern would cover, from its own thread.
        assert request.preview(request.suggestion).covers
        assert answered.wait(20)
        return Approve()

    async with running(tmp_path, approver) as runner, runner.session() as session:
        waiting = asyncio.create_task(session.bash("echo push"))
        await until(asked.is_set)
        assert (await session.bash("echo hi")).text == "hi\n"
        assert not waiting.done()
        answered.set()
        assert (await waiting).text == "push\n"


def test_the_synchronous_runner_takes_a_callback(settings: Settings) -> None:
    with (
        Runner(
            POLICY, approver=lambda _: Approve(), engine=FakeEngine(), settings=settings
        ) as runner,
        runner.session() as session,
    ):
        assert session.bash("echo push").text == "push\n"


async def test_requests_can_be_taken_from_a_queue(tmp_path: Path) -> None:
    queue = ApprovalQueue()
    async with running(tmp_path, queue) as runner, runner.session() as session:
        commands = ["echo push 1", "push", "echo push 3", "echo push 4"]
        calls = [asyncio.create_task(session.bash(command)) for command in commands]
        taken = {}
        async with asyncio.timeout(20):
            async for request in queue:
                taken[request.arguments["command"]] = request
                if len(taken) == 4:
                    break
        taken["echo push 1"].approve()
        taken["push"].deny("no")
        with pytest.raises(PolicyError):
            taken["echo push 3"].approve_pattern({"tool": "read"})
        taken["echo push 3"].approve_pattern({"tool": "bash", "match": "echo push"}, by="bob")
        with pytest.raises(ApprovalEnded, match=r"approved by bob \(queue\)"):
            taken["echo push 4"].deny("too late")
        results = await asyncio.gather(*calls)
        assert [result.text for result in results] == [
            "push 1\n", "bash: approval denied: no", "push 3\n", "push 4\n",
        ]  # fmt: skip
        # What ended before anybody took it is not handed out.
        lost = asyncio.create_task(session.bash("push again"))
        answer_approval(records_of(runner), await parked(runner), Deny(), how="cli")
        await lost
        last = asyncio.create_task(session.bash("push last"))
        request = await anext(queue)
        assert request.arguments == {"command": "push last"}
        request.deny()
        await last


async def test_the_first_of_two_ways_to_answer_counts(tmp_path: Path) -> None:
    late = asyncio.Event()

    async def approver(request: ApprovalRequest) -> Answer:
        request.deny("first")
        late.set()
        return Approve()

    async with running(tmp_path, approver) as runner, runner.session() as session:
        result = await session.bash("echo push")
        assert late.is_set()
        assert result.error == "bash: approval denied: first"
        assert events(records_of(runner)) == ["asked", "denied"]


async def test_another_process_answers_through_the_store(tmp_path: Path) -> None:
    async with running(tmp_path, "store") as runner, runner.session() as session:
        waiting = asyncio.create_task(session.bash("echo push"))
        id_ = await parked(runner)
        with open_store(runner.settings) as other:
            answer_approval(other, id_, Approve(), how="cli")
        result = await waiting
        assert result.text == "push\n"
        found = records_of(runner).approval(id_)
        assert found is not None
        assert (found.answered_by, found.answered_how) == (this_user(), "cli")


async def test_nobodys_answer_is_a_no_at_the_deadline(store: Store, clock: Clock) -> None:
    approvals = Approvals(store, "store", timeout_s=LAST_S)
    waiting = asyncio.create_task(approvals.ask(question()))
    await until(store.pending_approvals)
    clock.now += LAST_S
    refusal = await waiting
    assert refusal is not None
    assert refusal.reason == "nobody answered within 600 s, so it is denied"
    assert events(store) == ["asked", "expired"]
    await approvals.close()


async def test_the_setting_says_how_long_a_call_waits(tmp_path: Path) -> None:
    async with (
        running(tmp_path, "store", approval_timeout_s=0.05) as runner,
        runner.session() as session,
    ):
        result = await session.bash("echo push")
        assert result.error == "bash: nobody answered within 0.05 s, so it is denied"


def question(command: str = "push", **changes: Any) -> Question:
    arguments = {"command": command}
    value = Question(
        session_id="s1",
        tool="bash",
        arguments=arguments,
        canonical=json.dumps(arguments, separators=(",", ":")),
        policy=POLICY.digest,
        rule="ask[0]",
    )
    return replace(value, **changes)


@pytest.mark.parametrize(
    "change",
    [
        {"tool": "read"},
        {"canonical": '{"command":"push "}'},
        {"resolved": "/workspace/elsewhere"},
        {"session_id": "s2"},
        {"policy": "another"},
    ],
)
async def test_an_approval_fits_no_other_call(store: Store, change: dict[str, Any]) -> None:
    store.add_session(session("s2"))
    approvals = Approvals(store, lambda _: Approve())
    assert await approvals.ask(question()) is None
    other = question(**change)
    assert approvals.permit(other, call_id="c-1") is None
    permit = approvals.permit(question(), call_id="c-2")
    assert permit is not None
    assert permit.hash == question().hash
    assert approvals.permit(question(), call_id="c-3") is None
    await approvals.close()


async def test_a_pattern_looks_at_the_path_that_the_call_really_leads_to(store: Store) -> None:
    rule = {"tool": "write", "glob": "/workspace/docs/**"}
    written = question(
        tool="write", arguments={"path": "/workspace/docs/a"}, resolved="/workspace/docs/a",
        canonical='{"path":"/workspace/docs/a"}',
    )  # fmt: skip
    approvals = Approvals(store, lambda _: ApprovePattern(rule))
    assert await approvals.ask(written) is None
    assert approvals.permit(written, call_id="c-1") is not None
    led_away = replace(written, resolved="/workspace/.git/config")
    assert approvals.permit(led_away, call_id="c-2") is None
    await approvals.close()


async def test_a_pattern_holds_for_its_session_where_the_policy_asks(tmp_path: Path) -> None:
    asked: list[str] = []

    async def approver(request: ApprovalRequest) -> Answer:
        asked.append(request.arguments["command"])
        return ApprovePattern({"tool": "bash", "match": "push|force|ls"})

    async with running(tmp_path, approver) as runner:
        async with runner.session() as session:
            first = await session.bash("echo push 1")
            second = await session.bash("echo push 2")
            assert (first.text, second.text) == ("push 1\n", "push 2\n")
            assert asked == ["echo push 1"]
            # The policy denies these, and no approval changes that.
            assert (await session.bash("echo push --force")).status is Status.DENIED
            assert (await session.bash("ls")).status is Status.DENIED
            store = records_of(runner)
            (call,) = [store.call(result.call_id) for result in (second,)]
            assert call is not None
            assert call.approval == store.approvals(include_ended=True)[0].id
        async with runner.session() as another:
            await another.bash("echo push 2")
            assert asked == ["echo push 1", "echo push 2"]


async def test_two_calls_that_are_the_same_share_a_question_but_not_its_answer(
    tmp_path: Path,
) -> None:
    asked: list[str] = []

    async def approver(request: ApprovalRequest) -> Answer:
        asked.append(request.id)
        if len(asked) == 1:
            await both.wait()
        return Approve()

    both = asyncio.Event()
    async with running(tmp_path, approver) as runner, runner.session() as session:
        calls = [asyncio.create_task(session.bash("echo push")) for _ in range(2)]
        await until(lambda: asked)
        await asyncio.sleep(0)
        both.set()
        results = await asyncio.gather(*calls)
        assert [result.text for result in results] == ["push\n", "push\n"]
        assert len(asked) == len(set(asked)) == 2
        store = records_of(runner)
        used = {found.used_by for found in store.approvals(include_ended=True)}
        assert used == {result.call_id for result in results}


async def test_a_call_that_is_cancelled_leaves_the_question_for_others(tmp_path: Path) -> None:
    async with running(tmp_path, "store") as runner, runner.session() as session:
        one, other = (asyncio.create_task(session.bash("echo push")) for _ in range(2))
        id_ = await parked(runner)
        await until(lambda: runner.controller.approvals._parked[id_].calls == 2)
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
        assert records_of(runner).pending_approvals() == {id_}
        answer_approval(records_of(runner), id_, Approve(), how="cli")
        assert (await other).text == "push\n"


class Instant(Tool):
    """Takes no time."""

    class Input(ToolInput):
        """Nothing."""

    name = "instant"
    description = "Return at once."
    input = Input

    async def execute(self, context: ToolContext, input: Input, /) -> Outcome:
        """Return."""
        return Outcome(output=f"{context.deadline_s:g}")


async def test_the_time_limit_of_a_call_begins_when_it_runs(tmp_path: Path) -> None:
    limit_s = 0.05

    async def approver(request: ApprovalRequest) -> Answer:
        await asyncio.sleep(2 * limit_s)
        return Approve()

    policy = Policy.parse("default: ask")
    async with running(tmp_path, approver, policy) as runner, runner.session() as session:
        runner.tools.register(Instant())
        before = time.time()
        result = await session.call("instant", {}, timeout_s=limit_s)
        assert (result.status, result.text) == (Status.OK, f"{limit_s:g}")
        call = records_of(runner).call(result.call_id)
        assert call is not None
        assert call.started_at >= before + 2 * limit_s


async def test_parked_calls_hold_no_thread_and_start_no_container(tmp_path: Path) -> None:
    async with running(tmp_path, "store") as runner, runner.session() as session:
        container = session.info.container_id
        assert container is not None
        await runner.controller.sessions.engine.kill(container)
        before = threading.active_count()
        calls = [asyncio.create_task(session.bash(f"echo push {n}")) for n in range(50)]
        store = records_of(runner)
        await until(lambda: len(store.pending_approvals()) == 50)
        assert threading.active_count() == before
        assert session.info.container_id == container
        for id_ in store.pending_approvals():
            answer_approval(store, id_, Approve(), how="cli")
        results = await asyncio.gather(*calls)
        assert {result.status for result in results} == {Status.OK}
        assert session.info.container_id != container


async def test_a_call_whose_session_is_closed_is_denied(tmp_path: Path) -> None:
    async with running(tmp_path, "store") as runner:
        session = await runner.open_session()
        waiting = asyncio.create_task(session.bash("echo push"))
        await parked(runner)
        await session.close()
        result = await waiting
        assert result.status is Status.DENIED
        assert result.error is not None
        assert "its session is closed" in result.error
        assert events(records_of(runner)) == ["asked", "cancelled"]


async def test_a_runner_that_is_closed_ends_the_wait_and_keeps_the_question(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, "store") as runner:
        session = await runner.open_session(kept=True)
        waiting = asyncio.create_task(session.bash("echo push"))
        id_ = await parked(runner)
    with pytest.raises(SessionEnded, match=id_):
        await waiting
    with open_store(runner.settings) as store:
        assert store.pending_approvals() == {id_}
        assert store.verify() > 0


async def test_a_store_that_fails_ends_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> set[str]:
        raise StoreError("the disk is gone")

    async with running(tmp_path, "store") as runner, runner.session() as session:
        waiting = asyncio.create_task(session.bash("echo push"))
        await parked(runner)
        monkeypatch.setattr(records_of(runner), "pending_approvals", fail)
        with pytest.raises(StoreError, match="the disk is gone"):
            await waiting


# The policy is judged again.


class Source:
    """A policy that changes when the test says so."""

    files: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.current = POLICY


@pytest.fixture
async def source() -> Source:
    return Source()


@asynccontextmanager
async def controlled(
    tmp_path: Path, source: Source, approver: Approver
) -> AsyncIterator[tuple[Controller, Lease]]:
    settings = make_settings(tmp_path / "data")
    async with (
        build(settings, policy=source, approver=approver, engine=FakeEngine()) as controller,
        await controller.sessions.open(SessionOptions(image="sandbox")) as lease,
    ):
        yield controller, lease


async def asked_while(
    tmp_path: Path, source: Source, changed: str
) -> tuple[list[str], ToolResult, list[Approval]]:
    """Answer yes, after the policy was changed: who was asked, what came of it, and records."""
    asked: list[str] = []

    async def approver(request: ApprovalRequest) -> Answer:
        asked.append(request.policy)
        source.current = Policy.parse(changed)
        return Approve()

    async with controlled(tmp_path, source, approver) as (controller, lease):
        result = await controller.call(lease, "bash", {"command": "echo push"})
        return asked, result, controller.store.approvals(include_ended=True)


async def test_a_policy_that_denies_by_the_time_of_the_answer_denies(
    tmp_path: Path, source: Source
) -> None:
    asked, result, found = await asked_while(
        tmp_path, source, "default: allow\ndeny:\n  - {tool: bash, match: push}\n"
    )
    assert result.status is Status.DENIED
    assert result.decision is not None
    assert result.decision.rule == "deny[0]"
    assert len(asked) == 1
    assert found[0].used_by == ""


async def test_a_policy_that_allows_by_the_time_of_the_answer_needs_no_approval(
    tmp_path: Path, source: Source
) -> None:
    asked, result, found = await asked_while(tmp_path, source, "mode: allow_all")
    assert result.text == "push\n"
    assert len(asked) == 1
    assert found[0].used_by == ""


async def test_an_approval_under_another_policy_does_not_count(
    tmp_path: Path, source: Source
) -> None:
    changed = f"{RULES}# changed\n"
    asked, result, found = await asked_while(tmp_path, source, changed)
    assert result.text == "push\n"
    assert asked == [POLICY.digest, Policy.parse(changed).digest]
    assert [each.used_by for each in found] == ["", result.call_id]


# Restarts.

PARKING = """
from runner import Policy
from runner.testing import FakeEngine
policy = Policy.parse({rules!r})
engine = None if {docker} else FakeEngine()
with Runner(policy, approver="store", engine=engine, settings=settings) as runner:
    session = runner.session(kept={kept})
    say(session.id)
    session.bash("echo push")
"""


def killed_while_parked(settings: Settings, *, kept: bool, docker: bool = False) -> tuple[str, str]:
    """The ids of a session and of the question in it, whose process was killed."""
    with process(settings, PARKING.format(rules=RULES, kept=kept, docker=docker)) as parking:
        session_id = parking.hears()
        with open_store(settings) as store:
            (approval_id,) = wait_until(store.pending_approvals)
        parking.kill()
    return session_id, approval_id


async def attached(runner: AsyncRunner, session_id: str) -> AsyncSession:
    return await runner.attach(session_id, wait_s=20)


async def test_after_a_restart_the_same_call_joins_its_question(settings: Settings) -> None:
    session_id, approval_id = killed_while_parked(settings, kept=True)
    async with (
        AsyncRunner(POLICY, approver="store", engine=FakeEngine(), settings=settings) as runner,
        await attached(runner, session_id) as session,
    ):
        waiting = asyncio.create_task(session.bash("echo push"))
        await until(lambda: approval_id in runner.controller.approvals._parked)
        answer_approval(records_of(runner), approval_id, Approve(), how="cli")
        assert (await waiting).text == "push\n"
        assert events(records_of(runner)) == ["asked", "approved"]


async def test_an_answer_that_came_while_nobody_waited_is_used_once(settings: Settings) -> None:
    session_id, approval_id = killed_while_parked(settings, kept=True)
    with open_store(settings) as store:
        answer_approval(store, approval_id, Approve(), how="cli")
    async with (
        AsyncRunner(POLICY, engine=FakeEngine(), settings=settings) as runner,
        await attached(runner, session_id) as session,
    ):
        # Even where nobody is there to be asked: this was asked before.
        assert (await session.bash("echo push")).text == "push\n"
        again = await session.bash("echo push")
        assert again.status is Status.DENIED


async def test_a_question_of_a_session_that_died_is_cancelled_at_the_next_start(
    settings: Settings,
) -> None:
    _, approval_id = killed_while_parked(settings, kept=False)
    async with AsyncRunner(POLICY, engine=FakeEngine(), settings=settings) as runner:
        found = records_of(runner).approval(approval_id)
        assert found is not None
        assert found.state is ApprovalState.CANCELLED
        assert records_of(runner).verify() > 0


@pytest.mark.docker
@pytest.mark.usefixtures("clean_daemon")
def test_a_process_that_is_killed_while_a_call_is_parked_leaks_nothing(settings: Settings) -> None:
    _, approval_id = killed_while_parked(settings, kept=False, docker=True)
    assert leftovers(settings)
    with Runner(POLICY, settings=settings):
        assert leftovers(settings) == {}
    with open_store(settings) as store:
        found = store.approval(approval_id)
        assert found is not None
        assert found.state is ApprovalState.CANCELLED
        assert store.verify() > 0
