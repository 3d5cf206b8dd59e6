"""What programs say to the proxy: what is allowed gets through, the rest is told why not."""

import asyncio
import contextlib
import ssl
import struct

import h11
import pytest

from runner.egress.access import Refused
from runner.egress.dial import Dialler
from runner.egress.exchange import HttpEnd
from runner.egress.hello import UNRECOGNISED_NAME
from runner.egress.leash import MAX_RESOLVING, LeashLimits
from runner.model import Verdict
from runner.policy.network import Address
from tests.egress.fakes import Pipe, Web, World, echo, serving

pytestmark = pytest.mark.anyio

PUBLIC = "93.184.216.34"
RULES = "{allow: [{host: good.example}, {host: web.example, ports: [80]}]}"
NAMES = {"good.example": [PUBLIC], "web.example": [PUBLIC]}


def world(rules: str = RULES, **more: object) -> World:
    return World(rules, NAMES, **more)


def connect(host: str, port: int = 443) -> bytes:
    return f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()


def get(url: str, host: str, *headers: str) -> bytes:
    lines = [f"GET {url} HTTP/1.1", f"Host: {host}", *headers, "", ""]
    return "\r\n".join(lines).encode()


def socks(host: bytes, port: int = 443, *, command: int = 1) -> bytes:
    request = struct.pack("!BBBBB", 5, command, 0, 3, len(host)) + host + struct.pack("!H", port)
    return b"\x05\x01\x00" + request


# CONNECT.


async def test_a_connection_that_is_allowed_carries_bytes_both_ways_and_is_recorded() -> None:
    here = world()
    async with serving(here, PUBLIC, 443, echo):
        client = here.tunnel()
        await client.send(connect("good.example"))
        assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await client.send(b"hello")
        assert await client.until(b"hello") == b"hello"
        client.shut()
        assert await client.rest() == b""
        await here.records.ended()

    (row,) = here.records.rows
    assert (row.protocol, row.host, row.port, row.address) == (
        *("connect", "good.example", 443),
        PUBLIC,
    )
    assert (row.verdict, row.rule, row.reason) == (Verdict.ALLOW, "network.allow[0]", "")
    assert (row.sent_bytes, row.received_bytes) == (5, 5)
    assert row.ended_at is not None


async def test_bytes_that_come_with_the_request_for_a_connection_are_part_of_it() -> None:
    here = world()
    async with serving(here, PUBLIC, 443, echo):
        answer = await here.ask(connect("good.example") + b"early")

    assert answer.endswith(b"\r\n\r\nearly")


async def test_a_name_that_is_refused_is_never_resolved_and_the_refusal_says_what_is_allowed() -> (
    None
):
    here = world()

    answer = await here.ask(connect("c2VjcmV0.evil.example"))

    assert answer.startswith(b"HTTP/1.1 403 refused: no rule allows c2vjcmv0.evil.example:443")
    assert b"allowed are: good.example:443, web.example:80" in answer
    assert here.names.asked == []
    assert here.dialled == []
    assert here.records.last.verdict is Verdict.DENY


async def test_a_justification_of_several_lines_is_told_all_the_same() -> None:
    here = world('{deny: [{host: evil.example, justification: "two\\nlines ü"}]}')

    answer = await here.ask(connect("evil.example"))

    assert answer.startswith(b"HTTP/1.1 403 refused: ")
    assert "two\nlines ü".encode() in answer


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "0x7f.1", "2130706433", "127.1", "0177.0.0.1", "localhost", "127.0.0.1."),
        *("[::1]", "[::ffff:127.0.0.1]", "[fe80::1%25eth0]", "169.254.169.254", "[fd00:ec2::254]"),
        *("good.example%00.evil.example", "good.example.", "ⓖood.example", "good..example"),
    ],
)
async def test_no_way_to_write_a_host_gets_around_the_rules(host: str) -> None:
    here = world()

    answer = await here.ask(connect(host))

    if host == "good.example.":  # the same name
        assert here.names.asked == ["good.example"]
        return
    assert not answer.startswith(b"HTTP/1.1 200")
    assert here.names.asked == []
    assert here.dialled == []


async def test_a_name_that_leads_to_a_private_address_is_refused_whatever_else_it_leads_to() -> (
    None
):
    here = world()
    here.names.known["good.example"] = [PUBLIC, "10.0.0.7"]

    answer = await here.ask(connect("good.example"))

    assert b"good.example: 10.0.0.7 is not a public address (private)" in answer
    assert here.dialled == []
    assert here.records.last.verdict is Verdict.DENY


async def test_the_address_that_was_checked_is_the_one_that_is_dialled() -> None:
    here = world()
    async with serving(here, PUBLIC, 443, echo):
        client = here.tunnel()
        await client.send(connect("good.example"))
        await client.until(b"\r\n\r\n")
        here.names.known["good.example"] = ["127.0.0.1"]  # too late
        client.shut()
        await client.rest()

    assert here.names.asked == ["good.example"]
    assert here.dialled == [(PUBLIC, 443)]


async def test_a_server_that_is_not_there_is_a_502_with_the_reason() -> None:
    here = world()

    answer = await here.ask(connect("good.example"))

    assert answer.startswith(b"HTTP/1.1 502 failed: no connection: ")
    assert here.records.last.verdict is Verdict.ALLOW
    assert here.records.last.reason.startswith("no connection")


async def hello(name: str) -> bytes:
    """What a TLS client says first."""
    out = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return out.read()


async def test_a_tls_client_that_asks_for_another_name_gets_no_further() -> None:
    here = world()
    async with serving(here, PUBLIC, 443, echo):
        answer = await here.ask(connect("good.example") + await hello("evil.example"))

    assert answer.endswith(b"\r\n\r\n" + UNRECOGNISED_NAME)
    assert here.records.last.sent_bytes == 0
    assert "another name" in here.records.last.reason


async def test_a_tls_client_that_asks_for_the_same_name_gets_through_however_it_is_cut() -> None:
    here = world()
    said = await hello("Good.Example")
    async with serving(here, PUBLIC, 443, echo):
        client = here.tunnel()
        await client.send(connect("good.example"))
        await client.until(b"\r\n\r\n")
        for at in range(0, len(said), 7):
            await client.send(said[at : at + 7])
        client.shut()
        assert await client.rest() == said


# SOCKS.


async def test_socks_by_name_is_resolved_here_and_carried() -> None:
    here = world()
    async with serving(here, PUBLIC, 443, echo):
        answer = await here.ask(socks(b"good.example") + b"hello")

    assert answer == b"\x05\x00" + b"\x05\x00\x00\x01" + b"\0" * 6 + b"hello"
    assert here.records.last.protocol == "socks5"


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (socks(b"evil.example"), 2),
        (socks(b"good.example\0.evil.example"), 2),
        (socks(b"good.example\r\n"), 2),
        (socks("gööd.example".encode()), 2),
        (socks(b""), 2),
        (socks(b"127.0.0.1"), 2),
        (socks(b"2130706433"), 2),
        (socks(b"::1"), 2),
        (socks(b"good.example", command=2), 7),
        (socks(b"good.example", command=3), 7),
        (b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x01\xbb", 2),
        (b"\x05\x01\x00\x05\x01\x00\x04" + b"\0" * 10 + b"\xff\xff\x7f\0\0\1\x01\xbb", 2),
        (b"\x05\x01\x00\x05\x01\x00\x09", 8),
    ],
)
async def test_socks_for_what_is_not_allowed_gets_the_code_for_it(
    request_: bytes, code: int
) -> None:
    here = world()

    answer = await here.ask(request_)

    assert answer[:4] == bytes([5, 0, 5, code])
    assert here.names.asked == []
    assert here.dialled == []
    assert here.records.last.verdict is Verdict.DENY


async def test_socks_with_a_password_alone_is_refused() -> None:
    here = world()

    assert await here.ask(b"\x05\x01\x02") == b"\x05\xff"


# Plain HTTP.


async def test_a_plain_request_goes_out_without_what_is_for_the_proxy_alone() -> None:
    here = world()
    web = Web()
    async with serving(here, PUBLIC, 80, web):
        client = here.tunnel()
        await client.send(
            get(
                "http://web.example/a?b=c",
                "web.example",
                "Proxy-Authorization: Basic eA==",
                "Connection: close, X-Mine",
                "X-Mine: 1",
                "X-Yours: 2",
            )
        )
        answer = await client.rest()

    assert answer.endswith(b"\r\n\r\nok")
    head = web.heads[0].lower()
    assert head.startswith(b"get /a?b=c http/1.1\r\nhost: web.example\r\n")
    assert b"x-yours: 2" in head
    assert b"x-mine" not in head
    assert b"proxy" not in head
    row = here.records.last
    assert (row.protocol, row.method, row.path) == ("http", "GET", "/a")  # no query


async def test_each_request_on_a_connection_is_judged_anew() -> None:
    here = world()
    web = Web()
    async with serving(here, PUBLIC, 80, web):
        client = here.tunnel()
        await client.send(get("http://web.example/", "web.example"))
        await client.until(b"ok")
        await client.send(get("http://evil.example/", "evil.example"))
        answer = await client.rest()

    assert answer.startswith(b"HTTP/1.1 403")
    assert len(web.heads) == 1
    assert here.names.asked == ["web.example"]


@pytest.mark.parametrize(
    "length",
    ["Content-Length: 4\r\n\r\nbody", "Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"],
)
async def test_a_body_goes_out_as_it_comes(length: str) -> None:
    here = world()
    web = Web()
    async with serving(here, PUBLIC, 80, web):
        client = here.tunnel()
        head = "POST http://web.example/ HTTP/1.1\r\nHost: web.example\r\nExpect: 100-continue\r\n"
        await client.send((head + length).encode())
        await client.until(b"ok")

    assert b"body" in web.bodies[0]


async def test_an_answer_without_a_length_is_carried_to_its_end() -> None:
    here = world()
    web = Web(b"HTTP/1.1 200 OK\r\nKeep-Alive: 5\r\n\r\nall of it")
    async with serving(here, PUBLIC, 80, web):
        client = here.tunnel()
        await client.send(get("http://web.example/", "web.example"))
        answer = await client.until(b"0\r\n\r\n")

    assert b"all of it" in answer
    assert b"keep-alive: 5" not in answer.lower()


async def test_who_asks_for_a_head_alone_is_told_of_a_refusal_too() -> None:
    here = world()
    request = get("http://evil.example/", "evil.example").replace(b"GET", b"HEAD", 1)

    answer = await here.ask(request)

    assert answer.startswith(b"HTTP/1.1 403 refused: no rule allows HEAD evil.example:80/")
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"", b"the server hung up without an answer"),
        (b"nonsense\r\n\r\n", b""),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 300 + b"\r\n", b"more than 256 lines"),
    ],
)
async def test_what_a_server_does_wrong_is_no_fault_of_the_client(
    said: bytes, reason: bytes
) -> None:
    here = world()
    async with serving(here, PUBLIC, 80, Web(said)):
        client = here.tunnel()
        await client.send(get("http://web.example/", "web.example"))
        assert (await client.rest()).startswith(b"HTTP/1.1 502 failed: " + reason)


async def test_many_lines_of_a_body_are_no_head() -> None:
    here = world()
    web = Web()
    async with serving(here, PUBLIC, 80, web):
        client = here.tunnel()
        head = get("http://web.example/", "web.example", "Content-Length: 1000")
        await client.send(head.replace(b"GET", b"POST") + b"\n" * 1000)
        await client.until(b"ok")

    assert web.bodies == [b"\n" * 1000]


async def test_trailers_without_end_go_nowhere() -> None:
    here = world()
    async with serving(here, PUBLIC, 80, echo):
        client = here.tunnel()
        head = get("http://web.example/", "web.example", "Transfer-Encoding: chunked")
        await client.send(head + b"0\r\n" + b"a:\r\n" * 300)
        assert (await client.rest()).startswith(b"HTTP/1.1 431 ")


async def test_what_has_arrived_at_once_leaves_others_their_turn() -> None:
    ours, theirs = Pipe.pair()
    head = get("http://web.example/", "web.example", "Transfer-Encoding: chunked")
    await ours.send(head + b"1\r\na\r\n" * 100)
    end = HttpEnd(theirs, h11.SERVER)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    for _ in range(101):
        await end.event()
    task.cancel()

    assert turns >= 100


@pytest.mark.parametrize(
    "request_",
    [
        get("/", "web.example"),
        get("https://web.example/", "web.example"),
        get("http://web.example/", "evil.example"),
        get("http://web.example/", "web.example:81"),
        get("http://user@web.example/", "web.example"),
        get("http://web.example\\@evil.example/", "web.example"),
        get("http://web.example/", "web.example", "Upgrade: websocket", "Connection: upgrade"),
        get(
            "http://web.example/", "web.example", "Content-Length: 4", "Transfer-Encoding: chunked"
        ),
        get("http://web.example/", "web.example", "Content-Length: 4", "Content-Length: 5"),
        get("http://web.example/", "web.example", "Transfer-Encoding: gzip, chunked"),
        get("http://web.example/", "web.example\r\nHost: evil.example"),
        get("http://web.example/#x", "web.example"),
        get("http://web.example/", "web.example", "X: a\0b"),
        b"GET  http://web.example/ HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x00\x05hello\r\n\r\n",
        b"CONNECT good.example HTTP/1.1\r\n\r\n",
        b"CONNECT good.example:443 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
        b"GET http://web.example/" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        get("http://web.example/", "web.example", *["a:"] * 300),
    ],
)
async def test_what_can_be_read_in_two_ways_goes_nowhere(request_: bytes) -> None:
    here = world()

    answer = await here.ask(request_)

    assert answer.split(b" ")[1][:1] in (b"4", b"5")
    assert here.names.asked == []
    assert here.dialled == []
    assert here.records.last.verdict is Verdict.DENY


async def test_rules_see_method_and_path_of_a_plain_request() -> None:
    here = world("{allow: [{host: web.example, ports: 80, methods: GET, paths: ['/v1/**']}]}")
    async with serving(here, PUBLIC, 80, Web()):
        allowed = here.tunnel()
        await allowed.send(get("http://web.example/v1/a", "web.example"))
        assert (await allowed.until(b"ok")).startswith(b"HTTP/1.1 200")
        for path in ("/v2", "/v1/../v2", "/v1/%2e%2e/v2", "/v1/..;/v2"):
            answer = await here.ask(get(f"http://web.example{path}", "web.example"))
            assert answer.startswith(b"HTTP/1.1 403"), path
        assert b"would hide them" in await here.ask(connect("web.example", 80))

    assert len(here.dialled) == 1


# Limits.


async def test_more_connections_than_allowed_at_once_are_dropped() -> None:
    here = world(limits=LeashLimits(max_connections=2))
    tunnels = [here.tunnel() for _ in range(3)]

    assert await tunnels[2].rest() == b""
    assert "at once" in here.records.last.reason
    await here.leash.close()


async def test_a_program_that_is_gone_makes_room_for_another() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()

    here = world(limits=LeashLimits(max_connections=1))
    async with serving(here, PUBLIC, 443, silent):
        gone = here.tunnel()
        await gone.send(connect("good.example"))
        await gone.until(b"\r\n\r\n")
        other = here.tunnel()
        assert await other.rest() == b""  # nobody has to make room yet
        gone.shut()
        other = here.tunnel()
        await other.send(connect("good.example"))
        assert (await other.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert await gone.rest() == b""

    assert [row.reason for row in here.records.rows] == [
        *("ended by the runner", "more than 1 at once", "ended by the runner")
    ]


async def test_a_connection_that_is_given_up_before_it_is_made_is_recorded() -> None:
    here = world()
    looking = asyncio.Event()

    async def endless(name: str, port: int) -> list[Address]:
        looking.set()
        await asyncio.Event().wait()
        raise AssertionError("it does not end")

    here.leash._dialler = Dialler(endless)
    await here.tunnel().send(connect("good.example"))
    await looking.wait()
    await here.leash.close()

    (row,) = here.records.rows
    assert (row.host, row.reason) == ("good.example", "ended before it was made")
    assert row.ended_at is not None


async def test_a_session_that_is_over_looks_up_nothing() -> None:
    here = world()
    await here.leash.close()
    with pytest.raises(Refused, match="over"):
        await here.leash.fetch("https://good.example/", most_bytes=1, timeout_s=1)

    assert here.names.asked == []


async def test_a_session_does_not_take_all_the_threads_that_resolve_names() -> None:
    here = world("{allow: [{host: '*.slow.example'}]}")
    resolved = asyncio.Event()
    asked: list[str] = []

    async def slow(name: str, port: int) -> list[Address]:
        asked.append(name)
        await resolved.wait()
        return []

    here.leash._dialler = Dialler(slow)
    clients = [here.tunnel() for _ in range(20)]
    for number, client in enumerate(clients):
        await client.send(connect(f"n{number}.slow.example"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(asked) == MAX_RESOLVING
    resolved.set()
    for client in clients:
        assert b"has no address" in await client.until(b"\r\n")
    await here.leash.close()

    assert len(asked) == 20


async def test_a_connection_that_lasts_too_long_is_ended_and_says_so() -> None:
    here = world(limits=LeashLimits(max_connection_s=0.05))
    async with serving(here, PUBLIC, 443, echo):
        client = here.tunnel()
        await client.send(connect("good.example"))
        assert b" 200 " in await client.rest()

    assert here.records.last.reason == "it lasted longer than 0.05 s"


async def test_a_session_transfers_no_more_than_it_may() -> None:
    here = world(limits=LeashLimits(max_transfer_bytes=1000))
    async with serving(here, PUBLIC, 443, echo):
        answer = await here.ask(connect("good.example") + b"x" * 600)
        again = await here.ask(connect("good.example"))

    assert b"x" * 600 not in answer
    assert "1000 bytes" in here.records.rows[0].reason
    assert again.startswith(b"HTTP/1.1 403")


async def test_a_flood_of_refusals_is_bounded_in_the_records_and_counted() -> None:
    here = world()
    for _ in range(300):
        await here.ask(connect("evil.example"))
    await here.leash.close()

    assert len(here.records.rows) < 60
    assert "25" in here.records.last.reason
    assert "more connections were refused" in here.records.last.reason


async def test_closing_ends_what_is_open_and_takes_nothing_new() -> None:
    here = world()
    async with serving(here, PUBLIC, 443, echo):
        client = here.tunnel()
        await client.send(connect("good.example"))
        await client.until(b"\r\n\r\n")
        await here.leash.close()
        assert await client.rest() == b""
        assert await here.tunnel().rest() == b""

    assert here.records.last.reason == "ended by the runner"


async def test_trouble_of_one_tunnel_is_not_the_others() -> None:
    here = world()
    async with serving(here, PUBLIC, 443, echo):
        client = here.tunnel()
        await client.send(connect("good.example"))
        await client.until(b"\r\n\r\n")
        broken = Pipe()
        broken.receive = None  # type: ignore[method-assign,assignment]
        here.leash.take(broken)
        await asyncio.sleep(0)
        await client.send(b"still here")
        assert await client.until(b"still here")
        await here.leash.close()
