"""Requests about files: what they make of answers, honest ones and others."""

import asyncio
import json
import os
import tracemalloc
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from runner.answers import Edit, Edited, Entry, Page, Part, RequestFailed
from runner.errors import LocalProtocolError, RemoteProtocolError
from runner.files import TRANSFER_AT_ONCE_BYTES, TRANSFER_PIECE_BYTES
from runner.helper import wire
from runner.helper.wire import Kind
from runner.sandbox import Sandbox
from runner.testing import FakeHelper, fake_shell, memory_carriers
from tests.puppet import Puppet

pytestmark = pytest.mark.anyio

MiB = 1024**2
MARKER = bytes(range(16))


async def alive() -> None:
    """The daemon knows of nothing bad."""


async def sandbox_of(answer: tuple[int, dict[str, Any], bytes]) -> Sandbox:
    """A sandbox whose helper says this to every request."""

    def act(puppet: Puppet, request: wire.Message) -> None:
        kind, fields, payload = answer
        puppet.send(kind, request.call, fields, payload)

    ours, theirs = memory_carriers()
    Puppet(theirs, act)
    return await Sandbox.open(
        ours, MARKER, diagnose=alive, expires_s=None, idle_s=None, timeout_s=5
    )


@pytest.fixture
async def sandbox(tmp_path: Path) -> Sandbox:
    """A sandbox on a helper in memory and a real directory."""
    ours, theirs = memory_carriers()
    FakeHelper(theirs, fake_shell, tmp_path.resolve(), 0, 0)
    return await Sandbox.open(
        ours, MARKER, diagnose=alive, expires_s=None, idle_s=None, timeout_s=5
    )


# Honest answers.


async def test_parts_and_pages_of_a_file_come_back(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\ntwo\nthree\n")
    path = "/workspace/f"
    assert await sandbox.read_part(path, start=4, limit_bytes=3) == Part(b"two", 14)
    page = await sandbox.read_lines(path, first=2, count=1, limit_bytes=100)
    assert page == Page(b"two\n", size=14, lines=3, first=2, count=1, binary=False)
    page = await sandbox.read_lines(path, first=3, count=9, limit_bytes=3)
    assert page == Page(b"thr", size=14, lines=3, first=3, count=0, binary=False)
    judged = await sandbox.resolve(path)
    assert (await sandbox.read_part("/x", start=0, limit_bytes=1, judged=judged)).size == 14


async def test_a_file_is_appended_to_and_edited(sandbox: Sandbox, tmp_path: Path) -> None:
    path = "/workspace/d/f"
    assert await sandbox.append(path, b"a") == 1
    assert await sandbox.append(path, b"ba") == 2
    edits = [Edit(b"a", b"c", all=True), Edit(b"b", b"")]
    assert await sandbox.edit(path, edits, limit_bytes=100) == Edited((2, 1), True)
    assert (tmp_path / "d/f").read_bytes() == b"cc"
    assert await sandbox.edit(path, edits, limit_bytes=100) == Edited((0,), False)
    with pytest.raises(RequestFailed) as caught:
        await sandbox.edit("/workspace", edits, limit_bytes=100)
    assert caught.value.code == "is_directory"
    with pytest.raises(LocalProtocolError):
        await sandbox.edit(path, [], limit_bytes=100)


async def test_a_directory_is_listed(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f.py").write_text("123")
    listing = await sandbox.list("/workspace", depth=5, max_entries=10)
    assert [(one.path, one.kind, one.size) for one in listing.entries] == (
        [("d", "directory", 0), ("d/f.py", "file", 3)]
    )
    assert not listing.truncated
    listing = await sandbox.list("/workspace", glob="**/*.py", depth=5, max_entries=1)
    assert [one.path for one in listing.entries] == ["d/f.py"]
    listing = await sandbox.list("/workspace", depth=5, max_entries=1, hidden=("workspace/d$",))
    assert ([one.path for one in listing.entries], listing.skipped_hidden) == (["d/f.py"], 1)
    (root,) = (await sandbox.list("/workspace/d/f.py", depth=0, max_entries=1)).entries
    assert (root.path, root.kind, root.size) == (".", "file", 3)


# Content of any size.


@pytest.mark.parametrize(
    "size", [0, 1, TRANSFER_AT_ONCE_BYTES, TRANSFER_AT_ONCE_BYTES + 1, 5 * TRANSFER_PIECE_BYTES]
)
async def test_content_of_any_size_is_stored_and_fetched(
    sandbox: Sandbox, tmp_path: Path, size: int
) -> None:
    content = (bytes(range(251)) * (size // 251 + 1))[:size]
    assert await sandbox.store("/workspace/d/f", content) == size
    assert (tmp_path / "d/f").read_bytes() == content
    assert await sandbox.fetch("/workspace/d/f", limit_bytes=size) == content


async def test_a_file_over_the_limit_is_not_fetched(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    os.truncate(tmp_path / "f", 1024**4)
    tracemalloc.start()
    try:
        with pytest.raises(RequestFailed) as caught:
            await sandbox.fetch("/workspace/f", limit_bytes=1000)
        assert tracemalloc.get_traced_memory()[1] < MiB
    finally:
        tracemalloc.stop()
    assert caught.value.code == "file_too_large"
    assert caught.value.detail == f"file too large: {1024**4} bytes, the limit is 1000"


async def test_all_pieces_go_where_the_path_led_at_first(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("d", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("d")
    append = sandbox.append

    async def swap_first(*arguments: Any, **options: Any) -> int:
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to("elsewhere")
        return await append(*arguments, **options)

    monkeypatch.setattr(sandbox, "append", swap_first)
    content = bytes(TRANSFER_AT_ONCE_BYTES + 1)
    await sandbox.store("/workspace/link/f", content)
    assert (tmp_path / "d/f").stat().st_size == len(content)
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_contents_that_are_stored_at_once_do_not_mix(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    contents = [letter * (TRANSFER_AT_ONCE_BYTES + 1) for letter in (b"a", b"b")]
    await asyncio.gather(*(sandbox.store("/workspace/f", content) for content in contents))
    assert (tmp_path / "f").read_bytes() in contents


async def test_a_file_that_does_not_know_its_size_is_fetched_whole() -> None:
    whole = bytes(TRANSFER_PIECE_BYTES + 10)

    def act(puppet: Puppet, request: wire.Message) -> None:
        if request.kind == Kind.RESOLVE:
            puppet.send(Kind.RESOLVED, request.call, {"path": "/proc/f"})
        else:
            start = request.fields["start"]
            part = whole[start : start + request.fields["limit_bytes"]]
            puppet.send(Kind.PIECE, request.call, {"size": start + len(part)}, part)

    ours, theirs = memory_carriers()
    Puppet(theirs, act)
    sandbox = await Sandbox.open(
        ours, MARKER, diagnose=alive, expires_s=None, idle_s=None, timeout_s=5
    )
    assert await sandbox.fetch("/proc/f", limit_bytes=2 * len(whole)) == whole


async def test_a_file_that_shrinks_while_it_is_fetched_ends_there() -> None:
    answers = iter([(10, b"12345"), (5, b"")])

    def act(puppet: Puppet, request: wire.Message) -> None:
        if request.kind == Kind.RESOLVE:
            puppet.send(Kind.RESOLVED, request.call, {"path": "/f"})
        else:
            size, content = next(answers)
            puppet.send(Kind.PIECE, request.call, {"size": size}, content)

    ours, theirs = memory_carriers()
    Puppet(theirs, act)
    sandbox = await Sandbox.open(
        ours, MARKER, diagnose=alive, expires_s=None, idle_s=None, timeout_s=5
    )
    assert await sandbox.fetch("/f", limit_bytes=100) == b"12345"


# Answers that can't be true.

PAGE: dict[str, Any] = {"size": 100, "lines": 10, "first": 3, "count": 2, "binary": False}
LISTED: dict[str, Any] = {
    "entries": 1,
    "truncated": False,
    "skipped_unreadable": 0,
    "skipped_hidden": 0,
}


async def read_part(sandbox: Sandbox) -> Part:
    return await sandbox.read_part("/f", start=10, limit_bytes=5)


async def read_lines(sandbox: Sandbox) -> Page:
    return await sandbox.read_lines("/f", first=3, count=2, limit_bytes=20)


async def edit(sandbox: Sandbox) -> Edited:
    edits = [Edit(b"a", b"b"), Edit(b"b", b"c", all=True)]
    return await sandbox.edit("/f", edits, limit_bytes=100)


async def list_two_levels(sandbox: Sandbox) -> Any:
    return (await sandbox.list("/d", depth=2, max_entries=3)).entries


async def list_the_root(sandbox: Sandbox) -> Any:
    return (await sandbox.list("/d", depth=0, max_entries=3)).entries


def row(path: object = "a", kind: object = "file", size: object = 1, at: object = 2.5) -> bytes:
    return json.dumps([path, kind, size, at]).encode() + b"\n"


Ask = Callable[[Sandbox], Awaitable[Any]]


@pytest.mark.parametrize(
    ("ask", "kind", "fields", "payload", "result"),
    [
        (read_part, Kind.PIECE, {"size": 15}, b"12345", Part(b"12345", 15)),
        (read_part, Kind.PIECE, {"size": 3}, b"", Part(b"", 3)),
        (read_lines, Kind.PAGE, PAGE, b"a\nb\n", Page(b"a\nb\n", **PAGE)),
        (edit, Kind.EDITED, {"counts": [1, 3], "written": True}, b"", Edited((1, 3), True)),
        (edit, Kind.EDITED, {"counts": [2], "written": False}, b"", Edited((2,), False)),
        (edit, Kind.EDITED, {"counts": [1, 0], "written": False}, b"", Edited((1, 0), False)),
        (list_two_levels, Kind.LISTED, LISTED, row(), (Entry("a", "file", 1, 2.5),)),
        (list_two_levels, Kind.LISTED, LISTED, row("a/�"), (Entry("a/�", "file", 1, 2.5),)),
        (list_two_levels, Kind.LISTED, LISTED, row(at=-1), (Entry("a", "file", 1, -1.0),)),
        (list_the_root, Kind.LISTED, LISTED, row("."), (Entry(".", "file", 1, 2.5),)),
    ],
)
async def test_an_answer_that_can_be_true_is_believed(
    ask: Ask, kind: int, fields: dict[str, Any], payload: bytes, result: object
) -> None:
    assert await ask(await sandbox_of((kind, fields, payload))) == result


@pytest.mark.parametrize(
    ("ask", "kind", "fields", "payload"),
    [
        (read_part, Kind.PIECE, {"size": 100}, b"123456"),
        (read_part, Kind.PIECE, {"size": 14}, b"12345"),
        (read_part, Kind.CONTENT, {}, b""),
        (read_lines, Kind.PAGE, PAGE, b"a\nb\n" + b"c" * 20),
        (read_lines, Kind.PAGE, {**PAGE, "first": 1}, b"a\nb\n"),
        (read_lines, Kind.PAGE, {**PAGE, "count": 3}, b"a\nb\nc\n"),
        (read_lines, Kind.PAGE, PAGE, b"a\n"),
        (read_lines, Kind.PAGE, {**PAGE, "count": 0}, b"a\nb\n"),
        (read_lines, Kind.PAGE, {**PAGE, "lines": 3}, b"a\nb\n"),
        (read_lines, Kind.PAGE, {**PAGE, "size": 3}, b"a\nb\n"),
        (read_lines, Kind.PAGE, {**PAGE, "binary": True}, b"a\nb\n"),
        (edit, Kind.EDITED, {"counts": [1], "written": True}, b""),
        (edit, Kind.EDITED, {"counts": [1, 0], "written": True}, b""),
        (edit, Kind.EDITED, {"counts": [2, 1], "written": True}, b""),
        (edit, Kind.EDITED, {"counts": [1, 1, 1], "written": True}, b""),
        (edit, Kind.EDITED, {"counts": [], "written": False}, b""),
        (edit, Kind.EDITED, {"counts": [1, 1], "written": False}, b""),
        (edit, Kind.EDITED, {"counts": [0, 0], "written": False}, b""),
        (edit, Kind.EDITED, {"counts": [1, 1, 0], "written": False}, b""),
        (list_two_levels, Kind.LISTED, LISTED, b""),
        (list_two_levels, Kind.LISTED, LISTED, row()[:-1]),
        (list_two_levels, Kind.LISTED, LISTED, row() + row("b")),
        (list_two_levels, Kind.LISTED, {**LISTED, "entries": 4}, row() * 4),
        (list_two_levels, Kind.LISTED, LISTED, b"[1\n"),
        (list_two_levels, Kind.LISTED, LISTED, b"\xff\n"),
        (list_two_levels, Kind.LISTED, LISTED, b"[" * 100_000 + b"\n"),
        (list_two_levels, Kind.LISTED, LISTED, b"{}\n"),
        (list_two_levels, Kind.LISTED, LISTED, b'["a","file",1]\n'),
        (list_two_levels, Kind.LISTED, LISTED, b'["a","file",1,NaN]\n'),
        (list_two_levels, Kind.LISTED, LISTED, b'["a","file",1,1e400]\n'),
        (list_two_levels, Kind.LISTED, LISTED, b'["\\ud800","file",1,1]\n'),
        (list_two_levels, Kind.LISTED, LISTED, row("a/b/c")),
        (list_two_levels, Kind.LISTED, LISTED, row("/a")),
        (list_two_levels, Kind.LISTED, LISTED, row("../a")),
        (list_two_levels, Kind.LISTED, LISTED, row("a/")),
        (list_two_levels, Kind.LISTED, LISTED, row(".")),
        (list_two_levels, Kind.LISTED, LISTED, row("")),
        (list_two_levels, Kind.LISTED, LISTED, row("a\0b")),
        (list_two_levels, Kind.LISTED, LISTED, row("a" * 20_000)),
        (list_two_levels, Kind.LISTED, LISTED, row(5)),
        (list_two_levels, Kind.LISTED, LISTED, row(kind="door")),
        (list_two_levels, Kind.LISTED, LISTED, row(kind=["file"])),
        (list_two_levels, Kind.LISTED, LISTED, row(size=-1)),
        (list_two_levels, Kind.LISTED, LISTED, row(size=True)),
        (list_two_levels, Kind.LISTED, LISTED, row(size=2**63)),
        (list_two_levels, Kind.LISTED, LISTED, row(at="now")),
        (list_the_root, Kind.LISTED, LISTED, row("a")),
    ],
)
async def test_an_answer_that_can_not_be_true_ends_the_conversation(
    ask: Ask, kind: int, fields: Mapping[str, Any], payload: bytes
) -> None:
    sandbox = await sandbox_of((kind, dict(fields), payload))
    with pytest.raises(RemoteProtocolError):
        await ask(sandbox)
    assert isinstance(sandbox.lost, RemoteProtocolError)
