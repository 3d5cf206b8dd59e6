"""The corpus's requests to an MCP server: each gets its answer, over every transport there is."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from runner import AsyncRunner, Policy, Settings
from runner.mcp_server import http
from runner.mcp_server.asking import Asker
from runner.mcp_server.http import Address
from runner.mcp_server.server import ToolServer
from runner.testing import FakeEngine
from tests.attacks.corpus import Row, row, rows

pytestmark = pytest.mark.anyio

REQUESTS = [found for found in rows(["api"]) if found.tool == "mcp"]
REBINDING = row("AP-007")
ROWS = {found.id for found in (*REQUESTS, REBINDING)}
HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "attacker", "version": "1"},
    },
}


@asynccontextmanager
async def serving(settings: Settings, policy: str | None) -> AsyncIterator[tuple[str, ToolServer]]:
    """The address of a server under the row's policy, or one that allows everything."""
    rules = Policy.parse(policy or "mode: allow_all")
    address = Address("127.0.0.1", 0)
    async with AsyncRunner(
        rules, approver=Asker(), engine=FakeEngine(), settings=settings
    ) as runner:
        server = ToolServer(runner, {})
        with http.listening(address, token=None) as sock:
            task = asyncio.create_task(
                http.serve(server, sock, address, token=None, idle_timeout_s=60)
            )
            try:
                yield f"http://127.0.0.1:{sock.getsockname()[1]}/mcp", server
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


def message(response: httpx2.Response) -> Any:
    """The one message of an answer, which may be a stream of events."""
    text = response.text
    if response.headers["content-type"].startswith("text/event-stream"):
        (text,) = (line[6:] for line in text.splitlines() if line.startswith("data: "))
    return json.loads(text)


@pytest.mark.parametrize("attack", REQUESTS, ids=lambda attack: attack.id)
async def test_a_request_gets_the_answer_that_the_corpus_says(
    settings: Settings, attack: Row
) -> None:
    async with serving(settings, attack.policy) as (url, server), httpx2.AsyncClient() as agent:
        hello = await agent.post(url, json=HELLO, headers=HEADERS)
        known = {"Mcp-Session-Id": hello.headers["mcp-session-id"]}
        answer = message(
            await agent.post(url, content=attack.raw.encode(), headers=HEADERS | known)
        )
        records = [record for _, record in server._runner.controller.store.calls()]

    if attack.verdict == "deny":
        assert answer["result"]["isError"]
        assert answer["result"]["structuredContent"]["status"] == "denied"
        assert [str(record.status) for record in records] == ["denied"]
    else:
        assert answer["error"]["code"] == int(attack.words)
        assert not records


async def test_a_page_that_names_itself_as_the_host_is_refused(settings: Settings) -> None:
    request = REBINDING.input
    async with serving(settings, None) as (url, _), httpx2.AsyncClient() as agent:
        response = await agent.request(
            request["method"], url, json=request["body"], headers=HEADERS | request["headers"]
        )

    assert Path(url).name == request["path"].strip("/")
    assert str(response.status_code) == REBINDING.words
