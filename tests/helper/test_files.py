"""Single files: what is read, what is stored, and what survives when that fails."""

import contextlib
import errno
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.helper import files, paging, wire
from runner.helper.files import Failure

MiB = 1024**2
NOBODY = 65534


def failure(code: str, detail: str = "") -> contextlib.AbstractContextManager[object]:
    return _Fails(code, detail)


class _Fails:
    def __init__(self, code: str, detail: str):
        self.code = code
        self.detail = detail

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        assert isinstance(error, Failure), f"no Failure, but {error!r}"
        assert error.code == self.code
        assert error.code in wire.FAILURES
        assert self.detail in error.detail
        return True


@contextlib.contextmanager
def mounted(*arguments: str) -> Iterator[Path]:
    """Something mounted for a while; a test that needs it skips where it must not."""
    with tempfile.TemporaryDirectory() as directory:
        made = subprocess.run(["mount", *arguments, directory], capture_output=True, text=True)
        if made.returncode != 0:
            if os.environ.get("CI"):
                pytest.fail(f"can't mount here: {made.stderr}")
            pytest.skip("mounting needs root")
        try:
            yield Path(directory)
        finally:
            subprocess.run(["umount", directory], check=True)


def small_disk() -> contextlib.AbstractContextManager[Path]:
    """64 KiB of room."""
    return mounted("-t", "tmpfs", "-o", "size=64k", "tmpfs")


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that other users can get at, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        path.chmod(0o777)
        yield path


@contextlib.contextmanager
def as_somebody_else() -> Iterator[None]:
    """As a user that the permissions of files mean something to."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


class TestRead:
    def test_returns_every_byte(self, tmp_path: Path) -> None:
        content = bytes(range(256)) * 1000
        (tmp_path / "f").write_bytes(content)
        assert files.read(f"{tmp_path}/f", MiB) == content

    @pytest.mark.parametrize("name", ["a\nb", "x" * 255, "é" * 127, "-n", "a\\b", "*"])
    def test_takes_names_as_they_are(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_text("ok")
        assert files.read(f"{tmp_path}/{name}", MiB) == b"ok"

    def test_keeps_characters_that_look_the_same_apart(self, tmp_path: Path) -> None:
        (tmp_path / "caf\N{LATIN SMALL LETTER E WITH ACUTE}").write_text("composed")
        with failure("not_found"):
            files.read(f"{tmp_path}/cafe\N{COMBINING ACUTE ACCENT}", MiB)

    def test_follows_links(self, tmp_path: Path) -> None:
        (tmp_path / "target").write_text("ok")
        (tmp_path / "link").symlink_to("target")
        assert files.read(f"{tmp_path}/link", MiB) == b"ok"

    def test_reads_files_of_proc_that_have_no_size(self) -> None:
        assert b"Pid:" in files.read("/proc/self/status", MiB)
        assert b"processor" in files.read("/proc/cpuinfo", MiB)

    def test_bounds_files_of_proc_too(self) -> None:
        with failure("file_too_large"):
            files.read("/proc/self/status", 10)

    def test_takes_a_file_of_exactly_the_limit(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"x" * 100)
        assert len(files.read(f"{tmp_path}/f", 100)) == 100
        with failure("file_too_large", "file too large: 100 bytes, the limit is 99"):
            files.read(f"{tmp_path}/f", 99)

    @pytest.mark.parametrize("size", [3 * 1024**3, 1024**4], ids=["3 GiB", "1 TiB"])
    def test_refuses_a_large_sparse_file_without_reading_it(
        self, tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "f").touch()
        os.truncate(tmp_path / "f", size)
        monkeypatch.delattr(os, "read")
        with failure("file_too_large", f"{size} bytes"):
            files.read(f"{tmp_path}/f", 16 * MiB)

    def test_stays_bounded_when_the_file_grows(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"x" * 5000)
        descriptor = os.open(tmp_path / "f", os.O_RDONLY)
        try:
            assert files.read_bounded(descriptor, 10, 4999) is None
            os.lseek(descriptor, 0, os.SEEK_SET)
            assert files.read_bounded(descriptor, 10, 5000) == b"x" * 5000
        finally:
            os.close(descriptor)

    def test_does_not_wait_for_a_fifo(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "f")
        with failure("not_regular", "not a regular file"):
            files.read(f"{tmp_path}/f", MiB)

    def test_does_not_wait_for_a_fifo_that_took_a_files_place(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        os.mkfifo(tmp_path / "f")
        (tmp_path / "regular").touch()
        regular = os.stat(tmp_path / "regular")
        monkeypatch.setattr(os, "stat", lambda name, **_: regular)
        with failure("not_regular"):
            files.read(f"{tmp_path}/f", MiB)

    def test_refuses_sockets_and_devices(self, tmp_path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(tmp_path / "s"))
            with failure("not_regular"):
                files.read(f"{tmp_path}/s", MiB)
        with failure("not_regular"):
            files.read("/dev/zero", MiB)

    def test_does_not_even_open_what_is_no_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        os.mkfifo(tmp_path / "f")
        opened: list[bytes] = []
        real_open = os.open

        def watched_open(name: bytes, flags: int, **options: int) -> int:
            opened.append(name)
            return real_open(name, flags, **options)

        monkeypatch.setattr(os, "open", watched_open)
        with failure("not_regular"):
            files.read(f"{tmp_path}/f", MiB)
        assert opened == []
        with failure("not_regular"):
            files.write("/dev/null", b"x")
        assert opened == [b"/", b"dev"]

    def test_names_what_is_wrong_as_the_system_does(self, tmp_path: Path) -> None:
        (tmp_path / "f").touch()
        (tmp_path / "dangling").symlink_to("nothing")
        (tmp_path / "loop").symlink_to("loop")
        with failure("not_found", "no such file or directory"):
            files.read(f"{tmp_path}/none", MiB)
        with failure("not_found"):
            files.read(f"{tmp_path}/dangling", MiB)
        with failure("is_directory", "is a directory"):
            files.read(f"{tmp_path}", MiB)
        with failure("not_directory", "not a directory"):
            files.read(f"{tmp_path}/f/x", MiB)
        with failure("not_directory"):
            files.read(f"{tmp_path}/f/", MiB)
        with failure("link_loop", "too many levels of symbolic links"):
            files.read(f"{tmp_path}/loop", MiB)
        with failure("name_too_long", "file name too long"):
            files.read(f"{tmp_path}/{'x' * 256}", MiB)
        with failure("name_too_long"):
            files.read("/a" * 3000, MiB)
        with failure("io", "NUL byte"):
            files.read(f"{tmp_path}/f\0.txt", MiB)

    def test_says_when_it_may_not(self, open_directory: Path) -> None:
        (open_directory / "f").write_text("secret")
        (open_directory / "f").chmod(0)
        with as_somebody_else(), failure("permission_denied", "permission denied"):
            files.read(f"{open_directory}/f", MiB)


class TestWrite:
    def test_makes_the_file_and_its_directories(self, tmp_path: Path) -> None:
        assert files.write(f"{tmp_path}/a/b/c.txt", b"deep") == 4
        assert (tmp_path / "a/b/c.txt").read_bytes() == b"deep"
        assert names(tmp_path / "a/b") == ["c.txt"]

    @pytest.mark.parametrize("mask", [0o077, 0o022, 0o000])
    def test_gives_new_things_their_modes_whatever_the_umask(
        self, tmp_path: Path, mask: int
    ) -> None:
        before = os.umask(mask)
        try:
            files.write(f"{tmp_path}/d/e/f", b"x")
        finally:
            os.umask(before)
        assert mode(tmp_path / "d") == mode(tmp_path / "d/e") == 0o755
        assert mode(tmp_path / "d/e/f") == 0o644

    def test_leaves_a_directory_its_group_bit(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o2755)
        before = os.umask(0o077)
        try:
            files.write(f"{tmp_path}/d/f", b"x")
        finally:
            os.umask(before)
        assert mode(tmp_path / "d") == 0o2755

    @pytest.mark.parametrize("old_mode", [0o755, 0o600, 0o640, 0o777])
    def test_keeps_the_mode_of_a_file(self, tmp_path: Path, old_mode: int) -> None:
        (tmp_path / "f").write_text("a longer text than the new one")
        (tmp_path / "f").chmod(old_mode)
        files.write(f"{tmp_path}/f", b"new")
        assert (tmp_path / "f").read_bytes() == b"new"
        assert mode(tmp_path / "f") == old_mode

    def test_takes_set_user_id_away_as_every_write_does(self, tmp_path: Path) -> None:
        (tmp_path / "f").touch()
        (tmp_path / "f").chmod(0o4755)
        files.write(f"{tmp_path}/f", b"#!/bin/sh\n")
        assert mode(tmp_path / "f") == 0o755

    def test_writes_empty_and_large_content(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("old")
        assert files.write(f"{tmp_path}/f", b"") == 0
        assert (tmp_path / "f").read_bytes() == b""
        large = os.urandom(MiB) * 5
        assert files.write(f"{tmp_path}/f", large) == len(large)
        assert (tmp_path / "f").read_bytes() == large

    def test_never_shows_half_a_file(self, tmp_path: Path) -> None:
        target = tmp_path / "f"
        target.write_bytes(b"a" * MiB)
        seen: set[bytes] = set()
        done = threading.Event()

        def look() -> None:
            while not done.is_set():
                content = target.read_bytes()
                seen.add(content[:1] + content[-1:] + str(len(content)).encode())

        looking = threading.Thread(target=look)
        looking.start()
        for letter in (b"b", b"a") * 20:
            files.write(str(target), letter * MiB)
        done.set()
        looking.join()
        assert seen <= {b"aa1048576", b"bb1048576"}

    def test_takes_a_name_of_255_bytes(self, tmp_path: Path) -> None:
        files.write(f"{tmp_path}/{'x' * 255}", b"1")
        files.write(f"{tmp_path}/{'x' * 255}", b"2")
        assert names(tmp_path) == ["x" * 255]

    def test_takes_a_newline_in_a_name(self, tmp_path: Path) -> None:
        files.write(f"{tmp_path}/a\nb", b"1")
        assert names(tmp_path) == ["a\nb"]

    def test_writes_through_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        (tmp_path / "d/target").write_text("old")
        (tmp_path / "link").symlink_to("d/target")
        (tmp_path / "second").symlink_to("link")
        files.write(f"{tmp_path}/second", b"new")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "second").is_symlink()
        assert (tmp_path / "d/target").read_bytes() == b"new"
        assert names(tmp_path) == ["d", "link", "second"]

    def test_creates_what_a_link_points_at(self, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        (tmp_path / "link").symlink_to("d/new")
        files.write(f"{tmp_path}/link", b"x")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "d/new").read_bytes() == b"x"

    def test_creates_in_a_linked_directory(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to("real")
        files.write(f"{tmp_path}/link/sub/f", b"x")
        assert (tmp_path / "real/sub/f").read_bytes() == b"x"

    def test_makes_no_directories_for_a_links_target(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to("none/new")
        with failure("not_found"):
            files.write(f"{tmp_path}/link", b"x")
        assert names(tmp_path) == ["link"]

    def test_walks_dots_as_the_kernel_does(self, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        files.write(f"{tmp_path}/d/../f", b"x")
        assert names(tmp_path) == ["d", "f"]
        with failure("not_found"):
            files.write(f"{tmp_path}/none/../g", b"x")
        assert names(tmp_path) == ["d", "f"]

    def test_keeps_hard_links_together(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("the old content")
        os.link(tmp_path / "a", tmp_path / "b")
        files.write(f"{tmp_path}/a", b"new")
        assert (tmp_path / "b").read_bytes() == b"new"
        assert names(tmp_path) == ["a", "b"]

    def test_keeps_the_owner_of_somebody_elses_file(self, open_directory: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root can give files away")
        target = open_directory / "f"
        target.write_text("the old content")
        target.chmod(0o666)
        os.chown(target, 1234, 1234)
        with as_somebody_else():
            files.write(str(target), b"new")
        assert target.read_bytes() == b"new"
        assert (target.stat().st_uid, target.stat().st_gid) == (1234, 1234)
        assert names(open_directory) == ["f"]

    def test_writes_a_file_in_a_directory_that_it_may_not_change(
        self, open_directory: Path
    ) -> None:
        target = open_directory / "f"
        target.write_text("the old content")
        target.chmod(0o666)
        open_directory.chmod(0o555)
        with as_somebody_else():
            files.write(str(target), b"new")
        assert target.read_bytes() == b"new"

    def test_leaves_a_read_only_file_alone(self, open_directory: Path) -> None:
        target = open_directory / "f"
        with as_somebody_else():
            target.write_text("old")
            target.chmod(0o444)
            with failure("permission_denied"):
                files.write(str(target), b"new")
        assert target.read_bytes() == b"old"
        assert names(open_directory) == ["f"]

    def test_writes_a_file_that_is_a_mount_point(self, tmp_path: Path) -> None:
        (tmp_path / "source").write_text("the old content")
        (tmp_path / "f").touch()
        with mounted("-t", "tmpfs", "tmpfs") as directory:
            (directory / "f").touch()
            subprocess.run(["mount", "--bind", tmp_path / "source", directory / "f"], check=True)
            try:
                files.write(f"{directory}/f", b"new")
                assert names(directory) == ["f"]
            finally:
                subprocess.run(["umount", directory / "f"], check=True)
        assert (tmp_path / "source").read_bytes() == b"new"

    @pytest.mark.parametrize("path", ["newdir/", "d", "d/", "d/.", "d/x/.."])
    def test_does_not_take_a_directory_for_a_file(self, tmp_path: Path, path: str) -> None:
        (tmp_path / "d/x").mkdir(parents=True)
        with failure("is_directory", "is a directory"):
            files.write(f"{tmp_path}/{path}", b"x")
        assert names(tmp_path) == ["d"]
        assert names(tmp_path / "d") == ["x"]

    def test_does_not_wait_for_a_fifo(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "f")
        with failure("not_regular"):
            files.write(f"{tmp_path}/f", b"x")

    def test_refuses_sockets_and_devices(self, tmp_path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(tmp_path / "s"))
            with failure("not_regular"):
                files.write(f"{tmp_path}/s", b"x")
        with failure("not_regular"):
            files.write("/dev/null", b"x")

    def test_refuses_what_governs_the_helper_itself(self) -> None:
        before = Path("/proc/self/oom_score_adj").read_text()
        with failure("permission_denied"):
            files.write("/proc/self/oom_score_adj", b"1000")
        assert Path("/proc/self/oom_score_adj").read_text() == before

    def test_makes_nothing_when_a_name_is_too_long(self, tmp_path: Path) -> None:
        with failure("name_too_long", "file name too long"):
            files.write(f"{tmp_path}/d/{'x' * 256}", b"x")
        with failure("name_too_long"):
            files.write(f"{tmp_path}{'/a' * 3000}", b"x")
        assert names(tmp_path) == []

    def test_does_not_make_directories_out_of_files(self, tmp_path: Path) -> None:
        (tmp_path / "f").touch()
        with failure("not_directory"):
            files.write(f"{tmp_path}/f/x", b"x")
        with failure("not_directory"):
            files.write(f"{tmp_path}/f/x/y", b"x")
        with failure("not_found"):
            files.write(f"{tmp_path}/none/../f/x", b"x")
        assert names(tmp_path) == ["f"]

    def test_does_not_make_directories_where_a_link_points_at_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to("none")
        with failure("not_found"):
            files.write(f"{tmp_path}/link/f", b"x")
        assert names(tmp_path) == ["link"]

    def test_gives_up_on_links_in_a_circle(self, tmp_path: Path) -> None:
        (tmp_path / "a").symlink_to("b")
        (tmp_path / "b").symlink_to("a")
        with failure("link_loop"):
            files.write(f"{tmp_path}/a", b"x")

    def test_says_when_the_file_system_is_read_only(self) -> None:
        with (
            mounted("-t", "tmpfs", "-o", "ro", "tmpfs") as directory,
            failure("read_only", "read-only file system"),
        ):
            files.write(f"{directory}/f", b"x")

    def test_says_when_the_file_would_be_too_large(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("old")
        script = (
            "import resource, sys; from runner.helper import files\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
            "try: files.write(sys.argv[1], b'x' * 2000)\n"
            "except files.Failure as failure: print(failure.code)\n"
        )
        ran = subprocess.run(
            [sys.executable, "-c", script, tmp_path / "f"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout == "file_too_large\n"
        assert (tmp_path / "f").read_text() == "old"
        assert names(tmp_path) == ["f"]


class TestFullDisk:
    def test_keeps_the_old_content(self) -> None:
        with small_disk() as disk:
            (disk / "f").write_bytes(b"old" * 1000)
            with failure("no_space", "no space left on device"):
                files.write(f"{disk}/f", b"x" * 100_000)
            assert (disk / "f").read_bytes() == b"old" * 1000
            assert names(disk) == ["f"]

    def test_keeps_the_old_content_of_hard_links(self) -> None:
        with small_disk() as disk:
            (disk / "a").write_bytes(b"old" * 1000)
            os.link(disk / "a", disk / "b")
            with failure("no_space"):
                files.write(f"{disk}/a", b"x" * 100_000)
            assert (disk / "b").read_bytes() == b"old" * 1000

    def test_gives_back_what_could_be_reserved_of_the_room(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "a").write_text("old")
        os.link(tmp_path / "a", tmp_path / "b")

        def reserve_half(descriptor: int, offset: int, length: int) -> None:
            os.ftruncate(descriptor, length // 2)  # as ext4 does
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", reserve_half)
        with failure("no_space"):
            files.write(f"{tmp_path}/a", b"x" * 1000)
        assert (tmp_path / "a").read_text() == "old"

    def test_leaves_nothing_of_a_new_file(self) -> None:
        with small_disk() as disk:
            with failure("no_space"):
                files.write(f"{disk}/f", b"x" * 100_000)
            assert names(disk) == []

    def test_is_no_hindrance_to_content_that_fits_in_the_old_ones_place(self) -> None:
        with small_disk() as disk:
            (disk / "f").write_bytes(b"a" * 4000)
            with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
                while True:
                    filler.write(b"x" * 4096)
            assert files.replace(f"{disk}/f", b"a" * 4000, b"b" * 4096, MiB) == 1
            assert (disk / "f").read_bytes() == b"b" * 4096
            with failure("no_space"):
                files.write(f"{disk}/f", b"c" * 4097)
            assert (disk / "f").read_bytes() == b"b" * 4096
            assert names(disk) == ["f", "filler"]

    def test_keeps_what_an_edit_would_have_made_too_long(self) -> None:
        with small_disk() as disk:
            (disk / "f").write_bytes(b"axb")
            with failure("no_space"):
                files.replace(f"{disk}/f", b"x", b"x" * 100_000, MiB)
            assert (disk / "f").read_bytes() == b"axb"

    def test_overwrites_unreserved_where_room_cannot_be_reserved(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "a").write_text("the old content")
        os.link(tmp_path / "a", tmp_path / "b")

        def cannot(*_: object) -> None:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")

        monkeypatch.setattr(os, "posix_fallocate", cannot)
        files.write(f"{tmp_path}/a", b"new")
        assert (tmp_path / "b").read_bytes() == b"new"


class TestReplace:
    @pytest.mark.parametrize(
        ("content", "old", "new", "expected"),
        [
            (b"a\r\nb\r\n", b"b", b"c", b"a\r\nc\r\n"),
            (b"a\r\nb\nc\r", b"b", b"x\ny", b"a\r\nx\ny\nc\r"),
            (b"\xef\xbb\xbfhello", b"hello", b"bye", b"\xef\xbb\xbfbye"),
            (b"caf\xe9 b", b"b", b"c", b"caf\xe9 c"),
            (b"\0a\0b", b"b", b"", b"\0a\0"),
            (b"no newline", b"line", b"thing", b"no newthing"),
            (b"aaa", b"aa", b"b", b"ba"),
        ],
    )
    def test_changes_the_match_and_nothing_else(
        self, tmp_path: Path, content: bytes, old: bytes, new: bytes, expected: bytes
    ) -> None:
        (tmp_path / "f").write_bytes(content)
        (tmp_path / "f").chmod(0o755)
        assert files.replace(f"{tmp_path}/f", old, new, MiB) == 1
        assert (tmp_path / "f").read_bytes() == expected
        assert mode(tmp_path / "f") == 0o755

    @pytest.mark.parametrize(("content", "count"), [(b"b", 0), (b"a a", 2), (b"aaaa", 4), (b"", 0)])
    def test_touches_nothing_unless_there_is_exactly_one(
        self, tmp_path: Path, content: bytes, count: int
    ) -> None:
        (tmp_path / "f").write_bytes(content)
        before = os.stat(tmp_path / "f")
        assert files.replace(f"{tmp_path}/f", b"a", b"x", MiB) == count
        after = os.stat(tmp_path / "f")
        assert (tmp_path / "f").read_bytes() == content
        assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)

    def test_edits_through_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("a")
        (tmp_path / "link").symlink_to("f")
        assert files.replace(f"{tmp_path}/link", b"a", b"b", MiB) == 1
        assert (tmp_path / "f").read_text() == "b"
        assert (tmp_path / "link").is_symlink()

    def test_loses_none_of_many_edits_at_once(self, tmp_path: Path) -> None:
        words = [f"<{number}>" for number in range(40)]
        (tmp_path / "f").write_text(" ".join(words))
        start = threading.Barrier(8)

        def edit(mine: list[str]) -> None:
            start.wait()
            for word in mine:
                files.replace(f"{tmp_path}/f", word.encode(), b"done", MiB)

        threads = [threading.Thread(target=edit, args=(words[n::8],)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (tmp_path / "f").read_text() == " ".join(["done"] * 40)

    def test_does_not_edit_what_it_would_not_read(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        (tmp_path / "large").write_bytes(b"a" * 100)
        with failure("not_found"):
            files.replace(f"{tmp_path}/none", b"a", b"b", MiB)
        with failure("not_regular"):
            files.replace(f"{tmp_path}/fifo", b"a", b"b", MiB)
        with failure("is_directory"):
            files.replace(f"{tmp_path}", b"a", b"b", MiB)
        with failure("file_too_large"):
            files.replace(f"{tmp_path}/large", b"a", b"b", 99)


def edit(
    path: Path, *edits: tuple[bytes, bytes, bool], limit_bytes: int = MiB
) -> tuple[list[int], bool]:
    return files.edit(str(path), edits, limit_bytes, lambda: False)


class TestEdit:
    def test_makes_each_replacement_in_what_those_before_it_left(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"one two\r\n\xff two")
        edits = [(b"one", b"two", False), (b"two", b"three", True), (b"three\n", b"3", False)]
        assert edit(tmp_path / "f", *edits) == ([1, 3, 0], False)
        assert edit(tmp_path / "f", *edits[:2]) == ([1, 3], True)
        assert (tmp_path / "f").read_bytes() == b"three three\r\n\xff three"

    @pytest.mark.parametrize(
        ("edits", "counts"),
        [
            ([(b"a", b"b", False)], [3]),
            ([(b"x", b"b", False)], [0]),
            ([(b"x", b"b", True)], [0]),
            ([(b"a", b"b", True), (b"a", b"c", True), (b"b", b"c", True)], [3, 0]),
        ],
    )
    def test_writes_nothing_if_one_of_them_is_wrong(
        self, tmp_path: Path, edits: list[tuple[bytes, bytes, bool]], counts: list[int]
    ) -> None:
        (tmp_path / "f").write_text("aaa")
        before = tree(tmp_path)
        assert edit(tmp_path / "f", *edits) == (counts, False)
        assert tree(tmp_path) == before

    def test_counts_occurrences_that_do_not_overlap(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("aaaaa")
        assert edit(tmp_path / "f", (b"aa", b"b", True)) == ([2], True)
        assert (tmp_path / "f").read_text() == "bba"

    def test_keeps_the_mode(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("a")
        (tmp_path / "f").chmod(0o751)
        edit(tmp_path / "f", (b"a", b"b", False))
        assert mode(tmp_path / "f") == 0o751
        assert names(tmp_path) == ["f"]

    def test_makes_no_file_larger_than_it_would_edit(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("aaaa")
        with failure("file_too_large", "4 bytes, the limit is 3"):
            edit(tmp_path / "f", (b"aaaa", b"b", False), limit_bytes=3)
        with failure("file_too_large", "file too large: 12 bytes, the limit is 11"):
            edit(tmp_path / "f", (b"a", b"bbb", True), limit_bytes=11)
        assert edit(tmp_path / "f", (b"a", b"bbb", True), limit_bytes=12) == ([4], True)

    def test_refuses_to_replace_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("a")
        with failure("io", "empty"):
            edit(tmp_path / "f", (b"", b"b", True))

    def test_ends_between_two_replacements_when_nobody_wants_it_any_more(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "f").write_text("ab")
        answers = iter([False, True])
        with failure("cancelled"):
            files.edit(
                f"{tmp_path}/f",
                [(b"a", b"b", False), (b"b", b"c", True)],
                MiB,
                lambda: next(answers),
            )
        assert (tmp_path / "f").read_text() == "ab"

    def test_does_not_edit_what_it_would_not_read(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        with failure("not_found"):
            edit(tmp_path / "none", (b"a", b"b", False))
        with failure("not_regular"):
            edit(tmp_path / "fifo", (b"a", b"b", False))
        with failure("is_directory"):
            edit(tmp_path, (b"a", b"b", False))
        with failure("permission_denied"):
            edit(Path("/proc/self/status"), (b"a", b"b", False))


class TestAppend:
    def test_writes_behind_what_is_there(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"a\n")
        (tmp_path / "f").chmod(0o600)
        assert files.append(f"{tmp_path}/f", b"\xff\0") == 2
        assert files.append(f"{tmp_path}/f", b"") == 0
        assert (tmp_path / "f").read_bytes() == b"a\n\xff\0"
        assert mode(tmp_path / "f") == 0o600

    def test_makes_the_file_and_its_directories(self, tmp_path: Path) -> None:
        before = os.umask(0o077)
        try:
            assert files.append(f"{tmp_path}/d/e/f", b"ab") == 2
        finally:
            os.umask(before)
        assert (tmp_path / "d/e/f").read_bytes() == b"ab"
        assert (mode(tmp_path / "d"), mode(tmp_path / "d/e/f")) == (0o755, 0o644)

    def test_writes_through_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to("f")
        files.append(f"{tmp_path}/link", b"a")
        files.append(f"{tmp_path}/link", b"b")
        assert (tmp_path / "f").read_bytes() == b"ab"

    def test_leaves_a_file_as_it_was_when_the_disk_is_full(self) -> None:
        with small_disk() as disk:
            (disk / "f").write_bytes(b"old")
            with failure("no_space"):
                files.append(f"{disk}/f", bytes(MiB))
            with failure("no_space"):
                files.append(f"{disk}/g", bytes(MiB))
            assert (disk / "f").read_bytes() == b"old"
            assert names(disk) == ["f"]

    def test_does_not_write_to_what_is_no_file(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        (tmp_path / "f").touch()
        for path, code in {
            "fifo": "not_regular",
            ".": "is_directory",
            "d/": "is_directory",
            "f/x": "not_directory",
        }.items():
            with failure(code):
                files.append(f"{tmp_path}/{path}", b"x")
        with failure("permission_denied"):
            files.append("/proc/self/oom_score_adj", b"1")
        assert names(tmp_path) == ["f", "fifo"]


class TestResolve:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """A directory with `d/e/f` and links to its parts."""
        (tmp_path / "d/e").mkdir(parents=True)
        (tmp_path / "d/e/f").write_text("f")
        os.mkfifo(tmp_path / "fifo")
        for name, target in {
            "to-d": "d",
            "d/to-f": "e/f",
            "d/e/up": "..",
            "absolute": f"{tmp_path}/d/e",
            "chain": "to-chain",
            "to-chain": "to-d/e",
            "slash": "d/",
            "root": "/",
            "dangling": "d/new",
            "dangling-slash": "d/new/",
            "nowhere": "none/new",
            "a": "b",
            "b": "a",
        }.items():
            (tmp_path / name).symlink_to(target)
        return tmp_path

    @pytest.mark.parametrize(
        ("path", "leads_to"),
        [
            ("", ""),
            ("/", ""),
            ("/d/e/f", "/d/e/f"),
            ("//d///e/f", "/d/e/f"),
            ("/./d/./e/./f", "/d/e/f"),
            ("/d/e/", "/d/e"),
            ("/d/e/.", "/d/e"),
            ("/d/e/..", "/d"),
            ("/d/e/../../d/to-f", "/d/e/f"),
            ("/fifo", "/fifo"),
            # Links: first, in the middle, last, several, and what `..` behind one means.
            ("/to-d/e/f", "/d/e/f"),
            ("/d/to-f", "/d/e/f"),
            ("/d/e/up", "/d"),
            ("/d/e/up/e/up/to-f", "/d/e/f"),
            ("/absolute/f", "/d/e/f"),
            ("/chain/f", "/d/e/f"),
            ("/slash/e", "/d/e"),
            ("/slash", "/d"),
            ("/absolute/..", "/d"),
            ("/absolute/../../fifo", "/fifo"),
            ("/to-d/", "/d"),
            # What is missing.
            ("/none", "/none"),
            ("/none/", "/none"),
            ("/none/./x//y", "/none/x/y"),
            ("/to-d/none/x", "/d/none/x"),
            ("/dangling", "/d/new"),
            ("/to-d/../dangling", "/d/new"),
            ("/" + "x" * 255, "/" + "x" * 255),
            ("/d/a\nb \N{EURO SIGN}", "/d/a\nb \N{EURO SIGN}"),
        ],
    )
    def test_finds_where_a_path_leads(self, root: Path, path: str, leads_to: str) -> None:
        assert files.resolve(f"{root}{path}") == f"{root}{leads_to}"
        if os.path.exists(f"{root}{path}"):
            assert os.path.samefile(f"{root}{path}", f"{root}{leads_to}")

    @pytest.mark.parametrize(
        ("path", "code"),
        [
            ("/d/e/f/", "not_directory"),
            ("/d/e/f/.", "not_directory"),
            ("/d/e/f/..", "not_directory"),
            ("/d/e/f/x", "not_directory"),
            ("/d/to-f/", "not_directory"),
            ("/d/to-f/x", "not_directory"),
            ("/fifo/x", "not_directory"),
            ("/none/..", "not_found"),
            ("/none/../d/e/f", "not_found"),
            ("/none/x/../y", "not_found"),
            ("/none/.", "not_found"),
            ("/nowhere", "not_found"),
            ("/dangling/x", "not_found"),
            ("/dangling/..", "not_found"),
            ("/dangling-slash", "not_found"),
            ("/a", "link_loop"),
            ("/a/x", "link_loop"),
            ("/" + "x" * 256, "name_too_long"),
            ("/none/" + "x" * 256, "name_too_long"),
            ("/a" * 2048, "name_too_long"),
            ("/d\0", "io"),
        ],
    )
    def test_fails_where_the_kernel_gets_nowhere(self, root: Path, path: str, code: str) -> None:
        with failure(code):
            files.resolve(f"{root}{path}")
        if not path.endswith("/"):
            with failure(code):
                files.write(f"{root}{path}", b"")

    def test_follows_as_many_links_as_the_kernel(self, tmp_path: Path) -> None:
        (tmp_path / "0").write_text("f")
        for number in range(1, 42):
            (tmp_path / f"{number}").symlink_to(f"{number - 1}")
        assert files.resolve(f"{tmp_path}/40") == f"{tmp_path}/0"
        assert files.read(f"{tmp_path}/40", MiB) == b"f"
        for request in (files.resolve, lambda path: files.read(path, MiB)):
            with failure("link_loop"):
                request(f"{tmp_path}/41")

    def test_takes_paths_as_long_as_the_kernel_and_makes_none_longer(self, tmp_path: Path) -> None:
        short = "/w" * ((wire.MAX_PATH_BYTES - len(str(tmp_path))) // 2)
        assert files.resolve(f"{tmp_path}{short}") == f"{tmp_path}{short}"
        (tmp_path / "l").symlink_to("x" * 200)
        (tmp_path / ("x" * 200)).mkdir()
        with failure("name_too_long"):
            files.resolve(f"{tmp_path}/l{short[:-10]}")

    def test_is_refused_where_it_may_not_enter(self, open_directory: Path) -> None:
        (open_directory / "closed/d").mkdir(parents=True)
        (open_directory / "link").symlink_to("closed/d")
        (open_directory / "closed").chmod(0)
        with as_somebody_else():
            assert files.resolve(f"{open_directory}/closed") == f"{open_directory}/closed"
            for path in ("closed/d", "closed/none", "closed/..", "closed/.", "link"):
                with failure("permission_denied"):
                    files.resolve(f"{open_directory}/{path}")

    def test_takes_no_name_that_is_not_utf_8(self, tmp_path: Path) -> None:
        name = os.fsencode(tmp_path) + b"/\xff"
        os.mkdir(name)
        os.symlink(b"\xff/f", os.fsencode(tmp_path) + b"/link")
        with failure("io", "not UTF-8"):
            files.resolve(f"{tmp_path}/link")

    def test_says_of_links_of_proc_what_they_say(self, tmp_path: Path) -> None:
        with (tmp_path / "f").open("w") as file, socket.socket(socket.AF_UNIX) as connection:
            own = f"/proc/{os.getpid()}"
            assert files.resolve("/proc/self/root/proc") == "/proc"
            assert files.resolve("/proc/self/cwd") == os.getcwd()
            assert files.resolve(f"/proc/self/fd/{file.fileno()}") == f"{tmp_path}/f"
            leads_to = files.resolve(f"/proc/self/fd/{connection.fileno()}")
            assert leads_to.startswith(f"{own}/fd/socket:[")
            (tmp_path / "f").unlink()
            leads_to = files.resolve(f"/proc/self/fd/{file.fileno()}")
            assert leads_to == f"{tmp_path}/f (deleted)"


def read_there(judged: str) -> bytes:
    return files.read("/not/asked/for", MiB, judged=judged)


def write_there(judged: str) -> int:
    return files.write("/not/asked/for", b"new", judged=judged)


def replace_there(judged: str) -> int:
    return files.replace("/not/asked/for", b"old", b"new", MiB, judged=judged)


def edit_there(judged: str) -> tuple[list[int], bool]:
    edits = [(b"old", b"new", False)]
    return files.edit("/not/asked/for", edits, MiB, lambda: False, judged=judged)


def append_there(judged: str) -> int:
    return files.append("/not/asked/for", b"", judged=judged)


def part_there(judged: str) -> tuple[int, bytes]:
    return paging.part("/not/asked/for", 0, MiB, judged=judged)


def page_there(judged: str) -> tuple[dict[str, Any], bytes]:
    return paging.page("/not/asked/for", 1, 10, MiB, lambda: False, judged=judged)


READ_THERE = (read_there, part_there, page_there)
MAKE_THERE = (write_there, append_there)
THERE = (*READ_THERE, *MAKE_THERE, replace_there, edit_there)


class TestJudged:
    def test_is_where_is_acted_whatever_the_path_says(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("old")
        assert read_there(f"{tmp_path}/f") == b"old"
        assert replace_there(f"{tmp_path}/f") == 1
        assert read_there(f"{tmp_path}/f") == b"new"
        assert write_there(f"{tmp_path}/d/e/g") == 3
        assert (tmp_path / "d/e/g").read_bytes() == b"new"
        assert mode(tmp_path / "d/e") == 0o755
        assert mode(tmp_path / "d/e/g") == 0o644
        assert names(tmp_path) == ["d", "f"]

    @pytest.mark.parametrize("request_there", THERE)
    @pytest.mark.parametrize("link", ["a", "a/b", "a/b/c", "a/b/c/f"])
    @pytest.mark.parametrize("dangles", [False, True])
    def test_follows_no_link_anywhere(
        self, tmp_path: Path, request_there: Callable[[str], object], link: str, dangles: bool
    ) -> None:
        (tmp_path / "a/b/c").mkdir(parents=True)
        (tmp_path / "a/b/c/f").write_text("old")
        (tmp_path / link).rename(tmp_path / "moved")
        (tmp_path / link).symlink_to("/none" if dangles else tmp_path / "moved")
        before = tree(tmp_path)
        with failure("moved", "a link took the place"):
            request_there(f"{tmp_path}/a/b/c/f")
        assert tree(tmp_path) == before

    @pytest.mark.parametrize("request_there", THERE)
    @pytest.mark.parametrize("path", ["/proc/self/status", "/proc/1/root/etc/passwd"])
    def test_follows_no_link_of_proc(
        self, path: str, request_there: Callable[[str], object]
    ) -> None:
        with failure("moved" if request_there in READ_THERE else "permission_denied"):
            request_there(path)

    @pytest.mark.parametrize("request_there", THERE)
    def test_says_what_is_wrong_as_ever(
        self, tmp_path: Path, request_there: Callable[[str], object]
    ) -> None:
        (tmp_path / "f").touch()
        (tmp_path / "d").mkdir()
        os.mkfifo(tmp_path / "fifo")
        with failure("not_directory"):
            request_there(f"{tmp_path}/f/x")
        with failure("not_directory"):
            request_there(f"{tmp_path}/f/x/y")
        with failure("is_directory"):
            request_there(f"{tmp_path}/d")
        with failure("is_directory"):
            request_there("/")
        with failure("not_regular"):
            request_there(f"{tmp_path}/fifo")
        with failure("not_regular"):
            request_there("/dev/null")
        with failure("name_too_long"):
            request_there(f"{tmp_path}/{'x' * 256}")
        if request_there not in MAKE_THERE:
            with failure("not_found"):
                request_there(f"{tmp_path}/none")
            with failure("not_found"):
                request_there(f"{tmp_path}/none/f")
        assert names(tmp_path) == ["d", "f", "fifo"]

    @pytest.mark.parametrize("request_there", [write_there, replace_there, edit_there])
    @pytest.mark.parametrize("moment", ["open", "rename"])
    def test_a_swap_after_the_directory_was_opened_redirects_nothing(
        self,
        tmp_path: Path,
        request_there: Callable[[str], object],
        moment: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        for name in ("d", "elsewhere"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "f").write_text("old")
        real = getattr(os, moment)

        def swap_first(name: bytes, *arguments: object, **options: object) -> object:
            if name.startswith(b".runner-"):
                monkeypatch.undo()
                (tmp_path / "d").rename(tmp_path / "was-d")
                (tmp_path / "d").symlink_to("elsewhere")
            return real(name, *arguments, **options)

        monkeypatch.setattr(os, moment, swap_first)
        request_there(f"{tmp_path}/d/f")
        assert (tmp_path / "elsewhere/f").read_text() == "old"
        assert (tmp_path / "was-d/f").read_text() == "new"
        assert names(tmp_path / "elsewhere") == names(tmp_path / "was-d") == ["f"]

    @pytest.mark.parametrize("request_there", THERE)
    def test_a_link_that_takes_the_place_of_the_file_it_looked_at_is_not_followed(
        self,
        tmp_path: Path,
        request_there: Callable[[str], object],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        (tmp_path / "secret").write_text("old")
        (tmp_path / "f").symlink_to("secret")
        seen = os.stat(tmp_path / "secret")

        def sees_a_file(name: bytes, **options: object) -> os.stat_result:
            monkeypatch.undo()
            return seen

        monkeypatch.setattr(os, "stat", sees_a_file)
        with failure("moved"):
            request_there(f"{tmp_path}/f")
        assert (tmp_path / "secret").read_text() == "old"

    def test_leaves_no_descriptor_open(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("old")
        (tmp_path / "link").symlink_to("f")
        before = os.listdir("/proc/self/fd")
        for request_there in THERE:
            request_there(f"{tmp_path}/f")
            for path in ("link", "link/x", "f/x/y", "none/" + "x" * 256):
                with contextlib.suppress(Failure):
                    request_there(f"{tmp_path}/{path}")
        assert os.listdir("/proc/self/fd") == before


def tree(root: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns)
        for path in [root, *root.rglob("*")]
    }


def test_every_code_is_known_to_the_protocol() -> None:
    assert set(files._CODES.values()) <= wire.FAILURES
    assert Failure.of(OSError(errno.EIO, "x")).code == "io"
    assert Failure.of(OSError(errno.EDQUOT, "x")).code == "no_space"
    assert Failure.of(OSError(errno.EDQUOT, "x")).detail == "disk quota exceeded"
