"""Sessions whose calls may run as any user: what each of them is, and what none of them may."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from runner import AsyncRunner
from runner.answers import RequestFailed, RunResult
from tests.conftest import make_settings

pytestmark = pytest.mark.docker

Run = Callable[..., RunResult]


class Session:
    """A session, and its sandbox from a thread."""

    def __init__(self, run: Run, ask: Callable[..., Any], workspace: Path):
        self.run = run
        self.ask = ask
        self.workspace = workspace

    def says(self, command: str | list[str], **options: Any) -> str:
        """The output of a command that must not fail."""
        result = self.run(command, **options)
        assert (result.exit_code, result.ended) == (0, "exited"), result
        return result.output.decode()


def sessions(data_dir: Path, workspace: Path, **options: Any) -> Iterator[Session]:
    with start_blocking_portal() as portal:
        runner = AsyncRunner("default", settings=make_settings(data_dir))
        with portal.wrap_async_context_manager(runner):
            opened = runner.session(workspace=str(workspace), **options)
            with portal.wrap_async_context_manager(opened) as session:
                sandbox = portal.call(session._lease.sandbox)

                def run(command: str | list[str], **given: Any) -> RunResult:
                    return portal.call(
                        partial(sandbox.run, command, **{"deadline_s": 20.0, **given})
                    )

                def ask(name: str, *given: Any, **named: Any) -> Any:
                    return portal.call(partial(getattr(sandbox, name), *given, **named))

                yield Session(run, ask, workspace)


OWNER = 4321
"""Of the workspace; nobody in the image."""
ALL = 0xEB
"""CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID."""


@pytest.fixture(scope="module", params=[OWNER, 0], ids=["of somebody", "of root"])
def owner(request: pytest.FixtureRequest) -> int:
    """Whose the workspace is."""
    if os.getuid() != 0:
        pytest.skip("only root can give a workspace to somebody")
    return int(request.param)


@pytest.fixture(scope="module")
def users(
    docker_daemon: None, owner: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    workspace = tmp_path_factory.mktemp("workspace")
    os.chown(workspace, owner, owner)
    yield from sessions(tmp_path_factory.mktemp("data"), workspace, users=True)


RIGHTS = (
    "id -u; id -G; sed -n 's/^Cap\\(Prm\\|Eff\\|Amb\\).//p; s/^NoNewPrivs.//p' /proc/self/status"
)


def rights(session: Session, user: str | None) -> tuple[int, list[int], list[int], bool]:
    """Uid, groups, capabilities (permitted, effective, ambient), and whether it may get more."""
    uid, groups, *sets, closed = session.says(RIGHTS, user=user).splitlines()
    return int(uid), sorted(map(int, groups.split())), [int(one, 16) for one in sets], closed == "0"


def test_calls_are_the_owner_s_and_without_any_right(users: Session, owner: int) -> None:
    assert rights(users, None) == (owner, [owner], [0, 0, 0], False)
    if owner:
        assert rights(users, str(owner)) == rights(users, None)
    assert users.ask("write", "/workspace/d/mine", b"x") == 1
    users.says("echo > /workspace/call; echo > /tmp/x")
    # Root's files are root's, right or no right.
    assert (users.run("touch /etc/x").exit_code == 0) == (owner == 0)
    for name in ("d", "d/mine", "call"):
        status = (users.workspace / name).stat()
        assert (status.st_uid, status.st_gid) == (owner, owner)


def test_root_has_what_making_users_takes_and_no_more(users: Session) -> None:
    assert rights(users, "root") == (0, [0], [ALL, ALL, 0], False)
    assert rights(users, "0") == rights(users, "root")


@pytest.mark.parametrize("user", ["root", "daemon", None])
def test_whoever_it_is_goes_first_when_memory_runs_out(users: Session, user: str | None) -> None:
    assert users.says("cat /proc/self/oom_score_adj", user=user) == "500\n"


def test_a_user_is_made_used_and_removed(users: Session) -> None:
    made = users.run(["adduser", "--comment", "x", "--disabled-password", "some-one"], user="root")
    assert made.exit_code == 0, made
    users.says("groupadd -g 777 team; usermod -aG team some-one", user="root")

    line = "whoami; echo $HOME $USER $LOGNAME; echo > ~/file; echo seen > /dev/stdout"
    said = users.says(line, user="some-one")
    assert said == "some-one\n/home/some-one some-one some-one\nseen\n"
    uid, groups, sets, may_get_more = rights(users, "some-one")
    assert uid >= 1000
    assert 777 in groups
    assert (sets, may_get_more) == ([0, 0, 0], False)
    assert users.says("whoami", user=str(uid)) == "some-one\n"
    assert users.run("echo > /etc/x", user="some-one").exit_code != 0

    assert users.run(["userdel", "-r", "some-one"], user="root").exit_code == 0
    with pytest.raises(RequestFailed) as caught:
        users.run(["whoami"], user="some-one")
    assert (caught.value.code, "some-one" in caught.value.detail) == ("no_user", True)


def test_the_helper_s_own_work_has_no_more_rights_than_the_owner(
    users: Session, owner: int
) -> None:
    users.says("mkdir /root/d; echo secret > /root/d/f; chmod 600 /root/d/f", user="root")
    users.says("echo x > /workspace/shut; chmod 0 /workspace/shut")
    users.says("chmod 700 /root; install -m 600 /root/d/f /workspace/roots", user="root")

    for path in ("/workspace/shut", *(("/etc/shadow", "/workspace/roots") if owner else ())):
        with pytest.raises(RequestFailed) as caught:
            users.ask("read", path, limit_bytes=100)
        assert caught.value.code == "permission_denied"
    if owner:
        with pytest.raises(RequestFailed):
            users.ask("write", "/etc/passwd", b"")
    users.says("rm -f /workspace/shut /workspace/roots", user="root")


@pytest.mark.parametrize("user", ["root", "daemon", None])
def test_whoever_it_is_it_ends_when_it_is_told(users: Session, user: str | None) -> None:
    line = "(setsid sleep 3031 &); trap '' TERM; echo on; sleep 3031"
    result = users.run(line, user=user, deadline_s=0.5)

    assert (result.ended, result.output) == ("timed_out", b"on\n")
    assert users.run(["pgrep", "-xf", "sleep 3031"], user="root").output == b""


@pytest.mark.parametrize(
    "line",
    [
        "kill -9 1; sleep 0.1; echo alive",
        "cat /proc/1/environ; echo alive",
        "cat /proc/1/mem | head -c 1; echo alive",
        "ls -l /proc/1/fd/ | grep -F -e '->'; echo alive",
        "for fd in /proc/1/fd/*; do cat $fd; done; echo alive",
        "for entry in environ maps auxv; do cat /proc/$PPID/$entry; done; echo alive",
    ],
)
def test_root_has_no_way_into_the_helper_or_a_supervisor(users: Session, line: str) -> None:
    result = users.run(f"{{ {line}; }} 2>/dev/null", user="root")
    assert result.output == b"alive\n"


@pytest.mark.parametrize(
    "line",
    [
        "mount -t tmpfs none /mnt",
        "mount -o remount,rw /.runner",
        "umount /workspace",
        "mknod /tmp/sda b 8 0",
        "chroot / true",
        "unshare --user true",
        "echo > /.runner/app/start.py",
        "touch /.runner-io/x",
        "date -s 2000-01-01",
        "su daemon -s /bin/sh -c 'exec chroot / true'",
    ],
)
def test_root_can_not_do_what_makes_a_host_s_root(users: Session, line: str) -> None:
    assert users.run(line, user="root").exit_code != 0
    assert users.says("echo on") == "on\n"


def test_a_long_command_is_for_those_who_may_read_it(users: Session) -> None:
    line = "echo end #" + "x" * 200_000
    assert users.says(line) == "end\n"
    assert users.says(line, user="root") == "end\n"
    with pytest.raises(RequestFailed) as caught:
        users.run(line, user="daemon")
    assert caught.value.code == "argument_list_too_long"
