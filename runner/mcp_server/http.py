"""The transport over HTTP: what is let in, and the server that hands it to the SDK.

Every request passes, in this order: the Host and Origin it names, so that no web page reaches
us by a name of its own; the token; its size; whether its body is one message. The protocol
itself is the SDK's.
"""

import asyncio
import contextlib
import hmac
import ipaddress
import json
import os
import re
import socket
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import uvicorn
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from runner.errors import ConfigurationError
from runner.mcp_server.messages import MAX_MESSAGE_BYTES, Refused, read
from runner.mcp_server.server import SESSION_HEADER, ToolServer

__all__ = ["Address", "Door", "check_name", "listening", "serve"]

PATH = "/mcp"
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
MAX_CLIENTS = 1000
"""Sessions of the protocol at once, whether or not they have a container."""
MAX_CONNECTIONS = 500
HEAD_S = 10.0
"""How long a connection without a request is kept, in seconds; at most twice as long."""
BODY_S = 60.0
"""How long a body may take, in seconds."""
LEAVE_S = 1
"""How long clients that only listen keep the server once it is to end, in seconds."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read `HOST:PORT`; an IPv6 address stands in brackets.

        Raises:
            ConfigurationError: It is none.
        """
        host, _, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            host = ""
        if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
            raise ConfigurationError(f"{text!r} is no HOST:PORT, such as 127.0.0.1:8000")
        return cls(host, int(port))

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host == "localhost" or _is_loopback(self.host)

    @property
    def names(self) -> frozenset[str] | None:
        """The hosts that requests may name; None: any address, since it listens on all."""
        address = _address(self.host)
        if address is not None and address.is_unspecified:
            return None
        return LOCAL_NAMES | {self.host.lower()}


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return address is not None and address.is_loopback


def check_name(text: str) -> str:
    """A name that requests may give this server, as it stands in their Host.

    Raises:
        ConfigurationError: It is none: a URL, or one with a port, which is not looked at.
    """
    if re.fullmatch(r"[A-Za-z0-9._-]+", text) is None and _address(text) is None:
        raise ConfigurationError(
            f"{text!r} is no name of a host, such as tools.example: write it without scheme, port"
            " and path"
        )
    return text


class Door:
    """Lets requests in, or answers why not. An ASGI application around another one.

    Args:
        inside: Gets what may come in, its body whole.
        names: Hosts that requests may name, in lower case; None: any that is an address.
        more: Other names, such as a proxy's.
        token: What has to be shown; None: nothing.
    """

    def __init__(
        self,
        inside: ASGIApp,
        *,
        names: Collection[str] | None,
        more: Collection[str] = (),
        token: str | None = None,
    ):
        self._inside = inside
        self._names = names
        self._more = frozenset(name.lower() for name in more)
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":  # the server has no web sockets, and no other business
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(headers)
        if refusal is None and scope["path"] != PATH:
            refusal = PlainTextResponse("there is nothing here but " + PATH, 404)
        if refusal is None and scope["method"] == "POST":
            body = await _body(headers, receive)
            if isinstance(body, Response):
                refusal = body
            else:
                receive = _again(body, receive)
        await (self._inside if refusal is None else refusal)(scope, receive, send)

    def _refusal(self, headers: Headers) -> Response | None:
        host, origin = headers.getlist("host"), headers.getlist("origin")
        if len(host) != 1 or not self._knows(f"//{host[0]}"):
            return PlainTextResponse("this server does not answer to that Host", 403)
        if len(origin) > 1 or (origin and not self._knows(origin[0])):
            return PlainTextResponse("requests of that Origin are not taken", 403)
        if self._token is not None and not self._is_shown(headers.getlist("authorization")):
            challenge = {"WWW-Authenticate": f'Bearer realm="{PATH}"'}
            return PlainTextResponse("this server wants its bearer token", 401, challenge)
        return None

    def _knows(self, url: str) -> bool:
        """Whether the host of a URL is one of ours, whatever its port."""
        if not url.isprintable():
            return False  # reading it as a URL would leave such characters out
        try:
            split = urlsplit(url)
            host = split.hostname
        except ValueError:
            return False
        if host is None or split.scheme not in ("", "http", "https"):
            return False
        if "@" in split.netloc or split.path or split.query or split.fragment:
            return False
        if host in self._more:
            return True
        if self._names is None:
            return host == "localhost" or _address(host) is not None
        return host in self._names

    def _is_shown(self, found: list[str]) -> bool:
        if len(found) != 1:
            return False
        scheme, _, token = found[0].partition(" ")
        shown = token.strip().encode("latin-1")  # as it came: headers are read so
        assert self._token is not None
        return hmac.compare_digest(shown, self._token) and scheme.lower() == "bearer"


async def _body(headers: Headers, receive: Receive) -> bytes | Response:
    """The body of a request, once it is found to be one message."""
    too_large = PlainTextResponse(f"a message has {MAX_MESSAGE_BYTES} bytes at most", 413)
    if "content-length" in headers and "transfer-encoding" in headers:
        # A proxy in front may have read the other one of the two.
        return PlainTextResponse("the request has two lengths", 400)
    declared = headers.get("content-length", "0")
    if not declared.isascii() or not declared.isdecimal() or int(declared) > MAX_MESSAGE_BYTES:
        return too_large
    body = bytearray()
    more = True
    try:
        async with asyncio.timeout(BODY_S):
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    return PlainTextResponse("the request was cut short", 400)
                body += message.get("body", b"")
                if len(body) > MAX_MESSAGE_BYTES:
                    return too_large
                more = message.get("more_body", False)
    except TimeoutError:
        return PlainTextResponse(f"the message did not arrive within {BODY_S:g} s", 408)
    try:
        read(bytes(body))
    except Refused as refused:
        return JSONResponse(json.loads(refused.answer.model_dump_json(by_alias=True)), 400)
    return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    """What was read of a request, once more, and then whatever else comes."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay


def _application(tools: ToolServer, manager: StreamableHTTPSessionManager) -> ASGIApp:
    """The SDK's application; a client that ends its session ends ours, too."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        status = 0

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        await manager.handle_request(scope, receive, watch)
        client = Headers(scope=scope).get(SESSION_HEADER)
        if scope["method"] == "DELETE" and status == 200 and client is not None:
            await tools.end(client)

    return application


def listening(address: Address, *, token: str | None) -> socket.socket:
    """A socket that listens where it may.

    Raises:
        ConfigurationError: Others than this machine reach the address and there is no token;
            or it can't be had.
    """
    open_to_others = ConfigurationError(
        f"{address.host} can be reached from other machines: set a token (RUNNER_MCP_TOKEN,"
        " or --token-file FILE), or listen on 127.0.0.1"
    )
    if not address.is_local and token is None:
        raise open_to_others
    try:
        family, *_, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        if token is None and not _is_loopback(str(where[0])):  # whatever `localhost` is here
            raise open_to_others
        return socket.create_server(where[:2], family=family, backlog=128)
    except socket.gaierror as error:
        raise ConfigurationError(f"can't listen on {address.host!r}: {error.strerror}") from error
    except OSError as error:  # its own text names the address again
        why = os.strerror(error.errno or 0)
        raise ConfigurationError(f"can't listen on {address.host}:{address.port}: {why}") from error


class _Connection(H11Protocol):
    """A connection that is let go when no request comes.

    Uvicorn waits for the rest of a head for ever, and a few hundred halves of one, for which
    nobody has to show a token, would keep everybody else out.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio."""
        super().connection_made(transport)
        self._look(None, idle=False)

    def _look(self, before: object, *, idle: bool) -> None:
        if self.transport.is_closing():
            return
        now = self.cycle
        if idle and now is before:
            self.transport.abort()
            return
        idle = now is None or now.response_complete
        self.loop.call_later(HEAD_S, lambda: self._look(now, idle=idle))


class _Uvicorn(uvicorn.Server):
    """One that leaves signals to the command line."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    tools: ToolServer,
    sock: socket.socket,
    address: Address,
    *,
    token: str | None,
    more: Collection[str] = (),
    idle_timeout_s: float,
) -> None:
    """Serve until cancelled.

    Args:
        tools: What is served.
        sock: From `listening`.
        address: Where that listens.
        token: What clients have to show; None: nothing.
        more: Names that requests may give the server, beside its own.
        idle_timeout_s: After so long without a request a session of the protocol is over.
    """
    manager = StreamableHTTPSessionManager(
        tools.lowlevel,
        session_idle_timeout=idle_timeout_s,
        max_request_body_size=MAX_MESSAGE_BYTES,
        max_sessions=MAX_CLIENTS,
    )
    door = Door(_application(tools, manager), names=address.names, more=more, token=token)
    config = uvicorn.Config(
        door,
        http=_Connection,  # whatever else is installed
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=LEAVE_S,
    )
    server = _Uvicorn(config)
    async with manager.run():
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        try:
            await asyncio.shield(serving)
        finally:
            await tools.close()  # while there still is a way to tell those who wait
            server.should_exit = True
            await asyncio.wait({serving})
