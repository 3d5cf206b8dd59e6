"""Getting a run's result to a file or a webhook: what arrives, and what does not."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import tenacity

from runner.cron import delivery
from runner.cron.delivery import deliver, document
from runner.model import Job, Run, RunState
from runner.store import Store
from tests.cron.test_job import job as a_job
from tests.test_store import NOW, OWNER, denied, record, result, session

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "data" / "store.db") as store:
        store.add_session(session("s1"))
        store.begin_call(record("c1"), owner=OWNER)
        store.finish_call(result("c1"))
        store.begin_call(denied("c2"), owner=OWNER)
        yield store


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other at once."""
    monkeypatch.setattr("tenacity.wait_random_exponential", lambda **_: tenacity.wait_none())


RUN = Run(
    id="r-1",
    job_id="j-1",
    job="nightly",
    scheduled_at=NOW,
    state=RunState.FAILED,
    started_at=NOW + 1,
    ended_at=NOW + 2,
    session_id="s1",
    reason="call 2 of 2, bash, is denied: no",
)
CALLS = [{"tool": "bash", "arguments": {"command": "true"}}] * 2


def job(deliver: str) -> Job:
    return a_job(deliver=deliver, calls=CALLS)


def test_a_document_holds_the_run_and_what_came_of_its_calls(store: Store) -> None:
    assert document(store, job("record"), RUN) == {
        "job": "nightly",
        "run": "r-1",
        "state": "failed",
        "reason": "call 2 of 2, bash, is denied: no",
        "scheduled_at": NOW,
        "started_at": NOW + 1,
        "ended_at": NOW + 2,
        "missed": 0,
        "session_id": "s1",
        "calls": [
            {
                "call_id": "c1",
                "tool": "bash",
                "status": "ok",
                "exit_code": 0,
                "output": "hi\n",
                "output_cut": False,
                "error": None,
                "duration_s": 0.25,
            },
            {
                "call_id": "c2",
                "tool": "bash",
                "status": "denied",
                "exit_code": None,
                "output": "",
                "output_cut": False,
                "error": "bash: denied: no",
                "duration_s": 0.001,
            },
        ],
    }
    without = document(store, job("record"), replace(RUN, session_id=""))
    assert without["calls"] == []


def test_a_document_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "DOCUMENT_CHARACTERS", 2)
    first, _ = document(store, job("record"), RUN)["calls"]
    assert (first["output"], first["output_cut"]) == ("hi", True)


# Files.


async def test_a_file_gets_a_line_for_each_run(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    for _ in range(2):
        assert await deliver(store, job(f"file:{path}"), RUN) == "done"
    lines = path.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [document(store, job("record"), RUN)] * 2
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_file_is_not_written_through_a_link_or_into_a_pipe(
    store: Store, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    (tmp_path / "link").symlink_to(other)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "missing/x", "data"):
        said = await deliver(store, job(f"file:{tmp_path}/{name}"), RUN)
        assert said.startswith("failed: ")
        assert name in said
    assert not other.exists()


# Webhooks.


class Receiver:
    """A webhook on the loopback interface that answers with one status after another."""

    def __init__(self, *answers: bytes):
        self.answers = list(answers)
        self.requests: list[tuple[dict[str, str], Any]] = []
        self.url = ""

    async def __aenter__(self) -> "Receiver":
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/hook?key=1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        await self.server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {"request": head[0]}
        headers |= dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        self.requests.append((headers, json.loads(body)))
        answer = self.answers.pop(0)
        if answer:
            writer.write(b"HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % answer)
        writer.close()
        await writer.wait_closed()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as receiver:
        yield receiver


async def test_a_webhook_gets_the_document_with_the_run_as_its_key(
    store: Store, receiver: Receiver
) -> None:
    receiver.answers = [b"204 No Content"]
    assert await deliver(store, job(f"webhook:{receiver.url}"), RUN) == "done"
    ((headers, body),) = receiver.requests
    assert headers["request"] == "POST /hook?key=1 HTTP/1.1"
    assert headers["content-type"] == "application/json"
    assert headers["idempotency-key"] == "r-1"
    assert body == document(store, job("record"), RUN)


async def test_a_webhook_that_is_in_trouble_is_asked_again(
    store: Store, receiver: Receiver
) -> None:
    receiver.answers = [b"503 Busy", b"", b"429 Slow Down", b"200 OK"]
    assert await deliver(store, job(f"webhook:{receiver.url}"), RUN) == "done"
    assert len(receiver.requests) == 4
    assert receiver.answers == []


async def test_a_webhook_that_stays_in_trouble_is_given_up(
    store: Store, receiver: Receiver
) -> None:
    receiver.answers = [b"500 No"] * 9
    said = await deliver(store, job(f"webhook:{receiver.url}"), RUN)
    assert said == "failed: Unwelcome: the webhook answered with the status 500"
    assert len(receiver.requests) == delivery.ATTEMPTS


@pytest.mark.parametrize("status", [b"404 Not Found", b"301 Moved\r\nLocation: http://example.com"])
async def test_an_answer_that_will_not_change_is_the_last(
    store: Store, receiver: Receiver, status: bytes
) -> None:
    receiver.answers = [status, b"200 OK"]
    said = await deliver(store, job(f"webhook:{receiver.url}"), RUN)
    assert said == f"failed: Unwelcome: the webhook answered with the status {status[:3].decode()}"
    assert len(receiver.requests) == 1


async def test_a_webhook_that_says_nothing_is_given_up_in_time(
    store: Store, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            await asyncio.Event().wait()
            raise AssertionError

    monkeypatch.setattr(delivery, "ATTEMPT_S", 0.01)
    said = await deliver(store, job(f"webhook:{receiver.url}"), RUN, transport=Silent())
    assert said.startswith("failed: OSError: the webhook did not answer within 0.01 s")


async def test_nobody_listening_is_a_failure_that_says_so(store: Store) -> None:
    async with Receiver() as gone:
        pass
    said = await deliver(store, job(f"webhook:{gone.url}"), RUN)
    assert said.startswith("failed: ConnectError")
