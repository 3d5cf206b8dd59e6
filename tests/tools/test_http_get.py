"""`http_get`: what comes back and what is said where nothing may."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from runner.egress.access import Fetched, NotReached, Refused
from runner.model import Call, Outcome, Status
from runner.tools import InvalidInput, ToolContext, decode, effects
from runner.tools.http_get import MAX_BODY_BYTES, HttpGetInput, HttpGetTool

PAGE = Fetched("https://a.example/x", 200, "OK", "text/plain", b"hello\n", complete=True)


@dataclass
class Network:
    """A network on which every page is this one, or this is what happens."""

    page: Fetched | Exception = PAGE
    refusals: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def fetch(self, url: str, *, most_bytes: int, timeout_s: float) -> Fetched:
        self.asked.append({"url": url, "most_bytes": most_bytes, "timeout_s": timeout_s})
        if isinstance(self.page, Exception):
            raise self.page
        return self.page

    def refused_since(self, refusals: int) -> tuple[str, ...]:
        return ()


def get(network: Network | None, *, deadline_s: float = 60.0) -> Outcome:
    decoded = decode(HttpGetTool(), {"url": "https://a.example/x"})
    call = Call("c-1", "s-1", "http_get", decoded.arguments, decoded.canonical, 60.0)
    context = ToolContext(
        sandbox=None,  # type: ignore[arg-type]  # it never touches it
        call=call,
        deadline_s=deadline_s,
        network=network,
    )
    assert isinstance(decoded.input, HttpGetInput)
    return asyncio.run(HttpGetTool().execute(context, decoded.input))


def test_the_status_comes_first_and_then_the_body() -> None:
    outcome = get(Network())

    assert (outcome.status, outcome.output) == (Status.OK, "HTTP 200 OK\nhello\n")
    assert outcome.details == {
        "url": "https://a.example/x",
        "status": 200,
        "content_type": "text/plain",
    }


def test_an_error_of_the_server_is_an_answer_like_any_other() -> None:
    page = Fetched("https://a.example/x", 503, "", "", b"", complete=True)

    assert get(Network(page)).output == "HTTP 503\n"


def test_what_is_cut_says_so_and_what_is_no_text_is_counted() -> None:
    page = Fetched("https://a.example/x", 200, "OK", "", b"\xffabc", complete=False)
    outcome = get(Network(page))

    assert outcome.output == "HTTP 200 OK\n\ufffdabc\n(truncated at 1048576 bytes)"
    assert outcome.details["truncated"]
    assert outcome.details["undecodable_bytes"] == 1


def test_a_session_without_a_network_is_told_so() -> None:
    outcome = get(None)

    assert outcome.status is Status.DENIED
    assert outcome.error is not None
    assert "no network" in outcome.error


@pytest.mark.parametrize(
    ("trouble", "status", "error"),
    [
        (Refused("no rule allows it"), Status.DENIED, "http_get: refused: no rule allows it"),
        (NotReached("nobody there"), Status.FAILED, "http_get: nobody there"),
    ],
)
def test_trouble_is_a_result(trouble: Exception, status: Status, error: str) -> None:
    outcome = get(Network(trouble))

    assert (outcome.status, outcome.error) == (status, error)


@pytest.mark.parametrize(("deadline_s", "timeout_s"), [(60.0, 30.0), (5.0, 5.0)])
def test_it_takes_thirty_seconds_and_a_mebibyte_at_most(
    deadline_s: float, timeout_s: float
) -> None:
    network = Network()
    get(network, deadline_s=deadline_s)

    assert network.asked == [
        {"url": "https://a.example/x", "most_bytes": MAX_BODY_BYTES, "timeout_s": timeout_s}
    ]


def test_it_takes_a_url_and_nothing_else() -> None:
    for given in ({}, {"url": ""}, {"url": "https://a", "method": "POST"}, {"url": "a\0b"}):
        with pytest.raises(InvalidInput):
            decode(HttpGetTool(), given)


def test_it_reads_and_reaches_out() -> None:
    assert effects(HttpGetTool()).read_only
    assert effects(HttpGetTool()).open_world
