"""Uploads and downloads: the host's own, of any size, and in the record."""

import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from runner import (
    AsyncRunner,
    AsyncSession,
    Limits,
    Policy,
    RemoteProtocolError,
    Runner,
    Session,
    Settings,
    TransferError,
)
from runner.files import TRANSFER_AT_ONCE_BYTES
from runner.helper import wire
from runner.helper.wire import Kind
from runner.testing import FakeEngine
from tests.puppet import Puppet, PuppetEngine

anyio = pytest.mark.anyio

DENY_ALL = Policy.parse("mode: deny_all")


@pytest.fixture
async def runner(settings: Settings) -> AsyncIterator[AsyncRunner]:
    async with AsyncRunner(DENY_ALL, settings=settings, engine=FakeEngine()) as runner:
        yield runner


@pytest.fixture
async def session(runner: AsyncRunner, tmp_path: Path) -> AsyncIterator[AsyncSession]:
    (tmp_path / "w").mkdir()
    async with runner.session(workspace=tmp_path / "w") as session:
        yield session


def rows(runner: AsyncRunner, session: AsyncSession) -> list[tuple[str, Any]]:
    """What the audit has of files."""
    found = runner.controller.store.audit_rows(session_id=session.id)
    return [(row.event, dict(row.body)) for row in found if row.event.startswith("file.")]


@anyio
@pytest.mark.parametrize("path", ["d/f", "/workspace/d/f", "./d//f"])
async def test_a_file_goes_in_and_comes_out_whatever_the_policy_says(
    session: AsyncSession, tmp_path: Path, path: str
) -> None:
    assert await session.upload(path, b"\xff\0") == 2
    assert (tmp_path / "w/d/f").read_bytes() == b"\xff\0"
    assert await session.download(path) == b"\xff\0"


@anyio
async def test_large_files_go_in_pieces(session: AsyncSession) -> None:
    content = os.urandom(1024) * 17 * 1024
    assert len(content) > TRANSFER_AT_ONCE_BYTES
    assert await session.upload("f", content) == len(content)
    assert await session.download("f") == content


@anyio
async def test_each_transfer_is_in_the_audit(runner: AsyncRunner, session: AsyncSession) -> None:
    await session.upload("f", b"one")
    await session.download("/workspace/f")
    with pytest.raises(TransferError):
        await session.upload(".", b"two")
    with pytest.raises(TransferError):
        await session.download("none")
    one = {"path": "/workspace/f", "bytes": 3, "sha256": hashlib.sha256(b"one").hexdigest()}
    two = {"path": "/workspace/.", "bytes": 3, "sha256": hashlib.sha256(b"two").hexdigest()}
    assert rows(runner, session) == [
        ("file.uploaded", one),
        ("file.downloaded", one),
        ("file.uploaded", {**two, "error": "is_directory"}),
    ]
    runner.controller.store.verify()


@anyio
@pytest.mark.parametrize(
    ("path", "failure", "message"),
    [
        ("none", "not_found", "/workspace/none: no such file or directory"),
        ("/none/f", "not_found", "/none/f: no such file or directory"),
        ("d", "is_directory", "/workspace/d: is a directory"),
        ("f/x", "not_directory", "/workspace/f/x: not a directory"),
        ("p", "not_regular", "/workspace/p: not a regular file"),
        (
            "f",
            "file_too_large",
            "/workspace/f: file too large: 5 bytes, the limit is 4",
        ),
    ],
)
async def test_a_file_that_can_not_be_had_is_an_error_with_its_reason(
    session: AsyncSession, tmp_path: Path, path: str, failure: str, message: str
) -> None:
    (tmp_path / "w/d").mkdir()
    (tmp_path / "w/f").write_text("12345")
    os.mkfifo(tmp_path / "w/p")
    with pytest.raises(TransferError) as caught:
        await session.download(path, limit_bytes=4)
    assert (caught.value.failure, str(caught.value)) == (failure, message)
    assert caught.value.path == message.partition(":")[0]
    assert caught.value.code == "transfer"
    assert failure in wire.FAILURES


@anyio
async def test_a_container_that_breaks_the_protocol_is_lost_and_what_was_sent_is_told(
    settings: Settings,
) -> None:
    def act(puppet: Puppet, request: wire.Message) -> None:
        puppet.send(Kind.PIECE, request.call, {"size": 0})

    async with (
        AsyncRunner(DENY_ALL, settings=settings, engine=PuppetEngine(act)) as runner,
        runner.session() as session,
    ):
        with pytest.raises(RemoteProtocolError):
            await session.upload("f", b"x")
        ((event, body),) = rows(runner, session)
        assert (event, body["error"]) == ("file.uploaded", "remote_protocol")


def test_the_synchronous_session_has_them_too(settings: Settings) -> None:
    with Runner(engine=FakeEngine(), settings=settings) as runner, runner.session() as session:
        assert session.upload("f", b"x") == 1
        assert session.download("f") == b"x"
        with pytest.raises(TransferError):
            session.download("f", limit_bytes=0)


@pytest.mark.docker
def test_files_of_any_size_go_through_a_real_container(session_in_docker: Session) -> None:
    content = bytes(range(256)) * 70_000
    assert len(content) > TRANSFER_AT_ONCE_BYTES
    assert session_in_docker.upload("d/f", content) == len(content)
    digest = hashlib.sha256(content).hexdigest()
    assert session_in_docker.bash("sha256sum d/f").output.startswith(digest)
    assert session_in_docker.download("/workspace/d/f") == content
    for path, failure in {
        "/etc/f": "read_only",
        "/proc/self/status": "permission_denied",
        "/dev/null": "not_regular",
    }.items():
        with pytest.raises(TransferError) as caught:
            session_in_docker.upload(path, b"x")
        assert caught.value.failure == failure
    with pytest.raises(TransferError) as caught:
        session_in_docker.upload("/tmp/f", bytes(Limits().tmp_bytes + 1))
    assert caught.value.failure == "no_space"


@pytest.mark.docker
def test_the_extended_tools_work_in_a_real_container(session_in_docker: Session) -> None:
    def text(tool: str, **arguments: Any) -> str:
        return session_in_docker.call(tool, arguments).text

    assert text("write", path="/workspace/src/a.py", content="one\ntwo\nthree\n").startswith(
        "wrote"
    )
    assert text("read", path="/workspace/src/a.py", offset=2, limit=1) == (
        "two\n(lines 2-2 of 3; read on with offset 3)"
    )
    edits = [{"old_string": "one", "new_string": "1"}, {"old_string": "t", "new_string": "T"}]
    assert "edit 2 of 2" in text("multi_edit", path="/workspace/src/a.py", edits=edits)
    edits[1]["replace_all"] = True  # type: ignore[assignment]
    assert "(3 replacements)" in text("multi_edit", path="/workspace/src/a.py", edits=edits)
    assert text("list", path="/workspace/src") == "a.py (12 bytes)\n"
    assert text("glob", pattern="**/*.py") == "/workspace/src/a.py\n"
    session_in_docker.bash("printf 'x' > \"$(printf 'src/\\377')\"")
    assert text("glob", pattern="src/[!a]*") == "/workspace/src/�\n"
    assert text("list", path="/proc/self/fd/") != ""


@pytest.fixture(scope="module")
def session_in_docker(docker_daemon: None, shared_data_dir: Path) -> Any:
    """A session with the extended tools."""
    allow_all = Policy.parse("mode: allow_all")
    settings = Settings.read(data_dir=shared_data_dir)
    with (
        Runner(allow_all, settings=settings, tools="extended") as runner,
        runner.session() as session,
    ):
        yield session
