"""Paths that mean to lead somewhere else, and files that are none.

Each row runs twice: under its own policy, which has rules for paths, and under `default`, so
that what holds it is the tools and the container. Rows that a rule alone can refuse are
contained all the same without it, which is shown at the end.
"""

import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner import Policy, Runner, Session, Status, ToolResult
from runner.logs import visible
from tests.attacks.corpus import Row, rows
from tests.conftest import make_settings

pytestmark = pytest.mark.docker

SECRET = "known-to-the-host-only"
TIB = 1024**4

Prepare = Callable[[Path], None]
Check = Callable[[ToolResult, Path], None]


@pytest.fixture
def workspace(session: Session) -> Iterator[Path]:
    """The session's workspace, empty again afterwards."""
    yield from emptied(Path(session.info.workspace))


def emptied(path: Path) -> Iterator[Path]:
    yield path
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def give(workspace: Path) -> None:
    """Make what is there, and nowhere else, belong to whoever owns the workspace."""
    owner = workspace.stat()
    for path in workspace.rglob("*"):
        if path.is_dir() or path.lstat().st_nlink == 1:
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


# What rows need: their `why` says it.


def nothing(workspace: Path) -> None:
    pass


def fifo(workspace: Path) -> None:
    os.mkfifo(workspace / "fifo")


def unix_socket(workspace: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        # Relative, since the address has room for 107 bytes only.
        before = Path.cwd()
        os.chdir(workspace)
        try:
            listening.bind("sock")
        finally:
            os.chdir(before)


def links(workspace: Path) -> None:
    (workspace / "leak").symlink_to("/etc/passwd")
    (workspace / "d").symlink_to("/etc")
    (workspace / "dangling").symlink_to("/etc/cron.d/x")
    (workspace / "here.txt").write_text("root of the matter\n")


def special_files(workspace: Path) -> None:
    fifo(workspace)
    unix_socket(workspace)
    sparse(workspace, "sparse")
    (workspace / "plain").write_text("x\n")


def sparse(workspace: Path, name: str = "sparse-1T") -> None:
    with (workspace / name).open("wb") as file:
        file.truncate(TIB)


def hard_link(workspace: Path) -> None:
    secret = workspace.parent / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    (workspace / "hard").hardlink_to(secret)


def newline(workspace: Path) -> None:
    (workspace / "a\n.txt").write_text("content\n")


def normal_forms(workspace: Path) -> None:
    (workspace / "nfd-cafe\N{COMBINING ACUTE ACCENT}").write_text("decomposed")
    (workspace / "nfd-caf\N{LATIN SMALL LETTER E WITH ACUTE}").write_text("composed")


def option_like(workspace: Path) -> None:
    script = workspace / "evil.sh"
    script.write_text("#!/bin/sh\ntouch /workspace/ran\n")
    script.chmod(0o755)
    (workspace / "a.txt").write_text("one\n--pre=/workspace/evil.sh\n")


def repetitive(workspace: Path) -> None:
    (workspace / "a.txt").write_text("a" * 100_000 + "b\n")


def repository(workspace: Path) -> None:
    """A repository with a file to change, and a program that says whose rights it has."""
    script = "#!/bin/sh\nid -u >> /workspace/ran-as; touch /evil-was-here; cat /dev/null\n"
    (workspace / "evil.sh").write_text(script)
    (workspace / "evil.sh").chmod(0o755)
    (workspace / "h").mkdir()
    (workspace / "a.txt").write_text("one\n")


# What has to hold.


def is_error(result: ToolResult, workspace: Path) -> None:
    assert result.is_error
    assert result.output == ""


def finds_only(*lines: str) -> Check:
    def check(result: ToolResult, workspace: Path) -> None:
        assert result.output.splitlines() == list(lines)

    return check


def reads_no_secret(result: ToolResult, workspace: Path) -> None:
    assert SECRET not in str(result.as_dict())
    assert result.error == "read: open /workspace/hard: permission denied"


def is_quick(result: ToolResult, workspace: Path) -> None:
    assert result.status is Status.OK
    assert result.duration_s < 5


def finds_the_file_alone_and_is_quick(result: ToolResult, workspace: Path) -> None:
    is_quick(result, workspace)
    finds_only("/workspace/plain:1: x")(result, workspace)
    assert result.details["skipped_special"] == 2
    assert result.details["skipped_large"] == 1


def reads(text: str) -> Check:
    def check(result: ToolResult, workspace: Path) -> None:
        assert (result.status, result.output) == (Status.OK, text)

    return check


def makes_no_device(result: ToolResult, workspace: Path) -> None:
    assert result.output.count("Operation not permitted") == 2
    assert list(workspace.iterdir()) == []


def finds_no_socket(result: ToolResult, workspace: Path) -> None:
    assert "docker.sock -> /var/run/docker.sock" in result.output
    assert not (workspace / "docker.sock").resolve().is_relative_to(workspace)


def takes_it_for_a_pattern(result: ToolResult, workspace: Path) -> None:
    finds_only("/workspace/a.txt:2: --pre=/workspace/evil.sh")(result, workspace)
    assert not (workspace / "ran").exists()


def ran_in_the_container_only(result: ToolResult, workspace: Path) -> None:
    owner = workspace.stat().st_uid
    assert set((workspace / "ran-as").read_text().split()) == {str(owner)}, "it did run there"
    assert not Path("/evil-was-here").exists()


CHECKS: dict[str, tuple[Prepare, Check]] = {
    "PE-007": (nothing, is_error),
    "PE-008": (nothing, is_error),
    "PE-011": (nothing, is_error),
    "PE-024": (links, finds_only("/workspace/here.txt:1: root of the matter")),
    "PE-026": (links, finds_only("no matches")),
    "PE-027": (option_like, takes_it_for_a_pattern),
    "PE-028": (nothing, is_error),
    "PE-029": (hard_link, reads_no_secret),
    "PE-030": (fifo, is_error),
    "PE-031": (special_files, finds_the_file_alone_and_is_quick),
    "PE-032": (unix_socket, is_error),
    "PE-033": (fifo, is_error),
    "PE-043": (nothing, is_error),
    "PE-044": (nothing, is_error),
    "PE-046": (newline, reads("content\n")),
    "PE-047": (normal_forms, reads("decomposed")),
    "PE-048": (nothing, is_error),
    "PE-050": (nothing, makes_no_device),
    "PE-052": (nothing, finds_no_socket),
    "PE-055": (repository, ran_in_the_container_only),
    "PE-056": (repository, ran_in_the_container_only),
    "PE-057": (repository, ran_in_the_container_only),
    "PE-058": (repository, ran_in_the_container_only),
    "RS-022": (sparse, is_error),
    "RS-023": (repetitive, is_quick),
    "RS-024": (nothing, is_error),
}
"""By row: the files it needs, and what its verdict means."""
GUARDED = [row for row in rows(["path-escape", "resource"]) if row.policy and row.id not in CHECKS]
"""Rows that are refused by their policies' rules for paths."""
(GUARD,) = {row.policy for row in rows(["path-escape", "resource"]) if row.policy}
ROWS = set(CHECKS) | {row.id for row in GUARDED}
WORDS = {
    "PE-044": "file name too long",
    "RS-024": "compile pattern: error parsing regexp: invalid repetition size",
}
"""What we call the trouble, where the row calls it something else."""
GIT = (
    "git init -q; git config user.email a@b; git config user.name a; git add a.txt;"
    " cp evil.sh h/ready; git commit -qm one; echo two > a.txt; {}"
)


def tree(workspace: Path) -> dict[str, tuple[int, int]]:
    """Everything below, with its kind and size: what no error may change."""
    found = {}
    for path in workspace.rglob("*"):
        status = path.lstat()
        found[str(path)] = (stat.S_IFMT(status.st_mode), status.st_size)
    return found


@pytest.fixture(scope="module")
def guarded(docker_daemon: None, shared_data_dir: Path, carrier: str) -> Iterator[Session]:
    """A session under the policy of the rows."""
    settings = make_settings(shared_data_dir)
    with (
        Runner(Policy.parse(str(GUARD)), settings=settings) as runner,
        runner.session(carrier=carrier) as session,
    ):
        yield session


@pytest.fixture
def guarded_workspace(guarded: Session) -> Iterator[Path]:
    """Its workspace, empty again afterwards."""
    yield from emptied(Path(guarded.info.workspace))


@pytest.mark.parametrize("row", [row for row in rows() if row.id in CHECKS], ids=lambda row: row.id)
def test_the_row_comes_out_as_it_has_to(row: Row, session: Session, workspace: Path) -> None:
    comes_out_as_it_has_to(row, session, workspace)


@pytest.mark.parametrize(
    "row",
    [row for row in rows() if row.id in CHECKS and row.policy == GUARD],
    ids=lambda row: row.id,
)
def test_the_row_comes_out_the_same_under_its_policy(
    row: Row, guarded: Session, guarded_workspace: Path
) -> None:
    comes_out_as_it_has_to(row, guarded, guarded_workspace)


@pytest.mark.parametrize("row", GUARDED, ids=lambda row: row.id)
def test_what_leads_elsewhere_is_refused(
    row: Row, guarded: Session, guarded_workspace: Path
) -> None:
    links(guarded_workspace)
    give(guarded_workspace)
    before = tree(guarded_workspace), unchanged()

    result = guarded.call(row.tool, row.raw)

    assert result.status is Status.DENIED or (row.verdict == "error" and result.is_error)
    assert result.output == ""
    assert (tree(guarded_workspace), unchanged()) == before


def test_what_does_not_is_not_refused(guarded: Session, guarded_workspace: Path) -> None:
    links(guarded_workspace)
    (guarded_workspace / "alias").symlink_to("here.txt")
    (guarded_workspace / "x").mkdir()
    give(guarded_workspace)

    assert guarded.read("/workspace/alias").output == "root of the matter\n"
    assert guarded.read("/workspace/./x/../here.txt").status is Status.OK
    assert guarded.write("/workspace/.gitignore", "*.pyc\n").status is Status.OK
    assert guarded.write("/workspace/new/deep/file", "x").status is Status.OK
    assert guarded.edit("/workspace/alias", "root", "heart").status is Status.OK
    assert (guarded_workspace / "here.txt").read_text() == "heart of the matter\n"


def comes_out_as_it_has_to(row: Row, session: Session, workspace: Path) -> None:
    prepare, check = CHECKS[row.id]
    prepare(workspace)
    give(workspace)
    before = tree(workspace)
    raw: object = row.raw if prepare is not repository else {"command": GIT.format(row.command)}

    started = time.monotonic()
    result = session.call(row.tool, raw)  # type: ignore[arg-type]
    took_s = time.monotonic() - started

    check(result, workspace)
    assert took_s < 20, "nothing hangs"
    if row.verdict == "error":
        assert WORDS.get(row.id, row.words) in str(result.error)
        assert tree(workspace) == before


def test_no_git_of_the_host_runs_in_a_workspace(
    session: Session, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a repository that runs programs on every `git status` is read, changed and searched."""
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    repository(workspace)
    give(workspace)

    assert session.bash("git init -q && git config core.fsmonitor /workspace/evil.sh").output == ""
    session.bash("git status")
    session.write("/workspace/b.txt", "b\n")
    session.edit("/workspace/b.txt", "b", "c")
    session.grep("c")
    session.read("/workspace/.git/config")

    assert (workspace / "ran-as").exists(), "it did run in the container"
    assert not (tmp_path / "ran").exists()


def test_a_newline_in_a_name_forges_no_line(
    session: Session, workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forged = '2026-01-01 error tool.execute tool="forged"'
    path = f"/workspace/a\n{forged}"
    caplog.set_level("DEBUG", logger="runner")

    result = session.read(path)

    assert result.error == f"read: open {path}: no such file or directory"
    for record in caplog.records:
        assert len(record.getMessage().splitlines()) == 1
    assert visible(result.text).splitlines()[1].startswith(forged), "text is shown as it is"


# Under `default` no rule refuses these: they run, and the container holds them.


def unchanged() -> dict[str, bytes]:
    """What is the host's, and must stay so."""
    return {
        str(path): path.read_bytes()
        for path in map(Path, ("/etc/passwd", "/etc/group", "/etc/hosts"))
        if path.exists()
    } | {"new": str(Path("/etc/new.txt").exists()).encode()}


@pytest.mark.parametrize("row", GUARDED, ids=lambda row: row.id)
def test_what_no_rule_refuses_reaches_nothing_of_the_host(
    row: Row, session: Session, workspace: Path
) -> None:
    links(workspace)
    give(workspace)
    before = unchanged()

    result = session.call(row.tool, row.raw)

    assert unchanged() == before
    # The machine may be as new as the image: then its files say the same.
    of_the_image = {session.read(path).output for path in before}
    for host_file in before.values():
        text = host_file.decode(errors="replace")
        assert text in of_the_image or text != result.output
    if row.tool == "write" and result.status is Status.OK:
        (path,) = re.findall(r"wrote \d+ bytes to /workspace/(.*)", result.output)
        written = (workspace / path).lstat()
        assert written.st_uid == workspace.stat().st_uid, "it is the container's user's"
        assert not stat.S_ISLNK(written.st_mode)


@pytest.mark.parametrize("id", ["PE-012", "PE-015", "PE-016", "RS-021"])
def test_files_of_the_helper_itself_say_nothing(id: str, session: Session) -> None:
    (row,) = (row for row in rows() if row.id == id)

    result = session.call(row.tool, row.raw)

    assert result.is_error
    assert result.output == ""
