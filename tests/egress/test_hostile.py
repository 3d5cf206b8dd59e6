"""Whatever a program sends: nothing is resolved or dialled but what the rules allow."""

import asyncio
import contextlib
import ssl

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.egress.hello import Hello, NotHello, read_hello
from tests.egress.fakes import World, echo, serving
from tests.egress.test_proxy import NAMES, PUBLIC, RULES, connect, get, socks

STARTS = st.sampled_from(
    [
        connect("good.example"),
        connect("evil.example"),
        get("http://web.example/a", "web.example"),
        get("http://evil.example/a", "web.example", "Content-Length: 3"),
        socks(b"good.example"),
        socks(b"evil.example"),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ]
)


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """A request, cut, put together with others, and with bytes changed."""
    data = bytearray(b"".join(draw(st.lists(STARTS, min_size=1, max_size=3))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 3))] = draw(
            st.binary(max_size=4) | st.sampled_from([b"\r\n", b"\0", b":", b"@", b"%00", b" "])
        )
    return bytes(data)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(hostile(), st.lists(st.integers(1, 40), max_size=4))
def test_nothing_gets_out_that_is_not_allowed(data: bytes, cuts: list[int]) -> None:
    async def send() -> World:
        here = World(RULES, NAMES)
        async with serving(here, PUBLIC, 443, echo), serving(here, PUBLIC, 80, echo):
            client = here.tunnel()
            rest = data
            with contextlib.suppress(ConnectionResetError):  # it has heard enough
                for cut in (*cuts, len(data)):
                    if rest[:cut]:
                        await client.send(rest[:cut])
                    rest = rest[cut:]
                    await asyncio.sleep(0)
            client.shut()
            async with asyncio.timeout(10):
                await client.rest()
        return here

    here = asyncio.run(send())

    assert set(here.names.asked) <= {"good.example", "web.example"}
    assert set(here.dialled) <= {(PUBLIC, 443), (PUBLIC, 80)}
    for row in here.records.rows:
        assert row.ended_at is not None
        assert bool(row.address) <= (row.verdict == "allow")


def in_records(hello: bytes, size: int) -> bytes:
    """A hello in records of this size."""
    message = hello[5:]
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2) + piece for piece in pieces)


def client_hello(name: str | None) -> bytes:
    """What OpenSSL says first."""
    out = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    return out.read()


@pytest.mark.parametrize("size", [50, 100, 10_000])
def test_a_name_is_found_in_however_many_records_it_comes(size: int) -> None:
    data = in_records(client_hello("a.example"), size)

    assert read_hello(data) == Hello(tls=True, name="a.example")
    assert all(read_hello(data[:at]) is None for at in range(0, len(data), 7))


def test_a_hello_without_a_name_and_what_is_no_tls_are_known_at_once() -> None:
    assert read_hello(client_hello(None)) == Hello(tls=True, name=None)
    assert read_hello(b"SSH-2.0-x\r\n") == Hello(tls=False)
    assert read_hello(b"\x16\x00") == Hello(tls=False)


def test_a_hello_in_a_record_for_each_byte_is_refused() -> None:
    with pytest.raises(NotHello, match="too many records"):
        read_hello(in_records(client_hello("a.example"), 1))


def test_a_hello_without_an_end_is_refused() -> None:
    endless = b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + b"\0" * (16 * 1024 - 4)
    with pytest.raises(NotHello):
        read_hello(endless + (b"\x16\x03\x01\x40\x00" + b"\0" * 16 * 1024) * 4)


@settings(max_examples=200)
@given(st.binary(max_size=60), st.booleans())
def test_a_hello_is_read_or_refused_and_never_more(data: bytes, starts_like_one: bool) -> None:
    if starts_like_one:
        data = b"\x16\x03\x01" + len(data).to_bytes(2) + b"\x01" + data
    try:
        found = read_hello(data)
    except NotHello:
        return
    assert found is None or found.name is None or isinstance(found.name, str)
