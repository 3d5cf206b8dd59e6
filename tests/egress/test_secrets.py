"""Secrets stay on the host, and HTTPS is opened only where somebody wanted it to be."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from runner.egress.access import NotReached, Refused
from runner.egress.credentials import Credentials
from runner.egress.interception import Interception
from runner.egress.leash import Leash
from runner.egress.streams import StreamBroken, TlsStream
from runner.errors import ConfigurationError
from runner.model import Verdict
from runner.settings import Credential, Settings
from tests.egress.fakes import LOOPBACK, Handler, Web, World, serving
from tests.egress.test_proxy import PUBLIC, connect, get

pytestmark = pytest.mark.anyio

RULES = """{allow: [
    {host: [api.example, other.example], ports: [443, 80],
     methods: [GET, TRACE, TRACK], paths: ["/v1/**"]},
    {host: go.example}]}"""
NAMES = {name: [PUBLIC] for name in ("api.example", "other.example", "go.example")}
SECRET = "Bearer s3cr3t-of-the-host"


def credential(**more: Any) -> Mapping[str, Credential]:
    return {"api": Credential(host="api.example", value=SecretStr(SECRET), **more)}


class Authority:
    """The certificates of the servers of these tests."""

    def __init__(self) -> None:
        self._made = Interception(list(NAMES))
        self.trusted = ssl.create_default_context(cadata=self._made.certificate.decode())

    def server(self, name: str) -> ssl.SSLContext:
        return self._made.context(name)


AUTHORITY = Authority()


def world(*, intercept: tuple[str, ...] = (), rules: str = RULES, **more: Any) -> World:
    credentials = more.pop("credentials", credential())
    return World(
        rules,
        NAMES,
        credentials=Credentials(credentials),
        interception=Interception(intercept) if intercept else None,
        trusted=AUTHORITY.trusted,
        **more,
    )


@asynccontextmanager
async def serving_tls(world: World, name: str, port: int, handler: Handler) -> AsyncIterator[None]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(handle, LOOPBACK, 0, ssl=AUTHORITY.server(name))
    world.servers[PUBLIC, port] = server.sockets[0].getsockname()[1]
    try:
        yield
    finally:
        server.close()
        await world.leash.close()


async def inside(here: World, host: str) -> TlsStream:
    """A client in the container that trusts the session's authority, connected to a host."""
    assert here.leash.interception is not None
    tunnel = here.tunnel()
    await tunnel.send(connect(host))
    assert b" 200 " in await tunnel.until(b"\r\n\r\n")
    context = ssl.create_default_context(cadata=here.leash.interception.certificate.decode())
    return await TlsStream.open(tunnel, context, server_name=host)


async def all_of(stream: TlsStream) -> bytes:
    found = b""
    while data := await stream.receive():
        found += data
    return found


async def test_a_secret_is_added_to_a_plain_request_only_where_the_settings_say_so() -> None:
    for plain, ports in ((False, (80,)), (True, (80,)), (True, (443,))):
        here = world(credentials=credential(plain_http=plain, ports=ports))
        web = Web()
        async with serving(here, PUBLIC, 80, web):
            client = here.tunnel()
            await client.send(
                get("http://api.example/v1/a", "api.example", "AUTHORIZATION: mine", "X: 1")
            )
            await client.until(b"ok")
        added = plain and 80 in ports
        assert (SECRET.encode() in web.heads[0]) == added
        assert (b"mine" in web.heads[0]) != added
        assert here.records.last.credential == ("api" if added else "")


async def test_a_secret_goes_to_its_own_host_and_path_and_to_no_echo() -> None:
    here = world(credentials=credential(plain_http=True, ports=(80,), paths=("/v1/me",)))
    web = Web()
    async with serving(here, PUBLIC, 80, web):
        for method, url in (
            ("GET", "http://other.example/v1/me"),
            ("GET", "http://api.example/v1/you"),
            ("TRACE", "http://api.example/v1/me"),
            ("TRACK", "http://api.example/v1/me"),
        ):
            client = here.tunnel()
            host = url.split("/")[2]
            await client.send(get(url, host).replace(b"GET", method.encode(), 1))
            await client.until(b"ok")

    assert len(web.heads) == 4
    assert not any(SECRET.encode() in head for head in web.heads)


async def test_https_of_a_listed_host_is_opened_judged_and_given_the_secret() -> None:
    here = world(intercept=("api.example",))
    web = Web()
    async with serving_tls(here, "api.example", 443, web):
        client = await inside(here, "api.example")
        await client.send(get("/v1/a?q=1", "api.example"))
        first = await client.receive()
        await client.send(get("/v2", "api.example", "Connection: close"))
        second = await all_of(client)

    assert first.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 403 refused: " in second
    assert len(web.heads) == 1
    assert f"authorization: {SECRET}".encode() in web.heads[0]
    assert [(row.method, row.path, row.verdict, row.credential) for row in here.records.rows] == [
        ("GET", "/v1/a", Verdict.ALLOW, "api"),
        ("GET", "/v2", Verdict.DENY, ""),
    ]
    assert SECRET.split()[1] not in repr(here.records.rows)


async def test_a_host_that_is_not_listed_keeps_its_own_certificate() -> None:
    here = world(intercept=("api.example",))
    async with serving_tls(here, "go.example", 443, Web()):
        tunnel = here.tunnel()
        await tunnel.send(connect("go.example"))
        await tunnel.until(b"\r\n\r\n")
        client = await TlsStream.open(tunnel, AUTHORITY.trusted, server_name="go.example")
        await client.send(get("/", "go.example"))
        assert (await client.receive()).startswith(b"HTTP/1.1 200")


async def test_a_server_that_can_not_prove_its_name_is_not_talked_to() -> None:
    here = world(intercept=("api.example",))
    web = Web()
    async with serving_tls(here, "other.example", 443, web):
        client = await inside(here, "api.example")
        await client.send(get("/v1/a", "api.example"))
        answer = await all_of(client)

    assert answer.startswith(b"HTTP/1.1 502 failed: TLS: the certificate is no good")
    assert web.heads == []


async def test_the_authority_of_a_session_is_good_for_the_listed_hosts_only() -> None:
    interception = Interception(["api.example", "*.below.example"])
    trusting = ssl.create_default_context(cadata=interception.certificate.decode())

    async def meet(name: str) -> None:
        from tests.egress.fakes import Pipe

        one, other = Pipe.pair()
        server = asyncio.create_task(
            TlsStream.open(one, interception.context(name), server_name=None)
        )
        try:
            await TlsStream.open(other, trusting, server_name=name)
        finally:
            other.shut()
            await asyncio.gather(server, return_exceptions=True)

    await meet("api.example")
    await meet("a.below.example")
    with pytest.raises(StreamBroken, match="certificate is no good"):
        await meet("evil.example")


@pytest.mark.parametrize("host", ["*", "10.0.0.1", "exa*mple", ""])
def test_only_names_can_be_opened(host: str) -> None:
    with pytest.raises(ConfigurationError, match="intercept"):
        Interception([host])


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"host": "*.example"}, "host"),
        ({"header": "Content-Length"}, "header"),
        ({"header": "a b"}, "header"),
        ({"value": "two\r\nlines"}, "value"),
        ({"value": ""}, "value"),
        ({"paths": ("v1",)}, "paths"),
    ],
)
def test_a_credential_that_can_not_be_used_is_an_error_that_does_not_show_it(
    more: dict[str, Any], word: str
) -> None:
    given = Credential(**{"host": "api.example", "value": SECRET, **more})

    with pytest.raises(ConfigurationError, match=rf"credentials\.api\.{word}") as caught:
        Credentials({"api": given})
    assert SECRET not in str(caught.value)
    assert "lines" not in str(caught.value)


# Fetching, for tools of the host.


async def fetch(here: World, url: str, **more: Any) -> Any:
    leash: Leash = here.leash
    return await leash.fetch(url, **{"most_bytes": 100, "timeout_s": 5.0, **more})


def test_no_error_about_settings_shows_a_secret() -> None:
    for given in (
        {"credentials": {"api": {"value": "s3cr3t"}}},
        {"credentials": {"api": {"host": "api.example", "value": ["s3cr3t"]}}},
        {"mcp_token": "s3cr3t"},
    ):
        with pytest.raises(ValidationError) as caught:
            Settings(**given)
        assert "s3cr3t" not in str(caught.value)


async def test_a_tool_fetches_under_the_same_rules_and_with_the_same_secrets() -> None:
    here = world()
    web = Web(b"HTTP/1.1 404 Not Here\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nno\n")
    async with serving_tls(here, "api.example", 443, web):
        got = await fetch(here, "https://api.example/v1/a?token=x#part")

    assert (got.status, got.reason, got.body, got.complete) == (404, "Not Here", b"no\n", True)
    assert b"GET /v1/a?token=x HTTP/1.1" in web.heads[0]
    assert SECRET.encode() in web.heads[0]
    assert (here.records.last.protocol, here.records.last.path) == ("tool", "/v1/a")


async def test_what_is_longer_than_wanted_is_cut() -> None:
    here = world()
    web = Web(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5000)
    async with serving_tls(here, "go.example", 443, web):
        got = await fetch(here, "https://go.example")

    assert (len(got.body), got.complete) == (100, False)


@pytest.mark.parametrize(
    "url",
    [
        *("http://go.example/", "https:/go.example", "ftp://go.example/", "file:///etc/passwd"),
        *("https://u:p@go.example/", "https://127.0.0.1/", "https://[::1]/", "https://2130706433/"),
        *("https://localhost/", "https://evil.example/", "https://go.example:99999/"),
        *("https://go.example\\@evil.example/", "https://go.example/ x", "https://go.example/\n"),
        *("https://api.example/v2", "https://api.example/v1/%2e%2e/v2", ""),
    ],
)
async def test_what_may_not_be_fetched_is_refused_and_never_resolved(url: str) -> None:
    here = world()

    with pytest.raises(Refused) as refused:
        await fetch(here, url)
    assert "u:p" not in str(refused.value)
    assert here.names.asked == []
    assert here.records.last.verdict is Verdict.DENY


@pytest.mark.parametrize(
    "to", ["https://10.0.0.1/", "http://go.example/", "//evil.example/", "https://local.example"]
)
async def test_each_redirect_is_judged_anew(to: str) -> None:
    here = world(rules="{allow: [{host: [go.example, local.example]}]}")
    here.names.known["local.example"] = ["127.0.0.1"]
    web = Web(f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode())
    async with serving_tls(here, "go.example", 443, web):
        with pytest.raises(Refused):
            await fetch(here, "https://go.example/")

    assert here.dialled == [(PUBLIC, 443)]


async def test_redirects_end_somewhere() -> None:
    here = world()
    web = Web(b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n")
    async with serving_tls(here, "go.example", 443, web):
        with pytest.raises(NotReached, match="more than 10 redirects"):
            await fetch(here, "https://go.example/")

    assert len(web.heads) == 11


async def test_a_server_that_says_nothing_is_given_up() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    here = world()
    async with serving_tls(here, "go.example", 443, silent):
        with pytest.raises(NotReached, match=r"no answer from https://go.example/ in 0.2 s"):
            await fetch(here, "https://go.example/?token=x", timeout_s=0.2)
