"""Files of a workspace, through the tools and a real container: whose they are, what survives.

The workspace is a directory of the host; what the tools did is looked at from there.
"""

import os
import re
import socket
import stat
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from runner import Runner, Session, Status, ToolResult
from runner.answers import RequestFailed
from runner.sandbox import Sandbox
from tests.conftest import OpenSession

pytestmark = pytest.mark.docker

T = TypeVar("T")

OWNER = 1001
STRANGER = 1002
MIB = 1024**2
GIB = 1024**3

as_root = pytest.mark.skipif(os.getuid() != 0, reason="gives files to other users")


def made(path: Path, owner: int, mode: int = 0o755) -> Path:
    """A directory of this owner."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    give(path, owner)
    return path


def give(path: Path, owner: int) -> None:
    if os.getuid() == 0:
        os.chown(path, owner, owner, follow_symlinks=False)


def owners(root: Path) -> set[tuple[int, int]]:
    return {(path.lstat().st_uid, path.lstat().st_gid) for path in root.rglob("*")}


@pytest.fixture(scope="module")
def here(
    docker_runner: Runner, carrier: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Session, Path]]:
    """A session on a workspace of the user's, and that workspace."""
    workspace = made(tmp_path_factory.mktemp("files"), OWNER)
    with docker_runner.session(workspace=workspace, carrier=carrier) as session:
        yield session, workspace


@pytest.fixture
def session(here: tuple[Session, Path]) -> Session:
    return here[0]


@pytest.fixture
def workspace(here: tuple[Session, Path]) -> Iterator[Path]:
    yield here[1]
    subprocess.run(["find", str(here[1]), "-mindepth", "1", "-delete"], check=True)


def put(workspace: Path, name: str, content: bytes, mode: int = 0o644) -> Path:
    path = workspace / name
    path.write_bytes(content)
    path.chmod(mode)
    give(path, OWNER)
    return path


# Whose files they are.


@as_root
def test_what_calls_make_belongs_to_the_owner_of_the_workspace(
    session: Session, workspace: Path
) -> None:
    assert session.bash("id -u; id -g").output == f"{OWNER}\n{OWNER}\n"
    session.bash("mkdir by-bash; echo a > by-bash/file; ln -s file by-bash/link")
    session.write("/workspace/by-write/deep/file", "a")
    session.edit("/workspace/by-bash/file", "a", "b")

    assert len(list(workspace.rglob("*"))) == 6
    assert owners(workspace) == {(OWNER, OWNER)}
    assert stat.S_IMODE((workspace / "by-write/deep/file").stat().st_mode) == 0o644
    assert stat.S_IMODE((workspace / "by-write/deep").stat().st_mode) == 0o755


@as_root
def test_a_workspace_for_its_owner_alone_works(open_session: OpenSession, tmp_path: Path) -> None:
    workspace = made(tmp_path / "private", OWNER, 0o700)
    session = open_session(workspace=workspace)

    assert session.write("/workspace/a", "a").status is Status.OK
    assert session.bash("cat a").output == "a"
    assert owners(workspace) == {(OWNER, OWNER)}
    assert stat.S_IMODE(workspace.stat().st_mode) == 0o700


@as_root
def test_calls_in_a_workspace_of_roots_run_without_any_capability(
    open_session: OpenSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workspace = made(tmp_path / "roots", 0)
    put(workspace, "strangers", b"secret", 0o600)
    caplog.set_level("WARNING", logger="runner")

    session = open_session(workspace=workspace)

    (warning,) = [r.getMessage() for r in caplog.records if "workspace.root" in r.getMessage()]
    assert str(workspace) in warning
    assert session.bash("id -u; grep CapEff /proc/self/status").output == (
        "0\nCapEff:\t0000000000000000\n"
    )
    assert session.write("/workspace/a", "a").status is Status.OK
    assert (workspace / "a").stat().st_uid == 0
    assert "Permission denied" in session.bash("cat strangers").output
    assert "Operation not permitted" in session.bash(f"chown {OWNER} a").output
    assert session.read("/workspace/strangers").error == (
        "read: open /workspace/strangers: permission denied"
    )
    assert "Read-only file system" in session.bash("touch /etc/x /usr/x").output
    helper = session.bash(
        "for f in environ fd/0 fd/1 fd/3 fd/4 mem; do head -c 1 /proc/1/$f; done;"
        " for f in fd/0 fd/1 fd/3 fd/4 mem; do true > /proc/1/$f; done; readlink /proc/1/exe; true"
    )
    assert helper.output.count("Permission denied") == 11, "nor is the helper open to them"
    assert "python" not in helper.output


def test_git_works_first_thing(open_session: OpenSession, tmp_path: Path) -> None:
    workspace = made(tmp_path / "repository", OWNER)
    author = "git config user.email a@b.c; git config user.name a"
    open_session(workspace=workspace).bash(f"git init -q; {author}; echo a > a; git add a")

    status = open_session(workspace=workspace).bash("git status --porcelain; git log")

    assert status.output.splitlines()[0] == "A  a"
    assert "dubious" not in status.output


@as_root
def test_git_works_in_a_repository_of_somebody_else(
    open_session: OpenSession, tmp_path: Path
) -> None:
    workspace = made(tmp_path / "repository", OWNER)
    open_session(workspace=workspace).bash("mkdir inner; cd inner; git init -q; echo a > a")
    for path in (workspace / "inner").rglob("*"):
        give(path, STRANGER)

    status = open_session(workspace=workspace).bash("cd inner; git status --porcelain")

    assert (status.status, status.output) == (Status.OK, "?? a\n")


def test_a_directory_of_the_users_outlives_the_session(
    docker_runner: Runner, carrier: str, tmp_path: Path
) -> None:
    workspace = made(tmp_path / "mine", OWNER)
    put(workspace, "before", b"a")
    with docker_runner.session(workspace=workspace, carrier=carrier) as session:
        session.write("/workspace/after", "b")

    assert {path.name for path in workspace.iterdir()} == {"before", "after"}


def test_a_managed_workspace_goes_with_its_session(docker_runner: Runner, carrier: str) -> None:
    with docker_runner.session(carrier=carrier) as session:
        workspace = Path(session.info.workspace)
        session.bash("mkdir -p a/b; echo c > a/b/c; chmod 0 a/b a")
        assert workspace.is_dir()

    assert not os.path.lexists(workspace)


# What an edit and a write keep.

KEPT = {
    "CRLF": (b"one\r\ntwo\r\n", "two", "2", b"one\r\n2\r\n"),
    "CRLF in what is looked for": (b"one\r\ntwo\r\n", "one\r\n", "1\r\n", b"1\r\ntwo\r\n"),
    "mixed line ends": (b"a\r\nb\nc\rd\n", "c", "C", b"a\r\nb\nC\rd\n"),
    "byte-order mark": (b"\xef\xbb\xbfa\n", "a", "b", b"\xef\xbb\xbfb\n"),
    "latin-1": (b"caf\xe9 one\n", "one", "\N{EURO SIGN}", b"caf\xe9 \xe2\x82\xac\n"),
    "no final newline": (b"a\nb", "b", "c", b"a\nc"),
    "no newline at all": (b"a", "a", "", b""),
    "NUL": (b"a\0b", "b", "c", b"a\0c"),
    "tabs and trailing blanks": (b"\ta \n", "a", "b", b"\tb \n"),
}


@pytest.mark.parametrize(("before", "old", "new", "after"), KEPT.values(), ids=KEPT.keys())
def test_an_edit_touches_no_other_byte(
    session: Session, workspace: Path, before: bytes, old: str, new: str, after: bytes
) -> None:
    path = put(workspace, "file", before)

    result = session.edit("/workspace/file", old, new)

    assert result.output == "edited /workspace/file (1 replacement)"
    assert path.read_bytes() == after


@pytest.mark.parametrize("mode", [0o755, 0o600, 0o444 | 0o200, 0o640])
def test_a_file_keeps_its_mode(session: Session, workspace: Path, mode: int) -> None:
    path = put(workspace, "script", b"#!/bin/sh\necho a\n", mode)

    session.edit("/workspace/script", "echo a", "echo b")
    assert stat.S_IMODE(path.stat().st_mode) == mode
    session.write("/workspace/script", "#!/bin/sh\necho c\n")

    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_bytes() == b"#!/bin/sh\necho c\n"
    if mode & 0o100:
        assert session.bash("./script").output == "c\n"


@as_root
def test_a_file_keeps_its_owner_and_its_other_names(session: Session, workspace: Path) -> None:
    path = put(workspace, "shared", b"a", 0o666)
    give(path, STRANGER)
    (workspace / "other-name").hardlink_to(path)

    assert session.write("/workspace/shared", "b").status is Status.OK
    assert session.edit("/workspace/shared", "b", "c").status is Status.OK

    assert (workspace / "other-name").read_bytes() == b"c"
    assert path.stat().st_uid == STRANGER


def test_edits_at_once_all_arrive(session: Session, workspace: Path) -> None:
    names = [f"<{n}>" for n in range(16)]
    path = put(workspace, "file", "\n".join(names).encode())

    with ThreadPoolExecutor(len(names)) as threads:
        results = threads.map(
            lambda name: session.edit("/workspace/file", name, name.upper() + "!"), names
        )

    assert all(result.status is Status.OK for result in results)
    assert path.read_text().split("\n") == [f"{name}!" for name in names]


# Names.

NAMES = {
    "longest": "n" * 255,
    "longest, of many bytes": "é" * 127,
    "newline": "a\nb",
    "blanks": "  a  b ",
    "dash": "-rf",
    "shell": "$(touch ran); `touch ran` > ran",
    "quotes": "a'b\"c\\d",
    "glob": "*[a-z]?",
    "control": "\x01\x1b[31m\x7f",
    "not composed": "e\N{COMBINING ACUTE ACCENT}",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_a_name_is_taken_byte_for_byte(session: Session, workspace: Path, name: str) -> None:
    path = f"/workspace/{name}"

    assert session.write(path, "one\n").output == f"wrote 4 bytes to {path}"
    assert session.edit(path, "one", "two").output == f"edited {path} (1 replacement)"
    assert session.read(path).output == "two\n"
    assert session.grep("two").output == f"{path}:1: two\n"
    assert [os.fsencode(entry.name) for entry in workspace.iterdir()] == [name.encode()]


def test_a_name_that_is_too_long_makes_nothing(session: Session, workspace: Path) -> None:
    name = "n" * 256
    path = f"/workspace/new/{name}"

    assert session.write(path, "a").error == f"write: open {path}: file name too long"
    assert str(session.read(f"/workspace/{name}").error).endswith(": file name too long")
    assert list(workspace.iterdir()) == []


def test_a_name_that_is_no_text_is_shown_with_replacements(
    session: Session, workspace: Path
) -> None:
    path = put(workspace, os.fsdecode(b"caf\xe9"), b"here\n")

    result = session.grep("here")

    assert result.output == "/workspace/caf\N{REPLACEMENT CHARACTER}:1: here\n"
    assert path.exists()


# What is no file, or too much of one.


def directory(workspace: Path) -> None:
    (workspace / "x").mkdir()


def fifo(workspace: Path) -> None:
    os.mkfifo(workspace / "x")


def listening(workspace: Path) -> None:
    before = Path.cwd()
    os.chdir(workspace)  # an address has room for 107 bytes only
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("x")
    finally:
        os.chdir(before)


def terminal(workspace: Path) -> None:
    os.mknod(workspace / "x", stat.S_IFCHR | 0o666, os.makedev(5, 0))


def null(workspace: Path) -> None:
    os.mknod(workspace / "x", stat.S_IFCHR | 0o666, os.makedev(1, 3))


def link_to_fifo(workspace: Path) -> None:
    os.mkfifo(workspace / "y")
    (workspace / "x").symlink_to("y")


def link_to_directory(workspace: Path) -> None:
    (workspace / "y").mkdir()
    (workspace / "x").symlink_to("y")


def link_to_itself(workspace: Path) -> None:
    (workspace / "x").symlink_to("x")


def gigabytes(workspace: Path) -> None:
    with (workspace / "x").open("wb") as file:
        file.truncate(3 * GIB)


SPECIAL: list[tuple[Callable[[Path], None], str]] = [
    (directory, "is a directory"),
    (link_to_directory, "is a directory"),
    (fifo, "not a regular file"),
    (link_to_fifo, "not a regular file"),
    (listening, "not a regular file"),
    (terminal, "not a regular file"),
    (null, "not a regular file"),
    (link_to_itself, "too many levels of symbolic links"),
]


@pytest.mark.parametrize(("make", "why"), SPECIAL, ids=lambda value: getattr(value, "__name__", ""))
def test_what_is_no_file_is_an_error_and_not_a_wait(
    session: Session, workspace: Path, make: Callable[[Path], None], why: str
) -> None:
    if make in (terminal, null) and os.getuid() != 0:
        pytest.skip("only root makes devices")
    make(workspace)
    for path in workspace.iterdir():
        give(path, OWNER)
    put(workspace, "plain", b"found\n")

    results = [
        session.read("/workspace/x"),
        session.edit("/workspace/x", "a", "b"),
        session.write("/workspace/x", "a"),
    ]
    found = session.grep("found")

    for result in results:
        assert result.status is Status.FAILED
        assert str(result.error).endswith(f"open /workspace/x: {why}")
        assert result.duration_s < 5
    assert found.output == "/workspace/plain:1: found\n"
    assert {path.name for path in workspace.iterdir()} <= {"x", "y", "plain"}
    assert not stat.S_ISREG((workspace / "x").lstat().st_mode), "it is what it was"


def test_gigabytes_are_refused_before_they_are_read(session: Session, workspace: Path) -> None:
    gigabytes(workspace)
    give(workspace / "x", OWNER)

    read = session.read("/workspace/x")
    edit = session.edit("/workspace/x", "a", "b")
    grep = session.grep("a")

    too_large = f"file too large: {3 * GIB} bytes, the limit is {16 * MIB}"
    assert read.error == f"read: open /workspace/x: {too_large}"
    assert edit.error == f"edit: read: open /workspace/x: {too_large}"
    assert (grep.output, grep.details["skipped_large"]) == ("no matches", 1)
    assert max(result.duration_s for result in (read, edit, grep)) < 5
    assert (workspace / "x").stat().st_size == 3 * GIB
    assert session.write("/workspace/x", "small").output == "wrote 5 bytes to /workspace/x"
    assert (workspace / "x").read_bytes() == b"small"


def test_the_largest_file_there_may_be_is_read_and_written(
    session: Session, workspace: Path
) -> None:
    put(workspace, "large", b"a" * (16 * MIB - 1) + b"b")

    read = session.read("/workspace/large")
    edited = session.edit("/workspace/large", "b", "c")

    assert (len(read.output), read.output[-2:]) == (16 * MIB, "ab")
    assert edited.status is Status.OK
    assert (workspace / "large").read_bytes() == b"a" * (16 * MIB - 1) + b"c"


@as_root
def test_a_disk_of_the_host_can_not_be_read_through_a_device(
    session: Session, workspace: Path
) -> None:
    """Not even where somebody left one in the workspace, for all to open."""
    device = Path("/").stat().st_dev
    os.mknod(workspace / "disk", stat.S_IFBLK | 0o666, device)
    (workspace / "disk").chmod(0o666)

    result = session.bash("head -c 1 disk; echo a > disk")

    assert re.search(r"head: .*Operation not permitted", result.output)
    assert result.is_error


def test_a_dangling_link_is_missing_to_read_and_a_place_to_write(
    session: Session, workspace: Path
) -> None:
    (workspace / "link").symlink_to("target")
    give(workspace / "link", OWNER)

    missing = "open /workspace/link: no such file or directory"
    assert session.read("/workspace/link").error == f"read: {missing}"
    assert session.edit("/workspace/link", "a", "b").error == f"edit: read: {missing}"
    assert session.write("/workspace/link", "a").status is Status.OK

    assert (workspace / "link").is_symlink()
    assert (workspace / "target").read_bytes() == b"a"


def test_a_link_out_of_the_workspace_leads_into_the_container(
    session: Session, workspace: Path, tmp_path: Path
) -> None:
    """Where the host has one file and the container another, it is the container's."""
    hosts = tmp_path / "hosts-own"
    hosts.write_text("the host's")
    for name, target in {
        "system": "/etc/passwd",
        "hosts": str(hosts),
        "up": "../../../../../../../../etc/passwd",
        "memory": "/tmp/new",
    }.items():
        (workspace / name).symlink_to(target)
        give(workspace / name, OWNER)

    passwd = session.bash("cat /etc/passwd").output
    assert session.read("/workspace/system").output == passwd
    assert session.read("/workspace/up").output == passwd
    assert str(session.read("/workspace/hosts").error).endswith("no such file or directory")
    for name in ("system", "up"):
        error = str(session.write(f"/workspace/{name}", "x").error)
        assert error.endswith(("permission denied", "read-only file system"))
    assert session.write("/workspace/memory", "x").status is Status.OK
    assert session.grep("root").output == "no matches", "links that lead out are not followed"
    assert hosts.read_text() == "the host's"
    assert not Path("/tmp/new").exists()


# Paths that are judged: where they lead, and that there and nowhere else is acted.


def ask(session: Session, request: Callable[[Sandbox], Awaitable[T]]) -> T:
    """The answer of the session's container, past tools and policy."""

    async def do() -> T:
        return await request(await session._session.sandbox())

    return session._portal.call(do)


def resolve(session: Session, path: str) -> str:
    return ask(session, lambda sandbox: sandbox.resolve(path))


def read(session: Session, judged: str) -> object:
    return ask(session, lambda sandbox: sandbox.read("/x", limit_bytes=99, judged=judged))


def write(session: Session, judged: str) -> object:
    return ask(session, lambda sandbox: sandbox.write("/x", b"two", judged=judged))


def replace(session: Session, judged: str) -> object:
    return ask(
        session,
        lambda sandbox: sandbox.replace("/x", b"two", b"2", limit_bytes=99, judged=judged),
    )


def test_a_path_leads_where_the_container_says(session: Session, workspace: Path) -> None:
    session.bash("mkdir -p d/e; echo a > d/e/f; ln -s d link; ln -s /workspace/d/e d/up; ln -s x x")
    (workspace / "out").symlink_to("/etc/hostname")
    for path, leads_to in {
        "/workspace/link/up/f": "/workspace/d/e/f",
        "/workspace/link/up/../new/f": "/workspace/d/new/f",
        "/workspace/out": "/etc/hostname",
        "/proc/self/root/workspace/link/e": "/workspace/d/e",
        "/": "/",
    }.items():
        assert resolve(session, path) == leads_to
        assert session.bash(f"realpath -m {path}").output.strip() == leads_to
    with pytest.raises(RequestFailed, match="link_loop"):
        resolve(session, "/workspace/x")


def test_what_was_judged_keeps_all_that_files_keep(session: Session, workspace: Path) -> None:
    script = put(workspace, "script", b"one", 0o750)
    shared = put(workspace, "shared", b"one", 0o666)
    (workspace / "other-name").hardlink_to(shared)
    give(shared, STRANGER)
    closed = made(workspace / "closed", STRANGER)
    put(closed, "f", b"one", 0o666)

    for name in ("script", "shared", "closed/f"):
        write(session, f"/workspace/{name}")
        replace(session, f"/workspace/{name}")
        assert (workspace / name).read_bytes() == b"2"

    assert stat.S_IMODE(script.stat().st_mode) == 0o750
    assert (workspace / "other-name").read_bytes() == b"2"
    if os.getuid() == 0:
        assert shared.stat().st_uid == STRANGER
    assert list(workspace.rglob(".runner-*")) == []


@pytest.mark.parametrize("act", [read, write, replace])
def test_no_link_is_followed_to_what_was_judged(
    session: Session, workspace: Path, act: Callable[[Session, str], object]
) -> None:
    session.bash("mkdir -p /tmp/out; echo secret > /tmp/out/f; mkdir d; echo a > d/f; ln -s d l")
    session.bash("ln -s /tmp/out out; ln -s d/f file")
    for path in ("l/f", "l/new", "out/f", "out/new", "file", "out"):
        with pytest.raises(RequestFailed, match="moved"):
            act(session, f"/workspace/{path}")
    for path in ("/proc/self/root/tmp/out/f", "/proc/1/cwd/tmp/out/f"):
        with pytest.raises(RequestFailed, match=r"moved|permission_denied"):
            act(session, path)
    assert session.bash("cat /tmp/out/f d/f; ls -A /tmp/out d").output == (
        "secret\na\n/tmp/out:\nf\n\nd:\nf\n"
    )


# A disk that is full, and one that is read-only.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A workspace with room for a megabyte."""
    path = made(tmp_path / "small", OWNER)
    options = f"size={MIB},mode=755,uid={OWNER},gid={OWNER}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "small", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@as_root
def test_a_full_disk_costs_no_old_content(open_session: OpenSession, small_disk: Path) -> None:
    session = open_session(workspace=small_disk)
    old = "old " * (MIB // 8)
    assert session.write("/workspace/kept", old).status is Status.OK

    too_much = "new " * 300_000
    results = [
        session.write("/workspace/kept", too_much),
        session.write("/workspace/another", too_much),
        session.edit("/workspace/kept", old, too_much),
    ]

    for result in results:
        assert result.status is Status.FAILED
        assert str(result.error).endswith("no space left on device"), result.error
    assert (small_disk / "kept").read_text() == old
    assert [path.name for path in small_disk.iterdir()] == ["kept"], "nothing half-made is left"
    assert session.write("/workspace/kept", "small").status is Status.OK
    assert (small_disk / "kept").read_text() == "small"


@as_root
def test_a_file_may_be_overwritten_where_there_is_room_for_one_of_both(
    open_session: OpenSession, small_disk: Path
) -> None:
    session = open_session(workspace=small_disk)
    size = 3 * MIB // 4
    session.write("/workspace/file", "a" * size)

    assert session.write("/workspace/file", "b" * size).status is Status.OK
    assert (small_disk / "file").read_bytes() == b"b" * size


def test_a_read_only_workspace_is_read_and_not_written(
    open_session: OpenSession, tmp_path: Path
) -> None:
    workspace = made(tmp_path / "shown", OWNER)
    path = put(workspace, "file", b"a\n")
    session = open_session(workspace=workspace, read_only=True)

    def refused(result: ToolResult) -> bool:
        return result.is_error and "read-only file system" in str(result.text).lower()

    assert session.read("/workspace/file").output == "a\n"
    assert session.grep("a").output == "/workspace/file:1: a\n"
    assert refused(session.write("/workspace/file", "b"))
    assert refused(session.write("/workspace/new/file", "b"))
    assert refused(session.edit("/workspace/file", "a", "b"))
    assert refused(session.bash("echo b > file"))
    assert refused(session.bash("touch new; rm file"))
    assert path.read_bytes() == b"a\n"
    assert [entry.name for entry in workspace.iterdir()] == ["file"]
