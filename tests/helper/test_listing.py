"""Listings: which entries, in which order, and what keeps them bounded."""

import contextlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.helper import listing, search, wire
from runner.helper.files import Failure

MiB = 1024**2
ALL = 2**31


def entries(
    root: Path | str,
    glob: str = "",
    *,
    depth: int = ALL,
    max_entries: int = 1000,
    judged: str | None = None,
    hides: Callable[[bytes], bool] | None = None,
) -> tuple[dict[str, Any], list[list[Any]]]:
    fields, rows = listing.entries(
        str(root), glob, depth, max_entries, lambda: False, judged=judged, hides=hides
    )
    found = [json.loads(row) for row in rows.splitlines()]
    assert len(found) == fields.pop("entries")
    return fields, found


def paths(root: Path | str, glob: str = "", **options: Any) -> list[str]:
    _, found = entries(root, glob, **options)
    return [path for path, *_ in found]


def failure(root: Path | str, glob: str = "", **options: Any) -> str:
    with pytest.raises(Failure) as caught:
        entries(root, glob, **options)
    assert caught.value.code in wire.FAILURES
    return caught.value.code


def fill(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


class TestEntries:
    def test_come_in_order_of_names_a_directory_before_what_is_in_it(self, tmp_path: Path) -> None:
        fill(tmp_path, "b", "a/z", "a.d/z", "a/b/c", "B", ".h", "é")
        assert paths(tmp_path) == (
            [".h", "B", "a", "a/b", "a/b/c", "a/z", "a.d", "a.d/z", "b", "é"]
        )

    def test_tell_kind_size_and_time(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"12345")
        os.utime(tmp_path / "f", (1, 1_700_000_000.25))
        (tmp_path / "d").mkdir()
        (tmp_path / "l").symlink_to("f")
        os.mkfifo(tmp_path / "p")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(tmp_path / "s"))
            _, found = entries(tmp_path)
        assert [row[:3] for row in found] == [
            ["d", "directory", 0],
            ["f", "file", 5],
            ["l", "link", 0],
            ["p", "other", 0],
            ["s", "other", 0],
        ]
        assert found[1][3] == 1_700_000_000.25

    @pytest.mark.parametrize(
        ("depth", "expected"), [(1, "a f"), (2, "a a/b f"), (3, "a a/b a/b/c f")]
    )
    def test_go_as_deep_as_is_asked(self, tmp_path: Path, depth: int, expected: str) -> None:
        fill(tmp_path, "a/b/c", "f")
        assert paths(tmp_path, depth=depth) == expected.split()

    def test_of_depth_0_are_the_root_itself_whatever_it_is(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"123")
        (tmp_path / "l").symlink_to("f")
        os.mkfifo(tmp_path / "p")
        for name, kind in {"": "directory", "f": "file", "l": "file", "p": "other"}.items():
            _, [found] = entries(tmp_path / name, depth=0)
            assert found[:2] == [".", kind]
        assert paths("/", depth=0) == ["."]
        assert failure(tmp_path / "none", depth=0) == "not_found"

    def test_do_not_include_what_links_lead_to(self, tmp_path: Path) -> None:
        fill(tmp_path, "out/secret", "root/f")
        (tmp_path / "root/l").symlink_to("../out")
        (tmp_path / "root/up").symlink_to("..")
        assert paths(tmp_path / "root") == ["f", "l", "up"]
        assert paths(tmp_path / "root", "l/*") == []

    def test_are_of_what_the_root_leads_to_if_it_is_a_link(self, tmp_path: Path) -> None:
        fill(tmp_path, "d/f")
        (tmp_path / "l").symlink_to("d")
        assert paths(tmp_path / "l") == paths(f"{tmp_path}/l/") == ["f"]

    def test_may_have_any_name(self, tmp_path: Path) -> None:
        for name in (b"a\nb", b'"', b"\xff\xfe", b"\x1b[2J", "é\u2028".encode()):
            (Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))).touch()
        assert sorted(paths(tmp_path)) == sorted(["a\nb", '"', "��", "\x1b[2J", "é\u2028"])

    def test_of_trees_deeper_than_a_path_may_be_end_there(self, tmp_path: Path) -> None:
        here = os.open(tmp_path, os.O_RDONLY)
        for _ in range(30):
            os.mkdir("d" * 200, dir_fd=here)
            below = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(here)
        fields, found = entries(tmp_path)
        assert 0 < len(found) < 30
        assert all(len(row[0]) <= wire.MAX_PATH_BYTES for row in found)
        assert fields["skipped_unreadable"] > 0


class TestGlob:
    def test_says_which_entries(self, tmp_path: Path) -> None:
        fill(tmp_path, "a.py", "src/b.py", "src/c.txt", "src/d/e.py", "src/d.py/x")
        assert paths(tmp_path, "**/*.py") == ["a.py", "src/b.py", "src/d/e.py", "src/d.py"]
        assert paths(tmp_path, "src/*") == ["src/b.py", "src/c.txt", "src/d", "src/d.py"]
        assert paths(tmp_path, "**/*.py", depth=2) == ["a.py", "src/b.py", "src/d.py"]

    def test_enters_only_where_something_can_match(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(tmp_path, "src/a.py", "lib/a.py", "src/deep/a.py")
        read: list[bytes] = []
        real = listing._Walk._read

        def watched(self: Any, above: bytes, *rest: Any) -> Any:
            read.append(above)
            return real(self, above, *rest)

        monkeypatch.setattr(listing._Walk, "_read", watched)
        assert paths(tmp_path, "src/*.py") == ["src/a.py"]
        assert read == [b"", b"src/"]

    def test_that_is_none_is_refused(self, tmp_path: Path) -> None:
        assert failure(tmp_path, "[a") == "bad_glob"
        assert failure(tmp_path, "/etc/*") == "bad_glob"


class TestSkippedDirectories:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        for name in search.SKIPPED_DIRECTORIES:
            fill(tmp_path, f"{name.decode()}/f.py")
        fill(tmp_path, "src/node_modules/lib/f.py", "src/f.py", "src/vendor")
        return tmp_path

    def test_are_named_but_not_entered(self, root: Path) -> None:
        skipped = [name.decode() for name in search.SKIPPED_DIRECTORIES]
        below = ["src", "src/f.py", "src/node_modules", "src/vendor"]
        assert paths(root) == sorted([*skipped, *below])

    def test_are_not_entered_by_a_wildcard(self, root: Path) -> None:
        assert paths(root, "**/*.py") == ["src/f.py"]
        assert paths(root, "*/*.py") == ["src/f.py"]
        assert paths(root, "d*/*") == []

    def test_are_entered_where_the_glob_names_them(self, root: Path) -> None:
        assert paths(root, "build/*.py") == ["build/f.py"]
        assert paths(root, "**/node_modules/**/*.py") == (
            ["node_modules/f.py", "src/node_modules/lib/f.py"]
        )
        assert paths(root, "{dist,src}/**") == (
            ["dist/f.py", "src/f.py", "src/node_modules", "src/vendor"]
        )

    def test_may_be_the_root(self, root: Path) -> None:
        assert paths(root / "build") == ["f.py"]


class TestBounds:
    @pytest.mark.parametrize(("room", "truncated"), [(4, True), (5, False), (6, False), (0, True)])
    def test_entries_are_bounded_and_it_is_told(
        self, tmp_path: Path, room: int, truncated: bool
    ) -> None:
        fill(tmp_path, "a/x", "a/y", "b", "c")
        fields, found = entries(tmp_path, max_entries=room)
        assert [row[0] for row in found] == ["a", "a/x", "a/y", "b", "c"][:room]
        assert fields["truncated"] is truncated

    def test_a_directory_behind_the_last_entry_is_not_what_is_missing(self, tmp_path: Path) -> None:
        fill(tmp_path, "a.py", "b/c.txt")
        fields, _ = entries(tmp_path, "**/*.py", max_entries=1)
        assert not fields["truncated"]

    def test_rows_are_bounded_together(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listing, "MAX_ROWS_BYTES", 80)
        fill(tmp_path, *"abcdef")
        fields, found = entries(tmp_path)
        assert fields["truncated"]
        assert [row[0] for row in found] == ["a", "b"]

    def test_names_that_are_held_are_bounded(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listing, "MAX_NAMES_HELD", 3)
        fill(tmp_path, "a/b/c/d", "a/b/e", "f")
        fields, found = entries(tmp_path)
        assert fields["truncated"]
        assert [row[0] for row in found] == ["a", "a/b", "f"]
        monkeypatch.setattr(listing, "MAX_NAMES_HELD", 6)
        fields, found = entries(tmp_path)
        assert not fields["truncated"]
        assert len(found) == 6

    def test_names_of_directories_that_are_left_make_room_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listing, "MAX_NAMES_HELD", 4)
        fill(tmp_path, "a/1", "a/2", "b/1", "b/2")
        fields, found = entries(tmp_path)
        assert not fields["truncated"]
        assert len(found) == 6

    def test_it_ends_when_nobody_wants_it_any_more(self, tmp_path: Path) -> None:
        fill(tmp_path, *"abc")
        answers = iter([False, False, True])
        with pytest.raises(Failure) as caught:
            listing.entries(str(tmp_path), "", 1, 10, lambda: next(answers))
        assert caught.value.code == "cancelled"


class TestTrouble:
    def test_of_the_root_is_an_error(self, tmp_path: Path) -> None:
        fill(tmp_path, "f")
        (tmp_path / "loop").symlink_to("loop")
        os.mkfifo(tmp_path / "p")
        assert failure(tmp_path / "none") == "not_found"
        assert failure(tmp_path / "f") == failure(tmp_path / "p") == "not_directory"
        assert failure(tmp_path / "f/x") == "not_directory"
        assert failure(tmp_path / "loop") == "link_loop"

    def test_of_what_is_below_is_counted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(tmp_path, "a/f", "b/f")
        real = listing._Walk._read

        def read(self: Any, above: bytes, *rest: Any) -> Any:
            if above == b"a/":
                raise PermissionError
            return real(self, above, *rest)

        monkeypatch.setattr(listing._Walk, "_read", read)
        fields, found = entries(tmp_path)
        assert [row[0] for row in found] == ["a", "b", "b/f"]
        assert fields["skipped_unreadable"] == 1

    def test_leaves_no_descriptor_open(self, tmp_path: Path) -> None:
        fill(tmp_path, "a/b/c", "f")
        before = os.listdir("/proc/self/fd")
        for name in ("", "f", "none"):
            for depth in (0, ALL):
                with contextlib.suppress(Failure):
                    entries(tmp_path / name, depth=depth)
        assert os.listdir("/proc/self/fd") == before


class TestJudged:
    def test_is_what_is_listed_whatever_the_path_says(self, tmp_path: Path) -> None:
        fill(tmp_path, "d/e/f")
        assert paths("/not/asked/for", judged=f"{tmp_path}/d") == ["e", "e/f"]
        assert paths("/not/asked/for", judged=f"{tmp_path}/d", depth=0) == ["."]

    @pytest.mark.parametrize("depth", [0, 1])
    @pytest.mark.parametrize("link", ["a", "a/b", "a/b/c"])
    def test_no_link_is_followed_on_the_way(self, tmp_path: Path, link: str, depth: int) -> None:
        fill(tmp_path, "a/b/c/f")
        (tmp_path / link).rename(tmp_path / "moved")
        (tmp_path / link).symlink_to(tmp_path / "moved")
        assert failure("/x", judged=f"{tmp_path}/a/b/c", depth=depth) == "moved"

    def test_a_link_that_takes_a_directorys_place_is_not_followed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(tmp_path, "root/d/f", "out/secret")
        real = listing._Walk._read

        def swap_first(self: Any, above: bytes, *rest: Any) -> Any:
            if above == b"d/":
                (tmp_path / "root/d").rename(tmp_path / "was-d")
                (tmp_path / "root/d").symlink_to("../out")
            return real(self, above, *rest)

        monkeypatch.setattr(listing._Walk, "_read", swap_first)
        fields, found = entries(tmp_path / "root")
        assert [row[0] for row in found] == ["d"]
        assert fields["skipped_unreadable"] == 1


class TestHidden:
    def hides(self, *patterns: str) -> Callable[[bytes], bool] | None:
        return search.hider(patterns)

    def test_entries_are_left_out_and_counted(self, tmp_path: Path) -> None:
        fill(tmp_path, "a.env", "d/.env", "d/f", "secrets/f")
        hides = self.hides(r"\.env\z", "/secrets(/|\\z)")
        fields, found = entries(tmp_path, hides=hides)
        assert [row[0] for row in found] == ["d", "d/f"]
        assert fields["skipped_hidden"] == 4

    def test_what_is_below_a_hidden_directory_is_judged_by_itself(self, tmp_path: Path) -> None:
        fill(tmp_path, "d/f")
        assert paths(tmp_path, hides=self.hides(r"/d\z")) == ["d/f"]

    def test_a_link_is_hidden_with_what_it_leads_to(self, tmp_path: Path) -> None:
        fill(tmp_path, "root/f", "out/secret")
        (tmp_path / "root/l").symlink_to("../out/secret")
        (tmp_path / "root/m").symlink_to("f")
        assert paths(tmp_path / "root", hides=self.hides("secret")) == ["f", "m"]

    def test_the_root_alone_can_be_hidden(self, tmp_path: Path) -> None:
        fill(tmp_path, "secret")
        fields, found = entries(tmp_path / "secret", depth=0, hides=self.hides("secret"))
        assert (found, fields["skipped_hidden"]) == ([], 1)
        _, found = entries(tmp_path, depth=0, hides=self.hides("secret"))
        assert found

    def test_names_that_are_no_utf_8_hide_from_nothing(self, tmp_path: Path) -> None:
        (Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.env"))).touch()
        assert paths(tmp_path, hides=self.hides(r"�\.env\z")) == []
