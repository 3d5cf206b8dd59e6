"""Parts of files: ranges of bytes, and pages of lines."""

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.helper import paging
from runner.helper.files import Failure

MiB = 1024**2


def page(
    path: Path, first: int = 1, count: int = 2**62, limit_bytes: int = MiB
) -> tuple[dict[str, Any], bytes]:
    return paging.page(str(path), first, count, limit_bytes, lambda: False)


def lines_of(content: bytes) -> list[bytes]:
    """The lines of a content with their ends."""
    return [line + b"\n" for line in content.split(b"\n")[:-1]] + (
        [content.rpartition(b"\n")[2]] if content and not content.endswith(b"\n") else []
    )


class TestPart:
    @pytest.mark.parametrize(
        ("start", "limit", "content"),
        [
            (0, 100, b"0123456789"),
            (0, 3, b"012"),
            (8, 100, b"89"),
            (10, 1, b""),
            (11, 1, b""),
            (2**62, 1, b""),
            (3, 0, b""),
        ],
    )
    def test_has_the_bytes_of_the_range_and_the_size_of_the_file(
        self, tmp_path: Path, start: int, limit: int, content: bytes
    ) -> None:
        (tmp_path / "f").write_bytes(b"0123456789")
        assert paging.part(f"{tmp_path}/f", start, limit) == (10, content)

    def test_is_read_of_files_of_any_size(self, tmp_path: Path) -> None:
        with (tmp_path / "f").open("wb") as file:
            file.truncate(1024**4)
            file.seek(1024**4 - 3)
            file.write(b"end")
        size, content = paging.part(f"{tmp_path}/f", 1024**4 - 5, 100)
        assert (size, content) == (1024**4, b"\0\0end")

    def test_of_proc_is_as_long_as_it_turns_out(self) -> None:
        size, content = paging.part("/proc/self/status", 0, MiB)
        assert b"Pid:" in content
        assert size == len(content)

    def test_is_of_regular_files_only(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "f")
        for path, code in {
            f"{tmp_path}/f": "not_regular",
            f"{tmp_path}": "is_directory",
            "/dev/zero": "not_regular",
            f"{tmp_path}/none": "not_found",
        }.items():
            with pytest.raises(Failure) as caught:
                paging.part(path, 0, 1)
            assert caught.value.code == code
            with pytest.raises(Failure) as caught:
                page(Path(path))
            assert caught.value.code == code


class TestPage:
    @pytest.mark.parametrize("content", [b"a\nb\nc\nd\n", b"a\nb\nc\nd"])
    @pytest.mark.parametrize(
        ("first", "count", "lines"), [(1, 2, "ab"), (2, 1, "b"), (3, 9, "cd"), (4, 1, "d")]
    )
    def test_has_the_lines_of_the_range_and_tells_how_many_there_are(
        self, tmp_path: Path, content: bytes, first: int, count: int, lines: str
    ) -> None:
        (tmp_path / "f").write_bytes(content)
        fields, found = page(tmp_path / "f", first, count)
        assert found.split() == [line.encode() for line in lines]
        assert fields == {
            "size": len(content),
            "lines": 4,
            "first": first,
            "count": len(lines),
            "binary": False,
        }

    @pytest.mark.parametrize(
        ("content", "first", "lines"),
        [(b"", 1, 0), (b"\n", 2, 1), (b"a\n", 5, 1), (b"a\nb", 3, 2)],
    )
    def test_behind_the_end_is_empty(
        self, tmp_path: Path, content: bytes, first: int, lines: int
    ) -> None:
        (tmp_path / "f").write_bytes(content)
        fields, found = page(tmp_path / "f", first)
        assert (found, fields["count"], fields["lines"]) == (b"", 0, lines)

    def test_leaves_line_ends_and_bytes_as_they_are(self, tmp_path: Path) -> None:
        content = b"\xef\xbb\xbfa\r\n\xff\x0b\x0c\x85\r\n" + "\u2028\n".encode()
        (tmp_path / "f").write_bytes(content)
        fields, found = page(tmp_path / "f")
        assert found == content
        assert fields["lines"] == fields["count"] == 3

    def test_ends_before_the_line_that_would_be_too_much(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"aaa\nbbb\nccc\n")
        for limit, count in ((4, 1), (7, 1), (8, 2), (11, 2), (12, 3)):
            fields, found = page(tmp_path / "f", limit_bytes=limit)
            assert found == b"aaa\nbbb\nccc\n"[: 4 * count]
            assert (fields["count"], fields["lines"]) == (count, 3)

    @pytest.mark.parametrize(
        ("line", "limit", "shown"),
        [
            (b"abcdef\n", 3, b"abc"),
            (b"abc\n", 3, b"abc"),
            ("aé€😀\n".encode(), 2, b"a"),
            ("aé€😀\n".encode(), 3, "aé".encode()),
            ("aé€😀\n".encode(), 5, "aé".encode()),
            ("aé€😀\n".encode(), 9, "aé€".encode()),
            ("aé€😀\n".encode(), 10, "aé€😀".encode()),
            (b"\xff\xff\xff\xff", 3, b"\xff\xff"),
            (b"\x80\x80\x80\x80\x80", 4, b"\x80\x80\x80\x80"),
            ("😀".encode(), 3, b""),
        ],
    )
    def test_of_one_line_that_is_too_long_is_its_beginning(
        self, tmp_path: Path, line: bytes, limit: int, shown: bytes
    ) -> None:
        (tmp_path / "f").write_bytes(b"first\n" + line + b"\nlast")
        fields, found = page(tmp_path / "f", 2, limit_bytes=limit)
        assert (found, fields["count"], fields["first"]) == (shown, 0, 2)

    @pytest.mark.parametrize("at", [0, 511])
    def test_of_a_binary_file_is_empty(self, tmp_path: Path, at: int) -> None:
        content = b"a\n" * (at // 2) + b"a" * (at % 2) + b"\0" + b"b\n" * MiB
        (tmp_path / "f").write_bytes(content)
        fields, found = page(tmp_path / "f", 3)
        assert found == b""
        assert fields == {
            "size": len(content),
            "lines": 0,
            "first": 3,
            "count": 0,
            "binary": True,
        }

    def test_takes_a_nul_that_comes_late_for_text(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"a" * 512 + b"\0\n")
        fields, found = page(tmp_path / "f")
        assert not fields["binary"]
        assert found == b"a" * 512 + b"\0\n"

    def test_is_read_through_and_not_held(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lines = 40_000
        (tmp_path / "f").write_bytes(b"x" * 99 + (b"\n" + b"x" * 99) * (lines - 1))
        monkeypatch.setattr(paging, "_PIECE_BYTES", 1000)
        fields, found = page(tmp_path / "f", lines - 1, 2)
        assert (fields["lines"], fields["size"], fields["count"]) == (lines, 100 * lines - 1, 2)
        assert found == b"x" * 99 + b"\n" + b"x" * 99

    def test_ends_when_nobody_wants_it_any_more(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"x" * 3 * MiB)
        answers = iter([False, False, True])
        with pytest.raises(Failure) as caught:
            paging.page(f"{tmp_path}/f", 1, 1, MiB, lambda: next(answers))
        assert caught.value.code == "cancelled"

    def test_leaves_no_descriptor_open(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"\0")
        before = os.listdir("/proc/self/fd")
        for path in ("f", "none", "."):
            with contextlib.suppress(Failure):
                page(tmp_path / path)
            with contextlib.suppress(Failure):
                paging.part(f"{tmp_path}/{path}", 0, 1)
        assert os.listdir("/proc/self/fd") == before


@given(
    content=st.lists(st.sampled_from([b"\n", b"a", b"bc", b"\xc3\xa9", b"\r"]), max_size=30).map(
        b"".join
    ),
    first=st.integers(1, 8),
    count=st.integers(0, 8),
    limit=st.integers(1, 12),
    piece=st.integers(1, 7),
)
def test_a_page_is_what_splitting_the_whole_file_would_give(
    content: bytes, first: int, count: int, limit: int, piece: int
) -> None:
    collected = paging._Page(first, count, limit)
    for start in range(0, len(content), piece):
        collected.add(content[start : start + piece])
    whole, found = collected.result()

    lines = lines_of(content)
    expected: list[bytes] = []
    for line in lines[first - 1 : first - 1 + count]:
        if sum(map(len, expected)) + len(line) > limit:
            break
        expected.append(line)
    assert collected.lines() == len(lines)
    assert whole == len(expected)
    if expected or not lines[first - 1 : first - 1 + count]:
        assert found == b"".join(expected)
    else:
        assert lines[first - 1].startswith(found)
        assert limit - 4 < len(found) <= limit
