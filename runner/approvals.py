"""Asking a person: parking a call, answering it, and what an answer is good for.

Owns the questions and answers as values, who is asked in this process, waiting, and the rules
by which an approval fits a call. The records are the store's; whether a call has to be asked
about is the policy's to say, before the question and again after the answer.

An approval is bound to its session, to the hash of the exact call (tool, canonical arguments
and the path that they lead to), and to the digest of the policy that asked. One without a
pattern serves one call. One with a pattern serves the calls of its session that the pattern
covers, where the same policy asks; it never makes a denial an approval.

A parked call is a row in the store and a future here: no thread, no container, and its own
time limit has not begun. Answers given in this process wake it at once; those of other
processes, and deadlines, are looked for every `POLL_S`.
"""

import asyncio
import concurrent.futures
import inspect
import json
import os
import pwd
import secrets
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, Self, TypeVar

from runner.audit import digest
from runner.errors import (
    ApprovalEnded,
    ApprovalNotFound,
    ConfigurationError,
    PolicyError,
    RunnerError,
    SessionEnded,
)
from runner.logs import log
from runner.model import Approval, ApprovalState, Record
from runner.policy.grants import Grant, exact_rule
from runner.store import Store

__all__ = [
    "Answer",
    "ApprovalQueue",
    "ApprovalRequest",
    "Approvals",
    "Approve",
    "ApprovePattern",
    "Approver",
    "Deny",
    "Preview",
    "Question",
    "Refusal",
    "answer_approval",
    "checked",
    "preview_pattern",
    "this_user",
]

POLL_S = 0.2
"""How often a parked call looks for what other processes did, and for its deadline."""
PREVIEW_CALLS = 1000
"""How many of a session's last calls a preview looks at."""

T = TypeVar("T")


# Answers.

RuleText = Mapping[str, Any] | str
"""A rule of an `allow` list: a mapping, or the same in YAML or JSON."""


@dataclass(frozen=True, slots=True)
class Approve:
    """Yes, for this one call."""

    by: str = ""
    """Who says so, where the interface knows; empty: the user that this process belongs to."""


@dataclass(frozen=True, slots=True)
class ApprovePattern:
    """Yes, for this call and for every later one of the session that the rule covers."""

    rule: RuleText
    """Such as `{"tool": "bash", "command": "^git push"}`. It must cover the call itself."""
    by: str = ""


@dataclass(frozen=True, slots=True)
class Deny:
    """No."""

    reason: str = ""
    """What the model is told."""
    by: str = ""


Answer = Approve | ApprovePattern | Deny
"""The closed set of answers."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What a pattern would cover, without regard to what the policy says of these calls."""

    rule: str
    """The pattern, as JSON."""
    covers: bool
    """Whether it covers the call in question. If not, it can't answer it."""
    past: tuple[Record, ...]
    """Calls of the session that it covers, newest first, of the last `PREVIEW_CALLS`. Their
    paths are taken as they were written."""
    looked_at: int
    """How many past calls there were to look at."""
    unreadable: int
    """Those of them whose arguments were too long to be kept whole, so that nobody can tell."""
    pending: tuple[Approval, ...]
    """Other pending approvals of the session, which it would approve, too."""


def preview_pattern(store: Store, approval: Approval, rule: RuleText) -> Preview:
    """What a pattern would cover if it were the answer to this approval.

    Raises:
        PolicyError: It is not a rule.
    """
    grant = _as_grant(rule)
    past: list[Record] = []
    looked_at = unreadable = 0
    for record in store.recent_calls(approval.session_id, limit=PREVIEW_CALLS):
        if record.verdict is None:  # its input was not valid, so no policy ever saw it
            continue
        looked_at += 1
        try:
            arguments = json.loads(record.arguments)
        except ValueError:
            unreadable += 1
            continue
        if grant.covers(record.tool, arguments, record.arguments):
            past.append(record)
    return Preview(
        rule=grant.text,
        covers=_covers(grant, approval),
        past=tuple(past),
        looked_at=looked_at,
        unreadable=unreadable,
        pending=tuple(_others(store, approval, grant)),
    )


def answer_approval(
    store: Store, approval_id: str, answer: Answer, *, how: str, by: str = ""
) -> Approval:
    """Answer a pending approval, from any process.

    Args:
        store: The records.
        approval_id: Which.
        answer: The answer. A pattern also approves, once, what else is pending in the
            session under the same policy and is covered by it.
        how: By which way it came, for the audit: `cli`, `terminal`, ….
        by: Who answered, where the answer does not say; empty: this process's user.

    Returns:
        The approval as it is now.

    Raises:
        ApprovalNotFound: There is no such approval.
        ApprovalEnded: It was answered before, its time ran out, or its session is gone.
        PolicyError: The pattern is not a rule, or does not cover the call in question.
    """
    approval = store.approval(approval_id)
    if approval is None:
        raise ApprovalNotFound(
            f"there is no approval {approval_id!r}; `runner approvals list --all` shows those"
            " there are"
        )
    by = answer.by or by or this_user()
    match answer:
        case Approve():
            return store.end_approval(approval_id, ApprovalState.APPROVED, by=by, how=how)
        case Deny():
            return store.end_approval(
                approval_id, ApprovalState.DENIED, by=by, how=how, answer=answer.reason
            )
        case ApprovePattern():
            grant = _as_grant(answer.rule)
            if not _covers(grant, approval):
                raise PolicyError(
                    "it does not cover the call that it should answer; make it wider, or approve"
                    " the one call",
                    source="the pattern",
                )
            return store.end_approval(
                approval_id,
                ApprovalState.APPROVED,
                by=by,
                how=how,
                pattern=grant.text,
                also=[other.id for other in _others(store, approval, grant)],
            )


def this_user() -> str:
    """The operating system's name of the user that this process belongs to."""
    uid = os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # in a container, users need no names
        return f"uid {uid}"


def _as_grant(rule: RuleText) -> Grant:
    return Grant.parse(rule) if isinstance(rule, str) else Grant.of(rule)


def _covers(grant: Grant, approval: Approval) -> bool:
    arguments = json.loads(approval.arguments)
    return grant.covers(approval.tool, arguments, approval.arguments, resolved=approval.resolved)


def _others(store: Store, approval: Approval, grant: Grant) -> list[Approval]:
    """What else is pending that a pattern covers, where the same policy asked."""
    return [
        other
        for other in store.approvals(session_id=approval.session_id)
        if other.id != approval.id and other.policy == approval.policy and _covers(grant, other)
    ]


# Questions.


@dataclass(frozen=True, slots=True)
class Question:
    """A call about which a policy asks, as the controller puts it."""

    session_id: str
    tool: str
    arguments: Mapping[str, Any]
    canonical: str
    """The arguments as canonical JSON."""
    policy: str
    """The digest of the policy that asks."""
    rule: str | None
    """The rule that asks."""
    reason: str = ""
    """The policy's words for it."""
    resolved: str | None = None
    """Where the call's path leads in the container, if the policy wanted to know."""

    @property
    def hash(self) -> str:
        """What an approval of this call is bound to, besides its session and the policy."""
        return digest((self.tool, self.canonical, self.resolved))


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call that was asked about may not run."""

    reason: str
    """For the model."""
    approval: str = ""
    """The approval's id; empty where nobody was asked."""


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A question as an approver sees it. Its methods may be called from any thread.

    A callback returns an `Answer`. Whoever has the request from an `ApprovalQueue` calls one
    of `approve`, `approve_pattern` and `deny` instead.
    """

    id: str
    session: str
    """The session's id."""
    tool: str
    arguments: Mapping[str, Any]
    canonical: str
    """The arguments as canonical JSON: what the hash is of."""
    resolved: str | None
    """Where the call's path leads in the container; None where the policy does not look."""
    rule: str | None
    """The rule that asks, such as `ask[0]`."""
    reason: str
    """The policy's words for it, or empty."""
    policy: str
    """The digest of the policy that asks."""
    deadline: float
    """Seconds since the epoch. No answer until then is a no."""
    _approvals: "Approvals" = field(repr=False, compare=False)

    @property
    def suggestion(self) -> dict[str, str]:
        """The narrowest pattern there is: this very call, whenever it comes again."""
        return exact_rule(self.tool, self.canonical)

    def preview(self, rule: RuleText) -> Preview:
        """What a pattern would cover, should it be the answer.

        Raises:
            PolicyError: It is not a rule.
            ApprovalNotFound: The question's record is gone.
        """
        return self._approvals.preview(self.id, rule)

    def approve(self, *, by: str = "") -> None:
        """Approve this one call.

        Raises:
            ApprovalEnded: Somebody was faster, or its time ran out, or its session is gone.
        """
        self._approvals.answer(self.id, Approve(by))

    def approve_pattern(self, rule: RuleText, *, by: str = "") -> None:
        """Approve it and what else of the session the rule covers.

        Raises:
            ApprovalEnded: As for `approve`.
            PolicyError: It is not a rule, or does not cover this call.
        """
        self._approvals.answer(self.id, ApprovePattern(rule, by))

    def deny(self, reason: str = "", *, by: str = "") -> None:
        """Deny it; the model sees the reason.

        Raises:
            ApprovalEnded: As for `approve`.
        """
        self._approvals.answer(self.id, Deny(reason, by))


# Who is asked.

Callback = Callable[[ApprovalRequest], Answer | Awaitable[Answer]]
"""Answers a request. One that is no coroutine function runs in a thread of its own. It may have
an attribute `how`, a name for the audit; without one it is a `callback`."""
Approver = Callback | Literal["store"] | None
"""Who is asked: a callback, an `ApprovalQueue`, `"store"` for whoever answers through the store
from another process (`runner approvals`), or None: nobody, and to ask is to deny."""


class ApprovalQueue:
    """An approver that is iterated: `async for request in queue: request.approve()`.

    Pass it as `approver=`. A request that has ended before anybody took it is not yielded.
    """

    how = "queue"

    def __init__(self) -> None:
        self._asked: dict[str, ApprovalRequest] = {}
        self._more = asyncio.Event()

    async def __call__(self, request: ApprovalRequest) -> Answer:
        """Hand a request to whoever iterates; the answer comes through its methods."""
        self._asked[request.id] = request
        self._more.set()
        try:
            return await _never()
        finally:
            self._asked.pop(request.id, None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ApprovalRequest:
        while not self._asked:
            self._more.clear()
            await self._more.wait()
        return self._asked.pop(next(iter(self._asked)))


async def _never() -> Answer:
    """Wait until somebody else has answered, which cancels this."""
    waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    return await waiting


async def _through_the_store(_: ApprovalRequest) -> Answer:
    return await _never()


def checked(approver: Approver) -> Approver:
    """The approver, if it is one.

    Raises:
        ConfigurationError: It is something else.
    """
    if approver is None or approver == "store" or callable(approver):
        return approver
    raise ConfigurationError(
        f'approver must be a function, an ApprovalQueue, "store" or None, not {approver!r}'
    )


def _callback(approver: Approver) -> Callback | None:
    if approver == "store":
        return _through_the_store
    return approver


def _is_coroutine_function(function: Callback) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  a function of an object's class
    )


async def _in_thread(function: Callable[[], T]) -> T:
    """Run what may wait for a person, in a thread that keeps nobody from leaving."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()

    def work() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # for whoever awaits it
            future.set_exception(error)

    threading.Thread(target=work, name="approver", daemon=True).start()
    return await asyncio.wrap_future(future)


# Parking.


@dataclass(slots=True)
class _Parked:
    """A question that calls of this process wait for."""

    ended: "asyncio.Future[Approval]"
    consulting: "asyncio.Task[None]"
    calls: int = 0


class Approvals:
    """The questions of one controller. Use it on the thread of its event loop.

    Args:
        store: The records.
        approver: Who is asked.
        timeout_s: How long a question waits for its answer, in seconds.
    """

    def __init__(self, store: Store, approver: Approver = None, *, timeout_s: float = 600.0):
        self._store = store
        self._approver = _callback(approver)
        self._how: str = getattr(approver, "how", "callback")
        self._timeout_s = timeout_s
        self._parked: dict[str, _Parked] = {}
        self._watching: asyncio.Task[None] | None = None
        self._consulting: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._closed = False

    def permit(self, question: Question, *, call_id: str) -> Approval | None:
        """The approval under which a call that the policy asks about may run, if there is one.

        An approval for one call is used up by this.

        Args:
            question: The call, and the policy that asks now.
            call_id: The id of the call that would run.

        Returns:
            A pattern's that covers the call, else one of exactly this call; None: ask.

        Raises:
            StoreError: The records can't be read or written.
        """
        for approval in self._store.granted(question.session_id, question.policy):
            grant = _kept_grant(approval.pattern)
            if grant is not None and grant.covers(
                question.tool, question.arguments, question.canonical, resolved=question.resolved
            ):
                return approval
        approval_ = self._store.unused_approval(question.session_id, question.hash, question.policy)
        if approval_ is not None and self._store.use_approval(approval_.id, call_id):
            return approval_
        return None

    async def ask(self, question: Question) -> Refusal | None:
        """Park a call until somebody answers.

        Ask `permit` first. The question stays in the store if this is cancelled, or its
        process dies: the same call, made again, joins it or finds it answered.

        Returns:
            None: it was approved, so judge the call anew and ask `permit` again. Otherwise
            why it may not run.

        Raises:
            SessionEnded: The session is over, or the runner was closed meanwhile.
            StoreError: The records can't be read or written.
        """
        if self._approver is None:
            why = f"{question.reason}; " if question.reason else ""
            return Refusal(
                f"{why}the rule {question.rule} asks a person and nobody is there to answer, so it"
                " is denied; pass approver= to the Runner in Python, or --ask prompt on the command"
                " line"
            )
        if self._closed:
            raise SessionEnded("the runner was closed: nobody waits for an answer any more")
        now = self._store.now()
        approval = self._store.ask_approval(
            Approval(
                id=f"a-{secrets.token_hex(6)}",
                session_id=question.session_id,
                state=ApprovalState.PENDING,
                tool=question.tool,
                arguments=question.canonical,
                resolved=question.resolved,
                hash=question.hash,
                policy=question.policy,
                rule=question.rule,
                reason=question.reason,
                asked_at=now,
                expires_at=now + self._timeout_s,
            )
        )
        parked = self._parked.get(approval.id) or self._park(approval, question)
        parked.calls += 1
        try:
            # Shielded: one call that is cancelled does not end the wait of the others.
            ended = await asyncio.shield(parked.ended)
        finally:
            parked.calls -= 1
            if not parked.calls:
                self._unpark(approval.id)
        if ended.state is ApprovalState.APPROVED:
            return None
        return Refusal(_why_not(ended), ended.id)

    def answer(self, approval_id: str, answer: Answer, *, how: str = "") -> Approval:
        """Answer an approval in this process: calls that wait here go on at once.

        Args:
            approval_id: Which.
            answer: The answer.
            how: By which way it came; empty: the approver's.

        Raises:
            ApprovalNotFound, ApprovalEnded, PolicyError: As for `answer_approval`.
        """

        def do() -> Approval:
            try:
                return answer_approval(self._store, approval_id, answer, how=how or self._how)
            finally:
                self._look()

        return self._on_loop(do)

    def preview(self, approval_id: str, rule: RuleText) -> Preview:
        """What a pattern would cover if it were the answer.

        Raises:
            ApprovalNotFound: There is no such approval.
            PolicyError: It is not a rule.
        """

        def do() -> Preview:
            approval = self._store.approval(approval_id)
            if approval is None:
                raise ApprovalNotFound(f"there is no approval {approval_id!r}")
            return preview_pattern(self._store, approval, rule)

        return self._on_loop(do)

    async def close(self) -> None:
        """Stop waiting. Calls that still wait fail; their questions stay in the store."""
        self._closed = True
        if self._parked:
            self._look()
        for approval_id, parked in self._parked.items():
            if not parked.ended.done():
                parked.ended.set_exception(
                    SessionEnded(
                        f"the runner was closed while the call waited for {approval_id}, which"
                        " can still be answered"
                    )
                )
        while self._parked:  # noqa: ASYNC110  each leaves when it is woken, in a turn or two
            await asyncio.sleep(0)
        tasks = [*self._consulting, *([self._watching] if self._watching else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Inside

    def _park(self, approval: Approval, question: Question) -> _Parked:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        log.info(
            "approval.asked",
            approval=approval.id,
            session=approval.session_id,
            tool=approval.tool,
            rule=approval.rule,
        )
        request = ApprovalRequest(
            id=approval.id,
            session=approval.session_id,
            tool=approval.tool,
            arguments=question.arguments,
            canonical=approval.arguments,
            resolved=approval.resolved,
            rule=approval.rule,
            reason=approval.reason,
            policy=approval.policy,
            deadline=approval.expires_at,
            _approvals=self,
        )
        consulting = self._loop.create_task(self._consult(request))
        self._consulting.add(consulting)
        consulting.add_done_callback(self._consulting.discard)
        parked = _Parked(self._loop.create_future(), consulting)
        self._parked[approval.id] = parked
        if self._watching is None or self._watching.done():
            self._watching = self._loop.create_task(self._watch())
        return parked

    def _unpark(self, approval_id: str) -> None:
        parked = self._parked.pop(approval_id)
        parked.ended.cancel()
        parked.consulting.cancel()

    async def _watch(self) -> None:
        while self._parked:
            await asyncio.sleep(POLL_S)
            self._look()

    def _look(self) -> None:
        """Wake the calls whose questions have ended."""
        waiting = {id_: parked for id_, parked in self._parked.items() if not parked.ended.done()}
        if not waiting:
            return
        try:
            self._store.expire_approvals()
            for id_ in waiting.keys() - self._store.pending_approvals():
                approval = self._store.approval(id_)
                if approval is None:
                    raise ApprovalNotFound(f"the record of the approval {id_} is gone")
                waiting[id_].ended.set_result(approval)
        except RunnerError as error:
            # Nobody can tell any more how a question ended: those who wait must know.
            for parked in waiting.values():
                if not parked.ended.done():
                    parked.ended.set_exception(error)

    async def _consult(self, request: ApprovalRequest) -> None:
        """Ask the approver, and carry out what it answers."""
        answer = await self._answer_of(request)
        try:
            try:
                self.answer(request.id, answer)
            except PolicyError as error:
                log.error("approval.approver", approval=request.id, error=str(error))
                reason = f"the approver's pattern can't be used: {error.problem}"
                self.answer(request.id, Deny(reason))
        except ApprovalEnded as error:  # somebody else was faster, or the clock
            log.info("approval.late", approval=request.id, error=str(error))
        except RunnerError as error:
            parked = self._parked.get(request.id)
            if parked is not None and not parked.ended.done():
                parked.ended.set_exception(error)

    async def _answer_of(self, request: ApprovalRequest) -> Answer:
        """What the approver says; a denial where it fails, or says what is no answer."""
        assert self._approver is not None
        approver = self._approver
        try:
            if _is_coroutine_function(approver):
                said = approver(request)
            else:
                said = await _in_thread(lambda: approver(request))
            answer = await said if inspect.isawaitable(said) else said
        except Exception as error:  # an approver is somebody's own code: its mistake is a no
            log.exception("approval.approver", approval=request.id)
            return Deny(f"the approver failed with {type(error).__name__}")
        match answer:
            case (
                Approve(by=str())
                | ApprovePattern(rule=str() | Mapping(), by=str())
                | Deny(reason=str(), by=str())
            ):
                return answer
        log.error("approval.approver", approval=request.id, error=f"no answer: {answer!r:.200}")
        return Deny(f"the approver returned {type(answer).__name__}, which is no answer")

    def _on_loop(self, function: Callable[[], T]) -> T:
        """Do it on the thread of the loop, which is the store's, and wait for it."""
        if self._loop is None or threading.get_ident() == self._thread:
            return function()

        async def there() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(there(), self._loop).result()


@lru_cache(maxsize=256)
def _kept_grant(text: str) -> Grant | None:
    try:
        return Grant.parse(text)
    except PolicyError as error:
        # Another version wrote it. What can't be read grants nothing.
        log.warning("approval.pattern", pattern=text, error=str(error))
        return None


def _why_not(approval: Approval) -> str:
    match approval.state:
        case ApprovalState.EXPIRED:
            waited_s = round(approval.expires_at - approval.asked_at, 3)
            return f"nobody answered within {waited_s:.12g} s, so it is denied"
        case ApprovalState.CANCELLED:
            return f"{approval.answer}, so nobody can approve the call any more"
    return f"approval denied: {approval.answer}" if approval.answer else "approval denied"
