"""Lines over descriptors: what is read, what is answered, and when it ends."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification

from runner.mcp_server import stdio as stdio_module
from runner.mcp_server.messages import MAX_MESSAGE_BYTES
from runner.mcp_server.stdio import Streams, stdio

pytestmark = pytest.mark.anyio

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'


class Pipes:
    """Both ends of what a client and a server have between them."""

    def __init__(self) -> None:
        self.source, self.to_server = os.pipe()
        self.from_server, self.sink = os.pipe()

    def close(self) -> None:
        for descriptor in (self.source, self.to_server, self.from_server, self.sink):
            try:
                os.close(descriptor)
            except OSError:
                continue


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes()
    yield made
    made.close()


async def received(streams: Streams) -> Any:
    item = await streams[0].receive()
    assert isinstance(item, SessionMessage)
    return item.message


def answer(pipes: Pipes) -> Any:
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(pipes.from_server, 65536)
    return json.loads(line)


async def test_each_line_is_a_message_and_blank_ones_are_nothing(pipes: Pipes) -> None:
    async with stdio(pipes.source, pipes.sink) as streams:
        os.write(pipes.to_server, b"\n  \r\n" + PING + PING[:10])
        first = await received(streams)
        os.write(pipes.to_server, PING[10:])
        second = await received(streams)

    assert (first.method, second.method) == ("ping", "ping")


async def test_a_last_line_without_its_end_is_one_and_then_the_stream_ends(pipes: Pipes) -> None:
    async with stdio(pipes.source, pipes.sink) as streams:
        os.write(pipes.to_server, PING.strip())
        os.close(pipes.to_server)

        assert [item async for item in streams[0]] != []


async def test_what_can_not_be_read_is_answered_and_the_next_line_is_read(pipes: Pipes) -> None:
    async with stdio(pipes.source, pipes.sink) as streams:
        os.write(pipes.to_server, b'{"jsonrpc":"2.0","id":null,"method":"ping"}\n' + PING)
        message = await received(streams)
        refusal = await asyncio.to_thread(answer, pipes)

    assert message.method == "ping"
    assert (refusal["id"], refusal["error"]["code"]) == (None, -32600)


async def test_a_line_without_end_takes_no_more_memory_than_a_message(pipes: Pipes) -> None:
    def flood() -> None:
        for _ in range(2 * MAX_MESSAGE_BYTES // 65536):
            os.write(pipes.to_server, b" " * 32768 + b"x" * 32768)
        os.write(pipes.to_server, b"\n" + PING)

    async with stdio(pipes.source, pipes.sink) as streams:
        flooding = asyncio.create_task(asyncio.to_thread(flood))
        message = await received(streams)
        await flooding
        refusal = await asyncio.to_thread(answer, pipes)

    assert message.method == "ping"
    assert refusal["error"]["code"] == -32600
    assert str(MAX_MESSAGE_BYTES) in refusal["error"]["message"]


async def test_an_answer_is_written_whole_to_a_reader_that_is_slow(pipes: Pipes) -> None:
    long = JSONRPCNotification(jsonrpc="2.0", method="x", params={"text": "é" * 300_000})

    async with stdio(pipes.source, pipes.sink) as streams:
        await streams[1].send(SessionMessage(long))
        found = await asyncio.to_thread(answer, pipes)

    assert found["params"]["text"] == "é" * 300_000


async def test_it_ends_when_nobody_reads_the_answers(pipes: Pipes) -> None:
    async with stdio(pipes.source, pipes.sink) as streams:
        os.close(pipes.from_server)
        note = JSONRPCNotification(jsonrpc="2.0", method="x")
        await streams[1].send(SessionMessage(note))

        assert [item async for item in streams[0]] == []


async def test_leaving_does_not_wait_for_input(pipes: Pipes) -> None:
    async with asyncio.timeout(5), stdio(pipes.source, pipes.sink):
        pass


async def test_a_client_that_takes_no_answers_does_not_keep_it(
    pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio_module, "LEAVE_S", 0.05)
    long = JSONRPCNotification(jsonrpc="2.0", method="x", params={"text": "x" * 1_000_000})

    async with asyncio.timeout(5), stdio(pipes.source, pipes.sink) as streams:
        await streams[1].send(SessionMessage(long))


async def test_files_do_for_both_ends(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(PING + b"{\n")
    with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("wb") as sink:
        async with stdio(source.fileno(), sink.fileno()) as streams:
            assert (await received(streams)).method == "ping"
            assert [item async for item in streams[0]] == []

    assert json.loads((tmp_path / "out").read_text())["error"]["code"] == -32700


PRINTING = """
import os, sys
from runner.mcp_server.stdio import claimed
with claimed() as (source, sink):
    print("from Python", flush=True)
    os.system("echo from a child; cat")
    os.write(sink, os.read(source, 100))
print("afterwards")
"""


def test_whatever_prints_meanwhile_does_so_to_standard_error() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRINTING], input=b"wire\n", capture_output=True, check=True
    )

    assert done.stdout == b"wire\nafterwards\n"
    assert done.stderr == b"from Python\nfrom a child\n"
