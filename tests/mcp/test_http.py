"""Over HTTP, on the fake engine: who is let in, and whose session is whose."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from runner import ConfigurationError, Settings
from runner.mcp_server import http
from runner.mcp_server.http import Address
from runner.mcp_server.messages import MAX_MESSAGE_BYTES
from runner.mcp_server.server import ToolServer
from runner.testing import FakeEngine
from tests.conftest import make_settings
from tests.mcp.conftest import NEW, OLD, Serve, answering, says, text

pytestmark = pytest.mark.anyio

TOKEN = "a-token-that-nobody-guesses"
LOCAL = Address("127.0.0.1", 0)
ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


@dataclass
class Served:
    """A server that listens."""

    tools: ToolServer
    engine: FakeEngine
    url: str
    serving: "asyncio.Task[None]"

    async def post(
        self,
        headers: Mapping[str, str] | None = None,
        *,
        body: object = None,
        content: bytes | None = None,
    ) -> httpx2.Response:
        """Send one message, a greeting if no other is given."""
        data = json.dumps(HELLO if body is None else body).encode()
        async with httpx2.AsyncClient() as agent:
            return await agent.post(
                self.url,
                content=data if content is None else content,
                headers={**ACCEPT, **(headers or {})},
            )

    @contextlib.asynccontextmanager
    async def client(
        self, revision: str, *, token: str | None = None, **more: Any
    ) -> AsyncIterator[Client]:
        """The SDK's client."""
        shown = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(headers=shown, timeout=30) as agent:
            transport = streamable_http_client(self.url, http_client=agent)
            async with Client(transport, mode=revision, cache=None, **more) as client:
                yield client


Listen = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def listen(serve: Serve) -> Listen:
    """A server that listens on an address of this machine."""

    @contextlib.asynccontextmanager
    async def listening(
        policy: str = "default",
        *,
        token: str | None = None,
        names: tuple[str, ...] = (),
        idle_timeout_s: float = 60.0,
        **how: Any,
    ) -> AsyncIterator[Served]:
        engine = FakeEngine()
        async with serve(policy, engine=engine, **how) as tools:
            with http.listening(LOCAL, token=token) as sock:
                serving = asyncio.create_task(
                    http.serve(
                        tools,
                        sock,
                        LOCAL,
                        token=token,
                        more=names,
                        idle_timeout_s=idle_timeout_s,
                    )
                )
                port = sock.getsockname()[1]
                try:
                    yield Served(tools, engine, f"http://127.0.0.1:{port}/mcp", serving)
                finally:
                    serving.cancel()
                    await asyncio.gather(serving, return_exceptions=True)

    return listening


# Who is let in.


FOREIGN_HOSTS = (
    "evil.example",
    "127.0.0.1.evil.example",
    "localhost.evil.example:80",
    "evil@127.0.0.1",
    "10.0.0.1",
    "127.0.0.1/evil",
    "local\thost",
    "[",
    "",
)
FOREIGN_ORIGINS = (
    "http://evil.example",
    "null",
    "http://127.0.0.1.evil.example",
    "file://",
    "chrome://127.0.0.1",
)


async def statuses(served: Served, requests: Iterable[Mapping[str, str]]) -> dict[str, int]:
    """What each request is answered, by its headers."""
    return {str(headers): (await served.post(headers)).status_code for headers in requests}


async def test_a_request_that_names_another_host_is_refused(listen: Listen) -> None:
    async with listen() as served:
        found = await statuses(served, [{"Host": host} for host in FOREIGN_HOSTS])

    assert found == dict.fromkeys(found, 403)


async def test_a_request_of_another_origin_is_refused(listen: Listen) -> None:
    async with listen() as served:
        found = await statuses(served, [{"Origin": origin} for origin in FOREIGN_ORIGINS])

    assert found == dict.fromkeys(found, 403)


async def test_names_of_this_machine_and_those_that_were_allowed_are_let_in(
    listen: Listen,
) -> None:
    requests = (
        {"Host": "localhost"},
        {"Host": "LOCALHOST:80"},
        {"Host": "[::1]:8000"},
        {"Host": "tools.example"},
        {"Origin": "http://localhost:6274"},
        {"Origin": "https://tools.example"},
    )
    async with listen(names=("Tools.example",)) as served:
        found = await statuses(served, requests)

    assert found == dict.fromkeys(found, 200)


async def test_every_request_is_looked_at_and_not_only_the_first(listen: Listen) -> None:
    async with listen() as served, httpx2.AsyncClient() as agent:
        session = (await served.post()).headers["mcp-session-id"]
        headers = {**ACCEPT, "Mcp-Session-Id": session, "Origin": "http://evil.example"}
        found = [
            (await agent.request(method, served.url, headers=headers)).status_code
            for method in ("POST", "GET", "DELETE", "OPTIONS")
        ]

    assert found == [403, 403, 403, 403]


async def test_without_the_token_nobody_is_let_in(listen: Listen) -> None:
    wrong = ("Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", TOKEN)
    async with listen(token=TOKEN) as served:
        found = await statuses(served, [{}, *({"Authorization": shown} for shown in wrong)])
        response = await served.post()

    assert found == dict.fromkeys(found, 401)
    assert response.headers["WWW-Authenticate"].startswith("Bearer")


async def test_with_the_token_one_is(listen: Listen, revision: str) -> None:
    async with listen(token=TOKEN) as served, served.client(revision, token=TOKEN) as agent:
        assert len((await agent.list_tools()).tools) >= 5


async def test_a_host_is_checked_before_the_token_so_that_pages_learn_nothing(
    listen: Listen,
) -> None:
    async with listen(token=TOKEN) as served:
        response = await served.post({"Host": "evil.example", "Authorization": f"Bearer {TOKEN}"})

    assert response.status_code == 403


async def test_a_body_that_is_too_long_is_refused_whether_or_not_it_says_so(
    listen: Listen,
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(MAX_MESSAGE_BYTES // 65536 + 1):
            yield b" " * 65536

    async with listen() as served, httpx2.AsyncClient() as agent:
        declared = await served.post(content=b" " * (MAX_MESSAGE_BYTES + 1))
        streamed = await agent.post(served.url, content=pieces(), headers=ACCEPT)

    assert (declared.status_code, streamed.status_code) == (413, 413)


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"{", -32700), (b"[]", -32600), (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600)],
)
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_what_is_no_message_is_answered_with_its_error(
    listen: Listen, content: bytes, code: int, version: str
) -> None:
    async with listen() as served:
        response = await served.post({"MCP-Protocol-Version": version}, content=content)

    assert response.status_code == 400
    assert response.json()["error"]["code"] == code


async def test_half_a_request_is_not_waited_for(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "HEAD_S", 0.05)
    monkeypatch.setattr(http, "BODY_S", 0.05)
    head = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"
    async with listen() as served:
        port = int(served.url.split(":")[2].split("/")[0])
        for half, answer in (
            (b"", b""),
            (head, b""),
            (head + b"Content-Length: 9\r\n\r\n{", b"HTTP/1.1 408 "),
            (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + head, b"HTTP/1.1 404 "),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(half)
            with contextlib.suppress(ConnectionResetError):
                assert (await reader.read(13)) == answer
                await reader.read()
            writer.close()
        assert (await served.post()).status_code == 200


async def test_a_request_with_two_lengths_is_refused(listen: Listen) -> None:
    async with listen() as served:
        port = int(served.url.split(":")[2].split("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        lengths = b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        writer.write(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n" + lengths)
        assert (await reader.read(13)) == b"HTTP/1.1 400 "
        writer.close()


async def test_there_is_one_path_and_nothing_else(listen: Listen) -> None:
    async with listen() as served, httpx2.AsyncClient() as agent:
        assert (await agent.get(served.url.removesuffix("mcp"))).status_code == 404


async def test_a_form_of_a_page_is_not_taken_for_a_message(listen: Listen) -> None:
    async with listen() as served:
        response = await served.post({"Content-Type": "text/plain"})

    assert response.status_code == 400


# Where it listens.


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_where_others_reach_it_it_does_not_listen_without_a_token(host: str) -> None:
    with pytest.raises(ConfigurationError, match="set a token"):
        http.listening(Address(host, 0), token=None)


def test_localhost_has_to_be_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("0.0.0.0", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)

    with pytest.raises(ConfigurationError, match="from other machines"):
        http.listening(Address("localhost", 0), token=None)


def test_with_a_token_it_listens_everywhere() -> None:
    with http.listening(Address("0.0.0.0", 0), token=TOKEN) as sock:
        assert sock.getsockname()[0] == "0.0.0.0"


def test_an_address_that_is_taken_is_an_error_that_says_so() -> None:
    with http.listening(LOCAL, token=None) as sock:
        taken = Address("127.0.0.1", sock.getsockname()[1])
        with pytest.raises(ConfigurationError, match="can't listen on 127"):
            http.listening(taken, token=None)


@pytest.mark.parametrize(
    ("given", "address", "is_local"),
    [
        ("127.0.0.1:8000", Address("127.0.0.1", 8000), True),
        ("127.9.9.9:0", Address("127.9.9.9", 0), True),
        ("localhost:1", Address("localhost", 1), True),
        ("[::1]:80", Address("::1", 80), True),
        ("[::]:80", Address("::", 80), False),
        ("0.0.0.0:80", Address("0.0.0.0", 80), False),
        ("tools.example:80", Address("tools.example", 80), False),
    ],
)
def test_an_address_is_a_host_and_a_port(given: str, address: Address, is_local: bool) -> None:
    assert Address.parse(given) == address
    assert address.is_local == is_local


@pytest.mark.parametrize("given", ["", "8000", ":8000", "host:", "host:x", "host:65536", "::1:80"])
def test_anything_else_is_no_address(given: str) -> None:
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        Address.parse(given)


@pytest.mark.parametrize(
    ("listens", "named", "is_known"),
    [
        ("0.0.0.0", "192.0.2.1", True),
        ("0.0.0.0", "[2001:db8::1]:80", True),
        ("0.0.0.0", "evil.example", False),
        ("192.0.2.1", "192.0.2.1:80", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("tools.example", "tools.example", True),
    ],
)
def test_a_name_is_known_where_it_listens_and_an_address_where_it_listens_on_all(
    listens: str, named: str, is_known: bool
) -> None:
    async def inside(*_: object) -> None: ...

    door = http.Door(inside, names=Address(listens, 0).names)

    assert door._knows(f"//{named}") == is_known


# Whose session is whose.


async def test_clients_of_the_old_revision_have_a_session_each_which_ends_with_them(
    listen: Listen,
) -> None:
    async with listen() as served:
        async with served.client(OLD) as one, served.client(OLD) as other:
            await one.call_tool("write", {"path": "/workspace/f", "content": "x"})
            found = await one.call_tool("read", {"path": "/workspace/f"})
            not_found = await other.call_tool("read", {"path": "/workspace/f"})
            during = len(await served.engine.containers({}))
        while await served.engine.containers({}):
            await asyncio.sleep(0.01)

    assert (text(found), not_found.is_error, during) == ("x", True, 2)


async def test_calls_of_the_new_revision_name_their_session(listen: Listen) -> None:
    async with listen() as served, served.client(NEW) as one, served.client(NEW) as other:
        names = [tool.name for tool in (await one.list_tools()).tools]
        opened = await one.call_tool("open_session", {})
        session = opened.structured_content
        await one.call_tool("bash", {**session, "command": "echo hi"})
        shared = await other.call_tool("bash", {**session, "command": "echo hi"})
        with pytest.raises(MCPError, match="there is no open session"):
            await other.call_tool("bash", {"session_id": "s-1", "command": "echo hi"})
        await other.call_tool("close_session", session)
        left = await served.engine.containers({})

    assert names[-2:] == ["open_session", "close_session"]
    assert text(shared) == "hi\n"
    assert not left


async def test_a_client_that_goes_silent_loses_its_session(listen: Listen, quick: Settings) -> None:
    async with listen(options={"idle_timeout_s": 0.1}, idle_timeout_s=0.1) as served:
        session = (await served.post()).headers["mcp-session-id"]
        named = {"Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25"}
        call = {"name": "bash", "arguments": {"command": "echo hi"}}
        await served.post(
            named, body={"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
        )
        opened = len(await served.engine.containers({}))
        while await served.engine.containers({}):
            await asyncio.sleep(0.01)
        late = await served.post(named, body=PING)
        while late.status_code != 404:
            await asyncio.sleep(0.2)
            late = await served.post(named, body=PING)

    assert opened == 1


async def test_there_are_only_so_many_containers(listen: Listen, tmp_path: Any) -> None:
    settings = make_settings(tmp_path / "data", mcp_max_sessions=1)
    async with (
        listen(settings=settings) as served,
        served.client(OLD) as one,
        served.client(OLD) as other,
    ):
        await one.call_tool("bash", {"command": "echo hi"})
        with pytest.raises(MCPError, match="1 sessions are open"):
            await other.call_tool("bash", {"command": "echo hi"})


# Calls.


async def test_progress_and_questions_come_while_a_call_runs(listen: Listen, revision: str) -> None:
    heard = asyncio.Event()

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        heard.set()

    rules = "default: allow\nask: [{tool: bash, command: sleep}]\n"
    person = answering(says(answer="allow once"))
    async with (
        listen(rules) as served,
        served.client(revision, elicitation_callback=person) as agent,
    ):
        session = {}
        if revision == NEW:
            session = (await agent.call_tool("open_session", {})).structured_content
        result = await agent.call_tool(
            "bash", {**session, "command": "sleep 0.2; echo done"}, progress_callback=progress
        )

    assert text(result) == "done\n"
    assert heard.is_set()


async def test_a_client_that_hangs_up_ends_its_call(listen: Listen, revision: str) -> None:
    async with listen() as served, served.client(revision) as agent:
        session = {}
        if revision == NEW:
            session = (await agent.call_tool("open_session", {})).structured_content
        started = asyncio.Event()

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            started.set()

        calling = asyncio.create_task(
            agent.call_tool("bash", {**session, "command": "sleep 60"}, progress_callback=progress)
        )
        await started.wait()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        store = served.tools._runner.controller.store
        while [str(record.status) for _, record in store.calls()] != ["cancelled"]:
            await asyncio.sleep(0.01)


async def test_stopping_the_server_ends_calls_and_sessions(listen: Listen, revision: str) -> None:
    async with listen() as served, served.client(revision) as agent:
        session = {}
        if revision == NEW:
            session = (await agent.call_tool("open_session", {})).structured_content
        calling = asyncio.create_task(agent.call_tool("bash", {**session, "command": "sleep 60"}))
        while not served.tools._tasks:
            await asyncio.sleep(0.01)
        served.serving.cancel()
        await asyncio.gather(served.serving, return_exceptions=True)
        with pytest.raises(MCPError, match="going away"):
            await calling

        assert not await served.engine.containers({})
