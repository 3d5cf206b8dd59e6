"""Asking the person behind a client: what is shown, and what an answer means.

Owns the words of a question and the ways it reaches the client that made the call: at once,
or as an answer to the request, which the client then makes again. Approvals themselves are
`runner.approvals`'. What a model writes into arguments is shown, and never read as an answer.
"""

import asyncio
import json
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from runner.approvals import Answer, ApprovalRequest, Approve, Deny
from runner.logs import log, visible

__all__ = [
    "AskAtOnce",
    "AskByReturn",
    "AskElsewhere",
    "Asker",
    "Channel",
    "Context",
    "asked_by",
    "can_elicit",
    "form",
    "meaning",
]

YES, NO = "allow once", "deny"
ANSWER, REASON = "answer", "reason"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        ANSWER: {"type": "string", "title": "May this call run?", "enum": [YES, NO]},
        REASON: {
            "type": "string",
            "title": "Reason, for the model",
            "description": "Shown to the model when the call is denied. May be left empty.",
        },
    },
    "required": [ANSWER],
}
"""What the client asks for. Nothing is preset: whoever only confirms has not answered."""
BAR = "  | "
"""Before each line of somebody else's, so that none of it can pass for ours."""
REASON_CHARACTERS = 1000

Context = ServerRequestContext[Any, Any]


class Channel(Protocol):
    """The way to the person behind one call."""

    async def ask(self, request: ApprovalRequest) -> Answer:
        """Ask, and wait for the answer."""
        ...


asked_by: ContextVar[Channel | None] = ContextVar("asked_by", default=None)
"""Who is asked about the calls of this task; None: whoever answers through the store."""


class Asker:
    """The approver of the server: it asks by the channel of the call."""

    how = "mcp"

    async def __call__(self, request: ApprovalRequest) -> Answer:
        """Ask, and wait for the answer."""
        return await (asked_by.get() or AskElsewhere()).ask(request)


class AskElsewhere:
    """Nobody is there to be asked: whoever uses `runner approvals` answers."""

    def __init__(self, tell: Callable[[str], None] | None = None):
        self._tell = tell

    async def ask(self, request: ApprovalRequest) -> Answer:
        """Wait until the store has an answer, which cancels this."""
        if self._tell is not None:
            self._tell(f"waits for an answer: runner approvals show {request.id}")
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        return await waiting


class AskAtOnce:
    """A request of the server's own, while the call waits: revisions up to 2025-11-25."""

    def __init__(self, context: Context):
        self._context = context

    async def ask(self, request: ApprovalRequest) -> Answer:
        """See `Channel`."""
        try:
            result = await self._context.session.elicit_form(
                words(request), SCHEMA, related_request_id=self._context.request_id
            )
        except (MCPError, ValidationError) as error:
            log.warning("mcp.elicitation", approval=request.id, error=str(error))
            return Deny("the client did not put the question to anybody")
        return meaning(result)


class AskByReturn:
    """The question is the answer to the request; the next one brings what was said: 2026-07-28."""

    def __init__(self) -> None:
        self.pending: ApprovalRequest | None = None
        """What there is to ask now."""
        self.news = self._future()
        """Done while something is pending."""
        self._said: asyncio.Future[Answer] | None = None

    async def ask(self, request: ApprovalRequest) -> Answer:
        """See `Channel`. A call has one question at a time."""
        said: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._said = said
        self.pending = request
        self.news.set_result(None)
        try:
            return await said
        finally:
            if self._said is said:
                self._settle()

    def answer(self, answer: Answer) -> None:
        """Hand over what was said to what is pending."""
        assert self._said is not None
        if not self._said.done():  # an answer from elsewhere may be a moment earlier
            self._said.set_result(answer)
        self._settle()

    def _settle(self) -> None:
        self.pending = self._said = None
        self.news = self._future()

    @staticmethod
    def _future() -> "asyncio.Future[None]":
        return asyncio.get_running_loop().create_future()


def can_elicit(context: Context) -> bool:
    """Whether the client said that it can put a form before a person."""
    capabilities = context.session.client_capabilities
    if capabilities is None or (declared := capabilities.elicitation) is None:
        return False
    # One that names no mode is of a time when there was only this one.
    return declared.form is not None or declared.url is None


def form(request: ApprovalRequest) -> types.ElicitRequest:
    """The question as a request that travels in an answer."""
    parameters = types.ElicitRequestFormParams(message=words(request), requested_schema=SCHEMA)
    return types.ElicitRequest(params=parameters)


def words(request: ApprovalRequest) -> str:
    """The question for a person: the tool, and all of its arguments."""
    reason = f" ({request.reason})" if request.reason else ""
    lines = [line for name, value in request.arguments.items() for line in _lines(name, value)]
    if request.resolved is not None and request.resolved != request.arguments.get("path"):
        lines.append(f"the path leads to {json.dumps(request.resolved)}")
    return "\n".join(
        [
            f"The rule {request.rule} asks about a call of {request.tool}{reason}:",
            *(f"{BAR}{visible(line)}" for line in lines or ["(no arguments)"]),
            f"{request.id}, in session {request.session}",
        ]
    )


def _lines(name: str, value: object) -> list[str]:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if "\n" in text:
        return [f"{name}:", *(f"  {line}" for line in text.split("\n"))]
    return [f"{name}: {text}"]


def meaning(result: object) -> Answer:
    """What a client's answer means: yes is said in so many words, all else is a no."""
    if not isinstance(result, types.ElicitResult):
        return Deny("the client's answer could not be understood")
    match result.action:
        case "decline":
            return Deny("whoever was asked declined to answer")
        case "cancel":
            return Deny("whoever was asked closed the question")
    said = result.content or {}
    if said.get(ANSWER) == YES:
        return Approve()
    reason = said.get(REASON)
    return Deny(reason[:REASON_CHARACTERS] if isinstance(reason, str) else "")
