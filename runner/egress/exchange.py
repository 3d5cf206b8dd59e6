"""HTTP/1.1 on a stream: h11 with somewhere to read from and to write to.

Owns framing, and which headers are of one connection only. It judges nothing.
"""

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import h11

from runner.egress.streams import Stream, StreamBroken

MAX_HEAD_BYTES = 64 * 1024
"""Of a request's or a response's head."""
MAX_HEAD_LINES = 256
"""Of a head, and of trailers. Each line costs time that all sessions share."""
REASON_CHARACTERS = 180
"""Of a refusal that fit into the status line, which is all that some programs show."""

Header = tuple[bytes, bytes]
Headers = Sequence[Header]

_END_OF_HEAD = re.compile(rb"\n\r?\n")
_OF_ONE_CONNECTION = frozenset(
    [
        *(b"connection", b"proxy-connection", b"keep-alive", b"te", b"trailer", b"upgrade"),
        *(b"transfer-encoding", b"expect", b"proxy-authorization", b"proxy-authenticate"),
    ]
)


class HttpError(StreamBroken):
    """The other end does not speak HTTP/1.1 as it should; the text says how."""

    def __init__(self, problem: str, status: int = 400):
        super().__init__(problem)
        self.status = status
        """What a client that did so is answered with."""


class HttpEnd:
    """One end of an HTTP connection."""

    def __init__(self, stream: Stream, role: type[h11.CLIENT] | type[h11.SERVER]):
        self.stream = stream
        self.http = h11.Connection(role, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._is_head = False
        """The request is a HEAD, whose answer has no body."""

    async def event(self) -> "h11.Event | type[h11.PAUSED]":
        """What the other end says next.

        Raises:
            HttpError: It makes no sense.
            StreamBroken: It is gone.
        """
        while True:
            # What has arrived may be thousands of events: others have their turn between them.
            await asyncio.sleep(0)
            self._check_head()
            try:
                event = self.http.next_event()
                if isinstance(event, h11.Request):
                    self._is_head = event.method == b"HEAD"
                if isinstance(event, h11.Event) or event is h11.PAUSED:
                    return event
                self._check_lines()  # of a body, what waits to be whole are its trailers
                data = await self.stream.receive()
                if not data and self.http.their_state is h11.SEND_RESPONSE:
                    raise self._nonsense("the server hung up without an answer", 502)
                self.http.receive_data(data)
            except h11.RemoteProtocolError as error:
                raise self._nonsense(str(error), error.error_status_hint) from error

    def _check_head(self) -> None:
        if self.http.their_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._check_lines()

    def _check_lines(self) -> None:
        """That what waits to be read, up to an empty line, has no more of them than may be."""
        waiting, _ = self.http.trailing_data
        if waiting.count(b"\n") > MAX_HEAD_LINES:
            end = _END_OF_HEAD.search(waiting)
            if end is None or waiting.count(b"\n", 0, end.start()) > MAX_HEAD_LINES:
                raise self._nonsense(f"more than {MAX_HEAD_LINES} lines of headers", 431)

    def _nonsense(self, problem: str, status: int) -> HttpError:
        """The error for what the other end said: a client is told so, a server's fault is a 502."""
        return HttpError(problem, status if self.http.our_role is h11.SERVER else 502)

    async def send(self, *events: h11.Event) -> None:
        """Send these.

        Raises:
            HttpError: They don't fit what was said before, such as a body of another length.
            StreamBroken: The other end is gone.
        """
        try:
            data = b"".join(self.http.send(event) or b"" for event in events)
        except h11.LocalProtocolError as error:
            raise HttpError(str(error), 502) from error
        if data:
            await self.stream.send(data)

    async def answer(self, status: int, text: str, *, head: str = "") -> None:
        """Answer a request with words of ours, after which the connection is closed.

        Args:
            status: The status.
            text: What to say, in the body.
            head: The same for the status line; empty for its beginning.
        """
        body = f"{text}\n".encode()
        said = "".join(c if c.isprintable() else " " for c in (head or text)[:REASON_CHARACTERS])
        reason = said.strip().encode("ascii", errors="replace")
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        response = h11.Response(status_code=status, headers=headers, reason=reason)
        shown = [] if self._is_head else [h11.Data(data=body)]
        await self.send(response, *shown, h11.EndOfMessage())

    @property
    def can_answer(self) -> bool:
        """Whether nothing of a response was said yet."""
        return self.http.our_state is h11.SEND_RESPONSE or self.http.our_state is h11.IDLE


def end_to_end(headers: Iterable[Header]) -> list[Header]:
    """The headers that are for the other end, without those of this connection."""
    given = [(name.lower(), value) for name, value in headers]
    named = {
        word.strip().lower()
        for name, value in given
        if name == b"connection"
        for word in value.split(b",")
    }
    return [
        (name, value)
        for name, value in given
        if name not in _OF_ONE_CONNECTION and name not in named
    ]


def first(headers: Iterable[Header], name: bytes) -> bytes | None:
    """The value of the first header of this name."""
    return next((value for found, value in headers if found.lower() == name), None)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request as it goes out."""

    method: str
    target: str
    """The path with its query."""
    host: str
    """As the header has it."""
    headers: Headers
    """The client's, end to end, without a `Host`."""
    chunked: bool = False
    """The body comes in pieces, and nobody knows how long it is."""

    def event(self) -> h11.Request:
        """It for h11."""
        own: list[Header] = [(b"host", self.host.encode()), *self.headers]
        if self.chunked:
            own.append((b"transfer-encoding", b"chunked"))
        return h11.Request(
            method=self.method.encode(),
            target=self.target.encode(),
            headers=[*own, (b"connection", b"close")],
        )


async def forward(client: HttpEnd, upstream: HttpEnd, request: Outgoing) -> None:
    """Send a request on and its answer back, bodies as they come.

    Raises:
        HttpError, StreamBroken: One of both ends failed.
    """
    await upstream.send(request.event())
    try:
        async with asyncio.TaskGroup() as tasks:
            body = tasks.create_task(_request_body(client, upstream))
            tasks.create_task(_response(client, upstream, body))
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


async def _request_body(client: HttpEnd, upstream: HttpEnd) -> None:
    if client.http.they_are_waiting_for_100_continue:
        await client.send(h11.InformationalResponse(status_code=100, headers=[]))
    wanted = True
    while True:
        event = await client.event()
        if isinstance(event, h11.EndOfMessage):
            event = h11.EndOfMessage()  # trailers could hold what headers may not
        elif not isinstance(event, h11.Data):
            raise HttpError("the request's body ended too soon")
        if wanted:
            try:
                await upstream.send(event)
            except StreamBroken:
                wanted = False  # it may have answered without wanting to hear more
        if isinstance(event, h11.EndOfMessage):
            return


async def _response(client: HttpEnd, upstream: HttpEnd, body: "asyncio.Task[None]") -> None:
    while True:
        event = await upstream.event()
        match event:
            case h11.InformationalResponse():
                continue
            case h11.Response():
                headers = end_to_end(event.headers)
                if first(event.headers, b"transfer-encoding") is not None:
                    headers = [one for one in headers if one[0] != b"content-length"]
                await client.send(
                    h11.Response(
                        status_code=event.status_code, headers=headers, reason=event.reason
                    )
                )
            case h11.Data():
                await client.send(event)
            case h11.EndOfMessage():
                await client.send(h11.EndOfMessage())
                body.cancel()  # an answer is the end, even to half a question
                return
            case _:
                raise HttpError("the server hung up before its answer was complete", 502)
