"""Fetching a page for a tool of the host: HTTPS, under the rules that the container is under.

Each redirect is a request like the first: judged, resolved, dialled and recorded for itself.
"""

import asyncio
import re
import urllib.parse

import h11

from runner.egress.access import Fetched, NotReached, Refused
from runner.egress.exchange import Header, HttpEnd, Outgoing, first
from runner.egress.streams import StreamBroken, TlsStream
from runner.egress.way import Way
from runner.policy.network import Asked, NotAHost, read_host
from runner.version import __version__

MAX_REDIRECTS = 10
HTTPS_PORT = 443
MAX_URL_CHARACTERS = 8192
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PRINTABLE = re.compile(r"[\x21-\x7e]+\Z")


async def fetch(way: Way, url: str, *, most_bytes: int, timeout_s: float) -> Fetched:
    """Fetch a page; see `Leash.fetch`."""
    try:
        async with asyncio.timeout(timeout_s):
            for _ in range(MAX_REDIRECTS + 1):
                got = await _get(way, url, most_bytes)
                if isinstance(got, Fetched):
                    return got
                url = got
    except TimeoutError:
        raise NotReached(f"no answer from {_shown(url)} in {timeout_s:g} s") from None
    except StreamBroken as error:
        raise NotReached(f"{_shown(url)}: {error}") from error
    raise NotReached(f"more than {MAX_REDIRECTS} redirects")


def read_url(way: Way, url: str) -> tuple[Asked, str]:
    """What a URL asks for, and its path with its query.

    Raises:
        Refused: It is none of `https`, or can be read in more than one way.
    """
    if len(url) > MAX_URL_CHARACTERS:
        raise _unreadable(way, "the URL is too long")
    if not _PRINTABLE.match(url) or "\\" in url:
        raise _unreadable(way, "the URL holds characters that have to be encoded")
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() != "https":
        raise _unreadable(way, "only https:// is fetched")
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    name, target = rest[:end], rest[end:].partition("#")[0]
    if "@" in name:  # it may be a password, and what is said of it is recorded
        raise _unreadable(way, "a URL with a user in it is not fetched")
    port = HTTPS_PORT
    found = re.fullmatch(r"(.*):([0-9]{1,5})", name)
    if found and not name.endswith("]"):
        name, port = found[1], int(found[2])
    try:
        if not 0 < port < 65536 or (":" in name and not name.startswith("[")):
            raise NotAHost(f"{name!r} is no host with a port")
        host = read_host(name)
    except NotAHost as error:
        raise _unreadable(way, str(error)) from None
    if not target.startswith("/"):
        target = f"/{target}"
    path = target.partition("?")[0]
    return Asked("tool", host, port, method="GET", path=path, readable=True), target


def _unreadable(way: Way, reason: str) -> Refused:
    way.note_refusal("tool", reason)
    return Refused(reason)


async def _get(way: Way, url: str, most_bytes: int) -> Fetched | str:
    """A page, or where it is instead."""
    asked, target = read_url(way, url)
    added = way.credential(asked, secure=True)
    headers: list[Header] = [
        (b"user-agent", f"rousseau-runner/{__version__}".encode()),
        (b"accept", b"*/*"),
        (b"accept-encoding", b"identity"),
    ]
    if added is not None:
        headers.append((added.header, added.value))
    host = asked.where.removesuffix(f":{HTTPS_PORT}")
    async with way.line(asked, credential=added.credential if added else "") as line:
        tls = await TlsStream.open(line, way.trusted, server_name=str(asked.host))
        server = HttpEnd(tls, h11.CLIENT)
        await server.send(
            Outgoing("GET", target, host, headers).event(),
            h11.EndOfMessage(),
        )
        event = await server.event()
        while isinstance(event, h11.InformationalResponse):
            event = await server.event()
        if not isinstance(event, h11.Response):
            raise StreamBroken("the server hung up without an answer")
        to = first(event.headers, b"location")
        if event.status_code in _REDIRECTS and to is not None:
            return urllib.parse.urljoin(url, to.decode("latin-1"))
        body, complete = await _body(server, most_bytes)
        return Fetched(
            url=url,
            status=event.status_code,
            reason=event.reason.decode("latin-1"),
            content_type=(first(event.headers, b"content-type") or b"").decode("latin-1"),
            body=body,
            complete=complete,
        )


async def _body(server: HttpEnd, most_bytes: int) -> tuple[bytes, bool]:
    found = bytearray()
    while True:
        event = await server.event()
        if isinstance(event, h11.EndOfMessage):
            return bytes(found), True
        if not isinstance(event, h11.Data):
            raise StreamBroken("the server hung up before its answer was complete")
        found += event.data
        if len(found) > most_bytes:
            return bytes(found[:most_bytes]), False


def _shown(url: str) -> str:
    """A URL without its query, which may hold secrets."""
    return url.partition("?")[0][:300]
