"""What programs in the container speak to the proxy: SOCKS 5, CONNECT, and requests in HTTP.

One tunnel, one call of `serve`. All that arrives is a stranger's: it is read with bounds into
`Asked`, and what is asked for is the way's to judge. Requests that can be read are judged one by
one, each on a connection of its own. Of a connection that hides what it carries, the name that
a TLS client asks for has to be the one that was judged.
"""

import asyncio
import ipaddress

import h11

from runner.egress.access import NotReached, Refused
from runner.egress.exchange import (
    HttpEnd,
    HttpError,
    Outgoing,
    end_to_end,
    first,
    forward,
)
from runner.egress.hello import UNRECOGNISED_NAME, Hello, NotHello, read_hello
from runner.egress.streams import Prefixed, Stream, StreamBroken, TlsStream, Wrapped, hang_up, relay
from runner.egress.way import Way
from runner.policy.network import Asked, Host, NotAHost, read_host

HEAD_TIMEOUT_S = 60.0
"""From the start of a tunnel, or the end of an answer, to the end of a request's head."""
SOCKS_VERSION = 5
HTTP_PORT = 80


class Unclear(Exception):
    """A request that can't be judged; the text says why, for whoever made it."""

    def __init__(self, problem: str, status: int = 400):
        super().__init__(problem)
        self.status = status


async def serve(tunnel: Stream, way: Way) -> None:
    """Serve one tunnel to its end. The caller drops it."""
    try:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            start = await tunnel.receive()
        if not start:
            return
        stream = Prefixed(tunnel, start)
        if start[0] == SOCKS_VERSION:
            await _serve_socks(stream, way)
        else:
            await _serve_http(stream, way)
    except (StreamBroken, TimeoutError):
        return  # whoever asked is gone, or says nothing; what was recorded is recorded


# --- SOCKS 5

_GRANTED = 0
_NOT_ALLOWED = 2
_UNREACHABLE = 4
_NO_SUCH_COMMAND = 7
_NO_SUCH_ADDRESS = 8
_CONNECT = 1
_NO_PASSWORD = 0
_NO_METHOD = 255


async def _serve_socks(stream: Stream, way: Way) -> None:
    reader = _Exactly(stream)
    async with asyncio.timeout(HEAD_TIMEOUT_S):
        _, count = await reader.take(2)
        if _NO_PASSWORD not in await reader.take(count):
            way.note_refusal("socks5", "SOCKS with a password, which is not needed here")
            await stream.send(bytes([SOCKS_VERSION, _NO_METHOD]))
            await hang_up(stream)
            return
        await stream.send(bytes([SOCKS_VERSION, _NO_PASSWORD]))
        version, command, _, kind = await reader.take(4)
        try:
            host = await _socks_host(reader, kind)
        except NotAHost as error:
            way.note_refusal("socks5", str(error))
            code = _NOT_ALLOWED if kind in (_NAME, *_ADDRESS_BYTES) else _NO_SUCH_ADDRESS
            await _answer_socks(stream, code)
            return
        port = int.from_bytes(await reader.take(2))
    asked = Asked("socks5", host, port, readable=_is_opened(way, host))
    if version != SOCKS_VERSION or command != _CONNECT:
        way.note_refusal("socks5", "SOCKS for anything but a connection over TCP", asked=asked)
        await _answer_socks(stream, _NO_SUCH_COMMAND)
        return
    await _serve_connection(_Socks(stream), Prefixed(stream, reader.rest), asked, way)


_NAME = 3
_ADDRESS_BYTES = {1: 4, 4: 16}
"""How long each kind of address is."""


async def _socks_host(reader: "_Exactly", kind: int) -> Host:
    if kind == _NAME:
        (count,) = await reader.take(1)
        name = await reader.take(count)
        if not name.isascii():
            raise NotAHost("a name that is not ASCII")
        return read_host(name.decode())
    if kind not in _ADDRESS_BYTES:
        raise NotAHost("an address of a kind that there is not")
    address = ipaddress.ip_address(await reader.take(_ADDRESS_BYTES[kind]))
    return read_host(str(address))


async def _answer_socks(stream: Stream, code: int) -> None:
    await stream.send(_socks_reply(code))
    await hang_up(stream)


def _socks_reply(code: int) -> bytes:
    return bytes([SOCKS_VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0])


class _Exactly:
    """Reads as many bytes as are asked for."""

    def __init__(self, stream: Stream):
        self._stream = stream
        self.rest = b""
        """What has arrived and was not taken."""

    async def take(self, count: int) -> bytes:
        while len(self.rest) < count:
            data = await self._stream.receive()
            if not data:
                raise StreamBroken("the client hung up")
            self.rest += data
        found, self.rest = self.rest[:count], self.rest[count:]
        return found


class _Socks:
    """How a SOCKS client is told what becomes of its connection."""

    def __init__(self, stream: Stream):
        self._stream = stream

    async def granted(self) -> None:
        await self._stream.send(_socks_reply(_GRANTED))

    async def refused(self, reason: str) -> None:
        await _answer_socks(self._stream, _NOT_ALLOWED)

    async def failed(self, reason: str) -> None:
        await _answer_socks(self._stream, _UNREACHABLE)


# --- connections whose content is the client's own


class _Connect:
    """How a client that said CONNECT is told."""

    def __init__(self, client: HttpEnd):
        self._client = client

    async def granted(self) -> None:
        await self._client.send(h11.Response(status_code=200, headers=[], reason=b"connected"))

    async def refused(self, reason: str) -> None:
        await self._client.answer(403, refusal_text(reason), head=f"refused: {reason}")
        await hang_up(self._client.stream)

    async def failed(self, reason: str) -> None:
        await self._client.answer(502, f"runner: {reason}", head=f"failed: {reason}")
        await hang_up(self._client.stream)


def refusal_text(reason: str) -> str:
    """What somebody is told whose connection is refused."""
    return f"runner: the connection was refused: {reason}"


def _is_opened(way: Way, host: Host) -> bool:
    return way.interception is not None and way.interception.covers(host)


async def _serve_connection(
    told: _Socks | _Connect, stream: Stream, asked: Asked, way: Way
) -> None:
    """Serve a connection that a client wants for itself."""
    if asked.readable:
        decision = way.judge(asked)
        if not decision.allowed:
            way.refused(asked, decision.reason, rule=decision.rule)
            await told.refused(decision.reason)
            return
        await told.granted()
        await _serve_opened(stream, asked, way)
        return
    granted = False
    try:
        async with way.line(asked) as line:
            await told.granted()
            granted = True
            await relay(_Named(stream, asked.host), line)
    except Refused as refused:
        await told.refused(str(refused))
        return
    except NotReached as error:
        await told.failed(str(error))
        return
    except WrongName:
        await stream.send(UNRECOGNISED_NAME)
    except StreamBroken:
        if granted:
            stream.drop()
            return
        raise
    await hang_up(stream)


async def _serve_opened(stream: Stream, asked: Asked, way: Way) -> None:
    """Serve a connection whose TLS ends here."""
    assert way.interception is not None
    assert isinstance(asked.host, str)
    context = way.interception.context(asked.host)
    try:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            tls = await TlsStream.open(stream, context, server_name=None)
    except StreamBroken as error:
        way.note_refusal("connect", f"the client did not accept this end's {error}", asked=asked)
        raise
    await _serve_http(tls, way, origin=asked)
    await hang_up(tls)


class WrongName(StreamBroken):
    """A TLS client asks for another name than the one that was judged."""


class _Named(Wrapped):
    """A client's stream that is looked at until it is known which name it asks for in TLS."""

    def __init__(self, stream: Stream, host: Host):
        super().__init__(stream)
        self._host = host
        self._known = not isinstance(host, str)

    async def receive(self) -> bytes:
        """See `Stream`. Raises `WrongName`."""
        data = await self._stream.receive()
        if self._known:
            return data
        while True:
            try:
                hello = read_hello(data)
            except NotHello as error:
                raise WrongName(f"the client sent {error}") from None
            if hello is not None:
                break
            more = await self._stream.receive()
            if not more:
                break  # it ends before it has said anything
            data += more
        self._known = True
        if hello is not None:
            self._check(hello)
        return data

    def _check(self, hello: Hello) -> None:
        if hello.name is None:
            return
        try:
            found = read_host(hello.name)
        except NotAHost:
            found = ""
        if found != self._host:
            raise WrongName("the client asked for another name in TLS than the one it connected to")


# --- HTTP


async def _serve_http(stream: Stream, way: Way, *, origin: Asked | None = None) -> None:
    """Serve requests, one after the other.

    Args:
        stream: The client's.
        way: The way out.
        origin: The server that the client thinks this is, in TLS; None: it knows of the proxy.
    """
    client = HttpEnd(stream, h11.SERVER)
    while True:
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                request = await client.event()
            if not isinstance(request, h11.Request):
                return  # it hung up between requests
            asked, outgoing = read_request(request, origin)
        except (Unclear, HttpError) as error:
            way.note_refusal("http", str(error))
            if client.can_answer:
                await client.answer(error.status, f"runner: {error}")
            await hang_up(stream)
            return
        if outgoing is None:
            readable = _is_opened(way, asked.host)
            asked = Asked("connect", asked.host, asked.port, readable=readable)
            await _serve_connect(client, asked, way)
            return
        await _serve_request(client, asked, outgoing, way, secure=origin is not None)
        if client.http.our_state is not h11.DONE or client.http.their_state is not h11.DONE:
            await hang_up(stream)
            return
        client.http.start_next_cycle()


async def _serve_connect(client: HttpEnd, asked: Asked, way: Way) -> None:
    await client.event()  # the end of a request without a body
    rest, _ = client.http.trailing_data
    await _serve_connection(_Connect(client), Prefixed(client.stream, rest), asked, way)


async def _serve_request(
    client: HttpEnd, asked: Asked, request: Outgoing, way: Way, *, secure: bool
) -> None:
    """Serve one request, which is judged here. A client that gets no answer is dropped."""
    added = way.credential(asked, secure=secure)
    if added is not None:
        others = [(name, value) for name, value in request.headers if name != added.header]
        request = Outgoing(
            request.method,
            request.target,
            request.host,
            [*others, (added.header, added.value)],
            chunked=request.chunked,
        )
    try:
        async with way.line(asked, credential=added.credential if added else "") as line:
            server: Stream = line
            if secure:
                server = await TlsStream.open(line, way.trusted, server_name=str(asked.host))
            await forward(client, HttpEnd(server, h11.CLIENT), request)
    except Refused as refused:
        await client.answer(403, refusal_text(str(refused)), head=f"refused: {refused}")
    except NotReached as error:
        await client.answer(502, f"runner: {error}", head=f"failed: {error}")
    except StreamBroken as error:
        if not client.can_answer:
            client.stream.drop()
            raise
        status = error.status if isinstance(error, HttpError) else 502
        await client.answer(status, f"runner: {error}", head=f"failed: {error}")


def read_request(request: h11.Request, origin: Asked | None) -> tuple[Asked, Outgoing | None]:
    """What a request is for, and how it goes out; nothing of it for a CONNECT.

    Raises:
        Unclear: It can be read in more than one way, or is none that a proxy gets.
    """
    method = request.method.decode()
    target = request.target.decode("ascii")
    headers = list(request.headers)
    if first(headers, b"upgrade") is not None:
        raise Unclear("this proxy changes no protocols; use CONNECT", 501)
    chunked = first(headers, b"transfer-encoding") is not None
    if chunked and (first(headers, b"content-length") is not None or request.http_version < b"1.1"):
        raise Unclear("the request has two lengths")
    if method == "CONNECT":
        if origin is not None:
            raise Unclear("CONNECT is for the proxy, and this is the server")
        if chunked or first(headers, b"content-length") is not None:
            raise Unclear("CONNECT has no body")
        host, port = _authority(target, None)
        return Asked("connect", host, port), None
    if origin is not None:
        host, port, rest = origin.host, origin.port, target
        default_port = 443
    else:
        host, port, rest = _absolute(target)
        default_port = HTTP_PORT
    if not rest.startswith("/") or "#" in rest:
        raise Unclear(f"{target[:200]!r} is no path")
    given = first(headers, b"host")
    if given is not None and _authority(given.decode("latin-1"), default_port) != (host, port):
        raise Unclear("the header Host names another server than the request is for")
    path = rest.partition("?")[0]
    asked = Asked("http", host, port, method=method, path=path, readable=True)
    return asked, Outgoing(
        method=method,
        target=rest,
        host=asked.where.removesuffix(f":{default_port}"),
        headers=[(name, value) for name, value in end_to_end(headers) if name != b"host"],
        chunked=chunked,
    )


def _absolute(target: str) -> tuple[Host, int, str]:
    scheme, separator, rest = target.partition("://")
    if not separator:
        raise Unclear("this is a proxy: it needs a whole URL, or CONNECT")
    if scheme.lower() != "http":
        raise Unclear(f"{scheme[:20]} goes through CONNECT, not through a request to the proxy")
    ends = [at for at in map(rest.find, "/?#") if at >= 0]
    end = min(ends, default=len(rest))
    host, port = _authority(rest[:end], HTTP_PORT)
    path = rest[end:] or "/"
    return host, port, path if path.startswith("/") else f"/{path}"


def _authority(text: str, default_port: int | None) -> tuple[Host, int]:
    """Host and port.

    Raises:
        Unclear: It is no such thing.
    """
    if "@" in text:  # it may be a password, and what is said of it is recorded
        raise Unclear("a host with a user in front of it")
    name, separator, digits = text.rpartition(":")
    if not separator or (text.startswith("[") and text.endswith("]")):
        name, digits = text, "" if default_port is None else str(default_port)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 5 and 0 < int(digits) < 65536):
        raise Unclear("a host without a port that there is")
    if ":" in name and not name.startswith("["):
        raise Unclear("an IPv6 address stands in brackets")
    try:
        return read_host(name), int(digits)
    except NotAHost as error:
        raise Unclear(str(error), 403) from None
